// The walks of the backward pass: forwards with the state, backwards with its gradient. A warp has 16 columns of either, transposed, in the sums of its
// products, or a pair of warps has them, half of the keys each; both take what a chunk writes, from sums that they exchange. A block has some such warps of
// one head; blocks of both directions run side by side, for neither needs the other. What the gradients need is left in the workspace: state and gradient of
// each chunk, and with E = v - (decayed state)^T k what is written, D = T beta E, and backwards X = T^T Y.
#include "backward_tiles.cuh"

// warps of the same columns, and their blocks of keys
constexpr int HALVES = KEY_BLOCKS % 2 == 0 ? 2 : 1, OWN_BLOCKS = KEY_BLOCKS / HALVES;
// threads that compute; the others load what comes next
constexpr int COMPUTE = THREADS - LOADERS, WARPS = COMPUTE / 32 / HALVES, COLUMNS = 16 * WARPS;
constexpr int KEY_PITCH = pitch_of(PADDED_KEYS), PAIR_PITCH = pitch_of(SPAN), STEP_PITCH = pitch_of(COLUMNS);
constexpr int KEY_BYTES = SPAN * KEY_PITCH, PAIR_BYTES = SPAN * PAIR_PITCH, STEP_BYTES = SPAN * STEP_PITCH;
constexpr int TOKEN_BYTES = TOKEN_ROWS * SPAN * 4, LAST_BYTES = BY_CHANNEL ? PADDED_KEYS * 4 : 0;
// tiles of a stage: keys as they are read and as they are written (the same ones with one decay), queries, T, A, steps of v or dy, tokens, decays
constexpr int WRITTEN_AT = BY_CHANNEL ? KEY_BYTES : 0, Q_AT = WRITTEN_AT + KEY_BYTES, T_AT = Q_AT + KEY_BYTES, A_AT = T_AT + PAIR_BYTES;
constexpr int STEPS_AT = A_AT + PAIR_BYTES, TOKENS_AT = STEPS_AT + STEP_BYTES, LAST_AT = TOKENS_AT + TOKEN_BYTES;
constexpr int STAGE_BYTES = LAST_AT + LAST_BYTES;
constexpr int EXCHANGE_AT = STAGES * STAGE_BYTES, EXCHANGED = HALVES == 2 ? ROW_BLOCKS * 8 : 0;   // numbers of a thread
static_assert(EXCHANGE_AT + EXCHANGED * COMPUTE * 4 == SHARED);

// The work of a block.
struct Walk {
  Piece piece;
  i64 head, chunk;   // of values, and the piece's first chunk
  int first, own;    // the block's first column, and the warp's first one within the block
  int half;          // of the keys
};

DEVICE Chunk chunk_of(const Walk& w, i64 chunk) {
  const i64 start = w.piece.start + (chunk - w.chunk) * SPAN;
  return {w.piece.batch, start, int(min(w.piece.end - start, i64(SPAN)))};
}

// The next chunk, by the threads that load.
template <bool FORWARDS> DEVICE void load_stage(const Params& p, const Walk& w, char* stage, i64 index) {
  const i64 unit = index * p.heads + w.head, shared = index * p.key_heads + w.head / SHARING;
  const auto keys = [](void* from, i64 at) { return static_cast<const Element*>(from) + at * SPAN * PADDED_KEYS; };
  const auto pairs = [&](void* from) { return static_cast<const Element*>(from) + unit * SPAN * SPAN; };
  if constexpr (BY_CHANNEL) {
    copy_lines<PADDED_KEYS>(stage, keys(p.read_k, unit), SPAN);
    copy_lines<PADDED_KEYS>(stage + WRITTEN_AT, keys(p.written_k, unit), SPAN);
    const f32* const last = p.sums + (unit * SPAN + SPAN - 1) * PADDED_KEYS;
    for (int i = loader(); i < PADDED_KEYS / 4; i += LOADERS) copy_async_16(stage + LAST_AT + 16 * i, last + 4 * i);
    if (!FORWARDS) copy_lines<PADDED_KEYS>(stage + Q_AT, keys(p.read_q, unit), SPAN);
  } else {
    copy_lines<PADDED_KEYS>(stage, keys(p.k_units, shared), SPAN);
    if (!FORWARDS) copy_lines<PADDED_KEYS>(stage + Q_AT, keys(p.q_units, shared), SPAN);
  }
  copy_lines<SPAN>(stage + T_AT, pairs(p.t), SPAN);
  if (!FORWARDS) copy_lines<SPAN>(stage + A_AT, pairs(p.a), SPAN);
  copy_tokens(reinterpret_cast<f32*>(stage + TOKENS_AT), p.tokens + unit * TOKEN_ROWS * SPAN);
  const Chunk chunk = chunk_of(w, index);
  if constexpr (FORWARDS)
    load_steps<VALUE, STEP_WIDTH, VALUE_BY_TIME, COLUMNS, VALUES>(stage + STEPS_AT, p.v, chunk, w.head, w.first);
  else if constexpr (HAS_DY)
    load_steps<DY, DY_STEP_WIDTH, DY_BY_TIME, COLUMNS, VALUES>(stage + STEPS_AT, p.dy, chunk, w.head, w.first);
  copy_async_commit();
}

