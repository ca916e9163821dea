// The kernels of SSD on Hopper share this: pairs of bf16, sums, maps of packed sequences and parts.
#pragma once
#include "packed.cuh"

static_assert(given<int>(PLACES));

DEVICE u32 multiply_add_bf16(u32 a, u32 b, u32 c) {
  u32 out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
DEVICE u32 multiply_bf16(u32 a, u32 b) {
  u32 out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// Two factors in two terms of bf16 each, so that a product is rounded once.
struct alignas(8) Factors {
  u32 high, low;
  Factors() = default;
  DEVICE Factors(f32 first, f32 second) : high(pack_bf16(first, second)), low(pack_bf16(first - low_bf16(high), second - high_bf16(high))) {}
  DEVICE u32 times(u32 two) const { return multiply_add_bf16(two, high, multiply_bf16(two, low)); }
};

// This thread's number in its warp. Where there is a loop over parts it is formed anew: what follows from it would be kept in registers through the loop.
DEVICE u32 lane_here() {
  u32 lane = threadIdx.x % 32;
  if constexpr (PACKED) {
    asm volatile("" : "+r"(lane));
    lane %= 32;
  }
  return lane;
}

// Sums over a warp of a number that each thread has: of the threads before this one, and of all.
struct WarpSums {
  f64 before, whole;

  DEVICE explicit WarpSums(f64 own) : before(own) {
    const int lane = int(lane_here());
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const f64 other = __shfl_up_sync(~0u, before, far);
      if (lane >= far) before += other;
    }
    whole = __shfl_sync(~0u, before, 31);
    before = __shfl_up_sync(~0u, before, 1);
    if (lane == 0) before = 0.;
  }
};

// ---- Where a packed sequence ends within a tile its tensors have maps that end there, so that the copy engine reads zeros behind it and writes
// nothing: copies of the maps that parameters begin with, in the block's places

DEVICE TensorMap* maps_at(const Packed& p) {
  return static_cast<TensorMap*>(p.maps) + (i64(blockIdx.y) * gridDim.x + blockIdx.x) * PLACES;
}
// the maps for a part; threads call `acquire_maps` for those that they use
template <typename P, typename Work> DEVICE const TensorMap* maps_of(const P& p, const Work& w) {
  if constexpr (PACKED) return w.is_cut ? maps_at(p.packed) : &p.x_map;
  return &p.x_map;
}
template <typename P, typename Work, int COUNT> DEVICE void acquire_maps(const P& p, const Work& w, const int (&used)[COUNT]) {
  if constexpr (PACKED) {
    if (!w.is_cut) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++) tensor_map_acquire(maps_at(p.packed)[used[i]]);
  }
}
// a warp
template <typename P, typename Work> DEVICE void cut_maps(const P& p, const Work& w) {
  static_assert(Work::MAPS <= PLACES, "there are places for all");
  if (!w.is_cut) return;
  TensorMap* const maps = maps_at(p.packed);
  for (int i = threadIdx.x % 32; i < Work::MAPS * 8; i += 32) reinterpret_cast<float4*>(maps)[i] = reinterpret_cast<const float4*>(&p.x_map)[i];
  __syncwarp();
  const int own = threadIdx.x % 32;
  if (own < Work::MAPS && Work::is_of_steps(own)) tensor_map_end<2>(maps[own], u32(w.end));
}

// ---- The parts of a block, one after another: its row, or packed sequences or parts of them. `work` and the barriers are shared; barriers begin
// anew for each part.

constexpr int BETWEEN_PARTS = 3;   // a barrier's number

// The first part; then all threads meet. `whole` is the part of a block that has no other, in registers.
template <typename P, typename Work, typename Barriers> DEVICE void begin_parts(const P& p, const Work& whole, Work& work, Barriers& barriers) {
  if constexpr (PACKED) {
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) work = Work(p), barriers.init(work);
      __syncwarp();
      if (work.has_part()) cut_maps(p, work);
      __syncwarp();
    }
  } else if (threadIdx.x == 0) {
    barriers.init(whole);
  }
  __syncthreads();
}
// All threads call it, each kind of warp with its own job; those with the block's first warp say so.
template <bool LEADS, typename P, typename Work, typename Barriers, typename Job>
DEVICE void each_part(const P& p, const Work& whole, Work& work, Barriers& barriers, Job job) {
  if constexpr (PACKED) {
#pragma unroll 1
    while (work.has_part()) {
      job(work);
      // the next writes into shared memory are asynchronous copies
      fence_async();
      // kinds of warps meet from different places; a warp in which one thread worked meets as a whole
      __syncwarp();
      meet<BETWEEN_PARTS, Work::THREADS>();
      if (LEADS && threadIdx.x < 32) {
        if (threadIdx.x == 0) barriers.end(), barriers.init(work), work.next(p);
        __syncwarp();
        if (work.has_part()) cut_maps(p, work);
        __syncwarp();
      }
      meet<BETWEEN_PARTS, Work::THREADS>();
    }
  } else {
    job(whole);
  }
}
