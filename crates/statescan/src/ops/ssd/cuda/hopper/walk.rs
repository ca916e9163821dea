//! The walk over time on Hopper: products of warpgroups (`wgmma`) on tiles that the copy engine brings. It takes whole rows of bf16 whose layout
//! that engine can describe; everything else goes to the walk on `mma.sync`, as does the gradient by a gate unless `fused.rs` forms it.

use super::hand_on;
use super::packed::{self, Packed, SPAN};
use crate::cuda::{
    Address, COMMON, Config, HOPPER, Launch, MMA, Numbers, Program, STEP_SIZE, Stream, Swizzle, TensorMap, Tiling, Value, params,
};
use crate::error::Result;
use crate::ops::ssd::cuda::portable::plan::{Math, Tiles};
use crate::ops::ssd::cuda::walk::{Direction, Output, Pass, Walk};
use crate::ops::ssd::cuda::{Inputs, States, TOO_MANY, type_of};
use crate::ops::ssd::problem::Problem;
use crate::tensor::{DType, View};

pub(in crate::ops::ssd::cuda) static KERNEL: Program<Params> = Program::new(
    "ssd_hopper",
    &[COMMON, STEP_SIZE, MMA, HOPPER],
    concat!(
        include_str!("../../../../cuda/sequences.cuh"),
        include_str!("../inputs.cuh"),
        include_str!("packed.cuh"),
        include_str!("tools.cuh"),
        include_str!("walk_layout.cuh"),
        include_str!("walk_helpers.cuh"),
        include_str!("walk.cu")
    ),
);

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
    }
}

/// Columns of a tile.
pub(in crate::ops::ssd::cuda) const COLUMNS: usize = 64;
/// Warpgroups of a block that walk, and states of a column that one of them can hold: where there are more, both walk the same columns.
const WALKERS: usize = 2;
pub(in crate::ops::ssd::cuda) const MOST_STATES: usize = 128;
/// A tile in shared memory.
pub(in crate::ops::ssd::cuda) const TILE: usize = SPAN * 2 * COLUMNS;
/// What aligning shared memory may cost.
pub(in crate::ops::ssd::cuda) const ALIGNMENT: usize = 1024;
/// Warpgroups beside those that walk: one for C B^T, one for copies and powers of decays.
const HELPERS: usize = 2;
/// Registers of a thread of each kind of warpgroup; all share what a multiprocessor has.
const WALKER_REGISTERS: usize = 200;
const MASK_REGISTERS: usize = 64;
const COPY_REGISTERS: usize = 48;
const _: () = assert!(128 * (WALKERS * WALKER_REGISTERS + MASK_REGISTERS + COPY_REGISTERS) <= 65536);

/// How blocks lie over a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Plan {
    pub column_tiles: usize,
    /// States, padded.
    pub states: usize,
    /// Blocks for a segment.
    blocks: usize,
    /// Segments of time and their steps.
    segments: usize,
    segment_steps: usize,
    pub packed: Option<packed::Plan>,
}

impl Plan {
    /// A plan for sizes, types and options that this kernel has; layouts are looked at where tensor maps are made.
    pub fn new(p: &Problem<'_>, numbers: Numbers) -> Option<Plan> {
        let bf16 = [Some(p.x), Some(p.b), Some(p.c), p.z].into_iter().flatten().all(|view| view.dtype() == DType::BF16);
        let sizes = [p.batch, p.seqlen, p.nheads, p.headdim, p.dstate];
        let fits = sizes.iter().all(|&n| n > 0 && n <= i32::MAX as usize - SPAN)
            && p.dstate <= WALKERS * MOST_STATES
            && p.headdim.is_multiple_of(8);
        if numbers.capability != (9, 0) || !bf16 || !fits || p.reverse {
            return None;
        }
        let packed = packed::Plan::new(p);
        let column_tiles = p.headdim.div_ceil(COLUMNS);
        let states = if p.dstate <= MOST_STATES { p.dstate.next_multiple_of(64) } else { WALKERS * MOST_STATES };
        let units = p.nheads / p.ngroups * column_tiles;
        let blocks = [p.batch, p.ngroups].into_iter().try_fold(units.div_ceil(WALKERS / parts(states)), usize::checked_mul)?;
        let chunks = p.seqlen.div_ceil(SPAN);
        // two segments take as long as one, since the first launch takes more than half as long as the second
        let segments = Some((numbers.multiprocessors / blocks).min(chunks / 4)).filter(|&n| n > 2).unwrap_or(1);
        let segment_steps = chunks.div_ceil(segments) * SPAN;
        let segments = p.seqlen.div_ceil(segment_steps);
        Some(Plan { column_tiles, states, blocks, segments, segment_steps, packed })
    }

