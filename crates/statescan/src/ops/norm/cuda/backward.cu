// A norm, backwards: gradients by the rows, and by weight and bias the sums over the rows of each team, which `sum_terms` adds. See mod.rs for
// the mathematics and rows.cuh for who has what.
#include "rows.cuh"

// The numbers of a row that are read for a run.
struct Stored {
  Neighbours<X, VECTOR> x;
  Neighbours<RESIDUAL, VECTOR> residual;
  Neighbours<Z, VECTOR> z;
  Neighbours<DY, VECTOR> dy;
  f32 scale;

  DEVICE void read(const Team& team, const BackwardParams& p, const Place& place, int item) {
    x = fetch(team, place.in<X>(p.x), p.x.stride[3], item);
    if constexpr (HAS_RESIDUAL) residual = fetch(team, place.in<RESIDUAL>(p.residual), p.residual.stride[3], item);
    if constexpr (HAS_SCALE) scale = to_f32(*place.in<SCALE>(p.residual_scale));
    if constexpr (HAS_Z) z = fetch(team, place.in<Z>(p.z), p.z.stride[3], item);
    if constexpr (HAS_DY) dy = fetch(team, place.in<DY>(p.dy), p.dy.stride[3], item);
  }
  DEVICE void recompute() {
    forget(x);
    if constexpr (HAS_RESIDUAL) forget(residual);
    if constexpr (HAS_Z) forget(z);
    if constexpr (HAS_DY) forget(dy);
  }
};

// Its numbers: the residual, its sum with x, what is normed, less the mean, the gate and its derivative, the gradient by y.
struct Values {
  Run residual, sum, normed, gate, slope, by;

  DEVICE Values(const Team& team, const Stored& stored, int item, f32 mean) {
    sum = open(team, stored.x, item);
    if constexpr (HAS_RESIDUAL) {
      residual = open(team, stored.residual, item);
#pragma unroll
      for (int j = 0; j < VECTOR; j++) sum.v[j] = add_scaled<HAS_SCALE>(sum.v[j], residual.v[j], stored.scale);
    }
    normed = sum;
    if constexpr (HAS_Z) {
      const Run z = open(team, stored.z, item);
#pragma unroll
      for (int j = 0; j < VECTOR; j++) {
        const Gate of(z.v[j]);
        gate.v[j] = of.value, slope.v[j] = of.slope;
        if constexpr (!GATE_LAST) normed.v[j] *= of.value;
      }
    }
    if constexpr (LAYER)
#pragma unroll
      for (int j = 0; j < VECTOR; j++) normed.v[j] = team.has(item) ? normed.v[j] - mean : 0.f;
    if constexpr (HAS_DY) by = open(team, stored.dy, item);
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
      if constexpr (!HAS_DY) by.v[j] = 0.f;
  }
  // the gradient by the weighted row, which is that by y but for a gate behind the norm
  DEVICE f32 by_out(int j) const { return HAS_Z && GATE_LAST ? by.v[j] * gate.v[j] : by.v[j]; }
};

// The factors that follow from a row's sums.
struct Factors {
  f32 factor, along, level;
};

// The gradients of a run by the row and by the gate; what it adds to those by weight and bias.
struct Gradients {
  Run by, by_z, of_weight, of_bias;

  DEVICE Gradients(const Values& values, const Factors& f, const Run& weight, const Run& bias) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      const f32 n = values.normed.v[j] * f.factor, out = values.by_out(j);
      if constexpr (HAS_Z && GATE_LAST) by_z.v[j] = values.by.v[j] * __fmaf_rn(n, weight.v[j], bias.v[j]) * values.slope.v[j];
      of_weight.v[j] = out * n, of_bias.v[j] = out;
      by.v[j] = f.factor * (out * weight.v[j] - f.level - n * f.along);
      if constexpr (HAS_Z && !GATE_LAST) {
        by_z.v[j] = by.v[j] * values.sum.v[j] * values.slope.v[j];
        by.v[j] *= values.gate.v[j];
      }
    }
  }
  // And the gradients by the residual and, summed over the run, by its factor.
  DEVICE f32 write(const Team& team, const BackwardParams& p, const Place& place, int item, const Values& values, f32 scale) {
    f32 by_scale = 0.f;
    if constexpr (HAS_DZ) store(team, place.in<DZ>(p.dz), p.dz.stride[3], item, by_z);
    if constexpr (HAS_DSUM) {
      const Run more = open(team, fetch(team, place.in<DSUM>(p.dsum), p.dsum.stride[3], item), item);
#pragma unroll
      for (int j = 0; j < VECTOR; j++) by.v[j] += more.v[j];
    }
    if constexpr (HAS_DX) store(team, place.in<DX>(p.dx), p.dx.stride[3], item, by);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      if constexpr (HAS_DSCALE) by_scale = __fmaf_rn(by.v[j], values.residual.v[j], by_scale);
      if constexpr (HAS_SCALE) by.v[j] *= scale;
    }
    if constexpr (HAS_DRESIDUAL) store(team, place.in<DRESIDUAL>(p.dresidual), p.dresidual.stride[3], item, by);
    return by_scale;
  }
};

// Sums for weight and bias over a team's rows: kept where runs are, and otherwise in the team's terms, dense (team, channel).
struct Totals {
  Run of_weight[KEPT], of_bias[KEPT];

