// Helpers give walkers this: tiles copied into shared memory, powers of the decays, and lower triangles.
#pragma once
#include "walk_layout.cuh"

static_assert(given<int>(STAGE, SPAN));

// ---- copies: one thread

DEVICE void copy_tiles(const Params& p, const Work& w, char* shared, Barriers& barriers) {
  Turn<STAGES> stage;
  acquire_maps(p, w, {X_MAP, Z_MAP, B_MAP, C_MAP});
  const TensorMap* const maps = maps_of(p, w);
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
      tile_load(tiles + k * PANEL, maps[X_MAP], full, at);
      if constexpr (GATES_FACTOR) tile_load(tiles + Z_AT + k * PANEL, maps[Z_MAP], full, at);
    }
#pragma unroll
    for (int n = 0; n < PANELS; n++) {
      tile_load(tiles + B_AT + n * PANEL, maps[B_MAP], full, {64 * n, w.group, step, w.batch});
      if constexpr (HAS_OUTPUT) tile_load(tiles + C_AT + n * PANEL, maps[C_MAP], full, {64 * n, w.group, step, w.batch});
    }
  }
}

// ---- powers of the decays: a warp, two neighbouring steps a thread

// The steps of a chunk as they are stored: they are asked for while the chunk before it is computed.
struct StoredSteps {
  DT dt[2];
  DT_A decay[2];

  DEVICE static i64 time(i64 first, int k) {
    const int step = 2 * int(lane_here()) + k;
    return first + (FORWARDS ? step : SPAN - 1 - step);
  }
  DEVICE void read(const Params& p, const Work& w, int head, i64 first) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const i64 t = min(time(first, k), i64(w.end) - 1);
      dt[k] = *at<DT>(p.dt, w.batch, t, head);
      if constexpr (HAS_DT_A) decay[k] = *at<DT_A>(p.dt_a, w.batch, t, head);
    }
  }
  // the size of a step, which is zero behind the last one
  DEVICE StepSizes size(const Params& p, const Head& constants, const Work& w, i64 first, int k) const {
    StepSizes d = {};
    if (time(first, k) >= w.end) return d;
    d.weight = d.decay = constants.weight(p, to_f32(dt[k]));
    if constexpr (HAS_DT_A) d.decay = to_f32(decay[k]);
    return d;
  }
};

struct Exponents {
  f64 sum[2];   // log2 of the decays since the chunk began: with a step's own, backwards without it
  f32 weight[2];
  f64 whole;

  DEVICE Exponents(const Params& p, const Head& constants, const Work& w, const StoredSteps& steps, i64 first) {
    f64 own[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const StepSizes d = steps.size(p, constants, w, first, k);
      weight[k] = FORWARDS ? d.weight : 1.f;
      own[k] = f64(d.decay) * constants.rate;
      // nothing is left of what such a step decays; sums stay so small that f32 has their differences
      if (own[k] < NOTHING) own[k] = NOTHING;
    }
    const f64 both = own[0] + own[1];
    const WarpSums sums(both);
    whole = sums.whole;
    sum[0] = sums.before + (FORWARDS ? own[0] : 0.), sum[1] = sums.before + (FORWARDS ? both : own[0]);
  }

  // whether an exponent is beyond a limit, in the warp
  DEVICE bool leaves(f64 limit, f64 r) const { return __any_sync(~0u, fabs(sum[0] + r) > limit || fabs(sum[1] + r) > limit); }
  // r relative to the smallest sum, unless the state at the chunk's end would be too small a number then
  DEVICE f64 reference() const {
    f32 least = fminf(f32(sum[0]), f32(sum[1]));
#pragma unroll
    for (int far = 16; far > 0; far /= 2) least = fminf(least, __shfl_xor_sync(~0u, least, far));
    return fmin(-f64(least), LARGEST - whole);
  }
};

// the smaller number, or NaN
DEVICE f32 at_most(f32 limit, f32 v) {
  f32 out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(limit), "f"(v));
  return out;
}

// whether any thread of the warps for both units says so
DEVICE bool any_unit(bool own) {
  u32 any;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, 64, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(any) : "r"(u32(own)), "n"(POWERS_BARRIER) : "memory");
  return any != 0;
}

