//! Turned maps on the CPU: the angles of each head; then maps, some steps a job; and backwards the sums over later steps, head by head. What jobs
//! leave for later ones is theirs alone: numbers of their head, or of their steps.

mod steps;

use super::{GradientTargets, Problem, Sources, Targets};
use crate::cpu::simd::{Isa, Real};
use crate::cpu::tile::{self, MAX_LANES, Plane, PlaneMut, Tile, TileMut};
use crate::cpu::{Arena, ArrayMut, Kernel, Room, add_up};
use crate::exec::Exec;
use crate::tensor::{RawViewMut, View};
use core::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Jobs at most: each leaves sums of its own for the biases.
const MOST_JOBS: usize = 128;
/// Steps that a job has at least.
const STEPS: usize = 16;

pub(super) fn forward(exec: &Exec, p: &Problem<'_>, targets: &Targets) {
    match p.double {
        true => turn::<f64>(exec, p, targets),
        false => turn::<f32>(exec, p, targets),
    }
}

pub(super) fn backward(exec: &Exec, p: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    match p.double {
        true => turn_back::<f64>(exec, p, sources, targets),
        false => turn_back::<f32>(exec, p, sources, targets),
    }
}

fn work(p: &Problem<'_>) -> usize {
    p.batch.saturating_mul(p.seqlen).saturating_mul(p.nheads).saturating_mul(8 * p.dstate)
}

/// The steps of each job: steps of all rows, and how many a job has.
fn division(p: &Problem<'_>) -> (usize, usize) {
    let steps = p.batch * p.seqlen;
    (steps, STEPS.max(steps.div_ceil(MOST_JOBS)))
}

fn turn<T: Real>(exec: &Exec, p: &Problem<'_>, targets: &Targets) {
    let exec = &exec.for_work(work(p));
    let angles = &steps::angles::<T>(exec, p);
    let (steps, each) = division(p);
    exec.for_each(steps.div_ceil(each), Arena::<T>::default, |arena, job| {
        let steps = job * each..steps.min((job + 1) * each);
        arena.lend(|room| Maps::lay_out(room, p), |maps| exec.level().dispatch(Forward { p, targets, angles, maps, steps }));
    });
}

fn turn_back<T: Real>(exec: &Exec, p: &Problem<'_>, sources: &Sources<'_>, targets: &GradientTargets) {
    let exec = &exec.for_work(work(p));
    let angles = &steps::angles::<T>(exec, p);
    let (steps, each) = division(p);
    let (jobs, biases, turns) = (steps.div_ceil(each), 2 * p.nheads * p.dstate, p.nheads * p.angles);
    let (mut sums, mut by_angles) = (vec![0.0; jobs * biases], vec![T::default(); steps * turns]);
    // each job has its own parts, so that no lock is ever waited for
    let (mut of_biases, mut of_angles) = (sums.chunks_mut(biases.max(1)), by_angles.chunks_mut((each * turns).max(1)));
    let mut part = || (of_biases.next().unwrap_or_default(), of_angles.next().unwrap_or_default());
    let parts: Vec<_> = (0..jobs).map(|_| Mutex::new(part())).collect();
    exec.for_each(jobs, Arena::<T>::default, |arena, job| {
        let mut part = parts[job].lock().unwrap_or_else(PoisonError::into_inner);
        let (sums, by_angles) = &mut *part;
        let steps = job * each..steps.min((job + 1) * each);
        arena.lend(
            |room| [Maps::lay_out(room, p), Maps::lay_out(room, p)],
            |[maps, by]| exec.level().dispatch(Backward { p, sources, targets, angles, maps, by, sums, by_angles, steps }),
        );
    });
    drop(parts);
    if let Some(target) = &targets.bias {
        let mut totals = vec![0.0; biases];
        add_up(&mut totals, sums.chunks(biases.max(1)));
        for (row, totals) in totals.chunks(p.dstate.max(1)).enumerate() {
            let [map, head, column] = [0, 1, 2].map(|axis| target.strides()[axis]);
            let first = (row / p.nheads) as isize * map + (row % p.nheads) as isize * head;
            totals.iter().enumerate().for_each(|(n, &sum)| target.write(first + n as isize * column, sum.into()));
        }
    }
    steps::by_rates(exec, p, &by_angles, targets);
}

