// How steps belong to sequences, and where the states of these lie. NUMBERED says that states have an axis of sequences
// within a row. Parameters begin with `Inputs`, which has `sequences` (bounds, or the sequence of each step), `sequence_count` and `seqlen`.
#pragma once
#include "slots.cuh"

static_assert(given_types<INDEX>() && given<bool>(REVERSE, NUMBERED) && given<Sequences>(SEQUENCES));

DEVICE i64 index_at(const Inputs& p, i64 i, i64 j) { return i64(*at<INDEX>(p.sequences, i, j)); }

// Bounds in the direction of the scan.
DEVICE i64 bound(const Inputs& p, i64 k) {
  k = min(k, p.sequence_count);
  const i64 raw = index_at(p, REVERSE ? p.sequence_count - k : k, 0);
  return REVERSE ? p.seqlen - raw : raw;
}
// the last sequence that begins at or before step t
DEVICE i64 sequence_at_bound(const Inputs& p, i64 t) {
  i64 low = 0, high = p.sequence_count;
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (bound(p, middle) <= t) low = middle; else high = middle;
  }
  return low;
}

// Whether step t begins a sequence.
DEVICE bool begins(const Inputs& p, i64 batch, i64 t) {
  if (t <= 0) return true;
  if constexpr (SEQUENCES == Sequences::Bounds) return bound(p, sequence_at_bound(p, t)) == t;
  if constexpr (SEQUENCES == Sequences::Index) return index_at(p, batch, t) != index_at(p, batch, t - 1);
  return false;
}
// Whether a sequence ends before step t.
DEVICE bool ends(const Inputs& p, i64 batch, i64 t) { return t >= p.seqlen || begins(p, batch, t); }

// The place of the state of a sequence, or nowhere.
struct StateRow { i64 row, sequence; };
DEVICE StateRow state_row(const Inputs& p, i64 batch, i64 step_of_sequence) {
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 k = sequence_at_bound(p, step_of_sequence);
    return {REVERSE ? p.sequence_count - 1 - k : k, 0};
  }
  if constexpr (NUMBERED) return {batch, index_at(p, batch, step_of_sequence)};
  return {batch, 0};
}
// The places in a pool of the state before a row or sequence, and of the one after it.
DEVICE StateRow source_of(const Inputs& p, StateRow at) {
  if constexpr (!POOLED) return at;
  const i64 slot = row_read(p.slots, at.row);
  return {slot, slot < 0 ? -1 : 0};
}
DEVICE StateRow target_of(const Inputs& p, StateRow at) {
  if constexpr (!POOLED) return at;
  const i64 slot = row_written(p.slots, at.row);
  return {slot, slot < 0 ? -1 : 0};
}
// Whether a row that has a state otherwise has no slot.
DEVICE bool is_nowhere(StateRow at) { return POOLED && at.sequence < 0; }
// The states before a sequence's first step and after its last: without numbers the first sequence of a row has the one, the last the other.
DEVICE StateRow row_before(const Inputs& p, i64 batch, i64 first) {
  if (SEQUENCES == Sequences::Index && !NUMBERED && first > 0) return {batch, -1};
  return source_of(p, state_row(p, batch, first));
}
DEVICE StateRow row_after(const Inputs& p, i64 batch, i64 end) {
  if (SEQUENCES == Sequences::Index && !NUMBERED && end < p.seqlen) return {batch, -1};
  return target_of(p, state_row(p, batch, end - 1));
}
// ---- Sequences in pieces (`slots.cuh`): the kernels see pieces as sequences, and each but the first one of a sequence goes on from the one before it.

// The number of a sequence of bounds in its tensor.
DEVICE i64 number_of(const Inputs& p, i64 k) { return REVERSE ? p.sequence_count - 1 - k : k; }
// Whether there are steps of its sequence before the k-th piece, in the direction of the scan.
DEVICE bool has_before(const Inputs& p, i64 k) {
  if constexpr (IN_PIECES) return bound(p, k - k % p.slots.pieces) < bound(p, k);
  return false;
}
// Whether the step that begins a piece goes on from the step before it.
DEVICE bool goes_on(const Inputs& p, i64 first) {
  if constexpr (IN_PIECES) return first > 0 && has_before(p, sequence_at_bound(p, first));
  return false;
}
// job(where the state behind a sequence goes): in pieces also those pieces behind it that have no steps.
template <typename Job> DEVICE void each_target(const Inputs& p, i64 batch, i64 end, Job job) {
  if constexpr (IN_PIECES) {
    int k = int(sequence_at_bound(p, end - 1));
#pragma unroll 1
    do
      job(target_of(p, {number_of(p, k), 0}));
    while (++k < p.sequence_count && k % int(p.slots.pieces) != 0 && bound(p, k + 1) <= end);
  } else {
    job(row_after(p, batch, end));
  }
}
DEVICE bool exists(const Inputs& p, StateRow at) {
  if constexpr (POOLED) return at.sequence >= 0;
  if constexpr (SEQUENCES == Sequences::Bounds) return at.row >= 0 && at.row < p.sequence_count;
  return at.sequence >= 0 && at.sequence < (NUMBERED ? p.sequence_count : 1);
}

// A number of a head's state in a tensor of them (`States`).
template <typename E, typename S> DEVICE E* state_at(const S& s, StateRow at, i64 head, i64 i, i64 j) {
  return static_cast<E*>(s.data) + (at.row * s.stride[0] + at.sequence * s.stride[1] + head * s.stride[2] + i * s.stride[3] + j * s.stride[4]);
}
