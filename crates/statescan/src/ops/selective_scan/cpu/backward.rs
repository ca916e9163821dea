//! The backward pass: tiles of time from last to first, each walked forwards once to recompute its states and backwards once for the
//! gradients.
//!
//! A long row is walked in windows of many tiles, so that the partial gradients of B and C of one window stay in the cache until they are
//! added. Where channels are so few that a range has all of its group, there are none, and threads share rows tile by tile.
//!
//! Gradients of B and C sum over channels: they are gathered as vectors for all blocks of a job's channels, reduced over lanes once a tile,
//! and the ranges of channels are added at the end, always in the same order. Gradients of per-channel parameters gather likewise over
//! the job's segments.

use super::super::{Problem, Projection};
use super::forward::{ForwardPass, load_sequence_state, load_state};
use super::inputs::{Ahead, Constants, CopyRows, Map, Scratch, Tiles, double, map_area, map_tile, tile_len, timed};
use super::kept::{KEPT, Kept, begin, kept_lens, most_blocks};
use super::lanes::{Lanes, scratch_len};
use super::plan::{Block, blocks};
use super::process::{Gate, load_gate, load_tiles, loading};
use super::reduce::Partials;
use super::sweep::{AHEAD, STORED, Sweep};
use super::wavefront::{Turn, Wavefront};
use super::{Context, GradientTargets, Pass, Plan, Sources, Targets, Types, walk};
use crate::cpu::Kernel;
use crate::cpu::Shared;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Area, Plane, Prefetch};
use crate::exec::Exec;
use crate::ops::CHECKPOINT;
use crate::ops::discretization::Discretization;
use crate::ops::rules::FieldKind;
use crate::ops::sequences::Segment;
use crate::tensor::RawViewMut;
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
        let mut own = Vec::<E::T>::new();
        let saved = match &sources.checkpoints {
            Some(view) => view.as_ptr().cast::<E::T>(),
            None => {
                own.resize(context.checkpoints.len, E::T::default());
                let nothing = Targets { y: None, final_state: None, checkpoints: None, workspace: None };
                let checkpoints = Some(own.as_mut_ptr().cast::<u8>());
                ForwardPass { exec, problem, targets: &nothing, checkpoints }.run::<E>();
                own.as_ptr()
            }
        };
        let saved = Shared::new(saved.cast_mut());
        let partials = &mut Partials::<E::T>::new(exec, context, targets);
        let shared = partials.share();
        let (plan, seqlen, level) = (&context.plan, problem.seqlen.max(1), context.level);
        let (jobs, lens) = (plan.jobs(), kept_lens::<E>(context));
        // where every job is run once, a thread's own memory serves one after the other
        let several = plan.wavefront || plan.window < seqlen;
        let mut memory: Vec<Scratch<E::T>> = (0..if several { jobs } else { 0 }).map(|_| Scratch::new()).collect();
        let kept: Vec<_> = memory.iter_mut().map(|memory| memory.carve(lens).map(Shared::new)).collect();
        let run =
            |[scratch, own]: &mut [Scratch<E::T>; 2], job: usize, window: Range<usize>, turn: Option<Turn<'_>>, ahead: usize| {
                let kept = kept.get(job).copied().unwrap_or_else(|| own.carve(lens).map(Shared::new));
                let partials = shared;
                level.dispatch(Job::<E> { context, sources, targets, saved, partials, window, job, kept, turn, ahead, scratch });
            };
        if plan.wavefront {
            let tiles = seqlen.div_ceil(CHECKPOINT);
            let threads = exec.threads();
            let front = &Wavefront::new([jobs, tiles], threads, most_blocks(context) * counted(context));
            exec.for_each(threads.min(jobs * tiles), Default::default, |scratch, _| {
                front.for_each(|job, tile, turn| {
                    let start = (tiles - 1 - tile) * CHECKPOINT;
                    let window = start..problem.seqlen.min(start + CHECKPOINT);
                    // this thread will walk about that one next
                    run(scratch, job, window, Some(turn), threads.div_ceil(jobs));
                });
            });
        } else {
            for start in (0..seqlen).step_by(plan.window).rev() {
                let window = start..problem.seqlen.min(start + plan.window);
                exec.for_each(jobs, Default::default, |scratch, job| run(scratch, job, window.clone(), None, 1));
                if !plan.whole_groups {
                    partials.finish_maps(exec, context, targets, window);
                }
            }
        }
        partials.finish_channels(exec, context, targets);
    }
}

