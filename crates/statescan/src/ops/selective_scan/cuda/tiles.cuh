// Both passes of a selective scan are built from this: the work of a block, and the maps B and C.
#pragma once
#include "raw_tile.cuh"
#include "slots.cuh"

static_assert(given<bool>(COMPLEX, HAS_BIAS, SOFTPLUS, HAS_LIMIT, DENSE, REVERSE, HAS_DT_A, HAS_Z, B_VARIES, C_VARIES, TWO_PHASE) &&
              given<Discretization>(METHOD) && given<int>(DSTATE, LANES, CHANNELS, STEPS, THREADS) && given_types<X, DT, DT_A, Z, B, C, INDEX>() &&
              given<Copy>(X_COPY, DT_COPY, DT_A_COPY, Z_COPY, B_COPY, C_COPY) && given<Pass>(PASS) && given<Sequences>(SEQUENCES));

typedef Choose<COMPLEX, complex64, f32>::type Field;
typedef Rule<METHOD> Method;
typedef StepSize<HAS_BIAS, SOFTPLUS, HAS_LIMIT> Dt;

constexpr int STATES = DSTATE == 0 ? 1 : (DSTATE + LANES - 1) / LANES;
constexpr int PADDED = STATES * LANES;
constexpr int PARTS = COMPLEX ? 2 : 1;
constexpr bool RAGGED = PADDED != DSTATE;

// quads: four steps of a channel, of a state
constexpr int QUADS = CHANNELS * STEPS / 4;
constexpr int MAP_QUADS = PADDED * STEPS / 4;
constexpr int MAP_BYTES = 4 * STEPS * PADDED * PARTS;
constexpr int LINE_PITCH = STEPS + 4;         // f32; an odd number of 16-byte units, against bank conflicts

typedef RawTile<X, X_COPY, CHANNELS, STEPS, THREADS, DENSE> XTile;
typedef RawTile<DT, DT_COPY, CHANNELS, STEPS, THREADS, DENSE> DtTile;
typedef RawTile<DT_A, DT_A_COPY, CHANNELS, STEPS, THREADS, DENSE> DtATile;
typedef RawTile<Z, Z_COPY, CHANNELS, STEPS, THREADS, DENSE> ZTile;
typedef RawTile<B, B_COPY, DSTATE, STEPS, THREADS> BTile;
typedef RawTile<C, C_COPY, DSTATE, STEPS, THREADS> CTile;

static_assert(PASS == Pass::Whole || (!COMPLEX && !Method::GAIN && SEQUENCES == Sequences::Whole), "a plan cuts no other rows");

DEVICE i64 index_of(const Strided& v, i64 i, i64 j) { return i64(*at<INDEX>(v, i, j)); }

// The step that a channel takes for dt, and its derivative by dt. `biases` are the block's; where there are none they may be anything.
DEVICE f32 step_of(const Inputs& p, f32 dt, const f32* biases, int channel) {
  return Dt::of(dt, HAS_BIAS ? biases[channel] : 0.f, p.dt_low, p.dt_high);
}
DEVICE f32 slope_of(const Inputs& p, f32 dt, const f32* biases, int channel) {
  return Dt::slope(dt, HAS_BIAS ? biases[channel] : 0.f, p.dt_low, p.dt_high);
}

// The work of a block.
struct Work {
  int row, batch;        // where states lie, where steps lie
  i64 place;             // where a pool has the row's slots: of sequences in pieces, which a block walks one after the other, that of the piece
  int piece;
  int block;             // which block of the row
  int first;             // channel
  int channels;
  i64 start, end;        // steps
  int segment;

  // blocks of later segments come later; FIRST is the segment of the first block
  template <int FIRST> static DEVICE Work of(const Inputs& p) {
    const int in_segment = PASS == Pass::Whole ? blockIdx.x : blockIdx.x % int(p.blocks_per_segment);
    Work w;
    w.block = in_segment % int(p.blocks_per_row);
    const int unit = w.block / int(p.blocks_per_unit);
    w.row = w.batch = in_segment / int(p.blocks_per_row);
    w.place = w.row, w.piece = 0;
    w.first = unit * int(p.unit) + w.block % int(p.blocks_per_unit) * CHANNELS;
    w.channels = int(min(i64(CHANNELS), (unit + 1) * p.unit - w.first));
    w.segment = 0, w.start = 0, w.end = p.seqlen;
    if constexpr (PASS != Pass::Whole) {
      w.segment = blockIdx.x / int(p.blocks_per_segment) + FIRST;
      w.start = w.segment * p.segment_steps, w.end = min(w.start + p.segment_steps, p.seqlen);
    }
    if constexpr (SEQUENCES == Sequences::Bounds) w.batch = 0, w.find(p);
    return w;
  }
  // The steps of a packed sequence, or of its piece.
  DEVICE void find(const Inputs& p) {
    if constexpr (IN_PIECES) place = row * p.slots.pieces + (REVERSE ? p.slots.pieces - 1 - piece : piece);
    start = index_of(p.sequences, place, 0), end = index_of(p.sequences, place + 1, 0);
    if constexpr (REVERSE) {
      const i64 last = p.seqlen - start;
      start = p.seqlen - end, end = last;
    }
    // bounds are not checked on the host: whatever they are, nothing outside of the row is touched
    start = min(max(start, i64(0)), p.seqlen), end = min(max(end, start), p.seqlen);
  }
  // Goes on to the next piece, if there is one.
  DEVICE bool next_piece(const Inputs& p) {
    if (!IN_PIECES || ++piece >= p.slots.pieces) return false;
    find(p);
    return true;
  }
};

