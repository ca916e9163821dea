// The walk over time on Hopper: a warpgroup takes 64 columns of a head through time with their state in its registers, by products of warpgroups.
//
// Everything is transposed. With cs the sums of log2 of the decays since a chunk began, CB the lower triangle of C B^T (the same for every head
// of a group), and any number r,
//
//   y^T = (S^T C^T + xs^T CB^T) diag(2^(cs[i] + r))      xs[j] = x[j] dt[j] 2^-(cs[j] + r)      S^T <- S^T + xs^T B
//
// where S is the state times 2^-r. CB and the weights of steps are two terms of bf16 each, so that y has the error of rounding xs and y itself:
// most of it comes from steps nearby. So decays are factors of steps alone: no head forms a matrix of 64 x 64 numbers of its own. S^T is the first
// factor of its product as it lies in registers, x^T comes out of shared memory with one instruction for 16 x 16 numbers, and serves twice.
//
// Backwards in time S is the gradient by the state: dy stands for x, C for B, weights are one, and the sums are those of the steps after each
// one. Instead of y either direction may leave S in slots: before each SLOT_CHUNKS chunks, in its own direction.
//
// The powers of two must not overflow: r follows the decays, and changes only where an exponent would leave [-NEAR, NEAR]. Where the exponents of a
// chunk differ by more than 2 FAR no r will do for y, though one does for the state: what S gets is relative to the smallest cs, for decays that of
// the chunk's end, and no weight is beyond dt. Of such a chunk, which is far, a head has a triangle of its own:
//
//   y^T = (S^T C^T) diag(2^(cs[i] + r)) + x^T M^T      M[i, j] = CB[i, j] dt[j] 2^(cs[i] - cs[j])
//
// in one term of bf16, while x is as it was stored. It takes the place of a term of CB, so all units of a block are far together.
//
// A warpgroup holds up to 128 states of a column. Where there are more, both walkers of a block take the same columns and half of the states each.
// Then either has a part of y (the terms of CB are divided among them as well), and they exchange halves of the steps by way of shared memory.
//
// Warpgroups: the walkers, for one or two units (64 columns of a head); one that forms CB or M; and one of which a thread starts copies into shared
// memory and a warp for each unit computes the powers. They meet at barriers: `full` and `empty` for the tiles of a chunk, `masked` for its
// triangles, `ready` and `taken` for its powers.
#pragma once
#include "tools.cuh"

static_assert(given<int>(STATES, BLOCK_UNITS, COLUMNS, B_AT, Z_AT, C_AT, OUT_AT, CB_AT, EXCHANGE_AT, SHARED_END, SLOT_CHUNKS, STAGES) &&
              given<bool>(HAS_OUTPUT, FORWARDS, HAS_SLOTS, HAS_CUTS, HAS_Z) && given<Pass>(PASS));

constexpr int SPAN = 64, WALKERS = 2, WORKERS = WALKERS + 2;
// walkers of a unit, units of a block, and states of a walker
constexpr int PARTS = STATES > 128 ? 2 : 1, UNITS = WALKERS / PARTS, OWN_STATES = STATES / PARTS;
constexpr int PANELS = STATES / 64, OWN_PANELS = OWN_STATES / 64;
constexpr int PANEL = 64 * 128;   // bytes of 64 lines of 64 numbers, swizzled
constexpr f64 NEAR = 30., FAR = 60.;
// log2 of a decay that leaves nothing, and of the largest factor between the state and S
constexpr f64 NOTHING = -256., LARGEST = 100.;
// a block that has a multiprocessor of its own may leave a walker idle: one unit is through sooner than two
static_assert(BLOCK_UNITS <= UNITS, "a unit has its walkers");
static_assert(COLUMNS == 64 && OWN_STATES % 64 == 0 && OWN_STATES <= 128, "a state fits into the registers of a warpgroup");

