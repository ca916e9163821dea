// These steps come after the slices of a chunk: products of steps, sums over channels, and gradients by gates, beta, queries and keys. How keys and
// queries lie is the slices' own (`unit_at`), and so are products of steps: `store_pairs` leaves them with their decays, `multiply_pairs` takes them.
#pragma once
#include "backward_work.cuh"

static_assert(given_types<DQ, DK, DGATE, DBETA>() && given<int>(DQ_WIDTH, DK_WIDTH) && given<bool>(UNIT, HAS_DQ, HAS_DK, HAS_DGATE, HAS_SUMS));

// ---- what comes after the slices, with one decay for all channels

// The sums over channels of two rows of `s`, those of a thread's numbers, with rows of keys or queries: what this warp has of them.
DEVICE float2 sums_of_rows(const Work& w, Square (&s)[OWN_BLOCKS], const char* units) {
  f32 low = 0.f, high = 0.f;

#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) {
    if (!w.has_block(b)) continue;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int n = w.block(b) * 16 + column_of(i);
      const float2 unit = pair_at<MATH>(unit_at(units, w.rows + row_of(i), n));
      f32& sum = i / 2 % 2 == 0 ? low : high;
      sum = __fmaf_rn(number_of(s[b], i), unit.x, __fmaf_rn(number_of(s[b], i + 1), unit.y, sum));
    }
  }
  return added_up(make_float2(low, high));
}
DEVICE void put_sums(const Work& w, int of, float2 sums) {
  if (threadIdx.x % 4 != 0) return;
  w.row_sums(of, w.rows + row_of(0))[w.part] = sums.x, w.row_sums(of, w.rows + row_of(2))[w.part] = sums.y;
}

// The gradient by a gate of a step, and the step's part of that by A_log.
struct GateGradient { f32 by_gate, by_a_log; };
DEVICE GateGradient finish_gate(const Params& p, const Work& w, int step, int channel, f32 by_log) {
  const Head head(p, w.head);
  const f32 bias = HAS_BIAS && BY_CHANNEL ? to_f32(*at<BIAS>(p.bias, w.head, channel)) : head.bias;
  const f32 gate = to_f32(*at<GATE>(p.g, w.chunk.batch, w.chunk.start + step, w.head, channel));
  const LogDecay slopes = log_decay_slopes(gate + bias, head.rate, p.lower_bound);
  const f32 by_gate = by_log * slopes.by_gate;
  if constexpr (HAS_DGATE) assign(*at<DGATE>(p.dg, w.chunk.batch, w.chunk.start + step, w.head, channel), by_gate);
  return {by_gate, by_log * slopes.by_a_log};
}
DEVICE void finish_beta(const Params& p, const Work& w, int step, f32 key_r) {
  const i64 t = w.chunk.start + step;
  const f32 slope = beta_slope(to_f32(*at<BETA>(p.beta, w.chunk.batch, t, w.head)), p.beta_factor);
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) key_r += *w.piece_sum(piece, step);
  assign(*at<DBETA>(p.dbeta, w.chunk.batch, t, w.head), slope * key_r);
}

// Gradients by one gate for all channels, and by beta, from sums over channels. What the state at the end gives goes to the gates of the last run; what it gives by a
// step's key goes to the gates behind the step, of which the key's sum takes off what it has unless they are APART.
DEVICE void finish_gates(const Params& p, const Work& w) {
  const int i = threadIdx.x;
  f32 *const of_step = w.spare(), *const of_end = of_step + SPAN;
  if (i < SPAN) {
    const f32 key_r = w.row_sum(KEY_R, i);
    of_step[i] = w.row_sum(QUERY_DQ, i) + w.token(BETA_ROW, i) * key_r - w.row_sum(KEY_WRITTEN, i), of_end[i] = w.row_sum(KEY_END, i);
    if (HAS_DBETA && i < w.chunk.rows) finish_beta(p, w, i, key_r);
  }
  if constexpr (!HAS_DGATE && !HAS_SUMS) return;
  __syncthreads();
  GateGradient own = {0.f, 0.f};
  if (i < w.chunk.rows) {
    f32 by_log = 0.f, ends = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) ends += of_step[2 * SPAN + warp];
    ends *= w.token(SINCE, SPAN - 1);
#pragma unroll 8
    for (int j = 0; j < SPAN; j++) ends += !APART || j < i ? of_end[j] : 0.f, by_log += j >= i && w.together(i, j) ? of_step[j] : 0.f;
    own = finish_gate(p, w, i, 0, w.together(i, SPAN - 1) ? by_log + ends : by_log);
  }
  if constexpr (!HAS_SUMS) return;
  __syncthreads();
  if (i < SPAN) of_step[i] = own.by_gate, of_end[i] = own.by_a_log;
  __syncthreads();
  if (i >= 2) return;
  f32 sum = 0.f;
#pragma unroll 8
  for (int step = 0; step < SPAN; step++) sum += of_step[i * SPAN + step];
  (i == 0 ? p.dbias_terms : p.da_terms)[w.unit] = sum;
}

