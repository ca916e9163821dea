// One step of a selective scan, the state updated in place. LANES threads share a channel: each has pieces of VECTOR neighbouring states,
// LANES pieces apart; the sums over a channel's states are added up by shuffles, in a fixed order. Where states lie
// apart and channels side by side a thread has a channel alone. Bytes bind: each state is read and written once.
#include "step_slots.cuh"

typedef Choose<COMPLEX, complex64, f32>::type Field;
typedef Rule<METHOD> Method;
typedef StepSize<HAS_BIAS, SOFTPLUS, HAS_LIMIT> Dt;

constexpr int ROUND = LANES * VECTOR;
constexpr int ROUNDS = (DSTATE + ROUND - 1) / ROUND;
constexpr int TOGETHER = ROUNDS < 2 ? 1 : 2;
constexpr bool RAGGED = DSTATE % (ROUND * TOGETHER) != 0;

// a channel's inputs as they are given, and what all of its states share
struct Given {
  f32 x, step, decay_step, gate;
};
struct Inputs {
  f32 x, step, decay_step, input, skip, gate;
};

DEVICE Given given_of(const Params& p, i64 row, i64 head, i64 channel) {
  Given in;
  in.x = to_f32(*at<X>(p.x, row, head, channel));
  in.step = to_f32(*at<DT>(p.dt, row, head, channel));
  in.decay_step = HAS_DT_A ? to_f32(*at<DT_A>(p.dt_a, row, head, channel)) : 0.f;
  in.gate = HAS_Z ? to_f32(*at<Z>(p.z, row, head, channel)) : 0.f;
  return in;
}
// a channel's own parameters
struct Own {
  f32 bias, skip;
};
DEVICE Own own_of(const Params& p, i64 head, i64 channel) {
  return {HAS_BIAS ? to_f32(*at<BIAS>(p.bias, 0, head, channel)) : 0.f, HAS_SKIP ? to_f32(*at<SKIP>(p.skip, 0, head, channel)) : 0.f};
}
DEVICE Inputs inputs_of(const Params& p, const Given& given, const Own& own) {
  Inputs in;
  in.x = given.x;
  const f32 d = Dt::of(given.step, own.bias, p.dt_low, p.dt_high);
  in.step = d;
  in.decay_step = HAS_DT_A ? given.decay_step : d;
  in.input = Method::INPUT_STEP ? in.x * d : in.x;
  in.skip = own.skip;
  in.gate = HAS_Z ? silu(given.gate) : 1.f;
  return in;
}

// VECTOR states from n on as they are stored, at once if they are neighbours (TOGETHER, which needs whole vectors); those past the end are zero
template <bool TOGETHER, typename E> DEVICE Neighbours<E, VECTOR> read_stored(const E* from, i64 stride, int n) {
  if constexpr (TOGETHER) return *reinterpret_cast<const Neighbours<E, VECTOR>*>(from + n);
  Neighbours<E, VECTOR> some = {};
#pragma unroll
  for (int k = 0; k < VECTOR; k++)
    if (DSTATE % VECTOR == 0 || n + k < DSTATE) some.v[k] = from[(n + k) * stride];
  return some;
}
template <typename E> DEVICE void convert_all(Field (&out)[VECTOR], const Neighbours<E, VECTOR>& some) {
#pragma unroll
  for (int k = 0; k < VECTOR; k++) convert(out[k], some.v[k]);
}
template <bool TOGETHER, typename E> DEVICE void read(Field (&out)[VECTOR], const E* from, i64 stride, int n) {
  convert_all(out, read_stored<TOGETHER>(from, stride, n));
}

// two states at once, which is one instruction for 16-bit types
DEVICE void assign_both(STATE* to, f32 v, f32 w) { assign2(to, v, w); }
DEVICE void assign_both(STATE* to, complex64 v, complex64 w) { assign(to[0], v), assign(to[1], w); }

