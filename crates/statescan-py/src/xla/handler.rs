//! The handler that XLA calls, on one of its threads and without the interpreter.

use super::abi::{self, code};
use super::frame::{Failure, Frame, Items};
use super::rounding::Usual;
use super::{BACKWARD, FORWARD, Positions, UPDATE};
use crate::exec;
use pyo3::prelude::*;
use statescan::ops::call::{Call, Given, Value, Written};
use statescan::ops::operation::{Operation, Prepared};
use statescan::ops::signature::{Choice, Saved, Signature};
use statescan::{Device, Exec, View, ViewMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The addresses of the handlers for the CPU and for CUDA.
#[pyfunction]
pub fn handlers() -> (usize, usize) {
    (on_cpu as *const () as usize, on_cuda as *const () as usize)
}

unsafe extern "C" fn on_cpu(frame: *const abi::Frame) -> *mut abi::Error {
    // SAFETY: XLA calls a handler with its frame.
    unsafe { answer(frame, false) }
}

unsafe extern "C" fn on_cuda(frame: *const abi::Frame) -> *mut abi::Error {
    // SAFETY: as above.
    unsafe { answer(frame, true) }
}

/// Does what a frame asks for; null if that went well.
///
/// # Safety
/// The frame is one of XLA's, for a handler of the right device.
unsafe fn answer(frame: *const abi::Frame, on_cuda: bool) -> *mut abi::Error {
    // SAFETY: the caller's contract.
    let Some(frame) = (unsafe { Frame::new(frame) }) else { return std::ptr::null_mut() };
    if let Some(metadata) = frame.metadata() {
        // SAFETY: XLA's struct to be filled in.
        unsafe { describe(frame, metadata, on_cuda) };
        return std::ptr::null_mut();
    }
    if frame.stage() != abi::EXECUTE {
        return std::ptr::null_mut();
    }
    let _usual = Usual::new();
    let failure = match catch_unwind(AssertUnwindSafe(|| run(frame, on_cuda))) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::internal("a kernel has panicked"),
    };
    frame.error(failure)
}

/// Says what the handler is. Where something is not known here, the version is left as it is, at zero: XLA refuses the handler.
///
/// # Safety
/// `metadata` is XLA's struct of this name.
unsafe fn describe(frame: Frame<'_>, metadata: *mut abi::Metadata, on_cuda: bool) {
    // SAFETY: the size comes first.
    if metadata.is_null() || unsafe { *metadata.cast::<usize>() } < abi::Metadata::SIZE {
        return;
    }
    // SAFETY: so much of it is there, and it is ours to fill in.
    let metadata = unsafe { &mut *metadata };
    let Some(version) = frame.api().map(|api| api.version) else { return };
    if version.struct_size != size_of::<abi::Version>() || version.major != abi::MAJOR {
        return;
    }
    (metadata.version.major, metadata.version.minor) = (version.major, version.minor.min(abi::MINOR));
    metadata.traits = if on_cuda { abi::RECORDABLE } else { 0 };
}

/// Runs a pass.
fn run(frame: Frame<'_>, on_cuda: bool) -> Result<(), Failure> {
    let exec = match on_cuda {
        false => exec::for_xla(),
        true => {
            let (ordinal, stream) = frame.queue()?;
            exec::cuda(ordinal, stream, false)?
        }
    };
    let number = usize::try_from(frame.number("operation")?).unwrap_or(usize::MAX);
    let operation = Operation::every().nth(number).ok_or_else(|| Failure::internal("there is no such operation"))?;
    let (takes, gives) = (Positions(frame.number("takes")?), Positions(frame.number("gives")?));
    let (mut read, mut written) = (frame.arguments(), frame.results());
    if read.len() != takes.count() || written.len() != gives.count() {
        return Err(Failure::internal("a call has another number of buffers than it says"));
    }
    let mut call = Call::new(operation.signature);
    set_values(&mut call, operation.signature, frame.numbers("values")?)?;
    for at in 0..operation.signature.arguments.len() {
        if takes.has(at) {
            call.views[at] = Some(read.read(exec.device())?);
        }
    }
    match frame.number("pass")? {
        FORWARD => forward(operation, &exec, &call, &mut written, gives),
        BACKWARD => backward(operation, &exec, &call, (&mut read, takes), (&mut written, gives)),
        UPDATE if takes.has(Positions::STATE) => update(operation, &exec, &call, &mut written),
        _ => Err(Failure::internal("there is no such pass")),
    }
}

/// The options of a call from the numbers that [`numbers`] makes of them.
fn set_values(call: &mut Call<'_>, signature: &'static Signature, numbers: &[f64]) -> Result<(), Failure> {
    let mut numbers = numbers.iter().copied();
    for (option, value) in signature.options.iter().zip(&mut call.values) {
        let mut next = || numbers.next().ok_or_else(|| Failure::internal("a call has fewer options than its operation"));
        *value = match option.choice {
            Choice::Flag(_) => Value::Flag(next()? != 0.0),
            Choice::Count(_) => Value::Count(next()? as usize),
            Choice::Number(_) => Value::Number(next()?),
            Choice::Interval => Value::Interval(next()?, next()?),
            Choice::Word(words, _) => {
                let word = next()?;
                Value::Word((word >= 0.0 && (word as usize) < words.len()).then_some(word as usize))
            }
        };
    }
    Ok(())
}

