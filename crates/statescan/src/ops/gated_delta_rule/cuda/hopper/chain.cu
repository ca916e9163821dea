// The chain of chunks, from units (`unit.cuh`): a warpgroup of a block keeps the state of 64 columns of a head (`keeper.cuh`), while a second one forms
// y^T = (S^T Q^T) diag(reading) + D^T A^T of what it is handed: threads of both have the same fragments. One warp loads, and the others of its
// warpgroup write y. SEGMENTED, a block has a segment of the chunks only, whose state has been handed on by then (`hand_on.cu`).
constexpr int VALUE_TILES = 1;   // of a stage

#include "keeper.cuh"

static_assert(given<bool>(SEGMENTED, HAS_Y, HAS_INITIAL, HAS_FINAL));

constexpr int S_AT = STAGES * STAGE, D_AT = S_AT + KEYS * 128, Y_AT = D_AT + TILE, BARRIERS_AT = Y_AT + TILE;
constexpr int WRITERS = 3;

// each pair of warps has its own, one warp of each warpgroup that computes, where there are four
struct Barriers {
  Ring ring;
  Barrier state_full[4], state_free[4], update_full[4], update_free[4], y_full, y_free;
};
static_assert(SHARED == BARRIERS_AT + int(sizeof(Barriers)), "the plan has counted the same");

struct Chain : Keeper {
  Barriers& barriers;
  const int of_head;
  const Segment segment;

  DEVICE Chain(const Params& p, char* shared, int slice, Segment segment)
      : Keeper(p, shared, Work(p, slice / SLICES, slice % SLICES * 64, segment)), barriers(*reinterpret_cast<Barriers*>(shared + BARRIERS_AT)),
        of_head(slice / SLICES), segment(segment) {}

  // job(chunks before it) for each piece that the block walks over.
  template <typename Job> DEVICE void each_piece(Job job) {
    job(0);
    if constexpr (IN_PIECES) {
      int before = w.chunks;
#pragma unroll 1
      for (i64 piece = 1; piece < p.slots.pieces; piece++) w.next(p), job(before), before += w.chunks;
    }
  }

  // ---- copies: a warp, of which one thread starts them

