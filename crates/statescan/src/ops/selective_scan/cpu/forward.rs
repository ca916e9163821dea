//! The forward pass.
//!
//! For f32 and AVX-512 the innermost step of one state and 16 channels is: the exponential with its product (eight instructions), one product
//! with B, one multiply-add for the state and one for the output. The loop, with four states side by side, has 73 instructions: 44 of
//! these, which take 48 slots (the floor; scaling by a power of two takes two), 11 copies of registers that an operation overwrites, 4 loads
//! and stores of vectors, and 14 of addresses and the loop: 18.25 for each state. `benches/instructions.rs` keeps the count of the pass.

use super::super::Problem;
use super::here::Here;
use super::inputs::{CopyRows, Map, ParametersOfBlocks, Sizes, Tiles, TilesMut};
use super::lanes::Lanes;
use super::plan::blocks;
use super::process::{Gate, load_gate, load_tiles, loading};
use super::{Context, Loops, Pass, Plan, Targets, Types, Variant, walk};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{PlaneMut, Prefetch, STEPS};
use crate::cpu::{Arena, Array, ArrayMut, Arrays, Divided, Kernel, Room};
use crate::exec::Exec;
use crate::ops::CHECKPOINT;
use crate::ops::rules::{FieldKind, Rule};
use core::ops::Range;

/// Areas that are prefetched while a block is loaded and walked, at most: four inputs, the output, B and C.
const AHEAD: usize = 7;
/// Steps after which some of that is prefetched: all at once would be waited for, and at every step would be in the way.
const STEPS_PER_PREFETCH: usize = 4;
/// States walked together, at most.
const MOST_TOGETHER: usize = 4;

pub(super) struct ForwardPass<'p, 'a> {
    pub exec: &'p Exec,
    pub problem: &'p Problem<'a>,
    pub targets: &'p Targets,
}

impl Pass for ForwardPass<'_, '_> {
    fn run<E: Types>(self) {
        let context = Context::new(self.exec, self.problem, Plan::forward);
        let saved = self.targets.checkpoints.as_ref().map(Divided::of_view);
        forward::<E>(self.exec, &context, self.targets, saved);
    }
}

/// Runs all jobs; checkpoints go to `saved`.
pub(super) fn forward<E: Types>(exec: &Exec, context: &Context<'_, '_>, targets: &Targets, saved: Option<Divided<'_, E::T>>) {
    let sizes = Sizes::new::<E>(context);
    exec.for_each(context.plan.jobs(), Arena::<E::T>::default, |arena, job| {
        arena.lend(
            |room| Scratch::lay_out(room, context.problem, sizes),
            |scratch| context.level.dispatch(Job::<E> { context, targets, saved, job, scratch }),
        );
    });
}

/// The arrays of a thread.
struct Scratch<'m, T> {
    /// `dt x`, and then the gate, take the place of x: each is not needed once the next is known, and one tile for them leaves room in the
    /// first cache.
    tiles: TilesMut<'m, T>,
    repeated: Repeated<'m, T>,
    /// See [`Lanes`].
    staging: ArrayMut<'m, T>,
    /// Tiles of B and C.
    b: ArrayMut<'m, T>,
    c: ArrayMut<'m, T>,
    parameters: ParametersOfBlocks<'m, T>,
    /// The states of each block.
    h: Arrays<'m, T>,
}

/// Tiles for the recurrence, where steps are repeated over several lanes of a channel; the decay's step where it has its own.
struct Repeated<'m, T> {
    u: ArrayMut<'m, T>,
    dt: ArrayMut<'m, T>,
    dt_a: Option<ArrayMut<'m, T>>,
    y: ArrayMut<'m, T>,
}

impl<T> Repeated<'_, T> {
    /// These in place of those of other tiles.
    #[inline(always)]
    fn cells<'c>(&'c mut self, tiles: Tiles<'c, T>) -> Tiles<'c, T> {
        let dt = self.dt.cells();
        let dt_a = self.dt_a.as_mut().map_or(dt, ArrayMut::cells);
        Tiles { u: self.u.cells(), dt, dt_a, y: self.y.cells(), ..tiles }
    }
}