  DEVICE void clear(const Team& team, const BackwardParams& p, i64 terms) {
    Run zero;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) zero.v[j] = 0.f;
    each_run([&](int i) {
      of_weight[i % KEPT] = of_bias[i % KEPT] = zero;
      if constexpr (!HOLDS) leave(team, p, terms, i);
    });
  }
  DEVICE void add(const Team& team, const BackwardParams& p, i64 terms, int item, const Gradients& more) {
    if constexpr (!HOLDS) find(team, p, terms, item);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      of_weight[item % KEPT].v[j] += more.of_weight.v[j];
      of_bias[item % KEPT].v[j] += more.of_bias.v[j];
    }
    if constexpr (!HOLDS) leave(team, p, terms, item);
  }
  DEVICE void leave(const Team& team, const BackwardParams& p, i64 terms, int item) const {
    if (!team.has(item)) return;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      if constexpr (HAS_DWEIGHT) p.of_weight[terms + team.channel(item) + j] = of_weight[item % KEPT].v[j];
      if constexpr (HAS_DBIAS) p.of_bias[terms + team.channel(item) + j] = of_bias[item % KEPT].v[j];
    }
  }
  DEVICE void find(const Team& team, const BackwardParams& p, i64 terms, int item) {
    if (!team.has(item)) return;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      if constexpr (HAS_DWEIGHT) of_weight[0].v[j] = p.of_weight[terms + team.channel(item) + j];
      if constexpr (HAS_DBIAS) of_bias[0].v[j] = p.of_bias[terms + team.channel(item) + j];
    }
  }
};

// The sum of a row's numbers, of a thread's runs.
template <typename StoredOf> DEVICE f32 sum_of_row(const Team& team, StoredOf stored) {
  f32 sum = 0.f;
  each_run([&](int i) {
    const Values values(team, stored(i), i, 0.f);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) sum += values.normed.v[j];
  });
  return sum;
}

// The factors of a row from its runs, their weights and their mean.
template <typename StoredOf, typename WeightOf>
DEVICE Factors factors_of(const Team& team, StoredOf stored, WeightOf weight_of, f32 mean, f32 eps, u32& turn) {
  if constexpr (!NORMED) return {1.f, 0.f, 0.f};
  f32 sums[LAYER ? 3 : 2] = {};
  each_run([&](int i) {
    const Values values(team, stored(i), i, mean);
    const Run w = weight_of(i);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      const f32 v = values.normed.v[j], by = values.by_out(j) * w.v[j];
      sums[0] = __fmaf_rn(v, v, sums[0]), sums[1] = __fmaf_rn(v, by, sums[1]);
      if constexpr (LAYER) sums[2] += by;
    }
  });
  sum_over_team(sums, turn++);
  const f32 factor = 1.f / sqrtf(sums[0] * team.share + eps);
  return {factor, sums[1] * factor * team.share, LAYER ? sums[LAYER ? 2 : 0] * team.share : 0.f};
}

extern "C" __global__ void __launch_bounds__(THREADS) norm_backward(const __grid_constant__ BackwardParams p) {
  constexpr bool WITH_BIAS = HAS_BIAS && HAS_Z && GATE_LAST;
  const Team team(p);
  Run weight[KEPT], bias[KEPT];
  Totals totals;
  const i64 terms = team.number(p) * i64(p.groups) * p.group + team.first;
  totals.clear(team, p, terms);
  if constexpr (HOLDS) {
    each_run([&](int i) {
      if constexpr (KEEPS_WEIGHTS) weight[i] = load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f, i);
      if constexpr (KEEPS_WEIGHTS) bias[i] = load_weights<WITH_BIAS, BIAS>(team, p.bias, 0.f, i);
    });
  }
  u32 turn = 0;
  for (Walk walk(team, p); walk.goes_on(); walk.next()) {
    const bool exists = walk.exists();
    const Place& place = walk.place;
    Stored held[KEPT];
    if constexpr (HOLDS) each_run([&](int i) { held[i].read(team, p, place, i); });
    const auto stored = [&](int i) -> Stored& {
      if constexpr (!HOLDS) held[0].read(team, p, place, i);
      return held[HOLDS ? i : 0];
    };
    const auto weight_of = [&](int i) { return KEEPS_WEIGHTS ? weight[i % KEPT] : load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f, i); };
    f32 mean[1] = {};
    if constexpr (LAYER) {
      mean[0] = sum_of_row(team, stored);
      sum_over_team(mean, turn++);
      mean[0] *= team.share;
    }
    const Factors factors = factors_of(team, stored, weight_of, mean[0], p.eps, turn);
    f32 by_scale[1] = {};
    if (exists) each_run([&](int i) {
      Stored& again = stored(i);
      again.recompute();
      const Run b = KEEPS_WEIGHTS ? bias[i % KEPT] : load_weights<WITH_BIAS, BIAS>(team, p.bias, 0.f, i);
      const Values values(team, again, i, mean[0]);
      Gradients gradients(values, factors, weight_of(i), b);
      totals.add(team, p, terms, i, gradients);
      by_scale[0] += gradients.write(team, p, place, i, values, again.scale);
    });
    if constexpr (HAS_DSCALE) {
      sum_over_team(by_scale, turn++);
      if (exists && team.lane == 0) assign(*place.in<DSCALE>(p.dscale), by_scale[0]);
    }
  }
  if constexpr (HOLDS) each_run([&](int i) { totals.leave(team, p, terms, i); });
}
