// A norm, backwards: gradients by the rows, and by weight and bias the sums over the rows of each team, which `sum_terms` adds. See mod.rs for
// the mathematics and rows.cuh for who has what.

// What a team reads of a row: the sum of x and the residual, the gate and its derivative, and the gradient by y.
struct Row {
  Values sum, gate, slope, by;
};

DEVICE void load_row(Row& row, const Team& team, const BackwardParams& p, i64 own) {
  row.sum = load(team, row_of<X>(p.x, p, own), p.x.stride[3]);
  if constexpr (HAS_RESIDUAL) {
    const Values residual = load(team, row_of<RESIDUAL>(p.residual, p, own), p.residual.stride[3]);
    row.sum.each([&](int i, int j) { row.sum.v[i][j] += residual.v[i][j]; });
  }
  if constexpr (HAS_Z) {
    const Values z = load(team, row_of<Z>(p.z, p, own), p.z.stride[3]);
    z.each([&](int i, int j) {
      const Gate gate(z.v[i][j]);
      row.gate.v[i][j] = gate.value, row.slope.v[i][j] = gate.slope;
    });
  }
  if constexpr (HAS_DY)
    row.by = load(team, row_of<DY>(p.dy, p, own), p.dy.stride[3]);
  else
    row.by.each([&](int i, int j) { row.by.v[i][j] = 0.f; });
}


extern "C" __global__ void __launch_bounds__(THREADS) norm_backward(const __grid_constant__ BackwardParams p) {
  const Team team(p);
  const Values weight = load_weights<HAS_WEIGHT, WEIGHT>(team, p.weight, 1.f);
  const Values bias = load_weights<HAS_BIAS && HAS_Z && GATE_LAST, BIAS>(team, p.bias, 0.f);
  Values of_weight, of_bias;
  weight.each([&](int i, int j) { of_weight.v[i][j] = of_bias.v[i][j] = 0.f; });
  for (i64 first = team.number(p), left = p.rows - (first - threadIdx.x / LANES); left > 0;
       first += team.stride(p), left -= team.stride(p)) {
    const bool exists = first < p.rows;
    const i64 own = exists ? first : p.rows - 1;
    Row row;
    load_row(row, team, p, own);
    Values normed = row.sum;
    if constexpr (HAS_Z && !GATE_LAST) normed.each([&](int i, int j) { normed.v[i][j] *= row.gate.v[i][j]; });
    center(team, normed);
    // the weighted gradient is that of y, but for a gate behind the norm
    auto by_normed = [&](int i, int j) {
      const f32 by = HAS_Z && GATE_LAST ? row.by.v[i][j] * row.gate.v[i][j] : row.by.v[i][j];
      return by * weight.v[i][j];
    };
    f32 sums[3] = {};
    normed.each([&](int i, int j) {
      const f32 v = normed.v[i][j], by = by_normed(i, j);
      sums[0] = __fmaf_rn(v, v, sums[0]), sums[1] = __fmaf_rn(v, by, sums[1]);
      if constexpr (LAYER) sums[2] += by;
    });
    sum_over_team(sums);
    const f32 count = f32(team.group), factor = 1.f / sqrtf(sums[0] / count + p.eps);
    const f32 along = sums[1] * factor / count, level = LAYER ? sums[2] / count : 0.f;
    Values by_z;
    normed.each([&](int i, int j) {
      f32 by = row.by.v[i][j];
      const f32 n = normed.v[i][j] * factor;
      if constexpr (HAS_Z && GATE_LAST) {
        by_z.v[i][j] = by * __fmaf_rn(n, weight.v[i][j], bias.v[i][j]) * row.slope.v[i][j];
        by *= row.gate.v[i][j];
      }
      if (exists) of_weight.v[i][j] = __fmaf_rn(by, n, of_weight.v[i][j]), of_bias.v[i][j] += by;
      by = factor * (by * weight.v[i][j] - level - n * along);
      if constexpr (HAS_Z && !GATE_LAST) {
        by_z.v[i][j] = by * row.sum.v[i][j] * row.slope.v[i][j];
        by *= row.gate.v[i][j];
      }
      row.by.v[i][j] = by;
    });
    if (!exists) continue;
    if constexpr (HAS_DZ) store(team, row_of<DZ>(p.dz, p, own), p.dz.stride[3], by_z);
    if constexpr (HAS_DSUM) {
      const Values more = load(team, row_of<DSUM>(p.dsum, p, own), p.dsum.stride[3]);
      more.each([&](int i, int j) { row.by.v[i][j] += more.v[i][j]; });
    }
    if constexpr (HAS_DX) store(team, row_of<DX>(p.dx, p, own), p.dx.stride[3], row.by);
    if constexpr (HAS_DRESIDUAL) store(team, row_of<DRESIDUAL>(p.dresidual, p, own), p.dresidual.stride[3], row.by);
  }
  // dense (team, channel)
  const i64 terms = team.number(p) * i64(p.groups) * p.group + team.first;
  of_weight.each([&](int i, int j) {
    if (!team.has(i)) return;
    if constexpr (HAS_DWEIGHT) p.of_weight[terms + team.channel(i) + j] = of_weight.v[i][j];
    if constexpr (HAS_DBIAS) p.of_bias[terms + team.channel(i) + j] = of_bias.v[i][j];
  });
}
