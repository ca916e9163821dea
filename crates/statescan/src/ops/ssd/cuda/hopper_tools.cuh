// What the kernels of SSD on Hopper share: rings of barriers, and pairs of bf16.

// A place in a ring, and the phase of its barriers.
template <int COUNT> struct Turn {
  int at = 0;
  u32 phase = 0;
  DEVICE void next() {
    if (++at == COUNT) at = 0, phase ^= 1;
  }
};

// two numbers of a register
DEVICE f32 low_bf16(u32 two) { return __uint_as_float(two << 16); }
DEVICE f32 high_bf16(u32 two) { return __uint_as_float(two & 0xffff0000u); }
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

// one thread of each warp, after all of them
DEVICE void warp_arrive(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// Where a thread's part of a fragment of 16 lines x 16 columns lies in a tile, in bytes; the k-th fragment along the lines is at `^ 32 k`.
// Lines are those of the thread's warp.
DEVICE int lines_at() {
  const int lane = threadIdx.x % 32;
  return (threadIdx.x % 128 / 32 * 16 + lane % 16) * 128 + ((lane / 16) ^ lane % 8) * 16;
}
// The same of a transposed fragment, and the k-th one down the lines is at `+ 2048 k`: columns are those of the thread's warp.
DEVICE int columns_at() {
  const int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8, unit = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  return line * 128 + (unit ^ lane % 8) * 16;
}
