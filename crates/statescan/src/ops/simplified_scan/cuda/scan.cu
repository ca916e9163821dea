// The scan of the forward pass, x[t] = Abar[t] x[t-1] + Bbar[t] v[t], in place of v = B u. It leaves x, the states after sequences and a
// checkpoint before each tile but the first: whichever are asked for.
//
// Few rows: time is cut into segments. A first launch (Ends) composes each segment but the last to one step, a second one (Rest) starts each
// from the state that follows from those before it.
#include "steps.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 4) simplified_scan(const __grid_constant__ Params p) {
  const Work w(p, true);
  if (!w.exists) return;
  const State state(p, w);
  complex64* const row = row_of(p.numbers, p, w);
  if (PASS != Pass::Rest && w.segment == 0) hand_on<BEFORE, AFTER>(p, w, p.before, p.after);
  complex64 carry = {};
  if (!RESETS && PASS != Pass::Ends) carry = read_state<BEFORE>(p, p.before, source_of(p, {w.batch, 0}), w.n);
  if constexpr (PASS == Pass::Rest) carry = enter_segment(p, w, carry);
  Step all = no_step();
#pragma unroll 1
  for (i64 tile = w.first; tile < w.last; tile++) {
    const i64 first = tile * TILE + lane_of() * ITEMS;
    complex64 v[ITEMS];
    load_row(v, row, first, p.seqlen);
    const Tile own(p, w, state, tile);
    Forward forward;
    forward.read<BEFORE>(p, w, p.before, own, v);
    const Composed composed = compose<true>(forward.all());
    if constexpr (PASS == Pass::Ends) {
      all = composed.all.after(all);
      continue;
    }
    if (HAS_CHECKPOINTS && tile > 0 && lane_of() < 2) p.checkpoints[checkpoint_at(p, w, tile) + lane_of()] = part_of(carry, lane_of());
    complex64 x = composed.before.apply(carry);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      v[i] = x = forward.steps[i].apply(x);
      if (first + i < p.seqlen && own.begins(i + 1))
        each_target(p, w.batch, first + i + 1, [&](StateRow to) { write_state<AFTER>(p, p.after, to, w.n, x); });
    }
    carry = composed.all.apply(carry);
    if constexpr (HAS_STATES) store_row(v, row, first, p.seqlen);
  }
  if constexpr (PASS == Pass::Ends) leave_segment(p, w, all);
}
