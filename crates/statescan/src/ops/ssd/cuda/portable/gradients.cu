// Gradients within a chunk: those by x and by the steps, and what the chunk adds to those of A, D and dt_bias. A block takes a head; the states
// h before the chunk and the gradients g by the state after it are in slots.
//
// With p the gradient by y before the gate, L[i,j] = exp(cs[i] - cs[j]), e[i] = exp(cs[i]), w[j] = exp(cs[end] - cs[j]):
//
//   T[i,j] = <p[i], x[j]> <C[i], B[j]> L[i,j], j <= i         q[j] = B[j] g          r[i] = e[i] <p[i], C[i] h>
//   dx[j]  = dt[j] (sum_i <C[i], B[j]> L[i,j] p[i] + w[j] q[j]) + D p[j]
//   weight: d dt[t] = sum_i T[i,t] + w[t] <x[t], q[t]>
//   decay:  d (dt A)[t] = sum_{j < t <= i} T[i,j] dt[j] + sum_{i >= t} r[i] + sum_{j < t} dt[j] w[j] <x[j], q[j]> + exp(cs[end]) <h, g>
//
// A warp holds 16 steps j as rows, so that sums over i are along its rows.
#include "tiles.cuh"

constexpr int OUT = 4 / int(sizeof(Element)) * COLUMNS, PAIRS = COLUMNS / 16;
typedef Tile<MATH, SPAN, COLUMNS, OUT> RoomyTile;   // with room for a line of dx in f32
constexpr int PARTS = (SPAN + 31) / 32;              // warps that have the steps of a column

static_assert(C_AT == MapTile::BYTES && X_AT - C_AT == MapTile::BYTES && P_AT - X_AT == RoomyTile::BYTES, "the plan has counted the same");
static_assert(H_AT - P_AT == XTile::BYTES && G_AT - H_AT == StateTile::BYTES && SHARED_END - G_AT == StateTile::BYTES, "the plan has counted the same");

// The terms of the last sums, by step.
struct Shared {
  Steps steps;
  f32 columns[SPAN], diagonal[SPAN];   // sums of the columns of T below its diagonal, and the diagonal, beside which strong decays leave little
  f32 rows[WARPS][SPAN];               // sums of the rows of T dt below the diagonal, a part for each warp
  f32 xq[SPAN], ph[SPAN];              // <x[j], q[j]>, <p[i], C[i] h>
  f32 hg[WARPS], skip[WARPS];          // parts of <h, g> and of the gradient by a skip that all columns share
  f32 skip_columns[PARTS][SKIP_BY_COLUMN ? COLUMNS : 1];   // parts of the gradient by a skip that each column has
};

struct Work {
  i64 batch, chunk, head, group;
  DEVICE explicit Work(const Params& p) {
    i64 i = blockIdx.x;
    head = i % p.heads, i /= p.heads;
    chunk = i % p.chunks, batch = i / p.chunks;
    group = head / p.heads_per_group;
  }
};

// A piece of time within the chunk.
struct Piece {
  i64 first, last, end;   // end: of the chunk
  DEVICE int count() const { return int(last - first); }
  DEVICE Lines lines(const Work& w) const { return {w.batch, w.head, first, count()}; }
  DEVICE bool begins_chunk(const Work& w) const { return SEQUENCES == Sequences::Whole || first == w.chunk * SPAN; }
  DEVICE bool ends_chunk() const { return SEQUENCES == Sequences::Whole || last == end; }
};

// The product of this warp's rows of a tile of lines (B or C) and a tile of states, which has been divided by a scale.
DEVICE void times_state(FragmentC (&out)[2 * PAIRS], const char* map, const char* state, f32 scale) {
#pragma unroll
  for (int q = 0; q < 2 * PAIRS; q++) out[q] = FragmentC();
#pragma unroll 2
  for (int n = 0; n < STATES; n += 16) {
    BlockA a;
    load_block<MapTile>(a, MapTile::at(map, 16 * warp_of(), n));
#pragma unroll
    for (int q = 0; q < PAIRS; q++) {
      BlockB b[2];
      load_blocks<StateTile, true>(b, StateTile::at(state, n, 16 * q));
      multiply_blocks<MATH>(out[2 * q], a, b[0]);
      multiply_blocks<MATH>(out[2 * q + 1], a, b[1]);
    }
  }
  if constexpr (HAS_SCALES) {
#pragma unroll
    for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[q].v[i] *= scale;
  }
}

