//! A channel has several lanes if channels are few. Its states are dealt over them then: state `n` is in lane `n % per_channel`
//! of its channel's.
//!
//! Values without states (x, dt, the output) are not repeated, so that nothing is computed twice: a channel's lanes then hold
//! consecutive steps, and a tile is (step / per_channel, channel, step % per_channel). For the recurrence a step is repeated over
//! its channel's lanes, and its sums over states are summed over those lanes afterwards.

use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{self, Area, AreaMut, AreaOf, MAX_LANES, STEPS, Tile, TileMut};
use crate::cpu::{Array, ArrayMut, ArrayOf, Cells, Kernel};

/// How a vector is shared between channels. Methods that bring something from one order to the other take a staging array for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lanes {
    /// Lanes of one channel.
    pub per_channel: usize,
    /// Channels in a vector.
    pub channels: usize,
}

/// Elements of a staging array, for blocks of so many elements of state.
pub(super) fn scratch_len(width: usize, per_channel: usize, state: usize) -> usize {
    // a row of steps for each channel, or three times the states
    if per_channel == 1 { 0 } else { (STEPS * width / per_channel).max(3 * state) }
}

impl Lanes {
    pub(super) fn new(width: usize, per_channel: usize) -> Self {
        debug_assert!(per_channel.is_power_of_two() && per_channel <= width, "a channel has lanes of one vector");
        Lanes { per_channel, channels: width / per_channel }
    }

    pub(super) fn one(self) -> bool {
        self.per_channel == 1
    }

    /// Vectors in a tile of so many steps.
    pub(super) fn vectors(self, steps: usize) -> usize {
        steps.div_ceil(self.per_channel)
    }

    /// Loads a tile; steps that only fill the last vector are zero.
    #[inline(always)]
    pub(super) fn load<T: Real, S: Isa>(self, simd: S, from: Area<'_>, to: ArrayMut<'_, T>, staging: &mut ArrayMut<'_, T>) {
        let width = T::lanes::<S>();
        debug_assert!(from.lanes <= self.channels, "at most a vector of channels");
        debug_assert!(from.steps <= STEPS, "at most a tile");
        debug_assert!(to.has(0, self.vectors(from.steps) * width), "room for the tile");
        match self.one() {
            true => tile::load(simd, from, width, TileMut::new(to, width)),
            false => simd.call(LoadDealt { lanes: self, from, to, staging: staging.reborrow() }),
        }
    }

    /// Stores a tile.
    #[inline(always)]
    pub(super) fn store<T: Real, S: Isa>(self, simd: S, from: Array<'_, T>, to: AreaMut, staging: &mut ArrayMut<'_, T>) {
        debug_assert!(to.lanes <= self.channels, "at most a vector of channels");
        debug_assert!(to.steps <= STEPS, "at most a tile");
        debug_assert!(from.has(0, self.vectors(to.steps) * T::lanes::<S>()), "the tile is there");
        match self.one() {
            true => tile::store(simd, Tile::new(from, T::lanes::<S>()), to),
            false => simd.call(StoreDealt { lanes: self, from, to, staging: staging.reborrow() }),
        }
    }

    /// Whether a tile is whole squares of pairs of f32: they need no staging.
    #[inline(always)]
    fn in_pairs<T: Real, S: Isa>(self, count: usize, steps: usize) -> bool {
        !T::DOUBLE && self.per_channel == 2 && count == self.channels && steps.is_multiple_of(T::lanes::<S>())
    }

    /// Exchanges rows and columns of a square of as many groups of `per_channel` elements as a vector has channels.
    #[inline(always)]
    fn transpose<T: Real, S: Isa>(self, simd: S, from: Tile<'_, T>, mut to: TileMut<'_, T>) {
        match self.per_channel {
            2 if !T::DOUBLE => {
                let len = |pitch: usize| (self.channels - 1) * pitch + T::lanes::<S>();
                let step = |pitch: usize| pitch as isize / 2;
                let (from, from_step) = (from.array.at(0, len(from.pitch)), step(from.pitch));
                let (to, to_step) = (to.array.at_mut(0, len(to.pitch)), step(to.pitch));
                // SAFETY: both tiles are borrowed, and every row lies inside, which debug builds check; a pair of f32 is moved as if it were an
                // f64.
                unsafe { f64::transpose(simd, from.cast(), from_step, to.cast(), to_step) };
            }
            2 => self.transpose_groups::<T, 2>(from, to),
            4 => self.transpose_groups::<T, 4>(from, to),
            8 => self.transpose_groups::<T, 8>(from, to),
            _ => self.transpose_groups::<T, 16>(from, to),
        }
    }

