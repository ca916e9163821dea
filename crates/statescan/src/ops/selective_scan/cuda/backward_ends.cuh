// The backward pass: what is done with a tile before and after its sweeps, and at the end of a row.
#pragma once
#include "backward_sweeps.cuh"

DEVICE void prepare_tile(const Thread& t, char* raw, int tile, Window<false> window, bool whole, bool back) {
  if (whole)
    prepare(t, raw, Window<true>{window.low, window.high}, back);
  else
    prepare(t, raw, window, back);
  if constexpr (SEQUENCES == Sequences::Index) mark_changes(t.p, t.w, tile, t.shared + CHANGE_AT);
}

// Gradients that a tile gives, once its sums are known.
DEVICE void finish_tile(const Thread& t, char* raw, i64 first_step, Window<false> window, bool whole, ChannelSums& channel_sums) {
  const Params& p = t.p;
  const Work& w = t.w;
  const int low = window.low, high = window.high;
  if ((OUT_VECTOR || APART) && whole)
    finish(t, raw, Window<true>{low, high}, first_step, channel_sums);
  else
    finish(t, raw, window, first_step, channel_sums);
  const char* const sums = t.shared + SUMMED_AT;
  const i64 block = w.batch * p.blocks_per_row + w.block;
  if constexpr (B_VARIES && HAS_DB)
    finish_map<NARROW_B>(p.db + block * (NARROW_B ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, first_step, sums, low, high);
  if constexpr (C_VARIES && HAS_DC)
    finish_map<NARROW_C>(p.dc + block * (NARROW_C ? 1 : PARTS) * DSTATE * p.seqlen, p.seqlen, first_step, sums + C_SUMMED, low, high);
}

// A block leaves this at the end: numbers for other segments, or terms of sums over rows.
DEVICE void finish_block(const Thread& t, const States& s, const f32 (&steps_in_all)[WIDTH], const ChannelSums& channel_sums) {
  if constexpr (ENDS) {
    leave_ends(t, s, steps_in_all);
    return;
  }
  const Params& p = t.p;
  const Work& w = t.w;
  const i64 line = w.segment * (p.segment_channels / p.dim) + w.row;
  finish_states(t, s, line);
  if constexpr (HAS_DSKIP) finish_channels(p.dskip + line * p.dim + w.first, reinterpret_cast<f32*>(t.shared), channel_sums.skip, w.channels);
  if constexpr (HAS_DBIAS) finish_channels(p.dbias + line * p.dim + w.first, reinterpret_cast<f32*>(t.shared), channel_sums.bias, w.channels);
}
