// Discretizations as functors (the table of formulas is in ops/discretization.rs): the decay Abar and the gain, Bbar = d gain (gain for
// `dirac`), for real and complex A, and their derivatives: of the decay by d A, of Bbar by d, of Bbar by A over d.
#pragma once

enum class Discretization { Mamba, Zoh, Bilinear, Dirac };

// finite, so that a step of zero keeps a state whatever A is
DEVICE f32 finite(f32 a) { return a < -3.4e38f ? -3.4e38f : a; }
DEVICE complex64 finite(complex64 a) { return {finite(a.re), a.im}; }

// exp(d A) with the constants of the argument's reduction folded into A once
DEVICE f32 prepare_exp(f32 a) { return finite(a * LOG2_E); }
DEVICE complex64 prepare_exp(complex64 a) { return {prepare_exp(a.re), a.im * INV_PI}; }
// A over ln 2 from what was prepared, nothing to compute for real A: sums of many such terms are multiplied by ln 2 once
DEVICE f32 over_ln2(f32 prepared) { return prepared; }
DEVICE complex64 over_ln2(complex64 prepared) { return {prepared.re, prepared.im * (PI / LN_2)}; }
DEVICE f32 exp_prepared(f32 a, f32 d) { return exp2_fast(a * d); }
DEVICE complex64 exp_prepared(complex64 a, f32 d) {
  f32 size = exp2_fast(a.re * d), sine, cosine;
  sincospif(a.im * d, &sine, &cosine);
  return {size * cosine, size * sine};
}

DEVICE f32 norm2(f32 z) { return z * z; }
DEVICE f32 norm2(complex64 z) { return __fmaf_rn(z.re, z.re, z.im * z.im); }
DEVICE f32 over(f32 a, f32 z) { return a * reciprocal_fast(z); }
DEVICE complex64 over(complex64 a, complex64 z) { return scale(mul_conj(a, z), reciprocal_fast(norm2(z))); }
DEVICE f32 less(f32 a, f32 b) { return a - b; }
DEVICE complex64 less(complex64 a, complex64 b) { return {a.re - b.re, a.im - b.im}; }

// The sum of terms[COUNT - 1 - k] z^k.
template <typename F, int COUNT> DEVICE F power_series(F z, const f32 (&terms)[COUNT]) {
  F sum = from_real<F>(terms[0]);
#pragma unroll
  for (int k = 1; k < COUNT; k++) sum = mul_add(sum, z, from_real<F>(terms[k]));
  return sum;
}
// (exp z - 1) / z: sum z^k / (k + 1)! below a half, where the difference cancels
template <typename F> DEVICE F phi1(F z, F exp_z) {
  constexpr f32 terms[] = {2.4801587e-5f, 1.9841270e-4f, 1.3888889e-3f, 8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.f};
  return norm2(z) < 0.25f ? power_series(z, terms) : over(less(exp_z, from_real<F>(1.f)), z);
}
// the derivative of phi1: sum (k + 1) z^k / (k + 2)! below one, where the closed form cancels
template <typename F> DEVICE F phi1_slope_below_one(F z) {
  constexpr f32 terms[] = {2.2964432e-8f, 2.5052108e-7f, 2.4801587e-6f, 2.2045855e-5f, 1.7361111e-4f, 1.1904762e-3f,
                           6.9444444e-3f, 3.3333333e-2f, 1.25e-1f,      3.3333333e-1f, 0.5f};
  return power_series(z, terms);
}
template <typename F> DEVICE F phi1_slope(F z, F exp_z) {
  return norm2(z) < 1.f ? phi1_slope_below_one(z) : over(less(exp_z, phi1(z, exp_z)), z);
}

