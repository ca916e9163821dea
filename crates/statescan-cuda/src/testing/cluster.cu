// Each block writes a number of its own to shared memory and hands out that of the next block of its cluster.

extern "C" __global__ void __launch_bounds__(32) clusters_exchange(const __grid_constant__ ClusterParams p) {
  __shared__ f32 own;
  const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  own = f32(block);
  cluster_meet();
  const f32 next = cluster_read(&own, (cluster_rank() + 1) % BLOCKS);
  if (threadIdx.x == 0) p.next[block] = next, p.rank[block] = f32(cluster_rank());
  // shared memory stays until all have read it
  cluster_meet();
}
