// The backward pass: what a tile gives, once its sums are known.
#pragma once
#include "backward_sums.cuh"

static_assert(given<bool>(TERMS_VECTOR, HAS_DX, DX_VECTOR, HAS_DDT, DDT_VECTOR, OUT_BY_TIME, OUT_NEAR, HAS_SKIP, HAS_DSKIP, HAS_DBIAS) &&
              given<bool>(DZ_VECTOR, HAS_DDT_A, DDT_A_VECTOR) &&
              given_types<DX, DDT, DZ, DDT_A>());

// The sum of a block for a varying map goes, over its warps, to the block's place in the workspace.
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

// Gradients of the skip and of the bias of a thread's channels in `finish`, one for each round.
constexpr int ROUNDS = (QUADS + THREADS - 1) / THREADS;
struct ChannelSums { f32 skip[ROUNDS], bias[ROUNDS]; };

// Whole tiles spare the branches, which would keep the loads of a quad behind the stores of the one before. Where elements are stored one by
// one that gains nothing, and to compile it twice takes long.
constexpr bool OUT_VECTOR = (HAS_DX && DX_VECTOR) || (HAS_DDT && DDT_VECTOR);

// A thread finishes four steps of a channel: neighbours, or where steps lie side by side but cannot be stored at once steps that lie APART, so
// that neighbouring threads store neighbours.
constexpr bool APART = OUT_BY_TIME && OUT_NEAR && !OUT_VECTOR;
DEVICE int step_of(const Place<OUT_BY_TIME>& place, int j) { return APART ? place.step / 4 + j * (STEPS / 4) : place.step + j; }

template <typename Tile, typename E> DEVICE Quad<E> read_four(char* tile, const Place<OUT_BY_TIME>& place, typename Tile::Shift shift) {
  Quad<E> quad;
  if constexpr (APART) {
#pragma unroll
    for (int j = 0; j < 4; j++) quad.v[j] = Tile::read(tile, place.channel, step_of(place, j), shift);
  } else {
    quad = Tile::read4(tile, place.channel, place.step, shift);
  }
  return quad;
}
DEVICE void read_plane_of(char* shared, int plane, const Place<OUT_BY_TIME>& place, f32* out) {
  if constexpr (APART) {
    const f32* const line = reinterpret_cast<const f32*>(plane_quad(shared, plane, place.channel, 0));
#pragma unroll
    for (int j = 0; j < 4; j++) out[j] = line[step_of(place, j)];
  } else {
    read_plane(shared, plane, place.channel, place.step, out);
  }
}
// To a row of a tensor, from the tile's first step on.
template <bool VECTOR, typename E, bool WHOLE>
DEVICE void store_four(E* row, i64 stride, const Place<OUT_BY_TIME>& place, Window<WHOLE> window, const f32 (&of)[4]) {
  if constexpr (APART) {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (window.has(step_of(place, j))) assign(row[step_of(place, j)], of[j]);
  } else {
    store4<VECTOR, WHOLE>(row + place.step * stride, stride, of, window.low - place.step, window.high - place.step);
  }
}

template <bool WHOLE>
DEVICE void finish(const Block& block, char* raw, Window<WHOLE> window, i64 first_step, ChannelSums& channel_sums) {
  const Params& p = block.p;
  const Work& w = block.w;
  const AllShifts shifts(p, w);
  each<QUADS, THREADS>([&](int i, int round) {
    const Place<OUT_BY_TIME> place(i);
    if (!WHOLE && place.channel >= w.channels) return;
    const Quad<X> x_raw = read_four<XTile, X>(raw + X_AT, place, shifts.x);
    const Quad<DT> dt_raw = read_four<DtTile, DT>(raw + DT_AT, place, shifts.dt);
    Quad<DY> dy_raw = {};
    Quad<Z> z_raw = {};
    if constexpr (HAS_DY) dy_raw = read_four<DyTile, DY>(raw + DY_AT, place, shifts.dy);
    if constexpr (HAS_Z) z_raw = read_four<ZTile, Z>(raw + Z_AT, place, shifts.z);
    f32 sums[SUMS][4], d[4], dx[4], ddt[4], dz[4], ddt_a[4];
#pragma unroll
    for (int s = 0; s < SUMS; s++) read_plane_of(block.shared, FIRST_SUM + s, place, sums[s]);
    read_plane_of(block.shared, PLANE_STEP, place, d);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = window.has(step_of(place, j));
      const f32 x = to_f32(x_raw.v[j]), dy = HAS_DY ? to_f32(dy_raw.v[j]) : 0.f;
      f32 before_gate = dy, gate_slope = 0.f;
      if constexpr (HAS_Z) {
        const Gate gate(to_f32(z_raw.v[j]));
        before_gate *= gate.value, gate_slope = gate.slope;
      }
      const f32 input = sums[SUM_INPUT][j], by_decay = Method::UNIT * sums[SUM_DECAY][j];
      dx[j] = Method::INPUT_STEP ? d[j] * input : input;
      if constexpr (HAS_SKIP) dx[j] = __fmaf_rn(block.skips[place.channel], before_gate, dx[j]);
      if constexpr (HAS_DZ) {
        f32 y = sums[SUM_OUTPUT][j] * (COMPLEX ? 2.f : 1.f);
        if constexpr (HAS_SKIP) y = __fmaf_rn(block.skips[place.channel], x, y);
        dz[j] = dy * y * gate_slope;
      }
      ddt[j] = HAS_DT_A ? 0.f : by_decay;
      if constexpr (Method::INPUT_STEP) ddt[j] = __fmaf_rn(x, Method::GAIN ? sums[SUM_STEP][j] : input, ddt[j]);
      ddt_a[j] = by_decay;
      ddt[j] *= slope_of(p, to_f32(dt_raw.v[j]), block.biases, place.channel);
      if constexpr (HAS_DSKIP) channel_sums.skip[round] += inside ? before_gate * x : 0.f;
      if constexpr (HAS_DBIAS) channel_sums.bias[round] += inside ? ddt[j] : 0.f;
    }
    const i64 channel = w.first + place.channel;
    if constexpr (HAS_DX) store_four<DX_VECTOR>(at<DX>(p.dx, w.batch, channel, first_step), p.dx.stride[2], place, window, dx);
    if constexpr (HAS_DDT) store_four<DDT_VECTOR>(at<DDT>(p.ddt, w.batch, channel, first_step), p.ddt.stride[2], place, window, ddt);
    if constexpr (HAS_DZ) store_four<DZ_VECTOR>(at<DZ>(p.dz, w.batch, channel, first_step), p.dz.stride[2], place, window, dz);
    if constexpr (HAS_DDT_A) store_four<DDT_A_VECTOR>(at<DDT_A>(p.ddt_a, w.batch, channel, first_step), p.ddt_a.stride[2], place, window, ddt_a);
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
