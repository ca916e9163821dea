// The products of `product.cu` by warpgroups (`wgmma`), where a factor and the result lie along time: the same sums, of numbers split into the same
// terms.
//
// One factor is streamed: the copy engine brings it as it is, 128 of its lines or steps for a block, and each warpgroup splits what it needs in
// registers, which are the first operand of its products. The other one is held: a third warpgroup splits 64 of its lines into shared memory, where
// the products of both others read them. A map product is computed transposed, (step, row), so that the factor along time is the streamed one.
//
// A complex product is three real ones, of real parts, imaginary parts and sums of both. Tensor cores cut sums off instead of rounding them: the
// small products of DEPTH come first, then the large ones, and their sums are added to the whole ones outside of tensor cores.
//
// A block takes one tile after the other. While products run, the next numbers are copied and split; a ring of stages lies between.
#include "product.cuh"

typedef typename Choose<OVER_TIME, A, B>::type Streamed;
typedef typename Choose<OVER_TIME, B, A>::type Held;
constexpr int STREAMED_PARTS = PartsOf<Streamed>::COUNT, HELD_PARTS = PartsOf<Held>::COUNT;
constexpr int TERMS = A_TERMS;
static_assert(A_TERMS == B_TERMS && DEPTH == 32, "both factors are split alike");

// Real products: number q is of part q of each factor, or of its last one; part 2 is the sum of both. The real part alone of a complex product is
// one sum.
constexpr bool COMPLEX = STREAMED_PARTS == 2 && HELD_PARTS == 2, THREE = COMPLEX && OUT_PARTS == 2, DOT = COMPLEX && OUT_PARTS == 1;
constexpr int STREAMED_COUNT = THREE ? 3 : STREAMED_PARTS == 2 && (DOT || OUT_PARTS == 2) ? 2 : 1;
constexpr int HELD_COUNT = THREE ? 3 : HELD_PARTS == 2 && (DOT || OUT_PARTS == 2) ? 2 : 1;
constexpr int PRODUCTS = STREAMED_COUNT > HELD_COUNT ? STREAMED_COUNT : HELD_COUNT, SUMS = DOT ? 1 : PRODUCTS;
constexpr bool NEGATIVE = (OVER_TIME ? B_CONJUGATE : A_CONJUGATE) != DOT;   // the imaginary part of what is held

// A stage: boxes of the streamed factor, lines of 128 bytes; then panels of 64 lines of 128 bytes, each of two of the held factor's terms.
constexpr int LINES = 128, COLUMNS = 64, PANEL = 64 * 128, UNITS = 2;
constexpr int BOX_LINES = OVER_TIME ? LINES : DEPTH, BOX = BOX_LINES * 128, STREAMED_BYTES = LINES * DEPTH * int(sizeof(Streamed));
constexpr int PANELS = (HELD_COUNT * TERMS + 1) / 2, STAGE = STREAMED_BYTES + PANELS * PANEL, ALIGNMENT = 1024;
constexpr int STAGES = (SHARED - ALIGNMENT) / STAGE < 4 ? (SHARED - ALIGNMENT) / STAGE : 4;
static_assert(STAGES >= 2, "numbers are split while others are multiplied");

struct Barriers { Barrier full[STAGES], empty[STAGES]; };

// The tiles of a block: which lines are streamed and held, and the depths.
struct Tile {
  int row, column, slice;
  DEVICE Tile(const HopperParams& p, int i) {
    const int row_tiles = int(p.row_tiles), column_tiles = int(p.column_tiles);
    row = i % row_tiles * (OVER_TIME ? LINES : COLUMNS), i /= row_tiles;
    column = i % column_tiles * (OVER_TIME ? COLUMNS : LINES), slice = i / column_tiles;
  }
};

// ---- the held factor: a warpgroup

// Pairs of neighbours along the depth. Where these lie side by side in memory, half a warp has a line; otherwise a warp has neighbouring lines, and
// a thread whole 16 bytes of terms.
struct HeldNumbers {
  Held v[8][2];

  static DEVICE int warp() { return threadIdx.x % 128 / 32; }
  static DEVICE int line() { return HELD_LINES_FIRST ? warp() % 2 * 32 + threadIdx.x % 32 : warp() * 16 + threadIdx.x % 32 / 16 * 4; }
  static DEVICE int along() { return HELD_LINES_FIRST ? warp() / 2 * 16 : 2 * (threadIdx.x % 16); }
  // from the first pair to another one
  static constexpr DEVICE int down(int i) { return HELD_LINES_FIRST ? 0 : i / 4 * 8 + i % 4; }
  static constexpr DEVICE int on(int i) { return HELD_LINES_FIRST ? 2 * i : 0; }

