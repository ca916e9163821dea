// The warps that help: tiles copied in, powers of the decays, the gradients by the steps, results copied out.
#pragma once
#include "fused_layout.cuh"

static_assert(given<int>(B_AT, C_AT, STAGE, X_AT, Z_AT, G_AT) && given_types<SKIP, DDT, DDT_A>() && given<bool>(HAS_DDT, HAS_DDT_A));

// ---- tiles in: one thread

DEVICE void copy_in(const Params& p, const Work& w, char* tiles, Shared& shared) {
  const int step = w.step(), other = w.other_step();
  acquire_maps(p, w, {X_MAP, DY_MAP, Z_MAP, B_MAP, C_MAP});
  const TensorMap* const maps = maps_of(p, w);
  barrier_arrive_expecting(shared.maps, (w.has_other ? 3 : 2) * PANELS * PANEL);
#pragma unroll
  for (int n = 0; n < PANELS; n++) {
    tile_load(tiles + B_AT + n * PANEL, maps[B_MAP], shared.maps, {64 * n, w.group, step, w.batch});
    tile_load(tiles + C_AT + n * PANEL, maps[C_MAP], shared.maps, {64 * n, w.group, step, w.batch});
    if (w.has_other) tile_load(tiles + OTHER_MAP_AT + n * PANEL, maps[w.second ? B_MAP : C_MAP], shared.maps, {64 * n, w.group, other, w.batch});
  }
  Turn<STAGES> turn;
#pragma unroll 1
  for (int unit = 0; unit < w.units; unit++, turn.next()) {
    Barrier& full = shared.barriers[turn.at].full;
    barrier_wait(shared.barriers[turn.at].empty, turn.phase ^ 1);
    char* const stage = tiles + turn.at * STAGE;
    const int head = w.head(p, unit), column = w.column(p, unit), slot = w.slot(p, head);
    const int at[4] = {column, head, step, w.batch};
    const bool gates_other = HAS_Z && !w.second;
    barrier_arrive_expecting(full, H_AT + 2 * PANELS * PANEL + (w.has_other ? (gates_other ? 2 : 1) * PANEL : 0));
    tile_load(stage + X_AT, maps[X_MAP], full, at);
    tile_load(stage + DY_AT, maps[DY_MAP], full, at);
    if constexpr (HAS_Z) tile_load(stage + Z_AT, maps[Z_MAP], full, at);
    if (w.has_other) {
      const int there[4] = {column, head, other, w.batch};
      tile_load(stage + OTHER_AT, maps[w.second ? X_MAP : DY_MAP], full, there);
      if (gates_other) tile_load(stage + OTHER_Z_AT, maps[Z_MAP], full, there);
    }
#pragma unroll
    for (int n = 0; n < PANELS; n++) {
      tile_load(stage + H_AT + n * PANEL, p.states_map, full, {column, slot + 64 * n});
      tile_load(stage + G_AT + n * PANEL, p.gradients_map, full, {column, slot + 64 * n});
    }
  }
}

// ---- results out: a warp, of which one thread copies tiles

DEVICE void copy_out(const Params& p, const Work& w, const char* tiles, Shared& shared) {
  const bool leads = threadIdx.x % 32 == 0;
  if (leads) acquire_maps(p, w, {DX_MAP, DZ_MAP});
  Turn<STAGES> turn;
#pragma unroll 1
  for (int unit = 0; unit < w.units; unit++, turn.next()) {
    barrier_wait(shared.barriers[turn.at].written, turn.phase);
    const char* const stage = tiles + turn.at * STAGE;
    const int at[4] = {w.column(p, unit), w.head(p, unit), w.step(), w.batch};
    if (leads && !IS_FIRST_HALF) {
      tile_store(maps_of(p, w)[DX_MAP], stage + P_AT, at);
      if constexpr (HAS_DZ) tile_store(maps_of(p, w)[DZ_MAP], stage + Z_AT, at);
      tile_store_commit();
    }
    if constexpr (HAS_DSKIP && SKIP_BY_COLUMN) {
      f32* const to = p.skip_terms + (w.number(p, at[1]) * p.headdim + at[0]);
      const auto& of_warps = shared.columns[turn.at];
      for (int i = threadIdx.x % 32; i < COLUMNS && at[0] + i < p.headdim; i += 32)
        put_term<false>(to[i], of_warps[0][i] + of_warps[1][i] + (of_warps[2][i] + of_warps[3][i]));
    }
    if (leads) tile_store_wait();
    warp_arrive(shared.barriers[turn.at].empty);
  }
  if (leads) tile_store_finish();
}