impl<'m, T: Real> Scratch<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
        let Sizes { tile, own_tile, map, .. } = sizes;
        let (several, own_step) = (if own_tile == tile { 0 } else { tile }, problem.dt_a.is_some());
        let [x, dt, y] = [own_tile; 3].map(|len| room.array(len));
        let dt_a = own_step.then(|| room.array(own_tile));
        let tiles = TilesMut { x, dt, dt_a, u: None, slope: None, y, longest: room.array(sizes.width) };
        let [u, dt, y] = [several; 3].map(|len| room.array(len));
        let repeated = Repeated { u, dt, dt_a: own_step.then(|| room.array(several)), y };
        Scratch {
            tiles,
            repeated,
            staging: room.array(sizes.lanes),
            b: room.array(map),
            c: room.array(map),
            parameters: ParametersOfBlocks::lay_out(room, problem, sizes),
            h: room.arrays(sizes.blocks, sizes.state),
        }
    }
}

struct Job<'j, 'c, 'a, E: Types> {
    context: &'j Context<'c, 'a>,
    targets: &'j Targets,
    saved: Option<Divided<'j, E::T>>,
    job: usize,
    scratch: Scratch<'j, E::T>,
}

impl<E: Types> Kernel for Job<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let Context { problem, plan, .. } = self.context;
        let (segments, channels) = plan.job(self.job);
        let channels = &plan.channels[channels];
        let lanes = Lanes::new(E::T::lanes::<S>(), plan.lanes_per_channel);
        let Scratch { parameters, staging, .. } = &mut self.scratch;
        for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
            parameters.of_mut(i).load::<E, S>(simd, lanes, problem, block, staging);
        }
        for index in plan.segments[segments].clone() {
            self.segment(simd, lanes, channels, index);
        }
    }
}

impl<'j, E: Types> Job<'j, '_, '_, E> {
    /// Scans a segment, by its number.
    #[inline(always)]
    fn segment<S: Isa>(&mut self, simd: S, lanes: Lanes, channels: &Range<usize>, index: usize) {
        let problem = self.context.problem;
        let segment = &problem.segments.list[index];
        let at = |start| Here::new(problem, segment, channels, lanes, start);
        for (i, here) in at(segment.start).each_block().enumerate() {
            here.load_initial_state::<E, S>(simd, self.scratch.h.of(i), &mut self.scratch.staging);
        }
        for (number, start) in (segment.start..segment.end).step_by(CHECKPOINT).enumerate() {
            let here = at(start);
            self.load_maps(simd, &here);
            for (i, here) in here.each_block().enumerate() {
                self.block(simd, &here, i, (index, number));
            }
        }
        if let (Some(target), Some((row, sequence))) = (&self.targets.final_state, segment.last) {
            let strides = target.strides();
            let plane = PlaneMut::of(target, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
            for (i, here) in at(segment.start).each_block().enumerate() {
                let to = plane.at(here.block.first, 0).area(here.block.count, problem.dstate);
                lanes.store_states(simd, self.scratch.h.read(i), E::K::PARTS, to, &mut self.scratch.staging);
            }
        }
    }

    /// Loads B and C of a tile, for all channels of the job.
    #[inline(always)]
    fn load_maps<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>) {
        let Scratch { b, c, .. } = &mut self.scratch;
        here.load_map::<E, S>(simd, &here.problem.b, b.reborrow());
        here.load_map::<E, S>(simd, &here.problem.c, c.reborrow());
        here.double_map::<E>(c);
    }

