// Hopper (sm_90a) has this beyond mma.cuh: barriers that count bytes, tiles copied by the tensor memory accelerator, products of a warpgroup,
// clusters of blocks.
#pragma once

// ---- barriers in shared memory

struct Barrier { u64 state; };

// for so many arrivals; afterwards one thread calls `barriers_are_ready`, and all meet
DEVICE void barrier_init(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// before its memory becomes another barrier
DEVICE void barrier_end(Barrier& barrier) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory"); }
DEVICE void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// arrives, and the phase ends no sooner than so many bytes have come
DEVICE void barrier_arrive_expecting(Barrier& barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// waits for the end of a phase; phases are 0, 1, 0, ..
DEVICE void barrier_wait(Barrier& barrier, u32 phase) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(shared_address(&barrier)), "r"(phase) : "memory");
  } while (!done);
}

// A place in a ring, and the phase of its barriers.
template <int COUNT> struct Turn {
  int at = 0;
  u32 phase = 0;
  DEVICE void next() {
    if (++at == COUNT) at = 0, phase ^= 1;
  }
};

// Arrivals of a warp: one thread's, after all of them have met. `racecheck` does not see that they met, and reports what the others have written;
// with 32 it reports nothing.
constexpr int ARRIVALS = 1;
DEVICE void warp_arrive(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 < ARRIVALS) barrier_arrive(barrier);
}

// ---- tiles: `at` is the first element of a tile along each axis, the innermost axis first

struct TensorMap;   // declared among the parameters of kernels that take one

// A map in device memory is changed: its tensor's given axis ends elsewhere. Threads that use it afterwards call `tensor_map_acquire` first.
template <int AXIS> DEVICE void tensor_map_end(TensorMap& map, u32 end) {
  asm volatile("tensormap.replace.tile.global_dim.b1024.b32 [%0], %1, %2;" ::"l"(&map), "n"(AXIS), "r"(end) : "memory");
  // the copy engine has its own view of maps
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}
DEVICE void tensor_map_acquire(const TensorMap& map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(&map) : "memory");
}

// Starts to copy a tile to shared memory, at a multiple of 128 bytes (of 1024 where it is swizzled by 128); its bytes count at the barrier.
template <int RANK> DEVICE void tile_load(void* to, const TensorMap& map, Barrier& barrier, const int (&at)[RANK]) {
  const u32 shared = shared_address(to), counter = shared_address(&barrier);
  static_assert(RANK >= 1 && RANK <= 5, "tensor maps have up to five axes");
  if constexpr (RANK == 1)
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(counter), "r"(at[0]) : "memory");
  if constexpr (RANK == 2)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(counter), "r"(at[0]), "r"(at[1]) : "memory");
  if constexpr (RANK == 3)
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(counter), "r"(at[0]), "r"(at[1]), "r"(at[2]) : "memory");
  if constexpr (RANK == 4)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(counter), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]) : "memory");
  if constexpr (RANK == 5)
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
                 ::"r"(shared), "l"(&map), "r"(counter), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]) : "memory");
}

// Arrives when the copies that this thread has started by `copy_async_16` have come.
DEVICE void barrier_arrive_copied(Barrier& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Makes what this thread wrote to shared memory visible to copies and products that start later.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts to copy so many bytes, a multiple of 16 from and to multiples of 16; those that come to shared memory count at the barrier.
DEVICE void bytes_load(void* to, const void* from, u32 bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
}
// commits and waits for it are those of tiles
DEVICE void bytes_store(void* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}

// Starts to copy a tile from shared memory; elements outside of the tensor are left out.
// lines of the tensor must be whole 16 bytes: behind the end of others zeros are written up to the next 16
template <int RANK> DEVICE void tile_store(const TensorMap& map, const void* from, const int (&at)[RANK]) {
  const u32 shared = shared_address(from);
  static_assert(RANK >= 1 && RANK <= 5, "tensor maps have up to five axes");
  if constexpr (RANK == 1)
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map), "r"(shared), "r"(at[0]) : "memory");
  if constexpr (RANK == 2)
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(shared), "r"(at[0]), "r"(at[1]) : "memory");
  if constexpr (RANK == 3)
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(shared), "r"(at[0]), "r"(at[1]), "r"(at[2]) : "memory");
  if constexpr (RANK == 4)
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(shared), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]) : "memory");
  if constexpr (RANK == 5)
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map), "r"(shared), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]) : "memory");
}
DEVICE void tile_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// until shared memory of all stores but the last LEFT ones that were committed may be written again
template <int LEFT = 0> DEVICE void tile_store_wait() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory"); }
// until all of them are in memory
DEVICE void tile_store_finish() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Writes four matrices of 8 lines x 16 bytes as `load_matrices` reads them.
template <bool TRANSPOSED> DEVICE void store_matrices(void* line, const u32 (&v)[4]) {
  if constexpr (TRANSPOSED)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(line)), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(line)), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// The place in a tile of a thread's part of a fragment of 16 lines x 16 columns, in bytes; the k-th fragment along the lines is at `^ 32 k`.
