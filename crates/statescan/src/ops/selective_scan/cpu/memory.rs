//! How far back a row remembers: where it is cut in time, the state at the cut is computed from so many steps before it.
//!
//! The state forgets as `exp(A sum dt)`. Where the exponent of the slowest state of every channel has passed [`Memory::EXPONENT`] the states
//! before have no part in any bit of a later one, so a scan that starts there from zero is the same scan. Nothing is approximated, and a
//! row whose states do not forget is not cut. Backwards the same decays stand between a cut and what comes after it.

use super::super::plan::{Direction, Plan};
use super::inputs::{Constants, Scratch, Tiles, blocks, load_tiles, parameter, tile_len};
use super::{Context, Types};
use crate::cpu::Kernel;
use crate::cpu::simd::{Isa, Real, V};
use crate::cpu::tile::{MAX_LANES, STEPS};
use crate::exec::Exec;
use crate::ops::rules::FieldKind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The plan with long rows cut, if there are few jobs.
pub(super) fn cut<E: Types>(exec: &Exec, context: &Context<'_, '_>, direction: Direction) -> Plan {
    let places = context.plan.places(context.problem);
    let found: Vec<_> = places.iter().map(|_| AtomicUsize::new(usize::MAX)).collect();
    exec.for_each(places.len(), Scratch::<E::T>::new, |scratch, index| {
        let (job, step) = places[index];
        let warm = context.level.dispatch(Memory::<E> { context, job, step, direction, scratch });
        found[index].store(warm.unwrap_or(usize::MAX), Ordering::Relaxed);
    });
    let warm: Vec<_> = found.into_iter().map(|n| Some(n.into_inner()).filter(|&n| n != usize::MAX)).collect();
    context.plan.clone().cut(context.problem, &places, &warm, direction)
}

/// Looks for the number of steps next to a place, whole tiles, that the place remembers; `None` if it is not found.
struct Memory<'m, 'c, 'a, E: Types> {
    context: &'m Context<'c, 'a>,
    job: usize,
    step: usize,
    direction: Direction,
    scratch: &'m mut Scratch<E::T>,
}

impl<E: Types> Memory<'_, '_, '_, E> {
    /// The exponential of minus this takes any state below 1e14 (in f64, 1e20) under the smallest number.
    const EXPONENT: f64 = if E::T::DOUBLE { 800.0 } else { 137.0 };
}

impl<E: Types> Kernel for Memory<'_, '_, '_, E> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Isa>(self, simd: S) -> Option<usize> {
        let Context { problem, plan, .. } = self.context;
        let job = &plan.jobs[self.job];
        let channels = plan.channels[job.channels].clone();
        let segment = &problem.segments.list[plan.segments[job.segments].start];
        let farthest = Plan::farthest(segment);
        let (width, parts, dstate) = (E::T::lanes::<S>(), E::K::PARTS, problem.dstate);
        let tile = tile_len(width);
        let [x, dt, dt_a, y, longest, constants, a] =
            self.scratch.carve([tile, tile, tile, tile, width, Constants::<E::T>::COUNT * width, dstate * parts * width]);
        let dt_a = if problem.dt_a.is_none() { dt } else { dt_a };
        let tiles = Tiles { x, dt, dt_a, u: x, slope: x, y, longest };
        let constants = Constants::at::<S>(constants, 0);
        let mut needed = 0;
        // SAFETY: the arrays were carved with the sizes used here; steps and channels lie inside the problem.
        unsafe {
            for block in blocks(channels, width) {
                parameter::<E, S>(simd, &problem.a, block, a);
                constants.load::<E, S>(simd, problem, block, a);
                // the slowest decay of each channel, none where a state grows; lanes past the block do not count
                let mut slowest = [f64::INFINITY; MAX_LANES];
                for lane in 0..block.count {
                    for n in 0..dstate {
                        slowest[lane] = slowest[lane].min(-(*a.add(n * parts * width + lane)).to_f64());
                    }
                }
                let (mut sum, mut steps) = (V::constant(simd, 0.0), 0);
                loop {
                    let start = match self.direction {
                        Direction::Forward => self.step - steps - STEPS,
                        Direction::Backward => self.step + steps,
                    };
                    steps += STEPS;
                    if steps > farthest || start + STEPS > segment.end {
                        return None;
                    }
                    load_tiles(simd, problem, segment, block, start, STEPS, constants, &tiles, false);
                    for t in 0..STEPS {
                        sum = sum + V::load(simd, dt_a.add(t * width));
                    }
                    let mut sums = [E::T::default(); MAX_LANES];
                    sum.store(sums.as_mut_ptr());
                    // a NaN forgets nothing
                    if (0..block.count).all(|lane| slowest[lane] * sums[lane].to_f64() > Self::EXPONENT) {
                        break;
                    }
                }
                needed = needed.max(steps);
            }
        }
        Some(needed)
    }
}
