//! All gradients within chunks at once on Hopper, after its walks have left states and their gradients in slots. It takes what those walks take,
//! if what it reads and writes lies so that the copy engine can do it.

use super::packed::{self, Packed, SPAN};
use super::walk::{self, ALIGNMENT, COLUMNS, MOST_STATES, TILE};
use super::{PACKED, TOOLS};
use crate::cuda::{
    Address, COMMON, Config, HOPPER, Launch, MMA, Numbers, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, SharedMemory, Stream,
    Strided, TensorMap, Tiling, header, params,
};
use crate::error::Result;
use crate::ops::on_cuda::type_of;
use crate::ops::ssd::GradientTargets;
use crate::ops::ssd::cuda::portable::gradients::Places;
use crate::ops::ssd::cuda::portable::plan::Slots;
use crate::ops::ssd::cuda::{Call, INPUTS, Inputs, TOO_MANY};
use crate::ops::ssd::problem::Problem;
use crate::tensor::{DType, RawViewMut, View};

pub(in crate::ops::ssd::cuda) static KERNEL: Program<Params> =
    Program::new("ssd_fused", &[COMMON, STEP_SIZE, MMA, HOPPER], include_str!("fused.cu")).including(&[
        SLOTS,
        SEQUENCES,
        INPUTS,
        PACKED,
        TOOLS,
        header!("fused_layout.cuh"),
        header!("fused_steps.cuh"),
        header!("fused_sides.cuh"),
        header!("fused_outputs.cuh"),
        header!("fused_inputs.cuh"),
    ]);

params! {
    /// Parameters of `ssd_fused`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        /// Tiles of 64 steps x 64 columns or states.
        x_map: TensorMap,
        dy_map: TensorMap,
        z_map: TensorMap,
        b_map: TensorMap,
        c_map: TensorMap,
        /// Tiles of 64 states x 64 columns of slots.
        states_map: TensorMap,
        gradients_map: TensorMap,
        dx_map: TensorMap,
        dz_map: TensorMap,
        /// (batch, step, head)
        ddt: Strided,
        ddt_a: Strided,
        /// (batch, step, group, state), or terms of slices: dense (batch, step, slice, group, state).
        db: Strided,
        dc: Strided,
        /// Dense (batch, chunk, head).
        a_terms: Address<f32>,
        bias_terms: Address<f32>,
        /// Dense (batch, chunk, head), or (batch, chunk, head, column).
        skip_terms: Address<f32>,
        slices: i64,
        heads_per_slice: i64,
        packed: Packed,
        /// The partial sums that the first half of the states leaves for the second one, dense and in f32: like x and z, and like
        /// dt.
        dx_parts: Strided,
        dz_parts: Strided,
        ddt_parts: Strided,
        ddt_a_parts: Strided,
    }
}

/// A launch for half of the states: the first leaves parts of sums, the second adds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) enum HalfStates {
    First,
    Second,
}

/// Addresses of the parts, those that there are.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::ops::ssd::cuda) struct Parts {
    pub x: u64,
    pub z: u64,
    pub dt: u64,
    pub dt_a: u64,
}

/// Maps of slots among those of the parameters.
const STATES_MAP: usize = 5;
const GRADIENTS_MAP: usize = 6;
/// Chunks that share a slot: their other states are computed again.
pub(in crate::ops::ssd::cuda) const SLOT_CHUNKS: usize = 2;
/// Warpgroups: for the outputs, for the inputs, and for everything else.
const WARPGROUPS: usize = 3;
/// Registers of a thread of the former two, and of the last; all share what a launch begins with.
const SIDE_REGISTERS: usize = 224;
const HELPER_REGISTERS: usize = 56;
const _: () = assert!(2 * SIDE_REGISTERS + HELPER_REGISTERS <= WARPGROUPS * 168);
/// Bytes of shared memory that the kernel declares itself, at most: for a stage, for the skip's gradient by column in each, and besides.
const STATIC: [usize; 3] = [3104, 1024, 384];
/// The cost of a block besides the units that it takes, in units; as much again for sums of terms, and one more for so many
/// terms.
const OVERHEAD: usize = 4;
const TERMS: usize = 1 << 20;
/// Blocks that may share the heads of a group.
const SLICES: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 40, 64, 80];

