// Selective scan, forward. A block owns CHANNELS channels of one row (or packed sequence) and walks its steps in tiles. Its threads have two
// roles, so that the exponential unit never waits for anything else. At the same time
//
//   helpers   finish tile t - 1: sums over the lanes in a fixed order, skip, gate, output; copy tile t + 2 into shared memory as it is stored;
//             prepare tile t + 1: x and dt become pairs (decay step, input) in f32, B and C become f32
//   scanners  scan tile t: LANES threads share a channel. Thread `lane` owns the states lane, lane + LANES, .. in registers
//
// Per state and step: a product and ex2 for the decay, a product for the input, a multiply-add for the state and one for the output. What
// shared memory delivers to registers is the other limit: a pair is 8 bytes for the states of a thread, B and C are 8 bytes a state, a
// thread's partial output 4 bytes each way; four steps travel at a time.
//
// Steps count from the start of the row, also in packed sequences, so that tiles are aligned in memory and saved states lie on a grid that
// does not depend on the sequences. Steps outside of a sequence get a step of zero and inputs of zero, which leave a state as it is.
#include "forward_scan.cuh"

extern "C" __global__ void __launch_bounds__(THREADS + SCANNERS, RESIDENT) selective_scan_forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];
  Work w = Work::of<PASS == Pass::Rest && !TWO_PHASE>(p);
#pragma unroll 1
  for (int i = threadIdx.x; i < w.channels; i += THREADS + SCANNERS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
  __syncthreads();
  // the first THREADS threads are the helpers, whose code asks for their number and index
  if (threadIdx.x < THREADS)
    do
      Helper(p, w, shared, Tiles(w), {skips, biases}).run();
    while (w.next_piece(p));
  else
    scan(p, w, shared);
}
