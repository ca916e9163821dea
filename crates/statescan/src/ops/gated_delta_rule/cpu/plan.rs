//! Problem to plan: which columns of which heads are computed together, and where what is saved lies. A pure function of the problem, never of the
//! number of threads.

use super::super::problem::Problem;
use crate::cpu::tile::MAX_LANES;
use crate::ops::CHECKPOINT;
use crate::ops::sequences::Segment;
use core::ops::Range;

/// Steps in a tile, and in a chunk of the backward pass: a state is saved at the start of each one.
pub(in super::super) const CHUNK: usize = CHECKPOINT;
/// Columns of a state in a unit.
pub(super) const COLUMNS: usize = 64;
/// So many jobs need no parts: each part makes the lengths and products of its keys again.
const MANY_JOBS: usize = 16;

/// Neighbouring columns of one head of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// The head among those that share a key.
    pub member: usize,
    /// The first column.
    pub first: usize,
    pub columns: usize,
}

impl Unit {
    /// Its columns, filled up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.columns.next_multiple_of(MAX_LANES)
    }
}

/// Who computes what forwards: a job is a part of the units of one head of keys in one segment.
#[derive(Debug)]
pub(super) struct Plan {
    units: Vec<Unit>,
    parts: usize,
    heads: usize,
    pub jobs: usize,
}

impl Plan {
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let of_head = |member: usize| {
            let unit = move |first| Unit { member, first, columns: COLUMNS.min(problem.values - first) };
            (0..problem.values).step_by(COLUMNS).map(unit)
        };
        let units: Vec<_> = (0..problem.group).flat_map(of_head).collect();
        let whole = problem.segments.list.len() * problem.heads;
        let parts = MANY_JOBS.div_ceil(whole.max(1)).clamp(1, units.len().max(1));
        Plan { units, parts, heads: problem.heads, jobs: whole * parts }
    }

    /// Segment, head of keys and units of a job.
    pub(super) fn job(&self, index: usize) -> (usize, usize, &[Unit]) {
        let (whole, part, count) = (index / self.parts, index % self.parts, self.units.len());
        let units = part * count / self.parts..(part + 1) * count / self.parts;
        (whole / self.heads, whole % self.heads, &self.units[units])
    }

    /// The most units of a job.
    pub(super) fn most_units(&self) -> usize {
        self.units.len().div_ceil(self.parts)
    }
}

/// The chunks of a segment, as steps of its row.
pub(super) fn chunks(segment: &Segment) -> impl DoubleEndedIterator<Item = Range<usize>> + ExactSizeIterator {
    let end = segment.end;
    (segment.start..end).step_by(CHUNK).map(move |start| start..end.min(start + CHUNK))
}

/// The layout of the numbers that a forward pass saves for the backward pass: first the states, one for each chunk of a segment
/// after the first one, which starts from the segment's own initial state, each (head of values, key, column); and then `u` of
/// every chunk, each (head of values, step, column).
#[derive(Debug, Clone)]
pub(in super::super) struct Checkpoints {
    /// Index of the first saved state of each segment.
    first: Vec<usize>,
    /// Steps of all segments before each one.
    before: Vec<usize>,
    heads: usize,
    keys: usize,
    values: usize,
    states_len: usize,
    pub len: usize,
}

impl Checkpoints {
    pub(in super::super) fn new(problem: &Problem<'_>) -> Self {
        let (first, count) = problem.segments.checkpoints(CHUNK);
        let (heads, keys, values, mut steps) = (problem.value_heads(), problem.keys, problem.values, 0);
        let before = problem.segments.list.iter().map(|segment| {
            steps += segment.len();
            steps - segment.len()
        });
        let before = before.collect();
        let states_len = count * heads * keys * values;
        Checkpoints { first, before, heads, keys, values, states_len, len: states_len + steps * heads * values }
    }

    /// Position of the state of a head before chunk `chunk >= 1` of a segment.
    pub(super) fn state(&self, segment: usize, chunk: usize, head: usize) -> usize {
        ((self.first[segment] + chunk - 1) * self.heads + head) * self.keys * self.values
    }

    /// Position of `u` of a head in a chunk of so many steps.
    pub(super) fn u(&self, segment: usize, chunk: usize, head: usize, steps: usize) -> usize {
        self.states_len + ((self.before[segment] + chunk * CHUNK) * self.heads + head * steps) * self.values
    }
}
