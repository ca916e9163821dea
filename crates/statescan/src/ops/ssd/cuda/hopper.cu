// The walk over time on Hopper: a warpgroup takes 64 columns of a head through time with their state in its registers, by products of warpgroups.
//
// Everything is transposed. With cs the sums of log2 of the decays since a chunk began, CB the lower triangle of C B^T (the same for every head
// of a group), and any number r,
//
//   y^T = (S^T C^T + xs^T CB^T) diag(2^(cs[i] + r))      xs[j] = x[j] dt[j] 2^-(cs[j] + r)      S^T <- S^T + xs^T B
//
// where S is the state times 2^-r. So decays are factors of steps alone: no head forms a matrix of 64 x 64 numbers of its own. S^T is the first
// factor of its product as it lies in registers, x^T comes out of shared memory with one instruction for 16 x 16 numbers, and serves twice.
//
// Backwards in time S is the gradient by the state: dy stands for x, C for B, weights are one, and the sums are those of the steps after each
// one. Instead of y either direction may leave S in slots: before each chunk, in its own direction.
//
// The powers of two must not overflow: r follows the decays, and changes only where an exponent would leave [-NEAR, NEAR]. A chunk in which
// they differ by more than FAR is walked in pieces, each with its own r. Then steps outside of a piece have weights of zero, and a piece writes
// its own steps of y.
//
// Warpgroups: one for each unit (64 columns of a head), which compute; one that forms CB; and one of which a thread starts copies into shared
// memory and a warp for each unit computes the powers. They meet at barriers: `full` and `empty` for the tiles of a chunk, `masked` for its CB,
// `ready` and `taken` for the powers of a piece.

constexpr int SPAN = 64, UNITS = 2, PANELS = STATES / 64, WORKERS = UNITS + 2;
constexpr int PANEL = 64 * 128;   // bytes of 64 lines of 64 numbers, swizzled
constexpr f64 NEAR = 30., FAR = 60.;
static_assert(COLUMNS == 64 && STATES % 64 == 0 && STATES <= 128, "a state fits into the registers of a warpgroup");

static_assert(!HAS_OUTPUT || (FORWARDS && !HAS_SLOTS), "a walk writes y or slots");
// whether y is multiplied by the gate, or its gradient is
constexpr bool GATES_OUTPUT = HAS_Z && HAS_OUTPUT, GATES_FACTOR = HAS_Z && !FORWARDS;

// a stage: tiles of x for each unit (backwards of dy and the gate), of B, of C, and CB; without y only of what goes into the state
constexpr int Z_AT = UNITS * PANEL, B_AT = Z_AT + (GATES_FACTOR ? UNITS * PANEL : 0), C_AT = B_AT + PANELS * PANEL, CB_AT = C_AT + PANELS * PANEL;
constexpr int STAGE = HAS_OUTPUT ? CB_AT + PANEL : C_AT;
// two tiles of y or of a slot for each unit: one is written while the other one is on its way to memory. A gate comes in the tile that its y
// goes out in
constexpr int OUT_AT = STAGES * STAGE, OUT = HAS_OUTPUT ? PANEL : HAS_SLOTS ? PANELS * PANEL : 0, ALIGNMENT = 1024;
static_assert(OUT_AT + 2 * UNITS * OUT + ALIGNMENT <= SHARED, "the plan has counted the same");

// The powers of a piece: the steps [first, end) of a chunk, in the direction of the walk.
struct alignas(16) Piece {
  f32 out[SPAN];       // 2^(cs + r), for y alone
  u32 in[SPAN / 2];    // dt 2^-(cs + r) of two steps, bf16; zero outside of the piece
  f32 state;           // what the state is multiplied by, since r changes
  f32 before, after;   // 2^r as it was, and 2^(cs + r) after the whole chunk
  int first, end;
};
constexpr int PIECES = 4;   // that may be ready at the same time

struct Barriers {
  Barrier full[STAGES], empty[STAGES], masked[STAGES];
  Barrier ready[UNITS][PIECES], taken[UNITS][PIECES], gate[UNITS][2];
};

// A place in a ring, and the phase of its barriers.
template <int COUNT> struct Turn {
  int at = 0;
  u32 phase = 0;
  DEVICE void next() {
    if (++at == COUNT) at = 0, phase ^= 1;
  }
};

struct Work {
  int batch, group, unit, units;   // the first unit of the group, and how many this block has
  i64 segment, start;
  int chunks;

