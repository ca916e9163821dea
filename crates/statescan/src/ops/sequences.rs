//! Packed sequences: where a state begins and where it ends.
//!
//! Whatever way the caller marks sequences, an operation sees a list of segments: "scan these steps from that state and leave the end state
//! there". Dense batches, `cu_seqlens`, `seq_idx` and, by mirroring, reversed scans are all that list.

use super::check::limit_sizes;
use crate::error::{Error, Result};
use crate::tensor::{Device, Shape, View};

/// How the time axis divides into independent sequences.
///
/// | variant | argument | states (initial, final) |
/// |---|---|---|
/// | `Whole` | none | (batch, ..): one for each row |
/// | `CuSeqlens` | (sequences + 1,), from 0 to seqlen, not decreasing; batch must be 1 | (sequences, ..) |
/// | `SeqIdx` | (batch, seqlen); a change of value starts a sequence | (batch, ..): the first sequence of a row starts from its state and the last one leaves it, the others start from zero; or (batch, sequences, ..): values are the sequence's number, rising along a row |
#[non_exhaustive]
#[derive(Debug, Clone, Copy, Default)]
pub enum Sequences<'a> {
    /// Each row of the batch is one sequence.
    #[default]
    Whole,
    /// Cumulative lengths of sequences packed into one row (i32 or i64).
    CuSeqlens(View<'a>),
    /// The sequence that each step belongs to (i32 or i64).
    SeqIdx(View<'a>),
}

impl<'a> Sequences<'a> {
    /// The arguments `cu_seqlens` and `seq_idx`.
    pub(crate) fn views(&self) -> [Option<View<'a>>; 2] {
        match *self {
            Sequences::Whole => [None, None],
            Sequences::CuSeqlens(bounds) => [Some(bounds), None],
            Sequences::SeqIdx(index) => [None, Some(index)],
        }
    }

    /// Returns the sequences that these arguments describe.
    pub(crate) fn of_views(views: [Option<View<'a>>; 2]) -> Self {
        match views {
            [Some(bounds), _] => Sequences::CuSeqlens(bounds),
            [None, Some(index)] => Sequences::SeqIdx(index),
            [None, None] => Sequences::Whole,
        }
    }
}

/// The sizes of a call over time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent<'s> {
    pub batch: usize,
    pub seqlen: usize,
    /// The other sizes: those of channels and states.
    pub others: &'s [usize],
    /// The name of the product of all of them in errors.
    pub names: &'static str,
    /// Axes of a state tensor without leading axes.
    pub state_rank: usize,
}

/// Position of a state: the first two axes of a state tensor in its normal form (rows, sequences, ..).
pub(crate) type StateRow = (usize, usize);

/// Steps `start..end` of one batch row, scanned on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Row of the batch.
    pub batch: usize,
    /// First step.
    pub start: usize,
    /// One past the last step.
    pub end: usize,
    /// The place of the state before the first step; zero if there is none.
    pub initial: Option<StateRow>,
    /// The place of the state after the last step.
    pub last: Option<StateRow>,
}

impl Segment {
    /// Number of steps.
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }
}

/// All segments of a call, and the leading axes that its state tensors must have. The list is for the CPU; where a call runs on another
/// device it is empty, for bounds lie in that device's memory, and only kernels there read them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segments {
    pub list: Vec<Segment>,
    rows: usize,
    per_row: Option<usize>,
}