static_assert(!HAS_OUTPUT || (FORWARDS && !HAS_SLOTS), "a walk writes y or slots");
// tensor maps in the order of the parameters
constexpr int X_MAP = 0, Z_MAP = 1, Y_MAP = 2, B_MAP = 3, C_MAP = 4;
// whether y is multiplied by the gate, or its gradient is
constexpr bool GATES_OUTPUT = HAS_Z && HAS_OUTPUT, GATES_FACTOR = HAS_Z && !FORWARDS;

// CB of a chunk, and a tile that goes to memory while the next one is written: of y for each unit, or of a slot for each walker. A gate comes in the
// tile that its y goes out in
constexpr int CB = HAS_OUTPUT ? 2 * PANEL : 0, OUT = HAS_OUTPUT ? PANEL : HAS_SLOTS ? OWN_PANELS * PANEL : 0, ALIGNMENT = 1024;
// two walkers exchange their shares of y here, in f32
constexpr int EXCHANGE = HAS_OUTPUT && PARTS > 1 ? PANEL : 0;
static_assert(B_AT - Z_AT == (GATES_FACTOR ? UNITS * PANEL : 0) && C_AT - B_AT == PANELS * PANEL, "the plan has counted the same");
static_assert(OUT_AT - CB_AT == 2 * CB && EXCHANGE_AT - OUT_AT == 2 * (HAS_OUTPUT ? UNITS : WALKERS) * OUT, "the plan has counted the same");
static_assert(SHARED_END - EXCHANGE_AT == PARTS * EXCHANGE, "the plan has counted the same");

// The powers of a chunk, in the direction of the walk.
struct alignas(16) Powers {
  f32 out[SPAN];          // 2^(cs + r); of a far chunk its square root, which does not overflow
  Factors in[SPAN / 2];   // dt 2^-(cs + r) of two steps
  f32 half[SPAN], weight[SPAN];   // a far chunk has cs / 2 and dt here
  f32 state[2];           // factors of the state, since r changes; a far chunk applies its own after y
  f32 before, after;      // 2^r as it was, and 2^(cs + r) after the chunk
  int far;
  int cut, cuts;   // pieces that end in the chunk: the first one, and how many
};
constexpr int POWERS = 4;   // chunks whose powers may be ready at the same time
constexpr int POWERS_BARRIER = 4;   // where the warps that compute them meet

struct Work {
  int batch, group, unit, units;   // the first unit of the group, and how many this block has
  int first_head, first_column;    // head and column of the first unit
  int part, parts;                 // in packed sequences the segment of the row of the batch, and how many the row has
  int first, end;                  // steps of the row, or of a packed sequence
  int segment, segments;           // in the direction of the walk, of how many
  int start, chunks;               // the segment's
  int slot, ends;                  // the first slot of the row, or -1, and its first place among what segments leave
  bool is_cut;                     // whether the row ends within the last tile

  static constexpr int MAPS = 5, THREADS = 128 * WORKERS;
  DEVICE static bool is_of_steps(int map) { return map != Y_MAP || HAS_OUTPUT; }

  Work() = default;
  // The first part of this block.
  DEVICE explicit Work(const Params& p) : part(blockIdx.y), parts(0) {
    const int all = int(p.heads_per_group * p.column_tiles), tiles = (all + BLOCK_UNITS - 1) / BLOCK_UNITS, groups = int(p.groups);
    int i = blockIdx.x;
    unit = i % tiles * BLOCK_UNITS, i /= tiles;
    group = i % groups, batch = i / groups;
    units = min(BLOCK_UNITS, all - unit);
    first_head = head(p, 0), first_column = column(p, 0);
    if constexpr (PACKED) {
      parts = sequences_of(p.packed, batch)[*count_of(p.packed, batch)].segments;
      find(p);
    } else {
      first = 0, end = int(p.seqlen), segment = part, segments = int(p.segments), ends = 0;
      slot = batch * ((int(p.chunks) + SLOT_CHUNKS - 1) / SLOT_CHUNKS);
      set_steps(p);
    }
  }
  DEVICE bool has_part() const { return part < parts; }
  DEVICE void next(const Params& p) { part += gridDim.y, find(p); }

