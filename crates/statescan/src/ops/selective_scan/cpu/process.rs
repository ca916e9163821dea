//! Tiles of one vector of channels: the step size through bias, softplus and clamp, the input, the gate.

use super::super::Problem;
use super::here::Here;
use super::inputs::{Parameters, Tiles, TilesMut};
use crate::cpu::math::{silu_and_derivative, silu_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Prefetch;
use crate::cpu::{Array, ArrayMut, Kernel};
use crate::ops::discretization::Discretization;
use crate::tensor::View;

/// Vectors that are processed together.
const TOGETHER: usize = 4;

/// About how long it takes to load a vector of steps and of the gate, in vectors of states that are walked through a step: so the rows
/// that are prefetched on the way are spread evenly over time.
const LOADING: usize = 5;
const GATING: usize = 3;

/// Returns the time of loading so many vectors of a tile, in the unit of `LOADING`.
pub(super) fn loading(vectors: usize, gated: bool) -> usize {
    vectors * (LOADING + if gated { GATING } else { 0 })
}

/// Loads x and dt of a block and a tile of time and derives what the recurrence reads, everything in [`Tiles`]; the derivative of the step
/// only if `SLOPE`. On the way it prefetches rows, as [`load_gate`] does.
#[inline(always)]
pub(super) fn load_tiles<T: Real, S: Isa, const SLOPE: bool, const MOST: usize>(
    simd: S,
    here: &Here<'_, '_>,
    parameters: &Parameters<'_, T>,
    tiles: &mut TilesMut<'_, T>,
    staging: &mut ArrayMut<'_, T>,
    prefetch: &mut Prefetch<MOST>,
) {
    simd.call(LoadTiles::<_, SLOPE, MOST> { here, parameters, tiles, staging: staging.reborrow(), prefetch });
}

/// See [`load_tiles`].
struct LoadTiles<'l, 'm, T, const SLOPE: bool, const MOST: usize> {
    here: &'l Here<'l, 'l>,
    parameters: &'l Parameters<'l, T>,
    tiles: &'l mut TilesMut<'m, T>,
    staging: ArrayMut<'l, T>,
    prefetch: &'l mut Prefetch<MOST>,
}

impl<T: Real, const SLOPE: bool, const MOST: usize> Kernel for LoadTiles<'_, '_, T, SLOPE, MOST> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadTiles { here, parameters, tiles, mut staging, prefetch } = self;
        let Here { problem, lanes, steps, .. } = *here;
        let TilesMut { x, dt, dt_a, .. } = tiles;
        for (view, to) in [(Some(&problem.x), Some(x)), (Some(&problem.dt), Some(dt)), (problem.dt_a.as_ref(), dt_a.as_mut())] {
            let (Some(view), Some(to)) = (view, to) else { continue };
            lanes.load(simd, here.area(view), to.reborrow(), &mut staging);
        }
        let tiles = tiles.cells();
        let (count, mut vector) = (lanes.vectors(steps), 0);
        let mut longest = V::constant(simd, 0.0);
        debug_assert!(tiles.u.has(0, count * T::lanes::<S>()), "room for u");
        debug_assert!(tiles.y.has(0, count * T::lanes::<S>()), "room for the output");
        debug_assert!(!SLOPE || tiles.slope.has(0, count * T::lanes::<S>()), "room for the slopes");
        let [bias, skip] = parameters.bias_and_skip(simd);
        let process = Process { problem, tiles, bias, skip };
        while vector + TOGETHER <= count {
            prefetch.step(TOGETHER * LOADING);
            longest = process.vectors::<TOGETHER, SLOPE>(simd, vector, longest);
            vector += TOGETHER;
        }
        prefetch.step((count - vector) * LOADING);
        while vector < count {
            longest = process.vectors::<1, SLOPE>(simd, vector, longest);
            vector += 1;
        }
        tiles.longest.store(0, longest);
    }
}

/// The processing of loaded tiles by [`LoadTiles`].
struct Process<'p, 'a, T: Real, S: Isa> {
    problem: &'p Problem<'a>,
    tiles: Tiles<'p, T>,
    bias: V<T, S>,
    skip: V<T, S>,
}

