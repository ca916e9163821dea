// One product of matrices on tensor cores, C (ROWS x COLUMNS) = A B, as mma.cuh has its pieces: a block for all, a warp for 16 rows. A and B lie
// densely, A as lines of rows (or of columns, A_TRANSPOSED), B as lines of columns (or of rows, B_TRANSPOSED).

constexpr int THREADS = ROWS / 16 * 32;
constexpr bool EXACT = PRODUCT == Product::Exact;
constexpr int SIZE = int(sizeof(E));
constexpr int DEPTH_AT_ONCE = PRODUCT == Product::Tf32 || PRODUCT == Product::SplitTf32 ? 8 : 16;

struct Extent { int lines, length; };
constexpr Extent A_EXTENT = {A_TRANSPOSED ? DEPTH : ROWS, A_TRANSPOSED ? ROWS : DEPTH};
constexpr Extent B_EXTENT = {B_TRANSPOSED ? DEPTH : COLUMNS, B_TRANSPOSED ? COLUMNS : DEPTH};
// an odd number of units of 16 bytes, against bank conflicts
constexpr int A_PITCH = A_EXTENT.length * SIZE + 16, B_PITCH = B_EXTENT.length * SIZE + 16;

// Copies a matrix into shared memory; what lies behind `depth` rows of B (columns of A) becomes zero.
template <int LINES, int LENGTH, int PITCH, bool DEPTH_IS_LINE> DEVICE void copy(char* to, const E* from, int depth) {
  constexpr int UNIT = 16 / SIZE, UNITS = LENGTH / UNIT;
  each<LINES * UNITS, THREADS>([&](int i, int) {
    const int line = i / UNITS, unit = i % UNITS;
    copy_async_16_or_zero(to + line * PITCH + unit * 16, from + line * LENGTH + unit * UNIT, (DEPTH_IS_LINE ? line : unit * UNIT) < depth);
  });
}

// Numbers of a line of f32 that are two neighbours of a fragment.
DEVICE void split_pair(u32 (&terms)[3], const char* tile, int pitch, int line, int column) {
  const f32* const pair = reinterpret_cast<const f32*>(tile + line * pitch) + column;
  split_bf16(terms, pair[0], pair[1]);
}

// Writes the fragments of a warp's rows.
DEVICE void put(f32* c, const FragmentC (&sums)[COLUMNS / 8]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = 2 * (lane % 4);
#pragma unroll
  for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * COLUMNS + n * 8 + column + i % 2] = sums[n].v[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) tensor_cores(const __grid_constant__ ProductParams p) {
  __shared__ __align__(16) char a_tile[A_EXTENT.lines * A_PITCH];
  __shared__ __align__(16) char b_tile[B_EXTENT.lines * B_PITCH];
  copy<A_EXTENT.lines, A_EXTENT.length, A_PITCH, A_TRANSPOSED>(a_tile, static_cast<const E*>(p.a), p.depth);
  copy<B_EXTENT.lines, B_EXTENT.length, B_PITCH, B_TRANSPOSED>(b_tile, static_cast<const E*>(p.b), p.depth);
  copy_async_commit();
  copy_async_wait();
  __syncthreads();

  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4, row = threadIdx.x / 32 * 16;
  FragmentC sums[COLUMNS / 8] = {};
#pragma unroll
  for (int k = 0; k < DEPTH; k += DEPTH_AT_ONCE) {
    const char* const a_at = A_TRANSPOSED ? a_tile + k * A_PITCH + row * SIZE : a_tile + row * A_PITCH + k * SIZE;
    FragmentA a, a_pair[2], a_three[3];
    if constexpr (PRODUCT == Product::SplitBf16) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 terms[3];
        split_pair(terms, a_tile, A_PITCH, row + group + i % 2 * 8, k + 2 * pair + i / 2 * 8);
        for (int term = 0; term < 3; term++) a_three[term].v[i] = terms[term];
      }
    } else {
      load_a<A_PITCH, A_TRANSPOSED>(a, a_at);
    }
    if constexpr (PRODUCT == Product::SplitTf32) split_tf32(a_pair, a);
#pragma unroll
    for (int column = 0; column < COLUMNS; column += 16) {
      FragmentB b[2];
      const char* const b_at = B_TRANSPOSED ? b_tile + k * B_PITCH + column * SIZE : b_tile + column * B_PITCH + k * SIZE;
      if constexpr (PRODUCT != Product::SplitBf16) load_b<B_PITCH, B_TRANSPOSED>(b, b_at);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        FragmentC& c = sums[column / 8 + half];
        if constexpr (EXACT) {
          // no product of f32: those are the other cases
          multiply<Choose<EXACT, E, bf16>::type>(c, a, b[half]);
        } else if constexpr (PRODUCT == Product::Tf32) {
          multiply<tf32>(c, round_tf32(a), round_tf32(b[half]));
        } else if constexpr (PRODUCT == Product::SplitTf32) {
          FragmentB b_pair[2];
          split_tf32(b_pair, b[half]);
          multiply<tf32>(c, a_pair, b_pair);
        } else {
          FragmentB b_three[3];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            u32 terms[3];
            split_pair(terms, b_tile, B_PITCH, column + half * 8 + group, k + 2 * pair + i * 8);
            for (int term = 0; term < 3; term++) b_three[term].v[i] = terms[term];
          }
          multiply<bf16>(c, a_three, b_three);
        }
      }
    }
  }
  put(p.c, sums);
}