  // Finds the sequence of the part, or of the next one of this block in which there is something to do.
  DEVICE void find(const Params& p) {
    const Sequence* const rows = sequences_of(p.packed, batch);
    for (; has_part(); part += gridDim.y) {
      const int k = sequence_with(rows, *count_of(p.packed, batch), &Sequence::segments, part);
      const Sequence own = rows[k], behind = rows[k + 1];
      first = own.first, end = behind.first, segment = part - own.segments, segments = behind.segments - own.segments;
      slot = own.slot < 0 ? -1 : batch * int(p.packed.slots) + own.slot;
      // the last segment of a sequence leaves nothing
      ends = own.segments - k;
      set_steps(p);
      if (PASS == Pass::Ends ? !is_last() : !HAS_SLOTS || slot >= 0 || p.after.data != nullptr) return;
    }
  }
  DEVICE void set_steps(const Params& p) {
    const i64 begin = first + (FORWARDS ? segment : segments - 1 - segment) * p.segment_steps, behind = min(begin + p.segment_steps, i64(end));
    start = int(begin), chunks = int((behind - begin + SPAN - 1) / SPAN), is_cut = (behind - begin) % SPAN != 0;
  }
  // the first step of a chunk
  DEVICE int step(int chunk) const { return start + (FORWARDS ? chunk : chunks - 1 - chunk) * SPAN; }
  // chunks of the row before that one
  DEVICE int chunk_of_row(int chunk) const { return (step(chunk) - first) / SPAN; }
  DEVICE bool is_last() const { return segment + 1 == segments; }
  // the places of the states that the walk enters the row with, or leaves it with
  DEVICE StateRow state_row(const Params& p, bool enters) const {
    if constexpr (PACKED) return enters == FORWARDS ? row_before(p, batch, first) : row_after(p, batch, end);
    return enters ? source_of(p, {batch, 0}) : target_of(p, {batch, 0});
  }
  DEVICE int head(const Params& p, int k) const { return group * int(p.heads_per_group) + (unit + k) / int(p.column_tiles); }
  DEVICE int column(const Params& p, int k) const { return (unit + k) % int(p.column_tiles) * COLUMNS; }
};

struct Barriers {
  Barrier full[STAGES], empty[STAGES], masked[STAGES];
  Barrier ready[UNITS][POWERS], taken[UNITS][POWERS], gate[UNITS][2];

  DEVICE void init(const Work& w) {
    // one instruction takes either number, since synccheck counts an initialization that a predicate turns off
    const int walkers = UNITS == 1 || w.units > 1 ? UNITS : 1;
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full[i], 1), barrier_init(masked[i], 128), barrier_init(empty[i], 4 * PARTS * walkers * ARRIVALS);
    }
    for (int k = 0; k < UNITS; k++) {
      // walkers take powers, and those who form triangles
      for (int i = 0; i < POWERS; i++) barrier_init(ready[k][i], ARRIVALS), barrier_init(taken[k][i], 4 * (PARTS + int(HAS_OUTPUT)) * ARRIVALS);
      for (int i = 0; i < 2; i++) barrier_init(gate[k][i], 1);
    }
    barriers_are_ready();
  }
  DEVICE void end() {
    for (int i = 0; i < int(sizeof(Barriers) / sizeof(Barrier)); i++) barrier_end(reinterpret_cast<Barrier*>(this)[i]);
  }
};

// A place for what a segment of a row leaves: (segment, batch, head, tile of columns).
DEVICE i64 end_of(const Params& p, const Work& w, int segment, int head, int tile) {
  return ((i64(w.ends + segment) * p.batch + w.batch) * p.heads + head) * p.column_tiles + tile;
}
// A place for the state before the chunk of a cut, behind those of segments.
DEVICE i64 cut_of(const Params& p, int piece, int head, int tile) { return p.first_cut + (i64(piece) * p.heads + head) * p.column_tiles + tile; }
