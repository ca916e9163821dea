// The sides of `fused_layout.cuh`, and the kernel.

// ---- the outputs: Y, the gradients by C and by the gate, and K

struct OutputSide : Side<false> {
  Sums<SPAN> k;

  DEVICE OutputSide(const Params& p, const Work& w, char* tiles, Shared& shared) : Side(p, w, tiles, shared) {
#pragma unroll
    for (int i = 0; i < SPAN / 2; i++) k.v[i] = 0.f;
  }

  DEVICE void load_p(Rows& rows) const {
    load_rows(rows, stage() + DY_AT);
    if constexpr (HAS_Z) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        FragmentA z;
        load_matrices<false>(z.v, stage() + Z_AT + (lines_at() ^ 32 * k));
        gate_pairs(rows[k].v, z.v);
      }
    }
  }

  // this warp's part of <h, g>: lines of the slots, 16 states at a time
  DEVICE f32 dot_states() const {
    const int warp = threadIdx.x % 128 / 32, line = lines_at() % 2048;
    Diagonal both;
#pragma unroll
    for (int n = 0; n < STATES / 64; n++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const char* const from = stage() + (n * 4 + warp) * 2048 + (line ^ 32 * k);
        FragmentA h, g;
        load_matrices<false>(h.v, from + H_AT);
        load_matrices<false>(g.v, from + G_AT);
        both.add(h, g);
      }
    return sum_of_warp(Diagonal::has() ? both.line(0) + both.line(1) : 0.f);
  }

  DEVICE void add_states(Sums<64>& y, const Rows& own) {
    const u64 states = operand(stage() + H_AT), map = operand(tiles + C_AT);
#pragma unroll
    for (int i = 0; i < STATES / 16; i++) multiply<true>(y, further(map, i / 4 * PANEL + i % 4 * 32), further(states, i * 16 * 128), i > 0);
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<false>(gradient, own[i], further(states, i * 32), true);
  }
  // the product of two sides
  DEVICE void multiply_sides(Sums<64>& out, const Rows& own, bool add) {
    const u64 xs = operand(stage() + XS_AT);
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<false>(out, own[i], further(xs, i * 32), add || i > 0);
  }
  DEVICE void add_inputs(Sums<64>& y, const Rows& weights) {
    const u64 xs = operand(stage() + XS_AT);
#pragma unroll
    for (int i = 0; i < 4; i++) multiply<true>(y, weights[i], further(xs, i * 16 * 128), true);
  }

  // Y and K where powers are near, and this warp's part of <h, g>.
  DEVICE f32 near(Sums<64>& y, const Rows& ps) {
    products_fence();
    add_states(y, ps);
    products_commit();
    const f32 states = dot_states();
    barrier_wait(barriers().has_xs, turn.phase);
    __syncwarp();
    products_fence();
    multiply_sides(k, ps, true);
    add_inputs(y, triangle);
    products_commit();
    products_wait();
    pin(y.v), pin(gradient.v), pin(k.v);
    return states;
  }

  // Y where they are far apart, with its decays.
  DEVICE f32 far(Sums<64>& y, Rows& rows) {
    Rows other;
    scale_rows(other, rows, [&](int row) { return powers().before[row]; });
    forget_numbers(rows);
    products_fence();
    add_states(y, other);
    products_commit();
    const f32 states = dot_states();
    barrier_wait(barriers().has_xs, turn.phase);
    products_wait();
    pin(y.v), pin(gradient.v);
    scale_rows(y, powers().before);
    decayed_triangle(other);
    __syncwarp();
    products_fence();
    add_inputs(y, other);
    products_commit();
    products_wait();
    pin(y.v);
    return states;
  }
  // K where they are far apart
  DEVICE void far_pairs(const Rows& rows) {
    Sums<64> pairs;
    products_fence();
    multiply_sides(pairs, rows, false);
    products_commit();
    products_wait();
    pin(pairs.v);
    const f32 (&sum)[SPAN] = powers().sum;
#pragma unroll
    for (int i = 0; i < SPAN / 2; i++) {
      const int row = row_of() + i / 2 % 2 * 8, column = i / 4 * 8 + pair_of() + i % 2;
      if (column <= row) k.v[i] = __fmaf_rn(pairs.v[i], exp2_fast(sum[row] - sum[column]), k.v[i]);
    }
  }

  // The gradient by the gate, in the place of the gate.
  DEVICE void put_gate(const Sums<64>& y) {
    const Powers& of = powers();
    f32 factors[2], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row_of() + 8 * r;
      factors[r] = is_far() ? 1.f : of.before[row], own[r] = of.weight[row] * shared.diagonal[row];
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int line = lines_at() ^ 32 * k;
      FragmentA x, dy, z;
      load_matrices<false>(x.v, stage() + X_AT + line);
      load_matrices<false>(dy.v, stage() + DY_AT + line);
      load_matrices<false>(z.v, stage() + Z_AT + line);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float2 add = make_float2(own[i % 2], own[i % 2]);
        if constexpr (HAS_SKIP) {
          const float2 skip = *reinterpret_cast<const float2*>(of.skip + 16 * k + i / 2 * 8 + pair_of());
          add.x += skip.x, add.y += skip.y;
        }
        const f32* const v = y.v + 8 * k + 2 * i;
        const f32 first = __fmaf_rn(add.x, low_bf16(x.v[i]), v[0] * factors[i % 2]) * low_bf16(dy.v[i]);
        const f32 second = __fmaf_rn(add.y, high_bf16(x.v[i]), v[1] * factors[i % 2]) * high_bf16(dy.v[i]);
        z.v[i] = pack_bf16(first * Gate(low_bf16(z.v[i])).slope, second * Gate(high_bf16(z.v[i])).slope);
      }
      store_matrices<false>(stage() + Z_AT + line, z.v);
    }
    fence_async();
  }

  DEVICE void unit() {
    wait_for_unit();
    move_state();
    Rows ps;
    load_p(ps);
    wait_for_state();
    __syncwarp();
    if constexpr (HAS_Z) store_rows(stage() + P_AT, ps);
    if (!is_far()) scale_rows(ps, ps, [&](int row) { return powers().before[row]; });
    store_rows(stage() + PS_AT, ps);
    fence_async();
    warp_arrive(barriers().has_ps);
    Sums<64> y;
    const f32 states = is_far() ? far(y, ps) : near(y, ps);
    f32 dots[2];
    dot_rows(dots, ps, y);
    wait_for_sums();
    put_rows(sums().outputs, dots);
    if (threadIdx.x % 32 == 0) sums().state[threadIdx.x % 128 / 32] = states;
    if constexpr (HAS_DZ) put_gate(y);
    if (is_far()) far_pairs(ps);
    leave_unit();
  }

  DEVICE void work() {
    form_triangle();
#pragma unroll 1
    for (int i = 0; i < w.units; i++) unit();
    each_sum(k, [&](f32& v, int row, int column) { v = column <= row ? v : 0.f; });
    Rows rows;
    pack_rows(rows, k);
    store_rows(tiles + K_AT, rows);
    warp_arrive(shared.has_k);
    finish<DC>(rows, p.dc);
  }
};

