// Packed sequences on Hopper: each is a row of its own. `ssd_sequences` finds them and counts what they have.
#pragma once
#include "inputs.cuh"

constexpr bool PACKED = SEQUENCES != Sequences::Whole;

// A sequence of a row of the batch: its first step, and how many chunks and segments those before it have. Behind the last one stands what all have.
// Its first slot among those of the row is -1 where it needs none: it has a single chunk and no states.
struct alignas(16) Sequence { int first, chunks, segments, slot; };

DEVICE Sequence* sequences_of(const Packed& p, i64 batch) { return static_cast<Sequence*>(p.sequences) + batch * (p.capacity + 1); }
DEVICE int* count_of(const Packed& p, i64 batch) { return p.counts + batch; }

// The last sequence with no more than so many chunks or segments before it.
DEVICE int sequence_with(const Sequence* all, int count, int Sequence::*before, int part) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (all[middle].*before <= part) low = middle; else high = middle;
  }
  return low;
}