// The part of the sums of two rows that this warp has, which it has put there for the heads before.
DEVICE float2 sums_before(const Work& w, int of, bool is_first) {
  if (APART || is_first) return make_float2(0.f, 0.f);
  return make_float2(w.row_sums(of, w.rows + row_of(0))[w.part], w.row_sums(of, w.rows + row_of(2))[w.part]);
}

template <typename OfPairs> DEVICE void finish_head(const Params& p, const Work& w, Parts& parts, OfPairs& pairs, Totals& totals, bool is_first) {
  store_pairs(w, pairs);
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) each_number(parts.r[b], [&](f32& v, int row, int) { v *= -w.token(SINCE, w.rows + row); });
  put_sums(w, KEY_END, difference(sums_of_rows(w, parts.w, w.tile(0)), sums_before(w, UNIT_K, is_first)));
  set_apart(parts.w, totals.k);
  __syncthreads();
  multiply_pairs(w, parts);
  const float2 q = sums_of_rows(w, parts.q, w.tile(Q_AT)), r = sums_of_rows(w, parts.r, w.tile(0)), k = sums_of_rows(w, parts.w, w.tile(0));
  put_sums(w, QUERY_DQ, difference(q, sums_before(w, UNIT_Q, is_first))), put_sums(w, KEY_R, r), put_sums(w, KEY_WRITTEN, difference(k, sums_before(w, UNIT_K, is_first)));
  const f32 low = w.token(BETA_ROW, w.rows + row_of(0)), high = w.token(BETA_ROW, w.rows + row_of(2));
  const float2 own = add_own_pairs(w, parts);
  __syncwarp();
  put_sums(w, UNIT_Q, sum_of(q, own)), put_sums(w, UNIT_K, sum_of(make_float2(__fmaf_rn(low, r.x, k.x), __fmaf_rn(high, r.y, k.y)), own));
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++)
#pragma unroll
    for (int i = 0; i < 8; i++) number_of(parts.w[b], i) = __fmaf_rn(i / 2 % 2 == 0 ? low : high, number_of(parts.r[b], i), number_of(parts.w[b], i));
  set_apart(parts.w, totals.k), set_apart(parts.q, totals.q);
  __syncthreads();
  finish_gates(p, w);
}

// ---- gradients by queries and keys from those of their units

template <typename E, int WIDTH> DEVICE void store_units(const Params& p, const Work& w, Square (&s)[OWN_BLOCKS], const Strided& to, int of) {
  const f32 scale = of == 0 ? 1.f : p.scale, unscale = 1.f / scale;
  const char* const units = w.tile(of == 0 ? 0 : Q_AT);
  const i64 shared = w.index * p.key_heads + w.key_head;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int step = w.rows + row_of(2 * r);
    if (step >= w.chunk.rows) continue;
    const f32 inverse = UNIT ? p.norms[(shared * 2 + of) * SPAN + step] : 1.f;
    const f32 along = UNIT ? w.row_sum(of == 0 ? UNIT_K : UNIT_Q, step) * unscale * unscale : 0.f;
    E* const line = at<E>(to, w.chunk.batch, w.chunk.start + step, w.key_head);
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      if (!w.has_block(b)) continue;
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int i = 4 * k + 2 * r, n = w.block(b) * 16 + column_of(i);
        const float2 unit = pair_at<MATH>(unit_at(units, step, n));
        Neighbours<E, 2> both;
        assign(both.v[0], scale * inverse * __fmaf_rn(-along, unit.x, number_of(s[b], i)));
        assign(both.v[1], scale * inverse * __fmaf_rn(-along, unit.y, number_of(s[b], i + 1)));
        if constexpr (WIDTH > 1) {
          if (n < KEYS) write_at_once(line + n, both);
        } else {
          if (n < KEYS) line[n * to.stride[3]] = both.v[0];
          if (n + 1 < KEYS) line[(n + 1) * to.stride[3]] = both.v[1];
        }
      }
    }
  }
}

DEVICE void finish_units(const Params& p, const Work& w, Square (&by_q)[OWN_BLOCKS], Square (&by_k)[OWN_BLOCKS]) {
  put_sums(w, UNIT_Q, sums_of_rows(w, by_q, w.tile(Q_AT))), put_sums(w, UNIT_K, sums_of_rows(w, by_k, w.tile(0)));
  __syncthreads();
  if constexpr (HAS_DQ) store_units<DQ, DQ_WIDTH>(p, w, by_q, p.dq, 1);
  if constexpr (HAS_DK) store_units<DK, DK_WIDTH>(p, w, by_k, p.dk, 0);
}

// A chunk that there is not leaves no terms.
DEVICE void clear_terms(const Params& p, i64 unit) {
  if (threadIdx.x < SHARING) p.da_terms[unit + threadIdx.x] = 0.f;
  const int width = BY_CHANNEL ? KEYS : 1;
  for (int i = threadIdx.x; i < SHARING * width; i += THREADS) p.dbias_terms[unit * width + i] = 0.f;
}
