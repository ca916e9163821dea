//! What a pass reads and writes besides the arguments, in normal form.

use super::problem::{Problem, TIME};
use super::{Cotangents, Gradients, Outputs};
use crate::tensor::{RawViewMut, View, ViewMut};

/// Where a forward pass writes, in normal form.
pub(crate) struct Targets {
    pub y: Option<RawViewMut>,
    pub final_state: Option<RawViewMut>,
    pub checkpoints: Option<RawViewMut>,
    pub workspace: Option<RawViewMut>,
}

/// What a backward pass reads besides the arguments, in normal form.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub checkpoints: Option<View<'a>>,
    pub y: Option<View<'a>>,
    pub final_state: Option<View<'a>>,
}

/// Where a backward pass writes, in normal form.
#[derive(Clone, Copy)]
pub(crate) struct GradientTargets {
    pub x: Option<RawViewMut>,
    pub dt: Option<RawViewMut>,
    pub a: Option<RawViewMut>,
    pub b: Option<RawViewMut>,
    pub c: Option<RawViewMut>,
    pub d: Option<RawViewMut>,
    pub z: Option<RawViewMut>,
    pub dt_bias: Option<RawViewMut>,
    pub dt_a: Option<RawViewMut>,
    pub initial_state: Option<RawViewMut>,
}

impl Targets {
    pub(super) fn new(problem: &Problem<'_>, out: &mut Outputs<'_>) -> Self {
        Targets {
            y: out.y.as_mut().map(|view| problem.normal.timed(view.raw(), TIME)),
            final_state: out.final_state.as_mut().map(|view| problem.normal.state(view.raw())),
            checkpoints: out.checkpoints.as_mut().map(ViewMut::raw),
            workspace: out.workspace.as_mut().map(ViewMut::raw),
        }
    }
}

impl<'a> Sources<'a> {
    pub(super) fn new(problem: &Problem<'_>, checkpoints: Option<View<'a>>, cotangents: &Cotangents<'a>) -> Self {
        Sources {
            checkpoints,
            y: cotangents.y.map(|view| problem.normal.timed(view, TIME)),
            final_state: cotangents.final_state.map(|view| problem.normal.state(view)),
        }
    }
}

impl<'a> Gradients<'a> {
    /// In the order of the arguments.
    pub(super) fn by_position(&self) -> [&Option<ViewMut<'a>>; 10] {
        let Gradients { x, dt, a, b, c, d, z, dt_bias, dt_a, initial_state, workspace: _ } = self;
        [x, dt, a, b, c, d, z, dt_bias, dt_a, initial_state]
    }
}

impl GradientTargets {
    pub(super) fn new(problem: &Problem<'_>, grads: &mut Gradients<'_>) -> Self {
        let timed = |view: &mut ViewMut<'_>| problem.normal.timed(view.raw(), TIME);
        let map = |view: &mut ViewMut<'_>| problem.map(view.raw(), view.shape().len());
        GradientTargets {
            x: grads.x.as_mut().map(timed),
            dt: grads.dt.as_mut().map(timed),
            a: grads.a.as_mut().map(ViewMut::raw),
            b: grads.b.as_mut().map(map),
            c: grads.c.as_mut().map(map),
            d: grads.d.as_mut().map(ViewMut::raw),
            z: grads.z.as_mut().map(timed),
            dt_bias: grads.dt_bias.as_mut().map(ViewMut::raw),
            dt_a: grads.dt_a.as_mut().map(timed),
            initial_state: grads.initial_state.as_mut().map(|view| problem.normal.state(view.raw())),
        }
    }
}
