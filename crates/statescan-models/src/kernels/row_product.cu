// One row times a matrix of weights, y = W f(x), where weights stream from memory once. A warp has the products of OUTPUTS rows of W, or of a PARTS-th
// of them, and asks for the next pieces of weights before it multiplies the present ones; the first it asks for before x is there. Every block computes
// f(x) for itself, into shared memory: nothing, a norm, or the convolution in front of a scan.

constexpr int WARPS = THREADS / 32, TEAMS = WARPS / PARTS, SPAN = 32 * PIECE * PIECES;

typedef Neighbours<W, PIECE> Piece;
struct Weights { Piece v[OUTPUTS][PIECES]; };

DEVICE void load_once(Piece& to, const Piece* from) {
  if constexpr (sizeof(Piece) == 16) {
    u32* const word = reinterpret_cast<u32*>(&to);
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3]) : "l"(from));
  } else {
    to = *from;
  }
}

DEVICE void load(Weights& to, const Params& p, u32 first, u32 chunk) {
#pragma unroll
  for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
      const u32 at = chunk * SPAN + (k * 32 + threadIdx.x % 32) * PIECE;
      to.v[o][k] = {};
      if (first + o < p.outputs && at < p.inputs)
        load_once(to.v[o][k], reinterpret_cast<const Piece*>(static_cast<const W*>(p.weight) + i64(first + o) * p.pitch + at));
    }
}

DEVICE void multiply(f32 (&sums)[OUTPUTS], const Weights& weights, const f32* x, const Params& p, u32 chunk) {
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    const u32 at = chunk * SPAN + (k * 32 + threadIdx.x % 32) * PIECE;
    if (at >= p.inputs) break;
    f32 factors[PIECE];
    if constexpr (PIECE % 4 == 0) {
#pragma unroll
      for (int j = 0; j < PIECE; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(x + at + j);
        factors[j] = four.x, factors[j + 1] = four.y, factors[j + 2] = four.z, factors[j + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int j = 0; j < PIECE; j++) factors[j] = x[at + j];
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
      for (int j = 0; j < PIECE; j++) sums[o] = __fmaf_rn(to_f32(weights.v[o][k].v[j]), factors[j], sums[o]);
  }
}

// 1 / the root of the mean square of so many numbers
DEVICE f32 norm_factor(f32 squares, f32 count, f32 eps) { return rsqrtf(squares / count + eps); }

// The part of f that is known before x is there, for AT_ONCE inputs of a thread: the norm's weights, or the past of the convolution.
struct Prepared {
  f32 norm[BEFORE == Before::Norm ? AT_ONCE : 1];
  Convolution<WIDTH> conv[BEFORE == Before::Conv ? AT_ONCE : 1];

  DEVICE void prepare(const Params& p, u32 start) {
    if constexpr (BEFORE != Before::Nothing)
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const u32 i = start + k * THREADS + threadIdx.x, at = i < p.inputs ? i : 0;
        if constexpr (BEFORE == Before::Norm) norm[k] = p.norm[at];
        if constexpr (BEFORE == Before::Conv) conv[k].prepare(p.conv, at);
      }
  }
};

DEVICE void stage(f32* x, const Params& p, Prepared& prepared) {
  __shared__ f32 squares_of_warps[WARPS];
  const f32* const source = BEFORE == Before::Conv ? p.conv.input : p.x;
  f32 squares = 0.f;
  for (u32 start = 0; start < p.inputs; start += AT_ONCE * THREADS) {
    if (BEFORE == Before::Conv && start > 0) prepared.prepare(p, start);
    f32 v[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const u32 i = start + k * THREADS + threadIdx.x;
      v[k] = i < p.inputs ? source[i] : 0.f;
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const u32 i = start + k * THREADS + threadIdx.x;
      if (i < p.inputs) x[i] = BEFORE == Before::Conv ? prepared.conv[BEFORE == Before::Conv ? k : 0].of(v[k]) : v[k];
      squares = __fmaf_rn(v[k], v[k], squares);
    }
  }
  if constexpr (BEFORE != Before::Norm) return;
  if constexpr (!GROUPED) {
    squares = sum_of_lanes<32>(squares);
    if (threadIdx.x % 32 == 0) squares_of_warps[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) squares += squares_of_warps[warp];
    const f32 factor = norm_factor(squares, f32(p.inputs), p.eps);
    for (u32 start = 0; start < p.inputs; start += AT_ONCE * THREADS) {
      if (start > 0) prepared.prepare(p, start);
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const u32 i = start + k * THREADS + threadIdx.x;
        if (i < p.inputs) x[i] *= factor * prepared.norm[BEFORE == Before::Norm ? k : 0];
      }
    }
  } else {
    __syncthreads();
    for (u32 first = threadIdx.x / 32 * p.group; first < p.inputs; first += WARPS * p.group) {
      squares = 0.f;
      for (u32 i = threadIdx.x % 32; i < p.group; i += 32) squares = __fmaf_rn(x[first + i], x[first + i], squares);
      const f32 factor = norm_factor(sum_of_lanes<32>(squares), f32(p.group), p.eps);
      for (u32 i = threadIdx.x % 32; i < p.group; i += 32) x[first + i] *= factor * p.norm[first + i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) row_product(const __grid_constant__ Params p) {
  extern __shared__ float4 shared[];
  __shared__ f32 sums_of_parts[WARPS][OUTPUTS];
  f32* const x = reinterpret_cast<f32*>(shared);
  const u32 warp = threadIdx.x / 32, part = warp % PARTS, team = warp / PARTS;
  const u32 chunks = (p.inputs + SPAN - 1) / SPAN, step = gridDim.x * TEAMS * OUTPUTS;
  u32 block_first = blockIdx.x * TEAMS * OUTPUTS;
  Weights now;
  load(now, p, block_first + team * OUTPUTS, part);
  Prepared prepared;
  prepared.prepare(p, 0);
  begin_next();
  wait_for_earlier();
  stage(x, p, prepared);
  if constexpr (MOVES)
    for (u32 channel = blockIdx.x * THREADS + threadIdx.x; channel < p.moving; channel += gridDim.x * THREADS) move_on<WIDTH>(p.conv, channel);
  __syncthreads();
  for (; block_first < p.outputs; block_first += step) {
    const u32 first = block_first + team * OUTPUTS;
    f32 sums[OUTPUTS] = {};
    for (u32 chunk = part; chunk < chunks; chunk += PARTS) {
      const bool last = chunk + PARTS >= chunks;
      Weights next;
      load(next, p, last ? first + step : first, last ? part : chunk + PARTS);
      multiply(sums, now, x, p, chunk);
      now = next;
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) sums[o] = sum_of_lanes<32>(sums[o]);
    if constexpr (PARTS > 1) {
      if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) sums_of_parts[warp][o] = sums[o];
      __syncthreads();
      if (part == 0)
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
          for (int other = 1; other < PARTS; other++) sums[o] += sums_of_parts[warp + other][o];
      __syncthreads();
    }
    if (part == 0 && threadIdx.x % 32 == 0)
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) {
        const u32 output = first + o;
        if (output >= p.outputs) break;
        f32 y = SCALED ? p.factor * sums[o] : sums[o];
        if constexpr (HAS_BIAS) y += to_f32(static_cast<const B*>(p.bias)[output]);
        if constexpr (ADD) y += p.y[output];
        p.y[output] = y;
      }
  }
}
