// Selective scan, backward. A block owns CHANNELS channels of one row (or packed sequence). LANES threads share a channel, and a thread has
// WIDTH channels: it owns the states lane, lane + LANES, .. of each. Time is walked in tiles of STEPS, and from saved state to saved state:
//
//   forwards  from a saved state through CHECKPOINT steps; every SPAN steps a thread leaves its states in shared memory
//   backwards through the same tiles, SPAN steps at a time: states and decays of one channel and state are computed again in registers, then
//             the gradient of the state is carried back over them
//
// Gradients of x, dt and z are sums over the states, thus over lanes; those of B and C are sums over the channels. Both are formed by a warp in
// its piece of shared memory after each span, in a fixed order. What a block has for B and C is one term of a sum over blocks, and what it has
// for A, D and the bias is one of a sum over rows; they go to the workspace, and reduce.cu adds them.
//
// Per state and step: four instructions forwards, twelve backwards, two exponentials. Steps outside of a sequence get a step of zero, inputs
// and cotangents of zero, which leave a state and its gradient as they are.

struct Params : Inputs {
  Tensor dy, dx, ddt, dz, down;          // (batch, channel, step)
  Tensor dfinal, dinitial;               // (row, sequence, channel, state)
  const f32* checkpoints;                // dense (batch, saved, channel, state, part)
  f32* ends;                             // dense (segment, row, channel, state), the first segment left out; then sums of decay steps
  f32 *db, *dc;                          // dense (batch, block, part, state, step), or (line, part, channel, state) of a constant map
  f32* da;                               // dense (line, part, channel, state), a line for each row of each segment
  f32 *dskip, *dbias;                    // dense (line, channel)
};

constexpr int SLOTS = CHANNELS / WIDTH;          // channels side by side
constexpr int SPANS = STEPS / SPAN, SPAN_QUADS = SPAN / 4;
constexpr int PIECES = CHECKPOINT / STEPS;       // tiles from one saved state to the next
constexpr int WARPS = THREADS / 32, WARP_SLOTS = 32 / LANES;
constexpr bool NARROW_B = COMPLEX && !B_COMPLEX, NARROW_C = COMPLEX && !C_COMPLEX;
static_assert(THREADS == SLOTS * LANES && THREADS % 32 == 0 && 32 % LANES == 0, "whole warps, whole channels in a warp");

// what lies in shared memory for each channel and step: first inputs, then sums over the states in place of some of them
constexpr int PLANE_STEP = 0, PLANE_INPUT = 1, PLANE_COTANGENT = 2, PLANE_OWN_STEP = 3;
constexpr int SUM_INPUT = 0, SUM_DECAY = 1, SUM_STEP = 2, SUM_OUTPUT = Method::GAIN ? 3 : 2, SUMS = SUM_OUTPUT + HAS_DZ;
constexpr int FIRST_SUM = 1;                     // the plane of the first sum
constexpr int PLANES = (HAS_OWN_STEP || FIRST_SUM + SUMS > 3) ? (FIRST_SUM + SUMS > 4 ? FIRST_SUM + SUMS : 4) : 3;
constexpr int PLANE_BYTES = 4 * CHANNELS * LINE_PITCH;

typedef RawTile<DY, DY_COPY, CHANNELS, STEPS, THREADS> DyTile;

constexpr bool ENDS = PASS == Pass::Ends;
constexpr int SCRATCH_QUADS = WIDTH * SUMS > STATES * PARTS ? WIDTH * SUMS * SPAN_QUADS : STATES * PARTS * SPAN_QUADS;
constexpr int SCRATCH_BYTES = 512 * SCRATCH_QUADS;             // of a warp
constexpr int MAPS = (B_VARIES && HAS_DB) + (C_VARIES && HAS_DC);
constexpr int SAVED_AT = PLANES * PLANE_BYTES;
constexpr int B_MAP_AT = SAVED_AT + CHECKPOINT / SPAN * WIDTH * STATES * THREADS * int(sizeof(Field));
constexpr int C_MAP_AT = B_MAP_AT + (B_VARIES ? MAP_BYTES : 0);
constexpr int SCRATCH_AT = C_MAP_AT + (C_VARIES ? MAP_BYTES : 0);
constexpr int SUMMED_AT = SCRATCH_AT + WARPS * SCRATCH_BYTES;  // of B and C by warps
constexpr int CHANGE_AT = SUMMED_AT + WARPS * MAPS * MAP_BYTES;
constexpr int STAGES_AT = CHANGE_AT + (SEQUENCES == Sequences::Index ? 4 * STEPS : 0);
constexpr int X_AT = 0;
constexpr int DT_AT = X_AT + XTile::BYTES;
constexpr int OWN_AT = DT_AT + DtTile::BYTES;
constexpr int DY_AT = OWN_AT + (HAS_OWN_STEP ? OwnTile::BYTES : 0);
constexpr int Z_AT = DY_AT + (HAS_DY ? DyTile::BYTES : 0);
constexpr int B_AT = Z_AT + (HAS_Z ? ZTile::BYTES : 0);
constexpr int C_AT = B_AT + (B_VARIES ? BTile::BYTES : 0);
constexpr int STAGE_BYTES = C_AT + (C_VARIES ? CTile::BYTES : 0);
static_assert(STAGES_AT + 2 * STAGE_BYTES == SHARED, "the plan and the kernel agree on shared memory");