impl Segments {
    /// Divides the time axis, once the sizes of the call are known to be within limits. `states` are the shapes of the state tensors of the
    /// call; they decide between the two forms of `SeqIdx`.
    pub(crate) fn resolve(
        op: &'static str,
        device: Device,
        sequences: &Sequences<'_>,
        extent: Extent<'_>,
        states: impl IntoIterator<Item = Shape>,
    ) -> Result<Self> {
        let Extent { batch, seqlen, others, names, state_rank } = extent;
        let per_row = match sequences {
            Sequences::SeqIdx(_) => states.into_iter().find(|s| s.len() == state_rank + 2).map(|s| s[1]),
            _ => None,
        };
        // as many as bounds or states claim, which may be broadcast
        let count = match sequences {
            Sequences::CuSeqlens(bounds) => bounds.shape().iter().copied().max(),
            _ => per_row,
        };
        limit_sizes(op, names, [batch, seqlen.max(count.unwrap_or(1))].into_iter().chain(others.iter().copied()))?;
        if let Sequences::CuSeqlens(index) | Sequences::SeqIdx(index) = sequences
            && index.device() != device
        {
            return Err(Error::Device { op, argument: "sequences", expected: device, got: index.device() });
        }
        match sequences {
            Sequences::Whole if device != Device::Cpu => Ok(Segments { list: Vec::new(), rows: batch, per_row: None }),
            Sequences::Whole => {
                let list = (0..batch)
                    .map(|b| Segment { batch: b, start: 0, end: seqlen, initial: Some((b, 0)), last: Some((b, 0)) })
                    .collect();
                Ok(Segments { list, rows: batch, per_row: None })
            }
            Sequences::CuSeqlens(bounds) => Self::from_bounds(op, bounds, batch, seqlen),
            Sequences::SeqIdx(index) => {
                check_index(op, index, batch, seqlen)?;
                if index.device() != Device::Cpu {
                    return Ok(Segments { list: Vec::new(), rows: batch, per_row });
                }
                Self::from_index(op, index, batch, seqlen, per_row)
            }
        }
    }

    /// Divides packed steps, or rows, by their bounds.
    pub(crate) fn from_bounds(op: &'static str, bounds: &View<'_>, batch: usize, seqlen: usize) -> Result<Self> {
        let argument = "cu_seqlens";
        if batch != 1 {
            return Err(Error::Value { op, argument, expected: "used with a batch of 1", got: batch as f64 });
        }
        if bounds.rank() != 1 || bounds.is_empty() {
            return Err(Error::Rank {
                op,
                argument,
                expected: "shape (sequences + 1,)".into(),
                got: bounds.shape(),
                help: String::new(),
            });
        }
        check_index_type(op, argument, bounds)?;
        if bounds.device() != Device::Cpu {
            return Ok(Segments { list: Vec::new(), rows: bounds.len() - 1, per_row: None });
        }
        let values = bounds.to_indices();
        let error =
            |position: usize, expected, bound| Error::Index { op, argument, position, expected, bound, got: values[position] };
        if values[0] != 0 {
            return Err(error(0, "equal to", 0));
        }
        for i in 1..values.len() {
            if values[i] < values[i - 1] {
                return Err(error(i, "at least the element before it,", values[i - 1]));
            }
            if values[i] > seqlen as i64 {
                return Err(error(i, "at most the sequence length", seqlen as i64));
            }
        }
        let last = values.len() - 1;
        if values[last] != seqlen as i64 {
            return Err(error(last, "equal to the sequence length", seqlen as i64));
        }
        let list = (0..last)
            .map(|s| Segment {
                batch: 0,
                start: values[s] as usize,
                end: values[s + 1] as usize,
                initial: Some((s, 0)),
                last: Some((s, 0)),
            })
            .collect();
        Ok(Segments { list, rows: last, per_row: None })
    }

    fn from_index(op: &'static str, index: &View<'_>, batch: usize, seqlen: usize, per_row: Option<usize>) -> Result<Self> {
        let argument = "seq_idx";
        let values = index.to_indices();
        let mut list = Vec::new();
        for b in 0..batch {
            let row = &values[b * seqlen..(b + 1) * seqlen];
            let first = list.len();
            let mut start = 0;
            for end in 1..=seqlen {
                if end == seqlen || row[end] != row[start] {
                    list.push(Segment { batch: b, start, end, initial: None, last: None });
                    start = end;
                }
            }
            match per_row {
                None => {
                    if seqlen == 0 {
                        list.push(Segment { batch: b, start: 0, end: 0, initial: None, last: None });
                    }
                    list[first].initial = Some((b, 0));
                    list.last_mut().expect("a row has at least one segment").last = Some((b, 0));
                }
                Some(count) => {
                    let runs = list.split_off(first);
                    let mut next = 0;
                    for mut run in runs {
                        let (position, got) = (b * seqlen + run.start, row[run.start]);
                        if got < next as i64 {
                            let expected = "numbered upwards along a row, here at least";
                            return Err(Error::Index { op, argument, position, expected, bound: next as i64, got });
                        }
                        if got >= count as i64 {
                            let expected = "less than the number of sequences of the states,";
                            return Err(Error::Index { op, argument, position, expected, bound: count as i64, got });
                        }
                        let s = got as usize;
                        list.extend((next..s).map(|s| empty(b, s)));
                        run.initial = Some((b, s));
                        run.last = Some((b, s));
                        list.push(run);
                        next = s + 1;
                    }
                    list.extend((next..count).map(|s| empty(b, s)));
                }
            }
        }
        Ok(Segments { list, rows: batch, per_row })
    }

