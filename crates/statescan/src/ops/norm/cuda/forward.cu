// A norm, forwards: y, and the sum of x and the residual. See mod.rs for the mathematics and rows.cuh for who has what.

extern "C" __global__ void __launch_bounds__(THREADS) norm_forward(const __grid_constant__ ForwardParams p) {
  const Team team(p);
  const Values weight = load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f);
  const Values bias = load_weights<HAS_BIAS, BIAS>(team, p.bias, 0.f);
  // all threads of a block take as many turns, since they meet
  for (i64 row = team.number(p), left = p.rows - (row - threadIdx.x / LANES); left > 0; row += team.stride(p), left -= team.stride(p)) {
    const bool exists = row < p.rows;
    const i64 own = exists ? row : p.rows - 1;
    Values values = load(team, row_of<X>(p.x, p, own), p.x.stride[3]);
    if constexpr (HAS_RESIDUAL) {
      const Values residual = load(team, row_of<RESIDUAL>(p.residual, p, own), p.residual.stride[3]);
      values.each([&](int i, int j) { values.v[i][j] += residual.v[i][j]; });
    }
    if (HAS_SUM && exists) store(team, row_of<SUM>(p.sum, p, own), p.sum.stride[3], values);
    if constexpr (!HAS_Y) continue;
    Values gate;
    if constexpr (HAS_Z) {
      gate = load(team, row_of<Z>(p.z, p, own), p.z.stride[3]);
      gate.each([&](int i, int j) { gate.v[i][j] = silu(gate.v[i][j]); });
      if constexpr (!GATE_LAST) values.each([&](int i, int j) { values.v[i][j] *= gate.v[i][j]; });
    }
    center(team, values);
    f32 squares = 0.f;
    values.each([&](int i, int j) { squares = __fmaf_rn(values.v[i][j], values.v[i][j], squares); });
    const f32 factor = 1.f / sqrtf(sum_of(team, squares) / f32(team.group) + p.eps);
    values.each([&](int i, int j) {
      f32 out = __fmaf_rn(values.v[i][j] * factor, weight.v[i][j], bias.v[i][j]);
      if constexpr (HAS_Z && GATE_LAST) out *= gate.v[i][j];
      values.v[i][j] = out;
    });
    if (exists) store(team, row_of<Y>(p.y, p, own), p.y.stride[3], values);
  }
}
