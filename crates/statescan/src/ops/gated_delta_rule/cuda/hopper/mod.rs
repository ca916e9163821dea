//! The forward pass on Hopper, for bf16: units of all chunks, then the chain of chunks.

pub(super) mod backward;
pub(super) mod segments;

use super::{Call, INPUTS, Inputs, by_time};
use crate::cuda::{
    Address, BLOCKS, COMMON, Config, HOPPER, Header, Launch, MMA, Numbers, PlannedLaunch, Program, Queue, SEQUENCES, SLOTS,
    STEP_SIZE, Strided, Swizzle, TensorMap, Tiling, header, neighbours, params,
};
use crate::error::Result;
use crate::ops::gated_delta_rule::Targets;
use crate::ops::gated_delta_rule::gates::GATES;
use crate::ops::on_cuda::{States, dtype, read, type_of};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, View};
use core::ffi::c_void;

const UNIT: Header = header!("unit.cuh");
const MAKER: Header = header!("maker.cuh");
const HEAD_UNITS: Header = header!("head_units.cuh");
const COLUMNS: Header = header!("columns.cuh");
const KEEPER: Header = header!("keeper.cuh");
const PRELUDE: &[Header] = &[COMMON, STEP_SIZE, MMA, BLOCKS, HOPPER];

pub(super) static UNITS: Program<Params> = Program::new("gated_delta_rule_units", PRELUDE, include_str!("units.cu"))
    .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, MAKER, HEAD_UNITS]);
/// Units where channels have decays of their own.
pub(super) static CHANNEL_UNITS: Program<Params> =
    Program::new("gated_delta_rule_channel_units", PRELUDE, include_str!("channel_units.cu"))
        .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, MAKER]);
static CHAIN: Program<Params> = Program::new("gated_delta_rule_chain", PRELUDE, include_str!("chain.cu"))
    .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, COLUMNS, KEEPER]);
/// The chain where heads fill the device: blocks have whole heads.
static HEADS: Program<Params> = Program::new("gated_delta_rule_heads", PRELUDE, include_str!("heads.cu"))
    .including(&[SLOTS, SEQUENCES, GATES, INPUTS, UNIT, COLUMNS, KEEPER]);

params! {
    /// Parameters of all of these kernels.
    pub(super) struct Params(inputs: Inputs) {
        q_map: TensorMap,
        k_map: TensorMap,
        v_map: TensorMap,
        y: Strided,
        before: States,
        after: States,
        /// Dense (batch, head, place).
        units: Address<c_void>,
        flags: Address<u32>,
        /// Dense (piece, head, segment), numbers of a segment as `unit.cuh` has them.
        ends: Address<f32>,
        segments: i64,
        key_heads: i64,
        rows: i64,
        /// Places for units in a row.
        places: i64,
        /// Places for chunks of heads of keys in all rows.
        count: i64,
    }
}

pub(super) static GATHER: Program<GatherParams> = Program::new("gated_delta_rule_gather", &[COMMON], include_str!("gather.cu"));

params! {
    /// Parameters of `gated_delta_rule_gather`.
    pub(super) struct GatherParams {
        /// (batch, step, head, channel)
        from: Strided,
        to: Address<c_void>,
        steps: i64,
        heads: i64,
        width: i64,
        step_tiles: i64,
    }
}

/// Steps of a chunk, and columns of a tile.
const CHUNK: usize = 64;
const TILE: usize = CHUNK * 128;
/// `STAGED_BYTES` of `unit.cuh`.
const STAGED_BYTES: usize = 2 * TILE + 1024;
/// The bytes by which dynamic memory may miss the alignment of tiles, and a workspace that of units.
const ALIGNMENT: usize = 1024;
/// Sequences that are shorter on average take fewer instructions step by step.
const FEWEST_STEPS: usize = 32;
/// The most heads of values that share a key.
const MOST_GROUP: usize = 8;

/// Queries, keys or values, as tiles: of the tensor itself, or of a dense copy in the workspace.
#[derive(Debug, Clone, Copy)]
struct Source {
    tiling: Tiling,
    is_copied: bool,
    /// Numbers of the tensor.
    len: usize,
}

