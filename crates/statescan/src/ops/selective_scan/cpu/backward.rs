//! The backward pass: tiles of time from last to first, each walked forwards once to recompute its states and backwards once for the
//! gradients.
//!
//! Gradients of B and C sum over channels: they are gathered as vectors for all blocks of a job's channels, reduced over lanes once a tile,
//! and the ranges of channels are added at the end, always in the same order. Gradients of per-channel parameters gather likewise over
//! the job's segments.

use super::super::{CHECKPOINT, Problem, Projection};
use super::forward::{ForwardPass, load_state, map};
use super::inputs::{
    Ahead, Block, Constants, Gate, Scratch, Tiles, blocks, copy_rows, double, load_gate, load_tiles, map_tile, parameter,
    tile_len, timed,
};
use super::reduce::Partials;
use super::sweep::Sweep;
use super::{Context, GradientTargets, Pass, Sources, Targets, Types, walk};
use crate::cpu::Kernel;
use crate::cpu::Shared;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Plane};
use crate::exec::Exec;
use crate::ops::discretization::Discretization;
use crate::ops::rules::FieldKind;
use crate::ops::sequences::Segment;

pub(super) struct BackwardPass<'p, 'a> {
    pub exec: &'p Exec,
    pub problem: &'p Problem<'a>,
    pub sources: &'p Sources<'p>,
    pub targets: &'p GradientTargets,
}

impl Pass for BackwardPass<'_, '_> {
    fn run<E: Types>(self) {
        let BackwardPass { exec, problem, sources, targets } = self;
        let context = &Context::new(exec, problem);
        let mut own = Vec::<E::T>::new();
        let saved = match &sources.checkpoints {
            Some(view) => view.as_ptr().cast::<E::T>(),
            None => {
                own.resize(context.checkpoints.len, E::T::default());
                let nothing = Targets { y: None, final_state: None, checkpoints: None };
                let checkpoints = Some(own.as_mut_ptr().cast::<u8>());
                ForwardPass { exec, problem, targets: &nothing, checkpoints }.run::<E>();
                own.as_ptr()
            }
        };
        let saved = Shared::new(saved.cast_mut());
        let partials = &mut Partials::<E::T>::new(context, targets);
        let shared = partials.share();
        exec.for_each(context.plan.jobs(), Scratch::<E::T>::new, |scratch, job| {
            context.level.dispatch(Job::<E> { context, sources, targets, saved, partials: shared, job, scratch });
        });
        partials.finish(exec, context, targets);
    }
}

struct Job<'j, 'c, 'a, E: Types> {
    context: &'j Context<'c, 'a>,
    sources: &'j Sources<'j>,
    targets: &'j GradientTargets,
    saved: Shared<E::T>,
    partials: super::reduce::SharedPartials<E::T>,
    job: usize,
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
        let state = dstate * E::K::PARTS * width;
        let (segments, range) = plan.job(self.job);
        let channels = plan.channels[range].clone();
        let count = channels.len().div_ceil(width);
        let [a, b, c, h, g, da, db, dc, dd, dbias, constants, rest] = self.carve_all::<S>(count);
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
            for (i, block) in blocks(channels.clone(), width).enumerate() {
                begin::<E, S>(simd, problem, block, &kept(i));
            }
            for index in plan.segments[segments].clone() {
                let segment = &problem.segments.list[index];
                for (i, block) in blocks(channels.clone(), width).enumerate() {
                    load_cotangent::<E, S>(simd, problem, self.sources, segment, block, kept(i).g);
                }
                for number in (0..segment.len().div_ceil(CHECKPOINT)).rev() {
                    self.tile::<S>(simd, index, number, range, &kept, rest);
                }
                if let (Some(target), Some((row, sequence))) = (&self.targets.initial_state, segment.initial) {
                    let strides = target.strides();
                    let plane = Plane::of_mut(target, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
                    for (i, block) in blocks(channels.clone(), width).enumerate() {
                        let plane = plane.at(block.first, 0);
                        tile::store_parts(simd, kept(i).g, E::K::PARTS, width, plane, block.count, dstate);
                    }
                }
            }
            for (i, block) in blocks(channels, width).enumerate() {
                let kept = kept(i);
                if E::K::PARTS == 2 {
                    // the output is 2 Re(C h), and the sweep counts it once
                    double(kept.dc, state);
                }
                self.partials.store_channels(segments, block, width, [kept.da, kept.db, kept.dc], [kept.dd, kept.dbias]);
            }
        }
    }
}

