//! Minimax polynomials and split constants of the elementary functions, one set for each compute type.
//!
//! The polynomials were fitted by Remez exchange in 60 digits for the smallest relative error of the function that they serve, the constants
//! that must be exact (a leading 1 or x) left out of the fit. The error of the fit is given with each.

/// Constants of a compute type; polynomials start at their lowest coefficient.
pub(crate) trait Coefficients: Sized {
    /// `(e^f - 1 - f) / f^2` on [-ln(2)/2, ln(2)/2].
    const EXPM1: &'static [f64];
    /// `(sin(r) - r) / r^3` in `r^2` on [0, (pi/4)^2].
    const SIN: &'static [f64];
    /// `(cos(r) - 1 + r^2/2) / r^4` in `r^2` on [0, (pi/4)^2].
    const COS: &'static [f64];
    /// `ln(2)`, the first part short enough that its product with an exponent is exact without a fused multiplication.
    const LN2: [f64; 2];
    /// `pi/2`, the first two parts short enough that their products with a quadrant are exact up to [`Coefficients::SINCOS_LIMIT`], also
    /// without a fused multiplication.
    const HALF_PI: [f64; 3];
    /// The largest argument that is reduced in vectors.
    const SINCOS_LIMIT: f64;
    /// Arguments of `exp` beyond which it has long reached 0 and infinity.
    const EXP_RANGE: [f64; 2];
    /// Below this `|z|^2`, `1 + z/2` is `phi1(z)` to the last bit.
    const TINY: f64;
    /// Brings a number whose square might overflow, one above `1 / (1024 SHRINK)`, into the middle of the range.
    const SHRINK: f64;
    /// The largest finite number.
    const LARGEST: f64;
    /// Terms of the series of `phi1'` that matter for `|z|^2 < 2`.
    const PHI1_TERMS: usize;
}

impl Coefficients for f32 {
    // 1.8e-8
    const EXPM1: &'static [f64] =
        &[0.4999999814865972, 0.16666543423016905, 0.0416672010005858, 0.008366547295808885, 0.001388249937820917];
    // 4.0e-9
    const SIN: &'static [f64] = &[-0.16666655242443085, 0.008332188241183758, -0.00019518093904480338];
    // 1.2e-10
    const COS: &'static [f64] = &[0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05];
    const LN2: [f64; 2] = [0.693145751953125, 1.428606765330187e-06];
    const HALF_PI: [f64; 3] = [1.5703125, 0.0004837512969970703, 7.549790126404332e-08];
    const SINCOS_LIMIT: f64 = 8192.0;
    const EXP_RANGE: [f64; 2] = [-110.0, 89.0];
    const TINY: f64 = 1e-14;
    const SHRINK: f64 = 8.470329472543003e-22;
    const LARGEST: f64 = f32::MAX as f64;
    const PHI1_TERMS: usize = 13;
}

impl Coefficients for f64 {
    // 1.2e-18
    const EXPM1: &'static [f64] = &[
        0.5,
        0.16666666666666677,
        0.041666666666666505,
        0.008333333333321653,
        0.0013888888888962628,
        0.000198412698860734,
        2.4801587172188985e-05,
        2.7557244254289118e-06,
        2.755740280822275e-07,
        2.510902442311293e-08,
        2.087531936291113e-09,
    ];
    // 3.8e-18
    const SIN: &'static [f64] = &[
        -0.1666666666666663,
        0.00833333333332184,
        -0.00019841269829358503,
        2.7557313538506475e-06,
        -2.505073438961957e-08,
        1.589543344107194e-10,
    ];
    // 5.8e-20
    const COS: &'static [f64] = &[
        0.041666666666666595,
        -0.0013888888888873325,
        2.480158728898366e-05,
        -2.755731421005995e-07,
        2.0875704267217808e-09,
        -1.135868302361154e-11,
    ];
    const LN2: [f64; 2] = [0.6931471806019545, -4.2009150726810846e-11];
    const HALF_PI: [f64; 3] = [1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21];
    const SINCOS_LIMIT: f64 = 1048576.0;
    const EXP_RANGE: [f64; 2] = [-760.0, 710.0];
    const TINY: f64 = 1e-30;
    const SHRINK: f64 = 9.322925914000258e-156;
    const LARGEST: f64 = f64::MAX;
    const PHI1_TERMS: usize = 22;
}