DEVICE float4* plane_quad(char* shared, int plane, int channel, int step) {
  return reinterpret_cast<float4*>(shared + plane * PLANE_BYTES + 4 * (channel * LINE_PITCH + step));
}
DEVICE void read_plane(char* shared, int plane, int channel, int step, f32* out) {
  const float4 v = *plane_quad(shared, plane, channel, step);
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}
DEVICE float4 quad_of(const f32* v) { return make_float4(v[0], v[1], v[2], v[3]); }

// ---- the order of tiles

// Forwards from one saved state to the next, and back; from the last saved state to the first. A tile at the turn is visited once for both.
struct Walk {
  i64 tile, low, top, first;
  bool rising;
  DEVICE Walk(i64 first, i64 last) : top(last), first(first) { begin(); }
  DEVICE void begin() {
    low = max(first, top / PIECES * PIECES);
    tile = ENDS ? top : low, rising = !ENDS;
  }
  DEVICE bool done() const { return top < first; }
  DEVICE bool back() const { return !rising || tile == top; }
  DEVICE void advance() {
    if (rising && tile < top) {
      tile++;
    } else if (tile > low) {
      rising = false, tile--;
    } else {
      top = low - 1;
      begin();
    }
  }
};

// ---- prepare

struct Stored {
  Quad<X> x;
  Quad<DT> dt;
  Quad<OWN_STEP> own;
  Quad<DY> dy;
  Quad<Z> z;
};

template <bool WHOLE>
DEVICE void prepare(const Params& p, char* shared, char* raw, Window<WHOLE> window, bool back, int channels, const f32* biases) {
  auto load = [&](Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    stored.x = XTile::read4(raw + X_AT, place.channel, place.step);
    stored.dt = DtTile::read4(raw + DT_AT, place.channel, place.step);
    if constexpr (HAS_OWN_STEP) stored.own = OwnTile::read4(raw + OWN_AT, place.channel, place.step);
    if (HAS_DY && back) stored.dy = DyTile::read4(raw + DY_AT, place.channel, place.step);
    if (HAS_Z && back) stored.z = ZTile::read4(raw + Z_AT, place.channel, place.step);
  };
  each_loaded<QUADS, THREADS, Stored>(load, [&](const Stored& stored, int i) {
    const Place<XTile::BY_TIME> place(i);
    f32 d[4], u[4], own[4], q[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = WHOLE || (window.has(place.step + j) && place.channel < channels);
      d[j] = to_f32(stored.dt.v[j]);
      if constexpr (HAS_BIAS) d[j] += biases[place.channel];
      d[j] = effective_step(p, d[j]);
      u[j] = to_f32(stored.x.v[j]);
      if constexpr (Method::INPUT_STEP) u[j] *= d[j];
      if (HAS_DY && back) {
        q[j] = to_f32(stored.dy.v[j]) * (COMPLEX ? 2.f : 1.f);
        if constexpr (HAS_Z) q[j] *= silu(to_f32(stored.z.v[j]));
        q[j] = inside ? q[j] : 0.f;
      }
      u[j] = inside ? u[j] : 0.f;
      d[j] = inside ? d[j] : 0.f;
      if constexpr (HAS_OWN_STEP) own[j] = inside ? to_f32(stored.own.v[j]) : 0.f;
    }
    *plane_quad(shared, PLANE_STEP, place.channel, place.step) = quad_of(d);
    *plane_quad(shared, PLANE_INPUT, place.channel, place.step) = quad_of(u);
    if (back) *plane_quad(shared, PLANE_COTANGENT, place.channel, place.step) = quad_of(q);
    if constexpr (HAS_OWN_STEP) *plane_quad(shared, PLANE_OWN_STEP, place.channel, place.step) = quad_of(own);
  });
  if constexpr (B_VARIES) prepare_map<BTile>(shared + B_MAP_AT, raw + B_AT, window);
  if (C_VARIES && back) prepare_map<CTile>(shared + C_MAP_AT, raw + C_AT, window);
}

