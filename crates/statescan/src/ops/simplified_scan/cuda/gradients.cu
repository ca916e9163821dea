// The scan of the backward pass: g[t] = p[t] + conj(Abar[t+1]) g[t+1], where p = C^H by_y is what it finds in memory; and for each tile, before
// its gradients, the states again from a checkpoint. It leaves dv[t] = conj(Bbar[t]) g[t] in place of p, x in place of v, the gradients by the steps
// and by the states before sequences, and for each row and segment a term of the gradient by A, and of those by steps that do not depend on time.
#include "steps.cuh"

struct Terms {
  complex64 a = {};
  f32 d = 0.f, da = 0.f;
};

// (segment, batch, part, state)
DEVICE void put_terms(const GradientParams& p, const Work& w, Terms sums) {
  sums.a = {sum_of_warp(sums.a.re), sum_of_warp(sums.a.im)};
  sums.d = sum_of_warp(sums.d), sums.da = sum_of_warp(sums.da);
  if (lane_of() != 0) return;
  const i64 term = w.segment * p.batch + w.batch;
  if constexpr (HAS_DA) {
#pragma unroll
    for (int part = 0; part < A_PARTS; part++) p.terms_a[(term * A_PARTS + part) * p.dstate + w.n] = part_of(sums.a, part);
  }
  if constexpr (HAS_DDELTA && DELTA_IS_STEADY) p.terms_delta[term * p.dstate + w.n] = sums.d;
  if constexpr (HAS_DDELTA_A && DELTA_A_IS_STEADY) p.terms_delta_a[term * p.dstate + w.n] = sums.da;
}

// At a step: the gradient by its state, the state before it, and its input.
struct Flow { complex64 g, before, v; };

// The gradients by the step sizes and A of one step.
struct BySizes {
  f32 d, da;

  DEVICE BySizes(Terms& sums, const State& state, const Slopes& slopes, f32 size_a, const Flow& flow) {
    const complex64 by_decay = mul_conj(mul_conj(flow.g, flow.before), slopes.decay), by_input = mul_conj(flow.g, flow.v);
    sums.a = add(scaled_add(by_decay, size_a, sums.a), mul_conj(by_input, slopes.input_by_a));
    d = re_mul_conj_add(by_input, slopes.input_by_step, 0.f);
    da = re_mul_conj_add(by_decay, state.a, 0.f);
    if constexpr (!HAS_DELTA_A) d += da;
    sums.d += d, sums.da += da;
  }
};

// The backward walk of a lane: its steps from the last one to the first, each with the decay of the step behind it.
struct Backward {
  Step steps[ITEMS];

  // `next_decay` is that of the tile behind, and becomes that of this one
  DEVICE Backward(const GradientParams& p, const Work& w, const Tile& tile, const complex64 (&g)[ITEMS], complex64& next_decay) {
    complex64 decay = neighbour<false>(tile.c[0].decay, 1);
    if (lane_of() == 31) decay = next_decay;
    next_decay = {__shfl_sync(~0u, tile.c[0].decay.re, 0), __shfl_sync(~0u, tile.c[0].decay.im, 0)};
#pragma unroll
    for (int i = ITEMS - 1; i >= 0; i--) {
      steps[i] = {conj(decay), g[i], false};
      if (RESETS && tile.begins(i + 1) && tile.first + i < p.seqlen) {
        steps[i].fresh = true;
        steps[i].input = add(g[i], read_state<BEFORE>(p, p.before, row_after(p, w.batch, tile.first + i + 1), w.n));
      }
      decay = tile.c[i].decay;
    }
  }
  // all of them as one step
  DEVICE Step all() const {
    Step all = steps[ITEMS - 1];
#pragma unroll
    for (int i = ITEMS - 2; i >= 0; i--) all = steps[i].after(all);
    return all;
  }
};

// The state before this lane's steps.
DEVICE complex64 state_before(const GradientParams& p, const Work& w, const Forward& forward, i64 tile) {
  complex64 x = {};
  if (tile > 0)
    from_parts(x, p.checkpoints[checkpoint_at(p, w, tile)], p.checkpoints[checkpoint_at(p, w, tile) + 1]);
  else if (!RESETS)
    x = read_state<INITIAL>(p, p.initial, {w.batch, 0}, w.n);
  return compose<true>(forward.all()).before.apply(x);
}

