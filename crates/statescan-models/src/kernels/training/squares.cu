// The sums of squares of the parts of gradients that blocks have.

extern "C" __global__ void __launch_bounds__(THREADS) sum_of_squares(const __grid_constant__ Squares p) {
  __shared__ f32 of_warps[THREADS / 32];
  const Entry e = p.entries[p.owners[blockIdx.x]];
  const i64 begin = (blockIdx.x - e.first_block) * PART, end = min(e.count, begin + PART);
  f32 sum = 0.f;
#pragma unroll 8
  for (i64 i = begin + threadIdx.x; i < end; i += THREADS) sum = __fmaf_rn(e.gradient[i], e.gradient[i], sum);
  sum = sum_of_lanes<32>(sum);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 1; i < THREADS / 32; i++) sum += of_warps[i];
  p.terms[blockIdx.x] = sum;
}
