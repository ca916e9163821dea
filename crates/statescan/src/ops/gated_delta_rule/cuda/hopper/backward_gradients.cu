// Gradients of chunks on Hopper, as in `backward_gradients.cu`, by blocks that go from one chunk of a head of keys to another. Slices of 64 columns come as
// tiles, two of them ahead, and each of four warpgroups has a part of the work for all keys:
//
//   m = X D^T     a = dy D^T     q += diag(since) dy S^T        then, with decays in a and m:     q += a K
//   r = X S^T     k += diag(until) D R^T                        r = m K - diag(since) r           k += a^T Q + (beta m)^T K + beta r
//   the gradients by v, gates and beta
//   loads, and <S, R>
//
// They meet at barriers alone: what one has left for another is there before that one needs it, and the first two are up to a slice apart.
#include "backward_tiles.cuh"

static_assert(given_types<DY, DQ, DK, DV, DGATE, DBETA>() && given<int>(SHARED, DQ_WIDTH, DK_WIDTH, DV_WIDTH));
static_assert(given<bool>(UNIT, HAS_DY, HAS_DQ, HAS_DK, HAS_DV, HAS_DGATE, HAS_DBETA, HAS_SUMS, NEEDS_KEYS));
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

// The sums of two rows, those of the threads that have numbers of them.
DEVICE float2 added_up(float2 sums) {
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) sums.x += __shfl_xor_sync(0xffffffffu, sums.x, apart), sums.y += __shfl_xor_sync(0xffffffffu, sums.y, apart);
  return sums;
}
DEVICE float2 sum_of(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
DEVICE float2 difference(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }

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

// ---- a warpgroup: the gradient by queries, and products of steps

struct Queries : Role {
  using Role::Role;

  DEVICE void run() {
    each_chunk([&](u32 i) { take(i); }, [](u32) {});
  }
  DEVICE void take(u32 index) {
    Sums<KEYS> q;
    float2 all = make_float2(0.f, 0.f);
    barrier_wait(own.units_full[chunk.at], chunk.phase);
#pragma unroll 1
    for (int member = 0; member < heads_of(p); member++) {
      Sums<64> a, m;
#pragma unroll 1
      for (int i = 0; i < SLICES; i++) take_slice(q, a, m, i > 0, member + i > 0);
      FragmentA pairs[4];
      hand_over(pairs, a, m);
      pin(q.v);
      products_fence();
      const u64 of = operand(keys(), TILE);
#pragma unroll
      for (int k = 0; k < 4; k++) multiply<true>(q, pairs[k], further(of, k * 2048), true);
      products_commit();
      products_wait();
      pin(q.v);
      hold(pairs);
      float2 sums[1];
      sums_of_rows<1>(sums, queries(), low, {&q});
      put(QUERY_DQ, difference(sums[0], all));
      all = sums[0];
      leave_head();
    }
    if constexpr (HAS_DQ) store_units<DQ, DQ_WIDTH>(*this, index, q, all, 1);
    warp_arrive(own.units_free[chunk.at]);
  }

  // m = X D^T, a = dy D^T, and q += since dy S^T
  DEVICE void take_slice(Sums<KEYS>& q, Sums<64>& a, Sums<64>& m, bool goes_on, bool has_queries) {
    await_slice();
    const char* const from = stage();
    FragmentA dy[4], read[4];
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<false>(dy[k].v, from + DY_AT + (lines_at() ^ k * 32));
    const u64 d = operand(from + D_AT), x = operand(from + X_AT), state = operand(from + STATE_AT, TILE);
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      multiply<true, true>(m, further(x, k * 2048), further(d, k * 2048), goes_on || k > 0);
      multiply<true>(a, dy[k], further(d, k * 2048), goes_on || k > 0);
    }
    products_commit();
    scale_rows(read, dy, of_rows(SINCE));
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(q, read[k], further(state, k * 2048), has_queries || k > 0);
    products_commit();
    products_wait();
    pin(a.v), pin(m.v), pin(q.v);
    hold(dy), hold(read);
    leave_slice();
  }

  // Products of steps with their decays, by rows, m with beta of its rows, too; those of a stay as factors.
  DEVICE void hand_over(FragmentA (&pairs)[4], const Sums<64>& a, const Sums<64>& m) {
    const f32* const sums = tokens(SUM);
    const f32 since[2] = {sums[low], sums[low + 8]}, beta[2] = {tokens(BETA_ROW)[low], tokens(BETA_ROW)[low + 8]};
    barrier_wait(own.pairs_free, pairs_phase ^ 1);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 of_m[4] = {}, of_beta_m[4] = {};
#pragma unroll
      for (int i = 0; i < 4; i++) pairs[k].v[i] = 0;
      if (k <= warp) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = low + i % 2 * 8, column = 16 * k + i / 2 * 8 + pair, at = 8 * k + 2 * i;
          const float2 other = *reinterpret_cast<const float2*>(sums + column);
          const f32 x = row >= column ? exp_fast(since[i % 2] - other.x) : 0.f;
          const f32 y = row > column ? exp_fast(since[i % 2] - other.y) : 0.f;
          const f32 mx = row > column ? -x * m.v[at] : 0.f, my = row > column + 1 ? -y * m.v[at + 1] : 0.f;
          pairs[k].v[i] = pack_bf16(x * a.v[at], y * a.v[at + 1]);
          of_m[i] = pack_bf16(mx, my), of_beta_m[i] = pack_bf16(beta[i % 2] * mx, beta[i % 2] * my);
        }
      }
      const int to = lines_at() ^ k * 32;
      store_matrices<false>(shared + A_AT + to, pairs[k].v);
      store_matrices<false>(shared + M_AT + to, of_m), store_matrices<false>(shared + BETA_M_AT + to, of_beta_m);
    }
    fence_async();
    warp_arrive(own.pairs_full);
    pairs_phase ^= 1;
  }
  u32 pairs_phase = 0;
};

