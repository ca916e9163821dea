// The warpgroup that has the gradient by queries, and products of steps.
#pragma once
#include "gradient_roles.cuh"

static_assert(given_types<DQ>() && given<int>(DQ_WIDTH) && given<bool>(HAS_DQ));

struct Queries : Role {
  using Role::Role;

  DEVICE void run() {
    each_chunk([&](u32 i) { take(i); }, [](u32) {});
  }
  DEVICE void take(u32 index) {
    Sums<KEYS> q;
    float2 all = make_float2(0.f, 0.f);
    barrier_wait(own.units_full[chunk.at], chunk.phase);
#pragma unroll 1
    for (int member = 0; member < heads_of(p); member++) {
      Sums<64> a, m;
#pragma unroll 1
      for (int i = 0; i < SLICES; i++) take_slice(q, a, m, i > 0, member + i > 0);
      FragmentA pairs[4];
      hand_over(pairs, a, m);
      pin(q.v);
      products_fence();
      const u64 of = operand(keys(), TILE);
#pragma unroll
      for (int k = 0; k < 4; k++) multiply<true>(q, pairs[k], further(of, k * 2048), true);
      products_commit();
      products_wait();
      pin(q.v);
      hold(pairs);
      float2 sums[1];
      sums_of_rows<1>(sums, queries(), low, {&q});
      put(QUERY_DQ, difference(sums[0], all));
      all = sums[0];
      leave_head();
    }
    if constexpr (HAS_DQ) store_units<DQ, DQ_WIDTH>(*this, index, q, all, 1);
    warp_arrive(own.units_free[chunk.at]);
  }

  // m = X D^T, a = dy D^T, and q += since dy S^T
  DEVICE void take_slice(Sums<KEYS>& q, Sums<64>& a, Sums<64>& m, bool goes_on, bool has_queries) {
    await_slice();
    const char* const from = stage();
    FragmentA dy[4], read[4];
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<false>(dy[k].v, from + DY_AT + (lines_at() ^ k * 32));
    const u64 d = operand(from + D_AT), x = operand(from + X_AT), state = operand(from + STATE_AT, TILE);
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      multiply<true, true>(m, further(x, k * 2048), further(d, k * 2048), goes_on || k > 0);
      multiply<true>(a, dy[k], further(d, k * 2048), goes_on || k > 0);
    }
    products_commit();
    scale_rows(read, dy, of_rows(SINCE));
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(q, read[k], further(state, k * 2048), has_queries || k > 0);
    products_commit();
    products_wait();
    pin(a.v), pin(m.v), pin(q.v);
    hold(dy), hold(read);
    leave_slice();
  }

  // Products of steps with their decays, by rows, m with beta of its rows, too; those of a stay as factors.
  DEVICE void hand_over(FragmentA (&pairs)[4], const Sums<64>& a, const Sums<64>& m) {
    const f32* const sums = tokens(SUM);
    const f32 since[2] = {sums[low], sums[low + 8]}, beta[2] = {tokens(BETA_ROW)[low], tokens(BETA_ROW)[low + 8]};
    barrier_wait(own.pairs_free, pairs_phase ^ 1);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 of_m[4] = {}, of_beta_m[4] = {};
#pragma unroll
      for (int i = 0; i < 4; i++) pairs[k].v[i] = 0;
      if (k <= warp) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = low + i % 2 * 8, column = 16 * k + i / 2 * 8 + pair, at = 8 * k + 2 * i;
          const float2 other = *reinterpret_cast<const float2*>(sums + column);
          const f32 x = row >= column ? exp_fast(since[i % 2] - other.x) : 0.f;
          const f32 y = row > column ? exp_fast(since[i % 2] - other.y) : 0.f;
          const f32 mx = row > column ? -x * m.v[at] : 0.f, my = row > column + 1 ? -y * m.v[at + 1] : 0.f;
          pairs[k].v[i] = pack_bf16(x * a.v[at], y * a.v[at + 1]);
          of_m[i] = pack_bf16(mx, my), of_beta_m[i] = pack_bf16(beta[i % 2] * mx, beta[i % 2] * my);
        }
      }
      const int to = lines_at() ^ k * 32;
      store_matrices<false>(shared + A_AT + to, pairs[k].v);
      store_matrices<false>(shared + M_AT + to, of_m), store_matrices<false>(shared + BETA_M_AT + to, of_beta_m);
    }
    fence_async();
    warp_arrive(own.pairs_full);
    pairs_phase ^= 1;
  }
  u32 pairs_phase = 0;
};
