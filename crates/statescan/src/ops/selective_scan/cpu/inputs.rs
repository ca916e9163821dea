//! What the loops of a job read: tiles of a block of channels, its parameters, maps.

use super::super::{Problem, Projection};
use super::here::{by_state, double};
use super::lanes::Lanes;
use super::plan::Block;
use super::{Context, Types, Variant};
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Plane, STEPS};
use crate::cpu::{Array, Arrays, Room};
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
    /// The same with steps in a channel's lanes one after the other.
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

/// The tiles of a vector of channels, in the order of [`Lanes`]; for the recurrence (step, lane).
#[derive(Clone, Copy)]
pub(super) struct Tiles<T> {
    /// The input.
    pub x: Array<T>,
    /// The step, processed.
    pub dt: Array<T>,
    /// The decay's step: `dt` itself unless it has its own.
    pub dt_a: Array<T>,
    /// `dt x` (`x` for `dirac`): what B is multiplied with.
    pub u: Array<T>,
    /// The derivative of the processed step by the raw one; written only by a backward pass.
    pub slope: Array<T>,
    /// The skip `D x`, where the output starts.
    pub y: Array<T>,
    /// The largest step of the decay in magnitude, (lane).
    pub longest: Array<T>,
}

/// Parameters of a block of channels.
#[derive(Clone, Copy)]
pub(super) struct Parameters<T> {
    /// (state, part, lane); B and C where they are constant.
    pub a: Array<T>,
    pub b: Array<T>,
    pub c: Array<T>,
    /// A vector each, repeated over the channels' lanes: the largest real part of A in magnitude, the bias of dt, the skip.
    largest: Array<T>,
    bias: Array<T>,
    skip: Array<T>,
}

/// The same for all blocks of a job.
#[derive(Clone, Copy)]
pub(super) struct ParametersOfBlocks<T> {
    a: Arrays<T>,
    b: Arrays<T>,
    c: Arrays<T>,
    largest: Arrays<T>,
    bias: Arrays<T>,
    skip: Arrays<T>,
}

impl<T: Real> ParametersOfBlocks<T> {
    pub(super) fn lay_out(room: &mut Room<T>, problem: &Problem<'_>, sizes: Sizes) -> Self {
        let Sizes { blocks, state, width, .. } = sizes;
        let map = |map: &Projection<View<'_>>| if let Projection::Constant(_) = map { state } else { 0 };
        ParametersOfBlocks {
            a: room.arrays(blocks, state),
            b: room.arrays(blocks, map(&problem.b)),
            c: room.arrays(blocks, map(&problem.c)),
            largest: room.arrays(blocks, width),
            bias: room.arrays(blocks, width),
            skip: room.arrays(blocks, width),
        }
    }

    /// Those of a block, by its number.
    #[inline(always)]
    pub(super) fn of(self, i: usize) -> Parameters<T> {
        let [a, b, c] = [self.a, self.b, self.c].map(|arrays| arrays.of(i));
        Parameters { a, b, c, largest: self.largest.of(i), bias: self.bias.of(i), skip: self.skip.of(i) }
    }
}

impl<T: Real> Parameters<T> {
    /// Loads them.
    #[inline(always)]
    pub(super) fn load<E: Types<T = T>, S: Isa>(self, simd: S, lanes: Lanes<T>, problem: &Problem<'_>, block: Block) {
        let (field, state) = (E::K::PARTS * T::lanes::<S>(), problem.dstate * E::K::PARTS * lanes.channels);
        debug_assert!(block.first + block.count <= problem.dim, "the block lies inside the problem");
        debug_assert!(problem.dstate.is_multiple_of(lanes.per_channel), "whole vectors of states");
        parameter::<E, S>(simd, lanes, &problem.a, block, self.a);
        let mut largest = V::constant(simd, 0.0);
        for n in 0..problem.dstate / lanes.per_channel {
            largest = largest.max(self.a.load(simd, n * field).abs());
        }
        self.largest.store(0, lanes.largest(largest));
        self.bias.store(0, channel_vector(simd, lanes, &problem.dt_bias, block));
        self.skip.store(0, channel_vector(simd, lanes, &problem.d, block));
        if let Projection::Constant(view) = &problem.b {
            parameter::<E, S>(simd, lanes, view, block, self.b);
        }
        if let Projection::Constant(view) = &problem.c {
            parameter::<E, S>(simd, lanes, view, block, self.c);
            if E::K::PARTS == 2 {
                double(self.c.slice(0, state));
            }
        }
    }