// ---- a warpgroup: the gradient by keys

struct Keys : Role {
  using Role::Role;
  u32 pairs_phase = 0;

  DEVICE void run() {
    each_chunk([&](u32 i) { take(i); }, [](u32) {});
  }
  DEVICE void take(u32 index) {
    Sums<KEYS> k;
    float2 all = make_float2(0.f, 0.f);
    barrier_wait(own.units_full[chunk.at], chunk.phase);
#pragma unroll 1
    for (int member = 0; member < heads_of(p); member++) {
      Sums<KEYS> r;
#pragma unroll 1
      for (int i = 0; i < SLICES; i++) take_slice(r, k, i > 0, member + i > 0);
      finish_head(r, k, all);
    }
    if constexpr (HAS_DK) store_units<DK, DK_WIDTH>(*this, index, k, all, 0);
    warp_arrive(own.units_free[chunk.at]);
  }

  // r = X S^T, and k += until D R^T
  DEVICE void take_slice(Sums<KEYS>& r, Sums<KEYS>& all, bool goes_on, bool has_keys) {
    await_slice();
    const char* const from = stage();
    const u64 x = operand(from + X_AT), state = operand(from + STATE_AT, TILE), gradient = operand(from + GRADIENT_AT, TILE);
    FragmentA d[4];
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true, true>(r, further(x, k * 2048), further(state, k * 2048), goes_on || k > 0);
    products_commit();
#pragma unroll
    for (int k = 0; k < 4; k++) load_matrices<true>(d[k].v, from + D_AT + columns_at() + k * 2048);
    scale_rows(d, d, of_rows(UNTIL));
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) multiply<true>(all, d[k], further(gradient, k * 2048), has_keys || k > 0);
    products_commit();
    products_wait();
    pin(r.v), pin(all.v);
    hold(d);
    leave_slice();
  }

  // Steps of a head give to those before them.
  DEVICE void multiply_pairs(Sums<KEYS>& r, Sums<KEYS>& all) {
    const u64 a = operand(shared + A_AT), m = operand(shared + M_AT), beta_m = operand(shared + BETA_M_AT);
    const u64 k = operand(keys(), TILE), q = operand(queries(), TILE);
    barrier_wait(own.pairs_full, pairs_phase);
    pairs_phase ^= 1;
    pin(r.v), pin(all.v);
    products_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      multiply<true>(r, further(m, i * 32), further(k, i * 2048), true);
      multiply<true, true>(all, further(a, i * 2048), further(q, i * 2048), true);
      multiply<true, true>(all, further(beta_m, i * 2048), further(k, i * 2048), true);
    }
    products_commit();
    products_wait();
    pin(r.v), pin(all.v);
    warp_arrive(own.pairs_free);
  }

  DEVICE void finish_head(Sums<KEYS>& r, Sums<KEYS>& k, float2& all) {
    const float2 since = of_rows(SINCE), beta = of_rows(BETA_ROW);
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) r.v[i] *= i / 2 % 2 == 0 ? -since.x : -since.y;
    float2 end[1], sums[2];
    sums_of_rows<1>(end, keys(), low, {&k});
    put(KEY_END, difference(end[0], all));
    multiply_pairs(r, k);
    sums_of_rows<2>(sums, keys(), low, {&r, &k});
    put(KEY_R, sums[0]), put(KEY_WRITTEN, difference(sums[1], all));
    all = make_float2(__fmaf_rn(beta.x, sums[0].x, sums[1].x), __fmaf_rn(beta.y, sums[0].y, sums[1].y));
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) k.v[i] = __fmaf_rn(i / 2 % 2 == 0 ? beta.x : beta.y, r.v[i], k.v[i]);
    leave_head();
  }
};