  DEVICE void copy() {
    Turn<STAGES> turn;
    if constexpr (!BESIDE) wait_for_units();
    each_piece([&](int) { copy(turn); });
    if constexpr (BESIDE) wait_for_units();
  }
  DEVICE void copy(Turn<STAGES>& turn) const {
    const int key_head = int(w.head / GROUP), head = int(w.head), batch = int(w.piece.batch);
    int ready = BESIDE ? 0 : w.chunks;   // chunks whose units are there
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++, turn.next()) {
      barrier_wait(barriers.ring.empty[turn.at], turn.phase ^ 1);
      Barrier& full = barriers.ring.full[turn.at];
      char* const to = stage(turn);
      const int step = int(w.piece.start) + chunk * CHUNK;
      if (lane == 0) {
        barrier_arrive_expecting(full, STAGE);
        if constexpr (!BY_CHANNEL)
#pragma unroll
          for (int panel = 0; panel < PANELS; panel++) tile_load(to + K_AT + panel * TILE, p.k_map, full, {64 * panel, key_head, step, batch});
        tile_load(to + V_AT, p.v_map, full, {w.column, head, step, batch});
        if constexpr (!BY_CHANNEL)
#pragma unroll
          for (int panel = 0; panel < PANELS; panel++) tile_load(to + Q_AT + panel * TILE, p.q_map, full, {64 * panel, key_head, step, batch});
      }
      if (chunk >= ready) ready = chunk + units_from(chunk);
      if (lane == 0) bytes_load(to + UNIT_AT, static_cast<const char*>(p.units) + (w.first + chunk) * UNIT_BYTES, UNIT_BYTES, full);
    }
  }

  // How many units there are from a chunk on, at least one, up to 32.
  DEVICE int units_from(int chunk) const {
    u32 there = 0;
    while (!(there & 1)) there = __ballot_sync(~0u, chunk + lane < w.chunks && flag_is_set(p.flags + w.first + chunk + lane));
    // the copy engine reads numbers that other threads have written
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncwarp();
    return there == ~0u ? 32 : __ffs(~there) - 1;
  }

  // ---- y goes out: the other warps of that warpgroup

  DEVICE void write() {
    if constexpr (HAS_Y) each_piece([&](int before) { write(before); });
  }
  DEVICE void write(int before) const {
    const int first = threadIdx.x % 128 - 32;
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++) {
      const int count = w.count(chunk);
      Y* const y = at<Y>(p.y, w.piece.batch, w.piece.start + i64(chunk) * CHUNK, w.head, w.column);
      barrier_wait(barriers.y_full, (before + chunk) & 1);
      if constexpr (IN_LINES) {
#pragma unroll 2
        for (int i = first; i < count * 8; i += 32 * WRITERS)
          *reinterpret_cast<uint4*>(y + i / 8 * p.y.stride[1] + i % 8 * 8) = *reinterpret_cast<const uint4*>(place_of_y(i / 8, i % 8));
      } else {
        // steps may lie side by side
#pragma unroll 4
        for (int i = first; i < CHUNK * 64; i += 32 * WRITERS)
          if (i % CHUNK < count) y[i % CHUNK * p.y.stride[1] + i / CHUNK * p.y.stride[3]] = reinterpret_cast<const Y*>(place_of_y(i % CHUNK, i / CHUNK / 8))[i / CHUNK % 8];
      }
      warp_arrive(barriers.y_free);
    }
  }

  // eight columns of a step
  DEVICE const char* place_of_y(int step, int eight) const { return shared + Y_AT + step * 128 + (eight ^ step % 8) * 16; }

  // ---- y: a warpgroup

  DEVICE void read() {
    Turn<STAGES> turn;
    each_piece([&](int before) { read(turn, before); });
  }
  DEVICE void read(Turn<STAGES>& turn, int before) const {
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++, turn.next()) {
      char* const from = stage(turn);
      FragmentA state[KEYS / 16], update[4];
      Sums<64> sums;
      float2 factor[8];
      barrier_wait(barriers.ring.full[turn.at], turn.phase);
      barrier_wait(barriers.state_full[warp], (before + chunk) & 1);
      hand_over<false>(state, S_AT);
      warp_arrive(barriers.state_free[warp]);
      const u64 queries = operand(from + Q_AT), a = operand(from + UNIT_AT + A_AT);
      products_fence();
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) multiply<false>(sums, state[k], columns_of(queries, k), k > 0);
      products_commit();
      load_factors(factor, from, READING);
      products_wait();
      pin(sums.v);
      hold(state);
#pragma unroll
      for (int i = 0; i < 16; i++) sums.v[2 * i] *= factor[i / 2].x, sums.v[2 * i + 1] *= factor[i / 2].y;
      barrier_wait(barriers.update_full[warp], (before + chunk) & 1);
      hand_over<false>(update, D_AT);
      warp_arrive(barriers.update_free[warp]);
      products_fence();
