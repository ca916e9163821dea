// The sum of squares of the numbers of each block.

extern "C" __global__ void __launch_bounds__(THREADS) sum_of_squares(const __grid_constant__ Squares p) {
  __shared__ f32 of_warps[THREADS / 32];
  f32 sum = 0.f;
#pragma unroll 4
  for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i < p.count; i += i64(gridDim.x) * THREADS) sum = __fmaf_rn(p.x[i], p.x[i], sum);
  sum = sum_of_lanes<32>(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < THREADS / 32; i++) sum += of_warps[i];
  p.terms[blockIdx.x] = sum;
}
