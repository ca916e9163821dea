// The backward pass: what a tile gives, once its sums are known.

// What the block has for a varying map: the sum over its warps, to the block's place in the workspace.
template <bool NARROW> DEVICE void finish_map(f32* to, i64 seqlen, i64 first_step, const char* summed, int low, int high) {
  constexpr int ROW_QUADS = STEPS / 4;
  each<(NARROW ? 1 : PARTS) * PADDED * ROW_QUADS, THREADS>([&](int i, int) {
    const int step = 4 * (i % ROW_QUADS), state = i / ROW_QUADS % PADDED, part = i / (ROW_QUADS * PADDED);
    if (RAGGED && state >= DSTATE) return;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
      const char* const tile = summed + warp * MAPS * SUMMED_BYTES;
      const float4 v = *reinterpret_cast<const float4*>(tile + 4 * ((state * PARTS + part) * LINE_PITCH + step));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    f32* const row = to + (i64(part) * DSTATE + state) * seqlen + first_step + step;
    if (TERMS_VECTOR && low <= step && high >= step + 4) {
      *reinterpret_cast<float4*>(row) = sum;
    } else {
      const f32 v[4] = {sum.x, sum.y, sum.z, sum.w};
      for (int j = 0; j < 4; j++)
        if (step + j >= low && step + j < high) row[j] = v[j];
    }
  });
}

// Of a thread's channels in `finish`, one for each round: gradients of the skip and of the bias.
constexpr int ROUNDS = (QUADS + THREADS - 1) / THREADS;
struct ChannelSums { f32 skip[ROUNDS], bias[ROUNDS]; };

// Whole tiles spare the branches, which would keep the loads of a quad behind the stores of the one before. Where elements are stored one by
// one that gains nothing, and to compile it twice takes long.
constexpr bool OUT_VECTOR = (HAS_DX && DX_VECTOR) || (HAS_DDT && DDT_VECTOR);

template <bool WHOLE>
DEVICE void finish(const Params& p, const Work& w, char* shared, char* raw, Window<WHOLE> window, i64 first_step, const f32* skips,
                   const f32* biases, ChannelSums& channel_sums) {
  each<QUADS, THREADS>([&](int i, int round) {
    const Place<OUT_BY_TIME> place(i);
    if (!WHOLE && place.channel >= w.channels) return;
    const Quad<X> x_raw = XTile::read4(raw + X_AT, place.channel, place.step);
    const Quad<DT> dt_raw = DtTile::read4(raw + DT_AT, place.channel, place.step);
    Quad<DY> dy_raw = {};
    Quad<Z> z_raw = {};
    if constexpr (HAS_DY) dy_raw = DyTile::read4(raw + DY_AT, place.channel, place.step);
    if constexpr (HAS_Z) z_raw = ZTile::read4(raw + Z_AT, place.channel, place.step);
    f32 sums[SUMS][4], d[4], dx[4], ddt[4], dz[4], ddt_a[4];
#pragma unroll
    for (int s = 0; s < SUMS; s++) read_plane(shared, FIRST_SUM + s, place.channel, place.step, sums[s]);
    read_plane(shared, PLANE_STEP, place.channel, place.step, d);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = window.has(place.step + j);
      const f32 x = to_f32(x_raw.v[j]), dy = HAS_DY ? to_f32(dy_raw.v[j]) : 0.f;
      f32 before_gate = dy, gate_slope = 0.f;
      if constexpr (HAS_Z) {
        const Gate gate(to_f32(z_raw.v[j]));
        before_gate *= gate.value, gate_slope = gate.slope;
      }
      const f32 input = sums[SUM_INPUT][j], by_decay = Method::UNIT * sums[SUM_DECAY][j];
      dx[j] = Method::INPUT_STEP ? d[j] * input : input;
      if constexpr (HAS_SKIP) dx[j] = __fmaf_rn(skips[place.channel], before_gate, dx[j]);
      if constexpr (HAS_DZ) {
        f32 y = sums[SUM_OUTPUT][j] * (COMPLEX ? 2.f : 1.f);
        if constexpr (HAS_SKIP) y = __fmaf_rn(skips[place.channel], x, y);
        dz[j] = dy * y * gate_slope;
      }
      ddt[j] = HAS_DT_A ? 0.f : by_decay;
      if constexpr (Method::INPUT_STEP) ddt[j] = __fmaf_rn(x, Method::GAIN ? sums[SUM_STEP][j] : input, ddt[j]);
      ddt_a[j] = by_decay;
      ddt[j] *= slope_of(p, to_f32(dt_raw.v[j]), biases, place.channel);
      if constexpr (HAS_DSKIP) channel_sums.skip[round] += inside ? before_gate * x : 0.f;
      if constexpr (HAS_DBIAS) channel_sums.bias[round] += inside ? ddt[j] : 0.f;
    }
    const int low = window.low - place.step, high = window.high - place.step;
    auto store = [&](auto* first, i64 stride, auto vector, const f32(&v)[4]) {
      store4<decltype(vector)::VALUE, WHOLE>(first, stride, v, low, high);
    };
    const i64 channel = w.first + place.channel, step = first_step + place.step;
    if constexpr (HAS_DX) store(at<DX>(p.dx, w.batch, channel, step), p.dx.stride[2], Flag<DX_VECTOR>(), dx);
    if constexpr (HAS_DDT) store(at<DDT>(p.ddt, w.batch, channel, step), p.ddt.stride[2], Flag<DDT_VECTOR>(), ddt);
    if constexpr (HAS_DZ) store(at<DZ>(p.dz, w.batch, channel, step), p.dz.stride[2], Flag<DZ_VECTOR>(), dz);
    if constexpr (HAS_DDT_A) store(at<DDT_A>(p.ddt_a, w.batch, channel, step), p.ddt_a.stride[2], Flag<DDT_A_VECTOR>(), ddt_a);
  });
}

// The sums of a channel over the quads of its threads; `sums` is of shared memory and free.
DEVICE void finish_channels(f32* to, f32* sums, const f32 (&own)[ROUNDS], int channels) {
  __syncthreads();
  each<QUADS, THREADS>([&](int i, int round) { sums[i] = own[round]; });
  __syncthreads();
#pragma unroll 1
  for (int channel = threadIdx.x; channel < channels; channel += THREADS) {
    f32 sum = 0.f;
    for (int q = 0; q < STEPS / 4; q++) sum += sums[OUT_BY_TIME ? channel * (STEPS / 4) + q : q * CHANNELS + channel];
    to[channel] = sum;
  }
}