// ---- sums of a span: each thread of a warp writes its quads, then reads those that it adds

// Sums over the lanes of a channel, into the planes.
DEVICE void sum_lanes(char* shared, const float4* scratch, int slot_of_warp, int span) {
#pragma unroll
  for (int i = threadIdx.x % 32; i < WIDTH * SUMS * SPAN_QUADS * WARP_SLOTS; i += 32) {
    const int slot = i % WARP_SLOTS, q = i / WARP_SLOTS;
    // each slot begins with another lane, against bank conflicts
    const int shift = LANES >= 8 ? slot : slot * LANES / 8;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int l = 0; l < LANES; l++) {
      const float4 v = scratch[q * 32 + slot * LANES + (l + shift) % LANES];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const int k = q / (SUMS * SPAN_QUADS), s = q / SPAN_QUADS % SUMS, step = span * SPAN + 4 * (q % SPAN_QUADS);
    *plane_quad(shared, FIRST_SUM + s, k * SLOTS + slot_of_warp + slot, step) = sum;
  }
}

// Sums over the channels of a warp, into its tile (state, part, step).
DEVICE void sum_channels(f32* summed, const float4* scratch, int span) {
#pragma unroll
  for (int i = threadIdx.x % 32; i < STATES * PARTS * SPAN_QUADS * LANES; i += 32) {
    const int lane = i % LANES, q = i / LANES;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int slot = 0; slot < WARP_SLOTS; slot++) {
      const float4 v = scratch[q * 32 + (slot + q) % WARP_SLOTS * LANES + lane];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const int part = q / SPAN_QUADS % PARTS, state = q / (SPAN_QUADS * PARTS) * LANES + lane;
    *reinterpret_cast<float4*>(summed + (state * PARTS + part) * STEPS + span * SPAN + 4 * (q % SPAN_QUADS)) = sum;
  }
}

DEVICE void write_gradients(float4* scratch, const Field (&grads)[STATES][SPAN]) {
#pragma unroll
  for (int r = 0; r < STATES; r++)
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int q = 0; q < SPAN_QUADS; q++) {
        const Field* v = grads[r] + 4 * q;
        scratch[((r * PARTS + part) * SPAN_QUADS + q) * 32 + threadIdx.x % 32] =
            make_float4(part_of(v[0], part), part_of(v[1], part), part_of(v[2], part), part_of(v[3], part));
      }
}

// ---- finish

// What the block has for a varying map: the sum over its warps, to the block's place in the workspace.
template <bool NARROW> DEVICE void finish_map(f32* to, i64 seqlen, i64 first_step, const char* summed, int low, int high) {
  constexpr int ROW_QUADS = STEPS / 4;
  each<(NARROW ? 1 : PARTS) * PADDED * ROW_QUADS, THREADS>([&](int i, int) {
    const int step = 4 * (i % ROW_QUADS), state = i / ROW_QUADS % PADDED, part = i / (ROW_QUADS * PADDED);
    if (RAGGED && state >= DSTATE) return;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
      const char* const tile = summed + warp * MAPS * MAP_BYTES;
      const float4 v = *reinterpret_cast<const float4*>(tile + 4 * ((state * PARTS + part) * STEPS + step));
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    f32* const row = to + (i64(part) * DSTATE + state) * seqlen + first_step + step;
    if (TERMS_VECTOR && low <= step && high >= step + 4) {
      *reinterpret_cast<float4*>(row) = sum;
    } else {
      const f32 v[4] = {sum.x, sum.y, sum.z, sum.w};
      for (int j = 0; j < 4; j++)
        if (step + j >= low && step + j < high) row[j] = v[j];
    }
  });
}

// Of a thread's channels in `finish`, one for each round: gradients of the skip and of the bias.
constexpr int ROUNDS = (QUADS + THREADS - 1) / THREADS;
struct ChannelSums { f32 skip[ROUNDS], bias[ROUNDS]; };

