// The chain of chunks where there are heads for every multiprocessor: a block has 128 columns of a head, whose states two warpgroups keep (`keeper.cuh`),
// 64 columns each, and form y^T = (S^T Q^T) diag(reading) + D^T A^T, too. So keys, queries and units come to a multiprocessor once. One warp loads, and
// the others of its warpgroup write y.
constexpr int VALUE_TILES = 2;   // of a stage

#include "keeper.cuh"

static_assert(given<bool>(HAS_Y, HAS_INITIAL, HAS_FINAL) && !BY_CHANNEL && !IN_PIECES);

constexpr int WARPGROUPS = 2, Y_AT = STAGES * STAGE, BARRIERS_AT = Y_AT + WARPGROUPS * TILE, WRITERS = 3;
struct Barriers {
  Ring ring;
  Barrier y_full[WARPGROUPS], y_free[WARPGROUPS];
};
static_assert(SHARED == BARRIERS_AT + int(sizeof(Barriers)), "the plan has counted the same");

struct Heads : Keeper {
  Barriers& barriers;
  const int warpgroup;

  DEVICE Heads(const Params& p, char* shared, int slice, int warpgroup)
      : Keeper(p, shared, Work(p, slice / SLICES, slice % SLICES * 64, {0, 1})), barriers(*reinterpret_cast<Barriers*>(shared + BARRIERS_AT)), warpgroup(warpgroup) {}

  // ---- copies: a warp, of which one thread starts them