#pragma unroll
      for (int k = 0; k < 4; k++) multiply<false>(sums, update[k], columns_of(a, k), true);
      products_commit();
      products_wait();
      pin(sums.v);
      hold(update);
      warp_arrive(barriers.ring.empty[turn.at]);
      if constexpr (HAS_Y) store(sums, before + chunk);
    }
  }

  DEVICE void store(const Sums<64>& sums, int chunk) const {
    FragmentA y[4];
    as_factors(y, sums);
    barrier_wait(barriers.y_free, (chunk + 1) & 1);
#pragma unroll
    for (int k = 0; k < 4; k++) store_matrices<true>(shared + Y_AT + fragment + k * 2048, y[k].v);
    warp_arrive(barriers.y_full);
  }

  // Fragments from a thread of one warpgroup to that of the other.
  template <bool TO, int COUNT> DEVICE void hand_over(FragmentA (&v)[COUNT], int place) const {
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
      uint4& there = reinterpret_cast<uint4*>(shared + place)[k * 128 + thread];
      if constexpr (TO)
        there = make_uint4(v[k].v[0], v[k].v[1], v[k].v[2], v[k].v[3]);
      else
        v[k].v[0] = there.x, v[k].v[1] = there.y, v[k].v[2] = there.z, v[k].v[3] = there.w;
    }
  }

  // ---- the state: a warpgroup

  // The place that it is handed over to.
  struct Reader {
    static constexpr int WARPGROUPS = 1, READS = 0;
    const Chain& chain;
    int before;   // chunks of other pieces
    DEVICE void give(FragmentA (&state)[KEYS / 16], const char*, int chunk) const {
      barrier_wait(chain.barriers.state_free[chain.warp], (before + chunk + 1) & 1);
      chain.hand_over<true>(state, S_AT);
    }
    DEVICE void state_is_given() const { warp_arrive(chain.barriers.state_full[chain.warp]); }
    DEVICE void give(const Sums<64>& d, const char*, int chunk) const {
      FragmentA update[4];
      barrier_wait(chain.barriers.update_free[chain.warp], (before + chunk + 1) & 1);
      as_factors(update, d);
      chain.hand_over<true>(update, D_AT);
      warp_arrive(chain.barriers.update_full[chain.warp]);
    }
  };

  DEVICE void begin(Sums<KEYS>& s) const {
    if constexpr (SEGMENTED) {
      const f32* const from = p.ends + (i64(of_head) * segment.count + segment.index) * END;
      wait_for_units();
      each_number(s, [&](f32& v, int n, int column) { v = from[n * VALUES + column]; });
      return;
    }
    const StateRow from = source_of(p, w.piece.state);
    each_number(s, [&](f32& v, int n, int column) {
      v = HAS_INITIAL && !is_nowhere(from) ? to_f32(*state_at<INITIAL>(p.before, from, w.head, n, column)) : 0.f;
    });
  }
  DEVICE void finish(Sums<KEYS>& s) const {
    const StateRow to = target_of(p, w.piece.state);
    if (segment.index == segment.count - 1 && !is_nowhere(to))
      each_number(s, [&](f32& v, int n, int column) { assign(*state_at<FINAL>(p.after, to, w.head, n, column), v); });
  }

  DEVICE void keep_state() {
    Sums<KEYS> s;
    Turn<STAGES> turn;
    begin(s);
    each_piece([&](int before) {
      Reader reader{*this, before};
      walk(s, barriers.ring, turn, V_AT, reader);
      if constexpr (HAS_FINAL) finish(s);
    });
  }
};

extern "C" __global__ void __launch_bounds__(384, 1) gated_delta_rule_chain(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  const int segments = SEGMENTED ? int(p.segments) : 1;
  Chain chain(p, dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT, blockIdx.x / segments, {int(blockIdx.x) % segments, segments});
  if (threadIdx.x == 0) {
    Barriers& b = chain.barriers;
    for (int i = 0; i < STAGES; i++) barrier_init(b.ring.full[i], 1), barrier_init(b.ring.empty[i], 8 * ARRIVALS);
    for (int i = 0; i < 4; i++) {
      barrier_init(b.state_full[i], ARRIVALS), barrier_init(b.state_free[i], ARRIVALS);
      barrier_init(b.update_full[i], ARRIVALS), barrier_init(b.update_free[i], ARRIVALS);
    }
    barrier_init(b.y_full, 4 * ARRIVALS), barrier_init(b.y_free, WRITERS * ARRIVALS);
    barriers_are_ready();
  }
  __syncthreads();
  const int role = threadIdx.x / 128;
  if (role == 2) {
    registers_down<56>();
    if (chain.warp > 0)
      chain.write();
    else
      chain.copy();
  } else if (role == 1) {
    registers_down<152>();
    chain.read();
  } else {
    registers_up<240>();
    chain.keep_state();
  }
}
