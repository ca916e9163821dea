// The state that a walker has in its registers, what it leaves at the end of a segment and what it begins one with.
#pragma once
#include "walk_layout.cuh"

static_assert(given<bool>(TWO_PHASE) && given_types<BEFORE, AFTER>());

// The state of a walker, transposed: this thread has columns `row` and row + 8 of the unit.
struct State {
  Sums<OWN_STATES> sums;
  const int part;   // which part of the states

  DEVICE explicit State(int part) : part(part) {
#pragma unroll
    for (int i = 0; i < OWN_STATES / 2; i++) sums.v[i] = 0.f;
  }
  // job(number, its place) for numbers that a tensor of states has
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
      if (one && 0 < rows) job(v[0], place[0]);
      if (two && 0 < rows) job(v[1], place[next]);
      if (one && 8 < rows) job(v[2], place[below]);
      if (two && 8 < rows) job(v[3], place[below + next]);
      place += 8 * next;
    }
  }
  template <typename E> DEVICE void read(const Params& p, StateRow row, int head, int column) {
    if (p.before.data == nullptr || (PACKED && !exists(p, row))) return;
    each_number<const E>(p, p.before, row, head, column, [&](f32& v, const E& from) { v = to_f32(from); });
  }
  template <typename E> DEVICE void write(const Params& p, StateRow row, int head, int column, f32 scale) {
    if (p.after.data == nullptr || (PACKED && !exists(p, row))) return;
    each_number<E>(p, p.after, row, head, column, [&](f32& v, E& to) { assign(to, v * scale); });
  }
  // The end of a segment, as its threads hold it.
  DEVICE float4* end(const Params& p, i64 place) const {
    return reinterpret_cast<float4*>(p.ends + (place * PARTS + part) * (COLUMNS * OWN_STATES)) + threadIdx.x % 128;
  }
  DEVICE void leave(const Params& p, const Work& w, int head, int tile, f32 scale) const {
    float4* const to = end(p, end_of(p, w, w.segment, head, tile));
#pragma unroll
    for (int i = 0; i < OWN_STATES / 8; i++) {
      const f32* const v = sums.v + 4 * i;
      to[i * 128] = make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
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
