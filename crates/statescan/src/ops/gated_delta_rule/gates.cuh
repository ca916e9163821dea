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

// One divided by the length of a row, from the square of that length.
DEVICE f32 inverse_length(f32 square) { return rsqrtf(square + 1e-6f); }
