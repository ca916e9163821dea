// A few steps of a causal convolution, the last inputs kept in place. A thread has one channel of one row and walks its steps.

constexpr int PAST = WIDTH - 1;

// Moves a state by the steps, and puts their inputs behind: forwards, so that what moves is read before it is overwritten.
DEVICE void move_state(const Params& p, STATE* state, const X* x) {
  const i64 step = p.state.stride[2];
  for (i64 i = 0; i < p.length; i++) {
    const i64 from = i + p.steps;
    if (from < p.length) {
      state[i * step] = state[from * step];
    } else {
      assign(state[i * step], to_f32(x[(from - p.length) * p.x.stride[2]]));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv1d_update(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x / p.blocks_per_row;
  const i64 channel = i64(blockIdx.x % p.blocks_per_row) * THREADS + threadIdx.x;
  if (channel >= p.dim) return;
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  Y* const y = at<Y>(p.y, row, channel);
  // indices are not checked on the host: what is no state is left alone
  if (slot < 0 || slot >= p.states) {
    for (i64 t = 0; t < p.steps; t++) assign(y[t * p.y.stride[2]], 0.f);
    return;
  }
  STATE* const state = at<STATE>(p.state, slot, channel);
  const X* const x = at<X>(p.x, row, channel);
  const i64 step = p.state.stride[2];
  i64 next = 0;            // where a circular buffer is written next
  if constexpr (CIRCULAR) {
    next = i64(*at<SEEN>(p.seen, row)) % p.length;
    if (next < 0) next += p.length;
  }
  f32 weight[WIDTH], past[PAST];
#pragma unroll
  for (int k = 0; k < WIDTH; k++) weight[k] = to_f32(*at<WEIGHT>(p.weight, channel, k));
  const f32 bias = HAS_BIAS ? to_f32(*at<BIAS>(p.bias, channel)) : 0.f;
#pragma unroll
  for (int k = 0; k < PAST; k++) {
    i64 position = p.length - PAST + k;
    if constexpr (CIRCULAR) {
      position += next;
      if (position >= p.length) position -= p.length;
    }
    past[k] = to_f32(state[position * step]);
  }
  for (i64 t = 0; t < p.steps; t++) {
    const f32 input = to_f32(x[t * p.x.stride[2]]);
    f32 sum = bias;
#pragma unroll
    for (int k = 0; k < PAST; k++) sum = __fmaf_rn(weight[k], past[k], sum);
    sum = __fmaf_rn(weight[PAST], input, sum);
    assign(y[t * p.y.stride[2]], SILU ? silu(sum) : sum);
#pragma unroll
    for (int k = 0; k + 1 < PAST; k++) past[k] = past[k + 1];
    past[PAST - 1] = input;
    if constexpr (CIRCULAR) {
      assign(state[next * step], input);
      if (++next == p.length) next = 0;
    }
  }
  if constexpr (!CIRCULAR) move_state(p, state, x);
}
