//! Running a call: memory for its results, the passes, cotangents.

use crate::call::{Call, Tensors};
use crate::cli::CotangentName;
use crate::device;
use crate::error::{Error, Result};
use crate::operation::{Planned, Role};
use crate::sample::Rng;
use num_complex::Complex64;
use statescan::Exec;
use statescan::tensor::Buffer;
use std::time::{Duration, Instant};

/// The most memory that the results of a call may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes.
    pub bytes: u64,
}

impl Default for Limits {
    /// The memory that the machine has left.
    fn default() -> Self {
        Limits { bytes: available_memory().unwrap_or(8 << 30) }
    }
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn allocate(call: &Call, planned: &[Planned], limits: Limits) -> Result<Tensors> {
    let too_large = |plan: &Planned, got: String| Error::TooLarge {
        op: call.op.name(),
        argument: plan.name.to_string(),
        got,
        limit: format!("{} bytes", limits.bytes),
    };
    let mut total = 0u64;
    for plan in planned {
        let bytes = plan.shape.checked_len().and_then(|n| n.checked_mul(plan.dtype.size())).map(|n| n as u64);
        let bytes = bytes.ok_or_else(|| too_large(plan, format!("shape {}", plan.shape)))?;
        total = total.saturating_add(bytes);
        if total > limits.bytes {
            return Err(too_large(plan, format!("shape {} ({bytes} bytes)", plan.shape)));
        }
    }
    let mut tensors = Tensors::default();
    for plan in planned {
        tensors.push(plan.name, Buffer::zeros(plan.dtype, &plan.shape)?);
    }
    Ok(tensors)
}

/// Memory for the results of a call; with `save` also for what the backward pass wants kept.
///
/// # Errors
/// Arguments that the operation refuses; [`Error::TooLarge`].
pub fn results(call: &Call, save: bool, limits: Limits) -> Result<Tensors> {
    let planned = call.op.plan(call, save).map_err(|e| call.locate(e))?;
    allocate(call, &planned, limits)
}

/// Memory for the gradients of every argument that is there.
///
/// # Errors
/// [`Error::NoGradients`], [`Error::TooLarge`].
pub fn gradients(call: &Call, limits: Limits) -> Result<Tensors> {
    if !call.op.differentiable() {
        return Err(Error::NoGradients { op: call.op.name() });
    }
    let planned: Vec<_> = call
        .inputs
        .iter()
        .filter(|i| !matches!(i.argument.role, Role::Index | Role::Hint))
        .map(|i| Planned { name: i.argument.name, dtype: i.buffer.dtype(), shape: i.buffer.shape() })
        .collect();
    allocate(call, &planned, limits)
}

/// Computes the results that there is room for, on whatever device: the tensors are on the host.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn forward(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    if device::is_elsewhere(exec) {
        return device::forward(exec, call, out);
    }
    call.op.prepare(call, out).and_then(|()| call.op.forward(exec, call, out)).map_err(|e| call.locate(e))
}

/// The forward pass once more, for timing: what is computed in place goes on from where it is.
///
/// # Errors
/// As [`forward`].
pub fn again(exec: &Exec, call: &Call, out: &mut Tensors) -> Result<()> {
    call.op.forward(exec, call, out).map_err(|e| call.locate(e))
}

/// Computes the gradients that there is room for. On another device than the host it makes a forward pass first, for what that saves there.
///
/// # Errors
/// Arguments that the operation refuses.
pub fn backward(exec: &Exec, call: &Call, saved: &Tensors, cotangents: &Tensors, grads: &mut Tensors) -> Result<()> {
    if device::is_elsewhere(exec) {
        return device::backward(exec, call, cotangents, grads);
    }
    call.op.backward(exec, call, saved, cotangents, grads).map_err(|e| call.locate(e))
}

/// Cotangents for all results of a call.
///
/// # Errors
/// As [`results`].
pub fn cotangents(call: &Call, kind: CotangentName, limits: Limits) -> Result<Tensors> {
    let planned = call.op.plan(call, false).map_err(|e| call.locate(e))?;
    let planned: Vec<_> = planned.into_iter().filter(|p| call.op.has_cotangent(p.name)).collect();
    let empty = allocate(call, &planned, limits)?;
    let mut rng = Rng::new(1);
    let mut filled = Tensors::default();
    for (name, buffer) in empty.iter() {
        let mut buffer = buffer.clone();
        let complex = buffer.dtype().is_complex();
        buffer.fill_with(|| match kind {
            CotangentName::Ones => Complex64::ONE,
            CotangentName::Random => Complex64::new(rng.normal(), if complex { rng.normal() } else { 0.0 }),
        });
        filled.push(name, buffer);
    }
    Ok(filled)
}

/// Median of repeated runs, within a time and a number of runs, after one that does not count.
///
/// # Errors
/// Those of the runs.
pub fn median(budget: Duration, most: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || (times.len() < most && start.elapsed() < budget) {
        let begin = Instant::now();
        run()?;
        times.push(begin.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// The median of some figures, the upper one of two.
pub fn middle(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