    /// The states of a call along the first axis of state tensors.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The shape that a state tensor of this call must have, `own` being its trailing axes.
    pub(crate) fn state_shape(&self, own: &[usize]) -> Shape {
        Shape::concat(&[&[self.rows], self.per_row.as_slice(), own])
    }

    /// How states are saved, one for each `every` steps of a segment after the first ones, which start from the segment's own initial
    /// state: the index of the first saved state of each segment, and the number of them in all.
    pub(crate) fn checkpoints(&self, every: usize) -> (Vec<usize>, usize) {
        let mut count = 0;
        let first = self.list.iter().map(|segment| {
            let first = count;
            count += segment.len().div_ceil(every).saturating_sub(1);
            first
        });
        (first.collect(), count)
    }

    /// The states of a row, where state tensors have the form (batch, sequences, ..).
    pub(crate) fn per_row(&self) -> Option<usize> {
        self.per_row
    }

    /// Whether state tensors have the form (batch, sequences, ..) already.
    pub(crate) fn states_have_sequences(&self) -> bool {
        self.per_row.is_some()
    }

    /// Returns these segments on the reversed time axis.
    pub(crate) fn reversed(mut self, seqlen: usize) -> Self {
        for segment in &mut self.list {
            (segment.start, segment.end) = (seqlen - segment.end, seqlen - segment.start);
            // (batch, ..) states with seq_idx: the scan enters a row at its end
            if self.per_row.is_none() && segment.initial != segment.last {
                core::mem::swap(&mut segment.initial, &mut segment.last);
            }
        }
        self
    }
}

/// A sequence without steps: its final state is its initial state.
fn empty(batch: usize, sequence: usize) -> Segment {
    let state = Some((batch, sequence));
    Segment { batch, start: 0, end: 0, initial: state, last: state }
}

fn check_index(op: &'static str, index: &View<'_>, batch: usize, seqlen: usize) -> Result<()> {
    let argument = "seq_idx";
    check_index_type(op, argument, index)?;
    let expected = Shape::of(&[batch, seqlen]);
    match index.shape() == expected {
        true => Ok(()),
        false => Err(Error::Shape { op, argument, expected, got: index.shape(), help: String::new() }),
    }
}

