// Units (`unit.cuh`) with one decay a head: products of warpgroups give <k, k>, <q, k> and, for its diagonal, <q, q>.
#pragma once
#include "maker.cuh"

static_assert(given<int>(KEYS, GROUP, SHARED) && given<bool>(UNIT, BESIDE, BACKWARD));

constexpr int MINE = (GROUP + 3) / 4;   // heads whose gates a warp sums up

struct Room : Triangle {
  f32 sums[GROUP][CHUNK], betas[GROUP][CHUNK];
  f32 key[CHUNK], query[CHUNK];   // one over the lengths
};
static_assert(SHARED >= PANELS * 2 * TILE + STAGED_BYTES + int(sizeof(Room)) && SHARED % ALIGNMENT == 0, "the plan has counted the same, for a warpgroup");

struct HeadMaker : Maker {
  Room& room;
  f32 logs[MINE][2], beta[MINE][2];

  DEVICE HeadMaker(const Params& p, char* shared) : Maker(p, shared), room(static_cast<Room&>(triangle)) {}

  // Starts to load what its units are made of.
  DEVICE void load(const Work& w) {
    load_rows(w);
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
      to[ENTERING + i] = exp2_fast(c[i]) * room.key[i] * (BACKWARD ? room.betas[member][i] : 1.f), to[LEAVING + i] = exp2_fast(end - c[i]) * room.key[i];
    else
      to[READING + i] = exp2_fast(c[i]) * room.query[i] * p.scale, to[WHOLE + i] = exp2_fast(end);
  }
};
