// One step of Mamba-2 between its projections: the convolution, softplus, the scan's step and the gate. A block has some channels of a head, a warp one
// channel at a time. The convolution's state stays, for other blocks read it too: the product after this moves it on.

constexpr int WARPS = THREADS / 32, OWN = (STATES + 31) / 32, TURNS = (CHANNELS + WARPS - 1) / WARPS;
constexpr int PER_HEAD = (HEADDIM + CHANNELS - 1) / CHANNELS;

extern "C" __global__ void __launch_bounds__(THREADS) mamba2_step(const __grid_constant__ Params p) {
  __shared__ f32 b[STATES], c[STATES], x[CHANNELS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 head = blockIdx.x / PER_HEAD, within = blockIdx.x % PER_HEAD * CHANNELS;
  const i64 first = i64(head) * HEADDIM + within, maps = i64(p.inner) + i64(head / p.heads_of_group) * STATES;
  const int count = HEADDIM - int(within) < CHANNELS ? HEADDIM - int(within) : CHANNELS;
  f32 state[TURNS][OWN];
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
    for (int k = 0; k < OWN; k++) {
      const int channel = warp + turn * WARPS, n = lane + k * 32;
      state[turn][k] = channel < count && n < STATES ? p.state[(first + channel) * STATES + n] : 0.f;
    }
  const f32 bias = p.dt_bias[head], d = p.d[head], a = LOG2_E * p.a[head];
  begin_next();
  wait_for_earlier();
  for (int i = threadIdx.x; i < 2 * STATES + count; i += THREADS) {
    if (i < STATES)
      b[i] = convolved<WIDTH>(p.conv, maps + i);
    else if (i < 2 * STATES)
      c[i - STATES] = convolved<WIDTH>(p.conv, maps + i64(p.groups) * STATES + i - STATES);
    else
      x[i - 2 * STATES] = convolved<WIDTH>(p.conv, first + i - 2 * STATES);
  }
  __syncthreads();
  const f32 dt = StepSize<true, true, HAS_LIMIT>::of(p.dt[head], bias, p.low, p.high), decay = exp2_fast(dt * a);
#pragma unroll
  for (int turn = 0; turn < TURNS; turn++) {
    const int channel = warp + turn * WARPS;
    if (channel >= count) break;
    f32 y = 0.f;
#pragma unroll
    for (int k = 0; k < OWN; k++) {
      const int n = lane + k * 32;
      if (n < STATES) {
        const f32 h = __fmaf_rn(decay, state[turn][k], dt * x[channel] * b[n]);
        y = __fmaf_rn(c[n], h, y);
        p.state[(first + channel) * STATES + n] = h;
      }
    }
    y = sum_of_lanes<32>(y);
    if (lane == 0) p.y[first + channel] = __fmaf_rn(d, x[channel], y) * silu(p.z[first + channel]);
  }
}