/// How blocks lie over a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Plan {
    walk: walk::Plan,
    /// Blocks that share the heads of a group, and heads of each.
    pub slices: usize,
    heads: usize,
}

impl Plan {
    /// A plan for sizes, types and options that this kernel has.
    pub fn new(p: &Problem<'_>, numbers: Numbers) -> Option<Plan> {
        let walk = walk::Plan::new(p, numbers).filter(|walk| walk.states <= MOST_STATES)?;
        let heads = p.nheads / p.ngroups;
        let blocks = [p.batch, p.ngroups].into_iter().try_fold(chunks(p), usize::checked_mul)?;
        let cut = |slices: usize| {
            let each = heads.div_ceil(slices);
            let slices = heads.div_ceil(each);
            let waves = blocks.saturating_mul(slices).div_ceil(numbers.multiprocessors);
            let terms = [p.batch, p.seqlen, p.ngroups, p.dstate].into_iter().fold(slices, usize::saturating_mul);
            let sums = if slices > 1 { OVERHEAD + terms / TERMS } else { 0 };
            (waves.saturating_mul(each * walk.column_tiles + OVERHEAD).saturating_add(sums), slices, each)
        };
        let (_, slices, heads) = SLICES.into_iter().filter(|&slices| slices <= heads).map(cut).min()?;
        Some(Plan { walk, slices, heads })
    }

    /// The slots that the kernel reads.
    pub fn slots(&self, p: &Problem<'_>) -> Slots {
        self.walk.slots(p, SLOT_CHUNKS)
    }

    /// Elements of the workspace of either walk.
    pub fn ends_len(&self, p: &Problem<'_>) -> usize {
        self.walk.workspace_len(p)
    }

    /// Elements of places for the tensor maps of packed sequences.
    pub fn places_len(&self, p: &Problem<'_>) -> usize {
        let blocks = p.batch.saturating_mul(p.ngroups).saturating_mul(self.slices).saturating_mul(chunks(p));
        self.walk.packed.map_or(0, |_| packed::places_len(blocks))
    }

    /// Returns the target of the gradient by B or C, or of its terms.
    fn map_target(&self, p: &Problem<'_>, target: &RawViewMut, terms: u64) -> Result<Strided> {
        if self.slices == 1 {
            return Ok(Strided::of(&target.as_read()));
        }
        let (group, slice) = (p.dstate as isize, (p.ngroups * p.dstate) as isize);
        let step = slice * self.slices as isize;
        let shape = [p.batch, p.seqlen, p.ngroups, p.dstate];
        let (data, strides) = (core::ptr::without_provenance(terms as usize), [step * p.seqlen as isize, step, group, 1]);
        // SAFETY: the host never reads through the view, whose memory is that of the terms.
        let view = unsafe { View::from_raw_parts(data, DType::F32, p.x.device(), &shape, &strides)? };
        Ok(Strided::of(&view))
    }

    /// Stages, and shared memory: for each stage tiles of x, dy and the gate, h and g, and what the sides write for each other, ps, p where there is a
    /// gate, and xs for its gradient; for all heads B and C, and of the pair's other chunk B or C, whose place the two terms of K take in the end.
    fn shared(&self, call: &Call<'_, '_>, t: &GradientTargets, numbers: Numbers) -> (usize, SharedMemory) {
        let (panels, gate, by_gate) = (self.walk.states / 64, usize::from(call.problem.z.is_some()), usize::from(t.z.is_some()));
        let of = |stages: usize| {
            let stage = SharedMemory::default()
                .array("X_AT", TILE)
                .array("DY_AT", TILE)
                .array("Z_AT", gate * TILE)
                .array("H_AT", panels * TILE)
                .array("G_AT", panels * TILE)
                .array("PS_AT", TILE)
                .array("OWN_P_AT", gate * TILE)
                .array("XS_AT", by_gate * TILE);
            let maps = stage.times("STAGE", stages).array("B_AT", panels * TILE).array("C_AT", panels * TILE);
            maps.array("OTHER_MAP_AT", panels.max(2) * TILE).beside(self.own_shared(t, stages))
        };
        let fits = |stages| of(stages).whole_len() + ALIGNMENT <= numbers.shared_per_block;
        let stages = if fits(3) { 3 } else { 2 };
        (stages, of(stages))
    }

