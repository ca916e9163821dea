// The kernels on Hopper share this: chunks of 64 steps, and the units that the first kernel leaves for the second one.
//
// With the decays c (sums of logarithms from the start of the chunk), Gamma[i,j] = exp(c[i] - c[j]) and keys and queries as they lie, a unit has
//
//   T = (I + M)^-1 diag(beta), M[i,j] = beta[i] Gamma[i,j] <k[i], k[j]> for i > j        A[i,j] = scale Gamma[i,j] <q[i], k[j]> for i >= j
//
// as tiles of bf16, with the lengths that are divided out in them, and factors of steps in f32: exp(c) and exp(c[end] - c) over the length of the key,
// scale exp(c) over the length of the query, and exp(c[end]). Where channels have decays of their own factors are those of channels, exp(c[end]), and
// what the others would weigh is there as tiles: keys as they are read and written, and queries. For the backward pass T is without beta; it is a factor
// of its own, and in exp(c).
#pragma once
#include "inputs.cuh"

static_assert(given<int>(KEYS, VALUES, GROUP) && given<bool>(BESIDE, BACKWARD, BY_CHANNEL) && given<Sequences>(SEQUENCES));

constexpr int CHUNK = 64, TILE = CHUNK * 128, PANELS = KEYS / 64, ALIGNMENT = 1024;
// T and A with the factors, which are made in shared memory, then the tiles of channels
constexpr int A_AT = TILE, FACTORS_AT = 2 * TILE, STAGED_BYTES = FACTORS_AT + (BACKWARD ? 2048 : 1024);
constexpr int READ_K_AT = STAGED_BYTES, WRITTEN_K_AT = READ_K_AT + PANELS * TILE, READ_Q_AT = WRITTEN_K_AT + PANELS * TILE;
constexpr int UNIT_BYTES = BY_CHANNEL ? READ_Q_AT + PANELS * TILE : STAGED_BYTES;
// places in a unit's factors, and what they fill
constexpr int ENTERING = 0, LEAVING = CHUNK, READING = 2 * CHUNK, WHOLE = BY_CHANNEL ? 0 : 3 * CHUNK, BETAS = 4 * CHUNK;
constexpr int FACTOR_BYTES = (BACKWARD ? 5 : 4) * CHUNK * 4;

// A segment of chunks has these numbers of f32: the state that it ends with if it begins with zeros, (key, column), in whose place goes the state that it does
// begin with, then the transition that it multiplies a state by, transposed.
constexpr int TRANSITION_AT = KEYS * VALUES, END = TRANSITION_AT + KEYS * KEYS;

// The operand of 16 columns of a tile of panels of 64.
DEVICE u64 columns_of(u64 tile, int k) { return further(tile, u32(k / 4 * TILE + k % 4 * 32)); }

// The place that the units of a sequence begin at: sequences of bounds may end within a chunk, so that each has as many places as it may need.
DEVICE i64 first_unit(const Inputs& p, i64 start, i64 k) { return SEQUENCES == Sequences::Bounds ? start / CHUNK + k : 0; }

// The steps of a unit of a row; none where the place is not needed.
struct Steps {
  i64 start;
  int count;

  DEVICE Steps(const Inputs& p, i64 batch, i64 place) {
    i64 end = p.seqlen;
    start = place * CHUNK;
    if constexpr (SEQUENCES == Sequences::Bounds) {
      i64 low = 0, high = p.sequence_count;
      while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (first_unit(p, first_step(p, batch, middle), middle) <= place) low = middle; else high = middle;
      }
      const i64 first = first_step(p, batch, low);
      start = first + (place - first_unit(p, first, low)) * CHUNK, end = first_step(p, batch, low + 1);
    }
    count = int(min(end - start, i64(CHUNK)));
  }
};

// Clears the lines behind the steps of a tile, which are those of another sequence: 128 threads.
DEVICE void clear_lines(char* tile, int count) {
  for (int i = threadIdx.x % 128 + count * 8; i < CHUNK * 8; i += 128) reinterpret_cast<uint4*>(tile)[i] = make_uint4(0, 0, 0, 0);
}

// Flags of units, from one kernel to another that runs at the same time.
DEVICE void flag_set(u32* flag) { asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory"); }
DEVICE bool flag_is_set(const u32* flag) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v != 0;
}