// ---- the inputs: X, the gradients by x, B and D

struct InputSide : Side<true> {
  using Side::Side;

  // The gradient by the skip of each column: the lines of two tiles are columns here.
  DEVICE void put_skip() {
    barrier_wait(barriers().has_ps, turn.phase);
    __syncwarp();
    Diagonal both;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      FragmentA x, rows;
      load_matrices<true>(x.v, stage() + X_AT + columns_at() + 2048 * k);
      load_matrices<true>(rows.v, stage() + P_AT + columns_at() + 2048 * k);
      both.add(x, rows);
    }
    wait_for_sums();
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (Diagonal::has()) shared.columns[turn.at][row_of() + 8 * r] = both.line(r);
    // dx takes the place of p
    meet<1, 128>();
  }

  // dx, in the place of p
  DEVICE void put_dx(const Sums<64>& total) {
    const Powers& of = powers();
    Rows rows;
    load_rows(rows, stage() + P_AT);
    f32 factors[2], own[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = row_of() + 8 * r;
      factors[r] = of.weight[row] * of.back[row], own[r] = of.weight[row] * shared.diagonal[row];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32& v = rows[i / 4].v[i % 4];
      float2 add = make_float2(own[i % 2], own[i % 2]);
      if constexpr (HAS_SKIP) {
        const float2 skip = *reinterpret_cast<const float2*>(of.skip + i / 2 * 8 + pair_of());
        add.x += skip.x, add.y += skip.y;
      }
      v = pack_bf16(__fmaf_rn(add.x, low_bf16(v), total.v[2 * i] * factors[i % 2]), __fmaf_rn(add.y, high_bf16(v), total.v[2 * i + 1] * factors[i % 2]));
    }
    store_rows(stage() + P_AT, rows);
    fence_async();
  }

  DEVICE void unit() {
    wait_for_unit();
    move_state();
    if constexpr (HAS_DSKIP && SKIP_BY_COLUMN) put_skip();
    const Powers& of = powers();
    Rows x, xs, own;
    load_rows(x, stage() + X_AT);
    scale_rows(xs, x, [&](int row) { return of.weight[row] * of.back[row]; });
    store_rows(stage() + XS_AT, xs);
    fence_async();
    warp_arrive(barriers().has_xs);
    scale_rows(own, x, [&](int row) { return of.weight[row] * of.after[row]; });
    forget_numbers(x), forget_numbers(xs);
    if (!w.second) wait_for_state();
    __syncwarp();
    Sums<64> total;
    const u64 states = operand(stage() + G_AT), map = operand(tiles + B_AT);
    products_fence();
#pragma unroll
    for (int n = 0; n < STATES / 16; n++) multiply<true>(total, further(map, n / 4 * PANEL + n % 4 * 32), further(states, n * 16 * 128), n > 0);
    products_commit();
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<false>(gradient, own[n], further(states, n * 32), true);
    products_commit();
    // where xs is zero, dots are those of x
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (of.weight[row_of() + 8 * r] * of.back[row_of() + 8 * r] == 0.f)
#pragma unroll
        for (int n = 0; n < 8; n++) xs[n / 2].v[n % 2 * 2 + r] = x[n / 2].v[n % 2 * 2 + r];
    barrier_wait(barriers().has_ps, turn.phase);
    __syncwarp();
    Diagonal both;
#pragma unroll
    for (int n = 0; n < 4; n++) {
      FragmentA rows;
      load_matrices<false>(rows.v, stage() + P_AT + (lines_at() ^ 32 * n));
      both.add(x[n], rows);
    }
    wait_for_sums();
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (Diagonal::has()) sums().own[row_of() + 8 * r] = both.line(r);
    products_wait<1>();
    pin(total.v);
    f32 dots[2];
    dot_rows(dots, xs, total);
    forget_numbers(xs);
    put_rows(sums().inputs_state, dots);
    scale_rows(total, of.to_end);
    add_outputs(total);
    dot_rows(dots, xs, total);
    put_rows(sums().inputs, dots);
    put_dx(total);
    leave_unit();
  }

  DEVICE void add_outputs(Sums<64>& total) {
    Rows weights;
    if (is_far()) {
      decayed_triangle(weights);
    } else {
#pragma unroll
      for (int n = 0; n < 16; n++) weights[n / 4].v[n % 4] = triangle[n / 4].v[n % 4];
    }
    const u64 ps = operand(stage() + PS_AT);
    products_fence();
#pragma unroll
    for (int n = 0; n < 4; n++) multiply<true>(total, weights[n], further(ps, n * 16 * 128), true);
    products_commit();
    products_wait();
    pin(total.v), pin(gradient.v);
  }

  DEVICE void work() {
    form_triangle();
#pragma unroll 1
    for (int i = 0; i < w.units; i++) unit();
    barrier_wait(shared.has_k, 0);
    __syncwarp();
    Rows rows;
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<true>(rows[k].v, tiles + K_AT + columns_at() + 2048 * k);
    finish<DB>(rows, p.db);
  }
};

extern "C" __global__ void __launch_bounds__(128 * (SIDES + 1), 1) ssd_fused(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ Shared shared;
  char* const tiles = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  const Work w(p);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int side = threadIdx.x / 128, warp = threadIdx.x % 128 / 32;
  if (side == SIDES) {
    registers_down<HELPER_REGISTERS>();
    if (warp == 0 && threadIdx.x % 32 == 0) copy_in(p, w, tiles, shared);
    if (warp == 1) compute_powers(p, w, shared);
    if (warp == 2) finish_steps(p, w, shared);
    if (warp == 3) copy_out(p, w, tiles, shared);
  } else if (side == 0) {
    registers_up<SIDE_REGISTERS>();
    OutputSide(p, w, tiles, shared).work();
  } else {
    registers_up<SIDE_REGISTERS>();
    InputSide(p, w, tiles, shared).work();
  }
}
