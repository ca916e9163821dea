// Maps of heads and their products: a warp has a step, and some heads of a group.
#include "maps.cuh"

static_assert(given<bool>(HAS_TURNED, HAS_DOTS) && given_types<TURNED, DOTS>());

extern "C" __global__ void __launch_bounds__(32 * WARPS) turned_maps_forward(const __grid_constant__ ForwardParams p) {
  const Shape& shape = p.shape;
  i64 row = i64(blockIdx.x) * WARPS + threadIdx.x / 32;
  const i64 slice = row % p.slices;
  row /= p.slices;
  const i64 group = row % shape.groups;
  row /= shape.groups;
  const i64 batch = row / shape.steps, step = row % shape.steps;
  if (batch >= shape.batch) return;
  Both given;
  given.load<MAPS>(shape, p.maps, batch, step, group);
  const i64 first = group * shape.heads_per_group + slice * p.each, end = min((group + 1) * shape.heads_per_group, first + p.each);
#pragma unroll 2
  for (i64 head = first; head < end; head++) {
    f32 turns[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
      if (HAS_TURNED && is_turned(shape, i)) turns[i] = p.turns[place_of(shape, batch, step, head, i)];
    Both maps = given;
    maps.add_biases(p, head);
    f32 dot = 0.f;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      float2 &one = maps.v[0][i], &other = maps.v[1][i];
      dot = __fmaf_rn(one.x, other.x, __fmaf_rn(one.y, other.y, dot));
      if (HAS_TURNED && is_turned(shape, i)) {
        const Turn turn(turns[i]);
        one = turn.of(one), other = turn.of(other);
      }
    }
    if constexpr (HAS_TURNED) maps.store<TURNED>(shape, p.turned, batch, step, head);
    if constexpr (HAS_DOTS) {
#pragma unroll
      for (int apart = 16; apart > 0; apart /= 2) dot += __shfl_xor_sync(~0u, dot, apart);
      if (threadIdx.x % 32 == 0) assign(*at<DOTS>(p.dots, batch, step, head), dot);
    }
  }
}
