// Causal convolution, forward. A thread has ROUNDS pieces of one channel (or a few): it loads a piece and the steps before it, sums, applies
// the activation, stores. Bytes bind: each input once and each output once.

struct Params {
  Conv conv;
  Tensor y;            // (batch, channel, step)
  u32 channel_blocks, time_blocks;
};

// steps before the piece, in whole vectors
constexpr int LEAD = BY_TIME ? round_up(PAST, X_VECTOR) : PAST;

DEVICE void convolve(const Params& p, const Filter& filter, const Piece& piece) {
  const Conv& conv = p.conv;
  f32 u[CHANNELS][LEAD + STEPS], y[CHANNELS][STEPS];
  if (is_whole<X_VECTOR>(piece, conv.seqlen))
    load<true, X, X_VECTOR, LEAD>(u, conv.x, piece);
  else
    load<false, X, X_VECTOR, LEAD>(u, conv.x, piece);
  add_initial<LEAD>(u, conv, piece);
  const Marks<PAST + STEPS> marks(conv, piece.batch, piece.step - PAST);
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
  store<Y, Y_VECTOR>(p.y, piece, y);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) causal_conv1d_forward(const __grid_constant__ Params p) {
  // blocks that lie side by side in memory run one after the other
  const u32 fast = BY_TIME ? p.time_blocks : p.channel_blocks, block = blockIdx.x % fast, rest = blockIdx.x / fast;
  const u32 slow = BY_TIME ? p.channel_blocks : p.time_blocks;
  const u32 channel_block = BY_TIME ? rest % slow : block, time_block = BY_TIME ? block : rest % slow;
  Piece piece = piece_of(p.conv, rest / slow, channel_block, i64(time_block) * ROUNDS);
  if (piece.channels == 0) return;
  const Filter filter(p.conv, piece.channel, piece.channels);
#pragma unroll 1
  for (int round = 0; round < ROUNDS && piece.after > 0; round++) {
    convolve(p, filter, piece);
    piece.move_to(piece.step + TIME_LANES * STEPS, p.conv.seqlen);
  }
}