impl Source {
    fn new(view: &View<'_>) -> Option<Source> {
        let tiled = |view: &View<'_>| Tiling::new(view, &[1, CHUNK, 1, 64], Swizzle::Bytes128).ok();
        let len = view.shape().iter().try_fold(1, |n: usize, &size| n.checked_mul(size)).filter(|&n| n > 0)?;
        if view.dtype() != DType::BF16 {
            return None;
        }
        if let Some(tiling) = tiled(view) {
            return Some(Source { tiling, is_copied: false, len });
        }
        // SAFETY: nobody reads or writes through the view.
        let dense = unsafe {
            View::from_raw_parts(core::ptr::null(), DType::BF16, view.device(), &view.shape(), &view.shape().row_major())
        };
        Some(Source { tiling: tiled(&dense.ok()?)?, is_copied: true, len })
    }

    /// Bytes of the workspace.
    fn bytes(&self) -> usize {
        if self.is_copied { (2 * self.len).next_multiple_of(128) } else { 0 }
    }

    /// Copies it, if it has to be.
    ///
    /// # Safety
    /// The view is valid, and so is the address for its copy.
    unsafe fn gather(&self, queue: &Queue<'_>, view: &View<'_>, to: u64) -> Result<Tiling> {
        if !self.is_copied {
            return Ok(self.tiling);
        }
        let [batch, steps, heads, width] = [0, 1, 2, 3].map(|axis| view.shape()[axis]);
        let step_tiles = steps.div_ceil(CHUNK);
        let params = GatherParams {
            from: Strided::of(view),
            to: Address::new(to),
            steps: steps as i64,
            heads: heads as i64,
            width: width as i64,
            step_tiles: step_tiles as i64,
        };
        let launch = Launch::new(GATHER.kernel, Some(batch * step_tiles * heads * (width / 64)), 256)?;
        // SAFETY: the caller's contract.
        unsafe { queue.launch(&GATHER, || gather_config(view), launch, &params)? };
        Ok(self.tiling.at(to))
    }
}

pub(super) fn gather_config(view: &View<'_>) -> Config {
    Config::default().flag("BY_TIME", by_time(view))
}

/// `UNIT_BYTES` of `unit.cuh`.
fn unit_bytes(call: &Call<'_, '_>) -> usize {
    STAGED_BYTES + if call.problem.gates.by_channel { 3 * (call.problem.keys / 64) * TILE } else { 0 }
}

pub(super) fn units_of(call: &Call<'_, '_>) -> &'static Program<Params> {
    if call.problem.gates.by_channel { &CHANNEL_UNITS } else { &UNITS }
}

/// A call that these kernels take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// Queries, keys and values.
    sources: [Source; 3],
    places: usize,
    /// Columns of heads that walk over a sequence on their own: blocks of the second kernel, for each segment, or half as many, of whole heads.
    slices: u32,
    /// Parts of a sequence that walk on their own.
    pub(super) segments: usize,
    /// Multiprocessors of the first kernel, and whether the second one runs beside it on the others.
    multiprocessors: usize,
    pub(super) beside: bool,
    /// Whether a block of the second kernel has 128 columns.
    pub(super) by_head: bool,
}

impl Route {
    /// Nothing if they do not.
    pub(super) fn new(call: &Call<'_, '_>, y: Option<View<'_>>, numbers: Numbers) -> Option<Route> {
        let p = call.problem;
        let sizes =
            [64, 128].contains(&p.keys) && p.values.is_multiple_of(64) && p.values > 0 && (1..=MOST_GROUP).contains(&p.group);
        let places = match p.sequences {
            Sequences::Whole => p.seqlen.div_ceil(CHUNK),
            Sequences::CuSeqlens(_) => p.seqlen / CHUNK + call.sequence_count(),
            Sequences::SeqIdx(_) => return None,
        };
        let long = p.seqlen >= FEWEST_STEPS * call.sequence_count() && p.seqlen <= i32::MAX as usize;
        if numbers.capability != (9, 0) || !sizes || !long || p.reverse || y.is_some_and(|y| y.dtype() != DType::BF16) {
            return None;
        }
        let slices = [p.value_heads(), p.values / 64].into_iter().try_fold(call.pieces(), usize::checked_mul);
        let slices = slices.filter(|&n| n <= i32::MAX as usize)?;
        let segments = segments::count(call, slices, numbers.multiprocessors);
        let spare = numbers.multiprocessors.saturating_sub(slices);
        // a unit and a link of the chain take about as long, but for decays of channels
        let room = if p.gates.by_channel { spare >= 2 * slices } else { 5 * spare >= 3 * slices };
        let beside = segments == 1 && room;
        // a turn of such blocks takes 1.7 times as long
        let turns = |blocks: usize| blocks.div_ceil(numbers.multiprocessors);
        let is_whole = !p.gates.by_channel && p.pool.is_none_or(|pool| pool.pieces().is_none());
        let by_head = is_whole && p.values.is_multiple_of(128) && 7 * turns(slices / 2) <= 4 * turns(slices);
        let multiprocessors = if beside { spare } else { numbers.multiprocessors };
        let sources = [Source::new(&p.q)?, Source::new(&p.k)?, Source::new(&p.v)?];
        let route = Route { sources, places, slices: slices as u32, segments, multiprocessors, beside, by_head };
        (route.count(call) <= i32::MAX as usize).then_some(route)
    }

