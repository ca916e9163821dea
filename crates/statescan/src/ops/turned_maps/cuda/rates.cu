// The gradients by rates and steps, from those by the angles of each step.
#include "steps.cuh"

static_assert(given<bool>(HAS_DRATE, HAS_DDT) && given_types<DRATE, DDT>());

// Two blocks have 64 registers a thread, which is enough on Hopper alone.
constexpr int RESIDENT = ANGLES == 1 && __CUDA_ARCH__ == 900 ? 2 : 1;

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) turned_maps_rates(const __grid_constant__ StepParams p) {
  // in turns: one is read while the next one is written
  __shared__ Parts parts[2];
  Line<const f32> turns(p, p.turns, step_of_warp());
  Line<const RATE> rates(p, p.rate, step_of_warp());
  Line<const DT> dts(p, p.dt, step_of_lane());
  Line<DRATE> by_rates(p, p.by_rate, step_of_warp());
  Line<DDT> by_dts(p, p.by_dt, step_of_lane());
  f64 before[ANGLES] = {};
  Numbers by_turns, rate;
  int left = steps_left(p, 0, step_of_warp());
  read(p, turns, left, by_turns);
  bool odd = false;
#pragma unroll 1
  for (i64 tile = 0; tile < p.shape.steps; tile += TILE, odd = !odd) {
    f64 sum[STEPS][ANGLES], start[ANGLES];
    const int own = left, own_of_lane = steps_left(p, tile, step_of_lane());
    const f32 dt = read_dt(dts, own_of_lane);
    read(p, rates, own, rate);
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#pragma unroll
      for (int k = 0; k < ANGLES; k++) start[k] = sum[i][k] = (i > 0 ? start[k] : 0.) + by_turns[i][k];
    left = steps_left(p, tile + TILE, step_of_warp());
    read(p, turns, left, by_turns);
    put_before(start, before, parts[odd]);
    f32 by_dt[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      const f32 step = of_step(dt, i);
      by_dt[i] = 0.f;
#pragma unroll
      for (int k = 0; k < ANGLES; k++) {
        const f32 by = PI * f32(start[k] + sum[i][k]), tanh = tanhf(rate[i][k]);
        by_dt[i] = __fmaf_rn(tanh, by, by_dt[i]);
        rate[i][k] = by * step * __fmaf_rn(-tanh, tanh, 1.f);
      }
    }
    if constexpr (HAS_DRATE) by_rates.each(p, own, [&](int i, int k, DRATE* place) { assign(*place, rate[i][k]); });
    if constexpr (HAS_DDT) {
      const f32 sum = sum_of_each(by_dt);
      if (own_of_lane > 0 && threadIdx.x % SHARE == 0) assign(*by_dts.place, sum);
    }
    by_rates.move(TILE), by_dts.move(TILE);
  }
}
