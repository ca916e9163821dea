// Kernels for gradients of chunks share this: a chunk of a head of keys, whose heads of values are taken in turn, and what warps add up. Columns of values
// come in slices.
#pragma once
#include "backward_tiles.cuh"

static_assert(given_types<DY, DV>() && given<int>(SLICE, SHARED, STEP_WIDTH, DY_STEP_WIDTH, DV_WIDTH));
static_assert(given<bool>(HAS_DY, HAS_DV, HAS_DBETA, NEEDS_KEYS, DY_BY_TIME));

constexpr int WARPS = THREADS / 32, ROW_WARPS = ROW_BLOCKS, KEY_WARPS = WARPS / ROW_WARPS;
constexpr int OWN_BLOCKS = (KEY_BLOCKS + KEY_WARPS - 1) / KEY_WARPS;
constexpr int SLICES = PADDED_VALUES / SLICE, PIECE = 8, PIECES = SLICE / PIECE;
constexpr int KEY_PITCH = pitch_of(PADDED_KEYS), PAIR_PITCH = pitch_of(SPAN);
// Tiles: keys and queries, tokens of two heads, sums; then those of slices.
constexpr int TOKEN_BYTES = TOKEN_ROWS * SPAN * 4, ROW_SUMS = 7;   // of a step
constexpr int Q_AT = SPAN * KEY_PITCH, TOKENS_AT = 2 * Q_AT, SUMS_AT = TOKENS_AT + 2 * TOKEN_BYTES;
constexpr int PIECES_AT = SUMS_AT + ROW_SUMS * SPAN * KEY_WARPS * 4, SPARE_AT = PIECES_AT + PIECES * SPAN * 4;
constexpr int SLICES_AT = round_up(SPARE_AT + (2 * SPAN + WARPS) * 4, 16);

// A chunk of a head of values, and where its tiles are.
struct Work {
  char* shared;
  Chunk chunk;
  i64 index, key_head, head, unit;
  int rows, part;          // of this warp: its first row, and which part of the keys
  int turn;                // of heads, for tokens

  DEVICE char* tile(int at) const { return shared + at; }
  DEVICE f32 token(int row, int step) const { return reinterpret_cast<const f32*>(shared + TOKENS_AT + turn * TOKEN_BYTES)[row * SPAN + step]; }
  DEVICE int block(int b) const { return part + b * KEY_WARPS; }
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
};
// The rows of sums over channels; OWN_PAIR has products of steps with themselves.
constexpr int QUERY_DQ = 0, KEY_R = 1, KEY_WRITTEN = 2, KEY_END = 3, OWN_PAIR = 4, UNIT_Q = 5, UNIT_K = 6;

// A warp adds up rows of steps by keys, and by steps. Those of dq and dk may be sums over heads from the first one on; in f32, and with decays of channels, what
// a head adds stays APART from the totals: gradients by gates are small beside what the heads before it, and the chunk's end, have given.
constexpr bool APART = BY_CHANNEL || !PAIRED;
struct Totals { Square q[OWN_BLOCKS], k[OWN_BLOCKS]; };
struct Parts { Square q[OWN_BLOCKS], r[OWN_BLOCKS], w[OWN_BLOCKS]; };

// Adds rows that are to stay apart to their totals, and begins anew.
DEVICE void set_apart(Square (&rows)[OWN_BLOCKS], Square (&totals)[OWN_BLOCKS]) {
  if constexpr (APART) {
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++)
#pragma unroll
      for (int i = 0; i < 8; i++) number_of(totals[b], i) += number_of(rows[b], i), number_of(rows[b], i) = 0.f;
  }
}

DEVICE f32 multiply_words(u32 a, u32 b, f32 sum) {
  if constexpr (PAIRED) {
    const float2 x = unpack<MATH>(a), y = unpack<MATH>(b);
    return __fmaf_rn(x.x, y.x, __fmaf_rn(x.y, y.y, sum));
  }
  return __fmaf_rn(__uint_as_float(a), __uint_as_float(b), sum);
}
