// Maps of heads and their products: a warp has a step, and some heads of a group.
#include "maps.cuh"
#include "sums.cuh"

static_assert(given<int>(HEADS) && given<bool>(HAS_TURNED, HAS_DOTS) && given_types<TURNED, DOTS>());

// The angles of all heads, which are read before anything waits for one of them.
struct Turns {
  f32 v[HEADS][TURNS];

  DEVICE Turns(const ForwardParams& p, const f32* from, int heads) {
#pragma unroll
    for (int head = 0; head < HEADS; head++)
#pragma unroll
      for (int i = 0; i < TURNS; i++)
        v[head][i] = HAS_TURNED && head < heads && is_turned(p.shape, i) ? from[i64(head) * p.shape.angles + 32 * i] : 0.f;
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) turned_maps_forward(const __grid_constant__ ForwardParams p) {
  const Shape& shape = p.shape;
  u32 block = blockIdx.x;
  const u32 slice = block % u32(p.slices);
  block /= u32(p.slices);
  const u32 group = block % u32(shape.groups);
  block /= u32(shape.groups);
  const i64 batch = block / u32(p.tiles), step = block % u32(p.tiles) * WARPS + threadIdx.x / 32;
  if (step >= shape.steps) return;
  const i64 first = group * shape.heads_per_group + slice * HEADS;
  const int heads = int(min(shape.heads_per_group - slice * HEADS, i64(HEADS)));
  const Turns turns(p, p.turns + place_of_turn(shape, batch, step, first), heads);
  const Both given = Rows<const MAPS>(p.maps, batch, step, group).load(shape);
  Rows<const BIAS> biases(p.biases, 0, 0, first);
  Rows<TURNED> to(p.turned, batch, step, first);
  f32 dots[HEADS] = {};
  Both bias = biases.load(shape);
#pragma unroll
  for (int head = 0; head < HEADS; head++) {
    if (head >= heads) break;
    Both maps = given;
    maps.add(bias);
    biases.next();
    if (head + 1 < heads) bias = biases.load(shape);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      float2 &one = maps.v[0][i], &other = maps.v[1][i];
      dots[head] = __fmaf_rn(one.x, other.x, __fmaf_rn(one.y, other.y, dots[head]));
      if (HAS_TURNED && is_turned(shape, i)) {
        const Turn turn(turns.v[head][i]);
        one = turn.of(one), other = turn.of(other);
      }
    }
    if constexpr (HAS_TURNED) to.store(shape, maps);
    to.next();
  }
  if constexpr (HAS_DOTS) {
    const f32 dot = sum_of_each(dots);
    const int lane = int(threadIdx.x) % 32, head = lane / (32 / HEADS);
    if (lane % (32 / HEADS) == 0 && head < heads) assign(*at<DOTS>(p.dots, batch, step, first + head), dot);
  }
}
