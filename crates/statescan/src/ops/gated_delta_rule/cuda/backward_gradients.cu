// Gradients of a chunk, by blocks for each head of keys, which take the heads of values that share it in turn. Columns of values come in slices: v's own
// gradient, and the products with states, their gradients, and between steps; what the products of steps are worth comes after all slices.
//
//   dq = since dy S^T + (a G) k          r = -since X S^T + (m G) k, of which dk read is beta times as much          a = dy D^T    m = -X D^T
//   dk written = until D R^T + (a G)^T q + (beta m G)^T k                 dbeta = X v + k r
#include "backward_tiles.cuh"

constexpr int WARPS = THREADS / 32, ROW_WARPS = ROW_BLOCKS, KEY_WARPS = WARPS / ROW_WARPS;
constexpr int OWN_BLOCKS = (KEY_BLOCKS + KEY_WARPS - 1) / KEY_WARPS, OWN_PAIRS = (ROW_BLOCKS + KEY_WARPS - 1) / KEY_WARPS;
constexpr int SLICES = PADDED_VALUES / SLICE, PIECE = 8, PIECES = SLICE / PIECE;
constexpr int KEY_PITCH = pitch_of(PADDED_KEYS), PAIR_PITCH = pitch_of(SPAN), DY_PITCH = pitch_of(SLICE);
constexpr int LINE = PADDED_KEYS + 1;   // of numbers in f32
static_assert(SPAN * PIECES <= THREADS);
// Tiles: keys and queries, tokens of two heads, sums, two slices of dy; then either the others of a slice, or what comes after.
constexpr int TOKEN_BYTES = TOKEN_ROWS * SPAN * 4, ROW_SUMS = 7;   // of a step
constexpr int Q_AT = SPAN * KEY_PITCH, TOKENS_AT = 2 * Q_AT, SUMS_AT = TOKENS_AT + 2 * TOKEN_BYTES;
constexpr int PIECES_AT = SUMS_AT + ROW_SUMS * SPAN * KEY_WARPS * 4, SPARE_AT = PIECES_AT + PIECES * SPAN * 4;
constexpr int DY_AT = round_up(SPARE_AT + (2 * SPAN + WARPS) * 4, 16), DY_BYTES = SPAN * DY_PITCH;
constexpr int X_AT = DY_AT + 2 * DY_BYTES, D_AT = X_AT + SLICE * PAIR_PITCH, STATE_AT = D_AT + SLICE * PAIR_PITCH;
constexpr int GRADIENT_AT = STATE_AT + SLICE * KEY_PITCH, SLICE_END = GRADIENT_AT + SLICE * KEY_PITCH;
constexpr int PAIRS_AT = X_AT, PAIRS_END = PAIRS_AT + 2 * SPAN * PAIR_PITCH;
// with decays of channels, in f32: products of pairs, three tiles of channels and the sums of logarithms
constexpr int CHANNELS_AT = X_AT + 2 * SPAN * (SPAN + 1) * 4, CHANNELS_END = CHANNELS_AT + 4 * SPAN * LINE * 4;
constexpr int AFTER_END = BY_CHANNEL ? CHANNELS_END : PAIRS_END;
// the gradients that go to the chunk's end, for each channel
constexpr int ENDS_AT = round_up(SLICE_END > AFTER_END ? SLICE_END : AFTER_END, 16);
static_assert(ENDS_AT + (BY_CHANNEL ? PADDED_KEYS * 4 : 0) == SHARED);

// A chunk of a head of values, and where its tiles are.
struct Work {
  char* shared;
  Chunk chunk;
  i64 index, key_head, head, unit;
  int rows, first_block;   // of this warp: its first row and its first block of keys; further ones are KEY_WARPS apart
  int turn;                // of heads, for tokens

