// The forward pass: the threads that copy, convert and finish what the others scan.
#pragma once
#include "forward_tiles.cuh"

// Barriers of whole warps; 0 is that of __syncthreads, which is not for the branches of two roles.
DEVICE void meet_helpers() { meet<1, THREADS>(); }
DEVICE void meet_all() { meet<2, THREADS + SCANNERS>(); }

// Steps that start from zero for want of the right state are scanned again.
DEVICE bool has_outputs(const Work& w) { return PASS != Pass::Ends || (!TWO_PHASE && w.segment == 0); }

// The tiles of a block, and what its channels have for all steps, in shared memory.
struct Tiles {
  int first, last;
  DEVICE explicit Tiles(const Work& w) : first(int(w.start / STEPS)), last(w.start < w.end ? int((w.end - 1) / STEPS) : first - 1) {}
};
struct Vectors {
  const f32 *skips, *biases;
};

struct Helper {
  const Params& p;
  const Work& w;
  char* const shared;
  const int first_tile, last_tile;
  const Vectors vectors;
  const bool outputs;
  XTile::Source x;
  DtTile::Source dt;
  DtATile::Source dt_a;
  BTile::Source b;
  CTile::Source c;
  ZTile::Source z;
  const Shifts shifts;
  Y* y;

  DEVICE Helper(const Params& p, const Work& w, char* shared, Tiles tiles, Vectors vectors)
      : p(p), w(w), shared(shared), first_tile(tiles.first), last_tile(tiles.last), vectors(vectors), outputs(has_outputs(w)),
        x(timed<XTile, X>(p.x)), dt(timed<DtTile, DT>(p.dt)), dt_a(timed<DtATile, DT_A>(p.dt_a)), b(map<BTile, B>(p.b, p.channels_per_b)),
        c(map<CTile, C>(p.c, p.channels_per_c)), z(timed<ZTile, Z>(p.z)), shifts(p, w), y(at<Y>(p.y, w.batch, w.first, origin())) {}

  // the first step of the first tile
  DEVICE i64 origin() const { return i64(first_tile) * STEPS; }
  template <typename Tile, typename E> DEVICE typename Tile::Source timed(const Strided& v) const {
    return {at<E>(v, w.batch, w.first, origin()), v.stride[1], v.stride[2], w.channels, Span(w.first, p.dim)};
  }
  template <typename Tile, typename E> DEVICE typename Tile::Source map(const Strided& v, i64 channels_of_group) const {
    return {at<E>(v, w.batch, w.first / channels_of_group, 0, origin()), v.stride[2], v.stride[3], DSTATE, Span(0, DSTATE)};
  }

  DEVICE char* stage(int tile) const { return shared + STAGES_AT + (tile - first_tile) % STAGES * STAGE_BYTES; }

  // job(window) of a tile, which is whole or not
  template <typename Job> DEVICE void windowed(int tile, Job job) const {
    const int low = int(max(w.start - i64(tile) * STEPS, i64(0))), high = int(min(i64(STEPS), w.end - i64(tile) * STEPS));
    if (low == 0 && high == STEPS && w.channels == CHANNELS)
      job(Window<true>{low, high});
    else
      job(Window<false>{low, high});
  }
  // job(source, its place in a stage)
  template <typename Job> DEVICE void each_source(Job job) {
    job(x, X_AT), job(dt, DT_AT);
    if constexpr (HAS_DT_A) job(dt_a, DT_A_AT);
    if (HAS_Z && outputs) job(z, Z_AT);
    if constexpr (B_VARIES) job(b, B_AT);
    if (C_VARIES && outputs) job(c, C_AT);
  }

  DEVICE void copy(int tile) {
    if (tile <= last_tile) {
      char* const raw = stage(tile);
      const int steps = int(min(i64(STEPS), p.seqlen - i64(tile) * STEPS));
      const Span span(i64(tile) * STEPS, p.seqlen);
      auto load = [&](auto whole) {
        each_source([&](auto& source, int at) { source.template load<decltype(whole)::VALUE>(raw + at, steps, span); });
      };
      if (XTile::VECTOR && steps == STEPS && w.channels == CHANNELS && (!ANY_SHIFTED || span.has_more(STEPS)))
        load(Flag<true>());
      else
        load(Flag<false>());
      if constexpr (ANY_SHIFTED) each_source([&](auto& source, int at) { source.load_ends(raw + at, steps, span); });
    }
    copy_async_commit();
  }
  DEVICE void prepare_tile(int tile) const {
    if (tile > last_tile) return;
    char *const ready = shared + (tile & 1) * READY_BYTES, *const raw = stage(tile);
    windowed(tile, [&](auto window) {
      prepare_pairs(p, ready, raw, shifts, window, vectors.biases);
      if constexpr (B_VARIES) prepare_map<BTile>(ready + B_MAP_AT, raw + B_AT, shifts.b, window);
      if (C_VARIES && outputs) prepare_map<CTile>(ready + C_MAP_AT, raw + C_AT, shifts.c, window);
    });
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, ready + CHANGE_AT);
  }
  DEVICE void finish_tile(int tile) {
    if (!HAS_Y || !outputs || tile < first_tile) return;
    const Unfinished of = {shared + PARTIALS_AT + (tile & 1) * PARTIAL_BYTES, stage(tile), y};
    windowed(tile, [&](auto window) { finish(p, of, shifts, window, w.channels, vectors.skips); });
    y += STEPS * p.y.stride[2];
  }

  // Rounds before the first tile fill the stages; there is one place for each of the three jobs, because code is what compiling takes long for.
  DEVICE void run() {
    constexpr int AHEAD = STAGES - 1;
#pragma unroll 1
    for (int tile = first_tile - AHEAD; tile <= last_tile + 1; tile++) {
      // hands over what was prepared of this tile, and takes the partial outputs of the last one
      if (tile >= first_tile) meet_all();
      finish_tile(tile - 1);
      // the tile before this one, as it is stored, has been read by every helper: its stage is the one that copy fills
      meet_helpers();
      copy(tile + AHEAD);
      // each helper waits for its own copies of the next tile, then for those of all helpers
      copy_async_wait<AHEAD - 1>();
      meet_helpers();
      // over what scanners read of the tile before this one, which they left before meet_all
      if (tile + 1 >= first_tile) prepare_tile(tile + 1);
    }
  }
};
