// one_row: x @ w.T + b
//   in  x: bf16[M, K]
//   in  w: bf16[N, K]
//   in  b: bf16[N]
//   out y0: bf16[M, N]
//    S0  v0[i,j] += x[i,k] * w[j,k]     i < M, j < N, k < K   (f32)
//    P1  v1[i,j] = add(v0[i,j], b[j])   i < M, j < N   (f32)
//    P2  y0[i,j] = cast(v1[i,j])        i < M, j < N   (bf16)
//
// mapping: block 1x16x1024, 1x8 warps of 1x2, instruction 1x1x256, dot_k256_f32_bf16 on sm_80
// needs: 256 threads, 0 of 166912 B shared memory, about 78 registers per thread, 3 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 2147418112
//   20003: N is 1 to 2147418112
//   20004: N and M make at most 65535 groups of tiles
//   20005: K is a multiple of 8: rows of x, w are whole copies
//   20006: x_stride0 is not negative if M > 1
//   20007: x_stride0 is a multiple of 8 if M > 1
//   20008: w_stride0 is not negative if N > 1
//   20009: w_stride0 is a multiple of 8 if N > 1
//   20010: y0_stride0 leads beyond a row of y0 if M > 1
//   20011: y0_stride0 is a multiple of 8 if M > 1
//   20012: the address of x is a multiple of 16
//   20013: the address of w is a multiple of 16
//   20014: the address of b is a multiple of 16
//   20015: the address of y0 is a multiple of 16
//   20016: y0 shares no memory with x
//   20017: y0 shares no memory with w
//   20018: y0 shares no memory with b
// barriers, and the dependences they enforce:
// schedule:
//   format = 1
//   name = "dots_1x16x1024_w1x2_n16_f4_b3"
//   device = "sm_80"
//   atom = "dot"
//   min_blocks = 3
//   [tile.cta]
//   m = 1
//   n = 16
//   k = 1024
//   [tile.warp]
//   m = 1
//   n = 2
//   [pipeline]
//   stages = 3
//   distance = 2
//   order = ["mma", "copy"]
//   fragments = 4
//   lookahead = 3
//   copies = "whole"
//   across = true
//   in_flight = 1
//   [loops]
//   mma = ["k", "m", "n"]
//   k = "forward"
//   grid = ["m", "n"]
//   phases = ["main", "epilogue"]
//   [roles]
//   form = "none"
//   producer_registers = 40
//   consumer_registers = 232
//   [cluster]
//   m = 1
//   n = 1
//   k = 1
//   [raster]
//   along = "n"
//   group = 16
//   [smem]
//   swizzle = "auto"
//   [epilogue]
//   through = "registers"
//   slots = 2
//   prefetch = 2
//   columns = 0
// made by: polygen generate 'x @ w.T + b' 'x:bf16[M,K]' 'w:bf16[N,K]' 'b:bf16[N]' --arch sm_80 --name one_row --size M=1 N=4096 K=4096 -o -

