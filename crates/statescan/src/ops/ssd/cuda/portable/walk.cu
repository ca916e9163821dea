// The walk over time: a block takes some columns of a head through a segment of time, with their states in registers.
//
// Forwards it carries the state h, and where y (or the gradient by z) is wanted it writes
//
//   y[i] = D x[i] + exp(cs[i]) C[i] h + sum_{j <= i} <C[i], B[j]> exp(cs[i] - cs[j]) dt[j] x[j]
//
// for a piece of time that starts from h, cs being the sums of dt A in the piece. Backwards it carries the gradient by the state. Either one can
// be left in slots, one for each chunk: h before the chunk, the gradient by the state after it.
//
// A warp holds rows of the state (n), all columns; of y it forms 16 steps, all columns. Products read their second factor from shared memory:
// the state, which every warp needs, is put there once a piece.
#include "tiles.cuh"
#include "hand_on.cuh"

constexpr int OUT = 4 / int(sizeof(Element)) * COLUMNS;   // the room of a line of y in f32
typedef Tile<MATH, SPAN, STATES, HAS_OUTPUT ? OUT : STATES> CTile;
constexpr int OWN = STATES / (16 * WARPS), PAIRS = COLUMNS / 16;

// whether the state is divided by a scale where it is a factor
constexpr bool MEASURES = HAS_SCALES && NEEDS_STATE_TILE;

static_assert(MAP_AT == XTile::BYTES && C_AT - MAP_AT == MapTile::BYTES && STAGE - C_AT == (HAS_OUTPUT ? CTile::BYTES : 0), "the plan has counted the same");
static_assert(SHARED_END - STATE_AT == (NEEDS_STATE_TILE ? StateTile::BYTES : 0), "the plan has counted the same");

struct Work {
  i64 batch, head, group, column;
  i64 segment;             // in the direction of the walk
  i64 start, end;

  DEVICE explicit Work(const Params& p) {
    i64 i = blockIdx.x;
    column = i % p.column_tiles * COLUMNS, i /= p.column_tiles;
    head = i % p.heads, i /= p.heads;
    batch = i % p.batch, segment = i / p.batch;
    group = head / p.heads_per_group;
    const i64 at = FORWARDS ? segment : p.segments - 1 - segment;
    start = at * p.segment_steps, end = min(start + p.segment_steps, p.seqlen);
  }
};

// A matrix in memory that is rarely read: its addresses are formed where they are needed, and not kept in registers through a loop.
template <typename E> struct Rare {
  E* data;
  i64 by_column, by_state;
  DEVICE Rare(E* data, i64 by_column, i64 by_state) : data(data), by_column(by_column), by_state(by_state) {
    asm volatile("" : "+l"(this->data), "+l"(this->by_column), "+l"(this->by_state));
  }
  DEVICE E* operator()(int column, int n) const { return data + (column * by_column + n * by_state); }
};

struct State {
  FragmentC v[OWN][2 * PAIRS];

  // job(number, n, column) for every number of this thread
  template <typename Job> DEVICE void each_number(Job job) {
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
      for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
        for (int i = 0; i < 4; i++) job(v[m][q].v[i], 16 * (m * WARPS + warp_of()) + group_of() + i / 2 * 8, 8 * q + pair_of() + i % 2);
  }
  DEVICE void clear() {
    each_number([](f32& v, int, int) { v = 0.f; });
  }
  template <typename E> DEVICE void read(const Params& p, const Work& w, const States& from, StateRow row) {
    clear();
    if (from.data == nullptr || !exists(p, row)) return;
    const Rare<E> at(state_at<E>(from, row, w.head, w.column, 0), from.stride[3], from.stride[4]);
    each_number([&](f32& v, int n, int q) {
      if (n < p.dstate && w.column + q < p.headdim) v = to_f32(*at(q, n));
    });
  }
  template <typename E> DEVICE void write(const Params& p, const Work& w, const States& to, StateRow row) {
    if (to.data == nullptr || !exists(p, row)) return;
    const Rare<E> at(state_at<E>(to, row, w.head, w.column, 0), to.stride[3], to.stride[4]);
    each_number([&](f32& v, int n, int q) {
      if (n < p.dstate && w.column + q < p.headdim) assign(*at(q, n), v);
    });
  }
  // leaves this warp's part of their largest magnitude
  DEVICE void measure(u32 (&parts)[WARPS]) {
    Largest largest;
    each_number([&](f32& v, int, int) { largest.see(v); });
    leave_largest(parts, largest);
  }
  // into shared memory, as a factor
  DEVICE void share(char* tile, f32 scale) {
    const f32 down = HAS_SCALES ? inverse(scale) : 1.f;
#pragma unroll
    for (int m = 0; m < OWN; m++)
#pragma unroll
      for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          char* const to = StateTile::at(tile, 16 * (m * WARPS + warp_of()) + group_of() + 8 * r, 8 * q + pair_of());
          assign2(reinterpret_cast<Element*>(to), as_factor(v[m][q].v[2 * r] * down), as_factor(v[m][q].v[2 * r + 1] * down));
        }
  }
};

