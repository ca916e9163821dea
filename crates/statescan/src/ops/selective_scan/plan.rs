//! Problem to plan: how channels, steps and saved states are divided. A pure function of the problem, never of the number of threads, so
//! that sums are taken in the same order whoever computes them.

use super::{CHECKPOINT, Problem, Projection};
use crate::cpu::tile::MAX_LANES;
use crate::ops::discretization::Discretization;
use crate::ops::sequences::Segment;
use crate::tensor::View;
use core::ops::Range;

/// Where the states of the forward pass are kept: one for each [`CHECKPOINT`] steps of a segment after the first ones, which start from the
/// segment's own initial state. One state is (dstate, parts, padded dim), channels fastest, padded so that it does not depend on the
/// width of a vector.
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
        // a broadcast view can claim any size: a length that overflows matches no buffer
        let padded_dim = problem.dim.checked_next_multiple_of(MAX_LANES).unwrap_or(usize::MAX);
        let state_len = problem.dstate.saturating_mul(problem.parts()).saturating_mul(padded_dim);
        Checkpoints { first, padded_dim, state_len, len: state_len.saturating_mul(count) }
    }

    /// Position of the state before tile `tile >= 1` of a segment.
    pub(crate) fn at(&self, segment: usize, tile: usize) -> usize {
        (self.first[segment] + tile - 1) * self.state_len
    }
}

/// The division of one call into jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Ranges of channels, none of which crosses a group of B or C. A tile of B and C is read once for all channels of a range, and the
    /// gradients of B and C are first summed over it.
    pub channels: Vec<Range<usize>>,
    /// Ranges of segments; the gradients of per-channel parameters are first summed over one.
    pub segments: Vec<Range<usize>>,
    /// What is done apart, in the order in which it is begun.
    pub jobs: Vec<Job>,
    /// Jobs of one range of channels: the gradients of per-channel parameters are first summed over each.
    pub slabs: usize,
}

/// A range of segments of a range of channels, or a span of one long segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub segments: usize,
    pub channels: usize,
    /// Which of the jobs of its range of channels this is.
    pub slab: usize,
    /// Only these steps of the segment.
    pub span: Option<Span>,
}

/// Steps of a segment, walked after `warm` steps next to them that bring the state (backwards, the gradient by it) from zero to what it is
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub steps: Range<usize>,
    pub warm: usize,
}

/// Ranges of channels get narrower until there are so many jobs.
const MANY_JOBS: usize = 24;
/// Fewer jobs than this are too few for many threads; rows are cut in time where they forget fast enough.
const FEW_JOBS: usize = 8;
/// Steps between the places where a row may be cut, a multiple of [`CHECKPOINT`].
const CUT: usize = 8192;
/// Warming up may take this part of a span.
const WARM_SHARE: usize = 8;

/// Partial sums of the gradients of per-channel parameters are kept for at most this many ranges of segments.
const MAX_SEGMENT_RANGES: usize = 32;

