// The backward pass: what lies in shared memory, the order of tiles, and how a tile is copied and made ready.
#pragma once
#include "tiles.cuh"

static_assert(given<int>(WIDTH, SPAN, CHECKPOINT, STAGES, SHARED) && given<bool>(B_COMPLEX, C_COMPLEX, HAS_DZ, HAS_DB, HAS_DC, HAS_DY) &&
              given_types<DY>() && given<Copy>(DY_COPY));

constexpr int SLOTS = CHANNELS / WIDTH;          // channels side by side
constexpr int SPANS = STEPS / SPAN;
constexpr int PIECES = CHECKPOINT / STEPS;       // tiles from one saved state to the next
constexpr int WARPS = THREADS / 32, WARP_SLOTS = 32 / LANES;
constexpr bool NARROW_B = COMPLEX && !B_COMPLEX, NARROW_C = COMPLEX && !C_COMPLEX;
static_assert(THREADS == SLOTS * LANES && THREADS % 32 == 0 && 32 % LANES == 0, "whole warps, whole channels in a warp");

// Shared memory has planes with a number for each channel and step: first inputs, then sums over the states in place of some of them.
constexpr int PLANE_STEP = 0, PLANE_INPUT = 1, PLANE_COTANGENT = 2, PLANE_DT_A = 3;
constexpr int SUM_INPUT = 0, SUM_DECAY = 1, SUM_STEP = 2, SUM_OUTPUT = Method::GAIN ? 3 : 2, SUMS = SUM_OUTPUT + HAS_DZ;
constexpr int FIRST_SUM = 1;                     // the plane of the first sum
constexpr int PLANES = (HAS_DT_A || FIRST_SUM + SUMS > 3) ? (FIRST_SUM + SUMS > 4 ? FIRST_SUM + SUMS : 4) : 3;
constexpr int PLANE_BYTES = 4 * CHANNELS * LINE_PITCH;

typedef RawTile<DY, DY_COPY, CHANNELS, STEPS, THREADS, DENSE> DyTile;

constexpr bool ENDS = PASS == Pass::Ends;        // neither x nor B matters for the gradient of the state
constexpr bool READS_B = B_VARIES && !ENDS;
constexpr int MAPS = (B_VARIES && HAS_DB) + (C_VARIES && HAS_DC);
constexpr int SUMMED_BYTES = 4 * PADDED * PARTS * LINE_PITCH;   // the sums of one map of one warp
constexpr int C_SUMMED = B_VARIES && HAS_DB ? SUMMED_BYTES : 0;   // those of C among them
constexpr int SAVED_AT = PLANES * PLANE_BYTES;
constexpr int B_MAP_AT = SAVED_AT + (ENDS ? 0 : CHECKPOINT / SPAN * WIDTH * STATES * THREADS * int(sizeof(Field)));
constexpr int C_MAP_AT = B_MAP_AT + (READS_B ? MAP_BYTES : 0);
constexpr int SUMMED_AT = C_MAP_AT + (C_VARIES ? MAP_BYTES : 0);   // gradients of B and C by warps
constexpr int CHANGE_AT = SUMMED_AT + (ENDS ? 0 : WARPS * MAPS * SUMMED_BYTES);
constexpr int STAGES_AT = CHANGE_AT + (SEQUENCES == Sequences::Index ? 4 * STEPS : 0);
constexpr int X_AT = 0;
constexpr int DT_AT = X_AT + (ENDS ? 0 : XTile::BYTES);
constexpr int DT_A_AT = DT_AT + DtTile::BYTES;
constexpr int DY_AT = DT_A_AT + (HAS_DT_A ? DtATile::BYTES : 0);
constexpr int Z_AT = DY_AT + (HAS_DY ? DyTile::BYTES : 0);
constexpr int B_AT = Z_AT + (HAS_Z ? ZTile::BYTES : 0);
constexpr int C_AT = B_AT + (READS_B ? BTile::BYTES : 0);
constexpr int STAGE_BYTES = C_AT + (C_VARIES ? CTile::BYTES : 0);
static_assert(STAGES_AT + STAGES * STAGE_BYTES == SHARED, "the plan and the kernel agree on shared memory");

