// attention_by_warps: softmax((q @ k.mT) * 0.125) @ v
//   in  q: bf16[B, S, 64]
//   in  k: bf16[B, T, 64]
//   in  v: bf16[B, T, 64]
//   out y0: bf16[B, S, 64]
//    S0  v0[b,i,j] += q[b,i,k] * k[b,j,k]      b < B, i < S, j < T, k < 64   (f32)
//    P1  v1[b,i,j] = mul(v0[b,i,j], 0.125)     b < B, i < S, j < T   (f32)
//    F2  v2[b,i] = max over j of v1[b,i,j]     b < B, i < S, j < T   (f32)
//    P3  v3[b,i,j] = sub(v1[b,i,j], v2[b,i])   b < B, i < S, j < T   (f32)
//    P4  v4[b,i,j] = exp(v3[b,i,j])            b < B, i < S, j < T   (f32)
//    F5  v5[b,i] = sum over j of v4[b,i,j]     b < B, i < S, j < T   (f32)
//    P6  v6[b,i,j] = div(v4[b,i,j], v5[b,i])   b < B, i < S, j < T   (f32)
//    P7  v7[b,i,j] = cast(v6[b,i,j])           b < B, i < S, j < T   (bf16)
//    S8  v8[b,i,j] += v7[b,i,k] * v[b,k,j]     b < B, i < S, j < 64, k < T   (f32)
//    P9  y0[b,i,j] = cast(v8[b,i,j])           b < B, i < S, j < 64   (bf16)
//
// mapping: 128 rows by 64 keys by 64 columns, 4 warps of 32 rows, m16n8k16_f32_bf16 on sm_80
// needs: 128 threads, 49152 of 166912 B shared memory, about 208 registers per thread, 2 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: B is 1 to 2147418112
//   20002: S is 1 to 2147418112
//   20003: T is 1 to 2147418112
//   20004: S and 64 make at most 65535 groups of tiles, B at most 2147418112 matrices
//   20005: q_stride1 is not negative if S > 1
//   20006: q_stride1 is a multiple of 8 if S > 1
//   20007: q_stride0 is not negative if B > 1
//   20008: q_stride0 is a multiple of 8 if B > 1
//   20009: k_stride1 is not negative if T > 1
//   20010: k_stride1 is a multiple of 8 if T > 1
//   20011: k_stride0 is not negative if B > 1
//   20012: k_stride0 is a multiple of 8 if B > 1
//   20013: v_stride1 is not negative if T > 1
//   20014: v_stride1 is a multiple of 8 if T > 1
//   20015: v_stride0 is not negative if B > 1
//   20016: v_stride0 is a multiple of 8 if B > 1
//   20017: y0_stride1 leads beyond a row of y0 if S > 1
//   20018: y0_stride1 is a multiple of 8 if S > 1
//   20019: y0_stride0 leads beyond the faster axes of y0 if B > 1
//   20020: y0_stride0 is a multiple of 8 if B > 1
//   20021: the address of q is a multiple of 16
//   20022: the address of k is a multiple of 16
//   20023: the address of v is a multiple of 16
//   20024: the address of y0 is a multiple of 16
//   20025: y0 shares no memory with q
//   20026: y0 shares no memory with k
//   20027: y0 shares no memory with v
// barriers, and the dependences they enforce:
//   bar_copy_a (block): copy_a -> load_a (flow through ring_a); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 2 version(s) later); copy_b -> copy_b (reuse through ring_b, 2 version(s) later); copy_c -> load_c (flow through ring_c); load_c -> copy_c (reuse through ring_c, 2 version(s) later); copy_c -> copy_c (reuse through ring_c, 2 version(s) later)
// schedule:
//   format = 1
//   name = "chain_128x64x64_w4x32_f2_b2"
//   device = "sm_80"
//   atom = "auto"
//   min_blocks = 2
//   [tile.cta]
//   m = 128
//   n = 64
//   k = 64
//   [tile.warp]
//   m = 32
//   n = 64
//   [pipeline]
//   stages = 2
//   distance = 1
//   order = ["copy", "mma"]
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
//   group = 1
//   [smem]
//   swizzle = "auto"
//   [epilogue]
//   through = "registers"
//   slots = 2
//   prefetch = 2
//   columns = 0
// made by: polygen generate 'softmax((q @ k.mT) * 0.125) @ v' 'q:bf16[B,S,64]' 'k:bf16[B,T,64]' 'v:bf16[B,T,64]' --arch sm_80 --name attention_by_warps --size B=64 S=1024 T=1024 -o -

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
// Copies 16 bytes in the background: of `from`, or zeros.
__device__ __forceinline__ void copy_16(unsigned to, const void* from, bool inside) {
  asm volatile("{ .reg .pred outside; setp.eq.s32 outside, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, outside; }" :: "r"(to), "l"(from), "r"((int)inside) : "memory");
}
// 4 matrices of 8 x 16 bytes; each lane gives the address of one row
__device__ __forceinline__ void load_matrices_4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(from) : "memory");
}
// 4 matrices of 8 x 16 bytes; each lane gives the address of one row
__device__ __forceinline__ void load_matrices_4_transposed(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
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
  return row * 128 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}
