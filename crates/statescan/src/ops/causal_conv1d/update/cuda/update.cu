// A few steps of a causal convolution, the last inputs kept in place. A thread has one channel of one row and walks its steps.
#include "step_slots.cuh"

constexpr int PAST = WIDTH - 1;

// Moves a state by the steps, and puts their inputs behind: forwards, so that what moves is read before it is overwritten.
DEVICE void move_state(const Params& p, STATE* state, const X* x) {
  const i64 step = p.state.stride[2];
  for (i64 i = 0; i < p.length; i++) {
    const i64 from = i + p.steps;
    if (from < p.length) {
      state[i * step] = state[from * step];
    } else {
      assign(state[i * step], to_f32(x[(from - p.length) * p.x.stride[2]]));
    }
  }
}

// The filter of a channel, and the inputs that it remembers.
struct Filter {
  f32 weight[WIDTH], past[PAST], bias;

  DEVICE void load(const Params& p, i64 channel) {
#pragma unroll
    for (int k = 0; k < WIDTH; k++) weight[k] = to_f32(*at<WEIGHT>(p.weight, channel, k));
    bias = HAS_BIAS ? to_f32(*at<BIAS>(p.bias, channel)) : 0.f;
  }
  DEVICE f32 step(f32 input) {
    f32 sum = bias;
#pragma unroll
    for (int k = 0; k < PAST; k++) sum = __fmaf_rn(weight[k], past[k], sum);
    sum = __fmaf_rn(weight[PAST], input, sum);
#pragma unroll
    for (int k = 0; k + 1 < PAST; k++) past[k] = past[k + 1];
    past[PAST - 1] = input;
    return SILU ? silu(sum) : sum;
  }
};

// The tokens of a sequence, each of as many steps: what the slot that is read had before, and the inputs of its tokens.
struct Sequence {
  const STATE* before;   // null for zeros
  const X* x;            // of the first token
  i64 state_step, row_step, step;

  // the input so many steps behind the first one of the state before
  DEVICE f32 at_(const Params& p, i64 i) const {
    if (i < p.length) return before == nullptr ? 0.f : to_f32(before[i * state_step]);
    return to_f32(x[(i - p.length) / p.steps * row_step + (i - p.length) % p.steps * step]);
  }
  // leaves the state after so many tokens: forwards, so that what moves within a slot is read before it is overwritten
  DEVICE void leave(const Params& p, STATE* to, i64 tokens) const {
    for (i64 i = 0; i < p.length; i++) assign(to[i * state_step], at_(p, i + tokens * p.steps));
  }
};

DEVICE void walk(const Params& p, i64 row, i64 channel) {
  const Tokens tokens = tokens_of(p.slots, row);
  const i64 from = slot_read(p.slots, row);
  const Sequence own = {from < 0 ? nullptr : at<STATE>(p.state, from, channel), at<X>(p.x, tokens.first, channel),
                        p.state.stride[2], p.x.stride[0], p.x.stride[2]};
  if (tokens.first == tokens.end) {
    const i64 slot = slot_written(p.slots, row, tokens, tokens.first - 1);
    if (slot >= 0) own.leave(p, at<STATE>(p.state, slot, channel), 0);
    return;
  }
  Filter filter;
  filter.load(p, channel);
  i64 last = 0;   // the tokens after which the slot that is read is written over: at the end, when nothing reads it any more
  for (i64 token = tokens.first; token < tokens.end; token++) {
    const i64 seen = token - tokens.first;
    // remembered inputs have the precision of the state
#pragma unroll
    for (int k = 0; k < PAST; k++) {
      STATE stored;
      assign(stored, own.at_(p, p.length - PAST + k + seen * p.steps));
      filter.past[k] = to_f32(stored);
    }
    for (i64 t = 0; t < p.steps; t++) assign(*at<Y>(p.y, token, channel, t), filter.step(to_f32(*at<X>(p.x, token, channel, t))));
    const i64 slot = slot_written(p.slots, row, tokens, token);
    if (slot >= 0 && slot == from) last = seen + 1;
    if (slot >= 0 && slot != from) own.leave(p, at<STATE>(p.state, slot, channel), seen + 1);
  }
  if (last > 0) own.leave(p, at<STATE>(p.state, from, channel), last);
}

extern "C" __global__ void __launch_bounds__(THREADS) causal_conv1d_update(const __grid_constant__ Params p) {
  const i64 row = blockIdx.x / p.blocks_per_row;
  const i64 channel = i64(blockIdx.x % p.blocks_per_row) * THREADS + threadIdx.x;
  if (channel >= p.dim) return;
  if constexpr (SLOTTED) {
    walk(p, row, channel);
    return;
  }
  i64 slot = row;
  if constexpr (HAS_INDICES) slot = i64(*at<INDEX>(p.indices, row));
  Y* const y = at<Y>(p.y, row, channel);
  // indices are not checked on the host: what is no state is left alone
  if (slot < 0 || slot >= p.states) {
    for (i64 t = 0; t < p.steps; t++) assign(y[t * p.y.stride[2]], 0.f);
    return;
  }
  STATE* const state = at<STATE>(p.state, slot, channel);
  const X* const x = at<X>(p.x, row, channel);
  const i64 step = p.state.stride[2];
  i64 next = 0;            // where a circular buffer is written next
  if constexpr (CIRCULAR) {
    next = i64(*at<SEEN>(p.seen, row)) % p.length;
    if (next < 0) next += p.length;
  }
  Filter filter;
  filter.load(p, channel);
#pragma unroll
  for (int k = 0; k < PAST; k++) {
    i64 position = p.length - PAST + k;
    if constexpr (CIRCULAR) {
      position += next;
      if (position >= p.length) position -= p.length;
    }
    filter.past[k] = to_f32(state[position * step]);
  }
  for (i64 t = 0; t < p.steps; t++) {
    const f32 input = to_f32(x[t * p.x.stride[2]]);
    assign(y[t * p.y.stride[2]], filter.step(input));
    if constexpr (CIRCULAR) {
      assign(state[next * step], input);
      if (++next == p.length) next = 0;
    }
  }
  if constexpr (!CIRCULAR) move_state(p, state, x);
}
