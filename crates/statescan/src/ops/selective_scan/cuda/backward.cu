// Selective scan, backward. A block owns CHANNELS channels of one row (or packed sequence). LANES threads share a channel, and a thread has
// WIDTH channels: it owns the states lane, lane + LANES, .. of each. Time is walked in tiles of STEPS, and from saved state to saved state:
//
//   forwards  from a saved state through CHECKPOINT steps; every SPAN steps a thread leaves its states in shared memory
//   backwards through the same tiles, SPAN steps at a time: states and decays of one channel and state are computed again in registers, then
//             the gradient of the state is carried back over them
//
// Gradients of x, dt and z are sums over the states, thus over lanes; those of B and C are sums over the channels. Both are formed by exchange
// within a warp after each span, in a fixed order. What a block has for B and C is one term of a sum over blocks, and what it has
// for A, D and the bias is one of a sum over rows; they go to the workspace, and reduce.cu adds them.
//
// Per state and step: four instructions forwards, twelve backwards, two exponentials. Steps outside of a sequence get a step of zero, inputs
// and cotangents of zero, which leave a state and its gradient as they are.

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_scan_backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ f32 skips[CHANNELS], biases[CHANNELS];

  const int lane = lane_of_thread(), warp = threadIdx.x / 32, slot = warp * WARP_SLOTS + slot_of_thread();
  const Work w = Work::of<ENDS>(p);
  auto own_channel = [&](int k) { return k * SLOTS + slot; };
  auto exists = [&](int k, int r) { return own_channel(k) < w.channels && (!RAGGED || own_state(r) < DSTATE); };
  auto initial_of = [&](i64 sequence, int k, int r) {
    if constexpr (HAS_INITIAL) {
      if (exists(k, r)) return state_of<INITIAL>(p, p.initial, w.row, sequence, w.first + own_channel(k), own_state(r));
    }
    return Field{};
  };
  auto final_gradient_of = [&](i64 sequence, int k, int r) {
    if constexpr (HAS_DFINAL) {
      if (exists(k, r)) return state_of<DFINAL>(p, p.dfinal, w.row, sequence, w.first + own_channel(k), own_state(r));
    }
    return Field{};
  };
  auto begin_sequence = [&](i64 sequence, int k, int r, Field g) {
    if constexpr (HAS_DINITIAL && !ENDS) {
      if (exists(k, r)) put_state<DINITIAL>(p, p.dinitial, w.row, sequence, w.first + own_channel(k), own_state(r), g);
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

  // the gradient by the state after the steps that were not yet visited; gradients of what does not vary
  Field a[WIDTH][STATES], g[WIDTH][STATES], da[WIDTH][STATES];
  Field b_own[WIDTH][STATES], c_own[WIDTH][STATES], db_own[WIDTH][STATES], dc_own[WIDTH][STATES];
  own([&](int k, int r) {
    a[k][r] = da[k][r] = b_own[k][r] = c_own[k][r] = db_own[k][r] = dc_own[k][r] = Field{};
    g[k][r] = final_gradient_of(sequence_at(p.seqlen - 1), k, r);
    if (!exists(k, r)) return;
    const i64 channel = w.first + own_channel(k);
    const int n = own_state(r);
    Field raw;
    convert(raw, *at<A>(p.a, channel, n));
    a[k][r] = Method::prepare(raw);
    if constexpr (!B_VARIES) convert(b_own[k][r], *at<B>(p.b, channel, n));
    if constexpr (!C_VARIES) convert(c_own[k][r], *at<C>(p.c, channel, n));
    if constexpr (NUMBERED) {
      // sequences that do not occur hand the gradient on
#pragma unroll 1
      for (i64 s = 0; s < p.sequence_count; s++) begin_sequence(s, k, r, final_gradient_of(s, k, r));
    }
    if (PASS != Pass::Whole && w.segment < p.last_segment) g[k][r] = Field{};
  });
  if constexpr (PASS == Pass::Rest) {
    // from the gradients that segments leave on their own to what this one is handed; states side by side, because each load takes long
#pragma unroll 1
    for (i64 s = p.last_segment; s > w.segment; s--)
      own([&](int k, int r) {
        if (!exists(k, r)) return;
        const i64 place = (s - 1) * p.segment_channels + w.row * p.dim + w.first + own_channel(k);
        Field end;
        convert(end, p.ends[place * DSTATE + own_state(r)]);
        g[k][r] = s == p.last_segment ? end : mul_add(Method::decay(a[k][r], sums_of_steps(p, p.ends)[place]), g[k][r], end);
      });
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < w.channels; i += THREADS) {
    if constexpr (HAS_SKIP) skips[i] = to_f32(*at<SKIP>(p.skip, w.first + i));
    if constexpr (HAS_BIAS) biases[i] = to_f32(*at<BIAS>(p.bias, w.first + i));
  }
  __syncthreads();

  auto copy = [&](const Walk& walk, char* raw) {
    if (walk.done()) return;
    const i64 step = i64(walk.tile) * STEPS;
    const int steps = int(min(i64(STEPS), p.seqlen - step));
    const bool back = walk.back();
    const Span span(step, p.seqlen);
    auto each_source = [&](auto job) {
      auto timed = [&](auto tile, auto* from, const Strided& v, int at) {
        job(typename decltype(tile)::Source(from, v.stride[1], v.stride[2], w.channels, Span(w.first, p.dim)), at);
      };
      auto map = [&](auto tile, auto* from, const Strided& v, int at) {
        job(typename decltype(tile)::Source(from, v.stride[2], v.stride[3], DSTATE, Span(0, DSTATE)), at);
      };
      if constexpr (!ENDS) timed(XTile(), at<X>(p.x, w.batch, w.first, step), p.x, X_AT);
      timed(DtTile(), at<DT>(p.dt, w.batch, w.first, step), p.dt, DT_AT);
      if constexpr (HAS_DT_A) timed(DtATile(), at<DT_A>(p.dt_a, w.batch, w.first, step), p.dt_a, DT_A_AT);
      if (HAS_DY && back) timed(DyTile(), at<DY>(p.dy, w.batch, w.first, step), p.dy, DY_AT);
      if (HAS_Z && back) timed(ZTile(), at<Z>(p.z, w.batch, w.first, step), p.z, Z_AT);
      if constexpr (READS_B) map(BTile(), at<B>(p.b, w.batch, w.first / p.channels_per_b, 0, step), p.b, B_AT);
      if (C_VARIES && back) map(CTile(), at<C>(p.c, w.batch, w.first / p.channels_per_c, 0, step), p.c, C_AT);
    };
    auto load = [&](auto whole) {
      each_source([&](auto source, int at) { source.template load<decltype(whole)::VALUE>(raw + at, steps, span); });
    };
    if (XTile::VECTOR && steps == STEPS && w.channels == CHANNELS && (!ANY_SHIFTED || span.has_more(STEPS)))
      load(Flag<true>());
    else
      load(Flag<false>());
    if constexpr (ANY_SHIFTED) each_source([&](auto source, int at) { source.load_ends(raw + at, steps, span); });
    copy_async_commit();
  };

  Field* const saved = reinterpret_cast<Field*>(shared + SAVED_AT);
  auto saved_state = [&](int piece, int span, int k, int r) -> Field& {
    return saved[(((piece * SPANS + span) * WIDTH + k) * STATES + r) * THREADS + threadIdx.x];
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
    for (int j = 0; j < SPAN; j += 4) read_map(shared + map_at, step + j, own_state(r), out + j);
  };
  // the steps that decays take and those that gains take, which are the same ones unless decays have their own
  struct Steps { f32 decay[SPAN], gain[SPAN]; };
  auto read_both_steps = [&](int k, int step, Steps& d) {
    read_steps(HAS_DT_A ? PLANE_DT_A : PLANE_STEP, k, step, d.decay);
    read_steps(PLANE_STEP, k, step, d.gain);
  };

  auto forwards = [&](int tile, bool turn) {
    const int piece = tile % PIECES;
    Field h[WIDTH][STATES];
    own([&](int k, int r) { h[k][r] = saved_state(piece, 0, k, r); });
#pragma unroll 1
    for (int span = 0; span < SPANS; span++) {
      const int step = span * SPAN;
      if (turn && span == SPANS - 1) return;
      Steps d[WIDTH];
      f32 u[WIDTH][SPAN];
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        read_both_steps(k, step, d[k]);
        read_steps(PLANE_INPUT, k, step, u[k]);
      }
      Field b[STATES][SPAN];
#pragma unroll
      for (int r = 0; r < STATES; r++)
        if constexpr (B_VARIES) read_states(B_MAP_AT, step, r, b[r]);
#pragma unroll
      for (int j = 0; j < SPAN; j++)
        own([&](int k, int r) {
          if (changed(step + j)) h[k][r] = first_state(i64(tile) * STEPS + step + j, k, r);
          const Field in = Method::amplify(a[k][r], d[k].gain[j], scale(B_VARIES ? b[r][j] : b_own[k][r], u[k][j]));
          h[k][r] = mul_add(Method::decay(a[k][r], d[k].decay[j]), h[k][r], in);
        });
      // before the next span, of this tile or the next one
      own([&](int k, int r) { saved_state(piece, span + 1, k, r) = h[k][r]; });
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
        read_steps(HAS_DT_A ? PLANE_DT_A : PLANE_STEP, k, step, d);
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

  char* const summed = shared + SUMMED_AT + warp * MAPS * SUMMED_BYTES;
  constexpr int C_SUMMED = B_VARIES && HAS_DB ? SUMMED_BYTES : 0;
  auto backwards = [&](int tile) {
    const int piece = tile % PIECES;
#pragma unroll 1
    for (int span = SPANS - 1; span >= 0; span--) {
      const int step = span * SPAN;
      const i64 first_step = i64(tile) * STEPS + step;
      Field db[STATES][SPAN] = {}, dc[STATES][SPAN] = {};
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        Steps d;
        f32 u[SPAN], q[SPAN], sums[SUMS * SPAN] = {};
        read_both_steps(k, step, d);
        read_steps(PLANE_INPUT, k, step, u);
        read_steps(PLANE_COTANGENT, k, step, q);
#pragma unroll
        for (int r = 0; r < STATES; r++) {
          Field b[SPAN], c[SPAN], decay[SPAN], before[SPAN], after[SPAN];
          if constexpr (B_VARIES) read_states(B_MAP_AT, step, r, b);
          if constexpr (C_VARIES) read_states(C_MAP_AT, step, r, c);
          const Field unit_a = Method::in_units(a[k][r]);
          Field state = saved_state(piece, span, k, r);
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
            auto sum = [&](int s) -> f32& { return sums[s * SPAN + j]; };
            Field& carried = g[k][r];
            const Field grad = scaled_conj_add(c[j], q[j], carried);
            carried = mul_conj(grad, decay[j]);
            // by the exponent of the decay
            const Field by_exponent = mul_conj(Method::DECAY_IS_EXP ? carried : mul_conj(grad, Method::decay_slope(a[k][r], d.decay[j])), before[j]);
            sum(SUM_DECAY) = re_mul_conj_add(by_exponent, unit_a, sum(SUM_DECAY));
            if constexpr (HAS_DA) da[k][r] = scaled_add(by_exponent, d.decay[j], da[k][r]);
            Field by_input = grad;   // by u B
            if constexpr (Method::GAIN) {
              const Field by_b = mul_conj(grad, b[j]);
              by_input = mul_conj(grad, Method::gain(a[k][r], d.gain[j]));
              sum(SUM_STEP) = re_mul_conj_add(by_b, Method::input_by_step(a[k][r], d.gain[j]), sum(SUM_STEP));
              if constexpr (HAS_DA) da[k][r] = scaled_add(mul_conj(by_b, Method::input_by_a(a[k][r], d.gain[j])), u[j], da[k][r]);
            }
            sum(SUM_INPUT) = re_mul_conj_add(by_input, b[j], sum(SUM_INPUT));
            if constexpr (HAS_DZ) sum(SUM_OUTPUT) = re_mul_add(c[j], after[j], sum(SUM_OUTPUT));
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
          if (k < WIDTH - 1) continue;
          if constexpr (B_VARIES && HAS_DB) sum_slots(db, r);
          if constexpr (C_VARIES && HAS_DC) sum_slots(dc, r);
        }
        sum_lanes(shared, sums, own_channel(k), span);
      }
      if constexpr (B_VARIES && HAS_DB) finish_slots(reinterpret_cast<f32*>(summed), db, span);
      if constexpr (C_VARIES && HAS_DC) finish_slots(reinterpret_cast<f32*>(summed + C_SUMMED), dc, span);
    }
  };

  const int first_tile = int(w.start / STEPS), last_tile = w.start < w.end ? int((w.end - 1) / STEPS) : first_tile - 1;
  const i64 saved_count = (p.seqlen - 1) / CHECKPOINT;
  // the first step of the sequence, which no state was saved for
  const i64 sequence_start = PASS == Pass::Whole ? w.start : 0;
  ChannelSums channel_sums = {};
  // the tile at hand and the one to be copied, and their stages, which are one if there is no other
  Walk walk(first_tile, last_tile), next = walk;
  char* raw = shared + STAGES_AT;
  char* filled = raw + (STAGES - 1) * STAGE_BYTES;
  auto change_stages = [&]() {
    char* const done = raw;
    raw = filled, filled = done;
  };
  bool here = false;   // whether the tile at hand was copied: a round that finds none only copies it, so that there is one place for that
#pragma unroll 1
  while (!walk.done()) {
    copy_async_wait();
    __syncthreads();
    if (STAGES > 1 || !here) {
      copy(next, filled);
      next.advance();
    }
    if (!here) {
      here = true;
      change_stages();
      continue;
    }
    const int tile = walk.tile;
    const i64 first_step = i64(tile) * STEPS;
    const bool back = walk.back(), rising = walk.rising, turn = rising && back;
    const bool from_saved = rising && tile == walk.low;
    const int low = int(max(w.start - first_step, i64(0))), high = int(min(i64(STEPS), w.end - first_step));
    const bool whole = low == 0 && high == STEPS && w.channels == CHANNELS;
    if (from_saved) {
      const i64 step = first_step;
      const int piece = tile % PIECES;
      own([&](int k, int r) {
        if (step > sequence_start) {
          const i64 place = ((w.batch * saved_count + step / CHECKPOINT - 1) * p.dim + w.first + own_channel(k)) * DSTATE + own_state(r);
          saved_state(piece, 0, k, r) = exists(k, r) ? reinterpret_cast<const Field*>(p.checkpoints)[place] : Field{};
        } else {
          saved_state(piece, 0, k, r) = initial_of(sequence_at(0), k, r);
        }
      });
    }
    // shifts are found again for each tile, since the loops between need every register
    if (whole)
      prepare(p, shared, raw, AllShifts(p, w), Window<true>{low, high}, back, w.channels, biases);
    else
      prepare(p, shared, raw, AllShifts(p, w), Window<false>{low, high}, back, w.channels, biases);
    if constexpr (SEQUENCES == Sequences::Index) mark_changes(p, w, tile, shared + CHANGE_AT);
    __syncthreads();
    // a tile that is visited on the way back is needed to the end; a copy that keeps its thread busy, or is much code, can as well come later
    constexpr bool EARLY = STAGES == 1 && XTile::VECTOR && !XTile::SHIFTED;
    if (EARLY && !back) {
      copy(next, raw);
      next.advance();
    }

    if constexpr (ENDS) {
      carry();
    } else {
      if (rising) forwards(tile, turn);
      if (back) {
        backwards(tile);
        __syncthreads();
        if ((OUT_VECTOR || APART) && whole)
          finish(p, w, shared, raw, AllShifts(p, w), Window<true>{low, high}, first_step, skips, biases, channel_sums);
        else
          finish(p, w, shared, raw, AllShifts(p, w), Window<false>{low, high}, first_step, skips, biases, channel_sums);
        const char* const sums = shared + SUMMED_AT;
        const i64 block = w.batch * p.blocks_per_row + w.block;
        if constexpr (B_VARIES && HAS_DB)
          finish_map<NARROW_B>(p.db + block * (NARROW_B ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, first_step, sums, low, high);
        if constexpr (C_VARIES && HAS_DC)
          finish_map<NARROW_C>(p.dc + block * (NARROW_C ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, first_step, sums + C_SUMMED, low, high);
      }
    }
    here = STAGES > 1 || (EARLY && !back);
    walk.advance();
    change_stages();
  }

  if constexpr (ENDS) {
    own([&](int k, int r) {
      const i64 place = (w.segment - 1) * p.segment_channels + w.row * p.dim + w.first + own_channel(k);
      if (exists(k, r)) p.ends[place * DSTATE + own_state(r)] = part_of(g[k][r], 0);
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
        to[((line * parts + part) * p.dim + w.first + own_channel(k)) * DSTATE + own_state(r)] = part_of(v, part);
    };
    if constexpr (HAS_DA) put(p.da, PARTS, da[k][r]);
    if constexpr (HAS_DB && !B_VARIES) put(p.db, NARROW_B ? 1 : PARTS, db_own[k][r]);
    if constexpr (HAS_DC && !C_VARIES) put(p.dc, NARROW_C ? 1 : PARTS, dc_own[k][r]);
  });
  if constexpr (HAS_DSKIP) finish_channels(p.dskip + line * p.dim + w.first, reinterpret_cast<f32*>(shared), channel_sums.skip, w.channels);
  if constexpr (HAS_DBIAS) finish_channels(p.dbias + line * p.dim + w.first, reinterpret_cast<f32*>(shared), channel_sums.bias, w.channels);
}