// A chunk in shared memory as a warp sees it.
struct Stage {
  const char *read_k, *written_k, *q, *t, *a, *steps;
  const f32 *tokens, *last;

  DEVICE Stage(const char* at, const Walk& w)
      : read_k(at + of_keys(w)), written_k(at + WRITTEN_AT + of_keys(w)), q(at + Q_AT + of_keys(w)), t(at + T_AT), a(at + A_AT),
        steps(at + STEPS_AT + w.own * SIZE), tokens(reinterpret_cast<const f32*>(at + TOKENS_AT)),
        last(reinterpret_cast<const f32*>(at + LAST_AT) + w.half * OWN_BLOCKS * 16) {}
  static DEVICE int of_keys(const Walk& w) { return w.half * OWN_BLOCKS * 16 * SIZE; }

  DEVICE f32 token(int row, int step) const { return tokens[row * SPAN + step]; }
  // a factor of a step of one decay for all channels: with decays of channels the tiles have it
  DEVICE f32 factor(int row, int step) const { return BY_CHANNEL ? 1.f : token(row, step); }
};

// The state or its gradient, transposed: 16 columns.
struct State {
  Square s[OWN_BLOCKS];

  // job(number, its place in a tensor of states) for those that exist there
  template <typename E, typename Job> DEVICE void each_place(const States& of, const Walk& w, Job job) {
    if (of.data == nullptr) return;
    const int first = w.first + w.own + row_of(0);
    E* line[2] = {state_at<E>(of, w.piece.state, w.head, w.half * OWN_BLOCKS * 16 + column_of(0), first), nullptr};
    line[1] = line[0] + 8 * of.stride[4];
    const i64 key = of.stride[3];
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (16 * (w.half * OWN_BLOCKS + b) + column_of(4 * half + i) < KEYS && first + i / 2 * 8 < VALUES) job(s[b].c[half].v[i], line[i / 2][i % 2 * key]);
        line[0] += 8 * key, line[1] += 8 * key;
      }
  }
  template <typename E> DEVICE void load(const States& from, const Walk& w) {
    each_place<E>(from, w, [](f32& v, const E& place) { v = to_f32(place); });
  }
  template <typename E> DEVICE void store(const States& to, const Walk& w) {
    each_place<E>(to, w, [](f32 v, E& place) { assign(place, v); });
  }
  DEVICE void keep(void* to, const Walk& w, i64 unit) {
    Element* const at = static_cast<Element*>(to) + ((unit * (PADDED_VALUES / 16) + (w.first + w.own) / 16) * KEY_BLOCKS + w.half * OWN_BLOCKS) * BLOCK;
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) store_block(at + b * BLOCK, s[b]);
  }
  // to += its product with keys, those of this warp: (column, step)
  DEVICE void multiply_keys(Square (&to)[ROW_BLOCKS], const char* keys) {
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      BlockA a;
      loads_stay();
      set_block(a, s[b]);
#pragma unroll
      for (int r = 0; r < ROW_BLOCKS; r++) {
        BlockB of_key[2];
        blocks_b<KEY_PITCH, false>(of_key, keys + 16 * r * KEY_PITCH + 16 * b * SIZE);
        add_product(to[r], a, of_key);
      }
    }
  }
  // adds the product of (column, step) with (step, key)
  DEVICE void add(const BlockA& a, const char* keys, int r) {
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) {
      loads_stay();
      BlockB of_step[2];
      blocks_b<KEY_PITCH, true>(of_step, keys + 16 * r * KEY_PITCH + 16 * b * SIZE);
      add_product(s[b], a, of_step);
    }
  }
  DEVICE void decay(const Stage& stage) {
    const f32 all = stage.token(SINCE, SPAN - 1);
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++)
      each_number(s[b], [&](f32& v, int, int key) { v *= BY_CHANNEL ? all * exp_fast(stage.last[16 * b + key]) : all; });
  }
};

