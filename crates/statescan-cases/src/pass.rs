//! The library's passes over named tensors.

use crate::call::Call;
use crate::error::{Error, Result};
use crate::tensors::{SAVED, Tensors, WORKSPACE};
use statescan::ops::call::{Given, Written};
use statescan::ops::operation::Exact;
use statescan::ops::signature::Saved;
use statescan::tensor::Shape;
use statescan::{DType, Exec, View};

/// The description of a result before it is computed.
#[derive(Debug, Clone)]
pub struct Planned {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// The results of a call. With `save`, also what the backward pass wants kept.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn plan(call: &Call, save: bool) -> Result<Vec<Planned>> {
    let (op, bound) = (call.op, call.bind()?);
    let mut all = Vec::new();
    for (at, output) in op.signature.results.iter().enumerate() {
        let result = op.result(&bound, at).map_err(|e| call.locate(e))?;
        all.push(Planned { name: output.name, dtype: result.dtype, shape: result.shape });
    }
    if let (Some(argument), Some(state)) = (op.signature.in_place, bound.state) {
        all.push(Planned { name: argument.name, dtype: state.dtype(), shape: state.shape() });
    }
    if save && matches!(op.signature.saved, Saved::States { .. }) {
        let len = op.saved_len(&bound).map_err(|e| call.locate(e))?;
        let shape = Shape::new(&[len]).map_err(statescan::Error::from)?;
        all.push(Planned { name: SAVED, dtype: bound.saved_type(), shape });
    }
    Ok(all)
}

/// Starts a state that is updated in place from the argument of the same name.
///
/// # Errors
/// [`Error::Missing`].
pub fn prepare(call: &Call, out: &mut Tensors) -> Result<()> {
    if let Some(state) = call.op.signature.in_place {
        call.need(state)?;
        if let Some(input) = call.input(state.name) {
            out.copy_from(state.name, &input.buffer);
        }
    }
    Ok(())
}

/// Computes the results that `out` has room for.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn forward(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    let (signature, bound) = (call.op.signature, call.bind()?);
    let mut room = out.writers();
    let mut written = Written::default();
    for (output, view) in signature.results.iter().zip(&mut written.views) {
        *view = room.take(output.name);
    }
    written.state = signature.in_place.and_then(|state| room.take(state.name));
    (written.saved, written.workspace) = (room.take(SAVED), room.take(WORKSPACE));
    call.op.forward(exec, &bound, &mut written).map_err(|e| call.locate(e))
}

/// Computes the gradients that `grads` has room for; `saved` are the results of a forward pass.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn backward(exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
    let (signature, bound) = (call.op.signature, call.bind()?);
    let given = Given { saved: kept(call, saved), ..given(call, cotangents) };
    let mut room = grads.writers();
    let mut written = Written::default();
    for (argument, view) in signature.arguments.iter().zip(&mut written.views) {
        *view = room.take(argument.name);
    }
    written.workspace = room.take(WORKSPACE);
    call.op.backward(exec, &bound, &given, &mut written).map_err(|e| call.locate(e))
}

/// Returns the states that a forward pass saved for the backward pass. A result that was rounded to 16 bits is better computed
/// again.
fn kept<'a>(call: &Call, saved: &'a Tensors) -> Option<View<'a>> {
    match call.op.signature.saved {
        Saved::Nothing => None,
        Saved::Result(at) => saved.view(call.op.signature.results[at].name).filter(|result| result.dtype().real().size() > 2),
        Saved::States { .. } => saved.view(SAVED),
    }
}

fn given<'a>(call: &Call, cotangents: &'a Tensors) -> Given<'a> {
    let mut given = Given::default();
    for (output, view) in call.op.signature.results.iter().zip(&mut given.cotangents) {
        *view = cotangents.view(output.name);
    }
    given
}

/// Elements of f32 that a forward pass wants as scratch memory, under the name [`WORKSPACE`].
///
/// # Errors
/// Arguments that the operation refuses.
pub fn workspace(exec: &Exec, call: &Call) -> Result<usize> {
    call.op.workspace_len(exec, &call.bind()?).map_err(|e| call.locate(e))
}

/// Returns the workspace length of a backward pass.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn workspace_backward(exec: &Exec, call: &Call, saved: &Tensors) -> Result<usize> {
    let has_saved = kept(call, saved).is_some();
    call.op.backward_workspace_len(exec, &call.bind()?, has_saved).map_err(|e| call.locate(e))
}

/// The results in `f64`.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn reference(call: &Call) -> Result<Exact> {
    call.op.reference(&call.bind()?).map_err(|e| call.locate(e))
}

/// The gradients in `f64`.
///
/// # Errors
/// [`Error::NoGradients`]; arguments that the operation refuses.
pub fn reference_backward(call: &Call, cotangents: &Tensors) -> Result<Exact> {
    differentiable(call)?;
    call.op.reference_backward(&call.bind()?, &given(call, cotangents)).map_err(|e| call.locate(e))
}

/// Whether a call has gradients.
///
/// # Errors
/// [`Error::NoGradients`].
pub fn differentiable(call: &Call) -> Result<()> {
    if call.op.signature.differentiable { Ok(()) } else { Err(Error::NoGradients { op: call.op.signature.name }) }
}
