//! Turned maps on CUDA: angles first, a block for each head of a row; then maps, a warp for each step; backwards then the sums over later steps, and
//! those of what steps add to the gradients by biases.

#[cfg(all(test, feature = "cuda"))]
mod tests;

use super::{GradientTargets, OP, Problem, Sources, Targets};
use crate::cuda::{
    Address, COMMON, Config, Header, Kernel, Launch, Program, Queue, Strided, Sum, header, neighbours, params, sum_terms,
};
use crate::error::{Error, Result};
use crate::ops::checked::needed;
use crate::ops::on_cuda::{dtype, read, single_only};
use crate::tensor::{RawViewMut, View};

const MAPS: Header = header!("maps.cuh");
const STEPS: Header = header!("steps.cuh");
const SUMS: Header = header!("sums.cuh");
static TURNS: Program<StepParams> =
    Program::new("turned_maps_turns", &[COMMON], include_str!("turns.cu")).including(&[SUMS, STEPS]);
static FORWARD: Program<ForwardParams> =
    Program::new("turned_maps_forward", &[COMMON], include_str!("forward.cu")).including(&[MAPS, SUMS]);
static BACKWARD: Program<BackwardParams> =
    Program::new("turned_maps_backward", &[COMMON], include_str!("backward.cu")).including(&[MAPS]);
static RATES: Program<StepParams> =
    Program::new("turned_maps_rates", &[COMMON], include_str!("rates.cu")).including(&[SUMS, STEPS]);

/// Warps of a block that walks over steps.
const WALKERS: usize = 16;
/// Columns that warps have room for.
const MOST_COLUMNS: usize = 256;
/// Warps of a block of the forward pass, each of which has a step.
const TURNERS: usize = 8;

params! {
    /// The sizes of a call.
    struct Shape {
        batch: i64,
        steps: i64,
        groups: i64,
        heads: i64,
        heads_per_group: i64,
        dstate: i32,
        angles: i32,
    }
}

params! {
    /// Parameters of the passes over steps.
    struct StepParams {
        shape: Shape,
        rate: Strided,
        dt: Strided,
        by_rate: Strided,
        by_dt: Strided,
        /// (batch, step, head, angle): angles in turns, or the gradients by them.
        turns: Strided,
    }
}

params! {
    /// The inputs of the passes over maps.
    struct Inputs {
        shape: Shape,
        maps: [Strided; 2],
        biases: [Strided; 2],
        turns: Address<f32>,
    }
}

params! {
    /// Parameters of `turned_maps_forward`.
    struct ForwardParams(inputs: Inputs) {
        turned: [Strided; 2],
        dots: Strided,
        /// Parts of the heads of a group, and blocks for the steps of a row.
        slices: i64,
        tiles: i64,
    }
}

params! {
    /// Parameters of `turned_maps_backward`.
    struct BackwardParams(inputs: Inputs) {
        turned: [Strided; 2],
        dots: Strided,
        by_maps: [Strided; 2],
        by_turns: Address<f32>,
        /// Dense (map, batch, tile, head, column).
        terms: Address<f32>,
        /// Blocks for the steps of a row.
        tiles: i64,
    }
}

/// The parts of a workspace, in elements of f32: angles, gradients by them, and terms of those by biases.
pub(super) struct Room {
    by_turns: usize,
    terms: usize,
    pub len: usize,
}

impl Room {
    pub(super) fn new(p: &Problem<'_>, backward: bool) -> Self {
        let turns = p.batch * p.seqlen * p.nheads * p.angles;
        let terms = 2 * p.batch * tiles(p) * p.nheads * p.dstate;
        Room { by_turns: turns, terms: 2 * turns, len: if backward { 2 * turns + terms } else { turns } }
    }
}

/// Pairs of columns that a lane has: a power of two.
fn items(p: &Problem<'_>) -> usize {
    p.dstate.div_ceil(64).max(1).next_power_of_two()
}

/// Of these, those whose columns may be turned.
fn turned_items(p: &Problem<'_>) -> usize {
    p.angles.div_ceil(32).max(1)
}

