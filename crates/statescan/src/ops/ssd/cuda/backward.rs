//! Backward: states and their gradients into slots, then gradients chunk by chunk, then sums over chunks and blocks.
//!
//! Nothing is kept from the forward pass: its states are computed again, which costs less than writing and reading them would.

use super::hopper::fused::{self, Fused, Half, Parts};
use super::hopper::halves;
use super::hopper::packed;
use super::portable::gradients::{self, Places};
use super::portable::maps::{Maps, Of};
use super::portable::plan::{Cut, Kind, Math, Tiles, slices};
use super::walk::{Direction, Output, Walk, ends_len};
use super::{Call, TOO_LARGE, refuse_double};
use crate::cuda::{Numbers, Stream, Sum, sum_terms};
use crate::error::Result;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, Sources};
use crate::tensor::{DType, RawViewMut};

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

    /// Whether there is room for the gradient by y before the gate, which several kernels would form otherwise.
    fn has_gated(&self, p: &Problem<'_>) -> bool {
        p.z.is_some() && self.fused.is_none()
    }

    /// Whether it is kept: by the walk that forms the gradient by z.
    pub fn keeps_gated(&self, call: &Call<'_, '_>, targets: &GradientTargets) -> bool {
        self.has_gated(call.problem) && targets.z.is_some() && call.dy.is_some()
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
    gated: usize,
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
        // packed sequences have as many terms as blocks, and as many slots as they may need
        let (chunks, packed) = (tiles.chunks(p.seqlen), plan.fused.and_then(|_| packed::Plan::new(p)));
        let of_slots = p.batch * packed.map_or(chunks, |packed| packed.slots.max(chunks)) * p.nheads;
        let heads = p.batch * plan.fused.map_or(chunks, |_| fused::chunks(p).max(chunks)) * p.nheads;
        let slots = (of_slots * tiles.slot_bytes()).div_ceil(4);
        // first what halves of the states share
        let (a, bias, skip) = (part(heads), part(heads), part(heads * p.headdim));
        let (states, gradients) = (part(slots), part(slots));
        let ends = part(plan.ends_len);
        let slices = plan.slices.max(plan.fused.map_or(0, |fused| fused.slices));
        let map = if slices > 1 { p.batch * p.seqlen * slices * p.ngroups * p.dstate } else { 0 };
        let (b, c) = (part(map), part(map));
        let numbers = [p.seqlen, p.nheads, p.headdim].into_iter().fold(p.batch, usize::saturating_mul);
        let gated = part(if plan.has_gated(p) { numbers.saturating_mul(tiles.math.size()).div_ceil(4) } else { 0 });
        let maps = part(plan.fused.map_or(0, |fused| fused.places_len(p)));
        // and room to begin at a whole unit
        part(4);
        Layout { states, gradients, ends, a, bias, skip, b, c, gated, maps, len }
    }
}

/// Elements of the workspace, for a cotangent of any type.
pub(crate) fn workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<usize> {
    let call = Call::new(problem, None);
    let len = |cotangent| -> Result<usize> {
        let plan = Plan::new(&call, call.math_with(cotangent, stream.allows_tf32()), stream.numbers())?;
        Ok(Layout::new(&call, &plan).len)
    };
    Ok(len(None)?.max(len(Some(DType::F32))?).max(halves::workspace_len(stream, problem)?))
}

/// The same for the kernel that forms all gradients at once, where it may take the problem.
pub(super) fn fused_workspace_len(stream: &Stream, problem: &Problem<'_>) -> Result<Option<usize>> {
    let call = Call::new(problem, None);
    let plan = Plan::new(&call, call.math(false), stream.numbers())?;
    Ok(plan.fused.map(|_| Layout::new(&call, &plan).len))
}

pub(crate) fn backward(
    stream: &Stream,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    targets: &GradientTargets,
    workspace: &RawViewMut,
) -> Result<()> {
    refuse_double(problem)?;
    let base = (workspace.as_mut_ptr() as u64).next_multiple_of(16);
    if halves::backward(stream, problem, sources, targets, base)? {
        return Ok(());
    }
    let pass = Pass::new(stream, problem, sources, targets, base)?;
    if let Some(fused) = pass.fused(None)? {
        pass.run_fused(&fused)?;
        return pass.sum_fused(&fused, true);
    }
    pass.run_by_chunk()?;
    pass.sum(pass.plan.slices, Some(pass.plan.tiles.chunks(problem.seqlen)))
}

/// A backward pass over some states, and where it lies in a workspace.
///
/// The views of its problem, sources and targets were checked against each other, and those who made them vouch for the memory behind them; the
/// workspace has the size of the layout.
pub(super) struct Pass<'p, 'a> {
    stream: &'p Stream,
    sources: &'p Sources<'a>,
    targets: &'p GradientTargets,
    call: Call<'p, 'a>,
    plan: Plan,
    layout: Layout,
    base: u64,
}

impl<'p, 'a> Pass<'p, 'a> {
    pub fn new(
        stream: &'p Stream,
        problem: &'p Problem<'a>,
        sources: &'p Sources<'a>,
        targets: &'p GradientTargets,
        base: u64,
    ) -> Result<Self> {
        let call = Call::new(problem, sources.y);
        let plan = Plan::new(&call, call.math(stream.allows_tf32()), stream.numbers())?;
        let layout = Layout::new(&call, &plan);
        Ok(Pass { stream, sources, targets, call, plan, layout, base })
    }