// A vector of states from n on goes through the step; the outputs of its states are added to a sum.
struct Vectors {
  Field h[VECTOR], a[VECTOR], b[VECTOR], c[VECTOR];
};
DEVICE Neighbours<STATE, VECTOR> step_states(const Vectors& v, const Inputs& in, int n, f32& sum) {
  Field decay = Method::decay(Method::prepare(v.a[0]), in.decay_step), next[VECTOR];
#pragma unroll
  for (int k = 0; k < VECTOR; k++) {
    if (!UNIFORM && k > 0) decay = Method::decay(Method::prepare(v.a[k]), in.decay_step);
    next[k] = mul_add(decay, v.h[k], Method::amplify(v.a[UNIFORM ? 0 : k], in.step, scale(v.b[k], in.input)));
    if (DSTATE % VECTOR == 0 || n + k < DSTATE) sum = re_mul_add(v.c[k], next[k], sum);
  }
  Neighbours<STATE, VECTOR> after;
#pragma unroll
  for (int k = 0; k < VECTOR; k += 2) {
    if constexpr (VECTOR > 1) assign_both(after.v + k, next[k], next[k + 1 < VECTOR ? k + 1 : k]);
    else assign(after.v[k], next[k]);
  }
  return after;
}

DEVICE void write_states(STATE* to, i64 stride, int n, const Neighbours<STATE, VECTOR>& after) {
  if constexpr (STATE_TOGETHER) {
    write_at_once(to, after);
  } else {
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
      if (DSTATE % VECTOR == 0 || n + k < DSTATE) to[k * stride] = after.v[k];
  }
}

DEVICE f32 output(f32 sum, const Inputs& in) {
  f32 y = COMPLEX ? 2.f * sum : sum;
  if constexpr (HAS_SKIP) y = __fmaf_rn(in.skip, in.x, y);
  if constexpr (HAS_Z) y *= in.gate;
  return y;
}
// The sum of a channel, of which each lane has a part: of channel lane / (LANES / CHANNELS). The order is the same for any number of channels.
DEVICE f32 over_lanes(f32 (&sums)[CHANNELS], int lane) {
  int count = CHANNELS;
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2) {
    count /= 2;
#pragma unroll
    for (int j = 0; j < (count < 1 ? 1 : count); j++) {
      if (count < 1) {
        sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], apart);
      } else {
        const bool upper = lane & apart;
        const f32 kept = upper ? sums[count + j] : sums[j], given = upper ? sums[j] : sums[count + j];
        sums[j] = kept + __shfl_xor_sync(0xffffffffu, given, apart);
      }
    }
  }
  return sums[0];
}

// job(round, its first state) for the rounds of states that a lane has
constexpr int SOME_ROUNDS = ROUNDS < 1 ? 1 : ROUNDS;
template <typename Job> DEVICE void each_round(int lane, Job job) {
#pragma unroll(ROUNDS <= 8 ? ROUNDS + 1 : 1)
  for (int r = 0; r < ROUNDS; r++) {
    const int n = r * ROUND + lane * VECTOR;
    if (!RAGGED || n < DSTATE) job(r, n);
  }
}

// The numbers that a token brings to the channels of a thread: they are loaded while the one before it is computed. A lane finishes one of the channels.
constexpr int STEPS = STEP_TIED ? 1 : CHANNELS;
struct Token {
  Neighbours<B, VECTOR> b[SOME_ROUNDS];
  Neighbours<C, VECTOR> c[SOME_ROUNDS];
  f32 x[CHANNELS], step[STEPS], decay_step[STEPS], gate;
};
// The places of tokens, from the next one on.
struct Source {
  const B* b;
  const C* c;
  const X* x;
  const DT* dt;
  const DT_A* dt_a;
  const Z* z;

  DEVICE Source(const Params& p, i64 row, i64 head, i64 channel, int mine)
      : b(at<B>(p.b, row, u32(head) / p.heads_per_b)), c(at<C>(p.c, row, u32(head) / p.heads_per_c)), x(at<X>(p.x, row, head, channel)),
        dt(at<DT>(p.dt, row, head, channel)), dt_a(HAS_DT_A ? at<DT_A>(p.dt_a, row, head, channel) : nullptr),
        z(HAS_Z ? at<Z>(p.z, row, head, channel + mine) : nullptr) {}

  DEVICE Token next(const Params& p, int lane) {
    Token token;
    each_round(lane, [&](int r, int n) {
      token.b[r] = read_stored<B_TOGETHER>(b, p.b.stride[3], n), token.c[r] = read_stored<C_TOGETHER>(c, p.c.stride[3], n);
    });
    if constexpr (X_TOGETHER) {
      const Neighbours<X, CHANNELS> some = *reinterpret_cast<const Neighbours<X, CHANNELS>*>(x);
#pragma unroll
      for (int j = 0; j < CHANNELS; j++) token.x[j] = to_f32(some.v[j]);
    } else {
#pragma unroll
      for (int j = 0; j < CHANNELS; j++) token.x[j] = to_f32(x[j * p.x.stride[2]]);
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
      token.step[j] = to_f32(dt[j * p.dt.stride[2]]);
      token.decay_step[j] = HAS_DT_A ? to_f32(dt_a[j * p.dt_a.stride[2]]) : 0.f;
    }
    token.gate = HAS_Z ? to_f32(*z) : 0.f;
    b += p.b.stride[0], c += p.c.stride[0], x += p.x.stride[0], dt += p.dt.stride[0];
    if constexpr (HAS_DT_A) dt_a += p.dt_a.stride[0];
    if constexpr (HAS_Z) z += p.z.stride[0];
    return token;
  }
};

