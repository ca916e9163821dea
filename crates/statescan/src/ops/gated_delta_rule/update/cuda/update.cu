// One step of the gated delta rule, the state updated in place, or read in one slot, or in a tensor of its own (APART), and written in another. A block has
// some columns of one state and holds all of their keys in registers, so that the state is read and written once: first its products with the key and the
// query, whose sums over keys come with those for the lengths of both, then the update. Neighbouring threads lie along columns (BY_COLUMN), or along keys
// where these lie side by side. Sums are taken in a fixed order.
#include "gates.cuh"
#include "step_slots.cuh"

constexpr int LANES_P = THREADS / LANES_N;
// a thread has neighbours along keys and along columns, pieces of keys, keys and columns
constexpr int VECTOR_N = BY_COLUMN ? 1 : VECTOR, VECTOR_P = BY_COLUMN ? VECTOR : 1;
constexpr int PIECES = KEYS == 0 ? 1 : (KEYS + LANES_N * VECTOR_N - 1) / (LANES_N * VECTOR_N);
constexpr int OWN_KEYS = PIECES * VECTOR_N, OWN_COLUMNS = GROUPS * VECTOR_P;
constexpr bool RAGGED = KEYS != PIECES * LANES_N * VECTOR_N;
// sums over keys: of each column with k and q, and those of k k, q q and q k
constexpr int SUMS = 2 * OWN_COLUMNS + 3, PADDED_SUMS = (SUMS + 3) / 4 * 4;
constexpr int WARPS = BY_COLUMN ? THREADS / 32 : 1;

struct Place {
  i64 row, head;
  int first_key, column;   // of this thread, the first ones
};
DEVICE int key_of(const Place& at, int i) { return at.first_key + i / VECTOR_N * (LANES_N * VECTOR_N) + i % VECTOR_N; }
DEVICE int column_of(const Place& at, int j) { return at.column + j / VECTOR_P * (LANES_P * VECTOR_P) + j % VECTOR_P; }
DEVICE bool has_key(int n) { return !RAGGED || n < KEYS; }

// Numbers of this thread's keys, at once those that lie side by side (TOGETHER).
template <bool TOGETHER, typename E> DEVICE void read_keys(f32 (&out)[OWN_KEYS], const E* from, i64 stride, const Place& place) {
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++) {
    const int n = key_of(place, piece * VECTOR_N);
    if constexpr (TOGETHER) {
      Neighbours<E, VECTOR_N> some = {};
      if (has_key(n)) some = *reinterpret_cast<const Neighbours<E, VECTOR_N>*>(from + n);
#pragma unroll
      for (int e = 0; e < VECTOR_N; e++) out[piece * VECTOR_N + e] = to_f32(some.v[e]);
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR_N; e++) out[piece * VECTOR_N + e] = has_key(n + e) ? to_f32(from[(n + e) * stride]) : 0.f;
    }
  }
}

// The part of a state that a thread has, as it is stored.
struct Part {
  Neighbours<STATE, VECTOR> v[PIECES][GROUPS];
  DEVICE f32 at(int i, int j) const { return to_f32(v[i / VECTOR_N][j / VECTOR_P].v[i % VECTOR_N + j % VECTOR_P]); }
};
// job(piece, group, address) for the vectors that exist, in a state of `states`
template <typename Job> DEVICE void each_vector(const Params& p, const Strided& states, const Place& place, STATE* state, Job job) {
#pragma unroll
  for (int piece = 0; piece < PIECES; piece++)
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
      const i64 n = key_of(place, piece * VECTOR_N), column = column_of(place, group * VECTOR_P);
      if (has_key(int(n)) && column < p.columns) job(piece, group, state + n * states.stride[2] + column * states.stride[3]);
    }
}

// States that are read.
DEVICE const Strided& states_before(const Params& p) { return APART ? p.before : p.state; }
// The places of the state before a sequence, and of the one after a token of it: without slots each sequence has its own, after its last token.
DEVICE i64 state_read(const Params& p, i64 sequence) { return SLOTTED ? slot_read(p.slots, sequence) : sequence; }
DEVICE i64 state_written(const Params& p, i64 sequence, const Tokens& tokens, i64 token) {
  if constexpr (SLOTTED) return slot_written(p.slots, sequence, tokens, token);
  return token + 1 == tokens.end ? sequence : -1;
}

