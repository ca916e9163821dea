//! The gated delta rule on the CPU: forwards step by step with a block of columns of the state in the first-level cache, backwards by chunks.

mod backward;
mod block;
mod chunk;
mod forward;
pub(super) mod keys;
mod norms;
mod pairs;
mod partials;
mod plan;
pub(super) mod rates;
mod saved;
mod triangle;

use super::problem::Problem;
use super::{GradientTargets, Sources, Targets};
use crate::cpu::simd::Real;
use crate::cpu::{Array, Divided};
use crate::exec::Exec;
pub(super) use keys::{Keys, Place, Rows};
pub(super) use plan::Checkpoints;
pub(super) use rates::{HeadRates, Rates, rate};

pub(super) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        false => forward_as::<f32>(exec, problem, targets),
        true => forward_as::<f64>(exec, problem, targets),
    }
}

fn forward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    forward::forward::<T>(exec, problem, targets, targets.checkpoints.as_ref().map(Divided::of_view));
}

pub(super) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match problem.double {
        false => backward_as::<f32>(exec, problem, sources, targets),
        true => backward_as::<f64>(exec, problem, sources, targets),
    }
}

fn backward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let (mut own, len) = (Vec::<T>::new(), Checkpoints::new(problem).len);
    let saved = match &sources.checkpoints {
        Some(view) => Array::<T>::of_view(view).shared(0, len),
        None => {
            own.resize(len, T::default());
            forward::forward(exec, problem, &Targets::default(), Some(Divided::of(&mut own)));
            own.as_slice()
        }
    };
    backward::backward(exec, problem, sources, targets, saved);
}
