// A chunk of a head is prepared for the walks and the gradients: its keys and queries as units, its decays, the products A of queries and M of keys with keys
// (see the operation's header), and T = (I + M)^-1. With decays of channels keys and queries are written with their decays, too.
#include "backward_tiles.cuh"

constexpr int PITCH = pitch_of(PADDED_KEYS), M_PITCH = SPAN + 4, LINE = PADDED_KEYS + 1;
// tiles of keys, queries and, with decays of channels, sums
constexpr int TILES_BYTES = round_up(BY_CHANNEL ? 3 * SPAN * LINE * 4 : 2 * SPAN * PITCH, 16);

// Heads of values that are taken at once.
constexpr int TOGETHER = GROUP % 2 == 0 && 2 * SPAN <= THREADS ? 2 : 1;

// The shared memory of a head of values.
struct Room {
  f32 log[SPAN], tokens[TOKEN_ROWS][SPAN];
  alignas(16) f32 m[SPAN * M_PITCH];
};

static_assert(TILES_BYTES + TOGETHER * int(sizeof(Room)) == SHARED);

DEVICE f32 log_of_step(const Params& p, const Head& head, const Chunk& chunk, int step, int channel) {
  if (!HAS_GATE || step >= chunk.rows) return 0.f;
  const i64 t = chunk.start + step;
  const f32 log = BY_CHANNEL ? head.log_decay_of(p, to_f32(*at<GATE>(p.g, chunk.batch, t, head.head, channel)), channel) : head.log_decay_at(p, chunk.batch, t);
  // a smaller sum is zero as a decay, and an infinite sum would have no differences
  return log < -LOWEST ? -LOWEST : log;
}

// The run of each step within its chunk, beta, and sums of one decay for all channels. Every thread has a step of a head.
DEVICE void make_tokens(const Params& p, Room (&rooms)[TOGETHER], const Chunk& chunk, i64 first_head) {
  const int i = threadIdx.x % SPAN, of = threadIdx.x / SPAN;
  const bool works = of < TOGETHER;
  Room& room = rooms[works ? of : 0];
  if (works) {
    const Head head(p, first_head + of);
    const bool begins_here = HAS_RUNS && chunk.start + i > 0 && i < chunk.rows && begins(p, chunk.batch, chunk.start + i);
    room.tokens[RUN][i] = begins_here ? 1.f : 0.f;
    room.log[i] = BY_CHANNEL ? 0.f : log_of_step(p, head, chunk, i, 0);
    room.tokens[BETA_ROW][i] = i < chunk.rows ? head.beta_at(p, chunk.batch, chunk.start + i) : 0.f;
  }
  __syncthreads();
  f32 sum = 0.f, rest = 0.f;
  int run = 0;
  bool is_last = true;
  if (works) {
    for (int j = 0; j <= i; j++) {
      if (HAS_RUNS && room.tokens[RUN][j] != 0.f) run++, sum = 0.f;
      sum += room.log[j];
    }
    for (int j = i + 1; j < SPAN; j++) {
      if (HAS_RUNS && room.tokens[RUN][j] != 0.f) is_last = false;
      rest += room.log[j];
    }
  }
  __syncthreads();
  if (!works) return;
  room.tokens[SUM][i] = sum, room.tokens[RUN][i] = f32(run);
  room.tokens[SINCE][i] = run == 0 ? exp_fast(sum) : 0.f, room.tokens[UNTIL][i] = is_last ? exp_fast(rest) : 0.f;
}

// Keys and queries (with the scale) as units, where they are and in the workspace. Eight threads share a row.
template <typename At> DEVICE void make_units(const Params& p, i64 shared_unit, At number) {
  const int lane = threadIdx.x % 8;
  for (int row = threadIdx.x / 8; row < 2 * SPAN; row += THREADS / 8) {
    const int of = row / SPAN, step = row % SPAN;
    f32 sum = 0.f;
    for (int n = 2 * lane; n < PADDED_KEYS; n += 16) {
      const f32 v = to_f32(number(of, step, n)), w = to_f32(number(of, step, n + 1));
      sum = __fmaf_rn(v, v, __fmaf_rn(w, w, sum));
    }
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    const f32 inverse = UNIT ? inverse_length(sum) : 1.f, factor = of == 0 ? inverse : inverse * p.scale;
    Element* const to = static_cast<Element*>(of == 0 ? p.k_units : p.q_units) + (shared_unit * SPAN + step) * PADDED_KEYS;
    for (int n = 2 * lane; n < PADDED_KEYS; n += 16) {
      Neighbours<Element, 2> units;
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const f32 unit = factor * to_f32(number(of, step, n + e));
        assign(units.v[e], unit), assign(number(of, step, n + e), unit);
      }
      write_at_once(to + n, units);
    }
    if (lane == 0) p.norms[(shared_unit * 2 + of) * SPAN + step] = inverse;
  }
}