  // numbers outside of the matrix count as zero
  DEVICE void load(const HopperParams& p, const Tile& tile, const Depths<int>& d) {
    const Strided& held = OVER_TIME ? p.b : p.a;
    const int first = OVER_TIME ? tile.column : tile.row;
    const int lines = at_most((OVER_TIME ? p.columns : p.rows) - first, COLUMNS), depth = at_most(p.depth - d.at, DEPTH);
    const int line_stride = HELD_LINES_FIRST ? 1 : int(held.stride[1]), stride = HELD_LINES_FIRST ? int(held.stride[2]) : 1;
    const Held* const from = at<Held>(held, d.batch, first, d.at) + line() * line_stride + along() * stride;
    const int lines_left = lines - line(), left = depth - along();
#pragma unroll
    for (int i = 0; i < 8; i++) {
      v[i][0] = v[i][1] = Held();
      if (down(i) >= lines_left) continue;
      const Held* const own = from + (down(i) * line_stride + on(i) * stride);
      if (HELD_WIDE && on(i) + 1 < left) {
        const Neighbours<Held, 2> both = *reinterpret_cast<const Neighbours<Held, 2>*>(own);
        v[i][0] = both.v[0], v[i][1] = both.v[1];
      } else {
        if (on(i) < left) v[i][0] = own[0];
        if (on(i) + 1 < left) v[i][1] = own[stride];
      }
    }
  }

  static DEVICE f32 part(const Held& number, int part) {
    const complex64 v = to_complex(number);
    const f32 im = NEGATIVE ? -v.im : v.im;
    return part == 0 ? v.re : part == 1 ? im : v.re + im;
  }

  DEVICE void put(char* panels) const {
    constexpr int TOGETHER = HELD_LINES_FIRST ? 4 : 1;   // pairs of a write
#pragma unroll
    for (int i = 0; i < 8; i += TOGETHER) {
      // Over time a thread of a product has four neighbouring steps: two at the place of its first columns, two at that of its last ones.
      const int k = along() + on(i), place = OVER_TIME ? k / 16 * 16 + k % 16 / 4 * 2 + k / 2 % 2 * 8 : k;
      char* const own = panels + (line() + down(i)) * 128 + place % 8 * 2;
#pragma unroll(HELD_LINES_FIRST && THREE ? 1 : HELD_COUNT)
      for (int q = 0; q < HELD_COUNT; q++) {
        u32 terms[4][TERMS];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) split_bf16(terms[j], part(v[i + j][0], q), part(v[i + j][1], q));
#pragma unroll
        for (int term = 0; term < TERMS; term++) {
          const int c = q * TERMS + term, unit = (c % 2 * 4 + place / 8) ^ (line() + down(i)) % 8;
          char* const to = own + c / 2 * PANEL + unit * 16;
          if constexpr (TOGETHER == 4)
            *reinterpret_cast<uint4*>(to) = make_uint4(terms[0][term], terms[1][term], terms[2][term], terms[3][term]);
          else
            *reinterpret_cast<u32*>(to) = terms[0][term];
        }
      }
    }
  }
};

// Starts to copy a depth of the streamed factor.
DEVICE void copy_streamed(const HopperParams& p, const Tile& tile, const Depths<int>& d, char* to, Barrier& full) {
  constexpr int BOXES = STREAMED_BYTES / BOX, STEPS = 128 / int(sizeof(Streamed)), PARTS = STREAMED_PARTS;
  barrier_arrive_expecting(full, STREAMED_BYTES);
#pragma unroll
  for (int i = 0; i < BOXES; i++) {
    const int step = (OVER_TIME ? d.at : tile.column) + i * STEPS;
    const int from[3] = {step * PARTS, OVER_TIME ? tile.row : d.at, d.batch};
    tile_load(to + i * BOX, p.streamed, full, from);
  }
}

DEVICE void split_held(const HopperParams& p, char* shared, Barriers& barriers) {
  Turn<STAGES> turn;
#pragma unroll 1
  for (int i = blockIdx.x; i < p.tiles; i += gridDim.x) {
    const Tile tile(p, i);
#pragma unroll 1
    for (Depths<int> d(p, tile.slice); d.left > 0; d.next(p), turn.next()) {
      HeldNumbers held;
      held.load(p, tile, d);
      char* const stage = shared + turn.at * STAGE;
      barrier_wait(barriers.empty[turn.at], turn.phase ^ 1);
      if (threadIdx.x % 128 == 0) copy_streamed(p, tile, d, stage, barriers.full[turn.at]);
      held.put(stage + STREAMED_BYTES);
      fence_async();
      barrier_arrive(barriers.full[turn.at]);
    }
  }
}

// ---- products: two warpgroups

