// Selective scan, forward. A block owns CHANNELS channels of one row (or packed sequence) and walks its steps in tiles. Its threads have two
// roles, so that the exponential unit never waits for anything else. At the same time
//
//   helpers   finish tile t - 1: sums over the lanes in a fixed order, skip, gate, output; copy tile t + 2 into shared memory as it is stored;
//             prepare tile t + 1: x and dt become pairs (decay step, input) in f32, B and C become f32
//   scanners  scan tile t: LANES threads share a channel. Thread `lane` owns the states lane, lane + LANES, .. in registers
//
// Per state and step: a product and ex2 for the decay, a product for the input, a multiply-add for the state and one for the output. What
// shared memory delivers to registers is the other limit: a pair is 8 bytes for the states of a thread, B and C are 8 bytes a state, a
// thread's partial output 4 bytes each way; four steps travel at a time.
//
// Steps count from the start of the row, also in packed sequences, so that tiles are aligned in memory and saved states lie on a grid that
// does not depend on the sequences. Steps outside of a sequence get a step of zero and inputs of zero, which leave a state as it is.
#include "forward_tiles.cuh"

// Barriers of whole warps; 0 is that of __syncthreads, which is not for the branches of two roles.
DEVICE void meet_helpers() { meet<1, THREADS>(); }
DEVICE void meet_all() { meet<2, THREADS + SCANNERS>(); }

// What starts from zero for want of the right state is scanned again.
DEVICE bool has_outputs(const Work& w) { return PASS != Pass::Ends || (!HALVES && w.segment == 0); }

// ---- helpers

DEVICE void help(const Params& p, const Work& w, char* shared, int first_tile, int last_tile, const f32* skips, const f32* biases) {
  const bool outputs = has_outputs(w);
  const i64 origin = i64(first_tile) * STEPS;
  const Span channels(w.first, p.dim), states(0, DSTATE);
  XTile::Source x(at<X>(p.x, w.batch, w.first, origin), p.x.stride[1], p.x.stride[2], w.channels, channels);
  DtTile::Source dt(at<DT>(p.dt, w.batch, w.first, origin), p.dt.stride[1], p.dt.stride[2], w.channels, channels);
  DtATile::Source dt_a(at<DT_A>(p.dt_a, w.batch, w.first, origin), p.dt_a.stride[1], p.dt_a.stride[2], w.channels, channels);
  BTile::Source b(at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, origin), p.b.stride[2], p.b.stride[3], DSTATE, states);
  CTile::Source c(at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, origin), p.c.stride[2], p.c.stride[3], DSTATE, states);
  ZTile::Source z(at<Z>(p.z, w.batch, w.first, origin), p.z.stride[1], p.z.stride[2], w.channels, channels);
  const Shifts shifts(p, w);
  Y* y = at<Y>(p.y, w.batch, w.first, origin);

  auto stage = [&](int tile) { return shared + STAGES_AT + (tile - first_tile) % STAGES * STAGE_BYTES; };
  // job(window) of a tile, which is whole or not
  auto windowed = [&](int tile, auto job) {
    const int low = int(max(w.start - i64(tile) * STEPS, i64(0))), high = int(min(i64(STEPS), w.end - i64(tile) * STEPS));
    if (low == 0 && high == STEPS && w.channels == CHANNELS)
      job(Window<true>{low, high});
    else
      job(Window<false>{low, high});
  };
  auto copy = [&](int tile) {
    if (tile <= last_tile) {
      char* const raw = stage(tile);
      const int steps = int(min(i64(STEPS), p.seqlen - i64(tile) * STEPS));
      const Span span(i64(tile) * STEPS, p.seqlen);
      auto each_source = [&](auto job) {
        job(x, X_AT), job(dt, DT_AT);
        if constexpr (HAS_DT_A) job(dt_a, DT_A_AT);
        if (HAS_Z && outputs) job(z, Z_AT);
        if constexpr (B_VARIES) job(b, B_AT);
        if (C_VARIES && outputs) job(c, C_AT);
      };
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
  };
  auto prepare_tile = [&](int tile) {
    if (tile > last_tile) return;
    char* const ready = shared + (tile & 1) * READY_BYTES;
    windowed(tile, [&](auto window) { prepare(p, ready, stage(tile), shifts, window, outputs, biases); });
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, ready + CHANGE_AT);
  };
  auto finish_tile = [&](int tile) {
    if (!HAS_Y || !outputs || tile < first_tile) return;
    const char* const partials = shared + PARTIALS_AT + (tile & 1) * PARTIAL_BYTES;
    windowed(tile, [&](auto window) { finish(p, partials, stage(tile), shifts, window, y, w.channels, skips); });
    y += STEPS * p.y.stride[2];
  };

  // rounds before the first tile fill the stages; there is one place for each of the three jobs, because code is what compiling takes long for
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

