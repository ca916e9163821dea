// The side of the outputs: V, K, the gradients by C, the gate and D.
#pragma once
#include "fused_sides.cuh"

static_assert(given<int>(X_AT, Z_AT) && given_types<DC>());

struct OutputSide : Side<false> {
  Sums<SPAN> k;
  Sums<SPAN> triangle;   // the lower one of C B^T

  DEVICE OutputSide(const Params& p, const Work& w, char* tiles, Shared& shared) : Side(p, w, tiles, shared) {
#pragma unroll
    for (int i = 0; i < SPAN / 2; i++) k.v[i] = 0.f;
  }

  // this warp's part of <h, g>: lines of the slots, 16 states at a time
  DEVICE f32 dot_states() const {
    const int warp = threadIdx.x % 128 / 32, line = lines_at() % 2048;
    Diagonal both;
    // packed, its counter would be one register too many
#pragma unroll(PACKED ? 4 : 1)
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int n = 0; n < STATES / 64; n++) {
        const char* const from = stage() + (n * 4 + warp) * 2048 + (line ^ 32 * k);
        FragmentA h, g;
        load_matrices<false>(h.v, from + H_AT);
        load_matrices<false>(g.v, from + G_AT);
        both.add(h, g);
      }
    return sum_of_warp(Diagonal::has() ? both.line(0) + both.line(1) : 0.f);
  }

  // C h, and the part of the gradient by C that states have
  DEVICE void multiply_states(Sums<64>& y, const Rows& ps) {
    const u64 states = operand(stage() + H_AT), map = operand(tiles + C_AT);
#pragma unroll
    for (int i = 0; i < STATES / 16; i++) multiply<true>(y, further(map, i / 4 * PANEL + i % 4 * 32), further(states, i * 16 * 128), i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<false>(gradient, ps[i], further(states, i * 32), true);
  }

  // <p, x> of pairs of steps
  DEVICE void multiply_sides(Sums<64>& pairs, const Rows& rows) {
    const u64 x = operand(stage() + X_AT);
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<false>(pairs, rows[i], further(x, i * 32), i > 0);
  }

  // Pairs of steps add these terms to K, whose other triangle is not used, and to sums of rows and columns.
  template <bool FAR> DEVICE void add_pairs(const Sums<64>& pairs, f32 (&rows)[2]) {
    const Powers& of = powers();
    f32 columns[16], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) own[r] = (FAR ? of.decay : of.before)[row_of() + 8 * r], rows[r] = 0.f;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int column = 8 * n + pair_of();
      const float2 weights = *reinterpret_cast<const float2*>(of.weight + column), decays = *reinterpret_cast<const float2*>(of.decay + column);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const f32 weight = i == 0 ? weights.x : weights.y, decay = i == 0 ? decays.x : decays.y, scale = FAR ? weight : weight * decay;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int at = 4 * n + 2 * r + i;
          f32 v = pairs.v[at];
          if constexpr (FAR)
            v = column + i <= row_of() + 8 * r ? v * exp2_fast(own[r] - decay) : 0.f;
          else
            v *= own[r];
          const f32 product = v * triangle.v[at];
          k.v[at] = __fmaf_rn(v, scale, k.v[at]);
          rows[r] = __fmaf_rn(product, scale, rows[r]);
          columns[2 * n + i] = r == 0 ? product : columns[2 * n + i] + product;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) rows[r] = sum_of_row(rows[r]);
    wait_for_sums();
    put_columns(columns);
  }

  // Adds what another thread has: of 2 HALF numbers each of the two keeps the sums of HALF.
  template <int HALF> DEVICE static void halve(f32 (&numbers)[16]) {
    const bool upper = threadIdx.x & 2 * HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      const f32 given = upper ? numbers[i] : numbers[i + HALF];
      numbers[i] = (upper ? numbers[i + HALF] : numbers[i]) + __shfl_xor_sync(~0u, given, 2 * HALF);
    }
  }
  // Sums over the eight threads of a warp that have the same columns: of their sixteen each keeps two.
  DEVICE void put_columns(f32 (&columns)[16]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    halve<8>(columns), halve<4>(columns), halve<2>(columns);
    if (2 * lane < 16 * (warp + 1))
      *reinterpret_cast<float2*>(sums().columns + StepSums::column_of(warp, 2 * lane)) = make_float2(columns[0], columns[1]);
  }

  // The gradient by the skip of each column, of p as it was before: each warp's steps.
  DEVICE void put_skip() const {
    f32 columns[16] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int line = lines_at() ^ 32 * k;
      FragmentA x, dy, z;
      load_matrices<false>(x.v, stage() + X_AT + line);
      load_matrices<false>(dy.v, stage() + DY_AT + line);
      if constexpr (HAS_Z) load_matrices<false>(z.v, stage() + Z_AT + line);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        f32 first = low_bf16(dy.v[i]), second = high_bf16(dy.v[i]);
        if constexpr (HAS_Z) first *= silu(low_bf16(z.v[i])), second *= silu(high_bf16(z.v[i]));
        f32* const own = columns + 4 * k + i / 2 * 2;
        own[0] = __fmaf_rn(first, low_bf16(x.v[i]), own[0]), own[1] = __fmaf_rn(second, high_bf16(x.v[i]), own[1]);
      }
    }
    halve<8>(columns), halve<4>(columns), halve<2>(columns);
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    *reinterpret_cast<float2*>(shared.columns[turn.at][warp] + 2 * lane) = make_float2(columns[0], columns[1]);
  }

  // Makes Y of C h, where the gradient by the gate needs it; where powers are far apart, y but for its own step.
  DEVICE void add_inputs(Sums<64>& y) {
    Rows weights;
    if (is_far()) scale_rows(y, [&](int row) { return powers().before[row]; });
#pragma unroll
    for (int i = 0; i < 16; i++) {
      f32 v[2] = {triangle.v[2 * i], triangle.v[2 * i + 1]};
      if (is_far()) {
        const int row = row_of() + i % 2 * 8, column = i / 2 * 8 + pair_of();
        v[0] *= far_decay(row, column), v[1] *= far_decay(row, column + 1);
      }
      weights[i / 4].v[i % 4] = pack_bf16(v[0], v[1]);
    }
    const u64 xs = operand(stage() + XS_AT);
    barrier_wait(barriers().has_xs, turn.phase);
    __syncwarp();
    products_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<true>(y, weights[i], further(xs, i * 16 * 128), true);
    products_commit();
    products_wait();
    pin(y.v);
    keep(weights, y.v[0]);
  }

  // This thread's numbers of Y, some of them for each part of a tile.
  DEVICE float4* place_of(int at) const {
    const int from = PANELS > 1 || at < 4 ? Y_AT + at * 2048 : REST_AT + (at - 4) * 2048;
    return reinterpret_cast<float4*>(stage() + from) + threadIdx.x % 128;
  }
  DEVICE void put_sums(const Sums<64>& y) const {
    // all warps have read h and xs
    meet<OUTPUTS_BARRIER, 128>();
#pragma unroll
    for (int i = 0; i < 8; i++) *place_of(i) = make_float4(y.v[4 * i], y.v[4 * i + 1], y.v[4 * i + 2], y.v[4 * i + 3]);
  }

  // The gradient by the gate, in the place of the gate.
  DEVICE void put_gate(const Sums<64>& y, int unit) {
    put_sums(y);
    const Powers& of = powers();
    const Parts parts(p.dz_parts, p, w, unit);
    f32 factors[2], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row_of() + 8 * r;
      factors[r] = is_far() ? 1.f : of.before[row], own[r] = of.weight[row] * shared.diagonal[row];
    }
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
      const int line = lines_at() ^ 32 * k;
      FragmentA x, dy, z;
      load_matrices<false>(x.v, stage() + X_AT + line);
      load_matrices<false>(dy.v, stage() + DY_AT + line);
      load_matrices<false>(z.v, stage() + Z_AT + line);
      const float4 sums[2] = {*place_of(2 * k), *place_of(2 * k + 1)};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float2 add = make_float2(own[i % 2], own[i % 2]);
        if constexpr (ADDS_SKIP) {
          const float2 skip = *reinterpret_cast<const float2*>(of.skip + 16 * k + i / 2 * 8 + pair_of());
          add.x += skip.x, add.y += skip.y;
        }
        const float4& four = sums[i / 2];
        const float2 v = i % 2 == 0 ? make_float2(four.x, four.y) : make_float2(four.z, four.w);
        f32 first = __fmaf_rn(add.x, low_bf16(x.v[i]), v.x * factors[i % 2]) * low_bf16(dy.v[i]);
        f32 second = __fmaf_rn(add.y, high_bf16(x.v[i]), v.y * factors[i % 2]) * high_bf16(dy.v[i]);
        first *= Gate(low_bf16(z.v[i])).slope, second *= Gate(high_bf16(z.v[i])).slope;
        parts.join(i % 2, 16 * k + i / 2 * 8, first, second);
        z.v[i] = pack_bf16(first, second);
      }
      if constexpr (!IS_FIRST_HALF) store_matrices<false>(stage() + Z_AT + line, z.v);
    }
    fence_async();
  }

  // p, when it is there
  DEVICE void load_p(Rows& rows) {
    if constexpr (INPUTS_LEAD) barrier_wait(barriers().has_ps, turn.phase);
    load_rows(rows, stage() + P_AT);
    if constexpr (INPUTS_LEAD) warp_arrive(barriers().p_read); else wait_for_state();
    __syncwarp();
  }

  DEVICE void unit(int number) {
    wait_for_unit();
    if constexpr (HAS_DZ && IS_SECOND_HALF) prefetch_parts(p.dz_parts, p, w, number);
    if constexpr (!INPUTS_LEAD) move_state();
    if constexpr (HAS_DSKIP && SKIP_BY_COLUMN) put_skip();
    Rows rows;
    load_p(rows);
    Sums<64> pairs, y;
    products_fence();
    multiply_sides(pairs, rows);
    products_commit();
    if constexpr (!INPUTS_LEAD) put_ps(rows);
    products_wait();
    pin(pairs.v);
    keep(rows, pairs.v[0]);
    f32 sums_of_rows[2], dots[2];
    if (is_far()) add_pairs<true>(pairs, sums_of_rows); else add_pairs<false>(pairs, sums_of_rows);
    // out of registers in the meantime
    load_rows(rows, stage() + PS_AT);
    if (is_far()) scale_rows(rows, rows, [&](int row) { return powers().before[row]; });
    __syncwarp();
    products_fence();
    multiply_states(y, rows);
    products_commit();
    const f32 states = dot_states();
    products_wait();
    pin(y.v), pin(gradient.v);
    keep(rows, y.v[0]);
    dot_rows(dots, rows, y);
#pragma unroll
    for (int r = 0; r < 2; r++) dots[r] += sums_of_rows[r];
    put_rows(sums().outputs, dots);
    if (threadIdx.x % 32 == 0) sums().state[threadIdx.x % 128 / 32] = states;
    if constexpr (HAS_DZ) {
      add_inputs(y);
      put_gate(y, number);
    }
    leave_unit();
  }

  DEVICE void work() {
    form_triangle(triangle);
#pragma unroll 1
    for (int i = 0; i < w.units; i++) unit(i);
    each_sum(k, [&](f32& v, int row, int column) { v = column <= row ? v : 0.f; });
    Rows terms[2];
    split_rows(terms, k);
#pragma unroll
    for (int i = 0; i < 2; i++) store_rows(tiles + K_AT + i * PANEL, terms[i]);
    warp_arrive(shared.has_k);
    finish<DC>(terms, p.dc);
  }
};
