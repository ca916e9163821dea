// The kernel of `fused_layout.cuh`: its sides, and the warps that help them.
#include "fused_inputs.cuh"
#include "fused_outputs.cuh"
#include "fused_steps.cuh"

extern "C" __global__ void __launch_bounds__(Work::THREADS, 1) ssd_fused(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  __shared__ Shared shared;
  char* const tiles = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  Work whole;
  if constexpr (!PACKED) whole = Work(p);
  begin_parts(p, whole, shared.work, shared);
  const int side = threadIdx.x / 128, warp = threadIdx.x % 128 / 32;
  if (side == SIDES) {
    registers_down<HELPER_REGISTERS>();
    if constexpr (PACKED) {
      if (warp == 2) clear_steps(p, shared.work);
      if (HAS_DSKIP && SKIP_BY_COLUMN && warp == 3) clear_columns(p, shared.work);
    }
    each_part<false>(p, whole, shared.work, shared, [&](const Work& w) {
      // one of these is all that a warp does: nothing lives on to the next
      if (warp == 0) {
        if (threadIdx.x % 32 == 0) copy_in(p, w, tiles, shared);
      } else if (warp == 1) {
        compute_powers(p, w, shared);
      } else if (warp == 2) {
        finish_steps(p, w, shared);
      } else {
        copy_out(p, w, tiles, shared);
      }
    });
  } else if (side == 0) {
    registers_up<SIDE_REGISTERS>();
    each_part<true>(p, whole, shared.work, shared, [&](const Work& w) { OutputSide(p, w, tiles, shared).work(); });
  } else {
    registers_up<SIDE_REGISTERS>();
    each_part<false>(p, whole, shared.work, shared, [&](const Work& w) { InputSide(p, w, tiles, shared).work(); });
  }
}
