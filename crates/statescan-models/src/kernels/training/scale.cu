// Numbers times others in their places, or times one number.

extern "C" __global__ void __launch_bounds__(THREADS) scale_by(const __grid_constant__ ScaleParams p) {
  const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (i < p.count) p.y[i] *= p.x[i * p.step];
}