/// Heads that a warp of the forward pass turns maps for: it reads their angles at once.
fn heads(p: &Problem<'_>) -> usize {
    if items(p) > 2 { 4 } else { 8 }
}

/// Steps of a block of the backward pass, each of which has a warp.
fn stack(p: &Problem<'_>) -> usize {
    (32 / items(p)).min(16)
}

fn tiles(p: &Problem<'_>) -> usize {
    p.seqlen.div_ceil(stack(p))
}

pub(super) fn forward(queue: &Queue<'_>, p: &Problem<'_>, targets: &Targets) -> Result<()> {
    if targets.turned.is_none() && targets.dots.is_none() {
        return Ok(());
    }
    let call = Call::new(p, &targets.workspace)?;
    // SAFETY: the views were checked against each other, and those who made them vouch for the memory behind them; the configurations describe their
    // types and layouts; the workspace has room for the angles.
    unsafe {
        call.turns()?.launch(queue, &TURNS)?;
        call.forward(targets)?.launch(queue, &FORWARD).map_err(Into::into)
    }
}

pub(super) fn backward(queue: &Queue<'_>, p: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) -> Result<()> {
    let (call, room) = (Call::new(p, &targets.workspace)?, Room::new(p, true));
    let [by_turns, terms] = [room.by_turns, room.terms].map(|at| call.turns + 4 * at as u64);
    // SAFETY: as in `forward`; the workspace has room for the gradients by angles and the terms.
    unsafe {
        call.turns()?.launch(queue, &TURNS)?;
        call.backward(sources, targets, [by_turns, terms])?.launch(queue, &BACKWARD)?;
        if targets.rate.is_some() || targets.dt.is_some() {
            call.rates(targets, by_turns)?.launch(queue, &RATES)?;
        }
        match targets.bias {
            Some(to) => sum_terms(queue, &[Sum { to, terms, count: p.batch * tiles(p) }]).map_err(Into::into),
            None => Ok(()),
        }
    }
}

/// A call as the kernels see it: the address is that of the angles.
struct Call<'p, 'a> {
    p: &'p Problem<'a>,
    turns: u64,
}

