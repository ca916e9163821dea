// Walks over the chunks of a sequence have this in common: a block has 64 columns of a head, whose state (or its gradient) a warpgroup keeps, transposed,
// in the sums of its products. Tiles of chunks come in stages.
#pragma once
#include "unit.cuh"

static_assert(given<int>(STAGES, KEYS, VALUES, GROUP, VALUE_TILES) && given<bool>(BY_CHANNEL));

constexpr int SLICES = VALUES / 64;
// a stage has keys and queries as they lie, unless they come with the unit, values, and the unit
constexpr int V_AT = BY_CHANNEL ? 0 : 2 * PANELS * TILE, UNIT_AT = V_AT + VALUE_TILES * TILE, STAGE = UNIT_AT + UNIT_BYTES;
constexpr int K_AT = BY_CHANNEL ? UNIT_AT + READ_K_AT : 0, WRITTEN_AT = BY_CHANNEL ? UNIT_AT + WRITTEN_K_AT : 0;
constexpr int Q_AT = BY_CHANNEL ? UNIT_AT + READ_Q_AT : PANELS * TILE;

// The segment of a sequence's chunks that a block walks over, and how many there are.
struct Segment { int index, count; };

// The columns of a block, of a piece's head.
struct Work {
  i64 index;     // of the piece
  Piece piece;   // from the segment on
  i64 head;
  int column, chunks, cut;   // and the chunk that has fewer steps, if any
  i64 first, place;          // unit, and its place among those of all rows

  DEVICE Work(const Params& p, int of_head, int column, Segment segment)
      : index(of_head / p.heads * pieces_of_block(p)), piece(p, index), head(of_head % p.heads), column(column) {
    set(p, segment);
  }
  // Goes on to the next piece of a sequence, which has no segments then.
  DEVICE void next(const Params& p) { index++, piece = Piece(p, index), set(p, {0, 1}); }
  DEVICE void set(const Params& p, Segment segment) {
    const int all = int((piece.end - piece.start + CHUNK - 1) / CHUNK), each = (all + segment.count - 1) / segment.count;
    const int before = min(segment.index * each, all);
    chunks = min(each, all - before);
    cut = (piece.end - piece.start) % CHUNK != 0 && before + chunks == all ? chunks - 1 : -1;
    const i64 k = IS_BY_SEQUENCE ? index % p.sequence_count : 0;
    const i64 own = first_unit(p, piece.start, k) + before;
    first = (piece.batch * p.heads + head) * p.places + own, place = piece.batch * p.places + own;
    piece.start += i64(before) * CHUNK;
  }
  DEVICE int count(int chunk) const { return int(min(piece.end - piece.start - i64(chunk) * CHUNK, i64(CHUNK))); }
};

struct Columns {
  const Params& p;
  Work w;
  char* const shared;
  const int thread, lane, warp, pair, fragment;

  DEVICE Columns(const Params& p, char* shared, const Work& w)
      : p(p), w(w), shared(shared), thread(threadIdx.x % 128), lane(threadIdx.x % 32), warp(thread / 32), pair(lane % 4 * 2), fragment(columns_at()) {}

  DEVICE char* stage(const Turn<STAGES>& turn) const { return shared + turn.at * STAGE; }
  DEVICE static const f32* factors(const char* stage, int of) { return reinterpret_cast<const f32*>(stage + UNIT_AT + FACTORS_AT) + of; }
  // decays of the columns of a thread's sums; with decays of channels the tiles have them
  DEVICE void load_factors(float2 (&to)[8], const char* stage, int of) const {
#pragma unroll
    for (int n = 0; n < 8; n++) to[n] = BY_CHANNEL ? make_float2(1.f, 1.f) : *reinterpret_cast<const float2*>(factors(stage, of) + 8 * n + pair);
  }

  // until the first kernel has ended
  DEVICE static void wait_for_units() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

  template <int COLUMNS> DEVICE static void as_factors(FragmentA (&to)[COLUMNS / 16], const Sums<COLUMNS>& sums) {
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) to[k].v[i] = pack_bf16(sums.v[8 * k + 2 * i], sums.v[8 * k + 2 * i + 1]);
  }

  // job(number, key, column) for every number of this thread
  template <typename Job> DEVICE void each_number(Sums<KEYS>& s, Job job) const {
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) job(s.v[i], i / 4 * 8 + pair + i % 2, w.column + 16 * warp + lane / 4 + i / 2 % 2 * 8);
  }

  // Keys and values behind a sequence's end, by all warpgroups that read those keys.
  template <int WARPGROUPS = 1> DEVICE void clear_rest(char* stage, int count, int values_at = V_AT) const {
    if (!BY_CHANNEL && threadIdx.x < 128)
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) clear_lines(stage + K_AT + panel * TILE, count);
    clear_lines(stage + values_at, count);
    fence_async();
    meet<1, 128 * WARPGROUPS>();
  }

  // ---- products of a chunk, between a fence and a commit

  // Columns of steps as they lie in a tile.
  DEVICE void load_steps(FragmentA (&to)[4], const char* tile) const {
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<true>(to[k].v, tile + fragment + k * 2048);
  }
  // S^T K^T
  DEVICE static void multiply_keys(Sums<64>& sums, const FragmentA (&state)[KEYS / 16], const char* stage) {
    const u64 keys = operand(stage + K_AT);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) multiply<false>(sums, state[k], columns_of(keys, k), k > 0);
  }
  // steps times T^T
  DEVICE static void multiply_units(Sums<64>& sums, const FragmentA (&steps)[4], const char* stage) {
    const u64 t = operand(stage + UNIT_AT);
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<false>(sums, steps[k], columns_of(t, k), k > 0);
  }
  // S^T += steps times rows of keys or queries
  DEVICE static void add_rows(Sums<KEYS>& s, const FragmentA (&steps)[4], const char* rows) {
    const u64 lines = operand(rows, TILE);
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(s, steps[k], further(lines, k * 2048), true);
  }
  // Sums times factors of steps.
  DEVICE static void weigh(FragmentA (&to)[4], const Sums<64>& sums, const float2 (&factor)[8], f32 sign = 1.f) {
#pragma unroll
    for (int i = 0; i < 16; i++) to[i / 4].v[i % 4] = pack_bf16(sign * sums.v[2 * i] * factor[i / 2].x, sign * sums.v[2 * i + 1] * factor[i / 2].y);
  }

  DEVICE void decay(Sums<KEYS>& s, const char* stage) const {
    const f32* const whole = factors(stage, WHOLE);
    if constexpr (BY_CHANNEL) {
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++) {
        const float2 own = *reinterpret_cast<const float2*>(whole + 8 * n + pair);
        s.v[4 * n] *= own.x, s.v[4 * n + 1] *= own.y, s.v[4 * n + 2] *= own.x, s.v[4 * n + 3] *= own.y;
      }
    } else {
      const f32 all = *static_cast<const volatile f32*>(whole);
#pragma unroll
      for (int i = 0; i < KEYS / 2; i++) s.v[i] *= all;
    }
  }

  template <int COUNT> DEVICE void hold(const FragmentA (&factors)[COUNT]) const { ::hold(factors, p.seqlen < 0, shared); }
};
