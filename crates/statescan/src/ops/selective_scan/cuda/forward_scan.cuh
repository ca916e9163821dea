// The forward pass: the threads that scan. Each has some states of a channel in its registers.
#pragma once
#include "forward_help.cuh"

static_assert(given<bool>(HAS_INITIAL, HAS_FINAL, HAS_CHECKPOINTS, NUMBERED) && given<int>(CHECKPOINT, UNROLL) && given_types<A, INITIAL, FINAL>());

// A warp reads 16 bytes a thread in half of the time if each thread shares its address with its neighbour, or each with its neighbour's
// neighbour. So neighbours are two channels, which share B and C, and then come the lanes of a channel, which share its pairs.
constexpr bool PAIRED = LANES >= 4 && LANES <= 16;
DEVICE int lane_of(int scanner) { return PAIRED ? scanner / 2 % LANES : scanner % LANES; }
DEVICE int channel_of(int scanner) { return PAIRED ? scanner / (2 * LANES) * 2 + scanner % 2 : scanner / LANES; }

// One number for each state of a thread.
typedef Field Owned[STATES];

template <typename Job> DEVICE void each_owned(Job job) {
#pragma unroll
  for (int r = 0; r < STATES; r++) job(r);
}

// A thread works on these; r counts its states.
struct Scanner {
  const Params& p;
  const Work& w;
  char* const shared;
  const int lane, own_channel, channel;
  const bool outputs;

  DEVICE Scanner(const Params& p, const Work& w, char* shared)
      : p(p), w(w), shared(shared), lane(lane_of(int(threadIdx.x) - THREADS)), own_channel(channel_of(int(threadIdx.x) - THREADS)),
        channel(w.first + own_channel), outputs(has_outputs(w)) {}

  // threads that fill up the last warp have no channel: they come to barriers and touch nothing
  DEVICE bool scans() const { return SCANNERS == SCANNING || own_channel < CHANNELS; }
  DEVICE int own_state(int r) const { return r * LANES + lane; }
  DEVICE bool exists(int r) const { return own_channel < w.channels && (!RAGGED || own_state(r) < DSTATE); }
  // without numbers there is one state in a row: the first sequence starts from it and the last one leaves it
  DEVICE i64 sequence_at(i64 step) const { return !NUMBERED ? 0 : p.seqlen > 0 ? index_of(p.sequences, w.batch, step) : -1; }
  // the state of a sequence before its first step, and where the state after its last step goes
  DEVICE Field initial_of(i64 sequence, int r) const {
    if constexpr (HAS_INITIAL) return state_of<INITIAL>(p, p.initial, {row_read(p.slots, w.place), sequence, channel, own_state(r)});
    return Field{};
  }
  DEVICE void finish_sequence(i64 sequence, int r, Field h) const {
    if constexpr (HAS_FINAL && PASS != Pass::Ends) put_state<FINAL>(p, p.last, {row_written(p.slots, w.place), sequence, channel, own_state(r)}, h);
  }
  // a place among what segments leave
  DEVICE i64 end_of(i64 segment) const { return segment * p.segment_channels + w.row * p.dim + channel; }
};

// A and the states; B and C where they do not vary. These are references, because a compiler keeps arrays of their own in registers sooner than parts
// of a struct.
struct States {
  Owned &a, &h, &b, &c;
};

// The state that a segment begins with, from what those before it have left.
DEVICE Field entering(const Scanner& t, int r, Field a) {
  Field h = {};
  if constexpr (TWO_PHASE) h = t.initial_of(0, r);
#pragma unroll 4
  for (int s = 0; s < t.w.segment; s++) {
    const i64 place = t.end_of(s);
    const f32 steps = sums_of_steps(t.p, t.p.workspace)[place];
    Field end;
    convert(end, t.p.workspace[place * DSTATE + t.own_state(r)]);
    h = !TWO_PHASE && s == 0 ? end : mul_add(Method::decay(a, steps), h, end);
  }
  return h;
}

