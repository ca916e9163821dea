// Both passes of a norm share this: how a group of channels divides among the lanes that norm it, and sums over those lanes.
//
// A group of a row has LANES threads. Each has ITEMS runs of VECTOR neighbouring channels, the runs LANES * VECTOR apart. Where it HOLDS
// them, they stay in registers as they are stored; wider groups are read again for each step of a row, from a cache. A block has ROWS such
// teams; it keeps to one group of channels and walks down the rows, `stride` apart. FULL says that every run has channels.
#pragma once

static_assert(given<int>(LANES, ROWS, ITEMS, VECTOR) && given<bool>(HOLDS, FULL, NORMED, HAS_SCALE));

constexpr int THREADS = LANES * ROWS, WARPS = (LANES + 31) / 32;
static_assert(ROWS == 1 || LANES <= 32, "teams of whole warps have a block each");
static_assert(WARPS <= 32, "a warp adds up what all warps of a team have");

// How many runs of a thread something is kept for, and whether weights are.
constexpr int KEPT = HOLDS ? ITEMS : 1;
constexpr bool KEEPS_WEIGHTS = HOLDS && ITEMS * VECTOR <= 8;

// Calls a job for each run of a thread; where nothing is kept for runs, the loop stays one.
template <typename Job> DEVICE void each_run(Job job) {
  if constexpr (HOLDS) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) job(i);
  } else {
#pragma unroll 1
    for (int i = 0; i < ITEMS; i++) job(i);
  }
}

// x and its residual, times the row's factor where there is one.
template <bool SCALED> DEVICE f32 add_scaled(f32 x, f32 residual, f32 scale) { return SCALED ? __fmaf_rn(scale, residual, x) : x + residual; }

// A number for each channel of a run.
struct Run {
  f32 v[VECTOR];
};

struct Team {
  u32 lane, group;
  i64 first;   // channel of the row
  f32 share;   // of a channel: a division's slow path is a call, which would put registers on the stack in some configurations of the loop over rows

  DEVICE explicit Team(const Shape& p) {
    lane = threadIdx.x % LANES, group = p.group, share = 1.f / f32(group);
    first = i64(blockIdx.x % p.groups) * p.group;
  }
  // the first row, and the number of this team among all that add up the same sums
  DEVICE i64 number(const Shape& p) const { return i64(blockIdx.x / p.groups) * ROWS + threadIdx.x / LANES; }
  DEVICE i64 stride(const Shape& p) const { return i64(gridDim.x / p.groups) * ROWS; }

  DEVICE u32 channel(int item) const { return (item * LANES + lane) * VECTOR; }
  DEVICE bool has(int item) const { return FULL || channel(item) < group; }
};

// The indices of a row; there are fewer than 2^31 rows.
struct Place {
  i64 first, second, third;

  DEVICE Place(const Shape& p, i64 row) : first(0), second(0), third(row) { carry(p); }
  // so many rows on; a division takes as long as a few channels, and is rarely needed
  DEVICE void advance(const Shape& p, i64 rows) {
    third += rows;
    if (third >= p.third) carry(p);
  }
  template <typename E> DEVICE E* in(const Strided& v) const { return at<E>(v, first, second, third); }

private:
  DEVICE void carry(const Shape& p) {
    const u32 seconds = u32(second) + u32(third) / u32(p.third);
    third = u32(third) % u32(p.third);
    first += seconds / u32(p.second), second = seconds % u32(p.second);
  }
};

// The rows of a team, one after another. All threads of a block take as many turns, since they meet; a team without a row looks at another's.
struct Walk {
  const Shape& p;
  i64 stride, row, left;
  Place place;

  DEVICE Walk(const Team& team, const Shape& p)
      : p(p), stride(team.stride(p)), row(team.number(p)), left(p.rows - (row - threadIdx.x / LANES)), place(p, row < p.rows ? row : p.rows - 1) {}
  DEVICE bool goes_on() const { return left > 0; }
  DEVICE bool exists() const { return row < p.rows; }
  DEVICE void next() {
    row += stride, left -= stride;
    if (row < p.rows) place.advance(p, stride);
  }
};

// A run as it is stored; anything where the group has no such channels.
template <typename E> DEVICE Neighbours<E, VECTOR> fetch(const Team& team, const E* line, i64 stride, int item) {
  Neighbours<E, VECTOR> some;
  if (team.has(item)) {
    if constexpr (VECTOR > 1)
      some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(line + team.first + team.channel(item));
    else
      some.v[0] = line[(team.first + team.channel(item)) * stride];
  }
  return some;
}

// Lets the compiler forget what it has computed from a run, where there are many: it computes that again and keeps only the run.
template <typename E> DEVICE void forget(Neighbours<E, VECTOR>& some) {
  if constexpr (ITEMS * VECTOR <= 8) return;
  constexpr int WORDS = sizeof(some) / 4;
#pragma unroll
  for (int word = 0; word < WORDS; word++) asm volatile("" : "+r"(reinterpret_cast<u32*>(&some)[word]));
  if constexpr (WORDS == 0) asm volatile("" : "+h"(reinterpret_cast<u16*>(&some)[0]));
}

// Its numbers; zeros where the group has no such channels.
template <typename E> DEVICE Run open(const Team& team, const Neighbours<E, VECTOR>& some, int item) {
  Run to;
#pragma unroll
  for (int j = 0; j < VECTOR; j++) to.v[j] = team.has(item) ? to_f32(some.v[j]) : 0.f;
  return to;
}

template <typename E> DEVICE void store(const Team& team, E* line, i64 stride, int item, const Run& from) {
  if (!team.has(item)) return;
  Neighbours<E, VECTOR> some;
#pragma unroll
  for (int j = 0; j < VECTOR; j++) assign(some.v[j], from.v[j]);
  if constexpr (VECTOR > 1)
    write_at_once<E, VECTOR>(line + team.first + team.channel(item), some);
  else
    line[(team.first + team.channel(item)) * stride] = some.v[0];
}

// A weight or a bias: a line whose channels may be apart.
template <bool THERE, typename E> DEVICE Run load_weights(const Team& team, const Strided& v, f32 otherwise, int item) {
  Run to;
#pragma unroll
  for (int j = 0; j < VECTOR; j++) {
    to.v[j] = otherwise;
    if (THERE && team.has(item)) to.v[j] = to_f32(*at<E>(v, team.first + team.channel(item) + j));
  }
  return to;
}

// Sums of a few numbers over the lanes of a team, for all of them. Every thread of the block calls it, and `turn` is another number than at
// the call before: what was left for that may still be read.
template <int COUNT> DEVICE void sum_over_team(f32 (&v)[COUNT], u32 turn) {
  constexpr int WIDTH = LANES < 32 ? LANES : 32;
#pragma unroll
  for (int c = 0; c < COUNT; c++)
#pragma unroll
    for (int apart = WIDTH / 2; apart > 0; apart /= 2) v[c] += __shfl_xor_sync(0xffffffffu, v[c], apart);
  if constexpr (WARPS > 1) {
    __shared__ f32 of_warps[2][COUNT][32];
    f32(&mine)[COUNT][32] = of_warps[turn % 2];
    const u32 lane = threadIdx.x % 32;
    if (lane == 0)
#pragma unroll
      for (int c = 0; c < COUNT; c++) mine[c][threadIdx.x / 32] = v[c];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < COUNT; c++) v[c] = sum_of_warp(lane < WARPS ? mine[c][lane] : 0.f);
  }
}
