// A step of AdamW (Loshchilov and Hutter, 2019, algorithm 2) for each number, and what the model computes with in its place: the number itself in
// another type, or a decay of which it is the logarithm. Without a step only the latter.

extern "C" __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ Params p) {
  const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= p.count) return;
  auto use = [&](f32 weight) {
    if constexpr (HAS_USED) assign(static_cast<USED*>(p.used)[i], DECAYS ? -expf(weight) : weight);
  };
  if constexpr (!MOVES) {
    use(p.weight[i]);
    return;
  }
  const f32 g = p.gradient[i] * *p.factor;
  const f32 first = __fmaf_rn(p.memory, p.first[i], (1.f - p.memory) * g);
  const f32 second = __fmaf_rn(p.memory_of_squares, p.second[i], (1.f - p.memory_of_squares) * g * g);
  const f32 change = p.rate * (first * p.correct_first) / (sqrtf(second * p.correct_second) + p.eps);
  const f32 weight = __fmaf_rn(p.weight[i], p.keep, -change);
  p.first[i] = first, p.second[i] = second, p.weight[i] = weight;
  use(weight);
}
