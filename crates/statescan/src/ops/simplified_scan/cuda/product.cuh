// Products on both kinds of tensor-core instructions have this in common: the depths that a block goes through, and where sums go.
#pragma once

static_assert(given<bool>(OVER_TIME, HAS_SKIP, OUT_WIDE) && given<int>(TERM_PARTS, DEPTH) && given_types<OUT, SKIP, EXTRA>());

constexpr int OUT_PARTS = OVER_TIME ? TERM_PARTS : PartsOf<OUT>::COUNT;

// The depths that a block goes through, DEPTH at a time.
template <typename Index> struct Depths {
  Index batch, at, left;   // `left` units of DEPTH

  DEVICE Depths(const Params& p, i64 slice) {
    const i64 units = (p.depth + DEPTH - 1) / DEPTH;
    if constexpr (OVER_TIME) {
      const i64 first = slice * p.slice_units;
      left = Index(min(p.slice_units, p.batch * units - first));
      batch = Index(units == 0 ? 0 : first / units), at = Index(units == 0 ? 0 : first % units * DEPTH);
    } else {
      batch = Index(slice), at = 0, left = Index(units);
    }
  }
  DEVICE void next(const Params& p) {
    at += DEPTH, left--;
    if (OVER_TIME && at >= p.depth) at = 0, batch++;
  }
};

DEVICE int at_most(i64 count, int most) { return int(min(count, i64(most))); }

// The number that is added to a column, or to the one behind it.
DEVICE f32 skip(const Params& p, i64 batch, i64 row, i64 column, int behind) {
  if (!HAS_SKIP || column + behind >= p.columns) return 0.f;
  return to_f32(*at<SKIP>(p.skip, row)) * to_complex(*at<EXTRA>(p.extra, batch, row, column + behind)).re;
}

// Two neighbouring columns of the result.
DEVICE void put_pair(const Params& p, i64 batch, i64 row, i64 column, const complex64 (&pair)[2], const f32 (&added)[2]) {
  const int count = int(min(i64(2), p.columns - column));
  Neighbours<OUT, 2> out;
#pragma unroll
  for (int k = 0; k < 2; k++) {
    complex64 v = scale(pair[k], p.factor);
    if constexpr (HAS_SKIP) v.re += added[k];
    assign(out.v[k], v);
  }
  OUT* const to = at<OUT>(p.to, batch, row, column);
  if (OUT_WIDE && count == 2) {
    write_at_once(to, out);
  } else {
    to[0] = out.v[0];
    if (count == 2) to[p.to.stride[2]] = out.v[1];
  }
}

// Puts a pair into the terms of a slice: (slice, part, row, column)
DEVICE void put_terms(const Params& p, i64 slice, i64 row, i64 column, const complex64 (&pair)[2]) {
#pragma unroll
  for (int part = 0; part < OUT_PARTS; part++) {
    f32* const to = p.terms + (((slice * OUT_PARTS + part) * p.rows + row) * p.columns + column);
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (column + k < p.columns) to[k] = p.factor * part_of(pair[k], part);
  }
}
