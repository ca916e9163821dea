// What both passes of a norm share: how a group of channels divides among the lanes that norm it, and sums over those lanes.
//
// A group of a row has LANES threads. Each holds ITEMS runs of VECTOR neighbouring channels in registers, the runs LANES * VECTOR apart, so that
// a row is read once. A block has ROWS such teams; it keeps to one group of channels and walks down the rows, `stride` apart.

constexpr int THREADS = LANES * ROWS, WARPS = (LANES + 31) / 32;
static_assert(ROWS == 1 || LANES <= 32, "teams of whole warps have a block each");

// The numbers of a thread.
struct Values {
  f32 v[ITEMS][VECTOR];

  template <typename Job> DEVICE void each(Job job) const {
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
#pragma unroll
      for (int j = 0; j < VECTOR; j++) job(i, j);
  }
};

struct Team {
  u32 lane, group;
  i64 first;   // channel of the row

  DEVICE explicit Team(const Shape& p) {
    lane = threadIdx.x % LANES, group = p.group;
    first = i64(blockIdx.x % p.groups) * p.group;
  }
  // the first row, and the number of this team among all that add up the same sums
  DEVICE i64 number(const Shape& p) const { return i64(blockIdx.x / p.groups) * ROWS + threadIdx.x / LANES; }
  DEVICE i64 stride(const Shape& p) const { return i64(gridDim.x / p.groups) * ROWS; }

  DEVICE u32 channel(int item) const { return (item * LANES + lane) * VECTOR; }
  DEVICE bool has(int item) const { return channel(item) < group; }
};

// A tensor of rows, at a row.
template <typename E> DEVICE E* row_of(const Strided& v, const Shape& p, i64 row) {
  const i64 third = row % p.third, rest = row / p.third;
  return at<E>(v, rest / p.second, rest % p.second, third);
}

// The numbers of a team in a line of channels; those beyond the group are zero.
template <typename E> DEVICE Values load(const Team& team, const E* line, i64 stride) {
  Values to;
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    Neighbours<E, VECTOR> some;
    if (team.has(i)) {
      if constexpr (VECTOR > 1)
        some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(line + team.first + team.channel(i));
      else
        some.v[0] = line[(team.first + team.channel(i)) * stride];
    }
#pragma unroll
    for (int j = 0; j < VECTOR; j++) to.v[i][j] = team.has(i) ? to_f32(some.v[j]) : 0.f;
  }
  return to;
}

template <typename E> DEVICE void store(const Team& team, E* line, i64 stride, const Values& from) {
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    if (!team.has(i)) continue;
    Neighbours<E, VECTOR> some;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) assign(some.v[j], from.v[i][j]);
    if constexpr (VECTOR > 1)
      write_at_once<E, VECTOR>(line + team.first + team.channel(i), some);
    else
      line[(team.first + team.channel(i)) * stride] = some.v[0];
  }
}

// A weight or a bias: a line whose channels may be apart.
template <bool THERE, typename E> DEVICE Values load_weights(const Team& team, const Strided& v, f32 otherwise) {
  Values to;
  to.each([&](int i, int j) {
    const u32 channel = team.channel(i) + j;
    to.v[i][j] = otherwise;
    if (THERE && team.has(i)) to.v[i][j] = to_f32(*at<E>(v, team.first + channel));
  });
  return to;
}

// Sums of a few numbers over the lanes of a team, for all of them. Every thread of the block calls it.
template <int COUNT> DEVICE void sum_over_team(f32 (&v)[COUNT]) {
  constexpr int WIDTH = LANES < 32 ? LANES : 32;
#pragma unroll
  for (int c = 0; c < COUNT; c++)
#pragma unroll
    for (int apart = WIDTH / 2; apart > 0; apart /= 2) v[c] += __shfl_xor_sync(0xffffffffu, v[c], apart);
  if constexpr (WARPS > 1) {
    __shared__ f32 of_warps[COUNT][WARPS];
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int c = 0; c < COUNT; c++) of_warps[c][threadIdx.x / 32] = v[c];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < COUNT; c++) {
      v[c] = 0.f;
#pragma unroll
      for (int warp = 0; warp < WARPS; warp++) v[c] += of_warps[c][warp];
    }
    __syncthreads();
  }
}

DEVICE f32 sum_of(const Team& team, f32 v) {
  f32 sums[1] = {v};
  sum_over_team(sums);
  return sums[0];
}

// Subtracts the mean where the norm does so; numbers beyond the group stay zero.
DEVICE void center(const Team& team, Values& values) {
  if constexpr (!LAYER) return;
  f32 sum = 0.f;
  values.each([&](int i, int j) { sum += values.v[i][j]; });
  const f32 mean = sum_of(team, sum) / f32(team.group);
  values.each([&](int i, int j) { values.v[i][j] = team.has(i) ? values.v[i][j] - mean : 0.f; });
}
