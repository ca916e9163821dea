// Linear scan, h[t] = a[t] h[t-1] + b[t], forwards, or backwards in time for a reversed scan and for gradients.
//
// A block has CHANNEL_LANES channels and walks their steps in tiles of TIME_LANES x ITEMS. A thread has ITEMS neighbouring steps of one
// channel in registers: it composes them to one step (decay, input), the threads of a channel exchange theirs, and each knows the state
// before its first step. The next tile is loaded before this one is computed. Bytes bind: each number is read once and written once.
// Neighbouring threads take neighbouring steps (BY_TIME) or neighbouring channels, whichever lies side by side in memory. Where rows of steps begin
// anywhere (RUNS), they are read and written as `runs.cuh` does.
//
// The gradient is the same scan backwards with each decay one step later: g[t] = p[t] + conj(a[t+1]) g[t+1]. Its decay at the last step is
// 1 and its first state the final state's cotangent; da[t] = g[t] conj(h[t-1]), db = g, and conj(a[0]) g[0] belongs to the initial state.
//
// Bits that do not depend on how time is cut (EXACT): a thread takes the steps of its channel one after another, as the formula says, and composes none.
//
// Few channels: time is cut into segments. A first launch (ENDS) composes each segment but the last to one step, a second one (REST) starts
// each from the state that follows from those before it. Where the last state may go to the slot of a pool that the first one is in, the first launch
// keeps that one behind the ends.
#include "runs.cuh"

typedef Choose<COMPLEX, complex64, f32>::type Field;

constexpr int THREADS = CHANNEL_LANES * TIME_LANES;
constexpr int TILE = TIME_LANES * ITEMS;
constexpr int PARTS = COMPLEX ? 2 : 1;
// lanes of a channel that lie in one warp, and the groups of them
constexpr int GROUP = BY_TIME ? (TIME_LANES < 32 ? TIME_LANES : 32) : 1;
constexpr int GROUPS = TIME_LANES / GROUP;

DEVICE f32 one(f32) { return 1.f; }
DEVICE complex64 one(complex64) { return {1.f, 0.f}; }
DEVICE f32 conj(f32 v) { return v; }
DEVICE complex64 conj(complex64 v) { return {v.re, -v.im}; }
DEVICE bool is_zero(f32 v) { return v == 0.f; }
DEVICE bool is_zero(complex64 v) { return v.re == 0.f && v.im == 0.f; }
DEVICE f32 shuffle_up(f32 v, int by) { return __shfl_up_sync(0xffffffffu, v, by, GROUP); }
DEVICE complex64 shuffle_up(complex64 v, int by) { return {shuffle_up(v.re, by), shuffle_up(v.im, by)}; }

// One or more steps: the state s becomes decay s + input.
struct Step {
  Field decay, input;

  // A product of many decays may leave the range of numbers; a state of zero stays what it is all the same.
  DEVICE Field apply(Field state) const { return is_zero(state) ? input : mul_add(decay, state, input); }
  DEVICE Step after(const Step& first) const { return {mul(decay, first.decay), apply(first.input)}; }
};

// The place of a row along the axes that rows have.
struct Row {
  u32 index[4];

  DEVICE Row(const Params& p, u32 row) {
#pragma unroll
    for (int axis = 3; axis > 0; axis--) {
      index[axis] = row % p.size[axis];
      row /= p.size[axis];
    }
    index[0] = row;
  }

  template <typename E> DEVICE E* of(const Timed& v) const { return static_cast<E*>(v.data) + place(index, v); }

  // Whether the units of 16 bytes that have a row's steps are memory of the tensor; strides are not negative then.
  template <typename E> DEVICE bool has_units(const Params& p, const Timed& v) const {
    const u32 last[4] = {p.size[0] - 1, p.size[1] - 1, p.size[2] - 1, p.size[3] - 1};
    const i64 before = place(index, v), after = place(last, v) - before;
    return min(before, after) >= 16 / int(sizeof(E));
  }

