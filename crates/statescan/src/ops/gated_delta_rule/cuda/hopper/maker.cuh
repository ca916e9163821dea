// Units (`unit.cuh`) are made here, whatever decays are: a warpgroup has a chunk of a head of keys, and makes a unit for each head of values.
//
// A warp inverts a diagonal block of 16 x 16 by substitution, a column a thread, then forms the blocks of T below it, transposed:
// T[q,w]^T = -(sum of T[l,w]^T M[q,l]^T) T[q,q]^T, each of them sums that become factors as they lie.
//
// BESIDE the chain, which follows by flags, blocks fill a multiprocessor each and leave the others to it. The chain is launched when all of them have
// begun, so they wait for nothing.
#pragma once
#include "unit.cuh"

static_assert(given<int>(WARPGROUPS, SHARED, GROUP) && given<bool>(BESIDE, UNIT) && given<Sequences>(SEQUENCES));

// Lines of a block of f32 in shared memory are so many numbers apart: fragments are free of bank conflicts.
constexpr int PITCH = 20, BLOCK = 16 * PITCH;
typedef Blocks<Math::Tf32> Factors;

struct Triangle {
  f32 below[6][BLOCK];         // blocks of M below the diagonal, by rows of blocks
  f32 diagonal[4][256];        // blocks on it, by columns
  f32 inverse[4][BLOCK];       // their inverses
  Barrier full;
};

// A chunk of a head of keys, the i-th of all places, in the order of time.
struct Work {
  u32 i;
  i64 key_head, batch, place;
  Steps steps;
  DEVICE Work(const Params& p, u32 i)
      : i(i), key_head(i % u32(p.key_heads)), batch(i / u32(p.key_heads) % u32(p.rows)), place(i / u32(p.key_heads) / u32(p.rows)), steps(p, batch, place) {}
  DEVICE bool exists(const Params& p) const { return i < u32(p.count); }
  // the place of the unit of a head of values
  DEVICE i64 unit(const Params& p, int member) const { return (batch * p.heads + key_head * GROUP + member) * p.places + place; }
};

struct Maker {
  const Params& p;
  char* const keys;
  char* const queries;
  char* const unit;
  Triangle& triangle;
  const int group, thread, lane, warp, first;   // the first line and, with 8 more, the other one of this thread's sums
  const int pair;                // its first column of eight

  DEVICE Maker(const Params& p, char* shared)
      : p(p), keys(shared), queries(shared + PANELS * TILE), unit(shared + 2 * PANELS * TILE), triangle(*reinterpret_cast<Triangle*>(unit + STAGED_BYTES)),
        group(threadIdx.x / 128), thread(threadIdx.x % 128), lane(thread % 32), warp(thread / 32), first(warp * 16 + lane / 4), pair(lane % 4 * 2) {}

  // the threads of the warpgroup
  DEVICE void meet() const { asm volatile("barrier.sync %0, 128;" ::"r"(1 + group) : "memory"); }

  DEVICE Work begin() const { return existing(Work(p, blockIdx.x * WARPGROUPS + group)); }
  DEVICE Work next(const Work& w) const { return existing(after(w)); }
  DEVICE Work after(const Work& w) const { return Work(p, w.i + gridDim.x * WARPGROUPS); }
  // The first one from this on that has steps.
  DEVICE Work existing(Work w) const {
    if constexpr (SEQUENCES == Sequences::Bounds)
      while (w.exists(p) && w.steps.count <= 0) w = after(w);
    return w;
  }

  // Starts to load a chunk's keys and queries.
  DEVICE void load_rows(const Work& w) {
    if (thread != 0) return;
    barrier_arrive_expecting(triangle.full, 2 * PANELS * TILE);
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
      const int at[4] = {64 * panel, int(w.key_head), int(w.steps.start), int(w.batch)};
      tile_load(keys + panel * TILE, p.k_map, triangle.full, at);
      tile_load(queries + panel * TILE, p.q_map, triangle.full, at);
    }
  }

  // Waits for them; what lies behind the chunk's steps is cleared.
  DEVICE void await_rows(const Work& w, u32 phase) {
    barrier_wait(triangle.full, phase);
    if (w.steps.count == CHUNK) return;
#pragma unroll
    for (int panel = 0; panel < 2 * PANELS; panel++) clear_lines(keys + panel * TILE, w.steps.count);
    fence_async();
    meet();
  }

  // The inverse of a diagonal block: a thread has a column.
  DEVICE void invert_diagonal() {
    const int column = lane % 16;
    const f32* const block = triangle.diagonal[warp];
    f32 x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) x[i] = i == column ? 1.f : 0.f;
