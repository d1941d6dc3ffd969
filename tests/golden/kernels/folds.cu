// folds: sum(x @ w.T + b, axis=0), max(x @ w.T, axis=1, keepdims=True), x @ w.T
//   in  x: bf16[M, K]
//   in  w: bf16[N, K]
//   in  b: bf16[N]
//   out y0: f32[N]
//   out y1: f32[M, 1]
//   out y2: bf16[M, N]
//    S0  v0[i,j] += x[i,k] * w[j,k]      i < M, j < N, k < K   (f32)
//    P1  v1[i,j] = add(v0[i,j], b[j])    i < M, j < N   (f32)
//    F2  v2[j] = sum over i of v1[i,j]   i < M, j < N   (f32)
//    P3  y0[i] = cast(v2[i])             i < N   (f32)
//    F4  v4[i] = max over j of v0[i,j]   i < M, j < N   (f32)
//    P5  y1[i,j] = cast(v4[i])           i < M, j < 1   (f32)
//    P6  y2[i,j] = cast(v0[i,j])         i < M, j < N   (bf16)
//
// mapping: block 32x32x128, 2x2 warps of 16x16, instruction 16x8x16, m16n8k16_f32_bf16 on sm_80
// needs: 128 threads, 98304 of 166912 B shared memory, about 54 registers per thread, 1 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 2147418112
//   20003: N is 1 to 2147418112
//   20004: M and N make at most 65535 groups of tiles
//   20005: K is a multiple of 4: rows of x, w are whole copies
//   20006: x_stride0 is not negative if M > 1
//   20007: x_stride0 is a multiple of 4 if M > 1
//   20008: w_stride0 is not negative if N > 1
//   20009: w_stride0 is a multiple of 4 if N > 1
//   20010: y1_stride0 leads beyond a row of y1 if M > 1
//   20011: y2_stride0 leads beyond a row of y2 if M > 1
//   20012: y2_stride0 is a multiple of 4 if M > 1
//   20013: the address of x is a multiple of 8
//   20014: the address of w is a multiple of 8
//   20015: the address of b is a multiple of 16
//   20016: the address of y0 is a multiple of 4
//   20017: the address of y1 is a multiple of 4
//   20018: the address of y2 is a multiple of 8
//   20019: y0 shares no memory with x
//   20020: y0 shares no memory with w
//   20021: y0 shares no memory with b
//   20022: y1 shares no memory with x
//   20023: y1 shares no memory with w
//   20024: y1 shares no memory with b
//   20025: y1 shares no memory with y0
//   20026: y2 shares no memory with x
//   20027: y2 shares no memory with w
//   20028: y2 shares no memory with b
//   20029: y2 shares no memory with y0
//   20030: y2 shares no memory with y1
// barriers, and the dependences they enforce:
//   bar_load_a (block): copy_a -> load_a (flow through ring_a); load_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 6 version(s) later); copy_b -> copy_b (reuse through ring_b, 6 version(s) later)
// schedule:
//   format = 1
//   name = "32x32x128_w16x16_s6"
//   device = "sm_80"
//   atom = "auto"
//   min_blocks = 1
//   [tile.cta]
//   m = 32
//   n = 32
//   k = 128
//   [tile.warp]
//   m = 16
//   n = 16
//   [pipeline]
//   stages = 6
//   distance = 5
//   order = ["mma", "copy"]
//   fragments = 2
//   lookahead = 1
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
//   along = "m"
//   group = 8
//   [smem]
//   swizzle = "auto"
//   [epilogue]
//   through = "registers"
//   slots = 2
//   prefetch = 2
//   columns = 0
// made by: polygen generate 'sum(x @ w.T + b, axis=0), max(x @ w.T, axis=1, keepdims=True), x @ w.T' 'x:bf16[M,K]' 'w:bf16[N,K]' 'b:bf16[N]' --arch sm_80 --name folds --size M=200 N=300 K=500 -o -

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
// Copies 8 bytes in the background: of `from`, or zeros.
__device__ __forceinline__ void copy_8(unsigned to, const void* from, bool inside) {
  asm volatile("{ .reg .pred outside; setp.eq.s32 outside, %2, 0; cp.async.ca.shared.global [%0], [%1], 8, outside; }" :: "r"(to), "l"(from), "r"((int)inside) : "memory");
}
// 4 matrices of 8 x 16 bytes; each lane gives the address of one row
__device__ __forceinline__ void load_matrices_4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(from) : "memory");
}
// m16n8k16_f32_bf16: c[16,8] += a[16,16] * b[16,8]
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// A word, and two sums, to shared memory; four sums from the scratch area.
__device__ __forceinline__ void write_word(unsigned to, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" :: "r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ void write_pair(unsigned to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(to), "f"(first), "f"(second) : "memory");
}
__device__ __forceinline__ void read_quad(float* v, unsigned from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ float read_sum(unsigned from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}
// ---- shared-memory layouts: byte offset of byte `byte` of row `row` ----
__device__ __forceinline__ int place_ring_a(int row, int byte) {
  return row * 256 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}
__device__ __forceinline__ int place_ring_b(int row, int byte) {
  return row * 256 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}

// NaN wins, as in NumPy.
__device__ __forceinline__ float maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ __forceinline__ void combine_sum(float& a0, const float b0) {
  const float t1 = a0 + b0;
  a0 = t1;
}
__device__ __forceinline__ void combine_max(float& a0, const float b0) {
  const float t1 = maximum(a0, b0);
  a0 = t1;
}

extern "C" __global__ void __launch_bounds__(128, 1)
pg_folds(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, float* __restrict__ y0, float* __restrict__ y1, unsigned short* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y1_stride0, int y2_stride0, float* parts) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int w_m = warp / 2, w_n = warp % 2;
  // raster: groups of 8 tiles along m, then the next tile along n
  const int b_m = blockIdx.y * 8 + blockIdx.x % 8, b_n = blockIdx.x / 8;
  if (b_m * 32 >= M) return;
  const int k_tiles = (K + 127) / 128;

  unsigned fragment_a[2][1][4], fragment_b[2][2][2];
  float sum[1][2][4];

  auto zero = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) (&sum[0][0][0])[i] = 0;
  };
  // copy_a[k,p]: x, 32 of m x 128 of k -> ring_a[k % 6], 8 bytes at a time, zeros beyond it
  auto copy_a = [&](int k, int p) __attribute__((always_inline)) {
    const unsigned slot = shared + 0 + (k % 6) * 8192;
#pragma unroll
    for (int i = p * 8; i < (p + 1) * 8; ++i) {
      const int piece = i * 128 + thread;
      const int row = piece / 32, column = piece % 32 * 4;
      const int from_row = b_m * 32 + row, from_column = k * 128 + column;
      const unsigned short* from = x + (long long)from_row * x_stride0 + from_column;
      const unsigned to = slot + place_ring_a(row, column * 2);
      const bool inside = K - from_column > 0;
      copy_8(to, from, inside && from_row < M);
    }
  };
  // copy_b[k,p]: w, 32 of n x 128 of k -> ring_b[k % 6], 8 bytes at a time, zeros beyond it
  auto copy_b = [&](int k, int p) __attribute__((always_inline)) {
    const unsigned slot = shared + 49152 + (k % 6) * 8192;
#pragma unroll
    for (int i = p * 8; i < (p + 1) * 8; ++i) {
      const int piece = i * 128 + thread;
      const int row = piece / 32, column = piece % 32 * 4;
      const int from_row = b_n * 32 + row, from_column = k * 128 + column;
      const unsigned short* from = w + (long long)from_row * w_stride0 + from_column;
      const unsigned to = slot + place_ring_b(row, column * 2);
      const bool inside = K - from_column > 0;
      copy_8(to, from, inside && from_row < N);
    }
  };
  // commit[t]: the copies of step t become one group
  auto commit = [&](int) __attribute__((always_inline)) { asm volatile("cp.async.commit_group;" ::: "memory"); };
  // bar_load_a: copy_a -> load_a (flow through ring_a); load_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 6 version(s) later); copy_b -> copy_b (reuse through ring_b, 6 version(s) later)
  auto bar_load_a = [&](int) __attribute__((always_inline)) { __syncthreads(); };
  // wait_load_a: all but the last 4 group(s) of cp.async are complete
  auto wait_load_a = [&](int) __attribute__((always_inline)) { asm volatile("cp.async.wait_group 4;" ::: "memory"); };
  // load_a[k,s]: ring_a[k % 6] -> fragment_a[s % 2], proved equal to the instruction's fragment (a_k)
  auto load_a = [&](int k, int s) __attribute__((always_inline)) {
    const unsigned slot = shared + 0 + (k % 6) * 8192;
#pragma unroll
    for (int i = 0; i < 1; ++i) {
      load_matrices_4(fragment_a[s % 2][i][0], fragment_a[s % 2][i][1], fragment_a[s % 2][i][2], fragment_a[s % 2][i][3], slot + place_ring_a(w_m * 16 + i * 16 + lane % 16, s * 32 + (lane / 16) * 16));
    }
  };
  // load_b[k,s]: ring_b[k % 6] -> fragment_b[s % 2], proved equal to the instruction's fragment (b_k_pair)
  auto load_b = [&](int k, int s) __attribute__((always_inline)) {
    const unsigned slot = shared + 49152 + (k % 6) * 8192;
#pragma unroll
    for (int i = 0; i < 1; ++i) {
      load_matrices_4(fragment_b[s % 2][i * 2 + 0][0], fragment_b[s % 2][i * 2 + 0][1], fragment_b[s % 2][i * 2 + 1][0], fragment_b[s % 2][i * 2 + 1][1], slot + place_ring_b(w_n * 16 + i * 16 + lane % 8 + 8 * (lane / 16), s * 32 + ((lane / 8) % 2) * 16));
    }
  };
  // mma[k,s,m,n]: sum[m][n] += a[m] * b[n], one m16n8k16_f32_bf16
  auto mma = [&](int, int s, int m, int n) __attribute__((always_inline)) {
    multiply(sum[m][n], fragment_a[s % 2][m], fragment_b[s % 2][n]);
  };
  // The fused pointwise statements, on one element.
  auto compute = [&](float sum, float b_0, float& y2_result, float& v2_0_result, float& v4_0_result) __attribute__((always_inline)) {
    const float t1 = sum + b_0;
    v2_0_result = t1;
    v4_0_result = sum;
    y2_result = sum;
  };
  // Results at the edge of the arrays, one at a time: element e of a vector at (row, column).
  auto finish_element = [&](int row, int column, int e, float sum, float& v2_0_out, float& v4_0_out) __attribute__((always_inline)) {
    const float b_0_element = from_bf16(__ldg(b + (column + e)));
    float y2_out;
    compute(sum, b_0_element, y2_out, v2_0_out, v4_0_out);
    *(y2 + (long long)row * y2_stride0 + (column + e)) = to_bf16(y2_out);
  };
  // unfold: nothing is folded yet
  float v2_part0[2][2][1];
  float v4_part0[1][2][2];
  auto unfold = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int fold_i = 0; fold_i < 4; ++fold_i) { (&v2_part0[0][0][0])[fold_i] = (-0.0f); }
