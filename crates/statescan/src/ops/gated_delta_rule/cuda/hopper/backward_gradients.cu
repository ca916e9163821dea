// Gradients of a chunk on Hopper, as in `backward_gradients.cu`: slices of 64 columns come as tiles, two of them ahead in turn, and two warpgroups have half
// of the keys each; the first one has the products a of steps, too, and the second one m.
#include "backward_work.cuh"

static_assert(KEYS == 128 && SLICE == 64 && SPAN == 64 && THREADS == 256 && HAS_DY && !BY_CHANNEL && !HAS_RUNS && MATH == Math::Bf16);

constexpr int TILE = 64 * 128, ALIGNMENT = 1024, STATE_BYTES = KEYS * 128;
// room of a warp for 16 steps of 32 columns
constexpr int ROOM_PITCH = 80, ROOM_BYTES = 16 * ROOM_PITCH;
constexpr int A_AT = round_up(SLICES_AT, ALIGNMENT), M_AT = A_AT + TILE, BETA_M_AT = M_AT + TILE, ROOMS_AT = BETA_M_AT + TILE, BARRIERS_AT = ROOMS_AT + WARPS * ROOM_BYTES, FIXED_AT = BARRIERS_AT + 16, STAGES_AT = round_up(FIXED_AT + 64, ALIGNMENT);
constexpr int STATE_AT = 0, GRADIENT_AT = STATE_BYTES, X_AT = 2 * STATE_BYTES, D_AT = X_AT + TILE, DY_AT = D_AT + TILE, STAGE_BYTES = DY_AT + TILE;
static_assert(STAGES_AT + 2 * STAGE_BYTES == SHARED, "the plan has counted the same");

struct Pairs { Square of[ROW_BLOCKS]; };   // 16 rows of a, or of m

// The shared memory that is the same for all heads of values.
struct Fixed { Chunk chunk; i64 index, key_head; };
static_assert(sizeof(Fixed) <= 64);
// This is the same work, and the compiler does not know that: it would keep more addresses for the next use than it has registers.
DEVICE Work again(const Work& w) {
  Work own = w;
  own.shared += hidden_zero(), own.rows += hidden_zero();
  const Fixed& fixed = *reinterpret_cast<const Fixed*>(own.shared + FIXED_AT);
  own.chunk = fixed.chunk, own.index = fixed.index, own.key_head = fixed.key_head;
  return own;
}

DEVICE Barrier& full_of(const Work& w, int place) { return reinterpret_cast<Barrier*>(w.tile(BARRIERS_AT))[place]; }
DEVICE char* stage_of(const Work& w, int place) { return w.tile(STAGES_AT + place * STAGE_BYTES); }
DEVICE Sums<64>& sums_of(Square (&blocks)[4]) { return reinterpret_cast<Sums<64>&>(blocks); }

// Starts to bring a slice, and with a head's first one its tokens.
DEVICE void load_slice(const Params& p, const Work& w, i64 head, int turn, int slice, int place) {
  const i64 unit = w.index * p.heads + head, tile = unit * SLICES + slice;
  char* const to = stage_of(w, place);
  if (threadIdx.x == 0) {
    Barrier& full = full_of(w, place);
    barrier_arrive_expecting(full, DY_AT);
    const auto part = [&](void* from, int bytes) { return static_cast<const char*>(from) + tile * bytes; };
    bytes_load(to + X_AT, part(p.x, TILE), TILE, full), bytes_load(to + D_AT, part(p.d, TILE), TILE, full);
    bytes_load(to + STATE_AT, part(p.states, STATE_BYTES), STATE_BYTES, full), bytes_load(to + GRADIENT_AT, part(p.gradients, STATE_BYTES), STATE_BYTES, full);
  }
  if (slice == 0) copy_tokens(reinterpret_cast<f32*>(w.tile(TOKENS_AT) + turn * TOKEN_BYTES), p.tokens + unit * TOKEN_ROWS * SPAN);
  const DY* const dy = at<DY>(p.dy, w.chunk.batch, w.chunk.start, head, slice * SLICE);
#pragma unroll 1
  for (int i = threadIdx.x; i < SPAN * 8; i += THREADS) {
    const int step = i / 8, eight = i % 8;
    const bool there = step < w.chunk.rows;
    copy_async_16_or_zero(to + DY_AT + step * 128 + (eight ^ step % 8) * 16, there ? dy + step * p.dy.stride[1] + eight * 8 : dy, there);
  }
  copy_async_commit();
}

