// The states that segments begin with, one after another, from what they leave alone (`ends.cu`). A block has eight columns of a head, a thread a key and
// four of them.
#include "unit.cuh"

static_assert(given<int>(KEYS, VALUES) && given<bool>(HAS_INITIAL));

constexpr int COLUMNS = 8;

extern "C" __global__ void __launch_bounds__(2 * KEYS) gated_delta_rule_hand_on(const __grid_constant__ Params p) {
  __shared__ float4 states[2][2][KEYS];
  const int n = threadIdx.x % KEYS, half = threadIdx.x / KEYS, of_head = blockIdx.x / (VALUES / COLUMNS), column = blockIdx.x % (VALUES / COLUMNS) * COLUMNS + 4 * half;
  const Piece piece(p, of_head / p.heads);
  const StateRow from = source_of(p, piece.state);
  f32 own[4] = {};
  if (HAS_INITIAL && !is_nowhere(from))
#pragma unroll
    for (int i = 0; i < 4; i++) own[i] = to_f32(*state_at<INITIAL>(p.before, from, of_head % p.heads, n, column + i));
  float4 state = make_float4(own[0], own[1], own[2], own[3]);
  f32* end = p.ends + i64(of_head) * p.segments * END;
  asm volatile("griddepcontrol.wait;" ::: "memory");
#pragma unroll 1
  for (int segment = 0; segment < p.segments - 1; segment++, end += END) {
    f32 transition[KEYS];
#pragma unroll
    for (int m = 0; m < KEYS; m++) transition[m] = end[TRANSITION_AT + m * KEYS + n];
    float4& place = *reinterpret_cast<float4*>(end + n * VALUES + column);
    float4 sum = place;
    float4* const all = states[segment % 2][half];
    all[n] = state;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < KEYS; m++) {
      const float4 other = all[m];
      sum.x = __fmaf_rn(transition[m], other.x, sum.x), sum.y = __fmaf_rn(transition[m], other.y, sum.y);
      sum.z = __fmaf_rn(transition[m], other.z, sum.z), sum.w = __fmaf_rn(transition[m], other.w, sum.w);
    }
    place = state, state = sum;
  }
  *reinterpret_cast<float4*>(end + n * VALUES + column) = state;
}
