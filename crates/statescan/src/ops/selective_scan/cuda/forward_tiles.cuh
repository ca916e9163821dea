// The forward pass: what lies in shared memory, how a tile is made ready and how its outputs are finished.
#pragma once
#include "tiles.cuh"

static_assert(given<bool>(Y_BY_TIME, HAS_Y, Y_VECTOR, HAS_SKIP) && given<int>(STAGES, SHARED) && given_types<Y>());

constexpr bool HAS_GAIN_STEP = Method::GAIN && HAS_DT_A;
constexpr bool ANY_SHIFTED = SHIFTED_INPUTS;

constexpr int SCANNING = CHANNELS * LANES, SCANNERS = round_up(SCANNING, 32);
static_assert(CHANNELS % 2 == 0, "neighbours are two channels");
static_assert(THREADS % 32 == 0, "each role has whole warps");

// shared memory: what scanners read of a tile, twice; what they leave of it, twice; tiles as they are stored
constexpr int PAIR_PITCH = (STEPS + 2) * 2;      // f32; an odd number of 16-byte units, against bank conflicts
constexpr int PAIRS_AT = 0;
constexpr int GAIN_AT = PAIRS_AT + 4 * CHANNELS * PAIR_PITCH + 16;   // the last line is read past its end
constexpr int B_MAP_AT = GAIN_AT + (HAS_GAIN_STEP ? 4 * CHANNELS * LINE_PITCH : 0);
constexpr int C_MAP_AT = B_MAP_AT + (B_VARIES ? MAP_BYTES : 0);
constexpr int CHANGE_AT = C_MAP_AT + (C_VARIES ? MAP_BYTES : 0);
constexpr int READY_BYTES = CHANGE_AT + (SEQUENCES == Sequences::Index ? 4 * STEPS : 0);
// f32 of a channel: lanes of two channels write side by side, then threads of neighbouring steps or of neighbouring channels read
constexpr int PARTIAL_PITCH = LANES * LINE_PITCH + (LANES >= 8 ? 16 : 0) + (Y_BY_TIME || LANES == 1 ? 0 : 4);
constexpr int PARTIAL_BYTES = HAS_Y ? 4 * CHANNELS * PARTIAL_PITCH : 0;
constexpr int PARTIALS_AT = 2 * READY_BYTES;
constexpr int STAGES_AT = PARTIALS_AT + 2 * PARTIAL_BYTES;
constexpr int X_AT = 0;
constexpr int DT_AT = X_AT + XTile::BYTES;
constexpr int DT_A_AT = DT_AT + DtTile::BYTES;
constexpr int Z_AT = DT_A_AT + (HAS_DT_A ? DtATile::BYTES : 0);
constexpr int B_AT = Z_AT + (HAS_Z ? ZTile::BYTES : 0);
constexpr int C_AT = B_AT + (B_VARIES ? BTile::BYTES : 0);
constexpr int STAGE_BYTES = C_AT + (C_VARIES ? CTile::BYTES : 0);
static_assert(STAGES_AT + STAGES * STAGE_BYTES == SHARED, "the plan and the kernel agree on shared memory");

// ---- prepare

// Four steps of a channel as they are stored.
struct Stored {
  Quad<X> x;
  Quad<DT> dt;
  Quad<DT_A> dt_a;
};

template <bool WHOLE> DEVICE void prepare_pairs(const Params& p, char* ready, char* raw, const Shifts& shifts, Window<WHOLE> window, const f32* biases) {
  auto load = [&](Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    stored.x = XTile::read4(raw + X_AT, place.channel, place.step, shifts.x);
    stored.dt = DtTile::read4(raw + DT_AT, place.channel, place.step, shifts.dt);
    if constexpr (HAS_DT_A) stored.dt_a = DtATile::read4(raw + DT_A_AT, place.channel, place.step, shifts.dt_a);
  };
  each_loaded<QUADS, THREADS, WHOLE, Stored>(load, [&](const Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    f32 d[4], u[4], decay[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = window.has(place.step + j);
      d[j] = step_of(p, to_f32(stored.dt.v[j]), biases, place.channel);
      u[j] = to_f32(stored.x.v[j]);
      if constexpr (Method::INPUT_STEP) u[j] *= d[j];
      u[j] = inside ? u[j] : 0.f;
      d[j] = inside ? d[j] : 0.f;
      decay[j] = HAS_DT_A ? (inside ? to_f32(stored.dt_a.v[j]) : 0.f) : d[j];
    }
    float4* const to = reinterpret_cast<float4*>(reinterpret_cast<f32*>(ready + PAIRS_AT) + place.channel * PAIR_PITCH + 2 * place.step);
    to[0] = make_float4(decay[0], u[0], decay[1], u[1]);
    to[1] = make_float4(decay[2], u[2], decay[3], u[3]);
    if constexpr (HAS_GAIN_STEP)
      *reinterpret_cast<float4*>(reinterpret_cast<f32*>(ready + GAIN_AT) + place.channel * LINE_PITCH + place.step) =
          make_float4(d[0], d[1], d[2], d[3]);
  });
}

