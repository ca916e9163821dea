//! The walk over time on Hopper: products of warpgroups (`wgmma`) on tiles that the copy engine brings. It takes whole rows of bf16 whose layout
//! that engine can describe; everything else goes to the walk on `mma.sync`, as does the gradient by a gate unless `fused.rs` forms it.

use super::hand_on;
use super::packed::{self, Packed, SPAN};
use super::{PACKED, TOOLS};
use crate::cuda::{
    Address, COMMON, Config, HOPPER, Header, Launch, MMA, Numbers, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, SharedMemory,
    Stream, Strided, Swizzle, TensorMap, Tiling, header, params,
};
use crate::error::Result;
use crate::ops::on_cuda::{self, Pass, type_of};
use crate::ops::ssd::cuda::portable::plan::{Math, Slots};
use crate::ops::ssd::cuda::walk::{Addresses, Direction, Output, Walk};
use crate::ops::ssd::cuda::{INPUTS, Inputs, States, TOO_MANY};
use crate::ops::ssd::problem::Problem;
use crate::tensor::{DType, RawViewMut, View};

pub(in crate::ops::ssd::cuda) static KERNEL: Program<Params> =
    Program::new("ssd_hopper", &[COMMON, STEP_SIZE, MMA, HOPPER], include_str!("walk.cu")).including(&[
        SLOTS,
        SEQUENCES,
        INPUTS,
        PACKED,
        TOOLS,
        WALK_LAYOUT,
        WALK_STATE,
        header!("walk_helpers.cuh"),
    ]);

pub(in crate::ops::ssd::cuda) static ENDS: Program<Params> =
    Program::new("ssd_ends", &[COMMON, STEP_SIZE, MMA, HOPPER], include_str!("ends.cu")).including(&[
        SLOTS,
        SEQUENCES,
        INPUTS,
        PACKED,
        TOOLS,
        WALK_LAYOUT,
        WALK_STATE,
    ]);

pub(super) const WALK_LAYOUT: Header = header!("walk_layout.cuh");
pub(super) const WALK_STATE: Header = header!("walk_state.cuh");

params! {
    /// Parameters of `ssd_hopper`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// Tiles of 64 steps x 64 columns or states.
        x_map: TensorMap,
        z_map: TensorMap,
        y_map: TensorMap,
        b_map: TensorMap,
        c_map: TensorMap,
        /// Tiles of 64 states x 64 columns of slots.
        slot_map: TensorMap,
        /// The states that rows begin and end with, in the direction of the walk.
        before: States,
        after: States,
        /// (segment, batch, head, tile of columns): what segments leave, in the order of their threads, and their decays.
        ends: Address<f32>,
        decays: Address<f32>,
        segments: i64,
        segment_steps: i64,
        packed: Packed,
        /// (batch, head): the decay of all segments, which `ssd_ends` writes.
        decay: Strided,
        /// The bounds of all pieces, their slots, pieces of a sequence, and the place of the first one's state behind those of segments.
        cuts: Strided,
        cut_slots: on_cuda::Slots,
        pieces: i64,
        first_cut: i64,
    }
}

/// Columns of a tile.
pub(in crate::ops::ssd::cuda) const COLUMNS: usize = 64;
/// Warpgroups of a block that walk, and states of a column that one of them can hold: where there are more, both walk the same columns.
const WALKERS: usize = 2;
pub(in crate::ops::ssd::cuda) const MOST_STATES: usize = 128;
/// A tile in shared memory.
pub(in crate::ops::ssd::cuda) const TILE: usize = SPAN * 2 * COLUMNS;
/// The most bytes that aligning shared memory costs.
pub(in crate::ops::ssd::cuda) const ALIGNMENT: usize = 1024;
/// Warpgroups beside those that walk: one for C B^T, one for copies and powers of decays.
const HELPERS: usize = 2;
/// Registers of a thread of each kind of warpgroup; all share what a multiprocessor has.
const WALKER_REGISTERS: usize = 200;
const MASK_REGISTERS: usize = 64;
const COPY_REGISTERS: usize = 48;
const _: () = assert!(128 * (WALKERS * WALKER_REGISTERS + MASK_REGISTERS + COPY_REGISTERS) <= 65536);

/// The time of a chunk in a block of one unit, and of two; and the time of the first of two launches over segments as a part of
/// the second's, in percent.
const ONE_UNIT: usize = 75;
const TWO_UNITS: usize = 100;
const FIRST_PASS: usize = 50;

