// A norm, forwards: y, and the sum of x and the residual. See mod.rs for the mathematics and rows.cuh for who has what.
#include "rows.cuh"

// The numbers of a row that are read for a run.
struct Stored {
  Neighbours<X, VECTOR> x;
  Neighbours<RESIDUAL, VECTOR> residual;
  Neighbours<Z, VECTOR> z;
  f32 scale;

  DEVICE void read(const Team& team, const ForwardParams& p, const Place& place, int item) {
    x = fetch(team, place.in<X>(p.x), p.x.stride[3], item);
    if constexpr (HAS_RESIDUAL) residual = fetch(team, place.in<RESIDUAL>(p.residual), p.residual.stride[3], item);
    if constexpr (HAS_SCALE) scale = to_f32(*place.in<SCALE>(p.residual_scale));
    if constexpr (HAS_Z && HAS_Y) z = fetch(team, place.in<Z>(p.z), p.z.stride[3], item);
  }
  DEVICE void recompute() {
    forget(x);
    if constexpr (HAS_RESIDUAL) forget(residual);
    if constexpr (HAS_Z) forget(z);
  }
  DEVICE Run sum(const Team& team, int item) const {
    Run to = open(team, x, item);
    if constexpr (HAS_RESIDUAL) {
      const Run other = open(team, residual, item);
#pragma unroll
      for (int j = 0; j < VECTOR; j++) to.v[j] = add_scaled<HAS_SCALE>(to.v[j], other.v[j], scale);
    }
    return to;
  }
  DEVICE Run gate(const Team& team, int item) const {
    Run to = open(team, z, item);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) to.v[j] = silu(to.v[j]);
    return to;
  }
};

// The numbers that are normed, less the mean.
DEVICE Run centered(const Team& team, const Stored& stored, int item, f32 mean) {
  Run to = stored.sum(team, item);
  if constexpr (HAS_Z && !GATE_LAST) {
    const Run gate = stored.gate(team, item);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) to.v[j] *= gate.v[j];
  }
  if constexpr (LAYER)
#pragma unroll
    for (int j = 0; j < VECTOR; j++) to.v[j] = team.has(item) ? to.v[j] - mean : 0.f;
  return to;
}

extern "C" __global__ void __launch_bounds__(THREADS) norm_forward(const __grid_constant__ ForwardParams p) {
  const Team team(p);
  Run weight[KEPT], bias[KEPT];
  if constexpr (HOLDS) {
    each_run([&](int i) {
      if constexpr (KEEPS_WEIGHTS) weight[i] = load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f, i);
      if constexpr (KEEPS_WEIGHTS) bias[i] = load_weights<HAS_BIAS, BIAS>(team, p.bias, 0.f, i);
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
    if constexpr (HAS_SUM)
      each_run([&](int i) { if (exists) store(team, place.in<SUM>(p.sum), p.sum.stride[3], i, stored(i).sum(team, i)); });
    if constexpr (!HAS_Y) continue;
    f32 mean[1] = {};
    if constexpr (LAYER) {
      each_run([&](int i) {
        const Run values = centered(team, stored(i), i, 0.f);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) mean[0] += values.v[j];
      });
      sum_over_team(mean, turn++);
      mean[0] /= f32(team.group);
    }
    f32 factor = 1.f;
    if constexpr (NORMED) {
      f32 squares[1] = {};
      each_run([&](int i) {
        const Run values = centered(team, stored(i), i, mean[0]);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) squares[0] = __fmaf_rn(values.v[j], values.v[j], squares[0]);
      });
      sum_over_team(squares, turn++);
      factor = 1.f / sqrtf(squares[0] / f32(team.group) + p.eps);
    }
    each_run([&](int i) {
      Stored& again = stored(i);
      again.recompute();
      const Run values = centered(team, again, i, mean[0]);
      const Run w = KEEPS_WEIGHTS ? weight[i % KEPT] : load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f, i);
      const Run b = KEEPS_WEIGHTS ? bias[i % KEPT] : load_weights<HAS_BIAS, BIAS>(team, p.bias, 0.f, i);
      Run gate, out;
      if constexpr (HAS_Z && GATE_LAST) gate = again.gate(team, i);
#pragma unroll
      for (int j = 0; j < VECTOR; j++) {
        out.v[j] = __fmaf_rn(values.v[j] * factor, w.v[j], b.v[j]);
        if constexpr (HAS_Z && GATE_LAST) out.v[j] *= gate.v[j];
      }
      if (exists) store(team, place.in<Y>(p.y), p.y.stride[3], i, out);
    });
  }
}