// A pair of steps i >= j of one run: what the products of their keys, and of the query i with the key j, are worth.
DEVICE void put_pair(Room& room, Element* a, int i, int j, bool of_query, f32 product) {
  if (of_query)
    assign(a[i * SPAN + j], product);
  else
    room.m[i * M_PITCH + j] = room.tokens[BETA_ROW][i] * product;
}
DEVICE bool together(const Room& room, int i, int j) { return !HAS_RUNS || room.tokens[RUN][i] == room.tokens[RUN][j]; }

// Products of pairs with one decay, on tensor cores: a warp has 16 rows of queries or of keys.
DEVICE void multiply_pairs(Room (&rooms)[TOGETHER], const char* k, const char* q, Element* a) {
  for (int task = threadIdx.x / 32; task < 2 * ROW_BLOCKS; task += THREADS / 32) {
    const int rows = (ROW_BLOCKS - 1 - task / 2) * 16;
    const bool of_query = task % 2 == 1;
    for (int columns = 0; columns <= rows; columns += 16) {
      Square sums = {};
#pragma unroll
      for (int depth = 0; depth < PADDED_KEYS; depth += 16) {
        BlockA of_row;
        BlockB of_column[2];
        block_a<PITCH, false>(of_row, (of_query ? q : k) + rows * PITCH + depth * SIZE);
        blocks_b<PITCH, false>(of_column, k + columns * PITCH + depth * SIZE);
        add_product(sums, of_row, of_column);
      }
#pragma unroll
      for (int head = 0; head < TOGETHER; head++)
        each_number(sums, [&](f32 product, int row, int column) {
          Room& room = rooms[head];
          const int i = rows + row, j = columns + column;
          const bool counts = i >= j && together(room, i, j);
          const f32 decay = counts ? exp_fast(room.tokens[SUM][i] - room.tokens[SUM][j]) : 0.f;
          put_pair(room, a + head * SPAN * SPAN, i, j, of_query, decay * product);
        });
    }
  }
}

// T by columns, each a thread's.
DEVICE void invert(const Room (&rooms)[TOGETHER], Element* t) {
  const int column = threadIdx.x % SPAN, of = threadIdx.x / SPAN;
  if (of >= TOGETHER) return;
  const u32 lines = shared_address(rooms[of].m);
  t += of * SPAN * SPAN;
  f32 x[SPAN];
#pragma unroll
  for (int i = 0; i < SPAN; i++) {
    f32 sums[4] = {i == column ? 1.f : 0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      const float4 m = shared_load(lines + 4 * (i * M_PITCH + j));
      sums[0] = __fmaf_rn(-m.x, x[j], sums[0]);
      if (j + 1 < i) sums[1] = __fmaf_rn(-m.y, x[j + 1], sums[1]);
      if (j + 2 < i) sums[2] = __fmaf_rn(-m.z, x[j + 2], sums[2]);
      if (j + 3 < i) sums[3] = __fmaf_rn(-m.w, x[j + 3], sums[3]);
    }
    const f32 sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    x[i] = sum;
    assign(t[i * SPAN + column], sum);
  }
}

// ---- decays of channels: everything is f32 in lines of an odd length

struct Channels { f32 *k, *q, *c; };   // keys, queries and running sums of logarithms

// Running sums of logarithms within each run, and the decayed keys and queries.
DEVICE void decay_channels(const Params& p, const Head& head, const Room& room, const Chunk& chunk, i64 unit, Channels tiles) {
  f32 *const k = tiles.k, *const q = tiles.q, *const c = tiles.c;
  f32* const sums = p.sums + unit * SPAN * PADDED_KEYS;
  Element* const read_k = static_cast<Element*>(p.read_k) + unit * SPAN * PADDED_KEYS;
  Element* const written_k = static_cast<Element*>(p.written_k) + unit * SPAN * PADDED_KEYS;
  Element* const read_q = static_cast<Element*>(p.read_q) + unit * SPAN * PADDED_KEYS;
  for (int n = threadIdx.x; n < PADDED_KEYS; n += THREADS) {
    f32 sum = 0.f, end = 0.f;
    for (int i = 0; i < SPAN; i++) {
      if (i > 0 && !together(room, i, i - 1)) sum = 0.f;
      if (n < KEYS) sum += log_of_step(p, head, chunk, i, n);
      c[i * LINE + n] = sum, sums[i * PADDED_KEYS + n] = sum;
    }
    for (int i = SPAN - 1; i >= 0; i--) {
      const f32 own = c[i * LINE + n], since = room.tokens[SINCE][i] * exp_fast(own);
      if (i == SPAN - 1 || !together(room, i, i + 1)) end = own;
      assign(read_k[i * PADDED_KEYS + n], since * k[i * LINE + n]);
      assign(read_q[i * PADDED_KEYS + n], since * q[i * LINE + n]);
      assign(written_k[i * PADDED_KEYS + n], room.tokens[UNTIL][i] * exp_fast(end - own) * k[i * LINE + n]);
    }
  }
}

