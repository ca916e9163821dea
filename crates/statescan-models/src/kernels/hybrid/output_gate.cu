// The gate of what heads attend to, y = y sigmoid(gate) in place, or from the gradients by y to those by gates and by what they multiply: a thread has one
// number. Gates lie behind the queries of each head.

extern "C" __global__ void __launch_bounds__(THREADS) output_gate(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns;
  if (row >= p.rows) return;
  const u32 column = u32(at % p.columns), d = column % p.headdim;
  const i64 own = 2 * i64(column - d) + p.headdim + d;
  const f32 gate = to_f32(static_cast<const X*>(p.queries)[row * p.pitch + own]);
  f32& y = p.y[row * p.y_pitch + column];
  if constexpr (BACK) {
    const f32 gated = to_f32(static_cast<const X*>(p.gated)[row * p.gated_pitch + column]);
    assign(static_cast<X*>(p.dqueries)[row * p.dpitch + own], y * gated * sigmoid(-gate));
  }
  y *= sigmoid(gate);
}
