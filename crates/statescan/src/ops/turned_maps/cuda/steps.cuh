// What adds up over the steps of a head. A block has a head of a row and walks over its steps, forwards or back, tile by tile; each of its warps has some
// neighbouring steps of a tile, and each lane an angle, or several that are 32 apart.
#pragma once
#include "sums.cuh"

static_assert(given<int>(ANGLES, WARPS) && given<bool>(BACK) && given_types<RATE, DT>());

// Steps of a warp in a tile, and lanes for each of them where lanes have steps.
constexpr int STEPS = 8 / ANGLES, TILE = WARPS * STEPS, SHARE = 32 / STEPS;

// How many of a warp's steps there are in a tile, or of those from a lane's step on.
DEVICE int steps_left(const StepParams& p, i64 tile, int step) { return int(max(min(p.shape.steps - tile - step, i64(STEPS)), 0ll)); }
DEVICE int step_of_warp() { return int(threadIdx.x) / 32 * STEPS; }
DEVICE int step_of_lane() { return int(threadIdx.x) / SHARE; }
DEVICE bool has_angle(const StepParams& p, int k) { return k * 32 + int(threadIdx.x) % 32 < p.shape.angles; }

// The numbers of a lane's angles in a tensor, which moves from tile to tile with the walk.
template <typename E> struct Line {
  const Strided& of;
  E* place;

  // At a step of the first tile, as the walk counts them.
  DEVICE Line(const StepParams& p, const Strided& of, int step) : of(of) {
    const u32 heads = u32(p.shape.heads);
    place = at<E>(of, blockIdx.x / heads, BACK ? p.shape.steps - 1 - step : step, blockIdx.x % heads, int(threadIdx.x) % 32);
  }
  DEVICE void move(int steps) { place += BACK ? -steps * of.stride[1] : steps * of.stride[1]; }
  // job(i, k, place) for each step of a warp, of which `left` are there, and each angle
  template <typename Job> DEVICE void each(const StepParams& p, int left, Job job) const {
    Line line = *this;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
#pragma unroll
      for (int k = 0; k < ANGLES; k++)
        if (i < left && has_angle(p, k)) job(i, k, line.place + k * 32 * of.stride[3]);
      line.move(1);
    }
  }
};

// A number for each of a warp's steps and a lane's angles.
typedef f32 Numbers[STEPS][ANGLES];

// Reads a tile, with zeros where there is no such step or angle, and moves to the next one.
template <typename E> DEVICE void read(const StepParams& p, Line<const E>& from, int left, Numbers& to) {
#pragma unroll
  for (int i = 0; i < STEPS; i++)
#pragma unroll
    for (int k = 0; k < ANGLES; k++) to[i][k] = 0.f;
  from.each(p, left, [&](int i, int k, const E* place) { to[i][k] = to_f32(*place); });
  from.move(TILE);
}
// The step size of a lane's step.
DEVICE f32 read_dt(Line<const DT>& from, int left) {
  const f32 dt = left > 0 ? to_f32(*from.place) : 0.f;
  from.move(TILE);
  return dt;
}
// Of a number for each of a warp's steps, which lanes have, that of the i-th.
DEVICE f32 of_step(f32 v, int i) { return __shfl_sync(~0u, v, i * SHARE); }

// What each warp of a block has added up in a tile.
typedef f64 Parts[WARPS][ANGLES][32];

// A warp's sums of a tile become those of all that is before the warp's steps; `before`, of all before the tile, becomes that of all before the next one.
DEVICE void put_before(f64 (&own)[ANGLES], f64 (&before)[ANGLES], Parts& parts) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
#pragma unroll
  for (int k = 0; k < ANGLES; k++) parts[warp][k][lane] = own[k], own[k] = before[k];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++)
#pragma unroll
    for (int k = 0; k < ANGLES; k++) {
      before[k] += parts[i][k][lane];
      if (i + 1 == warp) own[k] = before[k];
    }
}
