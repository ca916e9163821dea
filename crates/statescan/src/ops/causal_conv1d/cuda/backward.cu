// Causal convolution, backward. With p[t] = dy[t] act'(sum[t]), where the sum is made again:
//
//   dx[t] = sum_k weight[k] p[t + PAST - k] (+ the cotangent of the final states)     dweight[k] = sum p[t] x[t - PAST + k]     dbias = sum p[t]
//
// A block has CHANNEL_LANES x CHANNELS channels and a range of (batch, block of steps), over which each thread sums the gradients of its
// filters; the sums of threads are added as a tree, those of blocks by a second launch (sums.cu), both in an order that the plan fixes.
#include "window.cuh"

constexpr int LEAD = BY_TIME ? round_up(PAST, X_VECTOR) : PAST;
// steps after the piece that it needs
constexpr int AFTER = HAS_DX ? PAST : 0;
// steps after the piece that are loaded, in whole vectors
constexpr int TAIL = !HAS_DX ? 0 : BY_TIME ? round_up(PAST, X_VECTOR > DY_VECTOR ? X_VECTOR : DY_VECTOR) : PAST;
constexpr int SUMS = WIDTH + 1;
constexpr bool HAS_SUMS = HAS_DWEIGHT || HAS_DBIAS;

// act'(sum)
DEVICE f32 slope(f32 sum) { return SILU ? Gate(sum).slope : 1.f; }

typedef Marks<PAST + STEPS + AFTER> Window;

// The inputs around a piece, and the cotangents from it on.
typedef f32 Around[CHANNELS][LEAD + STEPS + TAIL];
typedef f32 From[CHANNELS][STEPS + TAIL];

DEVICE void no_cotangents(From& dy) {
#pragma unroll
  for (int i = 0; i < CHANNELS * (STEPS + TAIL); i++) dy[i % CHANNELS][i / CHANNELS] = 0.f;
}

DEVICE void load_whole(const BackwardParams& p, const Piece& piece, Around& u, From& dy) {
  Stored<X, X_VECTOR, LEAD, LEAD + STEPS + TAIL> x_stored;
  Stored<DY, DY_VECTOR, 0, STEPS + TAIL> dy_stored;
  x_stored.load(p.conv.x, piece);
  if constexpr (HAS_DY) dy_stored.load(p.dy, piece);
  x_stored.numbers(u);
  if constexpr (HAS_DY) dy_stored.numbers(dy); else no_cotangents(dy);
}

DEVICE void load_part(const BackwardParams& p, const Piece& piece, Around& u, From& dy) {
  load<X, LEAD>(u, p.conv.x, piece);
  if constexpr (HAS_DY) load<DY, 0>(dy, p.dy, piece); else no_cotangents(dy);
}

// A thread works on these: its steps and channels, their weights, and where sequences begin.
struct Slice {
  const Piece& piece;
  const Filter& filter;
  const Window& marks;
};

template <bool MARKED>
DEVICE void forwards(const BackwardParams& p, const Slice& slice, const Around& u, f32 (&sums)[CHANNELS][SUMS], From& by_sum) {
  const Piece& piece = slice.piece;
  const Filter& filter = slice.filter;
  const Window& marks = slice.marks;
  // how many of the slice's own steps exist
  const int valid = min(piece.after, STEPS);
  walk<MARKED, LEAD>(p.conv, piece, marks, u, [&](int i, const f32 (&past)[CHANNELS][PAST]) {
    if (i < PAST) return;
    const int j = i - PAST;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      const f32 input = u[c][LEAD - PAST + i];
      f32& v = by_sum[c][j];
      v = marks.is_padding(i) ? 0.f : v * slope(filter.sum(c, past, input));
      if (HAS_SUMS && j < STEPS && j < valid) {
#pragma unroll
        for (int k = 0; k < PAST; k++) sums[c][k] = __fmaf_rn(v, past[c][k], sums[c][k]);
        sums[c][PAST] = __fmaf_rn(v, input, sums[c][PAST]);
        sums[c][WIDTH] += v;
      }
    }
  });
}