// Blocks (column, step) of a chunk, kept for the gradients.
DEVICE void keep_steps(void* to, Square (&s)[ROW_BLOCKS], const Walk& w, i64 unit) {
  Element* const at = static_cast<Element*>(to) + (unit * (PADDED_VALUES / 16) + (w.first + w.own) / 16) * ROW_BLOCKS * BLOCK;
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) store_block(at + r * BLOCK, s[r]);
}

// Adds up what both warps of a pair have.
DEVICE void exchange(const Walk& w, char* shared, Square (&s)[ROW_BLOCKS]) {
  if constexpr (HALVES == 1) return;
  const int thread = threadIdx.x, other = thread < COMPUTE / 2 ? thread + COMPUTE / 2 : thread - COMPUTE / 2;
  float4* const room = reinterpret_cast<float4*>(shared + EXCHANGE_AT);
#pragma unroll
  for (int i = 0; i < 2 * ROW_BLOCKS; i++) {
    const f32* const v = s[i / 2].c[i % 2].v;
    room[i * COMPUTE + thread] = make_float4(v[0], v[1], v[2], v[3]);
  }
  asm volatile("barrier.sync %0, 64;" ::"r"(1 + w.own / 16) : "memory");
#pragma unroll
  for (int i = 0; i < 2 * ROW_BLOCKS; i++) {
    f32* const v = s[i / 2].c[i % 2].v;
    const float4 more = room[i * COMPUTE + other];
    v[0] += more.x, v[1] += more.y, v[2] += more.z, v[3] += more.w;
  }
}

// A chunk forwards, and D.
DEVICE void step_forwards(const Walk& w, char* shared, const Stage& stage, State& state, Square (&d)[ROW_BLOCKS]) {
  Square e[ROW_BLOCKS] = {};
  state.multiply_keys(e, stage.read_k);
  exchange(w, shared, e);
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) {
    f32 v[8];
    block_numbers<STEP_PITCH, true>(v, stage.steps + 16 * r * STEP_PITCH);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int step = 16 * r + column_of(i);
      const f32 error = v[i] - stage.factor(SINCE, step) * number_of(e[r], i);
      number_of(e[r], i) = stage.token(BETA_ROW, step) * error;
    }
    BlockA a;
    set_block(a, e[r]);
#pragma unroll
    for (int to = 0; to < ROW_BLOCKS; to++) {
      if (to < r) continue;
      BlockB of_step[2];
      blocks_b<PAIR_PITCH, false>(of_step, stage.t + 16 * to * PAIR_PITCH + 16 * r * SIZE);
      add_product(d[to], a, of_step);
    }
  }
  state.decay(stage);
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) {
    f32 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = number_of(d[r], i) * stage.factor(UNTIL, 16 * r + column_of(i));
    BlockA a;
    ::set_block<MATH>(a, v);
    state.add(a, stage.written_k, r);
  }
}

