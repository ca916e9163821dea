// A tile of rows (channels or states) x steps in shared memory, as its tensor stores it.
#pragma once

static_assert(given<bool>(DENSE) && given<int>(STEPS, THREADS));

// Elements of a line of memory before a place and from that place on, as far as a copy of a tile may ask.
struct Span {
  int before, after;
  DEVICE Span(i64 place, i64 size) : before(int(min(place, i64(1 << 20)))), after(int(min(size - place, i64(1 << 20)))) {}
  // whether a tile of lines of `length` has a piece more before and after, of whatever type
  DEVICE bool has_more(int length) const { return before >= 16 && after >= length + 16; }
};

// Lines are rows, or steps where rows are neighbours in memory; they are padded against bank conflicts unless they are DENSE. The lines of a
// shifted tile begin anywhere in memory: each is copied from the multiple of 16 bytes before it, one piece more than it has, and lies as many
// elements later in shared memory.
template <typename E, Copy COPY, int ROWS, int STEPS, int THREADS, bool DENSE = false> struct RawTile {
  static constexpr bool BY_TIME = COPY == Copy::TimeVector || COPY == Copy::TimeShifted || COPY == Copy::Time;
  static constexpr bool SHIFTED = COPY == Copy::TimeShifted || COPY == Copy::RowShifted;
  static constexpr bool VECTOR = COPY != Copy::Time && COPY != Copy::Row;
  static constexpr int LINE = BY_TIME ? STEPS : ROWS;
  static constexpr int PITCH = round_up(LINE * int(sizeof(E)), 16) + (SHIFTED || !DENSE ? 16 : 0);
  static constexpr int LINES = BY_TIME ? ROWS : STEPS;
  static constexpr int BYTES = PITCH * LINES;

  // threads copy pieces of lines: neighbours along a line, and as many lines at once as there are threads for
  static constexpr int PIECE = VECTOR ? 16 / int(sizeof(E)) : 1, PIECES = LINE / PIECE + SHIFTED;
  static constexpr int ABREAST = PIECES == 0 ? 1 : PIECES < THREADS ? PIECES : THREADS;
  static constexpr int AT_ONCE = THREADS / ABREAST, ROUNDS = (LINES + AT_ONCE - 1) / AT_ONCE;

  // How many elements later than its place a line lies, the same in every tile.
  struct Shift {
    u32 first, stride;
    DEVICE Shift(const E* first, i64 row_stride, i64 step_stride)
        : first(u32(reinterpret_cast<u64>(first) / sizeof(E))), stride(u32(BY_TIME ? row_stride : step_stride)) {}
    DEVICE int of(int line) const { return SHIFTED ? int((first + line * stride) % PIECE) : 0; }
  };

  // The address of this thread's part of the next tile; it advances from tile to tile.
  struct Source {
    const E *first, *own;                 // the first line, and this thread's first piece
    i64 line_stride, along_line, to_next, to_next_tile;   // from piece to piece, from a round's line to that of the next round
    int rows;
    Span row_span;

    // `first` is row 0 at the first step of the first tile; `row_span` counts rows of the tensor around it
    DEVICE Source(const E* first, i64 row_stride, i64 step_stride, int rows, Span row_span)
        : first(first), line_stride(BY_TIME ? row_stride : step_stride), along_line(VECTOR ? PIECE : BY_TIME ? step_stride : row_stride),
          to_next_tile(STEPS * step_stride), rows(rows), row_span(row_span) {
      own = first + (threadIdx.x / ABREAST * line_stride + threadIdx.x % ABREAST * along_line);
      to_next = AT_ONCE * line_stride;
    }

    // starts to copy the next tile, of which `steps` steps exist; all of it is there if WHOLE, with a piece more on either side of lines of
    // steps that are shifted
    template <bool WHOLE> DEVICE void load(char* tile, int steps, Span steps_span) {
      if (THREADS % ABREAST == 0 || threadIdx.x < AT_ONCE * ABREAST) copy<WHOLE>(tile, steps, BY_TIME ? steps_span : row_span);
      own += to_next_tile;
    }

    template <bool WHOLE> DEVICE void copy(char* tile, int steps, Span span) {
      const int lines = BY_TIME ? rows : steps, length = BY_TIME ? steps : rows;
      const E* from = own;
#pragma unroll(!VECTOR ? 4 : WHOLE ? ROUNDS + 1 : 1)
      for (int round = 0; round < ROUNDS; round++, from += to_next) {
        const int line = threadIdx.x / ABREAST + round * AT_ONCE;
        if (WHOLE ? LINES % AT_ONCE != 0 && line >= LINES : line >= lines) break;
#pragma unroll
        for (int k = 0; k < (PIECES + ABREAST - 1) / ABREAST; k++) {
          const int within = (threadIdx.x % ABREAST + k * ABREAST) * PIECE, left = length - within;
          const E* const piece = from + k * ABREAST * along_line;
          E* const to = reinterpret_cast<E*>(tile + line * PITCH) + within;
          if (PIECES % ABREAST != 0 && within >= PIECES * PIECE) break;
          if constexpr (SHIFTED) {
            const int place = within - shift_of(piece);
            if ((WHOLE && BY_TIME) || (place >= -span.before && place + PIECE <= span.after))
              copy_async_16(to, reinterpret_cast<const E*>(reinterpret_cast<u64>(piece) & ~u64(15)));
          } else if constexpr (!VECTOR) {
            if (left > 0) *to = *piece;
          } else if (WHOLE || left >= PIECE) {
            copy_async_16(to, piece);
          } else {
#pragma unroll 1
            for (int j = 0; j < left; j++) to[j] = piece[j];
          }
        }
      }
    }

    static DEVICE int shift_of(const E* place) { return int(reinterpret_cast<u64>(place) / sizeof(E) % PIECE); }

    // Copies what shares 16 bytes with elements before or after the tensor's line, which `load` leaves out. It waits for memory, and comes
    // after all that is copied without waiting.
    DEVICE void load_ends(char* tile, int steps, Span steps_span) {
      if constexpr (!SHIFTED) return;
      const Span span = BY_TIME ? steps_span : row_span;
      const int lines = BY_TIME ? rows : steps, length = BY_TIME ? steps : rows;
      if (span.before < PIECE || span.after < LINE + PIECE) {
#pragma unroll 1
        for (int i = threadIdx.x; i < lines * PIECE; i += THREADS) {
          const int line = i / PIECE, element = i % PIECE;
          const E* const from = first + line * line_stride;
          const int shift = shift_of(from);
          E* const to = reinterpret_cast<E*>(tile + line * PITCH) + shift;
          // the ends of the elements before the first whole piece, and the first of those after the last one
          const int head = span.before < shift ? min(PIECE - shift, length) : 0;
          const int tail = max(head, (shift + span.after) / PIECE * PIECE - shift) + element;
          if (element < head) to[element] = from[element];
          if (tail < length) to[tail] = from[tail];
        }
      }
      first += to_next_tile;
    }
  };

  static DEVICE E* at(char* tile, int row, int step) {
    return reinterpret_cast<E*>(tile + (BY_TIME ? row * PITCH + step * int(sizeof(E)) : step * PITCH + row * int(sizeof(E))));
  }

  static DEVICE E read(char* tile, int row, int step, Shift shift) {
    return BY_TIME ? *at(tile, row, step + shift.of(row)) : *at(tile, row + shift.of(step), step);
  }

  // four steps of a row
  static DEVICE Quad<E> read4(char* tile, int row, int step, Shift shift) {
    Quad<E> quad;
    if constexpr (BY_TIME && !SHIFTED) {
      quad = *reinterpret_cast<const Quad<E>*>(at(tile, row, step));
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++) quad.v[j] = read(tile, row, step + j, shift);
    }
    return quad;
  }
};
