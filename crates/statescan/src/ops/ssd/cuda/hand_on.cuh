// Sequences that have no step hand their state on. Those of a row are numbered by bounds or by the states' axis of sequences; of the latter, those that
// have steps are written again by what computes them.
#pragma once
#include "inputs.cuh"

static_assert(given<int>(THREADS) && given_types<BEFORE, AFTER>());

// Some columns of a head, by THREADS threads. The parameters have the states `before` and `after` a pass.
DEVICE void hand_on(const Params& p, i64 batch, i64 head, i64 first, i64 end) {
  auto pass = [&](StateRow row) {
    const StateRow from = source_of(p, row), to = target_of(p, row);
    if (p.after.data == nullptr || !exists(p, to)) return;
#pragma unroll 1
    for (i64 column = first; column < end; column++)
#pragma unroll 1
    for (i64 n = threadIdx.x; n < p.dstate; n += THREADS) {
      const f32 v = p.before.data == nullptr || !exists(p, from) ? 0.f : to_f32(*state_at<BEFORE>(p.before, from, head, column, n));
      assign(*state_at<AFTER>(p.after, to, head, column, n), v);
    }
  };
  if constexpr (SEQUENCES == Sequences::Bounds) {
#pragma unroll 1
    for (i64 k = 0; k < p.sequence_count; k++)
      if (bound(p, k) >= bound(p, k + 1) && !has_before(p, k)) pass({number_of(p, k), 0});
  } else if constexpr (NUMBERED) {
#pragma unroll 1
    for (i64 s = 0; s < p.sequence_count; s++) pass({batch, s});
  } else if (p.seqlen == 0) {
    pass({batch, 0});
  }
}