#pragma unroll
    for (int fold_i = 0; fold_i < 4; ++fold_i) { (&v4_part0[0][0][0])[fold_i] = __int_as_float(0xff800000); }
  };
  // store[m]: straight from the fragments, two adjacent results at a time
  auto store = [&](int m) __attribute__((always_inline)) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      {
        const int row = b_m * 32 + w_m * 16 + m * 16 + (lane / 4), column = b_n * 32 + w_n * 16 + n * 8 + 2 * (lane % 4);
        const int count = row < M ? N - column : 0;
        const float sums[2] = { sum[m][n][0], sum[m][n][1] };
        if (count >= 2) {
          const int i = 0, safe_row = row;
          unsigned b_0_words[1][1];
          read_words<1, 4>(b_0_words[i], b + column);
          float y2_out[2];
          float v2_0_out[2];
          float v4_0_out[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) compute(sums[e], element_bf16(b_0_words[i], e), y2_out[e], v2_0_out[e], v4_0_out[e]);
          write_bf16<2, 4>(y2 + (long long)row * y2_stride0 + column, y2_out);
          combine_sum(v2_part0[n][0][0], v2_0_out[0]);
          combine_max(v4_part0[m][0][0], v4_0_out[0]);
          combine_sum(v2_part0[n][1][0], v2_0_out[1]);
          combine_max(v4_part0[m][0][1], v4_0_out[1]);
        } else
        {
          float v2_0_out[2], v4_0_out[2];
          if (count > 0) {
            finish_element(row, column, 0, sums[0], v2_0_out[0], v4_0_out[0]);
            combine_sum(v2_part0[n][0][0], v2_0_out[0]);
            combine_max(v4_part0[m][0][0], v4_0_out[0]);
          }
          if (count > 1) {
            finish_element(row, column, 1, sums[1], v2_0_out[1], v4_0_out[1]);
            combine_sum(v2_part0[n][1][0], v2_0_out[1]);
            combine_max(v4_part0[m][0][1], v4_0_out[1]);
          }
        }
      }
      {
        const int row = b_m * 32 + w_m * 16 + m * 16 + (lane / 4) + 8, column = b_n * 32 + w_n * 16 + n * 8 + 2 * (lane % 4);
        const int count = row < M ? N - column : 0;
        const float sums[2] = { sum[m][n][2], sum[m][n][3] };
        if (count >= 2) {
          const int i = 0, safe_row = row;
          unsigned b_0_words[1][1];
          read_words<1, 4>(b_0_words[i], b + column);
          float y2_out[2];
          float v2_0_out[2];
          float v4_0_out[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) compute(sums[e], element_bf16(b_0_words[i], e), y2_out[e], v2_0_out[e], v4_0_out[e]);
          write_bf16<2, 4>(y2 + (long long)row * y2_stride0 + column, y2_out);
          combine_sum(v2_part0[n][0][0], v2_0_out[0]);
          combine_max(v4_part0[m][1][0], v4_0_out[0]);
          combine_sum(v2_part0[n][1][0], v2_0_out[1]);
          combine_max(v4_part0[m][1][1], v4_0_out[1]);
        } else
        {
          float v2_0_out[2], v4_0_out[2];
          if (count > 0) {
            finish_element(row, column, 0, sums[0], v2_0_out[0], v4_0_out[0]);
            combine_sum(v2_part0[n][0][0], v2_0_out[0]);
            combine_max(v4_part0[m][1][0], v4_0_out[0]);
          }
          if (count > 1) {
            finish_element(row, column, 1, sums[1], v2_0_out[1], v4_0_out[1]);
            combine_sum(v2_part0[n][1][0], v2_0_out[1]);
            combine_max(v4_part0[m][1][1], v4_0_out[1]);
          }
        }
      }
    }
  };
  // fold: lanes with elements of one place meet, one writes
  auto fold = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int fold_i = 0; fold_i < 2; ++fold_i) {
      {
        float fold_0 = v2_part0[fold_i][0][0];
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 4));
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 8));
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 16));
        const int fold_place = b_n * 32 + w_n * 16 + fold_i * 8 + 2 * (lane % 4);
        if ((lane & 28) == 0 && fold_place < N) {
          const long long fold_at = (long long)(b_m * 2 + w_m) * (1LL * N) + (long long)fold_place;
          (parts)[fold_at] = fold_0;
        }
      }
      {
        float fold_0 = v2_part0[fold_i][1][0];
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 4));
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 8));
        combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 16));
        const int fold_place = b_n * 32 + w_n * 16 + fold_i * 8 + 2 * (lane % 4) + 1;
        if ((lane & 28) == 0 && fold_place < N) {
          const long long fold_at = (long long)(b_m * 2 + w_m) * (1LL * N) + (long long)fold_place;
          (parts)[fold_at] = fold_0;
        }
      }
    }
