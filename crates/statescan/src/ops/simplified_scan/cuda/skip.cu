// The gradient by the skip: for each channel sum_{b, t} by_y[t] Re u[t], a term for each slice of rows and steps, which are summed afterwards.
// A warp has a channel and a slice: some pieces of STEPS steps, none of which crosses a row.

extern "C" __global__ void __launch_bounds__(32 * WARPS) simplified_scan_skip(const __grid_constant__ Params p) {
  const i64 i = i64(blockIdx.x) * WARPS + threadIdx.x / 32, channel = i % p.dim, slice = i / p.dim;
  if (slice >= p.slices) return;
  const i64 per_row = (p.seqlen + STEPS - 1) / STEPS, last = min((slice + 1) * p.slice_pieces, p.batch * per_row);
  f32 sum = 0.f;
#pragma unroll 1
  for (i64 piece = slice * p.slice_pieces; piece < last; piece++) {
    const i64 batch = piece / per_row, first = piece % per_row * STEPS, end = min(first + STEPS, p.seqlen);
#pragma unroll 4
    for (i64 t = first + threadIdx.x % 32; t < end; t += 32)
      sum = __fmaf_rn(to_complex(*at<BY_Y>(p.by_y, batch, channel, t)).re, to_complex(*at<U>(p.u, batch, channel, t)).re, sum);
  }
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) p.terms[slice * p.dim + channel] = sum;
}
