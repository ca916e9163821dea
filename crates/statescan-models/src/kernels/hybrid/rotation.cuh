// The rotation of heads by their positions.
#pragma once

// Number `d` of a head at a position, turned or with `sign` -1 turned back. The first 2 x pairs of its numbers are turned, each with the one that lies `pairs` apart.
template <typename X> DEVICE f32 turned(const X* head, u32 d, u32 pairs, const f32* angles, i64 position, f32 sign = 1.f) {
  const f32 x = to_f32(head[d]);
  if (d >= 2 * pairs) return x;
  const u32 pair = d < pairs ? d : d - pairs;
  // The angle is rounded as it is elsewhere; whole turns are taken from it in f64, so that sine and cosine see a small one.
  const f64 halves = f64(f32(position) * angles[pair]) * 0.318309886183790671538;
  f32 sine, cosine;
  sincospif(f32(halves - 2. * rint(.5 * halves)), &sine, &cosine);
  sine *= sign;
  return d < pairs ? x * cosine - to_f32(head[d + pairs]) * sine : x * cosine + to_f32(head[d - pairs]) * sine;
}
