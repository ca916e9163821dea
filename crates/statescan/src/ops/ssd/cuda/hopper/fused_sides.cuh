// Both sides do this, each with its own steps as rows.
#pragma once
#include "fused_layout.cuh"

static_assert(given<int>(SPAN, STAGE, B_AT, C_AT, G_AT));

// this thread's first row of a side, and the first of its two columns; the other row is 8 further on
DEVICE int row_of() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
DEVICE int pair_of() { return 2 * (threadIdx.x % 4); }

typedef FragmentA Rows[4];   // 64 rows x 64 columns of a side

DEVICE void load_rows(Rows& rows, const char* tile) {
#pragma unroll
  for (int k = 0; k < 4; k++) load_matrices<false>(rows[k].v, tile + (lines_at() ^ 32 * k));
}
DEVICE void store_rows(char* tile, const Rows& rows) {
#pragma unroll
  for (int k = 0; k < 4; k++) store_matrices<false>(tile + (lines_at() ^ 32 * k), rows[k].v);
}
// factor(row)
template <typename Factor> DEVICE void scale_rows(Rows& out, const Rows& rows, Factor factor) {
  const f32 first = factor(row_of()), second = factor(row_of() + 8);
  const Factors own[2] = {{first, first}, {second, second}};
#pragma unroll
  for (int i = 0; i < 16; i++) out[i / 4].v[i % 4] = own[i % 2].times(rows[i / 4].v[i % 4]);
}
// v silu(z), rounded
DEVICE void gate_pairs(u32 (&v)[4], const u32 (&z)[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = pack_bf16(low_bf16(v[i]) * silu(low_bf16(z[i])), high_bf16(v[i]) * silu(high_bf16(z[i])));
}
// Hides from the compiler what rows hold: it would keep their 32 numbers from one use to the next.
DEVICE void forget_numbers(Rows& rows) {
#pragma unroll
  for (int i = 0; i < 16; i++) asm volatile("" : "+r"(rows[i / 4].v[i % 4]));
}
// job(sum, row, column)
template <int N, typename Job> DEVICE void each_sum(Sums<N>& sums, Job job) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) job(sums.v[i], row_of() + i / 2 % 2 * 8, i / 4 * 8 + pair_of() + i % 2);
}
template <int N, typename Factor> DEVICE void scale_rows(Sums<N>& sums, Factor factor) {
  const f32 own[2] = {factor(row_of()), factor(row_of() + 8)};
#pragma unroll
  for (int i = 0; i < N / 2; i++) sums.v[i] *= own[i / 2 % 2];
}
DEVICE void pack_rows(Rows& rows, const Sums<64>& sums) {
#pragma unroll
  for (int i = 0; i < 16; i++) rows[i / 4].v[i % 4] = pack_bf16(sums.v[2 * i], sums.v[2 * i + 1]);
}
// splits rows into two terms
DEVICE void split_rows(Rows (&terms)[2], const Sums<64>& sums) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const Factors two(sums.v[2 * i], sums.v[2 * i + 1]);
    terms[0][i / 4].v[i % 4] = two.high, terms[1][i / 4].v[i % 4] = two.low;
  }
}

// Dot products of rows, in all threads of a row.
DEVICE void dot_rows(f32 (&dots)[2], const Rows& rows, const Sums<64>& sums) {
  f32 low[2] = {}, high[2] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) {
    low[i % 2] = __fmaf_rn(low_bf16(rows[i / 4].v[i % 4]), sums.v[2 * i], low[i % 2]);
    high[i % 2] = __fmaf_rn(high_bf16(rows[i / 4].v[i % 4]), sums.v[2 * i + 1], high[i % 2]);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) dots[r] = sum_of_row(low[r] + high[r]);
}
DEVICE void put_rows(f32 (&to)[SPAN], const f32 (&numbers)[2]) {
  if (pair_of() == 0) to[row_of()] = numbers[0], to[row_of() + 8] = numbers[1];
}

// Dot products of lines with those of the same number, 16 of them, on the diagonals of products: thread 4 g + g / 2 has those of lines g and g + 8.
struct Diagonal {
  FragmentC first = {}, second = {};
  DEVICE void add(const FragmentA& a, const FragmentA& b) {
    multiply<bf16>(first, a, FragmentB{b.v[0], b.v[2]});
    multiply<bf16>(second, a, FragmentB{b.v[1], b.v[3]});
  }
  DEVICE static bool has() { return threadIdx.x % 32 / 8 == threadIdx.x % 4; }
  DEVICE f32 line(int r) const {
    const bool odd = threadIdx.x / 4 % 2 == 1;
    return r == 0 ? (odd ? first.v[1] : first.v[0]) : (odd ? second.v[3] : second.v[2]);
  }
};