// The states of a thread's channels, which stay in registers from token to token, as they are stored, and what does not change.
struct States {
  Neighbours<STATE, VECTOR> h[CHANNELS][SOME_ROUNDS];
  Field a[A_TIED ? 1 : CHANNELS][SOME_ROUNDS][VECTOR];
  Own own[CHANNELS];

  DEVICE void load(const Params& p, i64 slot, i64 head, i64 channel, int lane) {
    const STATE* const from = at<STATE>(p.state, max(slot, i64(0)), head, channel);
    const A* const a_from = at<A>(p.a, 0, head, channel);
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) {
      each_round(lane, [&](int r, int n) {
        h[j][r] = {};
        if (slot >= 0) h[j][r] = read_stored<STATE_TOGETHER>(from + j * p.state.stride[2], p.state.stride[3], n);
        if (!A_TIED || j == 0) read<!UNIFORM && A_TOGETHER>(a[A_TIED ? 0 : j][r], a_from + j * p.a.stride[2], UNIFORM ? 0 : p.a.stride[3], n);
      });
      own[j] = own_of(p, head, channel + j);
    }
  }
  DEVICE void write(const Params& p, i64 slot, i64 head, i64 channel, int lane) const {
    STATE* to = at<STATE>(p.state, slot, head, channel);
#pragma unroll
    for (int j = 0; j < CHANNELS; j++, to += p.state.stride[2])
      each_round(lane, [&](int r, int n) { write_states(to + (STATE_TOGETHER ? n : n * p.state.stride[3]), p.state.stride[3], n, h[j][r]); });
  }
  // A step of all channels: what a round's maps are is widened once for them.
  DEVICE void step(f32 (&sums)[CHANNELS], const Inputs (&in)[CHANNELS], const Token& token, int lane) {
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) sums[j] = 0.f;
    each_round(lane, [&](int r, int n) {
      Vectors v;
      convert_all(v.b, token.b[r]), convert_all(v.c, token.c[r]);
#pragma unroll
      for (int j = 0; j < CHANNELS; j++) {
        convert_all(v.h, h[j][r]);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) v.a[k] = a[A_TIED ? 0 : j][r][k];
        h[j][r] = step_states(v, in[j], n, sums[j]);
      }
    });
  }
  // a token's inputs of a channel
  DEVICE Inputs inputs(const Params& p, const Token& token, int j) const {
    const int t = STEP_TIED ? 0 : j;
    return inputs_of(p, {token.x[j], token.step[t], token.decay_step[t], 0.f}, own[STEP_TIED ? 0 : j]);
  }
};

// The state of a row without slots, or -1: indices are not checked on the host, and what is no state is left alone.
DEVICE i64 state_of(const Params& p, i64 row) {
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  return !HAS_INDICES || slot < p.states ? max(slot, i64(-1)) : -1;
}

