// out = a x + b y for each element, x and y of one type and out of another. X, OUT and THREADS are lines of the configuration, Params is declared by
// the host.

extern "C" __global__ void __launch_bounds__(THREADS) axpby(const __grid_constant__ Params p) {
  const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= p.count) return;
  const f32 x = to_f32(static_cast<const X*>(p.x)[i]), y = to_f32(static_cast<const X*>(p.y)[i]);
  assign(static_cast<OUT*>(p.out)[i], __fmaf_rn(p.a, x, p.b * y));
}