// Behind the states after segments.
DEVICE f32* sums_of_steps(const Inputs& p, f32* ends) { return ends + p.ended_segments * p.segment_channels * DSTATE; }

// A channel's state in a tensor of states; zero for a sequence that has none, or no slot.
struct StateIndex {
  i64 row, sequence, channel;
  int n;
  DEVICE bool exists(const Inputs& p) const { return sequence >= 0 && sequence < p.sequence_count && (!POOLED || row >= 0); }
};
template <typename E> DEVICE Field state_of(const Inputs& p, const Strided& states, StateIndex i) {
  Field h = {};
  if (i.exists(p)) convert(h, *at<E>(states, i.row, i.sequence, i.channel, i.n));
  return h;
}
template <typename E> DEVICE void put_state(const Inputs& p, const Strided& states, StateIndex i, Field h) {
  if (i.exists(p)) assign(*at<E>(states, i.row, i.sequence, i.channel, i.n), h);
}

// ---- tiles

// The i-th quad: neighbouring threads take neighbouring steps or neighbouring channels, as x (or y) lies in memory.
template <bool BY_TIME> struct Place {
  int channel, step;
  DEVICE explicit Place(int i)
      : channel(BY_TIME ? i / (STEPS / 4) : i % CHANNELS), step(4 * (BY_TIME ? i % (STEPS / 4) : i / CHANNELS)) {}
};

// Steps [low, high) of a tile belong to the sequence; WHOLE tiles, which nearly all are, spare the comparison for each element.
template <bool WHOLE> struct Window {
  int low, high;
  DEVICE bool has(int step) const { return WHOLE || (step >= low && step < high); }
};

constexpr bool SHIFTED_INPUTS = XTile::SHIFTED || DtTile::SHIFTED || (HAS_DT_A && DtATile::SHIFTED) || (HAS_Z && ZTile::SHIFTED) ||
                                (B_VARIES && BTile::SHIFTED) || (C_VARIES && CTile::SHIFTED);

// How stored tiles of the arguments are shifted.
struct Shifts {
  XTile::Shift x;
  DtTile::Shift dt;
  DtATile::Shift dt_a;
  ZTile::Shift z;
  BTile::Shift b;
  CTile::Shift c;
  DEVICE Shifts(const Inputs& p, const Work& w)
      : x(at<X>(p.x, w.batch, w.first), p.x.stride[1], p.x.stride[2]), dt(at<DT>(p.dt, w.batch, w.first), p.dt.stride[1], p.dt.stride[2]),
        dt_a(at<DT_A>(p.dt_a, w.batch, w.first), p.dt_a.stride[1], p.dt_a.stride[2]),
        z(at<Z>(p.z, w.batch, w.first), p.z.stride[1], p.z.stride[2]),
        b(at<B>(p.b, w.batch, w.first / p.channels_per_b), p.b.stride[2], p.b.stride[3]),
        c(at<C>(p.c, w.batch, w.first / p.channels_per_c), p.c.stride[2], p.c.stride[3]) {}
};

// B or C of a tile: f32 as (step / 4, state, part, step % 4), zero outside of the sequence
template <typename Tile, bool WHOLE> DEVICE void prepare_map(char* map, char* raw, typename Tile::Shift shift, Window<WHOLE> window) {
  typedef decltype(Tile::read4(raw, 0, 0, shift)) Item;
  auto load = [&](Item& quad, int i) {
    const int state = i % PADDED, step = i / PADDED * 4;
    if (!RAGGED || state < DSTATE) quad = Tile::read4(raw, state, step, shift);
  };
  each_loaded<MAP_QUADS, THREADS, WHOLE, Item>(load, [&](const Item& quad, int i) {
    const int state = i % PADDED, step = i / PADDED * 4;
    Field v[4] = {};
    if (!RAGGED || state < DSTATE) {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (window.has(step + j)) convert(v[j], quad.v[j]);
    }
    float4* const to = reinterpret_cast<float4*>(map) + (step / 4 * PADDED + state) * PARTS;
#pragma unroll
    for (int part = 0; part < PARTS; part++) to[part] = make_float4(part_of(v[0], part), part_of(v[1], part), part_of(v[2], part), part_of(v[3], part));
  });
}

// Four steps of a state, to out[0 .. 3].
DEVICE void read_map(const char* map, int step, int state, Field* out) {
  const float4* from = reinterpret_cast<const float4*>(map) + (step / 4 * PADDED + state) * PARTS;
  const float4 re = from[0], im = COMPLEX ? from[1] : re;
  from_parts(out[0], re.x, im.x), from_parts(out[1], re.y, im.y), from_parts(out[2], re.z, im.z), from_parts(out[3], re.w, im.w);
}

// Which steps of a tile begin another sequence.
DEVICE void mark_changes(const Inputs& p, const Work& w, i64 tile, char* changes) {
#pragma unroll 1
  for (int i = threadIdx.x; i < STEPS; i += THREADS) {
    const i64 t = tile * STEPS + i;
    reinterpret_cast<int*>(changes)[i] =
        t > 0 && t < p.seqlen && index_of(p.sequences, w.batch, t) != index_of(p.sequences, w.batch, t - 1);
  }
}
