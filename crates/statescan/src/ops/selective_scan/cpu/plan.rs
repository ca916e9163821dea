//! Problem to plan: how channels, steps and saved states are divided. A pure function of the problem, never of the number of threads, so
//! that sums are taken in the same order whoever computes them.

use super::super::{Problem, Projection};
use crate::cpu::tile::MAX_LANES;
use crate::ops::CHECKPOINT;
use crate::tensor::View;
use core::ops::Range;

/// The layout of the states that the forward pass saves: one for each [`CHECKPOINT`] steps of a segment after the first ones,
/// which start from the segment's own initial state. One state is (dstate, parts, padded dim), channels fastest, padded so that
/// it does not depend on the width of a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoints {
    /// Index of the first saved state of each segment.
    pub first: Vec<usize>,
    /// Channels, padded to the widest vector.
    pub padded_dim: usize,
    /// Elements of one state.
    pub state_len: usize,
    /// Elements in all.
    pub len: usize,
}

impl Checkpoints {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let (first, count) = problem.segments.checkpoints(CHECKPOINT);
        let padded_dim = problem.dim.next_multiple_of(MAX_LANES);
        let state_len = problem.dstate * problem.parts() * padded_dim;
        Checkpoints { first, padded_dim, state_len, len: state_len * count }
    }

    /// Position of the state before tile `tile >= 1` of a segment.
    pub(crate) fn at(&self, segment: usize, tile: usize) -> usize {
        (self.first[segment] + tile - 1) * self.state_len
    }
}

/// The division of one call into jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Neighbouring lanes of a vector that hold states of one channel: state `n` is in lane `n % lanes_per_channel` of its channel's. More
    /// than one where channels are too few to fill a vector, or to share out.
    pub lanes_per_channel: usize,
    /// Ranges of channels, none of which crosses a group of B or C. A tile of B and C is read once for all channels of a range, and the
    /// gradients of B and C are first summed over it.
    pub channels: Vec<Range<usize>>,
    /// Ranges of segments; the gradients of per-channel parameters are first summed over one.
    pub segments: Vec<Range<usize>>,
    /// Steps, whole checkpoints, that a backward pass walks before it adds the gradients of B and C over ranges of channels. All of them
    /// where jobs have several segments, or parts of rows.
    pub window: usize,
    /// Whether every range of channels has groups of B and C to itself, so that their gradients have no partial sums.
    pub whole_groups: bool,
    /// Whether threads walk rows together backwards, tile by tile: channels are few and rows are long.
    pub wavefront: bool,
}

/// Ranges of channels get narrower until there are so many jobs.
const MANY_JOBS: usize = 24;
/// With fewer jobs than this a channel gets one lane more for each that it has. Once only: each time, B and C are read by twice as many
/// jobs.
const FEW_JOBS: usize = 8;
/// With fewer jobs than this the last ranges are narrower, so that threads end closer together.
const UNEVEN_JOBS: usize = 64;
/// Rows are walked together backwards if they have no more channels than this, all together,
const FEW_CHANNELS: usize = 16 * MAX_LANES;
/// and so many steps.
const LONG_ROW: usize = 4 * CHECKPOINT;
/// Partial sums of the gradients of per-channel parameters are kept for at most this many ranges of segments.
const MAX_SEGMENT_RANGES: usize = 32;

impl Plan {
    /// The plan of a forward pass, for vectors of so many lanes.
    pub(crate) fn forward(problem: &Problem<'_>, lanes: usize) -> Self {
        Self::new(problem, lanes, true)
    }

    /// The plan of a backward pass, for vectors of so many lanes.
    pub(crate) fn backward(problem: &Problem<'_>, lanes: usize) -> Self {
        Self::new(problem, lanes, false)
    }

    /// `share` says whether channels are given more lanes than fill a vector, only to have jobs to share out. What such jobs would hand each
    /// other backwards costs more than a second one brings.
    fn new(problem: &Problem<'_>, lanes: usize, share: bool) -> Self {
        let dim = problem.dim;
        let groups = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => view.shape()[1],
            Projection::Constant(_) => 1,
        };
        let unit = gcd(dim / groups(&problem.b), dim / groups(&problem.c)).max(1);
        let count = problem.segments.list.len();
        let step = count.div_ceil(MAX_SEGMENT_RANGES).max(1);
        let whole_rows = step == 1 && problem.segments.list.iter().all(|segment| segment.len() == problem.seqlen);
        let together = !share && whole_rows && dim * count <= FEW_CHANNELS && problem.seqlen >= LONG_ROW;
        let lanes_per_channel = lanes_per_channel(unit, if share { dim / unit * count } else { FEW_JOBS }, problem.dstate, lanes);
        // channels in a vector: ranges are whole vectors
        let vector = if lanes_per_channel == 1 { MAX_LANES } else { lanes / lanes_per_channel };
        // partial gradients of B and C take 2 N numbers a step for each range, x and dt with their gradients 4 a step and channel: with
        // 4 N channels in a range the partials stay near an eighth of that
        let size = (4 * problem.dstate.min(MAX_LANES * 4) * problem.parts())
            .next_multiple_of(MAX_LANES)
            .clamp(4 * MAX_LANES, 16 * MAX_LANES);
        // narrower ranges where they would be too few to share out
        let size = size.min((dim * count).div_ceil(MANY_JOBS).next_multiple_of(vector).max(vector));
        let size = if together { unit } else { size };
        let mut channels = Vec::new();
        for start in (0..dim).step_by(unit) {
            let slices = unit.div_ceil(size);
            let slice = unit.div_ceil(slices).next_multiple_of(vector);
            channels.extend((0..unit).step_by(slice).map(|c| start + c..start + unit.min(c + slice)));
        }
        if channels.len() * count < UNEVEN_JOBS && !together {
            channels = tapered(channels, vector);
        }
        let segments = (0..count).step_by(step).map(|s| s..count.min(s + step)).collect();
        let whole_groups = [&problem.b, &problem.c]
            .into_iter()
            .all(|map| matches!(map, Projection::Constant(_)) || groups(map) == channels.len());
        let window = if whole_rows && !whole_groups {
            window(channels.len() * problem.batch * problem.dstate * problem.parts())
        } else {
            usize::MAX
        };
        let (window, wavefront) = (window.min(problem.seqlen).max(1), together && whole_groups);
        Plan { lanes_per_channel, channels, segments, window, whole_groups, wavefront }
    }

    /// Number of jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.channels.len() * self.segments.len()
    }

    /// The job's range of segments and range of channels, by index.
    pub(crate) fn job(&self, index: usize) -> (usize, usize) {
        (index / self.channels.len(), index % self.channels.len())
    }
}