// Lines are those of the thread's warp.
DEVICE int lines_at() {
  const int lane = threadIdx.x % 32;
  return (threadIdx.x % 128 / 32 * 16 + lane % 16) * 128 + ((lane / 16) ^ lane % 8) * 16;
}
// The place of a transposed fragment; the k-th one down the lines is at `+ 2048 k`: columns are those of the thread's warp.
DEVICE int columns_at() {
  const int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8, unit = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
  return line * 128 + (unit ^ lane % 8) * 16;
}

// two numbers of a register
DEVICE f32 low_bf16(u32 two) { return __uint_as_float(two << 16); }
DEVICE f32 high_bf16(u32 two) { return __uint_as_float(two & 0xffff0000u); }

// ---- registers: a warpgroup hands some on, another one takes them; COUNT is what a thread has afterwards, a multiple of 8

template <int COUNT> DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// ---- products of a warpgroup: d += a b, 64 x N x 16 of bf16

// An operand lies in lines of 128 bytes, swizzled by 128. From 8 lines to the next 8 there are 1024 bytes; `apart` are the bytes from 64
// columns to the next 64 of an operand whose lines are rows of 16 or more (TRANSPOSED), and anything else otherwise.
DEVICE u64 operand(const void* tile, u32 apart = 16) {
  const u64 start = (shared_address(tile) & 0x3ffff) >> 4;
  return start | u64(apart >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// The operand that begins so many bytes further on.
DEVICE u64 further(u64 from, u32 bytes) { return (from & ~u64(0xffffffff)) | u32(u32(from) + (bytes >> 4)); }

// before the first product, and wherever a thread has written to registers of products
DEVICE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// all products but those of the last LEFT groups that were committed
template <int LEFT = 0> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
// keeps the use of sums behind the wait for them
template <int COUNT> DEVICE void pin(f32 (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
// Keeps factors in their registers until products have been waited for, one sum of which is given. The assembler takes registers of factors for
// free once a product has been issued, and others would be written there before it has read them: so their bits are used, in vain.
template <int COUNT> DEVICE void keep(const FragmentA (&factors)[COUNT], f32 sum) {
  u32 bits = __float_as_uint(sum);
#pragma unroll
  for (int i = 0; i < COUNT; i++) bits ^= factors[i].v[0] ^ factors[i].v[1], bits ^= factors[i].v[2] ^ factors[i].v[3];
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(bits) : "memory");
}

// This keeps factors without a chain of instructions: stores that never happen use the factors, at a place in shared memory.
template <int COUNT> DEVICE void hold(const FragmentA (&factors)[COUNT], bool never, const void* shared) {
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.v4.b32 [%1], {%2, %3, %4, %5}; }"
                 ::"r"(u32(never)), "r"(shared_address(shared)), "r"(factors[i].v[0]), "r"(factors[i].v[1]), "r"(factors[i].v[2]), "r"(factors[i].v[3]) : "memory");
}

// Sums of a warpgroup, N columns: each warp has 16 rows, in the order of FragmentC for each 8 columns. With `add` they go on from what is there already.
template <int N> struct Sums { f32 v[N / 2]; };

// A from shared memory, or as the fragments of the four warps. B has lines of columns, or of rows (TRANSPOSED), and A in shared memory lines of rows, or of
// columns (A_TRANSPOSED).
template <bool TRANSPOSED> DEVICE void multiply(Sums<64>& d, const FragmentA& a, u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
      : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]), "+f"(d.v[4]), "+f"(d.v[5]), "+f"(d.v[6]), "+f"(d.v[7]),
        "+f"(d.v[8]), "+f"(d.v[9]), "+f"(d.v[10]), "+f"(d.v[11]), "+f"(d.v[12]), "+f"(d.v[13]), "+f"(d.v[14]), "+f"(d.v[15]),
        "+f"(d.v[16]), "+f"(d.v[17]), "+f"(d.v[18]), "+f"(d.v[19]), "+f"(d.v[20]), "+f"(d.v[21]), "+f"(d.v[22]), "+f"(d.v[23]),
        "+f"(d.v[24]), "+f"(d.v[25]), "+f"(d.v[26]), "+f"(d.v[27]), "+f"(d.v[28]), "+f"(d.v[29]), "+f"(d.v[30]), "+f"(d.v[31])
      : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)));
}

template <bool TRANSPOSED, bool A_TRANSPOSED = false> DEVICE void multiply(Sums<64>& d, const u64& a, u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, %32, %33, p, 1, 1, %36, %35; }"
      : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]), "+f"(d.v[4]), "+f"(d.v[5]), "+f"(d.v[6]), "+f"(d.v[7]),
        "+f"(d.v[8]), "+f"(d.v[9]), "+f"(d.v[10]), "+f"(d.v[11]), "+f"(d.v[12]), "+f"(d.v[13]), "+f"(d.v[14]), "+f"(d.v[15]),
        "+f"(d.v[16]), "+f"(d.v[17]), "+f"(d.v[18]), "+f"(d.v[19]), "+f"(d.v[20]), "+f"(d.v[21]), "+f"(d.v[22]), "+f"(d.v[23]),
        "+f"(d.v[24]), "+f"(d.v[25]), "+f"(d.v[26]), "+f"(d.v[27]), "+f"(d.v[28]), "+f"(d.v[29]), "+f"(d.v[30]), "+f"(d.v[31])
      : "l"(a), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)), "n"(int(A_TRANSPOSED)));
}

