// Attention of one row between its projections: a block has a head of queries, a warp every WARPS-th of the tokens before, whose scores it goes through
// once with a running sum. The number of these tokens is read from memory, so that a recorded launch is good for every token. A head's new key and value
// are written by the first block that shares them, and every block uses those that it made itself.

constexpr int WARPS = THREADS / 32, OWN = (HEADDIM + 31) / 32;

// A warp keeps the highest score so far, the sum of powers of two by how far scores are below it, and the same sum of values.
struct Seen {
  f32 highest, sum, values[OWN];

  DEVICE void see(const f32* query, const f32* key, const f32* value) {
    const int lane = threadIdx.x % 32;
    f32 score = 0.f;
#pragma unroll
    for (int k = 0; k < OWN; k++)
      if (lane + 32 * k < HEADDIM) score = __fmaf_rn(query[lane + 32 * k], key[lane + 32 * k], score);
    score = sum_of_lanes<32>(score);
    const f32 now = fmaxf(highest, score), before = exp2_fast(highest - now), share = exp2_fast(score - now);
    highest = now, sum = __fmaf_rn(sum, before, share);
#pragma unroll
    for (int k = 0; k < OWN; k++)
      if (lane + 32 * k < HEADDIM) values[k] = __fmaf_rn(values[k], before, share * value[lane + 32 * k]);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) attention_step(const __grid_constant__ Params p) {
  __shared__ f32 query[HEADDIM], key[HEADDIM], value[HEADDIM], highest[WARPS], sums[WARPS], values[WARPS][HEADDIM];
  const u32 head = blockIdx.x, shared = head / p.share * HEADDIM;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 position = *p.position;
  if (position < 0 || position >= p.room) return;
  for (int d = threadIdx.x; d < HEADDIM; d += THREADS) {
    query[d] = p.scale * turned(p.queries + head * HEADDIM, d, p.pairs, p.angles, position);
    key[d] = turned(p.keys + shared, d, p.pairs, p.angles, position);
    value[d] = p.values[shared + d];
    if (head % p.share == 0) {
      p.all_keys[position * p.columns + shared + d] = key[d];
      p.all_values[position * p.columns + shared + d] = value[d];
    }
  }
  __syncthreads();
  // the lowest number that is finite, which an infinite score, whose share is none, is infinitely far below
  Seen seen = {-__int_as_float(0x7f7fffff), 0.f, {}};
  if (warp == 0) seen.see(query, key, value);
#pragma unroll 4
  for (i64 at = warp; at < position; at += WARPS)
    seen.see(query, p.all_keys + at * p.columns + shared, p.all_values + at * p.columns + shared);
  if (lane == 0) highest[warp] = seen.highest, sums[warp] = seen.sum;
#pragma unroll
  for (int k = 0; k < OWN; k++)
    if (lane + 32 * k < HEADDIM) values[warp][lane + 32 * k] = seen.values[k];
  __syncthreads();
  for (int d = threadIdx.x; d < HEADDIM; d += THREADS) {
    f32 most = highest[0], whole = 0.f, y = 0.f;
#pragma unroll
    for (int other = 1; other < WARPS; other++) most = fmaxf(most, highest[other]);
#pragma unroll
    for (int other = 0; other < WARPS; other++) {
      const f32 factor = exp2_fast(highest[other] - most);
      whole = __fmaf_rn(factor, sums[other], whole);
      y = __fmaf_rn(factor, values[other][d], y);
    }
    p.y[head * HEADDIM + d] = y / whole;
  }
}