// ---- scanners

DEVICE void load_pairs(const char* ready, int channel, int step, float4 (&pair)[2]) {
  const f32* line = reinterpret_cast<const f32*>(ready + PAIRS_AT) + channel * PAIR_PITCH;
  const float4* from = reinterpret_cast<const float4*>(line + 2 * step);
  pair[0] = from[0], pair[1] = from[1];
}

// A warp reads 16 bytes a thread in half of the time if each thread shares its address with its neighbour, or each with its neighbour's
// neighbour. So neighbours are two channels, which share B and C, and then come the lanes of a channel, which share its pairs.
constexpr bool PAIRED = LANES >= 4 && LANES <= 16;
DEVICE int lane_of(int scanner) { return PAIRED ? scanner / 2 % LANES : scanner % LANES; }
DEVICE int channel_of(int scanner) { return PAIRED ? scanner / (2 * LANES) * 2 + scanner % 2 : scanner / LANES; }

DEVICE void scan(const Params& p, const Work& w, char* shared, int first_tile, int last_tile) {
  const int lane = lane_of(int(threadIdx.x) - THREADS), own_channel = channel_of(int(threadIdx.x) - THREADS);
  const int channel = w.first + own_channel;
  // threads that fill up the last warp have no channel: they come to barriers and touch nothing
  const bool scans = SCANNERS == SCANNING || own_channel < CHANNELS;
  // whether the r-th state of this thread exists
  auto exists = [&](int r) { return own_channel < w.channels && (!RAGGED || r * LANES + lane < DSTATE); };
  // the state of a sequence before its first step, and where the state after its last step goes
  auto initial_of = [&](i64 sequence, int r) {
    if constexpr (HAS_INITIAL) return state_of<INITIAL>(p, p.initial, w.row, sequence, channel, r * LANES + lane);
    return Field{};
  };
  auto finish_sequence = [&](i64 sequence, int r, Field h) {
    if constexpr (HAS_FINAL && PASS != Pass::Ends) put_state<FINAL>(p, p.last, w.row, sequence, channel, r * LANES + lane, h);
  };
  // without numbers there is one state in a row: the first sequence starts from it and the last one leaves it
  auto sequence_at = [&](i64 step) { return !NUMBERED ? 0 : p.seqlen > 0 ? index_of(p.sequences, w.batch, step) : -1; };
  const bool outputs = has_outputs(w);
  // each state of this thread
  auto own = [&](auto job) {
#pragma unroll
    for (int r = 0; r < STATES; r++) job(r);
  };

  Field a[STATES], h[STATES], b_own[STATES], c_own[STATES];
  own([&](int r) {
    a[r] = h[r] = b_own[r] = c_own[r] = Field{};
    if (!exists(r)) return;
    const int n = r * LANES + lane;
    Field raw;
    convert(raw, *at<A>(p.a, channel, n));
    a[r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(b_own[r], *at<B>(p.b, channel, n));
    if constexpr (!C_VARIES) convert(c_own[r], *at<C>(p.c, channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand their state on
#pragma unroll 1
      for (i64 s = 0; s < p.sequence_count; s++) finish_sequence(s, r, initial_of(s, r));
    }
    if constexpr (PASS != Pass::Rest) {
      if (outputs) h[r] = initial_of(sequence_at(0), r);
    } else {
      if constexpr (HALVES) h[r] = initial_of(0, r);
#pragma unroll 4
      for (int s = 0; s < w.segment; s++) {
        const i64 place = s * p.segment_channels + w.row * p.dim + channel;
        const f32 steps = sums_of_steps(p, p.workspace)[place];
        Field end;
        convert(end, p.workspace[place * DSTATE + n]);
        h[r] = !HALVES && s == 0 ? end : mul_add(Method::decay(a[r], steps), h[r], end);
      }
    }
  });

  f32 steps_in_all = 0.f;
  auto scan_tile = [&](int tile, auto wanted) {
    constexpr bool OUTPUTS = HAS_Y && decltype(wanted)::VALUE;
    const char* const ready = shared + (tile & 1) * READY_BYTES;
    f32* const line = reinterpret_cast<f32*>(shared + PARTIALS_AT + (tile & 1) * PARTIAL_BYTES) + own_channel * PARTIAL_PITCH + lane * LINE_PITCH;
    float4 pair[2];
    load_pairs(ready, own_channel, 0, pair);
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; step += 4) {
      const f32 decay_step[4] = {pair[0].x, pair[0].z, pair[1].x, pair[1].z};
      const f32 input[4] = {pair[0].y, pair[0].w, pair[1].y, pair[1].w};
      f32 gain_step[4] = {decay_step[0], decay_step[1], decay_step[2], decay_step[3]}, y[4] = {};
      if constexpr (HAS_GAIN_STEP) {
        const f32* const gains = reinterpret_cast<const f32*>(ready + GAIN_AT) + own_channel * LINE_PITCH;
        const float4 g = *reinterpret_cast<const float4*>(gains + step);
        gain_step[0] = g.x, gain_step[1] = g.y, gain_step[2] = g.z, gain_step[3] = g.w;
      }
      if constexpr (PASS == Pass::Ends) steps_in_all += (decay_step[0] + decay_step[1]) + (decay_step[2] + decay_step[3]);
      // the next four steps arrive while these are computed; past the end it is the padding of the line
      load_pairs(ready, own_channel, step + 4, pair);
      int4 changes = {};
      if constexpr (SEQUENCES == Sequences::Index) changes = *reinterpret_cast<const int4*>(ready + CHANGE_AT + 4 * step);
#pragma unroll
      for (int r = 0; r < STATES; r++) {
        const int n = r * LANES + lane;
        Field b[4], c[4];
        if constexpr (B_VARIES) read_map(ready + B_MAP_AT, step, n, b);
        if constexpr (C_VARIES && OUTPUTS) read_map(ready + C_MAP_AT, step, n, c);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if constexpr (SEQUENCES == Sequences::Index) {
            const int changed = j == 0 ? changes.x : j == 1 ? changes.y : j == 2 ? changes.z : changes.w;
            if (changed && NUMBERED && exists(r)) {
              const i64 t = i64(tile) * STEPS + step + j;
              finish_sequence(sequence_at(t - 1), r, h[r]);
              h[r] = initial_of(sequence_at(t), r);
            } else if (changed) {
              h[r] = Field{};
            }
          }
          const Field decay = Method::decay(a[r], decay_step[j]);
          const Field in = Method::amplify(a[r], gain_step[j], scale(B_VARIES ? b[j] : b_own[r], input[j]));
          h[r] = mul_add(decay, h[r], in);
          // states that only fill up the lanes stay zero whatever x is
          if (RAGGED && r == STATES - 1 && n >= DSTATE) h[r] = Field{};
          if constexpr (OUTPUTS) y[j] = re_mul_add(C_VARIES ? c[j] : c_own[r], h[r], y[j]);
        }
      }
      if constexpr (OUTPUTS) *reinterpret_cast<float4*>(line + step) = make_float4(y[0], y[1], y[2], y[3]);
    }
  };

#pragma unroll 1
  for (int tile = first_tile; tile <= last_tile; tile++) {
    // takes what was prepared of this tile; its partial outputs go where those of the tile before the last were, which helpers have read
    meet_all();
    if (!scans) continue;
    if constexpr (HAS_CHECKPOINTS) {
      const i64 step = i64(tile) * STEPS;
      if (outputs && step % CHECKPOINT == 0 && step > (PASS == Pass::Rest ? 0 : w.start)) {
        const i64 saved = (p.seqlen - 1) / CHECKPOINT;
        Field* const to = reinterpret_cast<Field*>(p.checkpoints) + (w.batch * saved + step / CHECKPOINT - 1) * p.dim * DSTATE;
        own([&](int r) {
          if (exists(r)) to[i64(channel) * DSTATE + r * LANES + lane] = h[r];
        });
      }
    }
    if (outputs)
      scan_tile(tile, Flag<true>());
    else
      scan_tile(tile, Flag<false>());
  }
  // the last partial outputs are there
  meet_all();

  if constexpr (PASS == Pass::Ends) {
    own([&](int r) {
      const i64 place = w.segment * p.segment_channels + w.row * p.dim + channel;
      if (exists(r)) p.workspace[place * DSTATE + r * LANES + lane] = part_of(h[r], 0);
      if (r == 0 && lane == 0 && own_channel < w.channels) sums_of_steps(p, p.workspace)[place] = steps_in_all;
    });
  } else if (PASS == Pass::Whole || w.end == p.seqlen) {
    own([&](int r) {
      if (exists(r)) finish_sequence(sequence_at(p.seqlen - 1), r, h[r]);
    });
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + SCANNERS, RESIDENT) selective_scan_forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];
  const Work w = Work::of<PASS == Pass::Rest && !HALVES>(p);
#pragma unroll 1
  for (int i = threadIdx.x; i < w.channels; i += THREADS + SCANNERS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
  __syncthreads();
  const int first_tile = int(w.start / STEPS), last_tile = w.start < w.end ? int((w.end - 1) / STEPS) : first_tile - 1;
  // the first THREADS threads are the helpers, whose code asks for their number and index
  if (threadIdx.x < THREADS)
    help(p, w, shared, first_tile, last_tile, skips, biases);
  else
    scan(p, w, shared, first_tile, last_tile);
}