// Chooses r for a chunk, and gives whether it is far.
DEVICE bool choose(f64& r, const Exponents& e, const Work& w) {
  const f64 before = r;
  bool far = e.leaves(NEAR, r);
  if (HAS_OUTPUT && far) {
    r = -0.5 * (__shfl_sync(~0u, e.sum[0], 0) + e.whole);
    far = e.leaves(FAR, r);
  }
  if (HAS_OUTPUT && UNITS > 1 && w.units > 1) far = any_unit(far);
  if (far) r = e.reference();
  return far;
}

// 2^exponent as a product of two numbers
DEVICE void set_state_factors(f32 (&state)[2], f64 exponent) {
  const f32 e = f32(exponent);
  const bool fits = e <= 126.f && (e >= -126.f || e < -300.f);
  state[0] = exponent == 0. ? 1.f : exp2_fast(fits ? e : at_most(127.f, 0.5f * e));
  state[1] = fits ? 1.f : state[0];
}

// The cuts of a sequence that are still to come.
struct Cuts {
  int next = 0, last = 0;   // the next one's piece, and the sequence's last one, which ends where the sequence does

  DEVICE Cuts(const Params& p, const Work& w) {
    if constexpr (HAS_CUTS) {
      next = int(sequence_at_bound(p, w.first) * p.pieces), last = next + int(p.pieces) - 1;
      // not those before the segment; a cut before the first step of all belongs to the first chunk
      for (int end = last; w.start > w.first && next < end;) {
        const int middle = (next + end) / 2;
        if (step(p, w, middle) <= w.start) next = middle + 1; else end = middle;
      }
    }
  }
  // the steps before a piece's end
  DEVICE static int step(const Params& p, const Work& w, int piece) { return int(min(max(i64(*at<INDEX>(p.cuts, piece + 1)), i64(w.first)), i64(w.end))); }
  // Takes the pieces that end behind a step of the chunk that begins here, or before its first one.
  DEVICE void take(const Params& p, const Work& w, int first, Powers& to) {
    const int begin = next;
    while (next < last && step(p, w, next) <= first + SPAN) next++;
    to.cut = begin, to.cuts = next - begin;
  }
};

DEVICE void compute_powers(const Params& p, const Work& w, int k, Powers (&all)[POWERS], Barrier (&ready)[POWERS], Barrier (&taken)[POWERS]) {
  const int lane = int(lane_here()), head = w.head(p, k);
  const Head constants(p, head);
  Turn<POWERS> turn;
  f64 r = 0., decays = 0.;
  Cuts cuts(p, w);
  StoredSteps steps;
  steps.read(p, w, head, w.step(0));
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++, turn.next()) {
    const Exponents e(p, constants, w, steps, w.step(chunk));
    if (chunk + 1 < w.chunks) steps.read(p, w, head, w.step(chunk + 1));
    const f64 before = r;
    const bool far = choose(r, e, w);
    f32 in[2];
#pragma unroll
    for (int i = 0; i < 2; i++) in[i] = e.weight[i] * exp2_fast(at_most(126.f, -f32(e.sum[i] + r)));
    barrier_wait(taken[turn.at], turn.phase ^ 1);
    Powers& powers = all[turn.at];
    if constexpr (HAS_OUTPUT) {
      f32 out[2];
#pragma unroll
      for (int i = 0; i < 2; i++) out[i] = exp2_fast(far ? at_most(127.f, 0.5f * f32(e.sum[i] + before)) : f32(e.sum[i] + r));
      reinterpret_cast<float2*>(powers.out)[lane] = make_float2(out[0], out[1]);
      if (far) {
        reinterpret_cast<float2*>(powers.half)[lane] = make_float2(f32(0.5 * e.sum[0]), f32(0.5 * e.sum[1]));
        reinterpret_cast<float2*>(powers.weight)[lane] = make_float2(e.weight[0], e.weight[1]);
      }
    }
    if constexpr (FORWARDS)
      powers.in[lane] = Factors(in[0], in[1]);
    else
      powers.in[SPAN / 2 - 1 - lane] = Factors(in[1], in[0]);
    if (lane == 0) {
      set_state_factors(powers.state, before - r);
      powers.before = exp2_fast(f32(before)), powers.after = exp2_fast(f32(e.whole + r));
      powers.far = far;
      if constexpr (HAS_CUTS) cuts.take(p, w, w.step(chunk), powers);
    }
    warp_arrive(ready[turn.at]);
    // from here on sums begin at the next chunk
    r += e.whole, decays += e.whole;
  }
  if (PASS == Pass::Ends && lane == 0) p.decays[end_of(p, w, w.segment, head, w.column(p, k) / COLUMNS)] = exp2_fast(f32(decays));
}

