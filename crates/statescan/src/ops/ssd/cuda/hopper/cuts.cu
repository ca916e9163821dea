// States at cuts of packed sequences. The walk goes over whole sequences and leaves what it has before the chunk that a cut lies in, or ends with; the steps
// from there up to the cut are added here, for 64 columns of a head, in f32. The last piece of a sequence has the sequence's own last state.
#include "walk_state.cuh"

static_assert(STATES % 8 == 0 && COLUMNS % 8 == 0, "rows are read in units of 16 bytes");

constexpr int COUNT = 128 * PARTS;

// A cut's sequence, and the steps from the chunk that its state was left before.
struct Cut {
  i64 sequence, piece, slot, first;
  int steps;
  bool is_empty;

  DEVICE Cut(const Params& p, i64 number) : sequence(number / (p.pieces - 1)), piece(sequence * p.pieces + number % (p.pieces - 1)) {
    const Slots& s = p.cut_slots;
    slot = slot_at<WRITE_SLOT>(s, s.write, sequence, sequence * s.write_step + piece % p.pieces * s.piece_step);
    auto within = [&](i64 t, i64 low) { return max(low, min(t, p.seqlen)); };
    const i64 begin = within(bound(p, sequence), 0), end = within(bound(p, sequence + 1), begin);
    const i64 cut = min(within(i64(*at<INDEX>(p.cuts, piece + 1)), begin), end);
    is_empty = begin == end;
    first = cut > begin ? begin + (cut - 1 - begin) / SPAN * SPAN : begin, steps = int(cut - first);
  }
};

// Rows of steps, of so many numbers, zero behind them.
template <int WIDTH> DEVICE void load_rows(bf16 (&to)[SPAN][WIDTH], const Strided& from, const Cut& cut, i64 axis, i64 start, i64 width) {
  for (int i = threadIdx.x; i < cut.steps * (WIDTH / 8); i += COUNT) {
    const int t = i / (WIDTH / 8), n = i % (WIDTH / 8) * 8;
    const bf16* const row = at<bf16>(from, 0, cut.first + t, axis, start + n);
    if (start + n + 8 <= width) {
      *reinterpret_cast<uint4*>(&to[t][n]) = *reinterpret_cast<const uint4*>(row);
    } else {
      for (int k = 0; k < 8; k++) to[t][n + k] = start + n + k < width ? row[k] : bf16{};
    }
  }
}

// The logarithms of a sequence's decays at steps up to the cut, and their sums behind each one.
struct Factors64 {
  f64 own[SPAN];
  f32 factor[SPAN], all;

  DEVICE void fill(const Params& p, const Cut& cut, int head) {
    const Head constants(p, head);
    const int t = threadIdx.x;
    StepSizes d = {};
    if (t < cut.steps) d = step_sizes(p, constants, 0, head, cut.first + t), own[t] = max(f64(d.decay) * constants.rate, NOTHING);
    __syncthreads();
    f64 sum = 0.;
    for (int u = t + 1; u < cut.steps; u++) sum += own[u];
    if (t < cut.steps) factor[t] = d.weight * exp2_fast(f32(sum));
    if (t == 0) all = exp2_fast(f32(cut.steps > 0 ? sum + own[0] : 0.));
  }
};

extern "C" __global__ void __launch_bounds__(COUNT) ssd_cuts(const __grid_constant__ Params p) {
  __shared__ __align__(16) bf16 x[SPAN][COLUMNS], b[SPAN][STATES];
  __shared__ Factors64 factors;
  const int head = int(blockIdx.x / p.column_tiles), tile = int(blockIdx.x % p.column_tiles), part = threadIdx.x / 128;
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, pair = part * OWN_STATES + 2 * (threadIdx.x % 4);
  const i64 count = p.cut_slots.rows * (p.pieces - 1);
#pragma unroll 1
  for (i64 number = blockIdx.y; number < count; number += gridDim.y) {
    const Cut cut(p, number);
    if (cut.slot < 0) continue;
    __syncthreads();
    load_rows(x, p.x, cut, head, i64(tile) * COLUMNS, p.headdim);
    load_rows(b, p.b, cut, head / p.heads_per_group, 0, p.dstate);
    factors.fill(p, cut, head);
    State state(part);
    if (cut.is_empty)
      state.read<BEFORE>(p, source_of(p, {cut.sequence, 0}), head, tile * COLUMNS);
    else
      state.take_at(p, cut_of(p, int(cut.piece), head, tile));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < OWN_STATES / 2; i++) state.sums.v[i] *= factors.all;
#pragma unroll 1
    for (int t = 0; t < cut.steps; t++) {
      const f32 factor = factors.factor[t], one = to_f32(x[t][row]) * factor, other = to_f32(x[t][row + 8]) * factor;
#pragma unroll
      for (int i = 0; i < OWN_STATES / 2; i += 4) {
        const u32 both = *reinterpret_cast<const u32*>(&b[t][pair + 2 * i]);
        f32* const v = state.sums.v + i;
        v[0] = __fmaf_rn(one, low_bf16(both), v[0]), v[1] = __fmaf_rn(one, high_bf16(both), v[1]);
        v[2] = __fmaf_rn(other, low_bf16(both), v[2]), v[3] = __fmaf_rn(other, high_bf16(both), v[3]);
      }
    }
    state.write<AFTER>(p, {cut.slot, 0}, head, tile * COLUMNS, 1.f);
  }
}
