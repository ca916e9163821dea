//! The slots of a step's sequences, as [`slotted`](super::slotted) has them: their shapes, their values where the host can see them, and the walk over tokens there.

use super::call::Call;
use super::check::{Checker, Kind, read_slots, state_rows};
use super::sequences::Segments;
use crate::error::{Error, Result};
use crate::tensor::{Device, Shape, Tensor, View, ViewMut};
use core::ops::Range;

/// The name of bounds.
pub(super) const BOUNDS: &str = "cu_seqlens";

/// The slots of a call's sequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots<'a> {
    /// (sequences,)
    pub read: View<'a>,
    /// (sequences,), or (sequences, tokens).
    pub write: View<'a>,
    pub bounds: Option<View<'a>>,
    /// The names of both in errors.
    pub names: [&'static str; 2],
}

impl<'a> Slots<'a> {
    /// The views that are part of a key besides.
    pub(crate) fn views(&self) -> [Option<&View<'a>>; 3] {
        [Some(&self.read), Some(&self.write), self.bounds.as_ref()]
    }

    /// Whether sequences of so many rows may have other than one token.
    pub(crate) fn has_many(&self, rows: usize) -> bool {
        self.bounds.is_some() || self.read.len() != rows
    }

    /// Adds the indices to the tensors that must not overlap an output.
    pub(crate) fn are_read<'c>(&'c self, checker: &mut Checker<'c>) {
        let names = [self.names[0], self.names[1], BOUNDS];
        names.into_iter().zip(self.views()).for_each(|(name, view)| view.into_iter().for_each(|view| checker.reads(name, view)));
    }

    /// Refuses another shape of the indices, another device; `rows` are those of the step.
    pub(super) fn check(&self, op: &'static str, device: Device, rows: usize) -> Result<()> {
        let [read, write] = self.names;
        let refused = |argument, words: &'static str, got| {
            Err(Error::Rank { op, argument, expected: words.into(), got, help: String::new() })
        };
        if self.read.rank() != 1 {
            return refused(read, "shape (sequences,)", self.read.shape());
        }
        if !matches!(self.write.rank(), 1 | 2) {
            return refused(write, "shape (sequences,) or (sequences, tokens)", self.write.shape());
        }
        let (sequences, mut checker) = (self.read.len(), Checker::new(op, device));
        let mut written = Shape::of(&[sequences, self.write.shape()[self.write.rank() - 1]]);
        match &self.bounds {
            Some(bounds) => checker.read(BOUNDS, bounds, Kind::Index, &[sequences + 1])?,
            None if sequences == 0 && rows == 0 => {}
            None if sequences > 0 && rows.is_multiple_of(sequences) => written = Shape::of(&[sequences, rows / sequences]),
            None => {
                let expected = "of a number of sequences that divides that of rows";
                return Err(Error::Value { op, argument: read, expected, got: sequences as f64 });
            }
        }
        checker.read(read, &self.read, Kind::Index, &[sequences])?;
        checker.read(write, &self.write, Kind::Index, &written[..self.write.rank()])
    }

    /// The places that the sequences of a call read and write, which the host can see.
    pub(super) fn places(&self, op: &'static str, rows: usize, slots: usize) -> Result<Places> {
        let [read, write] = self.names;
        let sequences = self.read.len();
        let columns = if self.write.rank() == 2 { Some(self.write.shape()[1]) } else { None };
        let written = state_rows(op, write, Some(&self.write), self.write.len(), slots)?;
        let each = columns.unwrap_or(1).max(1);
        let writer = |at: usize| at / each;
        let read = read_slots(op, read, &self.read, slots, &written, writer)?;
        let groups = match &self.bounds {
            None => vec![(0..sequences, 0, rows / sequences.max(1))],
            Some(bounds) => {
                let list = Segments::from_bounds(op, bounds, 1, rows)?.list;
                if let Some(at) = list.iter().position(|segment| columns.is_some_and(|columns| segment.len() > columns)) {
                    let (argument, expected, bound) =
                        (BOUNDS, "at most as many tokens behind the element before as", each as i64);
                    return Err(Error::Index { op, argument, position: at + 1, expected, bound, got: list[at].end as i64 });
                }
                list.iter().enumerate().map(|(at, segment)| (at..at + 1, segment.start, segment.len())).collect()
            }
        };
        Ok(Places { groups, read, written, columns })
    }
}

