// A tensor copied tile by tile through shared memory, each tile by one block: in by one tensor map, out by another.

extern "C" __global__ void __launch_bounds__(32) tiles_copied(const __grid_constant__ TilesParams p) {
  extern __shared__ __align__(1024) char tile[];
  __shared__ Barrier full;
  // the x axis of the grid has the innermost axis of tiles, and so on; the last one has all axes that remain
  int at[RANK], rest = blockIdx.z;
#pragma unroll
  for (int axis = 0; axis < RANK; axis++) {
    int index = axis == 0 ? blockIdx.x : axis == 1 ? blockIdx.y : rest % int(p.tiles[axis]);
    if (axis > 1) rest /= int(p.tiles[axis]);
    at[axis] = index * int(p.tile[axis]);
  }
  if (threadIdx.x != 0) return;
  barrier_init(full, 1);
  barriers_are_ready();
  barrier_arrive_expecting(full, p.bytes);
  tile_load(tile, p.from, full, at);
  barrier_wait(full, 0);
  fence_async();
  tile_store(p.to, tile, at);
  tile_store_commit();
  tile_store_wait();
}