template <bool TRANSPOSED> DEVICE void multiply(Sums<128>& d, const FragmentA& a, u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
      : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]), "+f"(d.v[4]), "+f"(d.v[5]), "+f"(d.v[6]), "+f"(d.v[7]),
        "+f"(d.v[8]), "+f"(d.v[9]), "+f"(d.v[10]), "+f"(d.v[11]), "+f"(d.v[12]), "+f"(d.v[13]), "+f"(d.v[14]), "+f"(d.v[15]),
        "+f"(d.v[16]), "+f"(d.v[17]), "+f"(d.v[18]), "+f"(d.v[19]), "+f"(d.v[20]), "+f"(d.v[21]), "+f"(d.v[22]), "+f"(d.v[23]),
        "+f"(d.v[24]), "+f"(d.v[25]), "+f"(d.v[26]), "+f"(d.v[27]), "+f"(d.v[28]), "+f"(d.v[29]), "+f"(d.v[30]), "+f"(d.v[31]),
        "+f"(d.v[32]), "+f"(d.v[33]), "+f"(d.v[34]), "+f"(d.v[35]), "+f"(d.v[36]), "+f"(d.v[37]), "+f"(d.v[38]), "+f"(d.v[39]),
        "+f"(d.v[40]), "+f"(d.v[41]), "+f"(d.v[42]), "+f"(d.v[43]), "+f"(d.v[44]), "+f"(d.v[45]), "+f"(d.v[46]), "+f"(d.v[47]),
        "+f"(d.v[48]), "+f"(d.v[49]), "+f"(d.v[50]), "+f"(d.v[51]), "+f"(d.v[52]), "+f"(d.v[53]), "+f"(d.v[54]), "+f"(d.v[55]),
        "+f"(d.v[56]), "+f"(d.v[57]), "+f"(d.v[58]), "+f"(d.v[59]), "+f"(d.v[60]), "+f"(d.v[61]), "+f"(d.v[62]), "+f"(d.v[63])
      : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)));
}

template <bool TRANSPOSED, bool A_TRANSPOSED = false> DEVICE void multiply(Sums<128>& d, const u64& a, u64 b, bool add) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, p, 1, 1, %68, %67; }"
      : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]), "+f"(d.v[4]), "+f"(d.v[5]), "+f"(d.v[6]), "+f"(d.v[7]),
        "+f"(d.v[8]), "+f"(d.v[9]), "+f"(d.v[10]), "+f"(d.v[11]), "+f"(d.v[12]), "+f"(d.v[13]), "+f"(d.v[14]), "+f"(d.v[15]),
        "+f"(d.v[16]), "+f"(d.v[17]), "+f"(d.v[18]), "+f"(d.v[19]), "+f"(d.v[20]), "+f"(d.v[21]), "+f"(d.v[22]), "+f"(d.v[23]),
        "+f"(d.v[24]), "+f"(d.v[25]), "+f"(d.v[26]), "+f"(d.v[27]), "+f"(d.v[28]), "+f"(d.v[29]), "+f"(d.v[30]), "+f"(d.v[31]),
        "+f"(d.v[32]), "+f"(d.v[33]), "+f"(d.v[34]), "+f"(d.v[35]), "+f"(d.v[36]), "+f"(d.v[37]), "+f"(d.v[38]), "+f"(d.v[39]),
        "+f"(d.v[40]), "+f"(d.v[41]), "+f"(d.v[42]), "+f"(d.v[43]), "+f"(d.v[44]), "+f"(d.v[45]), "+f"(d.v[46]), "+f"(d.v[47]),
        "+f"(d.v[48]), "+f"(d.v[49]), "+f"(d.v[50]), "+f"(d.v[51]), "+f"(d.v[52]), "+f"(d.v[53]), "+f"(d.v[54]), "+f"(d.v[55]),
        "+f"(d.v[56]), "+f"(d.v[57]), "+f"(d.v[58]), "+f"(d.v[59]), "+f"(d.v[60]), "+f"(d.v[61]), "+f"(d.v[62]), "+f"(d.v[63])
      : "l"(a), "l"(b), "r"(int(add)), "n"(int(TRANSPOSED)), "n"(int(A_TRANSPOSED)));
}

// ---- clusters

// this block among those of its cluster
DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// all threads of all blocks of the cluster, with what they wrote to shared memory
DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// a number in the shared memory of another block of the cluster, at the place where this block has `own`
DEVICE f32 cluster_read(const f32* own, u32 rank) {
  f32 out;
  asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2; ld.shared::cluster.f32 %0, [there]; }"
               : "=f"(out) : "r"(shared_address(own)), "r"(rank) : "memory");
  return out;
}
