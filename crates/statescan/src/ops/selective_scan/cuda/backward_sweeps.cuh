// The backward pass: sweeps over a tile, forwards and back.
#pragma once
#include "backward_states.cuh"

DEVICE void read_steps(const Thread& t, int plane, int k, int step, f32 (&out)[SPAN]) {
#pragma unroll
  for (int j = 0; j < SPAN; j += 4) read_plane(t.shared, plane, t.own_channel(k), step + j, out + j);
}
DEVICE void read_states(const Thread& t, int map_at, int step, int r, Field (&out)[SPAN]) {
#pragma unroll
  for (int j = 0; j < SPAN; j += 4) read_map(t.shared + map_at, step + j, own_state(r), out + j);
}

// The steps that decays take and those that gains take, which are the same ones unless decays have their own.
struct Steps { f32 decay[SPAN], gain[SPAN]; };
DEVICE void read_both_steps(const Thread& t, int k, int step, Steps& d) {
  read_steps(t, HAS_DT_A ? PLANE_DT_A : PLANE_STEP, k, step, d.decay);
  read_steps(t, PLANE_STEP, k, step, d.gain);
}

// ---- forwards

// From the states before a tile to those before each of its spans, and before the next tile; at the turn the last span is left to the way back.
DEVICE void forwards(const Thread& t, const States& s, int tile, bool turn) {
  const int piece = tile % PIECES;
  Owned h;
  each_owned([&](int k, int r) { h[k][r] = t.saved_state(piece, 0, k, r); });
#pragma unroll 1
  for (int span = 0; span < SPANS; span++) {
    const int step = span * SPAN;
    if (turn && span == SPANS - 1) return;
    Steps d[WIDTH];
    f32 u[WIDTH][SPAN];
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
      read_both_steps(t, k, step, d[k]);
      read_steps(t, PLANE_INPUT, k, step, u[k]);
    }
    Field b[STATES][SPAN];
#pragma unroll
    for (int r = 0; r < STATES; r++)
      if constexpr (B_VARIES) read_states(t, B_MAP_AT, step, r, b[r]);
#pragma unroll
    for (int j = 0; j < SPAN; j++)
      each_owned([&](int k, int r) {
        if (t.changed(step + j)) h[k][r] = t.first_state(i64(tile) * STEPS + step + j, k, r);
        const Field in = Method::amplify(s.a[k][r], d[k].gain[j], scale(B_VARIES ? b[r][j] : s.b[k][r], u[k][j]));
        h[k][r] = mul_add(Method::decay(s.a[k][r], d[k].decay[j]), h[k][r], in);
      });
    // before the next span, of this tile or the next one
    each_owned([&](int k, int r) { t.saved_state(piece, span + 1, k, r) = h[k][r]; });
  }
}

// ---- carry

// The gradient of the state alone, for the first pass over segments.
DEVICE void carry(const Thread& t, States& s, f32 (&steps_in_all)[WIDTH]) {
#pragma unroll 1
  for (int span = SPANS - 1; span >= 0; span--) {
    const int step = span * SPAN;
#pragma unroll
    for (int k = 0; k < WIDTH; k++) {
      f32 d[SPAN], q[SPAN];
      read_steps(t, HAS_DT_A ? PLANE_DT_A : PLANE_STEP, k, step, d);
      read_steps(t, PLANE_COTANGENT, k, step, q);
#pragma unroll
      for (int j = 0; j < SPAN; j++) steps_in_all[k] += d[j];
#pragma unroll
      for (int r = 0; r < STATES; r++) {
        Field c[SPAN];
        if constexpr (C_VARIES) read_states(t, C_MAP_AT, step, r, c);
#pragma unroll
        for (int j = SPAN - 1; j >= 0; j--)
          s.g[k][r] = mul(Method::decay(s.a[k][r], d[j]), scaled_conj_add(C_VARIES ? c[j] : s.c[k][r], q[j], s.g[k][r]));
      }
    }
  }
}

// ---- backwards

// The place of a thread on the way back: the channel k and the state r in a span, which begins at `step` of its tile.
struct Where {
  int piece, span, step;
  i64 first_step;
  int k, r;
};

// The numbers of a channel in a span.
struct ChannelSpan {
  Steps d;
  f32 u[SPAN], q[SPAN];
};

// The numbers of a state in a span, which are computed again: decays, and states before and after each step.
struct StateSpan { Field b[SPAN], c[SPAN], decay[SPAN], before[SPAN], after[SPAN]; };

// One state of a channel in a span; `db` and `dc` are gradients of varying maps.
struct StateSweep {
  const Thread& t;
  States& s;
  ChannelSpan& x;
  StateSpan& v;
  f32 (&sums)[SUMS * SPAN];
  Field (&db)[STATES][SPAN], (&dc)[STATES][SPAN];
  const Where& at;

  DEVICE f32& sum(int which, int j) const { return sums[which * SPAN + j]; }

