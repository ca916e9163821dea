// Segments leave this alone (`keeper.cuh`), but for the last one: two warpgroups of a block keep 64 columns each, of the state that begins with zeros or
// of the transition, which is the state that begins with the identity and has no values. A warp loads.
constexpr int VALUE_TILES = 1;   // of a stage

#include "keeper.cuh"

constexpr int WARPGROUPS = 2, ALL = SLICES + PANELS, PAIRS = (ALL + 1) / 2, BARRIERS_AT = STAGES * STAGE;
// Values of the second warpgroup take the place of queries, which nobody reads.
constexpr int VALUES_AT[WARPGROUPS] = {V_AT, Q_AT};
static_assert(SHARED == BARRIERS_AT + int(sizeof(Ring)), "the plan has counted the same");

struct Ends : Keeper {
  Ring& ring;
  f32* const end;
  const int pair, slice;   // of its columns, states before transitions

  struct Nobody {
    static constexpr int WARPGROUPS = ::WARPGROUPS, READS = 0;
    DEVICE void give(FragmentA (&)[KEYS / 16], const char*, int) const {}
    DEVICE void state_is_given() const {}
    DEVICE void give(const Sums<64>&, const char*, int) const {}
  };

  DEVICE Ends(const Params& p, char* shared, int of_head, int pair, int slice, Segment segment)
      : Keeper(p, shared, Work(p, of_head, slice * 64, segment)), ring(*reinterpret_cast<Ring*>(shared + BARRIERS_AT)),
        end(p.ends + (i64(of_head) * segment.count + segment.index) * END), pair(pair), slice(slice) {}

  DEVICE void load() const {
    const int key_head = int(w.head / GROUP), head = int(w.head), batch = int(w.piece.batch), states = max(min(SLICES - 2 * pair, WARPGROUPS), 0);
    Turn<STAGES> turn;
    wait_for_units();
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++, turn.next()) {
      barrier_wait(ring.empty[turn.at], turn.phase ^ 1);
      Barrier& full = ring.full[turn.at];
      char* const to = stage(turn);
      const int step = int(w.piece.start) + chunk * CHUNK;
      const char* const unit = static_cast<const char*>(p.units) + (w.first + chunk) * UNIT_BYTES;
      constexpr int KEY_BYTES = (BY_CHANNEL ? 2 : 1) * PANELS * TILE;
      barrier_arrive_expecting(full, KEY_BYTES + states * TILE + TILE + FACTOR_BYTES);
      if constexpr (BY_CHANNEL)
        bytes_load(to + UNIT_AT + READ_K_AT, unit + READ_K_AT, KEY_BYTES, full);
      else
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) tile_load(to + K_AT + panel * TILE, p.k_map, full, {64 * panel, key_head, step, batch});
      for (int i = 0; i < states; i++) tile_load(to + VALUES_AT[i], p.v_map, full, {(2 * pair + i) * 64, head, step, batch});
      bytes_load(to + UNIT_AT, unit, TILE, full);
      bytes_load(to + UNIT_AT + FACTORS_AT, unit + FACTORS_AT, FACTOR_BYTES, full);
    }
  }

  DEVICE void keep(int warpgroup) const {
    const bool is_state = slice < SLICES;
    const int values_at = warpgroup == 0 ? VALUES_AT[0] : VALUES_AT[1], origin = is_state ? 0 : VALUES;
    if (!is_state)
      for (int i = 0; i < STAGES; i++) clear_lines(shared + i * STAGE + values_at, 0);
    meet_alone(warpgroup);
    Sums<KEYS> s;
    each_number(s, [&](f32& v, int n, int column) { v = !is_state && n == column - origin ? 1.f : 0.f; });
    Turn<STAGES> turn;
    Nobody nobody;
    walk(s, ring, turn, values_at, nobody);
    // one slice has been kept twice where their number is odd
    if (2 * pair + warpgroup >= ALL) return;
    if (is_state)
      each_number(s, [&](f32& v, int n, int column) { end[n * VALUES + column] = v; });
    else
      each_number(s, [&](f32& v, int n, int column) { end[TRANSITION_AT + (column - origin) * KEYS + n] = v; });
  }

  DEVICE static void meet_alone(int warpgroup) { asm volatile("barrier.sync %0, 128;" ::"r"(2 + warpgroup) : "memory"); }
};

extern "C" __global__ void __launch_bounds__(384, 1) gated_delta_rule_ends(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  const int warpgroup = threadIdx.x / 128, pair = blockIdx.x % PAIRS, place = blockIdx.x / PAIRS, segments = int(p.segments);
  const Ends ends(p, dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT, place / (segments - 1), pair, min(2 * pair + warpgroup % 2, ALL - 1),
                  {place % (segments - 1), segments});
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(ends.ring.full[i], 1), barrier_init(ends.ring.empty[i], 4 * WARPGROUPS * ARRIVALS);
    barriers_are_ready();
  }
  __syncthreads();
  if (warpgroup == 2) {
    registers_down<40>();
    if (threadIdx.x == 256) ends.load();
  } else {
    registers_up<232>();
    ends.keep(warpgroup);
  }
}
