// From the gradients by gated rows to those by gates and by what they multiply: a thread has one number of each.

extern "C" __global__ void __launch_bounds__(THREADS) gate_backward(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns, column = at % p.columns;
  if (row >= p.rows) return;
  const X* const x = static_cast<const X*>(p.x) + row * p.x_pitch + column;
  const f32 gate = to_f32(x[0]), d = to_f32(static_cast<const X*>(p.y)[row * p.y_pitch + column]), share = sigmoid(gate);
  X* const dx = static_cast<X*>(p.dx) + row * p.dx_pitch + column;
  assign(dx[0], d * to_f32(x[p.columns]) * share * (1.f + gate * (1.f - share)));
  assign(dx[p.columns], d * gate * share);
}
