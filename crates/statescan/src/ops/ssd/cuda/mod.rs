//! SSD on CUDA, on tensor cores by `mma.sync`: a walk over time with the states in registers, and gradients chunk by chunk. On Hopper both have
//! kernels of their own on products of warpgroups (`hopper/walk.rs`, `hopper/fused.rs`) for what models call.

mod backward;
mod forward;
mod half_states;
mod hopper;
mod phases;
mod planned;
mod portable;
mod route;
#[cfg(all(test, feature = "cuda"))]
mod tests;
mod walk;

pub(super) use backward::{backward, workspace_len as backward_workspace_len};
pub(super) use forward::{forward, workspace_len};
pub(super) use planned::plan;

use super::Problem;
use crate::cuda::{Config, Header, Numbers, StepTypes, Stream, Strided, header, params};
use crate::error::{Error, Result};
use crate::ops::on_cuda::{SlotTypes, Slots, States, dtype, single_only, width};
use crate::tensor::{DType, RawViewMut, View};
use portable::plan::{Math, Shape, Tiles};

const INPUTS: Header = header!("inputs.cuh");
const HAND_ON: Header = header!("hand_on.cuh");

const TOO_LARGE: Error =
    Error::Unavailable { what: super::OP, why: "so many states do not fit into a multiprocessor's registers and shared memory" };
const TOO_MANY: Error = Error::Unavailable { what: super::OP, why: "so many rows need more blocks than a launch can have" };

fn refuse_double(problem: &Problem<'_>) -> Result<()> {
    single_only(problem.double, "ssd in f64")
}

/// The place where a call runs, as far as it decides which kernels run.
#[derive(Debug, Clone, Copy)]
struct Hardware {
    numbers: Numbers,
    /// Whether products of f32 may round their factors to tf32.
    tf32: bool,
}

impl Hardware {
    fn of(stream: &Stream) -> Hardware {
        Hardware { numbers: stream.numbers(), tf32: stream.allows_tf32() }
    }
}

params! {
    /// The inputs of every kernel, and the layout of blocks over them.
    struct Inputs {
        /// (batch, step, head, column)
        x: Strided,
        z: Strided,
        /// The gradient by y, and what the gate leaves of it, where that is kept in the workspace.
        dy: Strided,
        gated: Strided,
        /// (batch, step, head)
        dt: Strided,
        dt_a: Strided,
        /// (batch, step, group, state)
        b: Strided,
        c: Strided,
        /// (head)
        a: Strided,
        bias: Strided,
        /// (head, column)
        skip: Strided,
        /// Bounds (sequence), or the sequence of a step (batch, step).
        sequences: Strided,
        slots: Slots,
        batch: i64,
        seqlen: i64,
        heads: i64,
        headdim: i64,
        groups: i64,
        heads_per_group: i64,
        dstate: i64,
        sequence_count: i64,
        chunks: i64,
        column_tiles: i64,
        dt_low: f32,
        dt_high: f32,
    }
}

