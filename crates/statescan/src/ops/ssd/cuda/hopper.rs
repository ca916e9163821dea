//! The forward pass on Hopper: products of warpgroups (`wgmma`) on tiles that the copy engine brings. It takes whole rows of bf16 whose layout
//! that engine can describe; everything else goes to the walk on `mma.sync`.

use super::walk::Pass;
use super::{Call, Inputs, States, TOO_MANY, type_of};
use crate::cuda::{
    Address, COMMON, Config, HOPPER, Launch, MMA, Numbers, Program, STEP_SIZE, Stream, Swizzle, TensorMap, Tiling, Value, params,
};
use crate::error::Result;
use crate::ops::sequences::Sequences;
use crate::ops::ssd::problem::Problem;
use crate::ops::ssd::targets::Targets;
use crate::tensor::{DType, RawViewMut, View};

pub(super) static KERNEL: Program<Params> =
    Program::new("ssd_hopper", &[COMMON, STEP_SIZE, MMA, HOPPER], concat!(include_str!("inputs.cuh"), include_str!("hopper.cu")));

params! {
    /// Parameters of `ssd_hopper`.
    pub(super) struct Params(inputs: Inputs) {
        /// Tiles of 64 steps x 64 columns or states.
        x_map: TensorMap,
        z_map: TensorMap,
        y_map: TensorMap,
        b_map: TensorMap,
        c_map: TensorMap,
        /// The states that rows begin and end with.
        before: States,
        after: States,
        /// (segment, batch, head, tile of columns): what segments leave, in the order of their threads, and their decays.
        ends: Address<f32>,
        decays: Address<f32>,
        segments: i64,
        segment_steps: i64,
    }
}

/// Steps of a chunk, and columns of a tile.
const SPAN: usize = 64;
const COLUMNS: usize = 64;
/// Tiles of columns that a block takes.
const UNITS: usize = 2;
/// A tile in shared memory.
const TILE: usize = SPAN * 2 * COLUMNS;
/// Shared memory that the kernel declares itself, at most, and what aligning the rest may cost.
const STATIC: usize = 8 << 10;
const ALIGNMENT: usize = 1024;
/// Warpgroups beside those that walk: one for C B^T, one for copies and powers of decays.
const HELPERS: usize = 2;
/// Registers of a thread of each kind of warpgroup; all share what a multiprocessor has.
const WALKER_REGISTERS: usize = 200;
const MASK_REGISTERS: usize = 64;
const COPY_REGISTERS: usize = 48;
const _: () = assert!(128 * (UNITS * WALKER_REGISTERS + MASK_REGISTERS + COPY_REGISTERS) <= 65536);

/// How blocks lie over a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub column_tiles: usize,
    /// States, padded.
    pub states: usize,
    /// Blocks for a segment.
    blocks: usize,
    /// Segments of time and their steps.
    segments: usize,
    segment_steps: usize,
}

impl Plan {
    /// A plan for sizes, types and options that this kernel has; layouts are looked at where tensor maps are made.
    pub fn new(p: &Problem<'_>, numbers: Numbers) -> Option<Plan> {
        let bf16 = [Some(p.x), Some(p.b), Some(p.c), p.z].into_iter().flatten().all(|view| view.dtype() == DType::BF16);
        let sizes = [p.batch, p.seqlen, p.nheads, p.headdim, p.dstate];
        let fits =
            sizes.iter().all(|&n| n > 0 && n <= i32::MAX as usize - SPAN) && p.dstate <= 128 && p.headdim.is_multiple_of(8);
        if numbers.capability != (9, 0) || !bf16 || !fits || p.reverse || !matches!(p.sequences, Sequences::Whole) {
            return None;
        }
        let column_tiles = p.headdim.div_ceil(COLUMNS);
        let units = p.nheads / p.ngroups * column_tiles;
        let blocks = [p.batch, p.ngroups].into_iter().try_fold(units.div_ceil(UNITS), usize::checked_mul)?;
        let chunks = p.seqlen.div_ceil(SPAN);
        // two segments take as long as one, since the first launch takes more than half as long as the second
        let segments = Some((numbers.multiprocessors / blocks).min(chunks / 4)).filter(|&n| n > 2).unwrap_or(1);
        let segment_steps = chunks.div_ceil(segments) * SPAN;
        let segments = p.seqlen.div_ceil(segment_steps);
        let plan = Plan { column_tiles, states: p.dstate.next_multiple_of(64), blocks, segments, segment_steps };
        (plan.shared(true) + STATIC <= numbers.shared_per_block).then_some(plan)
    }

    /// Elements of the workspace: ends and decays of all segments.
    pub fn workspace_len(&self, p: &Problem<'_>) -> usize {
        match self.segments {
            1 => 0,
            // and room to begin at a multiple of 16 bytes
            segments => segments * p.batch * p.nheads * self.column_tiles * (COLUMNS * self.states + 1) + 4,
        }
    }