// Products of this warp's rows of one tile and lines of another, in blocks of 16 lines from the warp's own on.
template <typename In, typename With> DEVICE void times_lines(FragmentC (&out)[WARPS][2], const char* rows, const char* lines) {
#pragma unroll
  for (int i = 0; i < WARPS; i++) out[i][0] = out[i][1] = FragmentC();
#pragma unroll 2
  for (int k = 0; k < In::LENGTH; k += 16) {
    BlockA a;
    load_block<In>(a, In::at(rows, 16 * warp_of(), k));
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      if (i < warp_of()) continue;
      BlockB b[2];
      load_blocks<With>(b, With::at(lines, 16 * i, k));
      multiply_blocks<MATH>(out[i][0], a, b[0]);
      multiply_blocks<MATH>(out[i][1], a, b[1]);
    }
  }
}

// Multiplies products <B[j], C[i]> by the decays between their steps, none where i is before j, and gives the scale of the results.
DEVICE f32 apply_decays(FragmentC (&products)[WARPS][2], const Steps& steps) {
  Largest largest;
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    if (i < warp_of()) continue;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int j = 16 * warp_of() + group_of() + k / 2 % 2 * 8, at = 16 * i + k / 4 * 8 + pair_of() + k % 2;
      f32& v = products[i][k / 4].v[k % 4];
      v = at >= j ? v * steps.decay(j, at) : 0.f;
      if constexpr (HAS_SCALES) largest.see(v);
    }
  }
  if constexpr (!HAS_SCALES) return 1.f;
  largest.join_warp();
  return largest.scale();
}

// Dot products of this warp's rows of sums and of a tile, added to dots.
template <typename In> DEVICE void add_dots(f32 (&dots)[2], const FragmentC (&sums)[2 * PAIRS], const char* tile) {
#pragma unroll
  for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const char* const of = In::at(tile, 16 * warp_of() + group_of() + 8 * r, 8 * q + pair_of());
      const float2 pair = pair_at<MATH>(of);
      dots[r] = __fmaf_rn(sums[q].v[2 * r + 1], pair.y, __fmaf_rn(sums[q].v[2 * r], pair.x, dots[r]));
    }
}

// This thread's part of the sums over T.
struct Sums {
  f32 columns[2] = {}, diagonal[2] = {}, xq[2] = {}, ph[2] = {};
  f32 rows[WARPS][4] = {};
  f32 hg = 0.f;

  // puts them where all threads find them
  DEVICE void share(Shared& s) {
    const int lane = threadIdx.x % 32, row = 16 * warp_of() + group_of();
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const f32 sums[4] = {sum_of_row(columns[r]), sum_of_row(diagonal[r]), sum_of_row(xq[r]), sum_of_row(ph[r])};
      if (pair_of() != 0) continue;
      s.columns[row + 8 * r] = sums[0], s.diagonal[row + 8 * r] = sums[1], s.xq[row + 8 * r] = sums[2], s.ph[row + 8 * r] = sums[3];
    }
#pragma unroll
    for (int i = 0; i < WARPS; i++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const f32 sum = sum_of_column(rows[i][k]);
        if (group_of() == 0) s.rows[warp_of()][16 * i + k / 2 * 8 + pair_of() + k % 2] = sum;
      }
    const f32 all = sum_of_column(sum_of_row(hg));
    if (lane == 0) s.hg[warp_of()] = all;
  }
};

// A chunk adds these terms to the gradients of a head's parameters, in the threads of the first warp.
struct Terms { f32 a = 0.f, bias = 0.f; };

