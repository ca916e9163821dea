// The walks over time are built from this: rows of steps, step sizes and coefficients, states in tensors, and how steps compose.
//
// A warp walks the steps of one state of one row, 32 x ITEMS at a time (a tile); a lane has ITEMS neighbouring steps of it. A lane composes its
// steps to one, lanes exchange theirs, and each knows the state before its first step. No two warps share anything.
#pragma once
#include "sequences.cuh"

static_assert(given<Discretization>(METHOD) && given<int>(WARPS, ITEMS, DELTA_WIDTH, DELTA_A_WIDTH) &&
              given<bool>(DELTA_IS_STEADY, DELTA_A_IS_STEADY, HAS_DELTA_A) && given_types<DELTA, DELTA_A, A>());

typedef Rule<METHOD> Method;
constexpr int THREADS = 32 * WARPS, TILE = 32 * ITEMS;
constexpr bool RESETS = SEQUENCES != Sequences::Whole, STEADY = DELTA_IS_STEADY && (DELTA_A_IS_STEADY || !HAS_DELTA_A);
static_assert(ITEMS == 4, "a lane's numbers are two accesses of 16 bytes");

DEVICE int lane_of() { return threadIdx.x % 32; }
DEVICE complex64 conj(complex64 v) { return {v.re, -v.im}; }
DEVICE bool is_zero(complex64 v) { return v.re == 0.f && v.im == 0.f; }

// ---- steps

// One or more steps: the state s becomes decay s + input, or `input` if a sequence begins there.
struct Step {
  complex64 decay, input;
  bool fresh;

  // A product of many decays may leave the range of numbers; a state of zero stays what it is all the same.
  DEVICE complex64 apply(complex64 state) const { return (RESETS && fresh) || is_zero(state) ? input : mul_add(decay, state, input); }
  DEVICE Step after(const Step& first) const { return {mul(decay, first.decay), apply(first.input), fresh || first.fresh}; }
};

DEVICE Step no_step() { return {{1.f, 0.f}, {0.f, 0.f}, false}; }

// Another lane's number, or another lane's step.
template <bool FORWARDS> DEVICE f32 neighbour(f32 v, int by) { return FORWARDS ? __shfl_up_sync(~0u, v, by) : __shfl_down_sync(~0u, v, by); }
template <bool FORWARDS> DEVICE complex64 neighbour(complex64 v, int by) { return {neighbour<FORWARDS>(v.re, by), neighbour<FORWARDS>(v.im, by)}; }
template <bool FORWARDS> DEVICE Step neighbour(const Step& s, int by) {
  Step out = {neighbour<FORWARDS>(s.decay, by), neighbour<FORWARDS>(s.input, by), false};
  if constexpr (RESETS) out.fresh = neighbour<FORWARDS>(s.fresh ? 1.f : 0.f, by) != 0.f;
  return out;
}

// The steps of a tile in the direction of the walk: what those before a lane's compose to, and what all of them do.
struct Composed {
  Step before, all;
};
template <bool FORWARDS> DEVICE Composed compose(Step own) {
  const int order = FORWARDS ? lane_of() : 31 - lane_of();
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const Step other = neighbour<FORWARDS>(own, by);
    if (order >= by) own = own.after(other);
  }
  Composed out;
  out.before = neighbour<FORWARDS>(own, 1);
  if (order == 0) out.before = no_step();
  constexpr int LAST = FORWARDS ? 31 : 0;
  out.all.decay = {__shfl_sync(~0u, own.decay.re, LAST), __shfl_sync(~0u, own.decay.im, LAST)};
  out.all.input = {__shfl_sync(~0u, own.input.re, LAST), __shfl_sync(~0u, own.input.im, LAST)};
  out.all.fresh = RESETS && __shfl_sync(~0u, own.fresh ? 1 : 0, LAST) != 0;
  return out;
}

// ---- segments of time

// A warp walks a state of a row, and the tiles of a segment, which are numbered in the direction of the walk.
struct Work {
  i64 batch, n, row, segment;
  i64 first, last;   // tiles
  bool exists;

  DEVICE explicit Work(const Inputs& p, bool forwards) {
    const i64 rows = p.batch * p.dstate;
    i64 i = i64(blockIdx.x) * WARPS + threadIdx.x / 32;
    exists = i < rows * p.launched_segments;
    row = exists ? i % rows : 0, segment = exists ? i / rows : 0;
    batch = row / p.dstate, n = row % p.dstate;
    const i64 tiles = (p.seqlen + TILE - 1) / TILE, at = forwards ? segment : p.segments - 1 - segment;
    first = min(at * p.segment_tiles, tiles), last = min(first + p.segment_tiles, tiles);
  }
};

