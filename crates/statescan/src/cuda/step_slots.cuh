// Steps between slots: the rows of a step are tokens of sequences, one behind the other, and a sequence reads and writes slots of a pool. EACH_TOKEN says
// that the state after each token has a slot, and not only the one after the last; HAS_BOUNDS that sequences have bounds, and are not of one length; MANY
// that they may have other than one token.
#pragma once

static_assert(given<bool>(SLOTTED, MANY, EACH_TOKEN, HAS_BOUNDS) && given_types<READ_SLOT, WRITE_SLOT, BOUND>());

// A number as a slot, or -1: numbers are not checked on the host, and whatever they are, nothing outside of the pool is touched.
template <typename E> DEVICE i64 slot_at(const StepSlots& s, const void* slots, i64 at) {
  const i64 slot = i64(static_cast<const E*>(slots)[at]);
  return slot < s.count ? max(slot, i64(-1)) : -1;
}

// The tokens of a sequence: rows that there are, whatever its bounds say.
struct Tokens {
  i64 first, end;
};
DEVICE Tokens tokens_of(const StepSlots& s, i64 sequence) {
  if constexpr (HAS_BOUNDS) {
    const BOUND* const bound = static_cast<const BOUND*>(s.bounds) + sequence * s.bounds_step;
    const i64 first = min(max(i64(bound[0]), i64(0)), s.rows);
    return {first, min(max(i64(bound[s.bounds_step]), first), s.rows)};
  }
  const i64 each = s.rows / s.sequences;
  return {sequence * each, sequence * each + each};
}

// The places of the state before a sequence, and of the one after a token of it; negative for nowhere. The token before the first one of a sequence that
// has none is its last.
DEVICE i64 slot_read(const StepSlots& s, i64 sequence) { return slot_at<READ_SLOT>(s, s.read, sequence * s.read_step); }
DEVICE i64 slot_written(const StepSlots& s, i64 sequence, const Tokens& tokens, i64 token) {
  const i64 column = EACH_TOKEN ? token - tokens.first : 0;
  if (EACH_TOKEN ? column < 0 || column >= s.columns : token + 1 != tokens.end) return -1;
  return slot_at<WRITE_SLOT>(s, s.write, sequence * s.write_step + column * s.column_step);
}