  DEVICE explicit Work(const Params& p) : segment(blockIdx.y) {
    const int all = int(p.heads_per_group * p.column_tiles), tiles = (all + UNITS - 1) / UNITS, groups = int(p.groups);
    int i = blockIdx.x;
    unit = i % tiles * UNITS, i /= tiles;
    group = i % groups, batch = i / groups;
    units = min(UNITS, all - unit);
    start = (FORWARDS ? segment : p.segments - 1 - segment) * p.segment_steps;
    chunks = int((min(start + p.segment_steps, p.seqlen) - start + SPAN - 1) / SPAN);
  }
  // the first step of a chunk
  DEVICE int step(int chunk) const { return int(start) + (FORWARDS ? chunk : chunks - 1 - chunk) * SPAN; }
  DEVICE int head(const Params& p, int k) const { return group * int(p.heads_per_group) + (unit + k) / int(p.column_tiles); }
  DEVICE int column(const Params& p, int k) const { return (unit + k) % int(p.column_tiles) * COLUMNS; }
};

DEVICE f32* decay_of(const Params& p, i64 segment, int batch, int head, int tile) {
  return p.decays + (((segment * p.batch + batch) * p.heads + head) * p.column_tiles + tile);
}

// two numbers of a register
DEVICE f32 low_bf16(u32 two) { return __uint_as_float(two << 16); }
DEVICE f32 high_bf16(u32 two) { return __uint_as_float(two & 0xffff0000u); }

// one thread of each warp, after all of them
DEVICE void warp_arrive(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// ---- copies: one thread

DEVICE void copy_tiles(const Params& p, const Work& w, char* shared, Barriers& barriers) {
  Turn<STAGES> stage;
  const u32 bytes = u32((w.units * (GATES_FACTOR ? 2 : 1) + PANELS * (HAS_OUTPUT ? 2 : 1)) * PANEL);
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++, stage.next()) {
    barrier_wait(barriers.empty[stage.at], stage.phase ^ 1);
    Barrier& full = barriers.full[stage.at];
    char* const tiles = shared + stage.at * STAGE;
    const int step = w.step(chunk);
    barrier_arrive_expecting(full, bytes);
    for (int k = 0; k < w.units; k++) {
      const int at[4] = {w.column(p, k), w.head(p, k), step, w.batch};
      tile_load(tiles + k * PANEL, p.x_map, full, at);
      if constexpr (GATES_FACTOR) tile_load(tiles + Z_AT + k * PANEL, p.z_map, full, at);
    }
#pragma unroll
    for (int n = 0; n < PANELS; n++) {
      tile_load(tiles + B_AT + n * PANEL, p.b_map, full, {64 * n, w.group, step, w.batch});
      if constexpr (HAS_OUTPUT) tile_load(tiles + C_AT + n * PANEL, p.c_map, full, {64 * n, w.group, step, w.batch});
    }
  }
}

// ---- powers of the decays: a warp, two neighbouring steps a thread

struct Exponents {
  f64 sum[2];   // log2 of the decays since the chunk began: with a step's own, backwards without it
  f32 weight[2];
  f64 whole;
};

DEVICE Exponents exponents(const Params& p, const Head& constants, int batch, int head, i64 first) {
  Exponents e;
  const int lane = threadIdx.x % 32;
  f64 own[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int step = 2 * lane + k;
    const i64 t = first + (FORWARDS ? step : SPAN - 1 - step);
    StepSizes d = {};
    if (t < p.seqlen) d = step_sizes(p, constants, batch, head, t);
    e.weight[k] = FORWARDS ? d.weight : 1.f;
    own[k] = f64(d.decay) * constants.rate;
  }
  const f64 both = own[0] + own[1];
  f64 before = both;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const f64 other = __shfl_up_sync(~0u, before, far);
    if (lane >= far) before += other;
  }
  e.whole = __shfl_sync(~0u, before, 31);
  before = __shfl_up_sync(~0u, before, 1);
  if (lane == 0) before = 0.;
  e.sum[0] = before + (FORWARDS ? own[0] : 0.), e.sum[1] = before + (FORWARDS ? both : own[0]);
  return e;
}

