// Products of matrices in blocks of 16 x 16 and 16 x 8 numbers, whatever the numbers are: an operation is written once for bf16, f16, tf32 and f32.
// It comes after mma.cuh. A block of A is eight numbers of a thread, v[4 k + 2 r + e]: row g + 8 r, depth 8 k + 2 t + e, where g = lane / 4 and
// t = lane % 4; a block of B is four, v[2 k + e]: column g, depth 8 k + 2 t + e. Two neighbouring sums (16 x 8 each, C of mma.cuh) are the numbers
// of a block of A as they lie, so that sums become factors without being moved.
//
// This is `Depth::OfSums`. Numbers of 32 bits come out of lines of rows with depth 8 k + t + 4 e instead, `Depth::OfLines`, as their instruction has
// them; both factors of a product have the same order.
#pragma once

// Products are made of these types: bf16; f16; f32 rounded to tf32, which bf16 and f16 are exactly; f32 as two terms of tf32, for its own accuracy
enum class Math { Bf16, F16, Tf32, Exact };

template <Math MATH> struct Blocks;
template <> struct Blocks<Math::Bf16> {
  typedef bf16 Element;   // in shared memory
  struct A { FragmentA f; };
  struct B { FragmentB f; };
};
template <> struct Blocks<Math::F16> {
  typedef f16 Element;
  struct A { FragmentA f; };
  struct B { FragmentB f; };
};
template <> struct Blocks<Math::Tf32> {
  typedef f32 Element;
  struct A { FragmentA f[2]; };
  struct B { FragmentB f[2]; };
};
template <> struct Blocks<Math::Exact> {
  typedef f32 Element;
  struct A { FragmentA f[2][2]; };
  struct B { FragmentB f[2][2]; };
};

// whether two numbers share a register of a fragment
template <Math MATH> struct InPairs { static constexpr bool VALUE = sizeof(typename Blocks<MATH>::Element) == 2; };

enum class Depth { OfSums, OfLines };

// A tile of LINES x LENGTH numbers in shared memory, with room for ROOM numbers in a line; where lines are along the depth of a product, their order
// is ORDER. What lies behind a line keeps fragments free of bank conflicts.
template <Math KIND, int COUNT, int OF, int ROOM = OF, Depth WITH = Depth::OfSums> struct Tile {
  typedef typename Blocks<KIND>::Element Element;
  static constexpr Math MADE_OF = KIND;
  static constexpr Depth ORDER = WITH;
  static constexpr int LINES = COUNT, LENGTH = OF, PAD = WITH == Depth::OfLines && !InPairs<KIND>::VALUE ? 32 : 16;
  static constexpr int PITCH = (ROOM < LENGTH ? LENGTH : ROOM) * int(sizeof(Element)) + PAD;
  static constexpr int BYTES = LINES * PITCH;
  // whether its numbers are rounded as factors are, when they are written
  static constexpr bool IS_ROUNDED = false;
  static DEVICE char* at(char* tile, int line, int i) { return tile + line * PITCH + i * int(sizeof(Element)); }
  static DEVICE const char* at(const char* tile, int line, int i) { return tile + line * PITCH + i * int(sizeof(Element)); }
};
template <typename Of> struct Rounded : Of { static constexpr bool IS_ROUNDED = true; };

// Two neighbours in a register, the first one in its low half, and the way back.
template <Math MATH> DEVICE float2 unpack(u32 both) {
  if constexpr (MATH == Math::F16) return make_float2(to_f32(f16{u16(both)}), to_f32(f16{u16(both >> 16)}));
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}
template <Math MATH> DEVICE u32 pack(f32 first, f32 second) { return MATH == Math::F16 ? pack_f16(first, second) : pack_bf16(first, second); }

// Two neighbours of a tile.
template <Math MATH> DEVICE float2 pair_at(const char* v) {
  if constexpr (InPairs<MATH>::VALUE) return unpack<MATH>(*reinterpret_cast<const u32*>(v));
  return *reinterpret_cast<const float2*>(v);
}

// ---- scales: f16 has five bits of exponent, so what is computed, and not an argument, is divided by a power of two that leaves the largest number
// below one. The other kinds of numbers need no scales.

template <Math MATH> struct HasScales { static constexpr bool VALUE = MATH == Math::F16; };

// The largest magnitude of numbers, but for infinite ones and NaN.
struct Largest {
  u32 seen = 0;   // twice the bits, one exponent higher, so that what is not finite wraps around to the smallest ones
  DEVICE void see(f32 v) {
    const u32 bits = __float_as_uint(v);
    seen = max(seen, bits + bits + 0x01000000u);
  }
  // Makes the largest of all threads of a warp known to each.
  DEVICE void join_warp() { asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(seen)); }
  DEVICE f32 scale() const {
    constexpr u32 LOW = 127 - 40, HIGH = 127 + 40;   // products of three are finite
    return __uint_as_float(min(max(seen >> 24, LOW), HIGH) << 23);
  }
};

// one divided by a scale
DEVICE f32 inverse(f32 scale) { return __uint_as_float((254u << 23) - __float_as_uint(scale)); }

// ---- f32 and blocks

