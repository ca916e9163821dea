// Every kernel of the gated delta rule reads these by the same rules: sequences, and gates of a head. Parameters begin with `Inputs`.
#pragma once
#include "sequences.cuh"
#include "gates.cuh"

static_assert(given_types<GATE, A_LOG, BIAS, BETA>() && given<bool>(HAS_GATE, HAS_BETA, BY_CHANNEL, RAW, HAS_BIAS, REVERSE, NUMBERED) && given<Sequences>(SEQUENCES));

// Whether every sequence has a state of its own; then a block walks one of them, and otherwise a row.
constexpr bool IS_BY_SEQUENCE = SEQUENCES == Sequences::Bounds || NUMBERED;
// Whether the steps of a block may begin a sequence anywhere.
constexpr bool HAS_RUNS = SEQUENCES == Sequences::Index && !NUMBERED;

// The first step of the k-th sequence of a row, in the direction of the scan. Numbers that no caller may have give steps of the row, too.
DEVICE i64 first_step(const Inputs& p, i64 batch, i64 k) {
  if (k <= 0) return 0;
  if (k >= p.sequence_count) return p.seqlen;
  if constexpr (SEQUENCES == Sequences::Bounds) return min(max(bound(p, k), i64(0)), p.seqlen);
  i64 low = 0, high = p.seqlen;
  while (low < high) {
    const i64 middle = (low + high) / 2, number = index_at(p, batch, middle);
    if ((REVERSE ? p.sequence_count - 1 - number : number) >= k) high = middle; else low = middle + 1;
  }
  return low;
}

// The steps of a block, and where their state lies.
struct Piece {
  i64 batch, start, end;
  StateRow state;

  // The `index`-th of a call.
  DEVICE Piece(const Inputs& p, i64 index) : batch(index), start(0), end(p.seqlen), state{index, 0} {
    if constexpr (!IS_BY_SEQUENCE) return;
    const i64 k = index % p.sequence_count, number = REVERSE ? p.sequence_count - 1 - k : k;
    batch = index / p.sequence_count;
    start = first_step(p, batch, k), end = max(start, first_step(p, batch, k + 1));
    state = SEQUENCES == Sequences::Bounds ? StateRow{number, 0} : StateRow{batch, number};
  }
};

// Pieces that a block walks, one after the other with the state in its registers.
DEVICE i64 pieces_of_block(const Inputs& p) {
  if constexpr (IN_PIECES) return p.slots.pieces;
  return 1;
}

// A head's constants.
struct Head {
  i64 head;
  f32 rate, bias;

  DEVICE Head(const Inputs& p, i64 head) : head(head), rate(0.f), bias(0.f) {
    if constexpr (RAW) rate = expf(to_f32(*at<A_LOG>(p.a_log, head)));
    if constexpr (HAS_BIAS && !BY_CHANNEL) bias = to_f32(*at<BIAS>(p.bias, head));
  }
  // The logarithm of the decay of a step.
  DEVICE f32 log_decay_at(const Inputs& p, i64 batch, i64 t) const {
    if constexpr (!HAS_GATE || BY_CHANNEL) return 0.f;
    return log_decay(to_f32(*at<GATE>(p.g, batch, t, head)), bias, rate, p.lower_bound);
  }
  // The logarithm of the decay of a key channel, from its gate.
  DEVICE f32 log_decay_of(const Inputs& p, f32 gate, i64 n) const {
    f32 own = 0.f;
    if constexpr (HAS_BIAS) own = to_f32(*at<BIAS>(p.bias, head, n));
    return log_decay(gate, own, rate, p.lower_bound);
  }
  DEVICE f32 beta_at(const Inputs& p, i64 batch, i64 t) const {
    if constexpr (!HAS_BETA) return 1.f;
    return beta_of(to_f32(*at<BETA>(p.beta, batch, t, head)), p.beta_factor);
  }
};
