// A matrix added to rows: a thread has one number.

extern "C" __global__ void __launch_bounds__(THREADS) accumulate(const __grid_constant__ Params p) {
  const i64 at = i64(blockIdx.x) * THREADS + threadIdx.x, row = at / p.columns, column = at % p.columns;
  if (row < p.rows) p.y[row * p.pitch + column] += p.x[row * p.x_row + column * p.x_column];
}
