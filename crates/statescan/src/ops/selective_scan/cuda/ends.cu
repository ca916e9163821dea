// The ends of the segments of a slice are put together in the order of a walk: from the state before them to the state after them or, for a
// backward pass, from the gradient by the state after them to that by the state before them. A thread has one state of a channel.
#include "tiles.cuh"

static_assert(given<bool>(HAS_START, HAS_STATE, HAS_DECAY, BACKWARDS) && given_types<START, STATE, DECAY, A>());

extern "C" __global__ void __launch_bounds__(ENDS_THREADS) selective_scan_ends(const __grid_constant__ EndsParams p) {
  const i64 thread = i64(blockIdx.x) * ENDS_THREADS + threadIdx.x;
  if (thread >= p.segment_channels * DSTATE) return;
  const int n = int(thread % DSTATE);
  const i64 line = thread / DSTATE, row = line / p.dim, channel = line % p.dim;
  Field raw, state = {};
  convert(raw, *at<A>(p.a, channel, n));
  const Field a = Method::prepare(raw);
  if constexpr (HAS_START) state = state_of<START>(p, p.start, {row, 0, channel, n});
  f32 steps_in_all = 0.f;
#pragma unroll 4
  for (i64 i = 0; i < p.ended_segments; i++) {
    const i64 place = (BACKWARDS ? p.ended_segments - 1 - i : i) * p.segment_channels + line;
    const f32 steps = sums_of_steps(p, p.ends)[place];
    Field end;
    convert(end, p.ends[place * DSTATE + n]);
    state = mul_add(Method::decay(a, steps), state, end);
    steps_in_all += steps;
  }
  if constexpr (HAS_STATE) put_state<STATE>(p, p.state, {row, 0, channel, n}, state);
  if constexpr (HAS_DECAY) put_state<DECAY>(p, p.decay, {row, 0, channel, n}, Method::decay(a, steps_in_all));
}
