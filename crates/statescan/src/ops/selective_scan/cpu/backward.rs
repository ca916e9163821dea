//! The backward pass: tiles of time from last to first, each walked forwards once to recompute its states and backwards once for the
//! gradients.
//!
//! A long row is walked in windows of many tiles, so that the partial gradients of B and C of one window stay in the cache until they are
//! added. Where channels are so few that a range has all of its group, there are none, and threads share rows tile by tile.
//!
//! Gradients of B and C sum over channels: they are gathered as vectors for all blocks of a job's channels, reduced over lanes once a tile,
//! and the ranges of channels are added at the end, always in the same order. Gradients of per-channel parameters gather likewise over
//! the job's segments.

use super::super::Problem;
use super::forward::forward;
use super::here::{Here, double};
use super::inputs::Sizes;
use super::kept::KeptOfBlocks;
use super::lanes::Lanes;
use super::reduce::{Partials, SharedPartials};
use super::scratch::Scratch;
use super::wavefront::{Walker, Wavefront};
use super::{Context, GradientTargets, Pass, Plan, Sources, Targets, Types};
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::PlaneMut;
use crate::cpu::{Arena, Array, Divided, Kernel};
use crate::exec::Exec;
use crate::ops::CHECKPOINT;
use crate::ops::rules::FieldKind;
use core::ops::Range;

pub(super) struct BackwardPass<'p, 'a> {
    pub exec: &'p Exec,
    pub problem: &'p Problem<'a>,
    pub sources: &'p Sources<'p>,
    pub targets: &'p GradientTargets,
}

impl Pass for BackwardPass<'_, '_> {
    fn run<E: Types>(self) {
        let BackwardPass { exec, problem, sources, targets } = self;
        let context = &Context::new(exec, problem, Plan::backward);
        let (mut own, len) = (Vec::<E::T>::new(), context.checkpoints.len);
        let saved = match &sources.checkpoints {
            Some(view) if len > 0 => Array::<E::T>::of_view(view).shared(0, len),
            Some(_) => &[],
            None => {
                own.resize(len, E::T::default());
                let nothing = Targets { y: None, final_state: None, checkpoints: None, workspace: None };
                let context = Context::new(exec, problem, Plan::forward);
                forward::<E>(exec, &context, &nothing, Some(Divided::of(&mut own)));
                own.as_slice()
            }
        };
        let mut partials = Partials::<E::T>::new(exec, context, targets);
        let pass = Jobs::<E> { context, sources, targets, saved, sizes: Sizes::new::<E>(context) };
        match context.plan.wavefront {
            true => pass.in_a_wavefront(exec, &partials.share()),
            false => pass.in_windows(exec, &mut partials),
        }
        partials.finish_channels(exec, context, targets);
    }
}

/// The inputs and targets that the jobs of one pass share.
pub(super) struct Jobs<'p, 'a, E: Types> {
    pub context: &'p Context<'p, 'a>,
    pub sources: &'p Sources<'p>,
    pub targets: &'p GradientTargets,
    /// The states before every tile of a segment but the first.
    pub saved: &'p [E::T],
    sizes: Sizes,
}

/// The memory in which jobs leave their results.
struct Left<'l, T> {
    partials: &'l SharedPartials<'l, T>,
    /// For themselves, from window to window; none where every job is run once, and a thread's own memory serves one after the other.
    kept: &'l [KeptOfBlocks<'l, T>],
}

/// The part of a job that runs at once.
struct Part<'w> {
    job: usize,
    /// The steps that are walked.
    window: Range<usize>,
    /// Set where other threads walk other tiles of the row at the same time; the window is one tile then.
    walker: Option<Walker<'w>>,
    /// Tiles from one that is walked here to the next one.
    ahead: usize,
}