    #[inline(always)]
    fn transpose_groups<T: Real, const N: usize>(self, from: Tile<'_, T>, mut to: TileMut<'_, T>) {
        for row in 0..self.channels {
            for column in 0..self.channels {
                to.from(column, row * N).array.set_group::<N>(0, from.from(row, column * N).array.group(0));
            }
        }
    }

    /// [`Lanes::repeat`] for what the recurrence reads: u, dt, and the decay's step unless that is dt.
    #[inline(always)]
    pub(super) fn repeat_inputs<T: Real, S: Isa>(self, simd: S, from: [Cells<'_, T>; 3], steps: usize, to: [Cells<'_, T>; 3]) {
        debug_assert!(from[0] != to[0] && from[1] != to[1], "the tiles are apart");
        self.repeat(simd, from[0], steps, to[0]);
        self.repeat(simd, from[1], steps, to[1]);
        if from[2] != from[1] {
            self.repeat(simd, from[2], steps, to[2]);
        }
    }

    /// Repeats every step of a tile over the channels' lanes.
    #[inline(always)]
    pub(super) fn repeat<T: Real, S: Isa>(self, simd: S, tile: Cells<'_, T>, steps: usize, to: Cells<'_, T>) {
        debug_assert!(tile.has(0, self.vectors(steps) * T::lanes::<S>()), "the steps are there");
        debug_assert!(to.has(0, self.vectors(steps) * self.per_channel * T::lanes::<S>()), "room for every lane");
        simd.call(Repeat { lanes: self, tile, steps, to });
    }

    /// A vector of the inverse of [`Lanes::repeat`] for what is spread over a channel's lanes: their sum.
    #[inline(always)]
    pub(super) fn summed<T: Real, S: Isa>(self, simd: S, tile: Cells<'_, T>, vector: usize) -> V<T, S> {
        let (width, count) = (T::lanes::<S>(), self.per_channel);
        debug_assert!(tile.has(vector * count * width, count * width), "the vector's steps are there");
        let at = vector * count * width;
        let first = tile.load(simd, at);
        if count == 1 {
            return first;
        }
        let mut rows = [first; MAX_LANES];
        for i in 1..count {
            rows[i] = tile.load(simd, at + i * width);
        }
        let mut half = count / 2;
        while half > 0 {
            for i in 0..half {
                let (a, b) = rows[i].exchange(rows[i + half], half);
                rows[i] = a + b;
            }
            half /= 2;
        }
        rows[0]
    }

    /// Adds the sums of a tile, see [`Lanes::summed`], to another one.
    #[inline(always)]
    pub(super) fn add_sums<T: Real, S: Isa>(self, simd: S, tile: Cells<'_, T>, steps: usize, to: Cells<'_, T>) {
        for vector in 0..self.vectors(steps) {
            let at = vector * T::lanes::<S>();
            to.store(at, to.load(simd, at) + self.summed(simd, tile, vector));
        }
    }

    /// Sums a vector over the steps that share it, in place: one sum for each channel is left.
    pub(super) fn sum_steps<T: Real>(self, vector: &mut ArrayMut<'_, T>) {
        if self.one() {
            return;
        }
        let lanes = vector.slice(0, self.channels * self.per_channel);
        for channel in 0..self.channels {
            // the element that is overwritten has been read
            let own = &lanes[channel * self.per_channel..][..self.per_channel];
            lanes[channel] = own.iter().fold(T::default(), |sum, x| sum + *x);
        }
    }

    /// The sums over channels of as many rows as a vector has lanes, a vector for each of a channel's `count` lanes: row `i` is in lane `i`.
    #[inline(always)]
    pub(super) fn sum_rows<T: Real, S: Isa, A>(
        simd: S,
        count: usize,
        rows: ArrayOf<'_, T, A>,
        step: usize,
    ) -> [V<T, S>; MAX_LANES] {
        let width = T::lanes::<S>();
        debug_assert!(count.is_power_of_two() && count <= width, "lanes of a channel");
        debug_assert!(step >= width, "rows do not overlap");
        match count {
            1 => [rows.sum_rows(simd, 0, step); MAX_LANES],
            2 => {
                let [first, second] = rows.sum_pairs(simd, 0, step);
                let mut sums = [first; MAX_LANES];
                sums[1] = second;
                sums
            }
            4 => rows.sum_rows_apart::<S, 4>(simd, 0, step),
            8 => rows.sum_rows_apart::<S, 8>(simd, 0, step),
            _ => rows.sum_rows_apart::<S, 16>(simd, 0, step),
        }
    }

    /// A number for each channel, repeated over its lanes.
    #[inline(always)]
    pub(super) fn repeated<T: Real, S: Isa>(self, simd: S, channels: [T; MAX_LANES]) -> V<T, S> {
        let mut lanes = [T::default(); MAX_LANES];
        for (lane, to) in lanes.iter_mut().enumerate().take(T::lanes::<S>()) {
            *to = channels[lane / self.per_channel];
        }
        V::from_array(simd, &lanes)
    }

