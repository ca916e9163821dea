// The ends of the segments of a walk in two phases are put together: the state after all of them, from that before the first one, and the decay of a
// head over all of them. A warpgroup has the columns and states that a walker has.
#include "walk_state.cuh"

static_assert(given<bool>(HAS_DECAY) && given_types<DECAY>());

extern "C" __global__ void __launch_bounds__(128 * WALKERS) ssd_ends(const __grid_constant__ Params p) {
  Work w(p);
  const int worker = threadIdx.x / 128, unit = unit_of(worker), part = worker % PARTS;
  if (unit >= w.units) return;
  const int head = w.head(p, unit), column = w.column(p, unit);
  // behind the last one
  w.segment = w.segments;
  State state(part);
  state.read<BEFORE>(p, w.state_row(p, true), head, column);
  state.enter(p, w, head, column / COLUMNS);
  state.write<AFTER>(p, w.state_row(p, false), head, column, 1.f);
  if (!HAS_DECAY || part > 0 || column > 0 || threadIdx.x % 128 > 0) return;
  f32 decay = 1.f;
  for (int segment = 0; segment < w.segments; segment++) decay *= p.decays[end_of(p, w, segment, head, 0)];
  assign(*at<DECAY>(p.decay, w.batch, head), decay);
}
