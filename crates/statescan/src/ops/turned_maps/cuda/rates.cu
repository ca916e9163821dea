// The gradients by rates and steps, from those by the angles of each step.
#include "steps.cuh"

static_assert(given<bool>(HAS_DRATE, HAS_DDT) && given_types<DRATE, DDT>());

extern "C" __global__ void __launch_bounds__(32 * WARPS) turned_maps_rates(const __grid_constant__ StepParams p) {
  const Part part(p.shape);
  const Shape& shape = p.shape;
  f64 sum[ANGLES] = {};
#pragma unroll 4
  for (i64 step = part.first; step < part.end; step++)
#pragma unroll
    for (int k = 0; k < ANGLES; k++)
      if (part.angle(k) < shape.angles) sum[k] += p.turns[part.place(shape, step, k)];
  others<false>(sum);
  constexpr int TOGETHER = 4 / ANGLES;
#pragma unroll 1
  for (i64 last = part.end - 1; last >= part.first; last -= TOGETHER) {
    f32 dt[TOGETHER], rate[TOGETHER][ANGLES], own[TOGETHER][ANGLES];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const i64 step = max(last - i, part.first);
      dt[i] = part.dt(p, step);
#pragma unroll
      for (int k = 0; k < ANGLES; k++) {
        rate[i][k] = part.rate(p, step, k);
        own[i][k] = part.angle(k) < shape.angles ? p.turns[part.place(shape, step, k)] : 0.f;
      }
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      const i64 step = last - i;
      if (step < part.first) break;
      f32 by_dt = 0.f;
#pragma unroll
      for (int k = 0; k < ANGLES; k++) {
        sum[k] += own[i][k];
        const f32 by = PI * f32(sum[k]);
        by_dt = __fmaf_rn(rate[i][k], by, by_dt);
        if (HAS_DRATE && part.angle(k) < shape.angles)
          assign(*at<DRATE>(p.by_rate, part.batch, step, part.head, part.angle(k)), by * dt[i] * __fmaf_rn(-rate[i][k], rate[i][k], 1.f));
      }
      if constexpr (HAS_DDT) {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) by_dt += __shfl_xor_sync(~0u, by_dt, apart);
        if (threadIdx.x % 32 == 0) assign(*at<DDT>(p.by_dt, part.batch, step, part.head), by_dt);
      }
    }
  }
}
