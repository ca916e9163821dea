//! Zeros, denormals, infinities, NaN and huge numbers.

use super::super::activation::sigmoid;
use super::super::*;
use super::*;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

function!(Exponentials, |x| [
    V::exp2_product::<false>(x.re, V::constant(x.re.simd(), 1.0)),
    exp(x.re),
    x.re.exp_expm1().1,
    phi1(x.re),
    exp_phi1_derivative(x.re).2
]);
function!(Activations, |x| [
    softplus_each([x.re])[0],
    softplus_derivative(x.re),
    sigmoid(x.re),
    silu(x.re),
    silu_and_derivative(x.re).0,
    silu_and_derivative(x.re).1
]);
function!(SinCos, |x| [sincos(x.re).0, sincos(x.re).1]);
function!(ComplexPhi, |x| [
    exp_phi1(x).0.re,
    exp_phi1(x).0.im,
    phi1(x).re,
    phi1(x).im,
    exp_phi1_derivative(x).2.re,
    exp_phi1_derivative(x).2.im
]);

/// Checks that both are one number or both NaN; the sign of a zero is not looked at.
fn assert_same(got: f64, want: f64, what: &dyn core::fmt::Display) {
    assert!(got == want || (got.is_nan() && want.is_nan()), "{what}: {got:e}, not {want:e}");
}

fn assert_rows<F: Function, T: Real>(function: F, table: &[(f64, &[f64])]) {
    let x: Vec<f64> = table.iter().map(|row| row.0).collect();
    for level in Level::available() {
        for (got, (x, want)) in real::<F, T>(level, function, &x).iter().zip(table) {
            for (k, (got, want)) in got.iter().zip(*want).enumerate() {
                assert_same(*got, *want, &format_args!("{level} {:?} result {k} at {x:e}", T::DTYPE));
            }
        }
    }
}

fn ends<T: Real>() {
    let denormal = if T::DOUBLE { 5e-324 } else { 1e-45 };
    let largest = T::LARGEST;
    assert_rows::<_, T>(
        Exponentials,
        &[
            (0.0, &[1.0, 1.0, 0.0, 1.0, 0.5]),
            (-0.0, &[1.0, 1.0, 0.0, 1.0, 0.5]),
            (denormal, &[1.0, 1.0, T::from_f64(denormal).to_f64(), 1.0, 0.5]),
            (-denormal, &[1.0, 1.0, -T::from_f64(denormal).to_f64(), 1.0, 0.5]),
            (INF, &[INF, INF, INF, INF, INF]),
            (largest, &[INF, INF, INF, INF, INF]),
            (5000.0, &[INF, INF, INF, INF, INF]),
            (-INF, &[0.0, 0.0, -1.0, 0.0, 0.0]),
            (-5000.0, &[0.0, 0.0, -1.0]),
            (-largest, &[0.0, 0.0, -1.0]),
            (NAN, &[NAN; 5]),
        ],
    );
    // exact powers, down to the smallest normal number and up to overflow
    let (low, high) = if T::DOUBLE { (-1022, 1023) } else { (-126, 127) };
    let x: Vec<f64> = (low..=high + 1).map(f64::from).collect();
    for level in Level::available() {
        for (got, x) in real::<_, T>(level, Exponentials, &x).iter().zip(&x) {
            let want = if *x > f64::from(high) { INF } else { x.exp2() };
            assert_same(got[0], want, &format_args!("{level} {:?} exp2({x})", T::DTYPE));
        }
        // below: nothing but a fall to 0
        let lower: Vec<f64> = (0..3000).map(|k| f64::from(low) - f64::from(k) * 0.01).collect();
        let got = real::<_, T>(level, Exponentials, &lower);
        assert!(got.windows(2).all(|pair| pair[0][0] >= pair[1][0] && pair[1][0] >= 0.0), "{level} {:?}", T::DTYPE);
        assert!(real::<_, T>(level, Exponentials, &[f64::from(low) - 53.0])[0][0] == 0.0);
    }
    assert_rows::<_, T>(
        Activations,
        &[
            (0.0, &[T::from_f64(core::f64::consts::LN_2).to_f64(), 0.5, 0.5, 0.0, 0.0, 0.5]),
            (30.0, &[30.0, 1.0]),
            (INF, &[INF, 1.0, 1.0, INF, INF]),
            (largest, &[largest, 1.0, 1.0, largest, largest, 1.0]),
            (-1e4, &[0.0; 6]),
            (-largest, &[0.0; 6]),
            (-INF, &[0.0, 0.0, 0.0]),
            (NAN, &[NAN; 6]),
        ],
    );
    assert_rows::<_, T>(
        SinCos,
        &[
            (0.0, &[0.0, 1.0]),
            (-0.0, &[0.0, 1.0]),
            (denormal, &[T::from_f64(denormal).to_f64(), 1.0]),
            (INF, &[NAN, NAN]),
            (-INF, &[NAN, NAN]),
            (NAN, &[NAN, NAN]),
        ],
    );
}

