// The way back through RMSNorm: a warp has a group of a row. With r = 1 / sqrt(mean(x^2) + eps), n = x r and y = w n,
//
//   dn = w dy      dx = r (dn - n mean(dn n))
//
// The factors r are left for the gradient by the weights, which is a sum over rows.

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm_backward(const __grid_constant__ Params p) {
  const i64 own = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32, row = own / p.groups, first = own % p.groups * p.group;
  if (row >= p.rows) return;
  const X* const x = static_cast<const X*>(p.x) + row * p.x_pitch + first;
  const DY* const dy = static_cast<const DY*>(p.dy) + row * p.dy_pitch + first;
  DX* const dx = static_cast<DX*>(p.dx) + row * p.dx_pitch + first;
  auto by_normed = [&](u32 i) { return to_f32(dy[i]) * (HAS_WEIGHT ? p.weight[first + i] : 1.f); };
  f32 squares = 0.f, products = 0.f;
#pragma unroll 4
  for (u32 i = threadIdx.x % 32; i < p.group; i += 32) {
    const f32 v = to_f32(x[i]);
    squares = __fmaf_rn(v, v, squares), products = __fmaf_rn(v, by_normed(i), products);
  }
  const f32 factor = rsqrtf(sum_of_lanes<32>(squares) / f32(p.group) + p.eps);
  const f32 mean = sum_of_lanes<32>(products) * factor / f32(p.group);
#pragma unroll 4
  for (u32 i = threadIdx.x % 32; i < p.group; i += 32) {
    const f32 v = factor * (by_normed(i) - to_f32(x[i]) * factor * mean);
    assign(dx[i], ADD ? to_f32(dx[i]) + v : v);
  }
  if (HAS_WEIGHT && threadIdx.x % 32 == 0) p.factors[own] = factor;
}