// Chooses r for the piece that begins with step `first`, and gives the step behind its last one.
DEVICE int choose(f64& r, const Exponents& e, int first) {
  const int step = threadIdx.x % 32 * 2;
  auto beyond = [&](int k, f64 limit) { return step + k >= first && fabs(e.sum[k] + r) > limit; };
  if (!__any_sync(~0u, beyond(0, NEAR) || beyond(1, NEAR))) return SPAN;
  const f64 begin = __shfl_sync(~0u, first % 2 == 0 ? e.sum[0] : e.sum[1], first / 2);
  r = -0.5 * (begin + e.whole);
  if (!__any_sync(~0u, beyond(0, FAR) || beyond(1, FAR))) return SPAN;
  r = -begin;
  const u32 even = __ballot_sync(~0u, beyond(0, FAR)), odd = __ballot_sync(~0u, beyond(1, FAR));
  const int first_even = even == 0 ? SPAN : 2 * (__ffs(even) - 1), first_odd = odd == 0 ? SPAN : 2 * (__ffs(odd) - 1) + 1;
  return min(first_even, first_odd);
}

DEVICE void compute_powers(const Params& p, const Work& w, int k, Piece (&pieces)[PIECES], Barrier (&ready)[PIECES], Barrier (&taken)[PIECES]) {
  const int lane = threadIdx.x % 32, head = w.head(p, k);
  const Head constants(p, head);
  Turn<PIECES> turn;
  f64 r = 0., decays = 0.;
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const Exponents e = exponents(p, constants, w.batch, head, w.step(chunk));
    int end = 0;
#pragma unroll 1
    for (int first = 0; first < SPAN; first = end, turn.next()) {
      const f64 before = r;
      end = choose(r, e, first);
      const f32 exponent[2] = {f32(e.sum[0] + r), f32(e.sum[1] + r)};
      f32 in[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int step = 2 * lane + i;
        in[i] = step >= first && step < end ? e.weight[i] * exp2_fast(-exponent[i]) : 0.f;
      }
      barrier_wait(taken[turn.at], turn.phase ^ 1);
      Piece& piece = pieces[turn.at];
      if constexpr (HAS_OUTPUT) reinterpret_cast<float2*>(piece.out)[lane] = make_float2(exp2_fast(exponent[0]), exp2_fast(exponent[1]));
      if constexpr (FORWARDS)
        piece.in[lane] = pack_bf16(in[0], in[1]);
      else
        piece.in[SPAN / 2 - 1 - lane] = pack_bf16(in[1], in[0]);
      if (lane == 0) {
        piece.state = before == r ? 1.f : exp2_fast(fminf(f32(before - r), 127.f));
        piece.before = exp2_fast(f32(before)), piece.after = exp2_fast(f32(e.whole + r));
        piece.first = first, piece.end = end;
      }
      warp_arrive(ready[turn.at]);
    }
    // from here on sums begin at the next chunk
    r += e.whole, decays += e.whole;
  }
  if (PASS == Pass::Ends && lane == 0) *decay_of(p, w.segment, w.batch, head, w.column(p, k) / COLUMNS) = exp2_fast(f32(decays));
}

// ---- CB: a warpgroup

DEVICE void mask_products(const Work& w, char* shared, Barriers& barriers) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, pair = 2 * (lane % 4);
  Turn<STAGES> stage;
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++, stage.next()) {
    char* const tiles = shared + stage.at * STAGE;
    barrier_wait(barriers.full[stage.at], stage.phase);
    __syncwarp();
    Sums<64> sums;
    products_fence();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++) {
      const int at = k / 4 * PANEL + k % 4 * 32;
      multiply<false>(sums, operand(tiles + C_AT + at), operand(tiles + B_AT + at), k > 0);
    }
    products_commit();
    products_wait();
    pin(sums.v);
    char* const line = tiles + CB_AT + row * 128 + pair * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int j = 8 * n + pair, at = (n ^ lane / 4) * 16;
      const f32* const v = sums.v + 4 * n;
      *reinterpret_cast<u32*>(line + at) = pack_bf16(j <= row ? v[0] : 0.f, j + 1 <= row ? v[1] : 0.f);
      *reinterpret_cast<u32*>(line + 8 * 128 + at) = pack_bf16(j <= row + 8 ? v[2] : 0.f, j + 1 <= row + 8 ? v[3] : 0.f);
    }
    fence_async();
    barrier_arrive(barriers.masked[stage.at]);
  }
}

// ---- the walk: a warpgroup

// The state of a unit, transposed: this thread has columns `row` and row + 8 of the head.
struct State {
  Sums<STATES> sums;

