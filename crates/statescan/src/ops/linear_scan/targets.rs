//! What a pass reads and writes besides the arguments, in normal form.

use super::problem::Problem;
use super::{Cotangents, Gradients, Outputs};
use crate::tensor::{RawViewMut, View, ViewMut};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub h: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub decay: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
pub(crate) struct Sources<'a> {
    pub h: Option<View<'a>>,
    pub by_h: Option<View<'a>>,
    pub by_final_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub a: Option<RawViewMut>,
    pub b: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

impl Targets {
    pub(super) fn new(problem: &Problem<'_>, out: &mut Outputs<'_>) -> Self {
        let state = |view: &mut ViewMut<'_>| problem.state(view.raw());
        Targets {
            h: out.h.as_mut().map(|view| problem.timed(view.raw())),
            final_state: out.final_state.as_mut().map(state),
            decay: out.decay.as_mut().map(state),
            workspace: out.workspace.as_mut().map(ViewMut::raw),
        }
    }
}

impl<'a> Sources<'a> {
    pub(super) fn new(problem: &Problem<'_>, h: Option<View<'a>>, cotangents: &Cotangents<'a>) -> Self {
        Sources {
            h: h.map(|view| problem.timed(view)),
            by_h: cotangents.h.map(|view| problem.timed(view)),
            by_final_state: cotangents.final_state.map(|view| problem.state(view)),
        }
    }
}

impl GradientTargets {
    pub(super) fn new(problem: &Problem<'_>, grads: &mut Gradients<'_>) -> Self {
        let timed = |view: &mut ViewMut<'_>| problem.timed(view.raw());
        GradientTargets {
            a: grads.a.as_mut().map(timed),
            b: grads.b.as_mut().map(timed),
            initial_state: grads.initial_state.as_mut().map(|view| problem.state(view.raw())),
            workspace: grads.workspace.as_mut().map(ViewMut::raw),
        }
    }
}
