//! Which kernels run for a backward pass, decided once, before anything is touched: a function of types, sizes, layouts, what is asked for, and a
//! device's numbers. Nothing of a device is asked for it, so that tests and `statescan info --plan` know it without one.

use super::forward::WalkRoute;
use super::half_states;
use super::hopper::fused;
use super::hopper::packed;
use super::hopper::walk as hopper;
use super::portable::plan::{Cut, Kind, Slots, Tiles, slices};
use super::portable::walk as portable;
use super::walk::{Direction, Output, Walk};
use super::{Call, Hardware, TOO_LARGE};
use crate::error::Result;
use crate::ops::on_cuda::Pass;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::{GradientTargets, Sources};
use crate::tensor::DType;

/// The kernels of a backward pass on `mma.sync` with every gradient.
const KINDS: &[Kind] = &[Kind::Walk { output: true, state: true }, Kind::Gradients, Kind::Maps];

/// How a backward pass is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// On Hopper, all gradients of a chunk in one launch.
    Fused(Box<Fused>),
    /// On Hopper, all gradients of a chunk in one launch for either half of the states, one after the other.
    HalfStates(Box<[Fused; 2]>),
    /// The gradients within chunks, and those of B and C, one after another.
    ByChunk(Box<ByChunk>),
}

/// Two walks on Hopper, then everything else at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fused {
    pub walks: [hopper::Route; 2],
    pub fused: fused::Route,
}

/// The walks that are wanted, then gradients one after another on `mma.sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByChunk {
    pub tiles: Tiles,
    cut: Option<Cut>,
    pub walks: [Option<WalkRoute>; 2],
    pub slices: usize,
    /// Whether the walk that forms the gradient by z keeps the gradient by y before the gate for later kernels.
    pub keeps_gated: bool,
}

impl Route {
    pub fn new(call: &Call<'_, '_>, sources: &Sources<'_>, targets: &GradientTargets, hardware: Hardware) -> Result<Route> {
        if let Some(routes) = Fused::of_half_states(call.problem, sources, targets, hardware) {
            return Ok(Route::HalfStates(Box::new(routes)));
        }
        if let Some(route) = Fused::new(call, sources, targets, None, hardware) {
            return Ok(Route::Fused(Box::new(route)));
        }
        Ok(Route::ByChunk(Box::new(ByChunk::new(call, sources, targets, hardware)?)))
    }

    /// Elements of its workspace.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        match self {
            Route::Fused(route) => Layout::new(p, &route.demand(p)).len,
            Route::HalfStates(routes) => {
                let problems = half_states::of_states(p).into_iter().flatten();
                let of_each = problems.zip(routes.iter()).map(|(half, route)| Layout::new(&half, &route.demand(&half)).len);
                half_states::lens(p).into_iter().fold(of_each.max().unwrap_or(0), usize::saturating_add)
            }
            Route::ByChunk(route) => Layout::new(p, &route.demand(p)).len,
        }
    }

    /// Elements of a workspace that suffices whatever is given and asked for, and however that lies.
    pub fn most_workspace(p: &Problem<'_>, hardware: Hardware) -> Result<usize> {
        let call = Call::new(p, None);
        let fused =
            |p: &Problem<'_>| fused::Plan::new(p, hardware.numbers).map(|plan| Layout::new(p, &Fused::demand_of(&plan, p)).len);
        let hopper = fused(p).into_iter().chain(half_states::workspace_len(p, fused)).max();
        let by_chunk = |cotangent| {
            let math = call.math_with(cotangent, hardware.tf32);
            let tiles = Tiles::new(&call.shape(math), KINDS, hardware.numbers).ok_or(TOO_LARGE)?;
            Ok(Layout::new(p, &ByChunk::most_demand(&call, tiles, hardware)).len)
        };
        // a cotangent's type may decide what products are made of
        match (by_chunk(None), by_chunk(Some(DType::F32))) {
            (Ok(one), Ok(other)) => Ok(one.max(other).max(hopper.unwrap_or(0))),
            (Err(error), _) | (_, Err(error)) => hopper.ok_or(error),
        }
    }
}