  // job(number, column within the unit, n)
  template <typename Job> DEVICE void each_number(Job job) {
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4, pair = 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < STATES / 2; i++) job(sums.v[i], row + i / 2 % 2 * 8, i / 4 * 8 + pair + i % 2);
  }
  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < STATES / 2; i++) sums.v[i] = 0.f;
  }
  template <typename E> DEVICE void read(const Params& p, int batch, int head, int column) {
    if (p.before.data == nullptr) return;
    const E* const from = state_at<E>(p.before, {batch, 0}, head, column, 0);
    each_number([&](f32& v, int q, int n) {
      if (n < p.dstate && column + q < p.headdim) v = to_f32(from[q * p.before.stride[3] + n * p.before.stride[4]]);
    });
  }
  template <typename E> DEVICE void write(const Params& p, int batch, int head, int column, f32 scale) {
    if (p.after.data == nullptr) return;
    E* const to = state_at<E>(p.after, {batch, 0}, head, column, 0);
    each_number([&](f32& v, int q, int n) {
      if (n < p.dstate && column + q < p.headdim) assign(to[q * p.after.stride[3] + n * p.after.stride[4]], v * scale);
    });
  }
  // The end of a segment, as its threads hold it.
  DEVICE float4* end(const Params& p, i64 segment, int batch, int head, int tile) const {
    const i64 unit = ((segment * p.batch + batch) * p.heads + head) * p.column_tiles + tile;
    return reinterpret_cast<float4*>(p.ends + unit * (COLUMNS * STATES)) + threadIdx.x % 128;
  }
  DEVICE void leave(const Params& p, i64 segment, int batch, int head, int tile, f32 scale) const {
    float4* const to = end(p, segment, batch, head, tile);
#pragma unroll
    for (int i = 0; i < STATES / 8; i++) {
      const f32* const v = sums.v + 4 * i;
      to[i * 128] = make_float4(v[0] * scale, v[1] * scale, v[2] * scale, v[3] * scale);
    }
  }
  // The state after all segments before this one.
  DEVICE void enter(const Params& p, i64 segment, int batch, int head, int tile) {
#pragma unroll 1
    for (i64 before = 0; before < segment; before++) {
      const float4* const from = end(p, before, batch, head, tile);
      // the first segment has begun with the state before it
      const f32 decay = before == 0 ? 0.f : *decay_of(p, before, batch, head, tile);
#pragma unroll
      for (int i = 0; i < STATES / 8; i++) {
        f32* const v = sums.v + 4 * i;
        const float4 some = from[i * 128];
        v[0] = __fmaf_rn(v[0], decay, some.x), v[1] = __fmaf_rn(v[1], decay, some.y);
        v[2] = __fmaf_rn(v[2], decay, some.z), v[3] = __fmaf_rn(v[3], decay, some.w);
      }
    }
  }
};

// Where a thread's part of a transposed fragment of 16 lines x 16 columns lies in a tile, in bytes: columns are those of the thread's warp.
DEVICE int fragment_at() {
  const int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8, unit = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  return line * 128 + (unit ^ lane % 8) * 16;
}

struct Walker {
  const Params& p;
  const Work& w;
  char* const shared;
  Barriers& barriers;
  const Piece (&pieces)[PIECES];
  const int unit, head, column, fragment;
  char* const outs;   // its tiles of y or of a slot
  State state;
  Turn<STAGES> stage;
  Turn<PIECES> turn;
  int chunk = 0;

  DEVICE Walker(const Params& p, const Work& w, char* shared, Barriers& barriers, const Piece (&pieces)[PIECES], int unit)
      : p(p), w(w), shared(shared), barriers(barriers), pieces(pieces), unit(unit), head(w.head(p, unit)), column(w.column(p, unit)),
        fragment(fragment_at()), outs(shared + OUT_AT + 2 * unit * OUT) {
    state.clear();
    if (w.segment == 0)
      state.read<BEFORE>(p, w.batch, head, column);
    else if constexpr (PASS == Pass::Rest)
      state.enter(p, w.segment, w.batch, head, column / COLUMNS);
  }

  DEVICE bool leads() const { return threadIdx.x % 128 == 0; }

  DEVICE void wait_for_piece() { barrier_wait(barriers.ready[unit][turn.at], turn.phase); }
  DEVICE void wait_for_tiles() {
    barrier_wait(barriers.full[stage.at], stage.phase);
    if constexpr (HAS_OUTPUT) barrier_wait(barriers.masked[stage.at], stage.phase);
  }