// The numbers of 16 of the depth that this thread has: those of each register of a fragment.
struct StreamedNumbers {
  Streamed v[4][2];

  DEVICE void load(const char* boxes, int depth) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16, g = lane / 4, t = lane % 4;
    constexpr int SIZE = sizeof(Streamed);
    if constexpr (OVER_TIME) {
      const int byte = (depth + 4 * t) * SIZE, unit = byte % 128 / 16;
      const char* const line = boxes + byte / 128 * BOX + (first + g) * 128;
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const char* const from = line + r * 8 * 128 + ((unit + k * SIZE / 8) ^ g) * 16 + k * 2 * SIZE % 16;
          const Neighbours<Streamed, 2> two = *reinterpret_cast<const Neighbours<Streamed, 2>*>(from);
          v[r + 2 * k][0] = two.v[0], v[r + 2 * k][1] = two.v[1];
        }
    } else {
      // rows g and g + 8 are neighbouring steps
      const int byte = (first + 2 * g) * SIZE, unit = byte % 128 / 16;
      const char* const box = boxes + byte / 128 * BOX + byte % 16;
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int line = depth + 2 * t + 8 * k + j;
          const Neighbours<Streamed, 2> two = *reinterpret_cast<const Neighbours<Streamed, 2>*>(box + line * 128 + (unit ^ line % 8) * 16);
          v[2 * k][j] = two.v[0], v[2 * k + 1][j] = two.v[1];
        }
    }
  }

  static DEVICE f32 part(const Streamed& number, int part) {
    const complex64 v = to_complex(number);
    return part == 0 ? v.re : part == 1 ? v.im : v.re + v.im;
  }

  DEVICE void split(FragmentA (&to)[STREAMED_COUNT][TERMS]) const {
#pragma unroll
    for (int q = 0; q < STREAMED_COUNT; q++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 terms[TERMS];
        split_bf16(terms, part(v[i][0], q), part(v[i][1], q));
#pragma unroll
        for (int term = 0; term < TERMS; term++) to[q][term].v[i] = terms[term];
      }
  }
};

constexpr DEVICE int least(int a, int b) { return a < b ? a : b; }

// The inputs that a skip multiplies are read before a tile's products, so that they are there after them.
struct Extra {
  EXTRA v[HAS_SKIP ? 32 : 1];

  DEVICE void load(const HopperParams& p, const Tile& tile) {
    if constexpr (HAS_SKIP) {
      const int row = tile.row + 2 * (threadIdx.x % 4), column = tile.column + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 * 2;
      const EXTRA* const from = at<EXTRA>(p.extra, tile.slice, row, column);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          EXTRA &first = v[4 * j + k], &second = v[4 * j + k + 2];
          first = second = EXTRA();
          if (row + 8 * j + k >= p.rows) continue;
          const EXTRA* const own = from + (8 * j + k) * p.extra.stride[1];
          if (EXTRA_WIDE && column + 1 < p.columns) {
            const Neighbours<EXTRA, 2> both = *reinterpret_cast<const Neighbours<EXTRA, 2>*>(own);
            first = both.v[0], second = both.v[1];
          } else {
            if (column < p.columns) first = own[0];
            if (column + 1 < p.columns) second = own[p.extra.stride[2]];
          }
        }
    }
  }
};

struct Consumer {
  Sums<64> parts[OUT_PARTS], sums[SUMS];

  static DEVICE u64 held(const char* panels, int product, int term, int depth) {
    const int c = least(product, HELD_COUNT - 1) * TERMS + term;
    return operand(panels + c / 2 * PANEL + c % 2 * 64 + depth * 2);
  }

  // products of terms but the largest ones
  template <bool FIRST> DEVICE void add_small(const FragmentA (&a)[STREAMED_COUNT][TERMS], const char* panels, int depth) {
#pragma unroll
    for (int order = TERMS - 1; order > 0; order--)
#pragma unroll
      for (int i = 0; i <= order; i++)
#pragma unroll
        for (int q = 0; q < PRODUCTS; q++) {
          const bool add = !FIRST || order < TERMS - 1 || i > 0 || (DOT && q > 0);
          multiply<false>(sums[least(q, SUMS - 1)], a[least(q, STREAMED_COUNT - 1)][i], held(panels, q, order - i, depth), add);
        }
  }
  DEVICE void add_large(const FragmentA (&a)[STREAMED_COUNT], const char* panels, int depth) {
#pragma unroll
    for (int q = 0; q < PRODUCTS; q++)
      multiply<false>(sums[least(q, SUMS - 1)], a[least(q, STREAMED_COUNT - 1)], held(panels, q, 0, depth), true);
  }
  DEVICE void finish() {
    products_wait();
#pragma unroll
    for (int q = 0; q < SUMS; q++) pin(sums[q].v);
  }

