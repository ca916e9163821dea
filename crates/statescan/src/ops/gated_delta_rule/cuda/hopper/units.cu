// Units of the forward pass, with one decay a head.
#include "head_units.cuh"

struct ForwardMaker : HeadMaker {
  using HeadMaker::HeadMaker;

  // Makes the units of one that is being loaded, and starts to load the next one.
  DEVICE void make(const Work& w, const Work& next, u32 phase) {
    sum_up();
    await_rows(w, phase);
    Sums<64> kk, qk;
    multiply_all(kk, qk);
    meet();
    if (next.exists(p)) load(next);
#pragma unroll 1
    for (int member = 0; member < GROUP; member++) {
      u32 a[16];
      weigh(member, kk, qk, a);
      make_inverse(room.betas[member]);
      write_rows(a);
      write_factors(member);
      if constexpr (!BESIDE) fence_async();
      meet();
      hand_on(w.unit(p, member));
    }
  }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, RESIDENT) gated_delta_rule_units(const __grid_constant__ Params p) { make_units<ForwardMaker>(p); }
