// The walkers of `walk_layout.cuh`, and the kernel.
#include "walk_helpers.cuh"
#include "walk_state.cuh"

// ---- the walk: a warpgroup

// The walkers of a unit share this.
struct Room {
  char* const shared;
  Barriers& barriers;
  const Powers (&powers)[POWERS];
  f32* const skips;   // the skips of its columns
};

struct Walker {
  const Params& p;
  const Work& w;
  char* const shared;
  Barriers& barriers;
  const Powers (&all_powers)[POWERS];
  const int unit, part, own_head, own_column, fragment;
  char* const outs;   // tiles of y of its unit, or its own of a slot
  f32* const skips;
  State state;
  Turn<STAGES> stage;
  Turn<POWERS> turn;
  int chunk = 0;

  DEVICE Walker(const Params& p, const Work& w, const Room& room, int worker)
      : p(p), w(w), shared(room.shared), barriers(room.barriers), all_powers(room.powers), unit(unit_of(worker)), part(worker % PARTS),
        own_head(w.head(p, unit)), own_column(w.column(p, unit)), fragment(columns_at()),
        outs(shared + OUT_AT + 2 * (HAS_OUTPUT ? unit : worker) * OUT), skips(room.skips), state(part) {
    if constexpr (HAS_OUTPUT && HAS_SKIP) {
      // a thread's two columns, which lie eight apart, side by side
      const int i = threadIdx.x % 128, place = i / 16 * 16 + i % 8 * 2 + i / 8 % 2;
      if (part == 0 && i < COLUMNS) skips[place] = column() + i < p.headdim ? to_f32(*at<SKIP>(p.skip, head(), column() + i)) : 0.f;
      meet_unit();
    }
    if (TWO_PHASE ? PASS == Pass::Rest : w.segment == 0) begin();
    if constexpr (PASS == Pass::Rest) state.enter(p, w, head(), column() / COLUMNS);
  }

  // The state before the row.
  DEVICE void begin() {
    const int tile = column() / COLUMNS;
    if (POOLED && PASS == Pass::Rest && w.segments > 1) return state.take(p, w, head(), tile);
    state.read<BEFORE>(p, w.state_row(p, true), head(), column());
    if constexpr (POOLED && PASS == Pass::Ends) state.keep(p, w, head(), tile);
  }
  // `Work` has them where a block has a single unit, and spares registers
  DEVICE int head() const { return UNITS == 1 ? w.first_head : own_head; }
  DEVICE int column() const { return UNITS == 1 ? w.first_column : own_column; }

  // whether this thread starts copies out of shared memory
  DEVICE bool leads() const { return threadIdx.x % 128 == 0 && (!HAS_OUTPUT || part == 0); }
  // all walkers of the unit
  DEVICE void meet_unit() const {
    if (unit == 0) meet<1, 128 * PARTS>(); else meet<2, 128 * PARTS>();
  }

  DEVICE void wait_for_powers() { barrier_wait(barriers.ready[unit][turn.at], turn.phase); }
  DEVICE void wait_for_tiles() {
    barrier_wait(barriers.full[stage.at], stage.phase);
    if constexpr (HAS_OUTPUT) barrier_wait(barriers.masked[stage.at], stage.phase);
  }

  // x^T times the weights of steps
  DEVICE void load_x(FragmentA (&x)[4]) const {
    const char* const tile = shared + stage.at * STAGE + unit * PANEL + fragment;
    const Factors* const in = all_powers[turn.at].in + threadIdx.x % 4;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 (&v)[4] = x[k].v;
      load_matrices<true>(v, tile + k * 16 * 128);
      if constexpr (GATES_FACTOR) {
        u32 z[4];
        load_matrices<true>(z, tile + Z_AT + k * 16 * 128);
#pragma unroll
        for (int i = 0; i < 4; i++)
          v[i] = pack_bf16(low_bf16(v[i]) * silu(low_bf16(z[i])), high_bf16(v[i]) * silu(high_bf16(z[i])));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = in[8 * k + i / 2 * 4].times(v[i]);
    }
  }

  // Starts to load the gate of a chunk.
  DEVICE void load_gate(int chunk) {
    Barrier& gate = barriers.gate[unit][chunk % 2];
    barrier_arrive_expecting(gate, PANEL);
    tile_load(outs + chunk % 2 * OUT, maps_of(p, w)[Z_MAP], gate, {column(), head(), w.step(chunk), w.batch});
  }

