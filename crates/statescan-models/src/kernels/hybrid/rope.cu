// Rows whose heads are turned by their positions: a thread has one number of a row.

extern "C" __global__ void __launch_bounds__(THREADS) rope(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns;
  if (row >= p.rows) return;
  const u32 column = u32(at % p.columns), d = column % p.headdim;
  const X* const head = static_cast<const X*>(p.x) + row * p.x_pitch + (column - d);
  assign(static_cast<Y*>(p.y)[row * p.y_pitch + column], turned(head, d, p.pairs, p.angles, p.first + row, p.sign));
}
