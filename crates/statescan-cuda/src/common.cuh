// Every kernel is built from this: storage types, elementary functions, tiles of shared memory.
//
// A program is types.cuh, the declarations of its parameters (see params.rs), this text, the lines of a configuration (types and constants,
// see config.rs), then a kernel. No header of the CUDA toolkit is included, because NVRTC is often installed without them.
#pragma once

#define DEVICE __device__ __forceinline__

// A header says what it needs of the configuration: `static_assert(given<int>(STEPS) && given_types<X>())` fails with the name of a constant that is missing,
// or of another type.
template <typename A, typename B> struct Same { static constexpr bool value = false; };
template <typename A> struct Same<A, A> { static constexpr bool value = true; };
template <typename T, typename... Given> constexpr DEVICE bool given(Given...) { return (Same<T, Given>::value && ...); }
template <typename... Types> constexpr DEVICE bool given_types() { return ((sizeof(Types) > 0) && ...); }

constexpr DEVICE int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

template <bool CONDITION, typename YES, typename NO> struct Choose { typedef YES type; };
template <typename YES, typename NO> struct Choose<false, YES, NO> { typedef NO type; };

// ---- storage types: kernels compute in f32 whatever an argument is stored as

DEVICE f32 to_f32(f32 v) { return v; }
DEVICE f32 to_f32(f64 v) { return f32(v); }
DEVICE f32 to_f32(bf16 v) { return __uint_as_float(u32(v.bits) << 16); }
DEVICE f32 to_f32(f16 v) {
  f32 out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v.bits));
  return out;
}

DEVICE void assign(f32& to, f32 v) { to = v; }
DEVICE void assign(f64& to, f32 v) { to = v; }
DEVICE void assign(bf16& to, f32 v) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
DEVICE void assign(f16& to, f32 v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(v)); }
DEVICE void assign(complex64& to, complex64 v) { to = v; }
DEVICE void assign(complex128& to, complex64 v) { to = {v.re, v.im}; }
DEVICE void assign(complex64& to, f32 v) { to = {v, 0.f}; }
DEVICE void assign(complex128& to, f32 v) { to = {v, 0.f}; }
// a real tensor keeps the real part
template <typename E> DEVICE void assign(E& to, complex64 v) { assign(to, v.re); }

DEVICE complex64 to_complex(f32 v) { return {v, 0.f}; }
DEVICE complex64 to_complex(f64 v) { return {f32(v), 0.f}; }
DEVICE complex64 to_complex(bf16 v) { return {to_f32(v), 0.f}; }
DEVICE complex64 to_complex(f16 v) { return {to_f32(v), 0.f}; }
DEVICE complex64 to_complex(complex64 v) { return v; }
DEVICE complex64 to_complex(complex128 v) { return {f32(v.re), f32(v.im)}; }

// real numbers of an element
template <typename E> struct PartsOf { static constexpr int COUNT = 1; };
template <> struct PartsOf<complex64> { static constexpr int COUNT = 2; };
template <> struct PartsOf<complex128> { static constexpr int COUNT = 2; };

// ---- fields: what a recurrence runs on, f32 or complex64

DEVICE void convert(f32& to, f32 v) { to = v; }
template <typename E> DEVICE void convert(f32& to, E v) { to = to_f32(v); }
template <typename E> DEVICE void convert(complex64& to, E v) { to = to_complex(v); }

template <typename F> DEVICE F from_real(f32 v) {
  F out;
  convert(out, v);
  return out;
}

DEVICE f32 part_of(f32 v, int) { return v; }
DEVICE f32 part_of(complex64 v, int part) { return part == 0 ? v.re : v.im; }
DEVICE void from_parts(f32& to, f32 re, f32) { to = re; }
DEVICE void from_parts(complex64& to, f32 re, f32 im) { to = {re, im}; }

