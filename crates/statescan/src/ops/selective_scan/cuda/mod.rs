//! The selective scan on CUDA: a checked problem becomes a plan, a configuration and the parameters of launches.

mod backward;
mod backward_plan;
mod forward;
mod phases;
mod plan;
#[cfg(all(test, feature = "cuda"))]
mod tests;

pub(super) use backward::{backward, workspace_len as backward_workspace_len};
pub(super) use forward::{forward, workspace_len};
pub(super) use plan::SHORTEST_CUT;

use super::{Problem, Projection};
use crate::cuda::{Config, Header, StepTypes, Strided, TileCopy, header, params};
use crate::ops::CHECKPOINT;
use crate::ops::discretization::Discretization;
use crate::ops::on_cuda::{Pass, SlotTypes, Slots, dtype};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, RawViewMut, View};
use plan::{Cut, Shape};

const RAW_TILE: Header = header!("raw_tile.cuh");
const TILES: Header = header!("tiles.cuh");

/// Elements of the saved states: one for each [`CHECKPOINT`] steps of a row after the first ones, (batch, saved, dim, dstate, parts).
/// They lie on a grid of the row, not of its sequences, whose bounds only the device knows.
pub(super) fn checkpoints_len(problem: &Problem<'_>) -> usize {
    let saved = problem.seqlen.div_ceil(CHECKPOINT).saturating_sub(1);
    [saved, problem.dim, problem.dstate, problem.parts()].iter().fold(problem.batch, |n, &size| n.saturating_mul(size))
}

/// How a block's threads lie over tiles of a (batch, channel, step) tensor.
#[derive(Debug, Clone, Copy)]
struct Tile {
    threads: usize,
    channels: usize,
    steps: usize,
}

/// A problem as kernels see it.
#[derive(Clone, Copy)]
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Bounds, or the sequence of each step, in the direction of the scan.
    sequences: Option<View<'a>>,
    /// Channels that share a group of B and one of C.
    unit: usize,
}

params! {
    /// The inputs of both passes, and the layout of blocks over them.
    struct Inputs {
        /// (batch, channel, step)
        x: Strided,
        dt: Strided,
        z: Strided,
        dt_a: Strided,
        /// (batch, group, state, step) or (channel, state)
        b: Strided,
        c: Strided,
        /// (channel, state)
        a: Strided,
        /// (channel)
        skip: Strided,
        bias: Strided,
        /// (row, sequence, channel, state)
        initial: Strided,
        /// Bounds (sequence), or the sequence of a step (batch, step).
        sequences: Strided,
        slots: Slots,
        seqlen: i64,
        dim: i64,
        sequence_count: i64,
        segment_steps: i64,
        last_segment: i64,
        /// Segments that leave ends.
        ended_segments: i64,
        /// Channels of all rows.
        segment_channels: i64,
        /// Channels that share a group of B and one of C.
        unit: i64,
        /// Channels of a group.
        channels_per_b: i64,
        channels_per_c: i64,
        blocks_per_unit: i64,
        blocks_per_row: i64,
        blocks_per_segment: i64,
        dt_low: f32,
        dt_high: f32,
    }
}

fn view_of<'v, 'a>(map: &'v Projection<View<'a>>) -> &'v View<'a> {
    match map {
        Projection::Varying(view) | Projection::Constant(view) => view,
    }
}

