// The kernels on `mma.sync` are built from this: pieces of time, steps and decays within a piece, tiles of x, B, C, and states.
//
// Time is walked in pieces: up to SPAN steps that lie between two multiples of SPAN and belong to one sequence. Rows of a tile behind a piece's
// last step are zero, so that no number of another sequence is ever multiplied.
#pragma once
#include "inputs.cuh"

static_assert(given<Math>(MATH) && given_types<B, X, C, DY, Z>() &&
              given<int>(SPAN, COLUMNS, STATES, PADDED_COLUMNS, X_WIDTH, B_WIDTH, C_WIDTH, GATED_WIDTH, DY_WIDTH, Z_WIDTH) &&
              given<bool>(TURNS_ROWS, HAS_DY, IS_GATED, HAS_Z));

typedef typename Blocks<MATH>::Element Element;
typedef typename Blocks<MATH>::A BlockA;
typedef typename Blocks<MATH>::B BlockB;

constexpr bool HAS_SCALES = HasScales<MATH>::VALUE;
constexpr int WARPS = SPAN / 16, THREADS = 32 * WARPS;
static_assert(COLUMNS % 16 == 0 && STATES % (16 * WARPS) == 0, "blocks are 16 wide");

typedef Tile<MATH, SPAN, COLUMNS> XTile;     // (step, column of the head)
typedef Tile<MATH, SPAN, STATES> MapTile;    // (step, state)
typedef Rounded<Tile<MATH, STATES, COLUMNS, COLUMNS, Depth::OfLines>> StateTile;

// Rows are steps where y is formed, and the last ones are the most work. In every other block the first warp has them (TURNS_ROWS): warps with the
// same number in their blocks share a unit of tensor cores.
DEVICE int warp_of() {
  const int warp = threadIdx.x / 32;
  return TURNS_ROWS && blockIdx.x % 2 == 1 ? WARPS - 1 - warp : warp;
}
// the row and the first of two columns that a thread holds of a sum
DEVICE int group_of() { return threadIdx.x % 32 / 4; }
DEVICE int pair_of() { return 2 * (threadIdx.x % 4); }

// ---- steps of a piece

// Sums of log2 of the decays up to and with each step, in two terms, and the steps as weights; behind the last step they are as after it.
struct Steps {
  f32 high[SPAN], low[SPAN], weight[SPAN];
  // the decays themselves, of all steps up to this one and of all after it
  f32 before[SPAN], after[SPAN];
  // the scales of `before`, and of the products of `after` and `weight`
  f32 before_scale, after_scale;

  // log2 of the decay from after step j to after step i
  DEVICE f32 between(int j, int i) const {
    const f32 difference = high[i] - high[j];
    return MATH == Math::Exact ? difference + (low[i] - low[j]) : difference;
  }
  // the decay from after step j to after step i, and that of the piece
  DEVICE f32 decay(int j, int i) const { return exp2_fast(between(j, i)); }
  DEVICE f32 whole() const { return before[SPAN - 1]; }
};

// So many steps of a head in a row of the batch, from one on.
struct Lines { i64 batch, head, start; int count; };