// This thread's numbers of a unit in f32, in a tensor like x: where the first half of the states leaves its part of a gradient.
struct Parts {
  f32* rows[2];
  int left;   // columns from this thread's first one on

  DEVICE Parts(const Strided& of, const Params& p, const Work& w, int unit) {
    const int column = w.column(p, unit) + pair_of();
    left = int(p.headdim) - column;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const i64 t = w.step() + row_of() + 8 * r;
      rows[r] = t < w.limit(p) ? at<f32>(of, w.batch, t, w.head(p, unit), column) : nullptr;
    }
  }
  DEVICE bool has(int r, int column) const { return rows[r] != nullptr && column < left; }
  // adds both halves' shares of two numbers of a row; the arguments are this half's
  DEVICE void join(int r, int column, f32& first, f32& second) const {
    if constexpr (IS_FIRST_HALF || IS_SECOND_HALF) {
      if (!has(r, column)) return;
      float2* const pair = reinterpret_cast<float2*>(rows[r] + column);
      if constexpr (IS_FIRST_HALF)
        *pair = make_float2(first, second);
      else
        first += pair->x, second += pair->y;
    }
  }
};
// This warp's lines of such parts, on their way to the second cache.
DEVICE void prefetch_parts(const Strided& of, const Params& p, const Work& w, int unit) {
  const int lane = threadIdx.x % 32, column = w.column(p, unit) + lane % 2 * 32;
  const i64 t = w.step() + threadIdx.x % 128 / 32 * 16 + lane / 2;
  if (t < w.limit(p) && column < p.headdim) asm volatile("prefetch.global.L2 [%0];" ::"l"(at<f32>(of, w.batch, t, w.head(p, unit), column)));
}

