// Gradients of chunks on Hopper, as in `backward_gradients.cu`, by blocks that go from one chunk of a head of keys to another. Slices of 64 columns come as
// tiles, two of them ahead, and each of four warpgroups has a part of the work for all keys:
//
//   m = X D^T     a = dy D^T     q += diag(since) dy S^T        then, with decays in a and m:     q += a K
//   r = X S^T     k += diag(until) D R^T                        r = m K - diag(since) r           k += a^T Q + (beta m)^T K + beta r
//   the gradients by v, gates and beta
//   loads, and <S, R>
//
// They meet at barriers alone: what one has left for another is there before that one needs it, and the first two are up to a slice apart.
#include "gradient_queries.cuh"
#include "gradient_keys.cuh"
#include "gradient_values.cuh"

static_assert(given<bool>(HAS_DBETA, NEEDS_KEYS));

// ---- a warpgroup that loads, and multiplies states with their gradients meanwhile

struct Loader : Role {
  using Role::Role;
  // The slice that is multiplied, one behind the one that is loaded, and its place among those of a head; products of heads.
  Turn<STAGES> taken;
  Turn<PLACES> of_head;
  int index = -1;
  f32 sum = 0.f;

  DEVICE void run() {
    each_chunk(
        [&](u32 i) {
          if (NEEDS_KEYS && threadIdx.x % 128 == 0) load_units(Work(p, i));
#pragma unroll 1
          for (int k = 0; k < GROUP * SLICES; k++) {
            load_slice(Work(p, hidden(i)), k / SLICES, k % SLICES);
            if (NEEDS_KEYS && index >= 0) take_states(); else index = 0;
          }
        },
        [](u32) {});
    if (NEEDS_KEYS && index >= 0) take_states();
  }
  DEVICE void take_states() {
    barrier_wait(own.full[taken.at], taken.phase);
    sum = multiply_states(shared + STAGES_AT + taken.at * STAGE_BYTES, sum);
    warp_arrive(own.empty[taken.at]);
    taken.next();
    if (++index < SLICES) return;
    sum = sum_of_warp(sum);
    if (lane == 0) own.of_states[of_head.at][warp] = sum;
    warp_arrive(own.sums_full[of_head.at]);
    of_head.next();
    index = 0, sum = 0.f;
  }
  DEVICE static f32 multiply_states(const char* from, f32 sum) {
    f32 more = 0.f;
#pragma unroll 2
    for (int i = threadIdx.x % 128; i < UNIT_BYTES / 16; i += 128) {
      const uint4 a = reinterpret_cast<const uint4*>(from + STATE_AT)[i], b = reinterpret_cast<const uint4*>(from + GRADIENT_AT)[i];
      const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 4; e++) sum = __fmaf_rn(low_bf16(x[e]), low_bf16(y[e]), sum), more = __fmaf_rn(high_bf16(x[e]), high_bf16(y[e]), more);
    }
    return sum + more;
  }
  DEVICE void load_units(const Work& w) const {
    const i64 units = w.of_keys(p) * UNIT_BYTES;
    Barrier& full = own.units_full[chunk.at];
    barrier_wait(own.units_free[chunk.at], chunk.phase ^ 1);
    barrier_arrive_expecting(full, CHUNK_BYTES);
    char* const to = shared + chunk.at * CHUNK_BYTES;
    bytes_load(to, static_cast<const char*>(p.k_units) + units, UNIT_BYTES, full);
    bytes_load(to + UNIT_BYTES, static_cast<const char*>(p.q_units) + units, UNIT_BYTES, full);
  }
  // 64 columns of the steps of a chunk, zeros behind its end.
  DEVICE static void load_steps(char* to, const Strided& from, const Work& w, i64 head, int column) {
    const int thread = threadIdx.x % 128, eight = thread % 8, first = thread / 8;
    const VALUE* line = at<VALUE>(from, w.chunk.batch, w.chunk.start + first, head, column + eight * 8);
#pragma unroll
    for (int step = 0; step < SPAN; step += 16) {
      const bool is_there = first + step < w.chunk.rows;
      copy_async_16_or_zero(to + (first + step) * 128 + (eight ^ first % 8) * 16, is_there ? line + step * from.stride[1] : from.data, is_there);
    }
  }
  DEVICE void load_slice(const Work& w, int member, int index) {
    const i64 unit = w.unit(p, member), tile = unit * SLICES + index;
    Barrier& full = own.full[slice.at];
    char* const to = stage();
    barrier_wait(own.empty[slice.at], slice.phase ^ 1);
    if (threadIdx.x % 128 == 0) {
      barrier_arrive_expecting(full, LOADED + (index == 0 ? TOKEN_BYTES : 0));
      const auto part = [&](void* from, int bytes) { return static_cast<const char*>(from) + tile * bytes; };
      if (index == 0) bytes_load(own.tokens[head.at], p.tokens + unit * (TOKEN_ROWS * SPAN), TOKEN_BYTES, full);
      bytes_load(to + X_AT, part(p.x, TILE), TILE, full), bytes_load(to + D_AT, part(p.d, TILE), TILE, full);
      bytes_load(to + STATE_AT, part(p.states, UNIT_BYTES), UNIT_BYTES, full), bytes_load(to + GRADIENT_AT, part(p.gradients, UNIT_BYTES), UNIT_BYTES, full);
    }
    load_steps(to + DY_AT, p.dy, w, w.head(member), index * 64);
    if constexpr (HAS_DBETA) load_steps(to + V_AT, p.v, w, w.head(member), index * 64);
    barrier_arrive_copied(full);
    slice.next();
    if (index == SLICES - 1) head.next();
  }
};

DEVICE void wait_for_walks() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

extern "C" __global__ void __launch_bounds__(THREADS, 1) gated_delta_rule_backward_gradients(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char dynamic[];
  char* const shared = dynamic + (ALIGNMENT - shared_address(dynamic) % ALIGNMENT) % ALIGNMENT;
  if (threadIdx.x == 0) {
    constexpr int READERS = (NEEDS_KEYS ? 16 : 4) * ARRIVALS;
    Shared& own = *reinterpret_cast<Shared*>(shared + SHARED_AT);
    for (int i = 0; i < STAGES; i++) barrier_init(own.full[i], 1 + 128), barrier_init(own.empty[i], READERS);
    for (int i = 0; i < 2; i++) barrier_init(own.units_full[i], 1), barrier_init(own.units_free[i], 8 * ARRIVALS);
    for (int i = 0; i < PLACES; i++) barrier_init(own.sums_full[i], 12 * ARRIVALS);
    barrier_init(own.pairs_full, 4 * ARRIVALS), barrier_init(own.pairs_free, 4 * ARRIVALS);
    barriers_are_ready();
  }
  __syncthreads();
  wait_for_walks();
  const int role = threadIdx.x / 128;
  if (role == 0) {
    registers_up<192>();
    if constexpr (NEEDS_KEYS) Queries(p, shared).run();
  } else if (role == 1) {
    registers_up<192>();
    if constexpr (NEEDS_KEYS) Keys(p, shared).run();
  } else if (role == 2) {
    registers_down<72>();
    Values(p, shared).run();
  } else {
    registers_down<56>();
    Loader(p, shared).run();
  }
}
