// The passes of the convolution share this: the piece of a thread, its inputs and filters, and how steps fall into sequences.
//
// A thread works on pieces of CHANNELS neighbouring channels x STEPS neighbouring steps. It reads the steps around its piece as well: they
// are its neighbours' and come from the first cache. Neighbouring threads take neighbouring steps (BY_TIME, one channel each) or
// neighbouring channels, whichever lies side by side in memory.
//
// WIDTH, the types and the other constants in capitals come with the configuration.
#pragma once
#include "slots.cuh"

static_assert(given<int>(WIDTH, CHANNEL_LANES, TIME_LANES, STEPS, CHANNELS) && given<Sequences>(SEQUENCES) &&
              given<bool>(BY_TIME, HAS_BIAS, REVERSE, NUMBERED, HAS_INITIAL) && given_types<WEIGHT, BIAS, INDEX, INITIAL>());

constexpr int PAST = WIDTH - 1;
constexpr int THREADS = CHANNEL_LANES * TIME_LANES;
static_assert(STEPS % 4 == 0 && 2 * PAST + STEPS < 32, "a piece and its surroundings fit into a word of marks");
// whether a row has several sequences
constexpr bool PACKED = SEQUENCES != Sequences::Whole;

DEVICE int channel_lane() { return BY_TIME ? threadIdx.x / TIME_LANES : threadIdx.x % CHANNEL_LANES; }
DEVICE int time_lane() { return BY_TIME ? threadIdx.x % TIME_LANES : threadIdx.x / CHANNEL_LANES; }
// from the first channel and step of a block to those of the thread's piece
DEVICE int own_channel() { return channel_lane() * CHANNELS; }
DEVICE int own_step() { return time_lane() * STEPS; }

struct Piece {
  // the row and the first channel and step of the block: in wide numbers what the threads of a block share, in small ones where a thread is
  i64 batch, block_channel, block_step;
  int channels;        // so many of CHANNELS exist; none for threads without work
  int before, after;   // steps of the row before the piece and from it on, as far as they matter

  DEVICE Piece(const Conv& conv, i64 row, i64 channel_block, i64 time_block)
      : batch(row), block_channel(channel_block * (CHANNEL_LANES * CHANNELS)), block_step(time_block * (TIME_LANES * STEPS)) {
    before = int(min(block_step, i64(64))) + own_step();
    after = max(int(min(conv.seqlen - block_step, i64(1 << 20))) - own_step(), 0);
    const int left = int(min(conv.dim - block_channel, i64(1 << 20))) - own_channel();
    channels = after > 0 ? max(0, min(left, CHANNELS)) : 0;
  }

  DEVICE i64 channel() const { return block_channel + own_channel(); }
  DEVICE i64 step() const { return block_step + own_step(); }

  // The element of a (batch, channel, step) tensor at the piece's first step or so many steps further.
  template <typename E, int VECTOR> DEVICE E* first(const Strided& v, int further = 0) const {
    const i64 across = VECTOR > 1 && !BY_TIME ? 1 : v.stride[1], along = VECTOR > 1 && BY_TIME ? 1 : v.stride[2];
    E* const block = static_cast<E*>(v.data) + (batch * v.stride[0] + block_channel * across + block_step * along);
    return block + (own_channel() * across + (own_step() + further) * along);
  }
};

// ---- memory

