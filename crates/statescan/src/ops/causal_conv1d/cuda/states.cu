// The states at the ends of sequences: the final states of the forward pass, or the gradients by the initial ones. A thread for each
// (row, sequence, channel); no more than a few steps of each sequence are read.
#include "window.cuh"

// Steps [start, end) of a row. A start at the other end of a long sequence is given too late: no one needs it.
struct Range { i64 batch, start, end; };

// The steps of a sequence; FIRST: of a row with runs, the first one, else the last.
template <bool FIRST> DEVICE Range range_of(const Conv& conv, i64 row, i64 sequence) {
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 i = number(conv, row);
    // in pieces the steps of those before it are inputs, too
    const i64 start = bound(conv, IN_PIECES ? i - i % conv.slots.pieces : i);
    return {0, start, max(start, bound(conv, i + 1))};
  }
  if constexpr (SEQUENCES == Sequences::Index) {
    // sequences in the direction of the convolution: numbers rise, or fall where it is reversed
    auto first_at_least = [&](i64 value) {
      i64 low = 0, high = conv.seqlen;
      while (low < high) {
        const i64 middle = (low + high) / 2, at_middle = index_of(conv, row, middle);
        if (REVERSE ? at_middle > value : at_middle < value) low = middle + 1; else high = middle;
      }
      return low;
    };
    if constexpr (NUMBERED) return {row, first_at_least(sequence), first_at_least(REVERSE ? sequence - 1 : sequence + 1)};
    i64 start = 0, end = conv.seqlen;
    if constexpr (FIRST) {
      while (start < conv.seqlen && index_of(conv, row, start) < 0) start++;
      end = start;
      while (end < conv.seqlen && end - start < WIDTH && index_of(conv, row, end) == index_of(conv, row, start)) end++;
    } else {
      while (end > 0 && index_of(conv, row, end - 1) < 0) end--;
      start = end;
      while (start > 0 && end - start < WIDTH && index_of(conv, row, start - 1) == index_of(conv, row, end - 1)) start--;
    }
    return {row, start, end};
  }
  return {row, 0, conv.seqlen};
}

// Inputs of a sequence by position, those before its first step included.
struct Inputs {
  const Conv& conv;
  Range range;
  StateRow before;
  i64 channel;

  DEVICE f32 at_step(i64 step) const {
    if (step >= range.start) return to_f32(*at<X>(conv.x, range.batch, channel, step));
    return before.row < 0 ? 0.f : to_f32(*at<INITIAL>(conv.initial, before.row, before.sequence, channel, PAST - (range.start - step)));
  }
};

// An element of what a sequence leaves.
DEVICE f32 last_input(const Inputs& inputs, i64 j) { return inputs.at_step(inputs.range.end - PAST + j); }

// An element of the gradient by what a sequence begins with; `after`: where its own last inputs have a cotangent.
DEVICE f32 by_initial(const StatesParams& p, const Inputs& inputs, StateRow after, i64 j) {
  const Conv& conv = p.conv;
  const Range& range = inputs.range;
  const i64 channel = inputs.channel;
  f32 sum = 0.f;
  for (i64 k = 0; k <= j && HAS_DY; k++) {
    const i64 step = range.start + j - k;
    if (step >= range.end) continue;
    f32 pre = HAS_BIAS ? to_f32(*at<BIAS>(conv.bias, channel)) : 0.f;
    for (int tap = 0; tap < WIDTH && SILU; tap++) pre = __fmaf_rn(to_f32(*at<WEIGHT>(conv.weight, channel, tap)), inputs.at_step(step - PAST + tap), pre);
    const f32 slope = SILU ? Gate(pre).slope : 1.f;
    sum = __fmaf_rn(to_f32(*at<WEIGHT>(conv.weight, channel, k)), slope * to_f32(*at<DY>(p.dy, range.batch, channel, step)), sum);
  }
  const i64 m = j - (range.end - range.start);
  if (HAS_LAST && m >= 0 && after.row >= 0) sum += to_f32(*at<LAST>(p.last, after.row, after.sequence, channel, m));
  return sum;
}

// Writes the states that the pieces of a sequence leave, by a thread that has them all, in their order.
DEVICE void leave_pieces(const StatesParams& p, const Inputs& of, i64 row, i64 sequence) {
  const Conv& conv = p.conv;
  const i64 first = number(conv, row);
  if (first % conv.slots.pieces != 0) return;
  // inputs before the sequence are read before a state of one of its pieces is written
  f32 kept[PAST > 0 ? PAST : 1];
#pragma unroll
  for (int j = 0; j < PAST; j++) kept[j] = of.at_step(of.range.start - PAST + j);
  // some pieces at a time: a piece's loads wait for one another
  constexpr int TOGETHER = 4;
  const i64 behind = first + conv.slots.pieces;
#pragma unroll 1
  for (i64 k = first; k < behind; k += TOGETHER) {
    i64 to[TOGETHER];
    f32 own[TOGETHER][PAST > 0 ? PAST : 1];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const i64 piece = number(conv, min(k + i, behind - 1)), end = range_of<false>(conv, piece, sequence).end;
      to[i] = k + i < behind ? row_written(conv.slots, piece) : -1;
#pragma unroll
      for (int j = 0; j < PAST; j++) {
        const i64 step = end - PAST + j, before = step + PAST - of.range.start;
        own[i][j] = 0.f;
#pragma unroll
        for (int n = 0; n < PAST; n++)
          if (before == n) own[i][j] = kept[n];
        if (to[i] >= 0 && step >= of.range.start) own[i][j] = to_f32(*at<X>(conv.x, of.range.batch, of.channel, step));
      }
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
#pragma unroll
      for (int j = 0; j < PAST; j++)
        if (to[i] >= 0) assign(*at<OUT>(p.out, to[i], sequence, of.channel, j), own[i][j]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv1d_states(const __grid_constant__ StatesParams p) {
  const Conv& conv = p.conv;
  const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= p.rows * p.sequences * conv.dim) return;
  const i64 channel = i % conv.dim, sequence = i / conv.dim % p.sequences, row = i / conv.dim / p.sequences;
  const Range range = range_of<GRADIENT>(conv, row, sequence);
  StateRow before = {row_read(conv.slots, row), sequence}, after = {row, sequence};
  if constexpr (SEQUENCES == Sequences::Index && !NUMBERED) {
    // a row without a step outside of the padding hands its state on; a long run has room for the states at both of its ends
    const i64 length = range.end - range.start;
    if (!GRADIENT && length > 0) before = length < PAST ? state_row<true>(conv, row, range.start) : StateRow{-1, 0};
    if (GRADIENT && length > 0) after = length < PAST ? state_row<false>(conv, row, range.end - 1) : StateRow{-1, 0};
  }
  if (!HAS_INITIAL) before.row = -1;
  const Inputs inputs = {conv, range, before, channel};
  if constexpr (IN_PIECES) return leave_pieces(p, inputs, row, sequence);
  const i64 to = GRADIENT ? row : row_written(conv.slots, row);
  if (to < 0) return;
  // all are read before one is written, since a pool may have what a short sequence leaves where it has what it begins with
  f32 own[PAST];
#pragma unroll
  for (int j = 0; j < PAST; j++) own[j] = GRADIENT ? by_initial(p, inputs, after, j) : last_input(inputs, j);
#pragma unroll
  for (int j = 0; j < PAST; j++) assign(*at<OUT>(p.out, to, sequence, channel, j), own[j]);
}