/// The row of a tensor at an index of its first axes, or one number at an index of all, and those that lie `step` elements apart.
fn rows<'v>(view: &View<'v>, at: &[usize], step: isize) -> Plane<'v> {
    let strides = view.strides();
    let start = Plane::strided(view, strides.get(at.len()).copied().unwrap_or(0), step);
    at.iter().zip(strides.iter()).fold(start, |plane, (&i, &stride)| plane.along(i, stride))
}

fn rows_mut(view: &RawViewMut, at: &[usize], step: isize) -> PlaneMut {
    let strides = view.strides();
    let start = PlaneMut::strided(view, strides.get(at.len()).copied().unwrap_or(0), step);
    at.iter().zip(strides.iter()).fold(start, |plane, (&i, &stride)| plane.along(i, stride))
}

fn padded(columns: usize) -> usize {
    columns.next_multiple_of(MAX_LANES)
}

/// Both maps of a step as they are given, those of a head, biases of all heads, and a number.
struct Maps<'m, T> {
    given: [ArrayMut<'m, T>; 2],
    own: [ArrayMut<'m, T>; 2],
    biases: [ArrayMut<'m, T>; 2],
    number: ArrayMut<'m, T>,
}

impl<'m, T: Real> Maps<'m, T> {
    fn lay_out(room: &mut Room<'m, T>, p: &Problem<'_>) -> Self {
        let columns = padded(p.dstate);
        let mut pair = |len| [room.array(len), room.array(len)];
        let (given, own, biases) = (pair(columns), pair(columns), pair(p.nheads * columns));
        Maps { given, own, biases, number: room.array(MAX_LANES) }
    }

    #[inline(always)]
    fn load_biases<S: Isa>(&mut self, simd: S, p: &Problem<'_>) {
        let columns = padded(p.dstate);
        for (map, biases) in self.biases.iter_mut().enumerate() {
            for h in 0..p.nheads {
                load(simd, rows(&p.bias, &[map, h], 0), p.dstate, biases.from(h * columns));
            }
        }
    }

    /// The maps of a group.
    #[inline(always)]
    fn load<S: Isa>(&mut self, simd: S, p: &Problem<'_>, [b, t, g]: [usize; 3]) {
        for (map, given) in self.given.iter_mut().enumerate() {
            load(simd, rows(&p.maps, &[b, t, map, g], 0), p.dstate, given.reborrow());
        }
    }

    /// Those of a head: with its biases.
    #[inline(always)]
    fn bias(&mut self, p: &Problem<'_>, h: usize) {
        for ((own, given), biases) in self.own.iter_mut().zip(&self.given).zip(&self.biases) {
            let columns = given.shared(0, p.dstate).iter().zip(biases.shared(h * padded(p.dstate), p.dstate));
            own.slice(0, p.dstate).iter_mut().zip(columns).for_each(|(own, (&given, &bias))| *own = given + bias);
        }
    }

    #[inline(always)]
    fn store_own<S: Isa>(&self, simd: S, p: &Problem<'_>, target: &RawViewMut, [b, t, h]: [usize; 3]) {
        for (map, own) in self.own.iter().enumerate() {
            store(simd, own, rows_mut(target, &[b, t, map, h], 0), p.dstate);
        }
    }
}

/// Loads a row of numbers.
#[inline(always)]
fn load<T: Real, S: Isa>(simd: S, from: Plane<'_>, count: usize, to: ArrayMut<'_, T>) {
    tile::load(simd, from.area(count, 1), padded(count), TileMut::new(to, padded(count)));
}

#[inline(always)]
fn store<T: Real, S: Isa>(simd: S, from: &ArrayMut<'_, T>, to: PlaneMut, count: usize) {
    tile::store(simd, Tile::new(from.read(), padded(count)), to.area(count, 1));
}

/// Turns pairs of neighbours, back where `sign` is -1.
#[inline(always)]
fn turn_pairs<T: Real>(map: &mut [T], [cos, sin]: [&[T]; 2], sign: T) {
    for ((pair, &cos), &sin) in map.chunks_exact_mut(2).zip(cos).zip(sin) {
        let (x, y, sin) = (pair[0], pair[1], sign * sin);
        (pair[0], pair[1]) = (x * cos - y * sin, x * sin + y * cos);
    }
}

/// The maps of some steps.
struct Forward<'j, 'a, T> {
    p: &'j Problem<'a>,
    targets: &'j Targets,
    angles: &'j [Vec<T>; 2],
    maps: Maps<'j, T>,
    steps: Range<usize>,
}

impl<T: Real> Kernel for Forward<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let Forward { p, targets, angles, mut maps, steps } = self;
        maps.load_biases(simd, p);
        for (step, g) in steps.flat_map(|step| (0..p.ngroups).map(move |g| (step, g))) {
            let (b, t) = (step / p.seqlen, step % p.seqlen);
            maps.load(simd, p, [b, t, g]);
            for h in g * p.heads_per_group()..(g + 1) * p.heads_per_group() {
                maps.bias(p, h);
                if let Some(dots) = &targets.dots {
                    let [first, second] = [0, 1].map(|map| maps.own[map].shared(0, p.dstate));
                    let dot = first.iter().zip(second).fold(T::default(), |sum, (&x, &y)| sum + x * y);
                    maps.number.set(0, dot);
                    store(simd, &maps.number, rows_mut(dots, &[b, t, h], 0), 1);
                }
                if let Some(turned) = &targets.turned {
                    let angles = steps::of_step(p, angles, [b, t, h]);
                    maps.own.iter_mut().for_each(|own| turn_pairs(own.slice(0, p.dstate), angles, T::from_f64(1.0)));
                    maps.store_own(simd, p, turned, [b, t, h]);
                }
            }
        }
    }
}

