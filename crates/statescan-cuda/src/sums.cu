// Sums of the terms that blocks or rows left in the workspace, in order: one job for each gradient. A job's terms are dense
// (outer, term, part, row, column), its sums (outer, row, column); a thread forms the sum of one element, or one of a few slices of it where
// elements are few.

template <typename E> DEVICE void assign_parts(E& to, f32 re, f32) { assign(to, re); }
DEVICE void assign_parts(complex64& to, f32 re, f32 im) { to = {re, im}; }
DEVICE void assign_parts(complex128& to, f32 re, f32 im) { to = {re, im}; }

template <typename E> DEVICE void sum(const Job& job) {
  constexpr int PARTS = PartsOf<E>::COUNT;
  __shared__ f32 of_slices[2][THREADS];
  const i64 size = job.rows * job.columns;
  const int abreast = THREADS / int(job.slices), slice = threadIdx.x / abreast;
  const i64 i = (blockIdx.x - job.first_block) * abreast + threadIdx.x % abreast;
  const bool exists = i < job.outer * size;
  const i64 outer = i / size, within = i % size;
  f32 sums[2] = {};
  if (exists) {
    const f32* from = job.terms + outer * job.count * PARTS * size + within;
    const i64 end = job.count * (slice + 1) / job.slices;
#pragma unroll 8
    for (i64 term = job.count * slice / job.slices; term < end; term++)
#pragma unroll
      for (int part = 0; part < PARTS; part++) sums[part] += from[(term * PARTS + part) * size];
  }
  if (job.slices > 1) {
    of_slices[0][threadIdx.x] = sums[0], of_slices[1][threadIdx.x] = sums[1];
    __syncthreads();
    for (int other = 1; other < job.slices; other++)
      if (slice == 0) sums[0] += of_slices[0][other * abreast + threadIdx.x], sums[1] += of_slices[1][other * abreast + threadIdx.x];
  }
  if (exists && slice == 0)
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
