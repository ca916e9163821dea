//! Largest errors over dense sweeps; the bounds are those of the files' headers.

use super::super::activation::sigmoid;
use super::super::*;
use super::oracle::{C, Dd, dd};
use super::*;

function!(Exp2, |x| [V::exp2_product::<false>(x.re, V::constant(x.re.simd(), 1.0))]);
function!(Third, |x| [V::exp2_product::<false>(x.re, V::constant(x.re.simd(), 1.0 / 3.0))]);
function!(Exponentials, |x| [exp(x.re), x.re.exp_expm1().1]);
function!(Phi, |x| [exp_phi1_derivative(x.re).0, exp_phi1_derivative(x.re).1, exp_phi1_derivative(x.re).2]);
function!(SinCos, |x| [sincos(x.re).0, sincos(x.re).1]);
function!(Softplus, |x| [softplus_each([x.re])[0], softplus_derivative(x.re)]);
function!(Sigmoid, |x| [sigmoid(x.re), silu(x.re), silu_and_derivative(x.re).0]);
function!(Reciprocal, |x| [x.re.short_recip()]);
function!(SiluSlope, |x| [silu_and_derivative(x.re).1]);
function!(ComplexExp, |x| [Exp::exp(x).re, Exp::exp(x).im]);
function!(ComplexPhi, |x| [
    exp_phi1_derivative(x).0.re,
    exp_phi1_derivative(x).0.im,
    exp_phi1_derivative(x).1.re,
    exp_phi1_derivative(x).1.im,
    exp_phi1_derivative(x).2.re,
    exp_phi1_derivative(x).2.im
]);

/// The parts of the exact result, the last entry a number that the error may be measured against where it is larger than the result.
type Exact = (Vec<Dd>, f64);

/// Holds every level to a bound in ulp for each group of `parts` results, over points whose exact result is in the normal range.
fn check<F: Function, T: Real>(function: F, parts: usize, bounds: &[f64], points: &[(f64, f64)], exact: impl Fn(C) -> Exact) {
    let (smallest, largest) = if T::DOUBLE { (f64::MIN_POSITIVE, f64::MAX) } else { (f32::MIN_POSITIVE as f64, f32::MAX as f64) };
    let exacts: Vec<Exact> = points.iter().map(|&(re, im)| exact(C::new(re, im))).collect();
    let (re, im): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
    for level in Level::available() {
        let rows = complex::<F, T>(level, function, &re, &im);
        let mut worst = vec![(0.0, 0.0, 0.0); bounds.len()];
        for (k, (row, (exact, floor))) in rows.iter().zip(&exacts).enumerate() {
            for (group, worst) in worst.iter_mut().enumerate() {
                let exact = &exact[group * parts..][..parts];
                let norm = exact.iter().fold(0.0, |norm: f64, x| norm.hypot(x.hi));
                if !(4.0 * smallest..0.999 * largest).contains(&norm) {
                    continue;
                }
                let error = exact.iter().zip(&row[group * parts..]).fold(0.0, |e: f64, (x, got)| e.hypot((got - x.hi) - x.lo));
                let error = error / ulp::<T>(norm.max(*floor));
                // a NaN is the worst
                if error.is_nan() || error > worst.0 {
                    *worst = (if error.is_nan() { f64::INFINITY } else { error }, re[k], im[k]);
                }
            }
        }
        let name = core::any::type_name::<F>().rsplit("::").next().unwrap_or_default();
        println!("{level} {:?} {name} {worst:.3?}", T::DTYPE);
        for (worst, bound) in worst.iter().zip(bounds) {
            assert!(worst.0 <= *bound, "{level} {:?} {name}: {worst:?} above {bound} ulp", T::DTYPE);
        }
    }
}

fn real_points(points: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    points.map(|x| (x, 0.0)).collect()
}

/// The edges of the range in which the exponential is finite and normal, in units of the argument of `2^x`.
fn exponents<T: Real>() -> (f64, f64) {
    if T::DOUBLE { (-1025.0, 1025.0) } else { (-130.0, 130.0) }
}