  static DEVICE i64 place(const u32 (&index)[4], const Timed& v) {
    return index[0] * v.row[0] + index[1] * v.row[1] + index[2] * v.row[2] + index[3] * v.row[3];
  }
};

// Steps around a thread's own that must exist, for units of 16 bytes to be read.
DEVICE int margin_of(const Params& p, const Row& row) {
  if constexpr (!RUNS) return 0;
  const bool has_h = !HAS_DA || row.has_units<H>(p, p.h);
  return row.has_units<A>(p, p.a) && (!HAS_B || row.has_units<B>(p, p.b)) && has_h ? 0 : ITEMS;
}

// The i-th of a thread's steps, of which the first in memory is `first`.
DEVICE i64 step_of(i64 first, int i) { return BACKWARDS ? first + ITEMS - 1 - i : first + i; }

// ITEMS steps from `first` on, in the order of the scan. All of them exist if WHOLE, as nearly always; then no branch keeps one load from
// being under way beside the others. Else what lies outside of the row is `otherwise`.
template <bool WHOLE, typename E, int VECTOR> DEVICE void load(Field (&out)[ITEMS], const E* row, i64 stride, i64 first, i64 seqlen, Field otherwise) {
  // the i-th in memory
  auto put = [&](int i, E v) { convert(out[BACKWARDS ? ITEMS - 1 - i : i], v); };
  if constexpr (WHOLE && RUNS) {
    Run<E, ITEMS> run;
    run.read(row + first);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) put(i, run.v[i]);
  } else if constexpr (WHOLE) {
#pragma unroll
    for (int i = 0; i < ITEMS; i += VECTOR) {
      const Neighbours<E, VECTOR> some = *reinterpret_cast<const Neighbours<E, VECTOR>*>(row + (first + i) * (VECTOR > 1 ? 1 : stride));
#pragma unroll
      for (int k = 0; k < VECTOR; k++) put(i + k, some.v[k]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const i64 step = first + i;
      out[BACKWARDS ? ITEMS - 1 - i : i] = otherwise;
      if (step >= 0 && step < seqlen) put(i, row[step * stride]);
    }
  }
}

// `margin`: steps around a thread's own that must exist as well.
DEVICE bool is_whole(i64 first, i64 seqlen, int margin) { return first >= margin && first + ITEMS + margin <= seqlen; }

// The steps that a thread writes: those from `first` on that lie in [0, end).
struct Out {
  i64 first, end;
  int lane;   // in its group
};

template <typename E, int VECTOR> DEVICE void store(const Field (&values)[ITEMS], E* row, i64 stride, const Out& to) {
  if constexpr (RUNS) {
    Run<E, ITEMS> run;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) assign(run.v[i], values[BACKWARDS ? ITEMS - 1 - i : i]);
    run.template write<GROUP, BACKWARDS>(row + to.first, to.lane, -to.first, to.end - to.first);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; i += VECTOR) {
      const i64 step = to.first + i;
      Neighbours<E, VECTOR> some;
#pragma unroll
      for (int k = 0; k < VECTOR; k++) assign(some.v[k], values[BACKWARDS ? ITEMS - 1 - i - k : i + k]);
      if (VECTOR > 1 && step >= 0 && step + VECTOR <= to.end) {
        write_at_once(row + step, some);
      } else {
#pragma unroll
        for (int k = 0; k < VECTOR; k++)
          if (step + k >= 0 && step + k < to.end) row[(step + k) * stride] = some.v[k];
      }
    }
  }
}

// The numbers that a thread needs of a tile.
struct Items {
  Field a[ITEMS], b[ITEMS];
};

// The first in memory of a thread's steps of a tile.
DEVICE i64 first_step(const Params& p, i64 tile, int time_lane) {
  const i64 lane = tile * TIME_LANES + time_lane;
  return ITEMS * (BACKWARDS ? (p.seqlen + ITEMS - 1) / ITEMS - 1 - lane : lane);
}