/// How blocks lie over a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Plan {
    pub column_tiles: usize,
    /// States, padded.
    pub states: usize,
    /// Units of a block: 64 columns of a head each.
    block_units: usize,
    /// Blocks for a segment.
    blocks: usize,
    /// Segments of time and their steps.
    segments: usize,
    segment_steps: usize,
    pub packed: Option<packed::Plan>,
    /// Pieces of all sequences, where a walk leaves states for their cuts.
    cuts: usize,
}

/// Places for what segments leave; of a call with a pool also for what their rows begin with.
fn places(p: &Problem<'_>, segments: usize) -> usize {
    if p.pool.is_some() { 2 * segments } else { segments }
}

impl Plan {
    /// A plan for sizes, types and options that this kernel has; layouts are looked at where tensor maps are made.
    pub fn new(p: &Problem<'_>, numbers: Numbers) -> Option<Plan> {
        let bf16 = [Some(p.x), Some(p.b), Some(p.c), p.z].into_iter().flatten().all(|view| view.dtype() == DType::BF16);
        let sizes = [p.batch, p.seqlen, p.nheads, p.headdim, p.dstate];
        let fits = sizes.iter().all(|&n| n > 0 && n <= i32::MAX as usize - SPAN)
            && p.dstate <= WALKERS * MOST_STATES
            && p.headdim.is_multiple_of(8);
        let in_pieces = p.pool.is_some_and(|pool| pool.pieces().is_some());
        if numbers.capability != (9, 0) || !bf16 || !fits || p.reverse || in_pieces {
            return None;
        }
        let packed = packed::Plan::new(p);
        let column_tiles = p.headdim.div_ceil(COLUMNS);
        let states = if p.dstate <= MOST_STATES { p.dstate.next_multiple_of(64) } else { WALKERS * MOST_STATES };
        let units = p.nheads / p.ngroups * column_tiles;
        let chunks = p.seqlen.div_ceil(SPAN);
        let cut = |block_units: usize| {
            let blocks = [p.batch, p.ngroups].into_iter().try_fold(units.div_ceil(block_units), usize::checked_mul)?;
            let segments = (numbers.multiprocessors / blocks).min(chunks / 4).max(1);
            let waves = blocks.saturating_mul(segments).div_ceil(numbers.multiprocessors);
            let chunk = if block_units == 1 { ONE_UNIT } else { TWO_UNITS };
            let passes = if segments > 1 { FIRST_PASS + 100 } else { 100 };
            let time = waves.saturating_mul(chunks.div_ceil(segments)).saturating_mul(chunk * passes);
            Some((time, block_units, blocks, segments))
        };
        let (_, block_units, blocks, segments) = (1..=WALKERS / parts(states)).filter_map(cut).min()?;
        let segment_steps = chunks.div_ceil(segments) * SPAN;
        let segments = p.seqlen.div_ceil(segment_steps);
        Some(Plan { column_tiles, states, block_units, blocks, segments, segment_steps, packed, cuts: 0 })
    }

    /// Units of a block, blocks of a segment, and segments.
    #[cfg(all(test, feature = "cuda"))]
    pub fn grid(&self) -> (usize, usize, usize) {
        (self.block_units, self.blocks, self.segments)
    }

    /// Threads of the walkers of a unit.
    pub(super) fn threads_of_unit(&self) -> usize {
        128 * parts(self.states)
    }

    /// Slots of its own, for so many chunks each.
    pub fn slots(&self, p: &Problem<'_>, chunks: usize) -> Slots {
        let columns = p.headdim.next_multiple_of(16);
        Slots { span: SPAN, chunks, states: self.states, columns, math: Math::Bf16 }
    }

    /// Whether slots lie as this kernel fills them.
    fn fills(&self, slots: &Slots) -> bool {
        slots.math == Math::Bf16 && (slots.span, slots.states) == (SPAN, self.states)
    }

