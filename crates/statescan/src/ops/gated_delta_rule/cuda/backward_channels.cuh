// These steps come after the slices of a chunk where channels have decays of their own: pairs of steps are worth something else for each channel.
#pragma once
#include "backward_slices.cuh"
#include "backward_finish.cuh"

static_assert(given<int>(SPAN, THREADS, KEYS) && given<bool>(HAS_DBETA, HAS_DGATE, HAS_SUMS));

struct Channels {
  f32 *a, *m, *q, *r, *w, *c;   // products of pairs, parts of gradients, sums of logarithms

  DEVICE explicit Channels(const Work& work) : a(reinterpret_cast<f32*>(work.tile(X_AT))), m(a + SPAN * (SPAN + 1)) {
    q = reinterpret_cast<f32*>(work.tile(CHANNELS_AT)), r = q + SPAN * LINE, w = r + SPAN * LINE, c = w + SPAN * LINE;
  }
};

DEVICE void put_channels(const Params& p, const Work& w, const Channels& to, Parts& parts, Pairs& pairs) {
#pragma unroll
  for (int b = 0; b < OWN_PAIRS; b++) {
    const int columns = Pairs::columns(w, b);
    if (columns > w.rows) continue;
    each_number(pairs.a[b], [&](f32 v, int row, int column) { to.a[(w.rows + row) * (SPAN + 1) + columns + column] = v; });
    each_number(pairs.m[b], [&](f32 v, int row, int column) { to.m[(w.rows + row) * (SPAN + 1) + columns + column] = -v; });
  }
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) {
    if (!w.has_block(b)) continue;
    const int n = w.block(b) * 16;
    each_number(parts.q[b], [&](f32 v, int row, int column) { to.q[(w.rows + row) * LINE + n + column] = v; });
    each_number(parts.r[b], [&](f32 v, int row, int column) { to.r[(w.rows + row) * LINE + n + column] = v; });
    each_number(parts.w[b], [&](f32 v, int row, int column) { to.w[(w.rows + row) * LINE + n + column] = v; });
  }
  const f32* const sums = p.sums + w.unit * SPAN * PADDED_KEYS;
  for (int i = threadIdx.x; i < SPAN * PADDED_KEYS; i += THREADS) to.c[i / PADDED_KEYS * LINE + i % PADDED_KEYS] = sums[i];
}

// The decays of parts, and the gradient that goes to the chunk's end.
DEVICE void decay_parts(const Work& w, const Channels& at) {
  for (int n = threadIdx.x; n < PADDED_KEYS; n += THREADS) {
    const f32 end = at.c[(SPAN - 1) * LINE + n];
    f32 sum = w.token(SINCE, SPAN - 1) * exp_fast(end) * ends_of(w)[n];
    for (int i = SPAN - 1; i >= 0; i--) {
      const int place = i * LINE + n;
      const f32 since = w.token(SINCE, i) * exp_fast(at.c[place]);
      at.q[place] *= since, at.r[place] *= -since;
      at.w[place] = w.token(UNTIL, i) == 0.f ? 0.f : at.w[place] * exp_fast(end - at.c[place]);
      sum = __fmaf_rn(w.key(i, n), at.w[place], sum);
    }
    ends_of(w)[n] = sum;
  }
}

DEVICE void add_channels(const Work& w, const Channels& at) {
  for (int item = threadIdx.x; item < SPAN * PADDED_KEYS; item += THREADS) {
    const int x = item / PADDED_KEYS, n = item % PADDED_KEYS;
    const f32 own = at.c[x * LINE + n];
    f32 q = 0.f, r = 0.f, written = 0.f;
    for (int y = 0; y < SPAN; y++) {
      if (!w.together(x, y)) continue;
      const f32 decay = exp_fast(y < x ? own - at.c[y * LINE + n] : at.c[y * LINE + n] - own), key = decay * w.key(y, n);
      if (y < x) q = __fmaf_rn(at.a[x * (SPAN + 1) + y], key, q);
      if (y < x) r = __fmaf_rn(at.m[x * (SPAN + 1) + y], key, r);
      if (y > x) written = __fmaf_rn(at.a[y * (SPAN + 1) + x], decay * w.query(y, n), written);
      if (y > x) written = __fmaf_rn(w.token(BETA_ROW, y) * at.m[y * (SPAN + 1) + x], key, written);
    }
    at.q[x * LINE + n] += q, at.r[x * LINE + n] += r, at.w[x * LINE + n] += written;
  }
}

// The part of a head in the gradient by A_log, from what threads have of it.
DEVICE void finish_a_log(const Params& p, const Work& w, f32 by_a_log) {
  by_a_log = sum_of_warp(by_a_log);
  if (threadIdx.x % 32 == 0) w.spare()[threadIdx.x / 32] = by_a_log;
  __syncthreads();
  if (threadIdx.x != 0) return;
  f32 all = 0.f;
  for (int warp = 0; warp < WARPS; warp++) all += w.spare()[warp];
  p.da_terms[w.unit] = all;
}

DEVICE void finish_channel_gates(const Params& p, const Work& w, const Channels& at) {
  f32 by_a_log = 0.f;
  for (int n = threadIdx.x; n < KEYS; n += THREADS) {
    f32 sum = 0.f, by_bias = 0.f;
    for (int i = SPAN - 1; i >= 0; i--) {
      const int place = i * LINE + n;
      if (i < SPAN - 1 && !w.together(i, i + 1)) sum = 0.f;
      sum += w.query(i, n) * at.q[place] + w.key(i, n) * (w.token(BETA_ROW, i) * at.r[place] - at.w[place]);
      if (i >= w.chunk.rows) continue;
      const GateGradient own = finish_gate(p, w, i, n, w.together(i, SPAN - 1) ? sum + ends_of(w)[n] : sum);
      by_bias += own.by_gate, by_a_log += own.by_a_log;
    }
    if constexpr (HAS_SUMS) p.dbias_terms[w.unit * KEYS + n] = by_bias;
  }
  if constexpr (HAS_SUMS) finish_a_log(p, w, by_a_log);
}

DEVICE void finish_channels(const Params& p, const Work& w, Parts& parts, Pairs& pairs, Totals& totals) {
  const Channels at(w);
  put_channels(p, w, at, parts, pairs);
  __syncthreads();
  decay_parts(w, at);
  __syncthreads();
  add_channels(w, at);
  __syncthreads();
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) {
    if (!w.has_block(b)) continue;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int step = w.rows + row_of(i), n = w.block(b) * 16 + column_of(i), place = step * LINE + n;
      number_of(parts.r[b], i) = at.r[place];
      // a step with itself, of which gradients by gates are sums without: no decay has part in it, and strong ones leave less than its rounding
      const f32 own = at.a[step * (SPAN + 1) + step];
      number_of(totals.q[b], i) += __fmaf_rn(own, w.key(step, n), at.q[place]);
      number_of(totals.k[b], i) += __fmaf_rn(own, w.query(step, n), __fmaf_rn(w.token(BETA_ROW, step), at.r[place], at.w[place]));
      number_of(parts.q[b], i) = number_of(parts.w[b], i) = 0.f;
    }
  }
  put_sums(w, KEY_R, sums_of_rows(w, parts.r, w.tile(0)));
  __syncthreads();
  if constexpr (HAS_DBETA) {
    if (int(threadIdx.x) < w.chunk.rows) finish_beta(p, w, threadIdx.x, w.row_sum(KEY_R, threadIdx.x));
  }
  if constexpr (HAS_DGATE || HAS_SUMS) finish_channel_gates(p, w, at);
}
