// Gradients of a chunk, as far as they come from slices of columns of values: v's own gradient, and the products with states, their gradients, and
// between steps.
#pragma once
#include "backward_work.cuh"

constexpr int OWN_PAIRS = (ROW_BLOCKS + KEY_WARPS - 1) / KEY_WARPS, DY_PITCH = pitch_of(SLICE);
constexpr int LINE = PADDED_KEYS + 1;   // of numbers in f32
// Two slices of dy; then either the others of a slice, or what comes after.
constexpr int DY_AT = SLICES_AT, DY_BYTES = SPAN * DY_PITCH;
constexpr int X_AT = DY_AT + 2 * DY_BYTES, D_AT = X_AT + SLICE * PAIR_PITCH, STATE_AT = D_AT + SLICE * PAIR_PITCH;
constexpr int GRADIENT_AT = STATE_AT + SLICE * KEY_PITCH, SLICE_END = GRADIENT_AT + SLICE * KEY_PITCH;
constexpr int PAIRS_AT = X_AT, PAIRS_END = PAIRS_AT + 2 * SPAN * PAIR_PITCH;
// with decays of channels, in f32: products of pairs, three tiles of channels and the sums of logarithms
constexpr int CHANNELS_AT = X_AT + 2 * SPAN * (SPAN + 1) * 4, CHANNELS_END = CHANNELS_AT + 4 * SPAN * LINE * 4;
constexpr int AFTER_END = BY_CHANNEL ? CHANNELS_END : PAIRS_END;
// the gradients that go to the chunk's end, for each channel
constexpr int ENDS_AT = round_up(SLICE_END > AFTER_END ? SLICE_END : AFTER_END, 16);
static_assert(ENDS_AT + (BY_CHANNEL ? PADDED_KEYS * 4 : 0) == SHARED);

DEVICE f32* ends_of(const Work& w) { return reinterpret_cast<f32*>(w.tile(ENDS_AT)); }

struct Pairs {
  Square a[OWN_PAIRS], m[OWN_PAIRS];
  // the first column of a warp's b-th block
  static DEVICE int columns(const Work& w, int b) { return (w.part + b * KEY_WARPS) * 16; }
};

// ---- slices

// Blocks of 16 x 16 of the workspace, DOWN by ACROSS, on their way into a tile.
template <int DOWN, int ACROSS> struct Blocks16 {
  static constexpr int LANES = BLOCK * SIZE / 16, COUNT = DOWN * ACROSS * LANES, OWN = (COUNT + THREADS - 1) / THREADS;
  uint4 v[OWN];

  DEVICE void fetch(const void* from, i64 at) {
    const uint4* const source = reinterpret_cast<const uint4*>(static_cast<const Element*>(from) + at);
#pragma unroll
    for (int k = 0; k < OWN; k++)
      if (COUNT % THREADS == 0 || k * THREADS + int(threadIdx.x) < COUNT) v[k] = source[k * THREADS + threadIdx.x];
  }
  DEVICE void put(char* to, int pitch) const {
#pragma unroll
    for (int k = 0; k < OWN; k++) {
      const int i = k * THREADS + threadIdx.x, block = i / LANES, lane = i % 32;
      if (COUNT % THREADS != 0 && i >= COUNT) continue;
      const int line = block / ACROSS * 16 + lane / 4, column = block % ACROSS * 16 + lane % 4 * 2;
      if constexpr (PAIRED) {
        *reinterpret_cast<u32*>(number_at(to, pitch, line, column)) = v[k].x;
        *reinterpret_cast<u32*>(number_at(to, pitch, line + 8, column)) = v[k].y;
        *reinterpret_cast<u32*>(number_at(to, pitch, line, column + 8)) = v[k].z;
        *reinterpret_cast<u32*>(number_at(to, pitch, line + 8, column + 8)) = v[k].w;
      } else {
        const int half = i % LANES / 32 * 8;
        *reinterpret_cast<uint2*>(number_at(to, pitch, line, column + half)) = make_uint2(v[k].x, v[k].y);
        *reinterpret_cast<uint2*>(number_at(to, pitch, line + 8, column + half)) = make_uint2(v[k].z, v[k].w);
      }
    }
  }
};

// A slice on its way: the chunk's state and its gradient, X and D.
struct Slice {
  Blocks16<SLICE / 16, KEY_BLOCKS> state, gradient;
  Blocks16<SLICE / 16, ROW_BLOCKS> x, d;

