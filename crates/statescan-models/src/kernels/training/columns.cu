// Sums over rows, for each column. A block has 32 columns of a slice of the rows, and leaves one term of each sum.

extern "C" __global__ void __launch_bounds__(THREADS) column_sums(const __grid_constant__ Params p) {
  __shared__ f32 sums[THREADS / 32][32];
  const i64 column = i64(blockIdx.x) * 32 + threadIdx.x % 32, slice = blockIdx.y;
  const i64 end = p.rows * (slice + 1) / p.slices;
  f32 sum = 0.f;
  if (column < p.columns) {
#pragma unroll 4
    for (i64 row = p.rows * slice / p.slices + threadIdx.x / 32; row < end; row += THREADS / 32)
      sum += to_f32(static_cast<const Y*>(p.y)[row * p.pitch + column]);
  }
  sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= p.columns) return;
#pragma unroll
  for (int other = 1; other < THREADS / 32; other++) sum += sums[other][threadIdx.x];
  p.terms[slice * p.columns + column] = sum;
}
