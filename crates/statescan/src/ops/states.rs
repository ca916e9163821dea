//! The states of a call that are no arguments: their shapes, a pool that they lie in, and their places once time is divided.

use super::check::{Checker, Kind, read_slots, state_rows};
use super::normal::Normal;
use super::sequences::{Segment, Segments, StateRow};
use super::signature::{Argument, Role, Signature, index};
use crate::error::{Error, Result};
use crate::tensor::{Device, Shape, View};

/// The name of a pool in errors and calls.
pub(crate) const STATE_POOL: &str = "state_pool";
/// The slots that sequences start from.
pub(crate) const READ: Argument = index(&["S"]).field("read_indices", "").required();
/// The slots that sequences leave their states in.
pub(crate) const WRITE: Argument = index(&["S", "SQ"]).field("write_indices", "").required();

/// The states of a call that are no arguments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct States<'a> {
    /// Their shapes, which may say how packed sequences have states.
    pub shapes: [Option<Shape>; 2],
    /// The pool that states lie in.
    pub pool: Option<Pool<'a>>,
}

/// No other states.
pub(crate) const NO_STATES: States<'static> = States { shapes: [None; 2], pool: None };

impl States<'_> {
    /// States of these shapes.
    pub(crate) fn of_shapes(shapes: [Option<Shape>; 2]) -> Self {
        States { shapes, pool: None }
    }

    /// The shapes of all states of a call that has this one among its arguments.
    pub(crate) fn beside(&self, initial: &Option<View<'_>>) -> impl Iterator<Item = Shape> {
        initial.as_ref().map(View::shape).into_iter().chain(self.shapes.into_iter().flatten())
    }
}

/// A pool that a call reads, and where its sequences lie in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pool<'a> {
    pub states: View<'a>,
    pub read: View<'a>,
    pub write: View<'a>,
    /// The number of the piece of each sequence that is scanned on the CPU, or all of them, one after the other.
    pub level: Option<usize>,
}

impl<'a> Pool<'a> {
    pub(crate) fn slots(&self) -> usize {
        self.states.shape()[0]
    }

    /// The pieces of a sequence, where sequences are in pieces.
    pub(crate) fn pieces(&self) -> Option<usize> {
        self.write.shape().get(1).copied()
    }

    /// Returns the views that are part of a key besides: a pool in place is written, too.
    pub(crate) fn views(&self) -> [&View<'a>; 2] {
        [&self.read, &self.write]
    }

    /// Adds the indices to the tensors that must not overlap an output.
    pub(crate) fn slots_are_read<'c>(&'c self, checker: &mut Checker<'c>) {
        checker.reads(READ.field, &self.read);
        checker.reads(WRITE.field, &self.write);
    }

    /// Refuses another shape of the indices, another device.
    pub(crate) fn check(&self, op: &'static str, device: Device, own: &[usize], rows: usize) -> Result<()> {
        if self.states.rank() == 0 {
            let (expected, got) = ("(slots, ..)".into(), self.states.shape());
            return Err(Error::Rank { op, argument: STATE_POOL, expected, got, help: String::new() });
        }
        let mut checker = Checker::new(op, device);
        checker.read(STATE_POOL, &self.states, Kind::Float, &Shape::concat(&[&[self.slots()], own]))?;
        let Some(pieces) = self.pieces() else {
            checker.read(READ.field, &self.read, Kind::Index, &[rows])?;
            return checker.read(WRITE.field, &self.write, Kind::Index, &[rows]);
        };
        if !rows.is_multiple_of(pieces.max(1)) {
            let expected = "of a number of pieces, along its second axis, that divides that of the bounds' intervals";
            return Err(Error::Value { op, argument: WRITE.field, expected, got: pieces as f64 });
        }
        let sequences = rows / pieces.max(1);
        checker.read(READ.field, &self.read, Kind::Index, &[sequences])?;
        checker.read(WRITE.field, &self.write, Kind::Index, &[sequences, pieces])
    }

    /// The slots that rows read and write, where the host can read them.
    pub(crate) fn slots_of(&self, op: &'static str, rows: usize) -> Result<[Vec<Option<usize>>; 2]> {
        let slots = self.slots();
        let write = state_rows(op, WRITE.field, Some(&self.write), rows, slots)?;
        let pieces = self.pieces().unwrap_or(1).max(1);
        Ok([read_slots(op, READ.field, &self.read, slots, &write, |row| row / pieces)?, write])
    }

    /// Puts slots in the place of the states of rows.
    fn place(&self, op: &'static str, segments: &mut Segments, rows: usize, reverse: bool) -> Result<()> {
        let [read, write] = self.slots_of(op, rows)?;
        let pieces = self.pieces().unwrap_or(1).max(1);
        let all = core::mem::take(&mut segments.list);
        for (sequence, own) in all.chunks(pieces).enumerate() {
            let own = own.iter().zip(&write[sequence * pieces..]);
            match reverse {
                false => put_pieces(&mut segments.list, self.level, read[sequence], own),
                true => put_pieces(&mut segments.list, self.level, read[sequence], own.rev()),
            }
        }
        Ok(())
    }
}

