// What numbers are multiplied by so that they are no longer than they may be, from their sums of squares: one warp.

extern "C" __global__ void __launch_bounds__(32) clip_factor(const __grid_constant__ Length p) {
  f64 sum = 0.;
  for (i64 i = threadIdx.x; i < p.count; i += 32) sum += f64(p.terms[i]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const f64 length = sqrt(sum);
  if (threadIdx.x == 0) *p.factor = length > f64(p.longest) ? f32(f64(p.longest) / length) : 1.f;
}