  DEVICE char* tile(int at) const { return shared + at; }
  DEVICE f32 token(int row, int step) const { return reinterpret_cast<const f32*>(shared + TOKENS_AT + turn * TOKEN_BYTES)[row * SPAN + step]; }
  DEVICE int block(int b) const { return first_block + b * KEY_WARPS; }
  DEVICE bool has_block(int b) const { return KEY_BLOCKS % KEY_WARPS == 0 || block(b) < KEY_BLOCKS; }
  DEVICE f32 key(int step, int n) const { return to_f32(*number_at(shared, KEY_PITCH, step, n)); }
  DEVICE f32 query(int step, int n) const { return to_f32(*number_at(shared + Q_AT, KEY_PITCH, step, n)); }
  // sums over channels, for each warp of keys
  DEVICE f32* row_sums(int of, int step) const { return reinterpret_cast<f32*>(shared + SUMS_AT) + (of * SPAN + step) * KEY_WARPS; }
  DEVICE f32 row_sum(int of, int step) const {
    f32 sum = 0.f;
#pragma unroll
    for (int w = 0; w < KEY_WARPS; w++) sum += row_sums(of, step)[w];
    return sum;
  }
  // sums of X v over pieces of columns, and room for sums over steps and warps
  DEVICE f32* piece_sum(int piece, int step) const { return reinterpret_cast<f32*>(shared + PIECES_AT) + piece * SPAN + step; }
  DEVICE f32* spare() const { return reinterpret_cast<f32*>(shared + SPARE_AT); }
  DEVICE bool together(int i, int j) const { return !HAS_RUNS || token(RUN, i) == token(RUN, j); }
  DEVICE f32* ends() const { return reinterpret_cast<f32*>(shared + ENDS_AT); }
};
// which sums over channels
constexpr int QUERY_DQ = 0, KEY_R = 1, KEY_WRITTEN = 2, KEY_END = 3, STATES = 4, UNIT_Q = 5, UNIT_K = 6;

// What a warp adds up: rows of steps by keys, and by steps. With one decay for all channels those of dq and dk are sums over heads.
struct Totals { Sums q[OWN_BLOCKS], k[OWN_BLOCKS]; };
struct Parts { Sums q[OWN_BLOCKS], r[OWN_BLOCKS], w[OWN_BLOCKS]; };
struct Pairs { Sums a[OWN_PAIRS], m[OWN_PAIRS]; };

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

DEVICE f32 multiply_words(u32 a, u32 b, f32 sum) {
  if constexpr (PAIRED) {
    const float2 x = unpack<MATH>(a), y = unpack<MATH>(b);
    return __fmaf_rn(x.x, y.x, __fmaf_rn(x.y, y.y, sum));
  }
  return __fmaf_rn(__uint_as_float(a), __uint_as_float(b), sum);
}

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
// What comes by asynchronous copies: dy, and with a head's first slice its tokens.
DEVICE void copy_slice(const Params& p, const Work& w, i64 head, int turn, int slice, int place) {
  const i64 unit = w.index * p.heads + head;
  if (slice == 0) copy_tokens(reinterpret_cast<f32*>(w.tile(TOKENS_AT) + turn * TOKEN_BYTES), p.tokens + unit * TOKEN_ROWS * SPAN);
  if constexpr (HAS_DY) load_steps<DY, DY_STEP_WIDTH, DY_BY_TIME, SLICE, VALUES>(w.tile(DY_AT) + place * DY_BYTES, p.dy, w.chunk, head, slice * SLICE);
  copy_async_commit();
}

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
      const int columns = (w.first_block + b * KEY_WARPS) * 16;
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

// All slices of a head of values, each fetched while the one before is at work; the products of the state with its gradient are left in `ends`, or in
// the row sum STATES. `fetched` is the first slice, and becomes that of the next head.
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
    if constexpr (NEEDS_KEYS && BY_CHANNEL) multiply_channels_of_states(w, w.ends(), slice == 0);
  }
  if constexpr (!BY_CHANNEL && NEEDS_KEYS) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) product += __shfl_xor_sync(0xffffffffu, product, apart);
    if (threadIdx.x % 32 == 0) w.spare()[2 * SPAN + threadIdx.x / 32] = product;
  }
  __syncthreads();
}

// ---- what comes after the slices, with one decay for all channels