// Sums from the first step on and to the last step, of the numbers that the threads of the first warp hold for their steps.
DEVICE f32 sum_before(f32 own) {
  f32 sum = own;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const f32 other = __shfl_up_sync(~0u, sum, far);
    if (int(threadIdx.x) >= far) sum += other;
  }
  const f32 before = __shfl_up_sync(~0u, sum, 1);
  return threadIdx.x == 0 ? 0.f : before;
}
DEVICE f32 sum_after(f32 own) {
  f32 sum = own;
#pragma unroll
  for (int far = 1; far < 32; far *= 2) {
    const f32 other = __shfl_down_sync(~0u, sum, far);
    if (int(threadIdx.x) + far < 32) sum += other;
  }
  const f32 after = __shfl_down_sync(~0u, sum, 1);
  return threadIdx.x == 31 ? 0.f : after;
}

// The gradients by the steps; the first warp alone.
DEVICE void finish_steps(Terms& terms, const Shared& s, const Params& p, const Work& w, const Head& constants, const Piece& piece) {
  const i64 first = piece.first;
  const int count = piece.count();
  constexpr int EACH = (SPAN + 31) / 32;
  f32 hg = 0.f;
#pragma unroll
  for (int i = 0; i < WARPS; i++) hg += s.hg[i];
  const f32 whole = s.steps.whole() * hg;
  f32 from[EACH] = {}, to[EACH] = {};
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int t = EACH * threadIdx.x + k;
    if (t >= count) continue;
    f32 rows = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) rows += s.rows[i][t];
    // shares of pairs of steps: the later one is this step or comes after it, the earlier one comes before it
    from[k] = rows - s.steps.weight[t] * s.columns[t] + s.steps.before[t] * s.ph[t];
    to[k] = s.steps.weight[t] * s.steps.after[t] * s.xq[t];
  }
  f32 all_from = 0.f, all_to = 0.f;
#pragma unroll
  for (int k = 0; k < EACH; k++) all_from += from[k], all_to += to[k];
  const f32 later = sum_after(all_from);
  f32 earlier = sum_before(all_to);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int t = EACH * threadIdx.x + k;
    if (t >= count) continue;
    f32 own = later;
#pragma unroll
    for (int i = k; i < EACH; i++) own += from[i];
    const f32 by_decay = own + earlier + whole;
    earlier += to[k];
    const StepSizes d = step_sizes(p, constants, w.batch, w.head, first + t);
    const f32 rate = to_f32(*at<A>(p.a, w.head));
    f32 by_weight = s.columns[t] + s.diagonal[t] + s.steps.after[t] * s.xq[t];
    if constexpr (!HAS_DT_A) by_weight = __fmaf_rn(rate, by_decay, by_weight);
    const f32 ddt = by_weight * Dt::slope(to_f32(*at<DT>(p.dt, w.batch, first + t, w.head)), constants.bias, p.dt_low, p.dt_high);
    terms.a = __fmaf_rn(by_decay, d.decay, terms.a), terms.bias += ddt;
    if constexpr (HAS_DDT) assign(*at<DDT>(p.ddt, w.batch, first + t, w.head), ddt);
    if constexpr (HAS_DDT_A) assign(*at<DDT_A>(p.ddt_a, w.batch, first + t, w.head), rate * by_decay);
  }
}

// Writes dx of this warp's steps by way of the warp's lines of x, which no other warp reads any more.
DEVICE void put_dx(const Params& p, const Work& w, char* tiles, const FragmentC (&dx)[2 * PAIRS], const Piece& piece, i64 column) {
  constexpr int WIDTH = DX_WIDTH, UNITS = COLUMNS / WIDTH;
  char* const lines = tiles + X_AT + 16 * warp_of() * RoomyTile::PITCH;
  DX* const to = at<DX>(p.dx, w.batch, piece.first, w.head, column);
  __syncwarp();
#pragma unroll
  for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float2* const pair = reinterpret_cast<float2*>(lines + (group_of() + 8 * r) * RoomyTile::PITCH) + (8 * q + pair_of()) / 2;
      *pair = make_float2(dx[q].v[2 * r], dx[q].v[2 * r + 1]);
    }
  __syncwarp();
