// Random zeros: a thread has four numbers, which one draw of Splitmix64 decides on. The draw depends on their place alone.

DEVICE u64 draw(u64 seed, u64 at) {
  u64 z = seed + (at + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

extern "C" __global__ void __launch_bounds__(THREADS) dropout(const __grid_constant__ Params p) {
  const i64 four = i64(blockIdx.x) * THREADS + threadIdx.x, left = p.count - 4 * four;
  if (left <= 0) return;
  const u64 bits = ZEROS ? draw(p.seed, four) : 0;
  auto add = [&](int k, f32 v, Y& to) {
    if constexpr (ZEROS) v = (bits >> (16 * k) & 0xffff) < p.least ? 0.f : v * p.scale;
    assign(to, ADD ? to_f32(to) + v : v);
  };
  if constexpr (WHOLE) {
    Neighbours<Y, 4>& to = static_cast<Neighbours<Y, 4>*>(p.y)[four];
    const Neighbours<X, 4> x = static_cast<const Neighbours<X, 4>*>(p.x)[four];
    Neighbours<Y, 4> y;
    if constexpr (ADD) y = to;
#pragma unroll
    for (int k = 0; k < 4; k++) add(k, to_f32(x.v[k]), y.v[k]);
    to = y;
  } else {
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (k < left) add(k, to_f32(static_cast<const X*>(p.x)[4 * four + k]), static_cast<Y*>(p.y)[4 * four + k]);
  }
}
