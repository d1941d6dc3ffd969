// two_outputs: where(x @ w.T > c, s * (x @ w.T), 0), x @ w.T
//   in  x: bf16[M, K]
//   in  w: bf16[N, K]
//   in  c: f32[M, 1]
//   in  s: f32[]
//   out y0: f32[M, N]
//   out y1: f16[M, N]
//    S0  v0[i,j] += x[i,k] * w[j,k]               i < M, j < N, k < K   (f32)
//    P1  v1[i,j] = gt(v0[i,j], c[i,0])            i < M, j < N   (bool)
//    P2  v2[i,j] = mul(s, v0[i,j])                i < M, j < N   (f32)
//    P3  v3[i,j] = where(v1[i,j], v2[i,j], 0.0)   i < M, j < N   (f32)
//    P4  y0[i,j] = cast(v3[i,j])                  i < M, j < N   (f32)
//    P5  y1[i,j] = cast(v0[i,j])                  i < M, j < N   (f16)
//
// mapping: block 32x32x128, 2x2 warps of 16x16, instruction 16x8x16, m16n8k16_f32_bf16 on sm_120
// needs: 128 threads, 98304 of 101376 B shared memory, about 54 registers per thread, 1 block(s) per multiprocessor
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
//   20010: c_stride0 is not negative if M > 1
//   20011: y0_stride0 leads beyond a row of y0 if M > 1
//   20012: y0_stride0 is a multiple of 4 if M > 1
//   20013: y1_stride0 leads beyond a row of y1 if M > 1
//   20014: y1_stride0 is a multiple of 4 if M > 1
//   20015: the address of x is a multiple of 8
//   20016: the address of w is a multiple of 8
//   20017: the address of c is a multiple of 4
//   20018: the address of y0 is a multiple of 16
//   20019: the address of y1 is a multiple of 8
//   20020: y0 shares no memory with x
//   20021: y0 shares no memory with w
//   20022: y0 shares no memory with c
//   20023: y1 shares no memory with x
//   20024: y1 shares no memory with w
//   20025: y1 shares no memory with c
//   20026: y1 shares no memory with y0
// barriers, and the dependences they enforce:
//   bar_load_a (block): copy_a -> load_a (flow through ring_a); load_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 6 version(s) later); copy_b -> copy_b (reuse through ring_b, 6 version(s) later); load_a -> stage (overlay through scratch); copy_a -> stage (overlay through scratch); load_b -> stage (overlay through scratch); copy_b -> stage (overlay through scratch)
//   bar_store (one agent): stage -> store (flow through scratch)
//   bar_stage (block): load_a -> stage (overlay through scratch); load_b -> stage (overlay through scratch)
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
//   through = "smem"
//   slots = 2
//   prefetch = 2
//   columns = 0
//   [launch]
//   realign = false
//   dependent = true
// made by: polygen generate 'where(x @ w.T > c, s * (x @ w.T), 0), x @ w.T' 'x:bf16[M,K]' 'w:bf16[N,K]' 'c:f32[M,1]' s:f32 --arch sm_120 --name two_outputs --size M=200 N=300 K=500 --out-dtype f32 f16 -o -

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
      const uint4 part = __ldca(reinterpret_cast<const uint4*>(from) + i / 4);
      words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
    } else if constexpr (WIDTH == 8) {
      const uint2 part = __ldca(reinterpret_cast<const uint2*>(from) + i / 2);
      words[i] = part.x, words[i + 1] = part.y;
    } else {
      words[i] = __ldca(reinterpret_cast<const unsigned*>(from) + i);
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
__device__ __forceinline__ float element_f16(const unsigned (&words)[WORDS], int e) {
  return from_f16((unsigned short)(words[e / 2] >> e % 2 * 16));
}
template <int V, int WIDTH>
__device__ __forceinline__ void write_f16(unsigned short* to, const float (&v)[V]) {
  unsigned words[V * 2 / 4];
#pragma unroll
  for (int i = 0; i < V * 2 / 4; ++i) words[i] = to_f16(v[2 * i]) | (unsigned)to_f16(v[2 * i + 1]) << 16;
  write_words<V * 2 / 4, WIDTH>(to, words);
}
template <int WORDS>
__device__ __forceinline__ float element_f32(const unsigned (&words)[WORDS], int e) {
  return from_f32(__uint_as_float(words[e]));
}
template <int V, int WIDTH>
__device__ __forceinline__ void write_f32(float* to, const float (&v)[V]) {
  unsigned words[V * 4 / 4];
#pragma unroll
  for (int i = 0; i < V * 4 / 4; ++i) words[i] = __float_as_uint(v[i]);
  write_words<V * 4 / 4, WIDTH>(to, words);
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
__device__ __forceinline__ int place_scratch(int row, int byte) {
  return row * 64 + (((byte >> 4) ^ ((row >> 1) & 1)) << 4) + (byte & 15);
}

extern "C" __global__ void __launch_bounds__(128, 1)
pg_two_outputs(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const float* __restrict__ c, float s_, float* __restrict__ y0, unsigned short* __restrict__ y1, int M, int K, int N, int x_stride0, int w_stride0, int c_stride0, int y0_stride0, int y1_stride0) {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  // Dependent kernels may begin when all blocks have; they wait for the end of this one themselves.
  asm volatile("griddepcontrol.launch_dependents;");
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
  // bar_load_a: copy_a -> load_a (flow through ring_a); load_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_a -> copy_a (reuse through ring_a, 6 version(s) later); copy_b -> load_b (flow through ring_b); load_b -> copy_b (reuse through ring_b, 6 version(s) later); copy_b -> copy_b (reuse through ring_b, 6 version(s) later); load_a -> stage (overlay through scratch); copy_a -> stage (overlay through scratch); load_b -> stage (overlay through scratch); copy_b -> stage (overlay through scratch)
  auto bar_load_a = [&](int) __attribute__((always_inline)) { __syncthreads(); };
  // bar_store: stage -> store (flow through scratch)
  auto bar_store = [&]() __attribute__((always_inline)) { __syncwarp(); };
  // bar_stage: load_a -> stage (overlay through scratch); load_b -> stage (overlay through scratch)
  auto bar_stage = [&]() __attribute__((always_inline)) { __syncthreads(); };
  // wait_load_a: all but the last 4 group(s) of cp.async are complete
  auto wait_load_a = [&](int) __attribute__((always_inline)) { asm volatile("cp.async.wait_group 4;" ::: "memory"); };
  // wait_grids_warps: the grids before are complete, and their writes are visible
  auto wait_grids_warps = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w), "+l"(c), "+l"(y0), "+l"(y1) :: "memory"); };
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
  auto compute = [&](float sum, float c_0, float s_1, float& y0_result, float& y1_result) __attribute__((always_inline)) {
    const bool t1 = sum > c_0;
    const float t2 = s_1 * sum;
    const float t3 = t1 ? t2 : 0.0f;
    y0_result = t3;
    y1_result = sum;
  };
  // Results at the edge of the arrays, one at a time: element e of a vector at (row, column).
  auto finish_element = [&](int row, int column, int e, float sum) __attribute__((always_inline)) {
    const float c_0_element = from_f32(__ldca(c + (long long)row * c_stride0));
    float y0_out;
    float y1_out;
    compute(sum, c_0_element, s_, y0_out, y1_out);
    *(y0 + (long long)row * y0_stride0 + (column + e)) = to_f32(y0_out);
    *(y1 + (long long)row * y1_stride0 + (column + e)) = to_f16(y1_out);
  };
  // prepare: operands that are the same in every row
  auto prepare = [&]() __attribute__((always_inline)) {
  };
  // stage[m]: sums of one row of instructions -> this warp's scratch area
  auto stage = [&](int m) __attribute__((always_inline)) {
    const unsigned area = shared + 0 + warp * 1024;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      write_pair(area + place_scratch(m * 16 + (lane / 4), (n * 8 + 2 * (lane % 4)) * 4), sum[m][n][0], sum[m][n][1]);
      write_pair(area + place_scratch(m * 16 + (lane / 4) + 8, (n * 8 + 2 * (lane % 4)) * 4), sum[m][n][2], sum[m][n][3]);
    }
  };
  // store[r]: scratch -> 1 vector(s) of 8 adjacent results per lane
  auto store = [&](int r) __attribute__((always_inline)) {
    const unsigned area = shared + 0 + warp * 1024;
    const int item = r * 32 + lane;
    const int local_column = item % 2 * 8;
    const int column = b_n * 32 + w_n * 16 + local_column;
    const int count = N - column;
    if (count >= 8) {
      float c_0_element[1];
#pragma unroll
      for (int i = 0; i < 1; ++i) {
        const int row = b_m * 32 + w_m * 16 + (item + i * 32) / 2;
        const int safe_row = min(row, M - 1);  // a row outside is read from the last, and not stored
        c_0_element[i] = from_f32(__ldca(c + (long long)safe_row * c_stride0));
      }
#pragma unroll
      for (int i = 0; i < 1; ++i) {
        const int local_row = (item + i * 32) / 2, row = b_m * 32 + w_m * 16 + local_row;
        float sums[8];
        read_quad(&sums[0], area + place_scratch(local_row, (local_column + 0) * 4));
        read_quad(&sums[4], area + place_scratch(local_row, (local_column + 4) * 4));
        float y0_out[8];
        float y1_out[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) compute(sums[e], c_0_element[i], s_, y0_out[e], y1_out[e]);
        if (row < M) {
          write_f32<8, 16>(y0 + (long long)row * y0_stride0 + column, y0_out);
          write_f16<8, 8>(y1 + (long long)row * y1_stride0 + column, y1_out);
        }
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 1; ++i) {
      const int local_row = (item + i * 32) / 2, row = b_m * 32 + w_m * 16 + local_row;
      if (row >= M) break;
#pragma unroll 1
      for (int e = 0; e < min(count, 8); ++e)
        finish_element(row, column, e, read_sum(area + place_scratch(local_row, (local_column + e) * 4)));
    }
  };

  // The loops, generated by isl from the schedule tree.
  wait_grids_warps();
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
  prepare();
  bar_stage();
  stage(0);
  bar_store();
  store(0);
}

