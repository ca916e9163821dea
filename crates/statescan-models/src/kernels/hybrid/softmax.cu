// Shares of what each row attends to, from scores: a block has a row, a thread every THREADS-th of its numbers.

constexpr int WARPS = THREADS / 32;

// The highest score, and the sum of powers of two by how far scores are below it. It begins with the lowest number that is finite, which an infinite
// score, whose share is none, is infinitely far below.
struct Whole { f32 highest = -__int_as_float(0x7f7fffff), sum = 0.f; };

DEVICE Whole together(Whole a, Whole b) {
  const f32 highest = fmaxf(a.highest, b.highest);
  return {highest, a.sum * exp2_fast(a.highest - highest) + b.sum * exp2_fast(b.highest - highest)};
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const __grid_constant__ Params p) {
  __shared__ f32 of_warps[WARPS][2];
  f32* const scores = p.scores + i64(blockIdx.x) * p.pitch;
  const i64 seen = p.seen + blockIdx.x;
  Whole whole;
  for (i64 i = threadIdx.x; i < seen; i += THREADS) whole = together(whole, {scores[i] * p.scale, 1.f});
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    whole = together(whole, {__shfl_xor_sync(0xffffffffu, whole.highest, offset), __shfl_xor_sync(0xffffffffu, whole.sum, offset)});
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][0] = whole.highest, of_warps[threadIdx.x / 32][1] = whole.sum;
  __syncthreads();
  whole = {of_warps[0][0], of_warps[0][1]};
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++) whole = together(whole, {of_warps[warp][0], of_warps[warp][1]});
  for (i64 i = threadIdx.x; i < p.columns; i += THREADS)
    scores[i] = i < seen ? exp2_fast(scores[i] * p.scale - whole.highest) / whole.sum : 0.f;
}
