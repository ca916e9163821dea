// Around a scan stand, for each step and channel, the step size, softplus(dt + bias) within its limits, the gate silu(z) of the output,
// and their derivatives.
#pragma once

// log(1 + exp v) = max(v, 0) + e + e^2 P(e) with e = exp(-|v|) in (0, 1]; P as on the CPU. It needs no reciprocal, which is scarce beside the
// exponentials of a scan, and is the identity above 20, as in PyTorch: e is less than half an ulp there.
DEVICE f32 softplus(f32 v) {
  const f32 e = exp2_fast(-LOG2_E * fabsf(v));
  f32 series = -0.0033184701f;
  series = __fmaf_rn(series, e, 0.020204575f);
  series = __fmaf_rn(series, e, -0.0576644287f);
  series = __fmaf_rn(series, e, 0.106805544f);
  series = __fmaf_rn(series, e, -0.15355396f);
  series = __fmaf_rn(series, e, 0.196954006f);
  series = __fmaf_rn(series, e, -0.249585875f);
  series = __fmaf_rn(series, e, 0.333305113f);
  series = __fmaf_rn(series, e, -0.499999328f);
  return __fmaf_rn(e * e, series, e + fmaxf(v, 0.f));
}

DEVICE f32 sigmoid(f32 v) { return reciprocal_fast(1.f + exp2_fast(-LOG2_E * v)); }
// v sigmoid(v); exp(-v) overflows for v < -88, where the limit is 0
DEVICE f32 silu(f32 v) { return v * sigmoid(v); }

// A gate, z sigmoid(z), and its derivative.
struct Gate {
  f32 value, slope;

  DEVICE explicit Gate(f32 z) {
    const f32 s = sigmoid(z);
    value = z * s, slope = s * __fmaf_rn(z, 1.f - s, 1.f);
  }
};

// The step that a scan takes for dt. A bias and limits that are not there may be anything.
template <bool HAS_BIAS, bool SOFTPLUS, bool HAS_LIMIT> struct StepSize {
  static DEVICE f32 unlimited(f32 dt, f32 bias) {
    if constexpr (HAS_BIAS) dt += bias;
    return SOFTPLUS ? softplus(dt) : dt;
  }
  static DEVICE f32 of(f32 dt, f32 bias, f32 low, f32 high) {
    const f32 d = unlimited(dt, bias);
    if constexpr (!HAS_LIMIT) return d;
    return d < low ? low : d > high ? high : d;
  }
  // the derivative by dt; none at limits that hold the step, and of softplus where it is the identity to all digits one
  static DEVICE f32 slope(f32 dt, f32 bias, f32 low, f32 high) {
    if constexpr (HAS_LIMIT) {
      const f32 d = unlimited(dt, bias);
      if (d < low || d > high) return 0.f;
    }
    if constexpr (HAS_BIAS) dt += bias;
    return SOFTPLUS && !(dt > 20.f) ? sigmoid(dt) : 1.f;
  }
};
