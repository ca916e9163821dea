//! Calls of one token: the step's kernel takes them, with states that it reads in one place and writes in another.

use super::Call as Whole;
use crate::cuda::{PlannedLaunch, Queue};
use crate::error::Result;
use crate::ops::gated_delta_rule::Targets;
use crate::ops::gated_delta_rule::problem::TIME;
use crate::ops::gated_delta_rule::update::cuda::{self as step, Places};
use crate::ops::gated_delta_rule::update::problem::Problem;
use crate::ops::on_cuda::read;
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, View};

/// A call as a step.
pub(super) struct Call<'v> {
    problem: Problem<'v>,
    places: Places<'v>,
}

impl<'v> Call<'v> {
    /// Nothing if rows have more than one token, or packed ones more than there are sequences, or a state does not lie as the step wants it.
    pub(super) fn new(call: &Whole<'_, 'v>, targets: &'v Targets) -> Option<Self> {
        let p = call.problem;
        let (before, after, y) = (p.initial_state?, read(&targets.final_state)?, read(&targets.y)?);
        // rows are tokens of rows, or those of the only row
        let (axis, bounds) = match p.sequences {
            Sequences::Whole => (TIME, None),
            Sequences::CuSeqlens(bounds) => (0, Some(bounds)),
            Sequences::SeqIdx(_) => return None,
        };
        let few = p.seqlen > 0 && p.seqlen <= call.sequence_count() && p.pool.is_none() && !p.reverse;
        // packed sequences have a row of states each
        let [before, after] = [before, after].map(|states| states.index(1, 0));
        let single = [before, after].iter().all(|states| states.dtype() == DType::F32);
        if !few || !single || step::by_column(&before) != step::by_column(&after) {
            return None;
        }
        debug_assert_eq!(after.shape()[0], call.pieces(), "a state for each sequence");
        let now = |view: View<'v>| view.index(axis, 0);
        let problem = Problem {
            heads: p.heads,
            group: p.group,
            keys: p.keys,
            values: p.values,
            double: p.double,
            q: now(p.q),
            k: now(p.k),
            v: now(p.v),
            g: p.g.map(now),
            beta: p.beta.map(now),
            a_log: p.a_log,
            dt_bias: p.dt_bias,
            gates: p.gates,
            rows: vec![None; p.v.shape()[1 - axis]],
        };
        Some(Call {
            problem,
            places: Places { state: after, before: Some(before), y: now(y), indices: None, slots: None, bounds },
        })
    }

    pub(super) fn launch(&self, queue: &Queue<'_>) -> Result<()> {
        step::update(queue, &self.problem, &self.places)
    }

    pub(super) fn plan(&self) -> Result<PlannedLaunch> {
        step::plan(&self.problem, &self.places)
    }
}
