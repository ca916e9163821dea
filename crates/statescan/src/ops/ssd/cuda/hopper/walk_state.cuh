// The state that a walker has in its registers, what it leaves at the end of a segment and what it begins one with.
#pragma once
#include "walk_layout.cuh"

static_assert(given<bool>(TWO_PHASE) && given_types<BEFORE, AFTER>());

// The state of a walker, transposed: this thread has columns `row` and row + 8 of the unit.
// Four numbers of a state. Where they are widened, a call keeps the compiler from having all of a thread's under way at once, for which there are no
// registers: it would spill in the loop over time.
template <typename E> __device__ __noinline__ float4 read_four(const E* place, i64 next, i64 below, int which) {
  f32 v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = which >> i & 1 ? to_f32(place[(i & 1 ? next : 0) + (i & 2 ? below : 0)]) : 0.f;
  return make_float4(v[0], v[1], v[2], v[3]);
}

struct State {
  Sums<OWN_STATES> sums;
  const int part;   // which part of the states

  DEVICE explicit State(int part) : part(part) {
#pragma unroll
    for (int i = 0; i < OWN_STATES / 2; i++) sums.v[i] = 0.f;
  }
  // job(four numbers, the first one's place, how far the next state and the eighth next column are, which of them a tensor of states has)
  template <typename E, typename S, typename Job> DEVICE void each_number(const Params& p, const S& states, StateRow at, int head, int column, Job job) {
    const int lane = int(lane_here()), row = threadIdx.x % 128 / 32 * 16 + lane / 4, first = part * OWN_STATES + 2 * (lane % 4);
    // places are reached step by step: offsets of 64 bits for each would be most of the kernel's code
    E* place = state_at<E>(states, at, head, column + row, first);
    const i64 next = states.stride[4];
    const i64 below = 8 * states.stride[3];
    const int left = int(p.dstate) - first, rows = int(p.headdim) - column - row;
#pragma unroll
    for (int i = 0; i < OWN_STATES / 2; i += 4) {
      f32* const v = sums.v + i;
      const bool one = 2 * i < left, two = 2 * i + 1 < left;
      job(v, place, next, below, int(one && 0 < rows) + 2 * int(two && 0 < rows) + 4 * int(one && 8 < rows) + 8 * int(two && 8 < rows));
      place += 8 * next;
    }
  }
  template <typename E> DEVICE void read(const Params& p, StateRow row, int head, int column) {
    if (p.before.data == nullptr || ((PACKED || POOLED) && !exists(p, row))) return;
    // a number of half the width is zero before it is widened: a zero beside it would take registers that there are not
    each_number<const E>(p, p.before, row, head, column, [&](f32* v, const E* place, i64 next, i64 below, int which) {
      if constexpr (sizeof(E) < 4) {
        const float4 four = read_four(place, next, below, which);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (which >> i & 1) v[i] = to_f32(place[(i & 1 ? next : 0) + (i & 2 ? below : 0)]);
      }
    });
  }
  template <typename E> DEVICE void write(const Params& p, StateRow row, int head, int column, f32 scale) {
    if (p.after.data == nullptr || ((PACKED || POOLED) && !exists(p, row))) return;
    each_number<E>(p, p.after, row, head, column, [&](f32* v, E* place, i64 next, i64 below, int which) {
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (which >> i & 1) assign(place[(i & 1 ? next : 0) + (i & 2 ? below : 0)], v[i] * scale);
    });
  }
  // The end of a segment, as its threads hold it.
  DEVICE float4* end(const Params& p, i64 place) const {
    return reinterpret_cast<float4*>(p.ends + (place * PARTS + part) * (COLUMNS * OWN_STATES)) + threadIdx.x % 128;
  }
  DEVICE void leave(const Params& p, const Work& w, int head, int tile, f32 scale) const { leave_at(p, end_of(p, w, w.segment, head, tile), scale); }
  DEVICE void leave_at(const Params& p, i64 place, f32 scale) const {
    float4* const to = end(p, place);
#pragma unroll
    for (int i = 0; i < OWN_STATES / 8; i++) {
      const f32* const v = sums.v + 4 * i;
      to[i * 128] = make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    }
  }
  // The state that a row in segments begins with, apart from the pool: the last segment writes there while the first one reads.
  DEVICE void keep(const Params& p, const Work& w, int head, int tile) const { leave_at(p, end_of(p, w, int(p.segments), head, tile), 1.f); }
  DEVICE void take(const Params& p, const Work& w, int head, int tile) { take_at(p, end_of(p, w, int(p.segments), head, tile)); }
  DEVICE void take_at(const Params& p, i64 place) {
    const float4* const from = end(p, place);
#pragma unroll
    for (int i = 0; i < OWN_STATES / 8; i++) {
      f32* const v = sums.v + 4 * i;
      const float4 some = from[i * 128];
      v[0] = some.x, v[1] = some.y, v[2] = some.z, v[3] = some.w;
    }
  }
  // The state after all segments before this one.
  DEVICE void enter(const Params& p, const Work& w, int head, int tile) {
#pragma unroll 1
    for (int before = 0; before < w.segment; before++) {
      const i64 place = end_of(p, w, before, head, tile);
      const float4* const from = end(p, place);
      // the first segment has begun with the state before it, but for a walk in two phases
      const f32 decay = !TWO_PHASE && before == 0 ? 0.f : p.decays[place];
#pragma unroll
      for (int i = 0; i < OWN_STATES / 8; i++) {
        f32* const v = sums.v + 4 * i;
        const float4 some = from[i * 128];
        v[0] = __fmaf_rn(v[0], decay, some.x), v[1] = __fmaf_rn(v[1], decay, some.y);
        v[2] = __fmaf_rn(v[2], decay, some.z), v[3] = __fmaf_rn(v[3], decay, some.w);
      }
    }
  }
};

// The unit of a walker. A block that has only one unit knows it when the kernel is compiled.
DEVICE int unit_of(int worker) { return UNITS == 1 ? 0 : worker / PARTS; }