    /// The address of a part of the workspace.
    fn at(&self, offset: usize) -> u64 {
        self.base + 4 * offset as u64
    }

    pub fn places(&self) -> Places {
        let layout = &self.layout;
        Places {
            states: self.at(layout.states),
            gradients: self.at(layout.gradients),
            a: self.at(layout.a),
            bias: self.at(layout.bias),
            skip: self.at(layout.skip),
        }
    }

    /// The kernel that forms all gradients at once, if it can take them, for all states or for half of them.
    pub fn fused(&self, half: Option<(Half, Parts)>) -> Result<Option<Fused>> {
        let Some(plan) = self.plan.fused else { return Ok(None) };
        let layout = &self.layout;
        let [b, c, walks, maps] = [layout.b, layout.c, layout.ends, layout.maps].map(|offset| self.at(offset));
        let terms = fused::Terms { b, c, walks, maps };
        let rooms = fused::Rooms { tiles: &self.plan.tiles, places: &self.places(), terms: &terms };
        Fused::new(self.stream, plan, &self.call, self.targets, &rooms, half)
    }

    /// Walks forwards and backwards, which leave states and their gradients in slots where those are needed.
    fn walk(&self, call: Call<'_, '_>, output: Output<'_>, slot_chunks: usize) -> Result<()> {
        let (t, places) = (self.targets, self.places());
        let by_chunk = t.x.is_some() || t.d.is_some() || t.need_steps();
        let needs_states = t.need_steps() || t.c.is_some();
        let needs_gradients = by_chunk || t.b.is_some();
        let workspace = (self.plan.ends_len > 0).then(|| self.at(self.layout.ends));
        let forward = Walk {
            call,
            direction: Direction::Forward,
            output,
            before: call.problem.initial_state,
            after: None,
            slots: needs_states.then_some(places.states),
            slot_chunks,
        };
        let backward = Walk {
            call,
            direction: Direction::Backward,
            output: Output::Nothing,
            before: self.sources.final_state,
            after: t.initial_state,
            slots: needs_gradients.then_some(places.gradients),
            slot_chunks,
        };
        let wanted = [needs_states || t.z.is_some(), needs_gradients || t.initial_state.is_some()];
        for (walk, wanted) in [forward, backward].iter().zip(wanted) {
            if wanted {
                // SAFETY: what a pass is made of.
                unsafe { walk.launch(self.stream, &self.plan.tiles, self.plan.cut, workspace)? };
            }
        }
        Ok(())
    }

    /// All gradients in one launch after the walks.
    pub fn run_fused(&self, fused: &Fused) -> Result<()> {
        self.walk(self.call, Output::Nothing, fused::SLOT_CHUNKS)?;
        // SAFETY: what a pass is made of; the walks have filled the slots.
        unsafe { fused.launch(self.stream, &self.call, self.targets) }
    }

    /// The gradients within chunks, and those of B and C, one after another.
    fn run_by_chunk(&self) -> Result<()> {
        let (stream, t, tiles, places) = (self.stream, self.targets, &self.plan.tiles, self.places());
        let gated = self.plan.keeps_gated(&self.call, t).then(|| self.at(self.layout.gated));
        let call = &Call { gated, ..self.call };
        self.walk(*call, t.z.as_ref().map_or(Output::Nothing, Output::Gate), 1)?;
        if t.x.is_some() || t.d.is_some() || t.need_steps() {
            // SAFETY: what a pass is made of; the walks have filled the slots.
            unsafe { gradients::launch(stream, call, self.sources, t, tiles, &places)? };
        }
        let maps = [(Of::B, &t.b, places.gradients, self.layout.b), (Of::C, &t.c, places.states, self.layout.c)];
        for (of, target, slots, terms) in maps {
            let Some(target) = target else { continue };
            let maps = Maps { of, target, slots, terms: self.at(terms), slices: self.plan.slices };
            // SAFETY: as above.
            unsafe { maps.launch(stream, call, self.sources, tiles)? };
        }
        Ok(())
    }

    /// Sums of terms after the fused kernel; those of parameters come after the last half of the states.
    pub fn sum_fused(&self, fused: &Fused, is_last: bool) -> Result<()> {
        self.sum(fused.plan.slices, is_last.then(|| fused::chunks(self.call.problem)))
    }

    /// Sums over so many slices into the gradients by B and C, and over so many chunks of each row into those by A, D and dt_bias.
    fn sum(&self, slices: usize, chunks: Option<usize>) -> Result<()> {
        let (t, layout) = (self.targets, &self.layout);
        let chunks = chunks.map(|chunks| self.call.problem.batch * chunks);
        let slices = (slices > 1).then_some(slices);
        let sum = |target: &Option<RawViewMut>, terms, count: Option<usize>| {
            target.zip(count).map(|(to, count)| Sum { to, terms: self.at(terms), count })
        };
        let sums = [
            sum(&t.a, layout.a, chunks),
            sum(&t.d, layout.skip, chunks),
            sum(&t.dt_bias, layout.bias, chunks),
            sum(&t.b, layout.b, slices),
            sum(&t.c, layout.c, slices),
        ];
        // SAFETY: what a pass is made of; every term has been written.
        unsafe { sum_terms(self.stream, &sums.into_iter().flatten().collect::<Vec<_>>()) }
    }
}