    /// The same in one piece, where there is no workspace.
    fn whole(self, p: &Problem<'_>) -> Plan {
        Plan { segments: 1, segment_steps: p.seqlen, ..self }
    }

    fn stages(&self, output: bool) -> usize {
        if output { 3 } else { 4 }
    }

    /// Bytes of shared memory: as the kernel lays it out.
    pub fn shared(&self, output: bool) -> usize {
        let maps = self.states / 64 * if output { 2 } else { 1 };
        let stage = UNITS + maps + usize::from(output);
        let out = if output { 2 * UNITS } else { 0 };
        (self.stages(output) * stage + out) * TILE + ALIGNMENT
    }

    pub fn config(&self, call: &Call<'_, '_>, after: &Option<RawViewMut>, output: bool, pass: Pass) -> Config {
        call.options()
            .dtype("BEFORE", call.problem.initial_state.map_or(DType::F32, |v| v.dtype()))
            .dtype("AFTER", type_of(after))
            .int("COLUMNS", COLUMNS)
            .int("STATES", self.states)
            .set("PASS", Value::Name("Pass", pass.name()))
            .flag("HAS_OUTPUT", output)
            .int("STAGES", self.stages(output))
            .int("SHARED", self.shared(output))
            .int("WALKER_REGISTERS", WALKER_REGISTERS)
            .int("MASK_REGISTERS", MASK_REGISTERS)
            .int("COPY_REGISTERS", COPY_REGISTERS)
    }
}

/// Tensor maps of a call, in the order of [`Params`].
struct Maps([TensorMap; 5]);

impl Maps {
    /// Nothing if the copy engine cannot read or write the views as they lie.
    fn new(stream: &Stream, p: &Problem<'_>, y: Option<View<'_>>) -> Result<Option<Maps>> {
        let mut maps = [TensorMap::default(); 5];
        for (map, view) in maps.iter_mut().zip([Some(p.x), p.z, y, Some(p.b), Some(p.c)]) {
            let Some(view) = view else { continue };
            let Ok(tiling) = Tiling::new(&view, &[1, SPAN, 1, COLUMNS], Swizzle::Bytes128) else { return Ok(None) };
            *map = tiling.encode(stream)?;
        }
        Ok(Some(Maps(maps)))
    }
}

/// The pass, if this kernel can compute it: whether it did.
///
/// # Safety
/// The views are valid, and the workspace has the size that the plan gives.
pub(super) unsafe fn forward(stream: &Stream, call: &Call<'_, '_>, targets: &Targets, workspace: Option<u64>) -> Result<bool> {
    let p = call.problem;
    let Some(plan) = Plan::new(p, stream.numbers()) else { return Ok(false) };
    let y = targets.y.as_ref().map(|v| v.as_read());
    if y.is_some_and(|y| y.dtype() != DType::BF16) {
        return Ok(false);
    }
    let Some(Maps([x_map, z_map, y_map, b_map, c_map])) = Maps::new(stream, p, y)? else { return Ok(false) };
    let plan = if workspace.is_some() { plan } else { plan.whole(p) };
    let ends = workspace.unwrap_or(0).next_multiple_of(16);
    let len = plan.segments * p.batch * p.nheads * plan.column_tiles * COLUMNS * plan.states;
    let params = Params {
        inputs: call.inputs(SPAN, plan.column_tiles),
        x_map,
        z_map,
        y_map,
        b_map,
        c_map,
        before: States::of(&p.initial_state),
        after: States::of(&targets.final_state.as_ref().map(|v| v.as_read())),
        ends: Address::new(ends),
        decays: Address::new(ends + 4 * len as u64),
        segments: plan.segments as i64,
        segment_steps: plan.segment_steps as i64,
    };
    let passes: &[_] = if plan.segments > 1 { &[Pass::Ends, Pass::Rest] } else { &[Pass::Whole] };
    for &pass in passes {
        let output = y.is_some() && pass != Pass::Ends;
        let segments = plan.segments - usize::from(pass == Pass::Ends);
        let (blocks, segments) = u32::try_from(plan.blocks).ok().zip(u32::try_from(segments).ok()).ok_or(TOO_MANY)?;
        let line = Launch::line(blocks, 128 * (UNITS + HELPERS) as u32, plan.shared(output) as u32);
        let launch = Launch { grid: [blocks, segments, 1], ..line };
        let config = plan.config(call, &targets.final_state, output, pass);
        // SAFETY: the caller's contract; the maps describe the views, and the configuration the types of everything else.
        unsafe { stream.launch(&KERNEL, &config, launch, &params)? };
    }
    Ok(true)
}