    /// Whether slots lie as this kernel fills them.
    pub fn has_slots_of(&self, tiles: &Tiles) -> bool {
        tiles.math == Math::Bf16 && (tiles.span, tiles.states) == (SPAN, self.states)
    }

    /// Elements of the workspace: ends and decays of all segments behind what packed sequences need.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        let ends = match self.segments {
            1 => 0,
            // and room to begin at a multiple of 16 bytes
            segments => segments * p.batch * p.nheads * self.column_tiles * (COLUMNS * self.states + 1) + 4,
        };
        self.packed.map_or(0, |packed| packed.len(self.blocks * self.rows())) + ends
    }

    /// Rows of blocks: a segment each, or of packed sequences some.
    fn rows(&self) -> usize {
        self.packed.map_or(self.segments, |packed| packed.blocks(self.segment_steps))
    }

    /// What packed sequences have at the beginning of a workspace, and where ends of segments begin.
    pub fn places(&self, workspace: u64) -> (Packed, u64) {
        match self.packed {
            Some(packed) => packed.at(workspace, self.blocks * self.rows()),
            None => (Packed::default(), workspace.next_multiple_of(16)),
        }
    }

    /// The same in one piece, where there is no workspace.
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

    /// Bytes of shared memory: as the kernel lays it out.
    fn shared(&self, walk: &Walk<'_, '_>, pass: Pass) -> usize {
        let (output, panels, parts) = (has_output(walk, pass), self.states / 64, parts(self.states));
        let units = WALKERS / parts;
        let stage = units + if gates_factor(walk) { units } else { 0 } + if output { 2 * panels } else { panels };
        // two terms of C B^T, twice
        let products = if output { 4 } else { 0 };
        let out = if output {
            units
        } else if has_slots(walk, pass) {
            units * panels
        } else {
            0
        };
        let exchange = if output && parts > 1 { parts } else { 0 };
        (self.stages(walk, output) * stage + products + 2 * out + exchange) * TILE + ALIGNMENT
    }

    pub fn config(&self, walk: &Walk<'_, '_>, pass: Pass) -> Config {
        let output = has_output(walk, pass);
        walk.call
            .options()
            .dtype("BEFORE", walk.before.map_or(DType::F32, |v| v.dtype()))
            .dtype("AFTER", type_of(&walk.after))
            .int("COLUMNS", COLUMNS)
            .int("PLACES", packed::PLACES)
            .int("STATES", self.states)
            .set("PASS", Value::Name("Pass", pass.name()))
            .flag("FORWARDS", walk.direction == Direction::Forward)
            .flag("HAS_OUTPUT", output)
            .flag("HAS_SLOTS", has_slots(walk, pass))
            .int("SLOT_CHUNKS", walk.slot_chunks)
            .int("STAGES", self.stages(walk, output))
            .int("SHARED", self.shared(walk, pass))
            .int("WALKER_REGISTERS", WALKER_REGISTERS)
            .int("MASK_REGISTERS", MASK_REGISTERS)
            .int("COPY_REGISTERS", COPY_REGISTERS)
    }
}

/// Walkers of the same columns.
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

/// The tensor map of a view over time, (batch, step, head or group, column or state), or nothing if the copy engine cannot read or write it as it
/// lies, or it has another type.
pub(in crate::ops::ssd::cuda) fn time_map(stream: &Stream, view: &View<'_>) -> Result<Option<TensorMap>> {
    if view.dtype() != DType::BF16 {
        return Ok(None);
    }
    match Tiling::new(view, &[1, SPAN, 1, COLUMNS], Swizzle::Bytes128) {
        Ok(tiling) => tiling.encode(stream).map(Some),
        Err(_) => Ok(None),
    }
}