struct Job<'j, 'c, 'a, E: Types> {
    context: &'j Context<'c, 'a>,
    sources: &'j Sources<'j>,
    targets: &'j GradientTargets,
    saved: Shared<E::T>,
    partials: super::reduce::SharedPartials<E::T>,
    /// The steps that are walked now.
    window: Range<usize>,
    job: usize,
    /// What a job keeps from window to window, see [`kept_lens`].
    kept: [Shared<E::T>; KEPT],
    /// Set where other threads walk other tiles of the row at the same time; the window is one tile then.
    turn: Option<Turn<'j>>,
    /// Tiles from one that is walked here to the next one.
    ahead: usize,
    scratch: &'j mut Scratch<E::T>,
}

/// What a turn counts in a block: vectors of states, and that all that is summed over states has been used.
fn counted(context: &Context<'_, '_>) -> usize {
    context.problem.dstate / context.plan.lanes_per_channel + 1
}

impl<E: Types> Kernel for Job<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Context { problem, plan, .. } = self.context;
        let (width, dstate) = (E::T::lanes::<S>(), problem.dstate);
        let per_channel = plan.lanes_per_channel;
        let (sizes, state) = ([dstate, E::K::PARTS], dstate / per_channel * E::K::PARTS * width);
        let (segments, range) = plan.job(self.job);
        let channels = plan.channels[range].clone();
        let [a, b, c, g, da, db, dc, dd, dbias, constants] = self.kept.map(Shared::get);
        let [scratch, h, rest] = self.scratch.carve([scratch_len(width, per_channel, state), state, rest_len::<E, S>(dstate)]);
        let (first, last) = (self.window.end == problem.seqlen, self.window.start == 0);
        let lanes = Lanes::new(width, per_channel, scratch);
        if let Some(turn) = self.turn.as_mut().filter(|_| !first) {
            turn.wait_for_row();
        }
        // SAFETY: the arrays were carved for all blocks; jobs own disjoint channels or segments of targets and partials, and where they are
        // walked by several threads, those take turns.
        unsafe {
            let kept = |i: usize| Kept {
                a: a.add(i * state),
                b: b.add(i * state),
                c: c.add(i * state),
                g: g.add(i * state),
                da: da.add(i * state),
                db: db.add(i * state),
                dc: dc.add(i * state),
                dd: dd.add(i * width),
                dbias: dbias.add(i * width),
                constants: Constants::at::<S>(constants, i),
            };
            for (i, block) in blocks(channels.clone(), lanes.channels).enumerate().filter(|_| first) {
                begin::<E, S>(simd, lanes, problem, block, &kept(i));
                kept(i).clear([state, width]);
            }
            if let Some(turn) = self.turn.as_ref().filter(|_| first) {
                turn.done(0);
            }
            for index in plan.segments[segments].clone() {
                let segment = &problem.segments.list[index];
                for (i, block) in blocks(channels.clone(), lanes.channels).enumerate().filter(|_| first) {
                    let final_state = &self.sources.final_state;
                    load_sequence_state(simd, lanes, final_state, segment.last, block, sizes, kept(i).g);
                }
                let end = self.window.end.min(segment.len());
                for number in (self.window.start / CHECKPOINT..end.div_ceil(CHECKPOINT)).rev() {
                    self.tile::<S>(simd, lanes, index, number, range, &kept, h, rest);
                }
                if let (true, Some(target), Some((row, sequence))) = (last, &self.targets.initial_state, segment.initial) {
                    let strides = target.strides();
                    let plane = Plane::of_mut(target, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
                    for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                        lanes.store_states(simd, kept(i).g, sizes, plane.at(block.first, 0), block);
                    }
                }
            }
            for (i, block) in blocks(channels, lanes.channels).enumerate().filter(|_| last) {
                let kept = kept(i);
                if E::K::PARTS == 2 {
                    // the output is 2 Re(C h), and the sweep counts it once
                    double(kept.dc, state);
                }
                let states = [(kept.da, 0), (kept.db, 1), (kept.dc, 2)];
                let states = states.map(|(from, copy)| lanes.collect(from, sizes, copy));
                let vectors = [kept.dd, kept.dbias].map(|sums| lanes.sum_steps(sums));
                self.partials.store_channels(segments, block, lanes.channels, states, vectors);
            }
        }
    }
}

