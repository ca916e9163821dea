// Products of complex or real matrices on tensor cores, to the accuracy of f32: V = B u, y = C x, and what belongs to them in the backward pass.
//
//   to[b](m, n) = factor sum_k a[b](m, k) b[b](k, n)   (+ skip(m) Re extra[b](m, n))
//   OVER_TIME: to(m, n) = factor sum_b sum_k a[b](m, k) b[b](k, n), a term for each slice of (b, k), which are summed afterwards
//
// A block forms ROWS x COLUMNS of it. Numbers are split into TERMS terms of bf16 on their way into shared memory, once for a block: three have all
// bits of an f32, and those of their products that matter are six (see mma.cuh). Tensor cores cut sums off instead of rounding them, so what they
// sum over 16 of the depth is added to the whole sum outside of them.
//
// A complex product is four real ones, or two where one side or the result is real. (Three, of sums of parts, would be more traffic of shared memory,
// which binds beside the tensor cores.)
#include "product.cuh"

constexpr int A_PARTS = PartsOf<A>::COUNT, B_PARTS = PartsOf<B>::COUNT;
constexpr int THREADS = 2 * ROWS, PAIRS = COLUMNS / 16;   // a warp has 16 rows
static_assert(ROWS % 16 == 0 && COLUMNS % 16 == 0 && DEPTH % 16 == 0, "fragments are 16 wide");

// A tile of shared memory for each part and each term of its numbers: lines of rows or columns, or lines along the depth
constexpr int LINE = 2 * DEPTH + 16, A_TILE = ROWS * LINE;
constexpr int B_LINES = OVER_TIME ? COLUMNS : DEPTH, B_LENGTH = OVER_TIME ? DEPTH : COLUMNS;
constexpr int B_LINE = 2 * B_LENGTH + 16, B_TILE = B_LINES * B_LINE;
static_assert(B_AT - A_AT == A_PARTS * A_TERMS * A_TILE && SHARED_END - B_AT == B_PARTS * B_TERMS * B_TILE, "the plan has counted the same");

// The numbers of LINES x LENGTH that this thread brings into shared memory, two neighbours of a line at a time. Neighbouring threads have
// neighbouring lines, or neighbours of one line.
template <typename E, int LINES, int LENGTH, bool LINES_FIRST, bool WIDE> struct Factor {
  static constexpr int PAIRS = LENGTH / 2, COUNT = LINES * PAIRS / THREADS;
  // from one of a thread's pairs to its next one
  static constexpr int DOWN = LINES_FIRST ? 0 : THREADS / PAIRS, ALONG = LINES_FIRST ? 2 * (THREADS / LINES) : 0;
  static_assert(THREADS % (LINES_FIRST ? LINES : PAIRS) == 0, "a thread stays in its line or in its columns");
  E v[COUNT][2];

  static DEVICE int line(int i) { return int(threadIdx.x) % (LINES_FIRST ? LINES : THREADS) / (LINES_FIRST ? 1 : PAIRS) + i * DOWN; }
  static DEVICE int along(int i) { return 2 * (LINES_FIRST ? int(threadIdx.x) / LINES : int(threadIdx.x) % PAIRS) + i * ALONG; }

  // numbers outside of the matrix count as zero
  DEVICE void load(const E* from, i64 line_stride, i64 stride, int lines, int length) {
    const E* own = from + (line(0) * line_stride + along(0) * stride);
    const i64 next = DOWN * line_stride + ALONG * stride;
#pragma unroll
    for (int i = 0; i < COUNT; i++, own += next) {
      v[i][0] = v[i][1] = E();
      if (line(i) >= lines) continue;
      if (WIDE && along(i) + 1 < length) {
        const Neighbours<E, 2> both = *reinterpret_cast<const Neighbours<E, 2>*>(own);
        v[i][0] = both.v[0], v[i][1] = both.v[1];
      } else {
        if (along(i) < length) v[i][0] = own[0];
        if (along(i) + 1 < length) v[i][1] = own[stride];
      }
    }
  }

  template <int TERMS, bool CONJUGATE, int PITCH, int TILE> DEVICE void put(char* tiles) const {
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const complex64 both[2] = {to_complex(v[i][0]), to_complex(v[i][1])};
#pragma unroll
      for (int part = 0; part < PartsOf<E>::COUNT; part++) {
        const f32 sign = CONJUGATE && part == 1 ? -1.f : 1.f;
        u32 terms[TERMS];
        split_bf16(terms, sign * part_of(both[0], part), sign * part_of(both[1], part));
#pragma unroll
        for (int term = 0; term < TERMS; term++)
          *reinterpret_cast<u32*>(tiles + (part * TERMS + term) * TILE + line(i) * PITCH + 2 * along(i)) = terms[term];
      }
    }
  }
};

// A warp forms these sums, of 16 rows x 8 columns each.
struct Sums {
  FragmentC v[2 * PAIRS][OUT_PARTS];

