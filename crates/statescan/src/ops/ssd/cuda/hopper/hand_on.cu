// States of packed sequences without steps, before the walk on Hopper: a block for each head of a row.
#include "hand_on.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ssd_hand_on(const __grid_constant__ Params p) {
  hand_on(p, blockIdx.x / p.heads, blockIdx.x % p.heads, 0, p.headdim);
}