template <bool WHOLE>
DEVICE void finish(const Params& p, const Work& w, char* shared, char* raw, Window<WHOLE> window, i64 tile, const f32* skips,
                   const f32* biases, ChannelSums& channel_sums) {
  each<QUADS, THREADS>([&](int i, int round) {
    const Place<OUT_BY_TIME> place(i);
    if (!WHOLE && place.channel >= w.channels) return;
    const Quad<X> x_raw = XTile::read4(raw + X_AT, place.channel, place.step);
    const Quad<DT> dt_raw = DtTile::read4(raw + DT_AT, place.channel, place.step);
    Quad<DY> dy_raw = {};
    Quad<Z> z_raw = {};
    if constexpr (HAS_DY) dy_raw = DyTile::read4(raw + DY_AT, place.channel, place.step);
    if constexpr (HAS_Z) z_raw = ZTile::read4(raw + Z_AT, place.channel, place.step);
    f32 sums[SUMS][4], d[4], dx[4], ddt[4], dz[4], down[4];
#pragma unroll
    for (int s = 0; s < SUMS; s++) read_plane(shared, FIRST_SUM + s, place.channel, place.step, sums[s]);
    read_plane(shared, PLANE_STEP, place.channel, place.step, d);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const bool inside = window.has(place.step + j);
      const f32 x = to_f32(x_raw.v[j]), dy = HAS_DY ? to_f32(dy_raw.v[j]) : 0.f;
      f32 before_gate = dy, gate_slope = 0.f;
      if constexpr (HAS_Z) {
        const f32 z = to_f32(z_raw.v[j]), s = sigmoid(z);
        before_gate *= z * s, gate_slope = s * __fmaf_rn(z, 1.f - s, 1.f);
      }
      const f32 input = sums[SUM_INPUT][j];
      dx[j] = Method::INPUT_STEP ? d[j] * input : input;
      if constexpr (HAS_SKIP) dx[j] = __fmaf_rn(skips[place.channel], before_gate, dx[j]);
      if constexpr (HAS_DZ) {
        f32 y = sums[SUM_OUTPUT][j] * (COMPLEX ? 2.f : 1.f);
        if constexpr (HAS_SKIP) y = __fmaf_rn(skips[place.channel], x, y);
        dz[j] = dy * y * gate_slope;
      }
      ddt[j] = HAS_OWN_STEP ? 0.f : sums[SUM_DECAY][j];
      if constexpr (Method::INPUT_STEP) ddt[j] = __fmaf_rn(x, Method::GAIN ? sums[SUM_STEP][j] : input, ddt[j]);
      down[j] = sums[SUM_DECAY][j];
      if constexpr (SOFTPLUS || HAS_LIMIT) {
        f32 v = to_f32(dt_raw.v[j]);
        if constexpr (HAS_BIAS) v += biases[place.channel];
        f32 slope = SOFTPLUS && !(v > 20.f) ? sigmoid(v) : 1.f;
        if constexpr (HAS_LIMIT) {
          const f32 free = SOFTPLUS ? softplus(v) : v;
          if (free < p.dt_low || free > p.dt_high) slope = 0.f;
        }
        ddt[j] *= slope;
      }
      if constexpr (HAS_DSKIP) channel_sums.skip[round] += inside ? before_gate * x : 0.f;
      if constexpr (HAS_DBIAS) channel_sums.bias[round] += inside ? ddt[j] : 0.f;
    }
    const int low = window.low - place.step, high = window.high - place.step;
    auto store = [&](auto* first, i64 stride, auto vector, const f32(&v)[4]) {
      store4<decltype(vector)::VALUE, WHOLE>(first, stride, v, low, high);
    };
    const i64 channel = w.first + place.channel, step = tile * STEPS + place.step;
    if constexpr (HAS_DX) store(at<DX>(p.dx, w.batch, channel, step), p.dx.stride[2], Flag<DX_VECTOR>(), dx);
    if constexpr (HAS_DDT) store(at<DDT>(p.ddt, w.batch, channel, step), p.ddt.stride[2], Flag<DDT_VECTOR>(), ddt);
    if constexpr (HAS_DZ) store(at<DZ>(p.dz, w.batch, channel, step), p.dz.stride[2], Flag<DZ_VECTOR>(), dz);
    if constexpr (HAS_DOWN) store(at<DOWN>(p.down, w.batch, channel, step), p.down.stride[2], Flag<DOWN_VECTOR>(), down);
  });
}