// ---- powers of the decays: a warp, two neighbouring steps a thread

struct Decays {
  f64 sum[2], whole;   // log2 of the decays since the chunk began
  f32 weight[2];

  DEVICE Decays(const Params& p, const Head& constants, const Work& w, int head, int first) {
    const int lane = int(lane_here());
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int t = first + 2 * lane + k, last = w.limit(p) - 1;
      StepSizes d = step_sizes(p, constants, w.batch, head, min(t, last));
      if (t > last) d = {};
      weight[k] = d.weight, sum[k] = f64(d.decay) * constants.rate;
    }
    const f64 both = sum[0] + sum[1];
    const WarpSums sums(both);
    whole = sums.whole, sum[0] += sums.before, sum[1] = sums.before + both;
  }
  DEVICE f32 before(int k) const { return exp2_fast(f32(sum[k])); }
  DEVICE f32 after(int k) const { return exp2_fast(f32(whole - sum[k])); }
};

DEVICE void compute_powers(const Params& p, const Work& w, Shared& shared) {
  const int lane = int(lane_here());
  Turn<STAGES> turn;
#pragma unroll 1
  for (int unit = 0; unit < w.units; unit++, turn.next()) {
    const int head = w.head(p, unit), column = w.column(p, unit);
    // the other one has no steps where it does not exist
    const Head constants(p, head);
    const Decays own(p, constants, w, head, w.step()), other(p, constants, w, head, w.other_step());
    const bool far = __any_sync(~0u, !(fabs(own.sum[0]) <= FAR && fabs(own.sum[1]) <= FAR));
    barrier_wait(shared.barriers[turn.at].taken, turn.phase ^ 1);
    Powers& powers = shared.powers[turn.at];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int step = 2 * lane + k;
      powers.weight[step] = own.weight[k], powers.before[step] = own.before(k), powers.after[step] = own.after(k);
      powers.decay[step] = far ? f32(own.sum[k]) : exp2_fast(f32(-own.sum[k]));
      if constexpr (HAS_SKIP) powers.skip[step] = column + step < p.headdim ? to_f32(*at<SKIP>(p.skip, head, column + step)) : 0.f;
    }
    powers.other[lane] = w.second ? Factors(other.weight[0] * other.after(0), other.weight[1] * other.after(1)) : Factors(other.before(0), other.before(1));
    if (lane == 0) powers.whole = exp2_fast(f32(own.whole)), powers.other_whole = exp2_fast(f32(other.whole)), powers.far = far;
    warp_arrive(shared.barriers[turn.at].ready);
  }
}

// ---- the gradients by the steps: a warp, two neighbouring steps a thread

struct Finisher {
  const Params& p;
  const Work& w;
  const Shared& shared;
  f32 outputs[2] = {}, columns[2] = {}, inputs_state[2] = {}, own[2] = {}, state = 0.f;

