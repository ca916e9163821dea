//! The backward pass: tiles of time from last to first, each walked forwards once to recompute its states and backwards once for the
//! gradients.
//!
//! A long row is walked in windows of many tiles, so that the partial gradients of B and C of one window stay in the cache until they are
//! added.
//!
//! Gradients of B and C sum over channels: they are gathered as vectors for all blocks of a job's channels, reduced over lanes once a tile,
//! and the ranges of channels are added at the end, always in the same order. Gradients of per-channel parameters gather likewise over
//! the job's segments.

use super::super::{CHECKPOINT, Problem, Projection};
use super::forward::{ForwardPass, load_sequence_state, load_state, map};
use super::inputs::{
    Ahead, Block, Constants, CopyRows, Scratch, Tiles, blocks, double, map_tile, parameter, prefetch_map, tile_len, timed,
};
use super::lanes::{Lanes, scratch_len};
use super::process::{Gate, load_gate, load_tiles};
use super::reduce::Partials;
use super::sweep::Sweep;
use super::{Context, GradientTargets, Pass, Sources, Targets, Types, walk};
use crate::cpu::Kernel;
use crate::cpu::Shared;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Plane, Requests};
use crate::exec::Exec;
use crate::ops::discretization::Discretization;
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
        // what jobs would hand each other costs more than the second one brings
        let context = &Context::new(exec, problem, false);
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
        let (seqlen, window) = (problem.seqlen.max(1), context.plan.window);
        // with one window a thread's own memory serves one job after the other
        let mut kept: Vec<_> = (0..if window < seqlen { context.plan.jobs() } else { 0 }).map(|_| Scratch::new()).collect();
        let (count, kept) = (kept.len(), Shared::new(kept.as_mut_ptr()));
        for start in (0..seqlen).step_by(window).rev() {
            let window = start..problem.seqlen.min(start + window);
            exec.for_each(context.plan.jobs(), <[Scratch<E::T>; 2]>::default, |[scratch, own], job| {
                // SAFETY: a job is run once in a window.
                let kept = if count == 0 { own } else { unsafe { &mut *kept.get().add(job) } };
                let window = window.clone();
                context.level.dispatch(Job::<E> {
                    context,
                    sources,
                    targets,
                    saved,
                    partials: shared,
                    window,
                    job,
                    kept,
                    scratch,
                });
            });
            partials.finish_maps(exec, context, targets, window);
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
    /// What a job keeps from window to window.
    kept: &'j mut Scratch<E::T>,
    scratch: &'j mut Scratch<E::T>,
}