DEVICE void multiply_channels(Room& room, Channels tiles, Element* a) {
  const f32 *const k = tiles.k, *const q = tiles.q, *const c = tiles.c;
  for (int pair = threadIdx.x; pair < SPAN * (SPAN + 1) / 2; pair += THREADS) {
    int i = int(sqrtf(8.f * f32(pair) + 1.f) - 1.f) / 2;
    while (i * (i + 1) / 2 > pair) i--;
    while ((i + 1) * (i + 2) / 2 <= pair) i++;
    const int j = pair - i * (i + 1) / 2;
    f32 of_k = 0.f, of_q = 0.f;
    if (together(room, i, j))
      for (int n = 0; n < KEYS; n++) {
        const f32 key = exp_fast(c[i * LINE + n] - c[j * LINE + n]) * k[j * LINE + n];
        of_k = __fmaf_rn(key, k[i * LINE + n], of_k), of_q = __fmaf_rn(key, q[i * LINE + n], of_q);
      }
    put_pair(room, a, i, j, false, of_k), put_pair(room, a, i, j, true, of_q);
    // the other half of blocks on the diagonal
    if (i > j && i / 16 == j / 16) put_pair(room, a, j, i, true, 0.f);
  }
}

// Keys or queries, in f32.
DEVICE void load_channels(f32* to, const Strided& from, const Chunk& chunk, i64 head, bool of_q) {
  for (int i = threadIdx.x; i < SPAN * PADDED_KEYS; i += THREADS) {
    const bool by_time = of_q ? QUERY_BY_TIME : KEY_BY_TIME;
    const int step = by_time ? i % SPAN : i / PADDED_KEYS, n = by_time ? i / SPAN : i % PADDED_KEYS;
    f32 v = 0.f;
    if (step < chunk.rows && n < KEYS)
      v = of_q ? to_f32(*at<QUERY>(from, chunk.batch, chunk.start + step, head, n)) : to_f32(*at<KEY>(from, chunk.batch, chunk.start + step, head, n));
    to[step * LINE + n] = v;
  }
}

// Some heads of values that share one of keys, whose units are in shared memory.
DEVICE void take_heads(const Params& p, Room (&rooms)[TOGETHER], const Chunk& chunk, i64 unit, i64 head, char* shared) {
  Element *const a = static_cast<Element*>(p.a) + unit * SPAN * SPAN, *const t = static_cast<Element*>(p.t) + unit * SPAN * SPAN;
  make_tokens(p, rooms, chunk, head);
  __syncthreads();
  if constexpr (BY_CHANNEL) {
    f32* const first = reinterpret_cast<f32*>(shared);
    const Channels tiles = {first, first + SPAN * LINE, first + 2 * SPAN * LINE};
#pragma unroll 1
    for (int of = 0; of < TOGETHER; of++) {
      __syncthreads();
      decay_channels(p, Head(p, head + of), rooms[of], chunk, unit + of, tiles);
      __syncthreads();
      multiply_channels(rooms[of], tiles, a + of * SPAN * SPAN);
    }
  } else {
    multiply_pairs(rooms, shared, shared + SPAN * PITCH, a);
  }
  __syncthreads();
  invert(rooms, t);
  f32* const tokens = p.tokens + unit * TOKEN_ROWS * SPAN;
  for (int i = threadIdx.x; i < TOGETHER * TOKEN_ROWS * SPAN; i += THREADS)
    tokens[i] = rooms[i / (TOKEN_ROWS * SPAN)].tokens[i / SPAN % TOKEN_ROWS][i % SPAN];
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) gated_delta_rule_prepare(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  Room (&rooms)[TOGETHER] = *reinterpret_cast<Room(*)[TOGETHER]>(shared + TILES_BYTES);
  const i64 index = blockIdx.x / p.key_heads, head = blockIdx.x % p.key_heads;
  const Chunk chunk = chunk_at(p, index);
  if (chunk.rows <= 0) return;
  if constexpr (BY_CHANNEL) {
    f32 *const k = reinterpret_cast<f32*>(shared), *const q = k + SPAN * LINE;
    load_channels(k, p.k, chunk, head, false);
    load_channels(q, p.q, chunk, head, true);
    __syncthreads();
    make_units(p, blockIdx.x, [&](int of, int step, int n) -> f32& { return (of == 0 ? k : q)[step * LINE + n]; });
  } else {
    char *const k = shared, *const q = k + SPAN * PITCH;
    load_steps<KEY, KEY_WIDTH, KEY_BY_TIME, PADDED_KEYS, KEYS>(k, p.k, chunk, head, 0);
    load_steps<QUERY, QUERY_WIDTH, QUERY_BY_TIME, PADDED_KEYS, KEYS>(q, p.q, chunk, head, 0);
    copy_async_commit();
    copy_async_wait();
    __syncthreads();
    make_units(p, blockIdx.x, [&](int of, int step, int n) -> Element& { return *number_at(of == 0 ? k : q, PITCH, step, n); });
  }
#pragma unroll 1
  for (int own = 0; own < GROUP; own += TOGETHER) take_heads(p, rooms, chunk, index * p.heads + head * GROUP + own, head * GROUP + own, shared);
}