    /// Elements of the workspace: ends and decays of all segments behind what packed sequences need.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        let (places, cuts) = self.end_places(p);
        // four elements more, as the caller's memory may begin inside a unit of 16 bytes
        let ends = if places + cuts == 0 { 0 } else { (places + cuts) * COLUMNS * self.states + places + 4 };
        self.packed.map_or(0, |packed| packed.len(self.blocks * self.rows())) + ends
    }

    /// Places for what segments leave, and for states before cuts.
    fn end_places(&self, p: &Problem<'_>) -> (usize, usize) {
        let tiles = p.nheads * self.column_tiles;
        (if self.segments == 1 { 0 } else { places(p, self.segments) * p.batch * tiles }, self.cuts * tiles)
    }

    /// Rows of blocks: a segment each, or of packed sequences some.
    fn rows(&self) -> usize {
        self.packed.map_or(self.segments, |packed| packed.blocks(self.segment_steps))
    }

    /// Returns the table of packed sequences at the beginning of a workspace, and the start of the ends of segments.
    pub fn places(&self, workspace: u64) -> (Packed, u64) {
        match self.packed {
            Some(packed) => packed.at(workspace, self.blocks * self.rows()),
            None => (Packed::default(), workspace.next_multiple_of(16)),
        }
    }

    /// Returns the plan in one piece, for a call without a workspace.
    fn whole(self, p: &Problem<'_>) -> Plan {
        Plan { segments: 1, segment_steps: p.seqlen, ..self }
    }

    fn stages(&self, walk: &Walk<'_, '_>, output: bool) -> usize {
        let most = if output || gates_factor(walk) { 3 } else { 4 };
        match parts(self.states) {
            1 => most,
            _ if output => 2,
            _ => 3,
        }
    }

    /// Shared memory: for each stage tiles of x for each unit (backwards of dy, and of the gate), of B, and of C where there is y; two terms of C B^T, or a
    /// triangle of either unit, of a chunk and of the next one; two tiles of y for each unit, or of a slot for each walker; and what two walkers of
    /// the same columns give each other.
    fn shared(&self, walk: &Walk<'_, '_>, pass: Pass) -> SharedMemory {
        let (output, panels, parts) = (has_output(walk, pass), self.states / 64, parts(self.states));
        let units = WALKERS / parts;
        let products = if output { 4 } else { 0 };
        let out = if output {
            units
        } else if has_slots(walk, pass) {
            units * panels
        } else {
            0
        };
        let exchange = if output && parts > 1 { parts } else { 0 };
        SharedMemory::default()
            .array("X_AT", units * TILE)
            .array("Z_AT", if gates_factor(walk) { units * TILE } else { 0 })
            .array("B_AT", panels * TILE)
            .array("C_AT", if output { panels * TILE } else { 0 })
            .times("STAGE", self.stages(walk, output))
            .array("CB_AT", products * TILE)
            .array("OUT_AT", 2 * out * TILE)
            .array("EXCHANGE_AT", exchange * TILE)
            .array("SHARED_END", 0)
    }

    pub fn config(&self, walk: &Walk<'_, '_>, pass: Pass) -> Config {
        let output = has_output(walk, pass);
        walk.call
            .options()
            .dtype("BEFORE", walk.before.map_or(DType::F32, |v| v.dtype()))
            .dtype("AFTER", type_of(&walk.after))
            .int("COLUMNS", COLUMNS)
            .int("BLOCK_UNITS", self.block_units)
            .int("PLACES", packed::PLACES)
            .int("STATES", self.states)
            .set("PASS", pass.value())
            .flag("FORWARDS", walk.direction == Direction::Forward)
            .flag("HAS_OUTPUT", output)
            .flag("HAS_SLOTS", has_slots(walk, pass))
            .flag("HAS_CUTS", walk.cuts.is_some() && pass != Pass::Ends)
            .flag("TWO_PHASE", walk.part != Pass::Whole)
            .int("SLOT_CHUNKS", walk.slot_chunks())
            .int("STAGES", self.stages(walk, output))
            .shared(&self.shared(walk, pass))
            .int("WALKER_REGISTERS", WALKER_REGISTERS)
            .int("MASK_REGISTERS", MASK_REGISTERS)
            .int("COPY_REGISTERS", COPY_REGISTERS)
    }

    /// The constants for what puts ends together.
    pub fn config_of_ends(&self, walk: &Walk<'_, '_>, decay: &Option<RawViewMut>) -> Config {
        self.config(walk, Pass::Ends).dtype("DECAY", type_of(decay)).flag("HAS_DECAY", decay.is_some())
    }

    /// Whether passes over a row may be in two phases.
    pub fn has_two_phases(&self) -> bool {
        self.segments > 1 && self.packed.is_none()
    }
}

/// Walkers of the same columns. It is the states' matter alone: a row that had two of them because it is short, or alone in its block, would have other bits
/// than among packed sequences or in a larger batch.
fn parts(states: usize) -> usize {
    states.div_ceil(MOST_STATES)
}