// ---- segments of time: where the walk is cut, a first launch leaves what each segment but the last adds to a state of zero, and a second one
// starts each segment from all before it

DEVICE f32* end_of(const Params& p, const Work& w, i64 segment) {
  return p.ends + ((segment * p.batch + w.batch) * p.heads + w.head) * STATES * PADDED_COLUMNS + w.column;
}
// the decay of a segment, or -1 if a sequence begins in it: then nothing of what was before is left
DEVICE f32* decay_of(const Params& p, const Work& w, i64 segment) {
  return p.decays + ((segment * p.batch + w.batch) * p.heads + w.head) * p.column_tiles + w.column / COLUMNS;
}

DEVICE void leave_segment(State& state, const Params& p, const Work& w, f32 decay) {
  const Rare<f32> at(end_of(p, w, w.segment), 1, PADDED_COLUMNS);
  state.each_number([&](f32& v, int n, int q) { *at(q, n) = v; });
  if (threadIdx.x == 0) *decay_of(p, w, w.segment) = decay;
}
DEVICE void enter_segment(State& state, const Params& p, const Work& w) {
#pragma unroll 1
  for (i64 before = 0; before < w.segment; before++) {
    const Rare<f32> at(end_of(p, w, before), 1, PADDED_COLUMNS);
    const f32 decay = *decay_of(p, w, before);
    state.each_number([&](f32& v, int n, int q) {
      const f32 end = *at(q, n);
      v = before == 0 || decay < 0.f ? end : __fmaf_rn(decay, v, end);
    });
  }
}

// ---- a piece of time

// y of this warp's steps before the skip and the gate: from the state in shared memory, then from the piece itself while the state advances.
struct Output {
  FragmentC y[2 * PAIRS];
  FragmentC products[WARPS][2];   // <C[i], B[j]> for blocks of 16 steps j
  f32 scale = 1.f;                // the factor of y, from the end of `begin` to `finish`

  DEVICE void begin(const Steps& steps, const char* c_tile, const char* map, const char* state, f32 state_scale) {
    *this = Output();
    const int row = 16 * warp_of();
#pragma unroll 2
    for (int n = 0; n < STATES; n += 16) {
      BlockA c;
      load_block<CTile>(c, CTile::at(c_tile, row, n));
#pragma unroll
      for (int q = 0; q < PAIRS; q++) {
        BlockB h[2];
        load_blocks<StateTile, true>(h, StateTile::at(state, n, 16 * q));
        multiply_blocks<MATH>(y[2 * q], c, h[0]);
        multiply_blocks<MATH>(y[2 * q + 1], c, h[1]);
      }
#pragma unroll
      for (int j = 0; j < WARPS; j++) {
        if (j > warp_of()) continue;
        BlockB b[2];
        load_blocks<MapTile>(b, MapTile::at(map, 16 * j, n));
        multiply_blocks<MATH>(products[j][0], c, b[0]);
        multiply_blocks<MATH>(products[j][1], c, b[1]);
      }
    }
    if constexpr (HAS_SCALES) weigh_all(steps);
    const f32 to_scale = HAS_SCALES ? state_scale * inverse(scale) : 1.f;
    const f32 decays[2] = {steps.before[row + group_of()] * to_scale, steps.before[row + group_of() + 8] * to_scale};
#pragma unroll
    for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
      for (int i = 0; i < 4; i++) y[q].v[i] *= decays[i / 2];
  }

