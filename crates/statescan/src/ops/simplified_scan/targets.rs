//! What a pass reads and writes besides the arguments, in normal form.

use super::problem::Problem;
use super::{Cotangents, Gradients, Head, Outputs};
use crate::error::{Error, Result};
use crate::tensor::{RawViewMut, View, ViewMut};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub last_state: Option<RawViewMut>,
    pub checkpoints: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
pub(crate) struct Sources<'a> {
    pub checkpoints: Option<View<'a>>,
    pub y: Option<View<'a>>,
    pub last_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
pub(crate) struct GradientTargets {
    pub u: Option<RawViewMut>,
    pub delta: Option<RawViewMut>,
    pub a: Option<RawViewMut>,
    pub b: Option<RawViewMut>,
    pub c: Option<RawViewMut>,
    pub d: Option<RawViewMut>,
    pub delta_a: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
}

impl Targets {
    pub(super) fn new(problem: &Problem<'_>, out: &mut Outputs<'_>) -> Self {
        Targets {
            y: out.y.as_mut().map(|view| problem.normal.timed(view.raw(), 2)),
            last_state: out.last_state.as_mut().map(|view| problem.normal.state(view.raw())),
            checkpoints: out.checkpoints.as_mut().map(ViewMut::raw),
        }
    }
}

impl<'a> Sources<'a> {
    pub(super) fn new(problem: &Problem<'_>, checkpoints: Option<View<'a>>, cotangents: &Cotangents<'a>) -> Self {
        Sources {
            checkpoints,
            y: cotangents.y.map(|view| problem.normal.timed(view, 2)),
            last_state: cotangents.last_state.map(|view| problem.normal.state(view)),
        }
    }
}

impl<'a> Gradients<'a> {
    /// In the order of the arguments. A gradient by the skip belongs to a real output.
    pub(super) fn by_position(&self, head: &Head<'_>) -> Result<[&Option<ViewMut<'a>>; 8]> {
        let Gradients { u, delta, a, b, c, d, delta_a, initial_state, workspace: _ } = self;
        match (head, d) {
            (Head::Real { .. }, _) => Ok([u, delta, a, b, c, d, delta_a, initial_state]),
            (Head::Complex, None) => Ok([u, delta, a, b, c, delta_a, initial_state, d]),
            (Head::Complex, Some(_)) => {
                let expected = "was not given, so it has no gradient";
                Err(Error::Presence { op: head.op(), argument: "d", expected })
            }
        }
    }
}

impl GradientTargets {
    pub(super) fn new(problem: &Problem<'_>, grads: &mut Gradients<'_>) -> Self {
        let step = |view: &mut ViewMut<'_>| match view.shape().len() {
            1 => view.raw(),
            _ => problem.normal.timed(view.raw(), 2),
        };
        GradientTargets {
            u: grads.u.as_mut().map(|view| problem.normal.timed(view.raw(), 2)),
            delta: grads.delta.as_mut().map(step),
            a: grads.a.as_mut().map(|view| if view.shape().len() == 2 { view.raw().index(1, 0) } else { view.raw() }),
            b: grads.b.as_mut().map(ViewMut::raw),
            c: grads.c.as_mut().map(ViewMut::raw),
            d: grads.d.as_mut().map(ViewMut::raw),
            delta_a: grads.delta_a.as_mut().map(step),
            initial_state: grads.initial_state.as_mut().map(|view| problem.normal.state(view.raw())),
        }
    }
}