  DEVICE void add_stage(const char* stage) {
    const char* const panels = stage + STREAMED_BYTES;
    StreamedNumbers numbers;
    FragmentA a[STREAMED_COUNT][TERMS], large[STREAMED_COUNT];
    numbers.load(stage, 0);
    numbers.split(a);
    products_fence();
    add_small<true>(a, panels, 0);
    products_commit();
#pragma unroll
    for (int q = 0; q < STREAMED_COUNT; q++) large[q] = a[q][0];
    finish();
    numbers.load(stage, 16);
    numbers.split(a);
    products_fence();
    add_small<false>(a, panels, 16);
    add_large(large, panels, 0);
#pragma unroll
    for (int q = 0; q < STREAMED_COUNT; q++) large[q] = a[q][0];
    add_large(large, panels, 16);
    products_commit();
    finish();
  }

  DEVICE void add_sums() {
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if constexpr (THREE) {
        const f32 re = sums[0].v[i], im = sums[1].v[i];
        parts[0].v[i] += re - im;
        parts[OUT_PARTS - 1].v[i] += sums[SUMS - 1].v[i] - re - im;
      } else {
#pragma unroll
        for (int q = 0; q < SUMS; q++) parts[q].v[i] += sums[q].v[i];
      }
    }
  }

  DEVICE complex64 number(int i) const { return {parts[0].v[i], OUT_PARTS == 2 ? parts[OUT_PARTS - 1].v[i] : 0.f}; }

  // job(place in sums, row, column) for some pairs of neighbouring columns: the second one of a pair lies APART from the first one
  static constexpr int APART = OVER_TIME ? 1 : 2, SOME = 4;
  template <typename Job> static DEVICE void each_pair(const HopperParams& p, const Tile& tile, int begin, Job job) {
    const int first = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, pair = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = begin; j < begin + SOME; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int row = tile.row + (OVER_TIME ? first + g + 8 * k : 8 * j + pair + k);
        const int column = tile.column + (OVER_TIME ? 8 * j + pair : first + 2 * g);
        if (row < p.rows && column < p.columns) job(4 * j + (OVER_TIME ? 2 * k : k), row, column);
      }
  }

  DEVICE void write(const HopperParams& p, const Tile& tile, const Extra& extra) const {
#pragma unroll
    for (int begin = 0; begin < 8; begin += SOME) {
      f32 factors[32];
      if constexpr (HAS_SKIP)
        each_pair(p, tile, begin, [&](int i, int row, int) { factors[i] = to_f32(*at<SKIP>(p.skip, row)); });
      each_pair(p, tile, begin, [&](int i, int row, int column) {
        const complex64 pair[2] = {number(i), number(i + APART)};
        if constexpr (OVER_TIME)
          put_terms(p, tile.slice, row, column, pair);
        else if constexpr (HAS_SKIP)
          put_pair(p, tile.slice, row, column, pair, {factors[i] * to_complex(extra.v[i]).re, factors[i] * to_complex(extra.v[i + APART]).re});
        else
          put_pair(p, tile.slice, row, column, pair, {0.f, 0.f});
      });
    }
  }

  DEVICE void run(const HopperParams& p, const char* shared, Barriers& barriers) {
    Turn<STAGES> turn;
#pragma unroll 1
    for (int i = blockIdx.x; i < p.tiles; i += gridDim.x) {
      int left = Depths<int>(p, Tile(p, i).slice).left;
      Extra extra;
      extra.load(p, Tile(p, i));
#pragma unroll
      for (int part = 0; part < OUT_PARTS; part++)
#pragma unroll
        for (int k = 0; k < 32; k++) parts[part].v[k] = 0.f;
#pragma unroll 1
      for (; left > 0; left--, turn.next()) {
        barrier_wait(barriers.full[turn.at], turn.phase);
        add_stage(shared + turn.at * STAGE);
        warp_arrive(barriers.empty[turn.at]);
        add_sums();
      }
      write(p, Tile(p, i), extra);
    }
  }
};

extern "C" __global__ void __launch_bounds__(128 * (UNITS + 1), 1) complex_product_hopper(const __grid_constant__ HopperParams p) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ Barriers barriers;
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(barriers.full[i], 129), barrier_init(barriers.empty[i], 4 * UNITS);
    barriers_are_ready();
  }
  __syncthreads();
  if (threadIdx.x / 128 == UNITS) {
    registers_down<HELD_REGISTERS>();
    split_held(p, shared, barriers);
  } else {
    registers_up<PRODUCT_REGISTERS>();
    Consumer().run(p, shared, barriers);
  }
}