    /// A tile of the job's `i`-th block; `tile` are the numbers of the segment and of the tile in it.
    #[inline(always)]
    fn block<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, i: usize, tile: (usize, usize)) {
        let Here { problem, lanes, steps, .. } = *here;
        let (vectors, sizes) = (problem.dstate / lanes.per_channel, [problem.dstate, E::K::PARTS]);
        let (mut prefetch, save) = (Prefetch::new(), self.save(here, tile));
        self.ahead(here, &mut prefetch);
        let gated = problem.z.is_some() && self.targets.y.is_some();
        prefetch.spread(loading(lanes.vectors(steps), gated) + vectors * steps);
        let Scratch { tiles: memory, repeated, staging, b, c, parameters, h } = &mut self.scratch;
        let (parameters, h) = (parameters.of(i), h.of(i));
        load_tiles::<_, _, false, _>(simd, here, &parameters, memory, staging, &mut prefetch);
        let tiles = memory.cells();
        let bounded = tiles.bounded(simd, &parameters);
        let mut walked = tiles;
        if !lanes.one() {
            walked = repeated.cells(tiles);
            lanes.repeat_inputs(simd, [tiles.u, tiles.dt, tiles.dt_a], steps, [walked.u, walked.dt, walked.dt_a]);
            walked.y.clear(lanes.vectors(steps) * lanes.per_channel * E::T::lanes::<S>());
        }
        if save.is_some() {
            lanes.collect(h.read(), sizes, 0, staging);
        }
        let mut walk_tile = Tile {
            tiles: walked,
            shared: problem.dt_a.is_none(),
            a: parameters.a,
            b: Map::new::<E>(&problem.b, b.read(), parameters.b, lanes, problem.dstate),
            c: Map::new::<E>(&problem.c, c.read(), parameters.c, lanes, problem.dstate),
            h,
            steps,
            dstate: problem.dstate,
            vectors,
            prefetch: &mut prefetch,
            save,
            collected: (!lanes.one()).then(|| staging.read()),
        };
        walk::<E, S>(simd, problem, lanes.per_channel, bounded, &mut walk_tile);
        if !lanes.one() {
            lanes.add_sums(simd, walked.y, steps, tiles.y);
        }
        self.store(simd, here, &mut prefetch);
    }

    /// Gates the output and stores it, if it is wanted.
    #[inline(always)]
    fn store<S: Isa>(&mut self, simd: S, here: &Here<'_, '_>, prefetch: &mut Prefetch<AHEAD>) {
        let Some(target) = &self.targets.y else { return };
        let Scratch { tiles: TilesMut { x, y, .. }, staging, .. } = &mut self.scratch;
        if let Some(z) = &here.problem.z {
            load_gate(simd, (here, z), x, Gate::Apply(y.reborrow()), staging, prefetch);
        }
        here.lanes.store(simd, y.read(), here.area_mut(target), staging);
    }

    /// How the states before a tile are saved, if they are: not those before the first one, which are the caller's.
    #[inline(always)]
    fn save(&self, here: &Here<'_, '_>, (segment, tile): (usize, usize)) -> Option<CopyRows<'j, E::T>> {
        let (rows, count) = (here.problem.dstate * E::K::PARTS, here.block.count);
        let (Some(saved), 1.., 1..) = (self.saved, tile, rows) else { return None };
        let (Context { checkpoints, .. }, from_pitch) = (self.context, here.lanes.channels);
        // SAFETY: a tile of a block of channels has one job, and what is saved is read when the pass has ended.
        let to = unsafe { saved.part(checkpoints.at(segment, tile) + here.block.first) };
        Some(CopyRows { to, from_pitch, to_pitch: checkpoints.padded_dim, rows, count })
    }

    /// Has the rest of what a block of channels reads and writes prefetched, and what is read after it.
    #[inline(always)]
    fn ahead(&self, here: &Here<'_, '_>, prefetch: &mut Prefetch<AHEAD>) {
        let problem = here.problem;
        if let Some(y) = &self.targets.y {
            prefetch.add(here.area_mut(y).read());
            problem.z.iter().for_each(|z| prefetch.add(here.area(z)));
        }
        let following = Some(here.start + here.steps).filter(|&start| start < here.segment.end);
        let Some(next) = here.next(following) else { return };
        for view in [Some(&problem.x), Some(&problem.dt), problem.dt_a.as_ref()].into_iter().flatten() {
            prefetch.add(next.area(view));
        }
        if here.is_last_block() {
            [&problem.b, &problem.c].into_iter().filter_map(|map| next.map_area(map)).for_each(|area| prefetch.add(area));
        }
    }
}