DEVICE void scale_rows(FragmentA (&v)[4], f32 low, f32 high) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    u32& two = v[i / 4].v[i % 4];
    const f32 factor = i % 2 == 0 ? low : high;
    two = pack_bf16(factor * low_bf16(two), factor * high_bf16(two));
  }
}

// Adds rows of steps times lines of columns, those of a tile of 64.
DEVICE void add_lines(Square (&to)[4], const FragmentA (&rows)[4], const char* lines) {
  const u64 of = operand(lines);
#pragma unroll
  for (int k = 0; k < 4; k++) multiply<true>(sums_of(to), rows[k], further(of, k * 2048), true);
}

// Adds up the products of the state with its gradient, for each warp.
DEVICE void multiply_states(const Work& w, const char* stage, int slice) {
  f32 sum = 0.f;
#pragma unroll 2
  for (int k = 0; k < STATE_BYTES / 16 / THREADS; k++) {
    const uint4 a = reinterpret_cast<const uint4*>(stage + STATE_AT)[k * THREADS + threadIdx.x], b = reinterpret_cast<const uint4*>(stage + GRADIENT_AT)[k * THREADS + threadIdx.x];
    sum = multiply_words(a.x, b.x, multiply_words(a.y, b.y, multiply_words(a.z, b.z, multiply_words(a.w, b.w, sum))));
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  f32& total = w.spare()[2 * SPAN + threadIdx.x / 32];
  if (threadIdx.x % 32 == 0) total = slice == 0 ? sum : total + sum;
}

// A warp's steps of half of a slice's columns: a thread has eight columns of two steps.
struct Values {
  int step, column;
  Neighbours<VALUE, STEP_WIDTH> v[2][8 / STEP_WIDTH];

  DEVICE Values(const Params& p, const Work& w, int slice) : step(w.rows + int(threadIdx.x) % 32 / 4), column(slice * SLICE + w.part * 32 + int(threadIdx.x) % 4 * 8) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const bool is_there = HAS_DBETA && step + 8 * r < w.chunk.rows;
      const VALUE* const from = at<VALUE>(p.v, w.chunk.batch, w.chunk.start + step + 8 * r, w.head, column);
#pragma unroll
      for (int c = 0; c < 8; c += STEP_WIDTH) {
        v[r][c / STEP_WIDTH] = {};
        if (is_there) v[r][c / STEP_WIDTH] = *reinterpret_cast<const Neighbours<VALUE, STEP_WIDTH>*>(from + c * p.v.stride[3]);
      }
    }
  }
  // Hands a warp's X over, as lines of steps.
  DEVICE static void put(const Work& w, const FragmentA (&x)[4]) {
    const int lane = threadIdx.x % 32;
    char* const to = room(w) + lane % 16 * ROOM_PITCH + lane / 16 * 16;
    u32 own[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
      for (int i = 0; i < 4; i++) own[k][i] = w.part == 0 ? x[k].v[i] : x[2 + k].v[i];
      store_matrices<false>(to + k * 32, own[k]);
    }
    __syncwarp();
  }
  // The gradient by v, and sums of X v.
  DEVICE void finish(const Params& p, const Work& w, int slice) const {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4 eight = *reinterpret_cast<const uint4*>(room(w) + (threadIdx.x % 32 / 4 + 8 * r) * ROOM_PITCH + threadIdx.x % 4 * 16);
      const u32 two[4] = {eight.x, eight.y, eight.z, eight.w};
      const f32 beta = w.token(BETA_ROW, step + 8 * r);
      DV* const to = HAS_DV ? at<DV>(p.dv, w.chunk.batch, w.chunk.start + step + 8 * r, w.head, column) : nullptr;
      f32 sum = 0.f;
#pragma unroll
      for (int c = 0; c < 8; c += DV_WIDTH) {
        Neighbours<DV, DV_WIDTH> some;
#pragma unroll
        for (int e = 0; e < DV_WIDTH; e++) {
          const int i = c + e;
          const f32 x = i % 2 == 0 ? low_bf16(two[i / 2]) : high_bf16(two[i / 2]);
          sum = __fmaf_rn(x, to_f32(v[r][i / STEP_WIDTH].v[i % STEP_WIDTH]), sum);
          assign(some.v[e], beta * x);
        }
        if (HAS_DV && step + 8 * r < w.chunk.rows) write_at_once(to + c * p.dv.stride[3], some);
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1), sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      f32* const total = w.piece_sum(w.part, step + 8 * r);
      if (threadIdx.x % 4 == 0) *total = slice == 0 ? sum : *total + sum;
    }
  }
  DEVICE static char* room(const Work& w) { return w.tile(ROOMS_AT + int(threadIdx.x) / 32 * ROOM_BYTES); }
};