#[test]
fn ends_of_the_range() {
    ends::<f32>();
    ends::<f64>();
}

fn huge<T: Real>() {
    // a lane beyond the reduction sends its whole vector to libm
    let x: Vec<f64> = logarithmic::<T>(1e5, 1e30, 200).chain(sweep::<T>(-1.0, 1.0, 50)).collect();
    let x: Vec<f64> = (0..x.len()).map(|k| x[k * 89 % x.len()]).collect();
    for level in Level::available() {
        for (got, x) in real::<_, T>(level, SinCos, &x).iter().zip(&x) {
            for (got, want) in got.iter().zip([x.sin(), x.cos()]) {
                assert!((got - want).abs() <= 2.0 * ulp::<T>(want), "{level} {:?} at {x:e}: {got:e}, not {want:e}", T::DTYPE);
            }
        }
    }
}

#[test]
fn huge_angles() {
    huge::<f32>();
    huge::<f64>();
}

fn complex_ends<T: Real>() {
    let big = 1e30;
    let table: &[(f64, f64, [f64; 6])] = &[
        (0.0, 0.0, [1.0, 0.0, 1.0, 0.0, 0.5, 0.0]),
        (-0.0, -0.0, [1.0, 0.0, 1.0, 0.0, 0.5, 0.0]),
        (-INF, 0.0, [0.0; 6]),
        (-INF, 3.0, [0.0; 6]),
        (NAN, 0.0, [NAN; 6]),
        (0.0, INF, [NAN; 6]),
        (0.0, NAN, [NAN; 6]),
    ];
    let (re, im): (Vec<f64>, Vec<f64>) = table.iter().map(|row| (row.0, row.1)).unzip();
    for level in Level::available() {
        let label = |re: f64, im: f64| format!("{level} {:?} at {re:e} {im:e}", T::DTYPE);
        for (got, (re, im, want)) in complex::<_, T>(level, ComplexPhi, &re, &im).iter().zip(table) {
            // a NaN in one part need not reach the other
            let nan = want[0].is_nan();
            for pair in 0..3 {
                let (got, want) = (&got[2 * pair..][..2], &want[2 * pair..][..2]);
                let right =
                    if nan { got.iter().any(|x| x.is_nan()) } else { got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-30) };
                assert!(right, "{}: {got:?}", label(*re, *im));
            }
        }
        // |z|^2 leaves the range; beside it is a real number
        let got = complex::<_, T>(level, ComplexPhi, &[-big, -0.3 * big, 100.0], &[big, 0.0, 0.0]);
        assert!((got[0][2] * big - 0.5).abs() < 1e-6 && (got[0][3] * big - 0.5).abs() < 1e-6, "{}: {got:?}", label(-big, big));
        assert!((got[1][2] * big * 0.3 - 1.0).abs() < 1e-6, "{}: {got:?}", label(-0.3 * big, 0.0));
        assert_same(got[2][1], 0.0, &label(100.0, 0.0));
    }
}

#[test]
fn complex_ends_of_the_range() {
    complex_ends::<f32>();
    complex_ends::<f64>();
}
