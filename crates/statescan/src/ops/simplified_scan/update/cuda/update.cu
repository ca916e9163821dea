// One step of a simplified scan: a cluster of blocks takes ROWS rows. Its warps share out the states, give each its input B u and move it on; when
// all of them have, they share out the outputs, y = C x. A warp reads a line of a map once for all rows; its lanes take every 32nd column and add up
// their sums by shuffles, in a fixed order. Between slots a row is a sequence, token by token: each block has the states of the cluster's sequences, which
// stay in shared memory, and a state that a warp moves on goes to all of them.
#include "step_slots.cuh"

typedef Rule<METHOD> Method;
constexpr int WARPS = THREADS / 32;

template <typename E> DEVICE complex64 read(const Strided& v, i64 i, i64 j) {
  complex64 out;
  convert(out, *at<E>(v, i, j));
  return out;
}

DEVICE complex64 over_lanes(complex64 v) { return {sum_of_warp(v.re), sum_of_warp(v.im)}; }

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
  i64 row[ROWS], slot[ROWS];

  static DEVICE i64 first() { return i64(blockIdx.x / CLUSTER) * ROWS; }
  static DEVICE Rows of(const Params& p) {
    Rows rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows.row[r] = first() + r, rows.slot[r] = first() + r < p.rows ? slot_of(p, first() + r) : -1;
    return rows;
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

  // the products of a line of a map and what rows have: number(r, column)
  template <typename MAP, typename Number>
  DEVICE void multiply(complex64 (&sum)[ROWS], const Strided& map, i64 line, i64 columns, Number number) const {
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = {};
    for (i64 column = threadIdx.x % 32; column < columns; column += 32) {
      const complex64 factor = read<MAP>(map, line, column);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
        if (slot[r] >= 0) sum[r] = mul_add(factor, number(r, column), sum[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] = over_lanes(sum[r]);
  }
  DEVICE void multiply_inputs(complex64 (&sum)[ROWS], const Params& p, i64 line) const {
    multiply<B>(sum, p.b, line, p.dim, [&](int r, i64 column) { return read<U>(p.u, row[r], column); });
  }
};

// A lane finishes the row of its number, if there is one.
struct Own {
  i64 row = 0, slot = -1;
  complex64 sum = {};

  DEVICE Own(const Rows& rows, const complex64 (&sums)[ROWS], int lane) {
#pragma unroll
    for (int k = 0; k < ROWS; k++)
      if (lane == k) row = rows.row[k], slot = rows.slot[k], sum = sums[k];
  }
};

DEVICE complex64 moved(const Params& p, i64 row, i64 n, complex64 driven, complex64 before) {
  complex64 a;
  convert(a, *at<A>(p.a, n));
  const f32 d = to_f32(*at<DELTA>(p.delta, row, n)), delta_a = HAS_DELTA_A ? to_f32(*at<DELTA_A>(p.delta_a, row, n)) : d;
  const complex64 decay = Method::decay(Method::prepare(a), delta_a);
  const complex64 input = Method::amplify(a, d, scale(driven, Method::INPUT_STEP ? d : 1.f));
  return mul_add(decay, before, input);
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

// A state in the shared memory of every block of the cluster.
DEVICE void put_everywhere(STATE* to, STATE value) {
  if constexpr (CLUSTER > 1) {
    const u32 here = u32(__cvta_generic_to_shared(to));
#pragma unroll
    for (u32 block = 0; block < CLUSTER; block++) {
      asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v2.f32 [there], {%2, %3}; }" ::"r"(here), "r"(block),
                   "f"(value.re), "f"(value.im)
                   : "memory");
    }
  } else {
    *to = value;
  }
}

// The sequences of a cluster; those that there are not have no tokens.
struct TokenRows {
  STATE* kept;  // (dstate, ROWS), of this block
  i64 most = 0;

  DEVICE TokenRows(const Params& p, STATE* memory) : kept(memory) {
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
      const Tokens own = tokens(p, r);
      most = max(most, own.end - own.first);
    }
  }
  // They are read again for each token: registers are few.
  static DEVICE Tokens tokens(const Params& p, int r) {
    const i64 sequence = Rows::first() + r;
    return sequence < p.slots.sequences ? tokens_of(p.slots, sequence) : Tokens{0, 0};
  }
  DEVICE STATE& state(i64 n, int r) const { return kept[n * ROWS + r]; }
  // the states that are read; those of sequences without tokens go on to where the last ones go
  DEVICE void load(const Params& p) const {
    for (i64 i = threadIdx.x; i < p.dstate * ROWS; i += THREADS) {
      const i64 n = i / ROWS, sequence = Rows::first() + i % ROWS;
      const i64 slot = sequence < p.slots.sequences ? slot_read(p.slots, sequence) : -1;
      kept[i] = slot < 0 ? STATE{} : *at<STATE>(p.state, slot, n);
      if (sequence >= p.slots.sequences || blockIdx.x % CLUSTER != 0) continue;
      const Tokens none = tokens_of(p.slots, sequence);
      const i64 to = none.first == none.end ? slot_written(p.slots, sequence, none, none.first - 1) : -1;
      if (to >= 0) *at<STATE>(p.state, to, n) = kept[i];
    }
  }

  // The rows of the next tokens, with numbers of sequences in the place of slots.
  static DEVICE Rows next(const Params& p, i64 token) {
    Rows rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const Tokens own = tokens(p, r);
      rows.row[r] = own.first + token, rows.slot[r] = rows.row[r] < own.end ? Rows::first() + r : -1;
    }
    return rows;
  }
  DEVICE void step(const Params& p, i64 token, int r) const {
    const Rows rows = next(p, token);
    complex64 sum[ROWS];
    Rows::each_line(p.dstate, [&](i64 n) {
      rows.multiply_inputs(sum, p, n);
      const Own own(rows, sum, r);
      if (own.slot < 0) return;
      STATE after;
      assign(after, moved(p, own.row, n, own.sum, state(n, r)));
      put_everywhere(&state(n, r), after);
      const i64 to = slot_written(p.slots, own.slot, tokens_of(p.slots, own.slot), own.row);
      if (to >= 0) *at<STATE>(p.state, to, n) = after;
    });
    meet_all();
    Rows::each_line(p.dim, [&](i64 line) {
      rows.multiply<C>(sum, p.c, line, p.dstate, [&](int r, i64 column) { return state(column, r); });
      const Own own(rows, sum, r);
      if (own.slot >= 0) put_output(p, own.row, true, line, own.sum);
    });
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) simplified_state_update(const __grid_constant__ Params p) {
  // a lane finishes the row of its number
  const int r = threadIdx.x % 32;
  if constexpr (SLOTTED) {
    extern __shared__ __align__(16) char shared[];
    const TokenRows sequences(p, reinterpret_cast<STATE*>(shared));
    sequences.load(p);
#pragma unroll 1
    for (i64 token = 0; token < sequences.most; token++) {
      // every block has its states, and has read those of the token before
      meet_all();
      sequences.step(p, token, r);
    }
    return;
  }
  const Rows rows = Rows::of(p);
  complex64 sum[ROWS];
  Rows::each_line(p.dstate, [&](i64 n) {
    rows.multiply_inputs(sum, p, n);
    const Own own(rows, sum, r);
    if (own.slot >= 0) assign(*at<STATE>(p.state, own.slot, n), moved(p, own.row, n, own.sum, read<STATE>(p.state, own.slot, n)));
  });
  meet_all();
  Rows::each_line(p.dim, [&](i64 line) {
    rows.multiply<C>(sum, p.c, line, p.dstate, [&](int r, i64 column) { return read<STATE>(p.state, rows.slot[r], column); });
    const Own own(rows, sum, r);
    if (r < ROWS && own.row < p.rows) put_output(p, own.row, own.slot >= 0, line, own.sum);
  });
}