// ---- a warpgroup: gradients by v, gates and beta

DEVICE f32 sum_of_warp(f32 v) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
  return v;
}

struct Values : Role {
  using Role::Role;

  DEVICE void run() {
    each_chunk(
        [&](u32 i) {
#pragma unroll 1
          for (int member = 0; member < GROUP; member++) take(i, member);
        },
        [&](u32 i) { clear(Work(p, i)); });
  }
  // A chunk that there is not leaves no terms.
  DEVICE void clear(const Work& w) const {
    const int i = threadIdx.x % 128;
    if (HAS_SUMS && i < GROUP) p.da_terms[w.unit(p, i)] = 0.f, p.dbias_terms[w.unit(p, i)] = 0.f;
  }
  DEVICE void take(u32 index, int member) {
    float2 of_v = make_float2(0.f, 0.f);
#pragma unroll 1
    for (int i = 0; i < SLICES; i++) take_slice(Work(p, hidden(index)), member, i, of_v);
    Gates gates;
    if (NEEDS_KEYS && warp == 0) gates = gates_of(Work(p, hidden(index)), member);
    put(OF_V, added_up(of_v));
    meet<1, 128>();
    if (NEEDS_KEYS && warp == 0) finish_gates(Work(p, hidden(index)), member, gates);
    head.next();
  }

  // X of eight neighbouring columns of a step: lines of a tile, of which a thread has two of each matrix, are taken in such an order, turned by threads to
  // keep them in banks of their own.
  DEVICE void load_x(u32 (&to)[4], const char* tile, int unit, int first) const {
    const int of = lane % 8 / 2, column = first + 8 * of + 2 * ((lane / 8 + of) % 4) + lane % 2;
    u32 v[4], turned[4];
    load_matrices<true>(v, tile + column * 128 + (unit ^ column % 8) * 16);
#pragma unroll
    for (int i = 0; i < 4; i++) turned[i] = lane & 1 ? v[(i + 3) % 4] : v[i];
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = lane & 2 ? turned[(i + 2) % 4] : turned[i];
  }