// The first warp computes them; what it writes is there after the next barrier.
DEVICE void prepare_steps(Steps& steps, const Inputs& p, const Head& constants, const Lines& of) {
  if (threadIdx.x >= 32) return;
  constexpr int EACH = (SPAN + 31) / 32;
  const int first = EACH * threadIdx.x;
  f64 sum[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const bool there = first + k < of.count;
    StepSizes d = {};
    if (there) d = step_sizes(p, constants, of.batch, of.head, of.start + first + k);
    if (first + k < SPAN) steps.weight[first + k] = d.weight;
    sum[k] = f64(d.decay) * constants.rate;
    if (k > 0) sum[k] += sum[k - 1];
  }
  f64 before = sum[EACH - 1];
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const f64 other = __shfl_up_sync(~0u, before, far);
    if (int(threadIdx.x) >= far) before += other;
  }
  // the sum of the threads before this one
  before = __shfl_up_sync(~0u, before, 1);
  if (threadIdx.x == 0) before = 0.;
  const f64 whole = __shfl_sync(~0u, before + sum[EACH - 1], 31);
  Largest of_before, of_after;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    if (first + k >= SPAN) break;
    const f64 all = before + sum[k];
    const f32 high = f32(all), low = f32(all - f64(high));
    const f32 decay = exp2_fast(high);
    steps.high[first + k] = high, steps.low[first + k] = low;
    steps.before[first + k] = MATH == Math::Exact ? __fmaf_rn(decay, LN_2 * low, decay) : decay;
    steps.after[first + k] = exp2_fast(f32(whole - all));
    if constexpr (HAS_SCALES) of_before.see(steps.before[first + k]), of_after.see(steps.after[first + k] * steps.weight[first + k]);
  }
  if constexpr (HAS_SCALES) {
    of_before.join_warp(), of_after.join_warp();
    if (threadIdx.x == 0) steps.before_scale = of_before.scale(), steps.after_scale = of_after.scale();
  }
}

// ---- tiles

// job(i) for i below COUNT, divided among the threads, a few at a time: the addresses of all at once would take too many registers.
template <int COUNT, typename Job> DEVICE void each_of(Job job) {
#pragma unroll 2
  for (int i = threadIdx.x; i < COUNT; i += THREADS) job(i);
}

// Neighbours of tensor elements as elements of a tile.
template <typename T, int WIDTH> DEVICE void put_neighbours(char* to, const Neighbours<T, WIDTH>& some) {
  Neighbours<Element, WIDTH> out;
#pragma unroll
  for (int j = 0; j < WIDTH; j++) assign(out.v[j], to_f32(some.v[j]));
  *reinterpret_cast<Neighbours<Element, WIDTH>*>(to) = out;
}

// Starts to load `lines` lines of `length` elements, WIDTH of which lie side by side in memory; the rest of the tile becomes zero.
template <typename In, typename T, int WIDTH> DEVICE void load_tile(char* tile, const T* from, i64 line_stride, i64 stride, int lines, int length) {
  constexpr int UNITS = In::LENGTH / WIDTH, SIZE = WIDTH * int(sizeof(Element));
  auto place = [&](int i) { return tile + i / UNITS * In::PITCH + i % UNITS * SIZE; };
  auto there = [&](int i) { return i / UNITS < lines && i % UNITS * WIDTH < length; };
  auto source = [&](int i) { return from + i / UNITS * line_stride + i % UNITS * WIDTH * stride; };
  if constexpr (Same<T, Element>::value && SIZE == 16 && THREADS % UNITS == 0) {
    // a thread stays in its column, and goes down some lines at a time
    constexpr int DOWN = THREADS / UNITS;
    const int line = threadIdx.x / UNITS, left = threadIdx.x % UNITS * WIDTH < length ? lines - line : 0;
    const T* own = from + line * line_stride + threadIdx.x % UNITS * WIDTH * stride;
    char* const to = tile + line * In::PITCH + threadIdx.x % UNITS * SIZE;
    const i64 step = DOWN * line_stride;
#pragma unroll
    for (int i = 0; i < In::LINES; i += DOWN, own += step)
      if (In::LINES % DOWN == 0 || line + i < In::LINES) copy_async_16_or_zero(to + i * In::PITCH, own, i < left);
  } else if constexpr (Same<T, Element>::value && SIZE == 16) {
    each_of<In::LINES * UNITS>([&](int i) { copy_async_16_or_zero(place(i), there(i) ? source(i) : from, there(i)); });
  } else {
    typedef Neighbours<T, WIDTH> Some;
    auto load = [&](Some& some, int i) {
      if (there(i))
        some = *reinterpret_cast<const Some*>(source(i));
      else
#pragma unroll
        for (int j = 0; j < WIDTH; j++) assign(some.v[j], 0.f);
    };
    each_loaded<In::LINES * UNITS, THREADS, (WIDTH > 1), Some>(load, [&](const Some& some, int i) { put_neighbours(place(i), some); });
  }
}

