//! Problem to plan: how the backward pass divides time and columns. A function of sizes, types and a device's numbers.

use super::Call;
use crate::cuda::{Numbers, Stream, Value};
use crate::error::{Error, Result};
use crate::ops::gated_delta_rule::OP;
use crate::tensor::DType;

const TOO_LARGE: Error = Error::Unavailable { what: OP, why: "such states do not fit into a multiprocessor's shared memory" };

/// Threads of a block that prepares chunks, and of one that computes their gradients.
pub(super) const PREPARERS: usize = 128;
pub(super) const THREADS: usize = 256;
/// Rows of what a chunk and head have for each step, and the sums of a step over channels: `TOKEN_ROWS` and `ROW_SUMS` of the kernels.
const TOKEN_ROWS: usize = 5;
const ROW_SUMS: usize = 7;

/// The device and the options of a call, as far as they decide which kernels run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub numbers: Numbers,
    /// Whether products of f32 may round their factors to tf32.
    pub tf32: bool,
}

impl Setting {
    pub(super) fn of(stream: &Stream) -> Setting {
        Setting { numbers: stream.numbers(), tf32: stream.allows_tf32() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// The numbers that products are made of, as `blocks.cuh` has them, and the bytes of one.
    math: &'static str,
    pub size: usize,
    /// Keys and columns, padded.
    pub keys: usize,
    pub values: usize,
    pub by_channel: bool,
    /// Heads of values of a head of keys that are prepared together.
    together: usize,
    /// Steps of a chunk.
    pub span: usize,
    /// Warps of a walk that have columns of their own, and stages that as many others load.
    pub warps: usize,
    pub stages: usize,
    /// Columns whose gradients are computed at once.
    pub slice: usize,
}

impl Plan {
    pub(super) fn new(call: &Call<'_, '_>, setting: Setting) -> Result<Plan> {
        let p = call.problem;
        let types = [p.q.dtype(), p.k.dtype(), p.v.dtype()];
        let (math, size) = match types {
            [DType::BF16, DType::BF16, DType::BF16] => ("Bf16", 2),
            _ if setting.tf32 || types.iter().all(|dtype| dtype.size() == 2) => ("Tf32", 4),
            _ => ("Exact", 4),
        };
        let [keys, values] = [p.keys, p.values].map(|width| width.max(1).next_multiple_of(16));
        let by_channel = p.gates.by_channel;
        // registers hold a state, and what a chunk adds to it
        let longest = match (keys > 128, by_channel || size == 4) {
            (true, _) => 16,
            (false, true) => 32,
            (false, false) => 64,
        };
        let plans = [64, 32, 16].into_iter().filter(|&span| span <= longest).flat_map(|span| {
            // raw gates take registers that a slice on its way would have
            let widest = if p.gates.raw && span == 64 && keys > 64 { 16 } else { 32 };
            let slices = [32, 16].into_iter().filter(move |slice| *slice <= widest && values % slice == 0);
            slices.flat_map(move |slice| [2, 1].map(|stages| (span, slice, stages)))
        });
        let warps = (values / 16).min(4);
        let mut plans = plans.map(|(span, slice, stages)| {
            let together = if p.group.is_multiple_of(2) && 2 * span <= PREPARERS { 2 } else { 1 };
            Plan { math, size, keys, values, by_channel, together, span, warps, stages, slice }
        });
        plans.find(|plan| plan.most_shared() <= setting.numbers.shared_per_block).ok_or(TOO_LARGE)
    }

    pub(super) fn is_bf16(&self) -> bool {
        self.math == "Bf16"
    }

    pub(super) fn math(&self) -> Value {
        Value::Name("Math", self.math)
    }

    /// Chunks of a row: of each sequence that is walked on its own one may begin within a span.
    pub(super) fn chunks_per_row(&self, call: &Call<'_, '_>) -> usize {
        let seqlen = call.problem.seqlen;
        if call.is_by_sequence() { seqlen / self.span + call.sequence_count() } else { seqlen.div_ceil(self.span) }
    }

    /// Parts of the keys that warps of the same columns have.
    fn halves(&self) -> usize {
        if self.keys.is_multiple_of(32) { 2 } else { 1 }
    }

    /// Threads of a walk that load, and all of them.
    pub(super) fn walkers(&self) -> [usize; 2] {
        [32 * self.warps, 32 * self.warps * (self.halves() + 1)]
    }

    /// Blocks of columns that walk on their own.
    pub(super) fn column_blocks(&self) -> usize {
        self.values.div_ceil(16 * self.warps)
    }

    fn most_shared(&self) -> usize {
        self.prepare_shared().max(self.walk_shared()).max(self.gradient_shared())
    }

    /// Bytes of a line of a tile.
    fn pitch(&self, numbers: usize) -> usize {
        numbers * self.size + 16
    }

    /// The tiles and `Room` of `backward_prepare.cu`.
    pub(super) fn prepare_shared(&self) -> usize {
        let span = self.span;
        let tiles = if self.by_channel { 3 * span * (self.keys + 1) * 4 } else { 2 * span * self.pitch(self.keys) };
        let room = ((1 + TOKEN_ROWS) * span * 4).next_multiple_of(16) + span * (span + 4) * 4;
        tiles.next_multiple_of(16) + self.together * room
    }

    /// The stages of `backward_walk.cu`, and the sums that warps of the same columns exchange.
    pub(super) fn walk_shared(&self) -> usize {
        let span = self.span;
        let tiles = if self.by_channel { 3 } else { 2 };
        let keys = tiles * span * self.pitch(self.keys);
        let rest = 2 * span * self.pitch(span) + span * self.pitch(16 * self.warps) + TOKEN_ROWS * span * 4;
        let exchanged = if self.halves() == 2 { 2 * span * 64 * self.warps } else { 0 };
        self.stages * (keys + rest + if self.by_channel { 4 * self.keys } else { 0 }) + exchanged
    }

    /// The tiles of `backward_gradients.cu`.
    pub(super) fn gradient_shared(&self) -> usize {
        let Plan { span, slice, keys, .. } = *self;
        let warps = THREADS / 32;
        let sums = ROW_SUMS * span * (warps / (span / 16)) * 4;
        let before = 2 * span * self.pitch(keys) + 2 * TOKEN_ROWS * span * 4 + sums + slice / 8 * span * 4;
        let steps = (before + (2 * span + warps) * 4).next_multiple_of(16) + 2 * span * self.pitch(slice);
        let of_slice = 2 * slice * (self.pitch(span) + self.pitch(keys));
        let after = match self.by_channel {
            true => (2 * span * (span + 1) + 4 * span * (keys + 1)) * 4,
            false => 2 * span * self.pitch(span),
        };
        (steps + of_slice.max(after)).next_multiple_of(16) + if self.by_channel { 4 * keys } else { 0 }
    }
}

/// The bytes of a workspace that the kernels for Hopper want: of a unit, and of copies.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub unit: usize,
    pub copies: usize,
}

/// The places where the parts of a workspace begin, in elements of f32.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub q_units: usize,
    pub k_units: usize,
    pub read_k: usize,
    pub written_k: usize,
    pub read_q: usize,
    pub t: usize,
    pub a: usize,
    pub states: usize,
    pub gradients: usize,
    pub d: usize,
    pub x: usize,
    pub sums: usize,
    pub tokens: usize,
    pub norms: usize,
    pub da_terms: usize,
    pub dbias_terms: usize,
    /// Copies of tensors that are not read as they lie.
    pub copies: usize,
    pub len: usize,
}

