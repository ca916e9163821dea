// The gradients of B and of C within a chunk, for some heads of a group and some states: one launch for each of the two.
//
//   dC[i] = sum over heads of  e[i] p[i] h^T        + sum_{j <= i} K[i,j] B[j]        K[i,j] = <p[i], x[j]> exp(cs[i] - cs[j]) dt[j]
//   dB[j] = sum over heads of  w[j] dt[j] x[j] g^T  + sum_{i >= j} K[i,j] C[i]
//
// K is summed over heads before it is multiplied by B or C, once for all of them. A warp holds 16 steps, the rows of its own factor (p for dC, x
// for dB); the other factor gives the columns of K.
#include "tiles.cuh"

constexpr int PAIRS = COLUMNS / 16;
typedef Rounded<Tile<MATH, OWN_STATES, COLUMNS>> OwnStateTile;
typedef Tile<MATH, SPAN, OWN_STATES> OwnMapTile;

// after the heads the other map takes the place of the tiles of a head
static_assert(P_AT == XTile::BYTES && STATE_AT - P_AT == XTile::BYTES && SHARED_END - STATE_AT == OwnStateTile::BYTES, "the plan has counted the same");

struct Work {
  i64 batch, chunk, group, n, first_head, last_head;
  i64 slice;
  DEVICE explicit Work(const Params& p) {
    i64 i = blockIdx.x;
    slice = i % p.slices, i /= p.slices;
    n = i % p.state_tiles * OWN_STATES, i /= p.state_tiles;
    group = i % p.groups, i /= p.groups;
    chunk = i % p.chunks, batch = i / p.chunks;
    first_head = group * p.heads_per_group + slice * p.heads_per_slice;
    last_head = min(first_head + p.heads_per_slice, (group + 1) * p.heads_per_group);
  }
};

struct Sums {
  FragmentC out[OWN_STATES / 8] = {};
  FragmentC k[WARPS][2] = {};
  f32 scale = 0x1p-80f;   // `out` is divided by this

  DEVICE static bool has(int block) { return OF_B ? block >= warp_of() : block <= warp_of(); }

  DEVICE void change_scale(f32 to) {
    const f32 down = scale * inverse(to);
#pragma unroll
    for (int q = 0; q < OWN_STATES / 8; q++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[q].v[i] *= down;
    scale = to;
  }

  // adds the share of some columns of a head; `pairs` are <p[i], x[j]> of all its columns so far
  DEVICE void add(FragmentC (&pairs)[WARPS][2], const f32 (&weights)[2], const char* own, const char* other, const char* state) {
#pragma unroll 1
    for (int q = 0; q < COLUMNS; q += 16) {
      f32 v[8];
      load_numbers<XTile, false>(v, XTile::at(own, 16 * warp_of(), q));
      BlockA a;
      set_block<MATH>(a, v);
#pragma unroll
      for (int i = 0; i < WARPS; i++) {
        if (!has(i)) continue;
        BlockB b[2];
        load_blocks<XTile>(b, XTile::at(other, 16 * i, q));
        multiply_blocks<MATH>(pairs[i][0], a, b[0]);
        multiply_blocks<MATH>(pairs[i][1], a, b[1]);
      }
#pragma unroll
      for (int i = 0; i < 8; i++) v[i] *= weights[i / 2 % 2];
      set_block<MATH>(a, v);
#pragma unroll
      for (int n = 0; n < OWN_STATES; n += 16) {
        BlockB b[2];
        load_blocks<OwnStateTile>(b, OwnStateTile::at(state, n, q));
        multiply_blocks<MATH>(out[n / 8], a, b[0]);
        multiply_blocks<MATH>(out[n / 8 + 1], a, b[1]);
      }
    }
  }

  // K of a head
  DEVICE void add_pairs(const FragmentC (&pairs)[WARPS][2], const Steps& steps) {
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      if (!has(i)) continue;
#pragma unroll
      for (int m = 0; m < 8; m++) {
        const int row = 16 * warp_of() + group_of() + m / 2 % 2 * 8, column = 16 * i + m / 4 * 8 + pair_of() + m % 2;
        const int from = OF_B ? row : column, to = OF_B ? column : row;
        if (from <= to) k[i][m / 4].v[m % 4] += pairs[i][m / 4].v[m % 4] * (steps.decay(from, to) * steps.weight[from]);
      }
    }
  }