/// One tile of time of one vector of channels.
struct Tile<'t, T> {
    tiles: Tiles<'t, T>,
    /// Whether the decay's step is `dt`.
    shared: bool,
    a: Array<'t, T>,
    b: Map<'t, T>,
    c: Map<'t, T>,
    h: ArrayMut<'t, T>,
    steps: usize,
    dstate: usize,
    /// Vectors of states.
    vectors: usize,
    /// Rows that are prefetched on the way; not by value, since a copy right after it was written waits for every store before
    /// it.
    prefetch: &'t mut Prefetch<AHEAD>,
    /// How the states before the tile are saved, if they are, and where they have been collected for that.
    save: Option<CopyRows<'t, T>>,
    collected: Option<Array<'t, T>>,
}

impl<T: Real> Loops<T> for Tile<'_, T> {
    #[inline(always)]
    fn walk<E: Variant<T = T>, S: Isa>(&mut self, simd: S) {
        let mut n = 0;
        // these stores wait for lines of their own, and the walk that follows stores so little that it need not wait for them
        if let Some(save) = &mut self.save {
            save.run(simd, self.collected.unwrap_or(self.h.read()));
        }
        while E::TOGETHER == MOST_TOGETHER && n + MOST_TOGETHER <= self.vectors {
            self.states::<E, S, MOST_TOGETHER>(simd, n);
            n += MOST_TOGETHER;
        }
        while n < self.vectors {
            self.states::<E, S, 1>(simd, n);
            n += 1;
        }
    }
}

impl<T: Real> Tile<'_, T> {
    /// Walks `COUNT` states from `first` through the tile with their values in registers.
    #[inline(always)]
    fn states<E: Variant<T = T>, S: Isa, const COUNT: usize>(&mut self, simd: S, first: usize) {
        let (width, step) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        debug_assert!(first + COUNT <= self.vectors, "the states are there");
        debug_assert!(self.steps <= STEPS, "at most a tile");
        let Tiles { dt: dts, dt_a: dts_a, u: us, y: ys, .. } = self.tiles;
        let mut h = [<E::K as FieldKind>::Of::<T, S>::zero(simd); COUNT];
        let mut a = h;
        for i in 0..COUNT {
            h[i] = self.h.load_field(simd, (first + i) * step);
            a[i] = E::R::prepare(self.a.load_field(simd, (first + i) * step));
        }
        for t in 0..self.steps {
            if t % STEPS_PER_PREFETCH == 0 {
                self.prefetch.step(COUNT * STEPS_PER_PREFETCH);
            }
            let at = t * width;
            let (dt, dt_a, u): (V<T, S>, _, _) = (dts.load(simd, at), dts_a.load(simd, at), us.load(simd, at));
            let mut y = ys.load(simd, at);
            for i in 0..COUNT {
                let (decay, gain) = E::R::step(a[i], dt, dt_a, self.shared);
                let b = self.b.at::<E, S>(simd, t, first + i, self.dstate);
                let c = self.c.at::<E, S>(simd, t, first + i, self.dstate);
                let input = if E::R::GAIN { gain.scale(u) * b } else { b.scale(u) };
                h[i] = decay.mul_add(h[i], input);
                y = c.re_mul_add(h[i], y);
            }
            ys.store(at, y);
        }
        for i in 0..COUNT {
            self.h.store_field((first + i) * step, h[i]);
        }
    }
}
