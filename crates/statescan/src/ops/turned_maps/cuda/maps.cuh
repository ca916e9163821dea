// What the passes over maps share. A warp has a step, and its lanes pairs of neighbouring columns, 32 pairs apart.
#pragma once

static_assert(given<int>(ITEMS, WARPS) && given<bool>(PAIRED) && given_types<MAPS, BIAS>());

DEVICE int pair_of(int item) { return item * 32 + int(threadIdx.x) % 32; }

// Two neighbours of a row; 0 where a row has no such column.
template <typename E> DEVICE float2 load_pair(const Shape& p, const E* row, i64 stride, int item) {
  const int n = 2 * pair_of(item);
  if (n >= p.dstate) return make_float2(0.f, 0.f);
  if constexpr (PAIRED) {
    const Neighbours<E, 2> two = *reinterpret_cast<const Neighbours<E, 2>*>(row + n);
    return make_float2(to_f32(two.v[0]), to_f32(two.v[1]));
  } else {
    return make_float2(to_f32(row[n * stride]), n + 1 < p.dstate ? to_f32(row[(n + 1) * stride]) : 0.f);
  }
}
template <typename E> DEVICE void store_pair(const Shape& p, E* row, i64 stride, int item, float2 v) {
  const int n = 2 * pair_of(item);
  if (n >= p.dstate) return;
  if constexpr (PAIRED) {
    Neighbours<E, 2> two;
    assign2(two.v, v.x, v.y);
    write_at_once<E, 2>(row + n, two);
  } else {
    assign(row[n * stride], v.x);
    if (n + 1 < p.dstate) assign(row[(n + 1) * stride], v.y);
  }
}

// Both maps of a step, or what belongs to them.
struct Both {
  float2 v[2][ITEMS];

  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) v[0][i] = v[1][i] = make_float2(0.f, 0.f);
  }
  template <typename E> DEVICE void load(const Shape& p, const Strided (&from)[2], i64 batch, i64 step, i64 row) {
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) v[map][i] = load_pair(p, at<const E>(from[map], batch, step, row), from[map].stride[3], i);
  }
  template <typename E> DEVICE void store(const Shape& p, const Strided (&to)[2], i64 batch, i64 step, i64 row) const {
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) store_pair(p, at<E>(to[map], batch, step, row), to[map].stride[3], i, v[map][i]);
  }
  DEVICE void add(const Both& other) {
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) v[map][i].x += other.v[map][i].x, v[map][i].y += other.v[map][i].y;
  }
  // the maps of a group become those of a head
  DEVICE void add_biases(const Inputs& p, i64 head) {
    Both bias;
    bias.load<BIAS>(p.shape, p.biases, 0, 0, head);
    add(bias);
  }
};

// A turn by an angle in turns.
struct Turn {
  f32 sin, cos;

  DEVICE explicit Turn(f32 turns) { sincospif(2.f * turns, &sin, &cos); }
  DEVICE float2 of(float2 v) const { return make_float2(v.x * cos - v.y * sin, v.x * sin + v.y * cos); }
  DEVICE float2 back(float2 v) const { return make_float2(v.x * cos + v.y * sin, v.y * cos - v.x * sin); }
};

// The place of a pair's angle at a step, if it has one.
DEVICE bool is_turned(const Shape& p, int item) { return pair_of(item) < p.angles; }
DEVICE i64 place_of(const Shape& p, i64 batch, i64 step, i64 head, int item) {
  return ((batch * p.steps + step) * p.heads + head) * p.angles + pair_of(item);
}
