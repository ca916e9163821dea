//! SSD on the CPU: chunks of 64 steps as matrix products, several heads of a group at a time.

mod backward;
mod blocks;
mod chunk;
mod decay;
mod forward;
mod plan;
mod reduce;
mod rows;

use super::problem::Problem;
use super::{GradientTargets, Sources, Targets};
use crate::cpu::simd::Real;
use crate::cpu::{Array, Divided};
use crate::exec::Exec;
pub(crate) use plan::Checkpoints;

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        false => forward_as::<f32>(exec, problem, targets),
        true => forward_as::<f64>(exec, problem, targets),
    }
}

fn forward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    forward::forward::<T>(exec, problem, targets, targets.checkpoints.as_ref().map(Divided::of_view));
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match problem.double {
        false => backward_as::<f32>(exec, problem, sources, targets),
        true => backward_as::<f64>(exec, problem, sources, targets),
    }
}

fn backward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let (mut own, len) = (Vec::<T>::new(), Checkpoints::new(problem).len);
    let saved = match &sources.checkpoints {
        Some(view) if len > 0 => Array::<T>::of_view(view).shared(0, len),
        None if targets.need_states() => {
            own.resize(len, T::default());
            let nothing = Targets { y: None, final_state: None, checkpoints: None, workspace: None };
            forward::forward(exec, problem, &nothing, Some(Divided::of(&mut own)));
            own.as_slice()
        }
        _ => &[],
    };
    backward::backward(exec, problem, sources, targets, saved);
}

impl GradientTargets {
    /// Whether a gradient by something that the decays depend on is wanted.
    fn need_exponents(&self) -> bool {
        self.dt.is_some() || self.a.is_some() || self.dt_bias.is_some() || self.dt_a.is_some()
    }

    /// Whether the states of the forward pass are needed.
    fn need_states(&self) -> bool {
        self.need_exponents() || self.c.is_some() || self.z.is_some()
    }
}
