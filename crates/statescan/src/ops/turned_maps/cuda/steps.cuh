// What adds up over the steps of a head. A block has a head of a row, each of its warps equal parts of its steps, and each lane an angle, or several
// that are 32 apart: a warp adds up its part, and then goes through it once more from the sum of the parts before.
#pragma once

static_assert(given<int>(ANGLES, WARPS) && given_types<RATE, DT>());

struct Part {
  i64 batch, head, first, end;

  DEVICE explicit Part(const Shape& p) : batch(blockIdx.x / p.heads), head(blockIdx.x % p.heads) {
    const i64 each = (p.steps + WARPS - 1) / WARPS;
    first = min(p.steps, threadIdx.x / 32 * each), end = min(p.steps, first + each);
  }
  DEVICE static int angle(int k) { return k * 32 + int(threadIdx.x) % 32; }
  DEVICE i64 place(const Shape& p, i64 step, int k) const { return ((batch * p.steps + step) * p.heads + head) * p.angles + angle(k); }
  DEVICE f32 dt(const StepParams& p, i64 step) const { return to_f32(*at<DT>(p.dt, batch, step, head)); }
  DEVICE f32 rate(const StepParams& p, i64 step, int k) const {
    return angle(k) < p.shape.angles ? tanhf(to_f32(*at<RATE>(p.rate, batch, step, head, angle(k)))) : 0.f;
  }
};

// Sums of the parts before this warp's, or of those behind it, of which each warp has one.
template <bool BEFORE> DEVICE void others(f64 (&sum)[ANGLES]) {
  __shared__ f64 parts[WARPS][ANGLES][32];
  const int own = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < ANGLES; k++) parts[own][k][lane] = sum[k], sum[k] = 0.;
  __syncthreads();
  for (int i = 0; i < (BEFORE ? own : WARPS - 1 - own); i++)
#pragma unroll
    for (int k = 0; k < ANGLES; k++) sum[k] += parts[BEFORE ? i : WARPS - 1 - i][k][lane];
}
