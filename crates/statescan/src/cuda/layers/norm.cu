// RMSNorm: a warp has a group of a row.

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(const __grid_constant__ Params p) {
  const i64 own = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, row = own / p.groups, first = own % p.groups * p.group;
  if (row >= p.rows) return;
  const X* const x = static_cast<const X*>(p.x) + row * p.x_pitch + first;
  Y* const y = static_cast<Y*>(p.y) + row * p.y_pitch + first;
  f32 squares = 0.f;
#pragma unroll 4
  for (u32 i = threadIdx.x % 32; i < p.group; i += 32) squares = __fmaf_rn(to_f32(x[i]), to_f32(x[i]), squares);
  const f32 factor = rsqrtf(sum_of_lanes<32>(squares) / f32(p.group) + p.eps);
#pragma unroll 4
  for (u32 i = threadIdx.x % 32; i < p.group; i += 32) assign(y[i], to_f32(x[i]) * (HAS_WEIGHT ? factor * p.weight[first + i] : factor));
}