// The sums of a channel over the quads of its threads; `sums` is of shared memory and free.
DEVICE void finish_channels(f32* to, f32* sums, const f32 (&own)[ROUNDS], int channels) {
  __syncthreads();
  each<QUADS, THREADS>([&](int i, int round) { sums[i] = own[round]; });
  __syncthreads();
  for (int channel = threadIdx.x; channel < channels; channel += THREADS) {
    f32 sum = 0.f;
    for (int q = 0; q < STEPS / 4; q++) sum += sums[OUT_BY_TIME ? channel * (STEPS / 4) + q : q * CHANNELS + channel];
    to[channel] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_scan_backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];

  const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, warp = threadIdx.x / 32;
  const Work w = Work::of<ENDS>(p);
  auto own_channel = [&](int k) { return k * SLOTS + slot; };
  auto exists = [&](int k, int r) { return own_channel(k) < w.channels && (!RAGGED || r * LANES + lane < DSTATE); };
  auto initial_of = [&](i64 sequence, int k, int r) {
    if constexpr (HAS_INITIAL) {
      if (exists(k, r)) return state_of<INITIAL>(p, p.initial, w.row, sequence, w.first + own_channel(k), r * LANES + lane);
    }
    return Field{};
  };
  auto final_gradient_of = [&](i64 sequence, int k, int r) {
    if constexpr (HAS_DFINAL) {
      if (exists(k, r)) return state_of<DFINAL>(p, p.dfinal, w.row, sequence, w.first + own_channel(k), r * LANES + lane);
    }
    return Field{};
  };
  auto begin_sequence = [&](i64 sequence, int k, int r, Field g) {
    if constexpr (HAS_DINITIAL && !ENDS) {
      if (exists(k, r)) put_state<DINITIAL>(p, p.dinitial, w.row, sequence, w.first + own_channel(k), r * LANES + lane, g);
    }
  };
  // without numbers there is one state in a row: the first sequence starts from it and the last one leaves it
  auto sequence_at = [&](i64 step) { return !NUMBERED ? 0 : p.seqlen > 0 ? index_of(p.sequences, w.batch, step) : -1; };
  // each channel and state of this thread
  auto own = [&](auto job) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++)