/// The walks forwards and backwards that fill slots, without an output.
pub(super) fn walks<'p, 'a>(
    call: Call<'p, 'a>,
    sources: &Sources<'a>,
    targets: &'p GradientTargets,
    slots: Slots,
) -> [Walk<'p, 'a>; 2] {
    let slots = Some(slots);
    let forward = Walk {
        call,
        direction: Direction::Forward,
        output: Output::Nothing,
        before: call.problem.initial_state,
        after: None,
        slots,
        part: Pass::Whole,
        beside: false,
        cuts: None,
    };
    let (before, after) = (sources.final_state, targets.initial_state);
    [forward, Walk { direction: Direction::Backward, before, after, ..forward }]
}

impl Fused {
    /// Nothing where a kernel for Hopper cannot take its part.
    pub fn new(
        call: &Call<'_, '_>,
        sources: &Sources<'_>,
        targets: &GradientTargets,
        half: Option<fused::HalfStates>,
        hardware: Hardware,
    ) -> Option<Fused> {
        let fused = fused::Route::new(call, targets, half, hardware.numbers)?;
        let [forward, backward] = walks(*call, sources, targets, fused.plan.slots(call.problem));
        let route = |walk| hopper::Route::new(walk, hardware.numbers, true);
        Some(Fused { walks: [route(&forward)?, route(&backward)?], fused })
    }

    /// The routes of both halves of the states, if they are halved and kernels can take them.
    fn of_half_states(
        p: &Problem<'_>,
        sources: &Sources<'_>,
        targets: &GradientTargets,
        hardware: Hardware,
    ) -> Option<[Fused; 2]> {
        let problems = half_states::of_states(p)?;
        let [first, second] = half_states::of_each(p, sources, targets);
        let route = |problem, (half, sources, targets): &(fused::HalfStates, Sources<'_>, GradientTargets)| {
            Fused::new(&Call::new(problem, sources.y), sources, targets, Some(*half), hardware)
        };
        Some([route(&problems[0], &first)?, route(&problems[1], &second)?])
    }

    pub fn demand(&self, p: &Problem<'_>) -> Demand {
        Self::demand_of(&self.fused.plan, p)
    }

    fn demand_of(plan: &fused::Plan, p: &Problem<'_>) -> Demand {
        let slots = plan.slots(p);
        // packed sequences have as many terms as blocks, and as many slots as they may need
        let of_row = packed::Plan::new(p).map_or(p.seqlen.div_ceil(slots.span * slots.chunks), |packed| packed.slots);
        Demand {
            chunks: fused::chunks(p),
            slots: p.batch * of_row * p.nheads,
            slot_bytes: slots.states * slots.columns * slots.math.size(),
            ends: plan.ends_len(p),
            slices: plan.slices,
            gated: 0,
            maps: plan.places_len(p),
        }
    }
}

/// Whether kernels by chunk read slots of states, and those of their gradients.
fn reads_slots(t: &GradientTargets) -> [bool; 2] {
    let steps = t.need_steps();
    [steps || t.c.is_some(), steps || t.x.is_some() || t.d.is_some() || t.b.is_some()]
}

impl ByChunk {
    pub fn new(call: &Call<'_, '_>, sources: &Sources<'_>, t: &GradientTargets, hardware: Hardware) -> Result<ByChunk> {
        let shape = &call.shape(call.math(hardware.tf32));
        let tiles = Tiles::new(shape, KINDS, hardware.numbers).ok_or(TOO_LARGE)?;
        let cut = Cut::new(shape, &tiles, KINDS[0], hardware.numbers);
        let slices = slices(shape, &tiles, hardware.numbers);
        let keeps_gated = call.problem.z.is_some() && t.z.is_some() && call.dy.is_some();
        let mut route = ByChunk { tiles, cut, walks: [None; 2], slices, keeps_gated };
        let [states, gradients] = reads_slots(t);
        let wanted = [states || t.z.is_some(), gradients || t.initial_state.is_some()];
        // it is a walk of another output with the kept gradient or without
        let call = Call { gated: keeps_gated.then_some(0), ..*call };
        let portable = portable::Route::beside(tiles, cut, hardware.numbers);
        for ((walk, wanted), own) in route.walks_of(call, sources, t).iter().zip(wanted).zip(&mut route.walks) {
            *own = wanted.then(|| WalkRoute::beside(walk, portable, hardware));
        }
        Ok(route)
    }

