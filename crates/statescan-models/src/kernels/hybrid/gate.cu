// Numbers of rows times their gates: a thread has one of them.

extern "C" __global__ void __launch_bounds__(THREADS) gate(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns, column = at % p.columns;
  if (row >= p.rows) return;
  const X* const x = static_cast<const X*>(p.x) + row * p.x_pitch + column;
  assign(static_cast<X*>(p.y)[row * p.y_pitch + column], silu(to_f32(x[0])) * to_f32(x[p.columns]));
}