// The sums over channels of two rows of `s`, those of a thread's numbers, with rows of keys or queries: what this warp has of them.
DEVICE float2 sums_of_rows(const Work& w, Sums (&s)[OWN_BLOCKS], const char* units) {
  f32 low = 0.f, high = 0.f;
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) {
    if (!w.has_block(b)) continue;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int n = w.block(b) * 16 + column_of(i);
      const float2 unit = pair_at<MATH>(reinterpret_cast<const char*>(number_at(units, KEY_PITCH, w.rows + row_of(i), n)));
      f32& sum = i / 2 % 2 == 0 ? low : high;
      sum = __fmaf_rn(number_of(s[b], i), unit.x, __fmaf_rn(number_of(s[b], i + 1), unit.y, sum));
    }
  }
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) low += __shfl_xor_sync(0xffffffffu, low, apart), high += __shfl_xor_sync(0xffffffffu, high, apart);
  return make_float2(low, high);
}
DEVICE void put_sums(const Work& w, int of, float2 sums) {
  if (threadIdx.x % 4 != 0) return;
  w.row_sums(of, w.rows + row_of(0))[w.first_block] = sums.x, w.row_sums(of, w.rows + row_of(2))[w.first_block] = sums.y;
}
DEVICE float2 difference(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }

DEVICE void store_pairs(const Work& w, Pairs& pairs) {
#pragma unroll
  for (int b = 0; b < OWN_PAIRS; b++) {
    const int columns = (w.first_block + b * KEY_WARPS) * 16;
    if (columns > w.rows) continue;
#pragma unroll
    for (int number = 0; number < 8; number++) {
      const int i = w.rows + row_of(number), j = columns + column_of(number);
      const bool counts = i >= j && w.together(i, j);
      const f32 decay = counts ? exp_fast(w.token(SUM, i) - w.token(SUM, j)) : 0.f;
      assign(*number_at(w.tile(PAIRS_AT), PAIR_PITCH, i, j), decay * number_of(pairs.a[b], number));
      assign(*number_at(w.tile(PAIRS_AT) + SPAN * PAIR_PITCH, PAIR_PITCH, i, j), i > j ? -decay * number_of(pairs.m[b], number) : 0.f);
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

// The logarithm of a decay with its derivatives, and that of beta.
struct LogDecay { f32 by_gate, by_a_log; };
DEVICE LogDecay log_decay_slopes(f32 gate, f32 rate, f32 lower_bound) {
  if constexpr (!RAW) return {1.f, 0.f};
  if constexpr (BOUNDED) {
    const f32 s = sigmoid(rate * gate), slope = lower_bound * s * (1.f - s) * rate;
    return {slope, slope * gate};
  }
  return {-rate * (gate > 20.f ? 1.f : sigmoid(gate)), -rate * softplus(gate)};
}
DEVICE f32 beta_slope(f32 raw, f32 factor) {
  const f32 s = sigmoid(raw);
  return BETA_SIGMOID ? factor * s * (1.f - s) : 1.f;
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

// Gradients by one gate for all channels, and by beta, from sums over channels. What the state at the end gives goes to the gates of the last run.
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
    for (int j = 0; j < SPAN; j++) ends += of_end[j], by_log += j >= i && w.together(i, j) ? of_step[j] : 0.f;
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

// The sums of rows that the heads before have left in dq and dk.
struct Before { float2 q, k; };

DEVICE void finish_head(const Params& p, const Work& w, Parts& parts, Pairs& pairs, Before& before) {
  store_pairs(w, pairs);
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++) each_number(parts.r[b], [&](f32& v, int row, int) { v *= -w.token(SINCE, w.rows + row); });
  put_sums(w, KEY_END, difference(sums_of_rows(w, parts.w, w.tile(0)), before.k));
  __syncthreads();
  multiply_pairs(w, parts);
  const float2 q = sums_of_rows(w, parts.q, w.tile(Q_AT)), r = sums_of_rows(w, parts.r, w.tile(0)), k = sums_of_rows(w, parts.w, w.tile(0));
  put_sums(w, QUERY_DQ, difference(q, before.q)), put_sums(w, KEY_R, r), put_sums(w, KEY_WRITTEN, difference(k, before.k));
  const f32 low = w.token(BETA_ROW, w.rows + row_of(0)), high = w.token(BETA_ROW, w.rows + row_of(2));
  before = {q, make_float2(__fmaf_rn(low, r.x, k.x), __fmaf_rn(high, r.y, k.y))};
#pragma unroll
  for (int b = 0; b < OWN_BLOCKS; b++)
#pragma unroll
    for (int i = 0; i < 8; i++) number_of(parts.w[b], i) = __fmaf_rn(i / 2 % 2 == 0 ? low : high, number_of(parts.r[b], i), number_of(parts.w[b], i));
  __syncthreads();
  finish_gates(p, w);
}

// ---- the same with decays of channels

#include "backward_channels.cuh"

// ---- gradients by queries and keys from those of their units

template <typename E, int WIDTH> DEVICE void store_units(const Params& p, const Work& w, Sums (&s)[OWN_BLOCKS], const Strided& to, int of) {
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
        const float2 unit = pair_at<MATH>(reinterpret_cast<const char*>(number_at(units, KEY_PITCH, step, n)));
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

// A chunk that there is not leaves no terms.
DEVICE void clear_terms(const Params& p, i64 unit) {
  if (threadIdx.x < SHARING) p.da_terms[unit + threadIdx.x] = 0.f;
  const int width = BY_CHANNEL ? KEYS : 1;
  for (int i = threadIdx.x; i < SHARING * width; i += THREADS) p.dbias_terms[unit * width + i] = 0.f;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  Work w;
  w.shared = shared, w.index = blockIdx.x / p.key_heads, w.key_head = blockIdx.x % p.key_heads, w.chunk = chunk_at(p, w.index);
  const i64 first = w.key_head * GROUP, units = (w.index * p.key_heads + w.key_head) * SPAN * PADDED_KEYS;
  if (w.chunk.rows <= 0) {
    if constexpr (HAS_SUMS) clear_terms(p, w.index * p.heads + first);
    return;
  }
  w.rows = int(threadIdx.x) / 32 % ROW_WARPS * 16, w.first_block = int(threadIdx.x) / 32 / ROW_WARPS;
  copy_lines<PADDED_KEYS>(w.tile(0), static_cast<const Element*>(p.k_units) + units, SPAN);
  copy_lines<PADDED_KEYS>(w.tile(Q_AT), static_cast<const Element*>(p.q_units) + units, SPAN);
  Slice fetched;
  if constexpr (GROUP > 0) {
    fetched.fetch(p, w.index * p.heads + first, 0);
    copy_slice(p, w, first, 0, 0, 0);
  }
  Totals totals = {};
  Parts parts = {};
  Before before = {};
#pragma unroll 1
  for (int own = 0; own < GROUP; own++) {
    w.head = first + own, w.unit = w.index * p.heads + w.head, w.turn = own % 2;
    Pairs pairs = {};
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) parts.r[b] = {};
    take_slices(p, w, own, fetched, parts, pairs);
    if constexpr (NEEDS_KEYS) {
      if constexpr (BY_CHANNEL) finish_channels(p, w, parts, pairs, totals); else finish_head(p, w, parts, pairs, before);
    }
  }
  if constexpr (HAS_DQ || HAS_DK) {
    Sums (&by_q)[OWN_BLOCKS] = BY_CHANNEL ? totals.q : parts.q;
    Sums (&by_k)[OWN_BLOCKS] = BY_CHANNEL ? totals.k : parts.w;
    put_sums(w, UNIT_Q, sums_of_rows(w, by_q, w.tile(Q_AT))), put_sums(w, UNIT_K, sums_of_rows(w, by_k, w.tile(0)));
    __syncthreads();
    if constexpr (HAS_DQ) store_units<DQ, DQ_WIDTH>(p, w, by_q, p.dq, 1);
    if constexpr (HAS_DK) store_units<DK, DK_WIDTH>(p, w, by_k, p.dk, 0);
  }
}