__device__ __forceinline__ int place_ring_b(int row, int byte) {
  return row * 128 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}
__device__ __forceinline__ int place_ring_c(int row, int byte) {
  return row * 128 + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
}
// Two f32 as a word of two 16-bit elements, the first in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
// Sums that a product in flight makes are not read before this: it stands behind the wait for it.
template <int GROUPS>
__device__ __forceinline__ void made(float (&c)[GROUPS][4]) {
#pragma unroll
  for (int n = 0; n < GROUPS; ++n) asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3]) :: "memory");
}

// x / y for every y, also where 1 / y is subnormal.
__device__ __forceinline__ float approximate_quotient(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// 2 ** x in one instruction; below 2 ** -126 it is 0.
__device__ __forceinline__ float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN wins, as in NumPy.
__device__ __forceinline__ float maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

__device__ __forceinline__ void combine_max(float& a, const float b) {
  const float t1 = maximum(a, b);
  a = t1;
}
__device__ __forceinline__ void combine_sum(float& a, const float b) {
  const float t1 = a + b;
  a = t1;
}

extern "C" __global__ void __launch_bounds__(128, 2)
pg_attention_by_warps(const unsigned short* __restrict__ q_, const unsigned short* __restrict__ k_, const unsigned short* __restrict__ v, unsigned short* __restrict__ y0, int B, int S, int T, int q_stride0, int q_stride1, int k_stride0, int k_stride1, int v_stride0, int v_stride1, int y0_stride0, int y0_stride1) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int w_m = warp / 1, w_n = warp % 1;
  // Matrices lie along z, 65535 in a round, and rounds along x.
  const int wide = (64 + 63) / 64 * 1, beside = gridDim.x > wide ? blockIdx.x / wide : 0;
  const int place = blockIdx.x - beside * wide;
  const int matrix = beside * 65535 + blockIdx.z;
  if (matrix >= B) return;
  // raster: groups of 1 tiles along m, then the next tile along n
  const int b_m = blockIdx.y * 1 + place % 1, b_n = place / 1;
  if (b_m * 128 >= S) return;
  const int z0 = matrix;
  const int k_tiles = (T + 63) / 64;

  unsigned fragment_a[2][2][4], fragment_b[2][8][2], fragment_c[2][8][2];
  float scores[2][8][4], sum[2][8][4];

  // copy_a[k,p]: q, 128 of m x 64 of k -> ring_a[k % 1], 16 bytes at a time, zeros beyond it
  auto copy_a = [&](int k, int p) __attribute__((always_inline)) {
    const unsigned slot = shared + 0 + (k % 1) * 16384;
    const int row = thread / 8, column = thread % 8 * 8;
    const int rows_left = S - (b_m * 128 + row);
    const bool inside = 64 - (0 + column) > 0;
    const unsigned short* from = q_ + (long long)z0 * q_stride0 + (long long)(b_m * 128 + row) * q_stride1 + (0 + column);
    const unsigned to = slot + place_ring_a(row, column * 2);
#pragma unroll
    for (int i = p * 8; i < (p + 1) * 8; ++i) {
      copy_16(to + i * 2048, from + (long long)(i * 16) * q_stride1, inside && i * 16 < rows_left);
    }
  };
  // load_a[k,s]: ring_a[k % 1] -> fragment_a[s % 2], proved equal to the instruction's fragment (a_k)
  auto load_a = [&](int k, int s) __attribute__((always_inline)) {
    const unsigned slot = shared + 0 + (k % 1) * 16384;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices_4(fragment_a[s % 2][i][0], fragment_a[s % 2][i][1], fragment_a[s % 2][i][2], fragment_a[s % 2][i][3], ((slot + place_ring_a(w_m * 32 + lane % 16, (lane / 16) * 16)) ^ s * 32) + i * 2048);
    }
  };
  // copy_b[k,p]: k, 64 of n x 64 of k -> ring_b[k % 2], 16 bytes at a time, zeros beyond it
  auto copy_b = [&](int k, int p) __attribute__((always_inline)) {
    const unsigned slot = shared + 16384 + (k % 2) * 8192;
    const int row = thread / 8, column = thread % 8 * 8;
    const int rows_left = T - (k * 64 + row);
    const bool inside = 64 - (0 + column) > 0;
    const unsigned short* from = k_ + (long long)z0 * k_stride0 + (long long)(k * 64 + row) * k_stride1 + (0 + column);
    const unsigned to = slot + place_ring_b(row, column * 2);
#pragma unroll
    for (int i = p * 4; i < (p + 1) * 4; ++i) {
      copy_16(to + i * 2048, from + (long long)(i * 16) * k_stride1, inside && i * 16 < rows_left);
    }
  };
  // load_b[k,s]: ring_b[k % 2] -> fragment_b[s % 2], proved equal to the instruction's fragment (b_k_pair)
  auto load_b = [&](int k, int s) __attribute__((always_inline)) {
    const unsigned slot = shared + 16384 + (k % 2) * 8192;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_matrices_4(fragment_b[s % 2][i * 2 + 0][0], fragment_b[s % 2][i * 2 + 0][1], fragment_b[s % 2][i * 2 + 1][0], fragment_b[s % 2][i * 2 + 1][1], ((slot + place_ring_b(w_n * 64 + lane % 8 + 8 * (lane / 16), ((lane / 8) % 2) * 16)) ^ s * 32) + i * 2048);
    }
  };
  // copy_c[k,p]: v, 64 of n x 64 of k -> ring_c[k % 2], 16 bytes at a time, zeros beyond it
  auto copy_c = [&](int k, int p) __attribute__((always_inline)) {
    const unsigned slot = shared + 32768 + (k % 2) * 8192;
    const int row = thread / 8, column = thread % 8 * 8;
    const int rows_left = T - (k * 64 + row);
    const bool inside = 64 - (b_n * 64 + column) > 0;
    const unsigned short* from = v + (long long)z0 * v_stride0 + (long long)(k * 64 + row) * v_stride1 + (b_n * 64 + column);
    const unsigned to = slot + place_ring_c(row, column * 2);
#pragma unroll
    for (int i = p * 4; i < (p + 1) * 4; ++i) {
      copy_16(to + i * 2048, from + (long long)(i * 16) * v_stride1, inside && i * 16 < rows_left);
    }
  };
  // load_c[k,s]: ring_c[k % 2] -> fragment_c[s % 2], proved equal to the instruction's fragment (b_n_pair)
  auto load_c = [&](int k, int s) __attribute__((always_inline)) {
    const unsigned slot = shared + 32768 + (k % 2) * 8192;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_matrices_4_transposed(fragment_c[s % 2][i * 2 + 0][0], fragment_c[s % 2][i * 2 + 0][1], fragment_c[s % 2][i * 2 + 1][0], fragment_c[s % 2][i * 2 + 1][1], ((slot + place_ring_c(lane % 16, w_n * 64 * 2 + (lane / 16) * 16)) ^ i * 32) + s * 2048);
    }
  };
  // commit[t]: the copies of step t become one group
  auto commit = [&](int) __attribute__((always_inline)) { asm volatile("cp.async.commit_group;" ::: "memory"); };
  auto zero = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 64; ++i) (&sum[0][0][0])[i] = 0;
  };
  auto clear = [&](int) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 64; ++i) (&scores[0][0][0])[i] = 0;
  };
  // advance[k]: w0 with the keys of the tile, and what sums under the one before are worth under it
  float state_w0[2][2], correction[2][2];
  auto term_of_reference = [&](float score, float& w1_out) __attribute__((always_inline)) {
    w1_out = score;
  };
  auto advance = [&](int k) __attribute__((always_inline)) {
    const int keys = T, rows = S;
    const int first_key = k * 64 + 2 * (lane % 4), half_rows = 8;
    const bool whole = k * 64 + 64 <= keys;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float now[2][2] = {{__int_as_float(0xff800000), __int_as_float(0xff800000)}, {__int_as_float(0xff800000), __int_as_float(0xff800000)}};
      if (whole) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          {
            {
              float w1_out;
              term_of_reference(scores[m][n][0], w1_out);
              scores[m][n][0] = w1_out;
              combine_max(now[0][n % 2], w1_out);
            }
            {
              float w1_out;
              term_of_reference(scores[m][n][1], w1_out);
              scores[m][n][1] = w1_out;
              combine_max(now[0][n % 2], w1_out);
            }
          }
          {
            {
              float w1_out;
              term_of_reference(scores[m][n][2], w1_out);
              scores[m][n][2] = w1_out;
              combine_max(now[1][n % 2], w1_out);
            }
            {
              float w1_out;
              term_of_reference(scores[m][n][3], w1_out);
              scores[m][n][3] = w1_out;
              combine_max(now[1][n % 2], w1_out);
            }
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          {
            {
              float w1_out;
              term_of_reference(scores[m][n][0], w1_out);
              if (first_key + n * 8 >= keys) { w1_out = __int_as_float(0xff800000); }
              scores[m][n][0] = w1_out;
              combine_max(now[0][n % 2], w1_out);
            }
            {
              float w1_out;
              term_of_reference(scores[m][n][1], w1_out);
              if (first_key + n * 8 + 1 >= keys) { w1_out = __int_as_float(0xff800000); }
              scores[m][n][1] = w1_out;
              combine_max(now[0][n % 2], w1_out);
            }
          }
          {
            {
              float w1_out;
              term_of_reference(scores[m][n][2], w1_out);
              if (first_key + n * 8 >= keys) { w1_out = __int_as_float(0xff800000); }
              scores[m][n][2] = w1_out;
              combine_max(now[1][n % 2], w1_out);
            }
            {
              float w1_out;
              term_of_reference(scores[m][n][3], w1_out);
              if (first_key + n * 8 + 1 >= keys) { w1_out = __int_as_float(0xff800000); }
              scores[m][n][3] = w1_out;
              combine_max(now[1][n % 2], w1_out);
            }
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float before = k == 0 ? __int_as_float(0xff800000) : state_w0[m][row];
        combine_max(now[row][0], now[row][1]);
        combine_max(now[row][0], __shfl_xor_sync(0xffffffffu, now[row][0], 1));
        combine_max(now[row][0], __shfl_xor_sync(0xffffffffu, now[row][0], 2));
        combine_max(now[row][0], before);
        // Where there is nothing yet, any number serves as the reference.
        const float after = now[row][0] == __int_as_float(0xff800000) ? 0.0f : now[row][0];
        const float c_t1 = before * 0.125f;
        const float c_t2 = -c_t1;
        const float c_t3 = after * 0.125f;
        const float c_t4 = -c_t3;
        const float c_t5 = c_t4 - c_t2;
        const float c_t6 = approximate_exp2(1.442695f * c_t5);
        correction[m][row] = before == __int_as_float(0xff800000) ? 0.0f : c_t6;
        state_w0[m][row] = now[row][0];
      }
    }
  };
  // weigh[k]: what is multiplied under w0, and states of rows
  float state_v5[2][2];
  auto terms_of_score = [&](float score, float reference, float& w2_out, float& v4_kept_out) __attribute__((always_inline)) {
    const float t1 = score * 0.18033688f;
    const float t2 = reference * 0.18033688f;
    const float t3 = t1 - t2;
    const float t4 = approximate_exp2(t3);
    w2_out = t4;
    v4_kept_out = t4;
  };
  auto weigh = [&](int k) __attribute__((always_inline)) {
    const int keys = T, rows = S;
    const int first_key = k * 64 + 2 * (lane % 4), half_rows = 8;
    const bool whole = k * 64 + 64 <= keys;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float reference[2] = {state_w0[m][0] == __int_as_float(0xff800000) ? 0.0f : state_w0[m][0], state_w0[m][1] == __int_as_float(0xff800000) ? 0.0f : state_w0[m][1]};
      float part_v5[2][2] = {{(-0.0f), (-0.0f)}, {(-0.0f), (-0.0f)}};
      if (whole) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          {
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][0], reference[0], w2_out, v4_kept_out);
              scores[m][n][0] = w2_out;
              combine_sum(part_v5[0][n % 2], v4_kept_out);
            }
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][1], reference[0], w2_out, v4_kept_out);
              scores[m][n][1] = w2_out;
              combine_sum(part_v5[0][n % 2], v4_kept_out);
            }
          }
          {
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][2], reference[1], w2_out, v4_kept_out);
              scores[m][n][2] = w2_out;
              combine_sum(part_v5[1][n % 2], v4_kept_out);
            }
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][3], reference[1], w2_out, v4_kept_out);
              scores[m][n][3] = w2_out;
              combine_sum(part_v5[1][n % 2], v4_kept_out);
            }
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          {
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][0], reference[0], w2_out, v4_kept_out);
              if (first_key + n * 8 >= keys) { w2_out = 0.0f; v4_kept_out = (-0.0f); }
              scores[m][n][0] = w2_out;
              combine_sum(part_v5[0][n % 2], v4_kept_out);
            }
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][1], reference[0], w2_out, v4_kept_out);
              if (first_key + n * 8 + 1 >= keys) { w2_out = 0.0f; v4_kept_out = (-0.0f); }
              scores[m][n][1] = w2_out;
              combine_sum(part_v5[0][n % 2], v4_kept_out);
            }
          }
          {
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][2], reference[1], w2_out, v4_kept_out);
              if (first_key + n * 8 >= keys) { w2_out = 0.0f; v4_kept_out = (-0.0f); }
              scores[m][n][2] = w2_out;
              combine_sum(part_v5[1][n % 2], v4_kept_out);
            }
            {
              float w2_out, v4_kept_out;
              terms_of_score(scores[m][n][3], reference[1], w2_out, v4_kept_out);
              if (first_key + n * 8 + 1 >= keys) { w2_out = 0.0f; v4_kept_out = (-0.0f); }
              scores[m][n][3] = w2_out;
              combine_sum(part_v5[1][n % 2], v4_kept_out);
            }
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float sum_v5 = k == 0 ? (-0.0f) : state_v5[m][row] * correction[m][row];
        combine_sum(sum_v5, part_v5[row][0]);
        combine_sum(sum_v5, part_v5[row][1]);
        state_v5[m][row] = sum_v5;
      }
    }
  };
  // rescale[k]: sums for the reference of this tile
  auto rescale = [&](int k) __attribute__((always_inline)) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      // A warp whose rows all keep their reference has nothing to do.
      const bool same = correction[m][0] == 1.0f && correction[m][1] == 1.0f;
      if (!__all_sync(0xffffffffu, same)) {
#pragma unroll
        for (int n = 0; n < 8; ++n) sum[m][n][0] *= correction[m][0], sum[m][n][1] *= correction[m][0], sum[m][n][2] *= correction[m][1], sum[m][n][3] *= correction[m][1];
      }
    }
  };
  // convert[k]: scores -> the second product's operand, proved to be in the registers of the same thread
  unsigned weights[2][4][4];
  auto convert = [&](int) __attribute__((always_inline)) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        weights[m][s][0] = pack_bf16(scores[m][s * 2][0], scores[m][s * 2][1]);
        weights[m][s][1] = pack_bf16(scores[m][s * 2][2], scores[m][s * 2][3]);
        weights[m][s][2] = pack_bf16(scores[m][s * 2 + 1][0], scores[m][s * 2 + 1][1]);
        weights[m][s][3] = pack_bf16(scores[m][s * 2 + 1][2], scores[m][s * 2 + 1][3]);
      }
  };
  // complete[]: states of threads -> states of rows
  auto complete = [&]() __attribute__((always_inline)) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        combine_sum(state_v5[m][row], __shfl_xor_sync(0xffffffffu, state_v5[m][row], 1));
        combine_sum(state_v5[m][row], __shfl_xor_sync(0xffffffffu, state_v5[m][row], 2));
      }
    }
  };
  // score[k,s,m,n]: scores[m][n] += a[m] * b[n], one m16n8k16_f32_bf16
  auto score = [&](int, int s, int m, int n) __attribute__((always_inline)) {
    multiply(scores[m][n], fragment_a[s % 2][m], fragment_b[s % 2][n]);
  };
  // mma[k,s,m,n]: sum[m][n] += weights[m] * c[n], one m16n8k16_f32_bf16
  auto mma = [&](int, int s, int m, int n) __attribute__((always_inline)) {
    multiply(sum[m][n], weights[m][s], fragment_c[s % 2][n]);
  };
  // The fused pointwise statements, on one element.
  auto compute = [&](float sum, float v5_0, float& y0_result) __attribute__((always_inline)) {
    const bool t1 = v5_0 == 0.0f;
    const float t2 = t1 ? 1.0f : v5_0;
    const float t3 = approximate_quotient(sum, t2);
    y0_result = t3;
  };
  // Results at the edge of the arrays, one at a time: element e of a vector at (row, column).
  auto finish_element = [&](int row, int column, int e, float sum, float v5_0) __attribute__((always_inline)) {
    float y0_out;
    compute(sum, v5_0, y0_out);
    *(y0 + (long long)z0 * y0_stride0 + (long long)row * y0_stride1 + (column + e)) = to_bf16(y0_out);
  };
  // store[m]: sums and states -> results, two adjacent ones at a time
  auto store = [&](int m) __attribute__((always_inline)) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      {
        const int row = b_m * 128 + w_m * 32 + m * 16 + (lane / 4), column = b_n * 64 + w_n * 64 + n * 8 + 2 * (lane % 4);
        const int count = row < S ? 64 - column : 0;
        const float sums[2] = { sum[m][n][0], sum[m][n][1] };
        const float v5_0s[2] = { state_v5[m][0], state_v5[m][0] };
        if (count >= 2) {
          const int i = 0, safe_row = row;
          float y0_out[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) compute(sums[e], v5_0s[e], y0_out[e]);
          write_bf16<2, 4>(y0 + (long long)z0 * y0_stride0 + (long long)row * y0_stride1 + column, y0_out);
        } else
        {
          if (count > 0) finish_element(row, column, 0, sums[0], v5_0s[0]);
          if (count > 1) finish_element(row, column, 1, sums[1], v5_0s[1]);
        }
      }
      {
        const int row = b_m * 128 + w_m * 32 + m * 16 + (lane / 4) + 8, column = b_n * 64 + w_n * 64 + n * 8 + 2 * (lane % 4);
        const int count = row < S ? 64 - column : 0;
        const float sums[2] = { sum[m][n][2], sum[m][n][3] };
        const float v5_0s[2] = { state_v5[m][1], state_v5[m][1] };
        if (count >= 2) {
          const int i = 0, safe_row = row;
          float y0_out[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) compute(sums[e], v5_0s[e], y0_out[e]);
          write_bf16<2, 4>(y0 + (long long)z0 * y0_stride0 + (long long)row * y0_stride1 + column, y0_out);
        } else
        {
          if (count > 0) finish_element(row, column, 0, sums[0], v5_0s[0]);
          if (count > 1) finish_element(row, column, 1, sums[1], v5_0s[1]);
        }
      }
    }
  };
  // bar_copy_a: copy_a -> load_a (flow through ring_a); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 2 version(s) later); copy_b -> copy_b (reuse through ring_b, 2 version(s) later); copy_c -> load_c (flow through ring_c); load_c -> copy_c (reuse through ring_c, 2 version(s) later); copy_c -> copy_c (reuse through ring_c, 2 version(s) later)
  auto bar_copy_a = [&](int) __attribute__((always_inline)) { __syncthreads(); };
  // wait_copy_a: all group(s) of cp.async are complete
  auto wait_copy_a = [&](int) __attribute__((always_inline)) { asm volatile("cp.async.wait_group 0;" ::: "memory"); };

  // The loops, generated by isl from the schedule tree.
  zero();
  copy_a(0, 0);
  #pragma unroll 1
  for (int t = 0; t <= k_tiles; ++t) {
    if (t >= 1) {
      wait_copy_a(t);
      bar_copy_a(t);
    }
    if (k_tiles >= (t + 1)) {
      copy_b(t, 0);
      copy_c(t, 0);
    }
    commit(t);
    if (t >= 1) {
      clear(t - 1);
      load_a(t - 1, 0);
      load_b(t - 1, 0);
      load_a(t - 1, 1);
      load_b(t - 1, 1);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          score(t - 1, 0, m, n);
        }
      }
      load_a(t - 1, 2);
      load_b(t - 1, 2);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          score(t - 1, 1, m, n);
        }
      }
      load_a(t - 1, 3);
      load_b(t - 1, 3);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          score(t - 1, 2, m, n);
        }
      }
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          score(t - 1, 3, m, n);
        }
      }
      advance(t - 1);
      weigh(t - 1);
      if (t >= 2) {
        rescale(t - 1);
      }
      convert(t - 1);
      load_c(t - 1, 0);
      load_c(t - 1, 1);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          mma(t - 1, 0, m, n);
        }
      }
      load_c(t - 1, 2);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          mma(t - 1, 1, m, n);
        }
      }
      load_c(t - 1, 3);
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          mma(t - 1, 2, m, n);
        }
      }
      #pragma unroll
      for (int m = 0; m <= 1; ++m) {
        #pragma unroll
        for (int n = 0; n <= 7; ++n) {
          mma(t - 1, 3, m, n);
        }
      }
    }
  }
  complete();
  #pragma unroll
  for (int m = 0; m <= 1; ++m) {
    store(m);
  }
}

