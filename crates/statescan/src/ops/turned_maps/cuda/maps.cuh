// What the passes over maps share. A warp has a step, and its lanes pairs of neighbouring columns, 32 pairs apart.
#pragma once

static_assert(given<int>(ITEMS, TURNS, WARPS) && given<bool>(PAIRED) && given_types<MAPS, BIAS>());

DEVICE int pair_of(int item) { return item * 32 + int(threadIdx.x) % 32; }
// Whether a pair has an angle.
DEVICE bool is_turned(const Shape& p, int item) { return item < TURNS && pair_of(item) < p.angles; }

// Two neighbours of a row, of a lane's first column on; 0 where a row has no such column.
template <typename E> DEVICE float2 load_pair(const Shape& p, const E* row, i64 stride, int item) {
  const int n = 2 * pair_of(item);
  if (n >= p.dstate) return make_float2(0.f, 0.f);
  if constexpr (PAIRED) {
    const Neighbours<E, 2> two = *reinterpret_cast<const Neighbours<E, 2>*>(row + 64 * item);
    return make_float2(to_f32(two.v[0]), to_f32(two.v[1]));
  } else {
    row += 64 * item * stride;
    return make_float2(to_f32(row[0]), n + 1 < p.dstate ? to_f32(row[stride]) : 0.f);
  }
}
template <typename E> DEVICE void store_pair(const Shape& p, E* row, i64 stride, int item, float2 v) {
  const int n = 2 * pair_of(item);
  if (n >= p.dstate) return;
  if constexpr (PAIRED) {
    Neighbours<E, 2> two;
    assign2(two.v, v.x, v.y);
    write_at_once<E, 2>(row + 64 * item, two);
  } else {
    row += 64 * item * stride;
    assign(row[0], v.x);
    if (n + 1 < p.dstate) assign(row[stride], v.y);
  }
}

// Both maps of a step, or what belongs to them.
struct Both {
  float2 v[2][ITEMS];

  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) v[0][i] = v[1][i] = make_float2(0.f, 0.f);
  }
  DEVICE void add(const Both& other) {
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) v[map][i].x += other.v[map][i].x, v[map][i].y += other.v[map][i].y;
  }
};

// A lane's columns of both maps of a step: of one row and, behind it, of the next. Both maps have the same strides, and are this far apart.
template <typename E> struct Rows {
  const Strided& of;
  i64 apart;
  E* row;

  DEVICE Rows(const Strided (&maps)[2], i64 batch, i64 step, i64 first)
      : of(maps[0]), apart(static_cast<E*>(maps[1].data) - static_cast<E*>(maps[0].data)), row(at<E>(maps[0], batch, step, first, 2 * pair_of(0))) {}
  DEVICE void next() { row += of.stride[2]; }
  DEVICE Both load(const Shape& p) const {
    Both to;
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) to.v[map][i] = load_pair(p, row + map * apart, of.stride[3], i);
    return to;
  }
  DEVICE void store(const Shape& p, const Both& from) const {
#pragma unroll
    for (int map = 0; map < 2; map++)
#pragma unroll
      for (int i = 0; i < ITEMS; i++) store_pair(p, row + map * apart, of.stride[3], i, from.v[map][i]);
  }
};

// A turn by an angle in turns.
struct Turn {
  f32 sin, cos;

  DEVICE explicit Turn(f32 turns) { sincospif(2.f * turns, &sin, &cos); }
  DEVICE float2 of(float2 v) const { return make_float2(v.x * cos - v.y * sin, v.x * sin + v.y * cos); }
  DEVICE float2 back(float2 v) const { return make_float2(v.x * cos + v.y * sin, v.y * cos - v.x * sin); }
};

// A lane's first angle at a step, or what belongs to it.
DEVICE i64 place_of_turn(const Shape& p, i64 batch, i64 step, i64 head) {
  return ((batch * p.steps + step) * p.heads + head) * p.angles + int(threadIdx.x) % 32;
}
