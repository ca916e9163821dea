// Finds the packed sequences of a row, a block for each row of the batch: first where they begin, then what all before each one have.
#include "packed.cuh"

constexpr int STEPS = 4;   // a thread looks at so many steps together

// The sum of the threads' numbers before this one; `all` grows by the sum of all.
DEVICE int sum_before(int number, int (&of_warps)[THREADS / 32], int& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int with = number;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const int other = __shfl_up_sync(~0u, with, far);
    if (lane >= far) with += other;
  }
  if (lane == 31) of_warps[warp] = with;
  __syncthreads();
  int before = all + with - number;
  for (int i = 0; i < THREADS / 32; i++) {
    if (i < warp) before += of_warps[i];
    all += of_warps[i];
  }
  __syncthreads();
  return before;
}

extern "C" __global__ void __launch_bounds__(THREADS) ssd_sequences(const __grid_constant__ Params p) {
  __shared__ int of_warps[THREADS / 32];
  const int batch = blockIdx.x, seqlen = int(p.seqlen), capacity = int(p.packed.capacity), of_segment = int(p.segment_steps);
  Sequence* const all = sequences_of(p.packed, batch);
  int count = 0;
#pragma unroll 1
  for (int first = 0; first < seqlen; first += STEPS * THREADS) {
    const int t = first + STEPS * threadIdx.x;
    bool starts[STEPS];
    int own = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) starts[i] = t + i < seqlen && begins(p, batch, t + i), own += starts[i];
    int at = sum_before(own, of_warps, count);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
      if (starts[i] && at++ < capacity) all[at - 1].first = t + i;
  }
  count = min(count, capacity);
  if (threadIdx.x == 0) all[count].first = seqlen, *count_of(p.packed, batch) = count;
  __syncthreads();
  int chunks = 0, segments = 0, slots = 0;
#pragma unroll 1
  for (int first = 0; first <= count; first += THREADS) {
    const int k = first + threadIdx.x, steps = k < count ? all[k + 1].first - all[k].first : 0;
    const int own_chunks = (steps + SPAN - 1) / SPAN, own_segments = (steps + of_segment - 1) / of_segment;
    // states that are not of sequences by number are those of the first one and the last one
    const bool has_states = SEQUENCES == Sequences::Bounds || NUMBERED || k == 0 || k + 1 == count;
    const int own_slots = own_chunks > 1 || has_states ? (own_chunks + SLOT_CHUNKS - 1) / SLOT_CHUNKS : 0;
    Sequence own;
    own.chunks = sum_before(own_chunks, of_warps, chunks);
    own.segments = sum_before(own_segments, of_warps, segments);
    const int slot = sum_before(own_slots, of_warps, slots);
    own.slot = own_slots == 0 || slot + own_slots > p.packed.slots ? -1 : slot;
    if (k > count) continue;
    // its first step is there, and others read it
    all[k].chunks = own.chunks, all[k].segments = own.segments, all[k].slot = own.slot;
  }
}
