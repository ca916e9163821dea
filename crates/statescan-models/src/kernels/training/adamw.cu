// A step of AdamW (Loshchilov and Hutter, 2019, algorithm 2) for the numbers of all weights, and what the model computes with in their places: the number
// itself in another type, one more, or a decay of which it is the logarithm. Without a step only the latter. A block has a part of one weight.

// The form of an entry, as adamw.rs puts it there: the type that the model computes with, and flags.
enum Bits : i64 { TYPE = 3, NO_TYPE = 0, OF_BF16 = 2, OF_F16 = 3, DECAYING = 4, ALIGNED = 8, SHRINKING = 16, ONE_PLUS = 32 };

// Four numbers, or as many as are left.
struct Some {
  f32 v[4];
};

DEVICE Some load(const f32* from, bool whole, int count) {
  Some some;
  if (whole) {
    const Neighbours<f32, 4> four = *reinterpret_cast<const Neighbours<f32, 4>*>(from);
    for (int j = 0; j < 4; j++) some.v[j] = four.v[j];
  } else {
    for (int j = 0; j < 4; j++) some.v[j] = j < count ? from[j] : 0.f;
  }
  return some;
}

template <typename E> DEVICE void store(E* to, const Some& some, bool whole, int count) {
  Neighbours<E, 4> four;
#pragma unroll
  for (int j = 0; j < 4; j++) assign(four.v[j], some.v[j]);
  if (whole) {
    write_at_once<E, 4>(to, four);
  } else {
    for (int j = 0; j < 4; j++)
      if (j < count) to[j] = four.v[j];
  }
}

DEVICE void use(const Entry& e, i64 at, Some some, bool whole, int count) {
  const i64 type = e.form & TYPE;
  if (type == NO_TYPE) return;
  if (e.form & DECAYING)
    for (int j = 0; j < 4; j++) some.v[j] = -expf(some.v[j]);
  if (e.form & ONE_PLUS)
    for (int j = 0; j < 4; j++) some.v[j] += 1.f;
  if (type == OF_BF16)
    store(static_cast<bf16*>(e.used) + at, some, whole, count);
  else if (type == OF_F16)
    store(static_cast<f16*>(e.used) + at, some, whole, count);
  else
    store(static_cast<f32*>(e.used) + at, some, whole, count);
}

extern "C" __global__ void __launch_bounds__(THREADS) adamw(const __grid_constant__ Params p) {
  const Entry e = p.entries[p.owners[blockIdx.x]];
  const i64 begin = (blockIdx.x - e.first_block) * PART, end = min(e.count, begin + PART);
  const bool aligned = e.form & ALIGNED;
  const f32 keep = e.form & SHRINKING ? p.shrinking : 1.f, factor = MOVES ? *p.factor : 1.f;
#pragma unroll 2
  for (i64 i = begin + 4 * threadIdx.x; i < end; i += 4 * THREADS) {
    const int count = int(min(end - i, i64(4)));
    const bool whole = aligned && count == 4;
    Some weight = load(e.weight + i, whole, count);
    if constexpr (MOVES) {
      const Some gradient = load(e.gradient + i, whole, count);
      Some first = load(e.first + i, whole, count), second = load(e.second + i, whole, count);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const f32 g = gradient.v[j] * factor;
        first.v[j] = __fmaf_rn(p.beta1, first.v[j], (1.f - p.beta1) * g);
        second.v[j] = __fmaf_rn(p.beta2, second.v[j], (1.f - p.beta2) * g * g);
        const f32 change = p.rate * (first.v[j] * p.correct_first) / (sqrtf(second.v[j] * p.correct_second) + p.eps);
        weight.v[j] = __fmaf_rn(weight.v[j], keep, -change);
      }
      store(e.first + i, first, whole, count);
      store(e.second + i, second, whole, count);
      store(e.weight + i, weight, whole, count);
    }
    use(e, i, weight, whole, count);
  }
}
