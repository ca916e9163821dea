// The kernels of the backward pass share this: chunks of steps, tiles of shared memory, and blocks of products out of them.
//
// A chunk has SPAN steps of a piece of time that is walked on its own (see inputs.cuh); steps behind the end of a piece are zeros with a decay of one.
// Where runs of steps begin anywhere in a row (HAS_RUNS) a chunk has parts of several: the state before it counts for its first one alone, and the one
// after it comes from its last. Tiles in the workspace are dense and padded: (chunk, head, ..).
#pragma once
#include "inputs.cuh"

static_assert(given_types<VALUE>() && given<int>(KEYS, VALUES, GROUP, SPAN, THREADS, LOADERS) && given<Math>(MATH));

typedef typename Blocks<MATH>::Element Element;
constexpr bool PAIRED = InPairs<MATH>::VALUE;
constexpr int SIZE = int(sizeof(Element)), PADDED_KEYS = round_up(KEYS > 0 ? KEYS : 1, 16), PADDED_VALUES = round_up(VALUES > 0 ? VALUES : 1, 16);
// heads of values that share one of keys, where there are any
constexpr int SHARING = GROUP > 0 ? GROUP : 1;
constexpr int ROW_BLOCKS = SPAN / 16, KEY_BLOCKS = PADDED_KEYS / 16;
// rows of what a chunk and head have for each step: running sums of logarithms within a run, decays since the chunk's begin and until its end (zero where
// another run lies between; of channels with decays of their own only whether), beta, and the number of the run within the chunk
constexpr int SUM = 0, SINCE = 1, UNTIL = 2, BETA_ROW = 3, RUN = 4, TOKEN_ROWS = 5;

DEVICE f32 exp_fast(f32 v) { return exp2_fast(LOG2_E * v); }
// The lowest logarithm of a decay: as a number it is zero.
constexpr f32 LOWEST = 200.f;

// ---- chunks

struct Chunk { i64 batch, start; int rows; };   // no rows: there is no such chunk

// The first chunk of the k-th sequence of a row.
DEVICE i64 first_chunk(const Params& p, i64 batch, i64 k) { return first_step(p, batch, k) / SPAN + k; }

DEVICE Chunk chunk_at(const Params& p, i64 index) {
  const i64 batch = u32(index) / u32(p.chunks_per_row), own = u32(index) % u32(p.chunks_per_row);
  i64 begin = 0, end = p.seqlen, first = 0;
  if constexpr (IS_BY_SEQUENCE) {
    i64 low = 0, high = p.sequence_count;
    while (high - low > 1) {
      const i64 middle = (low + high) / 2;
      if (first_chunk(p, batch, middle) <= own) low = middle; else high = middle;
    }
    begin = first_step(p, batch, low), end = first_step(p, batch, low + 1), first = begin / SPAN + low;
  }
  const i64 start = begin + (own - first) * SPAN;
  return {batch, start, int(max(min(end - start, i64(SPAN)), i64(0)))};
}

// ---- tiles: lines of so many numbers, some bytes apart that keep accesses free of bank conflicts

constexpr DEVICE int pitch_of(int numbers) { return numbers * SIZE + 16; }
DEVICE Element* number_at(char* tile, int pitch, int line, int i) { return reinterpret_cast<Element*>(tile + line * pitch) + i; }
DEVICE const Element* number_at(const char* tile, int pitch, int line, int i) { return reinterpret_cast<const Element*>(tile + line * pitch) + i; }

// Tiles are loaded by the last LOADERS threads of a block.
DEVICE int loader() { return int(threadIdx.x) - (THREADS - LOADERS); }

// Dense lines of the workspace on their way into a tile.
template <int LENGTH> DEVICE void copy_lines(char* to, const Element* from, int lines) {
  constexpr int PIECES = LENGTH * SIZE / 16;
  for (int i = loader(); i < lines * PIECES; i += LOADERS)
    copy_async_16(to + i / PIECES * pitch_of(LENGTH) + i % PIECES * 16, reinterpret_cast<const char*>(from) + i64(i) * 16);
}
DEVICE void copy_tokens(f32* to, const f32* from) {
  for (int i = loader(); i < TOKEN_ROWS * SPAN / 4; i += LOADERS) copy_async_16(to + 4 * i, from + 4 * i);
}

// LENGTH columns from `first` on of the steps of a chunk, out of a tensor (batch, step, head, column) of WIDTH columns, zeros where there is nothing.
// VECTOR neighbours are one access; BY_TIME: neighbouring threads lie along time.
template <typename E, int VECTOR, bool BY_TIME, int LENGTH, int WIDTH>
DEVICE void load_steps(char* to, const Strided& from, const Chunk& chunk, i64 head, int first) {
  constexpr int PIECES = LENGTH / VECTOR;
  const E* const base = at<E>(from, chunk.batch, chunk.start, head);
  for (int i = loader(); i < SPAN * PIECES; i += LOADERS) {
    const int step = BY_TIME ? i % SPAN : i / PIECES, column = (BY_TIME ? i / SPAN : i % PIECES) * VECTOR;
    Element* const own = number_at(to, pitch_of(LENGTH), step, column);
    const bool there = step < chunk.rows && first + column < WIDTH;
    const E* const source = base + (there ? step * from.stride[1] + (first + column) * from.stride[3] : 0);
    if constexpr (WIDTH > 0 && VECTOR * SIZE == 16 && Same<E, Element>::value) {
      copy_async_16_or_zero(own, source, there);
    } else {
      Neighbours<E, VECTOR> some = {};
      if (there) some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(source);
#pragma unroll
      for (int e = 0; e < VECTOR; e++) assign(own[e], to_f32(some.v[e]));
    }
  }
}

