// Rows of a table, by their numbers: a thread has one number of a row.

extern "C" __global__ void __launch_bounds__(THREADS) embedding(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns, column = at % p.columns;
  if (row >= p.rows) return;
  const i64 token = p.tokens[row];
  // indices are not checked on the host: what is none gives zeros
  p.y[at] = token < 0 || token >= p.vocab ? 0.f : p.factor * to_f32(static_cast<const W*>(p.table)[token * p.pitch + column]);
}
