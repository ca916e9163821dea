// Selective scan, forward. A block owns CHANNELS channels of one row (or packed sequence) and walks its steps in tiles:
//
//   copy      the next tile's x, dt, z, B, C into shared memory as they are stored, asynchronously
//   prepare   x and dt become pairs (decay step, input) in f32, B and C become f32
//   scan      LANES threads share a channel: thread `lane` owns its states lane, lane + LANES, .., in registers
//   finish    sums over the lanes in a fixed order, skip, gate, output
//
// Per state and step: a product and ex2 for the decay, a product for the input, a multiply-add for the state and one for the output. What
// shared memory delivers to registers is the other limit: a pair is 8 bytes for the states of a thread, B and C are 8 bytes a state, a
// thread's partial output 4 bytes each way; four steps travel at a time.
//
// Steps count from the start of the row, also in packed sequences, so that tiles are aligned in memory and saved states lie on a grid that
// does not depend on the sequences. Steps outside of a sequence get a step of zero and inputs of zero, which leave a state as it is.

// SEQUENCES and the other constants in capitals come with the configuration.

struct Params : Inputs {
  Tensor y;                              // (batch, channel, step)
  Tensor final;                          // (row, sequence, channel, state)
  f32* checkpoints;                      // dense (batch, saved, channel, state, part)
  f32* workspace;                        // dense (segment, row, channel, state): states; then (segment, row, channel): sums of decay steps
};

constexpr bool HAS_GAIN_STEP = Method::GAIN && HAS_OWN_STEP;

// shared memory: what is computed, then two stages of tiles as they are stored
constexpr int PAIR_PITCH = (STEPS + 2) * 2;   // f32; an odd number of 16-byte units, against bank conflicts
constexpr int PAIRS_AT = 0;
constexpr int GAIN_AT = PAIRS_AT + 4 * CHANNELS * PAIR_PITCH + 16;   // the last line is read past its end
constexpr int PARTIAL_AT = GAIN_AT + (HAS_GAIN_STEP ? 4 * CHANNELS * LINE_PITCH : 0);
constexpr int B_MAP_AT = PARTIAL_AT + (HAS_Y ? 4 * CHANNELS * LANES * LINE_PITCH : 0);
constexpr int C_MAP_AT = B_MAP_AT + (B_VARIES ? MAP_BYTES : 0);
constexpr int CHANGE_AT = C_MAP_AT + (C_VARIES ? MAP_BYTES : 0);
constexpr int STAGES_AT = CHANGE_AT + (SEQUENCES == Sequences::Index ? 4 * STEPS : 0);
constexpr int X_AT = 0;
constexpr int DT_AT = X_AT + XTile::BYTES;
constexpr int OWN_AT = DT_AT + DtTile::BYTES;
constexpr int Z_AT = OWN_AT + (HAS_OWN_STEP ? OwnTile::BYTES : 0);
constexpr int B_AT = Z_AT + (HAS_Z ? ZTile::BYTES : 0);
constexpr int C_AT = B_AT + (B_VARIES ? BTile::BYTES : 0);
constexpr int STAGE_BYTES = C_AT + (C_VARIES ? CTile::BYTES : 0);
static_assert(STAGES_AT + 2 * STAGE_BYTES == SHARED, "the plan and the kernel agree on shared memory");

// ---- prepare

// Four steps of a channel as they are stored.
struct Stored {
  Quad<X> x;
  Quad<DT> dt;
  Quad<OWN_STEP> own;
};

template <bool WHOLE> DEVICE void prepare_pairs(const Params& p, char* shared, char* raw, Window<WHOLE> window, const f32* biases) {
  auto load = [&](Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    stored.x = XTile::read4(raw + X_AT, place.channel, place.step);
    stored.dt = DtTile::read4(raw + DT_AT, place.channel, place.step);
    if constexpr (HAS_OWN_STEP) stored.own = OwnTile::read4(raw + OWN_AT, place.channel, place.step);
  };
  each_loaded<QUADS, THREADS, Stored>(load, [&](const Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    f32 d[4], u[4], decay[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = window.has(place.step + j);
      d[j] = to_f32(stored.dt.v[j]);
      if constexpr (HAS_BIAS) d[j] += biases[place.channel];
      d[j] = effective_step(p, d[j]);
      u[j] = to_f32(stored.x.v[j]);
      if constexpr (Method::INPUT_STEP) u[j] *= d[j];
      u[j] = inside ? u[j] : 0.f;
      d[j] = inside ? d[j] : 0.f;
      decay[j] = HAS_OWN_STEP ? (inside ? to_f32(stored.own.v[j]) : 0.f) : d[j];
    }
    float4* const to = reinterpret_cast<float4*>(reinterpret_cast<f32*>(shared + PAIRS_AT) + place.channel * PAIR_PITCH + 2 * place.step);
    to[0] = make_float4(decay[0], u[0], decay[1], u[1]);
    to[1] = make_float4(decay[2], u[2], decay[3], u[3]);
    if constexpr (HAS_GAIN_STEP)
      *reinterpret_cast<float4*>(reinterpret_cast<f32*>(shared + GAIN_AT) + place.channel * LINE_PITCH + place.step) =
          make_float4(d[0], d[1], d[2], d[3]);
  });
}

