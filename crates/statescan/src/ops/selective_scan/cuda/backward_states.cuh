// The backward pass: the channels and states that a thread owns, where states come from and where gradients go.
#pragma once
#include "backward_finish.cuh"

static_assert(given<bool>(NUMBERED, HAS_INITIAL, HAS_DFINAL, HAS_DINITIAL, HAS_DA) && given_types<INITIAL, DFINAL, DINITIAL, SKIP, BIAS, A>());

// One number for each channel and state of a thread.
typedef Field Owned[WIDTH][STATES];

template <typename Job> DEVICE void each_owned(Job job) {
#pragma unroll
  for (int k = 0; k < WIDTH; k++)
#pragma unroll
    for (int r = 0; r < STATES; r++) job(k, r);
}

// A thread works on these: k counts its channels, r its states of each.
struct Thread : Block {
  int lane, slot;

  DEVICE Thread(const Block& block) : Block(block), lane(lane_of_thread()), slot(threadIdx.x / 32 * WARP_SLOTS + slot_of_thread()) {}

  DEVICE int own_channel(int k) const { return k * SLOTS + slot; }
  DEVICE i64 channel(int k) const { return w.first + own_channel(k); }
  DEVICE bool exists(int k, int r) const { return own_channel(k) < w.channels && (!RAGGED || own_state(r) < DSTATE); }

  // without numbers there is one state in a row: the first sequence starts from it and the last one leaves it
  DEVICE i64 sequence_at(i64 step) const { return !NUMBERED ? 0 : p.seqlen > 0 ? index_of(p.sequences, w.batch, step) : -1; }
  DEVICE Field initial_of(i64 sequence, int k, int r) const {
    if constexpr (HAS_INITIAL) {
      if (exists(k, r)) return state_of<INITIAL>(p, p.initial, {w.row, sequence, channel(k), own_state(r)});
    }
    return Field{};
  }
  DEVICE Field final_gradient_of(i64 sequence, int k, int r) const {
    if constexpr (HAS_DFINAL) {
      if (exists(k, r)) return state_of<DFINAL>(p, p.dfinal, {w.row, sequence, channel(k), own_state(r)});
    }
    return Field{};
  }
  // the gradient of a sequence's initial state is known
  DEVICE void begin_sequence(i64 sequence, int k, int r, Field g) const {
    if constexpr (HAS_DINITIAL && !ENDS) {
      if (exists(k, r)) put_state<DINITIAL>(p, p.dinitial, {w.row, sequence, channel(k), own_state(r)}, g);
    }
  }
  // the state before a step that begins a sequence
  DEVICE Field first_state(i64 step, int k, int r) const { return NUMBERED ? initial_of(sequence_at(step), k, r) : Field{}; }
  // whether a step of the tile begins a sequence
  DEVICE bool changed(int step) const {
    return SEQUENCES == Sequences::Index && reinterpret_cast<const int*>(shared + CHANGE_AT)[step] != 0;
  }
  // the state before a span, which is left in shared memory on the way forwards
  DEVICE Field& saved_state(int piece, int span, int k, int r) const {
    Field* const saved = reinterpret_cast<Field*>(shared + SAVED_AT);
    return saved[(((piece * SPANS + span) * WIDTH + k) * STATES + r) * THREADS + threadIdx.x];
  }
};

// A, the gradient by the state after the steps that were not yet visited, and the gradient of A; B and C and their gradients, where they do not
// vary. These are references, because a compiler keeps arrays of their own in registers sooner than parts of a struct.
struct States {
  Owned &a, &g, &da;
  Owned &b, &c, &db, &dc;
};

