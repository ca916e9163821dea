// The side of the inputs: X, the gradients by x and B.
#pragma once
#include "fused_sides.cuh"

static_assert(given<int>(X_AT, Z_AT) && given_types<DB>());

struct InputSide : Side<true> {
  Rows triangle;   // the upper one of B C^T

  using Side::Side;

  // Makes p of the gradient by y, and ps, in their tiles: either is rounded once. <x, p> of steps is of p as it was before.
  DEVICE void gate_rows() {
    const f32 own[2] = {scale_of(row_of()), scale_of(row_of() + 8)};
    f32 dots[2] = {};
#pragma unroll 1
    for (int k = 0; k < 4; k++) {
      const int line = lines_at() ^ 32 * k;
      FragmentA x, dy, z, ps;
      load_matrices<false>(x.v, stage() + X_AT + line);
      load_matrices<false>(dy.v, stage() + DY_AT + line);
      load_matrices<false>(z.v, stage() + Z_AT + line);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32& v = dy.v[i];
        const f32 first = low_bf16(v) * silu(low_bf16(z.v[i])), second = high_bf16(v) * silu(high_bf16(z.v[i]));
        v = pack_bf16(first, second), ps.v[i] = pack_bf16(first * own[i % 2], second * own[i % 2]);
        dots[i % 2] = __fmaf_rn(first, low_bf16(x.v[i]), __fmaf_rn(second, high_bf16(x.v[i]), dots[i % 2]));
      }
      store_matrices<false>(stage() + PS_AT + line, ps.v);
      store_matrices<false>(stage() + P_AT + line, dy.v);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) dots[r] = sum_of_row(dots[r]);
    put_rows(sums().own, dots);
    fence_async();
    warp_arrive(barriers().has_ps);
  }

  DEVICE void make_ps() {
    if constexpr (HAS_Z) {
      gate_rows();
    } else {
      Rows rows;
      load_rows(rows, stage() + P_AT);
      put_ps(rows);
    }
  }

  // <x, p> of steps, where p is the gradient by y itself
  DEVICE void put_own(const Rows& x) {
    Diagonal both;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      FragmentA rows;
      load_matrices<false>(rows.v, stage() + P_AT + (lines_at() ^ 32 * n));
      both.add(x[n], rows);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (Diagonal::has()) sums().own[row_of() + 8 * r] = both.line(r);
  }

  // dx, in the place of p
  DEVICE void put_dx(const Sums<64>& total, int unit) {
    const Powers& of = powers();
    const Parts parts(p.dx_parts, p, w, unit);
    Rows rows;
    load_rows(rows, stage() + P_AT);
    f32 factors[2], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row_of() + 8 * r;
      factors[r] = of.weight[row] * of.back(row), own[r] = of.weight[row] * shared.diagonal[row];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32& v = rows[i / 4].v[i % 4];
      float2 add = make_float2(own[i % 2], own[i % 2]);
      if constexpr (ADDS_SKIP) {
        const float2 skip = *reinterpret_cast<const float2*>(of.skip + i / 2 * 8 + pair_of());
        add.x += skip.x, add.y += skip.y;
      }
      f32 first = __fmaf_rn(add.x, low_bf16(v), total.v[2 * i] * factors[i % 2]);
      f32 second = __fmaf_rn(add.y, high_bf16(v), total.v[2 * i + 1] * factors[i % 2]);
      parts.join(i % 2, i / 2 * 8, first, second);
      v = pack_bf16(first, second);
    }
    if constexpr (IS_FIRST_HALF) return;
    store_rows(stage() + P_AT, rows);
    fence_async();
  }

  DEVICE void unit(int number) {
    wait_for_unit();
    if constexpr (IS_SECOND_HALF) prefetch_parts(p.dx_parts, p, w, number);
    move_state();
    const Powers& of = powers();
    Rows x, own;
    load_rows(x, stage() + X_AT);
    if constexpr (HAS_DZ) {
      scale_rows(own, x, [&](int row) { return of.weight[row] * of.back(row); });
      store_rows(stage() + XS_AT, own);
      fence_async();
      warp_arrive(barriers().has_xs);
    }
    scale_rows(own, x, [&](int row) { return of.weight[row] * of.after[row]; });
    forget_numbers(x);
    if (INPUTS_LEAD || !w.second) wait_for_state();
    __syncwarp();
    Sums<64> total;
    const u64 states = operand(stage() + G_AT), map = operand(tiles + B_AT);
    products_fence();
#pragma unroll
    for (int n = 0; n < STATES / 16; n++) multiply<true>(total, further(map, n / 4 * PANEL + n % 4 * 32), further(states, n * 16 * 128), n > 0);
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<false>(gradient, own[n], further(states, n * 32), true);
    products_commit();
    wait_for_sums();
    if constexpr (INPUTS_LEAD) make_ps();
    barrier_wait(barriers().has_ps, turn.phase);
    __syncwarp();
    if constexpr (!HAS_Z) put_own(x);
    products_wait();
    pin(total.v), pin(gradient.v);
    keep(own, total.v[0]);
    f32 dots[2];
    dot_rows(dots, x, total);
    put_rows(sums().inputs_state, dots);
    scale_rows(total, [&](int row) { return of.to_end(row); });
    add_outputs(total);
    // dx takes the place of p
    if constexpr (INPUTS_LEAD) barrier_wait(barriers().p_read, turn.phase);
    put_dx(total, number);
    leave_unit();
  }

  DEVICE void add_outputs(Sums<64>& total) {
    Rows weights;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32& v = weights[i / 4].v[i % 4];
      v = triangle[i / 4].v[i % 4];
      if (is_far()) {
        const int row = row_of() + i % 2 * 8, column = i / 2 * 8 + pair_of();
        v = pack_bf16(low_bf16(v) * far_decay(row, column), high_bf16(v) * far_decay(row, column + 1));
      }
    }
    const u64 ps = operand(stage() + PS_AT);
    products_fence();
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<true>(total, weights[n], further(ps, n * 16 * 128), true);
    products_commit();
    products_wait();
    pin(total.v);
    keep(weights, total.v[0]);
  }

  DEVICE void work() {
    Sums<64> products;
    form_triangle(products);
    pack_rows(triangle, products);
#pragma unroll 1
    for (int i = 0; i < w.units; i++) unit(i);
    barrier_wait(shared.has_k, 0);
    __syncwarp();
    Rows terms[2];
#pragma unroll
    for (int k = 0; k < 8; k++) load_matrices<true>(terms[k / 4][k % 4].v, tiles + K_AT + k / 4 * PANEL + columns_at() + 2048 * (k % 4));
    finish<DB>(terms, p.db);
  }
};