// ---- element types: stored bits <-> f32 ----
__device__ __forceinline__ float from_f16(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ unsigned short to_f16(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ float from_bf16(unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
__device__ __forceinline__ unsigned short to_bf16(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ float from_f32(float value) { return value; }
__device__ __forceinline__ float to_f32(float value) { return value; }

// ---- words of global memory, WIDTH bytes at a time ----
template <int WORDS, int WIDTH>
__device__ __forceinline__ void read_words(unsigned (&words)[WORDS], const void* from) {
#pragma unroll
  for (int i = 0; i < WORDS; i += WIDTH / 4) {
    if constexpr (WIDTH == 16) {
      const uint4 part = __ldg(reinterpret_cast<const uint4*>(from) + i / 4);
      words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
    } else if constexpr (WIDTH == 8) {
      const uint2 part = __ldg(reinterpret_cast<const uint2*>(from) + i / 2);
      words[i] = part.x, words[i + 1] = part.y;
    } else {
      words[i] = __ldg(reinterpret_cast<const unsigned*>(from) + i);
    }
  }
}
template <int WORDS, int WIDTH>
__device__ __forceinline__ void write_words(void* to, const unsigned (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i < WORDS; i += WIDTH / 4) {
    if constexpr (WIDTH == 16) {
      reinterpret_cast<uint4*>(to)[i / 4] =
          make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
    } else if constexpr (WIDTH == 8) {
      reinterpret_cast<uint2*>(to)[i / 2] = make_uint2(words[i], words[i + 1]);
    } else {
      reinterpret_cast<unsigned*>(to)[i] = words[i];
    }
  }
}

// ---- vectors of adjacent elements, in words ----
template <int WORDS>
__device__ __forceinline__ float element_bf16(const unsigned (&words)[WORDS], int e) {
  return from_bf16((unsigned short)(words[e / 2] >> e % 2 * 16));
}
template <int V, int WIDTH>
__device__ __forceinline__ void write_bf16(unsigned short* to, const float (&v)[V]) {
  unsigned words[V * 2 / 4];
#pragma unroll
  for (int i = 0; i < V * 2 / 4; ++i) words[i] = to_bf16(v[2 * i]) | (unsigned)to_bf16(v[2 * i + 1]) << 16;
  write_words<V * 2 / 4, WIDTH>(to, words);
}

// ---- instructions ----
// 16 bytes of a row, which other warps read too; zeros outside.
__device__ __forceinline__ void chunk_read(unsigned (&words)[4], const void* from, bool inside) {
  asm volatile("{ .reg .pred inside; setp.ne.s32 inside, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; @inside ld.global.nc.v4.b32 { %0, %1, %2, %3 }, [%4]; }"
               : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3]) : "l"(from), "r"((int)inside));
}
// 16 bytes of a row, which is read once: the first that caches let go; zeros outside.
__device__ __forceinline__ void chunk_read_once(unsigned (&words)[4], const void* from, bool inside) {
  asm volatile("{ .reg .pred inside; setp.ne.s32 inside, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; @inside ld.global.cs.v4.b32 { %0, %1, %2, %3 }, [%4]; }"
               : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3]) : "l"(from), "r"((int)inside));
}
// Products of two chunks, added one after the other to a lane's part of a sum.
__device__ __forceinline__ void add_products(float (&part)[1], const unsigned (&a)[4], const unsigned (&b)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    part[0] = __fmaf_rn(from_bf16((unsigned short)a[i]), from_bf16((unsigned short)b[i]), part[0]);
    part[0] = __fmaf_rn(from_bf16((unsigned short)(a[i] >> 16)), from_bf16((unsigned short)(b[i] >> 16)), part[0]);
  }
}
// The parts of all lanes, added up in pairs; the same in every lane.
__device__ __forceinline__ float sum_of_lanes(float part) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) part += __shfl_xor_sync(0xffffffffu, part, away);
  return part;
}