// One neighbour of a thread's steps: zero (or `otherwise`) outside of the row.
template <typename E> DEVICE Field neighbour(const E* row, i64 stride, i64 step, i64 seqlen, Field otherwise) {
  Field out = otherwise;
  if (step >= 0 && step < seqlen) convert(out, row[step * stride]);
  return out;
}

template <bool WHOLE> DEVICE void load_items(Items& items, const Params& p, const A* a, const B* b, i64 first) {
  if constexpr (HAS_B) {
    load<WHOLE, B, B_VECTOR>(items.b, b, p.b.step, first, p.seqlen, Field{});
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) items.b[i] = Field{};
  }
  load<WHOLE, A, A_VECTOR>(items.a, a, p.a.step, first, p.seqlen, one(Field{}));
  if constexpr (GRADIENT) {
    // each decay is that of the step before it in the order of the scan; outside of the row nothing changes
#pragma unroll
    for (int i = ITEMS - 1; i > 0; i--) items.a[i] = items.a[i - 1];
    items.a[0] = neighbour(a, p.a.step, BACKWARDS ? first + ITEMS : first - 1, p.seqlen, one(Field{}));
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      const i64 step = step_of(first, i);
      items.a[i] = WHOLE || (step >= 0 && step < p.seqlen) ? conj(items.a[i]) : one(Field{});
    }
  }
}

DEVICE void load_items(Items& items, const Params& p, const A* a, const B* b, i64 first, int margin) {
  if (is_whole(first, p.seqlen, margin))
    load_items<true>(items, p, a, b, first);
  else
    load_items<false>(items, p, a, b, first);
}

// The states before each of a thread's steps, in a gradient.
DEVICE void load_past(Field (&past)[ITEMS], const Params& p, const H* h, Field before, i64 first, int margin) {
  if (is_whole(first, p.seqlen, margin))
    load<true, H, H_VECTOR>(past, h, p.h.step, first, p.seqlen, Field{});
  else
    load<false, H, H_VECTOR>(past, h, p.h.step, first, p.seqlen, Field{});
  const Field next = neighbour(h, p.h.step, BACKWARDS ? first - 1 : first + ITEMS, p.seqlen, Field{});
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    past[i] = i + 1 < ITEMS ? past[i + 1] : next;
    if (step_of(first, i) == (BACKWARDS ? 0 : p.seqlen - 1)) past[i] = before;
  }
}

// The numbers that segments leave. They are read one by one, since memory of f32 need not be aligned for pairs.
struct End {
  f32* at;

  DEVICE Field read(int i) const {
    Field out;
    from_parts(out, at[PARTS * i], at[PARTS * i + PARTS - 1]);
    return out;
  }
  DEVICE void write(int i, Field v) const {
#pragma unroll
    for (int part = 0; part < PARTS; part++) at[PARTS * i + part] = part_of(v, part);
  }
};

DEVICE End end_of(const Params& p, i64 segment, i64 row) { return {p.ends + (segment * p.rows + row) * 2 * PARTS}; }

// A thread's place in its block's tile.
struct Lanes {
  int channel, time;
  DEVICE Lanes()
      : channel(BY_TIME ? threadIdx.x / TIME_LANES : threadIdx.x % CHANNEL_LANES),
        time(BY_TIME ? threadIdx.x % TIME_LANES : threadIdx.x / CHANNEL_LANES) {}
};

// A state, and the product of the decays that led to it, where somebody asks for that.
struct Carried {
  Field state = {}, product = one(Field{});
  template <bool WANTED> DEVICE void go(const Step& step) {
    state = step.apply(state);
    if constexpr (WANTED) product = mul(step.decay, product);
  }
};

// A number as a slot, or -1: numbers are not checked on the host, and whatever they are, nothing outside of the pool is touched.
template <typename E> DEVICE i64 slot_of(const Params& p, E number) { return i64(number) < p.slots ? max(i64(number), i64(-1)) : -1; }