fn varies(map: &Projection<View<'_>>) -> bool {
    matches!(map, Projection::Varying(_))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Self {
        let mut call = Call { problem, sequences: problem.sequences.along(problem.options.reverse), unit: 1 };
        call.unit = gcd(call.channels_per(&problem.b), call.channels_per(&problem.c)).max(1);
        call
    }

    fn channels_per(&self, map: &Projection<View<'_>>) -> usize {
        match map {
            Projection::Varying(view) => self.problem.dim / view.shape()[1],
            Projection::Constant(_) => self.problem.dim,
        }
    }

    /// Rows of blocks: packed sequences are scanned at the same time, numbered ones one after the other.
    fn rows(&self) -> usize {
        match self.problem.sequences {
            Sequences::CuSeqlens(bounds) => {
                let pieces = self.problem.pool.and_then(|pool| pool.pieces()).unwrap_or(1);
                (bounds.len() - 1) / pieces.max(1)
            }
            _ => self.problem.batch,
        }
    }

    fn shape(&self) -> Shape {
        let p = self.problem;
        let heavy = p.complex || !matches!(p.options.discretization, Discretization::Mamba | Discretization::Dirac);
        let cuttable = !heavy && matches!(p.sequences, Sequences::Whole);
        let gated = p.z.is_some() || p.options.step_size.softplus;
        Shape { rows: self.rows(), dim: p.dim, unit: self.unit, seqlen: p.seqlen, dstate: p.dstate, heavy, gated, cuttable }
    }

    /// Numbers of what segments leave: states and the sums of their steps.
    fn ends_len(&self, cut: &Cut) -> usize {
        cut.together() * self.rows() * self.problem.dim * (self.problem.dstate + 1)
    }

    /// Whether states have an axis of sequences within a row.
    fn numbered(&self) -> bool {
        self.problem.sequences.are_numbered(&self.problem.segments)
    }

    /// How a (batch, channel, step) tensor is copied in tiles.
    fn copy_of(&self, view: &View<'_>, tile: Tile) -> TileCopy {
        // blocks start at multiples of their channels within a unit
        let rows = if self.unit < self.problem.dim { gcd(tile.channels, self.unit) } else { tile.channels };
        TileCopy::of(view, 1, 2, rows, tile.steps)
    }

    /// How a (batch, group, state, step) tensor is copied.
    fn copy_of_map(&self, map: &Projection<View<'_>>, tile: Tile) -> TileCopy {
        match map {
            Projection::Varying(view) => TileCopy::of(view, 2, 3, self.problem.dstate, tile.steps),
            Projection::Constant(_) => TileCopy::Time,
        }
    }

    /// Bytes of shared memory for a tile of the inputs as they are stored; `dense`: without padding, except for B and C.
    fn stage_bytes(&self, tile: Tile, dense: bool) -> usize {
        let p = self.problem;
        let timed = [Some(p.x), Some(p.dt), p.dt_a, p.z].into_iter().map(|view| self.timed_stage_bytes(view, tile, dense));
        timed.sum::<usize>() + self.map_stage_bytes(&p.b, tile) + self.map_stage_bytes(&p.c, tile)
    }

    /// The part of a (batch, channel, step) tensor.
    fn timed_stage_bytes(&self, view: Option<View<'_>>, tile: Tile, dense: bool) -> usize {
        view.map_or(0, |view| match (self.copy_of(&view, tile), dense) {
            (copy, true) => copy.dense_bytes(view.dtype(), tile.channels, tile.steps),
            (copy, false) => copy.bytes(view.dtype(), tile.channels, tile.steps),
        })
    }

    /// The part of B or C.
    fn map_stage_bytes(&self, map: &Projection<View<'_>>, tile: Tile) -> usize {
        match map {
            Projection::Varying(view) => self.copy_of_map(map, tile).bytes(view.dtype(), self.problem.dstate, tile.steps),
            Projection::Constant(_) => 0,
        }
    }

    /// Bytes of a tile of B or C in f32; `lanes` threads share the states.
    fn map_bytes(&self, steps: usize, lanes: usize) -> usize {
        4 * steps * self.problem.dstate.max(1).next_multiple_of(lanes) * self.problem.parts()
    }

    /// Bytes for the marks of steps that begin a sequence.
    fn change_bytes(&self, steps: usize) -> usize {
        if matches!(self.problem.sequences, Sequences::SeqIdx(_)) { 4 * steps } else { 0 }
    }

    /// The constants that `tiles.cuh` needs.
    fn config(&self, tile: Tile, lanes: usize, pass: Pass) -> Config {
        let p = self.problem;
        let field = if p.complex { DType::Complex64 } else { DType::F32 };
        let timed = |view: Option<View<'_>>| view.map_or(TileCopy::Time, |v| self.copy_of(&v, tile)).value();
        let step_size = StepTypes::of(&p.dt, &p.dt_bias, &p.dt_a, p.options.step_size);
        Config::default()
            .with(&step_size)
            .with(&SlotTypes::of(&p.pool))
            .dtype("X", p.x.dtype())
            .dtype("Z", dtype(&p.z))
            .dtype("B", view_of(&p.b).dtype())
            .dtype("C", view_of(&p.c).dtype())
            .dtype("A", p.a.dtype())
            .dtype("SKIP", dtype(&p.d))
            .dtype("INITIAL", p.initial_state.map_or(field, |v| v.dtype()))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .set("X_COPY", timed(Some(p.x)))
            .set("DT_COPY", timed(Some(p.dt)))
            .set("Z_COPY", timed(p.z))
            .set("DT_A_COPY", timed(p.dt_a))
            .set("B_COPY", self.copy_of_map(&p.b, tile).value())
            .set("C_COPY", self.copy_of_map(&p.c, tile).value())
            .flag("COMPLEX", p.complex)
            .set("METHOD", p.options.discretization.constant())
            .set("PASS", pass.value())
            .set("SEQUENCES", p.sequences.value())
            .flag("NUMBERED", self.numbered())
            .flag("REVERSE", p.options.reverse)
            .flag("HAS_Z", p.z.is_some())
            .flag("HAS_SKIP", p.d.is_some())
            .flag("HAS_INITIAL", p.initial_state.is_some())
            .flag("B_VARIES", varies(&p.b))
            .flag("C_VARIES", varies(&p.c))
            .int("CHECKPOINT", CHECKPOINT)
            .int("DSTATE", p.dstate)
            .int("LANES", lanes)
            .int("THREADS", tile.threads)
            .int("CHANNELS", tile.channels)
            .int("STEPS", tile.steps)
    }

    /// `states` are the state tensors of the call besides the initial one.
    fn inputs(&self, blocks_per_unit: usize, blocks_per_row: usize, cut: Option<Cut>, states: &[Option<View<'_>>]) -> Inputs {
        let p = self.problem;
        let states = states.iter().chain([&p.initial_state]).flatten();
        Inputs {
            x: Strided::of(&p.x),
            dt: Strided::of(&p.dt),
            z: Strided::of_option(&p.z),
            dt_a: Strided::of_option(&p.dt_a),
            b: Strided::of(view_of(&p.b)),
            c: Strided::of(view_of(&p.c)),
            a: Strided::of(&p.a),
            skip: Strided::of_option(&p.d),
            bias: Strided::of_option(&p.dt_bias),
            initial: Strided::of_option(&p.initial_state),
            sequences: Strided::of_option(&self.sequences),
            slots: Slots::of(&p.pool),
            seqlen: p.seqlen as i64,
            dim: p.dim as i64,
            sequence_count: states.map(|v| v.shape()[1]).max().unwrap_or(1) as i64,
            segment_steps: cut.map_or(0, |cut| cut.steps as i64),
            last_segment: cut.map_or(0, |cut| cut.segments as i64 - 1),
            ended_segments: cut.map_or(0, |cut| cut.together() as i64),
            segment_channels: (self.rows() * p.dim) as i64,
            unit: self.unit as i64,
            channels_per_b: self.channels_per(&p.b) as i64,
            channels_per_c: self.channels_per(&p.c) as i64,
            blocks_per_unit: blocks_per_unit as i64,
            blocks_per_row: blocks_per_row as i64,
            blocks_per_segment: (self.rows() * blocks_per_row) as i64,
            dt_low: p.options.step_size.limit.0 as f32,
            dt_high: p.options.step_size.limit.1 as f32,
        }
    }
}

/// Whether an optional target is written in quads.
fn has_quads(target: &Option<RawViewMut>) -> bool {
    target.as_ref().is_some_and(|v| TileCopy::has_quads(&v.as_read(), 2))
}
