// One step of a simplified scan: a cluster of blocks takes ROWS rows. Its warps share out the states, give each its input B u and move it on; when
// all of them have, they share out the outputs, y = C x. A warp reads a line of a map once for all rows; its lanes take every 32nd column and add up
// their sums by shuffles, in a fixed order.

typedef Rule<METHOD> Method;
constexpr int WARPS = THREADS / 32;

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

// Waits for all threads of the cluster, and sees what they wrote.
DEVICE void meet_all() {
  if constexpr (CLUSTER > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
}

// The rows of a cluster, and the state that each has: negative for none.
struct Rows {
  i64 first, slot[ROWS];

  DEVICE explicit Rows(const Params& p) : first(i64(blockIdx.x / CLUSTER) * ROWS) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) slot[r] = first + r < p.rows ? slot_of(p, first + r) : -1;
  }
  static DEVICE i64 slot_of(const Params& p, i64 row) {
    i64 slot = row;
    if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
    // indices are not checked on the host: what is no state is left alone
    return slot < p.states ? slot : -1;
  }

  // job(line) for the lines of this warp
  template <typename Job> static DEVICE void each_line(i64 lines, Job job) {
#pragma unroll 1
    for (i64 line = i64(blockIdx.x % CLUSTER) * WARPS + threadIdx.x / 32; line < lines; line += CLUSTER * WARPS) job(line);
  }

  // the products of a line of a map and the rows of u, or of their states
  template <typename MAP, typename E, bool OF_STATES>
  DEVICE void multiply(complex64 (&sum)[ROWS], const Strided& map, i64 line, i64 columns, const Strided& of) const {
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = {};
    for (i64 column = threadIdx.x % 32; column < columns; column += 32) {
      const complex64 factor = read<MAP>(map, line, column);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
        if (slot[r] >= 0) sum[r] = mul_add(factor, read<E>(of, OF_STATES ? slot[r] : first + r, column), sum[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = over_lanes(sum[r]);
  }
};

// What a lane finishes: the row of its number, if there is one.
struct Own {
  i64 slot = -1;
  complex64 sum = {};

  DEVICE Own(const Rows& rows, const complex64 (&sums)[ROWS], int lane) {
#pragma unroll
    for (int k = 0; k < ROWS; k++)
      if (lane == k) slot = rows.slot[k], sum = sums[k];
  }
};

DEVICE void move_state(const Params& p, i64 row, i64 slot, i64 n, complex64 driven) {
  complex64 a;
  convert(a, *at<A>(p.a, n));
  const f32 d = to_f32(*at<DELTA>(p.delta, row, n)), delta_a = HAS_DELTA_A ? to_f32(*at<DELTA_A>(p.delta_a, row, n)) : d;
  const complex64 decay = Method::decay(Method::prepare(a), delta_a);
  const complex64 input = Method::amplify(a, d, scale(driven, Method::INPUT_STEP ? d : 1.f));
  assign(*at<STATE>(p.state, slot, n), mul_add(decay, read<STATE>(p.state, slot, n), input));
}

DEVICE void put_output(const Params& p, i64 row, bool used, i64 line, complex64 total) {
  if constexpr (COMPLEX_OUTPUT) {
    assign(*at<Y>(p.y, row, line), total);
  } else {
    f32 y = used ? p.factor * total.re : 0.f;
    if (HAS_SKIP && used) y = __fmaf_rn(to_f32(*at<SKIP>(p.skip, line)), read<U>(p.u, row, line).re, y);
    assign(*at<Y>(p.y, row, line), y);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) simplified_state_update(const __grid_constant__ Params p) {
  const Rows rows(p);
  // a lane finishes the row of its number
  const int r = threadIdx.x % 32;
  complex64 sum[ROWS];
  Rows::each_line(p.dstate, [&](i64 n) {
    rows.multiply<B, U, false>(sum, p.b, n, p.dim, p.u);
    const Own own(rows, sum, r);
    if (own.slot >= 0) move_state(p, rows.first + r, own.slot, n, own.sum);
  });
  meet_all();
  Rows::each_line(p.dim, [&](i64 line) {
    rows.multiply<C, STATE, true>(sum, p.c, line, p.dstate, p.state);
    const Own own(rows, sum, r);
    if (r < ROWS && rows.first + r < p.rows) put_output(p, rows.first + r, own.slot >= 0, line, own.sum);
  });
}