/// The tensor map of slots for every so many chunks (two of packed sequences), in tiles of 64 states x 64 columns.
pub(in crate::ops::ssd::cuda) fn slot_map(
    stream: &Stream,
    p: &Problem<'_>,
    tiles: &Tiles,
    slots: u64,
    chunks: usize,
) -> Result<Option<TensorMap>> {
    let of_row = packed::Plan::new(p).map_or(p.seqlen.div_ceil(chunks * SPAN), |packed| packed.slots);
    let lines = [p.batch, of_row, p.nheads].into_iter().try_fold(tiles.states, usize::checked_mul);
    let Some(lines) = lines.filter(|&n| n <= i32::MAX as usize) else { return Ok(None) };
    let (columns, device) = (tiles.padded_columns(), p.x.device());
    let (data, shape) = (core::ptr::without_provenance(slots as usize), [lines, columns]);
    // SAFETY: the host never reads through the view, whose memory is that of the slots.
    let view = unsafe { View::from_raw_parts(data, DType::BF16, device, &shape, &[columns as isize, 1])? };
    match Tiling::new(&view, &[64, COLUMNS], Swizzle::Bytes128) {
        Ok(tiling) => tiling.encode(stream).map(Some),
        Err(_) => Ok(None),
    }
}

/// Tensor maps of a walk, in the order of [`Params`].
struct Maps([TensorMap; 6]);

impl Maps {
    /// Nothing if a view has none.
    fn new(stream: &Stream, walk: &Walk<'_, '_>, tiles: &Tiles) -> Result<Option<Maps>> {
        let p = walk.call.problem;
        let y = match walk.output {
            Output::Y(y) => Some(y.as_read()),
            _ => None,
        };
        let views = match walk.direction {
            Direction::Forward => [Some(p.x), p.z, y, Some(p.b), Some(p.c)],
            Direction::Backward => [walk.call.dy, p.z, None, Some(p.c), None],
        };
        let mut maps = [TensorMap::default(); 6];
        for (map, view) in maps.iter_mut().zip(views) {
            let Some(view) = view else { continue };
            let Some(found) = time_map(stream, &view)? else { return Ok(None) };
            *map = found;
        }
        if let Some(slots) = walk.slots {
            let Some(found) = slot_map(stream, p, tiles, slots, walk.slot_chunks)? else { return Ok(None) };
            maps[5] = found;
        }
        Ok(Some(Maps(maps)))
    }
}

/// The walk, if this kernel can take it: whether it did. `tiles` say how slots lie.
///
/// # Safety
/// The views are valid, so are the slots for what the tiles say, and the workspace has the size that the plan gives.
pub(in crate::ops::ssd::cuda) unsafe fn walk(
    stream: &Stream,
    walk: &Walk<'_, '_>,
    tiles: &Tiles,
    workspace: Option<u64>,
) -> Result<bool> {
    let p = walk.call.problem;
    let Some(plan) = Plan::new(p, stream.numbers()) else { return Ok(false) };
    let no_factor = walk.direction == Direction::Backward && walk.call.dy.is_none();
    if matches!(walk.output, Output::Gate(_)) || (walk.slots.is_some() && !plan.has_slots_of(tiles)) || no_factor {
        return Ok(false);
    }
    // other kernels want slots of chunks of the whole row
    if plan.packed.is_some() && (workspace.is_none() || (walk.slots.is_some() && walk.slot_chunks == 1)) {
        return Ok(false);
    }
    let Some(Maps([x_map, z_map, y_map, b_map, c_map, slot_map])) = Maps::new(stream, walk, tiles)? else { return Ok(false) };
    let plan = if workspace.is_some() { plan } else { plan.whole(p) };
    let (packed, ends) = plan.places(workspace.unwrap_or(0));
    let len = plan.segments * p.batch * p.nheads * plan.column_tiles * COLUMNS * plan.states;
    let params = Params {
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
    };
    if plan.packed.is_some() {
        // SAFETY: the caller's contract.
        unsafe { packed::find(stream, &walk.call, packed, plan.segment_steps, walk.slot_chunks)? };
        // SAFETY: as above.
        unsafe { hand_on::launch(stream, &walk.call, &walk.before, &walk.after)? };
    }
    let passes: &[_] = if plan.segments > 1 { &[Pass::Ends, Pass::Rest] } else { &[Pass::Whole] };
    for &pass in passes {
        // the last segment of a row leaves nothing
        let rows = if plan.packed.is_some() { plan.rows() } else { plan.segments - usize::from(pass == Pass::Ends) };
        let (blocks, rows) = u32::try_from(plan.blocks).ok().zip(u32::try_from(rows).ok()).ok_or(TOO_MANY)?;
        let line = Launch::line(blocks, 128 * (WALKERS + HELPERS) as u32, plan.shared(walk, pass) as u32);
        let launch = Launch { grid: [blocks, rows, 1], ..line };
        // SAFETY: the caller's contract; the maps describe the views, and the configuration the types of everything else.
        unsafe { stream.launch(&KERNEL, &plan.config(walk, pass), launch, &params)? };
    }
    Ok(true)
}
