//! The simplified scan on the CPU: two matrix products with a scan between them, wave by wave.
//!
//! A wave is a bounded stretch of the line of all steps (see `plan.rs`). In each, threads take blocks of time for `V = U B`, then rows and
//! vectors of states for the scan, which turns V into states in place, then blocks of time for `Y = X C`. The products are done by the
//! `gemm` crate on real matrices; a row of V holds its states in groups of a vector's width, real lanes before imaginary ones, so that the
//! scan reads vectors of complex numbers out of what the product left.

mod adjoint;
mod backward;
mod forward;
mod maps;
mod plan;
mod rows;
pub(crate) mod rule;
mod scan;

use super::{GradientTargets, Problem, Sources, Targets};
use crate::cpu::Kernel;
use crate::cpu::Level;
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{MAX_LANES, STEPS};
use crate::exec::Exec;
use crate::ops::sequences::Segment;
use crate::tensor::{RawViewMut, View};
use core::marker::PhantomData;
use maps::{Map, Side};
use plan::Plan;
pub(crate) use plan::checkpoints_len;
use std::collections::HashSet;

pub(crate) fn forward(exec: &Exec, problem: &Problem<'_>, targets: &Targets) {
    match problem.double {
        false => forward::run::<f32>(exec, problem, targets),
        true => forward::run::<f64>(exec, problem, targets),
    }
}

pub(crate) fn backward(exec: &Exec, problem: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match problem.double {
        false => backward::run::<f32>(exec, problem, sources, targets),
        true => backward::run::<f64>(exec, problem, sources, targets),
    }
}

/// The values that the jobs of one pass share.
struct Context<'c, 'a, T> {
    problem: &'c Problem<'a>,
    plan: Plan,
    level: Level,
    /// Lanes of a vector.
    width: usize,
    input: Map,
    output: Map,
    /// Segments with steps, in the order of the line.
    segments: Vec<Segment>,
    element: PhantomData<T>,
}

struct Lanes<T>(PhantomData<T>);

impl<T: Real> Kernel for Lanes<T> {
    type Output = usize;
    const EVERY_LEVEL: bool = true;
    #[inline(always)]
    fn run<S: Isa>(self, _simd: S) -> usize {
        T::lanes::<S>()
    }
}

impl<'c, 'a, T: Real> Context<'c, 'a, T> {
    /// `workspace` tells the elements a step needs from the lengths of an input, a state and an output.
    fn new(exec: &Exec, problem: &'c Problem<'a>, workspace: impl Fn(usize, usize, usize) -> usize) -> Self {
        let level = exec.level();
        let width = level.dispatch(Lanes::<T>(PhantomData));
        let plain = |parts| Side { count: problem.dim, parts, width: problem.dim };
        let (u, y) = (plain(problem.input_parts()), plain(problem.output_parts()));
        let x = Side { count: problem.dstate, parts: 2, width };
        let input = Map { from: u, to: x, factor: 1.0 };
        let output = Map { from: x, to: y, factor: problem.real_factor.unwrap_or(1.0) };
        // groups are padded to a vector, which is less than what the plan counts
        let states = 2 * plan::padded(problem.dstate);
        let plan = Plan::new(problem, workspace(u.len(), states, y.len()));
        let mut segments: Vec<_> = problem.segments.list.iter().filter(|s| s.len() > 0).copied().collect();
        segments.sort_unstable_by_key(|s| (s.batch, s.start));
        Context { problem, plan, level, width, input, output, segments, element: PhantomData }
    }

    /// Real numbers in a row of states.
    fn state_len(&self) -> usize {
        self.input.to.len()
    }

    /// Elements of a tile of real vectors.
    fn tile_len(&self) -> usize {
        self.problem.seqlen.min(STEPS).next_multiple_of(MAX_LANES) * self.width
    }

    /// Segments that have steps in a tile.
    fn segments_in(&self, tile: &plan::Tile) -> &[Segment] {
        let first = self.segments.partition_point(|s| (s.batch, s.end) <= (tile.batch, tile.start));
        let end = self.segments.partition_point(|s| (s.batch, s.start) < (tile.batch, tile.end));
        &self.segments[first..end]
    }
}

/// Segments without steps: those whose states are there before the scan, and those that go on from one that it leaves, as a piece of a sequence does.
fn without_steps<'s>(problem: &'s Problem<'_>) -> [Vec<&'s Segment>; 2] {
    let (list, mut left, mut parts) = (&problem.segments.list, HashSet::new(), [Vec::new(), Vec::new()]);
    if list.iter().all(|segment| segment.len() > 0) {
        return parts;
    }
    for segment in list {
        if segment.len() > 0 {
            left.extend(segment.last);
        } else {
            parts[usize::from(segment.initial.is_some_and(|state| left.contains(&state)))].push(segment);
        }
    }
    parts
}

/// Such segments hand a state on as it is.
fn pass_on(problem: &Problem<'_>, segments: &[&Segment], from: &Option<View<'_>>, to: &Option<RawViewMut>, forward: bool) {
    let Some(to) = to else { return };
    for segment in segments {
        let (source, target) = if forward { (segment.initial, segment.last) } else { (segment.last, segment.initial) };
        let Some((row, sequence)) = target else { continue };
        let to = to.index(0, row).index(0, sequence);
        for n in 0..problem.dstate {
            let value = match (from, source) {
                (Some(from), Some((row, sequence))) => from.at(&[row, sequence, n]),
                _ => num_complex::Complex64::ZERO,
            };
            to.write(to.strides()[0] * n as isize, value);
        }
    }
}