#pragma unroll
      for (int r = 0; r < STATES; r++) job(k, r);
  };

  // the state; the gradient by the state after the steps that were not yet visited; gradients of what does not vary
  Field a[WIDTH][STATES], h[WIDTH][STATES], g[WIDTH][STATES], da[WIDTH][STATES];
  Field b_own[WIDTH][STATES], c_own[WIDTH][STATES], db_own[WIDTH][STATES], dc_own[WIDTH][STATES];
  own([&](int k, int r) {
    a[k][r] = h[k][r] = da[k][r] = b_own[k][r] = c_own[k][r] = db_own[k][r] = dc_own[k][r] = Field{};
    g[k][r] = final_gradient_of(sequence_at(p.seqlen - 1), k, r);
    if (!exists(k, r)) return;
    const i64 channel = w.first + own_channel(k);
    const int n = r * LANES + lane;
    Field raw;
    convert(raw, *at<A>(p.a, channel, n));
    a[k][r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(b_own[k][r], *at<B>(p.b, channel, n));
    if constexpr (!C_VARIES) convert(c_own[k][r], *at<C>(p.c, channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand the gradient on
      for (i64 s = 0; s < p.sequence_count; s++) begin_sequence(s, k, r, final_gradient_of(s, k, r));
    }
    if constexpr (PASS != Pass::Whole) {
      if (w.segment < p.last_segment) g[k][r] = Field{};
    }
    if constexpr (PASS == Pass::Rest) {
      for (i64 s = p.last_segment; s > w.segment; s--) {
        const i64 place = (s - 1) * p.segment_channels + w.row * p.dim + channel;
        Field end;
        convert(end, p.ends[place * DSTATE + n]);
        g[k][r] = s == p.last_segment ? end : mul_add(Method::decay(a[k][r], sums_of_steps(p, p.ends)[place]), g[k][r], end);
      }
    }
  });
  for (int i = threadIdx.x; i < w.channels; i += THREADS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
  __syncthreads();

  auto copy = [&](const Walk& walk, char* raw) {
    if (walk.done()) return;
    const i64 step = walk.tile * STEPS;
    const int steps = int(min(i64(STEPS), p.seqlen - step));
    const bool back = walk.back();
    auto load = [&](auto whole) {
      constexpr bool WHOLE = decltype(whole)::VALUE;
      auto timed = [&](auto tile, auto* from, const Tensor& v, int at) {
        typename decltype(tile)::Source(from, v.stride[1], v.stride[2], w.channels).template load<WHOLE>(raw + at, steps);
      };
      auto map = [&](auto tile, auto* from, const Tensor& v, int at) {
        typename decltype(tile)::Source(from, v.stride[2], v.stride[3], DSTATE).template load<WHOLE>(raw + at, steps);
      };
      timed(XTile(), at<X>(p.x, w.batch, w.first, step), p.x, X_AT);
      timed(DtTile(), at<DT>(p.dt, w.batch, w.first, step), p.dt, DT_AT);
      if constexpr (HAS_OWN_STEP) timed(OwnTile(), at<OWN_STEP>(p.own_step, w.batch, w.first, step), p.own_step, OWN_AT);
      if (HAS_DY && back) timed(DyTile(), at<DY>(p.dy, w.batch, w.first, step), p.dy, DY_AT);
      if (HAS_Z && back) timed(ZTile(), at<Z>(p.z, w.batch, w.first, step), p.z, Z_AT);
      if constexpr (B_VARIES) map(BTile(), at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, step), p.b, B_AT);
      if (C_VARIES && back) map(CTile(), at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, step), p.c, C_AT);
    };
    if (steps == STEPS && w.channels == CHANNELS)
      load(Flag<true>());
    else
      load(Flag<false>());
    copy_async_commit();
  };

  Field* const saved = reinterpret_cast<Field*>(shared + SAVED_AT);
  auto saved_state = [&](i64 span, int k, int r) -> Field& {
    const int within = int(span % (CHECKPOINT / SPAN));
    return saved[((within * WIDTH + k) * STATES + r) * THREADS + threadIdx.x];
  };
  auto changed = [&](int step) {
    return SEQUENCES == Sequences::Index && reinterpret_cast<const int*>(shared + CHANGE_AT)[step] != 0;
  };
  // the state before a step that begins a sequence
  auto first_state = [&](i64 step, int k, int r) { return NUMBERED ? initial_of(sequence_at(step), k, r) : Field{}; };
  auto read_steps = [&](int plane, int k, int step, f32 (&out)[SPAN]) {
#pragma unroll
    for (int j = 0; j < SPAN; j += 4) read_plane(shared, plane, own_channel(k), step + j, out + j);
  };
  auto read_states = [&](int map_at, int step, int r, Field (&out)[SPAN]) {
#pragma unroll
    for (int j = 0; j < SPAN; j += 4) read_map(shared + map_at, step + j, r * LANES + lane, out + j);
  };
  // the steps that decays take and those that gains take, which are the same ones unless decays have their own
  struct Steps { f32 decay[SPAN], gain[SPAN]; };
  auto read_both_steps = [&](int k, int step, Steps& d) {
    read_steps(HAS_OWN_STEP ? PLANE_OWN_STEP : PLANE_STEP, k, step, d.decay);
    read_steps(PLANE_STEP, k, step, d.gain);
  };

  auto forwards = [&](i64 tile, bool turn) {
#pragma unroll 1
    for (int span = 0; span < SPANS; span++) {
      const int step = span * SPAN;
      own([&](int k, int r) { saved_state(tile * SPANS + span, k, r) = h[k][r]; });
      if (turn && span == SPANS - 1) return;
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        Steps d;
        f32 u[SPAN];
        read_both_steps(k, step, d);
        read_steps(PLANE_INPUT, k, step, u);
#pragma unroll
        for (int r = 0; r < STATES; r++) {
          Field b[SPAN];
          if constexpr (B_VARIES) read_states(B_MAP_AT, step, r, b);
#pragma unroll
          for (int j = 0; j < SPAN; j++) {
            if (changed(step + j)) h[k][r] = first_state(tile * STEPS + step + j, k, r);
            const Field in = Method::amplify(a[k][r], d.gain[j], scale(B_VARIES ? b[j] : b_own[k][r], u[j]));
            h[k][r] = mul_add(Method::decay(a[k][r], d.decay[j]), h[k][r], in);
          }
        }
      }
    }
  };

  // the gradient of the state alone, for the first pass over segments
  f32 steps_in_all[WIDTH] = {};
  auto carry = [&]() {
#pragma unroll 1
    for (int span = SPANS - 1; span >= 0; span--) {
      const int step = span * SPAN;
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        f32 d[SPAN], q[SPAN];
        read_steps(HAS_OWN_STEP ? PLANE_OWN_STEP : PLANE_STEP, k, step, d);
        read_steps(PLANE_COTANGENT, k, step, q);
#pragma unroll
        for (int j = 0; j < SPAN; j++) steps_in_all[k] += d[j];
#pragma unroll
        for (int r = 0; r < STATES; r++) {
          Field c[SPAN];
          if constexpr (C_VARIES) read_states(C_MAP_AT, step, r, c);
#pragma unroll
          for (int j = SPAN - 1; j >= 0; j--)
            g[k][r] = mul(Method::decay(a[k][r], d[j]), scaled_conj_add(C_VARIES ? c[j] : c_own[k][r], q[j], g[k][r]));
        }
      }
    }
  };

  float4* const scratch = reinterpret_cast<float4*>(shared + SCRATCH_AT + warp * SCRATCH_BYTES);
  char* const summed = shared + SUMMED_AT + warp * MAPS * MAP_BYTES;
  constexpr int C_SUMMED = B_VARIES && HAS_DB ? MAP_BYTES : 0;
  auto backwards = [&](i64 tile) {
#pragma unroll 1
    for (int span = SPANS - 1; span >= 0; span--) {
      const int step = span * SPAN;
      const i64 first_step = tile * STEPS + step;
      Field db[STATES][SPAN] = {}, dc[STATES][SPAN] = {};
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        Steps d;
        f32 u[SPAN], q[SPAN], sums[SUMS][SPAN] = {};
        read_both_steps(k, step, d);
        read_steps(PLANE_INPUT, k, step, u);
        read_steps(PLANE_COTANGENT, k, step, q);
#pragma unroll
        for (int r = 0; r < STATES; r++) {
          Field b[SPAN], c[SPAN], decay[SPAN], before[SPAN], after[SPAN];
          if constexpr (B_VARIES) read_states(B_MAP_AT, step, r, b);
          if constexpr (C_VARIES) read_states(C_MAP_AT, step, r, c);
          const Field raw_a = Method::raw(a[k][r]);
          Field state = saved_state(tile * SPANS + span, k, r);
#pragma unroll
          for (int j = 0; j < SPAN; j++) {
            if (changed(step + j)) state = first_state(first_step + j, k, r);
            if constexpr (!B_VARIES) b[j] = b_own[k][r];
            if constexpr (!C_VARIES) c[j] = c_own[k][r];
            before[j] = state;
            decay[j] = Method::decay(a[k][r], d.decay[j]);
            state = mul_add(decay[j], state, Method::amplify(a[k][r], d.gain[j], scale(b[j], u[j])));
            after[j] = state;
          }
#pragma unroll
          for (int j = SPAN - 1; j >= 0; j--) {
            Field& carried = g[k][r];
            const Field grad = scaled_conj_add(c[j], q[j], carried);
            carried = mul_conj(grad, decay[j]);
            // by the exponent of the decay
            const Field by_exponent = mul_conj(Method::DECAY_IS_EXP ? carried : mul_conj(grad, Method::decay_slope(a[k][r], d.decay[j])), before[j]);
            sums[SUM_DECAY][j] = re_mul_conj_add(by_exponent, raw_a, sums[SUM_DECAY][j]);
            if constexpr (HAS_DA) da[k][r] = scaled_add(by_exponent, d.decay[j], da[k][r]);
            Field by_input = grad;   // by u B
            if constexpr (Method::GAIN) {
              const Field by_b = mul_conj(grad, b[j]);
              by_input = mul_conj(grad, Method::gain(a[k][r], d.gain[j]));
              sums[SUM_STEP][j] = re_mul_conj_add(by_b, Method::input_by_step(a[k][r], d.gain[j]), sums[SUM_STEP][j]);
              if constexpr (HAS_DA) da[k][r] = scaled_add(mul_conj(by_b, Method::input_by_a(a[k][r], d.gain[j])), u[j], da[k][r]);
            }
            sums[SUM_INPUT][j] = re_mul_conj_add(by_input, b[j], sums[SUM_INPUT][j]);
            if constexpr (HAS_DZ) sums[SUM_OUTPUT][j] = re_mul_add(c[j], after[j], sums[SUM_OUTPUT][j]);
            if constexpr (HAS_DB) {
              Field& to = B_VARIES ? db[r][j] : db_own[k][r];
              to = scaled_add(by_input, u[j], to);
            }
            if constexpr (HAS_DC) {
              Field& to = C_VARIES ? dc[r][j] : dc_own[k][r];
              to = scaled_conj_add(after[j], q[j], to);
            }
            if (changed(step + j)) {
              if constexpr (NUMBERED) begin_sequence(sequence_at(first_step + j), k, r, carried);
              carried = NUMBERED ? final_gradient_of(sequence_at(first_step + j - 1), k, r) : Field{};
            }
          }
        }
#pragma unroll
        for (int s = 0; s < SUMS; s++)
#pragma unroll
          for (int j = 0; j < SPAN_QUADS; j++) scratch[((k * SUMS + s) * SPAN_QUADS + j) * 32 + threadIdx.x % 32] = quad_of(sums[s] + 4 * j);
      }
      __syncwarp();
      sum_lanes(shared, scratch, warp * WARP_SLOTS, span);
      __syncwarp();
      if constexpr (B_VARIES && HAS_DB) {
        write_gradients(scratch, db);
        __syncwarp();
        sum_channels(reinterpret_cast<f32*>(summed), scratch, span);
        __syncwarp();
      }
      if constexpr (C_VARIES && HAS_DC) {
        write_gradients(scratch, dc);
        __syncwarp();
        sum_channels(reinterpret_cast<f32*>(summed + C_SUMMED), scratch, span);
        __syncwarp();
      }
    }
  };

  const i64 first_tile = w.start / STEPS, last_tile = w.start < w.end ? (w.end - 1) / STEPS : first_tile - 1;
  const i64 saved_count = (p.seqlen - 1) / CHECKPOINT;
  // the first step of the sequence, which no state was saved for
  const i64 sequence_start = PASS == Pass::Whole ? w.start : 0;
  ChannelSums channel_sums = {};
  Walk walk(first_tile, last_tile);
  char* raw = shared + STAGES_AT;
  char* other = raw + STAGE_BYTES;
  copy(walk, raw);
  while (!walk.done()) {
    const i64 tile = walk.tile;
    const bool back = walk.back(), rising = walk.rising, turn = rising && back;
    const bool from_saved = rising && tile == walk.low;
    const int low = int(max(w.start - tile * STEPS, i64(0))), high = int(min(i64(STEPS), w.end - tile * STEPS));
    const bool whole = low == 0 && high == STEPS && w.channels == CHANNELS;
    copy_async_wait();
    __syncthreads();
    walk.advance();
    copy(walk, other);
    if (from_saved) {
      const i64 step = tile * STEPS;
      own([&](int k, int r) {
        if (step > sequence_start) {
          const i64 place = ((w.batch * saved_count + step / CHECKPOINT - 1) * p.dim + w.first + own_channel(k)) * DSTATE + r * LANES + lane;
          h[k][r] = exists(k, r) ? reinterpret_cast<const Field*>(p.checkpoints)[place] : Field{};
        } else {
          h[k][r] = initial_of(sequence_at(0), k, r);
        }
      });
    }
    if (whole)
      prepare(p, shared, raw, Window<true>{low, high}, back, w.channels, biases);
    else
      prepare(p, shared, raw, Window<false>{low, high}, back, w.channels, biases);
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, shared + CHANGE_AT);
    __syncthreads();

    if constexpr (ENDS) {
      carry();
    } else {
      if (rising) forwards(tile, turn);
      if (back) {
        backwards(tile);
        __syncthreads();
        if (whole)
          finish(p, w, shared, raw, Window<true>{low, high}, tile, skips, biases, channel_sums);
        else
          finish(p, w, shared, raw, Window<false>{low, high}, tile, skips, biases, channel_sums);
        const char* const sums = shared + SUMMED_AT;
        const i64 block = w.batch * p.blocks_per_row + w.block;
        if constexpr (B_VARIES && HAS_DB)
          finish_map<NARROW_B>(p.db + block * (NARROW_B ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, tile * STEPS, sums, low, high);
        if constexpr (C_VARIES && HAS_DC)
          finish_map<NARROW_C>(p.dc + block * (NARROW_C ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, tile * STEPS, sums + C_SUMMED, low, high);
      }
    }
    char* const done = raw;
    raw = other, other = done;
  }

  if constexpr (ENDS) {
    own([&](int k, int r) {
      const i64 place = (w.segment - 1) * p.segment_channels + w.row * p.dim + w.first + own_channel(k);
      if (exists(k, r)) p.ends[place * DSTATE + r * LANES + lane] = part_of(g[k][r], 0);
      if (r == 0 && lane == 0 && own_channel(k) < w.channels) sums_of_steps(p, p.ends)[place] = steps_in_all[k];
    });
    return;
  }
  const i64 line = w.segment * (p.segment_channels / p.dim) + w.row;
  own([&](int k, int r) {
    if (!exists(k, r)) return;
    if (w.segment == 0) begin_sequence(sequence_at(0), k, r, g[k][r]);
    auto put = [&](f32* to, int parts, Field v) {
      for (int part = 0; part < parts; part++)
        to[((line * parts + part) * p.dim + w.first + own_channel(k)) * DSTATE + r * LANES + lane] = part_of(v, part);
    };
    if constexpr (HAS_DA) put(p.da, PARTS, da[k][r]);
    if constexpr (HAS_DB && !B_VARIES) put(p.db, NARROW_B ? 1 : PARTS, db_own[k][r]);
    if constexpr (HAS_DC && !C_VARIES) put(p.dc, NARROW_C ? 1 : PARTS, dc_own[k][r]);
  });
  if constexpr (HAS_DSKIP) finish_channels(p.dskip + line * p.dim + w.first, reinterpret_cast<f32*>(shared), channel_sums.skip, w.channels);
  if constexpr (HAS_DBIAS) finish_channels(p.dbias + line * p.dim + w.first, reinterpret_cast<f32*>(shared), channel_sums.bias, w.channels);
}
