//! The part that operations on CUDA share: the names of `common.cuh`, and the calls that CUDA refuses.

use super::sequences::{Segments, Sequences};
use super::slots as step_slots;
use super::states::Pool;
use crate::cuda::{Address, Config, Value, neighbours, params};
use crate::error::{Error, Result};
use crate::tensor::{DType, RawViewMut, View};
use core::ffi::c_void;
use statescan_cuda::Constants;

/// The rows that a launch walks, as `common.cuh` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// All of them.
    Whole,
    /// Segments of rows, each reduced to its summary.
    Ends,
    /// Segments, from what the ones before compose to.
    Rest,
}

impl Pass {
    /// The launches for rows in one piece, or in segments.
    pub(crate) fn all(cut: bool) -> &'static [Pass] {
        if cut { &[Pass::Ends, Pass::Rest] } else { &[Pass::Whole] }
    }

    pub(crate) fn value(self) -> Value {
        let name = match self {
            Pass::Whole => "Whole",
            Pass::Ends => "Ends",
            Pass::Rest => "Rest",
        };
        Value::Name("Pass", name)
    }

    /// The segments that it has to do with, of so many: the last one composes to nothing that is needed.
    pub(crate) fn segments(self, all: usize) -> usize {
        if self == Pass::Ends { all - 1 } else { all }
    }
}

impl<'a> Sequences<'a> {
    pub(crate) fn value(&self) -> Value {
        let name = match self {
            Sequences::Whole => "Whole",
            Sequences::CuSeqlens(_) => "Bounds",
            Sequences::SeqIdx(_) => "Index",
        };
        Value::Name("Sequences", name)
    }

    /// Sequences of bounds, or of the axis that states have for them.
    pub(crate) fn count(&self, segments: &Segments) -> usize {
        match self {
            Sequences::Whole => 1,
            Sequences::CuSeqlens(bounds) => bounds.len() - 1,
            Sequences::SeqIdx(_) => segments.per_row().unwrap_or(1),
        }
    }

    /// Whether states have an axis of sequences within a row.
    pub(crate) fn are_numbered(&self, segments: &Segments) -> bool {
        matches!(self, Sequences::SeqIdx(_)) && segments.states_have_sequences()
    }

    /// Bounds, or the sequence of each step in the direction of a scan.
    pub(crate) fn along(&self, reverse: bool) -> Option<View<'a>> {
        match *self {
            Sequences::Whole => None,
            Sequences::CuSeqlens(bounds) => Some(bounds),
            Sequences::SeqIdx(index) => Some(if reverse { index.flip(1) } else { index }),
        }
    }
}

/// Refuses double precision; `what` is the operation in it.
pub(crate) fn single_only(double: bool, what: &'static str) -> Result<()> {
    match double {
        true => Err(Error::Unavailable { what, why: "kernels for CUDA compute in f32" }),
        false => Ok(()),
    }
}

/// The type of a tensor that may be missing.
pub(crate) fn dtype(view: &Option<View<'_>>) -> DType {
    view.map_or(DType::F32, |v| v.dtype())
}

/// The type of a target that may be missing.
pub(crate) fn type_of(target: &Option<RawViewMut>) -> DType {
    dtype(&read(target))
}

/// How a target lies that may be missing.
pub(crate) fn read(target: &Option<RawViewMut>) -> Option<View<'_>> {
    target.as_ref().map(|v| v.as_read())
}

/// Neighbours along the last of four axes that one access can take, no piece of which is beyond its end.
pub(crate) fn width(view: &View<'_>) -> usize {
    let length = view.shape()[3];
    (0..4).map(|shift| neighbours(view, 3, 8) >> shift).find(|&n| n > 0 && length.is_multiple_of(n)).unwrap_or(1)
}

params! {
    /// States of sequences, (row, sequence, head, and two axes of a head's state); strides count elements.
    #[derive(Default)]
    pub(crate) struct States {
        data: Address<c_void>,
        stride: [i64; 5],
    }
}

params! {
    /// The places of rows' states in a pool, as `slots.cuh` reads them.
    #[derive(Default)]
    pub(crate) struct Slots {
        read: Address<c_void>,
        write: Address<c_void>,
        /// From one sequence's slot to the next one's, and from one piece's.
        read_step: i64,
        write_step: i64,
        piece_step: i64,
        /// Pieces of a sequence, of which each is a row of the kernels; sequences.
        pieces: i64,
        rows: i64,
        /// Slots of the pool.
        count: i64,
    }
}

impl Slots {
    pub(crate) fn of(pool: &Option<Pool<'_>>) -> Self {
        let Some(pool) = pool else { return Slots::default() };
        let address = |view: &View<'_>| Address::new(view.as_ptr() as u64);
        Slots {
            read: address(&pool.read),
            write: address(&pool.write),
            read_step: pool.read.strides()[0] as i64,
            write_step: pool.write.strides()[0] as i64,
            piece_step: pool.write.strides().get(1).map_or(0, |&step| step as i64),
            pieces: pool.pieces().unwrap_or(1).max(1) as i64,
            rows: pool.read.len() as i64,
            count: pool.slots() as i64,
        }
    }
}

