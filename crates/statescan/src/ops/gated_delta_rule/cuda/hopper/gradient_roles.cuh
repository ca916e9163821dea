// Warpgroups that make gradients of a chunk (see `backward_gradients.cu`) share this: where tiles are, what they wait for, and sums of rows over channels.
#pragma once
#include "backward_tiles.cuh"

static_assert(given<int>(SHARED) && given<bool>(UNIT, HAS_DY));
static_assert(KEYS == 128 && SPAN == 64 && THREADS == 512 && HAS_DY && !BY_CHANNEL && !HAS_RUNS && MATH == Math::Bf16);

constexpr int TILE = 64 * 128, ALIGNMENT = 1024, PANELS = KEYS / 64, SLICES = VALUES / 64;
constexpr int STAGES = 2, PLACES = 3;   // slices that are loaded ahead; heads whose sums are on their way
constexpr int UNIT_BYTES = PANELS * TILE, CHUNK_BYTES = 2 * UNIT_BYTES;   // keys, then queries
constexpr int STATE_AT = 0, GRADIENT_AT = UNIT_BYTES, X_AT = 2 * UNIT_BYTES, D_AT = X_AT + TILE, LOADED = D_AT + TILE;
constexpr int DY_AT = LOADED, V_AT = DY_AT + TILE, STAGE_BYTES = V_AT + TILE;
constexpr int STAGES_AT = 2 * CHUNK_BYTES, A_AT = STAGES_AT + STAGES * STAGE_BYTES, M_AT = A_AT + TILE, BETA_M_AT = M_AT + TILE, SHARED_AT = BETA_M_AT + TILE;
// sums of steps over channels
constexpr int QUERY_DQ = 0, KEY_R = 1, KEY_WRITTEN = 2, KEY_END = 3, OF_V = 4, SUMS = 5;
constexpr int TOKEN_BYTES = TOKEN_ROWS * SPAN * 4;

struct Shared {
  f32 tokens[PLACES][TOKEN_ROWS][SPAN], sums[PLACES][SUMS][SPAN], of_states[PLACES][4];
  Barrier full[STAGES], empty[STAGES], units_full[2], units_free[2], sums_full[PLACES], pairs_full, pairs_free;
};
static_assert(SHARED == SHARED_AT + int(sizeof(Shared)), "the plan has counted the same");

// A chunk of a head of keys.
struct Work {
  Chunk chunk;
  u32 index, key_head;
  DEVICE Work(const Params& p, u32 i) : chunk(chunk_at(p, i / u32(p.key_heads))), index(i / u32(p.key_heads)), key_head(i % u32(p.key_heads)) {}
  DEVICE u32 head(int own) const { return key_head * GROUP + own; }
  DEVICE i64 unit(const Params& p, int own) const { return i64(index) * p.heads + head(own); }
  DEVICE i64 of_keys(const Params& p) const { return i64(index) * p.key_heads + key_head; }
};

// A warpgroup of a block, and what it takes next.
struct Role {
  const Params& p;
  char* const shared;
  Shared& own;
  const int lane, warp, low, pair;   // the first row of a thread's sums, of which it has another one 8 further on, and the first column of eight
  Turn<STAGES> slice;
  Turn<PLACES> head;
  Turn<2> chunk;

  DEVICE Role(const Params& p, char* shared)
      : p(p), shared(shared), own(*reinterpret_cast<Shared*>(shared + SHARED_AT)), lane(threadIdx.x % 32), warp(threadIdx.x % 128 / 32),
        low(warp * 16 + lane / 4), pair(lane % 4 * 2) {}

  // job(chunk) for all of a block that there are, and none(chunk) for others
  template <typename Job, typename None> DEVICE void each_chunk(Job job, None none) {
#pragma unroll 1
    for (u32 i = blockIdx.x; i < u32(p.count); i += gridDim.x) {
      if (SEQUENCES == Sequences::Bounds && Work(p, i).chunk.rows <= 0) {
        none(i);
        continue;
      }
      job(i);
      chunk.next();
    }
  }
  DEVICE char* stage() const { return shared + STAGES_AT + slice.at * STAGE_BYTES; }
  DEVICE const char* keys() const { return shared + chunk.at * CHUNK_BYTES; }
  DEVICE const char* queries() const { return keys() + UNIT_BYTES; }
  DEVICE const f32* tokens(int row) const { return own.tokens[head.at][row]; }
  DEVICE float2 of_rows(int row) const { return make_float2(tokens(row)[low], tokens(row)[low + 8]); }

