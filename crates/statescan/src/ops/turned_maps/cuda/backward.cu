// Gradients by maps, those by the angles of each step, and terms of those by biases: each warp of a block has a step, and all heads of a group.
#include "maps.cuh"

static_assert(given<bool>(HAS_TURNED, HAS_DOTS, HAS_DMAPS, HAS_DBIAS) && given_types<TURNED, DOTS, DMAPS>());

constexpr int COLUMNS = 64 * ITEMS;

// What a head's gradients add to those by its biases, of each warp.
typedef float2 Added[WARPS][HAS_DBIAS ? COLUMNS : 1];

// Leaves the sums over the warps of a block among the terms of its place.
DEVICE void put_terms(const BackwardParams& p, Added& added, const Both& by, i64 place, i64 head) {
  const Shape& shape = p.shape;
#pragma unroll
  for (int map = 0; map < 2; map++)
#pragma unroll
    for (int i = 0; i < ITEMS; i++) added[threadIdx.x / 32][map * (COLUMNS / 2) + pair_of(i)] = by.v[map][i];
  __syncthreads();
  for (int at = threadIdx.x; at < COLUMNS; at += 32 * WARPS) {
    float2 sum = added[0][at];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) sum.x += added[warp][at].x, sum.y += added[warp][at].y;
    const int map = at / (COLUMNS / 2), n = 2 * (at % (COLUMNS / 2));
    f32* const to = p.terms + ((map * shape.batch * p.tiles + place) * shape.heads + head) * shape.dstate + n;
    if (n < shape.dstate) to[0] = sum.x;
    if (n + 1 < shape.dstate) to[1] = sum.y;
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) turned_maps_backward(const __grid_constant__ BackwardParams p) {
  // in turns: one is read while the next one is written
  __shared__ Added added[2];
  const Shape& shape = p.shape;
  i64 block = blockIdx.x;
  const i64 group = block % shape.groups;
  block /= shape.groups;
  const i64 batch = block / p.tiles, step = block % p.tiles * WARPS + threadIdx.x / 32;
  const bool there = step < shape.steps;
  Both given, sums;
  given.clear(), sums.clear();
  if (there) given.load<MAPS>(shape, p.maps, batch, step, group);
  const i64 first = group * shape.heads_per_group;
#pragma unroll 1
  for (i64 head = first; head < first + shape.heads_per_group; head++) {
    Both by;
    by.clear();
    if (there) {
      f32 by_dot = 0.f, turns[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; i++)
        if (is_turned(shape, i)) turns[i] = p.turns[place_of(shape, batch, step, head, i)];
      if constexpr (HAS_TURNED) by.load<TURNED>(shape, p.turned, batch, step, head);
      if constexpr (HAS_DOTS) by_dot = to_f32(*at<DOTS>(p.dots, batch, step, head));
      Both maps = given;
      maps.add_biases(p, head);
#pragma unroll
      for (int i = 0; i < ITEMS; i++) {
        const float2 one = maps.v[0][i], other = maps.v[1][i];
        float2 &by_one = by.v[0][i], &by_other = by.v[1][i];
        if (is_turned(shape, i)) {
          const Turn turn(turns[i]);
          by_one = turn.back(by_one), by_other = turn.back(by_other);
          p.by_turns[place_of(shape, batch, step, head, i)] =
              (one.x * by_one.y - one.y * by_one.x) + (other.x * by_other.y - other.y * by_other.x);
        }
        if constexpr (HAS_DOTS) {
          by_one.x = __fmaf_rn(by_dot, other.x, by_one.x), by_one.y = __fmaf_rn(by_dot, other.y, by_one.y);
          by_other.x = __fmaf_rn(by_dot, one.x, by_other.x), by_other.y = __fmaf_rn(by_dot, one.y, by_other.y);
        }
      }
      sums.add(by);
    }
    if constexpr (HAS_DBIAS) put_terms(p, added[head % 2], by, block, head);
  }
  if constexpr (HAS_DMAPS)
    if (there) sums.store<DMAPS>(shape, p.by_maps, batch, step, group);
}