  // number i of block j of the products, with the decay between its steps and the weight of the earlier one
  DEVICE f32 weighed(const Steps& steps, int j, int i) const {
    const int row = 16 * warp_of() + group_of() + i / 2 % 2 * 8, column = 16 * j + i / 4 * 8 + pair_of() + i % 2;
    return column <= row ? products[j][i / 4].v[i % 4] * (steps.decay(column, row) * steps.weight[column]) : 0.f;
  }
  // all of them at once, which gives their scale
  DEVICE void weigh_all(const Steps& steps) {
    Largest largest;
#pragma unroll
    for (int j = 0; j < WARPS; j++) {
      if (j > warp_of()) continue;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        f32& v = products[j][i / 4].v[i % 4];
        v = weighed(steps, j, i);
        largest.see(v);
      }
    }
    largest.join_warp();
    scale = largest.scale();
  }

  // adds the share of the steps of block j, whose x is given
  DEVICE void add(const Steps& steps, int j, const BlockB (&x)[PAIRS][2]) {
    f32 v[8];
    const f32 down = inverse(scale);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = HAS_SCALES ? products[j][i / 4].v[i % 4] * down : weighed(steps, j, i);
    BlockA m;
    set_block<MATH>(m, v);
#pragma unroll
    for (int q = 0; q < PAIRS; q++) {
      multiply_blocks<MATH>(y[2 * q], m, x[q][0]);
      multiply_blocks<MATH>(y[2 * q + 1], m, x[q][1]);
    }
  }

  // Writes them, by way of this warp's lines of C, which nobody else reads.
  DEVICE void finish(const Params& p, const Work& w, char* c_tile, const char* x_tile, i64 first, int count) {
    constexpr int WIDTH = OUT_WIDTH, UNITS = COLUMNS / WIDTH;
    char* const lines = c_tile + 16 * warp_of() * CTile::PITCH;
    Y* const to = at<Y>(p.y, w.batch, first, w.head, w.column);
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float2* const pair = reinterpret_cast<float2*>(lines + (group_of() + 8 * r) * CTile::PITCH) + (8 * q + pair_of()) / 2;
        *pair = make_float2(y[q].v[2 * r] * scale, y[q].v[2 * r + 1] * scale);
      }
    __syncwarp();
#pragma unroll(WIDTH == 1 || (HAS_Z && !InPairs<MATH>::VALUE) ? 1 : GATE_GRADIENT ? 2 : 4)
    for (int i = threadIdx.x % 32; i < 16 * UNITS; i += 32) {
      const int line = i / UNITS, step = 16 * warp_of() + line, column = i % UNITS * WIDTH;
      if (step >= count || w.column + column >= p.headdim) continue;
      const f32* const from = reinterpret_cast<const f32*>(lines + line * CTile::PITCH) + column;
      Neighbours<Y, WIDTH> out;
      Neighbours<Z, WIDTH> z;
      Neighbours<DY, WIDTH> dy;
      Neighbours<Element, WIDTH> gated;
      if constexpr (HAS_Z) z = *reinterpret_cast<const Neighbours<Z, WIDTH>*>(at<Z>(p.z, w.batch, first + step, w.head, w.column + column));
      if constexpr (GATE_GRADIENT && HAS_DY) dy = *reinterpret_cast<const Neighbours<DY, WIDTH>*>(at<DY>(p.dy, w.batch, first + step, w.head, w.column + column));
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        f32 v = from[k];
        if constexpr (HAS_SKIP) {
          const f32 x = to_f32(*reinterpret_cast<const Element*>(XTile::at(x_tile, step, column + k)));
          v = __fmaf_rn(to_f32(*at<SKIP>(p.skip, w.head, w.column + column + k)), x, v);
        }
        if constexpr (GATE_GRADIENT && HAS_DY) {
          const Gate gate(to_f32(z.v[k]));
          v *= to_f32(dy.v[k]) * gate.slope;
          if constexpr (IS_GATED) assign(gated.v[k], to_f32(dy.v[k]) * gate.value);
        } else if constexpr (GATE_GRADIENT)
          v = 0.f;
        else if constexpr (HAS_Z)
          v *= silu(to_f32(z.v[k]));
        assign(out.v[k], v);
      }
      write_at_once(to + (step * p.y.stride[1] + column * p.y.stride[3]), out);
      if constexpr (IS_GATED) write_at_once(at<Element>(p.gated, w.batch, first + step, w.head, w.column + column), gated);
    }
  }
};

