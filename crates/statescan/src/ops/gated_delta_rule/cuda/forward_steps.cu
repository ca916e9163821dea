// The forward pass step by step, for every call: f32 throughout, so its errors are those of f32.
//
// A block takes some columns of a head's state through a sequence. LANES threads share a column, each with some rows of it in registers, and every
// step is one pass over them: decay, products with key and query, update. The first HELPERS threads bring a tile of steps into shared memory, as f32
// and with all that does not depend on the state, while the others work on the tile before.
#include "inputs.cuh"

static_assert(given<int>(KEYS, PADDED_KEYS, VALUES, GROUP, STEPS, WARPS, OWN));

constexpr int HELPERS = 128, THREADS = HELPERS + 32 * WARPS;
constexpr int LANES = 8, ROWS = PADDED_KEYS / LANES, OF_WARP = 32 / LANES * OWN, COLUMNS = WARPS * OF_WARP;
constexpr int PITCH = PADDED_KEYS + 4;   // lines of a tile begin in other banks

// A step has besides rows: the decay of a head; beta over the length of the key; one over that length; scale over the length of the query;
// their product as they lie; whether it begins a sequence.
struct alignas(16) Step { f32 decay, write, key, read, product; u32 begins, free[2]; };

struct alignas(16) Stage {
  f32 q[STEPS][PITCH], k[STEPS][PITCH], decay[BY_CHANNEL ? STEPS : 1][BY_CHANNEL ? PITCH : 4], v[STEPS][COLUMNS], y[STEPS][COLUMNS];
  Step step[STEPS];
};
static_assert(2 * sizeof(Stage) == SHARED, "the plan has counted the same");

// The columns of a block, and the `number`-th piece of its sequence.
struct Work {
  Piece piece;
  Head head;
  i64 first;

  DEVICE Work(const Params& p, int number)
      : piece(p, blockIdx.x / u32(p.column_blocks) / u32(p.heads) * pieces_of_block(p) + number), head(p, blockIdx.x / u32(p.column_blocks) % u32(p.heads)), first(blockIdx.x % u32(p.column_blocks) * COLUMNS) {}
  DEVICE i64 key_head() const { return head.head / GROUP; }
};

// ---- tiles of steps in shared memory, by the helpers

// The step and the first number of the neighbours that a thread takes in a round; where steps lie side by side threads take these.
template <int OF_LINE, int WIDTH, bool BY_TIME> struct Neighbour {
  int at, step, i;
  DEVICE explicit Neighbour(int round) : at(round * HELPERS + int(threadIdx.x)), step(BY_TIME ? at % STEPS : at / OF_LINE), i((BY_TIME ? at / STEPS : at % OF_LINE) * WIDTH) {}
};

// Rows of a head from step t on, and the first of their numbers.
struct Rows { const Piece& piece; i64 t, head, first; };

// Numbers [first, first + COUNT) of some steps as f32; those behind LENGTH are zero. `make(value, i)` is what becomes of one.
template <int COUNT, int LENGTH, int WIDTH, bool BY_TIME, typename E, int ROOM, typename Make>
DEVICE void load_rows(f32 (&to)[STEPS][ROOM], const Strided& from, const Rows& rows, Make make) {
  const auto [piece, t, head, first] = rows;
  constexpr int OF_LINE = COUNT / WIDTH, PIECES = STEPS * OF_LINE, ROUNDS = (PIECES + HELPERS - 1) / HELPERS, TOGETHER = ROUNDS < 8 ? ROUNDS : 8;
  static_assert(COUNT % WIDTH == 0 && LENGTH % WIDTH == 0 && !(BY_TIME && WIDTH > 1), "pieces fill a line");
#pragma unroll
  for (int rounds = 0; rounds < ROUNDS; rounds += TOGETHER) {
    // stores wait for one load, not for each
    Neighbours<E, WIDTH> some[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      const Neighbour<OF_LINE, WIDTH, BY_TIME> n(rounds + k);
      if (n.at < PIECES && t + n.step < piece.end && first + n.i < LENGTH)
        some[k] = *reinterpret_cast<const Neighbours<E, WIDTH>*>(at<E>(from, piece.batch, t + n.step, head, first + n.i));
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      const Neighbour<OF_LINE, WIDTH, BY_TIME> n(rounds + k);
      const bool exists = t + n.step < piece.end && first + n.i < LENGTH;
      if (n.at < PIECES)
#pragma unroll
        for (int e = 0; e < WIDTH; e++) to[n.step][n.i + e] = exists ? make(to_f32(some[k].v[e]), first + n.i + e) : 0.f;
    }
  }
}