#pragma unroll(WIDTH > 1 ? 4 : 1)
  for (int i = threadIdx.x % 32; i < 16 * UNITS; i += 32) {
    const int line = i / UNITS, step = 16 * warp_of() + line, within = i % UNITS * WIDTH;
    if (step >= piece.count() || column + within >= p.headdim) continue;
    const f32* const from = reinterpret_cast<const f32*>(lines + line * RoomyTile::PITCH) + within;
    Neighbours<DX, WIDTH> out;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
      f32 v = from[k];
      if constexpr (HAS_SKIP) {
        const f32 cotangent = to_f32(*reinterpret_cast<const Element*>(XTile::at(tiles + P_AT, step, within + k)));
        v = __fmaf_rn(to_f32(*at<SKIP>(p.skip, w.head, column + within + k)), cotangent, v);
      }
      assign(out.v[k], v);
    }
    write_at_once(to + (step * p.dx.stride[1] + within * p.dx.stride[3]), out);
  }
}

// <p, x> of steps, the gradient by the skip, with p as it was before it was rounded: gives this thread's part of all columns, or leaves those of a warp
// of each.
DEVICE f32 sum_skip(Shared& s, const Params& p, const Work& w, const char* tiles, const Piece& piece, i64 column) {
  f32 all = 0.f;
  constexpr bool FROM_GATE = HAS_Z && HAS_DY;
  constexpr int WIDTH = !FROM_GATE ? 2 : DY_WIDTH < Z_WIDTH ? DY_WIDTH : Z_WIDTH, UNITS = COLUMNS / WIDTH;
#pragma unroll(WIDTH > 1 ? 4 : 1)
  for (int i = threadIdx.x; i < SPAN * UNITS; i += THREADS) {
    const int line = i % SPAN, within = i / SPAN * WIDTH;
    f32 products[WIDTH] = {};
    if (line < piece.count() && column + within < p.headdim) {
      Neighbours<DY, WIDTH> dy;
      Neighbours<Z, WIDTH> z;
      if constexpr (FROM_GATE) {
        dy = *reinterpret_cast<const Neighbours<DY, WIDTH>*>(at<DY>(p.dy, w.batch, piece.first + line, w.head, column + within));
        z = *reinterpret_cast<const Neighbours<Z, WIDTH>*>(at<Z>(p.z, w.batch, piece.first + line, w.head, column + within));
      }
#pragma unroll
      for (int k = 0; k < WIDTH; k++) {
        f32 cotangent;
        if constexpr (FROM_GATE)
          cotangent = to_f32(dy.v[k]) * silu(to_f32(z.v[k]));
        else
          cotangent = to_f32(*reinterpret_cast<const Element*>(XTile::at(tiles + P_AT, line, within + k)));
        products[k] = cotangent * to_f32(*reinterpret_cast<const Element*>(RoomyTile::at(tiles + X_AT, line, within + k)));
      }
    }
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
      if constexpr (!SKIP_BY_COLUMN) {
        all += products[k];
      } else {
#pragma unroll
        for (int far = (SPAN < 32 ? SPAN : 32) / 2; far > 0; far /= 2) products[k] += __shfl_xor_sync(~0u, products[k], far);
        if (line % 32 == 0) s.skip_columns[line / 32][within + k] = products[k];
      }
    }
  }
  return all;
}

// The gradient by the skip of each column: all parts are there.
DEVICE void put_skip(const Shared& s, const Params& p, const Work& w, i64 first, i64 column) {
  for (int q = threadIdx.x; q < COLUMNS && column + q < p.headdim; q += THREADS) {
    f32 sum = 0.f;
#pragma unroll
    for (int i = 0; i < PARTS; i++) sum += s.skip_columns[i][q];
    f32* const to = p.skip_terms + ((w.batch * p.chunks + w.chunk) * p.heads + w.head) * p.headdim + column + q;
    *to = first == w.chunk * SPAN ? sum : *to + sum;
  }
}

// The scales of the states in their tiles.
struct StateScales { f32 h = 1.f, g = 1.f; };