// The state that a row starts from.
DEVICE Field initial_state(const Params& p, const Row& row) {
  Field state = {};
  if constexpr (POOLED) {
    const i64 slot = slot_of(p, *row.of<READ_SLOT>(p.read));
    if (slot >= 0) convert(state, row.of<INITIAL>(p.initial)[slot * p.slot_step]);
  } else if constexpr (HAS_INITIAL) {
    convert(state, *row.of<INITIAL>(p.initial));
  }
  return state;
}
// The place that it is kept at.
DEVICE End kept_state(const Params& p, i64 row_number) {
  const i64 tiles = (p.seqlen + TILE - 1) / TILE;
  return end_of(p, (tiles + p.segment_tiles - 1) / p.segment_tiles - 1, row_number);
}

// The state that a segment starts from.
DEVICE Carried entering(const Params& p, const Row& row, i64 row_number, i64 segment) {
  Carried carried;
  if constexpr (POOLED && PASS == Pass::Rest) carried.state = kept_state(p, row_number).read(0);
  else if constexpr (HAS_INITIAL && PASS != Pass::Ends) carried.state = initial_state(p, row);
  if constexpr (PASS == Pass::Rest) {
    for (i64 s = 0; s < segment; s++) {
      const End end = end_of(p, s, row_number);
      carried.go<HAS_DECAY>({end.read(0), end.read(1)});
    }
  }
  return carried;
}

// The steps of a tile before this lane's own in its group, as one; what the group's are together is left for the other groups.
DEVICE Step exchange_steps(const Items& items, const Lanes& lanes, Step (&exchange)[GROUPS][CHANNEL_LANES]) {
  Step all = {items.a[0], items.b[0]};
#pragma unroll
  for (int i = 1; i < ITEMS; i++) all = Step{items.a[i], items.b[i]}.after(all);
  // first the steps of this lane and of the lanes before it in the group, then those of the lanes before it
#pragma unroll
  for (int by = 1; by < GROUP; by *= 2) {
    const Step earlier = {shuffle_up(all.decay, by), shuffle_up(all.input, by)};
    if (lanes.time % GROUP >= by) all = all.after(earlier);
  }
  Step earlier = {one(Field{}), Field{}};
  if constexpr (GROUP > 1) {
    const Step shifted = {shuffle_up(all.decay, 1), shuffle_up(all.input, 1)};
    if (lanes.time % GROUP > 0) earlier = shifted;
  }
  if (lanes.time % GROUP == GROUP - 1) exchange[lanes.time / GROUP][lanes.channel] = all;
  return earlier;
}

// The rows of a scan's outputs; a gradient reads h.
struct Outputs {
  H* h;
  DA* da;
  DB* db;
};

// Walks through a thread's steps of a tile from the state before them, and returns the one behind them; `past` are the states before each, in a gradient.
DEVICE Field put(const Params& p, const Outputs& of, const Items& items, Field (&past)[ITEMS], Field state, const Out& to) {
  Field out[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    out[i] = mul_add(items.a[i], state, items.b[i]);
    // a step outside of the row, of a decay of 1, would leave neither zeros nor infinities as they are
    const i64 step = step_of(to.first, i);
    if (!EXACT || (step >= 0 && step < p.seqlen)) state = out[i];
  }
  if (!RUNS && to.end == 0) return state;
  if constexpr (HAS_H && !GRADIENT) store<H, H_VECTOR>(out, of.h, p.h.step, to);
  if constexpr (HAS_DB) store<DB, DB_VECTOR>(out, of.db, p.db.step, to);
  if constexpr (HAS_DA) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) past[i] = mul(out[i], conj(past[i]));
    store<DA, DA_VECTOR>(past, of.da, p.da.step, to);
  }
  return state;
}

// Walks through a tile whose steps are all this thread's.
DEVICE void take_steps(const Params& p, const Outputs& of, const Items& items, Field (&past)[ITEMS], Carried& carried, const Out& to) {
  carried.state = put(p, of, items, past, carried.state, to);
  if constexpr (HAS_DECAY) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) carried.product = mul(items.a[i], carried.product);
  }
}