// Slots of states: (batch, chunk, head, state, column), dense and padded to whole tiles.
DEVICE i64 slot_at(const Inputs& p, i64 batch, i64 chunk, i64 head, i64 column) {
  return ((batch * p.chunks + chunk) * p.heads + head) * STATES * PADDED_COLUMNS + column;
}
// Behind all slots, the scale of each of their tiles of columns.
DEVICE f32* scale_of_slot(const void* slots, const Inputs& p, i64 batch, i64 chunk, i64 head, i64 column) {
  const Element* const end = static_cast<const Element*>(slots) + slot_at(p, p.batch, 0, 0, 0);
  return (f32*)end + (((batch * p.chunks + chunk) * p.heads + head) * p.column_tiles + column / COLUMNS);
}

// States of a head, from a column and a state on.
struct Corner { i64 head, column, state = 0; };

// Starts to load lines of a slot into a tile of states, and gives their scale.
template <typename In> DEVICE f32 load_slot(char* tile, const void* slots, const Inputs& p, i64 batch, i64 chunk, const Corner& of) {
  const Element* const slot = static_cast<const Element*>(slots) + slot_at(p, batch, chunk, of.head, of.column);
  load_tile<In, Element, 16 / int(sizeof(Element))>(tile, slot + of.state * PADDED_COLUMNS, PADDED_COLUMNS, 1, int(STATES - of.state), COLUMNS);
  return HAS_SCALES ? *scale_of_slot(slots, p, batch, chunk, of.head, of.column) : 1.f;
}

// The scale of what all threads have seen: each warp leaves its part, and after a barrier every thread can ask for it.
DEVICE void leave_largest(u32 (&parts)[WARPS], Largest own) {
  own.join_warp();
  if (threadIdx.x % 32 == 0) parts[warp_of()] = own.seen;
}
DEVICE f32 scale_of(const u32 (&parts)[WARPS]) {
  Largest all;
#pragma unroll
  for (int i = 0; i < WARPS; i++) all.seen = max(all.seen, parts[i]);
  return all.scale();
}

// A number of a state as tiles of states and slots hold it.
DEVICE f32 as_factor(f32 v) { return MATH == Math::Tf32 ? __uint_as_float(round_tf32(v)) : v; }

// Loads states of a tensor, or zeros, and gives their scale; all threads of the block call it.
template <typename In, typename E> DEVICE f32 load_state(char* tile, const Inputs& p, const States& states, StateRow row, const Corner& of) {
  const bool there = states.data != nullptr && exists(p, row);
  auto number = [&](int i) {
    const int n = i % In::LINES, q = i / In::LINES;
    if (!there || of.state + n >= p.dstate || of.column + q >= p.headdim) return 0.f;
    return to_f32(*state_at<E>(states, row, of.head, of.column + q, of.state + n));
  };
  f32 scale = 1.f;
  if constexpr (HAS_SCALES) {
    __shared__ u32 parts[WARPS];
    Largest largest;
    each<In::LINES * COLUMNS, THREADS, false>([&](int i, int) { largest.see(number(i)); });
    __syncthreads();
    leave_largest(parts, largest);
    __syncthreads();
    scale = scale_of(parts);
  }
  const f32 down = HAS_SCALES ? inverse(scale) : 1.f;
  each<In::LINES * COLUMNS, THREADS, false>([&](int i, int) {
    assign(*reinterpret_cast<Element*>(In::at(tile, i % In::LINES, i / In::LINES)), as_factor(number(i) * down));
  });
  return scale;
}

