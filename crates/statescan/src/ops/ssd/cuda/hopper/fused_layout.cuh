// The backward pass within a chunk on Hopper, all gradients at once: a block takes a chunk through the heads of a group, and reads everything once.
// The states h before the chunk and the gradients g by the state after it come out of slots, which pairs of chunks have: h of a pair's second chunk is
// formed from the first one's, and g of the first from the second one's.
//
// With p the gradient by y before the gate, cs the sums of log2 of the decays since the chunk began, e[i] = 2^cs[i], w[j] = 2^(cs[end] - cs[j]), and
// CB the triangle of C B^T below its diagonal, the same for every head, let
//
//   ps[i] = e[i] p[i]     X = CB^T ps + 2^cs[end] B g     V[i, j] = e[i] 2^-cs[j] <p[i], x[j]>
//
// so that decays are factors of steps alone, and no head has a first factor of 64 x 64 numbers of its own. Then
//
//   dx[j] = dt[j] 2^-cs[j] X[j] + (dt[j] <C[j], B[j]> + D) p[j]
//   dC = sum over heads of ps h^T        + K B        K[i, j] = sum over heads of V[i, j] dt[j], its triangle with the diagonal
//   dB = sum over heads of dt w x g^T    + K^T C
//   weight: d dt[j] = sum_i V[i, j] CB[i, j] + w[j] <x[j], (B g)[j]> + <C[j], B[j]> <x[j], p[j]>
//   decay:  d (dt A)[t] = sum_{i >= t > j} V[i, j] CB[i, j] dt[j] + sum_{i >= t} <ps[i], (C h)[i]> + sum_{j < t} dt[j] w[j] <x[j], (B g)[j]> + 2^cs[end] <h, g>
//
// V is made of products of what is stored and of f32 from then on: rounded to 16 bits are only ps, dt w x, CB^T, p behind a gate, and h and g, in
// their slots and again where they were formed past the other chunk. The triangle in the first line of decay is the sum of its rows from t on less that of its columns from t on. K is two terms.
//
// The gradient by the gate needs y[i] = e[i] (CB xs + C h)[i] + (dt[i] <C[i], B[i]> + D) x[i] with xs[j] = dt[j] 2^-cs[j] x[j].
//
// Where decays within the chunk differ by more than FAR, powers of them would overflow: ps and xs are p and dt x there in the products with the
// triangle, which is multiplied by 2^(cs[i] - cs[j]) for this head, as is V.
//
// More than 128 states come in two launches, half of them each: everything is a sum over states but for K and the skip's part. The first one leaves
// its part of what both have in f32, and the second one, which has the skip's part, adds it.
//
// Warpgroups: that of the outputs has the steps i as rows (V, dC, and Y), that of the inputs the steps j (X, dx, dB). The warps of a third one copy
// tiles into shared memory, compute the powers, finish what steps get, and copy results to memory. They meet at barriers.
//
// What both need before their products, h or g past the other chunk and ps, they share between them; but the outputs have more to do where there is
// a gate. Then the inputs do all of that, p as well, and may be a unit ahead.
//
// Instructions bind: either side has more of them than the first cache for them holds, and waits for the next ones. So what is done to several parts
// of a tile is a loop where no register depends on the part.
#pragma once
#include "tools.cuh"

static_assert(given<int>(STATES, COLUMNS, OWN_P_AT, DY_AT, PS_AT, H_AT, XS_AT, OTHER_MAP_AT, STAGES, STATIC) && given_types<B, C>() &&
              given<bool>(HAS_Z, HAS_DZ, IS_FIRST_HALF, IS_SECOND_HALF, HAS_DSKIP, HAS_SKIP, SKIP_BY_COLUMN));

constexpr int SPAN = 64, PANELS = STATES / 64, SIDES = 2;
constexpr int PANEL = 64 * 128;   // bytes of 64 lines of 64 numbers, swizzled
constexpr f64 FAR = 96.;
static_assert(COLUMNS == 64 && STATES % 64 == 0 && STATES <= 128, "gradients of B and C fit into the registers of a warpgroup");
static_assert(HAS_Z || !HAS_DZ, "a gradient needs its input");
static_assert(!(IS_FIRST_HALF && (IS_SECOND_HALF || HAS_DSKIP)), "the second half has the skip");
constexpr bool ADDS_SKIP = HAS_SKIP && !IS_FIRST_HALF;
constexpr bool INPUTS_LEAD = HAS_Z;