    /// Elements of the workspace: copies, and a unit and its flag for every chunk and head of values.
    pub(super) fn workspace_len(&self, call: &Call<'_, '_>) -> usize {
        let copies = self.copies().saturating_add(ALIGNMENT).saturating_add(self.ends_bytes(call));
        (self.units(call).saturating_mul(unit_bytes(call) + 4)).saturating_add(copies) / 4
    }

    /// Bytes of copies.
    fn copies(&self) -> usize {
        self.sources.iter().fold(0, |n, source| n.saturating_add(source.bytes()))
    }

    /// Bytes of what segments leave.
    fn ends_bytes(&self, call: &Call<'_, '_>) -> usize {
        let p = call.problem;
        let ends = if self.segments > 1 { call.pieces().saturating_mul(p.value_heads() * self.segments) } else { 0 };
        ends.saturating_mul(4 * p.keys * (p.keys + p.values))
    }

    fn units(&self, call: &Call<'_, '_>) -> usize {
        self.count(call).saturating_mul(call.problem.group)
    }

    /// Places for chunks of heads of keys.
    fn count(&self, call: &Call<'_, '_>) -> usize {
        call.problem.batch.saturating_mul(self.places).saturating_mul(call.problem.heads)
    }

    /// The shared memory of a warpgroup.
    fn units_shared(&self, call: &Call<'_, '_>) -> usize {
        let (keys, group) = (call.problem.keys, call.problem.group);
        // betas and sums, whose lines are padded where there is one for each channel; lengths
        let of_steps = if call.problem.gates.by_channel { 1 + keys + 8 } else { 2 * group } + 2;
        // blocks below the diagonal and their inverses in lines of 20 numbers, blocks on the diagonal; a barrier
        let room = 4 * (10 * 16 * 20 + 4 * 256 + of_steps * CHUNK) + 16;
        (2 * (keys / 64) * TILE + STAGED_BYTES + room).next_multiple_of(ALIGNMENT)
    }

    fn chain_shared(&self, call: &Call<'_, '_>) -> usize {
        let (panels, by_channel) = (call.problem.keys / 64, call.problem.gates.by_channel);
        let rows = if by_channel { 0 } else { 2 * panels * TILE };
        let stages = self.stages(call);
        if self.by_head {
            return stages * (2 * TILE + rows + unit_bytes(call)) + 2 * TILE + 8 * (2 * stages + 4);
        }
        stages * (TILE + rows + unit_bytes(call)) + (panels + 2) * TILE + 8 * (2 * stages + 18)
    }