  // All threads have written a tile, and the other one has been read.
  DEVICE void meet_before_store() {
    fence_async();
    if (leads()) tile_store_wait();
    meet_unit();
  }

  // Whether a chunk is the first one of a slot, in the direction of the walk.
  DEVICE bool has_slot() const {
    if (PACKED && w.slot < 0) return false;
    const int at = w.chunk_of_row(chunk);
    return FORWARDS ? at % SLOT_CHUNKS == 0 : (at + 1) % SLOT_CHUNKS == 0 || w.step(chunk) + SPAN >= w.end;
  }

  // The state before a chunk into its slot.
  DEVICE void fill_slot(f32 scale) {
    const int at = w.chunk_of_row(chunk) / SLOT_CHUNKS;
    char* const tile = outs + at % 2 * OUT;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < OWN_STATES / 16; k++) {
      u32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = pack_bf16(state.sums.v[8 * k + 2 * i] * scale, state.sums.v[8 * k + 2 * i + 1] * scale);
      store_matrices<true>(tile + fragment + k * 16 * 128, v);
    }
    meet_before_store();
    if (!leads()) return;
    const int slot = (w.slot + at) * int(p.heads) + head();
#pragma unroll
    for (int n = 0; n < OWN_PANELS; n++) tile_store(p.slot_map, tile + n * PANEL, {column(), slot * STATES + part * OWN_STATES + 64 * n});
    tile_store_commit();
  }

  // Adds the other walker's part of y to one's own, each for half of the steps: they are in the first half of its numbers then.
  DEVICE void exchange(Sums<64>& y) const {
    char* const place = shared + EXCHANGE_AT + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      f32 given[4];
#pragma unroll
      for (int j = i; j < i + 4; j++) {
        given[j - i] = part == 0 ? y.v[16 + j] : y.v[j];
        y.v[j] = part == 0 ? y.v[j] : y.v[16 + j];
      }
      *reinterpret_cast<float4*>(place + part * EXCHANGE + i / 4 * 2048) = make_float4(given[0], given[1], given[2], given[3]);
    }
    meet_unit();
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 got = *reinterpret_cast<const float4*>(place + (1 - part) * EXCHANGE + i / 4 * 2048);
      y.v[i] += got.x, y.v[i + 1] += got.y, y.v[i + 2] += got.z, y.v[i + 3] += got.w;
    }
  }

  // job(a number of y, the next one, the factors of their two steps)
  template <typename Job> DEVICE void each_factor(Sums<64>& y, const Powers& of, Job job) const {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const int step = i / 4 * 16 + i % 4 / 2 * 8 + 2 * (threadIdx.x % 4);
      job(y.v[2 * i], y.v[2 * i + 1], *reinterpret_cast<const float2*>(of.out + step));
    }
  }

  // Writes y into its tile, with this thread's part of x; FAR: it has its factors already.
  template <bool FAR> DEVICE void put_y(const Sums<64>& y, const Powers& of, const char* x) const {
    const int first = part * (SPAN / PARTS), pair = 2 * (threadIdx.x % 4);
    char* const tile = outs + chunk % 2 * OUT + fragment + first * 128;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4 / PARTS; k++) {
      u32 gates[4], xs[4], out[4];
      if constexpr (GATES_OUTPUT) load_matrices<true>(gates, tile + k * 16 * 128);
      if constexpr (HAS_SKIP) load_matrices<true>(xs, x + first * 128 + k * 16 * 128);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        f32 v[2] = {y.v[8 * k + 2 * i], y.v[8 * k + 2 * i + 1]};
        if constexpr (!FAR) {
          const float2 factor = *reinterpret_cast<const float2*>(of.out + first + 16 * k + i / 2 * 8 + pair);
          v[0] *= factor.x, v[1] *= factor.y;
        }
        if constexpr (HAS_SKIP) {
          const f32 skip = skips[threadIdx.x % 128 / 4 * 2 + i % 2];
          v[0] = __fmaf_rn(skip, low_bf16(xs[i]), v[0]);
          v[1] = __fmaf_rn(skip, high_bf16(xs[i]), v[1]);
        }
        if constexpr (GATES_OUTPUT) v[0] *= silu(low_bf16(gates[i])), v[1] *= silu(high_bf16(gates[i]));
        out[i] = pack_bf16(v[0], v[1]);
      }
      store_matrices<true>(tile + k * 16 * 128, out);
    }
  }

  // Finishes y; its tile goes to memory.
  template <bool FAR> DEVICE void finish(Sums<64>& y, const Powers& of, const char* x) {
    if constexpr (PARTS > 1) exchange(y);
    if constexpr (GATES_OUTPUT) barrier_wait(barriers.gate[unit][chunk % 2], chunk / 2 % 2);
    put_y<FAR>(y, of, x);
    meet_before_store();
    if (!leads()) return;
    tile_store(maps_of(p, w)[Y_MAP], outs + chunk % 2 * OUT, {column(), head(), w.step(chunk), w.batch});
    tile_store_commit();
    if constexpr (GATES_OUTPUT) {
      if (chunk + 1 < w.chunks) load_gate(chunk + 1);
    }
  }

  // S in the scale that the chunk leaves it in.
  DEVICE void scale_state(const Powers& of) {
#pragma unroll 1
    for (int k = 0; k < 2; k++) {
      const f32 factor = of.state[k];
      if (factor == 1.f) return;
#pragma unroll
      for (int i = 0; i < OWN_STATES / 2; i++) state.sums.v[i] *= factor;
    }
  }

  // Starts the products for y, of a chunk that is not far: with the state, and with the two terms of CB, the lower one first; either part has one.
  DEVICE void multiply_near(Sums<64>& y, const FragmentA (&s)[OWN_STATES / 16], const FragmentA (&x)[4], const char* c) const {
    const char* const cb = shared + CB_AT + chunk % 2 * CB;
    products_fence();
    multiply_state(y, s, c);
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
      for (int term = 2 / PARTS - 1; term >= 0; term--) multiply<false>(y, x[k], operand(cb + (PARTS > 1 ? part : term) * PANEL + k * 32), true);
    }
    products_commit();
  }
  DEVICE void multiply_state(Sums<64>& y, const FragmentA (&s)[OWN_STATES / 16], const char* c) const {
#pragma unroll
    for (int k = 0; k < OWN_STATES / 16; k++) multiply<false>(y, s[k], operand(c + k / 4 * PANEL + k % 4 * 32), k > 0);
  }

  // Starts the products for y of a far chunk: the state's part gets its factors before x times M is added; either part has half of the steps of x.
  DEVICE void multiply_far(Sums<64>& y, const FragmentA (&s)[OWN_STATES / 16], FragmentA (&x)[4 / PARTS], const Powers& of, const char* tiles) {
    const int first = part * (4 / PARTS);
    products_fence();
    multiply_state(y, s, tiles + C_AT + part * OWN_PANELS * PANEL);
    products_commit();
    products_wait();
    pin(y.v);
    keep(s, y.v[0]);
#pragma unroll
    for (int k = 0; k < 4 / PARTS; k++) load_matrices<true>(x[k].v, tiles + unit * PANEL + fragment + (first + k) * 16 * 128);
    each_factor(y, of, [](f32& v, f32& next, float2 root) { v = v * root.x * root.x, next = next * root.y * root.y; });
    __syncwarp();
    products_fence();
    const char* const m = shared + CB_AT + chunk % 2 * CB + unit * PANEL;
#pragma unroll
    for (int k = 0; k < 4 / PARTS; k++) multiply<false>(y, x[k], operand(m + (first + k) * 32), true);
    products_commit();
  }

  // Walks through a chunk whose x is there, and loads the next one's. Gives whether there is one.
  template <bool FAR> DEVICE bool step(const FragmentA (&x)[4], FragmentA (&next)[4]) {
    const int own_turn = turn.at, own_stage = stage.at;
    const Powers& of = all_powers[own_turn];
    const char* const tiles = shared + own_stage * STAGE;
    if constexpr (HAS_SLOTS) {
      if (has_slot()) fill_slot(of.before);
    }
    if constexpr (HAS_CUTS) {
#pragma unroll 1
      for (int k = 0; k < of.cuts; k++) state.leave_at(p, cut_of(p, of.cut + k, head(), column() / COLUMNS), of.before);
    }
    if constexpr (!FAR) scale_state(of);
    Sums<64> y;
    FragmentA s[OWN_STATES / 16], stored[4 / PARTS];
    __syncwarp();
    if constexpr (HAS_OUTPUT) {
#pragma unroll
      for (int i = 0; i < OWN_STATES / 4; i++) s[i / 4].v[i % 4] = pack_bf16(state.sums.v[2 * i], state.sums.v[2 * i + 1]);
      if constexpr (FAR) {
        multiply_far(y, s, stored, of, tiles);
        scale_state(of);
        __syncwarp();
        products_fence();
      } else {
        multiply_near(y, s, x, tiles + C_AT + part * OWN_PANELS * PANEL);
      }
    } else {
      products_fence();
    }
    const char* const b = tiles + B_AT + part * OWN_PANELS * PANEL;
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(state.sums, x[k], operand(b + k * 16 * 128, PANEL), true);
    products_commit();
    turn.next(), stage.next();
    const bool more = chunk + 1 < w.chunks;
    if constexpr (HAS_OUTPUT) {
      products_wait<1>();
      pin(y.v);
      if constexpr (FAR) keep(stored, y.v[0]); else keep(s, y.v[0]);
      finish<FAR>(y, of, tiles + unit * PANEL + fragment);
    }
    if (more) {
      wait_for_powers();
      wait_for_tiles();
      load_x(next);
    }
    products_wait();
    pin(state.sums.v);
    keep(x, state.sums.v[0]);
    warp_arrive(barriers.taken[unit][own_turn]);
    warp_arrive(barriers.empty[own_stage]);
    chunk++;
    return more;
  }
  DEVICE bool step(const FragmentA (&x)[4], FragmentA (&next)[4]) {
    if constexpr (HAS_OUTPUT) {
      if (__builtin_expect(all_powers[turn.at].far, 0)) return step<true>(x, next);
    }
    return step<false>(x, next);
  }

  DEVICE void walk() {
    if (HAS_OUTPUT && leads()) {
      acquire_maps(p, w, {Y_MAP, Z_MAP});
      if constexpr (GATES_OUTPUT) load_gate(0);
    }
    wait_for_powers();
    wait_for_tiles();
    FragmentA x[4], next[4];
    load_x(x);
    while (step(x, next) && step(next, x)) {}
    // nothing has come after the powers of the last chunk
    const f32 scale = all_powers[(turn.at + POWERS - 1) % POWERS].after;
    if constexpr (PASS == Pass::Ends)
      state.leave(p, w, head(), column() / COLUMNS, scale);
    else if (w.is_last())
      state.write<AFTER>(p, w.state_row(p, false), head(), column(), scale);
    if (OUT > 0 && leads()) tile_store_finish();
  }
};