  DEVICE void copy() const {
    const int key_head = int(w.head / GROUP), head = int(w.head), batch = int(w.piece.batch);
    Turn<STAGES> turn;
    wait_for_units();
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++, turn.next()) {
      barrier_wait(barriers.ring.empty[turn.at], turn.phase ^ 1);
      Barrier& full = barriers.ring.full[turn.at];
      char* const to = stage(turn);
      const int step = int(w.piece.start) + chunk * CHUNK;
      barrier_arrive_expecting(full, STAGE);
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) tile_load(to + K_AT + panel * TILE, p.k_map, full, {64 * panel, key_head, step, batch});
#pragma unroll
      for (int i = 0; i < VALUE_TILES; i++) tile_load(to + V_AT + i * TILE, p.v_map, full, {w.column + 64 * i, head, step, batch});
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) tile_load(to + Q_AT + panel * TILE, p.q_map, full, {64 * panel, key_head, step, batch});
      bytes_load(to + UNIT_AT, static_cast<const char*>(p.units) + (w.first + chunk) * UNIT_BYTES, UNIT_BYTES, full);
    }
  }

  // ---- y goes out: the other warps of that warpgroup

  DEVICE void write() const {
    if constexpr (!HAS_Y) return;
    const int first = threadIdx.x % 128 - 32;
#pragma unroll 1
    for (int i = 0; i < w.chunks * WARPGROUPS; i++) {
      const int chunk = i / WARPGROUPS, own = i % WARPGROUPS, count = w.count(chunk);
      Y* const y = at<Y>(p.y, w.piece.batch, w.piece.start + i64(chunk) * CHUNK, w.head, w.column + 64 * own);
      barrier_wait(barriers.y_full[own], chunk & 1);
      if constexpr (IN_LINES) {
#pragma unroll 2
        for (int i = first; i < count * 8; i += 32 * WRITERS)
          *reinterpret_cast<uint4*>(y + i / 8 * p.y.stride[1] + i % 8 * 8) = *reinterpret_cast<const uint4*>(place_of_y(own, i / 8, i % 8));
      } else {
        // steps may lie side by side
#pragma unroll 1
        for (int i = first; i < CHUNK * 64; i += 32 * WRITERS)
          if (i % CHUNK < count) y[i % CHUNK * p.y.stride[1] + i / CHUNK * p.y.stride[3]] = reinterpret_cast<const Y*>(place_of_y(own, i % CHUNK, i / CHUNK / 8))[i / CHUNK % 8];
      }
      warp_arrive(barriers.y_free[own]);
    }
  }

  // eight columns of a step
  DEVICE const char* place_of_y(int own, int step, int eight) const { return shared + Y_AT + own * TILE + step * 128 + (eight ^ step % 8) * 16; }

  // ---- the state and y: a warpgroup

  struct Reader {
    static constexpr int WARPGROUPS = ::WARPGROUPS, READS = 1;
    const Heads& heads;
    Sums<64> y;
    FragmentA update[4];
    int chunk;

    DEVICE void give(FragmentA (&state)[KEYS / 16], const char* from, int) {
      const u64 queries = operand(from + Q_AT);
      products_fence();
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) multiply<false>(y, state[k], columns_of(queries, k), k > 0);
      products_commit();
    }
    DEVICE void state_is_given() const {}
    DEVICE void give(const Sums<64>& d, const char* from, int now) {
      const u64 a = operand(from + UNIT_AT + A_AT);
      float2 factor[8];
      heads.load_factors(factor, from, READING);
      pin(y.v);
      as_factors(update, d);
#pragma unroll
      for (int i = 0; i < 16; i++) y.v[2 * i] *= factor[i / 2].x, y.v[2 * i + 1] *= factor[i / 2].y;
      products_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply<false>(y, update[k], columns_of(a, k), true);
      products_commit();
      chunk = now;
    }
    DEVICE void end() {
      products_wait();
      pin(y.v);
      heads.hold(update);
      if constexpr (HAS_Y) heads.store(y, chunk);
    }
  };

  DEVICE void store(const Sums<64>& sums, int chunk) const {
    FragmentA y[4];
    as_factors(y, sums);
    barrier_wait(barriers.y_free[warpgroup], (chunk + 1) & 1);
#pragma unroll
    for (int k = 0; k < 4; k++) store_matrices<true>(shared + Y_AT + warpgroup * TILE + fragment + k * 2048, y[k].v);
    warp_arrive(barriers.y_full[warpgroup]);
  }

  DEVICE void keep_state() const {
    Sums<KEYS> s;
    const StateRow from = source_of(p, w.piece.state);
    each_number(s, [&](f32& v, int n, int column) {
      v = HAS_INITIAL && !is_nowhere(from) ? to_f32(*state_at<INITIAL>(p.before, from, w.head, n, column)) : 0.f;
    });
    Reader reader{*this};
    Turn<STAGES> turn;
    walk(s, barriers.ring, turn, V_AT + warpgroup * TILE, reader);
    if constexpr (!HAS_FINAL) return;
    // found anew, since what is kept over the chunks does not fit into registers
    const StateRow to = target_of(p, Piece(p, i64(blockIdx.x * WARPGROUPS + warpgroup) / SLICES / p.heads).state);
    if (!is_nowhere(to)) each_number(s, [&](f32& v, int n, int column) { assign(*state_at<FINAL>(p.after, to, w.head, n, column), v); });
  }
};

extern "C" __global__ void __launch_bounds__(384, 1) gated_delta_rule_heads(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  const int warpgroup = threadIdx.x / 128;
  const Heads heads(p, dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT, blockIdx.x * WARPGROUPS + warpgroup % WARPGROUPS, warpgroup);
  if (threadIdx.x == 0) {
    Barriers& b = heads.barriers;
    for (int i = 0; i < STAGES; i++) barrier_init(b.ring.full[i], 1), barrier_init(b.ring.empty[i], 4 * WARPGROUPS * ARRIVALS);
    for (int i = 0; i < WARPGROUPS; i++) barrier_init(b.y_full[i], 4 * ARRIVALS), barrier_init(b.y_free[i], WRITERS * ARRIVALS);
    barriers_are_ready();
  }
  __syncthreads();
  if (warpgroup == WARPGROUPS) {
    registers_down<40>();
    if (heads.warp > 0)
      heads.write();
    else if (heads.lane == 0)
      heads.copy();
  } else {
    registers_up<232>();
    heads.keep_state();
  }
}