// The final state of a row, and the product of its decays.
DEVICE void leave(const Params& p, const Row& row, const A* a, Carried& carried) {
  if constexpr (GRADIENT) {
    if (p.seqlen > 0) {
      Field decay;
      convert(decay, a[(BACKWARDS ? 0 : p.seqlen - 1) * p.a.step]);
      carried.state = mul(conj(decay), carried.state);
    }
  }
  if constexpr (POOLED) {
    const i64 slot = slot_of(p, *row.of<WRITE_SLOT>(p.write));
    if (slot >= 0) assign(row.of<LAST>(p.last)[slot * p.slot_step], carried.state);
  } else if constexpr (HAS_LAST) {
    assign(*row.of<LAST>(p.last), carried.state);
  }
  if constexpr (HAS_DECAY) assign(*row.of<DECAY>(p.decay), carried.product);
}

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS) linear_scan(const __grid_constant__ Params p) {
  __shared__ Step totals[2][GROUPS][CHANNEL_LANES];
  const Lanes lanes;
  const u32 own_row = blockIdx.x % p.row_blocks * CHANNEL_LANES + lanes.channel, row_number = min(own_row, p.rows - 1);
  const bool exists = own_row < p.rows;
  const Row row(p, row_number);
  const i64 segment = PASS == Pass::Whole ? 0 : blockIdx.x / p.row_blocks;
  const i64 tiles = (p.seqlen + TILE - 1) / TILE;
  const i64 first_tile = PASS == Pass::Whole ? 0 : segment * p.segment_tiles;
  const i64 last_tile = PASS == Pass::Whole ? tiles : min(tiles, first_tile + p.segment_tiles);

  const A* const a = row.of<A>(p.a);
  const B* const b = row.of<B>(p.b);
  const Outputs outputs = {row.of<H>(p.h), row.of<DA>(p.da), row.of<DB>(p.db)};
  Carried carried = entering(p, row, row_number, segment);
  Field before = {};
  if constexpr (HAS_BEFORE) convert(before, *row.of<BEFORE>(p.before));

  const int margin = margin_of(p, row);
  Items items, next;
  if (first_tile < last_tile) load_items(items, p, a, b, first_step(p, first_tile, lanes.time), margin);
#pragma unroll 1
  for (i64 tile = first_tile; tile < last_tile; tile++) {
    const i64 first = first_step(p, tile, lanes.time);
    if (tile + 1 < last_tile) load_items(next, p, a, b, first_step(p, tile + 1, lanes.time), margin);
    Field past[ITEMS];
    if constexpr (HAS_DA && PASS != Pass::Ends) load_past(past, p, outputs.h, before, first, margin);

    const Out to = {first, exists ? p.seqlen : 0, lanes.time % GROUP};
    if constexpr (EXACT) {
      take_steps(p, outputs, items, past, carried, to);
    } else {
      Step(&exchange)[GROUPS][CHANNEL_LANES] = totals[tile & 1];
      const Step earlier = exchange_steps(items, lanes, exchange);
      __syncthreads();
      // the state before this lane's group; the carried one goes through the steps of all groups. Written here: as a function of its own it costs 2 %
      Field state = carried.state;
#pragma unroll
      for (int group = 0; group < GROUPS; group++) {
        if (group == lanes.time / GROUP) state = carried.state;
        const Step step = exchange[group][lanes.channel];
        carried.state = step.apply(carried.state);
        if constexpr (HAS_DECAY || PASS == Pass::Ends) carried.product = mul(step.decay, carried.product);
      }
      if constexpr (PASS != Pass::Ends) put(p, outputs, items, past, earlier.apply(state), to);
    }
    items = next;
  }

  if (lanes.time != 0 || !exists) return;
  if constexpr (PASS == Pass::Ends) {
    const End end = end_of(p, segment, row_number);
    end.write(0, carried.product), end.write(1, carried.state);
    if (POOLED && segment == 0) kept_state(p, row_number).write(0, initial_state(p, row));
  } else if (PASS == Pass::Whole || last_tile == tiles) {
    leave(p, row, a, carried);
  }
}