/// Adds the piece of a sequence with this number, or all of them, those that leave no state being one with the next one. Each of all goes on from the
/// slot of the one before it that has steps: those without steps copy that state, too, once it is there.
fn put_pieces<'s>(
    to: &mut Vec<Segment>,
    number: Option<usize>,
    read: Option<usize>,
    pieces: impl ExactSizeIterator<Item = (&'s Segment, &'s Option<usize>)>,
) {
    let place = |slot: Option<usize>| slot.map(|slot| -> StateRow { (slot, 0) });
    let (mut begun, mut before, mut at, last) = (None, read, 0, pieces.len() - 1);
    for (own, (piece, &write)) in pieces.enumerate() {
        let start = *begun.get_or_insert(piece.start);
        if write.is_none() && own < last {
            continue;
        }
        if number.is_none_or(|number| number == at) {
            to.push(Segment { start, initial: place(before), last: place(write), ..*piece });
        }
        if number.is_some() || start < piece.end {
            before = write;
        }
        (begun, at) = (None, at + 1);
    }
}

/// The places of a call's states, once its time is divided.
#[derive(Debug)]
pub(crate) struct Placed<'a> {
    /// In the direction of the scan.
    pub segments: Segments,
    /// The shape of a state tensor as the caller has it.
    pub shape: Shape,
    pub normal: Normal,
    /// The states that are read, in normal form.
    pub initial: Option<View<'a>>,
    pub pool: Option<Pool<'a>>,
}

impl Segments {
    /// The shape of states whose trailing axes are `own`, checks of those that are read, and segments in the direction of the scan: `reverse` is the
    /// length of a reversed time axis.
    pub(crate) fn placed<'a>(
        self,
        (checker, device): (&Checker<'_>, Device),
        (signature, views): (&'static Signature, &[Option<&View<'a>>]),
        own: &[usize],
        reverse: Option<usize>,
        states: States<'a>,
    ) -> Result<Placed<'a>> {
        let (op, rows) = (checker.op(), self.rows());
        let initial =
            signature.arguments.iter().zip(views).find_map(|(argument, view)| view.filter(|_| argument.role == Role::State));
        let (shape, initial) = match states.pool {
            None => (self.state_shape(own), initial.copied()),
            Some(pool) => {
                pool.check(op, device, own, rows)?;
                (pool.states.shape(), Some(pool.states))
            }
        };
        if states.pool.is_none() {
            checker.bind_state(signature, views, &shape)?;
        }
        let normal = Normal::new(reverse.is_some(), &self);
        let mut segments = match reverse {
            Some(seqlen) => self.reversed(seqlen),
            None => self,
        };
        if let Some(pool) = states.pool.filter(|_| device == Device::Cpu) {
            pool.place(op, &mut segments, rows, reverse.is_some())?;
        }
        Ok(Placed { segments, shape, normal, initial: initial.map(|view| normal.state(view)), pool: states.pool })
    }
}

#[cfg(all(test, feature = "cuda"))]
pub(crate) mod testing {
    use super::{Pool, States};
    use crate::cuda::testing::tensor;
    use crate::tensor::DType;

    /// A pool on a device for so many rows or sequences, and pieces of these, whose states have these sizes.
    pub(crate) fn pool(dtype: DType, (rows, pieces): (usize, Option<usize>), own: &[usize]) -> States<'static> {
        let (states, sequences) = (tensor(dtype, &[&[2 * rows], own].concat()), rows / pieces.unwrap_or(1));
        let write: Vec<usize> = [sequences].into_iter().chain(pieces).collect();
        let (read, write) = (tensor(DType::I32, &[sequences]), tensor(DType::I64, &write));
        States { pool: Some(Pool { states, read, write, level: Some(0) }), ..States::default() }
    }
}
