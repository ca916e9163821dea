//! The native functions: a pass of any operation, whose signature says what to take and what to make.

use crate::call::{Arguments, Keep, Made};
use crate::error::to_python;
use crate::exec::Place;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use statescan::ops::Summary;
use statescan::ops::call::{Call, Given, LANES, Value, Written};
use statescan::ops::operation::Operation;
use statescan::ops::signature::{Argument, Choice, Saved, Signature};
use statescan::{View, ViewMut};

/// The operation with a number among [`Operation::every`].
pub fn operation(number: usize) -> PyResult<&'static Operation> {
    Operation::every().nth(number).ok_or_else(|| PyIndexError::new_err("there is no such operation"))
}

/// Takes the arguments and options of a call.
pub fn take<'a>(arguments: &mut Arguments<'a, '_>, signature: &'static Signature) -> PyResult<Call<'a>> {
    let mut call = Call::new(signature);
    for (argument, view) in signature.arguments.iter().zip(&mut call.views) {
        *view = match argument.required {
            true => Some(arguments.tensor(argument.name)?),
            false => arguments.option(argument.name)?,
        };
    }
    for (option, value) in signature.options.iter().zip(&mut call.values) {
        *value = match option.choice {
            Choice::Flag(_) => Value::Flag(arguments.value(option.name, "True or False")?),
            Choice::Count(_) => Value::Count(arguments.value(option.name, "a whole number")?),
            Choice::Number(_) => Value::Number(arguments.value(option.name, "a number")?),
            Choice::Interval => {
                let (low, high) = arguments.interval(option.name)?;
                Value::Interval(low, high)
            }
            Choice::Word(words, default) => Value::Word(arguments.word(option.name, words, default.is_none())?),
        };
    }
    Ok(call)
}

/// Computes the results that are asked for. As the other passes, it answers None, before it has done anything, if its place is an
/// [`Unobserved`](crate::exec::Unobserved) one and the call is not.
#[pyfunction]
pub fn forward<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
) -> PyResult<Option<Made<'py>>> {
    let Some(place) = Place::of(place, inputs.get_borrowed_item(0)?, [inputs, outputs])? else { return Ok(None) };
    compute(operation(number)?, inputs, outputs, &place, Part::Whole).map(Some)
}

/// The second phase of such a pass; what the first one has kept is behind its inputs.
#[pyfunction]
pub fn forward_rest<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: Place<'py>,
) -> PyResult<Made<'py>> {
    compute(operation(number)?, inputs, outputs, &place, Part::Rest)
}

/// Whether saved states have no lanes that nothing is written to.
fn is_filled(call: &Call<'_>) -> bool {
    let Saved::States { padded: Some(letter), .. } = call.signature.saved else { return true };
    let size = |(argument, view): (&Argument, &Option<View<'_>>)| {
        let view = view.as_ref()?;
        let layout = argument.layouts.iter().find(|layout| layout.len() == view.rank())?;
        layout.find(letter).map(|axis| view.shape()[axis])
    };
    call.signature.arguments.iter().zip(&call.views).find_map(size).is_some_and(|size| size.is_multiple_of(LANES))
}

/// The part of a pass that is asked for.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    Whole,
    /// The second phase.
    Rest,
}

/// The results of an operation that are made.
pub fn compute<'py>(
    operation: &'static Operation,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: &Place<'py>,
    part: Part,
) -> PyResult<Made<'py>> {
    let (keep, exec) = (Keep::default(), place.exec()?);
    let signature = operation.signature;
    let mut arguments = Arguments::new(signature.name, inputs, outputs, place, &exec, &keep);
    let call = take(&mut arguments, signature)?;
    let prepared = operation.prepare(&exec, &call).map_err(to_python)?;
    let mut out = Written::default();
    for (at, output) in signature.results.iter().enumerate().filter(|(_, output)| output.cotangent) {
        let like = output.like.and_then(|name| signature.argument(name)).and_then(|at| Some((at, call.views[at].as_ref()?)));
        let planned = prepared.result(at);
        out.views[at] = match like {
            Some(like) => arguments.result_like(output.name, like, planned.dtype)?,
            None => arguments.result(output.name, planned.dtype, planned.shape)?,
        };
    }
    if matches!(signature.saved, Saved::States { .. }) {
        let (needed, capacity) = (|| prepared.saved_len(), || call.saved_capacity());
        out.saved = arguments.saved_output(call.saved_type(), capacity, needed, is_filled(&call))?;
    }
    if part == Part::Rest {
        let ends = arguments.tensor("ends")?;
        return arguments.run(move |_| prepared.forward_rest(ends, &mut out));
    }
    out.workspace = arguments.scratch(|| prepared.workspace_len())?;
    arguments.run(move |_| prepared.forward(&mut out))
}

