//! The inputs of a job's loops: tiles of a block of channels, its parameters, maps.

use super::super::{Problem, Projection};
use super::here::{by_state, double};
use super::lanes::Lanes;
use super::plan::Block;
use super::{Context, Types, Variant};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Plane, STEPS};
use crate::cpu::{Array, ArrayMut, Arrays, Cells, Room};
use crate::ops::rules::{BOUND, FieldKind};
use crate::tensor::View;

/// Elements of what jobs work with.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// A vector.
    pub width: usize,
    /// Blocks of channels in the widest range.
    pub blocks: usize,
    /// The states of a block.
    pub state: usize,
    /// A tile of B or C.
    pub map: usize,
    /// A tile of one real quantity with every step repeated over its channel's lanes.
    pub tile: usize,
    /// A tile of one real quantity with consecutive steps in a channel's lanes.
    pub own_tile: usize,
    /// See [`scratch_len`](super::lanes::scratch_len).
    pub lanes: usize,
}

impl Sizes {
    pub(super) fn new<E: Types>(context: &Context<'_, '_>) -> Self {
        let Context { problem, plan, width, .. } = context;
        let (width, per_channel, numbers) = (*width, plan.lanes_per_channel, problem.dstate * E::K::PARTS);
        let longest = plan.channels.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let (state, tile) = (numbers / per_channel * width, tile_len(width));
        Sizes {
            width,
            blocks: longest.div_ceil(width / per_channel),
            state,
            map: STEPS * numbers,
            tile,
            own_tile: tile / per_channel,
            lanes: super::lanes::scratch_len(width, per_channel, state),
        }
    }
}

/// The tiles of a vector of channels, in the order of [`Lanes`]; for the recurrence (step, lane). Some may be others by another name.
#[derive(Clone, Copy)]
pub(super) struct Tiles<'m, T> {
    /// The input.
    pub x: Cells<'m, T>,
    /// The step, processed.
    pub dt: Cells<'m, T>,
    /// The decay's step: `dt` itself unless it has its own.
    pub dt_a: Cells<'m, T>,
    /// `dt x` (`x` for `dirac`): what B is multiplied with.
    pub u: Cells<'m, T>,
    /// The derivative of the processed step by the raw one; written only by a backward pass.
    pub slope: Cells<'m, T>,
    /// The skip `D x`, where the output starts.
    pub y: Cells<'m, T>,
    /// The largest step of the decay in magnitude, (lane).
    pub longest: Cells<'m, T>,
}

/// The memory of [`Tiles`].
pub(super) struct TilesMut<'m, T> {
    pub x: ArrayMut<'m, T>,
    pub dt: ArrayMut<'m, T>,
    /// None where that is `dt`.
    pub dt_a: Option<ArrayMut<'m, T>>,
    /// None where it takes the place of `x`.
    pub u: Option<ArrayMut<'m, T>>,
    /// None where it is not wanted.
    pub slope: Option<ArrayMut<'m, T>>,
    pub y: ArrayMut<'m, T>,
    pub longest: ArrayMut<'m, T>,
}

impl<T> TilesMut<'_, T> {
    /// All of them by name.
    #[inline(always)]
    pub(super) fn cells(&mut self) -> Tiles<'_, T> {
        let (x, dt) = (self.x.cells(), self.dt.cells());
        Tiles {
            x,
            dt,
            dt_a: self.dt_a.as_mut().map_or(dt, ArrayMut::cells),
            u: self.u.as_mut().map_or(x, ArrayMut::cells),
            slope: self.slope.as_mut().map_or(x, ArrayMut::cells),
            y: self.y.cells(),
            longest: self.longest.cells(),
        }
    }
}

/// Parameters of a block of channels.
#[derive(Clone, Copy)]
pub(super) struct ParametersOf<A> {
    /// (state, part, lane); B and C where they are constant.
    pub a: A,
    pub b: A,
    pub c: A,
    /// A vector each, repeated over the channels' lanes: the largest real part of A in magnitude, the bias of dt, the skip.
    largest: A,
    bias: A,
    skip: A,
}

/// Parameters that are loaded.
pub(super) type Parameters<'m, T> = ParametersOf<Array<'m, T>>;
/// Parameters to be loaded.
pub(super) type ParametersMut<'m, T> = ParametersOf<ArrayMut<'m, T>>;

/// Parameters of all blocks of a job.
pub(super) type ParametersOfBlocks<'m, T> = ParametersOf<Arrays<'m, T>>;