/// A problem as kernels see it.
#[derive(Clone, Copy)]
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    /// The gradient by y.
    dy: Option<View<'a>>,
    /// Bounds, or the sequence of each step, in the direction of the scan.
    sequences: Option<View<'a>>,
    /// Sequences of bounds, or of the axis that states have for them.
    sequence_count: usize,
    /// Address of the gradient by y before the gate, dense and of what products are made of: a walk forwards leaves it for all that come later.
    gated: Option<u64>,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>, dy: Option<View<'a>>) -> Self {
        let sequences = problem.sequences.along(problem.reverse);
        Call { problem, dy, sequences, sequence_count: problem.sequences.count(&problem.segments), gated: None }
    }

    /// Returns the arithmetic of products.
    fn math(&self, tf32: bool) -> Math {
        self.math_with(self.dy.map(|v| v.dtype()), tf32)
    }

    /// Returns the arithmetic of products if the gradient by y has this type.
    fn math_with(&self, cotangent: Option<DType>, tf32: bool) -> Math {
        let p = self.problem;
        Math::of([p.x.dtype(), p.b.dtype(), p.c.dtype()], cotangent, tf32)
    }

    fn shape(&self, math: Math) -> Shape {
        let &Problem { batch, seqlen, nheads, headdim, ngroups, dstate, .. } = self.problem;
        Shape { batch, nheads, ngroups, seqlen, headdim, dstate, math }
    }

    /// Whether states have an axis of sequences within a row.
    fn numbered(&self) -> bool {
        self.problem.sequences.are_numbered(&self.problem.segments)
    }

    /// The constants that `tiles.cuh` needs; `last`: the type of a cotangent of the final state.
    fn config(&self, tiles: &Tiles, last: Option<DType>) -> Config {
        let p = self.problem;
        let width = |view: Option<View<'_>>| view.map_or(1, |v| width(&v));
        self.options()
            .dtype("DY", self.dy.map_or(DType::F32, |v| v.dtype()))
            .dtype("DFINAL", last.unwrap_or(DType::F32))
            .int("X_WIDTH", width(Some(p.x)))
            .int("Z_WIDTH", width(p.z))
            .int("DY_WIDTH", width(self.dy))
            .int("B_WIDTH", width(Some(p.b)))
            .int("C_WIDTH", width(Some(p.c)))
            .int("GATED_WIDTH", gated_width(p.headdim, tiles.math))
            .flag("HAS_DY", self.dy.is_some())
            .flag("IS_GATED", self.gated.is_some())
            .set("MATH", tiles.math.value())
            .int("SPAN", tiles.span)
            .int("COLUMNS", tiles.columns)
            .int("PADDED_COLUMNS", tiles.padded_columns())
            .int("STATES", tiles.states)
    }

    /// Types and options, which every kernel needs.
    fn options(&self) -> Config {
        let p = self.problem;
        let step_size = StepTypes::of(&p.dt, &p.dt_bias, &p.dt_a, p.step_size);
        Config::default()
            .with(&step_size)
            .with(&SlotTypes::of(&p.pool))
            .dtype("X", p.x.dtype())
            .dtype("Z", dtype(&p.z))
            .dtype("B", p.b.dtype())
            .dtype("C", p.c.dtype())
            .dtype("A", p.a.dtype())
            .dtype("SKIP", dtype(&p.d))
            .dtype("INITIAL", dtype(&p.initial_state))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .set("SEQUENCES", p.sequences.value())
            .flag("NUMBERED", self.numbered())
            .flag("REVERSE", p.reverse)
            .flag("HAS_Z", p.z.is_some())
            .flag("HAS_SKIP", p.d.is_some())
    }

    /// Everything is walked in chunks of so many steps, heads in so many tiles of columns.
    fn inputs(&self, span: usize, column_tiles: usize) -> Inputs {
        let p = self.problem;
        Inputs {
            x: Strided::of(&p.x),
            z: Strided::of_option(&p.z),
            dy: Strided::of_option(&self.dy),
            gated: self.gated.map_or_else(Strided::default, |address| Strided::dense(address, [p.seqlen, p.nheads, p.headdim])),
            dt: Strided::of(&p.dt),
            dt_a: Strided::of_option(&p.dt_a),
            b: Strided::of(&p.b),
            c: Strided::of(&p.c),
            a: Strided::of(&p.a),
            bias: Strided::of_option(&p.dt_bias),
            // a skip of heads has one number for all columns
            skip: Strided::of_option(&p.d),
            sequences: Strided::of_option(&self.sequences),
            slots: Slots::of(&p.pool),
            batch: p.batch as i64,
            seqlen: p.seqlen as i64,
            heads: p.nheads as i64,
            headdim: p.headdim as i64,
            groups: p.ngroups as i64,
            heads_per_group: (p.nheads / p.ngroups.max(1)).max(1) as i64,
            dstate: p.dstate as i64,
            sequence_count: self.sequence_count as i64,
            chunks: p.seqlen.div_ceil(span) as i64,
            column_tiles: column_tiles as i64,
            dt_low: p.step_size.limit.0 as f32,
            dt_high: p.step_size.limit.1 as f32,
        }
    }
}

/// As [`width`], of numbers that products are made of, dense, of so many in a row.
fn gated_width(headdim: usize, math: Math) -> usize {
    (0..4).map(|shift| (16 / math.size()) >> shift).find(|&n| n > 0 && headdim.is_multiple_of(n)).unwrap_or(1)
}

/// Neighbours of an optional target that are written at once.
fn width_of(target: &Option<RawViewMut>) -> usize {
    target.as_ref().map_or(1, |v| width(&v.as_read()))
}
