// From gradients by shares to those by scores: a block has a row, which it reads twice.

constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS) softmax_backward(const __grid_constant__ BackwardParams p) {
  __shared__ f32 of_warps[WARPS];
  f32* const gradients = p.gradients + i64(blockIdx.x) * p.pitch;
  const f32* const shares = p.shares + i64(blockIdx.x) * p.shares_pitch;
  f32 mean = 0.f;
  for (i64 i = threadIdx.x; i < p.columns; i += THREADS) mean += gradients[i] * shares[i];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) mean += __shfl_xor_sync(0xffffffffu, mean, offset);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mean;
  __syncthreads();
  mean = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) mean += of_warps[warp];
  for (i64 i = threadIdx.x; i < p.columns; i += THREADS) gradients[i] = shares[i] * (gradients[i] - mean) * p.scale;
}