    /// The largest of each channel's lanes, NaN if one is, repeated over them.
    #[inline(always)]
    pub(super) fn largest<T: Real, S: Isa>(self, x: V<T, S>) -> V<T, S> {
        let (lanes, mut largest) = (x.to_array(), [T::default(); MAX_LANES]);
        for (own, to) in lanes.chunks(self.per_channel).zip(&mut largest) {
            *to = own.iter().fold(own[0], |a, b| if a.to_f64().is_nan() || a >= *b { a } else { *b });
        }
        self.repeated(x.simd(), largest)
    }

    /// Loads states (state, part, lane) from an area of channels x states.
    #[inline(always)]
    pub(super) fn load_states<T: Real, S: Isa>(
        self,
        simd: S,
        from: Area<'_>,
        parts: usize,
        to: ArrayMut<'_, T>,
        staging: &mut ArrayMut<'_, T>,
    ) {
        debug_assert!(from.lanes <= self.channels, "at most a vector of channels");
        debug_assert!(to.has(0, from.steps * parts * self.channels), "room for the states");
        simd.call(LoadStates { lanes: self, from, parts, to, staging: staging.reborrow() });
    }

    /// Stores states (state, part, lane) to an area of channels x states.
    #[inline(always)]
    pub(super) fn store_states<T: Real, S: Isa>(
        self,
        simd: S,
        from: Array<'_, T>,
        parts: usize,
        to: AreaMut,
        staging: &mut ArrayMut<'_, T>,
    ) {
        debug_assert!(to.lanes <= self.channels, "at most a vector of channels");
        debug_assert!(from.has(0, to.steps * parts * self.channels), "the states are there");
        simd.call(StoreStates { lanes: self, from, parts, to, staging: staging.reborrow() });
    }

    /// Deals states (state, part, channel) over the channels' lanes. With one lane they are loaded where they should be.
    #[inline(always)]
    pub(super) fn deal<T: Real>(self, from: Array<'_, T>, sizes: [usize; 2], to: &mut ArrayMut<'_, T>) {
        if self.one() {
            return;
        }
        let len = sizes[0] * sizes[1] * self.channels;
        debug_assert!(sizes[0].is_multiple_of(self.per_channel), "whole vectors of states");
        debug_assert!(from.has(0, len) && to.has(0, len), "both sides have room for the states");
        if (self.per_channel, self.channels) == (2, 8) {
            return Self::deal_pairs(from, sizes, to);
        }
        self.positions(sizes, |dealt, collected| to.set(dealt, from.get(collected)));
    }

    /// [`Lanes::deal`] for two lanes of each of eight channels, of a known size so that it takes a few instructions.
    #[inline(always)]
    fn deal_pairs<T: Real>(from: Array<'_, T>, [dstate, parts]: [usize; 2], to: &mut ArrayMut<'_, T>) {
        debug_assert!(dstate.is_multiple_of(2), "whole pairs of states");
        for group in 0..dstate / 2 * parts {
            let (n, part) = (group / parts * 2, group % parts);
            let [even, odd] = [n, n + 1].map(|n| from.group::<8>((n * parts + part) * 8));
            let mut both = [T::default(); 16];
            for i in 0..8 {
                (both[2 * i], both[2 * i + 1]) = (even[i], odd[i]);
            }
            to.set_group(group * 16, both);
        }
    }

    /// The inverse of [`Lanes::deal`]: with several lanes a copy, which one of three is free to choose.
    pub(super) fn collect<T: Real>(self, from: Array<'_, T>, sizes: [usize; 2], copy: usize, staging: &mut ArrayMut<'_, T>) {
        if self.one() {
            return;
        }
        let len = sizes[0] * sizes[1] * self.channels;
        debug_assert!(copy < 3, "there is room for three copies");
        debug_assert!(from.has(0, len), "the states are there");
        let mut to = staging.from(copy * len);
        debug_assert!(to.has(0, len), "the copy has room");
        self.positions(sizes, |dealt, collected| to.set(collected, from.get(dealt)));
    }

    /// Returns the array that has the states as (state, part, channel) after that.
    #[inline(always)]
    pub(super) fn collected<'c, T>(
        self,
        from: Array<'c, T>,
        sizes: [usize; 2],
        copy: usize,
        staging: Array<'c, T>,
    ) -> Array<'c, T> {
        if self.one() { from } else { staging.from(copy * sizes[0] * sizes[1] * self.channels) }
    }

    fn positions(self, [dstate, parts]: [usize; 2], mut each: impl FnMut(usize, usize)) {
        for n in 0..dstate {
            for part in 0..parts {
                for channel in 0..self.channels {
                    let group = (n / self.per_channel * parts + part) * self.channels + channel;
                    each(group * self.per_channel + n % self.per_channel, (n * parts + part) * self.channels + channel);
                }
            }
        }
    }
}

