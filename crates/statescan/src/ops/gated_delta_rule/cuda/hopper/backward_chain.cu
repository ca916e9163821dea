// The walks of the backward pass over chunks, from units (`unit.cuh`), as `backward_walk.cu` has them: a block has 64 columns of a head, and walks forwards
// with the state S or backwards with its gradient R, transposed, in the sums of a warpgroup. Blocks of both directions run side by side.
//
//   E^T = beta V^T - (S^T K^T) diag(beta entering)           D^T = E^T T^T       S^T <- whole S^T + (D^T diag(leaving)) K
//   Y^T = (R^T K^T) diag(leaving) + dy^T A                   X^T = Y^T T         R^T <- whole R^T + (dy^T diag(reading)) Q - (X^T diag(beta entering)) K
//
// One warp loads, and one stores what is left for the gradients: state or gradient, D or X, as tiles whose lines are columns.
constexpr int VALUE_TILES = 1;   // of a stage

#include "columns.cuh"

static_assert(!BY_CHANNEL && BACKWARD);

constexpr int S_AT = STAGES * STAGE, D_AT = S_AT + KEYS * 128, BARRIERS_AT = D_AT + TILE;
struct Barriers { Barrier full[STAGES], empty[STAGES], state_full, state_free, steps_full, steps_free; };
static_assert(SHARED == BARRIERS_AT + int(sizeof(Barriers)), "the plan has counted the same");