/// Computes the gradients that are asked for.
#[pyfunction]
pub fn backward<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
) -> PyResult<Option<Made<'py>>> {
    let Some(place) = Place::of(place, inputs.get_borrowed_item(0)?, [inputs, outputs])? else { return Ok(None) };
    differentiate(operation(number)?, inputs, outputs, &place, Part::Whole).map(Some)
}

/// The second phase of such a pass; what the first one has kept is behind its inputs.
#[pyfunction]
pub fn backward_rest<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: Place<'py>,
) -> PyResult<Made<'py>> {
    differentiate(operation(number)?, inputs, outputs, &place, Part::Rest)
}

/// The gradients of an operation that are made.
pub fn differentiate<'py>(
    operation: &'static Operation,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: &Place<'py>,
    part: Part,
) -> PyResult<Made<'py>> {
    let (keep, exec) = (Keep::default(), place.exec()?);
    let signature = operation.signature;
    let mut arguments = Arguments::new(signature.name, inputs, outputs, place, &exec, &keep);
    let call = take(&mut arguments, signature)?;
    let prepared = operation.prepare(&exec, &call).map_err(to_python)?;
    let saved = match signature.saved {
        Saved::Nothing => None,
        Saved::Result(at) => arguments.option(signature.results[at].name)?,
        Saved::States { .. } => arguments.saved(|| prepared.saved_len())?,
    };
    let mut given = Given { saved, ..Given::default() };
    take_cotangents(&mut arguments, signature, &mut given)?;
    let ends = if part == Part::Rest { Some(arguments.tensor("ends")?) } else { None };
    let mut grads = Written::default();
    for (argument, gradient) in signature.arguments.iter().zip(&mut grads.views).filter(|(argument, _)| argument.gradient) {
        *gradient = arguments.gradient(argument.name)?;
    }
    grads.workspace = arguments.scratch(|| prepared.backward_workspace_len(given.saved.is_some()))?;
    arguments.run(move |_| match ends {
        Some(ends) => prepared.backward_rest(ends, &given, &mut grads),
        None => prepared.backward(&given, &mut grads),
    })
}

fn take_cotangents<'a>(arguments: &mut Arguments<'a, '_>, signature: &'static Signature, given: &mut Given<'a>) -> PyResult<()> {
    for (output, cotangent) in signature.results.iter().filter(|output| output.cotangent).zip(&mut given.cotangents) {
        *cotangent = arguments.option(output.cotangent_name)?;
    }
    Ok(())
}

/// How many numbers the first phases of a forward and of a backward pass keep; 0 where a pass is not in two phases.
#[pyfunction]
pub fn ends_len<'py>(number: usize, inputs: &Bound<'py, PyTuple>, place: Place<'py>) -> PyResult<[usize; 2]> {
    let (operation, keep, exec) = (operation(number)?, Keep::default(), place.exec()?);
    let none = PyTuple::empty(inputs.py());
    let mut arguments = Arguments::new(operation.signature.name, inputs, &none, &place, &exec, &keep);
    let call = take(&mut arguments, operation.signature)?;
    Ok(operation.prepare(&exec, &call).map_err(to_python)?.ends_len())
}

