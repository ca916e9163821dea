// Selective scan, backward. A block owns CHANNELS channels of one row (or packed sequence). LANES threads share a channel, and a thread has
// WIDTH channels: it owns the states lane, lane + LANES, .. of each. Time is walked in tiles of STEPS, and from saved state to saved state:
//
//   forwards  from a saved state through CHECKPOINT steps; every SPAN steps a thread leaves its states in shared memory
//   backwards through the same tiles, SPAN steps at a time: states and decays of one channel and state are computed again in registers, then
//             the gradient of the state is carried back over them
//
// Gradients of x, dt and z are sums over the states, thus over lanes; those of B and C are sums over the channels. Both are formed by exchange
// within a warp after each span, in a fixed order. What a block has for B and C is one term of a sum over blocks, and what it has
// for A, D and the bias is one of a sum over rows; they go to the workspace, and reduce.cu adds them.
//
// Per state and step: four instructions forwards, twelve backwards, two exponentials. Steps outside of a sequence get a step of zero, inputs
// and cotangents of zero, which leave a state and its gradient as they are.
#include "backward_ends.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_scan_backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];
  const Work w = Work::of<ENDS && !TWO_PHASE>(p);
  const Thread t(Block{p, w, shared, skips, biases});
  Owned a, g, da, b, c, db, dc;
  States s{a, g, da, b, c, db, dc};
  begin_states(t, s);
  if constexpr (PASS == Pass::Rest) take_over(t, s);
  read_channels(p, w, skips, biases);
  __syncthreads();

  f32 steps_in_all[WIDTH] = {};
  char* const summed = shared + SUMMED_AT + threadIdx.x / 32 * MAPS * SUMMED_BYTES;
  const int first_tile = int(w.start / STEPS), last_tile = w.start < w.end ? int((w.end - 1) / STEPS) : first_tile - 1;
  const i64 saved_count = (p.seqlen - 1) / CHECKPOINT;
  ChannelSums channel_sums = {};
  // the tile at hand and the one to be copied, and their stages, which are one if there is no other
  Walk walk(first_tile, last_tile), next = walk;
  char *raw = shared + STAGES_AT, *filled = raw + (STAGES - 1) * STAGE_BYTES;
  auto change_stages = [&]() { char* const done = raw; raw = filled, filled = done; };
  bool here = false;   // whether the tile at hand was copied: a round that finds none only copies it, so that there is one place for that
#pragma unroll 1
  while (!walk.done()) {
    copy_async_wait();
    __syncthreads();
    if (STAGES > 1 || !here) copy_next(p, w, next, filled);
    if (!here) {
      here = true;
      change_stages();
      continue;
    }
    const int tile = walk.tile;
    const i64 first_step = i64(tile) * STEPS;
    const bool back = walk.back(), rising = walk.rising, turn = rising && back, from_saved = rising && tile == walk.low;
    const Window<false> window{int(max(w.start - first_step, i64(0))), int(min(i64(STEPS), w.end - first_step))};
    const bool whole = window.low == 0 && window.high == STEPS && w.channels == CHANNELS;
    if (from_saved) restore_states(t, tile, first_step, saved_count);
    prepare_tile(t, raw, tile, window, whole, back);
    __syncthreads();
    if (EARLY && !back) copy_next(p, w, next, raw);
    if constexpr (ENDS) {
      carry(t, s, steps_in_all);
    } else {
      if (rising) forwards(t, s, tile, turn);
      if (back) {
        backwards(t, s, tile, summed);
        __syncthreads();
        finish_tile(t, raw, first_step, window, whole, channel_sums);
      }
    }
    here = STAGES > 1 || (EARLY && !back);
    walk.advance();
    change_stages();
  }

  finish_block(t, s, steps_in_all, channel_sums);
}
