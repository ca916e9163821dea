// The angles of each step, in turns.
#include "steps.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, ANGLES < 4 ? 2 : 1) turned_maps_turns(const __grid_constant__ StepParams p) {
  // in turns: one is read while the next one is written
  __shared__ Parts parts[2];
  Line<const RATE> rates(p, p.rate, step_of_warp());
  Line<const DT> dts(p, p.dt, step_of_lane());
  Line<f32> turns(p, p.turns, step_of_warp());
  f64 before[ANGLES] = {};
  Numbers rate;
  int left = steps_left(p, 0, step_of_warp());
  f32 dt = read_dt(dts, steps_left(p, 0, step_of_lane()));
  read(p, rates, left, rate);
  bool odd = false;
#pragma unroll 1
  for (i64 tile = 0; tile < p.shape.steps; tile += TILE, odd = !odd) {
    f64 sum[STEPS][ANGLES], start[ANGLES];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const f32 half = 0.5f * of_step(dt, i);
#pragma unroll
      for (int k = 0; k < ANGLES; k++) start[k] = sum[i][k] = (i > 0 ? start[k] : 0.) + half * tanhf(rate[i][k]);
    }
    const int own = left;
    left = steps_left(p, tile + TILE, step_of_warp());
    dt = read_dt(dts, steps_left(p, tile + TILE, step_of_lane()));
    read(p, rates, left, rate);
    put_before(start, before, parts[odd]);
#pragma unroll
    for (int k = 0; k < ANGLES; k++) before[k] -= rint(before[k]);
    turns.each(p, own, [&](int i, int k, f32* place) {
      const f64 all = start[k] + sum[i][k];
      *place = f32(all - rint(all));
    });
    turns.move(TILE);
  }
}