#ifndef __CUDACC_RTC__
// Launches a kernel that may begin before those before it on the stream have ended: it waits for them itself.
template <typename Kernel, typename... Arguments>
static cudaError_t polygen_launch_dependent(dim3 grid, unsigned threads, unsigned shared_bytes, void* stream, Kernel kernel, const Arguments&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = (cudaStream_t)stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t.
extern "C" int pg_two_outputs_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const float* __restrict__ c, float s_, float* __restrict__ y0, unsigned short* __restrict__ y1, int M, int K, int N, int x_stride0, int w_stride0, int c_stride0, int y0_stride0, int y1_stride0, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if ((N + 31LL) / 32 * 8 > 2147483647 || ((M + 31LL) / 32 + 7) / 8 > 65535) return 20004;
  if (K % 4) return 20005;
  if (M > 1 && x_stride0 < 0) return 20006;
  if (M > 1 && x_stride0 % 4) return 20007;
  if (N > 1 && w_stride0 < 0) return 20008;
  if (N > 1 && w_stride0 % 4) return 20009;
  if (M > 1 && c_stride0 < 0) return 20010;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20011;
  if (M > 1 && y0_stride0 % 4) return 20012;
  if (M > 1 && y1_stride0 < (N - 1LL) + 1) return 20013;
  if (M > 1 && y1_stride0 % 4) return 20014;
  if ((unsigned long long)x % 8) return 20015;
  if ((unsigned long long)w % 8) return 20016;
  if ((unsigned long long)c % 4) return 20017;
  if ((unsigned long long)y0 % 16) return 20018;
  if ((unsigned long long)y1 % 8) return 20019;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20020;
  if ((unsigned long long)y0 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20021;
  if ((unsigned long long)y0 < (unsigned long long)c + ((M - 1LL) * c_stride0 + 1) * 4 && (unsigned long long)c < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20022;
  if ((unsigned long long)y1 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + (N - 1LL) + 1) * 2) return 20023;
  if ((unsigned long long)y1 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + (N - 1LL) + 1) * 2) return 20024;
  if ((unsigned long long)y1 < (unsigned long long)c + ((M - 1LL) * c_stride0 + 1) * 4 && (unsigned long long)c < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + (N - 1LL) + 1) * 2) return 20025;
  if ((unsigned long long)y1 < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4 && (unsigned long long)y0 < (unsigned long long)y1 + ((M - 1LL) * y1_stride0 + (N - 1LL) + 1) * 2) return 20026;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_two_outputs, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304);
  if (status != cudaSuccess) return (int)status;
  const unsigned tiles_along = (M + 31) / 32;
  const unsigned tiles_across = (N + 31) / 32;
  const dim3 grid(tiles_across * 8, (tiles_along + 7) / 8);
  return (int)polygen_launch_dependent(grid, 128, 98304, stream, pg_two_outputs, x, w, c, s_, y0, y1, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? c_stride0 : 0), (M > 1 ? y0_stride0 : 0), (M > 1 ? y1_stride0 : 0));
}
#endif