// One side: what it sums over heads.
template <bool OF_INPUTS> struct Side {
  const Params& p;
  const Work& w;
  char* const tiles;
  Shared& shared;
  Turn<STAGES> turn;
  Sums<STATES> gradient;   // by C, or by B

  DEVICE Side(const Params& p, const Work& w, char* tiles, Shared& shared) : p(p), w(w), tiles(tiles), shared(shared) {
#pragma unroll
    for (int i = 0; i < STATES / 2; i++) gradient.v[i] = 0.f;
  }

  DEVICE char* stage() const { return tiles + turn.at * STAGE; }
  DEVICE const Powers& powers() const { return shared.powers[turn.at]; }
  DEVICE Barriers& barriers() const { return shared.barriers[turn.at]; }
  DEVICE StepSums& sums() const { return shared.sums[turn.at]; }

  DEVICE bool is_far() const { return __builtin_expect(powers().far, 0); }
  DEVICE static bool below(int row, int column) { return OF_INPUTS ? row < column : column < row; }

  // C B^T below the diagonal (OF_INPUTS: its transpose).
  DEVICE void form_triangle(Sums<64>& products) {
    barrier_wait(shared.maps, 0);
    const char* const own = tiles + (OF_INPUTS ? B_AT : C_AT);
    const char* const other = tiles + (OF_INPUTS ? C_AT : B_AT);
    products_fence();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++) {
      const int at = k / 4 * PANEL + k % 4 * 32;
      multiply<false>(products, operand(own + at), operand(other + at), k > 0);
    }
    products_commit();
    products_wait();
    pin(products.v);
    each_sum(products, [&](f32& v, int row, int column) {
      if (OF_INPUTS && row == column) shared.diagonal[row] = v;
      v = below(row, column) ? v : 0.f;
    });
    if constexpr (OF_INPUTS) __syncwarp();
  }

  // the factor of p in ps
  DEVICE f32 scale_of(int row) const { return is_far() ? 1.f : powers().before[row]; }

  // ps of p as it is stored
  DEVICE void put_ps(const Rows& rows) const {
    Rows ps;
    scale_rows(ps, rows, [&](int row) { return scale_of(row); });
    store_rows(stage() + PS_AT, ps);
    fence_async();
    warp_arrive(barriers().has_ps);
  }

  // The decay between two steps that are far apart, where there is one.
  DEVICE f32 far_decay(int row, int column) const {
    const f32 (&sum)[SPAN] = powers().decay;
    return below(row, column) ? exp2_fast(OF_INPUTS ? sum[column] - sum[row] : sum[row] - sum[column]) : 0.f;
  }

  DEVICE void wait_for_unit() const { barrier_wait(barriers().ready, turn.phase), barrier_wait(barriers().full, turn.phase); }
  // before its first write to `sums()`
  DEVICE void wait_for_sums() const { barrier_wait(barriers().read, turn.phase ^ 1); }
  DEVICE void leave_unit() {
    warp_arrive(barriers().summed), warp_arrive(barriers().taken), warp_arrive(barriers().written);
    turn.next();
  }

  // 16 steps of the other chunk's x, or p, transposed, with the factors of these steps.
  DEVICE void weigh_others(u32 (&v)[4], int k) const {
    const int at = columns_at() + 2048 * k;
    load_matrices<true>(v, stage() + OTHER_AT + at);
    if (HAS_Z && !w.second) {
      u32 z[4];
      load_matrices<true>(z, stage() + OTHER_Z_AT + at);
      gate_pairs(v, z);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = powers().other[8 * k + i / 2 * 4 + pair_of() / 2].times(v[i]);
  }
  // All of them. Where one side alone reads them they go back to their place first: a loop is shorter than its four steps one after another.
  DEVICE void load_others(Rows& factors) const {
    if constexpr (INPUTS_LEAD) {
#pragma unroll 1
      for (int k = 0; k < 4; k++) {
        u32 v[4];
        weigh_others(v, k);
        store_matrices<true>(stage() + OTHER_AT + columns_at() + 2048 * k, v);
      }
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 4; k++) load_matrices<true>(factors[k].v, stage() + OTHER_AT + columns_at() + 2048 * k);
    } else {
#pragma unroll
      for (int k = 0; k < 4; k++) weigh_others(factors[k].v, k);
    }
  }

  // Takes some states of h or g, as the slot of the pair has it, past the other chunk.
  DEVICE void move_states(const Rows& factors, int panel) {
    Sums<64> moved;
    const u64 map = operand(tiles + OTHER_MAP_AT + panel * PANEL);
    __syncwarp();
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(moved, factors[k], further(map, k * 16 * 128), k > 0);
    products_commit();
    products_wait();
    pin(moved.v);
    keep(factors, moved.v[0]);
    const f32 whole = powers().other_whole;
    char* const states = stage() + (w.second ? H_AT : G_AT) + panel * PANEL + columns_at();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 v[4];
      load_matrices<true>(v, states + 2048 * k);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const f32* const sums = moved.v + 8 * k + 2 * i;
        v[i] = pack_bf16(__fmaf_rn(low_bf16(v[i]), whole, sums[0]), __fmaf_rn(high_bf16(v[i]), whole, sums[1]));
      }
      store_matrices<true>(states + 2048 * k, v);
    }
    fence_async();
  }

  // Moves all of the state: each side half, or the inputs all.
  DEVICE void move_state() {
    if (!w.has_other) return;
    if constexpr (INPUTS_LEAD || !OF_INPUTS || PANELS > 1) {
      Rows factors;
      load_others(factors);
      if constexpr (INPUTS_LEAD) {
#pragma unroll 1
        for (int panel = 0; panel < PANELS; panel++) move_states(factors, panel);
      } else {
        move_states(factors, OF_INPUTS ? 1 : 0);
      }
    }
    warp_arrive(barriers().has_state);
  }
  // waits until the state has arrived and its powers may be overwritten
  DEVICE void wait_for_state() const {
    if (w.has_other) barrier_wait(barriers().has_state, turn.phase);
  }

  // Adds the product of K's rows and the other map, and writes the gradient, or terms of it where other blocks have other heads of the group.
  template <typename E> DEVICE void finish(const Rows (&k)[2], const Strided& target) {
    const char* const map = tiles + (OF_INPUTS ? C_AT : B_AT);
    __syncwarp();
    products_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) multiply<true>(gradient, k[i / 4][i % 4], operand(map + i % 4 * 16 * 128, PANEL), true);
    products_commit();
    products_wait();
    pin(gradient.v);
    keep(k[0], gradient.v[0]), keep(k[1], gradient.v[0]);
    const i64 stride = target.stride[3], slice = p.groups * p.dstate;
    E* rows[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const i64 t = w.step() + row_of() + 8 * r;
      rows[r] = t < w.limit(p) ? at<E>(target, w.batch, t, w.group) + (w.slice * slice + pair_of() * stride) : nullptr;
    }
    const int left = int(p.dstate) - pair_of();
#pragma unroll
    for (int i = 0; i < STATES / 2; i++) {
      const int n = i / 4 * 8 + i % 2;
      if (n < left && rows[i / 2 % 2] != nullptr) assign(rows[i / 2 % 2][n * stride], gradient.v[i]);
    }
  }
};
