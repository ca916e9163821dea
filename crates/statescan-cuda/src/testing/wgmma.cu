// One product of matrices by a warpgroup, C (64 x COLUMNS) = A B in bf16: A (64 x DEPTH) as lines of rows, B as lines of columns (or of rows,
// B_TRANSPOSED). Tiles of 64 numbers a line come through tensor maps, swizzled by 128 bytes.

constexpr int TILES = DEPTH / 64;
constexpr int TILE_BYTES = 64 * 128;
constexpr int HALVES = B_TRANSPOSED ? COLUMNS / 64 : 1;   // tiles of B side by side

extern "C" __global__ void __launch_bounds__(128) tensor_cores_of_a_warpgroup(const __grid_constant__ WarpgroupParams p) {
  __shared__ __align__(1024) char a_tile[TILE_BYTES];
  __shared__ __align__(1024) char b_tile[COLUMNS * 128];
  __shared__ Barrier full, empty;
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init(empty, 128);
    barriers_are_ready();
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4, row = threadIdx.x / 32 * 16;
  Sums<COLUMNS> sums;
#pragma unroll 1
  for (int tile = 0; tile < TILES; tile++) {
    const u32 phase = tile % 2;
    if (threadIdx.x == 0) {
      if (tile > 0) barrier_wait(empty, 1 - phase);
      barrier_arrive_expecting(full, sizeof(a_tile) + sizeof(b_tile));
      tile_load(a_tile, p.a_map, full, {tile * 64, 0});
      for (int half = 0; half < HALVES; half++)
        tile_load(b_tile + half * TILE_BYTES, p.b_map, full, {B_TRANSPOSED ? half * 64 : tile * 64, B_TRANSPOSED ? tile * 64 : 0});
    }
    barrier_wait(full, phase);
    __syncwarp();
    FragmentA a[4];
    if constexpr (A_IN_REGISTERS) {
      // the unit of 16 bytes of a line changes places with another one: their numbers differ in the bits of the line's number
      const int line = row + lane % 16;
#pragma unroll
      for (int k = 0; k < 4; k++) load_matrices<false>(a[k].v, a_tile + line * 128 + (((2 * k + lane / 16) ^ (line % 8)) * 16));
    }
    products_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const u64 b = B_TRANSPOSED ? operand(b_tile + k * 16 * 128, TILE_BYTES) : operand(b_tile + k * 32);
      if constexpr (A_IN_REGISTERS)
        multiply<B_TRANSPOSED>(sums, a[k], b, tile + k > 0);
      else
        multiply<B_TRANSPOSED>(sums, operand(a_tile + k * 32), b, tile + k > 0);
    }
    products_commit();
    products_wait();
    pin(sums.v);
    barrier_arrive(empty);
  }
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; i++) p.c[(row + group + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + 2 * pair + i % 2] = sums.v[i];
}
