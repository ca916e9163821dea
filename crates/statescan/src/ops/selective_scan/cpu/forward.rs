//! The forward pass.
//!
//! For f32 and AVX-512 the innermost step of one state and 16 channels is: the exponential with its product (eight instructions), one product
//! with B, one multiply-add for the state and one for the output. The loop, with four states side by side, has 73 instructions: 44 of
//! these, which take 48 slots (the floor; scaling by a power of two takes two), 11 copies of registers that an operation overwrites, 4 loads
//! and stores of vectors, and 14 of addresses and the loop: 18.25 for each state. `benches/instructions.rs` keeps the count of the pass.

use super::super::{Problem, Projection};
use super::inputs::{Ahead, Constants, CopyRows, Map, Scratch, Tiles, double, map_area, map_tile, parameter, tile_len, timed};
use super::lanes::{Lanes, scratch_len};
use super::plan::{Block, blocks};
use super::process::{Gate, load_gate, load_tiles, loading};
use super::{Context, Loops, Pass, Plan, Targets, Types, Variant, walk};
use crate::cpu::Kernel;
use crate::cpu::Shared;
use crate::cpu::simd::{Field, Isa, Real, V};
use crate::cpu::tile::{self, Plane, Prefetch};
use crate::exec::Exec;
use crate::ops::CHECKPOINT;
use crate::ops::rules::{FieldKind, Rule};
use crate::ops::sequences::Segment;
use crate::tensor::View;
use core::ops::Range;

/// Areas that are asked for while a block is loaded and walked, at most: four inputs, the output, B and C.
const AHEAD: usize = 7;
/// Steps after which some of that is asked for: all at once would be waited for, and at every step would be in the way.
const STEPS_PER_PREFETCH: usize = 4;
/// States walked together, at most.
const MOST_TOGETHER: usize = 4;

pub(super) struct ForwardPass<'p, 'a> {
    pub exec: &'p Exec,
    pub problem: &'p Problem<'a>,
    pub targets: &'p Targets,
    /// Where checkpoints go when they are not the caller's: memory of the right length and type.
    pub checkpoints: Option<*mut u8>,
}

impl Pass for ForwardPass<'_, '_> {
    fn run<E: Types>(self) {
        let context = Context::new(self.exec, self.problem, Plan::forward);
        let saved = self.targets.checkpoints.as_ref().map(|v| v.as_mut_ptr()).or(self.checkpoints);
        let saved = saved.map(|ptr| Shared::new(ptr.cast::<E::T>()));
        let (context, targets) = (&context, self.targets);
        self.exec.for_each(context.plan.jobs(), Scratch::<E::T>::new, |scratch, job| {
            context.level.dispatch(Job::<E> { context, targets, saved, job, scratch });
        });
    }
}

struct Job<'j, 'c, 'a, E: Types> {
    context: &'j Context<'c, 'a>,
    targets: &'j Targets,
    saved: Option<Shared<E::T>>,
    job: usize,
    scratch: &'j mut Scratch<E::T>,
}