    /// Bytes of shared memory that the kernel declares itself, at most, up to where the tiles behind it begin.
    fn own_shared(&self, t: &GradientTargets, stages: usize) -> usize {
        let [stage, columns, rest] = STATIC;
        (stages * (stage + columns * usize::from(by_column(t))) + rest).next_multiple_of(ALIGNMENT)
    }

    pub fn config(&self, call: &Call<'_, '_>, t: &GradientTargets, half: Option<HalfStates>, numbers: Numbers) -> Config {
        let (stages, shared) = self.shared(call, t, numbers);
        let of_map = |target| if self.slices > 1 { DType::F32 } else { type_of(target) };
        call.options()
            .dtype("DDT", type_of(&t.dt))
            .dtype("DDT_A", type_of(&t.dt_a))
            .dtype("DB", of_map(&t.b))
            .dtype("DC", of_map(&t.c))
            .flag("HAS_DDT", t.dt.is_some())
            .flag("HAS_DDT_A", t.dt_a.is_some())
            .flag("HAS_DZ", t.z.is_some())
            .flag("HAS_DSKIP", t.d.is_some())
            .flag("SKIP_BY_COLUMN", by_column(t))
            .flag("IS_FIRST_HALF", half == Some(HalfStates::First))
            .flag("IS_SECOND_HALF", half == Some(HalfStates::Second))
            .int("COLUMNS", COLUMNS)
            .int("PLACES", packed::PLACES)
            .int("STATES", self.walk.states)
            .int("STAGES", stages)
            .shared(&shared)
            .int("SIDE_REGISTERS", SIDE_REGISTERS)
            .int("HELPER_REGISTERS", HELPER_REGISTERS)
    }
}

/// Whether the gradient by the skip has a number for each column.
fn by_column(t: &GradientTargets) -> bool {
    t.d.is_some_and(|v| v.as_read().rank() == 2)
}

/// Blocks for the chunks of a row; of packed sequences a block may take several, or none.
pub(in crate::ops::ssd::cuda) fn chunks(p: &Problem<'_>) -> usize {
    packed::Plan::new(p).map_or(p.seqlen.div_ceil(SPAN), |packed| packed.blocks(SPAN))
}

/// Addresses of terms of the gradients by B and C, and what packed sequences have.
pub(in crate::ops::ssd::cuda) struct Terms {
    pub b: u64,
    pub c: u64,
    /// The workspace of walks, where their table is.
    pub walks: u64,
    pub maps: u64,
}

/// Addresses of what this kernel reads and writes besides tensors.
pub(in crate::ops::ssd::cuda) struct Addresses<'r> {
    pub places: &'r Places,
    pub terms: &'r Terms,
}

/// All gradients of the chunks by this kernel: how blocks lie, and tiles of tensors in the order of the maps of [`Params`]; those of slots get
/// their addresses later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Route {
    pub plan: Plan,
    half: Option<HalfStates>,
    tilings: [Option<Tiling>; 9],
}

impl Route {
    /// Nothing if the kernel cannot take the problem, or a gradient that it forms is not asked for.
    pub fn new(call: &Call<'_, '_>, t: &GradientTargets, half: Option<HalfStates>, numbers: Numbers) -> Option<Route> {
        let (p, plan) = (call.problem, Plan::new(call.problem, numbers)?);
        let (dy, dx) = (call.dy?, t.x?);
        if t.b.is_none() || t.c.is_none() || !t.need_steps() {
            return None;
        }
        let views =
            [Some(p.x), Some(dy), p.z, Some(p.b), Some(p.c), None, None, Some(dx.as_read()), t.z.as_ref().map(|v| v.as_read())];
        let mut tilings = [None; 9];
        for (tiling, view) in tilings.iter_mut().zip(views) {
            if let Some(view) = view {
                *tiling = Some(walk::time_tiling(&view)?);
            }
        }
        let slots = walk::slot_tiling(p, &plan.slots(p))?;
        (tilings[STATES_MAP], tilings[GRADIENTS_MAP]) = (Some(slots), Some(slots));
        Some(Route { plan, half, tilings })
    }