  DEVICE void add(const StepSums& sums) {
    const int lane = int(lane_here());
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int step = 2 * lane + k;
      outputs[k] += sums.outputs[step], columns[k] += sums.column(step);
      inputs_state[k] += sums.inputs_state[step], own[k] += sums.own[step];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) state += sums.state[i];
  }

  // stores the gradients of a head's steps, after all of its columns
  DEVICE void finish(const Powers& powers, int head) {
    const int lane = int(lane_here());
    const Head constants(p, head);
    f32 from[2], to[2], by_weight[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int step = 2 * lane + k;
      const f32 pairs = powers.back(step) * columns[k], state_part = powers.after[step] * inputs_state[k];
      by_weight[k] = __fmaf_rn(shared.diagonal[step], own[k], pairs + state_part);
      from[k] = outputs[k] - powers.weight[step] * pairs, to[k] = powers.weight[step] * state_part;
    }
    f32 later = from[0] + from[1], earlier = to[0] + to[1];
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const f32 down = __shfl_down_sync(~0u, later, far), up = __shfl_up_sync(~0u, earlier, far);
      if (lane + far < 32) later += down;
      if (lane >= far) earlier += up;
    }
    later = __shfl_down_sync(~0u, later, 1), earlier = __shfl_up_sync(~0u, earlier, 1);
    if (lane == 31) later = 0.f;
    if (lane == 0) earlier = 0.f;
    const f32 both = powers.whole * state, rate = to_f32(*at<A>(p.a, head));
    const f32 by_decay[2] = {(later + from[1]) + from[0] + earlier + both, later + from[1] + (earlier + to[0]) + both};
    f32 a = 0.f, bias = 0.f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const i64 t = w.step() + 2 * lane + k;
      if (t >= w.limit(p)) continue;
      f32 decay = powers.weight[2 * lane + k];
      if constexpr (HAS_DT_A)
        decay = to_f32(*at<DT_A>(p.dt_a, w.batch, t, head));
      else
        by_weight[k] = __fmaf_rn(rate, by_decay[k], by_weight[k]);
      const f32 ddt = by_weight[k] * Dt::slope(to_f32(*at<DT>(p.dt, w.batch, t, head)), constants.bias, p.dt_low, p.dt_high);
      a = __fmaf_rn(by_decay[k], decay, a), bias += ddt;
      if constexpr (HAS_DDT) put_step<DDT>(p.ddt, p.ddt_parts, t, head, ddt);
      if constexpr (HAS_DDT_A) put_step<DDT_A>(p.ddt_a, p.ddt_a_parts, t, head, rate * by_decay[k]);
    }
    a = sum_of_warp(a), bias = sum_of_warp(bias);
    const f32 skip = sum_of_warp(own[0] + own[1]);
    if (lane != 0) return;
    const i64 number = w.number(p, head);
    put_term<true>(p.a_terms[number], a), put_term<true>(p.bias_terms[number], bias);
    if constexpr (HAS_DSKIP && !SKIP_BY_COLUMN) put_term<false>(p.skip_terms[number], skip);
  }

  // a gradient by a step, or the first half's part of it
  template <typename E> DEVICE void put_step(const Strided& to, const Strided& parts, i64 t, int head, f32 v) const {
    if constexpr (IS_FIRST_HALF) {
      *at<f32>(parts, w.batch, t, head) = v;
    } else {
      if constexpr (IS_SECOND_HALF) v += *at<f32>(parts, w.batch, t, head);
      assign(*at<E>(to, w.batch, t, head), v);
    }
  }
};

// The terms of a block that may have several chunks or none begin with zero; those who add to them set them.
DEVICE void clear_steps(const Params& p, const Work& block) {
  if (threadIdx.x % 32 != 0) return;
  for (int unit = 0; unit < block.units; unit += int(p.column_tiles)) {
    const i64 number = block.number(p, block.head(p, unit));
    if constexpr (!IS_SECOND_HALF) p.a_terms[number] = p.bias_terms[number] = 0.f;
    if constexpr (HAS_DSKIP && !SKIP_BY_COLUMN) p.skip_terms[number] = 0.f;
  }
}
DEVICE void clear_columns(const Params& p, const Work& block) {
  for (int unit = 0; unit < block.units; unit++) {
    const int column = block.column(p, unit);
    f32* const to = p.skip_terms + (block.number(p, block.head(p, unit)) * p.headdim + column);
    for (int i = threadIdx.x % 32; i < COLUMNS && column + i < p.headdim; i += 32) to[i] = 0.f;
  }
}

DEVICE void finish_steps(const Params& p, const Work& w, Shared& shared) {
  Turn<STAGES> turn;
#pragma unroll 1
  for (int unit = 0; unit < w.units; unit += int(p.column_tiles)) {
    Finisher finisher = {p, w, shared};
#pragma unroll 1
    for (int tile = 1; tile <= p.column_tiles; tile++, turn.next()) {
      Barriers& barriers = shared.barriers[turn.at];
      barrier_wait(barriers.summed, turn.phase);
      finisher.add(shared.sums[turn.at]);
      warp_arrive(barriers.read);
      if (tile == p.column_tiles) finisher.finish(shared.powers[turn.at], w.head(p, unit));
      warp_arrive(barriers.taken);
    }
  }
}