// Loads some columns of a piece: x, p, and the states before it and after it.
DEVICE StateScales load_columns(char* tiles, const Params& p, const Work& w, const Piece& piece, i64 column) {
  load_tile<RoomyTile, X, X_WIDTH>(tiles + X_AT, at<X>(p.x, w.batch, piece.first, w.head, column), p.x.stride[1], p.x.stride[3], piece.count(),
                                   int(min(i64(COLUMNS), p.headdim - column)));
  load_cotangent(tiles + P_AT, p, piece.lines(w), column);
  StateScales scales;
  if constexpr (!HAS_STEPS) {
  } else if (piece.begins_chunk(w))
    scales.h = load_slot<StateTile>(tiles + H_AT, p.states, p, w.batch, w.chunk, {w.head, column});
  else
    scales.h = load_state<StateTile, INITIAL>(tiles + H_AT, p, p.initial, row_before(p, w.batch, piece.first), {w.head, column});
  if (piece.ends_chunk())
    scales.g = load_slot<StateTile>(tiles + G_AT, p.gradients, p, w.batch, w.chunk, {w.head, column});
  else
    scales.g = load_state<StateTile, DFINAL>(tiles + G_AT, p, p.dfinal, row_after(p, w.batch, piece.last), {w.head, column});
  all_loaded();
  return scales;
}

// B g for dx, and the part of the gradients by steps that comes through the states.
DEVICE void add_states(Sums& sums, FragmentC (&dx)[2 * PAIRS], const char* tiles, const StateScales& scales) {
  times_state(dx, tiles + B_AT, tiles + G_AT, scales.g);
  add_dots<RoomyTile>(sums.xq, dx, tiles + X_AT);
  if constexpr (HAS_STEPS) {
    FragmentC from_state[2 * PAIRS];
    times_state(from_state, tiles + C_AT, tiles + H_AT, scales.h);
    add_dots<XTile>(sums.ph, from_state, tiles + P_AT);
    f32 hg = 0.f;
    each_of<STATES * COLUMNS / 4>([&](int i) {
      const int n = i / (COLUMNS / 4), q = i % (COLUMNS / 4) * 4;
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const float2 one = pair_at<MATH>(StateTile::at(tiles + H_AT, n, q + k)), other = pair_at<MATH>(StateTile::at(tiles + G_AT, n, q + k));
        hg = __fmaf_rn(one.y, other.y, __fmaf_rn(one.x, other.x, hg));
      }
    });
    sums.hg = __fmaf_rn(hg, scales.h * scales.g, sums.hg);
  }
}

// Products <B[j], C[i]> L[i,j], which have a scale.
struct Products {
  FragmentC v[WARPS][2];
  f32 scale = 1.f;
};

// Pairs of steps add these terms to dx, and to the sums over T; dx is whole then.
DEVICE void add_pairs(Sums& sums, FragmentC (&dx)[2 * PAIRS], const Products& products, const Steps& steps, const char* tiles) {
  FragmentC pairs[WARPS][2];   // <x[j], p[i]>
  if constexpr (HAS_STEPS) times_lines<RoomyTile, XTile>(pairs, tiles + X_AT, tiles + P_AT);
  const int row = 16 * warp_of() + group_of();
  const f32 weights[2] = {steps.weight[row], steps.weight[row + 8]};
  // dx is divided by the scale of the decays until the products with them are added
  const f32 down = HAS_SCALES ? inverse(products.scale) : 1.f;
  const f32 to_end[2] = {steps.after[row] * down, steps.after[row + 8] * down};
#pragma unroll
  for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
    for (int i = 0; i < 4; i++) dx[q].v[i] *= to_end[i / 2];
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    if (i < warp_of()) continue;
    f32 m[8];
    numbers_of(m, products.v[i][0], products.v[i][1]);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const int r = k / 2 % 2, j = row + 8 * r, at = 16 * i + k / 4 * 8 + pair_of() + k % 2;
      if constexpr (HAS_STEPS) {
        const f32 t = at >= j ? m[k] * pairs[i][k / 4].v[k % 4] : 0.f;
        if (at == j) sums.diagonal[r] += t; else sums.columns[r] += t;
        if (at > j) sums.rows[i][k / 4 * 2 + k % 2] = __fmaf_rn(t, weights[r], sums.rows[i][k / 4 * 2 + k % 2]);
      }
      m[k] *= down;
    }
    BlockA block;
    set_block<MATH>(block, m);
