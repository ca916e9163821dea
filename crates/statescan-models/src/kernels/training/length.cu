// The factor that makes numbers no longer than they may be, from their sums of squares: one block.

extern "C" __global__ void __launch_bounds__(THREADS) clip_factor(const __grid_constant__ Length p) {
  __shared__ f64 of_warps[THREADS / 32];
  f64 sum = 0.;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < p.count; i += THREADS) sum += f64(p.terms[i]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < THREADS / 32; i++) sum += of_warps[i];
  const f64 length = sqrt(sum);
  *p.factor = length > f64(p.max_grad_norm) ? f32(f64(p.max_grad_norm) / length) : 1.f;
}