// ---- triangles: a warpgroup

struct Triangles {
  Sums<64> sums;   // CB

  // This thread's first row, the other one being 8 lines further on, and the first of its two columns of 8. They are formed anew for every triangle: what
  // follows from them would be kept in registers.
  struct Place {
    int row, pair;

    DEVICE Place() {
      int thread = threadIdx.x % 128;
      asm volatile("" : "+r"(thread));
      row = thread / 32 * 16 + thread % 32 / 4, pair = 2 * (thread % 4);
    }
    // in a tile
    DEVICE int at(int n) const { return row * 128 + pair * 2 + (n ^ row % 8) * 16; }
  };

  DEVICE void multiply_maps(const char* tiles) {
    __syncwarp();
    products_fence();
#pragma unroll
    for (int k = 0; k < STATES / 16; k++) {
      const int at = k / 4 * PANEL + k % 4 * 32;
      multiply<false>(sums, operand(tiles + C_AT + at), operand(tiles + B_AT + at), k > 0);
    }
    products_commit();
    products_wait();
    pin(sums.v);
    const Place own;
#pragma unroll
    for (int i = 0; i < 32; i++) {
      if (i / 4 * 8 + own.pair + i % 2 > own.row + i / 2 % 2 * 8) sums.v[i] = 0.f;
    }
  }

  // CB in two terms
  DEVICE void put(char* tile) const {
    const Place own;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32* const to = reinterpret_cast<u32*>(tile + own.at(i / 2) + i % 2 * 8 * 128);
      const Factors terms(sums.v[2 * i], sums.v[2 * i + 1]);
      to[0] = terms.high, to[PANEL / 4] = terms.low;
    }
  }

  // M of a unit
  DEVICE void put_own(char* tile, const Powers& of) const {
    const Place own;
    const f32 rows[2] = {of.half[own.row], of.half[own.row + 8]};
    const int warp_end = (own.row | 15) + 1;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int column = 8 * n + own.pair;
      u32 out[2] = {0u, 0u};
      // columns that a warp's rows reach
      if (8 * n < warp_end) {
        const float2 half = *reinterpret_cast<const float2*>(of.half + column), weight = *reinterpret_cast<const float2*>(of.weight + column);
#pragma unroll
        for (int r = 0; r < 2; r++) {
          // square roots of decays are finite, also above the diagonal
          const f32 first = exp2_fast(at_most(127.f, rows[r] - half.x)), second = exp2_fast(at_most(127.f, rows[r] - half.y));
          const f32* const v = sums.v + 4 * n + 2 * r;
          out[r] = pack_bf16(v[0] * weight.x * first * first, v[1] * weight.y * second * second);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) *reinterpret_cast<u32*>(tile + own.at(n) + r * 8 * 128) = out[r];
    }
  }
};

DEVICE void form_triangles(const Work& w, char* shared, const Powers (&powers)[UNITS][POWERS], Barriers& barriers) {
  Triangles triangles;
  Turn<STAGES> stage;
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++, stage.next()) {
    const int turn = chunk % POWERS;
    const u32 phase = chunk / POWERS % 2;
    barrier_wait(barriers.full[stage.at], stage.phase);
    // the place for triangles is that of the chunk before the last one
    const bool wrapped = stage.at < 2;
    if (chunk >= 2) barrier_wait(barriers.empty[wrapped ? stage.at + STAGES - 2 : stage.at - 2], stage.phase ^ u32(wrapped));
    triangles.multiply_maps(shared + stage.at * STAGE);
    char* const tile = shared + CB_AT + chunk % 2 * CB;
#pragma unroll 1
    for (int k = 0; k < w.units; k++) {
      barrier_wait(barriers.ready[k][turn], phase);
      const Powers& of = powers[k][turn];
      if (__builtin_expect(of.far, 0))
        triangles.put_own(tile + k * PANEL, of);
      else if (k == 0)
        triangles.put(tile);
      warp_arrive(barriers.taken[k][turn]);
    }
    fence_async();
    barrier_arrive(barriers.masked[stage.at]);
  }
}