  DEVICE void clear() {
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++)
#pragma unroll
      for (int part = 0; part < OUT_PARTS; part++) v[j][part] = FragmentC();
  }

  // adds the product of what lies in shared memory
  DEVICE void add(const char* a_tiles, const char* b_tiles) {
#pragma unroll 1
    for (int depth = 0; depth < DEPTH; depth += 16) {
      FragmentA a[A_PARTS][A_TERMS];
#pragma unroll
      for (int part = 0; part < A_PARTS; part++)
#pragma unroll
        for (int term = 0; term < A_TERMS; term++)
          load_a<LINE>(a[part][term], a_tiles + (part * A_TERMS + term) * A_TILE + threadIdx.x / 32 * 16 * LINE + 2 * depth);
      const char* const b = b_tiles + depth * (OVER_TIME ? 2 : B_LINE);
#pragma unroll
      for (int j = 0; j < PAIRS; j++) add_block(v[2 * j], v[2 * j + 1], a, b + 16 * j * (OVER_TIME ? B_LINE : 2));
    }
  }

  // Terms of b one after the other, the small ones first, each with the terms of a that matter beside it.
  static DEVICE void add_block(FragmentC (&first)[OUT_PARTS], FragmentC (&second)[OUT_PARTS], const FragmentA (&a)[A_PARTS][A_TERMS],
                               const char* b_tiles) {
    FragmentC sum[2][OUT_PARTS], minus[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      minus[k] = FragmentC();
#pragma unroll
      for (int part = 0; part < OUT_PARTS; part++) sum[k][part] = FragmentC();
    }
#pragma unroll
    for (int j = B_TERMS - 1; j >= 0; j--) {
      FragmentB b[B_PARTS][2];
#pragma unroll
      for (int part = 0; part < B_PARTS; part++) load_b<B_LINE, !OVER_TIME>(b[part], b_tiles + (part * B_TERMS + j) * B_TILE);
#pragma unroll
      for (int i = A_TERMS - 1; i >= 0; i--) {
        if (i + j >= (A_TERMS > B_TERMS ? A_TERMS : B_TERMS)) continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
          multiply<bf16>(sum[k][0], a[0][i], b[0][k]);
          if constexpr (OUT_PARTS == 2 && A_PARTS == 2) multiply<bf16>(sum[k][1], a[A_PARTS - 1][i], b[0][k]);
          if constexpr (OUT_PARTS == 2 && B_PARTS == 2) multiply<bf16>(sum[k][OUT_PARTS - 1], a[0][i], b[B_PARTS - 1][k]);
          if constexpr (A_PARTS == 2 && B_PARTS == 2) multiply<bf16>(minus[k], a[A_PARTS - 1][i], b[B_PARTS - 1][k]);
        }
      }
    }
#pragma unroll
    for (int part = 0; part < OUT_PARTS; part++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        first[part].v[i] += part == 0 ? sum[0][0].v[i] - minus[0].v[i] : sum[0][part].v[i];
        second[part].v[i] += part == 0 ? sum[1][0].v[i] - minus[1].v[i] : sum[1][part].v[i];
      }
  }

  // job(row, column, parts of two neighbouring columns) within the block
  template <typename Job> DEVICE void each_pair(Job job) const {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        complex64 pair[2];
#pragma unroll
        for (int k = 0; k < 2; k++) pair[k] = {v[j][0].v[2 * r + k], OUT_PARTS == 2 ? v[j][OUT_PARTS - 1].v[2 * r + k] : 0.f};
        job(row + 8 * r, column + 8 * j, pair);
      }
  }
};

// Factors of a depth into shared memory. All is on its way before the first of it is split.
DEVICE void load_factors(char* a_tiles, char* b_tiles, const Params& p, const Depths<i64>& d, i64 row, i64 column) {
  const int rows = at_most(p.rows - row, ROWS), columns = at_most(p.columns - column, COLUMNS), depth = at_most(p.depth - d.at, DEPTH);
  Factor<A, ROWS, DEPTH, A_LINES_FIRST, A_WIDE> a;
  Factor<B, B_LINES, B_LENGTH, B_LINES_FIRST, B_WIDE> b;
  a.load(at<A>(p.a, d.batch, row, d.at), p.a.stride[1], p.a.stride[2], rows, depth);
  if constexpr (OVER_TIME)
    b.load(at<B>(p.b, d.batch, column, d.at), p.b.stride[1], p.b.stride[2], columns, depth);
  else
    b.load(at<B>(p.b, d.batch, d.at, column), p.b.stride[1], p.b.stride[2], depth, columns);
  a.template put<A_TERMS, A_CONJUGATE, LINE, A_TILE>(a_tiles);
  b.template put<B_TERMS, B_CONJUGATE, B_LINE, B_TILE>(b_tiles);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) complex_product(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) char shared[];
  char* const a_tiles = shared + A_AT;
  char* const b_tiles = shared + B_AT;
  i64 i = blockIdx.x;
  const i64 row = i % p.row_tiles * ROWS;
  i /= p.row_tiles;
  const i64 column = i % p.column_tiles * COLUMNS, slice = i / p.column_tiles;

  Depths<i64> depths(p, slice);
  Sums sums;
  sums.clear();
#pragma unroll 1
  for (; depths.left > 0; depths.next(p)) {
    load_factors(a_tiles, b_tiles, p, depths, row, column);
    __syncthreads();
    sums.add(a_tiles, b_tiles);
    __syncthreads();
  }
  sums.each_pair([&](int r, int c, complex64 (&pair)[2]) {
    if (row + r >= p.rows || column + c >= p.columns) return;
    if constexpr (OVER_TIME) {
      put_terms(p, slice, row + r, column + c, pair);
    } else {
      const f32 added[2] = {skip(p, slice, row + r, column + c, 0), skip(p, slice, row + r, column + c, 1)};
      put_pair(p, slice, row + r, column + c, pair, added);
    }
  });
}