/// The first phase of a forward pass: what it keeps, the state after the slice and its decay.
#[pyfunction]
pub fn forward_ends<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: Place<'py>,
) -> PyResult<Made<'py>> {
    let (operation, keep, exec) = (operation(number)?, Keep::default(), place.exec()?);
    let mut arguments = Arguments::new(operation.signature.name, inputs, outputs, &place, &exec, &keep);
    let call = take(&mut arguments, operation.signature)?;
    let prepared = operation.prepare(&exec, &call).map_err(to_python)?;
    let ends = arguments.state("ends")?;
    let out = Summary::default().state(arguments.slice_result("state")?).decay(arguments.slice_result("decay")?);
    arguments.run(move |_| prepared.forward_ends(ends, out))
}

/// The first phase of a backward pass, whose inputs are those of the call and its cotangents: what it keeps, and the gradient by the state that enters.
#[pyfunction]
pub fn backward_ends<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: Place<'py>,
) -> PyResult<Made<'py>> {
    let (operation, keep, exec) = (operation(number)?, Keep::default(), place.exec()?);
    let mut arguments = Arguments::new(operation.signature.name, inputs, outputs, &place, &exec, &keep);
    let call = take(&mut arguments, operation.signature)?;
    let prepared = operation.prepare(&exec, &call).map_err(to_python)?;
    let mut given = Given::default();
    take_cotangents(&mut arguments, operation.signature, &mut given)?;
    let (ends, entering) = (arguments.state("ends")?, arguments.state("entering")?);
    arguments.run(move |_| prepared.backward_ends(ends, &given, entering))
}

/// Computes what a slice of a sequence does to the state that enters it: its state and its decay, whichever are asked for. The arguments are
/// checked in any case.
#[pyfunction]
pub fn summary<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: Place<'py>,
) -> PyResult<Made<'py>> {
    let (operation, keep, exec) = (operation(number)?, Keep::default(), place.exec()?);
    let mut arguments = Arguments::new(operation.signature.name, inputs, outputs, &place, &exec, &keep);
    let call = take(&mut arguments, operation.signature)?;
    let [state, decay] = [arguments.slice_result("state")?, arguments.slice_result("decay")?];
    if state.is_none() && decay.is_none() {
        return arguments.run(|_| operation.state_shape(&call).map(drop));
    }
    let workspace = arguments.scratch(|| operation.summary_workspace_len(&exec, &call))?;
    arguments.run(|exec| operation.summary(exec, &call, Summary::default().state(state).decay(decay).workspace(workspace)))
}

/// Computes a step: the state, which is the first output, changes.
#[pyfunction]
pub fn update<'py>(
    number: usize,
    inputs: &Bound<'py, PyTuple>,
    outputs: &Bound<'py, PyTuple>,
    place: &Bound<'py, PyAny>,
) -> PyResult<Option<Made<'py>>> {
    let Some(place) = Place::of(place, outputs.get_borrowed_item(0)?, [inputs, outputs])? else { return Ok(None) };
    let (operation, keep, exec) = (operation(number)?, Keep::default(), place.exec()?);
    let signature = operation.signature;
    let mut arguments = Arguments::new(signature.name, inputs, outputs, &place, &exec, &keep);
    let call = take(&mut arguments, signature)?;
    let mut out = Written::default();
    let state = signature.in_place.ok_or_else(|| PyIndexError::new_err("the operation has no state that changes"))?;
    out.state = Some(arguments.state(state.name)?);
    let like = signature.results[0]
        .like
        .and_then(|name| signature.argument(name))
        .expect("a step's result has the shape of an argument");
    let shaped = call.views[like].as_ref().expect("that argument is required");
    out.views[0] = Some(arguments.step_result((like, shaped), call.result_type(0))?);
    if number >= Operation::ALL.len() {
        let mut own = call;
        own.state = out.state.as_ref().map(ViewMut::as_view);
        let workspace = arguments.scratch(|| operation.workspace_len(&exec, &own))?;
        out.workspace = workspace;
    }
    arguments.run(|exec| operation.forward(exec, &call, &mut out)).map(Some)
}