  DEVICE void compute_again() const {
    const int k = at.k, r = at.r;
    if constexpr (B_VARIES) read_states(t, B_MAP_AT, at.step, r, v.b);
    if constexpr (C_VARIES) read_states(t, C_MAP_AT, at.step, r, v.c);
    Field state = t.saved_state(at.piece, at.span, k, r);
#pragma unroll
    for (int j = 0; j < SPAN; j++) {
      if (t.changed(at.step + j)) state = t.first_state(at.first_step + j, k, r);
      if constexpr (!B_VARIES) v.b[j] = s.b[k][r];
      if constexpr (!C_VARIES) v.c[j] = s.c[k][r];
      v.before[j] = state;
      v.decay[j] = Method::decay(s.a[k][r], x.d.decay[j]);
      state = mul_add(v.decay[j], state, Method::amplify(s.a[k][r], x.d.gain[j], scale(v.b[j], x.u[j])));
      v.after[j] = state;
    }
  }

  // carries the gradient of the state back over a step, and adds what the step gives to sums
  DEVICE void step_back(int j, Field unit_a) const {
    const Field a = s.a[at.k][at.r];
    Field &carried = s.g[at.k][at.r], &da = s.da[at.k][at.r];
    const Field grad = scaled_conj_add(v.c[j], x.q[j], carried);
    carried = mul_conj(grad, v.decay[j]);
    // by the exponent of the decay
    const Field by_exponent = mul_conj(Method::DECAY_IS_EXP ? carried : mul_conj(grad, Method::decay_slope(a, x.d.decay[j])), v.before[j]);
    sum(SUM_DECAY, j) = re_mul_conj_add(by_exponent, unit_a, sum(SUM_DECAY, j));
    if constexpr (HAS_DA) da = scaled_add(by_exponent, x.d.decay[j], da);
    Field by_input = grad;   // by u B
    if constexpr (Method::GAIN) {
      const Field by_b = mul_conj(grad, v.b[j]);
      by_input = mul_conj(grad, Method::gain(a, x.d.gain[j]));
      sum(SUM_STEP, j) = re_mul_conj_add(by_b, Method::input_by_step(a, x.d.gain[j]), sum(SUM_STEP, j));
      if constexpr (HAS_DA) da = scaled_add(mul_conj(by_b, Method::input_by_a(a, x.d.gain[j])), x.u[j], da);
    }
    sum(SUM_INPUT, j) = re_mul_conj_add(by_input, v.b[j], sum(SUM_INPUT, j));
    if constexpr (HAS_DZ) sum(SUM_OUTPUT, j) = re_mul_add(v.c[j], v.after[j], sum(SUM_OUTPUT, j));
    add_to_maps(j, by_input);
    if (t.changed(at.step + j)) change_sequence(at.first_step + j);
  }

  DEVICE void add_to_maps(int j, Field by_input) const {
    if constexpr (HAS_DB) {
      Field& to = B_VARIES ? db[at.r][j] : s.db[at.k][at.r];
      to = scaled_add(by_input, x.u[j], to);
    }
    if constexpr (HAS_DC) {
      Field& to = C_VARIES ? dc[at.r][j] : s.dc[at.k][at.r];
      to = scaled_conj_add(v.after[j], x.q[j], to);
    }
  }

  // from the first step of a sequence to the last one of the sequence before it
  DEVICE void change_sequence(i64 step) const {
    Field& carried = s.g[at.k][at.r];
    if constexpr (NUMBERED) t.begin_sequence(t.sequence_at(step), at.k, at.r, carried);
    carried = NUMBERED ? t.final_gradient_of(t.sequence_at(step - 1), at.k, at.r) : Field{};
  }
};

// One channel in a span. Sums over the slots begin once the last channel is done with a state.
DEVICE void channel_back(const Thread& t, States& s, Field (&db)[STATES][SPAN], Field (&dc)[STATES][SPAN], Where at) {
  ChannelSpan x;
  f32 sums[SUMS * SPAN] = {};
  read_both_steps(t, at.k, at.step, x.d);
  read_steps(t, PLANE_INPUT, at.k, at.step, x.u);
  read_steps(t, PLANE_COTANGENT, at.k, at.step, x.q);
#pragma unroll
  for (int r = 0; r < STATES; r++) {
    at.r = r;
    StateSpan v;
    const StateSweep sweep{t, s, x, v, sums, db, dc, at};
    const Field unit_a = Method::in_units(s.a[at.k][r]);
    sweep.compute_again();
#pragma unroll
    for (int j = SPAN - 1; j >= 0; j--) sweep.step_back(j, unit_a);
    if (at.k < WIDTH - 1) continue;
    if constexpr (B_VARIES && HAS_DB) sum_slots(db, r);
    if constexpr (C_VARIES && HAS_DC) sum_slots(dc, r);
  }
  sum_lanes(t.shared, sums, t.own_channel(at.k), at.span);
}

// Through a tile; gradients of varying maps go to the warp's place in shared memory.
DEVICE void backwards(const Thread& t, States& s, int tile, char* summed) {
  const int piece = tile % PIECES;
#pragma unroll 1
  for (int span = SPANS - 1; span >= 0; span--) {
    const int step = span * SPAN;
    const i64 first_step = i64(tile) * STEPS + step;
    Field db[STATES][SPAN] = {}, dc[STATES][SPAN] = {};
#pragma unroll
    for (int k = 0; k < WIDTH; k++) channel_back(t, s, db, dc, Where{piece, span, step, first_step, k, 0});
    if constexpr (B_VARIES && HAS_DB) finish_slots(reinterpret_cast<f32*>(summed), db, span);
    if constexpr (C_VARIES && HAS_DC) finish_slots(reinterpret_cast<f32*>(summed + C_SUMMED), dc, span);
  }
}
