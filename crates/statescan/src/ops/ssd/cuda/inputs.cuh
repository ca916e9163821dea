// What every kernel of SSD reads by the same rules: sequences, states in tensors, step sizes of a head.

typedef StepSize<HAS_BIAS, SOFTPLUS, HAS_LIMIT> Dt;

// ---- sequences

DEVICE i64 index_at(const Inputs& p, i64 i, i64 j) { return i64(*at<INDEX>(p.sequences, i, j)); }

// Bounds in the direction of the scan.
DEVICE i64 bound(const Inputs& p, i64 k) {
  k = min(k, p.sequence_count);
  const i64 raw = index_at(p, REVERSE ? p.sequence_count - k : k, 0);
  return REVERSE ? p.seqlen - raw : raw;
}
// the last sequence that begins at or before step t
DEVICE i64 sequence_at_bound(const Inputs& p, i64 t) {
  i64 low = 0, high = p.sequence_count;
  while (high - low > 1) {
    const i64 middle = (low + high) / 2;
    if (bound(p, middle) <= t) low = middle; else high = middle;
  }
  return low;
}

// Whether step t begins a sequence.
DEVICE bool begins(const Inputs& p, i64 batch, i64 t) {
  if (t <= 0) return true;
  if constexpr (SEQUENCES == Sequences::Bounds) return bound(p, sequence_at_bound(p, t)) == t;
  if constexpr (SEQUENCES == Sequences::Index) return index_at(p, batch, t) != index_at(p, batch, t - 1);
  return false;
}
// Whether a sequence ends before step t.
DEVICE bool ends(const Inputs& p, i64 batch, i64 t) { return t >= p.seqlen || begins(p, batch, t); }

// The first step after t, up to `limit`, that begins a sequence; all threads of a warp ask.
DEVICE i64 end_of_piece(const Inputs& p, i64 batch, i64 t, i64 limit) {
  i64 end = limit;
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 next = bound(p, sequence_at_bound(p, t) + 1);
    if (next > t && next < limit) end = next;
  }
  if constexpr (SEQUENCES == Sequences::Index) {
#pragma unroll 1
    for (i64 first = t + 1; first < limit; first += 32) {
      const i64 u = first + threadIdx.x % 32;
      const u32 found = __ballot_sync(~0u, u < limit && begins(p, batch, u));
      if (found != 0) return first + __ffs(found) - 1;
    }
  }
  return end;
}
// The last step before `end`, from `limit` on, that begins a sequence, or `limit`.
DEVICE i64 start_of_piece(const Inputs& p, i64 batch, i64 end, i64 limit) {
  i64 start = limit;
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 first = bound(p, sequence_at_bound(p, end - 1));
    if (first > limit && first < end) start = first;
  }
  if constexpr (SEQUENCES == Sequences::Index) {
#pragma unroll 1
    for (i64 first = end - 1; first > limit; first -= 32) {
      const i64 u = first - threadIdx.x % 32;
      const u32 found = __ballot_sync(~0u, u > limit && begins(p, batch, u));
      if (found != 0) return first - (__ffs(found) - 1);
    }
  }
  return start;
}

// ---- states in tensors: (row, sequence, head, column, state)

// Where the state of a sequence lies, or nowhere.
struct StateRow { i64 row, sequence; };
DEVICE StateRow state_row(const Inputs& p, i64 batch, i64 step_of_sequence) {
  if constexpr (SEQUENCES == Sequences::Bounds) {
    const i64 k = sequence_at_bound(p, step_of_sequence);
    return {REVERSE ? p.sequence_count - 1 - k : k, 0};
  }
  if constexpr (NUMBERED) return {batch, index_at(p, batch, step_of_sequence)};
  return {batch, 0};
}
// The states before a sequence's first step and after its last: without numbers the first sequence of a row has the one, the last the other.
DEVICE StateRow row_before(const Inputs& p, i64 batch, i64 first) {
  if (SEQUENCES == Sequences::Index && !NUMBERED && first > 0) return {batch, -1};
  return state_row(p, batch, first);
}
DEVICE StateRow row_after(const Inputs& p, i64 batch, i64 end) {
  if (SEQUENCES == Sequences::Index && !NUMBERED && end < p.seqlen) return {batch, -1};
  return state_row(p, batch, end - 1);
}
DEVICE bool exists(const Inputs& p, StateRow at) {
  if constexpr (SEQUENCES == Sequences::Bounds) return at.row >= 0 && at.row < p.sequence_count;
  return at.sequence >= 0 && at.sequence < (NUMBERED ? p.sequence_count : 1);
}
template <typename E> DEVICE E* state_at(const States& s, StateRow at, i64 head, i64 column, i64 n) {
  return static_cast<E*>(s.data) + (at.row * s.stride[0] + at.sequence * s.stride[1] + head * s.stride[2] + column * s.stride[3] + n * s.stride[4]);
}

// ---- step sizes

// A head's constants.
struct Head {
  f64 rate;   // A / ln 2
  f32 bias;

  DEVICE Head(const Inputs& p, i64 head) : rate(f64(to_f32(*at<A>(p.a, head))) * 1.4426950408889634), bias(0.f) {
    if constexpr (HAS_BIAS) bias = to_f32(*at<BIAS>(p.bias, head));
  }
};

// What a step is as a weight and for the decay.
struct StepSizes { f32 weight, decay; };
DEVICE StepSizes step_sizes(const Inputs& p, const Head& constants, i64 batch, i64 head, i64 t) {
  StepSizes d;
  d.weight = Dt::of(to_f32(*at<DT>(p.dt, batch, t, head)), constants.bias, p.dt_low, p.dt_high);
  d.decay = d.weight;
  if constexpr (HAS_DT_A) d.decay = to_f32(*at<DT_A>(p.dt_a, batch, t, head));
  return d;
}
