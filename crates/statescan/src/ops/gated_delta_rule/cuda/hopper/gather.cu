// Queries, keys or values dense, (batch, step, head, channel), where they lie so that the copy engine cannot read them: such as parts of a tensor
// whose channels come before time. A block has 64 steps and 64 channels of a head.
static_assert(given<bool>(BY_TIME));

constexpr int TILE = 64, THREADS = 256, PITCH = TILE + 2;

extern "C" __global__ void __launch_bounds__(THREADS) gated_delta_rule_gather(const __grid_constant__ GatherParams p) {
  __shared__ __align__(4) bf16 tile[TILE][PITCH];
  const i64 tiles = p.width / TILE, channel = blockIdx.x % tiles * TILE, head = blockIdx.x / tiles % p.heads;
  const i64 step = blockIdx.x / tiles / p.heads % p.step_tiles * TILE, batch = blockIdx.x / tiles / p.heads / p.step_tiles;
  bf16 some[TILE * TILE / THREADS];
#pragma unroll
  for (int round = 0; round < TILE * TILE / THREADS; round++) {
    const int i = round * THREADS + threadIdx.x, t = BY_TIME ? i % TILE : i / TILE, n = BY_TIME ? i / TILE : i % TILE;
    if (step + t < p.steps) some[round] = *at<bf16>(p.from, batch, step + t, head, channel + n);
  }
#pragma unroll
  for (int round = 0; round < TILE * TILE / THREADS; round++) {
    const int i = round * THREADS + threadIdx.x, t = BY_TIME ? i % TILE : i / TILE, n = BY_TIME ? i / TILE : i % TILE;
    if (step + t < p.steps) tile[t][n] = some[round];
  }
  __syncthreads();
  u32* const to = static_cast<u32*>(p.to);
#pragma unroll
  for (int round = 0; round < TILE * TILE / 2 / THREADS; round++) {
    const int i = round * THREADS + threadIdx.x, t = i / (TILE / 2), two = i % (TILE / 2);
    if (step + t < p.steps)
      to[(((batch * p.steps + step + t) * p.heads + head) * p.width + channel) / 2 + two] = *reinterpret_cast<const u32*>(&tile[t][2 * two]);
  }
}
