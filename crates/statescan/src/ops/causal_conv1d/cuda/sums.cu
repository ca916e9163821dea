// The second stage of the gradients of the filters: each thread adds the partial sums of one tap (or bias) of a channel, first split first.

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv1d_sums(const __grid_constant__ SumsParams p) {
  const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x, count = p.dim * (WIDTH + 1);
  if (i >= count) return;
  f32 sum = 0.f;
#pragma unroll 8
  for (i64 split = 0; split < p.splits; split++) sum += p.partial[split * count + i];
  const i64 channel = i / (WIDTH + 1), tap = i % (WIDTH + 1);
  if (tap < WIDTH) {
    if (HAS_DWEIGHT) assign(*at<DWEIGHT>(p.dweight, channel, tap), sum);
  } else if (HAS_DBIAS) {
    assign(*at<DBIAS>(p.dbias, channel), sum);
  }
}