/// [`Lanes::load`] with several lanes a channel: a function of its own, for it is called from many places.
struct LoadDealt<'l, T> {
    lanes: Lanes,
    from: Area<'l>,
    to: ArrayMut<'l, T>,
    staging: ArrayMut<'l, T>,
}

impl<T: Real> Kernel for LoadDealt<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadDealt { lanes, from: AreaOf { plane, lanes: count, steps }, mut to, staging } = self;
        let (channels, width) = (lanes.channels, T::lanes::<S>());
        if let Some((from, step)) = plane.pairs().filter(|_| lanes.in_pairs::<T, S>(count, steps)) {
            for t in (0..steps).step_by(width) {
                let to = to.at_mut(t * channels, channels * width);
                // SAFETY: the plane has the channels and steps, and the tile is borrowed.
                unsafe { f64::transpose(simd, from.add(t / 2), step, to.cast(), width as isize / 2) };
            }
            return;
        }
        let (mut rows, whole) = (TileMut::new(staging, STEPS), steps.next_multiple_of(width));
        tile::load(simd, plane.transposed().area(steps, count), steps, rows.reborrow());
        for channel in 0..channels {
            let read = if channel < count { steps } else { 0 };
            rows.array.slice(channel * STEPS + read, whole - read).fill(T::default());
        }
        for t in (0..whole).step_by(width) {
            lanes.transpose(simd, rows.read().from(0, t), TileMut::new(to.from(t * channels), width));
        }
    }
}

/// [`Lanes::store`], likewise.
struct StoreDealt<'l, T> {
    lanes: Lanes,
    from: Array<'l, T>,
    to: AreaMut,
    staging: ArrayMut<'l, T>,
}

impl<T: Real> Kernel for StoreDealt<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let StoreDealt { lanes, from, to: AreaOf { plane, lanes: count, steps }, staging } = self;
        let (channels, width) = (lanes.channels, T::lanes::<S>());
        if let Some((to, step)) = plane.pairs().filter(|_| lanes.in_pairs::<T, S>(count, steps)) {
            for t in (0..steps).step_by(width) {
                let from = from.at(t * channels, channels * width);
                // SAFETY: the plane has the channels and steps, and the tile is borrowed.
                unsafe { f64::transpose(simd, from.cast(), width as isize / 2, to.add(t / 2), step) };
            }
            return;
        }
        let mut rows = TileMut::new(staging, STEPS);
        for t in (0..steps).step_by(width) {
            lanes.transpose(simd, Tile::new(from.from(t * channels), width), rows.from(0, t));
        }
        tile::store(simd, rows.read(), plane.transposed().area(steps, count));
    }
}

/// [`Lanes::load_states`], likewise.
struct LoadStates<'l, T> {
    lanes: Lanes,
    from: Area<'l>,
    parts: usize,
    to: ArrayMut<'l, T>,
    staging: ArrayMut<'l, T>,
}

impl<T: Real> Kernel for LoadStates<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let LoadStates { lanes, from, parts, mut to, mut staging } = self;
        let loaded = if lanes.one() { to.reborrow() } else { staging.reborrow() };
        tile::load_parts(simd, from, parts, lanes.channels, loaded);
        lanes.deal(staging.read(), [from.steps, parts], &mut to);
    }
}

/// [`Lanes::store_states`], likewise.
struct StoreStates<'l, T> {
    lanes: Lanes,
    from: Array<'l, T>,
    parts: usize,
    to: AreaMut,
    staging: ArrayMut<'l, T>,
}

impl<T: Real> Kernel for StoreStates<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let StoreStates { lanes, from, parts, to, mut staging } = self;
        let sizes = [to.steps, parts];
        lanes.collect(from, sizes, 0, &mut staging);
        tile::store_parts(simd, lanes.collected(from, sizes, 0, staging.read()), parts, lanes.channels, to);
    }
}

/// See [`Lanes::repeat`].
struct Repeat<'l, T> {
    lanes: Lanes,
    tile: Cells<'l, T>,
    steps: usize,
    to: Cells<'l, T>,
}

impl<T: Real> Kernel for Repeat<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Repeat { lanes, tile, steps, to } = self;
        let width = T::lanes::<S>();
        for vector in 0..lanes.vectors(steps) {
            let x: V<T, S> = tile.load(simd, vector * width);
            let at = vector * lanes.per_channel * width;
            match lanes.per_channel {
                // known at compile time, two instructions
                2 => {
                    to.store(at, x.repeat(2, 0));
                    to.store(at + width, x.repeat(2, 1));
                }
                count => {
                    for position in 0..count {
                        to.store(at + position * width, x.repeat(count, position));
                    }
                }
            }
        }
    }
}