#pragma unroll
    for (int q = 0; q < PAIRS; q++) {
      BlockB cotangent[2];
      load_blocks<XTile, true>(cotangent, XTile::at(tiles + P_AT, 16 * i, 16 * q));
      multiply_blocks<MATH>(dx[2 * q], block, cotangent[0]);
      multiply_blocks<MATH>(dx[2 * q + 1], block, cotangent[1]);
    }
  }
#pragma unroll
  for (int q = 0; q < 2 * PAIRS; q++)
#pragma unroll
    for (int i = 0; i < 4; i++) dx[q].v[i] *= weights[i / 2] * products.scale;
}

// The terms of a head in this chunk.
DEVICE void put_terms(const Params& p, const Work& w, Shared& shared, f32 skip, const Terms& terms) {
  const i64 place = (w.batch * p.chunks + w.chunk) * p.heads + w.head;
  if constexpr (HAS_DSKIP && !SKIP_BY_COLUMN) {
    skip = sum_of_column(sum_of_row(skip));
    if (threadIdx.x % 32 == 0) shared.skip[warp_of()] = skip;
    __syncthreads();
    if (threadIdx.x == 0) {
      f32 sum = 0.f;
#pragma unroll
      for (int i = 0; i < WARPS; i++) sum += shared.skip[i];
      p.skip_terms[place] = sum;
    }
  }
  if (HAS_STEPS && threadIdx.x < 32) {
    const f32 a = sum_of_column(sum_of_row(terms.a)), bias = sum_of_column(sum_of_row(terms.bias));
    if (threadIdx.x == 0) p.a_terms[place] = a, p.bias_terms[place] = bias;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ssd_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char tiles[];
  __shared__ Shared shared;
  const Work w(p);
  const Head constants(p, w.head);
  Terms terms;
  f32 skip = 0.f;
  const i64 end = min((w.chunk + 1) * SPAN, p.seqlen);
#pragma unroll 1
  for (i64 first = w.chunk * SPAN; first < end;) {
    const Piece piece = {first, end_of_piece(p, w.batch, first, end), end};
    __syncthreads();
    load_b<MapTile>(tiles + B_AT, p, w.batch, w.group, first, piece.count());
    load_c<MapTile>(tiles + C_AT, p, w.batch, w.group, first, piece.count());
    prepare_steps(shared.steps, p, constants, piece.lines(w));
    Products products;
    Sums sums;
#pragma unroll 1
    for (i64 column = 0; column < p.headdim; column += COLUMNS) {
      if (column > 0) __syncthreads();
      const StateScales scales = load_columns(tiles, p, w, piece, column);
      if (column == 0) {
        times_lines<MapTile, MapTile>(products.v, tiles + B_AT, tiles + C_AT);
        products.scale = apply_decays(products.v, shared.steps);
      }
      FragmentC dx[2 * PAIRS];
      add_states(sums, dx, tiles, scales);
      if constexpr (HAS_DSKIP) skip += sum_skip(shared, p, w, tiles, piece, column);
      add_pairs(sums, dx, products, shared.steps, tiles);
      if constexpr (HAS_DSKIP) __syncthreads();
      if constexpr (HAS_DSKIP && SKIP_BY_COLUMN) put_skip(shared, p, w, first, column);
      if constexpr (HAS_DX) put_dx(p, w, tiles, dx, piece, column);
    }
    if constexpr (HAS_STEPS) {
      sums.share(shared);
      __syncthreads();
      if (threadIdx.x < 32) finish_steps(terms, shared, p, w, constants, piece);
    }
    first = piece.last;
  }
  put_terms(p, w, shared, skip, terms);
}