DEVICE f32 mul_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE complex64 mul_add(complex64 a, complex64 b, complex64 c) {
  return {__fmaf_rn(-a.im, b.im, __fmaf_rn(a.re, b.re, c.re)), __fmaf_rn(a.im, b.re, __fmaf_rn(a.re, b.im, c.im))};
}
DEVICE f32 re_mul_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE f32 re_mul_add(complex64 a, complex64 b, f32 c) { return __fmaf_rn(-a.im, b.im, __fmaf_rn(a.re, b.re, c)); }
DEVICE f32 add(f32 a, f32 b) { return a + b; }
DEVICE complex64 add(complex64 a, complex64 b) { return {a.re + b.re, a.im + b.im}; }
DEVICE f32 mul(f32 a, f32 b) { return a * b; }
DEVICE complex64 mul(complex64 a, complex64 b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
// a conj(b)
DEVICE f32 mul_conj(f32 a, f32 b) { return a * b; }
DEVICE complex64 mul_conj(complex64 a, complex64 b) { return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im}; }
DEVICE f32 re_mul_conj_add(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
DEVICE f32 re_mul_conj_add(complex64 a, complex64 b, f32 c) { return __fmaf_rn(a.im, b.im, __fmaf_rn(a.re, b.re, c)); }
DEVICE f32 scaled_add(f32 a, f32 x, f32 c) { return __fmaf_rn(a, x, c); }
DEVICE complex64 scaled_add(complex64 a, f32 x, complex64 c) { return {__fmaf_rn(a.re, x, c.re), __fmaf_rn(a.im, x, c.im)}; }
// conj(a) x + c
DEVICE f32 scaled_conj_add(f32 a, f32 x, f32 c) { return __fmaf_rn(a, x, c); }
DEVICE complex64 scaled_conj_add(complex64 a, f32 x, complex64 c) { return {__fmaf_rn(a.re, x, c.re), __fmaf_rn(-a.im, x, c.im)}; }
DEVICE f32 scale(f32 a, f32 x) { return a * x; }
DEVICE complex64 scale(complex64 a, f32 x) { return {a.re * x, a.im * x}; }

// ---- elementary functions

constexpr f32 LOG2_E = 1.44269504088896341f;
constexpr f32 LN_2 = 0.693147180559945309f;
constexpr f32 PI = 3.14159265358979324f;
constexpr f32 INV_PI = 0.318309886183790672f;

DEVICE f32 exp2_fast(f32 v) {
  f32 out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}
DEVICE f32 reciprocal_fast(f32 v) {
  f32 out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

// The sum over a warp's threads, for each of them.
DEVICE f32 sum_of_warp(f32 v) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(~0u, v, apart);
  return v;
}

// ---- shared memory

DEVICE u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// The compiler compares loads of long unrolled loops pair by pair, which can take most of its time. Loads of this kind it leaves as they are.
DEVICE float4 shared_load(u32 address) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address));
  return v;
}
// Others are compared as far as such a line alone.
DEVICE void loads_stay() { asm volatile("" ::: "memory"); }

// ---- asynchronous copies into it

DEVICE void copy_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// all copies but the last LEFT ones that were committed
template <int LEFT = 0> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Waits for COUNT threads at a barrier of their own; 0 is that of __syncthreads. Unlike `bar.sync` it lets threads of a warp arrive apart.
template <int BARRIER, int COUNT> DEVICE void meet() { asm volatile("barrier.sync %0, %1;" ::"n"(BARRIER), "n"(COUNT) : "memory"); }

// How steps belong to sequences: each row is one; bounds of packed ones; the sequence of each step.
enum class Sequences { Whole, Bounds, Index };

// A launch scans rows whole, or in segments of time. Then the first launch leaves the state after each segment but the
// last, from a state of zero except for the first one, and the second starts each but the first from the states that follow from these.
enum class Pass { Whole, Ends, Rest };

// A constant as an argument.
template <bool B> struct Flag { static constexpr bool VALUE = B; };

// ---- tensors

