// d[m][n] = max(sum_k a[m][k] b[k][n] + bias[n], 0): f16 in, f32 sums, f32 out.
// Tile 64 x 64 x 32, four warps of 32 x 32, ring of STAGES tiles, 16-byte chunks swizzled by row.
#ifndef STAGES
#define STAGES 3
#endif
typedef unsigned int word;
typedef unsigned short half_bits;

__device__ __forceinline__ word shared_address(const void* p) {
  word a;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
  return a;
}
__device__ __forceinline__ void copy16(word to, const void* from, bool inside) {
  int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ word a_chunk(int row, int chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); }
__device__ __forceinline__ word b_chunk(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

extern "C" __global__ void __launch_bounds__(128)
gemm(const half_bits* __restrict__ a, const half_bits* __restrict__ b, const float* __restrict__ bias,
     float* __restrict__ d, int m, int n, int k) {
  extern __shared__ __align__(128) unsigned char ring[];
  const word base = shared_address(ring), tile_bytes = 64 * 32 * 2;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int row0 = blockIdx.y * 64, col0 = blockIdx.x * 64, wrow = (warp >> 1) * 32, wcol = (warp & 1) * 32;
  const int tiles = (k + 31) / 32;
  float acc[2][4][4] = {};

  auto fetch = [&](int tile) {
    if (tile < tiles) {
      const word at = base + tile % STAGES * 2 * tile_bytes;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int id = thread + i * 128, r = id >> 2, c = id & 3, gm = row0 + r, gk = tile * 32 + c * 8;
        bool inside = gm < m && gk < k;
        copy16(at + a_chunk(r, c), inside ? a + (long long)gm * k + gk : a, inside);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int id = thread + i * 128, r = id >> 3, c = id & 7, gk = tile * 32 + r, gn = col0 + c * 8;
        bool inside = gk < k && gn < n;
        copy16(at + tile_bytes + b_chunk(r, c), inside ? b + (long long)gk * n + gn : b, inside);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) fetch(s);
  for (int tile = 0; tile < tiles; tile++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    fetch(tile + STAGES - 1);
    const word at = base + tile % STAGES * 2 * tile_bytes;
#pragma unroll
    for (int step = 0; step < 2; step++) {
      word fa[2][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        word p = at + a_chunk(wrow + i * 16 + (lane & 15), step * 2 + (lane >> 4));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3]) : "r"(p) : "memory");
      }
#pragma unroll
      for (int j = 0; j < 2; j++) {
        word p = at + tile_bytes + b_chunk(step * 16 + (lane & 15), wcol / 8 + j * 2 + (lane >> 4));
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fb[j][0]), "=r"(fb[j][1]), "=r"(fb[j][2]), "=r"(fb[j][3]) : "r"(p) : "memory");
      }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                       : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]), "+f"(acc[i][j][3])
                       : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]),
                         "r"(fb[j >> 1][(j & 1) * 2]), "r"(fb[j >> 1][(j & 1) * 2 + 1]));
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int r = row0 + wrow + i * 16 + (lane >> 2) + (e >> 1) * 8, c = col0 + wcol + j * 8 + (lane & 3) * 2 + (e & 1);
        if (r < m && c < n) d[(long long)r * n + c] = fmaxf(acc[i][j][e] + bias[c], 0.f);
      }
}