#pragma unroll
    for (int fold_i = 0; fold_i < 1; ++fold_i) {
      {
        float fold_0 = v4_part0[fold_i][0][0];
        combine_max(fold_0, v4_part0[fold_i][0][1]);
        combine_max(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 1));
        combine_max(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 2));
        const int fold_place = b_m * 32 + w_m * 16 + fold_i * 16 + (lane / 4);
        if ((lane & 3) == 0 && fold_place < M) {
          const long long fold_at = (long long)(b_n * 2 + w_n) * (1LL * M) + (long long)fold_place;
          (parts + 1LL * ((M + 31) / 32 * 2) * N)[fold_at] = fold_0;
        }
      }
      {
        float fold_0 = v4_part0[fold_i][1][0];
        combine_max(fold_0, v4_part0[fold_i][1][1]);
        combine_max(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 1));
        combine_max(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 2));
        const int fold_place = b_m * 32 + w_m * 16 + fold_i * 16 + (lane / 4) + 8;
        if ((lane & 3) == 0 && fold_place < M) {
          const long long fold_at = (long long)(b_n * 2 + w_n) * (1LL * M) + (long long)fold_place;
          (parts + 1LL * ((M + 31) / 32 * 2) * N)[fold_at] = fold_0;
        }
      }
    }
  };

  // The loops, generated by isl from the schedule tree.
  zero();
  #pragma unroll 1
  for (int t = 0; t <= min(4, k_tiles - 1); ++t) {
    copy_a(t, 0);
    copy_b(t, 0);
    commit(t);
  }
  #pragma unroll 1
  for (int t = k_tiles; t <= 4; ++t) {
    commit(t);
  }
  #pragma unroll 1
  for (int t = 5; t < k_tiles; ++t) {
    wait_load_a(t);
    bar_load_a(t);
    load_a(t - 5, 0);
    load_b(t - 5, 0);
    if (t >= 6) {
      #pragma unroll
      for (int n = 0; n <= 1; ++n) {
        mma(t - 6, 7, 0, n);
      }
    }
    load_a(t - 5, 1);
    load_b(t - 5, 1);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 0, 0, n);
    }
    load_a(t - 5, 2);
    load_b(t - 5, 2);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 1, 0, n);
    }
    load_a(t - 5, 3);
    load_b(t - 5, 3);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 2, 0, n);
    }
    load_a(t - 5, 4);
    load_b(t - 5, 4);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 3, 0, n);
    }
    load_a(t - 5, 5);
    load_b(t - 5, 5);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 4, 0, n);
    }
    load_a(t - 5, 6);
    load_b(t - 5, 6);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 5, 0, n);
    }
    load_a(t - 5, 7);
    load_b(t - 5, 7);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 6, 0, n);
    }
    copy_a(t, 0);
    copy_b(t, 0);
    commit(t);
  }
  #pragma unroll 1
  for (int t = max(5, k_tiles); t <= (k_tiles + 4); ++t) {
    wait_load_a(t);
    bar_load_a(t);
    load_a(t - 5, 0);
    load_b(t - 5, 0);
    if (t >= 6) {
      #pragma unroll
      for (int n = 0; n <= 1; ++n) {
        mma(t - 6, 7, 0, n);
      }
    }
    load_a(t - 5, 1);
    load_b(t - 5, 1);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 0, 0, n);
    }
    load_a(t - 5, 2);
    load_b(t - 5, 2);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 1, 0, n);
    }
    load_a(t - 5, 3);
    load_b(t - 5, 3);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 2, 0, n);
    }
    load_a(t - 5, 4);
    load_b(t - 5, 4);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 3, 0, n);
    }
    load_a(t - 5, 5);
    load_b(t - 5, 5);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 4, 0, n);
    }
    load_a(t - 5, 6);
    load_b(t - 5, 6);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 5, 0, n);
    }
    load_a(t - 5, 7);
    load_b(t - 5, 7);
    #pragma unroll
    for (int n = 0; n <= 1; ++n) {
      mma(t - 5, 6, 0, n);
    }
    commit(t);
  }
  #pragma unroll
  for (int n = 0; n <= 1; ++n) {
    mma(k_tiles - 1, 7, 0, n);
  }
  unfold();
  store(0);
  fold();
}