DEVICE float4* plane_quad(char* shared, int plane, int channel, int step) {
  return reinterpret_cast<float4*>(shared + plane * PLANE_BYTES + 4 * (channel * LINE_PITCH + step));
}
DEVICE void read_plane(char* shared, int plane, int channel, int step, f32* out) {
  const float4 v = *plane_quad(shared, plane, channel, step);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
DEVICE float4 quad_of(const f32* v) { return make_float4(v[0], v[1], v[2], v[3]); }

constexpr bool ANY_SHIFTED = SHIFTED_INPUTS || (HAS_DY && DyTile::SHIFTED);

// ---- the order of tiles

// Forwards from one saved state to the next, and back; from the last saved state to the first. A tile at the turn is visited once for both.
struct Walk {
  int tile, low, top, first;
  bool rising;
  DEVICE Walk(int first, int last) : top(last), first(first) { begin(); }
  DEVICE void begin() {
    low = max(first, top / PIECES * PIECES);
    tile = ENDS ? top : low, rising = !ENDS;
  }
  DEVICE bool done() const { return top < first; }
  DEVICE bool back() const { return !rising || tile == top; }
  DEVICE void advance() {
    if (rising && tile < top) {
      tile++;
    } else if (tile > low) {
      rising = false, tile--;
    } else {
      top = low - 1;
      begin();
    }
  }
};

// ---- copy

// Starts to copy the tile that a walk is at, as it is stored.
DEVICE void copy_tile(const Params& p, const Work& w, const Walk& walk, char* raw) {
  if (walk.done()) return;
  const i64 step = i64(walk.tile) * STEPS;
  const int steps = int(min(i64(STEPS), p.seqlen - step));
  const bool back = walk.back();
  const Span span(step, p.seqlen);
  auto each_source = [&](auto job) {
    auto timed = [&](auto tile, auto* from, const Strided& v, int at) {
      job(typename decltype(tile)::Source(from, v.stride[1], v.stride[2], w.channels, Span(w.first, p.dim)), at);
    };
    auto map = [&](auto tile, auto* from, const Strided& v, int at) {
      job(typename decltype(tile)::Source(from, v.stride[2], v.stride[3], DSTATE, Span(0, DSTATE)), at);
    };
    if constexpr (!ENDS) timed(XTile(), at<X>(p.x, w.batch, w.first, step), p.x, X_AT);
    timed(DtTile(), at<DT>(p.dt, w.batch, w.first, step), p.dt, DT_AT);
    if constexpr (HAS_DT_A) timed(DtATile(), at<DT_A>(p.dt_a, w.batch, w.first, step), p.dt_a, DT_A_AT);
    if (HAS_DY && back) timed(DyTile(), at<DY>(p.dy, w.batch, w.first, step), p.dy, DY_AT);
    if (HAS_Z && back) timed(ZTile(), at<Z>(p.z, w.batch, w.first, step), p.z, Z_AT);
    if constexpr (READS_B) map(BTile(), at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, step), p.b, B_AT);
    if (C_VARIES && back) map(CTile(), at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, step), p.c, C_AT);
  };
  auto load = [&](auto whole) {
    each_source([&](auto source, int at) { source.template load<decltype(whole)::VALUE>(raw + at, steps, span); });
  };
  if (XTile::VECTOR && steps == STEPS && w.channels == CHANNELS && (!ANY_SHIFTED || span.has_more(STEPS)))
    load(Flag<true>());
  else
    load(Flag<false>());
  if constexpr (ANY_SHIFTED) each_source([&](auto source, int at) { source.load_ends(raw + at, steps, span); });
  copy_async_commit();
}

DEVICE void copy_next(const Params& p, const Work& w, Walk& next, char* raw) {
  copy_tile(p, w, next, raw);
  next.advance();
}

