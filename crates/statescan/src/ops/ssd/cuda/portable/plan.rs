//! How blocks of threads lie over a problem: plain numbers of sizes and of a device.

use crate::cuda::{Numbers, SharedMemory, Value};
use crate::tensor::DType;

/// The arithmetic of products, as `blocks.cuh` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) enum Math {
    Bf16,
    F16,
    Tf32,
    Exact,
}

impl Math {
    /// For factors of these types, and a cotangent: bf16 where all factors are, f16 where they are and so is the cotangent, whose numbers may be
    /// beyond f16; else tf32 where it holds all of them or is allowed to stand for f32, else f32.
    pub fn of(factors: [DType; 3], cotangent: Option<DType>, tf32: bool) -> Math {
        let all = |dtype| factors.iter().all(|&factor| factor == dtype);
        if all(DType::BF16) {
            Math::Bf16
        } else if all(DType::F16) && cotangent.is_none_or(|dtype| dtype == DType::F16) {
            Math::F16
        } else if tf32 || !factors.contains(&DType::F32) {
            Math::Tf32
        } else {
            Math::Exact
        }
    }

    pub fn value(self) -> Value {
        let name = match self {
            Math::Bf16 => "Bf16",
            Math::F16 => "F16",
            Math::Tf32 => "Tf32",
            Math::Exact => "Exact",
        };
        Value::Name("Math", name)
    }

    /// Bytes of a number in shared memory and in slots.
    pub fn size(self) -> usize {
        if matches!(self, Math::Bf16 | Math::F16) { 2 } else { 4 }
    }

    /// Whether two numbers share a register of a fragment.
    fn in_pairs(self) -> bool {
        self.size() == 2
    }

    /// Bytes of a tile in shared memory, with room for so many numbers in a line.
    fn tile(self, lines: usize, room: usize) -> usize {
        lines * (room * self.size() + 16)
    }

    /// Bytes of a tile of states, whose lines are farther apart where the depth has the order of lines.
    fn state_tile(self, states: usize, columns: usize) -> usize {
        states * (columns * self.size() + if self.in_pairs() { 16 } else { 32 })
    }
}

/// The sizes that a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Shape {
    pub batch: usize,
    pub nheads: usize,
    pub ngroups: usize,
    pub seqlen: usize,
    pub headdim: usize,
    pub dstate: usize,
    pub math: Math,
}

/// The tiles of a pass, the same in all of its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Tiles {
    /// Steps of a chunk.
    pub span: usize,
    /// Columns of a head that a block takes at once, and how many such tiles a head has.
    pub columns: usize,
    pub column_tiles: usize,
    /// States, padded.
    pub states: usize,
    pub math: Math,
}

/// How slots of states lie, dense: (row of the batch, chunk or some chunks, head, state, column).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Slots {
    /// Steps of a chunk, and chunks that share a slot.
    pub span: usize,
    pub chunks: usize,
    /// States and columns, padded.
    pub states: usize,
    pub columns: usize,
    pub math: Math,
}

/// The work of a kernel besides that of every kernel, as far as its size goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) enum Kind {
    /// With y (or the gradient by z), and with the state in shared memory.
    Walk {
        output: bool,
        state: bool,
    },
    Gradients,
    Maps,
}

/// Bytes of shared memory that plans leave for what kernels declare themselves.
const STATIC: usize = 4096;

impl Tiles {
    /// The largest tiles that these kernels can have.
    pub fn new(shape: &Shape, kinds: &[Kind], numbers: Numbers) -> Option<Tiles> {
        // two blocks on a multiprocessor are worth more than wide ones
        let widest = if shape.math.in_pairs() { 80 } else { 32 };
        let all = [64, 32, 16].into_iter().flat_map(|span| {
            [80, 64, 48, 32, 16].into_iter().filter(move |&most| most <= widest).map(move |most| {
                let column_tiles = shape.headdim.max(1).div_ceil(most);
                let columns = shape.headdim.max(1).div_ceil(column_tiles).next_multiple_of(16);
                let states = shape.dstate.max(1).next_multiple_of(span);
                Tiles { span, columns, column_tiles, states, math: shape.math }
            })
        });
        let fits = |tiles: &Tiles, registers: usize| {
            let small =
                |kind| tiles.registers(kind) <= registers && tiles.memory_of(kind, 1).whole_len() <= numbers.shared_per_block;
            kinds.iter().all(|&kind| small(kind))
        };
        // some registers may lie in memory where nothing fits
        let all: Vec<_> = all.collect();
        [255, 304].into_iter().find_map(|registers| all.iter().copied().find(|tiles| fits(tiles, registers)))
    }

    /// The tiles of a kernel: those of gradients may take fewer columns of a slot at once, so that two blocks fit.
    pub fn of(&self, kind: Kind) -> Tiles {
        match kind {
            Kind::Gradients if !self.math.in_pairs() => Tiles { columns: 16, column_tiles: self.padded_columns() / 16, ..*self },
            _ => *self,
        }
    }

    pub fn threads(&self) -> usize {
        2 * self.span
    }

    pub fn padded_columns(&self) -> usize {
        self.columns * self.column_tiles
    }

    pub fn chunks(&self, seqlen: usize) -> usize {
        seqlen.div_ceil(self.span)
    }

    /// States whose gradients of B or C a block forms.
    pub fn own_states(&self) -> usize {
        self.states.min(if self.math == Math::Exact { 64 } else { 128 })
    }

    pub fn state_tiles(&self) -> usize {
        self.states.div_ceil(self.own_states())
    }

    /// Registers of a thread that a walk holds its part of the state in.
    fn state_registers(&self) -> usize {
        self.states * self.columns / self.threads()
    }