/// The smallest arguments that a sweep has.
fn tiny<T: Real>() -> f64 {
    if T::DOUBLE { 1e-300 } else { 1e-37 }
}

fn dense<T: Real>(unit: f64) -> Vec<(f64, f64)> {
    let (low, high) = exponents::<T>();
    let ranges = sweep::<T>(low * unit, high * unit, 20_000).chain(sweep::<T>(-2.0, 2.0, 20_000));
    real_points(ranges.chain(logarithmic::<T>(tiny::<T>(), 10.0, 3000)))
}

fn exponentials<T: Real>(bounds: [&[f64]; 3]) {
    check::<_, T>(Exp2, 1, bounds[0], &dense::<T>(1.0), |z| (vec![z.re.exp2()], 0.0));
    let points = dense::<T>(core::f64::consts::LN_2);
    check::<_, T>(Exponentials, 1, bounds[1], &points, |z| (vec![z.re.exp(), z.re.expm1()], 0.0));
    // phi1 may be infinite from where the exponential is
    let finite: Vec<_> = points.into_iter().filter(|x| x.0 < if T::DOUBLE { 709.78 } else { 88.72 }).collect();
    check::<_, T>(Phi, 1, bounds[2], &finite, |z| {
        let (exp, phi1, slope) = z.phi();
        (vec![exp.re, phi1.re, slope.re], 0.0)
    });
}

#[test]
fn exponentials_f32() {
    exponentials::<f32>([&[2.0], &[1.25, 2.0], &[1.25, 3.0, 4.0]]);
}

#[test]
fn exponentials_f64() {
    exponentials::<f64>([&[1.25], &[1.25, 2.0], &[1.25, 3.0, 4.0]]);
}

/// Checks products. The rounding of `a b` comes on top if it is not one operation with the sum after it.
fn products<T: Real>(bound: f64, fused: impl Fn(Level) -> bool) {
    let third = T::from_f64(1.0 / 3.0).to_f64();
    let (low, high) = exponents::<T>();
    let points: Vec<f64> = sweep::<T>(2.9 * low, 2.9 * high, 40_000).collect();
    for level in Level::available() {
        let rows = complex::<_, T>(level, Third, &points, &vec![0.0; points.len()]);
        for (&x, row) in points.iter().zip(&rows) {
            let product = dd(x) * dd(third);
            let exact = product.exp2();
            let error = ((row[0] - exact.hi) - exact.lo).abs() / ulp::<T>(exact.hi);
            let rounding = if fused(level) { 0.0 } else { core::f64::consts::LN_2 * product.hi.abs() };
            assert!(error <= bound + rounding, "{level} {:?} 2^({x} / 3): {error} ulp", T::DTYPE);
        }
    }
}

#[test]
fn powers_of_products() {
    products::<f32>(2.0, |level| matches!(level, Level::Avx2 | Level::Avx512));
    products::<f64>(1.25, |_| false);
}

fn trigonometry<T: Real>(bounds: &[f64], floor: f64) {
    let limit = T::SINCOS_LIMIT;
    let points = sweep::<T>(-10.0, 10.0, 20_000).chain(logarithmic::<T>(tiny::<T>(), limit, 10_000));
    // next to multiples of pi/2
    let crossings = (0..5000).map(|k| T::from_f64(k as f64 * core::f64::consts::FRAC_PI_2).to_f64());
    let points = real_points(points.chain(crossings));
    check::<_, T>(SinCos, 1, bounds, &points, |z| {
        let (sin, cos) = z.re.sin_cos();
        (vec![sin, cos], if z.re.hi.abs() < 1.0 { 0.0 } else { floor })
    });
}

#[test]
fn trigonometry_f32() {
    trigonometry::<f32>(&[1.5, 1.5], 2f64.powi(-10));
}

#[test]
fn trigonometry_f64() {
    trigonometry::<f64>(&[2.0, 2.0], 2f64.powi(-38));
}