// Adds up what the threads of a column have of its sums.
DEVICE void add_up(f32 (&sums)[PADDED_SUMS]) {
#pragma unroll
  for (int apart = BY_COLUMN ? LANES_P : 1; apart < (BY_COLUMN ? 32 : LANES_N); apart *= 2)
#pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
  if constexpr (WARPS > 1) {
    __shared__ float4 all[WARPS][LANES_P][PADDED_SUMS / 4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % LANES_P;
    if (lane < LANES_P) {
#pragma unroll
      for (int i = 0; i < PADDED_SUMS / 4; i++)
        all[warp][column][i] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PADDED_SUMS; i++) sums[i] = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int i = 0; i < PADDED_SUMS / 4; i++) {
        const float4 some = all[w][column][i];
        sums[4 * i] += some.x, sums[4 * i + 1] += some.y, sums[4 * i + 2] += some.z, sums[4 * i + 3] += some.w;
      }
  }
}

// The numbers of a step along the keys of a thread.
struct Keys {
  f32 q[OWN_KEYS], k[OWN_KEYS], decay[OWN_KEYS];   // one decay of all keys is the first

  DEVICE f32 decay_of(int i) const { return decay[BY_CHANNEL ? i : 0]; }

  DEVICE void load(const Params& p, const Place& at_) {
    const i64 shared = at_.head / p.group;
    read_keys<QUERY_TOGETHER>(q, at<QUERY>(p.q, at_.row, shared), p.q.stride[2], at_);
    read_keys<KEY_TOGETHER>(k, at<KEY>(p.k, at_.row, shared), p.k.stride[2], at_);
    const f32 rate = RAW ? expf(to_f32(*at<A_LOG>(p.a_log, at_.head))) : 0.f;
    if constexpr (BY_CHANNEL) {
      read_keys<GATE_TOGETHER>(decay, at<GATE>(p.g, at_.row, at_.head), p.g.stride[2], at_);
#pragma unroll
      for (int i = 0; i < OWN_KEYS; i++) {
        const int n = key_of(at_, i);
        const f32 bias = HAS_BIAS && has_key(n) ? to_f32(*at<BIAS>(p.bias, at_.head, n)) : 0.f;
        decay[i] = expf(log_decay(decay[i], bias, rate, p.lower_bound));
      }
    } else if constexpr (HAS_GATE) {
      const f32 bias = HAS_BIAS ? to_f32(*at<BIAS>(p.bias, at_.head)) : 0.f;
      decay[0] = expf(log_decay(to_f32(*at<GATE>(p.g, at_.row, at_.head)), bias, rate, p.lower_bound));
    } else {
      decay[0] = 1.f;
    }
  }

  // The sums of the keys of a thread; a decay of all of them is left for later.
  DEVICE void sums(f32 (&out)[PADDED_SUMS], const Part& part) const {
#pragma unroll
    for (int i = 0; i < PADDED_SUMS; i++) out[i] = 0.f;
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) {
      const f32 key = BY_CHANNEL ? decay[i] * k[i] : k[i], query = BY_CHANNEL ? decay[i] * q[i] : q[i];
#pragma unroll
      for (int j = 0; j < OWN_COLUMNS; j++) {
        const f32 x = part.at(i, j);
        out[2 * j] = __fmaf_rn(key, x, out[2 * j]), out[2 * j + 1] = __fmaf_rn(query, x, out[2 * j + 1]);
      }
      out[2 * OWN_COLUMNS] = __fmaf_rn(k[i], k[i], out[2 * OWN_COLUMNS]);
      out[2 * OWN_COLUMNS + 1] = __fmaf_rn(q[i], q[i], out[2 * OWN_COLUMNS + 1]);
      out[2 * OWN_COLUMNS + 2] = __fmaf_rn(q[i], k[i], out[2 * OWN_COLUMNS + 2]);
    }
  }
};

DEVICE void read_part(Part& part, const Params& p, const Place& place, i64 slot) {
  each_vector(p, states_before(p), place, at<STATE>(states_before(p), slot, place.head), [&](int piece, int group, const STATE* from) {
    part.v[piece][group] = *reinterpret_cast<const Neighbours<STATE, VECTOR>*>(from);
  });
}

