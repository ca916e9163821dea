// Units (`unit.cuh`) where channels have decays of their own: pairs of steps are products of rows that have been decayed, in blocks of eight steps.
//
// For rows i of one block, columns j of the same or of an earlier one and m, the middle of the block of rows, exp(c[i] - c[j]) is
// exp(c[i] - c[m]) exp(c[m] - c[j]). Logarithms of steps are at least -LOWEST, so that either factor is finite.
#include "maker.cuh"

// Less than this is nothing to f32.
constexpr f32 LOWEST = 16.f;
constexpr int PARTS = 128 / KEYS, OF_PART = CHUNK / PARTS;   // of the steps, whose decays a thread sums up
constexpr int DEPTHS = KEYS / 16, C_PITCH = KEYS + 8;

struct Room : Triangle {
  f32 betas[CHUNK];
  f32 key[CHUNK], query[CHUNK];   // one over the lengths
  f32 c[CHUNK][C_PITCH];          // sums of logarithms, for exponentials of two
};
static_assert(SHARED >= PANELS * 2 * TILE + STAGED_BYTES + int(sizeof(Room)) && SHARED % ALIGNMENT == 0, "the plan has counted the same, for a warpgroup");

struct ChannelMaker : Maker {
  Room& room;
  const int channel, part;
  GATE gates[OF_PART];
  f32 beta;

  DEVICE ChannelMaker(const Params& p, char* shared)
      : Maker(p, shared), room(static_cast<Room&>(triangle)), channel(thread % KEYS), part(thread / KEYS) {}

  // Starts to load what its units are made of.
  DEVICE void load(const Work& w) {
    load_rows(w);
    load_gates(w, 0);
  }

  DEVICE void load_gates(const Work& w, int member) {
    const i64 head = w.key_head * GROUP + member, start = w.steps.start + part * OF_PART;
    const GATE* const from = at<GATE>(p.g, w.batch, start, head, channel);
#pragma unroll
    for (int i = 0; i < OF_PART; i++) gates[i] = part * OF_PART + i < w.steps.count ? from[i * p.g.stride[1]] : GATE{};
    beta = thread < w.steps.count ? Head(p, head).beta_at(p, w.batch, w.steps.start + thread) : 0.f;
  }

  DEVICE void sum_up(const Work& w, int member) {
    const i64 head = w.key_head * GROUP + member;
    const f32 rate = Head(p, head).rate, bias = HAS_BIAS ? to_f32(*at<BIAS>(p.bias, head, channel)) : 0.f;
    f32 sum = 0.f;
#pragma unroll
    for (int i = 0; i < OF_PART; i++) {
      const f32 log = log_decay(to_f32(gates[i]), bias, rate, p.lower_bound);
      if (part * OF_PART + i < w.steps.count) sum += LOG2_E * (log < -LOWEST ? -LOWEST : log);
      room.c[part * OF_PART + i][channel] = sum;
    }
    if (thread < CHUNK) room.betas[thread] = beta;
    if constexpr (PARTS == 2) {
      meet();
      const f32 before = room.c[OF_PART - 1][channel];
      if (part == 1)
#pragma unroll
        for (int i = 0; i < OF_PART; i++) room.c[OF_PART + i][channel] += before;
    }
  }