fn has_output(walk: &Walk<'_, '_>, pass: Pass) -> bool {
    matches!(walk.output, Output::Y(_)) && pass != Pass::Ends
}
fn has_slots(walk: &Walk<'_, '_>, pass: Pass) -> bool {
    walk.slots.is_some() && pass != Pass::Ends
}
/// Whether a gate is multiplied into what goes into the state.
fn gates_factor(walk: &Walk<'_, '_>) -> bool {
    walk.direction == Direction::Backward && walk.call.problem.z.is_some()
}

/// Tiles of a view over time, (batch, step, head or group, column or state), or nothing if the copy engine cannot read or write it as it lies, or
/// it has another type.
pub(in crate::ops::ssd::cuda) fn time_tiling(view: &View<'_>) -> Option<Tiling> {
    Tiling::new(view, &[1, SPAN, 1, COLUMNS], Swizzle::Bytes128).ok().filter(|_| view.dtype() == DType::BF16)
}

/// Tiles of 64 states x 64 columns of slots (of packed sequences every row has as many as it may need), whose address comes later.
pub(in crate::ops::ssd::cuda) fn slot_tiling(p: &Problem<'_>, slots: &Slots) -> Option<Tiling> {
    let of_row = packed::Plan::new(p).map_or(p.seqlen.div_ceil(slots.chunks * SPAN), |packed| packed.slots);
    let lines = [p.batch, of_row, p.nheads].into_iter().try_fold(slots.states, usize::checked_mul);
    let lines = lines.filter(|&n| n <= i32::MAX as usize)?;
    let (columns, device) = (slots.columns, p.x.device());
    // SAFETY: nobody reads or writes through the view.
    let view = unsafe { View::from_raw_parts(core::ptr::null(), DType::BF16, device, &[lines, columns], &[columns as isize, 1]) };
    Tiling::new(&view.ok()?, &[64, COLUMNS], Swizzle::Bytes128).ok()
}

/// Tensor maps of tiles; those that are not there are not read.
pub(in crate::ops::ssd::cuda) fn encode<const N: usize>(
    stream: &Stream,
    tilings: &[Option<Tiling>; N],
) -> Result<[TensorMap; N]> {
    let mut maps = [TensorMap::default(); N];
    for (map, tiling) in maps.iter_mut().zip(tilings) {
        if let Some(tiling) = tiling {
            *map = tiling.encode(stream)?;
        }
    }
    Ok(maps)
}

/// A walk that this kernel takes: how blocks lie over it, and the tiles of its tensors in the order of the maps of [`Params`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Route {
    pub plan: Plan,
    tilings: [Option<Tiling>; 6],
}

impl Route {
    /// Nothing if the kernel cannot take the walk.
    pub fn new(walk: &Walk<'_, '_>, numbers: Numbers, has_workspace: bool) -> Option<Route> {
        let p = walk.call.problem;
        let plan = Plan { cuts: walk.cuts.map_or(0, |cuts| cuts.pool.write.len()), ..Plan::new(p, numbers)? };
        let no_factor = walk.direction == Direction::Backward && walk.call.dy.is_none();
        if matches!(walk.output, Output::Gate(_)) || walk.slots.is_some_and(|slots| !plan.fills(&slots)) || no_factor {
            return None;
        }
        // other kernels want slots of chunks of the whole row
        if plan.packed.is_some() && (!has_workspace || walk.slots.is_some_and(|slots| slots.chunks == 1)) {
            return None;
        }
        let y = match walk.output {
            Output::Y(y) => Some(y.as_read()),
            _ => None,
        };
        let views = match walk.direction {
            Direction::Forward => [Some(p.x), p.z, y, Some(p.b), Some(p.c)],
            Direction::Backward => [walk.call.dy, p.z, None, Some(p.c), None],
        };
        let mut tilings = [None; 6];
        for (tiling, view) in tilings.iter_mut().zip(views) {
            if let Some(view) = view {
                *tiling = Some(time_tiling(&view)?);
            }
        }
        if let Some(slots) = &walk.slots {
            tilings[5] = Some(slot_tiling(p, slots)?);
        }
        Some(Route { plan: if has_workspace { plan } else { plan.whole(p) }, tilings })
    }