// COUNT steps of the piece's channels from LEAD steps before its own on, VECTOR neighbours at a time, as they are stored. Only for WHOLE pieces,
// which are all but a few: their own steps exist, and others exist or not in whole vectors, so that no branch keeps one load from being under
// way beside the others. Outside of the row there are zeros.
template <typename E, int VECTOR, int LEAD, int COUNT> struct Stored {
  static constexpr int ALONG_CHANNELS = BY_TIME ? 1 : VECTOR, ALONG_TIME = BY_TIME ? VECTOR : 1;
  Neighbours<E, VECTOR> some[CHANNELS / ALONG_CHANNELS][COUNT / ALONG_TIME];

  DEVICE void load(const Strided& v, const Piece& piece) {
    const E* const from = piece.first<E, VECTOR>(v, -LEAD);
    const i64 channel = v.stride[1], step = v.stride[2];
    const int low = max(LEAD - piece.before, 0), high = min(piece.after + LEAD, COUNT);
#pragma unroll
    for (int c = 0; c < CHANNELS; c += ALONG_CHANNELS) {
#pragma unroll
      for (int i = 0; i < COUNT; i += ALONG_TIME) {
        const bool exists = i < LEAD ? i >= low : i < LEAD + STEPS || i < high;
        Neighbours<E, VECTOR>& to = some[c / ALONG_CHANNELS][i / ALONG_TIME];
        to = {};
        if (exists)
          to = *reinterpret_cast<const Neighbours<E, VECTOR>*>(from + (VECTOR == 1 ? c * channel + i * step : BY_TIME ? c * channel + i : i * step + c));
      }
    }
  }

  DEVICE void numbers(f32 (&out)[CHANNELS][COUNT]) const {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
      for (int i = 0; i < COUNT; i++) out[c][i] = to_f32(some[c / ALONG_CHANNELS][i / ALONG_TIME].v[BY_TIME ? i % VECTOR : c % VECTOR]);
  }
};

// How many elements of a piece at a row's end are loaded or stored at once. Others wait for their turn in a loop that is not unrolled, in
// registers that move on: an address for each element would take more registers than all of the rest.
constexpr int AT_ONCE = 4;

// These numbers of any piece, element by element.
template <typename E, int LEAD, int COUNT> DEVICE void load(f32 (&out)[CHANNELS][COUNT], const Strided& v, const Piece& piece) {
  const E* const from = piece.first<E, 1>(v, -LEAD);
  const int low = max(LEAD - piece.before, 0), high = min(piece.after + LEAD, COUNT);
#pragma unroll
  for (int i = 0; i < CHANNELS * COUNT; i++) out[i / COUNT][i % COUNT] = 0.f;
#pragma unroll 1
  for (int next = COUNT - round_up(COUNT, AT_ONCE); next < COUNT; next += AT_ONCE) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
      for (int i = 0; i + AT_ONCE < COUNT; i++) out[c][i] = out[c][i + AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        // a step outside of the row is read from the nearest place, so that no branch keeps loads apart
        const int i = next + k;
        const f32 some = to_f32(from[min(c, piece.channels - 1) * v.stride[1] + min(max(i, low), high - 1) * v.stride[2]]);
        out[c][COUNT - AT_ONCE + k] = c < piece.channels && i >= low && i < high ? some : 0.f;
      }
    }
  }
}

// Whether a piece's own steps exist, and steps after them in whole vectors.
template <int VECTOR> DEVICE bool is_whole(const Piece& piece, i64 seqlen) {
  const bool ragged = BY_TIME && u32(seqlen) % VECTOR != 0;
  return piece.channels == CHANNELS && piece.after >= (ragged ? 2 * STEPS + PAST : STEPS);
}

// The own steps of a piece that is whole, VECTOR neighbours at a time.
template <typename E, int VECTOR> DEVICE void store_whole(const Strided& v, const Piece& piece, const f32 (&values)[CHANNELS][STEPS]) {
  E* const to = piece.first<E, VECTOR>(v);
  const i64 channel = v.stride[1], step = v.stride[2];
#pragma unroll
  for (int c = 0; c < CHANNELS; c += BY_TIME ? 1 : VECTOR) {
#pragma unroll
    for (int i = 0; i < STEPS; i += BY_TIME ? VECTOR : 1) {
      Neighbours<E, VECTOR> some;
#pragma unroll
      for (int k = 0; k + 1 < VECTOR; k += 2)
        assign2(some.v + k, BY_TIME ? values[c][i + k] : values[c + k][i], BY_TIME ? values[c][i + k + 1] : values[c + k + 1][i]);
      if constexpr (VECTOR == 1) assign(some.v[0], values[c][i]);
      write_at_once(to + (VECTOR == 1 ? c * channel + i * step : BY_TIME ? c * channel + i : i * step + c), some);
    }
  }
}

// Stores the numbers of any piece that exist. They are used up.
template <typename E> DEVICE void store_part(const Strided& v, const Piece& piece, f32 (&values)[CHANNELS][STEPS]) {
  E* const to = piece.first<E, 1>(v);
#pragma unroll 1
  for (int next = 0; next < min(piece.after, STEPS); next += AT_ONCE) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++)
        if (c < piece.channels && next + k < piece.after) assign(to[c * v.stride[1] + (next + k) * v.stride[2]], values[c][k]);
