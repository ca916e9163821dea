// States at cuts of packed sequences. The walk goes over whole sequences and leaves what it has before the chunk that a cut lies in, or ends with; the steps
// from there up to the cut are added here, for 64 columns of a head, by products of warps that round what the walk's do. The last piece of a sequence has the
// sequence's own last state.
#include "walk_state.cuh"

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

// Steps up to the cut as a tile of 64 numbers each, as the copy engine would lay it out; zeros are behind the cut, and behind what there is of a step.
DEVICE void load_tile(char* tile, const Strided& from, const Cut& cut, i64 axis, int start, int width) {
  for (int i = threadIdx.x; i < SPAN * 8; i += COUNT) {
    const int t = i / 8, n = start + i % 8 * 8;
    char* const place = tile + t * 128 + (i % 8 ^ t % 8) * 16;
    const bf16* const row = at<bf16>(from, 0, cut.first + min(t, max(cut.steps - 1, 0)), axis, n);
    if (n + 8 <= width || t >= cut.steps)
      copy_async_16_or_zero(place, row, t < cut.steps);
    else
      for (int k = 0; k < 8; k++) reinterpret_cast<bf16*>(place)[k] = n + k < width ? row[k] : bf16{};
  }
}

// What steps count for at the cut.
struct Weights {
  Factors of[SPAN / 2];   // of two steps
  f32 all;                // what is left of the state before them

  // by a warp
  DEVICE void fill(const Params& p, const Cut& cut, int head) {
    const Head constants(p, head);
    const int lane = threadIdx.x % 32;
    f64 own[2];
    f32 weight[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      own[k] = 0., weight[k] = 0.f;
      if (2 * lane + k >= cut.steps) continue;
      const StepSizes d = step_sizes(p, constants, 0, head, cut.first + 2 * lane + k);
      own[k] = max(f64(d.decay) * constants.rate, NOTHING), weight[k] = d.weight;
    }
    const WarpSums sums(own[0] + own[1]);
    const f64 behind = sums.whole - sums.before - own[0];
    of[lane] = Factors(weight[0] * exp2_fast(f32(behind)), weight[1] * exp2_fast(f32(behind - own[1])));
    if (lane == 0) all = exp2_fast(f32(sums.whole));
  }
};

// Adds steps to the part of a state that a warp has.
DEVICE void add_steps(State& state, const char* x, const char* b, const Weights& weights, int steps) {
  const int lane = threadIdx.x % 32, line = lane % 16 * 128 + (lane / 16 ^ lane % 8) * 16, fragment = columns_at();
#pragma unroll
  for (int i = 0; i < OWN_STATES / 2; i++) state.sums.v[i] *= weights.all;
#pragma unroll 1
  for (int k = 0; 16 * k < steps; k++) {
    FragmentA xs;
    load_matrices<true>(xs.v, x + fragment + k * 16 * 128);
#pragma unroll
    for (int i = 0; i < 4; i++) xs.v[i] = weights.of[8 * k + i / 2 * 4 + lane % 4].times(xs.v[i]);
#pragma unroll
    for (int n = 0; n < OWN_STATES / 16; n++) {
      u32 v[4];
      load_matrices<true>(v, b + n / 4 * PANEL + k * 16 * 128 + (line ^ n % 4 * 32));
#pragma unroll
      for (int i = 0; i < 2; i++) multiply<bf16>(*reinterpret_cast<FragmentC*>(state.sums.v + 8 * n + 4 * i), xs, FragmentB{{v[2 * i], v[2 * i + 1]}});
    }
  }
}

// Into a slot, in pairs of neighbours where there are such: single numbers would take twice as many writes.
DEVICE void write(State& state, const Params& p, i64 slot, int head, int column) {
  if constexpr (sizeof(AFTER) != sizeof(f32)) {
    state.write<AFTER>(p, {slot, 0}, head, column, 1.f);
  } else {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
    AFTER* const place = state_at<AFTER>(p.after, {slot, 0}, head, column + row, state.part * OWN_STATES + 2 * (lane % 4));
    const bool is_whole = p.dstate == STATES && column + COLUMNS <= p.headdim;
    if (p.after.stride[4] != 1 || u64(place) % 8 != 0 || !is_whole) return state.write<AFTER>(p, {slot, 0}, head, column, 1.f);
#pragma unroll
    for (int i = 0; i < OWN_STATES / 2; i += 4) {
      const f32* const v = state.sums.v + i;
      *reinterpret_cast<float2*>(place + 2 * i) = make_float2(v[0], v[1]);
      *reinterpret_cast<float2*>(place + 8 * p.after.stride[3] + 2 * i) = make_float2(v[2], v[3]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(COUNT, PARTS == 1 ? 5 : 2) ssd_cuts(const __grid_constant__ Params p) {
  __shared__ __align__(1024) char x[PANEL], b[PANELS * PANEL];
  __shared__ Weights weights;
  const int head = int(blockIdx.x / p.column_tiles), tile = int(blockIdx.x % p.column_tiles), part = threadIdx.x / 128;
  const i64 count = p.cut_slots.rows * (p.pieces - 1);
#pragma unroll 1
  for (i64 number = blockIdx.y; number < count; number += gridDim.y) {
    const Cut cut(p, number);
    if (cut.slot < 0) continue;
    __syncthreads();
    load_tile(x, p.x, cut, head, tile * COLUMNS, int(p.headdim));
    for (int n = 0; n < PANELS; n++) load_tile(b + n * PANEL, p.b, cut, head / p.heads_per_group, 64 * n, int(p.dstate));
    copy_async_commit();
    State state(part);
    if (cut.is_empty)
      state.read<BEFORE>(p, source_of(p, {cut.sequence, 0}), head, tile * COLUMNS);
    else
      state.take_at(p, cut_of(p, int(cut.piece), head, tile));
    if (threadIdx.x < 32) weights.fill(p, cut, head);
    copy_async_wait();
    __syncthreads();
    add_steps(state, x, b + part * OWN_PANELS * PANEL, weights, cut.steps);
    write(state, p, cut.slot, head, tile * COLUMNS);
  }
}
