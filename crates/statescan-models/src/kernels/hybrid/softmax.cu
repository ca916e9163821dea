// Shares of what each row attends to, from scores: a block has a row, a thread every THREADS-th of its numbers.

constexpr int WARPS = THREADS / 32;

// The highest score, and the sum of powers of two by how far scores are below it.
struct Whole { f32 highest, sum; };

DEVICE Whole together(Whole a, Whole b) {
  const f32 highest = fmaxf(a.highest, b.highest);
  // where nothing was seen yet, nothing is added
  const f32 of_a = a.sum == 0.f ? 0.f : a.sum * exp2_fast(a.highest - highest);
  const f32 of_b = b.sum == 0.f ? 0.f : b.sum * exp2_fast(b.highest - highest);
  return {highest, of_a + of_b};
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const __grid_constant__ Params p) {
  __shared__ Whole of_warps[WARPS];
  f32* const scores = p.scores + i64(blockIdx.x) * p.pitch;
  const i64 seen = p.seen + blockIdx.x;
  Whole whole = {-__int_as_float(0x7f800000), 0.f};
  for (i64 i = threadIdx.x; i < seen; i += THREADS) whole = together(whole, {scores[i] * p.scale, 1.f});
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    whole = together(whole, {__shfl_xor_sync(0xffffffffu, whole.highest, offset), __shfl_xor_sync(0xffffffffu, whole.sum, offset)});
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = whole;
  __syncthreads();
  whole = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) whole = together(whole, of_warps[warp]);
  for (i64 i = threadIdx.x; i < p.columns; i += THREADS)
    scores[i] = i < seen ? exp2_fast(scores[i] * p.scale - whole.highest) / whole.sum : 0.f;
}