impl<'p, 'a, E: Types> Jobs<'p, 'a, E> {
    /// Runs every job for one window after the other, from the last one; after each, partial gradients of B and C are added.
    fn in_windows(&self, exec: &Exec, partials: &mut Partials<'_, E::T>) {
        let Context { problem, plan, .. } = self.context;
        let seqlen = problem.seqlen.max(1);
        let mut memory = Self::memory(if plan.window < seqlen { plan.jobs() } else { 0 });
        let kept = &self.keep(&mut memory);
        for start in (0..seqlen).step_by(plan.window).rev() {
            let window = start..problem.seqlen.min(start + plan.window);
            let left = &Left { partials: &partials.share(), kept };
            exec.for_each(plan.jobs(), Default::default, |arenas, job| {
                self.run(arenas, left, Part { job, window: window.clone(), walker: None, ahead: 1 });
            });
            if !plan.whole_groups {
                partials.finish_maps(exec, self.context, self.targets, window);
            }
        }
        memory.iter_mut().for_each(Arena::check);
    }

    /// Runs jobs tile by tile, every tile on the next thread that is free.
    fn in_a_wavefront(&self, exec: &Exec, partials: &SharedPartials<'_, E::T>) {
        let Context { problem, plan, .. } = self.context;
        let (jobs, tiles, threads) = (plan.jobs(), problem.seqlen.max(1).div_ceil(CHECKPOINT), exec.threads());
        let mut memory = Self::memory(jobs);
        let left = &Left { partials, kept: &self.keep(&mut memory) };
        let front = &Wavefront::new([jobs, tiles], threads, [self.sizes.blocks, self.context.counted()]);
        exec.for_each(threads.min(jobs * tiles), Default::default, |arenas, _| {
            front.for_each(|job, tile, walker| {
                let start = (tiles - 1 - tile) * CHECKPOINT;
                let window = start..problem.seqlen.min(start + CHECKPOINT);
                // this thread will walk about that one next
                self.run(arenas, left, Part { job, window, walker: Some(walker), ahead: threads.div_ceil(jobs) });
            });
        });
        memory.iter_mut().for_each(Arena::check);
    }

    /// Memory for so many jobs.
    fn memory(jobs: usize) -> Vec<Arena<E::T>> {
        (0..jobs).map(|_| Arena::default()).collect()
    }

    /// Lays out what jobs keep.
    fn keep<'m>(&self, memory: &'m mut [Arena<E::T>]) -> Vec<KeptOfBlocks<'m, E::T>> {
        memory.iter_mut().map(|arena| self.lay_out_kept(arena)).collect()
    }

    fn lay_out_kept<'m>(&self, arena: &'m mut Arena<E::T>) -> KeptOfBlocks<'m, E::T> {
        arena.lay_out(|room| KeptOfBlocks::lay_out(room, self.context.problem, self.sizes))
    }

    fn run(&self, [scratch, own]: &mut [Arena<E::T>; 2], left: &Left<'_, E::T>, part: Part<'_>) {
        let Part { job, window, walker, ahead } = part;
        let kept = match left.kept.get(job) {
            // SAFETY: a job is run for one window after the other, and threads that walk tiles of one wait for each other (see `Walker`).
            Some(kept) => unsafe { kept.in_turns() },
            None => self.lay_out_kept(own),
        };
        let partials = left.partials;
        scratch.lend(
            |room| Scratch::lay_out(room, self.context.problem, self.sizes, E::K::PARTS),
            |scratch| self.context.level.dispatch(Job { pass: self, partials, job, window, walker, ahead, kept, scratch }),
        );
        own.check();
    }
}

impl Context<'_, '_> {
    /// Returns the count of a block when a walker is done with it: its vectors of states, and one more after all sums over states
    /// have been used.
    pub(super) fn counted(&self) -> usize {
        self.problem.dstate / self.plan.lanes_per_channel + 1
    }
}

/// One job in a window, see [`Part`].
pub(super) struct Job<'j, 'p, 'a, E: Types> {
    pub pass: &'j Jobs<'p, 'a, E>,
    pub partials: &'j SharedPartials<'j, E::T>,
    job: usize,
    window: Range<usize>,
    pub walker: Option<Walker<'j>>,
    pub ahead: usize,
    pub kept: KeptOfBlocks<'j, E::T>,
    pub scratch: Scratch<'j, E::T>,
}

/// A tile of a job: the numbers of its segment, of itself in that, and of the range of channels.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub segment: usize,
    pub number: usize,
    pub range: usize,
}

