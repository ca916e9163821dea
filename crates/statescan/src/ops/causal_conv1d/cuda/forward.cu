// Causal convolution, forward. A thread has ROUNDS pieces of one channel (or a few): it loads them and the steps before each, sums, applies
// the activation, stores. Bytes bind: each input once and each output once. So all pieces are under way before the first is used. Rows of 16-bit numbers
// that begin anywhere (RUNS) are read and written as `runs.cuh` does, by whole warps.
#include "runs.cuh"
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

// ALL inputs of a row that begins anywhere: of a piece that need not be whole, or has no channel.
template <typename E> struct StoredRun {
  Run<E, ALL> run;

  // whether the units of 16 bytes that have them are memory of the tensor
  static DEVICE bool has_units(const Conv& conv, const Piece& piece) {
    const Strided& v = conv.x;
    const i64 row = piece.batch * v.stride[0] + piece.channel() * v.stride[1], last = (conv.batch - 1) * v.stride[0] + (conv.dim - 1) * v.stride[1];
    const i64 before = row + piece.step() - LEAD, after = last + conv.seqlen - (before + ALL);
    return piece.channels == 0 || min(before, after) >= Run<E, ALL>::UNIT;
  }

  DEVICE void load(const Strided& v, const Piece& piece) {
    run = {};
    if (piece.channels > 0) run.read(piece.first<E, 2>(v, -LEAD));
    const int low = LEAD - piece.before, high = piece.after + LEAD;
#pragma unroll
    for (int i = 0; i < ALL; i++) run.v[i] = i >= low && i < high ? run.v[i] : E{};
  }

  DEVICE void numbers(f32 (&out)[CHANNELS][ALL]) const {
#pragma unroll
    for (int i = 0; i < ALL; i++) out[0][i] = to_f32(run.v[i]);
  }
};

// A piece's outputs in a row that begins anywhere.
template <typename E> DEVICE void store_run(const Strided& v, const Piece& piece, const f32 (&values)[CHANNELS][STEPS]) {
  constexpr int GROUP = TIME_LANES < 32 ? TIME_LANES : 32;
  Run<E, STEPS> run;
#pragma unroll
  for (int i = 0; i < STEPS; i += 2) assign2(run.v + i, values[0][i], values[0][i + 1]);
  run.template write<GROUP, false>(piece.first<E, 2>(v), time_lane() % GROUP, -piece.before, piece.channels > 0 ? piece.after : 0);
}

typedef Choose<RUNS, StoredRun<X>, Stored<X, X_VECTOR, LEAD, ALL>>::type Inputs;

// Whether all pieces of a thread, piece_of(round), are convolved at once.
template <typename Source, typename Pieces> DEVICE bool at_once(const Conv& conv, Pieces piece_of) {
  if constexpr (RUNS) {
    bool all = true;
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) all = all && Source::has_units(conv, piece_of(round));
    return __all_sync(~0u, all);
  } else {
    // pieces of the rounds before the last one are whole, too
    return is_whole<X_VECTOR>(piece_of(ROUNDS - 1), conv.seqlen);
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
  if constexpr (WHOLE && RUNS)
    store_run<Y>(p.y, piece, y);
  else if constexpr (WHOLE)
    store_whole<Y, Y_VECTOR>(p.y, piece, y);
  else
    store_part<Y>(p.y, piece, y);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) causal_conv1d_forward(const __grid_constant__ ForwardParams p) {
  // blocks that lie side by side in memory run one after the other
  const u32 fast = BY_TIME ? p.time_blocks : p.channel_blocks, block = blockIdx.x % fast, rest = blockIdx.x / fast;
  const u32 slow = BY_TIME ? p.channel_blocks : p.time_blocks;
  const u32 channel_block = BY_TIME ? rest % slow : block, time_block = BY_TIME ? block : rest % slow;
  // pieces of the same channels, one after the other in time
  auto piece_of = [&](int round) { return Piece(p.conv, rest / slow, channel_block, i64(time_block) * ROUNDS + round); };
  const Filter filter(p.conv, channel_block);
  if (at_once<Inputs>(p.conv, piece_of)) {
    Inputs stored[ROUNDS];
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
