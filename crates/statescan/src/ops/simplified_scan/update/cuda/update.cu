// One step of a simplified scan, in two launches of this text: the first (DRIVE) gives each state its input B u and moves it on, the second
// reads the states through C. A warp has one line of the map, which it reads once for ROWS rows; its lanes take every 32nd column and add
// up their sums by shuffles, in a fixed order.

typedef Rule<METHOD> Method;

template <typename E> DEVICE complex64 read(const Strided& v, i64 i, i64 j) {
  complex64 out;
  convert(out, *at<E>(v, i, j));
  return out;
}

DEVICE complex64 over_lanes(complex64 v) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    v.re += __shfl_xor_sync(0xffffffffu, v.re, apart);
    v.im += __shfl_xor_sync(0xffffffffu, v.im, apart);
  }
  return v;
}

DEVICE i64 slot_of(const Params& p, i64 row) {
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  // indices are not checked on the host: what is no state is left alone
  return slot < p.states ? slot : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS) simplified_state_update(const __grid_constant__ Params p) {
  const i64 line = i64(blockIdx.x % p.blocks_per_group) * (THREADS / 32) + threadIdx.x / 32;
  const i64 first = i64(blockIdx.x / p.blocks_per_group) * ROWS;
  const int lane = threadIdx.x % 32;
  if (line >= p.lines) return;

  i64 slot[ROWS];
  complex64 sum[ROWS] = {};
#pragma unroll
  for (int r = 0; r < ROWS; r++) slot[r] = first + r < p.rows ? slot_of(p, first + r) : -1;
  for (i64 column = lane; column < p.columns; column += 32) {
    const complex64 map = read<MAP>(p.map, line, column);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (slot[r] < 0) continue;
      sum[r] = mul_add(map, DRIVE ? read<U>(p.u, first + r, column) : read<STATE>(p.state, slot[r], column), sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const i64 row = first + r;
    const complex64 total = over_lanes(sum[r]);
    if (lane != 0 || row >= p.rows) continue;
    if constexpr (DRIVE) {
      if (slot[r] < 0) continue;
      complex64 a;
      convert(a, *at<A>(p.a, line));
      const f32 d = to_f32(*at<DELTA>(p.delta, row, line)), delta_a = HAS_DELTA_A ? to_f32(*at<DELTA_A>(p.delta_a, row, line)) : d;
      const complex64 decay = Method::decay(Method::prepare(a), delta_a);
      const complex64 input = Method::amplify(a, d, scale(total, Method::INPUT_STEP ? d : 1.f));
      STATE* const state = at<STATE>(p.state, slot[r], line);
      assign(*state, mul_add(decay, read<STATE>(p.state, slot[r], line), input));
    } else if constexpr (COMPLEX_OUTPUT) {
      assign(*at<Y>(p.y, row, line), total);
    } else {
      f32 y = slot[r] < 0 ? 0.f : p.factor * total.re;
      if (HAS_SKIP && slot[r] >= 0) y = __fmaf_rn(to_f32(*at<SKIP>(p.skip, line)), read<U>(p.u, row, line).re, y);
      assign(*at<Y>(p.y, row, line), y);
    }
  }
}