// whether walks in both directions may run beside each other
constexpr bool RUNS_BESIDE = HAS_SLOTS && PASS == Pass::Whole && !PACKED;

extern "C" __global__ void __launch_bounds__(Work::THREADS, 1) ssd_hopper(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ Powers powers[UNITS][POWERS];
  __shared__ f32 skips[UNITS][COLUMNS];
  __shared__ Barriers barriers;
  __shared__ Work work;
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  Work whole;
  if constexpr (!PACKED) whole = Work(p);
  begin_parts(p, whole, work, barriers);
  // the walk backwards reads nothing that this one leaves
  if constexpr (RUNS_BESIDE && FORWARDS) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int worker = threadIdx.x / 128, warp = threadIdx.x % 128 / 32;
  if (worker == WALKERS + 1) {
    registers_down<COPY_REGISTERS>();
    each_part<false>(p, whole, work, barriers, [&](const Work& w) {
      if (threadIdx.x % 128 == 0) copy_tiles(p, w, shared, barriers);
      // the kernel after this walk reads what both have left
      if (RUNS_BESIDE && !FORWARDS && threadIdx.x % 128 == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
      if (warp > 0 && warp - 1 < w.units) compute_powers(p, w, warp - 1, powers[warp - 1], barriers.ready[warp - 1], barriers.taken[warp - 1]);
    });
  } else if (worker == WALKERS) {
    registers_down<MASK_REGISTERS>();
    each_part<false>(p, whole, work, barriers, [&](const Work& w) {
      if constexpr (HAS_OUTPUT) form_triangles(w, shared, powers, barriers);
    });
  } else {
    registers_up<WALKER_REGISTERS>();
    each_part<true>(p, whole, work, barriers, [&](const Work& w) {
      const int unit = unit_of(worker);
      if (unit < w.units) Walker(p, w, {shared, barriers, powers[unit], skips[unit]}, worker).walk();
    });
  }
}