fn check_index_type(op: &'static str, argument: &'static str, view: &View<'_>) -> Result<()> {
    match view.dtype().is_index() {
        true => Ok(()),
        false => Err(Error::DType { op, argument, expected: "i32 or i64", got: view.dtype() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(sequences: &Sequences<'_>, batch: usize, seqlen: usize, states: &[&[usize]]) -> Result<Segments> {
        let states = states.iter().map(|s| Shape::of(s));
        let extent = Extent { batch, seqlen, others: &[5, 4], names: "sizes", state_rank: 2 };
        Segments::resolve("test", Device::Cpu, sequences, extent, states)
    }

    type Span = (usize, usize, usize, Option<StateRow>, Option<StateRow>);

    fn spans(segments: &Segments) -> Vec<Span> {
        segments.list.iter().map(|s| (s.batch, s.start, s.end, s.initial, s.last)).collect()
    }

    #[test]
    fn bounds_give_one_state_for_each_sequence() {
        let bounds = [0i32, 3, 3, 7];
        let view = View::new(&bounds, &[4]).unwrap();
        let segments = resolve(&Sequences::CuSeqlens(view), 1, 7, &[]).unwrap();
        let row = |s| Some((s, 0));
        assert_eq!(spans(&segments), [(0, 0, 3, row(0), row(0)), (0, 3, 3, row(1), row(1)), (0, 3, 7, row(2), row(2))]);
        assert_eq!(segments.state_shape(&[5, 4]), Shape::of(&[3, 5, 4]));
    }

    #[test]
    fn bad_bounds_are_named() {
        for (bounds, seqlen) in [(vec![0i64, 4, 3], 3), (vec![1, 3], 3), (vec![0, 2], 3), (vec![0, 4], 3), (vec![0, -1, 3], 3)] {
            let view = View::new(&bounds, &[bounds.len()]).unwrap();
            let error = resolve(&Sequences::CuSeqlens(view), 1, seqlen, &[]).unwrap_err();
            assert!(matches!(error, Error::Index { argument: "cu_seqlens", .. }), "{error}");
        }
        let view = View::new(&[0i64, 3], &[2]).unwrap();
        assert!(matches!(resolve(&Sequences::CuSeqlens(view), 2, 3, &[]), Err(Error::Value { .. })));
        let view = View::new(&[0f32, 3.0], &[2]).unwrap();
        assert!(matches!(resolve(&Sequences::CuSeqlens(view), 1, 3, &[]), Err(Error::DType { .. })));
    }

    #[test]
    fn more_sequences_than_there_can_be_are_refused_before_they_are_listed() {
        let none = [0i64; 1];
        let bounds = Sequences::CuSeqlens(View::strided(&none, 0, &[1 << 50], &[0]).unwrap());
        assert!(matches!(resolve(&bounds, 1, 0, &[]), Err(Error::Value { argument: "sizes", .. })));
        let index = Sequences::SeqIdx(View::strided(&none, 0, &[1, 1], &[0, 0]).unwrap());
        assert!(matches!(resolve(&index, 1, 1, &[&[1, 1 << 50, 5, 4]]), Err(Error::Value { argument: "sizes", .. })));
        assert!(matches!(resolve(&Sequences::Whole, 1 << 50, 1, &[]), Err(Error::Value { argument: "sizes", .. })));
    }

    #[test]
    fn runs_of_seq_idx_reset() {
        let index = [4i32, 4, 9, 9, 9, 2];
        let view = View::new(&index, &[1, 6]).unwrap();
        let segments = resolve(&Sequences::SeqIdx(view), 1, 6, &[&[1, 5, 4]]).unwrap();
        assert_eq!(spans(&segments), [(0, 0, 2, Some((0, 0)), None), (0, 2, 5, None, None), (0, 5, 6, None, Some((0, 0)))]);
        let reversed = segments.reversed(6);
        assert_eq!(spans(&reversed)[0], (0, 4, 6, None, Some((0, 0))));
        assert_eq!(spans(&reversed)[2], (0, 0, 1, Some((0, 0)), None));
    }

    #[test]
    fn numbered_sequences_have_a_state_each_even_when_absent() {
        let index = [0i32, 0, 2, 2];
        let view = View::new(&index, &[1, 4]).unwrap();
        let segments = resolve(&Sequences::SeqIdx(view), 1, 4, &[&[1, 4, 5, 4]]).unwrap();
        let row = |s| Some((0, s));
        assert_eq!(
            spans(&segments),
            [(0, 0, 2, row(0), row(0)), (0, 0, 0, row(1), row(1)), (0, 2, 4, row(2), row(2)), (0, 0, 0, row(3), row(3))]
        );
        assert_eq!(segments.state_shape(&[5, 4]), Shape::of(&[1, 4, 5, 4]));
        for bad in [[0, 0, 4, 4], [1, 1, 0, 0], [-1, 0, 1, 2]] {
            let view = View::new(&bad, &[1, 4]).unwrap();
            assert!(matches!(resolve(&Sequences::SeqIdx(view), 1, 4, &[&[1, 4, 5, 4]]), Err(Error::Index { .. })));
        }
    }

    #[test]
    fn an_empty_row_still_hands_its_state_on() {
        let none: [i32; 0] = [];
        let view = View::new(&none, &[2, 0]).unwrap();
        let segments = resolve(&Sequences::SeqIdx(view), 2, 0, &[]).unwrap();
        assert_eq!(segments.list.len(), 2);
        assert!(segments.list.iter().all(|s| s.len() == 0 && s.initial.is_some() && s.initial == s.last));
    }
}