/// The places of a call's sequences.
pub(super) struct Places {
    /// Sequences of as many tokens: their numbers, the first token, and how many each has.
    groups: Vec<(Range<usize>, usize, usize)>,
    read: Vec<Option<usize>>,
    written: Vec<Option<usize>>,
    /// Slots of a sequence, where each token has one.
    columns: Option<usize>,
}

impl Places {
    /// The slot that a sequence writes after a token.
    fn slot(&self, sequence: usize, token: usize, tokens: usize) -> Option<usize> {
        match self.columns {
            Some(columns) => self.written[sequence * columns + token],
            None => self.written[sequence].filter(|_| token + 1 == tokens),
        }
    }

    /// Puts the states of sequences after a token of so many into their slots.
    fn leave(&self, sequences: &Range<usize>, (token, tokens): (usize, usize), states: &Tensor, pool: &mut ViewMut<'_>) {
        for (row, at) in sequences.clone().enumerate() {
            if let Some(slot) = self.slot(at, token, tokens) {
                pool.reborrow().index(0, slot).copy_from(states.view().index(0, row));
            }
        }
    }

    /// Runs `step` for each token on states that lie apart from the pool; it takes the call and its rows' part of y.
    pub(super) fn walk(
        &self,
        (own, layouts): (&Call<'_>, &[&'static str]),
        (pool, y): (&mut ViewMut<'_>, &mut ViewMut<'_>),
        mut step: impl FnMut(&Call<'_>, &mut Tensor, ViewMut<'_>) -> Result<()>,
    ) -> Result<()> {
        for (sequences, first, tokens) in self.groups.iter().filter(|(sequences, ..)| !sequences.is_empty()) {
            let rows = *first..first + sequences.len() * tokens;
            let mut states = apart(&pool.as_view(), sequences.len())?;
            for (row, slot) in sequences.clone().enumerate().filter_map(|(row, at)| Some((row, self.read[at]?))) {
                states.view_mut().index(0, row).copy_from(pool.as_view().index(0, slot));
            }
            if *tokens == 0 && self.columns.is_none() {
                self.leave(sequences, (0, 1), &states, pool);
            }
            for token in 0..*tokens {
                let mut call = *own;
                for (view, _) in call.views.iter_mut().zip(layouts).filter(|(_, layout)| layout.starts_with('B')) {
                    *view = view.map(|view| view.slice(0, rows.clone()).split(0, sequences.len()).index(1, token));
                }
                let y = y.reborrow().slice(0, rows.clone()).split(0, sequences.len()).index(1, token);
                step(&call, &mut states, y)?;
                self.leave(sequences, (token, *tokens), &states, pool);
            }
        }
        Ok(())
    }
}

/// States of zeros for so many rows, dense, whose axes lie in the order of the pool's: kernels choose by it.
fn apart(pool: &View<'_>, rows: usize) -> Result<Tensor> {
    let mut shape = pool.shape();
    shape.as_mut()[0] = rows;
    let mut order: Vec<usize> = (1..pool.rank()).collect();
    order.sort_by_key(|&axis| pool.strides()[axis].unsigned_abs());
    let (mut strides, mut len) = (pool.strides().to_vec(), 1);
    for axis in order.into_iter().chain([0]) {
        strides[axis] = len as isize;
        len *= shape[axis];
    }
    Tensor::strided(pool.dtype(), &shape, &strides, 0, len)
}

#[cfg(all(test, feature = "cuda"))]
impl Slots<'static> {
    /// Slots on a device for so many sequences, and tokens that have slots each.
    pub(crate) fn testing(sequences: usize, tokens: Option<usize>, has_bounds: bool) -> Self {
        use crate::cuda::testing::tensor;
        use crate::tensor::DType;
        let write: Vec<usize> = [sequences].into_iter().chain(tokens).collect();
        let bounds = has_bounds.then(|| tensor(DType::I64, &[sequences + 1]));
        Slots { read: tensor(DType::I32, &[sequences]), write: tensor(DType::I64, &write), bounds, names: ["read", "write"] }
    }
}