// The launch that follows: parts of folds -> results.
extern "C" __global__ void __launch_bounds__(512)
pg_folds_folds(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, float* __restrict__ y0, float* __restrict__ y1, unsigned short* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y1_stride0, int y2_stride0, float* parts) {
  long long fold_block = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (fold_block < ((1LL * N + 31) / 32)) {
    const long long fold_result = fold_block * 32 + lane;
    const long long fold_results = 1LL * N;
    // begin_0: nothing of v2 is combined yet
    float fold_v2_part0;
    auto begin_0 = [&]() __attribute__((always_inline)) {
      fold_v2_part0 = (-0.0f);
    };
    // combine_0: parts of v2, of the results of all lanes, part fold_q
    const long long fold_parts_0 = 1LL * ((M + 31) / 32 * 2);
    const long long fold_v2_part0_from = 0LL + min(fold_result, fold_results - 1);
    auto combine_0 = [&](const long long fold_q) __attribute__((always_inline)) {
      const float fold_v2_part0_read = __ldcg(parts + (fold_v2_part0_from + fold_q * fold_results));
      combine_sum(fold_v2_part0, fold_v2_part0_read);
    };
    // give_0: every lane writes what the warp has
    __shared__ float fold_v2_given0[16][32];
    auto give_0 = [&]() __attribute__((always_inline)) {
      fold_v2_given0[warp][lane] = fold_v2_part0;
    };
    // bar_take_0: give_0 -> take_0 (flow through given_0)
    auto bar_take_0 = [&]() __attribute__((always_inline)) { __syncthreads(); };
    // take_0: what warp fold_w has, behind what the warps before it have
    auto take_0 = [&](int fold_w) __attribute__((always_inline)) {
      if (fold_w == 0) {
        fold_v2_part0 = fold_v2_given0[fold_w][lane];
      } else {
        combine_sum(fold_v2_part0, fold_v2_given0[fold_w][lane]);
      }
    };
    // finish_0: results, and what is computed of them
    float y0_result;
    auto finish_0 = [&]() __attribute__((always_inline)) {
      y0_result = fold_v2_part0;
    };
    // store: y0
    auto store = [&]() __attribute__((always_inline)) {
      if (fold_result < fold_results) {
        *(y0 + fold_result) = to_f32(y0_result);
      }
    };
    // The loops, generated by isl from the schedule tree.
    begin_0();
#pragma unroll 8
    for (long long fold_q = warp; fold_q < fold_parts_0; fold_q += 16) {
      combine_0(fold_q);
    }
    give_0();
    bar_take_0();
    if (warp == 0) {
      #pragma unroll
      for (long long fold_w = 0; fold_w <= 15; ++fold_w) {
        take_0(fold_w);
      }
      finish_0();
      store();
    }
    return;
  }
  fold_block -= ((1LL * N + 31) / 32);
  const long long fold_result = fold_block * 32 + lane;
  const long long fold_results = 1LL * M;
  // begin_0: nothing of v4 is combined yet
  float fold_v4_part0;
  auto begin_0 = [&]() __attribute__((always_inline)) {
    fold_v4_part0 = __int_as_float(0xff800000);
  };
  // combine_0: parts of v4, of the results of all lanes, part fold_q
  const long long fold_parts_0 = 1LL * ((N + 31) / 32 * 2);
  const long long fold_v4_part0_from = 1LL * ((M + 31) / 32 * 2) * N + min(fold_result, fold_results - 1);
  auto combine_0 = [&](const long long fold_q) __attribute__((always_inline)) {
    const float fold_v4_part0_read = __ldcg(parts + (fold_v4_part0_from + fold_q * fold_results));
    combine_max(fold_v4_part0, fold_v4_part0_read);
  };
  // give_0: every lane writes what the warp has
  __shared__ float fold_v4_given0[16][32];
  auto give_0 = [&]() __attribute__((always_inline)) {
    fold_v4_given0[warp][lane] = fold_v4_part0;
  };
  // bar_take_0: give_0 -> take_0 (flow through given_0)
  auto bar_take_0 = [&]() __attribute__((always_inline)) { __syncthreads(); };
  // take_0: what warp fold_w has, behind what the warps before it have
  auto take_0 = [&](int fold_w) __attribute__((always_inline)) {
    if (fold_w == 0) {
      fold_v4_part0 = fold_v4_given0[fold_w][lane];
    } else {
      combine_max(fold_v4_part0, fold_v4_given0[fold_w][lane]);
    }
  };
  // finish_0: results, and what is computed of them
  float y1_result;
  auto finish_0 = [&]() __attribute__((always_inline)) {
    y1_result = fold_v4_part0;
  };
  // store: y1
  auto store = [&]() __attribute__((always_inline)) {
    if (fold_result < fold_results) {
      const long long fold_at0 = fold_result;
      *(y1 + (long long)fold_at0 * y1_stride0) = to_f32(y1_result);
    }
  };
  // The loops, generated by isl from the schedule tree.
  begin_0();
#pragma unroll 8
  for (long long fold_q = warp; fold_q < fold_parts_0; fold_q += 16) {
    combine_0(fold_q);
  }
  give_0();
  bar_take_0();
  if (warp == 0) {
    #pragma unroll
    for (long long fold_w = 0; fold_w <= 15; ++fold_w) {
      take_0(fold_w);
    }
    finish_0();
    store();
  }
}

