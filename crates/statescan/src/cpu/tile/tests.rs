//! Every type, stride and level there and back.

use super::*;
use crate::cpu::{Kernel, Level};
use crate::tensor::{Element, RawViewMut, View, ViewMut};

struct RoundTrip<'v, T> {
    source: View<'v>,
    target: RawViewMut,
    tile: &'v mut [T],
    lanes: usize,
    steps: usize,
}

impl<T: Real> Kernel for RoundTrip<'_, T> {
    type Output = ();
    const EVERY_LEVEL: bool = true;
    #[inline(always)]
    fn run<S: Isa>(self, simd: S) {
        let pitch = self.lanes.next_multiple_of(T::lanes::<S>());
        let mut tile = TileMut::new(ArrayMut::of(self.tile), pitch);
        load(simd, Plane::of(&self.source, 0, 1).area(self.lanes, self.steps), pitch, tile.reborrow());
        for t in 0..self.steps {
            for lane in 0..pitch {
                let expected = if lane < self.lanes { self.source.at(&[lane, t]).re } else { 0.0 };
                assert_eq!(tile.get(t, lane).to_f64(), expected, "lane {lane} step {t}");
            }
        }
        store(simd, tile.read(), PlaneMut::of(&self.target, 0, 1).area(self.lanes, self.steps));
    }
}

fn round_trip<T: Real, E: Element + PartialEq + core::fmt::Debug>(from: fn(f64) -> E) {
    for level in Level::available() {
        for (lanes, steps) in [(1, 1), (3, 7), (8, 16), (16, 64), (17, 33), (40, 63), (16, 0)] {
            let data: Vec<E> = (0..64 * 64 * 4).map(|i| from(f64::from(i % 251) * 0.5 - 60.0)).collect();
            for strides in [[64, 1], [1, 64], [2, 130], [130, 2], [64, -1]] {
                let mut out = vec![from(-7.0); data.len()];
                let source = View::strided(&data, 64, &[lanes, steps], &strides).unwrap();
                let mut target = ViewMut::strided(&mut out, 64, &[lanes, steps], &strides).unwrap();
                let mut tile = vec![T::from_f64(f64::NAN); STEPS * 64];
                let target = target.raw();
                level.dispatch(RoundTrip { source, target, tile: &mut tile, lanes, steps });
                let mut touched = vec![false; out.len()];
                source.for_each_offset(|o| touched[(64 + o) as usize] = true);
                for i in 0..out.len() {
                    assert_eq!(out[i], if touched[i] { data[i] } else { from(-7.0) });
                }
            }
        }
    }
}

#[test]
fn tiles_round_trip_for_every_type_stride_and_level() {
    round_trip::<f32, f32>(|x| x as f32);
    round_trip::<f64, f64>(|x| x);
    round_trip::<f64, f32>(|x| x as f32);
    round_trip::<f32, bf16>(bf16::from_f64);
    round_trip::<f32, f16>(f16::from_f64);
    round_trip::<f64, f16>(f16::from_f64);
}

/// A tensor without elements may point anywhere, whatever its strides.
#[test]
fn planes_without_lanes_are_never_read() {
    fn check<E: Element>() {
        for level in Level::available() {
            for strides in [[0, 1], [0, 2], [0, 0], [1, 0], [2, 3]] {
                let source = View::strided(&[] as &[E], 0, &[0, 3], &strides).unwrap();
                let mut target = ViewMut::strided(&mut [] as &mut [E], 0, &[0, 3], &[1, 1]).unwrap();
                let mut tile = [f32::NAN; 1];
                level.dispatch(RoundTrip { source, target: target.raw(), tile: &mut tile, lanes: 0, steps: 3 });
                assert!(tile[0].is_nan());
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<bf16>();
    // its conversion is a call that the compiler does not leave out
    check::<f16>();
}
