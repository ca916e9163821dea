// The cross entropy of each row of logits, -log softmax(x)[target], and its gradient times a number: a block has a row, which it reads twice.

typedef Neighbours<f32, PIECE> Some;

// The largest of some numbers, and the sum of their exponentials by that of the largest.
struct Largest {
  f32 most, sum;

  DEVICE void add(f32 v, f32 more) {
    if (v > most) sum *= __expf(most - v), most = v;
    sum += more * __expf(v - most);
  }
};

DEVICE Largest over_block(Largest own) {
  __shared__ Largest of_warps[THREADS / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const f32 most = __shfl_xor_sync(0xffffffffu, own.most, offset), sum = __shfl_xor_sync(0xffffffffu, own.sum, offset);
    own.add(most, sum);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = own;
  __syncthreads();
  own = of_warps[0];
  for (int i = 1; i < THREADS / 32; i++) own.add(of_warps[i].most, of_warps[i].sum);
  return own;
}

// Logits of a model: what its head gives, divided by a number.
DEVICE Some divided(const f32* from, f32 divisor) {
  Some some = *reinterpret_cast<const Some*>(from);
  if constexpr (DIVIDES)
    for (int j = 0; j < PIECE; j++) some.v[j] /= divisor;
  return some;
}

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x;
  const f32* const x = p.logits + row * p.pitch;
  DX* const dx = static_cast<DX*>(p.gradient) + row * p.gradient_pitch;
  const i64 target = p.targets[row];
  // the lowest number that is finite, so that a difference of infinities does not come up
  Largest all = {-__int_as_float(0x7f7fffff), 0.f};
#pragma unroll 4
  for (u32 i = PIECE * threadIdx.x; i < p.columns; i += PIECE * THREADS) {
    const Some some = divided(x + i, p.divisor);
    f32 most = some.v[0];
#pragma unroll
    for (int j = 1; j < PIECE; j++) most = fmaxf(most, some.v[j]);
    if (most > all.most) all.sum *= __expf(all.most - most), all.most = most;
#pragma unroll
    for (int j = 0; j < PIECE; j++) all.sum += __expf(some.v[j] - all.most);
  }
  all = over_block(all);
  const f32 of_target = p.scale / p.divisor, scale = of_target / all.sum;
#pragma unroll 4
  for (u32 i = PIECE * threadIdx.x; i < p.columns; i += PIECE * THREADS) {
    const Some some = divided(x + i, p.divisor);
    Neighbours<DX, PIECE> by;
#pragma unroll
    for (int j = 0; j < PIECE; j++) assign(by.v[j], __expf(some.v[j] - all.most) * scale - (i + j == target ? of_target : 0.f));
    write_at_once<DX, PIECE>(dx + i, by);
  }
  // targets are not checked on the host: what is none has a loss that is no number
  if (threadIdx.x == 0)
    p.losses[row] = target < 0 || target >= p.columns ? __int_as_float(0x7fc00000) : logf(all.sum) - (x[target] / p.divisor - all.most);
}