  // x^T of a piece times its weights
  DEVICE void load_x(FragmentA (&x)[4]) const {
    const char* const tile = shared + stage.at * STAGE + unit * PANEL + fragment;
    const u32* const in = pieces[turn.at].in + threadIdx.x % 4;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      load_matrices<true>(x[k].v, tile + k * 16 * 128);
      if constexpr (GATES_FACTOR) {
        u32 z[4];
        load_matrices<true>(z, tile + Z_AT + k * 16 * 128);
#pragma unroll
        for (int i = 0; i < 4; i++)
          x[k].v[i] = pack_bf16(low_bf16(x[k].v[i]) * silu(low_bf16(z[i])), high_bf16(x[k].v[i]) * silu(high_bf16(z[i])));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(x[k].v[i]) : "r"(in[8 * k + i / 2 * 4]));
    }
  }

  // Starts to load the gate of a chunk.
  DEVICE void load_gate(int chunk) {
    Barrier& gate = barriers.gate[unit][chunk % 2];
    barrier_arrive_expecting(gate, PANEL);
    tile_load(outs + chunk % 2 * OUT, p.z_map, gate, {column, head, w.step(chunk), w.batch});
  }

  // All threads have written a tile, and the other one has been read.
  DEVICE void meet_before_store() {
    fence_async();
    if (leads()) tile_store_wait();
    if (unit == 0) meet<1, 128>(); else meet<2, 128>();
  }

  // The state before a chunk into its slot.
  DEVICE void fill_slot(f32 scale) {
    char* const tile = outs + chunk % 2 * OUT;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++) {
      u32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = pack_bf16(state.sums.v[8 * k + 2 * i] * scale, state.sums.v[8 * k + 2 * i + 1] * scale);
      store_matrices<true>(tile + fragment + k * 16 * 128, v);
    }
    meet_before_store();
    if (!leads()) return;
    const int slot = (w.batch * int(p.chunks) + w.step(chunk) / SPAN) * int(p.heads) + head;