  // the product of K and the other map
  DEVICE void add_map(const char* map) {
    if constexpr (HAS_SCALES) {
      Largest largest;
#pragma unroll
      for (int i = 0; i < WARPS; i++)
#pragma unroll
        for (int m = 0; m < 8; m++) largest.see(k[i][m / 4].v[m % 4]);
      largest.join_warp();
      change_scale(largest.scale());
    }
    const f32 down = HAS_SCALES ? inverse(scale) : 1.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      if (!has(i)) continue;
      f32 v[8];
      numbers_of(v, k[i][0], k[i][1]);
#pragma unroll
      for (int m = 0; m < 8; m++) v[m] *= down;
      BlockA a;
      set_block<MATH>(a, v);
#pragma unroll
      for (int n = 0; n < OWN_STATES; n += 16) {
        BlockB b[2];
        load_blocks<OwnMapTile, true>(b, OwnMapTile::at(map, 16 * i, n));
        multiply_blocks<MATH>(out[n / 8], a, b[0]);
        multiply_blocks<MATH>(out[n / 8 + 1], a, b[1]);
      }
    }
  }

  // writes them, as terms where other blocks have other heads of the group
  DEVICE void put(const Params& p, const Work& w, i64 first, int count) {
#pragma unroll
    for (int q = 0; q < OWN_STATES / 8; q++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const f32 v = HAS_SCALES ? out[q].v[i] * scale : out[q].v[i];
        const int step = 16 * warp_of() + group_of() + i / 2 * 8;
        const i64 n = w.n + 8 * q + pair_of() + i % 2;
        if (step >= count || n >= p.dstate) continue;
        if constexpr (IN_TERMS)
          p.terms[(((w.batch * p.seqlen + first + step) * p.slices + w.slice) * p.groups + w.group) * p.dstate + n] = v;
        else
          assign(*at<TARGET>(p.target, w.batch, first + step, w.group, n), v);
      }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ssd_maps(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char tiles[];
  __shared__ Steps steps;
  const Work w(p);
  const i64 end = min((w.chunk + 1) * SPAN, p.seqlen);
#pragma unroll 1
  for (i64 first = w.chunk * SPAN; first < end;) {
    const i64 last = end_of_piece(p, w.batch, first, end);
    const int count = int(last - first);
    Sums sums;
#pragma unroll 1
    for (i64 head = w.first_head; head < w.last_head; head++) {
      FragmentC pairs[WARPS][2] = {};
#pragma unroll 1
      for (i64 column = 0; column < p.headdim; column += COLUMNS) {
        __syncthreads();
        if (column == 0) prepare_steps(steps, p, Head(p, head), {w.batch, head, first, count});
        load_x(tiles + X_AT, p, {w.batch, head, first, count}, column);
        load_cotangent(tiles + P_AT, p, {w.batch, head, first, count}, column);
        f32 scale;
        if (SEQUENCES == Sequences::Whole || (OF_B ? last == end : first == w.chunk * SPAN))
          scale = load_slot<OwnStateTile>(tiles + STATE_AT, p.slots, p, w.batch, w.chunk, {head, column, w.n});
        else if constexpr (OF_B)
          scale = load_state<OwnStateTile, DFINAL>(tiles + STATE_AT, p, p.dfinal, row_after(p, w.batch, last), {head, column, w.n});
        else
          scale = load_state<OwnStateTile, INITIAL>(tiles + STATE_AT, p, p.initial, row_before(p, w.batch, first), {head, column, w.n});
        all_loaded();
        if constexpr (HAS_SCALES) {
          // the largest one of all heads so far
          const f32 own = scale * (OF_B ? steps.after_scale : steps.before_scale);
          if (own > sums.scale) sums.change_scale(own);
          scale *= inverse(sums.scale);
        }
        f32 weights[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int step = 16 * warp_of() + group_of() + 8 * r;
          weights[r] = (OF_B ? steps.after[step] * steps.weight[step] : steps.before[step]) * scale;
        }
        sums.add(pairs, weights, tiles + (OF_B ? X_AT : P_AT), tiles + (OF_B ? P_AT : X_AT), tiles + STATE_AT);
      }
      // the steps are prepared with the first columns
      if (p.headdim > 0) sums.add_pairs(pairs, steps);
    }
    __syncthreads();
    const int length = int(min(i64(OWN_STATES), p.dstate - w.n));
    if constexpr (OF_B)
      load_tile<OwnMapTile, C, C_WIDTH>(tiles, at<C>(p.c, w.batch, first, w.group, w.n), p.c.stride[1], p.c.stride[3], count, length);
    else
      load_tile<OwnMapTile, B, B_WIDTH>(tiles, at<B>(p.b, w.batch, first, w.group, w.n), p.b.stride[1], p.b.stride[3], count, length);
    all_loaded();
    sums.add_map(tiles);
    sums.put(p, w, first, count);
    __syncthreads();
    first = last;
  }
}