/// The gradients by maps of some steps, what these add to those by biases, and the gradients by their angles.
struct Backward<'j, 'a, T> {
    p: &'j Problem<'a>,
    sources: &'j Sources<'a>,
    targets: &'j GradientTargets,
    angles: &'j [Vec<T>; 2],
    maps: Maps<'j, T>,
    /// Gradients by maps: of a group where those are given, of a head where they are its own.
    by: Maps<'j, T>,
    sums: &'j mut [f64],
    by_angles: &'j mut [T],
    steps: Range<usize>,
}

impl<T: Real> Kernel for Backward<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Isa>(mut self, simd: S) {
        let p = self.p;
        self.maps.load_biases(simd, p);
        for (at, step) in self.steps.clone().enumerate() {
            let (b, t) = (step / p.seqlen, step % p.seqlen);
            for g in 0..p.ngroups {
                self.maps.load(simd, p, [b, t, g]);
                self.by.given.iter_mut().for_each(|by| by.clear(padded(p.dstate)));
                for h in g * p.heads_per_group()..(g + 1) * p.heads_per_group() {
                    self.head(simd, [b, t, h], (at * p.nheads + h) * p.angles);
                }
                for (map, by) in self.by.given.iter().enumerate() {
                    if let Some(target) = &self.targets.maps {
                        store(simd, by, rows_mut(target, &[b, t, map, g], 0), p.dstate);
                    }
                }
            }
        }
    }
}

impl<T: Real> Backward<'_, '_, T> {
    /// A head of a step, whose gradients by angles have this place.
    #[inline(always)]
    fn head<S: Isa>(&mut self, simd: S, [b, t, h]: [usize; 3], place: usize) {
        let (p, Maps { own: by, given: of_group, number, .. }) = (self.p, &mut self.by);
        self.maps.bias(p, h);
        let angles = steps::of_step(p, self.angles, [b, t, h]);
        let by_angles = &mut self.by_angles[place..place + p.angles];
        for (map, by) in by.iter_mut().enumerate() {
            match &self.sources.turned {
                Some(turned) => load(simd, rows(turned, &[b, t, map, h], 0), p.dstate, by.reborrow()),
                None => by.clear(padded(p.dstate)),
            }
            turn_pairs(by.slice(0, p.dstate), angles, T::from_f64(-1.0));
            let pairs = self.maps.own[map].shared(0, p.dstate).chunks_exact(2).zip(by.shared(0, p.dstate).chunks_exact(2));
            for (sum, (own, by)) in by_angles.iter_mut().zip(pairs) {
                *sum = *sum + (own[0] * by[1] - own[1] * by[0]);
            }
        }
        if let Some(dots) = &self.sources.dots {
            load(simd, rows(dots, &[b, t, h], 0), 1, number.reborrow());
        } else {
            number.set(0, T::default());
        }
        let by_dot = number.get(0);
        for map in 0..2 {
            let other = self.maps.own[1 - map].shared(0, p.dstate);
            let sums = &mut self.sums[(map * p.nheads + h) * p.dstate..][..p.dstate];
            let to = of_group[map].slice(0, p.dstate).iter_mut().zip(sums);
            for ((by, &other), (group, sum)) in by[map].shared(0, p.dstate).iter().zip(other).zip(to) {
                let by = *by + by_dot * other;
                *group = *group + by;
                *sum += by.to_f64();
            }
        }
    }
}
