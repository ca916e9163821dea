//! The forward pass.
//!
//! For f32 and AVX-512 the innermost step of one state and 16 channels is: the exponential with its product (eight instructions), one product
//! with B, one multiply-add for the state and one for the output. The loop, with four states side by side, has 73 instructions: 44 of
//! these, which take 48 slots (the floor; scaling by a power of two takes two), 11 copies of registers that an operation overwrites, 4 loads
//! and stores of vectors, and 14 of addresses and the loop: 18.25 for each state. `benches/instructions.rs` keeps the count of the pass.

use super::super::Problem;
use super::here::Here;
use super::inputs::{CopyRows, Map, ParametersOfBlocks, Sizes, Tiles};
use super::lanes::Lanes;
use super::plan::blocks;
use super::process::{Gate, load_gate, load_tiles, loading};
use super::{Context, Loops, Pass, Plan, Targets, Types, Variant, walk};
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{PlaneMut, Prefetch, STEPS};
use crate::cpu::{Arena, Array, Arrays, Kernel, Room};
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
        let saved = self.targets.checkpoints.as_ref().map(Array::of_view_mut);
        forward::<E>(self.exec, &context, self.targets, saved);
    }
}

/// Runs all jobs; checkpoints go to `saved`.
pub(super) fn forward<E: Types>(exec: &Exec, context: &Context<'_, '_>, targets: &Targets, saved: Option<Array<E::T>>) {
    let sizes = Sizes::new::<E>(context);
    exec.for_each(context.plan.jobs(), Arena::<E::T>::default, |arena, job| {
        arena.lend(
            |room| Scratch::lay_out(room, context.problem, sizes),
            |scratch| context.level.dispatch(Job::<E> { context, targets, saved, job, scratch }),
        );
    });
}

/// The arrays of a thread.
struct Scratch<T> {
    /// x, then `dt x`, and then the gate: each is not needed once the next is known, and one tile for them leaves room in the first cache.
    x: Array<T>,
    /// The step, and the decay's own where there is one.
    dt: Array<T>,
    dt_a: Array<T>,
    y: Array<T>,
    longest: Array<T>,
    /// The same for the recurrence, where steps are repeated over several lanes of a channel.
    repeated: Tiles<T>,
    /// See [`Lanes`].
    lanes: Array<T>,
    /// Tiles of B and C.
    b: Array<T>,
    c: Array<T>,
    parameters: ParametersOfBlocks<T>,
    /// The states of each block.
    h: Arrays<T>,
}

impl<T: Real> Scratch<T> {
    fn lay_out(room: &mut Room<T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
        let Sizes { tile, own_tile, map, .. } = sizes;
        let several = if own_tile == tile { 0 } else { tile };
        let [x, dt, y] = [own_tile; 3].map(|len| room.array(len));
        let dt_a = if problem.dt_a.is_some() { room.array(own_tile) } else { dt };
        let longest = room.array(sizes.width);
        let [u, repeated_dt, repeated_y] = [several; 3].map(|len| room.array(len));
        let repeated_dt_a = if problem.dt_a.is_some() { room.array(several) } else { repeated_dt };
        Scratch {
            x,
            dt,
            dt_a,
            y,
            longest,
            repeated: Tiles { x, dt: repeated_dt, dt_a: repeated_dt_a, u, slope: x, y: repeated_y, longest },
            lanes: room.array(sizes.lanes),
            b: room.array(map),
            c: room.array(map),
            parameters: ParametersOfBlocks::lay_out(room, problem, sizes),
            h: room.arrays(sizes.blocks, sizes.state),
        }
    }

    fn tiles(&self) -> Tiles<T> {
        let Scratch { x, dt, dt_a, y, longest, .. } = *self;
        Tiles { x, dt, dt_a, u: x, slope: x, y, longest }
    }
}

struct Job<'j, 'c, 'a, E: Types> {
    context: &'j Context<'c, 'a>,
    targets: &'j Targets,
    saved: Option<Array<E::T>>,
    job: usize,
    scratch: Scratch<E::T>,
}

impl<E: Types> Kernel for Job<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Context { problem, plan, .. } = self.context;
        let (segments, channels) = plan.job(self.job);
        let channels = &plan.channels[channels];
        let lanes = Lanes::new(E::T::lanes::<S>(), plan.lanes_per_channel, self.scratch.lanes);
        for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
            self.scratch.parameters.of(i).load::<E, S>(simd, lanes, problem, block);
        }
        for index in plan.segments[segments].clone() {
            self.segment(simd, lanes, channels, index);
        }
    }
}

