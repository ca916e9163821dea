//! Sequences of few heads are cut into segments, which walk beside each other: once for what each of them leaves alone, and, once states have been
//! handed on from one to the next, for the results.

use super::{ALIGNMENT, CHUNK, COLUMNS, INPUTS, KEEPER, PRELUDE, Params, Route, TILE, UNIT, unit_bytes};
use crate::cuda::{Config, Launch, Program, SEQUENCES, SLOTS};
use crate::ops::gated_delta_rule::cuda::Call;
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::on_cuda::dtype;

pub(in crate::ops::gated_delta_rule::cuda) static ENDS: Program<Params> =
    Program::new("gated_delta_rule_ends", PRELUDE, include_str!("ends.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, COLUMNS, KEEPER]);
pub(in crate::ops::gated_delta_rule::cuda) static HAND_ON: Program<Params> =
    Program::new("gated_delta_rule_hand_on", PRELUDE, include_str!("hand_on.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT]);

/// Fewer segments save less than walking twice costs.
const FEWEST: usize = 3;
/// Chunks of a segment, at least.
const CHUNKS: usize = 8;

/// Segments of a call that has so many slices: one where they fill so many multiprocessors, or where pieces of sequences
/// leave states that a block walks to.
pub(super) fn count(call: &Call<'_, '_>, slices: usize, multiprocessors: usize) -> usize {
    let p = call.problem;
    if p.pool.is_some_and(|pool| pool.pieces().is_some()) {
        return 1;
    }
    let chunks = p.seqlen / call.sequence_count().max(1) / CHUNK;
    let pairs = (slices / (p.values / 64).max(1)).saturating_mul(pairs(call));
    let most = (multiprocessors / slices.max(1)).min(multiprocessors / pairs.max(1) + 1).min(chunks / CHUNKS);
    if most >= FEWEST { most } else { 1 }
}

/// Blocks of a segment of a head: two slices of a state or of a transition each.
fn pairs(call: &Call<'_, '_>) -> usize {
    ((call.problem.values + call.problem.keys) / 64).div_ceil(2)
}

impl Route {
    fn ends_shared(&self, call: &Call<'_, '_>) -> usize {
        let rows = if call.problem.gates.by_channel { 0 } else { 2 * (call.problem.keys / 64) * TILE };
        self.stages(call) * (TILE + rows + unit_bytes(call) + 16)
    }

    fn segments_config(&self, call: &Call<'_, '_>) -> Config {
        call.config().flag("BESIDE", false).flag("BACKWARD", false)
    }

    pub(in crate::ops::gated_delta_rule::cuda) fn ends_config(&self, call: &Call<'_, '_>) -> Config {
        self.segments_config(call).int("STAGES", self.stages(call)).int("SHARED", self.ends_shared(call))
    }

    pub(in crate::ops::gated_delta_rule::cuda) fn hand_on_config(&self, call: &Call<'_, '_>) -> Config {
        let initial = &call.problem.initial_state;
        self.segments_config(call).dtype("INITIAL", dtype(initial)).flag("HAS_INITIAL", initial.is_some())
    }

    /// The launches that find what segments leave alone, and that hand states on.
    pub(super) fn segment_launches(&self, call: &Call<'_, '_>) -> Option<[Launch; 2]> {
        let p = call.problem;
        let heads = call.pieces() * p.value_heads();
        let [ends, columns] = [heads * pairs(call) * (self.segments - 1), heads * (p.values / 8)].map(|blocks| blocks as u32);
        let shared = (self.ends_shared(call) + ALIGNMENT) as u32;
        (self.segments > 1).then(|| [Launch::line(ends, 384, shared), Launch::line(columns, 2 * p.keys as u32, 0)])
    }
}