impl<E: Types> Kernel for Job<'_, '_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Context { problem, plan, checkpoints, .. } = self.context;
        let (width, parts, dstate) = (E::T::lanes::<S>(), E::K::PARTS, problem.dstate);
        let (segments, channels) = plan.job(self.job);
        let channels = plan.channels[channels].clone();
        let per_channel = plan.lanes_per_channel;
        let block_count = channels.len().div_ceil(width / per_channel);
        let (sizes, state) = ([dstate, parts], dstate / per_channel * parts * width);
        let (tile, repeated) = (tile_len(width), if per_channel == 1 { 0 } else { tile_len(width) });
        let [x, dt, dt_a, y, wide_u, wide_dt, wide_dt_a, wide_y, longest, scratch, b_tile, c_tile, a, constants, b_own, c_own, h] =
            self.scratch.carve([
                tile,
                tile,
                tile,
                tile,
                repeated,
                repeated,
                repeated,
                repeated,
                width,
                scratch_len(width, per_channel, state),
                tile::STEPS * parts * dstate,
                tile::STEPS * parts * dstate,
                block_count * state,
                block_count * Constants::<E::T>::COUNT * width,
                block_count * state,
                block_count * state,
                block_count * state,
            ]);
        let lanes = Lanes::new(width, per_channel, scratch);
        let shared = problem.dt_a.is_none();
        // x is not needed once u is known, nor u once the states are: one tile for x, u and the gate leaves room in the first cache
        let tiles = Tiles { x, dt, dt_a: if shared { dt } else { dt_a }, u: x, slope: x, y, longest };
        let wide_dt_a = if shared { wide_dt } else { wide_dt_a };
        let wide = Tiles { x, dt: wide_dt, dt_a: wide_dt_a, u: wide_u, slope: x, y: wide_y, longest };
        // SAFETY: the arrays were carved with the sizes used here; channels, segments and steps are inside the problem, whose views were
        // checked; jobs write disjoint channels or segments of the targets.
        unsafe {
            for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                parameter::<E, S>(simd, lanes, &problem.a, block, a.add(i * state));
                Constants::at::<S>(constants, i).load::<E, S>(simd, lanes, problem, block, a.add(i * state));
                if let Projection::Constant(view) = &problem.b {
                    parameter::<E, S>(simd, lanes, view, block, b_own.add(i * state));
                }
                if let Projection::Constant(view) = &problem.c {
                    parameter::<E, S>(simd, lanes, view, block, c_own.add(i * state));
                    if parts == 2 {
                        double(c_own.add(i * state), state);
                    }
                }
            }
            for index in plan.segments[segments].clone() {
                let segment = &problem.segments.list[index];
                for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                    load_state::<E, S>(simd, lanes, problem, segment, block, h.add(i * state));
                }
                for (number, start) in (segment.start..segment.end).step_by(CHECKPOINT).enumerate() {
                    let steps = CHECKPOINT.min(segment.end - start);
                    let following = (start + steps < segment.end).then_some(start + steps);
                    map_tile::<E, S>(simd, problem, &problem.b, segment, channels.start, start, steps, per_channel, b_tile);
                    map_tile::<E, S>(simd, problem, &problem.c, segment, channels.start, start, steps, per_channel, c_tile);
                    if parts == 2 {
                        double(c_tile, steps * parts * dstate);
                    }
                    for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                        let h = h.add(i * state);
                        let constants = Constants::at::<S>(constants, i);
                        let mut prefetch = Prefetch::new();
                        self.ahead(segment, &channels, block, lanes.channels, start, following, &mut prefetch);
                        let vectors = dstate / lanes.per_channel;
                        let gated = problem.z.is_some() && self.targets.y.is_some();
                        prefetch.spread(loading(lanes.vectors(steps), gated) + vectors * steps);
                        load_tiles::<_, _, false, _>(
                            simd,
                            problem,
                            segment,
                            lanes,
                            block,
                            start,
                            steps,
                            constants,
                            &tiles,
                            &mut prefetch,
                        );
                        let bounded = tiles.bounded(simd, constants);
                        if !lanes.one() {
                            tiles.repeat(simd, lanes, steps, &wide);
                            let rows = lanes.vectors(steps) * lanes.per_channel;
                            core::slice::from_raw_parts_mut(wide_y, rows * width).fill(E::T::default());
                        }
                        let save = self.saved.filter(|_| number > 0).map(|saved| CopyRows {
                            from: lanes.collect(h, sizes, 0),
                            from_pitch: lanes.channels,
                            to: saved.get().add(checkpoints.at(index, number) + block.first),
                            to_pitch: checkpoints.padded_dim,
                            rows: dstate * parts,
                            count: block.count,
                        });
                        let tile = Tile {
                            tiles: if lanes.one() { tiles } else { wide },
                            shared,
                            a: a.add(i * state),
                            b: Map::new::<E, _>(&problem.b, b_tile, b_own.add(i * state), lanes, dstate),
                            c: Map::new::<E, _>(&problem.c, c_tile, c_own.add(i * state), lanes, dstate),
                            h,
                            steps,
                            dstate,
                            vectors,
                            prefetch: &raw mut prefetch,
                            save,
                        };
                        walk::<E, S>(simd, problem, lanes.per_channel, bounded, &tile);
                        if !lanes.one() {
                            lanes.add_sums(simd, wide_y, steps, y);
                        }
                        let Some(target) = &self.targets.y else { continue };
                        if let Some(z) = &problem.z {
                            load_gate(simd, z, segment, lanes, block, start, steps, x, Gate::Apply(y), &mut prefetch);
                        }
                        let plane = timed(&target.as_read(), segment.batch, block, start);
                        lanes.store(simd, y, plane, block.count, steps);
                    }
                }
                if let (Some(target), Some((row, sequence))) = (&self.targets.final_state, segment.last) {
                    let strides = target.strides();
                    let plane = Plane::of_mut(target, 2, 3).along(row, strides[0]).along(sequence, strides[1]);
                    for (i, block) in blocks(channels.clone(), lanes.channels).enumerate() {
                        lanes.store_states(simd, h.add(i * state), sizes, plane.at(block.first, 0), block);
                    }
                }
            }
        }
    }
}

impl<E: Types> Job<'_, '_, '_, E> {
    /// The rest of what a block of channels reads and writes, and what is read after it.
    #[inline(always)]
    fn ahead(
        &self,
        segment: &Segment,
        channels: &Range<usize>,
        block: Block,
        width: usize,
        start: usize,
        following: Option<usize>,
        prefetch: &mut Prefetch<AHEAD>,
    ) {
        let (problem, here) = (self.context.problem, Ahead::at(segment, block, start));
        if let Some(y) = &self.targets.y {
            prefetch.add(here.area(&y.as_read()));
            problem.z.iter().for_each(|z| prefetch.add(here.area(z)));
        }
        let Some(next) = Ahead::new(segment, channels, block, width, start, following) else { return };
        for view in [Some(&problem.x), Some(&problem.dt), problem.dt_a.as_ref()].into_iter().flatten() {
            prefetch.add(next.area(view));
        }
        let Some(following) = following.filter(|_| block.first + width >= channels.end) else { return };
        for map in [&problem.b, &problem.c] {
            map_area(problem, map, segment, channels.start, following).into_iter().for_each(|area| prefetch.add(area));
        }
    }
}

