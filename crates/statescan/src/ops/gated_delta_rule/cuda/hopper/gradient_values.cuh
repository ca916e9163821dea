// The warpgroup that has the gradients by v, gates and beta.
#pragma once
#include "gradient_roles.cuh"

static_assert(given_types<DV, DGATE, DBETA>() && given<int>(DV_WIDTH) && given<bool>(HAS_DV, HAS_DGATE, HAS_DBETA, HAS_SUMS, NEEDS_KEYS));

struct Values : Role {
  using Role::Role;

  DEVICE void run() {
    each_chunk(
        [&](u32 i) {
#pragma unroll 1
          for (int member = 0; member < GROUP; member++) take(i, member);
        },
        [&](u32 i) { clear(Work(p, i)); });
  }
  // A chunk that there is not leaves no terms.
  DEVICE void clear(const Work& w) const {
    const int i = threadIdx.x % 128;
    if (HAS_SUMS && i < GROUP) p.da_terms[w.unit(p, i)] = 0.f, p.dbias_terms[w.unit(p, i)] = 0.f;
  }
  DEVICE void take(u32 index, int member) {
    float2 of_v = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int i = 0; i < SLICES; i++) take_slice(Work(p, hidden(index)), member, i, of_v);
    Gates gates;
    if (NEEDS_KEYS && warp == 0) gates = gates_of(Work(p, hidden(index)), member);
    put(OF_V, added_up(of_v));
    meet<1, 128>();
    if (NEEDS_KEYS && warp == 0) finish_gates(Work(p, hidden(index)), member, gates);
    head.next();
  }

  // X of eight neighbouring columns of a step: lines of a tile, of which a thread has two of each matrix, are taken in such an order, turned by threads to
  // keep them in banks of their own.
  DEVICE void load_x(u32 (&to)[4], const char* tile, int unit, int first) const {
    const int of = lane % 8 / 2, column = first + 8 * of + 2 * ((lane / 8 + of) % 4) + lane % 2;
    u32 v[4], turned[4];
    load_matrices<true>(v, tile + column * 128 + (unit ^ column % 8) * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) turned[i] = lane & 1 ? v[(i + 3) % 4] : v[i];
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = lane & 2 ? turned[(i + 2) % 4] : turned[i];
  }

  // The gradient by v of a slice, and sums of X v: a thread has two pieces of eight columns of either step.
  DEVICE void take_slice(const Work& w, int member, int index, float2& of_v) {
    await_slice();
    const float2 betas = of_rows(BETA_ROW);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
      const int step = low + 8 * half;
      const char* const values = stage() + V_AT + step * 128;
      u32 x[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) load_x(x[i], stage() + X_AT, 2 * warp + half, 32 * i);
      f32 sum = 0.f;
      if constexpr (HAS_DBETA)
        sum = multiply_values(x[0], values + (lane % 4 ^ step % 8) * 16) + multiply_values(x[1], values + ((lane % 4 + 4) ^ step % 8) * 16);
      of_v = sum_of(of_v, half == 0 ? make_float2(sum, 0.f) : make_float2(0.f, sum));
      DV* const to = at<DV>(p.dv, w.chunk.batch, w.chunk.start + step, w.head(member), 64 * index + lane % 4 * 8);
      const f32 beta = half == 0 ? betas.x : betas.y;
      if (HAS_DV && step < w.chunk.rows) store(to, x[0], beta), store(to + 32 * p.dv.stride[3], x[1], beta);
    }
    leave_slice();
  }
  DEVICE static f32 multiply_values(const u32 (&x)[4], const char* values) {
    const uint4 eight = *reinterpret_cast<const uint4*>(values);
    const u32 v[4] = {eight.x, eight.y, eight.z, eight.w};
    f32 sum = 0.f;
#pragma unroll
    for (int e = 0; e < 4; e++) sum = __fmaf_rn(low_bf16(x[e]), low_bf16(v[e]), __fmaf_rn(high_bf16(x[e]), high_bf16(v[e]), sum));
    return sum;
  }
  DEVICE void store(DV* to, const u32 (&x)[4], f32 beta) const {
#pragma unroll
    for (int c = 0; c < 8; c += DV_WIDTH) {
      Neighbours<DV, DV_WIDTH> some;
#pragma unroll
      for (int e = 0; e < DV_WIDTH; e++) assign(some.v[e], beta * ((c + e) % 2 == 0 ? low_bf16(x[(c + e) / 2]) : high_bf16(x[(c + e) / 2])));
      write_at_once(to + c * p.dv.stride[3], some);
    }
  }

  // What gates and betas of two steps are made of, as it lies in memory.
  struct Gates { GATE gate[2]; BETA beta[2]; A_LOG a_log; BIAS bias; };
  DEVICE Gates gates_of(const Work& w, int member) const {
    const u32 of = w.head(member);
    Gates gates = {};
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const i64 t = w.chunk.start + min(2 * lane + e, w.chunk.rows - 1);
      if constexpr (HAS_GATE) gates.gate[e] = *at<GATE>(p.g, w.chunk.batch, t, of);
      if constexpr (HAS_DBETA) gates.beta[e] = *at<BETA>(p.beta, w.chunk.batch, t, of);
    }
    if constexpr (RAW) gates.a_log = *at<A_LOG>(p.a_log, of);
    if constexpr (HAS_BIAS) gates.bias = *at<BIAS>(p.bias, of);
    return gates;
  }

  // Gradients by the gates and beta of two steps, by a warp.
  DEVICE void finish_gates(const Work& w, int member, const Gates& gates) {
    barrier_wait(own.sums_full[head.at], head.phase);
    const auto sums = [&](int row) { return reinterpret_cast<const float2*>(own.sums[head.at][row])[lane]; };
    const float2 key_r = sums(KEY_R), query = sums(QUERY_DQ), written = sums(KEY_WRITTEN), end = sums(KEY_END), of_v = sums(OF_V);
    const float2 beta = reinterpret_cast<const float2*>(tokens(BETA_ROW))[lane];
    const f32* const states = own.of_states[head.at];
    const f32 ends = (states[0] + states[1] + states[2] + states[3]) * tokens(SINCE)[SPAN - 1] + sum_of_warp(end.x + end.y);
    f32 after[2];
    after[1] = query.y + beta.y * key_r.y - written.y, after[0] = after[1] + (query.x + beta.x * key_r.x - written.x);
    f32 behind = after[0];
    // turns that are unrolled have no registers for bf16's conversions behind them
#pragma unroll 1
    for (int apart = 1; apart < 32; apart *= 2) {
      const f32 more = __shfl_down_sync(0xffffffffu, behind, apart);
      if (lane + apart < 32) behind += more;
    }
    behind = __shfl_down_sync(0xffffffffu, behind, 1);
    const f32 rest = ends + (lane < 31 ? behind : 0.f), rate = RAW ? expf(to_f32(gates.a_log)) : 0.f;
    f32 by_gate = 0.f, by_a_log = 0.f;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int step = 2 * lane + e;
      if (step >= w.chunk.rows) continue;
      const LogDecay slopes = log_decay_slopes(to_f32(gates.gate[e]) + to_f32(gates.bias), rate, p.lower_bound);
      const f32 by_log = after[e] + rest, of_gate = by_log * slopes.by_gate, by_beta = e == 0 ? key_r.x + of_v.x : key_r.y + of_v.y;
      const i64 t = w.chunk.start + step, of = w.head(member);
      if constexpr (HAS_DBETA) assign(*at<DBETA>(p.dbeta, w.chunk.batch, t, of), beta_slope(to_f32(gates.beta[e]), p.beta_factor) * by_beta);
      if constexpr (HAS_DGATE) assign(*at<DGATE>(p.dg, w.chunk.batch, t, of), of_gate);
      by_gate += of_gate, by_a_log += by_log * slopes.by_a_log;
    }
    if constexpr (!HAS_SUMS) return;
    by_gate = sum_of_warp(by_gate), by_a_log = sum_of_warp(by_a_log);
    if (lane == 0) p.dbias_terms[w.unit(p, member)] = by_gate, p.da_terms[w.unit(p, member)] = by_a_log;
  }
};
