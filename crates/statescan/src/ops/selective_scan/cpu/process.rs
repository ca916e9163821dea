//! Tiles of one vector of channels: the step size through bias, softplus and clamp, the input, the gate.

use super::super::Problem;
use super::inputs::{Constants, Tiles, timed};
use super::lanes::Lanes;
use super::plan::Block;
use crate::cpu::math::{silu_and_derivative, silu_each, softplus_derivative, softplus_each};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::Prefetch;
use crate::cpu::{Kernel, outline};
use crate::ops::discretization::Discretization;
use crate::ops::sequences::Segment;
use crate::tensor::View;

/// Vectors that are processed together.
const TOGETHER: usize = 4;

/// About how long it takes to load a vector of steps and of the gate, in vectors of states that are walked through a step: so the rows
/// that are asked for on the way are spread evenly over time.
const LOADING: usize = 5;
const GATING: usize = 3;

/// That for so many vectors of a tile.
pub(super) fn loading(vectors: usize, gated: bool) -> usize {
    vectors * (LOADING + if gated { GATING } else { 0 })
}

/// Loads x and dt of a block and a tile of time and derives what the recurrence reads, everything in [`Tiles`]; the derivative of the step
/// only if `SLOPE`. On the way it asks for rows, as [`load_gate`] does.
///
/// # Safety
/// Block and steps lie inside the problem; every tile has room for STEPS vectors.
#[inline(always)]
pub(super) unsafe fn load_tiles<T: Real, S: Isa, const SLOPE: bool, const MOST: usize>(
    simd: S,
    problem: &Problem<'_>,
    segment: &Segment,
    lanes: Lanes<T>,
    block: Block,
    start: usize,
    steps: usize,
    constants: Constants<T>,
    tiles: &Tiles<T>,
    prefetch: &mut Prefetch<MOST>,
) {
    outline(simd, LoadTiles::<_, SLOPE, MOST> { problem, segment, lanes, block, start, steps, constants, tiles, prefetch });
}

struct LoadTiles<'l, 'a, T, const SLOPE: bool, const MOST: usize> {
    problem: &'l Problem<'a>,
    segment: &'l Segment,
    lanes: Lanes<T>,
    block: Block,
    start: usize,
    steps: usize,
    constants: Constants<T>,
    tiles: &'l Tiles<T>,
    prefetch: &'l mut Prefetch<MOST>,
}

impl<T: Real, const SLOPE: bool, const MOST: usize> Kernel for LoadTiles<'_, '_, T, SLOPE, MOST> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadTiles { problem, segment, lanes, block, start, steps, constants, tiles, prefetch } = self;
        let sources = [(Some(&problem.x), tiles.x), (Some(&problem.dt), tiles.dt), (problem.dt_a.as_ref(), tiles.dt_a)];
        for (view, to) in sources {
            let Some(view) = view else { continue };
            // SAFETY: the contract of `load_tiles`, the only maker of this.
            unsafe { lanes.load(simd, timed(view, segment.batch, block, start), block.count, steps, to) };
        }
        let (count, mut vector) = (lanes.vectors(steps), 0);
        let mut longest = V::constant(simd, 0.0);
        // SAFETY: the tiles have room for the steps; the block lies inside dt_bias.
        unsafe {
            let process = Process { problem, tiles, bias: constants.bias(simd), skip: constants.skip(simd) };
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
            longest.store(tiles.longest);
        }
    }
}

/// What [`LoadTiles`] does to tiles that are loaded.
struct Process<'p, 'a, T: Real, S: Isa> {
    problem: &'p Problem<'a>,
    tiles: &'p Tiles<T>,
    bias: V<T, S>,
    skip: V<T, S>,
}

