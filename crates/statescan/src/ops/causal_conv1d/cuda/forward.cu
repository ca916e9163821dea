// Causal convolution, forward. Each thread has one piece: it loads the piece and the steps before it, sums, applies the activation, stores.
// Bytes bind: each input once and each output once.

struct Params {
  Conv conv;
  Tensor y;            // (batch, channel, step)
  u32 channel_blocks, time_blocks;
};

// steps before the piece, in whole vectors
constexpr int LEAD = BY_TIME ? round_up(PAST, X_VECTOR) : PAST;

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv1d_forward(const __grid_constant__ Params p) {
  const Conv& conv = p.conv;
  // blocks that lie side by side in memory run one after the other
  const u32 fast = BY_TIME ? p.time_blocks : p.channel_blocks, block = blockIdx.x % fast, rest = blockIdx.x / fast;
  const u32 slow = BY_TIME ? p.channel_blocks : p.time_blocks;
  const Piece piece = piece_of(conv, rest / slow, BY_TIME ? rest % slow : block, BY_TIME ? block : rest % slow);
  if (piece.channels == 0) return;

  f32 u[CHANNELS][LEAD + STEPS], y[CHANNELS][STEPS];
  load<X, X_VECTOR>(u, conv.x, piece, piece.step - LEAD, conv.seqlen);
  const Filter filter(conv, piece.channel, piece.channels);
  const i64 first = piece.step - PAST;
  const Marks<PAST + STEPS> marks(conv, piece.batch, first);
  auto visit = [&](int i, const f32 (&past)[CHANNELS][PAST]) {
    if (i < PAST) return;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      const f32 sum = filter.sum(c, past, u[c][LEAD - PAST + i]);
      y[c][i - PAST] = SILU ? silu(sum) : sum;
    }
  };
  if (marks.starts)
    walk<true, LEAD - PAST>(conv, piece, first, marks, u, visit);
  else
    walk<false, LEAD - PAST>(conv, piece, first, marks, u, visit);
#pragma unroll
  for (int i = 0; i < STEPS; i++)
    if (marks.is_padding(PAST + i))
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) y[c][i] = 0.f;
  store<Y, Y_VECTOR>(p.y, piece, y, conv.seqlen);
}