/// Returns these ranges with the last sixth of them in halves and quarters of whole vectors.
fn tapered(ranges: Vec<Range<usize>>, vector: usize) -> Vec<Range<usize>> {
    let count = ranges.len();
    let slices = |i: usize| match count - i {
        left if left <= count / 12 => 4,
        left if left <= count / 6 => 2,
        _ => 1,
    };
    let cut = |(i, range): (usize, Range<usize>)| {
        let step = range.len().div_ceil(slices(i)).next_multiple_of(vector);
        range.clone().step_by(step).map(move |start| start..range.end.min(start + step))
    };
    ranges.into_iter().enumerate().flat_map(cut).collect()
}

/// Steps in a window whose partial gradients, of B and of C so many at every step, stay in the cache.
fn window(partials: usize) -> usize {
    const MOST: usize = 1 << 18;
    const FEWEST: usize = 16 * CHECKPOINT;
    (MOST / partials.max(1) / CHECKPOINT * CHECKPOINT).max(FEWEST)
}

/// See [`Plan::lanes_per_channel`], for `rows` rows of `unit` channels.
fn lanes_per_channel(unit: usize, rows: usize, dstate: usize, lanes: usize) -> usize {
    let mut count = 1;
    let divides = |count: usize| count <= lanes && dstate.is_multiple_of(count) && dstate > 0;
    while unit * count < lanes && divides(2 * count) {
        count *= 2;
    }
    let jobs = (unit * count).div_ceil(lanes) * rows;
    if jobs < FEW_JOBS && divides(2 * count) { 2 * count } else { count }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A vector of channels: `count` of them from `first`.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub first: usize,
    pub count: usize,
}

/// The blocks of a range of channels.
pub(super) fn blocks(channels: Range<usize>, lanes: usize) -> impl Iterator<Item = Block> + Clone {
    let end = channels.end;
    channels.step_by(lanes).map(move |first| Block { first, count: lanes.min(end - first) })
}

#[cfg(test)]
mod tests {
    use super::{CHECKPOINT, lanes_per_channel, tapered, window};

    #[test]
    fn the_last_ranges_are_narrower() {
        let even = |count: usize, width: usize| (0..count).map(|i| i * width..(i + 1) * width).collect::<Vec<_>>();
        let ranges = tapered(even(24, 64), 16);
        let widths: Vec<_> = ranges.iter().map(|range| range.len()).collect();
        assert_eq!(widths, [[64; 20].as_slice(), &[32; 4], &[16; 8]].concat());
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(tapered(even(3, 64), 16), even(3, 64), "too few to cut");
        assert_eq!(tapered(even(24, 16), 16), even(24, 16), "as narrow as a vector");
        assert_eq!(tapered(vec![0..16, 16..30], 16), [0..16, 16..30]);
        assert_eq!(tapered(vec![], 16), []);
    }

    #[test]
    fn windows_are_whole_checkpoints_that_fit_the_cache() {
        assert_eq!(window(32), 8192, "two ranges of sixteen states");
        assert_eq!(window(48 * 16), 1024, "no shorter than is worth a pause");
        assert_eq!(window(0), 1 << 18);
        for partials in 0..1000 {
            assert!(window(partials) > 0 && window(partials).is_multiple_of(CHECKPOINT));
        }
    }

    #[test]
    fn few_channels_get_several_lanes_each() {
        // one row of (channels, states) on vectors of 16
        let of = |unit, rows, dstate| lanes_per_channel(unit, rows, dstate, 16);
        assert_eq!(of(1536, 1, 16), 1, "many channels");
        assert_eq!(of(128, 1, 16), 1, "eight vectors");
        assert_eq!(of(16, 8, 16), 1, "eight rows");
        assert_eq!(of(16, 1, 16), 2, "one vector becomes two");
        assert_eq!(of(8, 8, 16), 2, "half a vector is filled");
        assert_eq!(of(4, 1, 16), 8, "filled, and made two");
        assert_eq!(of(1, 1, 16), 16, "as many as there are lanes");
        assert_eq!(of(1, 1, 12), 4, "as many as divide the states");
        assert_eq!(of(16, 1, 3), 1);
        assert_eq!(of(16, 1, 0), 1);
        assert_eq!(lanes_per_channel(1, 1, 16, 1), 1, "no vectors");
    }
}
