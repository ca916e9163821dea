// One step of a selective scan, the state updated in place. LANES threads share a channel: each has pieces of VECTOR neighbouring states,
// LANES pieces apart, of CHANNELS channels; the sums over a channel's states are added up by shuffles, in a fixed order. Where states lie
// apart and channels side by side a thread has a channel alone. Bytes bind: each state is read and written once.

struct Params {
  Tensor state, x, dt, a, b, c, skip, z, bias, own_step, y;   // (row, head, channel of the head, state), strides of 0 where there is no axis
  Tensor indices;                                             // (row)
  i64 states;
  u32 channels, headdim;                                      // channels of all heads, of a head
  u32 heads_per_b, heads_per_c;
  u32 blocks_per_row;
  f32 dt_low, dt_high;
};

typedef Choose<COMPLEX, complex64, f32>::type Field;
typedef Rule<METHOD> Method;

constexpr int LANES_OF_CHANNELS = THREADS / LANES;
constexpr int ROUND = LANES * VECTOR;
constexpr int ROUNDS = (DSTATE + ROUND - 1) / ROUND;

// a channel's inputs, the same for all of its states
struct Inputs {
  f32 x, step, decay_step, input;
};

DEVICE Inputs inputs_of(const Params& p, i64 row, i64 head, i64 channel) {
  Inputs in;
  in.x = to_f32(*at<X>(p.x, row, head, channel));
  f32 d = to_f32(*at<DT>(p.dt, row, head, channel));
  if constexpr (HAS_BIAS) d += to_f32(*at<BIAS>(p.bias, row, head, channel));
  if constexpr (SOFTPLUS) d = softplus(d);
  if constexpr (HAS_LIMIT) d = d < p.dt_low ? p.dt_low : d > p.dt_high ? p.dt_high : d;
  in.step = d;
  in.decay_step = HAS_OWN_STEP ? to_f32(*at<OWN_STEP>(p.own_step, row, head, channel)) : d;
  in.input = Method::INPUT_STEP ? in.x * d : in.x;
  return in;
}

// VECTOR neighbours from state n on; those past the end are zero
template <typename E> DEVICE void read(Field (&out)[VECTOR], const E* from, i64 stride, int n) {
  Neighbours<E, VECTOR> some;
  const bool whole = VECTOR > 1 && stride == 1 && (DSTATE % VECTOR == 0 || n + VECTOR <= DSTATE) && u64(from) % (VECTOR * sizeof(E)) == 0;
  if (whole) some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(from + n);
#pragma unroll
  for (int k = 0; k < VECTOR; k++) {
    out[k] = Field{};
    if (whole) {
      convert(out[k], some.v[k]);
    } else if (n + k < DSTATE) {
      convert(out[k], from[(n + k) * stride]);
    }
  }
}

DEVICE void step(Field& h, Field decay, Field a, const Inputs& in, Field b) {
  h = mul_add(decay, h, Method::amplify(a, in.step, scale(b, in.input)));
}

extern "C" __global__ void __launch_bounds__(THREADS) selective_state_update(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x / p.blocks_per_row;
  const u32 first = blockIdx.x % p.blocks_per_row * (LANES_OF_CHANNELS * CHANNELS) + threadIdx.x / LANES;
  const int lane = threadIdx.x % LANES;
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  // indices are not checked on the host: what is no state is left alone
  const bool alive = slot >= 0 && slot < p.states;

  Field h[CHANNELS][VECTOR];
  f32 sum[CHANNELS] = {};
  Inputs in[CHANNELS];
  i64 head[CHANNELS], channel[CHANNELS];
  STATE* state[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) {
    const u32 index = min(first + c * LANES_OF_CHANNELS, p.channels - 1);
    head[c] = index / p.headdim, channel[c] = index % p.headdim;
    state[c] = at<STATE>(p.state, alive ? slot : 0, head[c], channel[c]);
  }
  if (alive) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) in[c] = inputs_of(p, row, head[c], channel[c]);
#pragma unroll(ROUNDS < 4 ? ROUNDS : 4)
    for (int round = 0; round < ROUNDS; round++) {
      const int n = round * ROUND + lane * VECTOR;
      if (DSTATE % ROUND != 0 && n >= DSTATE) break;
      // states first: they come from far away
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) read(h[c], state[c], p.state.stride[3], n);
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        Field a[VECTOR], b[VECTOR], out[VECTOR];
        if constexpr (UNIFORM) {
          convert(a[0], *at<A>(p.a, 0, head[c], channel[c]));
        } else {
          read(a, at<A>(p.a, 0, head[c], channel[c]), p.a.stride[3], n);
        }
        read(b, at<B>(p.b, row, head[c] / p.heads_per_b), p.b.stride[3], n);
        read(out, at<C>(p.c, row, head[c] / p.heads_per_c), p.c.stride[3], n);
        Field decay = Method::decay(Method::prepare(a[0]), in[c].decay_step);
        Neighbours<STATE, VECTOR> after;
#pragma unroll
        for (int k = 0; k < VECTOR; k++) {
          const Field own = UNIFORM ? a[0] : a[k];
          if (!UNIFORM && k > 0) decay = Method::decay(Method::prepare(own), in[c].decay_step);
          step(h[c][k], decay, own, in[c], b[k]);
          if (DSTATE % VECTOR == 0 || n + k < DSTATE) sum[c] = re_mul_add(out[k], h[c][k], sum[c]);
          assign(after.v[k], h[c][k]);
        }
        if (first + c * LANES_OF_CHANNELS >= p.channels) continue;
        STATE* const to = state[c] + n * p.state.stride[3];
        if (VECTOR > 1 && p.state.stride[3] == 1 && (DSTATE % VECTOR == 0 || n + VECTOR <= DSTATE) && u64(to) % (VECTOR * sizeof(STATE)) == 0) {
          *reinterpret_cast<Neighbours<STATE, VECTOR>*>(to) = after;
        } else {
#pragma unroll
          for (int k = 0; k < VECTOR; k++)
            if (n + k < DSTATE) to[k * p.state.stride[3]] = after.v[k];
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) {
#pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], apart);
    if (lane != 0 || first + c * LANES_OF_CHANNELS >= p.channels) continue;
    f32 y = 0.f;
    if (alive) {
      y = COMPLEX ? 2.f * sum[c] : sum[c];
      if constexpr (HAS_SKIP) y = __fmaf_rn(to_f32(*at<SKIP>(p.skip, row, head[c], channel[c])), in[c].x, y);
      if constexpr (HAS_Z) y *= silu(to_f32(*at<Z>(p.z, row, head[c], channel[c])));
    }
    assign(*at<Y>(p.y, row, head[c], channel[c]), y);
  }
}
