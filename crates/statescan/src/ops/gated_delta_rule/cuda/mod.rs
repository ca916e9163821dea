//! The gated delta rule on CUDA: step by step for every call, and by chunks on Hopper's tensor cores for what models call.

mod backward;
mod backward_pass;
mod backward_plan;
mod forward;
mod hopper;
#[cfg(all(test, feature = "cuda"))]
mod tests;
mod tokens;

pub(super) use backward::{backward, workspace_len as backward_workspace_len};
pub(super) use forward::{forward, plan, workspace_len};

use super::problem::{Problem, TIME};
use crate::cuda::{Config, Header, Strided, header, params};
use crate::error::Result;
use crate::ops::on_cuda::{SlotTypes, Slots, dtype, single_only, width};
use crate::ops::sequences::Sequences;
use crate::tensor::{DType, View};

const INPUTS: Header = header!("inputs.cuh");

params! {
    /// The inputs of every kernel.
    struct Inputs {
        /// (batch, step, head of keys, channel)
        q: Strided,
        k: Strided,
        /// (batch, step, head, column)
        v: Strided,
        /// (batch, step, head), or (batch, step, head, channel)
        g: Strided,
        /// (batch, step, head)
        beta: Strided,
        /// (head)
        a_log: Strided,
        /// (head), or (head, channel)
        bias: Strided,
        /// Bounds (sequence), or the sequence of a step (batch, step).
        sequences: Strided,
        slots: Slots,
        seqlen: i64,
        /// Heads of values.
        heads: i64,
        sequence_count: i64,
        scale: f32,
        lower_bound: f32,
        beta_factor: f32,
        /// Bytes up to the alignment of the others.
        free: u32,
    }
}

/// A problem as kernels see it.
#[derive(Clone, Copy)]
struct Call<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Bounds, or the sequence of each step, in the direction of the scan.
    sequences: Option<View<'a>>,
}

impl<'p, 'a> Call<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Result<Self> {
        single_only(problem.double, "gated_delta_rule in f64")?;
        Ok(Call { problem, sequences: problem.sequences.along(problem.reverse) })
    }

    /// Whether states have an axis of sequences within a row.
    fn numbered(&self) -> bool {
        self.problem.sequences.are_numbered(&self.problem.segments)
    }

    fn sequence_count(&self) -> usize {
        self.problem.sequences.count(&self.problem.segments)
    }

    /// Whether sequences have states of their own, so that each is walked on its own.
    fn is_by_sequence(&self) -> bool {
        matches!(self.problem.sequences, Sequences::CuSeqlens(_)) || self.numbered()
    }

    /// Parts of time that blocks walk on their own: sequences that have states, or rows.
    fn pieces(&self) -> usize {
        let of_sequence = self.problem.pool.and_then(|pool| pool.pieces()).unwrap_or(1).max(1);
        self.problem.batch.saturating_mul(self.sequence_count() / of_sequence)
    }

    /// The constants of `inputs.cuh`, and types and sizes.
    fn config(&self) -> Config {
        let p = self.problem;
        Config::default()
            .dtype("QUERY", p.q.dtype())
            .dtype("KEY", p.k.dtype())
            .dtype("VALUE", p.v.dtype())
            .dtype("GATE", dtype(&p.g))
            .dtype("BETA", dtype(&p.beta))
            .dtype("A_LOG", dtype(&p.a_log))
            .dtype("BIAS", dtype(&p.dt_bias))
            .dtype("INDEX", self.sequences.map_or(DType::I32, |v| v.dtype()))
            .with(&SlotTypes::of(&p.pool))
            .set("SEQUENCES", p.sequences.value())
            .flag("NUMBERED", self.numbered())
            .flag("REVERSE", p.reverse)
            .flag("HAS_GATE", p.g.is_some())
            .flag("BY_CHANNEL", p.gates.by_channel)
            .flag("RAW", p.gates.raw)
            .flag("HAS_BIAS", p.dt_bias.is_some())
            .flag("BOUNDED", p.gates.lower_bound.is_some())
            .flag("HAS_BETA", p.beta.is_some())
            .flag("BETA_SIGMOID", p.gates.beta_sigmoid)
            .int("KEYS", p.keys)
            .int("VALUES", p.values)
            .int("GROUP", p.group)
    }

    fn inputs(&self) -> Inputs {
        let (p, gates) = (self.problem, &self.problem.gates);
        let [g, beta, a_log, bias, sequences] = [&p.g, &p.beta, &p.a_log, &p.dt_bias, &self.sequences].map(Strided::of_option);
        Inputs {
            q: Strided::of(&p.q),
            k: Strided::of(&p.k),
            v: Strided::of(&p.v),
            g,
            beta,
            a_log,
            bias,
            sequences,
            slots: Slots::of(&p.pool),
            seqlen: p.seqlen as i64,
            heads: p.value_heads() as i64,
            sequence_count: self.sequence_count() as i64,
            scale: gates.scale as f32,
            lower_bound: gates.lower_bound.unwrap_or(0.0) as f32,
            beta_factor: gates.beta_factor as f32,
            free: 0,
        }
    }
}

/// Whether neighbouring steps lie closer than neighbouring channels.
fn by_time(view: &View<'_>) -> bool {
    let (shape, strides) = (view.shape(), view.strides());
    width(view) == 1 && shape[TIME] > 1 && shape[3] > 1 && strides[TIME].unsigned_abs() < strides[3].unsigned_abs()
}