// dx goes out by the place of p, the gradient by the gate by that of the gate
constexpr int P_AT = HAS_Z ? OWN_P_AT : DY_AT;
// The pair's other chunk has x, or dy and the gate, here until ps and p are written.
constexpr int OTHER_AT = PS_AT, OTHER_Z_AT = OWN_P_AT;
// Y, thread by thread, where the gradient by the gate is formed: of this unit nobody reads h any more, nor xs, where h is too short
constexpr int Y_AT = H_AT, REST_AT = XS_AT, OUTPUTS_BARRIER = 5;
// the two terms of K after all heads
constexpr int K_AT = OTHER_MAP_AT, ALIGNMENT = 1024;

// tensor maps in the order of the parameters, and those of results
constexpr int X_MAP = 0, DY_MAP = 1, Z_MAP = 2, B_MAP = 3, C_MAP = 4, STATES_MAP = 5, GRADIENTS_MAP = 6, DX_MAP = 7, DZ_MAP = 8;

// The powers of a unit, and what else its steps and columns have.
struct alignas(16) Powers {
  f32 weight[SPAN], before[SPAN], after[SPAN];  // dt, e, and w
  f32 decay[SPAN];                              // 2^-cs, or cs where they are far apart
  Factors other[SPAN / 2];                      // dt w of the pair's first chunk, or e of its second one
  f32 skip[HAS_SKIP ? COLUMNS : 2];
  f32 other_whole, whole;                       // decays of that chunk and of this one
  int far;

  DEVICE f32 back(int step) const { return far ? 1.f : decay[step]; }
  // the factor of B g in X
  DEVICE f32 to_end(int step) const { return far ? after[step] : whole; }
};

// The sums over steps of a unit.
struct StepSums {
  f32 outputs[SPAN];           // rows of V CB times dt, and <ps, C h>
  f32 columns[16 + 32 + 48 + 64];   // columns of V CB, or of 2^cs[j] V CB where powers are near: each warp's, which has no steps after its own
  f32 inputs_state[SPAN];      // <x, B g>
  f32 own[SPAN];               // <x, p>
  f32 state[4];                // parts of <h, g>

  DEVICE static int column_of(int warp, int step) { return 8 * warp * (warp + 1) + step; }
  DEVICE f32 column(int step) const {
    f32 sum = columns[column_of(3, step)];
#pragma unroll 1
    for (int warp = 2; warp >= step / 16; warp--) sum += columns[column_of(warp, step)];
    return sum;
  }
};

// A unit has in its stage tiles, powers, sums, each of which becomes ready and is given back by itself.
struct Barriers {
  Barrier full, written, empty;
  Barrier has_state, has_ps, has_xs, p_read;
  Barrier ready, taken;
  Barrier summed, read;

  DEVICE void init() {
    barrier_init(full, 1), barrier_init(written, 8 * ARRIVALS), barrier_init(empty, ARRIVALS);
    barrier_init(has_state, (INPUTS_LEAD ? 4 : 8) * ARRIVALS), barrier_init(has_ps, 4 * ARRIVALS);
    barrier_init(has_xs, 4 * ARRIVALS), barrier_init(p_read, 4 * ARRIVALS);
    // both sides take powers, and the warp that finishes
    barrier_init(ready, ARRIVALS), barrier_init(taken, 9 * ARRIVALS);
    barrier_init(summed, 8 * ARRIVALS), barrier_init(read, ARRIVALS);
  }
  DEVICE void end() {
    for (int i = 0; i < int(sizeof(Barriers) / sizeof(Barrier)); i++) barrier_end(reinterpret_cast<Barrier*>(this)[i]);
  }
};

struct Work {
  int batch, place, group, slice;   // place: among the blocks for the chunks of a row of the batch
  int unit, units;                  // the first unit and how many; units are 64 columns of a head, in the order of heads
  int part, parts;                  // in packed sequences the chunk of the row of the batch, and how many the row has
  int first, end;                   // steps of the row, or of a packed sequence
  int chunk, slots;                 // the chunk of those steps, and the first slot of the row, or -1
  bool second, has_other;           // whether this is the second chunk of its pair, and whether the pair has another
  bool is_cut;                      // whether the steps end within a tile of the pair