// A slice in a stage, and what a warp has of it.
struct Slice {
  int index;
  const char* stage;
  Values values;
  FragmentA x[4];
};

// The products of a slice in two parts, for fewer registers: those of X, and of steps with each other, then those of what has decayed. The state's product
// with its gradient runs beside the first one, and v's gradient beside the other.
DEVICE void multiply_slice(const Params& p, const Work& w, Parts& parts, Pairs& pairs, const Slice& slice) {
  const char* const stage = slice.stage;
  FragmentA dy[4], d[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    load_matrices<false>(dy[k].v, stage + DY_AT + (lines_at() ^ k * 32));
#pragma unroll
    for (int i = 0; i < 4; i++) dy[k].v[i] = w.part == 0 ? dy[k].v[i] : slice.x[k].v[i];
  }
  products_fence();
  add_lines(parts.r, slice.x, stage + STATE_AT + w.part * TILE), add_lines(pairs.of, dy, stage + D_AT);
  products_commit();
  multiply_states(again(w), stage, slice.index);
  products_wait();
  pin(sums_of(parts.r).v), pin(sums_of(pairs.of).v);
  hold(slice.x, p.seqlen < 0, w.shared), hold(dy, p.seqlen < 0, w.shared);
  const int low = w.rows + row_of(0), high = w.rows + row_of(2);
#pragma unroll
  for (int k = 0; k < 4; k++) load_matrices<false>(dy[k].v, stage + DY_AT + (lines_at() ^ k * 32)), load_matrices<true>(d[k].v, stage + D_AT + columns_at() + k * 2048);
  scale_rows(dy, w.token(SINCE, low), w.token(SINCE, high)), scale_rows(d, w.token(UNTIL, low), w.token(UNTIL, high));
  products_fence();
  add_lines(parts.q, dy, stage + STATE_AT + w.part * TILE), add_lines(parts.w, d, stage + GRADIENT_AT + w.part * TILE);
  products_commit();
  slice.values.finish(p, again(w), slice.index);
  products_wait();
  pin(sums_of(parts.q).v), pin(sums_of(parts.w).v);
  hold(dy, p.seqlen < 0, w.shared), hold(d, p.seqlen < 0, w.shared);
}

// All slices of a head of values.
DEVICE void take_slices(const Params& p, const Work& all, int own, Parts& parts, Pairs& pairs) {
#pragma unroll 1
  for (int slice = 0; slice < SLICES; slice++) {
    const Work w = again(all);
    const int turn = own * SLICES + slice, next = turn + 1;
    char* const stage = stage_of(w, turn % 2);
    copy_async_wait();
    fence_async();
    barrier_wait(full_of(w, turn % 2), turn / 2 % 2);
    __syncthreads();
    if (next < GROUP * SLICES) load_slice(p, w, w.head - own + next / SLICES, next / SLICES % 2, next % SLICES, next % 2);
    Slice now = {slice, stage, Values(p, w, slice)};
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<true>(now.x[k].v, stage + X_AT + columns_at() + k * 2048);
    Values::put(w, now.x);
    if constexpr (NEEDS_KEYS) multiply_slice(p, w, parts, pairs, now); else now.values.finish(p, w, slice);
  }
  __syncthreads();
}

DEVICE char* pair_of(char* tile, int i, int j) { return tile + i * 128 + (j / 8 ^ i % 8) * 16 + j % 8 * 2; }

// Products of steps with their decays, by rows; m with beta of its rows, too.
DEVICE void store_pairs(const Work& all, Pairs& pairs) {
#pragma unroll
  for (int b = 0; b < ROW_BLOCKS; b++) {
    const Work w = again(all);
#pragma unroll
    for (int number = 0; number < 8; number += 2) {
      const int i = w.rows + row_of(number), j = 16 * b + column_of(number);
      f32 v[2];
#pragma unroll
      for (int e = 0; e < 2; e++) v[e] = i >= j + e ? exp_fast(w.token(SUM, i) - w.token(SUM, j + e)) * number_of(pairs.of[b], number + e) : 0.f;
      if (w.part == 0) {
        *reinterpret_cast<u32*>(pair_of(w.tile(A_AT), i, j)) = pack_bf16(v[0], v[1]);
      } else {
        const f32 beta = w.token(BETA_ROW, i);
        if (i == j) v[0] = 0.f;
        if (i == j + 1) v[1] = 0.f;
        *reinterpret_cast<u32*>(pair_of(w.tile(M_AT), i, j)) = pack_bf16(-v[0], -v[1]);
        *reinterpret_cast<u32*>(pair_of(w.tile(BETA_M_AT), i, j)) = pack_bf16(-beta * v[0], -beta * v[1]);
      }
    }
  }
  fence_async();
}

