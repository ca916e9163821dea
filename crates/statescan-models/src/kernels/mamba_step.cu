// One step of Mamba between the projection of its maps and the one out of it: dt_proj, softplus, the scan's step, the gate, and the convolution's
// state moved on. LANES threads have a channel: its dot product of dt_proj, then its states.

constexpr int CHANNELS = THREADS / LANES, WEIGHTS = (RANK + LANES - 1) / LANES, OWN = (STATES + LANES - 1) / LANES, MAPS = RANK + 2 * STATES;

// Norms on step sizes, B and C, a warp each.
DEVICE void normalize(f32* maps, f32 eps) {
  const int part = threadIdx.x / 32, first = part == 0 ? 0 : RANK + (part - 1) * STATES, count = part == 0 ? RANK : STATES;
  if (part < 3) {
    f32 squares = 0.f;
    for (int i = threadIdx.x % 32; i < count; i += 32) squares = __fmaf_rn(maps[first + i], maps[first + i], squares);
    const f32 factor = rsqrtf(sum_of_lanes<32>(squares) / f32(count) + eps);
    for (int i = threadIdx.x % 32; i < count; i += 32) maps[first + i] *= factor;
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) mamba_step(const __grid_constant__ Params p) {
  __shared__ f32 maps[MAPS];
  const int lane = threadIdx.x % LANES;
  const u32 own = blockIdx.x * CHANNELS + threadIdx.x / LANES;
  const bool exists = own < p.channels;
  const i64 channel = exists ? own : 0;
  f32 weight[WEIGHTS], a[OWN], state[OWN];
#pragma unroll
  for (int k = 0; k < WEIGHTS; k++) {
    const int i = lane + k * LANES;
    weight[k] = i < RANK ? to_f32(static_cast<const W*>(p.dt_weight)[channel * RANK + i]) : 0.f;
  }
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    const int n = lane + k * LANES;
    a[k] = n < STATES ? LOG2_E * p.a[channel * STATES + n] : 0.f;
    state[k] = n < STATES ? p.state[channel * STATES + n] : 0.f;
  }
  const f32 bias = p.dt_bias[channel], d = p.d[channel];
  Convolution<WIDTH> conv;
  conv.prepare(p.conv, channel);
  begin_next();
  wait_for_earlier();
  const f32 input = p.conv.input[channel], z = p.z[channel];
  for (int i = threadIdx.x; i < MAPS; i += THREADS) maps[i] = p.maps[i];
  __syncthreads();
  if constexpr (NORMS) normalize(maps, p.eps);
  f32 dt = 0.f;
#pragma unroll
  for (int k = 0; k < WEIGHTS; k++) {
    const int i = lane + k * LANES;
    if (i < RANK) dt = __fmaf_rn(weight[k], maps[i], dt);
  }
  dt = StepSize<true, true, HAS_LIMIT>::of(sum_of_lanes<LANES>(dt), bias, p.low, p.high);
  const f32 x = conv.of(input);
  f32 y = 0.f;
#pragma unroll
  for (int k = 0; k < OWN; k++) {
    const int n = lane + k * LANES;
    if (n < STATES) {
      const f32 h = __fmaf_rn(exp2_fast(dt * a[k]), state[k], dt * maps[RANK + n] * x);
      y = __fmaf_rn(maps[RANK + STATES + n], h, y);
      if (exists) p.state[channel * STATES + n] = h;
    }
  }
  y = sum_of_lanes<LANES>(y);
  // every thread of the channel has read the convolution's state
  __syncwarp();
  if (exists && lane == 0) {
    p.y[channel] = __fmaf_rn(d, x, y) * silu(z);
    move_on<WIDTH>(p.conv, channel);
  }
}