impl<E: Types> Job<'_, '_, '_, E> {
    /// What a block of channels writes, and what is read after it.
    #[inline(always)]
    fn ahead(
        &self,
        index: usize,
        channels: &Range<usize>,
        block: Block,
        width: usize,
        number: usize,
        range: usize,
        prefetch: &mut Prefetch<AHEAD>,
    ) {
        let (Context { problem, plan, checkpoints, .. }, targets) = (self.context, self.targets);
        let segment = &problem.segments.list[index];
        let at = |number: usize| segment.start + number * CHECKPOINT;
        let (here, following) = (Ahead::at(segment, block, at(number)), number.checked_sub(self.ahead));
        for target in [&targets.x, &targets.dt, &targets.dt_a, &targets.z].into_iter().flatten() {
            prefetch.add(here.area(&target.as_read()));
        }
        let last = block.first + width >= channels.end;
        if last {
            for target in [&targets.b, &targets.c].into_iter().filter(|_| plan.whole_groups) {
                if let Some(Projection::Varying(target)) = target {
                    let plane = map_target(target, segment, range, at(number));
                    prefetch.add(Area { plane, lanes: problem.dstate, steps: CHECKPOINT.min(segment.end - at(number)) });
                }
            }
            for map in [&problem.b, &problem.c] {
                let area = following.and_then(|number| map_area(problem, map, segment, channels.start, at(number)));
                area.into_iter().for_each(|area| prefetch.add(area));
            }
        }
        let Some(next) = Ahead::new(segment, channels, block, width, at(number), following.map(at)) else { return };
        if let Some(number) = if last { following } else { Some(number) }.filter(|&number| number > 0) {
            let from = self.saved.get().wrapping_add(checkpoints.at(index, number) + next.block.first);
            prefetch.add_rows(from, checkpoints.padded_dim, problem.dstate * E::K::PARTS, next.block.count);
        }
        let inputs = [Some(&problem.x), Some(&problem.dt), problem.dt_a.as_ref(), self.sources.y.as_ref(), problem.z.as_ref()];
        inputs.into_iter().flatten().for_each(|view| prefetch.add(next.area(view)));
    }

    /// One tile of time of all channels of the job.
    ///
    /// # Safety
    /// `kept` has the arrays of every block, `h` has room for the states of one and `rest` for [`rest_len`].
    #[inline(always)]
    unsafe fn tile<S: Isa>(
        &mut self,
        simd: S,
        lanes: Lanes<E::T>,
        index: usize,
        number: usize,
        range: usize,
        kept: &impl Fn(usize) -> Kept<E::T>,
        h: *mut E::T,
        rest: *mut E::T,
    ) {
        let Context { problem, plan, checkpoints, .. } = self.context;
        let (width, parts, dstate) = (E::T::lanes::<S>(), E::K::PARTS, problem.dstate);
        let channels = plan.channels[range].clone();
        let segment = &problem.segments.list[index];
        let start = segment.start + number * CHECKPOINT;
        let steps = CHECKPOINT.min(segment.end - start);
        let shared = problem.dt_a.is_none();
        let tile = tile_len(width);
        // the loops over steps read and write arrays at distances that are known when they are compiled, so that one pointer is enough
        let wide = |i: usize| rest.wrapping_add(i * tile);
        let [wide_dt, wide_u, wide_p, wide_y, by_u, by_dt] = [0, 1, 2, 3, 4, 5].map(wide);
        let (wide_dt_a, by_dt_a) = if shared { (wide_dt, by_dt) } else { (wide(6), wide(7)) };
        let stored = wide(8);
        let pending = stored.wrapping_add(stored_len::<E, S>());
        let longest = pending.wrapping_add(pending_len::<E, S>());
        // what is not repeated over a channel's lanes takes so much less
        let narrow = tile / plan.lanes_per_channel;
        let array = |i: usize| longest.wrapping_add(width + i * narrow);
        let [x, slope, gate, gate_slope, cotangent] = [0, 1, 2, 3, 4].map(array);
        // the sweep's tiles have each channel repeated over its lanes
        let own = |i: usize, wide| if lanes.one() { wide } else { array(5 + i) };
        let [dt, u, p, y] = [(0, wide_dt), (1, wide_u), (2, wide_p), (3, wide_y)].map(|(i, wide)| own(i, wide));
        let (du, ddt) = (own(4, by_u), own(5, by_dt));
        let (dt_a, ddt_a) = if shared { (dt, ddt) } else { (own(6, wide_dt_a), own(7, by_dt_a)) };
        let scalars = array(13);
        let (b_tile, c_tile) = (scalars, scalars.wrapping_add(tile::STEPS * parts * dstate));
        let sums = scalars.wrapping_add(2 * tile::STEPS * parts * dstate);
        let (db_sum, dc_sum) = (sums, sums.wrapping_add(tile::STEPS * dstate * parts));
        let tiles = Tiles { x, dt, dt_a, u, slope, y, longest };
        let wide = Tiles { x, dt: wide_dt, dt_a: wide_dt_a, u: wide_u, slope, y: wide_y, longest };
        let scaled = problem.options.discretization != Discretization::Dirac;
        // SAFETY: every array lies inside `rest`, which is as long as `rest_len` says; planes lie inside checked views.
        unsafe {
            map_tile::<E, S>(simd, problem, &problem.b, segment, channels.start, start, steps, lanes.per_channel, b_tile);
            map_tile::<E, S>(simd, problem, &problem.c, segment, channels.start, start, steps, lanes.per_channel, c_tile);
            if parts == 2 {
                double(c_tile, steps * parts * dstate);
            }
            core::slice::from_raw_parts_mut(sums, 2 * tile::STEPS * dstate * parts).fill(E::T::default());
            for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                let kept = kept(i);
                if number == 0 {
                    load_state::<E, S>(simd, lanes, problem, segment, block, h);
                } else {
                    let from = self.saved.get().add(checkpoints.at(index, number) + block.first);
                    let to = lanes.undealt(h);
                    core::slice::from_raw_parts_mut(to, dstate * parts * lanes.channels).fill(E::T::default());
                    CopyRows {
                        from,
                        from_pitch: checkpoints.padded_dim,
                        to,
                        to_pitch: lanes.channels,
                        rows: dstate * parts,
                        count: block.count,
                    }
                    .run(simd);
                    lanes.deal(to, [dstate, parts], h);
                }
                let vectors = dstate / lanes.per_channel;
                let mut prefetch = Prefetch::new();
                self.ahead(index, &channels, block, lanes.channels, number, range, &mut prefetch);
                prefetch.spread(loading(lanes.vectors(steps), problem.z.is_some()) + Sweep::<E::T>::work(vectors, steps));
                load_tiles::<_, _, true, _>(
                    simd,
                    problem,
                    segment,
                    lanes,
                    block,
                    start,
                    steps,
                    kept.constants,
                    &tiles,
                    &mut prefetch,
                );
                let bounded = tiles.bounded(simd, kept.constants);
                match &self.sources.y {
                    Some(dy) => {
                        let plane = timed(dy, segment.batch, block, start);
                        lanes.load(simd, plane, block.count, steps, cotangent);
                    }
                    None => core::slice::from_raw_parts_mut(cotangent, lanes.vectors(steps) * width).fill(E::T::default()),
                }
                if let Some(z) = &problem.z {
                    load_gate(simd, z, segment, lanes, block, start, steps, gate, Gate::Differentiate(gate_slope), &mut prefetch);
                }
                let skip = kept.constants.skip(simd);
                for vector in 0..lanes.vectors(steps) {
                    let at = vector * width;
                    let mut dout = V::load(simd, cotangent.add(at));
                    if problem.z.is_some() {
                        dout = dout * V::load(simd, gate.add(at));
                    }
                    dout.store(p.add(at));
                }
                let rows = lanes.vectors(steps) * lanes.per_channel;
                for sums in [Some(by_u), Some(by_dt), (!shared).then_some(by_dt_a)].into_iter().flatten() {
                    core::slice::from_raw_parts_mut(sums, rows * width).fill(E::T::default());
                }
                if !lanes.one() {
                    tiles.repeat(simd, lanes, steps, &wide);
                    lanes.repeat(simd, p, steps, wide_p);
                    core::slice::from_raw_parts_mut(wide_y, rows * width).fill(E::T::default());
                }
                let sweep = Sweep {
                    tiles: wide,
                    shared,
                    a: kept.a,
                    b: Map::new::<E, _>(&problem.b, b_tile, kept.b, lanes, dstate),
                    c: Map::new::<E, _>(&problem.c, c_tile, kept.c, lanes, dstate),
                    h,
                    g: kept.g,
                    p: wide_p,
                    du: by_u,
                    ddt: by_dt,
                    ddt_a: by_dt_a,
                    da: kept.da,
                    db: if let Projection::Varying(_) = problem.b { db_sum } else { kept.db },
                    dc: if let Projection::Varying(_) = problem.c { dc_sum } else { kept.dc },
                    stored,
                    pending,
                    steps,
                    dstate,
                    lanes,
                    prefetch: &raw mut prefetch,
                    turn: &raw mut self.turn,
                    counted: i * counted(self.context),
                };
                walk::<E, S>(simd, problem, lanes.per_channel, bounded, &sweep);
                let end = (i + 1) * counted(self.context);
                if let Some(turn) = &mut self.turn {
                    turn.wait(end);
                }
                let (mut dd, mut dbias) = (V::load(simd, kept.dd), V::load(simd, kept.dbias));
                for vector in 0..lanes.vectors(steps) {
                    let at = vector * width;
                    let (x, dt, dout) = (V::load(simd, x.add(at)), V::load(simd, dt.add(at)), V::load(simd, p.add(at)));
                    let (by_u, mut by_dt) = (lanes.summed(simd, by_u, vector), lanes.summed(simd, by_dt, vector));
                    let mut by_x = dout * skip;
                    if scaled {
                        by_x = by_u.mul_add(dt, by_x);
                        by_dt = by_u.mul_add(x, by_dt);
                    } else {
                        by_x = by_x + by_u;
                    }
                    let by_raw = by_dt * V::load(simd, slope.add(at));
                    dd = dout.mul_add(x, dd);
                    dbias = dbias + by_raw;
                    by_x.store(du.add(at));
                    by_raw.store(ddt.add(at));
                    if self.targets.z.is_some() {
                        let mut out = V::load(simd, y.add(at));
                        if !lanes.one() {
                            out = out + lanes.summed(simd, wide_y, vector);
                        }
                        (V::load(simd, cotangent.add(at)) * out * V::load(simd, gate_slope.add(at))).store(y.add(at));
                    }
                    if !shared {
                        lanes.summed(simd, by_dt_a, vector).store(ddt_a.add(at));
                    }
                }
                dd.store(kept.dd);
                dbias.store(kept.dbias);
                if let Some(turn) = &self.turn {
                    turn.done(end);
                    if block.first + lanes.channels >= channels.end {
                        turn.claim_next();
                    }
                }
                let results = [(&self.targets.x, du), (&self.targets.dt, ddt), (&self.targets.dt_a, ddt_a), (&self.targets.z, y)];
                for (target, from) in results {
                    let Some(target) = target else { continue };
                    let plane = timed(&target.as_read(), segment.batch, block, start);
                    lanes.store(simd, from, plane, block.count, steps);
                }
            }
            if plan.whole_groups {
                if parts == 2 {
                    double(dc_sum, tile::STEPS * dstate * parts);
                }
                for (target, sum) in [(&self.targets.b, db_sum), (&self.targets.c, dc_sum)] {
                    let Some(Projection::Varying(target)) = target else { continue };
                    // steps and states exchanged
                    let plane = map_target(target, segment, range, start).transposed();
                    tile::store_parts(simd, sum, parts, tile::STEPS, plane, steps, dstate);
                }
                return;
            }
            let double_c = if parts == 2 { 2.0 } else { 1.0 };
            for (partial, sum, factor) in [(&self.partials.b, db_sum, 1.0), (&self.partials.c, dc_sum, double_c)] {
                let Some(partial) = partial else { continue };
                for row in 0..dstate * parts {
                    let to = partial.get().add(self.partials.map_position(range, segment.batch, row, start));
                    for t in 0..steps {
                        *to.add(t) = *sum.add(row * tile::STEPS + t) * E::T::from_f64(factor);
                    }
                }
            }
        }
    }
}

/// The gradient of B or C of a group, from a step on: states x steps.
fn map_target(target: &RawViewMut, segment: &Segment, group: usize, start: usize) -> Plane {
    let strides = target.strides();
    Plane::of_mut(target, 2, 3).along(segment.batch, strides[0]).along(group, strides[1]).at(0, start)
}

/// States before each step, decays, and the states after the last step.
fn stored_len<E: Types, S: Isa>() -> usize {
    let (width, parts) = (E::T::lanes::<S>(), E::K::PARTS);
    2 * STORED * parts * tile_len(width) + STORED * parts * width
}

/// Gradients by B and C of `STORED` states and a vector of steps.
fn pending_len<E: Types, S: Isa>() -> usize {
    2 * STORED * E::K::PARTS * E::T::lanes::<S>().pow(2)
}

/// Length of the arrays that a tile needs besides those kept for a job.
fn rest_len<E: Types, S: Isa>(dstate: usize) -> usize {
    let (width, parts) = (E::T::lanes::<S>(), E::K::PARTS);
    (13 + 8) * tile_len(width) + width + stored_len::<E, S>() + pending_len::<E, S>() + 4 * tile::STEPS * parts * dstate
}
