// The cross entropy of each row of logits, -log softmax(x)[target], and its gradient times a number: a block has a row.

template <typename Join> DEVICE f32 over_block(f32 v, f32 (&of_warps)[THREADS / 32], Join join) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) v = join(v, __shfl_xor_sync(0xffffffffu, v, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = of_warps[0];
#pragma unroll
  for (int i = 1; i < THREADS / 32; i++) v = join(v, of_warps[i]);
  return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(const __grid_constant__ Params p) {
  __shared__ f32 of_warps[THREADS / 32];
  const i64 row = blockIdx.x;
  const f32* const x = p.logits + row * p.pitch;
  DX* const dx = static_cast<DX*>(p.gradient) + row * p.gradient_pitch;
  const i64 target = p.targets[row];
  f32 most = -__int_as_float(0x7f800000);
#pragma unroll 4
  for (u32 i = threadIdx.x; i < p.columns; i += THREADS) most = fmaxf(most, x[i]);
  most = over_block(most, of_warps, [](f32 a, f32 b) { return fmaxf(a, b); });
  f32 sum = 0.f;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < p.columns; i += THREADS) sum += __expf(x[i] - most);
  sum = over_block(sum, of_warps, [](f32 a, f32 b) { return a + b; });
  const f32 scale = p.scale / sum;
#pragma unroll 4
  for (u32 i = threadIdx.x; i < p.columns; i += THREADS) assign(dx[i], __expf(x[i] - most) * scale - (i == target ? p.scale : 0.f));
  // targets are not checked on the host: what is none has a loss that is no number
  if (threadIdx.x == 0) p.losses[row] = target < 0 || target >= p.columns ? __int_as_float(0x7fc00000) : logf(sum) - (x[target] - most);
}
