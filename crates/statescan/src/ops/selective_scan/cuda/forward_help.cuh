// The forward pass: the threads that copy, convert and finish what the others scan.
#pragma once
#include "forward_tiles.cuh"

// Barriers of whole warps; 0 is that of __syncthreads, which is not for the branches of two roles.
DEVICE void meet_helpers() { meet<1, THREADS>(); }
DEVICE void meet_all() { meet<2, THREADS + SCANNERS>(); }

// What starts from zero for want of the right state is scanned again.
DEVICE bool has_outputs(const Work& w) { return PASS != Pass::Ends || (!HALVES && w.segment == 0); }

struct Helper {
  const Params& p;
  const Work& w;
  char* const shared;
  const int first_tile, last_tile;
  const f32 *const skips, *const biases;
  const bool outputs;
  XTile::Source x;
  DtTile::Source dt;
  DtATile::Source dt_a;
  BTile::Source b;
  CTile::Source c;
  ZTile::Source z;
  const Shifts shifts;
  Y* y;

  DEVICE Helper(const Params& p, const Work& w, char* shared, int first_tile, int last_tile, const f32* skips, const f32* biases)
      : Helper(p, w, shared, first_tile, last_tile, skips, biases, i64(first_tile) * STEPS, Span(w.first, p.dim), Span(0, DSTATE)) {}
  DEVICE Helper(const Params& p, const Work& w, char* shared, int first_tile, int last_tile, const f32* skips, const f32* biases, i64 origin, Span channels, Span states)
      : p(p), w(w), shared(shared), first_tile(first_tile), last_tile(last_tile), skips(skips), biases(biases), outputs(has_outputs(w)),
        x(at<X>(p.x, w.batch, w.first, origin), p.x.stride[1], p.x.stride[2], w.channels, channels),
        dt(at<DT>(p.dt, w.batch, w.first, origin), p.dt.stride[1], p.dt.stride[2], w.channels, channels),
        dt_a(at<DT_A>(p.dt_a, w.batch, w.first, origin), p.dt_a.stride[1], p.dt_a.stride[2], w.channels, channels),
        b(at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, origin), p.b.stride[2], p.b.stride[3], DSTATE, states),
        c(at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, origin), p.c.stride[2], p.c.stride[3], DSTATE, states),
        z(at<Z>(p.z, w.batch, w.first, origin), p.z.stride[1], p.z.stride[2], w.channels, channels), shifts(p, w),
        y(at<Y>(p.y, w.batch, w.first, origin)) {}

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
    char* const ready = shared + (tile & 1) * READY_BYTES;
    windowed(tile, [&](auto window) { prepare(p, ready, stage(tile), shifts, window, outputs, biases); });
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, ready + CHANGE_AT);
  }
  DEVICE void finish_tile(int tile) {
    if (!HAS_Y || !outputs || tile < first_tile) return;
    const char* const partials = shared + PARTIALS_AT + (tile & 1) * PARTIAL_BYTES;
    windowed(tile, [&](auto window) { finish(p, partials, stage(tile), shifts, window, y, w.channels, skips); });
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
