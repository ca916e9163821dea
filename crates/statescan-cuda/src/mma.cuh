// Products on tensor cores, on every architecture from sm_80 on: fragments that a warp holds, how they come out of shared memory, and products of
// f32 that keep its accuracy. With g = lane / 4 and t = lane % 4 a thread holds
//
//   A (16 x 16, two 16-bit numbers in a register):  rows g, g + 8, g, g + 8   columns 2t, 2t + 1, and 8 more in the last two registers
//   A (16 x 8, one tf32 in a register):             rows g, g + 8, g, g + 8   column t, and 4 more in the last two registers
//   B (16 x 8 or 8 x 8):                            column g, rows as the columns of A
//   C (16 x 8, f32):                                row g, columns 2t, 2t + 1; then row g + 8
#pragma once

struct FragmentA { u32 v[4]; };
struct FragmentB { u32 v[2]; };
struct FragmentC { f32 v[4]; };

// f32 with 10 bits after the point, in the place of an f32
struct tf32 { u32 bits; };

// ---- products: c += a b

template <typename E> DEVICE void multiply(FragmentC& c, const FragmentA& a, const FragmentB& b);

#define MULTIPLY(TYPE, INSTRUCTION)                                                                                                   \
  template <> DEVICE void multiply<TYPE>(FragmentC & c, const FragmentA& a, const FragmentB& b) {                                     \
    asm("mma.sync.aligned." INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])                                                                      \
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));                                              \
  }
MULTIPLY(bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MULTIPLY(f16, "m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY(tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef MULTIPLY

// The products that matter of numbers that are sums of TERMS terms, each smaller than the one before; the small ones come first.
template <typename E, int TERMS> DEVICE void multiply(FragmentC& c, const FragmentA (&a)[TERMS], const FragmentB (&b)[TERMS]) {
#pragma unroll
  for (int order = TERMS - 1; order >= 0; order--)
#pragma unroll
    for (int i = 0; i <= order; i++) multiply<E>(c, a[i], b[order - i]);
}

// ---- f32 as a sum of shorter numbers; infinite numbers become NaN

// two neighbours in a register, the first one in its low half
DEVICE u32 pack_bf16(f32 first, f32 second) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
}

DEVICE u32 pack_f16(f32 first, f32 second) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
  return out;
}

// three terms of bf16 have all bits of an f32, and six products of them those of a product
template <int TERMS> DEVICE void split_bf16(u32 (&terms)[TERMS], f32 first, f32 second) {
#pragma unroll
  for (int i = 0; i < TERMS; i++) {
    terms[i] = pack_bf16(first, second);
    first -= __uint_as_float(terms[i] << 16), second -= __uint_as_float(terms[i] & 0xffff0000u);
  }
}

DEVICE u32 round_tf32(f32 v) {
  u32 out;
#if __CUDA_ARCH__ >= 900
  // one instruction, where the other way to round takes several
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
#endif
  return out;
}

// a fragment of f32, rounded
template <typename Fragment> DEVICE Fragment round_tf32(const Fragment& raw) {
  Fragment out;
#pragma unroll
  for (u32 i = 0; i < sizeof(raw.v) / 4; i++) out.v[i] = round_tf32(__uint_as_float(raw.v[i]));
  return out;
}

// a fragment of f32 in two terms of tf32: 21 bits, and three products
template <typename Fragment> DEVICE void split_tf32(Fragment (&terms)[2], const Fragment& raw) {
#pragma unroll
  for (u32 i = 0; i < sizeof(raw.v) / 4; i++) {
    const f32 v = __uint_as_float(raw.v[i]);
    terms[0].v[i] = round_tf32(v);
    terms[1].v[i] = round_tf32(v - __uint_as_float(terms[0].v[i]));
  }
}

// ---- fragments out of shared memory: lines of a tile are PITCH bytes apart, and aligned to 16 bytes

// Four matrices of 8 lines x 16 bytes, the m-th at the addresses of the threads from 8 m on; TRANSPOSED for 16-bit numbers alone.
template <bool TRANSPOSED> DEVICE void load_matrices(u32 (&out)[4], const void* line) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared_address(line)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) : "r"(shared_address(line)) : "memory");
}

// 16 lines x 32 bytes: matrices down the lines first, or across them first.
template <int PITCH> DEVICE const char* line_down_first(const void* tile) {
  const int lane = threadIdx.x % 32;
  return static_cast<const char*>(tile) + lane % 16 * PITCH + lane / 16 * 16;
}
template <int PITCH> DEVICE const char* line_across_first(const void* tile) {
  const int lane = threadIdx.x % 32;
  return static_cast<const char*>(tile) + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
}

// A from lines of rows, or from lines of columns (TRANSPOSED)
template <int PITCH, bool TRANSPOSED = false> DEVICE void load_a(FragmentA& a, const void* tile) {
  load_matrices<TRANSPOSED>(a.v, TRANSPOSED ? line_across_first<PITCH>(tile) : line_down_first<PITCH>(tile));
}

// Two neighbours of B, 16 columns, from lines of columns, or from lines of rows (TRANSPOSED)
template <int PITCH, bool TRANSPOSED = false> DEVICE void load_b(FragmentB (&b)[2], const void* tile) {
  u32 v[4];
  load_matrices<TRANSPOSED>(v, TRANSPOSED ? line_down_first<PITCH>(tile) : line_across_first<PITCH>(tile));
  b[0].v[0] = v[0], b[0].v[1] = v[1], b[1].v[0] = v[2], b[1].v[1] = v[3];
}

// 16 bytes on their way into shared memory, or zeros if there is nothing at `from`
DEVICE void copy_async_16_or_zero(void* to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