// The tokens of a sequence, whose state is read once.
DEVICE void walk(const Params& p, i64 sequence, i64 head, i64 channel, int lane, bool exists) {
  const Tokens tokens = SLOTTED ? tokens_of(p.slots, sequence) : Tokens{sequence, sequence + 1};
  const i64 from = SLOTTED ? slot_read(p.slots, sequence) : state_of(p, sequence);
  const int mine = lane / (LANES / CHANNELS);
  const bool finishes = exists && lane % (LANES / CHANNELS) == 0;
  States states;
  states.load(p, from, head, channel, lane);
  if (tokens.first == tokens.end) {
    const i64 slot = slot_written(p.slots, sequence, tokens, tokens.first - 1);
    if (slot >= 0 && exists) states.write(p, slot, head, channel, lane);
    return;
  }
  Source source(p, tokens.first, head, channel, mine);
  Y* y = at<Y>(p.y, tokens.first, head, channel + mine);
  const f32 skip = own_of(p, head, channel + mine).skip;
  Token next = source.next(p, lane);
#pragma unroll 1
  for (i64 row = tokens.first; row < tokens.end; row++, y += p.y.stride[0]) {
    const Token now = next;
    if (row + 1 < tokens.end) next = source.next(p, lane);
    const i64 slot = SLOTTED ? slot_written(p.slots, sequence, tokens, row) : from;
    f32 sums[CHANNELS];
    Inputs in[CHANNELS], last = {};
#pragma unroll
    for (int j = 0; j < CHANNELS; j++) {
      in[j] = states.inputs(p, now, j);
      if (j == mine) last.x = now.x[j];
    }
    states.step(sums, in, now, lane);
    if (slot >= 0 && exists) states.write(p, slot, head, channel, lane);
    last.skip = skip, last.gate = HAS_Z ? silu(now.gate) : 1.f;
    const f32 result = output(over_lanes(sums, lane), last);
    if (finishes) assign(*y, SLOTTED || from >= 0 ? result : 0.f);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_state_update(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x / p.blocks_per_row;
  const u32 own = blockIdx.x % p.blocks_per_row * (THREADS / LANES) + threadIdx.x / LANES;
  const u32 index = EVEN ? own : min(own, p.channels - 1);
  const int lane = threadIdx.x % LANES;
  const bool exists = EVEN || own < p.channels;
  const u32 first_channel = index * CHANNELS;
  const i64 head = ONE_HEAD ? 0 : first_channel / p.headdim, channel = ONE_HEAD ? first_channel : first_channel % p.headdim;
  if constexpr (WALKS) {
    walk(p, row, head, channel, lane, exists);
    return;
  }
  const i64 slot = SLOTTED ? slot_read(p.slots, row) : state_of(p, row);
  const bool there = !(HAS_INDICES || SLOTTED) || slot >= 0, alive = SLOTTED || there;
  const i64 slot_after = SLOTTED ? slot_written(p.slots, row, {row, row + 1}, row) : slot;
  const bool writes = exists && (!SLOTTED || slot_after >= 0);
  f32 sum = 0.f;
  Inputs in = {};
  if (alive) {
    const STATE* const state = at<STATE>(p.state, there ? slot : 0, head, channel);
    STATE* const after_state = SLOTTED ? at<STATE>(p.state, max(slot_after, i64(0)), head, channel) : at<STATE>(p.state, slot, head, channel);
    const A* const a_from = at<A>(p.a, 0, head, channel);
    const B* const b_from = at<B>(p.b, row, u32(head) / p.heads_per_b);
    const C* const c_from = at<C>(p.c, row, u32(head) / p.heads_per_c);
    // without states there is a skip all the same
    if (ROUNDS == 0) in = inputs_of(p, given_of(p, row, head, channel), own_of(p, head, channel));
#pragma unroll 1
    for (int first = 0; first < ROUNDS; first += TOGETHER) {
      // everything is asked for before the first use, and before the first write, which no later load could pass
      Vectors v[TOGETHER];
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int n = (first + r) * ROUND + lane * VECTOR;
        if (RAGGED && n >= DSTATE) continue;
        if (!SLOTTED || there) read<STATE_TOGETHER>(v[r].h, state, p.state.stride[3], n); else convert_all(v[r].h, Neighbours<STATE, VECTOR>{});
        read<!UNIFORM && A_TOGETHER>(v[r].a, a_from, UNIFORM ? 0 : p.a.stride[3], n);
        read<B_TOGETHER>(v[r].b, b_from, p.b.stride[3], n);
        read<C_TOGETHER>(v[r].c, c_from, p.c.stride[3], n);
      }
      if (first == 0) in = inputs_of(p, given_of(p, row, head, channel), own_of(p, head, channel));
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int n = (first + r) * ROUND + lane * VECTOR;
        if (RAGGED && n >= DSTATE) continue;
        const Neighbours<STATE, VECTOR> after = step_states(v[r], in, n, sum);
        STATE* const to = after_state + (STATE_TOGETHER ? n : n * p.state.stride[3]);
        if (writes) write_states(to, p.state.stride[3], n, after);
      }
    }
  }
  f32 sums[CHANNELS];
  sums[0] = sum;
  const f32 y = output(over_lanes(sums, lane), in);
  if (lane == 0 && exists) assign(*at<Y>(p.y, row, head, channel), alive ? y : 0.f);
}
