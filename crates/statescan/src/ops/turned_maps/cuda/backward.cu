// Gradients by maps, those by the angles of each step, and terms of those by biases: each warp of a block has a step, and all heads of a group.
#include "maps.cuh"

static_assert(given<bool>(HAS_TURNED, HAS_DOTS, HAS_DMAPS, HAS_DBIAS) && given_types<TURNED, DOTS, DMAPS>());

// Pairs of both maps: a thread adds up the terms of one.
constexpr int PAIRS = 64 * ITEMS;
static_assert(PAIRS <= 32 * WARPS);

// What a head's gradients add to those by its biases, of each warp.
typedef float2 Added[WARPS][HAS_DBIAS ? PAIRS : 1];

// Leaves the sums over the warps of a block among the terms: `to` is a thread's place.
DEVICE void put_terms(const Shape& p, Added& added, const Both& by, f32* to) {
#pragma unroll
  for (int map = 0; map < 2; map++)
#pragma unroll
    for (int i = 0; i < ITEMS; i++) added[threadIdx.x / 32][map * (PAIRS / 2) + pair_of(i)] = by.v[map][i];
  __syncthreads();
  const int at = threadIdx.x, n = 2 * (at % (PAIRS / 2));
  if (at >= PAIRS) return;
  float2 sum = added[0][at];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) sum.x += added[warp][at].x, sum.y += added[warp][at].y;
  if (n < p.dstate) to[0] = sum.x;
  if (n + 1 < p.dstate) to[1] = sum.y;
}

// What a warp reads of a head, and where.
struct Head {
  Rows<const TURNED> turned;
  const f32* turns;
  const DOTS* dots;
  Both by;
  f32 by_dot, turn[TURNS];

  DEVICE Head(const BackwardParams& p, i64 batch, i64 step, i64 head, i64 place)
      : turned(p.turned, batch, step, head), turns(p.turns + place), dots(at<const DOTS>(p.dots, batch, step, head)) {}
  DEVICE void read(const BackwardParams& p) {
#pragma unroll
    for (int i = 0; i < TURNS; i++) turn[i] = is_turned(p.shape, i) ? turns[32 * i] : 0.f;
    by_dot = 0.f, by.clear();
    if constexpr (HAS_TURNED) by = turned.load(p.shape), turned.next();
    if constexpr (HAS_DOTS) by_dot = to_f32(*dots), dots += p.dots.stride[2];
    turns += p.shape.angles;
  }
};

// The gradients of a head by its maps become those before their turn, and by its angles.
DEVICE void turn_back(const Shape& p, const Both& maps, Head& head, f32* by_turns) {
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    const float2 one = maps.v[0][i], other = maps.v[1][i];
    float2 &by_one = head.by.v[0][i], &by_other = head.by.v[1][i];
    if (is_turned(p, i)) {
      const Turn turn(head.turn[i % TURNS]);
      by_one = turn.back(by_one), by_other = turn.back(by_other);
      by_turns[32 * i] = (one.x * by_one.y - one.y * by_one.x) + (other.x * by_other.y - other.y * by_other.x);
    }
    if constexpr (HAS_DOTS) {
      by_one.x = __fmaf_rn(head.by_dot, other.x, by_one.x), by_one.y = __fmaf_rn(head.by_dot, other.y, by_one.y);
      by_other.x = __fmaf_rn(head.by_dot, one.x, by_other.x), by_other.y = __fmaf_rn(head.by_dot, one.y, by_other.y);
    }
  }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) turned_maps_backward(const __grid_constant__ BackwardParams p) {
  // in turns: one is read while the next one is written
  __shared__ Added added[2];
  const Shape& shape = p.shape;
  const u32 block = blockIdx.x / u32(shape.groups);
  const i64 group = blockIdx.x % u32(shape.groups);
  const i64 batch = block / u32(p.tiles), step = block % u32(p.tiles) * WARPS + threadIdx.x / 32, first = group * shape.heads_per_group;
  const bool there = step < shape.steps;
  const i64 place = place_of_turn(shape, batch, step, first);
  Head head(p, batch, step, first, place);
  Rows<const BIAS> biases(p.biases, 0, 0, first);
  f32* by_turns = p.by_turns + place;
  const int map = int(threadIdx.x) / (PAIRS / 2);
  f32* terms = p.terms + ((map * shape.batch * p.tiles + block) * shape.heads + first) * shape.dstate + 2 * (int(threadIdx.x) % (PAIRS / 2));
  Both given, sums;
  given.clear(), sums.clear(), head.by.clear();
  if (there) given = Rows<const MAPS>(p.maps, batch, step, group).load(shape);
#pragma unroll 1
  for (int left = int(shape.heads_per_group); left > 0; left--) {
    if (there) {
      head.read(p);
      Both maps = biases.load(shape);
      maps.add(given);
      turn_back(shape, maps, head, by_turns);
      sums.add(head.by);
    }
    if constexpr (HAS_DBIAS) put_terms(shape, added[left % 2], head.by, terms);
    biases.next(), by_turns += shape.angles, terms += shape.dstate;
  }
  if constexpr (HAS_DMAPS)
    if (there) Rows<DMAPS>(p.by_maps, batch, step, group).store(shape, sums);
}