#pragma unroll
    for (int n = 0; n < PANELS; n++) tile_store(p.slot_map, tile + n * PANEL, {column, slot * STATES + 64 * n});
    tile_store_commit();
  }

  // Finishes y of a piece, with this thread's part of x, and writes it into its tile; the tile goes to memory once all pieces are there.
  DEVICE void finish(const Sums<64>& y, const Piece& piece, const char* x) {
    char* const tile = outs + chunk % 2 * OUT + fragment;
    const int pair = 2 * (threadIdx.x % 4);
    const bool partial = piece.first > 0 || piece.end < SPAN;
    if constexpr (GATES_OUTPUT) {
      if (piece.first == 0) barrier_wait(barriers.gate[unit][chunk % 2], chunk / 2 % 2);
    }
    f32 skip[2];
    if constexpr (HAS_SKIP) {
      const int row = column + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
      for (int r = 0; r < 2; r++) skip[r] = row + 8 * r < p.headdim ? to_f32(*at<SKIP>(p.skip, head, row + 8 * r)) : 0.f;
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 there[4], xs[4], out[4];
      if (GATES_OUTPUT || partial) load_matrices<true>(there, tile + k * 16 * 128);
      if constexpr (HAS_SKIP) load_matrices<true>(xs, x + k * 16 * 128);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int step = 16 * k + i / 2 * 8 + pair;
        const float2 factor = *reinterpret_cast<const float2*>(piece.out + step);
        f32 v[2] = {y.v[8 * k + 2 * i] * factor.x, y.v[8 * k + 2 * i + 1] * factor.y};
        if constexpr (HAS_SKIP) {
          v[0] = __fmaf_rn(skip[i % 2], low_bf16(xs[i]), v[0]);
          v[1] = __fmaf_rn(skip[i % 2], high_bf16(xs[i]), v[1]);
        }
        if constexpr (GATES_OUTPUT) v[0] *= silu(low_bf16(there[i])), v[1] *= silu(high_bf16(there[i]));
        out[i] = pack_bf16(v[0], v[1]);
        if (partial) {
          const u32 low = step >= piece.first && step < piece.end ? 0xffffu : 0u;
          const u32 high = step + 1 >= piece.first && step + 1 < piece.end ? 0xffff0000u : 0u;
          out[i] = (out[i] & (low | high)) | (there[i] & ~(low | high));
        }
      }
      store_matrices<true>(tile + k * 16 * 128, out);
    }
    if (piece.end < SPAN) return;
    meet_before_store();
    if (!leads()) return;
    tile_store(p.y_map, outs + chunk % 2 * OUT, {column, head, w.step(chunk), w.batch});
    tile_store_commit();
    if constexpr (GATES_OUTPUT) {
      if (chunk + 1 < w.chunks) load_gate(chunk + 1);
    }
  }

  // Walks through a piece whose x is there, and loads the next one's. Gives whether there is one.
  DEVICE bool step(const FragmentA (&x)[4], FragmentA (&next)[4]) {
    const int own_turn = turn.at, own_stage = stage.at;
    const Piece& piece = pieces[own_turn];
    const char* const tiles = shared + own_stage * STAGE;
    const bool last = piece.end == SPAN;
    if constexpr (HAS_SLOTS) {
      if (piece.first == 0) fill_slot(piece.before);
    }
    const f32 factor = piece.state;
    if (factor != 1.f) {
#pragma unroll
      for (int i = 0; i < STATES / 2; i++) state.sums.v[i] *= factor;
    }
    Sums<64> y;
    __syncwarp();
    if constexpr (HAS_OUTPUT) {
      FragmentA s[STATES / 16];
#pragma unroll
      for (int i = 0; i < STATES / 4; i++) s[i / 4].v[i % 4] = pack_bf16(state.sums.v[2 * i], state.sums.v[2 * i + 1]);
      products_fence();
#pragma unroll
      for (int k = 0; k < STATES / 16; k++) multiply<false>(y, s[k], operand(tiles + C_AT + k / 4 * PANEL + k % 4 * 32), k > 0);
#pragma unroll
      for (int k = 0; k < 4; k++) multiply<false>(y, x[k], operand(tiles + CB_AT + k * 32), true);
      products_commit();
    } else {
      products_fence();
    }
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(state.sums, x[k], operand(tiles + B_AT + k * 16 * 128, PANEL), true);
    products_commit();
    turn.next();
    if (last) stage.next();
    const bool more = !last || chunk + 1 < w.chunks;
    if constexpr (HAS_OUTPUT) {
      products_wait<1>();
      pin(y.v);
      finish(y, piece, tiles + unit * PANEL + fragment);
    }
    if (more) {
      wait_for_piece();
      if (last) wait_for_tiles();
      load_x(next);
    }
    products_wait();
    pin(state.sums.v);
    warp_arrive(barriers.taken[unit][own_turn]);
    if (last) warp_arrive(barriers.empty[own_stage]), chunk++;
    return more;
  }

  DEVICE void walk() {
    if (GATES_OUTPUT && leads()) load_gate(0);
    FragmentA one[4], other[4];
    wait_for_piece();
    wait_for_tiles();
    load_x(one);
    while (step(one, other) && step(other, one)) {}
    // nothing has come after the powers of the last piece
    const f32 scale = pieces[(turn.at + PIECES - 1) % PIECES].after;
    if constexpr (PASS == Pass::Ends)
      state.leave(p, w.segment, w.batch, head, column / COLUMNS, scale);
    else if (w.segment + 1 == p.segments)
      state.write<AFTER>(p, w.batch, head, column, scale);
    if (OUT > 0 && leads()) tile_store_finish();
  }
};

extern "C" __global__ void __launch_bounds__(128 * WORKERS, 1) ssd_hopper(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ Piece pieces[UNITS][PIECES];
  __shared__ Barriers barriers;
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  const Work w(p);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(barriers.full[i], 1);
      barrier_init(barriers.empty[i], 4 * w.units);
      barrier_init(barriers.masked[i], 128);
    }
    for (int k = 0; k < UNITS; k++) {
      for (int i = 0; i < PIECES; i++) barrier_init(barriers.ready[k][i], 1), barrier_init(barriers.taken[k][i], 4);
      for (int i = 0; i < 2; i++) barrier_init(barriers.gate[k][i], 1);
    }
    barriers_are_ready();
  }
  __syncthreads();
  const int worker = threadIdx.x / 128, warp = threadIdx.x % 128 / 32;
  if (worker == UNITS + 1) {
    registers_down<COPY_REGISTERS>();
    if (threadIdx.x % 128 == 0) copy_tiles(p, w, shared, barriers);
    if (warp > 0 && warp - 1 < w.units) compute_powers(p, w, warp - 1, pieces[warp - 1], barriers.ready[warp - 1], barriers.taken[warp - 1]);
  } else if (worker == UNITS) {
    registers_down<MASK_REGISTERS>();
    if constexpr (HAS_OUTPUT) mask_products(w, shared, barriers);
  } else {
    registers_up<WALKER_REGISTERS>();
    if (worker < w.units) Walker(p, w, shared, barriers, pieces[worker], worker).walk();
  }
}