// Skips and biases of the block's channels, to shared memory.
DEVICE void read_channels(const Params& p, const Work& w, f32* skips, f32* biases) {
#pragma unroll 1
  for (int i = threadIdx.x; i < w.channels; i += THREADS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
}

DEVICE void begin_states(const Thread& t, States& s) {
  const Params& p = t.p;
  each_owned([&](int k, int r) {
    s.a[k][r] = s.da[k][r] = s.b[k][r] = s.c[k][r] = s.db[k][r] = s.dc[k][r] = Field{};
    s.g[k][r] = t.final_gradient_of(t.sequence_at(p.seqlen - 1), k, r);
    if (!t.exists(k, r)) return;
    const i64 channel = t.channel(k);
    const int n = own_state(r);
    Field raw;
    convert(raw, *at<A>(p.a, channel, n));
    s.a[k][r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(s.b[k][r], *at<B>(p.b, channel, n));
    if constexpr (!C_VARIES) convert(s.c[k][r], *at<C>(p.c, channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand the gradient on
#pragma unroll 1
      for (i64 i = 0; i < p.sequence_count; i++) t.begin_sequence(i, k, r, t.final_gradient_of(i, k, r));
    }
    if (PASS != Pass::Whole && (TWO_PHASE ? ENDS : t.w.segment < p.last_segment)) s.g[k][r] = Field{};
  });
}

// ---- segments

// The first segment whose ends are kept.
constexpr int FIRST_END = TWO_PHASE ? 0 : 1;

// From the gradients that segments leave on their own to what this one is handed; states side by side, because each load takes long.
DEVICE void take_over(const Thread& t, States& s) {
  const Params& p = t.p;
#pragma unroll 1
  for (i64 segment = p.last_segment; segment > t.w.segment; segment--)
    each_owned([&](int k, int r) {
      if (!t.exists(k, r)) return;
      const i64 place = (segment - FIRST_END) * p.segment_channels + t.w.row * p.dim + t.w.first + t.own_channel(k);
      Field end;
      convert(end, p.ends[place * DSTATE + own_state(r)]);
      s.g[k][r] = !TWO_PHASE && segment == p.last_segment ? end : mul_add(Method::decay(s.a[k][r], sums_of_steps(p, p.ends)[place]), s.g[k][r], end);
    });
}

// A segment leaves this on its own: the gradient of the state before it, and the sum of its steps.
DEVICE void leave_ends(const Thread& t, const States& s, const f32 (&steps_in_all)[WIDTH]) {
  const Params& p = t.p;
  each_owned([&](int k, int r) {
    const i64 place = (t.w.segment - FIRST_END) * p.segment_channels + t.w.row * p.dim + t.w.first + t.own_channel(k);
    if (t.exists(k, r)) p.ends[place * DSTATE + own_state(r)] = part_of(s.g[k][r], 0);
    if (r == 0 && t.lane == 0 && t.own_channel(k) < t.w.channels) sums_of_steps(p, p.ends)[place] = steps_in_all[k];
  });
}

// ---- checkpoints and ends

// The states before a tile that begins where states were saved, or where the sequence does.
DEVICE void restore_states(const Thread& t, int tile, i64 step, i64 saved_count) {
  const Params& p = t.p;
  const Work& w = t.w;
  // the first step of the sequence, which no state was saved for
  const i64 sequence_start = PASS == Pass::Whole ? w.start : 0;
  const int piece = tile % PIECES;
  each_owned([&](int k, int r) {
    if (step > sequence_start) {
      const i64 place = ((w.batch * saved_count + step / CHECKPOINT - 1) * p.dim + w.first + t.own_channel(k)) * DSTATE + own_state(r);
      t.saved_state(piece, 0, k, r) = t.exists(k, r) ? reinterpret_cast<const Field*>(p.checkpoints)[place] : Field{};
    } else {
      t.saved_state(piece, 0, k, r) = t.initial_of(t.sequence_at(0), k, r);
    }
  });
}

// Gradients of the initial state, and those of what does not vary: terms of sums over rows.
DEVICE void finish_states(const Thread& t, const States& s, i64 line) {
  const Params& p = t.p;
  each_owned([&](int k, int r) {
    if (!t.exists(k, r)) return;
    if (t.w.segment == 0) t.begin_sequence(t.sequence_at(0), k, r, s.g[k][r]);
    auto put = [&](f32* to, int parts, Field v) {
      for (int part = 0; part < parts; part++)
        to[((line * parts + part) * p.dim + t.w.first + t.own_channel(k)) * DSTATE + own_state(r)] = part_of(v, part);
    };
    if constexpr (HAS_DA) put(p.da, PARTS, s.da[k][r]);
    if constexpr (HAS_DB && !B_VARIES) put(p.db, NARROW_B ? 1 : PARTS, s.db[k][r]);
    if constexpr (HAS_DC && !C_VARIES) put(p.dc, NARROW_C ? 1 : PARTS, s.dc[k][r]);
  });
}