impl Layout {
    /// The layout has room for both ways where Hopper's wants some: which one is taken depends on cotangents, too.
    pub(super) fn new(call: &Call<'_, '_>, plan: &Plan, hopper: Room) -> Layout {
        let p = call.problem;
        let chunks = p.batch.saturating_mul(plan.chunks_per_row(call));
        let (of_keys, of_values) = (chunks.saturating_mul(p.heads), chunks.saturating_mul(p.value_heads()));
        // room for whole units of 16 bytes at the beginning
        let mut len = 4usize;
        let mut part = |count: usize, size: usize| {
            let start = len - 4;
            len = len.saturating_add(count.saturating_mul(size).next_multiple_of(16) / 4);
            start
        };
        let (size, span) = (plan.size, plan.span);
        let keys = span * plan.keys;
        let channels = if plan.by_channel { of_values.saturating_mul(keys) } else { 0 };
        let raw = if p.gates.raw { of_values } else { 0 };
        let own = if plan.by_channel { p.keys } else { 1 };
        let [q_units, k_units] = [(); 2].map(|()| part(of_keys.saturating_mul(keys), size));
        let [read_k, written_k, read_q] = [(); 3].map(|()| part(channels, size));
        let pairs = span * span * size;
        let t = part(of_values, (2 * pairs).max(hopper.unit));
        let a = t + of_values.saturating_mul(pairs) / 4;
        let [states, gradients] = [(); 2].map(|()| part(of_values.saturating_mul(plan.keys * plan.values), size));
        let [d, x] = [(); 2].map(|()| part(of_values.saturating_mul(plan.values * span), size));
        let sums = part(channels, 4);
        let tokens = part(of_values.saturating_mul(TOKEN_ROWS * span), 4);
        let norms = part(of_keys.saturating_mul(2 * span), 4);
        let (da_terms, dbias_terms) = (part(raw, 4), part(raw.saturating_mul(own), 4));
        let copies = part(hopper.copies, 1);
        let parts = Layout { q_units, k_units, read_k, written_k, read_q, t, a, states, gradients, d, x, ..Layout::default() };
        Layout { sums, tokens, norms, da_terms, dbias_terms, copies, len, ..parts }
    }
}