// A segment composes to five numbers.
DEVICE f32* end_of(const Inputs& p, const Work& w, i64 segment) { return p.ends + (segment * p.batch * p.dstate + w.row) * 5; }
DEVICE void leave_segment(const Inputs& p, const Work& w, const Step& s) {
  if (lane_of() != 0) return;
  f32* const to = end_of(p, w, w.segment);
  to[0] = s.decay.re, to[1] = s.decay.im, to[2] = s.input.re, to[3] = s.input.im, to[4] = s.fresh ? 1.f : 0.f;
}
DEVICE complex64 enter_segment(const Inputs& p, const Work& w, complex64 state) {
#pragma unroll 1
  for (i64 before = 0; before < w.segment; before++) {
    const f32* const from = end_of(p, w, before);
    state = Step{{from[0], from[1]}, {from[2], from[3]}, from[4] != 0.f}.apply(state);
  }
  return state;
}

// The state before a tile that is not the first one of its row: (batch, tile, state, part)
DEVICE i64 checkpoint_at(const Inputs& p, const Work& w, i64 tile) {
  const i64 saved = (p.seqlen + TILE - 1) / TILE - 1;
  return 2 * ((w.batch * saved + tile - 1) * p.dstate + w.n);
}

// ---- states in tensors: (row, sequence, state)

template <typename E> DEVICE complex64 read_state(const Inputs& p, const Strided& states, StateRow row, i64 n) {
  if (states.data == nullptr || !exists(p, row)) return {};
  return to_complex(*at<E>(states, row.row, row.sequence, n));
}
template <typename E> DEVICE void write_state(const Inputs& p, const Strided& states, StateRow row, i64 n, complex64 v) {
  if (states.data != nullptr && exists(p, row)) assign(*at<E>(states, row.row, row.sequence, n), v);
}

// Sequences that may have no step hand their state on; what the walk writes later comes after it.
template <typename FROM, typename TO> DEVICE void hand_on(const Inputs& p, const Work& w, const Strided& from, const Strided& to) {
  auto pass = [&](StateRow row) { write_state<TO>(p, to, target_of(p, row), w.n, read_state<FROM>(p, from, source_of(p, row), w.n)); };
  if constexpr (SEQUENCES == Sequences::Bounds) {
#pragma unroll 1
    for (i64 k = lane_of(); k < p.sequence_count; k += 32)
      if (bound(p, k) >= bound(p, k + 1) && !has_before(p, k)) pass({number_of(p, k), 0});
  } else if constexpr (NUMBERED) {
#pragma unroll 1
    for (i64 s = lane_of(); s < p.sequence_count; s += 32) pass({w.batch, s});
  } else if (p.seqlen == 0 && lane_of() == 0) {
    pass({w.batch, 0});
  }
  __syncwarp();
}

// Bit i says whether a sequence begins at step first + i, for the steps of a lane and the one behind them; one begins behind the last step.
DEVICE u32 beginnings(const Inputs& p, i64 batch, i64 first) {
  u32 bits = 0;
  i64 k = 0;
  if constexpr (SEQUENCES == Sequences::Bounds) k = sequence_at_bound(p, first);
#pragma unroll
  for (int i = 0; i <= ITEMS; i++) {
    const i64 t = first + i;
    bool begins_here = t == 0 || t >= p.seqlen;
    if constexpr (SEQUENCES == Sequences::Bounds) {
      while (k + 1 < p.sequence_count && bound(p, k + 1) <= t) k++;
      begins_here = begins_here || bound(p, k) == t;
    } else if constexpr (SEQUENCES == Sequences::Index) {
      begins_here = begins_here || index_at(p, batch, t) != index_at(p, batch, t - 1);
    }
    bits |= begins_here ? 1u << i : 0u;
  }
  return bits;
}

// ---- numbers along time