impl<A> ParametersOf<A> {
    /// Applies a function to each parameter.
    #[inline(always)]
    pub(super) fn each<'p, B>(&'p self, f: impl Fn(&'p A) -> B) -> ParametersOf<B> {
        let ParametersOf { a, b, c, largest, bias, skip } = self;
        ParametersOf { a: f(a), b: f(b), c: f(c), largest: f(largest), bias: f(bias), skip: f(skip) }
    }
}

impl<'m, T: Real> ParametersOfBlocks<'m, T> {
    pub(super) fn lay_out(room: &mut Room<'m, T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
        let Sizes { blocks, state, width, .. } = sizes;
        let map = |map: &Projection<View<'_>>| if let Projection::Constant(_) = map { state } else { 0 };
        ParametersOf {
            a: room.arrays(blocks, state),
            b: room.arrays(blocks, map(&problem.b)),
            c: room.arrays(blocks, map(&problem.c)),
            largest: room.arrays(blocks, width),
            bias: room.arrays(blocks, width),
            skip: room.arrays(blocks, width),
        }
    }

    /// Returns the parameters of block `i`.
    #[inline(always)]
    pub(super) fn of(&self, i: usize) -> Parameters<'_, T> {
        self.each(|arrays| arrays.read(i))
    }

    /// Returns the parameters of block `i`, to be loaded.
    #[inline(always)]
    pub(super) fn of_mut(&mut self, i: usize) -> ParametersMut<'_, T> {
        let ParametersOf { a, b, c, largest, bias, skip } = self;
        ParametersOf { a: a.of(i), b: b.of(i), c: c.of(i), largest: largest.of(i), bias: bias.of(i), skip: skip.of(i) }
    }
}

impl<T: Real> ParametersMut<'_, T> {
    /// Loads them.
    #[inline(always)]
    pub(super) fn load<E: Types<T = T>, S: Isa>(
        mut self,
        simd: S,
        lanes: Lanes,
        problem: &Problem<'_>,
        block: Block,
        staging: &mut ArrayMut<'_, T>,
    ) {
        let (field, state) = (E::K::PARTS * T::lanes::<S>(), problem.dstate * E::K::PARTS * lanes.channels);
        debug_assert!(block.first + block.count <= problem.dim, "the block lies inside the problem");
        debug_assert!(problem.dstate.is_multiple_of(lanes.per_channel), "whole vectors of states");
        parameter::<E, S>(simd, lanes, &problem.a, block, self.a.reborrow(), staging);
        let mut largest = V::constant(simd, 0.0);
        for n in 0..problem.dstate / lanes.per_channel {
            largest = largest.max(self.a.load(simd, n * field).abs());
        }
        self.largest.store(0, lanes.largest(largest));
        self.bias.store(0, channel_vector(simd, lanes, &problem.dt_bias, block));
        self.skip.store(0, channel_vector(simd, lanes, &problem.d, block));
        if let Projection::Constant(view) = &problem.b {
            parameter::<E, S>(simd, lanes, view, block, self.b, staging);
        }
        if let Projection::Constant(view) = &problem.c {
            parameter::<E, S>(simd, lanes, view, block, self.c.reborrow(), staging);
            if E::K::PARTS == 2 {
                double(self.c.slice(0, state));
            }
        }
    }
}

impl<T: Real> Parameters<'_, T> {
    /// The bias of dt and the skip.
    #[inline(always)]
    pub(super) fn bias_and_skip<S: Isa>(&self, simd: S) -> [V<T, S>; 2] {
        [self.bias.load(simd, 0), self.skip.load(simd, 0)]
    }
}

impl<T: Real> Tiles<'_, T> {
    /// Whether no exponent `dt A` of the tile is near the ends of the range.
    #[inline(always)]
    pub(super) fn bounded<S: Isa>(&self, simd: S, parameters: &Parameters<'_, T>) -> bool {
        let limit = V::constant(simd, BOUND * core::f64::consts::LN_2);
        let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
        let exponent = self.longest.load(simd, 0) * parameters.largest.load(simd, 0);
        // a NaN, zero times infinity, is no bound
        !zero.any_less(V::select_less(exponent, limit, zero, one))
    }
}

