// The state of 64 columns of a head over the chunks of a segment, transposed, in the sums of a warpgroup:
//
//   E^T = V^T - (S^T K^T) diag(entering)        D^T = E^T T^T        S^T <- whole S^T + (D^T diag(leaving)) K
//
// Where channels have decays of their own, keys come with the unit and have them already, and `whole` is one for each channel. Keys are one tile for
// both products: lines of columns for the first, lines of rows for the second.
#pragma once
#include "columns.cuh"

struct Ring { Barrier full[STAGES], empty[STAGES]; };

struct Keeper : Columns {
  using Columns::Columns;

  // V - E times the factors that are given, in the place of V.
  DEVICE static void subtract(FragmentA (&v)[4], const Sums<64>& sums, const float2 (&factor)[8]) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
      u32& two = v[i / 4].v[i % 4];
      two = pack_bf16(low_bf16(two) - factor[i / 2].x * sums.v[2 * i], high_bf16(two) - factor[i / 2].y * sums.v[2 * i + 1]);
    }
  }

  // From the state at the start to that at the end. Reader is told of states and of D, thread by thread, and may put a group of products of its own
  // (READS) behind each of the two that it is told of.
  template <typename Reader> DEVICE void walk(Sums<KEYS>& s, Ring& ring, Turn<STAGES>& turn, int values_at, Reader& reader) const {
    FragmentA state[KEYS / 16];
    as_factors(state, s);
    if (w.chunks > 0) barrier_wait(ring.full[turn.at], turn.phase);
#pragma unroll 1
    for (int chunk = 0; chunk < w.chunks; chunk++) {
      char* const from = stage(turn);
      if (chunk == w.cut) clear_rest<Reader::WARPGROUPS>(from, w.count(chunk), values_at);
      Sums<64> sums;
      products_fence();
      multiply_keys(sums, state, from);
      products_commit();
      FragmentA e[4], d[4];
      float2 factor[8];
      load_steps(e, from + values_at);
      load_factors(factor, from, ENTERING);
      reader.give(state, from, chunk);
      products_wait<Reader::READS>();
      pin(sums.v);
      if constexpr (!Reader::READS) hold(state);
      reader.state_is_given();
      subtract(e, sums, factor);
      products_fence();
      multiply_units(sums, e, from);
      products_commit();
      decay(s, from);
      load_factors(factor, from, LEAVING);
      products_wait();
      pin(sums.v);
      if constexpr (Reader::READS) hold(state);
      hold(e);
      weigh(d, sums, factor);
      products_fence();
      add_rows(s, d, from + WRITTEN_AT);
      products_commit();
      reader.give(sums, from, chunk);
      Barrier& empty = ring.empty[turn.at];
      turn.next();
      if (chunk + 1 < w.chunks) barrier_wait(ring.full[turn.at], turn.phase);
      products_wait<Reader::READS>();
      pin(s.v);
      hold(d);
      if constexpr (!Reader::READS) warp_arrive(empty);
      as_factors(state, s);
      if constexpr (Reader::READS) reader.end(), warp_arrive(empty);
    }
  }
};