// ---- blocks of products out of tiles; depths have the order of sums (see blocks.cuh)

typedef typename Blocks<MATH>::A BlockA;
typedef typename Blocks<MATH>::B BlockB;

// The eight numbers of a block of A whose corner is at `corner`: lines are rows, or along the depth (DEPTH_IS_LINE).
template <int PITCH, bool DEPTH_IS_LINE> DEVICE void block_numbers(f32 (&v)[8], const char* corner) {
  const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  if constexpr (PAIRED) {
    FragmentA raw;
    load_a<PITCH, DEPTH_IS_LINE>(raw, corner);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 both = unpack<MATH>(raw.v[i]);
      v[2 * i] = both.x, v[2 * i + 1] = both.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = group + i / 2 % 2 * 8, depth = i / 4 * 8 + 2 * t + i % 2;
      v[i] = to_f32(*number_at(corner, PITCH, DEPTH_IS_LINE ? depth : row, DEPTH_IS_LINE ? row : depth));
    }
  }
}
template <int PITCH, bool DEPTH_IS_LINE, typename A = BlockA> DEVICE void block_a(A& a, const char* corner) {
  if constexpr (PAIRED) {
    load_a<PITCH, DEPTH_IS_LINE>(a.f, corner);
  } else {
    f32 v[8];
    block_numbers<PITCH, DEPTH_IS_LINE>(v, corner);
    set_block<MATH>(a, v);
  }
}
// Two neighbours of B, 16 columns: lines are columns, or along the depth.
template <int PITCH, bool DEPTH_IS_LINE, typename B = BlockB> DEVICE void blocks_b(B (&b)[2], const char* corner) {
  if constexpr (PAIRED) {
    FragmentB raw[2];
    load_b<PITCH, DEPTH_IS_LINE>(raw, corner);
    b[0].f = raw[0], b[1].f = raw[1];
  } else {
    const int group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      f32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = group + 8 * half, depth = i / 2 * 8 + 2 * t + i % 2;
        v[i] = to_f32(*number_at(corner, PITCH, DEPTH_IS_LINE ? depth : column, DEPTH_IS_LINE ? column : depth));
      }
      set_block<MATH, false>(b[half], v);
    }
  }
}
// 16 x 16 sums.
struct Square { FragmentC c[2]; };
DEVICE void add_product(Square& to, const BlockA& a, const BlockB (&b)[2]) {
  multiply_blocks<MATH>(to.c[0], a, b[0]), multiply_blocks<MATH>(to.c[1], a, b[1]);
}
// A number of sums by the order of a block of A: row group + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2.
DEVICE f32& number_of(Square& s, int i) { return s.c[i / 4].v[i % 4]; }
DEVICE int row_of(int i) { return int(threadIdx.x) % 32 / 4 + i / 2 % 2 * 8; }
DEVICE int column_of(int i) { return i / 4 * 8 + int(threadIdx.x) % 4 * 2 + i % 2; }

// Sums of two rows: of those of the threads that have numbers of them, and of pairs of such sums.
DEVICE float2 added_up(float2 sums) {
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) sums.x += __shfl_xor_sync(0xffffffffu, sums.x, apart), sums.y += __shfl_xor_sync(0xffffffffu, sums.y, apart);
  return sums;
}
DEVICE float2 sum_of(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
DEVICE float2 difference(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }

// job(number, row, column) for the eight of a thread
template <typename Job> DEVICE void each_number(Square& s, Job job) {
#pragma unroll
  for (int i = 0; i < 8; i++) job(number_of(s, i), row_of(i), column_of(i));
}
DEVICE void set_block(BlockA& to, Square& s) {
  f32 v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = number_of(s, i);
  ::set_block<MATH>(to, v);
}

// ---- blocks of 16 x 16 numbers in the workspace, as threads of a warp hold them: a line of 16 bytes for each

constexpr int BLOCK = 256;   // numbers of one
DEVICE void store_block(Element* to, Square& s) {
  const int lane = threadIdx.x % 32;
  if constexpr (PAIRED) {
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = pack<MATH>(number_of(s, 2 * i), number_of(s, 2 * i + 1));
    reinterpret_cast<uint4*>(to)[lane] = make_uint4(v[0], v[1], v[2], v[3]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const f32* const v = s.c[half].v;
      reinterpret_cast<float4*>(to)[32 * half + lane] = make_float4(v[0], v[1], v[2], v[3]);
    }
  }
}
