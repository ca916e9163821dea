//! SSD on the CPU: chunks of 64 steps as matrix products, several heads of a group at a time.

mod backward;
mod blocks;
mod chunk;
mod decay;
mod forward;
mod parts;
mod plan;
mod product;
mod reduce;
mod rows;

use super::problem::Problem;
use super::targets::{GradientTargets, Sources, Targets};
use crate::cpu::Shared;
use crate::cpu::simd::Real;
use crate::exec::Exec;
pub(crate) use plan::Checkpoints;

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        false => forward_as::<f32>(exec, problem, targets),
        true => forward_as::<f64>(exec, problem, targets),
    }
}

fn forward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    let saved = targets.checkpoints.as_ref().map(|v| Shared::new(v.as_mut_ptr().cast::<T>()));
    forward::forward(exec, problem, targets, saved);
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match problem.double {
        false => backward_as::<f32>(exec, problem, sources, targets),
        true => backward_as::<f64>(exec, problem, sources, targets),
    }
}

fn backward_as<T: Real>(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let mut own = Vec::<T>::new();
    let saved = match &sources.checkpoints {
        Some(view) => view.as_ptr().cast_mut().cast::<T>(),
        None => {
            if targets.need_states() {
                own.resize(Checkpoints::new(problem).len, T::default());
                let saved = Some(Shared::new(own.as_mut_ptr()));
                forward::forward(
                    exec,
                    problem,
                    &Targets { y: None, final_state: None, checkpoints: None, workspace: None },
                    saved,
                );
            }
            own.as_mut_ptr()
        }
    };
    backward::backward(exec, problem, sources, targets, Shared::new(saved));
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