#pragma unroll
    for (int k = 0; k < 15; k++) {
      f32 m[16];
#pragma unroll
      for (int i = (k + 1) / 4 * 4; i < 16; i += 4) *reinterpret_cast<float4*>(m + i) = *reinterpret_cast<const float4*>(block + k * 16 + i);
#pragma unroll
      for (int i = k + 1; i < 16; i++) x[i] = __fmaf_rn(-m[i], x[k], x[i]);
    }
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 16; i++) triangle.inverse[warp][i * PITCH + column] = x[i];
  }

  // Two neighbours of B from the lines of a block's transpose.
  DEVICE void load_transposed(Factors::B (&b)[2], const f32* block) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      f32 v[4];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const float2 both = *reinterpret_cast<const float2*>(block + (lane / 4 + 8 * half) * PITCH + 8 * k + pair);
        v[2 * k] = both.x, v[2 * k + 1] = both.y;
      }
      set_block<Math::Tf32, false>(b[half], v);
    }
  }

  // The columns of the warp's block of T, transposed, times `betas` if there are any, as bf16 into the unit.
  DEVICE void invert(const f32* betas) {
    Factors::A t[4];
    const f32 of[2] = {betas ? betas[first] : 1.f, betas ? betas[first + 8] : 1.f};
    char* const to = unit + columns_at();
#pragma unroll
    for (int q = 0; q < 4; q++) {
      f32 v[8] = {};
      if (q == warp) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = triangle.inverse[q][(i / 4 * 8 + pair + i % 2) * PITCH + lane / 4 + i / 2 % 2 * 8];
      } else if (q > warp) {
        FragmentC sums[2] = {}, out[2] = {};
        Factors::B b[2];
#pragma unroll
        for (int l = 0; l < q; l++) {
          if (l >= warp) {
            load_transposed(b, triangle.below[q * (q - 1) / 2 + l]);
            multiply_blocks<Math::Tf32>(sums[0], t[l], b[0]), multiply_blocks<Math::Tf32>(sums[1], t[l], b[1]);
          }
        }
        numbers_of(v, sums[0], sums[1]);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = -v[i];
        Factors::A a;
        set_block<Math::Tf32>(a, v);
        load_transposed(b, triangle.inverse[q]);
        multiply_blocks<Math::Tf32>(out[0], a, b[0]), multiply_blocks<Math::Tf32>(out[1], a, b[1]);
        numbers_of(v, out[0], out[1]);
      }
      set_block<Math::Tf32>(t[q], v);
      u32 two[4];
#pragma unroll
      for (int i = 0; i < 4; i++) two[i] = pack_bf16(v[2 * i] * of[i % 2], v[2 * i + 1] * of[i % 2]);
      store_matrices<true>(to + q * 2048, two);
    }
  }

  // T, from M, times `betas` of the steps. The unit before has been read afterwards.
  DEVICE void make_inverse(const f32* betas) {
    __syncwarp();
    invert_diagonal();
    if (!BESIDE && thread == 0) tile_store_wait();
    meet();
    invert(betas);
  }

  DEVICE void hand_on(i64 place) {
    char* const to = static_cast<char*>(p.units) + place * UNIT_BYTES;
    if constexpr (BESIDE) {
      for (int i = thread; i < STAGED_BYTES / 16; i += 128) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(unit)[i];
      meet();
      if (thread == 0) flag_set(p.flags + place);
    } else if (thread == 0) {
      bytes_store(to, unit, STAGED_BYTES);
      tile_store_commit();
    }
  }
};

// All units of a block, by a maker that knows how to `load` what they are made of and to `make` them.
template <typename M> DEVICE void make_units(const Params& p) {
  extern __shared__ __align__(1024) char dynamic[];
  M maker(p, dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT + threadIdx.x / 128 * SHARED);
  if (maker.thread == 0) {
    barrier_init(maker.triangle.full, 1);
    barriers_are_ready();
  }
  Work work = maker.begin();
  if constexpr (BESIDE) {
    for (Work w = work; w.exists(p); w = maker.next(w))
      if (maker.thread < GROUP) p.flags[w.unit(p, maker.thread)] = 0;
    __threadfence();
  }
  __syncthreads();
  // the chain may begin where there is room for it
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (work.exists(p)) maker.load(work);
  u32 phase = 0;
#pragma unroll 1
  while (work.exists(p)) {
    const Work next = maker.next(work);
    maker.make(work, next, phase);
    work = next, phase ^= 1;
  }
  if (!BESIDE && maker.thread == 0) tile_store_finish();
}