impl Plan {
    pub(crate) fn new(problem: &Problem<'_>) -> Self {
        let dim = problem.dim;
        let groups = |map: &Projection<View<'_>>| match map {
            Projection::Varying(view) => view.shape()[1],
            Projection::Constant(_) => 1,
        };
        let unit = gcd(dim / groups(&problem.b), dim / groups(&problem.c)).max(1);
        // partial gradients of B and C take 2 N numbers a step for each range, x and dt with their gradients 4 a step and channel: with
        // 4 N channels in a range the partials stay near an eighth of that
        let size = (4 * problem.dstate.min(MAX_LANES * 4) * problem.parts())
            .next_multiple_of(MAX_LANES)
            .clamp(4 * MAX_LANES, 16 * MAX_LANES);
        let count = problem.segments.list.len();
        // narrower ranges where they would be too few to share out
        let size = size.min((dim * count).div_ceil(MANY_JOBS).next_multiple_of(MAX_LANES).max(MAX_LANES));
        let mut channels = Vec::new();
        for start in (0..dim).step_by(unit) {
            let pieces = unit.div_ceil(size);
            let piece = unit.div_ceil(pieces).next_multiple_of(MAX_LANES);
            channels.extend((0..unit).step_by(piece).map(|c| start + c..start + unit.min(c + piece)));
        }
        let step = count.div_ceil(MAX_SEGMENT_RANGES).max(1);
        let segments: Vec<_> = (0..count).step_by(step).map(|s| s..count.min(s + step)).collect();
        let of =
            |segments: usize| (0..channels.len()).map(move |channels| Job { segments, channels, slab: segments, span: None });
        let jobs = (0..segments.len()).flat_map(of).collect();
        Plan { slabs: segments.len(), channels, segments, jobs }
    }

    /// The places where rows could be cut, as indices of jobs and steps of the row; none where there are jobs enough, or where a decay
    /// need not shrink with the step (`bilinear`).
    pub(crate) fn places(&self, problem: &Problem<'_>) -> Vec<(usize, usize)> {
        if self.jobs.len() >= FEW_JOBS || problem.discretization == Discretization::Bilinear {
            return Vec::new();
        }
        let mut places = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            // so few jobs have one segment each
            let segment = &problem.segments.list[self.segments[job.segments].start];
            places.extend((segment.start..segment.end).step_by(CUT).skip(1).map(|step| (index, step)));
        }
        places
    }

    /// Steps on either side of a place beyond which it makes no sense to look for the end of memory.
    pub(crate) fn farthest(segment: &Segment) -> usize {
        segment.len() / WARM_SHARE
    }

    /// Cuts at those of the [`Plan::places`] that need a short enough warm-up, given the one of each, `None` where there is none.
    pub(crate) fn cut(
        mut self,
        problem: &Problem<'_>,
        places: &[(usize, usize)],
        warm: &[Option<usize>],
        direction: Direction,
    ) -> Self {
        let whole = core::mem::take(&mut self.jobs);
        for (index, job) in whole.into_iter().enumerate() {
            let segment = &problem.segments.list[self.segments[job.segments].start];
            let mut own: Vec<_> =
                places.iter().zip(warm).filter(|(place, _)| place.0 == index).map(|(place, warm)| (place.1, *warm)).collect();
            // a span is warmed up before its first step, backwards after its last one: the other end is the place before
            let mut bounds = vec![(segment.start, 0)];
            if direction == Direction::Backward {
                own.reverse();
                bounds = vec![(segment.end, 0)];
            }
            for (step, warm) in own {
                let span = bounds.last().map_or(0, |last| last.0.abs_diff(step));
                if let Some(warm) = warm.filter(|warm| warm * WARM_SHARE <= span) {
                    bounds.push((step, warm));
                }
            }
            let end = if direction == Direction::Forward { segment.end } else { segment.start };
            for (k, &(step, warm)) in bounds.iter().enumerate() {
                let other = bounds.get(k + 1).map_or(end, |next| next.0);
                let span = (bounds.len() > 1).then(|| Span { steps: step.min(other)..step.max(other), warm });
                // slabs of a segment follow each other; rows that are cut differently leave some of them empty
                self.jobs.push(Job { slab: job.slab + k * self.segments.len(), span, ..job.clone() });
            }
            self.slabs = self.slabs.max(self.segments.len() * bounds.len());
        }
        self
    }
}

/// Which way a pass walks the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::super::Args;
    use super::*;
    use crate::tensor::{Buffer, DType, Device};

    fn with_plan<R>(dim: usize, seqlen: usize, check: impl FnOnce(&Problem<'_>, Plan) -> R) -> R {
        let tensor = |shape: &[usize]| Buffer::zeros(DType::F32, shape).unwrap();
        let (x, a, b) = (tensor(&[1, dim, seqlen]), tensor(&[dim, 4]), tensor(&[1, 4, seqlen]));
        let args = Args::new(x.view(), x.view(), a.view(), b.view(), b.view());
        let problem = Problem::new(&args, Device::Cpu, &[]).unwrap();
        check(&problem, Plan::new(&problem))
    }

    #[test]
    fn only_few_and_long_rows_have_places_to_cut() {
        with_plan(16, 20_000, |problem, plan| assert_eq!(plan.places(problem), [(0, 8192), (0, 16384)]));
        with_plan(16, 8192, |problem, plan| assert!(plan.places(problem).is_empty()));
        with_plan(512, 20_000, |problem, plan| assert!(plan.places(problem).is_empty()));
    }

    #[test]
    fn spans_cover_a_row_once_and_warm_up_for_a_small_part_of_it() {
        with_plan(16, 40_000, |problem, plan| {
            let places = plan.places(problem);
            for warm in [
                [Some(64); 4],
                [None; 4],
                [Some(64), Some(2048), None, Some(640)],
                [Some(1088), Some(1024), Some(1024), Some(64)],
            ] {
                for direction in [Direction::Forward, Direction::Backward] {
                    let plan = plan.clone().cut(problem, &places, &warm, direction);
                    let mut spans: Vec<_> =
                        plan.jobs.iter().map(|job| job.span.clone().unwrap_or(Span { steps: 0..40_000, warm: 0 })).collect();
                    assert_eq!(plan.slabs, spans.len());
                    assert!(plan.jobs.iter().enumerate().all(|(slab, job)| job.slab == slab));
                    assert_eq!(spans[0].warm, 0);
                    assert!(spans.iter().skip(1).all(|span| span.warm >= 64));
                    // what warms a span up lies in the one before, and is an eighth of it at most
                    assert!(spans.windows(2).all(|pair| pair[1].warm * WARM_SHARE <= pair[0].steps.len()));
                    if direction == Direction::Backward {
                        spans.reverse();
                    }
                    assert_eq!((spans[0].steps.start, spans[spans.len() - 1].steps.end), (0, 40_000));
                    assert!(spans.windows(2).all(|pair| pair[0].steps.end == pair[1].steps.start));
                }
            }
        });
    }
}