    /// The bias of dt and the skip.
    #[inline(always)]
    pub(super) fn bias_and_skip<S: Isa>(&self, simd: S) -> [V<T, S>; 2] {
        [self.bias.load(simd, 0), self.skip.load(simd, 0)]
    }
}

impl<T: Real> Tiles<T> {
    /// Repeats what the recurrence reads over each channel's lanes.
    #[inline(always)]
    pub(super) fn repeat<S: Isa>(&self, simd: S, lanes: Lanes<T>, steps: usize, to: &Tiles<T>) {
        debug_assert!(self.u != to.u && self.dt != to.dt, "the tiles are apart");
        lanes.repeat(simd, self.u, steps, to.u);
        lanes.repeat(simd, self.dt, steps, to.dt);
        if self.dt_a != self.dt {
            lanes.repeat(simd, self.dt_a, steps, to.dt_a);
        }
    }

    /// Whether no exponent `dt A` of the tile is near the ends of the range.
    #[inline(always)]
    pub(super) fn bounded<S: Isa>(&self, simd: S, parameters: &Parameters<T>) -> bool {
        let limit = V::constant(simd, BOUND * core::f64::consts::LN_2);
        let (zero, one) = (V::constant(simd, 0.0), V::constant(simd, 1.0));
        let exponent = self.longest.load(simd, 0) * parameters.largest.load(simd, 0);
        // a NaN, zero times infinity, is no bound
        !zero.any_less(V::select_less(exponent, limit, zero, one))
    }
}

/// Loads a per-channel vector, (D,), repeated over the channels' lanes; absent ones are 0.
#[inline(always)]
fn channel_vector<T: Real, S: Isa>(simd: S, lanes: Lanes<T>, view: &Option<View<'_>>, block: Block) -> V<T, S> {
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
fn parameter<E: Types, S: Isa>(simd: S, lanes: Lanes<E::T>, view: &View<'_>, block: Block, to: Array<E::T>) {
    debug_assert!(block.first + block.count <= view.shape()[0], "the block lies inside the view");
    let area = Plane::of(view, 0, 1).at(block.first, 0).area(block.count, view.shape()[1]);
    lanes.load_states(simd, area, E::K::PARTS, to)
}

/// Reads the map of a vector of states at a step: the group's states over and over, or the channels' own constants.
#[derive(Clone, Copy)]
pub(super) struct Map<T> {
    /// The tile, or the constants (state, part, lane).
    from: Array<T>,
    pub varying: bool,
    per_channel: usize,
    /// Elements of the tile from step to step and from one vector of states to the next.
    strides: [usize; 2],
}

impl<T: Real> Map<T> {
    /// The map of a job's tile or of a block's constants.
    pub(super) fn new<E: Types<T = T>>(
        of: &Projection<View<'_>>,
        tile: Array<T>,
        own: Array<T>,
        lanes: Lanes<T>,
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

/// Rows to be copied between arrays. Lanes past a block's channels belong to other jobs, so they are left alone.
#[derive(Clone, Copy)]
pub(super) struct CopyRows<T> {
    pub from: Array<T>,
    pub from_pitch: usize,
    pub to: Array<T>,
    pub to_pitch: usize,
    pub rows: usize,
    /// Elements of a row.
    pub count: usize,
}

impl<T: Real> CopyRows<T> {
    #[inline(always)]
    pub(super) fn run<S: Isa>(self, simd: S) {
        debug_assert!(self.count <= self.from_pitch && self.count <= self.to_pitch, "rows do not overlap");
        debug_assert!(self.count <= T::lanes::<S>(), "at most a vector of channels");
        for row in 0..self.rows {
            let (from, to) = (row * self.from_pitch, row * self.to_pitch);
            // a copy of unknown length is a call, which takes longer than a vector
            match self.count == T::lanes::<S>() {
                true => self.to.store(to, self.from.load(simd, from)),
                false => self.to.slice(to, self.count).copy_from_slice(self.from.shared(from, self.count)),
            }
        }
    }
}