/// The arrays of one block of channels that stay for a whole job.
struct Kept<T> {
    a: *mut T,
    /// B and C where they are constant.
    b: *mut T,
    c: *mut T,
    /// States before the tile, and the gradient by them that is carried from tile to tile.
    h: *mut T,
    g: *mut T,
    /// Gathered gradients: by A, by constant B and C, by D and the bias (one vector each).
    da: *mut T,
    db: *mut T,
    dc: *mut T,
    dd: *mut T,
    dbias: *mut T,
    constants: Constants<T>,
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
        let count = channels.len().div_ceil(width / per_channel);
        let [a, b, c, h, g, da, db, dc, dd, dbias, constants] = self.carve_kept::<S>(per_channel, count);
        let [scratch, rest] = self.scratch.carve([scratch_len(width, per_channel, state), rest_len::<E, S>(dstate)]);
        let (first, last) = (self.window.end == problem.seqlen, self.window.start == 0);
        let lanes = Lanes::new(width, per_channel, scratch);
        // SAFETY: the arrays were carved for `count` blocks; jobs own disjoint channels or segments of targets and partials.
        unsafe {
            let kept = |i: usize| Kept {
                a: a.add(i * state),
                b: b.add(i * state),
                c: c.add(i * state),
                h: h.add(i * state),
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
            }
            for index in plan.segments[segments].clone() {
                let segment = &problem.segments.list[index];
                for (i, block) in blocks(channels.clone(), lanes.channels).enumerate().filter(|_| first) {
                    let final_state = &self.sources.final_state;
                    load_sequence_state(simd, lanes, final_state, segment.last, block, sizes, kept(i).g);
                }
                let end = self.window.end.min(segment.len());
                for number in (self.window.start / CHECKPOINT..end.div_ceil(CHECKPOINT)).rev() {
                    self.tile::<S>(simd, lanes, index, number, range, &kept, rest);
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
    #[inline(always)]
    fn carve_kept<S: Isa>(&mut self, per_channel: usize, blocks: usize) -> [*mut E::T; 11] {
        let (width, dstate) = (E::T::lanes::<S>(), self.context.problem.dstate);
        let (state, vector) = (blocks * dstate / per_channel * E::K::PARTS * width, blocks * width);
        let constants = Constants::<E::T>::COUNT * vector;
        self.kept.carve([state, state, state, state, state, state, state, state, vector, vector, constants])
    }

    /// One tile of time of all channels of the job.
    ///
    /// # Safety
    /// `kept` has the arrays of every block, `rest` room for [`rest_len`].
    #[inline(always)]
    unsafe fn tile<S: Isa>(
        &self,
        simd: S,
        lanes: Lanes<E::T>,
        index: usize,
        number: usize,
        range: usize,
        kept: &impl Fn(usize) -> Kept<E::T>,
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
        let array = |i: usize| rest.wrapping_add(i * tile);
        let [x, dt, u, slope, p, y, gate, gate_slope, du, ddt] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(array);
        let (dt_a, ddt_a) = if shared { (dt, ddt) } else { (array(10), array(11)) };
        let cotangent = array(12);
        // what the sweep reads and writes: the same tiles, or with each channel repeated over its lanes
        let wide = |i: usize, tile| if lanes.one() { tile } else { array(13 + i) };
        let [wide_dt, wide_u, wide_p, wide_y] = [(0, dt), (1, u), (2, p), (3, y)].map(|(i, tile)| wide(i, tile));
        let (by_u, by_dt) = (wide(4, du), wide(5, ddt));
        let (wide_dt_a, by_dt_a) = if shared { (wide_dt, by_dt) } else { (wide(6, dt_a), wide(7, ddt_a)) };
        let longest = array(13 + 8);
        let stored = longest.wrapping_add(width);
        let pending = stored.wrapping_add(stored_len::<E, S>());
        let scalars = pending.wrapping_add(pending_len::<E, S>());
        let (b_tile, c_tile) = (scalars, scalars.wrapping_add(tile::STEPS * parts * dstate));
        let sums = scalars.wrapping_add(2 * tile::STEPS * parts * dstate);
        let (db_sum, dc_sum) = (sums, sums.wrapping_add(tile::STEPS * dstate * parts));
        let tiles = Tiles { x, dt, dt_a, u, slope, y, longest };
        let wide = Tiles { x, dt: wide_dt, dt_a: wide_dt_a, u: wide_u, slope, y: wide_y, longest };
        let scaled = problem.discretization != Discretization::Dirac;
        // SAFETY: every array lies inside `rest`, which is as long as `rest_len` says; planes lie inside checked views.
        unsafe {
            map_tile::<E, S>(simd, problem, &problem.b, segment, channels.start, start, steps, b_tile);
            map_tile::<E, S>(simd, problem, &problem.c, segment, channels.start, start, steps, c_tile);
            if parts == 2 {
                double(c_tile, steps * parts * dstate);
            }
            let following = start.checked_sub(CHECKPOINT).filter(|_| number > 0);
            if let Some(following) = following {
                prefetch_map(problem, &problem.b, segment, channels.start, following);
                prefetch_map(problem, &problem.c, segment, channels.start, following);
            }
            core::slice::from_raw_parts_mut(sums, 2 * tile::STEPS * dstate * parts).fill(E::T::default());
            for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                let kept = kept(i);
                if number == 0 {
                    load_state::<E, S>(simd, lanes, problem, segment, block, kept.h);
                } else {
                    let from = self.saved.get().add(checkpoints.at(index, number) + block.first);
                    let to = lanes.undealt(kept.h);
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
                    lanes.deal(to, [dstate, parts], kept.h);
                }
                load_tiles::<_, _, true>(
                    simd,
                    problem,
                    segment,
                    lanes,
                    block,
                    start,
                    steps,
                    kept.constants,
                    &tiles,
                    &mut Requests::new([None], 1),
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
                    load_gate(simd, z, segment, lanes, block, start, steps, gate, Gate::Differentiate(gate_slope));
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
                for sums in [by_u, by_dt, by_dt_a] {
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
                    b: map(&problem.b, b_tile, kept.b, lanes),
                    c: map(&problem.c, c_tile, kept.c, lanes),
                    h: kept.h,
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
                };
                let ahead = Ahead::new(segment, &channels, block, lanes.channels, start, following);
                if let Some(ahead) = ahead {
                    let read = [Some(&problem.x), Some(&problem.dt), problem.z.as_ref(), self.sources.y.as_ref()];
                    read.into_iter().flatten().for_each(|view| ahead.prefetch(view));
                }
                walk::<E, S>(simd, problem, lanes.one(), bounded, &sweep);
                if !lanes.one() {
                    lanes.sum(simd, by_u, steps);
                    lanes.sum(simd, by_dt, steps);
                    if !shared {
                        lanes.sum(simd, by_dt_a, steps);
                    }
                    lanes.add_sums(simd, wide_y, steps, y);
                }
                let (mut dd, mut dbias) = (V::load(simd, kept.dd), V::load(simd, kept.dbias));
                for vector in 0..lanes.vectors(steps) {
                    let at = vector * width;
                    let (x, dt, dout) = (V::load(simd, x.add(at)), V::load(simd, dt.add(at)), V::load(simd, p.add(at)));
                    let (by_u, mut by_dt) = (V::load(simd, by_u.add(at)), V::load(simd, by_dt.add(at)));
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
                        let by_z =
                            V::load(simd, cotangent.add(at)) * V::load(simd, y.add(at)) * V::load(simd, gate_slope.add(at));
                        by_z.store(y.add(at));
                    }
                }
                dd.store(kept.dd);
                dbias.store(kept.dbias);
                let results =
                    [(&self.targets.x, du), (&self.targets.dt, ddt), (&self.targets.dt_a, by_dt_a), (&self.targets.z, y)];
                for (target, from) in results {
                    let Some(target) = target else { continue };
                    let target = target.as_read();
                    if let Some(ahead) = ahead {
                        ahead.prefetch(&target);
                    }
                    let plane = timed(&target, segment.batch, block, start);
                    lanes.store(simd, from, plane, block.count, steps);
                }
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

/// States walked together, whose values at every step of a tile are kept: the state before the step and the decay.
pub(super) const STORED: usize = 2;

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

/// Loads the parameters of a block and clears what is gathered for them.
///
/// # Safety
/// The arrays have room for the block's states.
#[inline(always)]
unsafe fn begin<E: Types, S: Isa>(simd: S, lanes: Lanes<E::T>, problem: &Problem<'_>, block: Block, kept: &Kept<E::T>) {
    let width = E::T::lanes::<S>();
    let state = problem.dstate * E::K::PARTS * lanes.channels;
    // SAFETY: the caller's contract.
    unsafe {
        parameter::<E, S>(simd, lanes, &problem.a, block, kept.a);
        kept.constants.load::<E, S>(simd, lanes, problem, block, kept.a);
        if let Projection::Constant(view) = &problem.b {
            parameter::<E, S>(simd, lanes, view, block, kept.b);
        }
        if let Projection::Constant(view) = &problem.c {
            parameter::<E, S>(simd, lanes, view, block, kept.c);
            if E::K::PARTS == 2 {
                double(kept.c, state);
            }
        }
        for (array, len) in [(kept.da, state), (kept.db, state), (kept.dc, state), (kept.dd, width), (kept.dbias, width)] {
            core::slice::from_raw_parts_mut(array, len).fill(E::T::default());
        }
    }
}
