// Random zeros: a thread has four numbers, which one draw of Splitmix64 decides on. The draw depends on their place alone.

DEVICE u64 draw(u64 seed, u64 at) {
  u64 z = seed + (at + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

extern "C" __global__ void __launch_bounds__(THREADS) dropout(const __grid_constant__ Params p) {
  const i64 four = i64(blockIdx.x) * THREADS + threadIdx.x;
  const u64 bits = ZEROS ? draw(p.seed, four) : 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const i64 i = 4 * four + k;
    if (i >= p.count) return;
    f32 v = to_f32(static_cast<const X*>(p.x)[i]) * p.scale;
    if constexpr (ZEROS) v = (bits >> (16 * k) & 0xffff) < p.least ? 0.f : v;
    Y& to = static_cast<Y*>(p.y)[i];
    assign(to, ADD ? to_f32(to) + v : v);
  }
}