// Lengths and products of the rows of a tile, a warp for each.
DEVICE void measure(const Params& p, Stage& stage) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int t = threadIdx.x / 32; t < STEPS; t += HELPERS / 32) {
    f32 qq = 0.f, kk = 0.f, qk = 0.f;
#pragma unroll
    for (int n = lane; n < PADDED_KEYS; n += 32) {
      const f32 q = stage.q[t][n], k = stage.k[t][n];
      qq = __fmaf_rn(q, q, qq), kk = __fmaf_rn(k, k, kk), qk = __fmaf_rn(q, k, qk);
    }
    qq = UNIT ? inverse_length(sum_of_warp(qq)) : 1.f, kk = UNIT ? inverse_length(sum_of_warp(kk)) : 1.f, qk = sum_of_warp(qk);
    if (lane == 0) {
      Step& step = stage.step[t];
      step.key = kk, step.read = p.scale * qq, step.write *= kk, step.product = qk;
    }
  }
}

// Brings the steps from t on into a stage.
template <typename S> DEVICE void load_tile(const Params& p, const Work& work, S& stage, i64 t) {
  const Piece& piece = work.piece;
  const Head& head = work.head;
  if (threadIdx.x < STEPS) {
    const i64 u = t + threadIdx.x;
    const bool exists = u < piece.end;
    Step& step = stage.step[threadIdx.x];
    step.decay = exists ? expf(head.log_decay_at(p, piece.batch, u)) : 1.f;
    step.write = exists ? head.beta_at(p, piece.batch, u) : 0.f;
    step.begins = HAS_RUNS && exists && u > 0 && begins(p, piece.batch, u);
  }
  auto as_it_is = [](f32 v, i64) { return v; };
  load_rows<PADDED_KEYS, KEYS, KEY_WIDTH, KEY_BY_TIME, KEY>(stage.k, p.k, {piece, t, work.key_head(), 0}, as_it_is);
  load_rows<PADDED_KEYS, KEYS, QUERY_WIDTH, QUERY_BY_TIME, QUERY>(stage.q, p.q, {piece, t, work.key_head(), 0}, as_it_is);
  load_rows<COLUMNS, VALUES, VALUE_WIDTH, VALUE_BY_TIME, VALUE>(stage.v, p.v, {piece, t, head.head, work.first}, as_it_is);
  if constexpr (BY_CHANNEL) {
    // a channel behind the last one has a state of zero, whatever its decay
    auto decay = [&](f32 gate, i64 n) { return expf(head.log_decay_of(p, gate, n)); };
    load_rows<PADDED_KEYS, KEYS, GATE_WIDTH, GATE_BY_TIME, GATE>(stage.decay, p.g, {piece, t, head.head, 0}, decay);
  }
  meet<1, HELPERS>();
  measure(p, stage);
}

// Writes what the steps from t on have given.
DEVICE void store_tile(const Params& p, const Work& work, const Stage& stage, i64 t) {
  if constexpr (!HAS_Y) return;
  constexpr int OF_LINE = COLUMNS / Y_WIDTH;
  static_assert(COLUMNS % Y_WIDTH == 0 && !(Y_BY_TIME && Y_WIDTH > 1), "pieces fill a line");
#pragma unroll
  for (int round = 0; round * HELPERS < STEPS * OF_LINE; round++) {
    const Neighbour<OF_LINE, Y_WIDTH, Y_BY_TIME> n(round);
    if (n.at >= STEPS * OF_LINE || t + n.step >= work.piece.end || work.first + n.i >= VALUES) continue;
    Neighbours<Y, Y_WIDTH> some;
#pragma unroll
    for (int e = 0; e < Y_WIDTH; e++) assign(some.v[e], stage.y[n.step][n.i + e]);
    write_at_once(at<Y>(p.y, work.piece.batch, t + n.step, work.head.head, work.first + n.i), some);
  }
}

// ---- the state

// A thread's rows of a line: groups of four, those of its LANES neighbours between them.
DEVICE void load_line(f32 (&to)[ROWS], const f32* line, int lane) {
#pragma unroll
  for (int i = 0; i < ROWS / 4; i++) {
    const float4 v = reinterpret_cast<const float4*>(line)[i * LANES + lane];
    to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
  }
}

struct State {
  f32 v[OWN][ROWS];
  int lane, column;   // of the block, the first one of this thread

  DEVICE State() : lane(threadIdx.x % LANES), column((int(threadIdx.x) - HELPERS) / LANES * OWN) {}

