// The warpgroup that has the gradient by keys.
#pragma once
#include "gradient_roles.cuh"

static_assert(given_types<DK>() && given<int>(DK_WIDTH) && given<bool>(HAS_DK));

struct Keys : Role {
  using Role::Role;
  u32 pairs_phase = 0;

  DEVICE void run() {
    each_chunk([&](u32 i) { take(i); }, [](u32) {});
  }
  DEVICE void take(u32 index) {
    Sums<KEYS> k;
    float2 all = make_float2(0.f, 0.f);
    barrier_wait(own.units_full[chunk.at], chunk.phase);
#pragma unroll 1
    for (int member = 0; member < heads_of(p); member++) {
      Sums<KEYS> r;
#pragma unroll 1
      for (int i = 0; i < SLICES; i++) take_slice(r, k, i > 0, member + i > 0);
      finish_head(r, k, all);
    }
    if constexpr (HAS_DK) store_units<DK, DK_WIDTH>(*this, index, k, all, 0);
    warp_arrive(own.units_free[chunk.at]);
  }

  // r = X S^T, and k += until D R^T
  DEVICE void take_slice(Sums<KEYS>& r, Sums<KEYS>& all, bool goes_on, bool has_keys) {
    await_slice();
    const char* const from = stage();
    const u64 x = operand(from + X_AT), state = operand(from + STATE_AT, TILE), gradient = operand(from + GRADIENT_AT, TILE);
    FragmentA d[4];
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true, true>(r, further(x, k * 2048), further(state, k * 2048), goes_on || k > 0);
    products_commit();
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<true>(d[k].v, from + D_AT + columns_at() + k * 2048);
    scale_rows(d, d, of_rows(UNTIL));
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(all, d[k], further(gradient, k * 2048), has_keys || k > 0);
    products_commit();
    products_wait();
    pin(r.v), pin(all.v);
    hold(d);
    leave_slice();
  }

  // Steps of a head give to those before them.
  DEVICE void multiply_pairs(Sums<KEYS>& r, Sums<KEYS>& all) {
    const u64 a = operand(shared + A_AT), m = operand(shared + M_AT), beta_m = operand(shared + BETA_M_AT);
    const u64 k = operand(keys(), TILE), q = operand(queries(), TILE);
    barrier_wait(own.pairs_full, pairs_phase);
    pairs_phase ^= 1;
    pin(r.v), pin(all.v);
    products_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      multiply<true>(r, further(m, i * 32), further(k, i * 2048), true);
      multiply<true, true>(all, further(a, i * 2048), further(q, i * 2048), true);
      multiply<true, true>(all, further(beta_m, i * 2048), further(k, i * 2048), true);
    }
    products_commit();
    products_wait();
    pin(r.v), pin(all.v);
    warp_arrive(own.pairs_free);
  }

  DEVICE void finish_head(Sums<KEYS>& r, Sums<KEYS>& k, float2& all) {
    const float2 since = of_rows(SINCE), beta = of_rows(BETA_ROW);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) r.v[i] *= i / 2 % 2 == 0 ? -since.x : -since.y;
    float2 end[1], sums[2];
    sums_of_rows<1>(end, keys(), low, {&k});
    put(KEY_END, difference(end[0], all));
    multiply_pairs(r, k);
    sums_of_rows<2>(sums, keys(), low, {&r, &k});
    put(KEY_R, sums[0]), put(KEY_WRITTEN, difference(sums[1], all));
    all = make_float2(__fmaf_rn(beta.x, sums[0].x, sums[1].x), __fmaf_rn(beta.y, sums[0].y, sums[1].y));
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) k.v[i] = __fmaf_rn(i / 2 % 2 == 0 ? beta.x : beta.y, r.v[i], k.v[i]);
    leave_head();
  }
};
