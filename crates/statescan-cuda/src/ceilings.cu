// This kernel measures the largest rates of a device. Each thread repeats one instruction on values of its own, enough of them to hide latency.

constexpr int CHAINS = 16;

extern "C" __global__ void __launch_bounds__(THREADS) ceilings(const __grid_constant__ Params p) {
  f32 v[CHAINS];
#pragma unroll
  for (int i = 0; i < CHAINS; i++) v[i] = p.value + i + threadIdx.x;
  for (i64 round = 0; round < p.rounds; round++) {
#pragma unroll
    for (int i = 0; i < CHAINS; i++) v[i] = EXP ? exp2_fast(v[i]) : __fmaf_rn(v[i], p.value, p.value);
  }
  f32 sum = 0.f;
#pragma unroll
  for (int i = 0; i < CHAINS; i++) sum += v[i];
  // never so, but the compiler does not know
  if (sum == 12345.678f) p.out[0] = sum;
}