// two terms of tf32; the second one of an infinite number is NaN
DEVICE void two_terms(u32& high, u32& low, f32 v) {
  high = round_tf32(v);
  low = round_tf32(v - __uint_as_float(high));
}

template <Math MATH> DEVICE void set_block(typename Blocks<MATH>::A& to, const f32 (&v)[8]) {
#pragma unroll
  for (int k = 0; k < 2; k++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const f32 first = v[4 * k + 2 * r], second = v[4 * k + 2 * r + 1];
      if constexpr (InPairs<MATH>::VALUE) {
        to.f.v[2 * k + r] = pack<MATH>(first, second);
      } else if constexpr (MATH == Math::Tf32) {
        to.f[k].v[r] = round_tf32(first), to.f[k].v[2 + r] = round_tf32(second);
      } else {
        two_terms(to.f[k][0].v[r], to.f[k][1].v[r], first);
        two_terms(to.f[k][0].v[2 + r], to.f[k][1].v[2 + r], second);
      }
    }
}
// IS_ROUNDED: the numbers are those of a tile that says so.
template <Math MATH, bool IS_ROUNDED> DEVICE void set_block(typename Blocks<MATH>::B& to, const f32 (&v)[4]) {
  static_assert(!InPairs<MATH>::VALUE, "blocks of 16-bit numbers come out of shared memory as they are");
#pragma unroll
  for (int k = 0; k < 2; k++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if constexpr (MATH == Math::Tf32)
        to.f[k].v[e] = IS_ROUNDED ? __float_as_uint(v[2 * k + e]) : round_tf32(v[2 * k + e]);
      else
        two_terms(to.f[k][0].v[e], to.f[k][1].v[e], v[2 * k + e]);
    }
}

// The numbers of two neighbouring sums.
DEVICE void numbers_of(f32 (&v)[8], const FragmentC& first, const FragmentC& second) {
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = first.v[i], v[4 + i] = second.v[i];
}

// ---- blocks out of the shared memory of a tile, from lines of rows (of B: of columns), or from lines along the depth (DEPTH_IS_LINE)

// One of the numbers of 32 bits of a block whose lines are along the depth.
template <typename In> DEVICE f32 number_of_line(const char* block, int k, int e, int within) {
  const int t = threadIdx.x % 4, line = 8 * k + (In::ORDER == Depth::OfSums ? 2 * t + e : t + 4 * e);
  return *reinterpret_cast<const f32*>(In::at(block, line, within));
}

template <typename In, bool DEPTH_IS_LINE> DEVICE void load_numbers(f32 (&v)[8], const char* block) {
  if constexpr (InPairs<In::MADE_OF>::VALUE) {
    FragmentA raw;
    load_a<In::PITCH, DEPTH_IS_LINE>(raw, block);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 both = unpack<In::MADE_OF>(raw.v[i]);
      v[2 * i] = both.x, v[2 * i + 1] = both.y;
    }
  } else if constexpr (DEPTH_IS_LINE) {
    const int group = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = number_of_line<In>(block, i / 4, i % 2, group + i / 2 % 2 * 8);
  } else {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      FragmentA raw;
      load_a<In::PITCH>(raw, In::at(block, 0, 8 * k));
#pragma unroll
      for (int i = 0; i < 4; i++) v[4 * k + i] = __uint_as_float(raw.v[i / 2 + i % 2 * 2]);
    }
  }
}

template <typename In, bool DEPTH_IS_LINE = false> DEVICE void load_block(typename Blocks<In::MADE_OF>::A& a, const char* block) {
  if constexpr (InPairs<In::MADE_OF>::VALUE) {
    load_a<In::PITCH, DEPTH_IS_LINE>(a.f, block);
  } else {
    f32 v[8];
    load_numbers<In, DEPTH_IS_LINE>(v, block);
    set_block<In::MADE_OF>(a, v);
  }
}

// Two neighbours, 16 columns.
template <typename In, bool DEPTH_IS_LINE = false> DEVICE void load_blocks(typename Blocks<In::MADE_OF>::B (&b)[2], const char* block) {
  if constexpr (InPairs<In::MADE_OF>::VALUE) {
    FragmentB raw[2];
    load_b<In::PITCH, DEPTH_IS_LINE>(raw, block);
    b[0].f = raw[0], b[1].f = raw[1];
  } else {
    const int group = threadIdx.x % 32 / 4;
    f32 v[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      FragmentB raw[2];
      if constexpr (!DEPTH_IS_LINE) load_b<In::PITCH>(raw, In::at(block, 0, 8 * k));
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int e = 0; e < 2; e++)
          v[half][2 * k + e] = DEPTH_IS_LINE ? number_of_line<In>(block, k, e, group + 8 * half) : __uint_as_float(raw[half].v[e]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) set_block<In::MADE_OF, In::IS_ROUNDED>(b[half], v[half]);
  }
}

// ---- products: c += a b

template <Math MATH> DEVICE void multiply_blocks(FragmentC& c, const typename Blocks<MATH>::A& a, const typename Blocks<MATH>::B& b) {
  if constexpr (InPairs<MATH>::VALUE) {
    multiply<typename Blocks<MATH>::Element>(c, a.f, b.f);
  } else {
#pragma unroll
    for (int k = 0; k < 2; k++) multiply<tf32>(c, a.f[k], b.f[k]);
  }
}
