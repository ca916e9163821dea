// How decays and beta come from what a call has of them, by the rules of `gates.rs`.
#pragma once

static_assert(given<bool>(RAW, HAS_BIAS, BOUNDED, BETA_SIGMOID));

// The logarithm of a decay; `rate` is exp(A_log).
DEVICE f32 log_decay(f32 gate, f32 bias, f32 rate, f32 lower_bound) {
  if constexpr (!RAW) return gate;
  if constexpr (HAS_BIAS) gate += bias;
  if constexpr (BOUNDED) return lower_bound * sigmoid(rate * gate);
  return -rate * softplus(gate);
}

DEVICE f32 beta_of(f32 raw, f32 factor) { return BETA_SIGMOID ? factor * sigmoid(raw) : raw; }

// The derivatives of the logarithm of a decay, and that of beta.
struct LogDecay { f32 by_gate, by_a_log; };
DEVICE LogDecay log_decay_slopes(f32 gate, f32 rate, f32 lower_bound) {
  if constexpr (!RAW) return {1.f, 0.f};
  if constexpr (BOUNDED) {
    const f32 s = sigmoid(rate * gate), slope = lower_bound * s * (1.f - s) * rate;
    return {slope, slope * gate};
  }
  return {-rate * (gate > 20.f ? 1.f : sigmoid(gate)), -rate * softplus(gate)};
}
DEVICE f32 beta_slope(f32 raw, f32 factor) {
  const f32 s = sigmoid(raw);
  return BETA_SIGMOID ? factor * s * (1.f - s) : 1.f;
}

// One divided by the length of a row, from the square of that length.
DEVICE f32 inverse_length(f32 square) { return rsqrtf(square + 1e-6f); }
