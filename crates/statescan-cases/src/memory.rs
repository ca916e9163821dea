//! Memory for what a call computes, within a limit; and cotangents.

use crate::call::Call;
use crate::error::{Error, Result};
use crate::ops;
use crate::pass::{self, Planned};
use crate::rng::Rng;
pub use crate::room::{Limits, fits, need};
use crate::tensors::Tensors;
use num_complex::Complex64;
use statescan::tensor::Tensor;

fn allocate(call: &Call, planned: &[Planned], limits: Limits) -> Result<Tensors> {
    let too_large = |plan: &Planned, got: String| Error::TooLarge {
        op: call.op.signature.name,
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
    need("results and gradients of this call", total)?;
    let mut tensors = Tensors::default();
    for plan in planned {
        tensors.push(plan.name, Tensor::host(plan.dtype, &plan.shape)?);
    }
    Ok(tensors)
}

/// Memory for the results of a call; with `save` also for what the backward pass wants kept.
///
/// # Errors
/// Arguments that the operation refuses; [`Error::TooLarge`].
pub fn results(call: &Call, save: bool, limits: Limits) -> Result<Tensors> {
    let planned = pass::plan(call, save)?;
    allocate(call, &planned, limits)
}

/// Memory for the gradients of every argument that is there.
///
/// # Errors
/// [`Error::NoGradients`], [`Error::TooLarge`].
pub fn gradients(call: &Call, limits: Limits) -> Result<Tensors> {
    pass::differentiable(call)?;
    let planned: Vec<_> = call
        .inputs
        .iter()
        .filter(|i| i.argument.gradient)
        .map(|i| Planned { name: i.argument.name, dtype: i.buffer.dtype(), shape: i.buffer.shape() })
        .collect();
    allocate(call, &planned, limits)
}

/// Which cotangents to use where nothing gives any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CotangentKind {
    /// All ones: the gradients of the sum of all results.
    Ones,
    /// Normal numbers from a fixed seed.
    Random,
}

/// Cotangents for all results of a call.
///
/// # Errors
/// As [`results`].
pub fn cotangents(call: &Call, kind: CotangentKind, limits: Limits) -> Result<Tensors> {
    let planned = pass::plan(call, false)?;
    let planned: Vec<_> =
        planned.into_iter().filter(|p| ops::results(call.op).any(|r| r.name == p.name && r.cotangent)).collect();
    let empty = allocate(call, &planned, limits)?;
    let mut rng = Rng::new(1);
    let mut filled = Tensors::default();
    for (name, buffer) in empty.iter() {
        let mut buffer = buffer.clone();
        let complex = buffer.dtype().is_complex();
        buffer.fill_with(|| match kind {
            CotangentKind::Ones => Complex64::ONE,
            CotangentKind::Random => Complex64::new(rng.normal(), if complex { rng.normal() } else { 0.0 }),
        });
        filled.push(name, buffer);
    }
    Ok(filled)
}