  // job(number, row, column of the block) for every number that the state has
  template <typename Job> DEVICE void each_number(i64 first, Job job) {
#pragma unroll
    for (int c = 0; c < OWN; c++)
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        const int n = (i / 4 * LANES + lane) * 4 + i % 4;
        job(v[c][i], n, first + column + c, n < KEYS && first + column + c < VALUES);
      }
  }

  // Sums over the threads of a column: two kinds of them for each of this thread's columns. Afterwards a thread has one, of the kind that bit 2 of
  // its lane says, and of the column that bit 1 says.
  DEVICE f32 sums(const f32 (&first)[OWN], const f32 (&second)[OWN]) const {
    const bool high = lane & 4;
    f32 kept[OWN];
#pragma unroll
    for (int c = 0; c < OWN; c++) kept[c] = (high ? second[c] : first[c]) + __shfl_xor_sync(~0u, high ? first[c] : second[c], 4);
    f32 sum;
    if constexpr (OWN == 2) {
      const bool other = lane & 2;
      sum = (other ? kept[1] : kept[0]) + __shfl_xor_sync(~0u, other ? kept[0] : kept[1], 2);
    } else {
      sum = kept[0] + __shfl_xor_sync(~0u, kept[0], 2);
    }
    return sum + __shfl_xor_sync(~0u, sum, 1);
  }

  DEVICE void advance(Stage& stage, int t) {
    const Step step = stage.step[t];
    f32 k[ROWS], q[ROWS], of_key[OWN], of_query[OWN];
    load_line(k, stage.k[t], lane), load_line(q, stage.q[t], lane);
    if constexpr (HAS_RUNS) {
      if (step.begins) each_number(0, [](f32& v, int, i64, bool) { v = 0.f; });
    }
    if constexpr (BY_CHANNEL) {
      f32 decay[ROWS];
      load_line(decay, stage.decay[t], lane);
#pragma unroll
      for (int c = 0; c < OWN; c++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) v[c][i] *= decay[i];
    } else if constexpr (HAS_GATE) {
#pragma unroll
      for (int c = 0; c < OWN; c++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) v[c][i] *= step.decay;
    }
#pragma unroll
    for (int c = 0; c < OWN; c++) {
      // chains of a quarter of the length
      f32 a[4] = {}, b[4] = {};
#pragma unroll
      for (int i = 0; i < ROWS; i++) a[i % 4] = __fmaf_rn(v[c][i], k[i], a[i % 4]), b[i % 4] = __fmaf_rn(v[c][i], q[i], b[i % 4]);
      of_key[c] = (a[0] + a[1]) + (a[2] + a[3]), of_query[c] = (b[0] + b[1]) + (b[2] + b[3]);
    }
    const f32 sum = sums(of_key, of_query);
    const int mine = OWN == 2 ? lane / 2 % 2 : 0;
    const f32 d = step.write * __fmaf_rn(-step.key, sum, stage.v[t][column + mine]);
    f32 written[OWN];
#pragma unroll
    for (int c = 0; c < OWN; c++) {
      written[c] = __shfl_sync(~0u, d, (threadIdx.x % 32 & ~(LANES - 1)) + 2 * c);
#pragma unroll
      for (int i = 0; i < ROWS; i++) v[c][i] = __fmaf_rn(k[i], written[c], v[c][i]);
    }
    if ((lane & 5) == 4 && (OWN == 2 || !(lane & 2))) stage.y[t][column + mine] = step.read * __fmaf_rn(step.product, mine ? written[OWN - 1] : written[0], sum);
  }
};

// A piece of time: its steps, and the state behind them to where it goes.
DEVICE void walk(const Params& p, int number, Stage* stages, State& state) {
  const Work work(p, number);
  const bool helps = threadIdx.x < HELPERS;
  const int steps = int(work.piece.end - work.piece.start), tiles = (steps + STEPS - 1) / STEPS;
  auto start_of = [&](int tile) { return work.piece.start + i64(tile) * STEPS; };
  if (helps && tiles > 0) load_tile(p, work, stages[0], start_of(0));
  __syncthreads();
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
    if (helps) {
      if (tile > 0) store_tile(p, work, stages[(tile - 1) % 2], start_of(tile - 1));
      if (tile + 1 < tiles) load_tile(p, work, stages[(tile + 1) % 2], start_of(tile + 1));
    } else {
      const int count = min(STEPS, steps - tile * STEPS);
#pragma unroll 1
      for (int t = 0; t < count; t++) state.advance(stages[tile % 2], t);
    }
    __syncthreads();
  }
  if (helps) {
    if (tiles > 0) store_tile(p, work, stages[(tiles - 1) % 2], start_of(tiles - 1));
  } else if constexpr (HAS_FINAL) {
    const StateRow to = target_of(p, work.piece.state);
    state.each_number(work.first, [&](f32& v, int n, i64 column, bool exists) {
      if (exists && !is_nowhere(to)) assign(*state_at<FINAL>(p.after, to, work.head.head, n, column), v);
    });
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gated_delta_rule_steps(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  Stage* const stages = reinterpret_cast<Stage*>(shared);
  const Work work(p, 0);
  const bool helps = threadIdx.x < HELPERS;
  State state;
  const StateRow from = source_of(p, work.piece.state);
  if (!helps)
    state.each_number(work.first, [&](f32& v, int n, i64 column, bool exists) {
      v = HAS_INITIAL && exists && !is_nowhere(from) ? to_f32(*state_at<INITIAL>(p.before, from, work.head.head, n, column)) : 0.f;
    });
#pragma unroll 1
  for (int piece = 0; piece < int(pieces_of_block(p)); piece++) {
    // the last tile has been written
    if (IN_PIECES && piece > 0) __syncthreads();
    walk(p, piece, stages, state);
  }
}
