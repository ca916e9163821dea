//! What a pass reads and writes besides the arguments, in normal form.

use super::problem::Problem;
use super::{Cotangents, Gradients, Outputs};
use crate::tensor::{RawViewMut, View, ViewMut};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_states: Option<RawViewMut>,
}

/// The cotangents that a backward pass reads, in normal form.
pub(crate) struct Sources<'a> {
    pub y: Option<View<'a>>,
    pub final_states: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub weight: Option<RawViewMut>,
    pub bias: Option<RawViewMut>,
    pub initial_states: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

impl Targets {
    pub(super) fn new(problem: &Problem<'_>, out: &mut Outputs<'_>) -> Self {
        Targets {
            y: out.y.as_mut().map(|view| problem.normal.timed(view.raw(), 2)),
            final_states: out.final_states.as_mut().map(|view| problem.normal.state(view.raw())),
        }
    }
}

impl<'a> Sources<'a> {
    pub(super) fn new(problem: &Problem<'_>, cotangents: &Cotangents<'a>) -> Self {
        Sources {
            y: cotangents.y.map(|view| problem.normal.timed(view, 2)),
            final_states: cotangents.final_states.map(|view| problem.normal.state(view)),
        }
    }
}

impl<'a> Gradients<'a> {
    /// In the order of the arguments.
    pub(super) fn by_position(&self) -> [&Option<ViewMut<'a>>; 4] {
        [&self.x, &self.weight, &self.bias, &self.initial_states]
    }
}

impl GradientTargets {
    pub(super) fn new(problem: &Problem<'_>, grads: &mut Gradients<'_>) -> Self {
        GradientTargets {
            x: grads.x.as_mut().map(|view| problem.normal.timed(view.raw(), 2)),
            weight: grads.weight.as_mut().map(ViewMut::raw),
            bias: grads.bias.as_mut().map(ViewMut::raw),
            initial_states: grads.initial_states.as_mut().map(|view| problem.normal.state(view.raw())),
            workspace: grads.workspace.as_mut().map(ViewMut::raw),
        }
    }
}