// A piece adds these terms to the state, and to y where it is formed.
DEVICE void advance(State& state, Output* output, const Steps& steps, const char* factor, const char* map) {
  // while products are added, the state has the scale of their weights
  const f32 scale = !HAS_SCALES ? 1.f : FORWARDS ? steps.after_scale : steps.before_scale;
  const f32 down = HAS_SCALES ? inverse(scale) : 1.f, decay = steps.whole() * down;
  state.each_number([&](f32& v, int, int) { v *= decay; });
#pragma unroll(HAS_OUTPUT ? WARPS : 1)
  for (int k = 0; k < WARPS; k++) {
    BlockB x[PAIRS][2];
#pragma unroll
    for (int q = 0; q < PAIRS; q++) load_blocks<XTile, true>(x[q], XTile::at(factor, 16 * k, 16 * q));
    if constexpr (HAS_OUTPUT) {
      if (k <= warp_of()) output->add(steps, k, x);
    }
    f32 weights[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int step = 16 * k + i / 2 * 8 + pair_of() + i % 2;
      weights[i] = (FORWARDS ? steps.after[step] * steps.weight[step] : steps.before[step]) * down;
    }
#pragma unroll
    for (int m = 0; m < OWN; m++) {
      f32 v[8];
      load_numbers<MapTile, true>(v, MapTile::at(map, 16 * k, 16 * (m * WARPS + warp_of())));
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] *= weights[i / 4 * 2 + i % 2];
      BlockA a;
      set_block<MATH>(a, v);
#pragma unroll
      for (int q = 0; q < PAIRS; q++) {
        multiply_blocks<MATH>(state.v[m][2 * q], a, x[q][0]);
        multiply_blocks<MATH>(state.v[m][2 * q + 1], a, x[q][1]);
      }
    }
  }
  if constexpr (HAS_SCALES) state.each_number([&](f32& v, int, int) { v *= scale; });
}

// The state of the tile into its slot.
DEVICE void fill_slot(const Params& p, const Work& w, i64 chunk, const char* tile, f32 scale) {
  constexpr int WIDTH = 16 / int(sizeof(Element)), UNITS = COLUMNS / WIDTH;
  Element* const slot = static_cast<Element*>(p.slots) + slot_at(p, w.batch, chunk, w.head, w.column);
  each_of<STATES * UNITS>([&](int i) {
    const float4 some = *reinterpret_cast<const float4*>(tile + i / UNITS * StateTile::PITCH + i % UNITS * 16);
    *reinterpret_cast<float4*>(slot + i64(i / UNITS) * PADDED_COLUMNS + i % UNITS * WIDTH) = some;
  });
  if (HAS_SCALES && threadIdx.x == 0) *scale_of_slot(p.slots, p, w.batch, chunk, w.head, w.column) = scale;
}

// The piece of time that comes next, from step t on (backwards: up to it).
struct Piece {
  i64 first, last;
  bool enters, leaves;   // whether its sequence is another one than before, and whether it ends here, both in the direction of the walk

  Piece() = default;
  DEVICE Piece(const Params& p, const Work& w, i64 t) {
    if constexpr (FORWARDS) {
      first = t, last = end_of_piece(p, w.batch, t, min((t / SPAN + 1) * SPAN, w.end));
      enters = begins(p, w.batch, first) && !goes_on(p, first), leaves = ends(p, w.batch, last);
    } else {
      last = t, first = start_of_piece(p, w.batch, t, max((t - 1) / SPAN * SPAN, w.start));
      enters = ends(p, w.batch, last), leaves = begins(p, w.batch, first);
    }
  }
  DEVICE StateRow before(const Params& p, i64 batch) const { return FORWARDS ? row_before(p, batch, first) : row_after(p, batch, last); }
  DEVICE StateRow after(const Params& p, i64 batch) const { return FORWARDS ? row_after(p, batch, last) : row_before(p, batch, first); }
  DEVICE bool has_slot(const Params& p) const { return FORWARDS ? first % SPAN == 0 : last % SPAN == 0 || last == p.seqlen; }
};

// Asks for the columns of a block in the steps of a piece.
template <typename E> DEVICE void prefetch_rows(const Strided& s, const Params& p, const Work& w, i64 first, int count) {
  constexpr int UNIT = 64 / int(sizeof(E)), UNITS = (COLUMNS + UNIT - 1) / UNIT;
  for (int i = threadIdx.x; i < count * UNITS; i += THREADS) {
    const i64 column = w.column + i % UNITS * UNIT;
    if (column < p.headdim) asm volatile("prefetch.global.L2 [%0];" ::"l"(at<E>(s, w.batch, first + i / UNITS, w.head, column)));
  }
}

// Starts to load a piece.
DEVICE void load_piece(char* stage, const Params& p, const Work& w, i64 first, int count) {
  if constexpr (FORWARDS) {
    load_b<MapTile>(stage + MAP_AT, p, w.batch, w.group, first, count);
    load_x(stage + FACTOR_AT, p, {w.batch, w.head, first, count}, w.column);
    if constexpr (HAS_OUTPUT) load_c<CTile>(stage + C_AT, p, w.batch, w.group, first, count);
    // inputs that are read only after the products are fetched into the second cache in the meantime
    if constexpr (HAS_OUTPUT && HAS_Z) prefetch_rows<Z>(p.z, p, w, first, count);
    if constexpr (GATE_GRADIENT && HAS_DY) prefetch_rows<DY>(p.dy, p, w, first, count);
  } else {
    load_c<MapTile>(stage + MAP_AT, p, w.batch, w.group, first, count);
    load_cotangent(stage + FACTOR_AT, p, {w.batch, w.head, first, count}, w.column);
  }
  copy_async_commit();
}