    /// About as many registers as a thread needs: its sums, and what it multiplies.
    fn registers(&self, kind: Kind) -> usize {
        let sums = match kind {
            Kind::Walk { output, .. } => self.state_registers() + if output { self.columns / 2 + self.span / 2 } else { 0 },
            Kind::Gradients => self.of(kind).columns / 2 + self.span,
            Kind::Maps => self.own_states() / 2 + self.span,
        };
        let factors = match self.math {
            Math::Bf16 | Math::F16 | Math::Tf32 => 120,
            Math::Exact => 152,
        };
        sums + factors
    }

    /// Numbers of a slot for the state of a head.
    pub fn slot(&self) -> usize {
        self.states * self.padded_columns()
    }

    /// The slots of these kernels.
    pub fn slots(&self) -> Slots {
        let &Tiles { span, states, math, .. } = self;
        Slots { span, chunks: 1, states, columns: self.padded_columns(), math }
    }

    /// Bytes of a slot, with the scales that kernels keep with numbers of f16.
    pub fn slot_bytes(&self) -> usize {
        let scales = if self.math == Math::F16 { 4 * self.column_tiles } else { 0 };
        self.slot() * self.math.size() + scales
    }

    /// Bytes of shared memory.
    pub fn shared(&self, kind: Kind, numbers: Numbers) -> usize {
        self.memory(kind, numbers).len()
    }

    /// Pieces of time that a walk has in shared memory, two where there is room: the next one arrives while one is computed. Where products take
    /// several instructions, two blocks of one hide more.
    pub fn stages(&self, kind: Kind, numbers: Numbers) -> usize {
        let shared = self.memory_of(kind, 2).whole_len();
        let blocks = if self.math.in_pairs() { 1 } else { 2 };
        let two = matches!(kind, Kind::Walk { .. })
            && shared <= numbers.shared_per_block
            && shared * blocks <= numbers.shared_per_multiprocessor;
        1 + usize::from(two)
    }

    /// Shared memory, array by array.
    pub fn memory(&self, kind: Kind, numbers: Numbers) -> SharedMemory {
        self.memory_of(kind, self.stages(kind, numbers))
    }

    fn memory_of(&self, kind: Kind, stages: usize) -> SharedMemory {
        let (math, columns) = (self.math, self.of(kind).columns);
        let tile = |lines, room| math.tile(lines, room);
        let (factor, map, state) =
            (tile(self.span, columns), tile(self.span, self.states), math.state_tile(self.states, columns));
        let line = 4 / math.size() * columns;
        let memory = match kind {
            // the factors of the product that is added to the state, x and B, or the gradient by y and C; C with room for lines of y
            Kind::Walk { output, state: shares } => SharedMemory::default()
                .array("FACTOR_AT", factor)
                .array("MAP_AT", map)
                .array("C_AT", if output { tile(self.span, self.states.max(line)) } else { 0 })
                .times("STAGE", stages)
                .array("STATE_AT", if shares { state } else { 0 }),
            // x with room for lines of dx
            Kind::Gradients => SharedMemory::default()
                .array("B_AT", map)
                .array("C_AT", map)
                .array("X_AT", tile(self.span, line))
                .array("P_AT", factor)
                .array("H_AT", state)
                .array("G_AT", state),
            // after the heads the other map takes the place of the tiles of a head
            Kind::Maps => SharedMemory::default()
                .array("X_AT", factor)
                .array("P_AT", factor)
                .array("STATE_AT", tile(self.own_states(), columns)),
        };
        let memory = memory.array("SHARED_END", 0).beside(STATIC);
        if kind == Kind::Maps { memory.at_least(tile(self.span, self.own_states())) } else { memory }
    }

    /// Blocks that a multiprocessor runs at the same time.
    pub fn resident(&self, kind: Kind, numbers: Numbers) -> usize {
        let by_registers = 65536 / (self.threads() * self.registers(kind).min(255));
        let by_memory = numbers.shared_per_multiprocessor / self.memory(kind, numbers).whole_len();
        by_registers.min(by_memory).clamp(1, 8)
    }
}

/// Time cut into segments, for rows that are too few to fill a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Cut {
    pub segments: usize,
    pub steps: usize,
}

impl Cut {
    pub fn new(shape: &Shape, tiles: &Tiles, kind: Kind, numbers: Numbers) -> Option<Cut> {
        let chunks = tiles.chunks(shape.seqlen);
        let blocks = (shape.batch * shape.nheads * tiles.column_tiles).max(1);
        // the first launch takes more than half of the time of the second: two segments would gain little
        let segments = (numbers.multiprocessors * tiles.resident(kind, numbers) / blocks).min(chunks / 4);
        if segments < 3 {
            return None;
        }
        let steps = chunks.div_ceil(segments) * tiles.span;
        Some(Cut { segments: shape.seqlen.div_ceil(steps), steps })
    }
}

/// How many blocks share the heads of a group when gradients of B and C are formed.
pub(in crate::ops::ssd::cuda) fn slices(shape: &Shape, tiles: &Tiles, numbers: Numbers) -> usize {
    let blocks = (shape.batch * tiles.chunks(shape.seqlen) * shape.ngroups * tiles.state_tiles()).max(1);
    let heads = shape.nheads / shape.ngroups.max(1);
    let wanted = (2 * numbers.multiprocessors * tiles.resident(Kind::Maps, numbers)).div_ceil(blocks);
    // each slice has as many heads, and no slice is empty
    let each = heads.div_ceil(wanted.clamp(1, 8)).max(1);
    heads.div_ceil(each).max(1)
}