    fn params(
        &self,
        stream: &Stream,
        call: &Call<'_, '_>,
        t: &GradientTargets,
        addresses: &Addresses<'_>,
        parts: Parts,
    ) -> Result<Params> {
        let (p, plan, &Addresses { places, terms }) = (call.problem, &self.plan, addresses);
        let mut tilings = self.tilings;
        for (at, slots) in [(STATES_MAP, places.states), (GRADIENTS_MAP, places.gradients)] {
            tilings[at] = tilings[at].map(|tiling| tiling.at(slots));
        }
        let [x_map, dy_map, z_map, b_map, c_map, states_map, gradients_map, dx_map, dz_map] = walk::encode(stream, &tilings)?;
        let [dx_parts, dz_parts] = [parts.x, parts.z].map(|at| Strided::dense(at, [p.seqlen, p.nheads, p.headdim]));
        // these have three axes: the third has one element, so that strides name a head as above
        let [ddt_parts, ddt_a_parts] = [parts.dt, parts.dt_a].map(|at| Strided::dense(at, [p.seqlen, p.nheads, 1]));
        let target = |target: &Option<RawViewMut>, terms| {
            target.map_or_else(|| Ok(Strided::default()), |target| plan.map_target(p, &target, terms))
        };
        Ok(Params {
            inputs: Inputs { chunks: chunks(p) as i64, ..call.inputs(SPAN, plan.walk.column_tiles) },
            x_map,
            dy_map,
            z_map,
            b_map,
            c_map,
            states_map,
            gradients_map,
            dx_map,
            dz_map,
            ddt: Strided::of_option(&t.dt),
            ddt_a: Strided::of_option(&t.dt_a),
            db: target(&t.b, terms.b)?,
            dc: target(&t.c, terms.c)?,
            a_terms: Address::new(places.a),
            bias_terms: Address::new(places.bias),
            skip_terms: Address::new(places.skip),
            slices: plan.slices as i64,
            heads_per_slice: plan.heads as i64,
            packed: plan.walk.packed.map_or_else(Packed::default, |_| plan.walk.places(terms.walks).0.with_maps(terms.maps)),
            dx_parts,
            dz_parts,
            ddt_parts,
            ddt_a_parts,
        })
    }

    /// The launch.
    pub fn line(&self, call: &Call<'_, '_>, t: &GradientTargets, numbers: Numbers) -> Result<Launch> {
        let p = call.problem;
        let blocks = [p.batch, p.ngroups, self.plan.slices].into_iter().try_fold(chunks(p), usize::checked_mul);
        let blocks = blocks.and_then(|n| u32::try_from(n).ok()).ok_or(TOO_MANY)?;
        let shared = self.plan.shared(call, t, numbers).1.len() + ALIGNMENT;
        Ok(Launch::line(blocks, 128 * WARPGROUPS as u32, shared as u32))
    }

    /// `parts`: what the first half of the states leaves for the second one, where states are halved.
    ///
    /// # Safety
    /// The views are valid, the slots are filled, and there is room for all terms and parts.
    pub unsafe fn launch(
        &self,
        stream: &Queue<'_>,
        call: &Call<'_, '_>,
        t: &GradientTargets,
        addresses: &Addresses<'_>,
        parts: Parts,
    ) -> Result<()> {
        let (numbers, params) = (stream.numbers(), self.params(stream, call, t, addresses, parts)?);
        let launch = self.line(call, t, numbers)?;
        // SAFETY: the caller's contract; the maps describe the views, and the configuration the types of everything else.
        unsafe { stream.launch(&KERNEL, || self.plan.config(call, t, self.half, numbers), launch, &params) }.map_err(Into::into)
    }
}