// ---- finish

// A thread finishes four steps of a channel at once. But where steps are neighbours in memory that cannot be stored at once, it is a
// step of four channels, so that neighbouring threads store neighbours.
constexpr bool ACROSS = Y_BY_TIME && !Y_VECTOR && CHANNELS % 4 == 0;
struct Four {
  int channel, step;
  DEVICE explicit Four(int i) : channel(i / STEPS * 4), step(i % STEPS) {
    if constexpr (!ACROSS) {
      const Place<Y_BY_TIME> place(i);
      channel = place.channel, step = place.step;
    }
  }
};

// Sums over the lanes of a channel.
DEVICE void sum_partials(f32 (&y)[4], const char* partials, const Four& four) {
#pragma unroll
  for (int l = 0; l < LANES; l++) {
    const f32* const line = reinterpret_cast<const f32*>(partials) + four.channel * PARTIAL_PITCH + l * LINE_PITCH + four.step;
    f32 v[4];
    if constexpr (ACROSS) {
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = line[j * PARTIAL_PITCH];
    } else {
      const float4 quad = *reinterpret_cast<const float4*>(line);
      v[0] = quad.x, v[1] = quad.y, v[2] = quad.z, v[3] = quad.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) y[j] = l == 0 ? v[j] : y[j] + v[j];
  }
}

template <typename Tile, typename E> DEVICE Quad<E> read_four(char* tile, const Four& four, typename Tile::Shift shift) {
  Quad<E> quad;
  if constexpr (ACROSS) {
#pragma unroll
    for (int j = 0; j < 4; j++) quad.v[j] = Tile::read(tile, four.channel + j, four.step, shift);
  } else {
    quad = Tile::read4(tile, four.channel, four.step, shift);
  }
  return quad;
}

// A tile has sums over states by lane, the arguments as they are stored, and the output.
struct Unfinished {
  const char* partials;
  char* raw;
  Y* y;
};

template <bool WHOLE>
DEVICE void finish(const Params& p, const Unfinished& of, const Shifts& shifts, Window<WHOLE> window, int channels, const f32* skips) {
  each<QUADS, THREADS, WHOLE>([&](int i, int) {
    const Four four(i);
    f32 y[4];
    sum_partials(y, of.partials, four);
    if (!WHOLE && four.channel >= channels) return;
    Quad<X> x;
    Quad<Z> z;
    if constexpr (HAS_SKIP) x = read_four<XTile, X>(of.raw + X_AT, four, shifts.x);
    if constexpr (HAS_Z) z = read_four<ZTile, Z>(of.raw + Z_AT, four, shifts.z);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if constexpr (COMPLEX) y[j] *= 2.f;
      if constexpr (HAS_SKIP) y[j] = __fmaf_rn(skips[four.channel + (ACROSS ? j : 0)], to_f32(x.v[j]), y[j]);
      if constexpr (HAS_Z) y[j] *= silu(to_f32(z.v[j]));
    }
    Y* to = of.y + (four.channel * p.y.stride[1] + (Y_VECTOR ? four.step : four.step * p.y.stride[2]));
    if constexpr (ACROSS) {
#pragma unroll
      for (int j = 0; j < 4; j++, to += p.y.stride[1])
        if (WHOLE || (window.has(four.step) && four.channel + j < channels)) assign(*to, y[j]);
    } else {
      store4<Y_VECTOR, WHOLE>(to, p.y.stride[2], y, window.low - four.step, window.high - four.step);
    }
  });
}