DEVICE void begin_states(const Scanner& t, const States& s) {
  const Params& p = t.p;
  each_owned([&](int r) {
    s.a[r] = s.h[r] = s.b[r] = s.c[r] = Field{};
    if (!t.exists(r)) return;
    const int n = t.own_state(r);
    Field raw;
    convert(raw, *at<A>(p.a, t.channel, n));
    s.a[r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(s.b[r], *at<B>(p.b, t.channel, n));
    if constexpr (!C_VARIES) convert(s.c[r], *at<C>(p.c, t.channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand their state on
#pragma unroll 1
      for (i64 i = 0; i < p.sequence_count; i++) t.finish_sequence(i, r, t.initial_of(i, r));
    }
    if constexpr (PASS == Pass::Rest)
      s.h[r] = entering(t, r, s.a[r]);
    else if (t.outputs)
      s.h[r] = t.initial_of(t.sequence_at(0), r);
  });
}

DEVICE void load_pairs(const char* ready, int channel, int step, float4 (&pair)[2]) {
  const f32* line = reinterpret_cast<const f32*>(ready + PAIRS_AT) + channel * PAIR_PITCH;
  const float4* from = reinterpret_cast<const float4*>(line + 2 * step);
  pair[0] = from[0], pair[1] = from[1];
}

// Four steps of a prepared tile, the first in time and in the tile: of decays, of gains, and inputs; whether another sequence begins with each.
struct Steps {
  const char* ready;
  i64 first;
  int step;
  f32 decay[4], gain[4], input[4];
  int4 changes = {};

  DEVICE void read_changes() { changes = *reinterpret_cast<const int4*>(ready + CHANGE_AT + 4 * step); }

  DEVICE Steps(const Scanner& t, const char* ready, i64 first, int step, const float4 (&pair)[2])
      : ready(ready), first(first), step(step), decay{pair[0].x, pair[0].z, pair[1].x, pair[1].z}, gain{pair[0].x, pair[0].z, pair[1].x, pair[1].z},
        input{pair[0].y, pair[0].w, pair[1].y, pair[1].w} {
    if constexpr (HAS_GAIN_STEP) {
      const f32* const gains = reinterpret_cast<const f32*>(ready + GAIN_AT) + t.own_channel * LINE_PITCH;
      const float4 g = *reinterpret_cast<const float4*>(gains + step);
      gain[0] = g.x, gain[1] = g.y, gain[2] = g.z, gain[3] = g.w;
    }
  }
};

// Another sequence begins with a step.
DEVICE void change_sequence(const Scanner& t, i64 step, int r, Field& h) {
  if (NUMBERED && t.exists(r)) {
    t.finish_sequence(t.sequence_at(step - 1), r, h);
    h = t.initial_of(t.sequence_at(step), r);
  } else {
    h = Field{};
  }
}

// A state goes through four steps of a tile, and adds to their outputs.
template <bool OUTPUTS> DEVICE void scan_state(const Scanner& t, const States& s, int r, const Steps& of, f32 (&y)[4]) {
  const int n = t.own_state(r);
  Field b[4], c[4];
  if constexpr (B_VARIES) read_map(of.ready + B_MAP_AT, of.step, n, b);
  if constexpr (C_VARIES && OUTPUTS) read_map(of.ready + C_MAP_AT, of.step, n, c);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if constexpr (SEQUENCES == Sequences::Index) {
      const int4 changes = of.changes;
      if (j == 0 ? changes.x : j == 1 ? changes.y : j == 2 ? changes.z : changes.w) change_sequence(t, of.first + j, r, s.h[r]);
    }
    const Field decay = Method::decay(s.a[r], of.decay[j]);
    const Field in = Method::amplify(s.a[r], of.gain[j], scale(B_VARIES ? b[j] : s.b[r], of.input[j]));
    s.h[r] = mul_add(decay, s.h[r], in);
    // states that only fill up the lanes stay zero whatever x is
    if (RAGGED && r == STATES - 1 && n >= DSTATE) s.h[r] = Field{};
    if constexpr (OUTPUTS) y[j] = re_mul_add(C_VARIES ? c[j] : s.c[r], s.h[r], y[j]);
  }
}

template <bool WITH_OUTPUTS> DEVICE void scan_tile(const Scanner& t, const States& s, int tile, f32& steps_in_all) {
  constexpr bool OUTPUTS = HAS_Y && WITH_OUTPUTS;
  const char* const ready = t.shared + (tile & 1) * READY_BYTES;
  f32* const partials = reinterpret_cast<f32*>(t.shared + PARTIALS_AT + (tile & 1) * PARTIAL_BYTES);
  f32* const line = partials + t.own_channel * PARTIAL_PITCH + t.lane * LINE_PITCH;
  float4 pair[2];
  load_pairs(ready, t.own_channel, 0, pair);
#pragma unroll UNROLL
  for (int step = 0; step < STEPS; step += 4) {
    Steps of(t, ready, i64(tile) * STEPS + step, step, pair);
    f32 y[4] = {};
    if constexpr (PASS == Pass::Ends) steps_in_all += (of.decay[0] + of.decay[1]) + (of.decay[2] + of.decay[3]);
    // the next four steps arrive while these are computed; past the end it is the padding of the line
    load_pairs(ready, t.own_channel, step + 4, pair);
    if constexpr (SEQUENCES == Sequences::Index) of.read_changes();
    each_owned([&](int r) { scan_state<OUTPUTS>(t, s, r, of, y); });
    if constexpr (OUTPUTS) *reinterpret_cast<float4*>(line + step) = make_float4(y[0], y[1], y[2], y[3]);
  }
}

// The states before a tile, where those are kept for the backward pass.
DEVICE void save_states(const Scanner& t, const States& s, int tile) {
  const Params& p = t.p;
  const i64 step = i64(tile) * STEPS;
  if (!t.outputs || step % CHECKPOINT != 0 || step <= (PASS == Pass::Rest ? 0 : t.w.start)) return;
  const i64 saved = (p.seqlen - 1) / CHECKPOINT;
  Field* const to = reinterpret_cast<Field*>(p.checkpoints) + (t.w.batch * saved + step / CHECKPOINT - 1) * p.dim * DSTATE;
  each_owned([&](int r) {
    if (t.exists(r)) to[i64(t.channel) * DSTATE + t.own_state(r)] = s.h[r];
  });
}

// After the last tile: what a segment leaves, or the final state.
DEVICE void leave(const Scanner& t, const States& s, f32 steps_in_all) {
  const Params& p = t.p;
  if constexpr (PASS == Pass::Ends) {
    const i64 place = t.end_of(t.w.segment);
    each_owned([&](int r) {
      if (t.exists(r)) p.workspace[place * DSTATE + t.own_state(r)] = part_of(s.h[r], 0);
    });
    if (t.lane == 0 && t.own_channel < t.w.channels) sums_of_steps(p, p.workspace)[place] = steps_in_all;
  } else if (PASS == Pass::Whole || t.w.end == p.seqlen) {
    each_owned([&](int r) {
      if (t.exists(r)) t.finish_sequence(t.sequence_at(p.seqlen - 1), r, s.h[r]);
    });
  }
}

DEVICE void scan_tiles(const Scanner& t, const States& s, Tiles tiles) {
  f32 steps_in_all = 0.f;
#pragma unroll 1
  for (int tile = tiles.first; tile <= tiles.last; tile++) {
    // takes what was prepared of this tile; its partial outputs go where those of the tile before the last were, which helpers have read
    meet_all();
    if (!t.scans()) continue;
    if constexpr (HAS_CHECKPOINTS) save_states(t, s, tile);
    if (t.outputs)
      scan_tile<true>(t, s, tile, steps_in_all);
    else
      scan_tile<false>(t, s, tile, steps_in_all);
  }
  // the last partial outputs are there
  meet_all();
  leave(t, s, steps_in_all);
}

DEVICE void scan(const Params& p, Work& w, char* shared) {
  const Scanner t(p, w, shared);
  Owned a, h, b, c;
  const States s{a, h, b, c};
  begin_states(t, s);
  do
    scan_tiles(t, s, Tiles(w));
  while (w.next_piece(p));
}