// 1 / (1 - d A / 2)
DEVICE f32 tustin(f32 a, f32 d) { return 1.f / __fmaf_rn(-0.5f * d, a, 1.f); }
DEVICE complex64 tustin(complex64 a, f32 d) {
  f32 re = __fmaf_rn(-0.5f * d, a.re, 1.f), im = -0.5f * d * a.im;
  f32 inverse = 1.f / __fmaf_rn(re, re, im * im);
  return {re * inverse, -im * inverse};
}
// 1 + d A / 2
DEVICE f32 forward_half(f32 a, f32 d) { return __fmaf_rn(0.5f * d, a, 1.f); }
DEVICE complex64 forward_half(complex64 a, f32 d) { return {__fmaf_rn(0.5f * d, a.re, 1.f), 0.5f * d * a.im}; }

template <Discretization METHOD> struct Rule {
  static constexpr bool GAIN = false, INPUT_STEP = METHOD == Discretization::Mamba, DECAY_IS_EXP = true;
  template <typename F> static DEVICE F prepare(F a) { return prepare_exp(a); }
  // A is this unit times in_units(prepared A)
  static constexpr f32 UNIT = LN_2;
  template <typename F> static DEVICE F in_units(F prepared) { return over_ln2(prepared); }
  template <typename F> static DEVICE F decay(F a, f32 d) { return exp_prepared(a, d); }
  template <typename F> static DEVICE F decay_slope(F a, f32 d) { return decay(a, d); }
  template <typename F> static DEVICE F gain(F, f32) { return from_real<F>(1.f); }
  template <typename F> static DEVICE F amplify(F, f32, F input) { return input; }
  template <typename F> static DEVICE F input_by_step(F, f32) { return from_real<F>(INPUT_STEP ? 1.f : 0.f); }
  template <typename F> static DEVICE F input_by_a(F, f32) { return F{}; }
};

template <> struct Rule<Discretization::Zoh> {
  static constexpr bool GAIN = true, INPUT_STEP = true, DECAY_IS_EXP = true;
  template <typename F> static DEVICE F prepare(F a) { return finite(a); }
  static constexpr f32 UNIT = 1.f;
  template <typename F> static DEVICE F in_units(F prepared) { return prepared; }
  // the exponential of d A, which the gain shares
  static DEVICE f32 decay(f32 a, f32 d) { return exp2_fast(LOG2_E * (a * d)); }
  static DEVICE complex64 decay(complex64 a, f32 d) {
    f32 size = exp2_fast(LOG2_E * (a.re * d)), sine, cosine;
    sincospif(INV_PI * a.im * d, &sine, &cosine);
    return {size * cosine, size * sine};
  }
  template <typename F> static DEVICE F decay_slope(F a, f32 d) { return decay(a, d); }
  template <typename F> static DEVICE F gain(F a, f32 d) { return phi1(scale(a, d), decay(a, d)); }
  template <typename F> static DEVICE F amplify(F a, f32 d, F input) { return mul(gain(a, d), input); }
  template <typename F> static DEVICE F input_by_step(F a, f32 d) { return decay(a, d); }
  template <typename F> static DEVICE F input_by_a(F a, f32 d) { return scale(phi1_slope(scale(a, d), decay(a, d)), d); }
};

template <> struct Rule<Discretization::Bilinear> {
  static constexpr bool GAIN = true, INPUT_STEP = true, DECAY_IS_EXP = false;
  template <typename F> static DEVICE F prepare(F a) { return a; }
  static constexpr f32 UNIT = 1.f;
  template <typename F> static DEVICE F in_units(F prepared) { return prepared; }
  template <typename F> static DEVICE F decay(F a, f32 d) { return mul(forward_half(a, d), tustin(a, d)); }
  template <typename F> static DEVICE F decay_slope(F a, f32 d) { return mul(tustin(a, d), tustin(a, d)); }
  template <typename F> static DEVICE F gain(F a, f32 d) { return tustin(a, d); }
  template <typename F> static DEVICE F amplify(F a, f32 d, F input) { return mul(gain(a, d), input); }
  template <typename F> static DEVICE F input_by_step(F a, f32 d) { return decay_slope(a, d); }
  template <typename F> static DEVICE F input_by_a(F a, f32 d) { return scale(decay_slope(a, d), 0.5f * d); }
};