  static constexpr int MAPS = 9, THREADS = 128 * (SIDES + 1);
  DEVICE static bool is_of_steps(int map) { return map != STATES_MAP && map != GRADIENTS_MAP; }

  Work() = default;
  // The first chunk of this block.
  DEVICE explicit Work(const Params& p) : parts(0) {
    int i = blockIdx.x;
    const int slices = int(p.slices), groups = int(p.groups), places = int(p.chunks);
    slice = i % slices, i /= slices;
    group = i % groups, i /= groups;
    place = i % places, batch = i / places;
    part = place;
    const int heads = int(p.heads_per_group), each = int(p.heads_per_slice), before = slice * each;
    unit = (group * heads + before) * int(p.column_tiles);
    units = (min(before + each, heads) - before) * int(p.column_tiles);
    if constexpr (PACKED) {
      parts = sequences_of(p.packed, batch)[*count_of(p.packed, batch)].chunks;
      find(p);
    } else {
      first = 0, end = int(p.seqlen), chunk = place, slots = batch * int((p.chunks + 1) / 2);
      set_pair();
    }
  }
  // The end of the steps; where a block has whole rows it takes no register.
  DEVICE int limit(const Params& p) const { return PACKED ? end : int(p.seqlen); }
  DEVICE bool has_part() const { return part < parts; }
  DEVICE void next(const Params& p) { part += int(p.chunks), find(p); }

  // Finds the sequence of the chunk.
  DEVICE void find(const Params& p) {
    if (!has_part()) return;
    const Sequence* const rows = sequences_of(p.packed, batch);
    const int k = sequence_with(rows, *count_of(p.packed, batch), &Sequence::chunks, part);
    const Sequence own = rows[k];
    first = own.first, end = rows[k + 1].first, chunk = part - own.chunks;
    slots = own.slot < 0 ? -1 : batch * int(p.packed.slots) + own.slot;
    set_pair();
  }
  DEVICE void set_pair() {
    const int last = (end - first - 1) / SPAN;
    second = chunk % 2 == 1, has_other = second || chunk < last;
    is_cut = (chunk | 1) >= last && (end - first) % SPAN != 0;
  }
  DEVICE int step() const { return first + chunk * SPAN; }
  DEVICE int other_step() const { return first + (chunk ^ 1) * SPAN; }
  DEVICE int head(const Params& p, int k) const { return (unit + k) / int(p.column_tiles); }
  DEVICE int column(const Params& p, int k) const { return (unit + k) % int(p.column_tiles) * COLUMNS; }
  // the first line of the states of a slot; lines below zero are read as zeros
  DEVICE int slot(const Params& p, int head) const {
    return PACKED && slots < 0 ? -STATES : ((slots + chunk / 2) * int(p.heads) + head) * STATES;
  }
  // a number of a head in this chunk: (batch, chunk, head)
  DEVICE i64 number(const Params& p, int head) const { return (i64(batch) * p.chunks + place) * p.heads + head; }
};

struct Shared {
  Work work;
  Powers powers[STAGES];
  StepSums sums[STAGES];
  Barriers barriers[STAGES];
  Barrier maps, has_k;   // B and C, and K after all units
  f32 diagonal[SPAN];    // <C[j], B[j]>
  // <x, p> of columns, where the skip has a number for each: of each warp's steps
  f32 columns[STAGES][4][HAS_DSKIP && SKIP_BY_COLUMN ? COLUMNS : 1];

  DEVICE void init(const Work&) {
    for (Barriers& some : barriers) some.init();
    barrier_init(maps, 1), barrier_init(has_k, 4 * ARRIVALS);
    barriers_are_ready();
  }
  DEVICE void end() {
    for (Barriers& some : barriers) some.end();
    barrier_end(maps), barrier_end(has_k);
  }
};

static_assert(sizeof(Shared) <= STATIC, "the plan has room for it");

// Terms of the chunks of a block: of packed sequences it may have several, or none, and of halves of the states there may be one already.
template <bool OF_STATES> DEVICE void put_term(f32& to, f32 v) {
  if constexpr (PACKED || (OF_STATES && IS_SECOND_HALF)) to += v; else to = v;
}

// The sum over the four threads of a row.
DEVICE f32 sum_of_row(f32 v) {
  v += __shfl_xor_sync(~0u, v, 1);
  return v + __shfl_xor_sync(~0u, v, 2);
}