    /// The launches of the walk: two where time is cut.
    pub fn launches(&self, walk: &Walk<'_, '_>) -> Result<Vec<(Pass, Launch)>> {
        let plan = &self.plan;
        let passes: &[_] = match walk.part {
            Pass::Whole => Pass::all(plan.segments > 1),
            Pass::Ends => &[Pass::Ends],
            Pass::Rest => &[Pass::Rest],
        };
        let launch = |&pass: &Pass| {
            // the last segment of a row leaves nothing, but for other processes
            let idle = usize::from(pass == Pass::Ends && walk.part == Pass::Whole);
            let rows = if plan.packed.is_some() { plan.rows() } else { plan.segments - idle };
            let (blocks, rows) = u32::try_from(plan.blocks).ok().zip(u32::try_from(rows).ok()).ok_or(TOO_MANY)?;
            let shared = plan.shared(walk, pass).len() + ALIGNMENT;
            let line = Launch::line(blocks, 128 * (WALKERS + HELPERS) as u32, shared as u32);
            Ok((pass, Launch { grid: [blocks, rows, 1], ..line }))
        };
        passes.iter().map(launch).collect()
    }

    pub(super) fn params(&self, stream: &Stream, walk: &Walk<'_, '_>, addresses: Addresses) -> Result<Params> {
        let (p, plan) = (walk.call.problem, &self.plan);
        let [rest @ .., slots] = self.tilings;
        let [x_map, z_map, y_map, b_map, c_map] = encode(stream, &rest)?;
        let [slot_map] = encode(stream, &[slots.map(|slots| slots.at(addresses.slots))])?;
        let (packed, ends) = plan.places(addresses.workspace.unwrap_or(0));
        let (end_places, cut_places) = plan.end_places(p);
        let len = (end_places + cut_places) * COLUMNS * plan.states;
        Ok(Params {
            inputs: walk.call.inputs(SPAN, plan.column_tiles),
            x_map,
            z_map,
            y_map,
            b_map,
            c_map,
            slot_map,
            before: States::of(&walk.before),
            after: States::of(&walk.after.as_ref().map(|v| v.as_read())),
            ends: Address::new(ends),
            decays: Address::new(ends + 4 * len as u64),
            segments: plan.segments as i64,
            segment_steps: plan.segment_steps as i64,
            packed,
            decay: Strided::default(),
            cuts: Strided::of_option(&walk.cuts.map(|cuts| cuts.bounds)),
            cut_slots: on_cuda::Slots::of(&walk.cuts.map(|cuts| cuts.pool)),
            pieces: walk.cuts.and_then(|cuts| cuts.pool.pieces()).unwrap_or(1) as i64,
            first_cut: end_places as i64,
        })
    }

    /// Puts together what the segments of a walk have left: the state after all of them, from that before the first one, and their decay.
    ///
    /// # Safety
    /// The views and the addresses are valid, and the walk's ends are in them.
    pub unsafe fn put_together(
        &self,
        stream: &Queue<'_>,
        walk: &Walk<'_, '_>,
        addresses: Addresses,
        decay: &Option<RawViewMut>,
    ) -> Result<()> {
        let params = Params { decay: Strided::of_option(decay), ..self.params(stream, walk, addresses)? };
        let blocks = u32::try_from(self.plan.blocks).map_err(|_| TOO_MANY)?;
        let launch = Launch::line(blocks, (128 * WALKERS) as u32, 0);
        // SAFETY: the caller's contract.
        unsafe { stream.launch(&ENDS, || self.plan.config_of_ends(walk, decay), launch, &params) }.map_err(Into::into)
    }

    /// # Safety
    /// The views are valid, and so are the addresses for what the route says.
    pub unsafe fn launch(&self, stream: &Queue<'_>, walk: &Walk<'_, '_>, addresses: Addresses) -> Result<()> {
        let (plan, params) = (&self.plan, self.params(stream, walk, addresses)?);
        let launches = self.launches(walk)?;
        if plan.packed.is_some() {
            // SAFETY: the caller's contract.
            unsafe { packed::find(stream, &walk.call, params.packed, plan.segment_steps, walk.slot_chunks())? };
            // SAFETY: as above.
            unsafe { hand_on::launch(stream, &walk.call, &walk.before, &walk.after)? };
        }
        for (pass, launch) in launches {
            // SAFETY: the caller's contract; the maps describe the views, and the configuration the types of everything else.
            unsafe {
                if walk.beside {
                    stream.launch_early(&KERNEL, || plan.config(walk, pass), launch, &params)?;
                } else {
                    stream.launch(&KERNEL, || plan.config(walk, pass), launch, &params)?;
                }
            }
        }
        Ok(())
    }
}