impl<T: Real, S: Isa> Process<'_, '_, T, S> {
    /// Derives from `N` vectors what the recurrence reads, and gives the longest steps so far.
    ///
    /// # Safety
    /// The tiles have these vectors.
    #[inline(always)]
    unsafe fn vectors<const N: usize, const SLOPE: bool>(&self, simd: S, first: usize, mut longest: V<T, S>) -> V<T, S> {
        let Process { problem, tiles, bias, skip } = self;
        let (width, (low, high)) = (T::lanes::<S>(), problem.options.dt_limit);
        let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
        // SAFETY: the caller's contract.
        unsafe {
            let (mut dt, mut slope) = ([zero; N], [one; N]);
            for i in 0..N {
                dt[i] = V::load(simd, tiles.dt.add((first + i) * width)) + *bias;
            }
            if problem.options.dt_softplus {
                for i in 0..if SLOPE { N } else { 0 } {
                    slope[i] = softplus_derivative(dt[i]);
                }
                dt = softplus_each(dt);
            }
            if low > f64::NEG_INFINITY || high < f64::INFINITY {
                let (low, high) = (V::constant(simd, low), V::constant(simd, high));
                for i in 0..N {
                    slope[i] = V::select_less(dt[i], low, zero, V::select_less(high, dt[i], zero, slope[i]));
                    dt[i] = dt[i].max(low).min(high);
                }
            }
            for i in 0..N {
                let at = (first + i) * width;
                dt[i].store(tiles.dt.add(at));
                if SLOPE {
                    slope[i].store(tiles.slope.add(at));
                }
                let x = V::load(simd, tiles.x.add(at));
                let u = if problem.options.discretization == Discretization::Dirac { x } else { x * dt[i] };
                u.store(tiles.u.add(at));
                (x * *skip).store(tiles.y.add(at));
                longest = longest.max(V::load(simd, tiles.dt_a.add(at)).abs());
            }
        }
        longest
    }
}

/// What becomes of the gate.
#[derive(Clone, Copy)]
pub(super) enum Gate<T> {
    /// Multiplies this tile, the output, by `silu(z)`.
    Apply(*mut T),
    /// Writes `silu(z)` over z and its derivative here.
    Differentiate(*mut T),
}

/// Loads z and gates with it.
///
/// # Safety
/// As [`load_tiles`].
#[inline(always)]
pub(super) unsafe fn load_gate<T: Real, S: Isa, const MOST: usize>(
    simd: S,
    z: &View<'_>,
    segment: &Segment,
    lanes: Lanes<T>,
    block: Block,
    start: usize,
    steps: usize,
    tile: *mut T,
    gate: Gate<T>,
    prefetch: &mut Prefetch<MOST>,
) {
    outline(simd, LoadGate { z, segment, lanes, block, start, steps, tile, gate, prefetch });
}

struct LoadGate<'l, 'a, T, const MOST: usize> {
    z: &'l View<'a>,
    segment: &'l Segment,
    lanes: Lanes<T>,
    block: Block,
    start: usize,
    steps: usize,
    tile: *mut T,
    gate: Gate<T>,
    prefetch: &'l mut Prefetch<MOST>,
}

impl<T: Real, const MOST: usize> Kernel for LoadGate<'_, '_, T, MOST> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadGate { z, segment, lanes, block, start, steps, tile, gate, prefetch } = self;
        let width = T::lanes::<S>();
        // SAFETY: the contract of `load_gate`, the only maker of this.
        unsafe {
            lanes.load(simd, timed(z, segment.batch, block, start), block.count, steps, tile);
            let count = lanes.vectors(steps);
            match gate {
                Gate::Apply(y) => {
                    let mut vector = 0;
                    while vector + TOGETHER <= count {
                        prefetch.step(TOGETHER * GATING);
                        apply_gate::<T, S, TOGETHER>(simd, tile.add(vector * width), y.add(vector * width));
                        vector += TOGETHER;
                    }
                    prefetch.step((count - vector) * GATING);
                    for vector in vector..count {
                        apply_gate::<T, S, 1>(simd, tile.add(vector * width), y.add(vector * width));
                    }
                }
                Gate::Differentiate(slope) => {
                    for vector in 0..count {
                        if vector % TOGETHER == 0 {
                            prefetch.step(TOGETHER.min(count - vector) * GATING);
                        }
                        let at = vector * width;
                        let (value, by_z) = silu_and_derivative(V::load(simd, tile.add(at)));
                        value.store(tile.add(at));
                        by_z.store(slope.add(at));
                    }
                }
            }
        }
    }
}

/// Multiplies `N` vectors of the output by `silu(z)`.
///
/// # Safety
/// Both arrays have as many.
#[inline(always)]
unsafe fn apply_gate<T: Real, S: Isa, const N: usize>(simd: S, z: *const T, y: *mut T) {
    let mut gate = [V::constant(simd, 0.0); N];
    // SAFETY: the caller's contract.
    unsafe {
        for i in 0..N {
            gate[i] = V::load(simd, z.add(i * T::lanes::<S>()));
        }
        gate = silu_each(gate);
        for i in 0..N {
            let y = y.add(i * T::lanes::<S>());
            (V::load(simd, y) * gate[i]).store(y);
        }
    }
}
