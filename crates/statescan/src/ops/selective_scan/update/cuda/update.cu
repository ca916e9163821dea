// One step of a selective scan, the state updated in place. LANES threads share a channel: each has pieces of VECTOR neighbouring states,
// LANES pieces apart; the sums over a channel's states are added up by shuffles, in a fixed order. Where states lie
// apart and channels side by side a thread has a channel alone. Bytes bind: each state is read and written once.

typedef Choose<COMPLEX, complex64, f32>::type Field;
typedef Rule<METHOD> Method;
typedef StepSize<HAS_BIAS, SOFTPLUS, HAS_LIMIT> Dt;

constexpr int ROUND = LANES * VECTOR;
constexpr int ROUNDS = (DSTATE + ROUND - 1) / ROUND;
constexpr int TOGETHER = ROUNDS < 2 ? 1 : 2;
constexpr bool RAGGED = DSTATE % (ROUND * TOGETHER) != 0;

// a channel's inputs, the same for all of its states
struct Inputs {
  f32 x, step, decay_step, input, skip, gate;
};

DEVICE Inputs inputs_of(const Params& p, i64 row, i64 head, i64 channel) {
  Inputs in;
  in.x = to_f32(*at<X>(p.x, row, head, channel));
  const f32 bias = HAS_BIAS ? to_f32(*at<BIAS>(p.bias, row, head, channel)) : 0.f;
  const f32 d = Dt::of(to_f32(*at<DT>(p.dt, row, head, channel)), bias, p.dt_low, p.dt_high);
  in.step = d;
  in.decay_step = HAS_DT_A ? to_f32(*at<DT_A>(p.dt_a, row, head, channel)) : d;
  in.input = Method::INPUT_STEP ? in.x * d : in.x;
  in.skip = HAS_SKIP ? to_f32(*at<SKIP>(p.skip, row, head, channel)) : 0.f;
  in.gate = HAS_Z ? silu(to_f32(*at<Z>(p.z, row, head, channel))) : 1.f;
  return in;
}

// VECTOR states from n on, at once if they are neighbours (TOGETHER, which needs whole vectors); those past the end are zero
template <bool TOGETHER, typename E> DEVICE void read(Field (&out)[VECTOR], const E* from, i64 stride, int n) {
  if constexpr (TOGETHER) {
    const Neighbours<E, VECTOR> some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(from + n);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) convert(out[k], some.v[k]);
  } else {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
      out[k] = Field{};
      if (DSTATE % VECTOR == 0 || n + k < DSTATE) convert(out[k], from[(n + k) * stride]);
    }
  }
}

// A vector of states from n on goes through the step; the outputs of its states are added to a sum.
struct Vectors {
  Field h[VECTOR], a[VECTOR], b[VECTOR], c[VECTOR];
};
DEVICE Neighbours<STATE, VECTOR> step_states(const Vectors& v, const Inputs& in, int n, f32& sum) {
  Field decay = Method::decay(Method::prepare(v.a[0]), in.decay_step);
  Neighbours<STATE, VECTOR> after;
#pragma unroll
  for (int k = 0; k < VECTOR; k++) {
    if (!UNIFORM && k > 0) decay = Method::decay(Method::prepare(v.a[k]), in.decay_step);
    const Field state_after = mul_add(decay, v.h[k], Method::amplify(v.a[UNIFORM ? 0 : k], in.step, scale(v.b[k], in.input)));
    if (DSTATE % VECTOR == 0 || n + k < DSTATE) sum = re_mul_add(v.c[k], state_after, sum);
    assign(after.v[k], state_after);
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

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) selective_state_update(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x / p.blocks_per_row;
  const u32 own = blockIdx.x % p.blocks_per_row * (THREADS / LANES) + threadIdx.x / LANES;
  const u32 index = EVEN ? own : min(own, p.channels - 1);
  const int lane = threadIdx.x % LANES;
  const bool exists = EVEN || own < p.channels;
  const i64 head = ONE_HEAD ? 0 : index / p.headdim, channel = ONE_HEAD ? index : index % p.headdim;
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  // indices are not checked on the host: what is no state is left alone
  const bool alive = !HAS_INDICES || (slot >= 0 && slot < p.states);
  f32 sum = 0.f;
  Inputs in = {};
  if (alive) {
    STATE* const state = at<STATE>(p.state, slot, head, channel);
    const A* const a_from = at<A>(p.a, 0, head, channel);
    const B* const b_from = at<B>(p.b, row, head / p.heads_per_b);
    const C* const c_from = at<C>(p.c, row, head / p.heads_per_c);
    // without states there is a skip all the same
    if (ROUNDS == 0) in = inputs_of(p, row, head, channel);
#pragma unroll 1
    for (int first = 0; first < ROUNDS; first += TOGETHER) {
      // everything is asked for before the first use, and before the first write, which no later load could pass
      Vectors v[TOGETHER];
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int n = (first + r) * ROUND + lane * VECTOR;
        if (RAGGED && n >= DSTATE) continue;
        read<STATE_TOGETHER>(v[r].h, state, p.state.stride[3], n);
        read<!UNIFORM && A_TOGETHER>(v[r].a, a_from, UNIFORM ? 0 : p.a.stride[3], n);
        read<B_TOGETHER>(v[r].b, b_from, p.b.stride[3], n);
        read<C_TOGETHER>(v[r].c, c_from, p.c.stride[3], n);
      }
      if (first == 0) in = inputs_of(p, row, head, channel);
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        const int n = (first + r) * ROUND + lane * VECTOR;
        if (RAGGED && n >= DSTATE) continue;
        const Neighbours<STATE, VECTOR> after = step_states(v[r], in, n, sum);
        STATE* const to = state + (STATE_TOGETHER ? n : n * p.state.stride[3]);
        if (exists) write_states(to, p.state.stride[3], n, after);
      }
    }
  }
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (lane != 0 || !exists) return;
  f32 y = 0.f;
  if (alive) {
    y = COMPLEX ? 2.f * sum : sum;
    if constexpr (HAS_SKIP) y = __fmaf_rn(in.skip, in.x, y);
    if constexpr (HAS_Z) y *= in.gate;
  }
  assign(*at<Y>(p.y, row, head, channel), y);
}
