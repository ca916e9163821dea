// Gradients of a chunk, by blocks for each head of keys, which take the heads of values that share it in turn. Columns of values come in slices: v's own
// gradient, and the products with states, their gradients, and between steps; what the products of steps are worth comes after all slices.
//
//   dq = since dy S^T + (a G) k          r = -since X S^T + (m G) k, of which dk read is beta times as much          a = dy D^T    m = -X D^T
//   dk written = until D R^T + (a G)^T q + (beta m G)^T k                 dbeta = X v + k r
#include "backward_slices.cuh"
#include "backward_finish.cuh"
#include "backward_channels.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  Work w;
  w.shared = shared, w.index = blockIdx.x / p.key_heads, w.key_head = blockIdx.x % p.key_heads, w.chunk = chunk_at(p, w.index);
  const i64 first = w.key_head * GROUP, units = (w.index * p.key_heads + w.key_head) * SPAN * PADDED_KEYS;
  if (w.chunk.rows <= 0) {
    if constexpr (HAS_SUMS) clear_terms(p, w.index * p.heads + first);
    return;
  }
  w.rows = int(threadIdx.x) / 32 % ROW_WARPS * 16, w.part = int(threadIdx.x) / 32 / ROW_WARPS;
  copy_lines<PADDED_KEYS>(w.tile(0), static_cast<const Element*>(p.k_units) + units, SPAN);
  copy_lines<PADDED_KEYS>(w.tile(Q_AT), static_cast<const Element*>(p.q_units) + units, SPAN);
  Slice fetched;
  if constexpr (GROUP > 0) {
    fetched.fetch(p, w.index * p.heads + first, 0);
    copy_slice(p, w, first, 0, 0, 0);
  }
  Totals totals = {};
  Parts parts = {};
#pragma unroll 1
  for (int own = 0; own < GROUP; own++) {
    w.head = first + own, w.unit = w.index * p.heads + w.head, w.turn = own % 2;
    Pairs pairs = {};
#pragma unroll
    for (int b = 0; b < OWN_BLOCKS; b++) parts.r[b] = {};
    take_slices(p, w, own, fetched, parts, pairs);
    if constexpr (NEEDS_KEYS) {
      if constexpr (BY_CHANNEL) finish_channels(p, w, parts, pairs, totals); else finish_head(p, w, parts, pairs, totals, own == 0);
    }
  }
  if constexpr (HAS_DQ || HAS_DK) {
    if constexpr (APART) finish_units(p, w, totals.q, totals.k); else finish_units(p, w, parts.q, parts.w);
  }
}