/// The types of slots, where there are some.
pub(crate) struct SlotTypes(Option<([DType; 2], bool)>);

impl SlotTypes {
    pub(crate) fn of(pool: &Option<Pool<'_>>) -> Self {
        SlotTypes(pool.map(|pool| ([pool.read.dtype(), pool.write.dtype()], pool.pieces().is_some())))
    }
}

impl Constants for SlotTypes {
    fn add_to(&self, config: Config) -> Config {
        let ([read, write], in_pieces) = self.0.unwrap_or(([DType::I32; 2], false));
        let config = config.flag("POOLED", self.0.is_some()).flag("IN_PIECES", in_pieces);
        config.dtype("READ_SLOT", read).dtype("WRITE_SLOT", write)
    }
}

params! {
    /// The slots of the sequences of a step, as `step_slots.cuh` reads them.
    #[derive(Default)]
    pub(crate) struct StepSlots {
        read: Address<c_void>,
        write: Address<c_void>,
        bounds: Address<c_void>,
        /// From one sequence to the next one.
        read_step: i64,
        write_step: i64,
        bounds_step: i64,
        /// From one token's slot to the next one's.
        column_step: i64,
        sequences: i64,
        columns: i64,
        /// Tokens of all sequences.
        rows: i64,
        /// Slots of the pool.
        count: i64,
    }
}

impl StepSlots {
    pub(crate) fn of(slots: Option<&step_slots::Slots<'_>>, rows: usize, count: usize) -> Self {
        let Some(slots) = slots else { return StepSlots::default() };
        let address = |view: &View<'_>| Address::new(view.as_ptr() as u64);
        let step = |view: &View<'_>, axis| view.strides().get(axis).copied().unwrap_or(0) as i64;
        StepSlots {
            read: address(&slots.read),
            write: address(&slots.write),
            bounds: slots.bounds.as_ref().map(address).unwrap_or_default(),
            read_step: step(&slots.read, 0),
            write_step: step(&slots.write, 0),
            bounds_step: slots.bounds.as_ref().map_or(0, |view| step(view, 0)),
            column_step: step(&slots.write, 1),
            sequences: slots.read.len() as i64,
            columns: slots.write.shape().get(1).copied().unwrap_or(1) as i64,
            rows: rows as i64,
            count: count as i64,
        }
    }

    /// Adds the bounds of sequences without slots among so many tokens, if there are any.
    pub(crate) fn bounded(self, bounds: Option<View<'_>>, rows: usize) -> Self {
        let Some(view) = bounds else { return self };
        let (sequences, bounds_step) = (view.len() as i64 - 1, view.strides()[0] as i64);
        StepSlots { bounds: Address::new(view.as_ptr() as u64), bounds_step, sequences, rows: rows as i64, ..self }
    }
}

/// The constants of a step with slots, or without, and of its sequences.
pub(crate) struct StepSlotTypes {
    /// Types of slots that are read and written.
    slots: Option<[DType; 2]>,
    bound: Option<DType>,
    each_token: bool,
    many: bool,
}

impl StepSlotTypes {
    pub(crate) fn of(slots: Option<&step_slots::Slots<'_>>, rows: usize) -> Self {
        StepSlotTypes {
            slots: slots.map(|slots| [slots.read.dtype(), slots.write.dtype()]),
            bound: slots.and_then(|slots| slots.bounds).map(|bounds| bounds.dtype()),
            each_token: slots.is_some_and(|slots| slots.write.rank() == 2),
            many: slots.is_some_and(|slots| slots.has_many(rows)),
        }
    }

    /// Adds the type of the bounds of sequences without slots, if there are any.
    pub(crate) fn bounded(self, bounds: Option<View<'_>>) -> Self {
        let Some(bounds) = bounds else { return self };
        StepSlotTypes { bound: Some(bounds.dtype()), many: true, ..self }
    }
}

impl Constants for StepSlotTypes {
    fn add_to(&self, config: Config) -> Config {
        let [read, write] = self.slots.unwrap_or([DType::I32; 2]);
        config
            .flag("SLOTTED", self.slots.is_some())
            .flag("MANY", self.many)
            .flag("EACH_TOKEN", self.each_token)
            .flag("HAS_BOUNDS", self.bound.is_some())
            .dtype("READ_SLOT", read)
            .dtype("WRITE_SLOT", write)
            .dtype("BOUND", self.bound.unwrap_or(DType::I32))
    }
}

impl States {
    pub(crate) fn of(view: &Option<View<'_>>) -> Self {
        let Some(view) = view else { return States::default() };
        let mut stride = [0; 5];
        for (to, &from) in stride.iter_mut().zip(view.strides().iter()) {
            *to = from as i64;
        }
        States { data: Address::new(view.as_ptr() as u64), stride }
    }
}