template <bool WHOLE>
DEVICE void prepare(const Params& p, char* shared, char* raw, Window<WHOLE> window, bool outputs, const f32* biases) {
  prepare_pairs(p, shared, raw, window, biases);
  if constexpr (B_VARIES) prepare_map<BTile>(shared + B_MAP_AT, raw + B_AT, window);
  if (C_VARIES && outputs) prepare_map<CTile>(shared + C_MAP_AT, raw + C_AT, window);
}

// ---- scan

DEVICE void load_pairs(const char* shared, int channel, int step, float4 (&pair)[2]) {
  const f32* line = reinterpret_cast<const f32*>(shared + PAIRS_AT) + channel * PAIR_PITCH;
  const float4* from = reinterpret_cast<const float4*>(line + 2 * step);
  pair[0] = from[0], pair[1] = from[1];
}

// ---- finish

template <bool WHOLE>
DEVICE void finish(const Params& p, const char* shared, char* raw, Window<WHOLE> window, Y* tile, int channels, const f32* skips) {
  each<QUADS, THREADS>([&](int i, int) {
    const Place<Y_BY_TIME> place(i);
    f32 y[4];
#pragma unroll
    for (int l = 0; l < LANES; l++) {
      const f32* line = reinterpret_cast<const f32*>(shared + PARTIAL_AT) + (place.channel * LANES + l) * LINE_PITCH;
      const float4 v = *reinterpret_cast<const float4*>(line + place.step);
      if (l == 0) {
        y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
      } else {
        y[0] += v.x, y[1] += v.y, y[2] += v.z, y[3] += v.w;
      }
    }
    if (!WHOLE && place.channel >= channels) return;
    Quad<X> x;
    Quad<Z> z;
    if constexpr (HAS_SKIP) x = XTile::read4(raw + X_AT, place.channel, place.step);
    if constexpr (HAS_Z) z = ZTile::read4(raw + Z_AT, place.channel, place.step);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if constexpr (COMPLEX) y[j] *= 2.f;
      if constexpr (HAS_SKIP) y[j] = __fmaf_rn(skips[place.channel], to_f32(x.v[j]), y[j]);
      if constexpr (HAS_Z) y[j] *= silu(to_f32(z.v[j]));
    }
    Y* const to = tile + (place.channel * p.y.stride[1] + (Y_VECTOR ? place.step : place.step * p.y.stride[2]));
    store4<Y_VECTOR, WHOLE>(to, p.y.stride[2], y, window.low - place.step, window.high - place.step);
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_scan_forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];

  const int lane = threadIdx.x % LANES, own_channel = threadIdx.x / LANES;

  const Work w = Work::of<PASS == Pass::Rest>(p);
  // what starts from zero for want of the right state is scanned again
  const bool outputs = PASS != Pass::Ends || w.segment == 0;
  const int channel = w.first + own_channel;
  // the state of a sequence before its first step, and where the state after its last step goes
  auto initial_of = [&](i64 sequence, int n) {
    if constexpr (HAS_INITIAL) return state_of<INITIAL>(p, p.initial, w.row, sequence, channel, n);
    return Field{};
  };
  auto finish_sequence = [&](i64 sequence, int n, Field h) {
    if constexpr (HAS_FINAL && PASS != Pass::Ends) put_state<FINAL>(p, p.final, w.row, sequence, channel, n, h);
  };
  // whether the r-th state of this thread exists
  auto exists = [&](int r) { return own_channel < w.channels && (!RAGGED || r * LANES + lane < DSTATE); };
  Field a[STATES], h[STATES], b_own[STATES], c_own[STATES];
  // without numbers there is one state in a row: the first sequence starts from it and the last one leaves it
  i64 sequence = 0;
  if constexpr (NUMBERED) sequence = p.seqlen > 0 ? index_of(p.sequences, w.batch, 0) : -1;
#pragma unroll
  for (int r = 0; r < STATES; r++) {
    const int n = r * LANES + lane;
    a[r] = h[r] = b_own[r] = c_own[r] = Field{};
    if (!exists(r)) continue;
    Field raw;
    convert(raw, *at<A>(p.a, channel, n));
    a[r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(b_own[r], *at<B>(p.b, channel, n));
    if constexpr (!C_VARIES) convert(c_own[r], *at<C>(p.c, channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand their state on
      for (i64 s = 0; s < p.sequence_count; s++) finish_sequence(s, n, initial_of(s, n));
    }
    if constexpr (PASS != Pass::Rest) {
      if (outputs) h[r] = initial_of(sequence, n);
    } else {
#pragma unroll 4
      for (int s = 0; s < w.segment; s++) {
        const i64 place = s * p.segment_channels + w.row * p.dim + channel;
        const f32 steps = sums_of_steps(p, p.workspace)[place];
        Field end;
        convert(end, p.workspace[place * DSTATE + n]);
        h[r] = s == 0 ? end : mul_add(Method::decay(a[r], steps), h[r], end);
      }
    }
  }
  for (int i = threadIdx.x; i < w.channels; i += THREADS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
  __syncthreads();

  const i64 first_tile = w.start / STEPS, last_tile = w.start < w.end ? (w.end - 1) / STEPS : first_tile - 1;
  const i64 origin = first_tile * STEPS;
  XTile::Source x(at<X>(p.x, w.batch, w.first, origin), p.x.stride[1], p.x.stride[2], w.channels);
  DtTile::Source dt(at<DT>(p.dt, w.batch, w.first, origin), p.dt.stride[1], p.dt.stride[2], w.channels);
  OwnTile::Source own(at<OWN_STEP>(p.own_step, w.batch, w.first, origin), p.own_step.stride[1], p.own_step.stride[2], w.channels);
  BTile::Source b_source(at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, origin), p.b.stride[2], p.b.stride[3], DSTATE);
  CTile::Source c_source(at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, origin), p.c.stride[2], p.c.stride[3], DSTATE);
  ZTile::Source z(at<Z>(p.z, w.batch, w.first, origin), p.z.stride[1], p.z.stride[2], w.channels);
  Y* y_to = at<Y>(p.y, w.batch, w.first, origin);

  auto stage = [&](i64 tile) { return shared + STAGES_AT + int(tile & 1) * STAGE_BYTES; };
  auto copy = [&](i64 tile) {
    if (tile > last_tile) return;
    char* const raw = stage(tile);
    const int steps = int(min(i64(STEPS), p.seqlen - tile * STEPS));
    auto load = [&](auto whole) {
      constexpr bool WHOLE = decltype(whole)::VALUE;
      x.template load<WHOLE>(raw + X_AT, steps);
      dt.template load<WHOLE>(raw + DT_AT, steps);
      if constexpr (HAS_OWN_STEP) own.template load<WHOLE>(raw + OWN_AT, steps);
      if (HAS_Z && outputs) z.template load<WHOLE>(raw + Z_AT, steps);
      if constexpr (B_VARIES) b_source.template load<WHOLE>(raw + B_AT, steps);
      if (C_VARIES && outputs) c_source.template load<WHOLE>(raw + C_AT, steps);
    };
    if (steps == STEPS && w.channels == CHANNELS)
      load(Flag<true>());
    else
      load(Flag<false>());
    copy_async_commit();
  };

  f32 steps_in_all = 0.f;
  auto scan = [&](i64 tile, auto wanted) {
    constexpr bool OUTPUTS = HAS_Y && decltype(wanted)::VALUE;
    f32 steps_of_tile = 0.f;
    float4 pair[2];
    load_pairs(shared, own_channel, 0, pair);
#pragma unroll UNROLL
    for (int step = 0; step < STEPS; step += 4) {
      const f32 decay_step[4] = {pair[0].x, pair[0].z, pair[1].x, pair[1].z};
      const f32 input[4] = {pair[0].y, pair[0].w, pair[1].y, pair[1].w};
      f32 gain_step[4] = {decay_step[0], decay_step[1], decay_step[2], decay_step[3]}, y[4] = {};
      if constexpr (HAS_GAIN_STEP) {
        const f32* line = reinterpret_cast<const f32*>(shared + GAIN_AT) + own_channel * LINE_PITCH;
        const float4 g = *reinterpret_cast<const float4*>(line + step);
        gain_step[0] = g.x, gain_step[1] = g.y, gain_step[2] = g.z, gain_step[3] = g.w;
      }
      if constexpr (PASS == Pass::Ends) steps_of_tile += (decay_step[0] + decay_step[1]) + (decay_step[2] + decay_step[3]);
      // the next four steps arrive while these are computed; past the end it is the padding of the line
      load_pairs(shared, own_channel, step + 4, pair);
      int4 changes = {};
      if constexpr (SEQUENCES == Sequences::Index) changes = *reinterpret_cast<const int4*>(shared + CHANGE_AT + 4 * step);
#pragma unroll
      for (int r = 0; r < STATES; r++) {
        const int n = r * LANES + lane;
        Field b[4], c[4];
        if constexpr (B_VARIES) read_map(shared + B_MAP_AT, step, n, b);
        if constexpr (C_VARIES && OUTPUTS) read_map(shared + C_MAP_AT, step, n, c);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if constexpr (SEQUENCES == Sequences::Index) {
            const int changed = j == 0 ? changes.x : j == 1 ? changes.y : j == 2 ? changes.z : changes.w;
            if (changed && NUMBERED && exists(r)) {
              const i64 t = tile * STEPS + step + j;
              finish_sequence(index_of(p.sequences, w.batch, t - 1), n, h[r]);
              h[r] = initial_of(index_of(p.sequences, w.batch, t), n);
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
      if constexpr (OUTPUTS) {
        f32* line = reinterpret_cast<f32*>(shared + PARTIAL_AT) + threadIdx.x * LINE_PITCH;
        *reinterpret_cast<float4*>(line + step) = make_float4(y[0], y[1], y[2], y[3]);
      }
    }
    steps_in_all += steps_of_tile;
  };

  copy(first_tile);
  for (i64 tile = first_tile; tile <= last_tile; tile++) {
    char* const raw = stage(tile);
    const int low = int(max(w.start - tile * STEPS, i64(0))), high = int(min(i64(STEPS), w.end - tile * STEPS));
    const bool whole = low == 0 && high == STEPS && w.channels == CHANNELS;
    copy_async_wait();
    __syncthreads();
    copy(tile + 1);
    if (whole)
      prepare(p, shared, raw, Window<true>{low, high}, outputs, biases);
    else
      prepare(p, shared, raw, Window<false>{low, high}, outputs, biases);
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, shared + CHANGE_AT);
    __syncthreads();

    if constexpr (HAS_CHECKPOINTS) {
      const i64 step = tile * STEPS;
      if (outputs && step % CHECKPOINT == 0 && (PASS == Pass::Rest || step > w.start)) {
        const i64 saved = (p.seqlen - 1) / CHECKPOINT;
        Field* const to = reinterpret_cast<Field*>(p.checkpoints) + (w.batch * saved + step / CHECKPOINT - 1) * p.dim * DSTATE;
#pragma unroll
        for (int r = 0; r < STATES; r++)
          if (exists(r)) to[i64(channel) * DSTATE + r * LANES + lane] = h[r];
      }
    }

    if (outputs)
      scan(tile, Flag<true>());
    else
      scan(tile, Flag<false>());
    if (HAS_Y && outputs) {
      __syncthreads();
      if (whole)
        finish(p, shared, raw, Window<true>{low, high}, y_to, w.channels, skips);
      else
        finish(p, shared, raw, Window<false>{low, high}, y_to, w.channels, skips);
      y_to += STEPS * p.y.stride[2];
    }
  }

  if constexpr (NUMBERED) sequence = p.seqlen > 0 ? index_of(p.sequences, w.batch, p.seqlen - 1) : -1;
  if constexpr (PASS == Pass::Ends) {
    const i64 place = w.segment * p.segment_channels + w.row * p.dim + channel;
#pragma unroll
    for (int r = 0; r < STATES; r++)
      if (exists(r)) p.workspace[place * DSTATE + r * LANES + lane] = part_of(h[r], 0);
    if (lane == 0 && own_channel < w.channels) sums_of_steps(p, p.workspace)[place] = steps_in_all;
  }
  if (PASS == Pass::Rest && w.end < p.seqlen) return;
#pragma unroll
  for (int r = 0; r < STATES; r++)
    if (exists(r)) finish_sequence(sequence, r * LANES + lane, h[r]);
}