// job(i, round) for i below COUNT, divided among the threads of a block; unrolled if QUICK, and otherwise short to compile
template <int COUNT, int THREADS, bool QUICK = true, typename Job> DEVICE void each(Job job) {
  constexpr int ROUNDS = (COUNT + THREADS - 1) / THREADS;
#pragma unroll(QUICK ? ROUNDS + 1 : 1)
  for (int round = 0; round < ROUNDS; round++) {
    const int i = round * THREADS + int(threadIdx.x);
    if (COUNT % THREADS == 0 || i < COUNT) job(i, round);
  }
}

// As `each`, with load(item, i) before job(item, i). MOST rounds load before the first of them writes: a compiler does not put a load before
// a write that might change what it loads, and then each round would wait for its own.
template <int COUNT, int THREADS, bool QUICK, typename Item, int MOST = 4, typename Load, typename Job>
DEVICE void each_loaded(Load load, Job job) {
  constexpr int ROUNDS = (COUNT + THREADS - 1) / THREADS, TOGETHER = !QUICK ? 1 : ROUNDS < MOST ? ROUNDS : MOST;
#pragma unroll(QUICK ? ROUNDS + 1 : 1)
  for (int first = 0; first < ROUNDS; first += TOGETHER) {
    Item items[TOGETHER];
    auto visit = [&](auto visitor) {
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        const int i = (first + k) * THREADS + int(threadIdx.x);
        if (first + k < ROUNDS && (COUNT % THREADS == 0 || i < COUNT)) visitor(items[k], i);
      }
    };
    visit(load);
    visit(job);
  }
}

// An element of a tensor.
template <typename E> DEVICE E* at(const Strided& v, i64 i, i64 j = 0, i64 k = 0, i64 l = 0) {
  return static_cast<E*>(v.data) + (i * v.stride[0] + j * v.stride[1] + k * v.stride[2] + l * v.stride[3]);
}

// Four neighbouring steps as they are stored.
template <typename E> struct alignas(sizeof(E) * 4 < 16 ? sizeof(E) * 4 : 16) Quad { E v[4]; };

// COUNT neighbours as they are stored, in one access of at most 16 bytes.
template <typename E, int COUNT> struct alignas(sizeof(E) * COUNT) Neighbours { E v[COUNT]; };

// Writes neighbours in one access: an ordinary assignment a compiler may take apart into its elements, which are many more stores.
template <typename E, int COUNT> DEVICE void write_at_once(E* to, const Neighbours<E, COUNT>& some) {
  constexpr int BYTES = sizeof(some);
  const u32* const word = reinterpret_cast<const u32*>(&some);
  if constexpr (BYTES == 16)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
  else if constexpr (BYTES == 8)
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]) : "memory");
  else if constexpr (BYTES == 4)
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
  else
    *to = some.v[0];
}

// How a tile of rows (channels or states) x steps comes out of global memory: which axis neighbouring threads take, and whether 16 bytes at
// a time, which needs that axis to be contiguous. If its lines do not begin at multiples of 16 bytes they are shifted.
enum class Copy { TimeVector, TimeShifted, Time, RowVector, RowShifted, Row };

// Two neighbours at once, which is one instruction for 16-bit types.
template <typename E> DEVICE void assign2(E* to, f32 v, f32 w) { assign(to[0], v), assign(to[1], w); }
DEVICE void assign2(bf16* to, f32 v, f32 w) { asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*reinterpret_cast<u32*>(to)) : "f"(w), "f"(v)); }
DEVICE void assign2(f16* to, f32 v, f32 w) { asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(*reinterpret_cast<u32*>(to)) : "f"(w), "f"(v)); }

// Writes the steps in [low, high) of the four at `to`, all of them if WHOLE.
template <bool VECTOR, bool WHOLE, typename E> DEVICE void store4(E* to, i64 stride, const f32 (&v)[4], int low, int high) {
  Quad<E> quad;
  assign2(quad.v, v[0], v[1]), assign2(quad.v + 2, v[2], v[3]);
  if (VECTOR && (WHOLE || (low <= 0 && high >= 4))) {
    *reinterpret_cast<Quad<E>*>(to) = quad;
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (WHOLE || (j >= low && j < high)) to[j * stride] = quad.v[j];
  }
}