  // The gradient by v of a slice, and sums of X v: a thread has two pieces of eight columns of either step.
  DEVICE void take_slice(const Work& w, int member, int index, float2& of_v) {
    await_slice();
    const float2 betas = of_rows(BETA_ROW);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
      const int step = low + 8 * half;
      const char* const values = stage() + V_AT + step * 128;
      u32 x[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) load_x(x[i], stage() + X_AT, 2 * warp + half, 32 * i);
      f32 sum = 0.f;
      if constexpr (HAS_DBETA)
        sum = multiply_values(x[0], values + (lane % 4 ^ step % 8) * 16) + multiply_values(x[1], values + ((lane % 4 + 4) ^ step % 8) * 16);
      of_v = sum_of(of_v, half == 0 ? make_float2(sum, 0.f) : make_float2(0.f, sum));
      DV* const to = at<DV>(p.dv, w.chunk.batch, w.chunk.start + step, w.head(member), 64 * index + lane % 4 * 8);
      const f32 beta = half == 0 ? betas.x : betas.y;
      if (HAS_DV && step < w.chunk.rows) store(to, x[0], beta), store(to + 32 * p.dv.stride[3], x[1], beta);
    }
    leave_slice();
  }
  DEVICE static f32 multiply_values(const u32 (&x)[4], const char* values) {
    const uint4 eight = *reinterpret_cast<const uint4*>(values);
    const u32 v[4] = {eight.x, eight.y, eight.z, eight.w};
    f32 sum = 0.f;
#pragma unroll
    for (int e = 0; e < 4; e++) sum = __fmaf_rn(low_bf16(x[e]), low_bf16(v[e]), __fmaf_rn(high_bf16(x[e]), high_bf16(v[e]), sum));
    return sum;
  }
  DEVICE void store(DV* to, const u32 (&x)[4], f32 beta) const {
#pragma unroll
    for (int c = 0; c < 8; c += DV_WIDTH) {
      Neighbours<DV, DV_WIDTH> some;
#pragma unroll
      for (int e = 0; e < DV_WIDTH; e++) assign(some.v[e], beta * ((c + e) % 2 == 0 ? low_bf16(x[(c + e) / 2]) : high_bf16(x[(c + e) / 2])));
      write_at_once(to + c * p.dv.stride[3], some);
    }
  }

  // What gates and betas of two steps are made of, as it lies in memory.
  struct Gates { GATE gate[2]; BETA beta[2]; A_LOG a_log; BIAS bias; };
  DEVICE Gates gates_of(const Work& w, int member) const {
    const u32 of = w.head(member);
    Gates gates = {};
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const i64 t = w.chunk.start + min(2 * lane + e, w.chunk.rows - 1);
      if constexpr (HAS_GATE) gates.gate[e] = *at<GATE>(p.g, w.chunk.batch, t, of);
      if constexpr (HAS_DBETA) gates.beta[e] = *at<BETA>(p.beta, w.chunk.batch, t, of);
    }
    if constexpr (RAW) gates.a_log = *at<A_LOG>(p.a_log, of);
    if constexpr (HAS_BIAS) gates.bias = *at<BIAS>(p.bias, of);
    return gates;
  }

  // Gradients by the gates and beta of two steps, by a warp.
  DEVICE void finish_gates(const Work& w, int member, const Gates& gates) {
    barrier_wait(own.sums_full[head.at], head.phase);
    const auto sums = [&](int row) { return reinterpret_cast<const float2*>(own.sums[head.at][row])[lane]; };
    const float2 key_r = sums(KEY_R), query = sums(QUERY_DQ), written = sums(KEY_WRITTEN), end = sums(KEY_END), of_v = sums(OF_V);
    const float2 beta = reinterpret_cast<const float2*>(tokens(BETA_ROW))[lane];
    const f32* const states = own.of_states[head.at];
    const f32 ends = (states[0] + states[1] + states[2] + states[3]) * tokens(SINCE)[SPAN - 1] + sum_of_warp(end.x + end.y);
    f32 after[2];
    after[1] = query.y + beta.y * key_r.y - written.y, after[0] = after[1] + (query.x + beta.x * key_r.x - written.x);
    f32 behind = after[0];
    // turns that are unrolled have no registers for bf16's conversions behind them
#pragma unroll 1
    for (int apart = 1; apart < 32; apart *= 2) {
      const f32 more = __shfl_down_sync(0xffffffffu, behind, apart);
      if (lane + apart < 32) behind += more;
    }
    behind = __shfl_down_sync(0xffffffffu, behind, 1);
    const f32 rest = ends + (lane < 31 ? behind : 0.f), rate = RAW ? expf(to_f32(gates.a_log)) : 0.f;
    f32 by_gate = 0.f, by_a_log = 0.f;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int step = 2 * lane + e;
      if (step >= w.chunk.rows) continue;
      const LogDecay slopes = log_decay_slopes(to_f32(gates.gate[e]) + to_f32(gates.bias), rate, p.lower_bound);
      const f32 by_log = after[e] + rest, of_gate = by_log * slopes.by_gate, by_beta = e == 0 ? key_r.x + of_v.x : key_r.y + of_v.y;
      const i64 t = w.chunk.start + step, of = w.head(member);
      if constexpr (HAS_DBETA) assign(*at<DBETA>(p.dbeta, w.chunk.batch, t, of), beta_slope(to_f32(gates.beta[e]), p.beta_factor) * by_beta);
      if constexpr (HAS_DGATE) assign(*at<DGATE>(p.dg, w.chunk.batch, t, of), of_gate);
      by_gate += of_gate, by_a_log += by_log * slopes.by_a_log;
    }
    if constexpr (!HAS_SUMS) return;
    by_gate = sum_of_warp(by_gate), by_a_log = sum_of_warp(by_a_log);
    if (lane == 0) p.dbias_terms[w.unit(p, member)] = by_gate, p.da_terms[w.unit(p, member)] = by_a_log;
  }
};