  DEVICE void await_slice() const { barrier_wait(own.full[slice.at], slice.phase); }
  DEVICE void leave_slice() {
    warp_arrive(own.empty[slice.at]);
    slice.next();
  }
  // Sums of a thread's rows over channels, to those who finish gates.
  DEVICE void put(int row, float2 sums) const {
    if (lane % 4 != 0) return;
    f32* const to = own.sums[head.at][row];
    to[low] = sums.x, to[low + 8] = sums.y;
  }
  DEVICE void leave_head() {
    warp_arrive(own.sums_full[head.at]);
    head.next();
  }
  template <int COUNT> DEVICE void hold(const FragmentA (&factors)[COUNT]) const { ::hold(factors, p.seqlen < 0, shared); }
};

// A number of which the compiler knows no more than that: it would keep what follows from it for the next use, and has no registers for that.
DEVICE u32 hidden(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Heads of values that share one of keys. Of a single turn the compiler would make no loop, and then has no registers for products that come before and after it.
DEVICE int heads_of(const Params& p) { return GROUP > 1 ? GROUP : 1 + int(p.seqlen < 0); }

DEVICE void scale_rows(FragmentA (&to)[4], const FragmentA (&v)[4], float2 factors) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const u32 two = v[i / 4].v[i % 4];
    const f32 factor = i % 2 == 0 ? factors.x : factors.y;
    to[i / 4].v[i % 4] = pack_bf16(factor * low_bf16(two), factor * high_bf16(two));
  }
}

// Two neighbours of a thread's in a row of keys or queries.
DEVICE u32 unit_pair(const char* units, int row, int n) {
  return *reinterpret_cast<const u32*>(units + n / 8 * TILE + row * 128 + (n % 8 ^ row % 8) * 16 + threadIdx.x % 4 * 4);
}
// Sums over channels of rows with those of keys or queries.
template <int COUNT> DEVICE void sums_of_rows(float2 (&to)[COUNT], const char* units, int low, const Sums<KEYS>* const (&of)[COUNT]) {
  float2 more[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; c++) to[c] = more[c] = make_float2(0.f, 0.f);
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++) {
    const u32 first = unit_pair(units, low, n), second = unit_pair(units, low + 8, n);
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
      const f32* const v = of[c]->v + 4 * n;
      float2& sum = n % 2 == 0 ? to[c] : more[c];
      sum.x = __fmaf_rn(v[0], low_bf16(first), __fmaf_rn(v[1], high_bf16(first), sum.x));
      sum.y = __fmaf_rn(v[2], low_bf16(second), __fmaf_rn(v[3], high_bf16(second), sum.y));
    }
  }
#pragma unroll
  for (int c = 0; c < COUNT; c++) to[c] = added_up(sum_of(to[c], more[c]));
}

// Gradients by queries or keys from those of their units: `along` are sums over channels with them.
template <typename E, int WIDTH> DEVICE void store_units(const Role& r, u32 i, const Sums<KEYS>& s, float2 along, int of) {
  const Params& p = r.p;
  const Work w(p, i);
  const Strided& to = of == 0 ? p.dk : p.dq;
  const f32 scale = of == 0 ? 1.f : p.scale, unscale = 1.f / scale;
  const char* const units = of == 0 ? r.keys() : r.queries();
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int step = r.low + 8 * half;
    if (step >= w.chunk.rows) continue;
    const f32 inverse = scale * (UNIT ? p.norms[(w.of_keys(p) * 2 + of) * SPAN + step] : 1.f);
    const f32 part = UNIT ? (half == 0 ? along.x : along.y) * unscale * unscale : 0.f;
    E* const line = at<E>(to, w.chunk.batch, w.chunk.start + step, w.key_head);
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
      const u32 unit = unit_pair(units, step, n);
      Neighbours<E, 2> both;
      assign(both.v[0], inverse * __fmaf_rn(-part, low_bf16(unit), s.v[4 * n + 2 * half]));
      assign(both.v[1], inverse * __fmaf_rn(-part, high_bf16(unit), s.v[4 * n + 2 * half + 1]));
      const int first = 8 * n + r.pair;
      if constexpr (WIDTH > 1)
        write_at_once(line + first, both);
      else
        line[first * to.stride[3]] = both.v[0], line[(first + 1) * to.stride[3]] = both.v[1];
    }
  }
}