fn reciprocals<T: Real>() {
    // numbers that are normal and have a normal reciprocal
    let largest = T::LARGEST / 4.0;
    let points = logarithmic::<T>(1.0 / largest, largest, 20_000).chain(sweep::<T>(1.0, 2.0, 20_000));
    check::<_, T>(Reciprocal, 1, &[1.0], &real_points(points), |z| (vec![dd(1.0) / z.re], 0.0));
}

#[test]
fn short_reciprocals() {
    reciprocals::<f32>();
    reciprocals::<f64>();
}

fn activations<T: Real>(bounds: [&[f64]; 3]) {
    // as far as the sigmoid is in the normal range
    let low = if T::DOUBLE { -706.0 } else { -86.0 };
    let points =
        sweep::<T>(low, 40.0, 20_000).chain(sweep::<T>(-3.0, 3.0, 10_000)).chain(logarithmic::<T>(tiny::<T>(), 20.0, 3000));
    let points = real_points(points);
    let one = dd(1.0);
    check::<_, T>(Softplus, 1, bounds[0], &points, |z| {
        let (x, e) = (z.re, (-dd(z.re.hi.abs())).exp());
        if x.hi > 20.0 {
            return (vec![x, one], 0.0);
        }
        (vec![dd(x.hi.max(0.0)) + e.ln_1p(), one / (one + (-x).exp())], 0.0)
    });
    check::<_, T>(Sigmoid, 1, bounds[1], &points, |z| {
        let sigmoid = one / (one + (-z.re).exp());
        (vec![sigmoid, z.re * sigmoid, z.re * sigmoid], 0.0)
    });
    // the derivative crosses 0 near -1.28
    check::<_, T>(SiluSlope, 1, bounds[2], &points, |z| {
        let sigmoid = one / (one + (-z.re).exp());
        (vec![sigmoid * (one + z.re / (one + z.re.exp()))], if z.re.hi > -2.0 { 0.25 } else { 0.0 })
    });
}

#[test]
fn activations_f32() {
    activations::<f32>([&[2.5, 2.5], &[2.5, 3.0, 3.0], &[6.0]]);
}

#[test]
fn activations_f64() {
    activations::<f64>([&[2.5, 2.5], &[2.5, 3.0, 3.0], &[6.0]]);
}

fn complex_exponentials<T: Real>(bounds: [&[f64]; 2]) {
    let mut points = Vec::new();
    for angle in sweep::<T>(0.0, core::f64::consts::TAU, 97) {
        for radius in sweep::<T>(0.0, 3.0, 60).chain(logarithmic::<T>(1e-12, 80.0, 60)) {
            points.push((radius * angle.cos(), radius * angle.sin()));
        }
    }
    // next to the zeros of e^z - 1
    for k in 1..20 {
        for (x, y) in sweep::<T>(-1e-3, 1e-3, 20).zip(sweep::<T>(1e-3, -1e-3, 20)) {
            points.push((x, y + k as f64 * core::f64::consts::TAU));
        }
    }
    let round = |x: f64| T::from_f64(x).to_f64();
    let points: Vec<(f64, f64)> = points.into_iter().map(|(x, y)| (round(x), round(y))).collect();
    check::<_, T>(ComplexExp, 2, bounds[0], &points, |z| (vec![z.exp().re, z.exp().im], 0.0));
    check::<_, T>(ComplexPhi, 2, bounds[1], &points, |z| {
        let (exp, phi1, slope) = z.phi();
        (vec![exp.re, exp.im, phi1.re, phi1.im, slope.re, slope.im], 0.0)
    });
}

#[test]
fn complex_exponentials_f32() {
    complex_exponentials::<f32>([&[2.5], &[2.5, 5.0, 8.0]]);
}

#[test]
fn complex_exponentials_f64() {
    complex_exponentials::<f64>([&[2.5], &[2.5, 5.0, 8.0]]);
}