// A lane's steps from `first` on; what lies behind the last step is zero.
template <typename E, int WIDTH> DEVICE void load_steps(f32 (&out)[ITEMS], const E* row, i64 stride, i64 first, i64 seqlen) {
  if (WIDTH > 1 && first + ITEMS <= seqlen) {
#pragma unroll
    for (int i = 0; i < ITEMS; i += WIDTH) {
      const Neighbours<E, WIDTH> some = *reinterpret_cast<const Neighbours<E, WIDTH>*>(row + first + i);
#pragma unroll
      for (int k = 0; k < WIDTH; k++) out[i + k] = to_f32(some.v[k]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) out[i] = first + i < seqlen ? to_f32(row[(first + i) * stride]) : 0.f;
  }
}
template <typename E, int WIDTH> DEVICE void store_steps(const f32 (&v)[ITEMS], E* row, i64 stride, i64 first, i64 seqlen) {
#pragma unroll
  for (int i = 0; i < ITEMS; i += WIDTH) {
    Neighbours<E, WIDTH> some;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) assign(some.v[k], v[i + k]);
    if (WIDTH > 1 && first + ITEMS <= seqlen) {
      write_at_once(row + first + i, some);
    } else {
#pragma unroll
      for (int k = 0; k < WIDTH; k++)
        if (first + i + k < seqlen) row[(first + i + k) * stride] = some.v[k];
    }
  }
}

// Loads of a row of the workspace, whose steps lie side by side and begin at 16 bytes.
DEVICE complex64* row_of(complex64* numbers, const Inputs& p, const Work& w) { return numbers + w.row * p.pitch; }
DEVICE void load_row(complex64 (&out)[ITEMS], const complex64* row, i64 first, i64 seqlen) {
  typedef Neighbours<complex64, 2> Two;
#pragma unroll
  for (int i = 0; i < ITEMS; i += 2) {
    out[i] = out[i + 1] = {};
    if (first + i + 1 < seqlen) {
      const Two two = *reinterpret_cast<const Two*>(row + first + i);
      out[i] = two.v[0], out[i + 1] = two.v[1];
    } else if (first + i < seqlen) {
      out[i] = row[first + i];
    }
  }
}
DEVICE void store_row(const complex64 (&v)[ITEMS], complex64* row, i64 first, i64 seqlen) {
#pragma unroll
  for (int i = 0; i < ITEMS; i += 2) {
    Neighbours<complex64, 2> two;
    two.v[0] = v[i], two.v[1] = v[i + 1];
    if (first + i + 1 < seqlen)
      write_at_once(row + first + i, two);
    else if (first + i < seqlen)
      row[first + i] = v[i];
  }
}

// ---- coefficients

// Abar and Bbar of a step.
struct Coefficients {
  complex64 decay, input;
};

// dAbar/dz, dBbar/ddelta and dBbar/dA.
struct Slopes {
  complex64 decay, input_by_step, input_by_a;
};

// A state's constants.
struct State {
  complex64 a, prepared;
  complex64 exponent, inverse;   // `zoh` needs the exponent as exp_prepared takes it, and 1 / A
  bool has_inverse;
  const DELTA* delta;
  const DELTA_A* delta_a;

  DEVICE State(const Inputs& p, const Work& w) : a(to_complex(*at<A>(p.a, w.n))) {
    prepared = Method::prepare(a), exponent = prepare_exp(a);
    has_inverse = norm2(a) > 1e-30f;
    inverse = scale(conj(a), 1.f / norm2(a));
    delta = at<DELTA>(p.delta, w.batch, w.n), delta_a = at<DELTA_A>(p.delta_a, w.batch, w.n);
  }

  DEVICE Coefficients coefficients(f32 d, f32 da) const {
    if constexpr (METHOD == Discretization::Zoh) return held(d, da);
    return {Method::decay(prepared, da), Method::amplify(prepared, d, from_real<complex64>(Method::INPUT_STEP ? d : 1.f))};
  }
  // Bbar is (exp(d A) - 1) / A, whose numerator does not cancel; both exponentials are of the same argument if the steps are.
  DEVICE Coefficients held(f32 d, f32 da) const {
    f32 sine, cosine;
    sincospif(exponent.im * d, &sine, &cosine);
    const f32 grow = expm1f(a.re * d), less = cosine > 0.f ? -sine * sine * reciprocal_fast(1.f + cosine) : cosine - 1.f;
    const complex64 exp_less_one = {__fmaf_rn(grow, cosine, less), __fmaf_rn(grow, sine, sine)};
    Coefficients out;
    out.input = has_inverse ? mul(exp_less_one, inverse) : from_real<complex64>(d);
    if constexpr (HAS_DELTA_A) {
      out.decay = exp_prepared(exponent, da);
    } else {
      const f32 size = exp2_fast(exponent.re * d);
      out.decay = {size * cosine, size * sine};
    }
    return out;
  }