// A step of a part that was just asked for: so is everything else before the first use. The state after it is written if `written_to` says so.
DEVICE void step(const Params& p, const Place& place, Part& part, STATE* state, bool written_to) {
  Keys keys;
  keys.load(p, place);
  f32 v[OWN_COLUMNS], sums[PADDED_SUMS];
#pragma unroll
  for (int j = 0; j < OWN_COLUMNS; j++) {
    const int column = column_of(place, j);
    v[j] = column < p.columns ? to_f32(*at<VALUE>(p.v, place.row, place.head, column)) : 0.f;
  }
  const f32 beta = HAS_BETA ? beta_of(to_f32(*at<BETA>(p.beta, place.row, place.head)), p.beta_factor) : 1.f;
  keys.sums(sums, part);
  add_up(sums);
  const f32 decay = BY_CHANNEL ? 1.f : keys.decay[0];
  const f32 by_k = UNIT ? inverse_length(sums[2 * OWN_COLUMNS]) : 1.f, by_q = UNIT ? inverse_length(sums[2 * OWN_COLUMNS + 1]) : 1.f;
  const f32 dot = by_k * sums[2 * OWN_COLUMNS + 2], read_k = decay * by_k;
  f32 written[OWN_COLUMNS];
#pragma unroll
  for (int j = 0; j < OWN_COLUMNS; j++) {
    const f32 d = beta * __fmaf_rn(-read_k, sums[2 * j], v[j]);
    const f32 y = p.scale * by_q * __fmaf_rn(dot, d, decay * sums[2 * j + 1]);
    const int column = column_of(place, j);
    if (place.first_key == 0 && column < p.columns) assign(*at<Y>(p.y, place.row, place.head, column), y);
    written[j] = by_k * d;
  }
  each_vector(p, p.state, place, state, [&](int piece, int group, STATE* to) {
    Neighbours<STATE, VECTOR> after;
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
      const int i = piece * VECTOR_N + (BY_COLUMN ? 0 : e), j = group * VECTOR_P + (BY_COLUMN ? e : 0);
      assign(after.v[e], __fmaf_rn(keys.k[i], written[j], keys.decay_of(i) * part.at(i, j)));
    }
    if (written_to) write_at_once(to, after);
    if constexpr (MANY) part.v[piece][group] = after;
  });
}

// The tokens of a sequence, whose state is read once and stays in registers, as it is stored.
DEVICE void walk(const Params& p, Place& place, i64 sequence) {
  const Tokens tokens = tokens_of(p.slots, sequence);
  const i64 from = state_read(p, sequence);
  Part part = {};
  if (from >= 0) read_part(part, p, place, from);
  if (tokens.first == tokens.end) {
    const i64 slot = state_written(p, sequence, tokens, tokens.first - 1);
    if (slot >= 0)
      each_vector(p, p.state, place, at<STATE>(p.state, slot, place.head), [&](int piece, int group, STATE* to) { write_at_once(to, part.v[piece][group]); });
    return;
  }
#pragma unroll 1
  for (place.row = tokens.first; place.row < tokens.end; place.row++) {
    const i64 slot = state_written(p, sequence, tokens, place.row);
    step(p, place, part, at<STATE>(p.state, max(slot, i64(0)), place.head), slot >= 0);
    // sums of the next token take the place of those of this one
    if constexpr (WARPS > 1) __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) gated_delta_rule_update(const __grid_constant__ Params p) {
  const u32 line = blockIdx.x / p.blocks_per_state;
  Place place;
  place.row = line / p.heads, place.head = line % p.heads;
  const int lane_n = BY_COLUMN ? threadIdx.x / LANES_P : threadIdx.x % LANES_N, lane_p = BY_COLUMN ? threadIdx.x % LANES_P : threadIdx.x / LANES_N;
  place.first_key = lane_n * VECTOR_N;
  place.column = blockIdx.x % p.blocks_per_state * (LANES_P * OWN_COLUMNS) + lane_p * VECTOR_P;
  if constexpr (MANY) {
    walk(p, place, place.row);
    return;
  }
  i64 slot = place.row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, place.row));
  // indices are not checked on the host: what is no state is left alone
  bool alive = !HAS_INDICES || (slot >= 0 && slot < p.states);
  i64 slot_after = slot;
  if constexpr (SLOTTED) {
    slot = slot_read(p.slots, place.row), slot_after = slot_written(p.slots, place.row, {place.row, place.row + 1}, place.row);
    alive = true;
  }
  if (alive) {
    Part part = {};
    if (!SLOTTED || slot >= 0) read_part(part, p, place, slot);
    step(p, place, part, at<STATE>(p.state, SLOTTED ? max(slot_after, i64(0)) : slot_after, place.head), !SLOTTED || slot_after >= 0);
  }
#pragma unroll
  for (int j = 0; j < OWN_COLUMNS; j++) {
    const int column = column_of(place, j);
    if (!alive && lane_n == 0 && column < p.columns) assign(*at<Y>(p.y, place.row, place.head, column), 0.f);
  }
}