// Whether the next tile is copied over the one at hand once that is prepared. A tile that is visited on the way back is needed to the end; a copy
// that keeps its thread busy, or is much code, can as well come later.
constexpr bool EARLY = STAGES == 1 && XTile::VECTOR && !XTile::SHIFTED;

// ---- prepare

struct Stored {
  Quad<X> x;
  Quad<DT> dt;
  Quad<DT_A> dt_a;
  Quad<DY> dy;
  Quad<Z> z;
};

struct AllShifts : Shifts {
  DyTile::Shift dy;
  DEVICE AllShifts(const Params& p, const Work& w) : Shifts(p, w), dy(at<DY>(p.dy, w.batch, w.first), p.dy.stride[1], p.dy.stride[2]) {}
};

// The work of a block, and its place in it.
struct Block {
  const Params& p;
  const Work& w;
  char* shared;
  const f32 *skips, *biases;   // those of the block's channels
};

// From a tile as it is stored to what sweeps read.
template <bool WHOLE> DEVICE void prepare(const Block& block, char* raw, Window<WHOLE> window, bool back) {
  const Params& p = block.p;
  char* const shared = block.shared;
  // found again for each tile, since the loops between need every register
  const AllShifts shifts(p, block.w);
  auto load = [&](Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    if constexpr (!ENDS) stored.x = XTile::read4(raw + X_AT, place.channel, place.step, shifts.x);
    stored.dt = DtTile::read4(raw + DT_AT, place.channel, place.step, shifts.dt);
    if constexpr (HAS_DT_A) stored.dt_a = DtATile::read4(raw + DT_A_AT, place.channel, place.step, shifts.dt_a);
    if (HAS_DY && back) stored.dy = DyTile::read4(raw + DY_AT, place.channel, place.step, shifts.dy);
    if (HAS_Z && back) stored.z = ZTile::read4(raw + Z_AT, place.channel, place.step, shifts.z);
  };
  // the first pass over segments has half of the registers, and shifted elements are loaded one by one
  each_loaded<QUADS, THREADS, WHOLE, Stored, ENDS && XTile::SHIFTED ? 2 : 4>(load, [&](const Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    f32 d[4], u[4], dt_a[4];
    bool inside[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      inside[j] = WHOLE || (window.has(place.step + j) && place.channel < block.w.channels);
      d[j] = step_of(p, to_f32(stored.dt.v[j]), block.biases, place.channel);
      u[j] = ENDS ? 0.f : to_f32(stored.x.v[j]);
      if constexpr (Method::INPUT_STEP) u[j] *= d[j];
      u[j] = inside[j] ? u[j] : 0.f;
      d[j] = inside[j] ? d[j] : 0.f;
      if constexpr (HAS_DT_A) dt_a[j] = inside[j] ? to_f32(stored.dt_a.v[j]) : 0.f;
    }
    *plane_quad(shared, PLANE_STEP, place.channel, place.step) = quad_of(d);
    if constexpr (!ENDS) *plane_quad(shared, PLANE_INPUT, place.channel, place.step) = quad_of(u);
    if constexpr (HAS_DT_A) *plane_quad(shared, PLANE_DT_A, place.channel, place.step) = quad_of(dt_a);
    if (back) {
      f32 q[4] = {};
#pragma unroll
      for (int j = 0; HAS_DY && j < 4; j++) {
        q[j] = to_f32(stored.dy.v[j]) * (COMPLEX ? 2.f : 1.f);
        if constexpr (HAS_Z) q[j] *= silu(to_f32(stored.z.v[j]));
        q[j] = inside[j] ? q[j] : 0.f;
      }
      *plane_quad(shared, PLANE_COTANGENT, place.channel, place.step) = quad_of(q);
    }
  });
  if constexpr (READS_B) prepare_map<BTile>(shared + B_MAP_AT, raw + B_AT, shifts.b, window);
  if (C_VARIES && back) prepare_map<CTile>(shared + C_MAP_AT, raw + C_AT, shifts.c, window);
}