// A piece in shared memory, and the state before it with its scale.
struct Tiles { const Steps& steps; char* const stage; const char* const state; const f32 scale; };

// Takes the state through a piece, and leaves its results.
DEVICE void pass_piece(State& state, const Params& p, const Work& w, const Tiles& tiles, i64 first, int count) {
  char* const stage = tiles.stage;
  if constexpr (HAS_OUTPUT) {
    Output output;
    output.begin(tiles.steps, stage + C_AT, stage + MAP_AT, tiles.state, tiles.scale);
    advance(state, &output, tiles.steps, stage + FACTOR_AT, stage + MAP_AT);
    output.finish(p, w, stage + C_AT, stage + FACTOR_AT, first, count);
  } else {
    advance(state, nullptr, tiles.steps, stage + FACTOR_AT, stage + MAP_AT);
  }
}

// The state after a sequence, or after a piece of one.
DEVICE void leave_sequence(State& state, const Params& p, const Work& w, const Piece& piece) {
  auto leave = [&](StateRow to) { state.write<AFTER>(p, w, p.after, to); };
  if constexpr (IN_PIECES)
    each_target(p, w.batch, piece.last, leave);
  else
    leave(piece.after(p, w.batch));
}

// Finds the scale of a state that was read; all threads of the block call it.
DEVICE void measure(State& state, u32 (&largest)[WARPS]) {
  if constexpr (MEASURES) {
    state.measure(largest);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ssd_walk(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Steps all_steps[STAGES];
  __shared__ u32 largest[WARPS];   // parts of the state's
  const Work w(p);
  State state;
  // the walk overwrites these places later, behind a barrier
  if (PASS != Pass::Rest && w.segment == 0) hand_on(p, w.batch, w.head, w.column, min(w.column + COLUMNS, p.headdim));
  state.clear();
  if constexpr (PASS == Pass::Rest) enter_segment(state, p, w);
  measure(state, largest);
  f32 log_decay = 0.f;
  bool fresh = false;
  int stage = 0;
  auto there = [&](i64 t) { return FORWARDS ? t < w.end : t > w.start; };
  auto start = [&](int stage, const Piece& piece) {
    const int count = int(piece.last - piece.first);
    load_piece(shared + stage * STAGE, p, w, piece.first, count);
    // its constants are read again for every piece: registers for them would be too many
    prepare_steps(all_steps[stage], p, Head(p, w.head), {w.batch, w.head, piece.first, count});
  };
  const i64 begin = FORWARDS ? w.start : w.end;
  Piece next = {};
  if (there(begin)) next = Piece(p, w, begin);
  if (STAGES > 1 && there(begin)) start(0, next);
#pragma unroll 1
  for (i64 t = begin; there(t);) {
    const Piece piece = next;
    const i64 first = piece.first;
    if constexpr (STAGES == 1) start(0, piece);
    if (piece.enters) {
      state.read<BEFORE>(p, w, p.before, piece.before(p, w.batch)), fresh = true;
      measure(state, largest);
    }
    const f32 scale = MEASURES ? scale_of(largest) : 1.f;
    if constexpr (NEEDS_STATE_TILE) state.share(shared + STATE_AT, scale);
    copy_async_wait();
    __syncthreads();
    t = FORWARDS ? piece.last : first;
    if (there(t)) {
      next = Piece(p, w, t);
      if constexpr (STAGES > 1) start(1 - stage, next);
    }
    const Steps& steps = all_steps[stage];
    if constexpr (HAS_SLOTS) {
      if (piece.has_slot(p)) fill_slot(p, w, first / SPAN, shared + STATE_AT, scale);
    }
    pass_piece(state, p, w, {steps, shared + stage * STAGE, shared + STATE_AT, scale}, first, int(piece.last - first));
    if constexpr (PASS == Pass::Ends) log_decay += steps.high[SPAN - 1];
    if (PASS != Pass::Ends && piece.leaves) leave_sequence(state, p, w, piece);
    if constexpr (STAGES > 1) stage = 1 - stage;
    if constexpr (MEASURES) state.measure(largest);
    // the tiles have been read
    __syncthreads();
  }
  if constexpr (PASS == Pass::Ends) leave_segment(state, p, w, fresh ? -1.f : exp2_fast(log_decay));
}