extern "C" __global__ void __launch_bounds__(256, 3)
pg_one_row(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int w_m = warp / 8, w_n = warp % 8;
  // raster: groups of 16 tiles along n, then the next tile along m
  const int b_n = blockIdx.y * 16 + blockIdx.x % 16, b_m = blockIdx.x / 16;
  if (b_n * 16 >= N) return;
  const int k_tiles = (K + 1023) / 1024;

  unsigned fragment_a[1][1][4], fragment_b[4][2][4];
  float sum[1][2][1];

  auto zero = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) (&sum[0][0][0])[i] = 0;
  };
  // load_a[k,s]: a chunk of each of 1 row(s) of x for every lane, zeros behind their ends
  const unsigned short* const rows_a[1] = {
    x + (long long)min(b_m * 1 + w_m * 1 + 0, M - 1) * x_stride0 + lane * 8,
  };
  auto load_a = [&](int k, int s) __attribute__((always_inline)) {
    const int first = k * 1024 + s * 256;
    const bool inside = first + lane * 8 < K;
#pragma unroll
    for (int i = 0; i < 1; ++i) chunk_read(fragment_a[s % 1][i], rows_a[i] + first, inside);
  };
  // load_b[k,s]: a chunk of each of 2 row(s) of w for every lane, zeros behind their ends
  const unsigned short* const rows_b[2] = {
    w + (long long)min(b_n * 16 + w_n * 2 + 0, N - 1) * w_stride0 + lane * 8,
    w + (long long)min(b_n * 16 + w_n * 2 + 1, N - 1) * w_stride0 + lane * 8,
  };
  auto load_b = [&](int k, int s) __attribute__((always_inline)) {
    const int first = k * 1024 + s * 256;
    const bool inside = first + lane * 8 < K;
#pragma unroll
    for (int i = 0; i < 2; ++i) chunk_read_once(fragment_b[s % 4][i], rows_b[i] + first, inside);
  };
  // dot[k,s,m,n]: the lane's part of sum[m][n] += its products
  auto dot = [&](int, int s, int m, int n) __attribute__((always_inline)) {
    add_products(sum[m][n], fragment_a[s % 1][m], fragment_b[s % 4][n]);
  };
  // The fused pointwise statements, on one element.
  auto compute = [&](float sum, float b_0, float& y0_result) __attribute__((always_inline)) {
    const float t1 = sum + b_0;
    y0_result = t1;
  };
  // Results at the edge of the arrays, one at a time: element e of a vector at (row, column).
  auto finish_element = [&](int row, int column, int e, float sum) __attribute__((always_inline)) {
    const float b_0_element = from_bf16(__ldg(b + (column + e)));
    float y0_out;
    compute(sum, b_0_element, y0_out);
    *(y0 + (long long)row * y0_stride0 + (column + e)) = to_bf16(y0_out);
  };
  // store[m]: parts -> one sum, a result for each of 2 lane(s)
  auto store = [&](int m) __attribute__((always_inline)) {
    float own_sum = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float whole_sum = sum_of_lanes(sum[m][n][0]);
      if (lane == n) own_sum = whole_sum;
    }
    const int row = b_m * 1 + w_m * 1 + m, column = b_n * 16 + w_n * 2 + lane;
    if (lane < 2 && row < M && column < N) finish_element(row, column, 0, own_sum);
  };

  // The loops, generated by isl from the schedule tree.
  zero();
  #pragma unroll 1
  for (int k = 0; k < k_tiles; ++k) {
    load_b(k, 0);
    if (k >= 1) {
      load_a(k - 1, 1);
      #pragma unroll
      for (int n = 0; n <= 1; ++n) {
        dot(k - 1, 1, 0, n);
      }
    }
    load_b(k, 1);
    if (k >= 1) {
      load_a(k - 1, 2);
      #pragma unroll
      for (int n = 0; n <= 1; ++n) {
        dot(k - 1, 2, 0, n);
      }
    }
    load_b(k, 2);
    if (k >= 1) {
      load_a(k - 1, 3);
      #pragma unroll
      for (int n = 0; n <= 1; ++n) {
        dot(k - 1, 3, 0, n);
      }
    }
    load_b(k, 3);
    load_a(k, 0);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      dot(k, 0, 0, n);
    }
  }
  load_a(k_tiles - 1, 1);
  #pragma unroll
  for (int n = 0; n <= 1; ++n) {
    dot(k_tiles - 1, 1, 0, n);
  }
  load_a(k_tiles - 1, 2);
  #pragma unroll
  for (int n = 0; n <= 1; ++n) {
    dot(k_tiles - 1, 2, 0, n);
  }
  load_a(k_tiles - 1, 3);
  #pragma unroll
  for (int n = 0; n <= 1; ++n) {
    dot(k_tiles - 1, 3, 0, n);
  }
  store(0);
}

#ifndef __CUDACC_RTC__
// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t.
extern "C" int pg_one_row_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if ((M + 0LL) / 1 * 16 > 2147483647 || ((N + 15LL) / 16 + 15) / 16 > 65535) return 20004;
  if (K % 8) return 20005;
  if (M > 1 && x_stride0 < 0) return 20006;
  if (M > 1 && x_stride0 % 8) return 20007;
  if (N > 1 && w_stride0 < 0) return 20008;
  if (N > 1 && w_stride0 % 8) return 20009;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20010;
  if (M > 1 && y0_stride0 % 8) return 20011;
  if ((unsigned long long)x % 16) return 20012;
  if ((unsigned long long)w % 16) return 20013;
  if ((unsigned long long)b % 16) return 20014;
  if ((unsigned long long)y0 % 16) return 20015;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20016;
  if ((unsigned long long)y0 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20017;
  if ((unsigned long long)y0 < (unsigned long long)b + ((N - 1LL) + 1) * 2 && (unsigned long long)b < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20018;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_one_row, cudaFuncAttributeMaxDynamicSharedMemorySize, 0);
  if (status != cudaSuccess) return (int)status;
  const unsigned tiles_along = (N + 15) / 16;
  const unsigned tiles_across = (M + 0) / 1;
  const dim3 grid(tiles_across * 16, (tiles_along + 15) / 16);
  pg_one_row<<<grid, 256, 0, (cudaStream_t)stream>>>(x, w, b, y0, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? y0_stride0 : 0));
  return (int)cudaGetLastError();
}
#endif
