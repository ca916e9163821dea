// Discretizations as functors (the table of formulas is in ops/discretization.rs): the decay Abar and the gain, Bbar = d gain (gain for
// `dirac`), for real and complex A, and their derivatives: of the decay by d A, of Bbar by d, of Bbar by A over d.

enum class Discretization { Mamba, Zoh, Bilinear, Dirac };

// exp(d A) with the constants of the argument's reduction folded into A once
// (finite, so that a step of zero keeps a state whatever A is)
DEVICE f32 prepare_exp(f32 a) {
  a *= LOG2_E;
  return a < -3.4e38f ? -3.4e38f : a;
}
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

// (exp z - 1) / z
DEVICE f32 phi1(f32 z) { return z == 0.f ? 1.f : expm1f(z) / z; }
DEVICE complex64 phi1(complex64 z) {
  f32 sine, cosine, half = sinpif(0.5f * INV_PI * z.im);
  sincospif(INV_PI * z.im, &sine, &cosine);
  f32 grow = expm1f(z.re);
  // exp(x + iy) - 1 = (exp x - 1) cos y - 2 sin^2(y/2) + i exp(x) sin y
  complex64 e = {__fmaf_rn(grow, cosine, -2.f * half * half), __fmaf_rn(grow, sine, sine)};
  f32 norm = z.re * z.re + z.im * z.im;
  if (norm < 1e-12f) return {1.f + 0.5f * z.re, 0.5f * z.im};
  f32 inverse = 1.f / norm;
  return {(e.re * z.re + e.im * z.im) * inverse, (e.im * z.re - e.re * z.im) * inverse};
}

DEVICE f32 norm2(f32 z) { return z * z; }
DEVICE f32 norm2(complex64 z) { return __fmaf_rn(z.re, z.re, z.im * z.im); }
DEVICE f32 sub_over(f32 a, f32 b, f32 z) { return (a - b) / z; }
DEVICE complex64 sub_over(complex64 a, complex64 b, complex64 z) {
  return scale(mul_conj(complex64{a.re - b.re, a.im - b.im}, z), 1.f / norm2(z));
}
// the derivative of phi1: sum (k + 1) z^k / (k + 2)! below one, where the closed form cancels
template <typename F> DEVICE F phi1_slope_below_one(F z) {
  constexpr f32 terms[] = {2.2964432e-8f, 2.5052108e-7f, 2.4801587e-6f, 2.2045855e-5f, 1.7361111e-4f, 1.1904762e-3f,
                           6.9444444e-3f, 3.3333333e-2f, 1.25e-1f,      3.3333333e-1f, 0.5f};
  F sum = {};
#pragma unroll
  for (int k = 0; k < 11; k++) sum = mul_add(sum, z, from_real<F>(terms[k]));
  return sum;
}
template <typename F> DEVICE F phi1_slope(F z, F exp_z) {
  if (norm2(z) >= 1.f) return sub_over(exp_z, phi1(z), z);
  return phi1_slope_below_one(z);
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
  template <typename F> static DEVICE F prepare(F a) { return a; }
  static constexpr f32 UNIT = 1.f;
  template <typename F> static DEVICE F in_units(F prepared) { return prepared; }
  template <typename F> static DEVICE F decay(F a, f32 d) { return exp_prepared(prepare_exp(a), d); }
  template <typename F> static DEVICE F decay_slope(F a, f32 d) { return decay(a, d); }
  template <typename F> static DEVICE F gain(F a, f32 d) { return phi1(scale(a, d)); }
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
