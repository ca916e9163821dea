//! Backward: states and their gradients into slots, then gradients chunk by chunk, then sums over chunks and blocks.
//!
//! Nothing is kept from the forward pass: its states are computed again, which costs less than writing and reading them would.

use super::fused::{self, Fused};
use super::gradients::{self, Places};
use super::maps::{Maps, Of};
use super::packed;
use super::plan::{Cut, Kind, Math, Tiles, slices};
use super::walk::{Direction, Output, Walk, ends_len};
use super::{Call, TOO_LARGE, refuse_double};
use crate::cuda::{Numbers, Stream, Sum, sum_terms};
use crate::error::Result;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::targets::{GradientTargets, Sources};
use crate::tensor::RawViewMut;

/// The kernels of a backward pass with every gradient.
const KINDS: &[Kind] = &[Kind::Walk { output: true, state: true }, Kind::Gradients, Kind::Maps];

/// How a backward pass is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub tiles: Tiles,
    cut: Option<Cut>,
    /// Elements of the workspace of a walk.
    ends_len: usize,
    pub slices: usize,
    /// For the kernel that forms all gradients at once, where it may take the problem.
    fused: Option<fused::Plan>,
}

impl Plan {
    pub fn new(call: &Call<'_, '_>, math: Math, numbers: Numbers) -> Result<Plan> {
        let shape = &call.shape(math);
        let tiles = Tiles::new(shape, KINDS, numbers).ok_or(TOO_LARGE)?;
        let cut = Cut::new(shape, &tiles, KINDS[0], numbers);
        let ends_len = ends_len(call, &tiles, cut, numbers);
        let fused = fused::Plan::new(call.problem, numbers);
        Ok(Plan { tiles, cut, ends_len, slices: slices(shape, &tiles, numbers), fused })
    }
}

/// Where the parts of a workspace begin, in elements of f32.
struct Layout {
    states: usize,
    gradients: usize,
    ends: usize,
    a: usize,
    bias: usize,
    skip: usize,
    b: usize,
    c: usize,
    /// Tensor maps of packed sequences.
    maps: usize,
    len: usize,
}

impl Layout {
    fn new(call: &Call<'_, '_>, plan: &Plan) -> Self {
        let (p, tiles) = (call.problem, &plan.tiles);
        let mut len = 0usize;
        let mut part = |size: usize| {
            let start = len;
            // whole units of 16 bytes
            len = len.saturating_add(size.next_multiple_of(4));
            start
        };
        // of packed sequences there are as many terms as blocks, and as many slots as they may need
        let (chunks, packed) = (tiles.chunks(p.seqlen), plan.fused.and_then(|_| packed::Plan::new(p)));
        let of_slots = p.batch * packed.map_or(chunks, |packed| packed.slots.max(chunks)) * p.nheads;
        let heads = p.batch * plan.fused.map_or(chunks, |_| fused::chunks(p).max(chunks)) * p.nheads;
        let slots = (of_slots * tiles.slot() * tiles.math.size()).div_ceil(4);
        let (states, gradients) = (part(slots), part(slots));
        let ends = part(plan.ends_len);
        let (a, bias, skip) = (part(heads), part(heads), part(heads * p.headdim));
        let slices = plan.slices.max(plan.fused.map_or(0, |fused| fused.slices));
        let map = if slices > 1 { p.batch * p.seqlen * slices * p.ngroups * p.dstate } else { 0 };
        let (b, c) = (part(map), part(map));
        let maps = part(plan.fused.map_or(0, |fused| fused.places_len(p)));
        // and room to begin at a whole unit
        part(4);
        Layout { states, gradients, ends, a, bias, skip, b, c, maps, len }
    }
}

/// Elements of the workspace.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem, None);
    Ok(Layout::new(&call, &Plan::new(&call, call.math(stream.allows_tf32()), stream.numbers())?).len)
}