template <bool MARKED>
DEVICE void backwards(const BackwardParams& p, const Slice& slice, const From& by_sum, f32 (&dx)[CHANNELS][STEPS]) {
  const Piece& piece = slice.piece;
  const Filter& filter = slice.filter;
  const Window& marks = slice.marks;
  // cotangents that later steps of the sequence pass on, future[m] at step t + 1 + m, and those of the last inputs
  f32 future[CHANNELS][PAST] = {}, last[CHANNELS][PAST] = {};
#pragma unroll
  for (int j = STEPS + PAST - 1; j >= 0; j--) {
    const i64 step = piece.step() + j;
    if (MARKED && marks.ends_at(PAST + j) && step < p.conv.seqlen) {
      const StateRow none = {-1, 0};
      read_states<LAST>(last, p.last, HAS_LAST ? state_row<false>(p.conv, piece.batch, step) : none, piece);
#pragma unroll
      for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int m = 0; m < PAST; m++) future[c][m] = 0.f;
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      if (j < STEPS) {
        f32 sum = filter.weight[c][PAST] * by_sum[c][j];
#pragma unroll
        for (int m = 0; m < PAST; m++) sum = __fmaf_rn(filter.weight[c][PAST - 1 - m], future[c][m], sum);
        if (MARKED && HAS_LAST) sum += last[c][PAST - 1];
        dx[c][j] = marks.is_padding(PAST + j) ? 0.f : sum;
      }
#pragma unroll
      for (int m = PAST - 1; m > 0; m--) future[c][m] = future[c][m - 1], last[c][m] = last[c][m - 1];
      future[c][0] = by_sum[c][j], last[c][0] = 0.f;
    }
  }
  // the cotangents of a whole row's last inputs, where it ends
  if (HAS_LAST && !PACKED && piece.after < STEPS + PAST) {
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
      const int m = j + PAST - piece.after;
#pragma unroll
      for (int c = 0; c < CHANNELS; c++)
        if (m >= 0 && m < PAST && c < piece.channels) dx[c][j] += to_f32(*at<LAST>(p.last, piece.batch, 0, piece.channel() + c, m));
    }
  }
}

// Adds the sums of the threads of a channel and writes them.
DEVICE void finish(const BackwardParams& p, i64 channel_block, u32 split, f32 (&sums)[CHANNELS][SUMS]) {
  __shared__ f32 all[CHANNELS * SUMS][THREADS];
  constexpr int NEXT = BY_TIME ? 1 : CHANNEL_LANES;
  const int thread = threadIdx.x;
#pragma unroll
  for (int c = 0; c < CHANNELS; c++)
#pragma unroll
    for (int k = 0; k < SUMS; k++) all[c * SUMS + k][thread] = sums[c][k];
#pragma unroll
  for (int half = TIME_LANES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (time_lane() < half)
#pragma unroll
      for (int i = 0; i < CHANNELS * SUMS; i++) all[i][thread] += all[i][thread + half * NEXT];
  }
  const i64 channel = channel_block * (CHANNEL_LANES * CHANNELS) + own_channel();
  if (time_lane() > 0) return;
  for (int c = 0; c < CHANNELS && channel + c < p.conv.dim; c++) {
    for (int k = 0; k < SUMS; k++) {
      const f32 sum = all[c * SUMS + k][thread];
      if (p.splits > 1) {
        p.partial[(i64(split) * p.conv.dim + channel + c) * SUMS + k] = sum;
      } else if (k < WIDTH) {
        if (HAS_DWEIGHT) assign(*at<DWEIGHT>(p.dweight, channel + c, k), sum);
      } else if (HAS_DBIAS) {
        assign(*at<DBIAS>(p.dbias, channel + c), sum);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) causal_conv1d_backward(const __grid_constant__ BackwardParams p) {
  const u32 channel_block = blockIdx.x % p.channel_blocks, split = blockIdx.x / p.channel_blocks;
  const u32 end = u32(u64(split + 1) * p.items / p.splits), start = u32(u64(split) * p.items / p.splits);
  f32 sums[CHANNELS][SUMS] = {};
  const Filter filter(p.conv, channel_block);
  u32 row = start / p.time_blocks, time_block = start % p.time_blocks;
#pragma unroll 1
  for (u32 item = start; item < end; item++) {
    const Piece piece(p.conv, row, channel_block, time_block);
    if (++time_block == p.time_blocks) time_block = 0, row++;
    if (piece.channels == 0) continue;
    Around u;
    From by_sum;
    f32 dx[CHANNELS][STEPS];
    const bool whole = is_whole<(X_VECTOR > DY_VECTOR ? X_VECTOR : DY_VECTOR)>(piece, p.conv.seqlen);
    if (whole) load_whole(p, piece, u, by_sum); else load_part(p, piece, u, by_sum);
    add_initial<LEAD>(u, p.conv, piece);
    const Window marks(p.conv, piece.batch, piece.step() - PAST);
    const Slice slice = {piece, filter, marks};
    if (PACKED && marks.starts) {
      forwards<PACKED>(p, slice, u, sums, by_sum);
      if constexpr (HAS_DX) backwards<PACKED>(p, slice, by_sum, dx);
    } else {
      forwards<false>(p, slice, u, sums, by_sum);
      if constexpr (HAS_DX) backwards<false>(p, slice, by_sum, dx);
    }
    if constexpr (HAS_DX) {
      if (whole) store_whole<DX, DX_VECTOR>(p.dx, piece, dx); else store_part<DX>(p.dx, piece, dx);
    }
  }
  if constexpr (HAS_SUMS) finish(p, channel_block, split, sums);
}