    /// The second kernel.
    pub(super) fn chain(&self) -> &'static Program<Params> {
        if self.by_head { &HEADS } else { &CHAIN }
    }

    /// Tiles of the second kernel that are loaded ahead.
    fn stages(&self, call: &Call<'_, '_>) -> usize {
        if call.problem.gates.by_channel { 2 } else { 3 }
    }

    pub(super) fn units_config(&self, call: &Call<'_, '_>) -> Config {
        let [warpgroups, resident] = self.warpgroups(call);
        call.config()
            .flag("UNIT", call.problem.gates.qk_l2norm)
            .flag("BESIDE", self.beside)
            .flag("BACKWARD", false)
            .int("WARPGROUPS", warpgroups)
            .int("RESIDENT", resident)
            .int("SHARED", self.units_shared(call))
    }

    /// Warpgroups of a block of the first kernel, and its blocks on a multiprocessor.
    fn warpgroups(&self, call: &Call<'_, '_>) -> [usize; 2] {
        let most = if call.problem.gates.by_channel { 2 } else { 3 };
        if self.beside { [most, 1] } else { [1, most] }
    }

    pub(super) fn chain_config(&self, call: &Call<'_, '_>, targets: &Targets) -> Config {
        call.config()
            .flag("BESIDE", self.beside)
            .flag("BACKWARD", false)
            .flag("SEGMENTED", self.segments > 1)
            .dtype("Y", type_of(&targets.y))
            .dtype("INITIAL", dtype(&call.problem.initial_state))
            .dtype("FINAL", type_of(&targets.final_state))
            .flag("HAS_Y", targets.y.is_some())
            .flag("IN_LINES", read(&targets.y).is_some_and(|y| neighbours(&y, 3, 8) == 8))
            .flag("HAS_INITIAL", call.problem.initial_state.is_some())
            .flag("HAS_FINAL", targets.final_state.is_some())
            .int("STAGES", self.stages(call))
            .int("SHARED", self.chain_shared(call))
    }

    /// The launches of units, then of the chain.
    fn launches(&self, call: &Call<'_, '_>) -> [Launch; 2] {
        let [warpgroups, resident] = self.warpgroups(call);
        let blocks = self.count(call).div_ceil(warpgroups).min(resident * self.multiprocessors);
        let shared = [warpgroups * self.units_shared(call), self.chain_shared(call)].map(|bytes| (bytes + ALIGNMENT) as u32);
        [
            Launch::line(blocks as u32, 128 * warpgroups as u32, shared[0]),
            Launch::line(if self.by_head { self.slices / 2 } else { self.slices * self.segments as u32 }, 384, shared[1]),
        ]
    }

    pub(super) fn plan(&self, call: &Call<'_, '_>) -> Vec<PlannedLaunch> {
        let [units, chain] = self.launches(call);
        let segments = self.segment_launches(call).into_iter().flatten().zip([segments::ENDS.kernel, segments::HAND_ON.kernel]);
        let segments = segments.map(|(launch, kernel)| (kernel, launch));
        let launches = [(units_of(call).kernel, units)].into_iter().chain(segments).chain([(self.chain().kernel, chain)]);
        launches.map(|(kernel, launch)| PlannedLaunch::new("forward", kernel, launch)).collect()
    }

    /// Queries, keys and values as tiles, and where the copies end that they need.
    ///
    /// # Safety
    /// The views are valid, and at `at` there is room for copies.
    unsafe fn gather(&self, queue: &Queue<'_>, call: &Call<'_, '_>, mut at: u64) -> Result<([Tiling; 3], u64)> {
        let (p, mut tilings) = (call.problem, self.sources.map(|source| source.tiling));
        for ((source, view), tiling) in self.sources.iter().zip([&p.q, &p.k, &p.v]).zip(&mut tilings) {
            // SAFETY: the caller's contract.
            *tiling = unsafe { source.gather(queue, view, at)? };
            at += source.bytes() as u64;
        }
        Ok((tilings, at))
    }

    /// # Safety
    /// The views are valid, and at `workspace` there is room for what the route says.
    pub(super) unsafe fn launch(&self, queue: &Queue<'_>, call: &Call<'_, '_>, targets: &Targets, workspace: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        let ([q, k, v], units) = unsafe { self.gather(queue, call, workspace.next_multiple_of(128))? };
        let ends = units + (self.units(call) * unit_bytes(call)) as u64;
        let params = Params {
            inputs: call.inputs(),
            q_map: q.encode(queue)?,
            k_map: k.encode(queue)?,
            v_map: v.encode(queue)?,
            y: Strided::of_option(&read(&targets.y)),
            before: States::of(&call.problem.initial_state),
            after: States::of(&read(&targets.final_state)),
            units: Address::new(units),
            flags: Address::new(ends + self.ends_bytes(call) as u64),
            ends: Address::new(ends),
            segments: self.segments as i64,
            key_heads: call.problem.heads as i64,
            rows: call.problem.batch as i64,
            places: self.places as i64,
            count: self.count(call) as i64,
        };
        let [units, chain] = self.launches(call);
        // SAFETY: the caller's contract; the maps describe the views, and the configurations the types of everything else.
        unsafe {
            queue.launch(units_of(call), || self.units_config(call), units, &params)?;
            if let Some([ends, hand_on]) = self.segment_launches(call) {
                queue.launch_early(&segments::ENDS, || self.ends_config(call), ends, &params)?;
                queue.launch_early(&segments::HAND_ON, || self.hand_on_config(call), hand_on, &params)?;
            }
            queue.launch_early(self.chain(), || self.chain_config(call, targets), chain, &params)?;
        }
        Ok(())
    }
}
