// Slots of a pool, in which the states of rows or sequences lie instead of one after the other: `Slots` has those that rows are read from and written to.
// Sequences may be in pieces, of which each is a row here; they have slots to be written, and the sequence has the one that is read.
#pragma once

static_assert(given<bool>(POOLED, IN_PIECES) && given_types<READ_SLOT, WRITE_SLOT>());

// A slot of the pool, or -1: numbers are not checked on the host, and whatever they are, nothing outside of the pool is touched.
template <typename E> DEVICE i64 slot_at(const Slots& s, const void* slots, i64 row, i64 place) {
  if (row < 0 || row >= s.rows) return -1;
  const i64 slot = i64(static_cast<const E*>(slots)[place]);
  return slot < s.count ? max(slot, i64(-1)) : -1;
}
// The places of the state before a row, and of the one after it; negative for nowhere.
DEVICE i64 row_read(const Slots& s, i64 row) {
  if constexpr (IN_PIECES) return row < 0 ? -1 : slot_at<READ_SLOT>(s, s.read, row / s.pieces, row / s.pieces * s.read_step);
  if constexpr (POOLED) return slot_at<READ_SLOT>(s, s.read, row, row * s.read_step);
  return row;
}
DEVICE i64 row_written(const Slots& s, i64 row) {
  if constexpr (IN_PIECES) return row < 0 ? -1 : slot_at<WRITE_SLOT>(s, s.write, row / s.pieces, row / s.pieces * s.write_step + row % s.pieces * s.piece_step);
  if constexpr (POOLED) return slot_at<WRITE_SLOT>(s, s.write, row, row * s.write_step);
  return row;
}
