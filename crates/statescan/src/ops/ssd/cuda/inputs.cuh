// Every kernel of SSD reads these by the same rules: pieces of sequences, states in tensors, step sizes of a head.
#pragma once
#include "sequences.cuh"

static_assert(given<bool>(HAS_BIAS, SOFTPLUS, HAS_LIMIT, HAS_DT_A) && given_types<A, BIAS, DT, DT_A>());

typedef StepSize<HAS_BIAS, SOFTPLUS, HAS_LIMIT> Dt;

// ---- pieces of sequences

// The first step after t, up to `limit`, that begins a sequence; all threads of a warp ask.
DEVICE i64 end_of_piece(const Inputs& p, i64 batch, i64 t, i64 limit) {
  i64 end = limit;
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 next = bound(p, sequence_at_bound(p, t) + 1);
    if (next > t && next < limit) end = next;
  }
  if constexpr (SEQUENCES == Sequences::Index) {
#pragma unroll 1
    for (i64 first = t + 1; first < limit; first += 32) {
      const i64 u = first + threadIdx.x % 32;
      const u32 found = __ballot_sync(~0u, u < limit && begins(p, batch, u));
      if (found != 0) return first + __ffs(found) - 1;
    }
  }
  return end;
}
// The last step before `end`, from `limit` on, that begins a sequence, or `limit`.
DEVICE i64 start_of_piece(const Inputs& p, i64 batch, i64 end, i64 limit) {
  i64 start = limit;
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 first = bound(p, sequence_at_bound(p, end - 1));
    if (first > limit && first < end) start = first;
  }
  if constexpr (SEQUENCES == Sequences::Index) {
#pragma unroll 1
    for (i64 first = end - 1; first > limit; first -= 32) {
      const i64 u = first - threadIdx.x % 32;
      const u32 found = __ballot_sync(~0u, u > limit && begins(p, batch, u));
      if (found != 0) return first - (__ffs(found) - 1);
    }
  }
  return start;
}

// ---- step sizes

// A head's constants.
struct Head {
  f64 rate;   // A / ln 2
  f32 bias;

  DEVICE Head(const Inputs& p, i64 head) : rate(f64(to_f32(*at<A>(p.a, head))) * 1.4426950408889634), bias(0.f) {
    if constexpr (HAS_BIAS) bias = to_f32(*at<BIAS>(p.bias, head));
  }
  // the step size, as the weight of an input
  DEVICE f32 weight(const Inputs& p, f32 dt) const { return Dt::of(dt, bias, p.dt_low, p.dt_high); }
};

// A step as a weight, and for the decay.
struct StepSizes { f32 weight, decay; };
DEVICE StepSizes step_sizes(const Inputs& p, const Head& constants, i64 batch, i64 head, i64 t) {
  StepSizes d;
  d.weight = constants.weight(p, to_f32(*at<DT>(p.dt, batch, t, head)));
  d.decay = d.weight;
  if constexpr (HAS_DT_A) d.decay = to_f32(*at<DT_A>(p.dt_a, batch, t, head));
  return d;
}