pub(crate) fn backward(
    stream: &Stream,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    workspace: &RawViewMut,
) -> Result<()> {
    refuse_double(problem)?;
    let call = Call::new(problem, sources.y);
    let plan = Plan::new(&call, call.math(stream.allows_tf32()), stream.numbers())?;
    let layout = Layout::new(&call, &plan);
    let base = (workspace.as_mut_ptr() as u64).next_multiple_of(16);
    let at = |offset: usize| base + 4 * offset as u64;
    let (tiles, t) = (&plan.tiles, targets);
    let by_chunk = t.x.is_some() || t.d.is_some() || t.need_steps();
    let needs_states = t.need_steps() || t.c.is_some();
    let needs_gradients = by_chunk || t.b.is_some();
    let workspace = (plan.ends_len > 0).then(|| at(layout.ends));
    let places = Places {
        states: at(layout.states),
        gradients: at(layout.gradients),
        a: at(layout.a),
        bias: at(layout.bias),
        skip: at(layout.skip),
    };
    let terms = fused::Terms { b: at(layout.b), c: at(layout.c), walks: at(layout.ends), maps: at(layout.maps) };
    let fused = match plan.fused {
        Some(plan) => Fused::new(stream, plan, &call, t, tiles, (&places, &terms))?,
        None => None,
    };

    let slot_chunks = if fused.is_some() { fused::SLOT_CHUNKS } else { 1 };
    if needs_states || t.z.is_some() {
        let gate = t.z.as_ref().filter(|_| fused.is_none());
        let walk = Walk {
            call,
            direction: Direction::Forward,
            output: gate.map_or(Output::Nothing, Output::Gate),
            before: problem.initial_state,
            after: None,
            slots: needs_states.then_some(places.states),
            slot_chunks,
        };
        // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the workspace has the
        // size of this layout.
        unsafe { walk.launch(stream, tiles, plan.cut, workspace)? };
    }
    if needs_gradients || t.initial_state.is_some() {
        let walk = Walk {
            call,
            direction: Direction::Backward,
            output: Output::Nothing,
            before: sources.final_state,
            after: t.initial_state,
            slots: needs_gradients.then_some(places.gradients),
            slot_chunks,
        };
        // SAFETY: as above.
        unsafe { walk.launch(stream, tiles, plan.cut, workspace)? };
    }
    if let Some(fused) = &fused {
        // SAFETY: as above; the walks have filled the slots.
        unsafe { fused.launch(stream, &call, t)? };
    } else if by_chunk {
        // SAFETY: as above; the walks have filled the slots.
        unsafe { gradients::launch(stream, &call, sources, t, tiles, &places)? };
    }
    let maps = [(Of::B, &t.b, places.gradients, terms.b), (Of::C, &t.c, places.states, terms.c)];
    for (of, target, slots, terms) in maps {
        let Some(target) = target.as_ref().filter(|_| fused.is_none()) else { continue };
        let maps = Maps { of, target, slots, terms, slices: plan.slices };
        // SAFETY: as above.
        unsafe { maps.launch(stream, &call, sources, tiles)? };
    }
    let chunks = fused.as_ref().map_or(tiles.chunks(problem.seqlen), |_| fused::chunks(problem));
    let (slices, count) = (fused.map_or(plan.slices, |fused| fused.plan.slices), problem.batch * chunks);
    let sum = |target: &Option<RawViewMut>, terms, count| target.map(|to| Sum { to, terms: at(terms), count });
    let sums = [
        sum(&t.a, layout.a, count),
        sum(&t.d, layout.skip, count),
        sum(&t.dt_bias, layout.bias, count),
        sum(&t.b, layout.b, slices).filter(|_| slices > 1),
        sum(&t.c, layout.c, slices).filter(|_| slices > 1),
    ];
    // SAFETY: as above; every term has been written.
    unsafe { sum_terms(stream, &sums.into_iter().flatten().collect::<Vec<_>>()) }
}
