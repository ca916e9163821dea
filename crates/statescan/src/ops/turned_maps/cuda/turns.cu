// The angles of each step, in turns.
#include "steps.cuh"

// job(step, the step's own turns) for all steps of a part, several of which are read before the first job writes
template <typename Job> DEVICE void each_step(const StepParams& p, const Part& part, Job job) {
  constexpr int TOGETHER = 4 / ANGLES;
#pragma unroll 1
  for (i64 first = part.first; first < part.end; first += TOGETHER) {
    f32 own[TOGETHER][ANGLES];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const i64 step = min(first + i, part.end - 1);
      const f32 half = 0.5f * part.dt(p, step);
#pragma unroll
      for (int k = 0; k < ANGLES; k++) own[i][k] = half * part.rate(p, step, k);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++)
      if (first + i < part.end) job(first + i, own[i]);
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) turned_maps_turns(const __grid_constant__ StepParams p) {
  const Part part(p.shape);
  f64 sum[ANGLES] = {};
  each_step(p, part, [&](i64, const f32 (&own)[ANGLES]) {
#pragma unroll
    for (int k = 0; k < ANGLES; k++) sum[k] += own[k];
  });
  others<true>(sum);
  each_step(p, part, [&](i64 step, const f32 (&own)[ANGLES]) {
#pragma unroll
    for (int k = 0; k < ANGLES; k++) {
      sum[k] += own[k], sum[k] -= rint(sum[k]);
      if (part.angle(k) < p.shape.angles) p.turns[part.place(p.shape, step, k)] = f32(sum[k]);
    }
  });
}