  DEVICE void fetch(const Params& p, i64 unit, int slice) {
    const i64 steps = (unit * PADDED_VALUES + slice * SLICE) * SPAN, states = (unit * PADDED_VALUES + slice * SLICE) * PADDED_KEYS;
    x.fetch(p.x, steps), d.fetch(p.d, steps);
    if constexpr (NEEDS_KEYS) state.fetch(p.states, states), gradient.fetch(p.gradients, states);
  }
  DEVICE void put(const Work& w) const {
    x.put(w.tile(X_AT), PAIR_PITCH), d.put(w.tile(D_AT), PAIR_PITCH);
    if constexpr (NEEDS_KEYS) state.put(w.tile(STATE_AT), KEY_PITCH), gradient.put(w.tile(GRADIENT_AT), KEY_PITCH);
  }
  // this thread's part of the sum of products of the state with its gradient
  DEVICE f32 product() const {
    f32 sum = 0.f;
#pragma unroll
    for (int k = 0; k < state.OWN; k++) {
      if (state.COUNT % THREADS != 0 && k * THREADS + int(threadIdx.x) >= state.COUNT) continue;
      const uint4 a = state.v[k], b = gradient.v[k];
      sum = multiply_words(a.x, b.x, multiply_words(a.y, b.y, multiply_words(a.z, b.z, multiply_words(a.w, b.w, sum))));
    }
    return sum;
  }
};
// These come by asynchronous copies: dy, and with a head's first slice its tokens.
DEVICE void copy_slice(const Params& p, const Work& w, i64 head, int turn, int slice, int place) {
  const i64 unit = w.index * p.heads + head;
  if (slice == 0) copy_tokens(reinterpret_cast<f32*>(w.tile(TOKENS_AT) + turn * TOKEN_BYTES), p.tokens + unit * TOKEN_ROWS * SPAN);
  if constexpr (HAS_DY) load_steps<DY, DY_STEP_WIDTH, DY_BY_TIME, SLICE, VALUES>(w.tile(DY_AT) + place * DY_BYTES, p.dy, w.chunk, head, slice * SLICE);
  copy_async_commit();
}

static_assert(SPAN * PIECES <= THREADS);
// A piece of v: some columns of a step for each thread.
struct Values {
  int step, piece, column;
  bool is_there;
  Neighbours<VALUE, STEP_WIDTH> v[PIECE / STEP_WIDTH];

  DEVICE Values(const Params& p, const Work& w, int slice) : step(threadIdx.x % SPAN), piece(threadIdx.x / SPAN), column(slice * SLICE + piece * PIECE) {
    is_there = piece < PIECES && step < w.chunk.rows;
    const VALUE* const from = at<VALUE>(p.v, w.chunk.batch, w.chunk.start + step, w.head, column);
#pragma unroll
    for (int c = 0; c < PIECE; c += STEP_WIDTH) {
      v[c / STEP_WIDTH] = {};
      if (HAS_DBETA && is_there && column + c < VALUES) v[c / STEP_WIDTH] = *reinterpret_cast<const Neighbours<VALUE, STEP_WIDTH>*>(from + c * p.v.stride[3]);
    }
  }
  // The gradient by v, and the piece's sum of X v.
  DEVICE void finish(const Params& p, const Work& w, int slice) const {
    if (piece >= PIECES) return;
    const f32 beta = w.token(BETA_ROW, step);
    DV* const to = HAS_DV ? at<DV>(p.dv, w.chunk.batch, w.chunk.start + step, w.head, column) : nullptr;
    f32 sum = 0.f;
#pragma unroll
    for (int c = 0; c < PIECE; c += DV_WIDTH) {
      Neighbours<DV, DV_WIDTH> some;
#pragma unroll
      for (int e = 0; e < DV_WIDTH; e++) {
        const f32 x = to_f32(*number_at(w.tile(X_AT), PAIR_PITCH, piece * PIECE + c + e, step));
        sum = __fmaf_rn(x, to_f32(v[(c + e) / STEP_WIDTH].v[(c + e) % STEP_WIDTH]), sum);
        assign(some.v[e], beta * x);
      }
      if (HAS_DV && is_there && column + c < VALUES) write_at_once(to + c * p.dv.stride[3], some);
    }
    f32* const total = w.piece_sum(piece, step);
    *total = slice == 0 ? sum : *total + sum;
  }
};

DEVICE void multiply_channels_of_states(const Work& w, f32* ends, bool first) {
  for (int n = threadIdx.x; n < PADDED_KEYS; n += THREADS) {
    f32 sum = first ? 0.f : ends[n];
    for (int column = 0; column < SLICE; column++)
      sum = __fmaf_rn(to_f32(*number_at(w.tile(STATE_AT), KEY_PITCH, column, n)), to_f32(*number_at(w.tile(GRADIENT_AT), KEY_PITCH, column, n)), sum);
    ends[n] = sum;
  }
}

