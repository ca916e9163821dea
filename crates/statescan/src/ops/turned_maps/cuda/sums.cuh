// Sums over the lanes of a warp.
#pragma once

// Sums of COUNT numbers, a power of two, over the lanes of a warp: each 32 / COUNT neighbouring lanes get that of one of them, in order. Lanes
// exchange halves of what they have, so that eight numbers take nine exchanges, where each of them alone would take five.
template <int COUNT> DEVICE f32 sum_of_each(f32 (&v)[COUNT]) {
  int apart = 16;
#pragma unroll
  for (int half = COUNT / 2; half > 0; half /= 2, apart /= 2) {
    const bool is_upper = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < half; i++) {
      const f32 kept = is_upper ? v[i + half] : v[i], given = is_upper ? v[i] : v[i + half];
      v[i] = kept + __shfl_xor_sync(~0u, given, apart);
    }
  }
#pragma unroll
  for (apart = 16 / COUNT; apart > 0; apart /= 2) v[0] += __shfl_xor_sync(~0u, v[0], apart);
  return v[0];
}
