// d[m][n] = max(sum_k a[m][k] b[n][k] + bias[n], 0), bf16 in and out, f32 sums.
// Tile 128 x 128 x 64; one producer warpgroup (TMA), two consumer warpgroups (wgmma m64n128k16);
// full/empty mbarrier ring; the epilogue goes through stmatrix and a TMA store.
// The text of multiply_128 (the wgmma statement with its 64 accumulators) is put in front of this file.
#ifndef STAGES
#define STAGES 3
#endif
struct __align__(64) TensorMap { unsigned long long words[16]; };
typedef unsigned short bits16;

__device__ __forceinline__ word shared_address(const void* p) {
  word a;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
  return a;
}
__device__ __forceinline__ void barrier_init(word at, word count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(word at, word bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(word at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void barrier_wait(word at, word parity) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra END;\nbra AGAIN;\nEND:\n}" ::"r"(at), "r"(parity) : "memory");
}
__device__ __forceinline__ void box_load(word to, const TensorMap* map, word barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ unsigned long long descriptor(word at) {
  return (unsigned long long)((at & 0x3FFFF) >> 4) | 1ull << 16 | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     const __grid_constant__ TensorMap map_d, const float* __restrict__ bias, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const word base = shared_address(memory), tile = 128 * 64 * 2;
  const word out = base + STAGES * 2 * tile, barriers = out + 2 * tile;
  const int group = threadIdx.x >> 7, thread = threadIdx.x & 127;
  const int row0 = blockIdx.y * 128, col0 = blockIdx.x * 128, tiles = (k + 63) / 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(barriers + s * 16, 1);
      barrier_init(barriers + s * 16 + 8, 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0) {
      for (int t = 0; t < tiles; t++) {
        const word stage = t % STAGES, full = barriers + stage * 16, at = base + stage * 2 * tile;
        barrier_wait(full + 8, (t / STAGES & 1) ^ 1);
        barrier_expect(full, 2 * tile);
        box_load(at, &map_a, full, t * 64, row0);
        box_load(at + tile, &map_b, full, t * 64, col0);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float acc[64];
#pragma unroll
  for (int i = 0; i < 64; i++) acc[i] = 0.f;
  for (int t = 0; t < tiles; t++) {
    const word stage = t % STAGES, full = barriers + stage * 16, at = base + stage * 2 * tile;
    barrier_wait(full, t / STAGES & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 4; step++)
      multiply_128(acc, descriptor(at + (group - 1) * 64 * 128 + step * 32), descriptor(at + tile + step * 32), t | step);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (thread == 0) barrier_arrive(full + 8);
  }
  // rows of this warp: 16 of the panel [128 rows][64 columns], 128-byte rows, chunks swizzled by row
  const int lane = thread & 31, warp_row = (group - 1) * 64 + (thread >> 5) * 16;
  const int row = warp_row + (lane & 7) + (lane >> 3 & 1) * 8;
#pragma unroll
  for (int block = 0; block < 16; block += 2) {
    word packed[4];
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int column = block * 8 + (q >> 1) * 8 + (lane & 3) * 2, r = block * 4 + (q >> 1) * 4 + (q & 1) * 2;
      float low = col0 + column < n ? bias[col0 + column] : 0.f;
      float high = col0 + column + 1 < n ? bias[col0 + column + 1] : 0.f;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed[q]) : "f"(fmaxf(acc[r + 1] + high, 0.f)), "f"(fmaxf(acc[r] + low, 0.f)));
    }
    const int column_block = block + (lane >> 4), panel = column_block >> 3, chunk = column_block & 7;
    const word at = out + panel * tile + row * 128 + ((chunk ^ (row & 7)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(packed[0]), "r"(packed[1]), "r"(packed[2]), "r"(packed[3]) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 256;" ::: "memory");
  if (threadIdx.x == 128) {
#pragma unroll
    for (int panel = 0; panel < 2; panel++)
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                   ::"l"(&map_d), "r"(out + panel * tile), "r"(col0 + panel * 64), "r"(row0) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
