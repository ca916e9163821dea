// Runs of neighbours that begin anywhere in memory: they are read as the units of 16 bytes that have them, and written as such units by threads whose
// runs follow each other.
#pragma once

// COUNT neighbours, of whole units in all.
template <typename E, int COUNT> struct alignas(16) Run {
  static constexpr int UNIT = 16 / int(sizeof(E)), UNITS = COUNT / UNIT, WORDS = 4 * UNITS;
  static_assert(COUNT % UNIT == 0, "whole units");
  E v[COUNT];

  DEVICE u32* words() { return reinterpret_cast<u32*>(v); }

  // How many elements behind the beginning of a unit a place is.
  static DEVICE int behind(const E* place) { return int(reinterpret_cast<u64>(place) / sizeof(E) % UNIT); }

  // Words become those that lie BY words further on, if `moves`.
  template <int BY> static DEVICE void move_by(u32 (&word)[WORDS + 4], bool moves) {
#pragma unroll
    for (int i = 0; i + BY < WORDS + 4; i++) word[i] = moves ? word[i + BY] : word[i];
  }
  // Words become those that lie so many elements further on, one unit at most.
  static DEVICE void move(u32 (&word)[WORDS + 4], int elements) {
    const int bytes = elements * int(sizeof(E));
    move_by<4>(word, bytes & 16), move_by<2>(word, bytes & 8), move_by<1>(word, bytes & 4);
    if constexpr (sizeof(E) == 2) {
#pragma unroll
      for (int i = 0; i + 1 < WORDS + 4; i++) word[i] = __funnelshift_r(word[i], word[i + 1], u32(bytes & 2) * 8);
    }
  }

  // All units that have an element are memory of the tensor.
  DEVICE void read(const E* from) {
    const int shift = behind(from);
    const Neighbours<u32, 4>* const unit = reinterpret_cast<const Neighbours<u32, 4>*>(from - shift);
    u32 word[WORDS + 4];
#pragma unroll
    for (int i = 0; i <= UNITS; i++) {
      Neighbours<u32, 4> some = {};
      if (i < UNITS || shift > 0) some = unit[i];
#pragma unroll
      for (int k = 0; k < 4; k++) word[4 * i + k] = some.v[k];
    }
    move(word, shift);
#pragma unroll
    for (int i = 0; i < WORDS; i++) words()[i] = word[i];
  }

  // Writes the elements at `to` and behind that exist: those of the row are [first, end) relative to it. The runs of GROUP neighbouring lanes follow each other,
  // or precede each other if BACK. All threads of a warp come here.
  template <int GROUP, bool BACK> DEVICE void write(E* to, int lane, i64 first, i64 end) {
    const int shift = behind(to);
    u32 word[WORDS + 4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 last = words()[WORDS - 4 + i];
      word[i] = BACK ? __shfl_down_sync(~0u, last, 1, GROUP) : __shfl_up_sync(~0u, last, 1, GROUP);
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) word[4 + i] = words()[i];
    move(word, UNIT - shift);
    const bool is_first = lane == (BACK ? GROUP - 1 : 0), is_last = lane == (BACK ? 0 : GROUP - 1);
    // units that this thread and, the last of them, the next one writes
    u32 written = 0;
#pragma unroll
    for (int i = 0; i <= UNITS; i++) {
      const int at = i * UNIT - shift;
      const bool has_all = (i > 0 || shift == 0 || !is_first) && (i < UNITS || !is_last);
      if (!has_all || at < first || at + UNIT > end) continue;
      written |= 1u << i;
      Neighbours<u32, 4> some;
#pragma unroll
      for (int k = 0; k < 4; k++) some.v[k] = word[4 * min(i, UNITS - 1) + k];
      if (i < UNITS) write_at_once(reinterpret_cast<u32*>(to + at), some);
    }
#pragma unroll
    for (int k = 0; k < COUNT; k++)
      if (k >= first && k < end && !(written >> (shift + k) / UNIT & 1)) to[k] = v[k];
  }
};