#ifndef __CUDACC_RTC__
// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t.
extern "C" int pg_folds_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, float* __restrict__ y0, float* __restrict__ y1, unsigned short* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y1_stride0, int y2_stride0, float* parts, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if ((N + 31LL) / 32 * 8 > 2147483647 || ((M + 31LL) / 32 + 7) / 8 > 65535) return 20004;
  if (K % 4) return 20005;
  if (M > 1 && x_stride0 < 0) return 20006;
  if (M > 1 && x_stride0 % 4) return 20007;
  if (N > 1 && w_stride0 < 0) return 20008;
  if (N > 1 && w_stride0 % 4) return 20009;
  if (M > 1 && y1_stride0 < 1) return 20010;
  if (M > 1 && y2_stride0 < (N - 1LL) + 1) return 20011;
  if (M > 1 && y2_stride0 % 4) return 20012;
  if ((unsigned long long)x % 8) return 20013;
  if ((unsigned long long)w % 8) return 20014;
  if ((unsigned long long)b % 16) return 20015;
  if ((unsigned long long)y0 % 4) return 20016;
  if ((unsigned long long)y1 % 4) return 20017;
  if ((unsigned long long)y2 % 8) return 20018;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((N - 1LL) + 1) * 4) return 20019;
  if ((unsigned long long)y0 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((N - 1LL) + 1) * 4) return 20020;
  if ((unsigned long long)y0 < (unsigned long long)b + ((N - 1LL) + 1) * 2 && (unsigned long long)b < (unsigned long long)y0 + ((N - 1LL) + 1) * 4) return 20021;
  if ((unsigned long long)y1 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + 1) * 4) return 20022;
  if ((unsigned long long)y1 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + 1) * 4) return 20023;
  if ((unsigned long long)y1 < (unsigned long long)b + ((N - 1LL) + 1) * 2 && (unsigned long long)b < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + 1) * 4) return 20024;
  if ((unsigned long long)y1 < (unsigned long long)y0 + ((N - 1LL) + 1) * 4 && (unsigned long long)y0 < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + 1) * 4) return 20025;
  if ((unsigned long long)y2 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y2 + ((M - 1LL) * y2_stride0 + (N - 1LL) + 1) * 2) return 20026;
  if ((unsigned long long)y2 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y2 + ((M - 1LL) * y2_stride0 + (N - 1LL) + 1) * 2) return 20027;
  if ((unsigned long long)y2 < (unsigned long long)b + ((N - 1LL) + 1) * 2 && (unsigned long long)b < (unsigned long long)y2 + ((M - 1LL) * y2_stride0 + (N - 1LL) + 1) * 2) return 20028;
  if ((unsigned long long)y2 < (unsigned long long)y0 + ((N - 1LL) + 1) * 4 && (unsigned long long)y0 < (unsigned long long)y2 + ((M - 1LL) * y2_stride0 + (N - 1LL) + 1) * 2) return 20029;
  if ((unsigned long long)y2 < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + 1) * 4 && (unsigned long long)y1 < (unsigned long long)y2 + ((M - 1LL) * y2_stride0 + (N - 1LL) + 1) * 2) return 20030;
  if (!parts || (unsigned long long)parts % 4) return (int)cudaErrorInvalidValue;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_folds, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304);
  if (status != cudaSuccess) return (int)status;
  const unsigned tiles_along = (M + 31) / 32;
  const unsigned tiles_across = (N + 31) / 32;
  const dim3 grid(tiles_across * 8, (tiles_along + 7) / 8);
  pg_folds<<<grid, 128, 98304, (cudaStream_t)stream>>>(x, w, b, y0, y1, y2, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? y1_stride0 : 0), (M > 1 ? y2_stride0 : 0), parts);
  const cudaError_t launched = cudaGetLastError();
  if (launched != cudaSuccess) return (int)launched;
  pg_folds_folds<<<(unsigned)(((1LL * N + 31) / 32) + ((1LL * M + 31) / 32)), 512, 0, (cudaStream_t)stream>>>(x, w, b, y0, y1, y2, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? y1_stride0 : 0), (M > 1 ? y2_stride0 : 0), parts);
  return (int)cudaGetLastError();
}
#endif