/// Loads a per-channel vector, (D,), repeated over the channels' lanes; absent ones are 0.
#[inline(always)]
fn channel_vector<T: Real, S: Isa>(simd: S, lanes: Lanes, view: &Option<View<'_>>, block: Block) -> V<T, S> {
    let mut values = [T::default(); tile::MAX_LANES];
    debug_assert!(block.count <= lanes.channels, "at most a vector of channels");
    if let Some(view) = view {
        debug_assert!(block.first + block.count <= view.shape()[0], "the block lies inside the view");
        for i in 0..block.count {
            let value = view.at(&[block.first + i]);
            values[i] = T::from_f64(value.re);
        }
    }
    lanes.repeated(simd, values)
}

/// Loads a (D, N) parameter as (state, part, lane).
#[inline(always)]
fn parameter<E: Types, S: Isa>(
    simd: S,
    lanes: Lanes,
    view: &View<'_>,
    block: Block,
    to: ArrayMut<'_, E::T>,
    staging: &mut ArrayMut<'_, E::T>,
) {
    debug_assert!(block.first + block.count <= view.shape()[0], "the block lies inside the view");
    let area = Plane::of(view, 0, 1).at(block.first, 0).area(block.count, view.shape()[1]);
    lanes.load_states(simd, area, E::K::PARTS, to, staging)
}

/// Reads the map of a vector of states at a step: the group's states over and over, or the channels' own constants.
#[derive(Clone, Copy)]
pub(super) struct Map<'m, T> {
    /// The tile, or the constants (state, part, lane).
    from: Array<'m, T>,
    pub varying: bool,
    per_channel: usize,
    /// Elements of the tile from step to step and from one vector of states to the next.
    strides: [usize; 2],
}

impl<'m, T: Real> Map<'m, T> {
    /// The map of a job's tile or of a block's constants.
    pub(super) fn new<E: Types<T = T>>(
        of: &Projection<View<'_>>,
        tile: Array<'m, T>,
        own: Array<'m, T>,
        lanes: Lanes,
        dstate: usize,
    ) -> Self {
        let (varying, per_channel) = (matches!(of, Projection::Varying(_)), lanes.per_channel);
        let strides = if by_state::<E>(per_channel) { [1, STEPS] } else { [E::K::PARTS * dstate, per_channel] };
        Map { from: if varying { tile } else { own }, varying, per_channel, strides }
    }

    /// `n` counts vectors of states; `dstate` is the number of states.
    #[inline(always)]
    pub(super) fn at<E: Variant<T = T>, S: Isa>(
        self,
        simd: S,
        t: usize,
        n: usize,
        dstate: usize,
    ) -> <E::K as FieldKind>::Of<T, S> {
        let parts = E::K::PARTS;
        debug_assert!(t < STEPS && n * self.per_channel < dstate, "step and states lie inside the tile");
        if !E::VARYING && !self.varying {
            return self.from.load_field(simd, n * parts * T::lanes::<S>());
        }
        let [step, state] = match E::LANES {
            1 if parts == 1 => [1, STEPS],
            0 => self.strides,
            per_channel => [parts * dstate, per_channel],
        };
        let per_channel = if E::LANES > 0 { E::LANES } else { self.per_channel };
        self.from.cycle_field(simd, t * step + n * state, dstate, per_channel)
    }
}

/// Number of elements of a tile of one real quantity.
pub(super) fn tile_len(lanes: usize) -> usize {
    STEPS * lanes
}

/// Rows to be copied to an array. Lanes past a block's channels belong to other jobs, so they are left alone.
pub(super) struct CopyRows<'c, T> {
    pub to: ArrayMut<'c, T>,
    pub from_pitch: usize,
    pub to_pitch: usize,
    pub rows: usize,
    /// Elements of a row.
    pub count: usize,
}

impl<T: Real> CopyRows<'_, T> {
    #[inline(always)]
    pub(super) fn run<S: Isa>(&mut self, simd: S, rows: Array<'_, T>) {
        debug_assert!(self.count <= self.from_pitch && self.count <= self.to_pitch, "rows do not overlap");
        debug_assert!(self.count <= T::lanes::<S>(), "at most a vector of channels");
        for row in 0..self.rows {
            let (from, to) = (row * self.from_pitch, row * self.to_pitch);
            // a copy of unknown length is a call, which takes longer than a vector
            match self.count == T::lanes::<S>() {
                true => self.to.store(to, rows.load(simd, from)),
                false => self.to.slice(to, self.count).copy_from_slice(rows.shared(from, self.count)),
            }
        }
    }
}