impl<E: Types> Kernel for Job<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Context { problem, plan, .. } = self.pass.context;
        let (segments, range) = plan.job(self.job);
        let lanes = Lanes::new(E::T::lanes::<S>(), plan.lanes_per_channel);
        let is_first = self.window.end == problem.seqlen;
        if let Some(walker) = self.walker.as_mut().filter(|_| !is_first) {
            walker.wait_for_row();
        }
        if is_first {
            self.begin(simd, lanes, &plan.channels[range]);
        }
        for index in plan.segments[segments].clone() {
            self.segment(simd, lanes, range, index);
        }
        if self.window.start == 0 {
            self.finish(simd, lanes, segments, range);
        }
    }
}

impl<E: Types> Job<'_, '_, '_, E> {
    /// Loads the parameters of all blocks and clears what is gathered.
    #[inline(always)]
    fn begin<S: Isa>(&mut self, simd: S, lanes: Lanes, channels: &Range<usize>) {
        let problem = self.pass.context.problem;
        let state = problem.dstate * E::K::PARTS * lanes.channels;
        for (i, block) in super::plan::blocks(channels.clone(), lanes.channels).enumerate() {
            let parameters = self.kept.parameters.of_mut(i);
            parameters.load::<E, S>(simd, lanes, problem, block, &mut self.scratch.staging);
            self.kept.of(i).clear(state, E::T::lanes::<S>());
        }
        if let Some(walker) = &self.walker {
            walker.done(0);
        }
    }

    /// The tiles of a segment that lie in the window.
    #[inline(always)]
    fn segment<S: Isa>(&mut self, simd: S, lanes: Lanes, range: usize, index: usize) {
        let Context { problem, plan, .. } = self.pass.context;
        let (segment, channels) = (&problem.segments.list[index], &plan.channels[range]);
        let at = |start| Here::new(problem, segment, channels, lanes, start);
        let end = self.window.end.min(segment.len());
        if self.window.end == problem.seqlen {
            for (i, here) in at(segment.start).each_block().enumerate() {
                let state = (&self.pass.sources.final_state, segment.last);
                here.load_state::<E, S>(simd, state, self.kept.of(i).g, &mut self.scratch.staging);
            }
        }
        for number in (self.window.start / CHECKPOINT..end.div_ceil(CHECKPOINT)).rev() {
            self.tile(simd, at(segment.start + number * CHECKPOINT), At { segment: index, number, range });
        }
        let target = self.pass.targets.initial_state.filter(|_| self.window.start == 0);
        if let (Some(target), Some((row, sequence))) = (target, segment.initial) {
            let strides = target.strides();
            let plane = PlaneMut::of(&target, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
            for (i, here) in at(segment.start).each_block().enumerate() {
                let to = plane.at(here.block.first, 0).area(here.block.count, problem.dstate);
                lanes.store_states(simd, self.kept.of(i).g.read(), E::K::PARTS, to, &mut self.scratch.staging);
            }
        }
    }

    /// Leaves what was gathered for the parameters of all blocks.
    #[inline(always)]
    fn finish<S: Isa>(&mut self, _simd: S, lanes: Lanes, segments: usize, range: usize) {
        let Context { problem, plan, .. } = self.pass.context;
        let (sizes, staging) = ([problem.dstate, E::K::PARTS], &mut self.scratch.staging);
        for (i, block) in super::plan::blocks(plan.channels[range].clone(), lanes.channels).enumerate() {
            let mut kept = self.kept.of(i);
            if E::K::PARTS == 2 {
                // the output is 2 Re(C h), and the sweep counts it once
                double(kept.dc.slice(0, sizes[0] * sizes[1] * lanes.channels));
            }
            [&mut kept.dd, &mut kept.dbias].into_iter().for_each(|sums| lanes.sum_steps(sums));
            let states = [(kept.da.read(), 0), (kept.db.read(), 1), (kept.dc.read(), 2)];
            states.iter().for_each(|&(from, copy)| lanes.collect(from, sizes, copy, staging));
            let states = states.map(|(from, copy)| lanes.collected(from, sizes, copy, staging.read()));
            let vectors = [kept.dd.read(), kept.dbias.read()];
            self.partials.store_channels(segments, block, lanes.channels, states, vectors);
        }
    }
}