// ---- a warpgroup that loads, and multiplies states with their gradients meanwhile

struct Loader : Role {
  using Role::Role;
  // The slice that is multiplied, one behind the one that is loaded, and its place among those of a head; products of heads.
  Turn<STAGES> taken;
  Turn<PLACES> of_head;
  int index = -1;
  f32 sum = 0.f;

  DEVICE void run() {
    each_chunk(
        [&](u32 i) {
          if (NEEDS_KEYS && threadIdx.x % 128 == 0) load_units(Work(p, i));
#pragma unroll 1
          for (int k = 0; k < GROUP * SLICES; k++) {
            load_slice(Work(p, hidden(i)), k / SLICES, k % SLICES);
            if (NEEDS_KEYS && index >= 0) take_states(); else index = 0;
          }
        },
        [](u32) {});
    if (NEEDS_KEYS && index >= 0) take_states();
  }
  DEVICE void take_states() {
    barrier_wait(own.full[taken.at], taken.phase);
    sum = multiply_states(shared + STAGES_AT + taken.at * STAGE_BYTES, sum);
    warp_arrive(own.empty[taken.at]);
    taken.next();
    if (++index < SLICES) return;
    sum = sum_of_warp(sum);
    if (lane == 0) own.of_states[of_head.at][warp] = sum;
    warp_arrive(own.sums_full[of_head.at]);
    of_head.next();
    index = 0, sum = 0.f;
  }
  DEVICE static f32 multiply_states(const char* from, f32 sum) {
    f32 more = 0.f;
#pragma unroll 2
    for (int i = threadIdx.x % 128; i < UNIT_BYTES / 16; i += 128) {
      const uint4 a = reinterpret_cast<const uint4*>(from + STATE_AT)[i], b = reinterpret_cast<const uint4*>(from + GRADIENT_AT)[i];
      const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 4; e++) sum = __fmaf_rn(low_bf16(x[e]), low_bf16(y[e]), sum), more = __fmaf_rn(high_bf16(x[e]), high_bf16(y[e]), more);
    }
    return sum + more;
  }
  DEVICE void load_units(const Work& w) const {
    const i64 units = w.of_keys(p) * UNIT_BYTES;
    Barrier& full = own.units_full[chunk.at];
    barrier_wait(own.units_free[chunk.at], chunk.phase ^ 1);
    barrier_arrive_expecting(full, CHUNK_BYTES);
    char* const to = shared + chunk.at * CHUNK_BYTES;
    bytes_load(to, static_cast<const char*>(p.k_units) + units, UNIT_BYTES, full);
    bytes_load(to + UNIT_BYTES, static_cast<const char*>(p.q_units) + units, UNIT_BYTES, full);
  }
  // 64 columns of the steps of a chunk, zeros behind its end.
  DEVICE static void load_steps(char* to, const Strided& from, const Work& w, i64 head, int column) {
    const int thread = threadIdx.x % 128, eight = thread % 8, first = thread / 8;
    const VALUE* line = at<VALUE>(from, w.chunk.batch, w.chunk.start + first, head, column + eight * 8);
#pragma unroll
    for (int step = 0; step < SPAN; step += 16) {
      const bool is_there = first + step < w.chunk.rows;
      copy_async_16_or_zero(to + (first + step) * 128 + (eight ^ first % 8) * 16, is_there ? line + step * from.stride[1] : from.data, is_there);
    }
  }
  DEVICE void load_slice(const Work& w, int member, int index) {
    const i64 unit = w.unit(p, member), tile = unit * SLICES + index;
    Barrier& full = own.full[slice.at];
    char* const to = stage();
    barrier_wait(own.empty[slice.at], slice.phase ^ 1);
    if (threadIdx.x % 128 == 0) {
      barrier_arrive_expecting(full, LOADED + (index == 0 ? TOKEN_BYTES : 0));
      const auto part = [&](void* from, int bytes) { return static_cast<const char*>(from) + tile * bytes; };
      if (index == 0) bytes_load(own.tokens[head.at], p.tokens + unit * (TOKEN_ROWS * SPAN), TOKEN_BYTES, full);
      bytes_load(to + X_AT, part(p.x, TILE), TILE, full), bytes_load(to + D_AT, part(p.d, TILE), TILE, full);
      bytes_load(to + STATE_AT, part(p.states, UNIT_BYTES), UNIT_BYTES, full), bytes_load(to + GRADIENT_AT, part(p.gradients, UNIT_BYTES), UNIT_BYTES, full);
    }
    load_steps(to + DY_AT, p.dy, w, w.head(member), index * 64);
    if constexpr (HAS_DBETA) load_steps(to + V_AT, p.v, w, w.head(member), index * 64);
    barrier_arrive_copied(full);
    slice.next();
    if (index == SLICES - 1) head.next();
  }
};