/// The options of a call as numbers.
pub fn numbers(call: &Call<'_>) -> Vec<f64> {
    let mut numbers = Vec::new();
    for value in &call.values[..call.signature.options.len()] {
        match *value {
            Value::Flag(flag) => numbers.push(f64::from(u8::from(flag))),
            Value::Count(count) => numbers.push(count as f64),
            Value::Number(number) => numbers.push(number),
            Value::Interval(low, high) => numbers.extend([low, high]),
            Value::Word(word) => numbers.push(word.map_or(-1.0, |word| word as f64)),
        }
    }
    numbers
}

fn forward(
    operation: &Operation,
    exec: &Exec,
    call: &Call<'_>,
    written: &mut Items<'_>,
    gives: Positions,
) -> Result<(), Failure> {
    let prepared = operation.prepare(exec, call)?;
    let mut out = Written::default();
    for at in (0..operation.signature.results.len()).filter(|at| gives.has(*at)) {
        out.views[at] = Some(written.write(exec.device())?);
    }
    if gives.has(Positions::SAVED) {
        let buffer = written.write(exec.device())?;
        out.saved = part(buffer.shape()[..].iter().product(), prepared.saved_len()).map(|len| buffer.slice(0, 0..len));
    }
    out.workspace = workspace(exec, written, gives, prepared.workspace_len()?)?;
    Ok(prepared.forward(&mut out)?)
}

fn backward(
    operation: &Operation,
    exec: &Exec,
    call: &Call<'_>,
    (read, takes): (&mut Items<'_>, Positions),
    (written, gives): (&mut Items<'_>, Positions),
) -> Result<(), Failure> {
    let prepared = operation.prepare(exec, call)?;
    let mut given = Given { saved: saved(operation, &prepared, exec, read, takes)?, ..Given::default() };
    for (at, cotangent) in Positions::COTANGENTS.into_iter().zip(&mut given.cotangents) {
        if takes.has(at) {
            *cotangent = Some(read.read(exec.device())?);
        }
    }
    let mut grads = Written::default();
    for at in (0..operation.signature.arguments.len()).filter(|at| gives.has(*at)) {
        grads.views[at] = Some(written.write(exec.device())?);
    }
    let len = prepared.backward_workspace_len(given.saved.is_some())?;
    grads.workspace = workspace(exec, written, gives, len)?;
    Ok(prepared.backward(&given, &mut grads)?)
}

/// Returns the states that the forward pass has saved, if it has saved them: where a device saves states and another one does
/// not, there may be no room.
fn saved<'f>(
    operation: &Operation,
    prepared: &Prepared<'_>,
    exec: &Exec,
    read: &mut Items<'f>,
    takes: Positions,
) -> Result<Option<View<'f>>, Failure> {
    if !takes.has(Positions::SAVED) {
        return Ok(None);
    }
    let buffer = read.read(exec.device())?;
    if !matches!(operation.signature.saved, Saved::States { .. }) {
        return Ok(Some(buffer));
    }
    Ok(part(buffer.len(), prepared.saved_len()).map(|len| buffer.slice(0, 0..len)))
}

/// The part of a buffer for saved states that is used; none if there is no room for them.
fn part(available: usize, needed: usize) -> Option<usize> {
    (needed <= available).then_some(needed)
}

/// Scratch memory, of which XLA has planned as much as this device was said to need.
fn workspace<'f>(exec: &Exec, written: &mut Items<'f>, gives: Positions, needed: usize) -> Result<Option<ViewMut<'f>>, Failure> {
    if needed == 0 || exec.device() == Device::Cpu {
        return Ok(None);
    }
    let buffer = if gives.has(Positions::WORKSPACE) { Some(written.write(exec.device())?) } else { None };
    match buffer.filter(|buffer| buffer.shape()[..].iter().product::<usize>() >= needed) {
        Some(buffer) => Ok(Some(buffer.slice(0, 0..needed))),
        None => {
            let words = "statescan: this device needs more scratch memory than the one that the function was compiled for";
            Err(Failure::new(code::RESOURCE_EXHAUSTED, words))
        }
    }
}

/// A step, whose state is the argument behind the others and the first result: XLA has put both into one buffer.
fn update(operation: &Operation, exec: &Exec, call: &Call<'_>, written: &mut Items<'_>) -> Result<(), Failure> {
    let mut out = Written { state: Some(written.write(exec.device())?), ..Written::default() };
    out.views[0] = Some(written.write(exec.device())?);
    Ok(operation.forward(exec, call, &mut out)?)
}