// A block of rows with the factors of their steps, unless channels have their own.
template <int PITCH, bool DEPTH_IS_LINE> DEVICE void scaled_block(const Work& w, BlockA& a, const char* corner, int factor) {
  if constexpr (BY_CHANNEL) {
    block_a<PITCH, DEPTH_IS_LINE>(a, corner);
  } else {
    const f32 low = w.token(factor, w.rows + row_of(0)), high = w.token(factor, w.rows + row_of(2));
    f32 v[8];
    block_numbers<PITCH, DEPTH_IS_LINE>(v, corner);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= i / 2 % 2 == 0 ? low : high;
    set_block<MATH>(a, v);
  }
}

DEVICE void multiply_slice(const Work& w, Parts& parts, Pairs& pairs, const char* steps) {
#pragma unroll
  for (int depth = 0; depth < SLICE; depth += 16) {
    BlockA dy, x, d;
    block_a<PAIR_PITCH, true>(x, w.tile(X_AT) + depth * PAIR_PITCH + w.rows * SIZE);
    if constexpr (HAS_DY) block_a<DY_PITCH, false>(dy, steps + w.rows * DY_PITCH + depth * SIZE);
#pragma unroll
    for (int b = 0; b < OWN_PAIRS; b++) {
      const int columns = Pairs::columns(w, b);
      if (columns > w.rows) continue;
      BlockB of_written[2];
      blocks_b<PAIR_PITCH, true>(of_written, w.tile(D_AT) + depth * PAIR_PITCH + columns * SIZE);
      if constexpr (HAS_DY) add_product(pairs.a[b], dy, of_written);
      add_product(pairs.m[b], x, of_written);
    }
    if constexpr (HAS_DY) scaled_block<DY_PITCH, false>(w, dy, steps + w.rows * DY_PITCH + depth * SIZE, SINCE);
    scaled_block<PAIR_PITCH, true>(w, d, w.tile(D_AT) + depth * PAIR_PITCH + w.rows * SIZE, UNTIL);
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      if (!w.has_block(b)) continue;
      BlockB of_state[2], of_gradient[2];
      blocks_b<KEY_PITCH, true>(of_state, w.tile(STATE_AT) + depth * KEY_PITCH + w.block(b) * 16 * SIZE);
      if constexpr (HAS_DY) add_product(parts.q[b], dy, of_state);
      add_product(parts.r[b], x, of_state);
      blocks_b<KEY_PITCH, true>(of_gradient, w.tile(GRADIENT_AT) + depth * KEY_PITCH + w.block(b) * 16 * SIZE);
      add_product(parts.w[b], d, of_gradient);
    }
  }
}

// All slices of a head of values, each fetched while the one before is at work; the products of the state with its gradient are left in `ends`, or one for
// each warp. `fetched` is the first slice, and becomes that of the next head.
DEVICE void take_slices(const Params& p, const Work& w, int own, Slice& fetched, Parts& parts, Pairs& pairs) {
  f32 product = 0.f;
#pragma unroll 1
  for (int slice = 0; slice < SLICES; slice++) {
    const int turn = own * SLICES + slice, next = turn + 1;
    __syncthreads();
    fetched.put(w);
    if constexpr (NEEDS_KEYS && !BY_CHANNEL) product += fetched.product();
    copy_async_wait();
    __syncthreads();
    const i64 next_head = w.head - own + next / SLICES;
    if (next < GROUP * SLICES) {
      fetched.fetch(p, w.index * p.heads + next_head, next % SLICES);
      copy_slice(p, w, next_head, next / SLICES % 2, next % SLICES, next % 2);
    }
    if constexpr (HAS_DV || HAS_DBETA) {
      const Values values(p, w, slice);
      if constexpr (NEEDS_KEYS) multiply_slice(w, parts, pairs, w.tile(DY_AT) + turn % 2 * DY_BYTES);
      values.finish(p, w, slice);
    } else if constexpr (NEEDS_KEYS) {
      multiply_slice(w, parts, pairs, w.tile(DY_AT) + turn % 2 * DY_BYTES);
    }
    if constexpr (NEEDS_KEYS && BY_CHANNEL) multiply_channels_of_states(w, ends_of(w), slice == 0);
  }
  if constexpr (!BY_CHANNEL && NEEDS_KEYS) {
    product = sum_of_warp(product);
    if (threadIdx.x % 32 == 0) w.spare()[2 * SPAN + threadIdx.x / 32] = product;
  }
  __syncthreads();
}