DEVICE void multiply_pairs(const Work& w, Parts& parts) {
  FragmentA of_a[4], of_m[4];
#pragma unroll
  for (int k = 0; k < 4; k++) load_matrices<true>(of_a[k].v, w.tile(A_AT) + columns_at() + k * 2048), load_matrices<true>(of_m[k].v, w.tile(BETA_M_AT) + columns_at() + k * 2048);
  const u64 a = operand(w.tile(A_AT)), m = operand(w.tile(M_AT)), keys = operand(w.tile(w.part * TILE)), queries = operand(w.tile(Q_AT + w.part * TILE));
  // the compiler orders by itself the instructions that it puts later, with a warning
  pin(sums_of(parts.q).v), pin(sums_of(parts.r).v), pin(sums_of(parts.w).v);
  products_fence();
#pragma unroll
  for (int k = 0; k < 4; k++) {
    multiply<true>(sums_of(parts.q), further(a, k * 32), further(keys, k * 2048), true), multiply<true>(sums_of(parts.r), further(m, k * 32), further(keys, k * 2048), true);
    multiply<true>(sums_of(parts.w), of_a[k], further(queries, k * 2048), true), multiply<true>(sums_of(parts.w), of_m[k], further(keys, k * 2048), true);
  }
  products_commit();
  products_wait();
  pin(sums_of(parts.q).v), pin(sums_of(parts.r).v), pin(sums_of(parts.w).v);
  hold(of_a, w.chunk.rows < 0, w.shared), hold(of_m, w.chunk.rows < 0, w.shared);
}

DEVICE const char* unit_at(const char* units, int row, int n) { return units + n / 64 * TILE + row * 128 + (n / 8 % 8 ^ row % 8) * 16 + n % 8 * 2; }

// Products of steps with themselves are among the others: both of their sums over channels have the same numbers of bf16, whose rounding cancels.
DEVICE float2 add_own_pairs(const Work&, Parts&) { return make_float2(0.f, 0.f); }

#include "backward_finish.cuh"

DEVICE void wait_for_walks() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE void begin(const Params& p, const Work& w, i64 units, i64 first) {
  if (threadIdx.x == 0) {
    barrier_init(full_of(w, 0), 1), barrier_init(full_of(w, 1), 1);
    barriers_are_ready();
    *reinterpret_cast<Fixed*>(w.tile(FIXED_AT)) = {w.chunk, w.index, w.key_head};
  }
#pragma unroll
  for (int of = 0; of < 2; of++) {
    const char* const from = static_cast<const char*>(of == 0 ? p.k_units : p.q_units) + units * SIZE;
    for (int i = threadIdx.x; i < SPAN * KEYS / 8; i += THREADS)
      copy_async_16(w.tile(of * Q_AT + i % 16 / 8 * TILE + i / 16 * 128 + (i % 8 ^ i / 16 % 8) * 16), from + i * 16);
  }
  __syncthreads();
  load_slice(p, w, first, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_backward_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  Work w;
  w.shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  w.index = blockIdx.x / p.key_heads, w.key_head = blockIdx.x % p.key_heads, w.chunk = chunk_at(p, w.index);
  const i64 first = w.key_head * GROUP, units = (w.index * p.key_heads + w.key_head) * SPAN * PADDED_KEYS;
  if (w.chunk.rows <= 0) {
    wait_for_walks();
    if constexpr (HAS_SUMS) clear_terms(p, w.index * p.heads + first);
    return;
  }
  w.rows = int(threadIdx.x) / 32 % ROW_WARPS * 16, w.part = int(threadIdx.x) / 128;
  wait_for_walks();
  begin(p, w, units, first);
  Totals totals = {};
  Parts parts = {};
#pragma unroll 1
  for (int own = 0; own < GROUP; own++) {
    w.head = first + own, w.unit = w.index * p.heads + w.head, w.turn = own % 2;
    Pairs pairs = {};
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) parts.r[b] = {};
    take_slices(p, w, own, parts, pairs);
    if constexpr (NEEDS_KEYS) finish_head(p, again(w), parts, pairs, totals, own == 0);
  }
  if constexpr (HAS_DQ || HAS_DK) finish_units(p, again(w), parts.q, parts.w);
}