// A warp does this behind the backward walk of each tile.
struct Gradients {
  const GradientParams& p;
  const Work& w;
  const State& state;
  complex64 *const row, *const by_row;
  Terms sums;

  // Walks forwards again, from gradients g by the states to those by all else.
  DEVICE void finish(const Tile& tile, i64 number, complex64 (&g)[ITEMS]) {
    const i64 first = tile.first;
    complex64 v[ITEMS];
    load_row(v, row, first, p.seqlen);
    Forward forward;
    forward.read<INITIAL>(p, w, p.initial, tile, v);
    complex64 x = state_before(p, w, forward, number);
    f32 by_d[ITEMS], by_da[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const bool exists = first + i < p.seqlen, begins_here = tile.begins(i);
      const complex64 before = RESETS && begins_here ? forward.starts[i] : x;
      x = forward.steps[i].apply(x);
      if constexpr (HAS_STEPS) {
        const complex64 none = {};
        const Slopes slopes = state.slopes(tile.c[i], tile.sizes.d[i], tile.sizes.da[i]);
        const BySizes by(sums, state, slopes, tile.sizes.da[i], {exists ? g[i] : none, exists ? before : none, v[i]});
        by_d[i] = by.d, by_da[i] = by.da;
      }
      if (exists && begins_here) write_state<AFTER>(p, p.after, row_before(p, w.batch, first + i), w.n, mul(conj(tile.c[i].decay), g[i]));
      v[i] = x;
      g[i] = mul(conj(tile.c[i].input), g[i]);
    }
    if constexpr (HAS_STATES) store_row(v, row, first, p.seqlen);
    if constexpr (HAS_DV) store_row(g, by_row, first, p.seqlen);
    if constexpr (HAS_DDELTA && !DELTA_IS_STEADY)
      store_steps<DDELTA, DDELTA_WIDTH>(by_d, at<DDELTA>(p.ddelta, w.batch, w.n), p.ddelta.stride[2], first, p.seqlen);
    if constexpr (HAS_DDELTA_A && !DELTA_A_IS_STEADY)
      store_steps<DDELTA_A, DDELTA_A_WIDTH>(by_da, at<DDELTA_A>(p.ddelta_a, w.batch, w.n), p.ddelta_a.stride[2], first, p.seqlen);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2) simplified_scan_gradients(const __grid_constant__ GradientParams p) {
  const Work w(p, false);
  if (!w.exists) return;
  const State state(p, w);
  Gradients gradients = {p, w, state, row_of(p.numbers, p, w), row_of(p.by_numbers, p, w)};
  if (PASS != Pass::Rest && w.segment == 0) hand_on<BEFORE, AFTER>(p, w, p.before, p.after);
  complex64 carry = {};
  if (!RESETS && PASS != Pass::Ends) carry = read_state<BEFORE>(p, p.before, {w.batch, 0}, w.n);
  if constexpr (PASS == Pass::Rest) carry = enter_segment(p, w, carry);
  Step all = no_step();
  complex64 next_decay = state.decay_at(p, w.last * TILE);
#pragma unroll 1
  for (i64 number = w.last - 1; number >= w.first; number--) {
    const Tile tile(p, w, state, number);
    complex64 g[ITEMS];
    if constexpr (HAS_BY_Y) {
      load_row(g, gradients.by_row, tile.first, p.seqlen);
    } else {
#pragma unroll
      for (int i = 0; i < ITEMS; i++) g[i] = {};
    }
    const Backward backward(p, w, tile, g, next_decay);
    const Composed composed = compose<false>(backward.all());
    if constexpr (PASS == Pass::Ends) {
      all = composed.all.after(all);
      continue;
    }
    complex64 later = composed.before.apply(carry);
    carry = composed.all.apply(carry);
#pragma unroll
    for (int i = ITEMS - 1; i >= 0; i--) g[i] = later = backward.steps[i].apply(later);
    gradients.finish(tile, number, g);
  }
  if constexpr (PASS == Pass::Ends)
    leave_segment(p, w, all);
  else if constexpr (HAS_STEPS)
    put_terms(p, w, gradients.sums);
}
