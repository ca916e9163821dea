// Causal convolution, forward. A thread has ROUNDS pieces of one channel (or a few): it loads them and the steps before each, sums, applies
// the activation, stores. Bytes bind: each input once and each output once. So all pieces are under way before the first is used.
#include "window.cuh"

// steps before the piece, in whole vectors
constexpr int LEAD = BY_TIME ? round_up(PAST, X_VECTOR) : PAST;
constexpr int ALL = LEAD + STEPS;

// The last inputs of a row's channels. They are read once more, as few threads have them at hand and all would keep registers for them.
DEVICE void store_last(const ForwardParams& p, const Piece& piece) {
  const Conv& conv = p.conv;
  for (int c = 0; c < piece.channels; c++) {
    const i64 channel = piece.channel() + c;
#pragma unroll
    for (int j = 0; j < PAST; j++) {
      const i64 step = conv.seqlen - PAST + j;
      f32 input = 0.f;
      if (step >= 0) input = to_f32(*at<X>(conv.x, piece.batch, channel, step));
      else if (HAS_INITIAL) input = to_f32(*at<INITIAL>(conv.initial, piece.batch, 0, channel, PAST + step));
      assign(*at<LAST>(p.last, piece.batch, 0, channel, j), input);
    }
  }
}

template <bool WHOLE> DEVICE void convolve(const ForwardParams& p, const Filter& filter, const Piece& piece, f32 (&u)[CHANNELS][ALL]) {
  const Conv& conv = p.conv;
  f32 y[CHANNELS][STEPS];
  add_initial<LEAD>(u, conv, piece);
  const Marks<PAST + STEPS> marks(conv, piece.batch, piece.step() - PAST);
  auto visit = [&](int i, const f32 (&past)[CHANNELS][PAST]) {
    if (i < PAST) return;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      const f32 sum = filter.sum(c, past, u[c][LEAD - PAST + i]);
      y[c][i - PAST] = SILU ? silu(sum) : sum;
    }
  };
  if (PACKED && marks.starts)
    walk<PACKED, LEAD>(conv, piece, marks, u, visit);
  else
    walk<false, LEAD>(conv, piece, marks, u, visit);
#pragma unroll
  for (int i = 0; i < STEPS; i++)
    if (marks.is_padding(PAST + i))
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) y[c][i] = 0.f;
  if constexpr (WHOLE) store_whole<Y, Y_VECTOR>(p.y, piece, y); else store_part<Y>(p.y, piece, y);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) causal_conv1d_forward(const __grid_constant__ ForwardParams p) {
  // blocks that lie side by side in memory run one after the other
  const u32 fast = BY_TIME ? p.time_blocks : p.channel_blocks, block = blockIdx.x % fast, rest = blockIdx.x / fast;
  const u32 slow = BY_TIME ? p.channel_blocks : p.time_blocks;
  const u32 channel_block = BY_TIME ? rest % slow : block, time_block = BY_TIME ? block : rest % slow;
  // pieces of the same channels, one after the other in time
  auto piece_of = [&](int round) { return Piece(p.conv, rest / slow, channel_block, i64(time_block) * ROUNDS + round); };
  const Filter filter(p.conv, channel_block);
  // then those before it are whole, too
  if (is_whole<X_VECTOR>(piece_of(ROUNDS - 1), p.conv.seqlen)) {
    Stored<X, X_VECTOR, LEAD, ALL> stored[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) stored[round].load(p.conv.x, piece_of(round));
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
      f32 u[CHANNELS][ALL];
      stored[round].numbers(u);
      convolve<true>(p, filter, piece_of(round), u);
    }
  } else {
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
      const Piece piece = piece_of(round);
      if (piece.channels == 0) break;
      f32 u[CHANNELS][ALL];
      load<X, LEAD>(u, p.conv.x, piece);
      convolve<false>(p, filter, piece, u);
    }
  }
  if (HAS_LAST && time_block + 1 == p.time_blocks && time_lane() == 0) store_last(p, piece_of(0));
}