#pragma unroll
      for (int i = 0; i + AT_ONCE < STEPS; i++) values[c][i] = values[c][i + AT_ONCE];
    }
  }
}

// ---- filters

struct Filter {
  f32 weight[CHANNELS][WIDTH], bias[CHANNELS];

  // filters of the thread's channels; zero for channels that do not exist
  DEVICE Filter(const Conv& conv, i64 channel_block) {
    const i64 block = channel_block * (CHANNEL_LANES * CHANNELS), channel = block + own_channel();
    const int channels = int(min(conv.dim - block, i64(1 << 20))) - own_channel();
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      const bool exists = c < channels;
#pragma unroll
      for (int k = 0; k < WIDTH; k++) weight[c][k] = exists ? to_f32(*at<WEIGHT>(conv.weight, channel + c, k)) : 0.f;
      bias[c] = HAS_BIAS && exists ? to_f32(*at<BIAS>(conv.bias, channel + c)) : 0.f;
    }
  }

  // the sum at an input and those before it
  DEVICE f32 sum(int c, const f32 (&past)[CHANNELS][PAST], f32 input) const {
    f32 sum = bias[c];
#pragma unroll
    for (int k = 0; k < PAST; k++) sum = __fmaf_rn(weight[c][k], past[c][k], sum);
    return __fmaf_rn(weight[c][PAST], input, sum);
  }
};

// ---- sequences

DEVICE i64 index_of(const Conv& conv, i64 i, i64 j = 0) { return i64(*at<INDEX>(conv.sequences, i, j)); }

// The i-th bound in the direction of the convolution, and the sequence that begins there.
DEVICE i64 bound(const Conv& conv, i64 i) {
  const i64 value = REVERSE ? conv.seqlen - index_of(conv, conv.sequence_count - i) : index_of(conv, i);
  return min(max(value, i64(0)), conv.seqlen);
}
DEVICE i64 number(const Conv& conv, i64 i) { return REVERSE ? conv.sequence_count - 1 - i : i; }

// The first of the bounds that is at least `step`; they do not decrease.
DEVICE i64 first_bound(const Conv& conv, i64 step) {
  i64 low = 0, high = conv.sequence_count + 1;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (bound(conv, middle) < step) low = middle + 1; else high = middle;
  }
  return low;
}

// Whether all steps of a row before (or after) a step are padding.
DEVICE bool only_padding_before(const Conv& conv, i64 batch, i64 step) {
  for (i64 t = 0; t < step; t++)
    if (index_of(conv, batch, t) >= 0) return false;
  return true;
}
DEVICE bool only_padding_after(const Conv& conv, i64 batch, i64 step) {
  for (i64 t = step + 1; t < conv.seqlen; t++)
    if (index_of(conv, batch, t) >= 0) return false;
  return true;
}

// The place of the state of a sequence in a tensor of states; a negative row if nowhere.
struct StateRow { i64 row, sequence; };

// The row of the sequence that has `step`, for its state before the first step (`FIRST`) or after the last one.
template <bool FIRST> DEVICE StateRow state_row(const Conv& conv, i64 batch, i64 step) {
  if constexpr (SEQUENCES == Sequences::Bounds) {
    // bounds are not checked on the host: a step may lie in none of the sequences
    const i64 i = first_bound(conv, step + 1) - 1;
    return {i < conv.sequence_count ? number(conv, i) : -1, 0};
  }
  if constexpr (SEQUENCES == Sequences::Index) {
    const i64 value = index_of(conv, batch, step);
    if constexpr (NUMBERED) return {value >= 0 && value < conv.sequence_count ? batch : -1, value};
    // a run of its own has a state only as the first (or last) one of its row
    i64 edge = step;
    if (value >= 0) {
      if constexpr (FIRST) {
        while (edge > 0 && index_of(conv, batch, edge - 1) == value) edge--;
        return {only_padding_before(conv, batch, edge) ? batch : -1, 0};
      } else {
        while (edge + 1 < conv.seqlen && index_of(conv, batch, edge + 1) == value) edge++;
        return {only_padding_after(conv, batch, edge) ? batch : -1, 0};
      }
    }
    return {-1, 0};
  }
  return {batch, 0};
}

