// The backward pass: sums of a span, by exchange among the threads of a warp: each step halves what a thread holds, as long as it can be halved
#pragma once
#include "backward_tiles.cuh"

// Threads of a warp: the lanes of a channel are neighbours, then come other channels. But if there are slots with the same order of states (see
// own_state), neighbours are two such channels, and then come the lanes. What a thread reads of B and C it shares with its neighbour then, and
// what it reads of its channel with its neighbour's neighbour, so that shared memory delivers 16 bytes a thread in half of the time.
constexpr int POWER = STATES % 16 == 0 ? 16 : STATES % 8 == 0 ? 8 : STATES % 4 == 0 ? 4 : STATES % 2 == 0 ? 2 : 1;
constexpr int EXCHANGED = POWER < WARP_SLOTS ? POWER : WARP_SLOTS;
constexpr bool PAIRED = WARP_SLOTS > EXCHANGED;
DEVICE int lane_of_thread() { return threadIdx.x / (PAIRED ? 2 : 1) % LANES; }
DEVICE int slot_of_thread() {
  const int t = threadIdx.x % 32;
  return PAIRED ? t % 2 * (WARP_SLOTS / 2) + t / (2 * LANES) : t / LANES;
}
// The bits of a thread's index in which those differ whose lanes, or slots, differ in the bit m.
constexpr DEVICE int lanes_apart(int m) { return PAIRED ? 2 * m : m; }
constexpr DEVICE int slots_apart(int m) { return !PAIRED ? m * LANES : m == WARP_SLOTS / 2 ? 1 : m * 2 * LANES; }

// Sums over the lanes of a channel, into the planes. Halves remain whole quads where long spans leave no registers for more cases.
constexpr int HALVED = SPAN == 8 ? 8 : 2;
DEVICE void sum_lanes(char* shared, f32 (&v)[SUMS * SPAN], int channel, int span) {
  const int lane = lane_of_thread();
  int first = 0, count = SUMS * SPAN;
  bool writes = true;
#pragma unroll
  for (int m = 1; m < LANES; m *= 2) {
    const bool upper = lane & m;
    if (count % HALVED == 0) {
      count /= 2;
#pragma unroll
      for (int i = 0; i < SUMS * SPAN / 2; i++) {
        if (i >= count) break;
        const f32 kept = upper ? v[count + i] : v[i], sent = upper ? v[i] : v[count + i];
        v[i] = kept + __shfl_xor_sync(~0u, sent, lanes_apart(m));
      }
      first += upper ? count : 0;
    } else {
#pragma unroll
      for (int i = 0; i < SUMS * SPAN; i++) {
        if (i >= count) break;
        v[i] += __shfl_xor_sync(~0u, v[i], lanes_apart(m));
      }
      writes = writes && !upper;
    }
  }
  // the inputs that the sums replace have been read
  __syncwarp();
  auto place = [&](int i) { return plane_quad(shared, FIRST_SUM + (first + i) / SPAN, channel, span * SPAN + (first + i) % SPAN); };
#pragma unroll
  for (int i = 0; i < SUMS * SPAN; i++) {
    if (i >= count || !writes) break;
    if (count % 4 == 0) {
      if (i % 4 == 0) *place(i) = quad_of(v + i);
    } else if (count % 2 == 0) {
      if (i % 2 == 0) *reinterpret_cast<float2*>(place(i)) = make_float2(v[i], v[i + 1]);
    } else {
      *reinterpret_cast<f32*>(place(i)) = v[i];
    }
  }
}

// A thread's registers hold the states in an order that differs from slot to slot, so that all of them send the same registers: register r is
// state r ^ (slot % EXCHANGED).
DEVICE int own_state(int r) { return (r ^ slot_of_thread() % EXCHANGED) * LANES + lane_of_thread(); }

template <typename F> DEVICE F exchange(F v, int slots);
template <> DEVICE f32 exchange(f32 v, int slots) { return __shfl_xor_sync(~0u, v, slots_apart(slots)); }
template <> DEVICE complex64 exchange(complex64 v, int slots) { return {exchange(v.re, slots), exchange(v.im, slots)}; }

// Once register r is complete: sums over pairs of slots, for the registers that are complete with it.
DEVICE void sum_slots(Field (&v)[STATES][SPAN], int r) {
#pragma unroll
  for (int m = 1; m < EXCHANGED; m *= 2) {
    if ((r & (2 * m - 1)) != 2 * m - 1) break;
    const int kept = r & ~(2 * m - 1);
#pragma unroll
    for (int j = 0; j < SPAN; j++) v[kept][j] = add(v[kept][j], exchange(v[kept | m][j], m));
  }
}

// The rest is summed over the slots, then goes to the warp's tile (state, part, step).
DEVICE void finish_slots(f32* summed, Field (&v)[STATES][SPAN], int span) {
#pragma unroll
  for (int r = 0; r < STATES; r += EXCHANGED) {
#pragma unroll
    for (int m = EXCHANGED; m < WARP_SLOTS; m *= 2)
#pragma unroll
      for (int j = 0; j < SPAN; j++) v[r][j] = add(v[r][j], exchange(v[r][j], m));
    if (slot_of_thread() >= EXCHANGED) continue;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int j = 0; j < SPAN; j += 4) {
        const Field* f = v[r] + j;
        *reinterpret_cast<float4*>(summed + (own_state(r) * PARTS + part) * LINE_PITCH + span * SPAN + j) =
            make_float4(part_of(f[0], part), part_of(f[1], part), part_of(f[2], part), part_of(f[3], part));
      }
  }
}