// Products of steps with their decays; those of steps with themselves stand apart, see `add_own_pairs`.
DEVICE void store_pairs(const Work& w, Pairs& pairs) {
#pragma unroll
  for (int b = 0; b < OWN_PAIRS; b++) {
    const int columns = Pairs::columns(w, b);
    if (columns > w.rows) continue;
#pragma unroll
    for (int number = 0; number < 8; number++) {
      const int i = w.rows + row_of(number), j = columns + column_of(number);
      if (i == j) *w.row_sums(OWN_PAIR, i) = number_of(pairs.a[b], number);
      const bool counts = i > j && w.together(i, j);
      const f32 decay = counts ? exp_fast(w.token(SUM, i) - w.token(SUM, j)) : 0.f;
      assign(*number_at(w.tile(PAIRS_AT), PAIR_PITCH, i, j), decay * number_of(pairs.a[b], number));
      assign(*number_at(w.tile(PAIRS_AT) + SPAN * PAIR_PITCH, PAIR_PITCH, i, j), -decay * number_of(pairs.m[b], number));
    }
  }
}

DEVICE void multiply_pairs(const Work& w, Parts& parts) {
  const char *const a = w.tile(PAIRS_AT), *const m = a + SPAN * PAIR_PITCH;
#pragma unroll
  for (int block = 0; block < ROW_BLOCKS; block++) {
    const int depth = block * 16;
    BlockA of_a, of_m;
    const bool before = depth <= w.rows, after = depth >= w.rows;
    if (before) {
      block_a<PAIR_PITCH, false>(of_a, a + w.rows * PAIR_PITCH + depth * SIZE);
      block_a<PAIR_PITCH, false>(of_m, m + w.rows * PAIR_PITCH + depth * SIZE);
#pragma unroll
      for (int b = 0; b < OWN_BLOCKS; b++) {
        if (!w.has_block(b)) continue;
        BlockB key[2];
        blocks_b<KEY_PITCH, true>(key, w.tile(0) + depth * KEY_PITCH + w.block(b) * 16 * SIZE);
        add_product(parts.q[b], of_a, key), add_product(parts.r[b], of_m, key);
      }
    }
    if (after) {
      block_a<PAIR_PITCH, true>(of_a, a + depth * PAIR_PITCH + w.rows * SIZE);
      f32 v[8];
      block_numbers<PAIR_PITCH, true>(v, m + depth * PAIR_PITCH + w.rows * SIZE);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] *= w.token(BETA_ROW, depth + column_of(i));
      set_block<MATH>(of_m, v);
#pragma unroll
      for (int b = 0; b < OWN_BLOCKS; b++) {
        if (!w.has_block(b)) continue;
        BlockB key[2], query[2];
        blocks_b<KEY_PITCH, true>(key, w.tile(0) + depth * KEY_PITCH + w.block(b) * 16 * SIZE);
        blocks_b<KEY_PITCH, true>(query, w.tile(Q_AT) + depth * KEY_PITCH + w.block(b) * 16 * SIZE);
        add_product(parts.w[b], of_a, query), add_product(parts.w[b], of_m, key);
      }
    }
  }
}

DEVICE const char* unit_at(const char* units, int row, int n) { return reinterpret_cast<const char*>(number_at(units, KEY_PITCH, row, n)); }

// The products of steps with themselves, and what this warp has of them in the sums of rows over channels. No decay has part in them: gradients by gates are
// sums without them, whose rounding would be more than what strong decays leave.
DEVICE float2 add_own_pairs(const Work& w, Parts& parts) {
  const float2 pair = make_float2(*w.row_sums(OWN_PAIR, w.rows + row_of(0)), *w.row_sums(OWN_PAIR, w.rows + row_of(2)));
  float2 sums = make_float2(0.f, 0.f);
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) {
    if (!w.has_block(b)) continue;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int row = w.rows + row_of(i), n = w.block(b) * 16 + column_of(i);
      const float2 key = pair_at<MATH>(unit_at(w.tile(0), row, n)), query = pair_at<MATH>(unit_at(w.tile(Q_AT), row, n));
      const f32 own = i / 2 % 2 == 0 ? pair.x : pair.y;
      f32& sum = i / 2 % 2 == 0 ? sums.x : sums.y;
      number_of(parts.q[b], i) = __fmaf_rn(own, key.x, number_of(parts.q[b], i)), number_of(parts.q[b], i + 1) = __fmaf_rn(own, key.y, number_of(parts.q[b], i + 1));
      number_of(parts.w[b], i) = __fmaf_rn(own, query.x, number_of(parts.w[b], i)), number_of(parts.w[b], i + 1) = __fmaf_rn(own, query.y, number_of(parts.w[b], i + 1));
      sum = __fmaf_rn(own * key.x, query.x, __fmaf_rn(own * key.y, query.y, sum));
    }
  }
  return added_up(sums);
}