impl<E: Types> Job<'_, '_, '_, E> {
    #[inline(always)]
    fn carve_all<S: Isa>(&mut self, blocks: usize) -> [*mut E::T; 12] {
        let (width, parts, dstate) = (E::T::lanes::<S>(), E::K::PARTS, self.context.problem.dstate);
        let state = blocks * dstate * parts * width;
        let vector = blocks * width;
        self.scratch.carve([
            state,
            state,
            state,
            state,
            state,
            state,
            state,
            state,
            vector,
            vector,
            Constants::<E::T>::COUNT * vector,
            rest_len::<E, S>(dstate),
        ])
    }

    /// One tile of time of all channels of the job.
    ///
    /// # Safety
    /// `kept` has the arrays of every block, `rest` room for [`rest_len`].
    #[inline(always)]
    unsafe fn tile<S: Isa>(
        &self,
        simd: S,
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
        let longest = array(13);
        let stored = longest.wrapping_add(width);
        let pending = stored.wrapping_add(stored_len::<E, S>());
        let scalars = pending.wrapping_add(pending_len::<E, S>());
        let (b_tile, c_tile) = (scalars, scalars.wrapping_add(tile::STEPS * parts * dstate));
        let sums = scalars.wrapping_add(2 * tile::STEPS * parts * dstate);
        let (db_sum, dc_sum) = (sums, sums.wrapping_add(tile::STEPS * dstate * parts));
        let tiles = Tiles { x, dt, dt_a, u, slope, y, longest };
        let scaled = problem.discretization != Discretization::Dirac;
        // SAFETY: every array lies inside `rest`, which is as long as `rest_len` says; planes lie inside checked views.
        unsafe {
            map_tile::<E, S>(simd, problem, &problem.b, segment, channels.start, start, steps, b_tile);
            map_tile::<E, S>(simd, problem, &problem.c, segment, channels.start, start, steps, c_tile);
            if parts == 2 {
                double(c_tile, steps * parts * dstate);
            }
            core::slice::from_raw_parts_mut(sums, 2 * tile::STEPS * dstate * parts).fill(E::T::default());
            for (i, block) in blocks(channels.clone(), width).enumerate() {
                let kept = kept(i);
                if number == 0 {
                    load_state::<E, S>(simd, problem, segment, block, kept.h);
                } else {
                    let from = self.saved.get().add(checkpoints.at(index, number) + block.first);
                    core::slice::from_raw_parts_mut(kept.h, dstate * parts * width).fill(E::T::default());
                    copy_rows(from, checkpoints.padded_dim, kept.h, width, dstate * parts, block.count);
                }
                load_tiles(simd, problem, segment, block, start, steps, kept.constants, &tiles, true);
                let bounded = tiles.bounded(simd, kept.constants);
                match &self.sources.y {
                    Some(dy) => {
                        let plane = timed(dy, segment.batch, block, start);
                        tile::load(simd, plane, block.count, width, steps, cotangent, width);
                    }
                    None => core::slice::from_raw_parts_mut(cotangent, steps * width).fill(E::T::default()),
                }
                if let Some(z) = &problem.z {
                    load_gate(simd, z, segment, block, start, steps, gate, Gate::Differentiate(gate_slope));
                }
                let skip = kept.constants.skip(simd);
                let zero = V::constant(simd, 0.0);
                for t in 0..steps {
                    let at = t * width;
                    let mut dout = V::load(simd, cotangent.add(at));
                    if problem.z.is_some() {
                        dout = dout * V::load(simd, gate.add(at));
                    }
                    dout.store(p.add(at));
                    zero.store(du.add(at));
                    zero.store(ddt.add(at));
                    zero.store(ddt_a.add(at));
                }
                let sweep = Sweep {
                    tiles,
                    shared,
                    a: kept.a,
                    b: map(&problem.b, b_tile, kept.b),
                    c: map(&problem.c, c_tile, kept.c),
                    h: kept.h,
                    g: kept.g,
                    p,
                    y,
                    du,
                    ddt,
                    ddt_a,
                    da: kept.da,
                    db: if let Projection::Varying(_) = problem.b { db_sum } else { kept.db },
                    dc: if let Projection::Varying(_) = problem.c { dc_sum } else { kept.dc },
                    stored,
                    pending,
                    steps,
                    dstate,
                };
                let following = start.checked_sub(CHECKPOINT).filter(|_| number > 0);
                let ahead = Ahead::new(segment, &channels, block, width, start, following);
                if let Some(ahead) = ahead {
                    let read = [Some(&problem.x), Some(&problem.dt), problem.z.as_ref(), self.sources.y.as_ref()];
                    read.into_iter().flatten().for_each(|view| ahead.prefetch(view));
                }
                walk::<E, S>(simd, problem, bounded, &sweep);
                let (mut dd, mut dbias) = (V::load(simd, kept.dd), V::load(simd, kept.dbias));
                for t in 0..steps {
                    let at = t * width;
                    let (x, dt, dout) = (V::load(simd, x.add(at)), V::load(simd, dt.add(at)), V::load(simd, p.add(at)));
                    let (by_u, mut by_dt) = (V::load(simd, du.add(at)), V::load(simd, ddt.add(at)));
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
                let results = [(&self.targets.x, du), (&self.targets.dt, ddt), (&self.targets.dt_a, ddt_a), (&self.targets.z, y)];
                for (target, from) in results {
                    let Some(target) = target else { continue };
                    let target = target.as_read();
                    if let Some(ahead) = ahead {
                        ahead.prefetch(&target);
                    }
                    tile::store(simd, from, width, timed(&target, segment.batch, block, start), block.count, steps);
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
    13 * tile_len(width) + width + stored_len::<E, S>() + pending_len::<E, S>() + 4 * tile::STEPS * parts * dstate
}

/// Loads the parameters of a block and clears what is gathered for them.
///
/// # Safety
/// The arrays have room for N field vectors.
#[inline(always)]
unsafe fn begin<E: Types, S: Isa>(simd: S, problem: &Problem<'_>, block: Block, kept: &Kept<E::T>) {
    let width = E::T::lanes::<S>();
    let state = problem.dstate * E::K::PARTS * width;
    // SAFETY: the caller's contract.
    unsafe {
        parameter::<E, S>(simd, &problem.a, block, kept.a);
        kept.constants.load::<E, S>(simd, problem, block, kept.a);
        if let Projection::Constant(view) = &problem.b {
            parameter::<E, S>(simd, view, block, kept.b);
        }
        if let Projection::Constant(view) = &problem.c {
            parameter::<E, S>(simd, view, block, kept.c);
            if E::K::PARTS == 2 {
                double(kept.c, state);
            }
        }
        for (array, len) in [(kept.da, state), (kept.db, state), (kept.dc, state), (kept.dd, width), (kept.dbias, width)] {
            core::slice::from_raw_parts_mut(array, len).fill(E::T::default());
        }
    }
}

/// Loads the gradient by the state after a segment's last step, zero where there is none.
///
/// # Safety
/// `g` has room for N field vectors.
#[inline(always)]
unsafe fn load_cotangent<E: Types, S: Isa>(
    simd: S,
    problem: &Problem<'_>,
    sources: &Sources<'_>,
    segment: &Segment,
    block: Block,
    g: *mut E::T,
) {
    let (width, parts) = (E::T::lanes::<S>(), E::K::PARTS);
    // SAFETY: the caller's contract.
    unsafe {
        match (&sources.final_state, segment.last) {
            (Some(view), Some((row, sequence))) => {
                let strides = view.strides();
                let plane = Plane::of(view, 2, 3).along(row, strides[0]).along(sequence, strides[1]).at(block.first, 0);
                tile::load_parts(simd, plane, parts, block.count, width, problem.dstate, g);
            }
            _ => core::slice::from_raw_parts_mut(g, problem.dstate * parts * width).fill(E::T::default()),
        }
    }
}