/// Loads the state before a segment's first step, zero where there is none.
///
/// # Safety
/// `h` has room for the block's states; the block lies inside the problem.
#[inline(always)]
pub(super) unsafe fn load_state<E: Types, S: Isa>(
    simd: S,
    lanes: Lanes<E::T>,
    problem: &Problem<'_>,
    segment: &Segment,
    block: Block,
    h: *mut E::T,
) {
    let (sizes, place) = ([problem.dstate, E::K::PARTS], segment.initial);
    // SAFETY: the caller's contract.
    unsafe { load_sequence_state(simd, lanes, &problem.initial_state, place, block, sizes, h) }
}

/// Loads the state of a sequence, at (row, sequence) of a (B, sequences, D, N) tensor; zero where either is absent.
///
/// # Safety
/// `to` has room for the block's states; place and block lie inside the view.
#[inline(always)]
pub(super) unsafe fn load_sequence_state<T: Real, S: Isa>(
    simd: S,
    lanes: Lanes<T>,
    view: &Option<View<'_>>,
    place: Option<(usize, usize)>,
    block: Block,
    sizes: [usize; 2],
    to: *mut T,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match (view, place) {
            (Some(view), Some((row, sequence))) => {
                let strides = view.strides();
                let plane = Plane::of(view, 2, 3).along(row, strides[0]).along(sequence, strides[1]).at(block.first, 0);
                lanes.load_states(simd, plane, block, sizes, to);
            }
            _ => core::slice::from_raw_parts_mut(to, sizes[0] * sizes[1] * lanes.channels).fill(T::default()),
        }
    }
}

/// One tile of time of one vector of channels.
struct Tile<T> {
    tiles: Tiles<T>,
    shared: bool,
    a: *const T,
    b: Map<T>,
    c: Map<T>,
    h: *mut T,
    steps: usize,
    dstate: usize,
    /// Vectors of states.
    vectors: usize,
    /// What is asked for on the way; not by value, since a copy right after it was written waits for every store before it.
    prefetch: *mut Prefetch<AHEAD>,
    /// The states before the tile, where they are saved.
    save: Option<CopyRows<T>>,
}

impl<T: Real> Loops<T> for Tile<T> {
    #[inline(always)]
    unsafe fn walk<E: Variant<T = T>, S: Isa>(&self, simd: S) {
        let mut n = 0;
        // SAFETY: the caller's contract; nobody else has the prefetch.
        unsafe {
            let prefetch = &mut *self.prefetch;
            // these stores wait for lines of their own, and the walk that follows stores so little that it need not wait for them
            if let Some(save) = self.save {
                save.run(simd);
            }
            while E::TOGETHER == MOST_TOGETHER && n + MOST_TOGETHER <= self.vectors {
                self.states::<E, S, MOST_TOGETHER>(simd, n, prefetch);
                n += MOST_TOGETHER;
            }
            while n < self.vectors {
                self.states::<E, S, 1>(simd, n, prefetch);
                n += 1;
            }
        }
    }
}

impl<T: Real> Tile<T> {
    /// Walks `COUNT` states from `first` through the tile with their values in registers.
    #[inline(always)]
    unsafe fn states<E: Variant<T = T>, S: Isa, const COUNT: usize>(
        &self,
        simd: S,
        first: usize,
        prefetch: &mut Prefetch<AHEAD>,
    ) {
        let (width, step) = (T::lanes::<S>(), E::K::PARTS * T::lanes::<S>());
        // SAFETY: the caller's contract.
        unsafe {
            let mut h = [<E::K as FieldKind>::Of::<T, S>::zero(simd); COUNT];
            let mut a = h;
            for i in 0..COUNT {
                h[i] = Field::load(simd, self.h.add((first + i) * step));
                a[i] = E::R::prepare(Field::load(simd, self.a.add((first + i) * step)));
            }
            for t in 0..self.steps {
                if t % STEPS_PER_PREFETCH == 0 {
                    prefetch.step(COUNT * STEPS_PER_PREFETCH);
                }
                let at = t * width;
                let dt = V::load(simd, self.tiles.dt.add(at));
                let dt_a = V::load(simd, self.tiles.dt_a.add(at));
                let u = V::load(simd, self.tiles.u.add(at));
                let mut y = V::load(simd, self.tiles.y.add(at));
                for i in 0..COUNT {
                    let (decay, gain) = E::R::step(a[i], dt, dt_a, self.shared);
                    let b = self.b.at::<E, S>(simd, t, first + i, self.dstate);
                    let c = self.c.at::<E, S>(simd, t, first + i, self.dstate);
                    let input = if E::R::GAIN { gain.scale(u) * b } else { b.scale(u) };
                    h[i] = decay.mul_add(h[i], input);
                    y = c.re_mul_add(h[i], y);
                }
                y.store(self.tiles.y.add(at));
            }
            for i in 0..COUNT {
                h[i].store(self.h.add((first + i) * step));
            }
        }
    }
}
