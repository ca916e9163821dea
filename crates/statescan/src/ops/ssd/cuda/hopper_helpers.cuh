// What walkers are helped with: tiles copied into shared memory, powers of the decays, and the lower triangle of C B^T. It comes after the
// layout of `hopper_layout.cuh`.

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

struct Exponents {
  f64 sum[2];   // log2 of the decays since the chunk began: with a step's own, backwards without it
  f32 weight[2];
  f64 whole;
};

DEVICE Exponents exponents(const Params& p, const Head& constants, const Work& w, int head, i64 first) {
  Exponents e;
  const int lane = int(lane_here());
  f64 own[2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int step = 2 * lane + k;
    const i64 t = first + (FORWARDS ? step : SPAN - 1 - step);
    StepSizes d = {};
    if (t < w.end) d = step_sizes(p, constants, w.batch, head, t);
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
  const int lane = int(lane_here()), head = w.head(p, k);
  const Head constants(p, head);
  Turn<PIECES> turn;
  f64 r = 0., decays = 0.;
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++) {
    const Exponents e = exponents(p, constants, w, head, w.step(chunk));
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
        piece.in[lane] = Factors(in[0], in[1]);
      else
        piece.in[SPAN / 2 - 1 - lane] = Factors(in[1], in[0]);
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
  if (PASS == Pass::Ends && lane == 0) p.decays[end_of(p, w, w.segment, head, w.column(p, k) / COLUMNS)] = exp2_fast(f32(decays));
}

// ---- CB: a warpgroup

DEVICE void mask_products(const Work& w, char* shared, Barriers& barriers) {
  const int lane = int(lane_here()), row = threadIdx.x % 128 / 32 * 16 + lane / 4, pair = 2 * (lane % 4);
  Turn<STAGES> stage, walked;
#pragma unroll 1
  for (int chunk = 0; chunk < w.chunks; chunk++, stage.next()) {
    char* const tiles = shared + stage.at * STAGE;
    barrier_wait(barriers.full[stage.at], stage.phase);
    if (chunk >= 2) barrier_wait(barriers.empty[walked.at], walked.phase), walked.next();
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
    char* const line = shared + CB_AT + chunk % 2 * CB + row * 128 + pair * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int j = 8 * n + pair, at = (n ^ lane / 4) * 16;
      const f32* const v = sums.v + 4 * n;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Factors terms(j <= row + 8 * r ? v[2 * r] : 0.f, j + 1 <= row + 8 * r ? v[2 * r + 1] : 0.f);
        *reinterpret_cast<u32*>(line + r * 8 * 128 + at) = terms.high;
        *reinterpret_cast<u32*>(line + PANEL + r * 8 * 128 + at) = terms.low;
      }
    }
    fence_async();
    barrier_arrive(barriers.masked[stage.at]);
  }
}