// Marks of COUNT steps of a packed row from `first` on and one more.
template <int COUNT> struct Marks {
  u32 starts = 0;    // the step is the first one of a sequence; so is the one after the last of the row
  u32 padding = 0;   // the step belongs to no sequence

  DEVICE Marks(const Conv& conv, i64 batch, i64 first) {
    if constexpr (!PACKED) return;
    auto mark = [&](i64 step) {
      if (step >= first && step <= first + COUNT) starts |= 1u << int(step - first);
    };
    mark(conv.seqlen);
    if constexpr (SEQUENCES == Sequences::Bounds) {
      for (i64 i = first_bound(conv, max(first, i64(0))); i <= conv.sequence_count && bound(conv, i) <= first + COUNT; i++)
        if (!IN_PIECES || i % conv.slots.pieces == 0) mark(bound(conv, i));
    }
    if constexpr (SEQUENCES == Sequences::Index) {
      const i64 low = max(first, i64(0)), high = min(first + COUNT + 1, conv.seqlen);
      i64 before = low > 0 ? index_of(conv, batch, low - 1) : 0;
      for (i64 step = low; step < high; step++) {
        const i64 value = index_of(conv, batch, step);
        if (step == 0 || value != before) mark(step);
        if (!NUMBERED && value < 0) padding |= 1u << int(step - first);
        before = value;
      }
    }
  }

  DEVICE bool starts_at(int i) const { return starts >> i & 1; }
  DEVICE bool ends_at(int i) const { return starts >> (i + 1) & 1; }
  DEVICE bool is_padding(int i) const { return SEQUENCES == Sequences::Index && !NUMBERED && (padding >> i & 1); }
};

// The inputs before the sequence that starts at a step.
template <typename STATE>
DEVICE void read_states(f32 (&out)[CHANNELS][PAST], const Strided& states, StateRow row, const Piece& piece) {
#pragma unroll
  for (int c = 0; c < CHANNELS; c++)
#pragma unroll
    for (int j = 0; j < PAST; j++)
      out[c][j] = row.row >= 0 && c < piece.channels ? to_f32(*at<STATE>(states, row.row, row.sequence, piece.channel() + c, j)) : 0.f;
}

DEVICE void restart(f32 (&past)[CHANNELS][PAST], const Conv& conv, const Piece& piece, i64 step) {
  const StateRow none = {-1, 0};
  StateRow from = HAS_INITIAL ? state_row<true>(conv, piece.batch, step) : none;
  if (POOLED && HAS_INITIAL) from.row = row_read(conv.slots, from.row);
  read_states<INITIAL>(past, conv.initial, from, piece);
}

// Puts the initial state of a row where its piece has nothing before its first step, LEAD steps into the inputs.
template <int LEAD, int ALL> DEVICE void add_initial(f32 (&u)[CHANNELS][ALL], const Conv& conv, const Piece& piece) {
  if constexpr (HAS_INITIAL && !PACKED) {
    if (piece.before >= PAST) return;
    const i64 row = row_read(conv.slots, piece.batch);
    if (POOLED && row < 0) return;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
      for (int j = 0; j < PAST; j++) {
        const int before = PAST - piece.before - j;
        if (before > 0 && c < piece.channels) u[c][LEAD - PAST + j] = to_f32(*at<INITIAL>(conv.initial, row, 0, piece.channel() + c, PAST - before));
      }
  }
}

// Walks over COUNT steps, from PAST before the piece on, whose inputs are u[..][LEAD - PAST ..]: visit(i, past), where `past` are the inputs
// before step i that belong to its sequence.
template <bool MARKED, int LEAD, int COUNT, int ALL, typename Visit>
DEVICE void walk(const Conv& conv, const Piece& piece, const Marks<COUNT>& marks, const f32 (&u)[CHANNELS][ALL], Visit visit) {
  f32 past[CHANNELS][PAST] = {};
#pragma unroll
  for (int i = 0; i < COUNT; i++) {
    const i64 step = piece.step() - PAST + i;
    if (MARKED && marks.starts_at(i) && step < conv.seqlen) restart(past, conv, piece, step);
    visit(i, past);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
      for (int k = 0; k + 1 < PAST; k++) past[c][k] = past[c][k + 1];
      past[c][PAST - 1] = u[c][LEAD - PAST + i];
    }
  }
}
