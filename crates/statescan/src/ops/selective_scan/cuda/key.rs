//! By what plans and kernels of a problem are found again.

use super::has_limit;
use crate::ops::discretization::Discretization;
use crate::ops::selective_scan::{Problem, Projection, Targets};
use crate::ops::sequences::Sequences;
use crate::tensor::{Layout, RawViewMut, View};

/// A forward pass without what its launches take as parameters, addresses and limits of steps. Passes that are equal in this have the same
/// plan and the same kernels.
#[derive(PartialEq)]
pub(super) struct Key {
    x: Layout,
    dt: Layout,
    a: Layout,
    b: Projection<Layout>,
    c: Projection<Layout>,
    d: Option<Layout>,
    z: Option<Layout>,
    dt_bias: Option<Layout>,
    dt_softplus: bool,
    has_limit: bool,
    dt_a: Option<Layout>,
    initial_state: Option<Layout>,
    sequences: &'static str,
    index: Option<Layout>,
    states_have_sequences: bool,
    reverse: bool,
    discretization: Discretization,
    y: Option<Layout>,
    final_state: Option<Layout>,
    has_checkpoints: bool,
    has_workspace: bool,
}

impl Key {
    pub(super) fn new(problem: &Problem<'_>, targets: &Targets) -> Self {
        let optional = |view: &Option<View<'_>>| view.as_ref().map(View::layout);
        let target = |view: &Option<RawViewMut>| view.as_ref().map(RawViewMut::layout);
        let projection = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => Projection::Varying(view.layout()),
            Projection::Constant(view) => Projection::Constant(view.layout()),
        };
        // every field by its name, so that one that comes later is not forgotten; sizes and what follows from types are in the layouts
        let Problem {
            batch: _,
            dim: _,
            seqlen: _,
            dstate: _,
            complex: _,
            double: _,
            x,
            dt,
            a,
            b,
            c,
            d,
            z,
            dt_bias,
            dt_softplus,
            dt_limit,
            dt_a,
            initial_state,
            sequences,
            segments,
            reverse,
            discretization,
        } = problem;
        let Targets { y, final_state, checkpoints, workspace } = targets;
        let (sequences, index) = match sequences {
            Sequences::Whole => ("Whole", None),
            Sequences::CuSeqlens(view) => ("Bounds", Some(view.layout())),
            Sequences::SeqIdx(view) => ("Index", Some(view.layout())),
        };
        Key {
            x: x.layout(),
            dt: dt.layout(),
            a: a.layout(),
            b: projection(b),
            c: projection(c),
            d: optional(d),
            z: optional(z),
            dt_bias: optional(dt_bias),
            dt_softplus: *dt_softplus,
            has_limit: has_limit(*dt_limit),
            dt_a: optional(dt_a),
            initial_state: optional(initial_state),
            sequences,
            index,
            states_have_sequences: segments.states_have_sequences(),
            reverse: *reverse,
            discretization: *discretization,
            y: target(y),
            final_state: target(final_state),
            has_checkpoints: checkpoints.is_some(),
            has_workspace: workspace.is_some(),
        }
    }
}