// x of a piece.
DEVICE void load_x(char* tile, const Inputs& p, const Lines& of, i64 column) {
  const int length = int(min(i64(COLUMNS), p.headdim - column));
  load_tile<XTile, X, X_WIDTH>(tile, at<X>(p.x, of.batch, of.start, of.head, column), p.x.stride[1], p.x.stride[3], of.count, length);
}
template <typename In> DEVICE void load_b(char* tile, const Inputs& p, i64 batch, i64 group, i64 start, int count) {
  load_tile<In, B, B_WIDTH>(tile, at<B>(p.b, batch, start, group), p.b.stride[1], p.b.stride[3], count, int(p.dstate));
}
template <typename In> DEVICE void load_c(char* tile, const Inputs& p, i64 batch, i64 group, i64 start, int count) {
  load_tile<In, C, C_WIDTH>(tile, at<C>(p.c, batch, start, group), p.c.stride[1], p.c.stride[3], count, int(p.dstate));
}
// The gradient by y before the gate: dy silu(z), or what the walk forwards has left of it.
DEVICE void load_cotangent(char* tile, const Inputs& p, const Lines& of, i64 column) {
  const int length = int(min(i64(COLUMNS), p.headdim - column));
  if constexpr (!HAS_DY) {
    each<XTile::BYTES / 16, THREADS, false>([&](int i, int) { reinterpret_cast<float4*>(tile)[i] = float4(); });
  } else if constexpr (IS_GATED) {
    const Element* const from = at<Element>(p.gated, of.batch, of.start, of.head, column);
    load_tile<XTile, Element, GATED_WIDTH>(tile, from, p.gated.stride[1], 1, of.count, length);
  } else if constexpr (!HAS_Z) {
    load_tile<XTile, DY, DY_WIDTH>(tile, at<DY>(p.dy, of.batch, of.start, of.head, column), p.dy.stride[1], p.dy.stride[3], of.count, length);
  } else {
    constexpr int WIDTH = DY_WIDTH < Z_WIDTH ? DY_WIDTH : Z_WIDTH, UNITS = COLUMNS / WIDTH;
    struct Both { Neighbours<DY, WIDTH> dy; Neighbours<Z, WIDTH> z; bool there; };
    auto load = [&](Both& both, int i) {
      const int line = i / UNITS, within = i % UNITS * WIDTH;
      both.there = line < of.count && within < length;
      if (!both.there) return;
      both.dy = *reinterpret_cast<const Neighbours<DY, WIDTH>*>(at<DY>(p.dy, of.batch, of.start + line, of.head, column + within));
      both.z = *reinterpret_cast<const Neighbours<Z, WIDTH>*>(at<Z>(p.z, of.batch, of.start + line, of.head, column + within));
    };
    each_loaded<SPAN * UNITS, THREADS, (WIDTH > 1), Both>(load, [&](const Both& both, int i) {
      Neighbours<f32, WIDTH> v;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) v.v[j] = both.there ? to_f32(both.dy.v[j]) * silu(to_f32(both.z.v[j])) : 0.f;
      Neighbours<Element, WIDTH> out;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) assign(out.v[j], v.v[j]);
      *reinterpret_cast<Neighbours<Element, WIDTH>*>(tile + i / UNITS * XTile::PITCH + i % UNITS * WIDTH * int(sizeof(Element))) = out;
    });
  }
}

// Copies that have been started are there for all threads.
DEVICE void all_loaded() {
  copy_async_commit();
  copy_async_wait();
  __syncthreads();
}

// ---- sums

// The sum of the numbers that four threads hold of a row.
DEVICE f32 sum_of_row(f32 v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
// The sum of the numbers that eight threads hold of a column.
DEVICE f32 sum_of_column(f32 v) {
  v += __shfl_xor_sync(~0u, v, 4);
  v += __shfl_xor_sync(~0u, v, 8);
  return v + __shfl_xor_sync(~0u, v, 16);
}
