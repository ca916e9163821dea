// Rows added to those of a table: a block has one row of the table and some columns, and adds in the order of the list.

extern "C" __global__ void __launch_bounds__(THREADS) embedding_backward(const __grid_constant__ Params p) {
  const i64 column = i64(blockIdx.y) * THREADS + threadIdx.x, token = p.tokens[blockIdx.x];
  // indices are not checked on the host: what is none is left out
  if (column >= p.columns || token < 0 || token >= p.vocab) return;
  f32& to = p.table[token * p.pitch + column];
  f32 sum = to;
  for (i32 i = max(p.starts[blockIdx.x], 0); i < min(i64(p.starts[blockIdx.x + 1]), p.rows); i++) {
    const i64 row = p.order[i];
    if (row >= 0 && row < p.rows) sum += p.factor * p.dy[row * p.dy_pitch + column];
  }
  to = sum;
}