// A chunk backwards, and X.
DEVICE void step_backwards(const Walk& w, char* shared, const Stage& stage, State& state, Square (&x)[ROW_BLOCKS]) {
  Square y[ROW_BLOCKS] = {};
  state.multiply_keys(y, stage.written_k);
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++)
    each_number(y[r], [&](f32& v, int, int step) { v *= stage.factor(UNTIL, 16 * r + step); });
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) {
    if constexpr (!HAS_DY) break;
    // each warp of a pair has half of these products
    if (HALVES == 2 && (r == 0 || r == 3) != (w.half == 0)) continue;
    BlockA dy;
    block_a<STEP_PITCH, true>(dy, stage.steps + 16 * r * STEP_PITCH);
#pragma unroll
    for (int to = 0; to < ROW_BLOCKS; to++) {
      if (to > r) continue;
      BlockB of_step[2];
      blocks_b<PAIR_PITCH, true>(of_step, stage.a + 16 * r * PAIR_PITCH + 16 * to * SIZE);
      add_product(y[to], dy, of_step);
    }
  }
  exchange(w, shared, y);
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) {
    BlockA a;
    set_block(a, y[r]);
#pragma unroll
    for (int to = 0; to < ROW_BLOCKS; to++) {
      if (to > r) continue;
      BlockB of_step[2];
      blocks_b<PAIR_PITCH, true>(of_step, stage.t + 16 * r * PAIR_PITCH + 16 * to * SIZE);
      add_product(x[to], a, of_step);
    }
  }
  state.decay(stage);
#pragma unroll
  for (int r = 0; r < ROW_BLOCKS; r++) {
    f32 v[8];
    BlockA a;
    if constexpr (HAS_DY) {
      block_numbers<STEP_PITCH, true>(v, stage.steps + 16 * r * STEP_PITCH);
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] *= stage.factor(SINCE, 16 * r + column_of(i));
      ::set_block<MATH>(a, v);
      state.add(a, stage.q, r);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int step = 16 * r + column_of(i);
      v[i] = -number_of(x[r], i) * stage.token(BETA_ROW, step) * stage.factor(SINCE, step);
    }
    ::set_block<MATH>(a, v);
    state.add(a, stage.read_k, r);
  }
}

template <bool FORWARDS> DEVICE void walk(const Params& p, const Walk& w, char* shared) {
  State state = {};
  if (threadIdx.x < COMPUTE) {
    if constexpr (FORWARDS) state.load<INITIAL>(p.before, w); else state.load<DFINAL>(p.dafter, w);
  }
  const i64 count = (w.piece.end - w.piece.start + SPAN - 1) / SPAN;
  const auto index_of = [&](i64 i) { return w.chunk + (FORWARDS ? i : count - 1 - i); };
  const bool is_there = w.first + w.own < PADDED_VALUES;
  const bool loads = threadIdx.x >= COMPUTE;
  if (loads && count > 0) load_stage<FORWARDS>(p, w, shared, index_of(0));
  for (i64 i = 0; i < count; i++) {
    if (loads) copy_async_wait();
    __syncthreads();
    if (STAGES == 2 && loads && i + 1 < count) load_stage<FORWARDS>(p, w, shared + (i + 1) % 2 * STAGE_BYTES, index_of(i + 1));
    if (!loads && is_there) {
      const i64 unit = index_of(i) * p.heads + w.head;
      const Stage stage(shared + (STAGES == 2 ? i % 2 * STAGE_BYTES : 0), w);
      Square steps[ROW_BLOCKS] = {};
      state.keep(FORWARDS ? p.states : p.gradients, w, unit);
      if constexpr (FORWARDS) step_forwards(w, shared, stage, state, steps); else step_backwards(w, shared, stage, state, steps);
      if (w.half == 0) keep_steps(FORWARDS ? p.d : p.x, steps, w, unit);
    }
    if constexpr (STAGES == 1) {
      __syncthreads();
      if (loads && i + 1 < count) load_stage<FORWARDS>(p, w, shared, index_of(i + 1));
    }
  }
  if (!FORWARDS && !loads && is_there) state.store<DINITIAL>(p.dbefore, w);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_walk(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  constexpr int PER_HEAD = (PADDED_VALUES + COLUMNS - 1) / COLUMNS;
  const i64 block = blockIdx.x / 2, of = block / PER_HEAD;
  const Piece piece(p, of / p.heads);
  i64 chunk = piece.batch * p.chunks_per_row;
  if constexpr (IS_BY_SEQUENCE) chunk += piece.start / SPAN + of / p.heads % p.sequence_count;
  const int warp = threadIdx.x < COMPUTE ? threadIdx.x / 32 : 0;
  const Walk w = {piece, of % p.heads, chunk, int(block % PER_HEAD) * COLUMNS, warp % WARPS * 16, warp / WARPS};
  if (blockIdx.x % 2 == 0) walk<true>(p, w, shared); else walk<false>(p, w, shared);
}
