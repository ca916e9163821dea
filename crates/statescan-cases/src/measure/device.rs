//! The time that passes take on another device than the CPU, by its own clock.

use crate::call::{Call, Input};
use crate::error::{Error, Result};
use crate::measure::measured::Measured;
use crate::memory::{self, CotangentKind, Limits};
use crate::on_device::OnDevice;
use crate::ops;
use statescan::Exec;
use statescan::cuda::{Ceilings, Graph, elapsed};
use statescan::tensor::Tensor;
use std::time::Duration;

/// Returns the highest rates of the device, in words.
pub fn rates(exec: &Exec, ceilings: &Ceilings) -> String {
    let Ceilings { bytes, flops, exps } = ceilings;
    format!("{}: copy {bytes:.0} GB/s, multiply-add {flops:.0} GFLOP/s, exp {exps:.0} G/s", exec.device())
}

/// Why an operation has no kernel on a device, if that is what an error says.
pub fn missing(error: &Error) -> Option<&'static str> {
    let Error::Op { error, .. } = error else { return None };
    match &**error {
        statescan::Error::Unavailable { why, .. } => Some(why),
        _ => None,
    }
}

/// Returns, in words, the results of a pass that are not within the bounds of the oracle.
///
/// # Errors
/// Those of the operation.
pub fn wrong(exec: &Exec, call: &Call, backward: bool) -> Result<Vec<String>> {
    let off = Measured::new(call.clone())?.check_passes(exec, backward)?;
    Ok(off.iter().map(|c| format!("{} is off by {:.1e}", c.name, c.max_abs)).collect())
}

/// The time of a pass, or of one of its kernels, and the bytes of the pass.
///
/// # Errors
/// Those of the operation.
pub fn time(exec: &Exec, call: &Call, backward: bool, kernel: Option<&str>) -> Result<(Duration, usize)> {
    let mut copies = copies(exec, call, backward)?;
    let time = median(exec, &mut copies, backward, kernel)?;
    let bytes = if backward { copies[0].backward_bytes() } else { copies[0].forward_bytes() };
    Ok((time, bytes))
}

/// The time that the device takes for a pass, or for one of its kernels: the median of some launches of a graph that repeats it, over copies of
/// the call that take turns, so that no cache holds what comes next.
///
/// # Errors
/// Those of the operation.
pub fn median(exec: &Exec, copies: &mut [OnDevice], backward: bool, kernel: Option<&str>) -> Result<Duration> {
    let mut pass = |i: usize| {
        let at = i % copies.len();
        if backward { copies[at].backward(exec) } else { copies[at].forward(exec) }
    };
    // compiled first, then warm
    pass(0)?;
    let once = elapsed(exec, || pass(0))?;
    let count = (LAUNCH.as_nanos() / once.as_nanos().max(1000)).clamp(4, 200) as usize;
    let calls = || (0..count).try_for_each(&mut pass);
    let graph = match kernel {
        Some(name) => Graph::record_kernel(exec, name, calls)?,
        None => Graph::record(exec, calls)?,
    };
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        // SAFETY: the copies are alive, and whoever looks at them waits for the stream first.
        times.push(elapsed(exec, || unsafe { graph.launch() })?);
    }
    times.sort();
    Ok(times[REPEATS / 2] / count as u32)
}

/// About how long a launch of a graph is.
const LAUNCH: Duration = Duration::from_millis(4);
const REPEATS: usize = 9;

/// Copies of a call to be timed, with cotangents if the operation has gradients: as many as no cache holds at once.
///
/// # Errors
/// As [`OnDevice::new`].
pub fn copies(exec: &Exec, call: &Call, backward: bool) -> Result<Vec<OnDevice>> {
    let cotangents = match backward {
        true => Some(memory::cotangents(call, CotangentKind::Ones, Limits::default())?),
        false => None,
    };
    let mut all: Vec<OnDevice> = Vec::new();
    while all.len() < 2 || all.len() * all[0].forward_bytes() < CACHED && all.len() < 32 {
        let mut copy = OnDevice::new(exec, call, backward)?;
        if let Some(cotangents) = &cotangents {
            copy = copy.with_cotangents(exec, cotangents)?;
            copy.forward(exec)?;
        }
        all.push(copy);
    }
    Ok(all)
}

/// More bytes than any cache holds.
const CACHED: usize = 256 << 20;

/// The call with its batch repeated, which is quicker than drawing numbers for all of it.
///
/// # Errors
/// Memory that is not there.
pub fn repeated(call: &Call, times: usize) -> Result<Call> {
    let repeat = |input: &Input| -> Result<Input> {
        let mut shape = input.buffer.shape().to_vec();
        // the states of an operation in place belong to the rows of the batch
        let of_rows = |layout: &str| layout.starts_with('B') || ops::is_state(call.op, input.argument);
        if !input.argument.layout(shape.len()).is_some_and(of_rows) {
            return Ok(input.clone());
        }
        shape[0] *= times;
        let mut buffer = Tensor::host(input.buffer.dtype(), &shape)?;
        let one = input.buffer.bytes();
        buffer.bytes_mut().chunks_exact_mut(one.len().max(1)).for_each(|rows| rows.copy_from_slice(one));
        Ok(Input { buffer, ..input.clone() })
    };
    let inputs = call.inputs.iter().map(repeat).collect::<Result<_>>()?;
    Ok(Call { inputs, ..call.clone() })
}
