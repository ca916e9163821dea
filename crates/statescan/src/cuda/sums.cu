// Sums of the terms that blocks or rows left in the workspace, in order: one job for each gradient. A job's terms are dense
// (outer, term, part, row, column), its sums (outer, row, column); a thread forms the sum of one element.

template <typename E> DEVICE void assign_parts(E& to, f32 re, f32) { assign(to, re); }
DEVICE void assign_parts(complex64& to, f32 re, f32 im) { to = {re, im}; }
DEVICE void assign_parts(complex128& to, f32 re, f32 im) { to = {re, im}; }

template <typename E> DEVICE void sum(const Job& job) {
  constexpr int PARTS = PartsOf<E>::COUNT;
  const i64 size = job.rows * job.columns;
  const i64 i = (blockIdx.x - job.first_block) * THREADS + threadIdx.x;
  if (i >= job.outer * size) return;
  const i64 outer = i / size, within = i % size;
  const f32* from = job.terms + outer * job.count * PARTS * size + within;
  f32 sums[2] = {};
#pragma unroll 8
  for (i64 term = 0; term < job.count; term++)
#pragma unroll
    for (int part = 0; part < PARTS; part++) sums[part] += from[(term * PARTS + part) * size];
  assign_parts(*at<E>(job.to, outer / job.inner, outer % job.inner, within / job.columns, within % job.columns), sums[0], sums[1]);
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_terms(const __grid_constant__ Params p) {
  const i64 block = blockIdx.x;
  if (block >= p.jobs[4].first_block)
    sum<SUM_4>(p.jobs[4]);
  else if (block >= p.jobs[3].first_block)
    sum<SUM_3>(p.jobs[3]);
  else if (block >= p.jobs[2].first_block)
    sum<SUM_2>(p.jobs[2]);
  else if (block >= p.jobs[1].first_block)
    sum<SUM_1>(p.jobs[1]);
  else
    sum<SUM_0>(p.jobs[0]);
}
