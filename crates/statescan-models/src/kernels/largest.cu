// The position of the largest number of each row, the first one of equals, or -1 where it is infinite or one is NaN: a block has a row.

struct Best { f32 value; u32 at; };

// NaN is larger than any number
DEVICE Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.at < a.at) || (b.value != b.value && a.value == a.value) ? b : a;
}

DEVICE Best best_of_warp(Best best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, offset), __shfl_xor_sync(0xffffffffu, best.at, offset)});
  return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) largest(const __grid_constant__ Params p) {
  __shared__ Best of_warps[THREADS / 32];
  const f32* const x = p.x + i64(blockIdx.x) * p.pitch;
  wait_for_earlier();
  Best best = {x[0], 0};
  const u32 pieces = p.columns / PIECE;
#pragma unroll 8
  for (u32 i = threadIdx.x; i < pieces; i += THREADS) {
    const Neighbours<f32, PIECE> some = reinterpret_cast<const Neighbours<f32, PIECE>*>(x)[i];
#pragma unroll
    for (int k = 0; k < PIECE; k++) best = better(best, {some.v[k], i * PIECE + k});
  }
  for (u32 i = pieces * PIECE + threadIdx.x; i < p.columns; i += THREADS) best = better(best, {x[i], i});
  best = best_of_warp(best);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = best_of_warp(of_warps[threadIdx.x % (THREADS / 32)]);
    if (threadIdx.x == 0) p.at[blockIdx.x] = isfinite(best.value) ? i32(best.at) : -1;
  }
}