    /// The walks: the one forwards forms the gradient by z, and either fills slots that are read.
    pub fn walks_of<'p, 'a>(&self, call: Call<'p, 'a>, sources: &Sources<'a>, t: &'p GradientTargets) -> [Walk<'p, 'a>; 2] {
        let [forward, backward] = walks(call, sources, t, self.tiles.slots());
        let [states, gradients] = reads_slots(t);
        let output = t.z.as_ref().map_or(Output::Nothing, Output::Gate);
        [
            Walk { output, slots: forward.slots.filter(|_| states), ..forward },
            Walk { slots: backward.slots.filter(|_| gradients), ..backward },
        ]
    }

    pub fn demand(&self, p: &Problem<'_>) -> Demand {
        let tiles = &self.tiles;
        let numbers = [p.seqlen, p.nheads, p.headdim].into_iter().fold(p.batch, usize::saturating_mul);
        Demand {
            chunks: tiles.chunks(p.seqlen),
            slots: p.batch * tiles.chunks(p.seqlen) * p.nheads,
            slot_bytes: tiles.slot_bytes(),
            ends: self.walks.iter().flatten().map(|route| route.workspace_len(p)).max().unwrap_or(0),
            slices: self.slices,
            gated: if self.keeps_gated { numbers.saturating_mul(tiles.math.size()).div_ceil(4) } else { 0 },
            maps: 0,
        }
    }

    /// The most that such a pass needs.
    fn most_demand(call: &Call<'_, '_>, tiles: Tiles, hardware: Hardware) -> Demand {
        let (p, shape) = (call.problem, &call.shape(tiles.math));
        let cut = Cut::new(shape, &tiles, KINDS[0], hardware.numbers);
        let portable = portable::Route::beside(tiles, cut, hardware.numbers);
        let route = ByChunk {
            tiles,
            cut,
            walks: [Some(WalkRoute::Portable(portable)), None],
            slices: slices(shape, &tiles, hardware.numbers),
            keeps_gated: p.z.is_some(),
        };
        let hopper = hopper::Plan::new(p, hardware.numbers).map_or(0, |plan| plan.workspace_len(p));
        let demand = route.demand(p);
        Demand { ends: demand.ends.max(hopper), ..demand }
    }
}

/// The parts of a workspace that a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    /// Chunks of a row that leave terms of the gradients by A, D and dt_bias.
    chunks: usize,
    slots: usize,
    slot_bytes: usize,
    /// Elements for the ends of segments.
    ends: usize,
    /// Slices of the heads of a group, each with a term of the gradients by B and C.
    slices: usize,
    /// Elements for the gradient by y before the gate.
    gated: usize,
    /// Elements for tensor maps of packed sequences.
    maps: usize,
}

/// The starts of a workspace's parts, in elements of f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub states: usize,
    pub gradients: usize,
    pub ends: usize,
    pub ends_len: usize,
    pub a: usize,
    pub bias: usize,
    pub skip: usize,
    pub b: usize,
    pub c: usize,
    pub gated: usize,
    pub maps: usize,
    pub len: usize,
}

impl Layout {
    pub fn new(p: &Problem<'_>, demand: &Demand) -> Self {
        let mut len = 0usize;
        let mut part = |size: usize| {
            let start = len;
            // whole units of 16 bytes
            len = len.saturating_add(size.next_multiple_of(4));
            start
        };
        let heads = p.batch * demand.chunks * p.nheads;
        let slots = (demand.slots * demand.slot_bytes).div_ceil(4);
        let map = if demand.slices > 1 { p.batch * p.seqlen * demand.slices * p.ngroups * p.dstate } else { 0 };
        // first what halves of the states share
        let (a, bias, skip) = (part(heads), part(heads), part(heads * p.headdim));
        let (states, gradients) = (part(slots), part(slots));
        let ends = part(demand.ends);
        let (b, c) = (part(map), part(map));
        let (gated, maps) = (part(demand.gated), part(demand.maps));
        // the caller's memory may begin inside a unit of 16 bytes
        part(4);
        Layout { states, gradients, ends, ends_len: demand.ends, a, bias, skip, b, c, gated, maps, len }
    }
}