impl<E: Types> Job<'_, '_, '_, E> {
    /// Scans a segment, by its number.
    #[inline(always)]
    fn segment<S: Isa>(&self, simd: S, lanes: Lanes<E::T>, channels: &Range<usize>, index: usize) {
        let (problem, h) = (self.context.problem, self.scratch.h);
        let segment = &problem.segments.list[index];
        let at = |start| Here::new(problem, segment, channels, lanes, start);
        for (i, here) in at(segment.start).each_block().enumerate() {
            here.load_initial_state::<E, S>(simd, h.of(i));
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
                lanes.store_states(simd, h.of(i), E::K::PARTS, to);
            }
        }
    }

    /// Loads B and C of a tile, for all channels of the job.
    #[inline(always)]
    fn load_maps<S: Isa>(&self, simd: S, here: &Here<'_, '_, E::T>) {
        let Scratch { b, c, .. } = self.scratch;
        here.load_map::<E, S>(simd, &here.problem.b, b);
        here.load_map::<E, S>(simd, &here.problem.c, c);
        here.double_map::<E>(c);
    }

    /// A tile of the job's `i`-th block; `tile` are the numbers of the segment and of the tile in it.
    #[inline(always)]
    fn block<S: Isa>(&self, simd: S, here: &Here<'_, '_, E::T>, i: usize, tile: (usize, usize)) {
        let Here { problem, lanes, steps, .. } = *here;
        let (parameters, h, tiles) = (self.scratch.parameters.of(i), self.scratch.h.of(i), self.scratch.tiles());
        let (repeated, vectors) = (&self.scratch.repeated, problem.dstate / lanes.per_channel);
        let mut prefetch = Prefetch::new();
        self.ahead(here, &mut prefetch);
        let gated = problem.z.is_some() && self.targets.y.is_some();
        prefetch.spread(loading(lanes.vectors(steps), gated) + vectors * steps);
        load_tiles::<_, _, false, _>(simd, here, &parameters, &tiles, &mut prefetch);
        let bounded = tiles.bounded(simd, &parameters);
        if !lanes.one() {
            tiles.repeat(simd, lanes, steps, repeated);
            repeated.y.clear(lanes.vectors(steps) * lanes.per_channel * E::T::lanes::<S>());
        }
        let mut walked = Tile {
            tiles: if lanes.one() { tiles } else { *repeated },
            shared: problem.dt_a.is_none(),
            a: parameters.a,
            b: Map::new::<E>(&problem.b, self.scratch.b, parameters.b, lanes, problem.dstate),
            c: Map::new::<E>(&problem.c, self.scratch.c, parameters.c, lanes, problem.dstate),
            h,
            steps,
            dstate: problem.dstate,
            vectors,
            prefetch: &mut prefetch,
            save: self.save(here, h, tile),
        };
        walk::<E, S>(simd, problem, lanes.per_channel, bounded, &mut walked);
        if !lanes.one() {
            lanes.add_sums(simd, repeated.y, steps, tiles.y);
        }
        self.store(simd, here, &tiles, &mut prefetch);
    }

    /// Gates the output and stores it, if it is wanted.
    #[inline(always)]
    fn store<S: Isa>(&self, simd: S, here: &Here<'_, '_, E::T>, tiles: &Tiles<E::T>, prefetch: &mut Prefetch<AHEAD>) {
        let Some(target) = &self.targets.y else { return };
        if let Some(z) = &here.problem.z {
            load_gate(simd, here, z, tiles.x, Gate::Apply(tiles.y), prefetch);
        }
        here.lanes.store(simd, tiles.y, here.area_mut(target));
    }

    /// How the states before a tile are saved, if they are: not those before the first one, which are the caller's.
    #[inline(always)]
    fn save(&self, here: &Here<'_, '_, E::T>, h: Array<E::T>, (segment, tile): (usize, usize)) -> Option<CopyRows<E::T>> {
        let (Some(saved), 1..) = (self.saved, tile) else { return None };
        let (Context { checkpoints, .. }, lanes) = (self.context, here.lanes);
        let sizes = [here.problem.dstate, E::K::PARTS];
        let (rows, count) = (sizes[0] * sizes[1], here.block.count);
        let to = saved.from(checkpoints.at(segment, tile) + here.block.first);
        let from = lanes.collect(h, sizes, 0);
        Some(CopyRows { from, from_pitch: lanes.channels, to, to_pitch: checkpoints.padded_dim, rows, count })
    }

    /// Has the rest of what a block of channels reads and writes prefetched, and what is read after it.
    #[inline(always)]
    fn ahead(&self, here: &Here<'_, '_, E::T>, prefetch: &mut Prefetch<AHEAD>) {
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
    tiles: Tiles<T>,
    /// Whether the decay's step is `dt`.
    shared: bool,
    a: Array<T>,
    b: Map<T>,
    c: Map<T>,
    h: Array<T>,
    steps: usize,
    dstate: usize,
    /// Vectors of states.
    vectors: usize,
    /// What is prefetched on the way; not by value, since a copy right after it was written waits for every store before it.
    prefetch: &'t mut Prefetch<AHEAD>,
    /// The states before the tile, where they are saved.
    save: Option<CopyRows<T>>,
}

impl<T: Real> Loops<T> for Tile<'_, T> {
    #[inline(always)]
    fn walk<E: Variant<T = T>, S: Isa>(&mut self, simd: S) {
        let mut n = 0;
        // these stores wait for lines of their own, and the walk that follows stores so little that it need not wait for them
        if let Some(save) = self.save {
            save.run(simd);
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
