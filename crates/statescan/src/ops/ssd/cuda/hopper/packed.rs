//! Packed sequences on Hopper. Where they begin is known on the device alone: a kernel finds them and counts their chunks, segments and slots, and the
//! kernels for rows take each as a row of its own. Where there are more parts than blocks, a block takes several, one after another.

use super::PACKED;
use crate::cuda::{Address, COMMON, Config, Launch, Program, Queue, SEQUENCES, SLOTS, STEP_SIZE, params};
use crate::error::Result;
use crate::ops::sequences::Sequences;
use crate::ops::ssd::cuda::{Call, INPUTS, Inputs, TOO_MANY};
use crate::ops::ssd::problem::Problem;
use core::ffi::c_void;

pub(in crate::ops::ssd::cuda) static FIND: Program<Params> =
    Program::new("ssd_sequences", &[COMMON, STEP_SIZE], include_str!("sequences.cu"))
        .including(&[SLOTS, SEQUENCES, INPUTS, PACKED]);

params! {
    /// The sequences of rows, and tensor maps of their ends.
    #[derive(Default)]
    pub(in crate::ops::ssd::cuda) struct Packed {
        /// (batch): how many there are.
        counts: Address<i32>,
        /// Dense (batch, sequence): as `packed.cuh` has them.
        sequences: Address<c_void>,
        /// Places for tensor maps, some for each block.
        maps: Address<c_void>,
        /// Most sequences of a row.
        capacity: i64,
        /// Slots of a row.
        slots: i64,
    }
}

params! {
    /// Parameters of `ssd_sequences`.
    pub(in crate::ops::ssd::cuda) struct Params(inputs: Inputs) {
        packed: Packed,
        segment_steps: i64,
    }
}

/// Steps of a chunk.
pub(in crate::ops::ssd::cuda) const SPAN: usize = 64;
/// Most blocks beside those that one long sequence would have: a launch has no more than 65535 in its second axis.
const MOST_SHORT: usize = 1 << 15;
/// Threads of a block.
const THREADS: usize = 1024;
/// Bytes that the table has for a sequence, and where it and places for tensor maps begin at.
const ENTRY: usize = 16;
const ALIGNMENT: usize = 128;
/// Tensor maps that a block has places for, and bytes of one.
pub(in crate::ops::ssd::cuda) const PLACES: usize = 9;
const MAP: usize = 128;

/// Room for the sequences of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops::ssd::cuda) struct Plan {
    batch: usize,
    seqlen: usize,
    /// Most sequences of a row.
    capacity: usize,
    /// Slots of a row for every second chunk; a sequence of one chunk has one if there may be states of it.
    pub slots: usize,
}

impl Plan {
    /// Nothing where rows are not packed.
    pub fn new(p: &Problem<'_>) -> Option<Plan> {
        let (capacity, with_states) = match p.sequences {
            Sequences::Whole => return None,
            // a row begins a sequence whatever the first bound is
            Sequences::CuSeqlens(bounds) => (bounds.len().min(p.seqlen), bounds.len()),
            Sequences::SeqIdx(_) => (p.seqlen, p.segments.per_row().unwrap_or(2)),
        };
        // two chunks are longer than 64 steps, and every sequence has less than two chunks more than it fills
        let slots = (p.seqlen / (2 * SPAN) + capacity).min(p.seqlen / SPAN + with_states);
        Some(Plan { batch: p.batch, seqlen: p.seqlen, capacity, slots })
    }

    /// Blocks for parts of so many steps of a row: as many as there are parts, unless sequences are many and short.
    pub fn blocks(&self, steps: usize) -> usize {
        self.seqlen.div_ceil(steps) + self.capacity.min(self.seqlen / 512 + 16).min(MOST_SHORT)
    }

    /// Bytes of the table, and of places for so many blocks.
    fn table(&self) -> usize {
        (4 * self.batch).next_multiple_of(ALIGNMENT) + (ENTRY * self.batch * (self.capacity + 1)).next_multiple_of(ALIGNMENT)
    }

    /// Elements of f32 for the table and the places of so many blocks.
    pub fn len(&self, blocks: usize) -> usize {
        (self.table() + blocks * PLACES * MAP + ALIGNMENT) / 4
    }

    /// The table at the beginning of a workspace, and where places that are behind it end.
    pub fn at(&self, workspace: u64, blocks: usize) -> (Packed, u64) {
        let table = workspace.next_multiple_of(ALIGNMENT as u64);
        let maps = table + self.table() as u64;
        let packed = Packed {
            counts: Address::new(table),
            sequences: Address::new(table + (4 * self.batch).next_multiple_of(ALIGNMENT) as u64),
            maps: Address::new(maps),
            capacity: self.capacity as i64,
            slots: self.slots as i64,
        };
        (packed, maps + (blocks * PLACES * MAP) as u64)
    }
}

impl Packed {
    /// Returns this table with other places for tensor maps.
    pub fn with_maps(self, maps: u64) -> Packed {
        Packed { maps: Address::new(maps.next_multiple_of(ALIGNMENT as u64)), ..self }
    }
}

/// Elements of places for so many blocks, without a table.
pub(in crate::ops::ssd::cuda) fn places_len(blocks: usize) -> usize {
    (blocks * PLACES * MAP + ALIGNMENT) / 4
}

pub(in crate::ops::ssd::cuda) fn config(call: &Call<'_, '_>, slot_chunks: usize) -> Config {
    call.options().int("THREADS", THREADS).int("SPAN", SPAN).int("SLOT_CHUNKS", slot_chunks)
}

/// Fills the table for walks over segments of so many steps.
///
/// # Safety
/// The views are valid, and so is the memory of the table.
pub(in crate::ops::ssd::cuda) unsafe fn find(
    stream: &Queue<'_>,
    call: &Call<'_, '_>,
    packed: Packed,
    segment_steps: usize,
    slot_chunks: usize,
) -> Result<()> {
    let blocks = u32::try_from(call.problem.batch).map_err(|_| TOO_MANY)?;
    let params = Params { inputs: call.inputs(SPAN, 1), packed, segment_steps: segment_steps as i64 };
    let launch = Launch::line(blocks, THREADS as u32, 0);
    // SAFETY: the caller's contract; the configuration has the type of the bounds or numbers.
    unsafe { stream.launch(&FIND, || config(call, slot_chunks), launch, &params) }.map_err(Into::into)
}