template <bool FORWARDS> struct Walk : Columns {
  Barriers& barriers;

  DEVICE Walk(const Params& p, char* shared) : Columns(p, shared, Work(p, blockIdx.x / 2 / SLICES, blockIdx.x / 2 % SLICES * 64, {0, 1})), barriers(*reinterpret_cast<Barriers*>(shared + BARRIERS_AT)) {}

  DEVICE int chunk(int i) const { return FORWARDS ? i : w.chunks - 1 - i; }

  // ---- a thread that loads

  DEVICE void load() const {
    constexpr int READ = UNIT_AT + FACTORS_AT + FACTOR_BYTES;
    const int key_head = int(w.head / GROUP), head = int(w.head), batch = int(w.piece.batch);
    Turn<STAGES> turn;
    wait_for_units();
#pragma unroll 1
    for (int i = 0; i < w.chunks; i++, turn.next()) {
      barrier_wait(barriers.empty[turn.at], turn.phase ^ 1);
      Barrier& full = barriers.full[turn.at];
      char* const to = stage(turn);
      const int step = int(w.piece.start) + chunk(i) * CHUNK;
      const char* const unit = static_cast<const char*>(p.units) + (w.first + chunk(i)) * UNIT_BYTES;
      barrier_arrive_expecting(full, FORWARDS ? READ - PANELS * TILE - TILE : READ);
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) tile_load(to + K_AT + panel * TILE, p.k_map, full, {64 * panel, key_head, step, batch});
      if constexpr (FORWARDS) {
        tile_load(to + V_AT, p.v_map, full, {w.column, head, step, batch});
        bytes_load(to + UNIT_AT, unit, TILE, full);
        bytes_load(to + UNIT_AT + FACTORS_AT, unit + FACTORS_AT, FACTOR_BYTES, full);
      } else {
        tile_load(to + V_AT, p.dy_map, full, {w.column, head, step, batch});
        bytes_load(to + UNIT_AT, unit, FACTORS_AT + FACTOR_BYTES, full);
#pragma unroll
        for (int panel = 0; panel < PANELS; panel++) tile_load(to + Q_AT + panel * TILE, p.q_map, full, {64 * panel, key_head, step, batch});
      }
    }
  }

  // ---- a thread that stores

  DEVICE void keep() const {
    char *const states = static_cast<char*>(FORWARDS ? p.states : p.gradients), *const steps = static_cast<char*>(FORWARDS ? p.d : p.x);
#pragma unroll 1
    for (int i = 0; i < w.chunks; i++) {
      const i64 slice = ((w.place + chunk(i)) * p.heads + w.head) * SLICES + w.column / 64;
      barrier_wait(barriers.state_full, i & 1);
      bytes_store(states + slice * (KEYS * 128), shared + S_AT, KEYS * 128);
      tile_store_commit();
      tile_store_wait();
      barrier_arrive(barriers.state_free);
      barrier_wait(barriers.steps_full, i & 1);
      bytes_store(steps + slice * TILE, shared + D_AT, TILE);
      tile_store_commit();
      tile_store_wait();
      barrier_arrive(barriers.steps_free);
    }
    tile_store_finish();
  }

  // For that thread, as tiles of lines of columns.
  template <int COUNT> DEVICE void hand_over(const FragmentA (&v)[COUNT], int place, Barrier& full, Barrier& free, u32 phase) const {
    barrier_wait(free, phase ^ 1);
#pragma unroll
    for (int k = 0; k < COUNT; k++) store_matrices<false>(shared + place + k / 4 * TILE + (lines_at() ^ k % 4 * 32), v[k].v);
    fence_async();
    warp_arrive(full);
  }

  // ---- a warpgroup that computes

  // steps times factors of theirs
  DEVICE static void weigh_steps(FragmentA (&to)[4], const FragmentA (&v)[4], const float2 (&factor)[8]) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const u32 two = v[i / 4].v[i % 4];
      to[i / 4].v[i % 4] = pack_bf16(low_bf16(two) * factor[i / 2].x, high_bf16(two) * factor[i / 2].y);
    }
  }
  DEVICE void step_forwards(Sums<KEYS>& s, const FragmentA (&state)[KEYS / 16], FragmentA (&d)[4], const char* from, u32 phase) const {
    Sums<64> sums;
    FragmentA e[4];
    float2 factor[8], beta[8];
    products_fence();
    multiply_keys(sums, state, from);
    products_commit();
    load_steps(e, from + V_AT);
    load_factors(beta, from, BETAS), load_factors(factor, from, ENTERING);
    hand_over(state, S_AT, barriers.state_full, barriers.state_free, phase);
    products_wait();
    pin(sums.v);
    hold(state);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32& two = e[i / 4].v[i % 4];
      two = pack_bf16(beta[i / 2].x * low_bf16(two) - factor[i / 2].x * sums.v[2 * i], beta[i / 2].y * high_bf16(two) - factor[i / 2].y * sums.v[2 * i + 1]);
    }
    products_fence();
    multiply_units(sums, e, from);
    products_commit();
    decay(s, from);
    load_factors(factor, from, LEAVING);
    products_wait();
    pin(sums.v);
    hold(e);
    weigh(d, sums, factor);
    products_fence();
    add_rows(s, d, from + K_AT);
    products_commit();
    as_factors(e, sums);
    hand_over(e, D_AT, barriers.steps_full, barriers.steps_free, phase);
  }

  DEVICE void step_backwards(Sums<KEYS>& s, const FragmentA (&state)[KEYS / 16], FragmentA (&x)[4], const char* from, u32 phase) const {
    Sums<64> sums, of_dy;
    FragmentA dy[4], read[4];
    float2 factor[8];
    load_steps(dy, from + V_AT);
    const u64 a = operand(from + UNIT_AT + A_AT), t = operand(from + UNIT_AT);
    products_fence();
    multiply_keys(sums, state, from);
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(of_dy, dy[k], further(a, k * 2048), k > 0);
    products_commit();
    hand_over(state, S_AT, barriers.state_full, barriers.state_free, phase);
    load_factors(factor, from, READING);
    weigh_steps(read, dy, factor);
    load_factors(factor, from, LEAVING);
    products_wait();
    pin(sums.v), pin(of_dy.v);
    hold(state), hold(dy);
#pragma unroll
    for (int i = 0; i < 16; i++)
      x[i / 4].v[i % 4] = pack_bf16(__fmaf_rn(factor[i / 2].x, sums.v[2 * i], of_dy.v[2 * i]), __fmaf_rn(factor[i / 2].y, sums.v[2 * i + 1], of_dy.v[2 * i + 1]));
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(sums, x[k], further(t, k * 2048), k > 0);
    products_commit();
    decay(s, from);
    products_fence();
    add_rows(s, read, from + Q_AT);
    products_commit();
    load_factors(factor, from, ENTERING);
    products_wait();
    pin(sums.v), pin(s.v);
    hold(x), hold(read);
    weigh(x, sums, factor, -1.f);
    products_fence();
    add_rows(s, x, from + K_AT);
    products_commit();
    as_factors(dy, sums);
    hand_over(dy, D_AT, barriers.steps_full, barriers.steps_free, phase);
  }

  template <typename E> DEVICE void begin(Sums<KEYS>& s, const States& from) const {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) s.v[i] = 0.f;
    if (from.data) each_number(s, [&](f32& v, int n, int column) { v = to_f32(*state_at<E>(from, w.piece.state, w.head, n, column)); });
  }

  DEVICE void compute() const {
    Sums<KEYS> s;
    FragmentA state[KEYS / 16];
    if constexpr (FORWARDS) begin<INITIAL>(s, p.before); else begin<DFINAL>(s, p.dafter);
    as_factors(state, s);
    Turn<STAGES> turn;
    if (w.chunks > 0) barrier_wait(barriers.full[0], 0);
#pragma unroll 1
    for (int i = 0; i < w.chunks; i++) {
      char* const from = stage(turn);
      if (chunk(i) == w.cut) {
        if constexpr (!FORWARDS)
#pragma unroll
          for (int panel = 0; panel < PANELS; panel++) clear_lines(from + Q_AT + panel * TILE, w.count(chunk(i)));
        clear_rest(from, w.count(chunk(i)));
      }
      FragmentA steps[4];
      if constexpr (FORWARDS) step_forwards(s, state, steps, from, i & 1); else step_backwards(s, state, steps, from, i & 1);
      Barrier& empty = barriers.empty[turn.at];
      turn.next();
      if (i + 1 < w.chunks) barrier_wait(barriers.full[turn.at], turn.phase);
      products_wait();
      pin(s.v);
      hold(steps);
      warp_arrive(empty);
      as_factors(state, s);
    }
    if (FORWARDS || !p.dbefore.data) return;
    each_number(s, [&](f32& v, int n, int column) { assign(*state_at<DINITIAL>(p.dbefore, w.piece.state, w.head, n, column), v); });
  }
};

template <bool FORWARDS> DEVICE void walk(const Params& p, char* shared) {
  const Walk<FORWARDS> walk(p, shared);
  if (threadIdx.x == 0) {
    Barriers& b = walk.barriers;
    for (int i = 0; i < STAGES; i++) barrier_init(b.full[i], 1), barrier_init(b.empty[i], 4 * ARRIVALS);
    barrier_init(b.state_full, 4 * ARRIVALS), barrier_init(b.steps_full, 4 * ARRIVALS), barrier_init(b.state_free, 1), barrier_init(b.steps_free, 1);
    barriers_are_ready();
  }
  __syncthreads();
  // the gradients may begin where there is room for them
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x < 128)
    walk.compute();
  else if (threadIdx.x == 128)
    walk.load();
  else if (threadIdx.x == 160)
    walk.keep();
}

extern "C" __global__ void __launch_bounds__(192, 1) gated_delta_rule_backward_chain(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  if (blockIdx.x % 2 == 0) walk<true>(p, shared); else walk<false>(p, shared);
}