/// Both maps of a tensor.
fn both(view: &Option<View<'_>>, axis: usize) -> [Strided; 2] {
    [0, 1].map(|map| view.map(|view| Strided::of_last_axes(&view.index(axis, map))).unwrap_or_default())
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(p: &'p Problem<'a>, workspace: &Option<RawViewMut>) -> Result<Self> {
        single_only(p.double, "turned_maps in f64")?;
        if p.dstate > MOST_COLUMNS {
            return Err(Error::Unavailable { what: OP, why: "maps have more than 256 columns" });
        }
        let turns = match workspace {
            None if Room::new(p, true).len == 0 => 0,
            _ => needed(OP, workspace)?.as_mut_ptr() as u64,
        };
        Ok(Call { p, turns })
    }

    fn shape(&self) -> Shape {
        let p = self.p;
        Shape {
            batch: p.batch as i64,
            steps: p.seqlen as i64,
            groups: p.ngroups as i64,
            heads: p.nheads as i64,
            heads_per_group: p.heads_per_group() as i64,
            dstate: p.dstate as i32,
            angles: p.angles as i32,
        }
    }

    fn inputs(&self) -> Inputs {
        let (maps, biases) = (both(&Some(self.p.maps), 2), both(&Some(self.p.bias), 0));
        Inputs { shape: self.shape(), maps, biases, turns: Address::new(self.turns) }
    }

    /// A pass over the steps of each head, forwards or back.
    fn over_steps(&self, targets: &GradientTargets, turns: u64, back: bool) -> Result<Kernel<StepParams>> {
        let p = self.p;
        let [by_rate, by_dt] = [read(&targets.rate), read(&targets.dt)];
        let config = Config::default()
            .int("WARPS", WALKERS)
            .int("ANGLES", turned_items(p).next_power_of_two())
            .flag("BACK", back)
            .dtype("RATE", p.rate.dtype())
            .dtype("DT", p.dt.dtype())
            .dtype("DRATE", dtype(&by_rate))
            .dtype("DDT", dtype(&by_dt))
            .flag("HAS_DRATE", by_rate.is_some())
            .flag("HAS_DDT", by_dt.is_some());
        let params = StepParams {
            shape: self.shape(),
            rate: Strided::of(&p.rate),
            dt: Strided::of(&p.dt),
            by_rate: Strided::of_option(&by_rate),
            by_dt: Strided::of_option(&by_dt),
            turns: Strided::dense(turns, [p.seqlen, p.nheads, p.angles]),
        };
        let blocks = if p.seqlen == 0 { Some(0) } else { p.batch.checked_mul(p.nheads) };
        Ok(Kernel { config, launch: Launch::new(OP, blocks, 32 * WALKERS)?, params })
    }

    fn turns(&self) -> Result<Kernel<StepParams>> {
        self.over_steps(&GradientTargets::default(), self.turns, false)
    }

    fn rates(&self, targets: &GradientTargets, by_turns: u64) -> Result<Kernel<StepParams>> {
        self.over_steps(targets, by_turns, true)
    }

    /// The constants of a pass over maps, which reads and writes these tensors besides.
    fn config(&self, warps: usize, turned: Option<View<'_>>, dots: Option<View<'_>>, by_maps: Option<View<'_>>) -> Config {
        let p = self.p;
        let given = [Some(p.maps), Some(p.bias), turned, by_maps];
        let paired = p.dstate.is_multiple_of(2) && given.iter().flatten().all(|view| neighbours(view, view.rank() - 1, 2) == 2);
        Config::default()
            .int("ITEMS", items(p))
            .int("TURNS", turned_items(p))
            .int("WARPS", warps)
            .flag("PAIRED", paired)
            .dtype("MAPS", p.maps.dtype())
            .dtype("BIAS", p.bias.dtype())
            .dtype("TURNED", dtype(&turned))
            .dtype("DOTS", dtype(&dots))
            .flag("HAS_TURNED", turned.is_some())
            .flag("HAS_DOTS", dots.is_some())
    }

    fn forward(&self, targets: &Targets) -> Result<Kernel<ForwardParams>> {
        let (p, [turned, dots]) = (self.p, [read(&targets.turned), read(&targets.dots)]);
        let (slices, tiles) = (p.heads_per_group().div_ceil(heads(p)), p.seqlen.div_ceil(TURNERS));
        let blocks = [tiles, p.ngroups, slices].into_iter().try_fold(p.batch, usize::checked_mul);
        let params = ForwardParams {
            inputs: self.inputs(),
            turned: both(&turned, 2),
            dots: Strided::of_option(&dots),
            slices: slices as i64,
            tiles: tiles as i64,
        };
        let config = self.config(TURNERS, turned, dots, None).int("HEADS", heads(p));
        Ok(Kernel { config, launch: Launch::new(OP, blocks, 32 * TURNERS)?, params })
    }

    fn backward(
        &self,
        sources: &Sources<'_>,
        targets: &GradientTargets,
        [by_turns, terms]: [u64; 2],
    ) -> Result<Kernel<BackwardParams>> {
        let (p, by_maps) = (self.p, read(&targets.maps));
        let config = self
            .config(stack(p), sources.turned, sources.dots, by_maps)
            .dtype("DMAPS", dtype(&by_maps))
            .flag("HAS_DMAPS", by_maps.is_some())
            .flag("HAS_DBIAS", targets.bias.is_some());
        let params = BackwardParams {
            inputs: self.inputs(),
            turned: both(&sources.turned, 2),
            dots: Strided::of_option(&sources.dots),
            by_maps: both(&by_maps, 2),
            by_turns: Address::new(by_turns),
            terms: Address::new(terms),
            tiles: tiles(p) as i64,
        };
        let blocks = tiles(p).checked_mul(p.ngroups).and_then(|blocks| blocks.checked_mul(p.batch));
        Ok(Kernel { config, launch: Launch::new(OP, blocks, 32 * stack(p))?, params })
    }
}
