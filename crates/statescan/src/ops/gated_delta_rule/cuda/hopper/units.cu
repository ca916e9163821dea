// Units (`unit.cuh`) of all chunks, beside each other: a warpgroup has a chunk of a head of keys, and makes a unit for each head of values.
//
// Products of warpgroups give <k, k>, <q, k> and, for its diagonal, <q, q>. A warp inverts a diagonal block of 16 x 16 by substitution, a column a
// thread, then forms the blocks of T below it, transposed: T[q,w]^T = -(sum of T[l,w]^T M[q,l]^T) T[q,q]^T, each of them sums that become factors
// as they lie.
//
// BESIDE the chain, which follows by flags, blocks fill a multiprocessor each and leave the others to it. The chain is launched when all of them have
// begun, so they wait for nothing.
#include "unit.cuh"

static_assert(given<bool>(UNIT) && given<int>(WARPGROUPS));

// Lines of a block of f32 in shared memory are so many numbers apart: fragments are free of bank conflicts.
constexpr int PITCH = 20, BLOCK = 16 * PITCH;
constexpr int MINE = (GROUP + 3) / 4;   // heads whose gates a warp sums up
typedef Blocks<Math::Tf32> Factors;

struct Room {
  f32 below[6][BLOCK];         // blocks of M below the diagonal, by rows of blocks
  f32 diagonal[4][256];        // blocks on it, by columns
  f32 inverse[4][BLOCK];       // their inverses
  f32 sums[GROUP][CHUNK], betas[GROUP][CHUNK];
  f32 key[CHUNK], query[CHUNK];   // one over the lengths
  Barrier full;
};
static_assert(SHARED >= PANELS * 2 * TILE + UNIT_BYTES + int(sizeof(Room)) && SHARED % ALIGNMENT == 0, "the plan has counted the same, for a warpgroup");

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
  Room& room;
  const int group, thread, lane, warp, first;   // the first line and, with 8 more, the other one of this thread's sums
  const int pair;                // its first column of eight
  f32 logs[MINE][2], beta[MINE][2];

  DEVICE Maker(const Params& p, char* shared)
      : p(p), keys(shared), queries(shared + PANELS * TILE), unit(shared + 2 * PANELS * TILE), room(*reinterpret_cast<Room*>(unit + UNIT_BYTES)),
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

  // Starts to load what its units are made of.
  DEVICE void load(const Work& w) {
    if (thread == 0) {
      barrier_arrive_expecting(room.full, 2 * PANELS * TILE);
#pragma unroll
      for (int panel = 0; panel < PANELS; panel++) {
        const int at[4] = {64 * panel, int(w.key_head), int(w.steps.start), int(w.batch)};
        tile_load(keys + panel * TILE, p.k_map, room.full, at);
        tile_load(queries + panel * TILE, p.q_map, room.full, at);
      }
    }
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int member = warp + 4 * m;
      const Head head(p, w.key_head * GROUP + min(member, GROUP - 1));
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int step = 2 * lane + e;
        const bool exists = member < GROUP && step < w.steps.count;
        const f32 log = exists ? head.log_decay_at(p, w.batch, w.steps.start + step) : 0.f;
        // differences of sums exist; a decay of so much is zero
        logs[m][e] = log < -200.f ? -200.f : log;
        beta[m][e] = exists ? head.beta_at(p, w.batch, w.steps.start + step) : 0.f;
      }
    }
  }

  // Sums of the logarithms, for exponentials of two.
  DEVICE void sum_up() {
#pragma unroll
    for (int m = 0; m < MINE; m++) {
      const int member = warp + 4 * m;
      f32 sum = (logs[m][0] + logs[m][1]) * LOG2_E;
#pragma unroll
      for (int apart = 1; apart < 32; apart *= 2) {
        const f32 before = __shfl_up_sync(~0u, sum, apart);
        if (lane >= apart) sum += before;
      }
      if (member < GROUP) {
        reinterpret_cast<float2*>(room.sums[member])[lane] = make_float2(sum - logs[m][1] * LOG2_E, sum);
        reinterpret_cast<float2*>(room.betas[member])[lane] = make_float2(beta[m][0], beta[m][1]);
      }
    }
  }

  // Lengths from the numbers on the diagonal of sums, of which every fourth thread of a line has two.
  DEVICE void measure(f32 (&lengths)[CHUNK], const Sums<64>& squares) {
    const bool odd = lane & 4;
    f32 low = 0.f, high = 0.f;
#pragma unroll
    for (int block = 0; block < 4; block++) {
      const f32* const v = squares.v + 8 * block;
      low = block == warp ? (odd ? v[1] : v[0]) : low, high = block == warp ? (odd ? v[7] : v[6]) : high;
    }
    if (lane / 8 == lane % 4) lengths[first] = UNIT ? inverse_length(low) : 1.f, lengths[first + 8] = UNIT ? inverse_length(high) : 1.f;
  }

  DEVICE void multiply_rows(Sums<64>& sums, const char* a, const char* b) {
    const u64 rows = operand(a), columns = operand(b);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) multiply<false>(sums, columns_of(rows, k), columns_of(columns, k), k > 0);
  }

  // Products of the chunk's rows, and their lengths.
  DEVICE void multiply_all(Sums<64>& kk, Sums<64>& qk) {
    Sums<64> qq;
    products_fence();
    multiply_rows(kk, keys, keys);
    multiply_rows(qk, queries, keys);
    if constexpr (UNIT) multiply_rows(qq, queries, queries);
    products_commit();
    products_wait();
    pin(kk.v), pin(qk.v);
    if constexpr (UNIT) pin(qq.v);
    measure(room.key, kk);
    if constexpr (UNIT) measure(room.query, qq); else measure(room.query, qk);
  }

  // M, and A in pairs of bf16. Left of the diagonal blocks exp(c[i] - c[j]) = exp(c[i] - r) exp(r - c[j]), with r of the first row of the warp, where
  // decays make both at most one.
  DEVICE void weigh(int member, const Sums<64>& kk, const Sums<64>& qk, u32 (&a)[16]) {
    const f32 *const c = room.sums[member], *const b = room.betas[member];
    const f32 own[2] = {c[first], c[first + 8]}, from = c[16 * warp];
    f32 by_key[2], by_query[2];
#pragma unroll
    for (int r = 0; r < 2; r++) by_key[r] = b[first + 8 * r] * room.key[first + 8 * r], by_query[r] = room.query[first + 8 * r] * p.scale;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      a[2 * n] = a[2 * n + 1] = 0;
      const int column = n * 8 + pair;
      const float2 other = *reinterpret_cast<const float2*>(c + column), key = *reinterpret_cast<const float2*>(room.key + column);
      if (n < 2 * warp) {
        f32 m[2][2];
        const f32 to[2] = {exp2_fast(from - other.x) * key.x, exp2_fast(from - other.y) * key.y};
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const f32 decay = exp2_fast(own[r] - from), of_query = decay * by_query[r], of_key = decay * by_key[r];
          a[2 * n + r] = pack_bf16(qk.v[4 * n + 2 * r] * (to[0] * of_query), qk.v[4 * n + 2 * r + 1] * (to[1] * of_query));
          m[r][0] = kk.v[4 * n + 2 * r] * (to[0] * of_key), m[r][1] = kk.v[4 * n + 2 * r + 1] * (to[1] * of_key);
        }
        f32* const to_line = room.below[warp * (warp - 1) / 2 + n / 2] + lane / 4 * PITCH + n % 2 * 8 + pair;
        *reinterpret_cast<float2*>(to_line) = make_float2(m[0][0], m[0][1]);
        *reinterpret_cast<float2*>(to_line + 8 * PITCH) = make_float2(m[1][0], m[1][1]);
      } else if (n < 2 * warp + 2) {
        f32* const to_column = room.diagonal[warp] + (n % 2 * 8 + pair) * 16 + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int row = first + 8 * r;
          const f32 decay[2] = {exp2_fast(own[r] - other.x) * key.x, exp2_fast(own[r] - other.y) * key.y};
          f32 read[2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            read[e] = column + e <= row ? qk.v[4 * n + 2 * r + e] * decay[e] * by_query[r] : 0.f;
            to_column[16 * e + 8 * r] = column + e < row ? kk.v[4 * n + 2 * r + e] * decay[e] * by_key[r] : 0.f;
          }
          a[2 * n + r] = pack_bf16(read[0], read[1]);
        }
      }
    }
  }

  // The inverse of a diagonal block: a thread has a column.
  DEVICE void invert_diagonal() {
    const int column = lane % 16;
    const f32* const block = room.diagonal[warp];
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
      for (int i = 0; i < 16; i++) room.inverse[warp][i * PITCH + column] = x[i];
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

  // The columns of the warp's block of T, transposed, times their beta, as bf16 into the unit.
  DEVICE void invert(int member) {
    Factors::A t[4];
    const f32 of[2] = {room.betas[member][first], room.betas[member][first + 8]};
    char* const to = unit + columns_at();
#pragma unroll
    for (int q = 0; q < 4; q++) {
      f32 v[8] = {};
      if (q == warp) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = room.inverse[q][(i / 4 * 8 + pair + i % 2) * PITCH + lane / 4 + i / 2 % 2 * 8];
      } else if (q > warp) {
        FragmentC sums[2] = {}, out[2] = {};
        Factors::B b[2];
#pragma unroll
        for (int l = 0; l < q; l++) {
          if (l >= warp) {
            load_transposed(b, room.below[q * (q - 1) / 2 + l]);
            multiply_blocks<Math::Tf32>(sums[0], t[l], b[0]), multiply_blocks<Math::Tf32>(sums[1], t[l], b[1]);
          }
        }
        numbers_of(v, sums[0], sums[1]);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = -v[i];
        Factors::A a;
        set_block<Math::Tf32>(a, v);
        load_transposed(b, room.inverse[q]);
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

  DEVICE void write_rows(const u32 (&a)[16]) {
    char* const to = unit + A_AT + first * 128 + pair * 2;
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const int at = (n ^ lane / 4) * 16;
      *reinterpret_cast<u32*>(to + at) = a[2 * n], *reinterpret_cast<u32*>(to + 8 * 128 + at) = a[2 * n + 1];
    }
  }

  DEVICE void write_factors(int member) {
    const f32* const c = room.sums[member];
    f32* const to = reinterpret_cast<f32*>(unit + FACTORS_AT);
    const int i = thread % CHUNK;
    const f32 end = c[CHUNK - 1];
    if (thread < CHUNK)
      to[ENTERING + i] = exp2_fast(c[i]) * room.key[i], to[LEAVING + i] = exp2_fast(end - c[i]) * room.key[i];
    else
      to[READING + i] = exp2_fast(c[i]) * room.query[i] * p.scale;
    if (thread == CHUNK) to[WHOLE] = exp2_fast(end);
  }

  // Makes the units of one that is being loaded, and starts to load the next one.
  DEVICE void make(const Work& w, const Work& next, u32 phase) {
    sum_up();
    barrier_wait(room.full, phase);
    if (w.steps.count < CHUNK) {
#pragma unroll
      for (int panel = 0; panel < 2 * PANELS; panel++) clear_lines(keys + panel * TILE, w.steps.count);
      fence_async();
      meet();
    }
    Sums<64> kk, qk;
    multiply_all(kk, qk);
    meet();
    if (next.exists(p)) load(next);
#pragma unroll 1
    for (int member = 0; member < GROUP; member++) {
      u32 a[16];
      weigh(member, kk, qk, a);
      __syncwarp();
      invert_diagonal();
      // the unit before has been read
      if (!BESIDE && thread == 0) tile_store_wait();
      meet();
      invert(member);
      write_rows(a);
      write_factors(member);
      if constexpr (!BESIDE) fence_async();
      meet();
      hand_on(w.unit(p, member));
    }
  }

  DEVICE void hand_on(i64 place) {
    char* const to = static_cast<char*>(p.units) + place * UNIT_BYTES;
    if constexpr (BESIDE) {
      for (int i = thread; i < UNIT_BYTES / 16; i += 128) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(unit)[i];
      meet();
      if (thread == 0) flag_set(p.flags + place);
    } else if (thread == 0) {
      bytes_store(to, unit, UNIT_BYTES);
      tile_store_commit();
    }
  }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, RESIDENT) gated_delta_rule_units(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  Maker maker(p, dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT + threadIdx.x / 128 * SHARED);
  if (maker.thread == 0) {
    barrier_init(maker.room.full, 1);
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