impl<T: Real, S: Isa> Process<'_, '_, T, S> {
    /// Derives from `N` vectors what the recurrence reads, and gives the longest steps so far.
    #[inline(always)]
    fn vectors<const N: usize, const SLOPE: bool>(&self, simd: S, first: usize, mut longest: V<T, S>) -> V<T, S> {
        let Process { problem, tiles, bias, skip } = self;
        let (width, options) = (T::lanes::<S>(), &problem.options);
        let step = options.step_size;
        let mut raw = [*bias; N];
        for i in 0..N {
            raw[i] = tiles.dt.load(simd, (first + i) * width) + *bias;
        }
        let [dt, slope] = step.of::<T, S, N, SLOPE>(raw);
        for i in 0..N {
            let at = (first + i) * width;
            tiles.dt.store(at, dt[i]);
            if SLOPE {
                tiles.slope.store(at, slope[i]);
            }
            let x = tiles.x.load(simd, at);
            let u = if options.discretization == Discretization::Dirac { x } else { x * dt[i] };
            tiles.u.store(at, u);
            // a skip that is missing is not multiplied: 0 times infinity is NaN
            tiles.y.store(at, if problem.d.is_some() { x * *skip } else { V::constant(simd, 0.0) });
            longest = longest.max(tiles.dt_a.load(simd, at).abs());
        }
        longest
    }
}

/// The use of the gate.
pub(super) enum Gate<'g, T> {
    /// Multiplies this tile, the output, by `silu(z)`.
    Apply(ArrayMut<'g, T>),
    /// Writes `silu(z)` over z and its derivative here.
    Differentiate(ArrayMut<'g, T>),
}

/// Loads z into a tile and gates with it.
#[inline(always)]
pub(super) fn load_gate<T: Real, S: Isa, const MOST: usize>(
    simd: S,
    (here, z): (&Here<'_, '_>, &View<'_>),
    tile: &mut ArrayMut<'_, T>,
    gate: Gate<'_, T>,
    staging: &mut ArrayMut<'_, T>,
    prefetch: &mut Prefetch<MOST>,
) {
    simd.call(LoadGate { here, z, tile: tile.reborrow(), gate, staging: staging.reborrow(), prefetch });
}

/// See [`load_gate`].
struct LoadGate<'l, T, const MOST: usize> {
    here: &'l Here<'l, 'l>,
    z: &'l View<'l>,
    tile: ArrayMut<'l, T>,
    gate: Gate<'l, T>,
    staging: ArrayMut<'l, T>,
    prefetch: &'l mut Prefetch<MOST>,
}

impl<T: Real, const MOST: usize> Kernel for LoadGate<'_, T, MOST> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadGate { here, z, mut tile, gate, mut staging, prefetch } = self;
        let Here { lanes, steps, .. } = *here;
        let (width, count) = (T::lanes::<S>(), lanes.vectors(steps));
        lanes.load(simd, here.area(z), tile.reborrow(), &mut staging);
        match gate {
            Gate::Apply(mut y) => {
                let mut vector = 0;
                while vector + TOGETHER <= count {
                    prefetch.step(TOGETHER * GATING);
                    apply_gate::<T, S, TOGETHER>(simd, tile.read(), &mut y, vector * width);
                    vector += TOGETHER;
                }
                prefetch.step((count - vector) * GATING);
                for vector in vector..count {
                    apply_gate::<T, S, 1>(simd, tile.read(), &mut y, vector * width);
                }
            }
            Gate::Differentiate(mut slope) => {
                for vector in 0..count {
                    if vector % TOGETHER == 0 {
                        prefetch.step(TOGETHER.min(count - vector) * GATING);
                    }
                    let (value, by_z) = silu_and_derivative(tile.load(simd, vector * width));
                    tile.store(vector * width, value);
                    slope.store(vector * width, by_z);
                }
            }
        }
    }
}

/// Multiplies `N` vectors of the output by `silu(z)`, from element `at` on.
#[inline(always)]
fn apply_gate<T: Real, S: Isa, const N: usize>(simd: S, z: Array<'_, T>, y: &mut ArrayMut<'_, T>, at: usize) {
    let (mut gate, width) = ([V::constant(simd, 0.0); N], T::lanes::<S>());
    debug_assert!(z.has(at, N * width) && y.has(at, N * width), "both have the vectors");
    for i in 0..N {
        gate[i] = z.load(simd, at + i * width);
    }
    gate = silu_each(gate);
    for i in 0..N {
        y.store(at + i * width, y.load(simd, at + i * width) * gate[i]);
    }
}