DEVICE void wait_for_walks() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_backward_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  if (threadIdx.x == 0) {
    constexpr int READERS = (NEEDS_KEYS ? 16 : 4) * ARRIVALS;
    Shared& own = *reinterpret_cast<Shared*>(shared + SHARED_AT);
    for (int i = 0; i < STAGES; i++) barrier_init(own.full[i], 1 + 128), barrier_init(own.empty[i], READERS);
    for (int i = 0; i < 2; i++) barrier_init(own.units_full[i], 1), barrier_init(own.units_free[i], 8 * ARRIVALS);
    for (int i = 0; i < PLACES; i++) barrier_init(own.sums_full[i], 12 * ARRIVALS);
    barrier_init(own.pairs_full, 4 * ARRIVALS), barrier_init(own.pairs_free, 4 * ARRIVALS);
    barriers_are_ready();
  }
  __syncthreads();
  wait_for_walks();
  const int role = threadIdx.x / 128;
  if (role == 0) {
    registers_up<192>();
    if constexpr (NEEDS_KEYS) Queries(p, shared).run();
  } else if (role == 1) {
    registers_up<192>();
    if constexpr (NEEDS_KEYS) Keys(p, shared).run();
  } else if (role == 2) {
    registers_down<72>();
    Values(p, shared).run();
  } else {
    registers_down<56>();
    Loader(p, shared).run();
  }
}