#ifndef __CUDACC_RTC__
// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t.
extern "C" int pg_attention_by_warps_launch(const unsigned short* __restrict__ q_, const unsigned short* __restrict__ k_, const unsigned short* __restrict__ v, unsigned short* __restrict__ y0, int B, int S, int T, int q_stride0, int q_stride1, int k_stride0, int k_stride1, int v_stride0, int v_stride1, int y0_stride0, int y0_stride1, void* stream) {
  if (B < 1 || B > 2147418112) return 20001;
  if (S < 1 || S > 2147418112) return 20002;
  if (T < 1 || T > 2147418112) return 20003;
  if ((64 + 63LL) / 64 * 1 > 2147483647 || ((S + 127LL) / 128 + 0) / 1 > 65535 || 1LL * B > 2147418112 || (64 + 63LL) / 64 * 1 * ((1LL * B + 65534) / 65535) > 2147483647) return 20004;
  if (S > 1 && q_stride1 < 0) return 20005;
  if (S > 1 && q_stride1 % 8) return 20006;
  if (B > 1 && q_stride0 < 0) return 20007;
  if (B > 1 && q_stride0 % 8) return 20008;
  if (T > 1 && k_stride1 < 0) return 20009;
  if (T > 1 && k_stride1 % 8) return 20010;
  if (B > 1 && k_stride0 < 0) return 20011;
  if (B > 1 && k_stride0 % 8) return 20012;
  if (T > 1 && v_stride1 < 0) return 20013;
  if (T > 1 && v_stride1 % 8) return 20014;
  if (B > 1 && v_stride0 < 0) return 20015;
  if (B > 1 && v_stride0 % 8) return 20016;
  if (S > 1 && y0_stride1 < (64 - 1LL) + 1) return 20017;
  if (S > 1 && y0_stride1 % 8) return 20018;
  if (B > 1 && y0_stride0 < (S - 1LL) * y0_stride1 + (64 - 1LL) + 1) return 20019;
  if (B > 1 && y0_stride0 % 8) return 20020;
  if ((unsigned long long)q_ % 16) return 20021;
  if ((unsigned long long)k_ % 16) return 20022;
  if ((unsigned long long)v % 16) return 20023;
  if ((unsigned long long)y0 % 16) return 20024;
  if ((unsigned long long)y0 < (unsigned long long)q_ + ((B - 1LL) * q_stride0 + (S - 1LL) * q_stride1 + (64 - 1LL) + 1) * 2 && (unsigned long long)q_ < (unsigned long long)y0 + ((B - 1LL) * y0_stride0 + (S - 1LL) * y0_stride1 + (64 - 1LL) + 1) * 2) return 20025;
  if ((unsigned long long)y0 < (unsigned long long)k_ + ((B - 1LL) * k_stride0 + (T - 1LL) * k_stride1 + (64 - 1LL) + 1) * 2 && (unsigned long long)k_ < (unsigned long long)y0 + ((B - 1LL) * y0_stride0 + (S - 1LL) * y0_stride1 + (64 - 1LL) + 1) * 2) return 20026;
  if ((unsigned long long)y0 < (unsigned long long)v + ((B - 1LL) * v_stride0 + (T - 1LL) * v_stride1 + (64 - 1LL) + 1) * 2 && (unsigned long long)v < (unsigned long long)y0 + ((B - 1LL) * y0_stride0 + (S - 1LL) * y0_stride1 + (64 - 1LL) + 1) * 2) return 20027;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_attention_by_warps, cudaFuncAttributeMaxDynamicSharedMemorySize, 49152);
  if (status != cudaSuccess) return (int)status;
  const unsigned tiles_along = (S + 127) / 128;
  const unsigned tiles_across = (64 + 63) / 64;
  const unsigned rounds = (unsigned)((1LL * B + 65534) / 65535), matrices = rounds > 1 ? 65535 : (unsigned)(1LL * B);
  const dim3 grid(tiles_across * 1 * rounds, (tiles_along + 0) / 1, matrices);
  pg_attention_by_warps<<<grid, 128, 49152, (cudaStream_t)stream>>>(q_, k_, v, y0, B, S, T, (B > 1 ? q_stride0 : 0), (S > 1 ? q_stride1 : 0), (B > 1 ? k_stride0 : 0), (T > 1 ? k_stride1 : 0), (B > 1 ? v_stride0 : 0), (T > 1 ? v_stride1 : 0), (B > 1 ? y0_stride0 : 0), (S > 1 ? y0_stride1 : 0));
  return (int)cudaGetLastError();
}
#endif