  // from the coefficients of the same step
  DEVICE Slopes slopes(const Coefficients& c, f32 d, f32 da) const {
    Slopes out;
    out.decay = Method::DECAY_IS_EXP ? c.decay : Method::decay_slope(prepared, da);
    if constexpr (METHOD == Discretization::Zoh) {
      const complex64 z = scale(a, d);
      out.input_by_step = HAS_DELTA_A ? exp_prepared(exponent, d) : c.decay;
      if (norm2(z) >= 1.f)
        out.input_by_a = mul(add(scale(out.input_by_step, d), scale(c.input, -1.f)), inverse);
      else
        out.input_by_a = scale(phi1_slope_below_one(z), d * d);
    } else {
      out.input_by_step = Method::input_by_step(prepared, d);
      out.input_by_a = scale(Method::input_by_a(prepared, d), d);
    }
    return out;
  }

  // the decay of one step, which may be behind the last one
  DEVICE complex64 decay_at(const Inputs& p, i64 t) const {
    if (t >= p.seqlen) return {1.f, 0.f};
    // a step that does not depend on time has a stride of zero
    const f32 da = HAS_DELTA_A ? to_f32(delta_a[t * p.delta_a.stride[2]]) : to_f32(delta[t * p.delta.stride[2]]);
    return METHOD == Discretization::Zoh ? exp_prepared(exponent, da) : Method::decay(prepared, da);
  }
};

// The step sizes of a lane and what follows from them.
struct Sizes {
  f32 d[ITEMS], da[ITEMS];

  DEVICE void load(const Inputs& p, const State& state, i64 first) {
    load_one<DELTA, DELTA_WIDTH, DELTA_IS_STEADY>(d, state.delta, p.delta, first, p.seqlen);
    if constexpr (HAS_DELTA_A) {
      load_one<DELTA_A, DELTA_A_WIDTH, DELTA_A_IS_STEADY>(da, state.delta_a, p.delta_a, first, p.seqlen);
    } else {
#pragma unroll
      for (int i = 0; i < ITEMS; i++) da[i] = d[i];
    }
  }
  template <typename E, int WIDTH, bool IS_STEADY>
  static DEVICE void load_one(f32 (&to)[ITEMS], const E* row, const Strided& of, i64 first, i64 seqlen) {
    if constexpr (IS_STEADY) {
      const f32 v = to_f32(*row);
#pragma unroll
      for (int i = 0; i < ITEMS; i++) to[i] = v;
    } else {
      load_steps<E, WIDTH>(to, row, of.stride[2], first, seqlen);
    }
  }
  // step sizes of the steps that exist; behind them nothing decays
  DEVICE void coefficients(Coefficients (&out)[ITEMS], const State& state, i64 first, i64 seqlen) const {
    Coefficients steady;
    if constexpr (STEADY) steady = state.coefficients(d[0], da[0]);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      out[i] = STEADY ? steady : state.coefficients(d[i], da[i]);
      if (first + i >= seqlen) out[i] = {{1.f, 0.f}, {0.f, 0.f}};
    }
  }
};

// The steps of a lane in a tile.
struct Tile {
  i64 first;
  Sizes sizes;
  Coefficients c[ITEMS];
  u32 begin;

  DEVICE Tile(const Inputs& p, const Work& w, const State& state, i64 number) : first(number * TILE + lane_of() * ITEMS) {
    sizes.load(p, state, first);
    sizes.coefficients(c, state, first, p.seqlen);
    begin = beginnings(p, w.batch, first);
  }
  // whether a sequence begins at a step of the lane, or right behind the last one
  DEVICE bool begins(int i) const { return (begin >> i & 1) != 0; }
};

// The forward walk of a lane; `starts` are the states that sequences begin with.
struct Forward {
  Step steps[ITEMS];
  complex64 starts[ITEMS];

  template <typename FROM> DEVICE void read(const Inputs& p, const Work& w, const Strided& initial, const Tile& tile, const complex64 (&v)[ITEMS]) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      steps[i] = {tile.c[i].decay, mul(tile.c[i].input, v[i]), false};
      starts[i] = {};
      if (RESETS && tile.begins(i) && tile.first + i < p.seqlen && !goes_on(p, tile.first + i)) {
        steps[i].fresh = true;
        starts[i] = read_state<FROM>(p, initial, row_before(p, w.batch, tile.first + i), w.n);
        if (!is_zero(starts[i])) steps[i].input = mul_add(tile.c[i].decay, starts[i], steps[i].input);
      }
    }
  }
  // all of them as one step
  DEVICE Step all() const {
    Step all = steps[0];
#pragma unroll
    for (int i = 1; i < ITEMS; i++) all = steps[i].after(all);
    return all;
  }
};