  // Lengths of keys, by half of the threads, and of queries.
  DEVICE void measure() {
    const int row = thread % CHUNK;
    const char* const line = (thread < CHUNK ? keys : queries) + row * 128;
    f32 square = 0.f;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) {
      const uint4 eight = *reinterpret_cast<const uint4*>(line + i / 8 * TILE + (i % 8 ^ row % 8) * 16);
      const u32 two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int e = 0; e < 4; e++) square = __fmaf_rn(low_bf16(two[e]), low_bf16(two[e]), __fmaf_rn(high_bf16(two[e]), high_bf16(two[e]), square));
    }
    (thread < CHUNK ? room.key : room.query)[row] = (UNIT ? inverse_length(square) : 1.f) * (thread < CHUNK ? 1.f : p.scale);
  }

  // Keys as they are read and written, and queries, into the unit where it is to be; decays of channels.
  DEVICE void write_tiles(i64 place) {
    char* const to = static_cast<char*>(p.units) + place * UNIT_BYTES;
#pragma unroll 2
    for (int i = thread; i < CHUNK * KEYS / 8; i += 128) {
      const int row = i / 8 % CHUNK, eight = i % 8, at = i / 8 / CHUNK * TILE + row * 128 + (eight ^ row % 8) * 16, n = i / 8 / CHUNK * 64 + eight * 8;
      const uint4 of_key = *reinterpret_cast<const uint4*>(keys + at), of_query = *reinterpret_cast<const uint4*>(queries + at);
      const u32 k[4] = {of_key.x, of_key.y, of_key.z, of_key.w}, q[4] = {of_query.x, of_query.y, of_query.z, of_query.w};
      const f32 key = room.key[row], query = room.query[row];
      u32 read_k[4], written_k[4], read_q[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float2 c = *reinterpret_cast<const float2*>(&room.c[row][n + 2 * e]), end = *reinterpret_cast<const float2*>(&room.c[CHUNK - 1][n + 2 * e]);
        const f32 since[2] = {exp2_fast(c.x), exp2_fast(c.y)}, low = key * low_bf16(k[e]), high = key * high_bf16(k[e]);
        read_k[e] = pack_bf16(since[0] * low, since[1] * high);
        written_k[e] = pack_bf16(exp2_fast(end.x - c.x) * low, exp2_fast(end.y - c.y) * high);
        read_q[e] = pack_bf16(since[0] * query * low_bf16(q[e]), since[1] * query * high_bf16(q[e]));
      }
      *reinterpret_cast<uint4*>(to + READ_K_AT + at) = make_uint4(read_k[0], read_k[1], read_k[2], read_k[3]);
      *reinterpret_cast<uint4*>(to + WRITTEN_K_AT + at) = make_uint4(written_k[0], written_k[1], written_k[2], written_k[3]);
      *reinterpret_cast<uint4*>(to + READ_Q_AT + at) = make_uint4(read_q[0], read_q[1], read_q[2], read_q[3]);
    }
    if (thread < KEYS) reinterpret_cast<f32*>(unit + FACTORS_AT)[thread] = exp2_fast(room.c[CHUNK - 1][thread]);
  }

  // Two neighbours of a row, the i-th eight channels.
  DEVICE u32 two_at(const char* tile, int row, int i) const { return *reinterpret_cast<const u32*>(tile + i / 8 * TILE + row * 128 + (i % 8 ^ row % 8) * 16 + 2 * pair); }
  DEVICE float2 sums_at(int row, int i) const { return *reinterpret_cast<const float2*>(&room.c[row][8 * i + pair]); }

  // M and A of eight rows: keys and queries of them are the sixteen of a product.
  DEVICE void multiply_rows(int block) {
    const int row = 8 * block + lane / 4;
    FragmentA rows[DEPTHS];
    float2 middle[2 * DEPTHS];
#pragma unroll
    for (int i = 0; i < 2 * DEPTHS; i++) {
      middle[i] = sums_at(8 * block + 4, i);
      const float2 own = sums_at(row, i);
      const f32 low = exp2_fast(own.x - middle[i].x), high = exp2_fast(own.y - middle[i].y);
      const u32 key = two_at(keys, row, i), query = two_at(queries, row, i);
      rows[i / 2].v[i % 2 * 2] = pack_bf16(low * low_bf16(key), high * high_bf16(key));
      rows[i / 2].v[i % 2 * 2 + 1] = pack_bf16(low * low_bf16(query), high * high_bf16(query));
    }
#pragma unroll 1
    for (int other = 0; other < 8; other++) {
      FragmentC sums = {};
      const int column = 8 * other + lane / 4;
      if (other <= block)
#pragma unroll
        for (int i = 0; i < DEPTHS; i++) {
          FragmentB columns;
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const float2 c = sums_at(column, 2 * i + half), m = middle[2 * i + half];
            const u32 key = two_at(keys, column, 2 * i + half);
            columns.v[half] = pack_bf16(exp2_fast(m.x - c.x) * low_bf16(key), exp2_fast(m.y - c.y) * high_bf16(key));
          }
          ::multiply<bf16>(sums, rows[i], columns);
        }
      put_pairs(block, other, sums);
    }
  }

  DEVICE void put_pairs(int block, int other, const FragmentC& sums) {
    const int row = 8 * block + lane / 4, column = 8 * other + pair;
    const float2 key = *reinterpret_cast<const float2*>(room.key + column);
    const f32 by_key = room.betas[row] * room.key[row], by_query = room.query[row];
    const f32 a[2] = {column <= row ? sums.v[2] * by_query * key.x : 0.f, column < row ? sums.v[3] * by_query * key.y : 0.f};
    *reinterpret_cast<u32*>(unit + A_AT + row * 128 + (other ^ row % 8) * 16 + 2 * pair) = pack_bf16(a[0], a[1]);
    if (other > block) return;
    const f32 m[2] = {sums.v[0] * by_key * key.x, sums.v[1] * by_key * key.y};
    const int q = block / 2, l = other / 2;
    if (q == l) {
      f32* const to = triangle.diagonal[q] + column % 16 * 16 + row % 16;
      to[0] = m[0], to[16] = m[1];
    } else {
      *reinterpret_cast<float2*>(triangle.below[q * (q - 1) / 2 + l] + row % 16 * PITCH + column % 16) = make_float2(m[0], m[1]);
    }
  }

  // Makes the units of one that is being loaded, and starts to load the next one.
  DEVICE void make(const Work& w, const Work& next, u32 phase) {
    await_rows(w, phase);
    measure();
#pragma unroll 1
    for (int member = 0; member < GROUP; member++) {
      if (member > 0) load_gates(w, member);
      sum_up(w, member);
      // the unit before has been read
      if (!BESIDE && thread == 0) tile_store_wait();
      meet();
      write_tiles(w.unit(p, member));
      multiply_rows(warp), multiply_rows(7 - warp);
      meet();
      if (member == GROUP - 1 && next.exists(p)) load(next);
      make_inverse(room.betas);
      if constexpr (!BESIDE) fence_async();
      meet();
      hand_on(w.unit(p, member));
    }
  }
};

extern "C" __global__ void __launch_bounds__(128 * WARPGROUPS, RESIDENT) gated_delta_rule_channel_units(const __grid_constant__ Params p) {
  make_units<ChannelMaker>(p);
}
