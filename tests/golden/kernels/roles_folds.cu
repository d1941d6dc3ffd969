// roles_folds: x @ w.T, mean(x @ w.T, axis=1), argmax(x @ w.T, axis=0)
//   in  x: bf16[M, K]
//   in  w: bf16[N, K]
//   out y0: bf16[M, N]
//   out y1: f32[M]
//   out y2: s32[N]
//    S0  v0[i,j] += x[i,k] * w[j,k]            i < M, j < N, k < K   (f32)
//    P1  y0[i,j] = cast(v0[i,j])               i < M, j < N   (bf16)
//    F2  v2[i] = sum over j of v0[i,j]         i < M, j < N   (f32)
//    P3  v3[i] = div(v2[i], size(N))           i < M   (f32)
//    P4  y1[i] = cast(v3[i])                   i < M   (f32)
//    F5  v5[j] = argmax over i of v0[i,j], i   i < M, j < N   (s32)
//    P6  y2[i] = cast(v5[i])                   i < N   (s32)
//
// mapping: block 128x128x64, 2 consumer warpgroup(s) of 128x128, instruction 64x128x16, wgmma_m64k16_f32_bf16 on sm_90a
// needs: 384 threads, 229488 of 232448 B shared memory, about 168 registers per thread, 1 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 2147418112
//   20003: N is 1 to 2147418112
//   20004: N is a multiple of 8: rows of y0 are whole copies
//   20005: x_stride0 is not negative if M > 1
//   20006: x_stride0 is a multiple of 8 if M > 1
//   20007: w_stride0 is not negative if N > 1
//   20008: w_stride0 is a multiple of 8 if N > 1
//   20009: y0_stride0 leads beyond a row of y0 if M > 1
//   20010: y0_stride0 is a multiple of 8 if M > 1
//   20011: the address of x is a multiple of 16
//   20012: the address of w is a multiple of 16
//   20013: the address of y0 is a multiple of 16
//   20014: the address of y1 is a multiple of 4
//   20015: the address of y2 is a multiple of 4
//   20016: y0 shares no memory with x
//   20017: y0 shares no memory with w
//   20018: y1 shares no memory with x
//   20019: y1 shares no memory with w
//   20020: y1 shares no memory with y0
//   20021: y2 shares no memory with x
//   20022: y2 shares no memory with w
//   20023: y2 shares no memory with y0
//   20024: y2 shares no memory with y1
// barriers, and the dependences they enforce:
//   full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 6 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 6 version(s) later)
//   empty_ring: multiply -> fill (reuse through ring_a, 6 version(s) later); fill -> fill (reuse through ring_a, 6 version(s) later); multiply -> fill (reuse through ring_b, 6 version(s) later); fill -> fill (reuse through ring_b, 6 version(s) later)
//   bar_store (one agent): finish -> store (flow through result_y0, fence.proxy.async); store -> finish (reuse through result_y0, 2 version(s) later); finish -> finish (reuse through result_y0, 2 version(s) later)
//   turn: wait_full_ring begins when the phase before its own is over, for its parity bit
// schedule:
//   format = 1
//   name = "pingpong_128x128x64"
//   device = "sm_90a"
//   atom = "auto"
//   min_blocks = 1
//   [tile.cta]
//   m = 128
//   n = 128
//   k = 64
//   [tile.warp]
//   m = 128
//   n = 128
//   [pipeline]
//   stages = 6
//   distance = 2
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
//   form = "pingpong"
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
//   through = "tma"
//   slots = 2
//   prefetch = 2
//   columns = 0
//   [launch]
//   realign = false
//   dependent = false
//   trigger = "loads"
// made by: polygen generate 'x @ w.T, mean(x @ w.T, axis=1), argmax(x @ w.T, axis=0)' 'x:bf16[M,K]' 'w:bf16[N,K]' --arch sm_90a --name roles_folds --size M=4096 N=4096 K=1024 -o -

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
__device__ __forceinline__ float from_s32(int bits) {
  const int b = bits;
  return (float)b;
}
// Whole numbers of 32 bits travel as the floats that their bits are.
__device__ __forceinline__ float round_s32(float value) { return __int_as_float(__float2int_rn(value)); }
__device__ __forceinline__ int to_s32(float bits) { return __float_as_int(bits); }

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
struct alignas(64) TensorMap { unsigned long long words[16]; };

__device__ __forceinline__ void barrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
// One arrival, and as many bytes as copies will bring before the phase completes.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// Waits until the phase of that parity has completed.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @done bra ready; bra again; ready: }"
               :: "r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
// A box at (inner, outer) of a tensor -> shared memory; elements outside the tensor read as zero.
__device__ __forceinline__ void box_load(unsigned to, const TensorMap* map, unsigned barrier, int inner, int outer) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4 }], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer) : "memory");
}
// A box from shared memory -> (inner, outer) of a tensor; elements outside it are left out.
__device__ __forceinline__ void box_store(const TensorMap* map, unsigned from, int inner, int outer) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, { %2, %3 }], [%1];"
               :: "l"(map), "r"(from), "r"(inner), "r"(outer) : "memory");
}
__device__ __forceinline__ void matrices_write(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4 };"
               :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void pair_write(unsigned to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], { %1, %2 };" :: "r"(to), "f"(first), "f"(second) : "memory");
}
// Brings the line of an element into the first-level cache.
__device__ __forceinline__ void warm(const void* from) {
  asm volatile("{ .reg .b8 byte; ld.global.ca.b8 byte, [%0]; }" :: "l"(from) : "memory");
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
// wgmma_m64k16_f32_bf16: c[64,128] = a * b (+ c if accumulate), by a warpgroup
__device__ __forceinline__ void multiply_matrices(float (&c)[16][4], unsigned long long a, unsigned long long b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0; }"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]), "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
               : "l"(a), "l"(b), "r"(accumulate));
}
// A slot of a ring, and the parity of the round.
template <int SLOTS>
struct Cursor {
  int slot = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == SLOTS) slot = 0, parity ^= 1;
  }
  __device__ __forceinline__ void advance_by(int steps) {
    slot += steps;
    parity ^= slot / SLOTS & 1;
    slot %= SLOTS;
  }
};
// What divides numbers from 0 up, again and again. The upper half of the product with the inverse is
// the quotient or one less: the inverse is less than 2^32 / by by at most 1, and the number below 2^32.
struct Divisor {
  int by;
  unsigned inverse;
  __device__ __forceinline__ explicit Divisor(int by) : by(by), inverse(0xffffffffu / by) {}
};
__device__ __forceinline__ int operator/(int number, const Divisor& divisor) {
  const int below = __umulhi(number, divisor.inverse);
  return below + (number - below * divisor.by >= divisor.by);
}
__device__ __forceinline__ int operator%(int number, const Divisor& divisor) {
  return number - number / divisor * divisor.by;
}

__device__ __forceinline__ void combine_sum(float& a0, const float b0) {
  const float t1 = a0 + b0;
  a0 = t1;
}
__device__ __forceinline__ void combine_argmax(float& a0, float& a1, const float b0, const float b1) {
  const bool t1 = b0 > a0;
  const bool t2 = b0 != b0;
  const bool t3 = a0 != a0;
  const bool t4 = !t3;
  const bool t5 = t2 && t4;
  const bool t6 = t1 || t5;
  const bool t7 = b0 == a0;
  const bool t8 = a0 != a0;
  const bool t9 = b0 != b0;
  const bool t10 = t8 && t9;
  const bool t11 = t7 || t10;
  const bool t12 = b1 < a1;
  const bool t13 = t11 && t12;
  const bool t14 = t6 || t13;
  const float t15 = t14 ? b0 : a0;
  const float t16 = t14 ? b1 : a1;
  a0 = t15;
  a1 = t16;
}
__device__ __forceinline__ void combine_argmax_later(float& a0, float& a1, const float b0, const float b1) {
  const bool t1 = b0 <= a0;
  const bool t2 = !t1;
  const bool t3 = a0 == a0;
  const bool t4 = t2 && t3;
  const bool t5 = a1 == __int_as_float(0x7f800000);
  const bool t6 = t4 || t5;
  const float t7 = t6 ? b0 : a0;
  const float t8 = t6 ? b1 : a1;
  a0 = t7;
  a1 = t8;
}

extern "C" __global__ void __launch_bounds__(384, 1)
pg_roles_folds(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, unsigned short* __restrict__ y0, float* __restrict__ y1, int* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0, float* parts, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_out_y0) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32;
  // The same in all threads of a warp, and known to be.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), group = warp / 4;
  const int k_tiles = (K + 63) / 64;
  // Work items are tiles; a block takes every `stride`-th.
  const int tiles_m = (M + 127) / 128, tiles_n = (N + 127) / 128;
  const int first = blockIdx.x / 1, stride = gridDim.x / 1;
  const int tiles = (tiles_m * tiles_n - first + stride - 1) / stride;

  // barriers: which dependence each enforces stands beside its wait
  if (thread == 0) {
    for (int slot = 0; slot < 6; ++slot) barrier_init(shared + 229376 + 8 * slot, 1);  // full_ring
    for (int slot = 0; slot < 6; ++slot) barrier_init(shared + 229424 + 8 * slot, 1);  // empty_ring
    for (int slot = 0; slot < 2; ++slot) barrier_init(shared + 229472 + 8 * slot, 1);  // turn
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (thread == 256) prefetch_map(&map_a);
  if (thread == 256) prefetch_map(&map_b);
  if (thread == 256) prefetch_map(&map_out_y0);
  __syncthreads();
  // locate[i]: the i-th output tile of this block. Groups of 8 along m.
  const auto per_band = Divisor(8 * tiles_n);
  const auto last_width = Divisor(max(tiles_m % 8, 1));
  int b_m = 0, b_n = 0;
  auto locate = [&](int i) __attribute__((always_inline)) {
    const int item = first + i * stride;
    const int band = item / per_band, in_band = item % per_band;
    const auto width = min(8, tiles_m - band * 8) == 8 ? Divisor(8) : last_width;
    b_m = band * 8 + in_band % width, b_n = in_band / width;
  };

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == 8 && lane == 0) {
      Cursor<6> ring_producer;
      // fill[i,k]: x -> ring_a, w -> ring_b, by the copy engine, zeros outside the arrays
      auto fill = [&](int, int k) __attribute__((always_inline)) {
        const unsigned full = shared + 229376 + ring_producer.slot * 8;
        barrier_expect(full, 32768);
        box_load(shared + 0 + ring_producer.slot * 16384 + 0, &map_a, full, k * 64 + 0, b_m * 128);
        box_load(shared + 98304 + ring_producer.slot * 16384 + 0, &map_b, full, k * 64 + 0, b_n * 128);
        ring_producer.advance();
      };
      // wait_empty_ring: multiply -> fill (reuse through ring_a, 6 version(s) later); fill -> fill (reuse through ring_a, 6 version(s) later); multiply -> fill (reuse through ring_b, 6 version(s) later); fill -> fill (reuse through ring_b, 6 version(s) later)
      auto wait_empty_ring = [&](int, int) __attribute__((always_inline)) {
        barrier_wait(shared + 229424 + ring_producer.slot * 8, ring_producer.parity ^ 1);
      };
      #pragma unroll 1
      for (int i = 0; i < tiles; ++i) {
        locate(i);
        #pragma unroll 1
        for (int k = 0; k < k_tiles; ++k) {
          wait_empty_ring(i, k);
          fill(i, k);
        }
      }
      // What others make is on its way: dependent kernels may begin; they wait for this one's end.
      asm volatile("griddepcontrol.launch_dependents;");
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int turn = group;
    const int quarter = warp % 4 * 16, w_m = 0, w_n = 0;
    float sum[2][16][4] = {};
    Cursor<6> ring_consumer;
    Cursor<6> ring_consumer_behind;
    // multiply[i,k,s,m]: sum[m] += ring_a * ring_b, proved to read what the copies wrote
    const unsigned low_a = ((shared + 0) & 0x3ffffu) / 16 + 0x10000u, low_b = ((shared + 98304) & 0x3ffffu) / 16 + 0x10000u;
    auto multiply = [&](int, int k, int s, int m) __attribute__((always_inline)) {
      const unsigned address_a = low_a + (unsigned)(ring_consumer.slot * 16384 + s * 32 + m * 8192) / 16;
      const unsigned address_b = low_b + (unsigned)(ring_consumer.slot * 16384 + s * 32) / 16;
      multiply_matrices(sum[m], (unsigned long long)0x40000040u << 32 | address_a, (unsigned long long)0x40000040u << 32 | address_b, k > 0 || s > 0);
    };
    auto commit = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); ring_consumer.advance(); };
    // The fused pointwise statements, on one element.
    auto compute = [&](float sum, float at0, float& y0_result, float& v2_0_result, float& v5_0_result, float& v5_1_result) __attribute__((always_inline)) {
      y0_result = sum;
      v2_0_result = sum;
      v5_0_result = sum;
      v5_1_result = at0;
    };
    // prepare[i]: operands with one value per column are near by the time the sums are complete
    auto prepare = [&](int) __attribute__((always_inline)) {
    };
    // unfold: nothing is folded yet
    float v2_part0[2][2][2];
    float v5_part0[16][2][1], v5_part1[16][2][1];
    auto unfold = [&](int) __attribute__((always_inline)) {
#pragma unroll
      for (int fold_i = 0; fold_i < 8; ++fold_i) { (&v2_part0[0][0][0])[fold_i] = (-0.0f); }
#pragma unroll
      for (int fold_i = 0; fold_i < 32; ++fold_i) { (&v5_part0[0][0][0])[fold_i] = __int_as_float(0xff800000); (&v5_part1[0][0][0])[fold_i] = __int_as_float(0x7f800000); }
    };
    // finish[i,p]: 64 rows by 64 columns of sums -> pointwise functions -> a panel of results
    auto finish = [&](int, int p) __attribute__((always_inline)) {
      const int block = p / 2, first_block = p % 2 * 8;
      const int first_row = b_m * 128 + block * 64 + quarter + lane / 4;
      const float at0_element[2] = {(float)(first_row), (float)(first_row + 8)};
      const int first_column = b_n * 128 + p % 2 * 64 + lane % 4 * 2;
      const int fold_rows = M - first_row, fold_columns = N - first_column;
      const unsigned y0_at = shared + 196608 + group * 16384 + p % 2 * 8192 + (quarter + lane % 16) * 128 + ((lane / 16 ^ (lane % 8 & 7)) << 4);
      unsigned y0_words[8][2];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float y0_out[2];
          float v2_0_out[2];
          float v5_0_out[2];
          float v5_1_out[2];
          compute(sum[block][first_block + j][2 * half + 0], at0_element[half], y0_out[0], v2_0_out[0], v5_0_out[0], v5_1_out[0]);
          compute(sum[block][first_block + j][2 * half + 1], at0_element[half], y0_out[1], v2_0_out[1], v5_0_out[1], v5_1_out[1]);
          y0_words[j][half] = pack_bf16(y0_out[0], y0_out[1]);
          if (half * 8 < fold_rows && j * 8 + 0 < fold_columns) {
            combine_sum(v2_part0[block][(half ? 1 : 0)][0], v2_0_out[0]);
            combine_argmax_later(v5_part0[(first_block + j)][0][0], v5_part1[(first_block + j)][0][0], v5_0_out[0], v5_1_out[0]);
          }
          if (half * 8 < fold_rows && j * 8 + 1 < fold_columns) {
            combine_sum(v2_part0[block][(half ? 1 : 0)][1], v2_0_out[1]);
            combine_argmax_later(v5_part0[(first_block + j)][1][0], v5_part1[(first_block + j)][1][0], v5_0_out[1], v5_1_out[1]);
          }
        }
      }
      #pragma unroll
      for (int j = 0; j < 8; j += 2) matrices_write(y0_at ^ j << 4, y0_words[j + 0][0], y0_words[j + 0][1], y0_words[j + 1][0], y0_words[j + 1][1]);
    };
    // fold: lanes with elements of one place meet, one writes
    auto fold = [&](int) __attribute__((always_inline)) {
#pragma unroll
      for (int fold_i = 0; fold_i < 2; ++fold_i) {
        {
          float fold_0 = v2_part0[fold_i][0][0];
          combine_sum(fold_0, v2_part0[fold_i][0][1]);
          combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 1));
          combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 2));
          const int fold_place = b_m * 128 + w_m * 128 + quarter + fold_i * 64 + (lane / 4);
          if ((lane & 3) == 0 && fold_place < M) {
            const long long fold_at = (long long)(b_n * 1 + w_n) * (1LL * M) + (long long)fold_place;
            (parts)[fold_at] = fold_0;
          }
        }
        {
          float fold_0 = v2_part0[fold_i][1][0];
          combine_sum(fold_0, v2_part0[fold_i][1][1]);
          combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 1));
          combine_sum(fold_0, __shfl_xor_sync(0xffffffffu, fold_0, 2));
          const int fold_place = b_m * 128 + w_m * 128 + quarter + fold_i * 64 + (lane / 4) + 8;
          if ((lane & 3) == 0 && fold_place < M) {
            const long long fold_at = (long long)(b_n * 1 + w_n) * (1LL * M) + (long long)fold_place;
            (parts)[fold_at] = fold_0;
          }
        }
      }
#pragma unroll
      for (int fold_i = 0; fold_i < 16; ++fold_i) {
        {
          float fold_0 = v5_part0[fold_i][0][0], fold_1 = v5_part1[fold_i][0][0];
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 4), __shfl_xor_sync(0xffffffffu, fold_1, 4));
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 8), __shfl_xor_sync(0xffffffffu, fold_1, 8));
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 16), __shfl_xor_sync(0xffffffffu, fold_1, 16));
          const int fold_place = b_n * 128 + w_n * 128 + fold_i * 8 + 2 * (lane % 4);
          if ((lane & 28) == 0 && fold_place < N) {
            const long long fold_at = (long long)((b_m * 1 + w_m) * 4 + warp % 4) * (1LL * N) + (long long)fold_place;
            (parts + 1LL * ((N + 127) / 128) * M)[fold_at] = fold_0;
            (parts + 1LL * ((N + 127) / 128) * M + 1LL * ((M + 127) / 128 * 4) * N)[fold_at] = fold_1;
          }
        }
        {
          float fold_0 = v5_part0[fold_i][1][0], fold_1 = v5_part1[fold_i][1][0];
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 4), __shfl_xor_sync(0xffffffffu, fold_1, 4));
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 8), __shfl_xor_sync(0xffffffffu, fold_1, 8));
          combine_argmax(fold_0, fold_1, __shfl_xor_sync(0xffffffffu, fold_0, 16), __shfl_xor_sync(0xffffffffu, fold_1, 16));
          const int fold_place = b_n * 128 + w_n * 128 + fold_i * 8 + 2 * (lane % 4) + 1;
          if ((lane & 28) == 0 && fold_place < N) {
            const long long fold_at = (long long)((b_m * 1 + w_m) * 4 + warp % 4) * (1LL * N) + (long long)fold_place;
            (parts + 1LL * ((N + 127) / 128) * M)[fold_at] = fold_0;
            (parts + 1LL * ((N + 127) / 128) * M + 1LL * ((M + 127) / 128 * 4) * N)[fold_at] = fold_1;
          }
        }
      }
    };
    // store[i,p]: one thread of the warpgroup has the copy engine write the panel, clipped at the edges
    auto store = [&](int, int p) __attribute__((always_inline)) {
      if (thread % 128 == 0) {
        box_store(&map_out_y0, shared + 196608 + group * 16384 + p % 2 * 8192 + 0, b_n * 128 + p % 2 * 64 + 0, b_m * 128 + p / 2 * 64);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    };
    // wait_full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 6 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 6 version(s) later)
    auto wait_full_ring = [&](int, int) __attribute__((always_inline)) {
      barrier_wait(shared + 229376 + ring_consumer.slot * 8, ring_consumer.parity);
    };
    // arrive_empty_ring: multiply -> fill (reuse through ring_a, 6 version(s) later); fill -> fill (reuse through ring_a, 6 version(s) later); multiply -> fill (reuse through ring_b, 6 version(s) later); fill -> fill (reuse through ring_b, 6 version(s) later)
    auto arrive_empty_ring = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 229424 + ring_consumer_behind.slot * 8);
      ring_consumer_behind.advance();
    };
    // retire_empty_ring: all but the last 1 group(s) of wgmma are complete
    auto retire_empty_ring = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); };
    // arrive_empty_ring_rest: multiply -> fill (reuse through ring_a, 6 version(s) later); fill -> fill (reuse through ring_a, 6 version(s) later); multiply -> fill (reuse through ring_b, 6 version(s) later); fill -> fill (reuse through ring_b, 6 version(s) later)
    auto arrive_empty_ring_rest = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 229424 + ring_consumer_behind.slot * 8);
      ring_consumer_behind.advance();
    };
    // retire_empty_ring_rest: all group(s) of wgmma are complete
    auto retire_empty_ring_rest = [&](int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); };
    // bar_store[i,p]: finish -> store (flow through result_y0, fence.proxy.async); store -> finish (reuse through result_y0, 2 version(s) later); finish -> finish (reuse through result_y0, 2 version(s) later)
    auto bar_store = [&](int, int) __attribute__((always_inline)) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); };
    // wait_store: all group(s) of tma.store are complete
    auto wait_store = [&](int, int) __attribute__((always_inline)) { if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); };
    auto fence_multiply = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); };
    // fence_store: the copy engine sees what this thread has written
    auto fence_store = [&](int, int) __attribute__((always_inline)) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); };
    // wait_last_store: all group(s) of tma.store are complete
    auto wait_last_store = [&]() __attribute__((always_inline)) { if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); };
    // skip_ring: tiles of other consumers
    auto skip_ring = [&](int) __attribute__((always_inline)) { ring_consumer.advance_by(k_tiles); ring_consumer_behind.advance_by(k_tiles); };
    // skip_ring_first: tiles of other consumers
    auto skip_ring_first = [&]() __attribute__((always_inline)) { ring_consumer.advance_by(turn * k_tiles); ring_consumer_behind.advance_by(turn * k_tiles); };
    // turn: wait_full_ring begins when the phase before its own is over, for its parity bit
    unsigned turn_parity = 1 - group;
    auto wait_turn = [&](int) __attribute__((always_inline)) {
      barrier_wait(shared + 229472 + group * 8, turn_parity);
      turn_parity ^= 1;
    };
    auto arrive_turn = [&](int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 229472 + (1 - group) * 8);
    };
    // The loops of a consumer, generated by isl from its schedule tree.
    if (turn == 1) {
      skip_ring_first();
    }
    #pragma unroll 1
    for (int i = turn; i < tiles; i += 2) {
      locate(i);
      prepare(i);
      wait_turn(i);
      wait_full_ring(i, 0);
      fence_multiply(i, 0);
      #pragma unroll
      for (int s = 0; s <= 3; ++s) {
        #pragma unroll
        for (int m = 0; m <= 1; ++m) {
          multiply(i, 0, s, m);
        }
      }
      commit(i, 0);
      #pragma unroll 1
      for (int k = 1; k < k_tiles; ++k) {
        wait_full_ring(i, k);
        fence_multiply(i, k);
        #pragma unroll
        for (int s = 0; s <= 3; ++s) {
          #pragma unroll
          for (int m = 0; m <= 1; ++m) {
            multiply(i, k, s, m);
          }
        }
        commit(i, k);
        retire_empty_ring(i, k - 1);
        arrive_empty_ring(i, k - 1);
      }
      arrive_turn(i);
      retire_empty_ring_rest(i);
      arrive_empty_ring_rest(i, k_tiles - 1);
      unfold(i);
      #pragma unroll
      for (int p = 0; p <= 3; ++p) {
        finish(i, p);
        fence_store(i, p);
        wait_store(i, p);
        bar_store(i, p);
        store(i, p);
      }
      fold(i);
      skip_ring(i);
    }
    wait_last_store();
  }
}

// The launch that follows: parts of folds -> results.
extern "C" __global__ void __launch_bounds__(512)
pg_roles_folds_folds(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, unsigned short* __restrict__ y0, float* __restrict__ y1, int* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0, float* parts, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_out_y0) {
  long long fold_block = blockIdx.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (fold_block < ((1LL * M + 31) / 32)) {
    const long long fold_result = fold_block * 32 + lane;
    const long long fold_results = 1LL * M;
    // wait_grids_warps: the grids before are complete, and their writes are visible
    auto wait_grids_warps = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w), "+l"(parts) :: "memory"); };
    // begin_0: nothing of v2 is combined yet
    float fold_v2_part0;
    auto begin_0 = [&]() __attribute__((always_inline)) {
      fold_v2_part0 = (-0.0f);
    };
    // combine_0: parts of v2, of the results of all lanes, part fold_q
    const long long fold_parts_0 = 1LL * ((N + 127) / 128);
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
    float y1_result;
    auto finish_0 = [&]() __attribute__((always_inline)) {
      const float t1 = fold_v2_part0 / (float)(1LL * N);
      y1_result = t1;
    };
    // store: y1
    auto store = [&]() __attribute__((always_inline)) {
      if (fold_result < fold_results) {
        *(y1 + fold_result) = to_f32(y1_result);
      }
    };
    // The loops, generated by isl from the schedule tree.
    wait_grids_warps();
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
  fold_block -= ((1LL * M + 31) / 32);
  const long long fold_result = fold_block * 32 + lane;
  const long long fold_results = 1LL * N;
  // wait_grids_warps: the grids before are complete, and their writes are visible
  auto wait_grids_warps = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w), "+l"(parts) :: "memory"); };
  // begin_0: nothing of v5 is combined yet
  float fold_v5_part0, fold_v5_part1;
  auto begin_0 = [&]() __attribute__((always_inline)) {
    fold_v5_part0 = __int_as_float(0xff800000);
    fold_v5_part1 = __int_as_float(0x7f800000);
  };
  // combine_0: parts of v5, of the results of all lanes, part fold_q
  const long long fold_parts_0 = 1LL * ((M + 127) / 128 * 4);
  const long long fold_v5_part0_from = 1LL * ((N + 127) / 128) * M + min(fold_result, fold_results - 1);
  const long long fold_v5_part1_from = 1LL * ((N + 127) / 128) * M + 1LL * ((M + 127) / 128 * 4) * N + min(fold_result, fold_results - 1);
  auto combine_0 = [&](const long long fold_q) __attribute__((always_inline)) {
    const float fold_v5_part0_read = __ldcg(parts + (fold_v5_part0_from + fold_q * fold_results));
    const float fold_v5_part1_read = __ldcg(parts + (fold_v5_part1_from + fold_q * fold_results));
    combine_argmax(fold_v5_part0, fold_v5_part1, fold_v5_part0_read, fold_v5_part1_read);
  };
  // give_0: every lane writes what the warp has
  __shared__ float fold_v5_given0[16][32], fold_v5_given1[16][32];
  auto give_0 = [&]() __attribute__((always_inline)) {
    fold_v5_given0[warp][lane] = fold_v5_part0;
    fold_v5_given1[warp][lane] = fold_v5_part1;
  };
  // bar_take_0: give_0 -> take_0 (flow through given_0)
  auto bar_take_0 = [&]() __attribute__((always_inline)) { __syncthreads(); };
  // take_0: what warp fold_w has, behind what the warps before it have
  auto take_0 = [&](int fold_w) __attribute__((always_inline)) {
    if (fold_w == 0) {
      fold_v5_part0 = fold_v5_given0[fold_w][lane];
      fold_v5_part1 = fold_v5_given1[fold_w][lane];
    } else {
      combine_argmax(fold_v5_part0, fold_v5_part1, fold_v5_given0[fold_w][lane], fold_v5_given1[fold_w][lane]);
    }
  };
  // finish_0: results, and what is computed of them
  float y2_result;
  auto finish_0 = [&]() __attribute__((always_inline)) {
    y2_result = round_s32(fold_v5_part1);
  };
  // store: y2
  auto store = [&]() __attribute__((always_inline)) {
    if (fold_result < fold_results) {
      *(y2 + fold_result) = to_s32(y2_result);
    }
  };
  // The loops, generated by isl from the schedule tree.
  wait_grids_warps();
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
#include <cuda.h>

// An axis of a tensor map: elements, elements from one to the next, elements of a box.
struct PolygenMapAxis { long long size, step; unsigned box; };

// Describes a tensor to the copy engine, innermost axis first. The driver's encoder is looked up at run time, so that no program has to link libcuda.
template <unsigned rank>
static cudaError_t polygen_encode_map(CUtensorMap* map, CUtensorMapDataType type, unsigned element_bytes, const void* tensor, const PolygenMapAxis (&axes)[rank], CUtensorMapSwizzle swizzle) {
  void* encoder = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encoder, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encoder, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) return status;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  cuuint64_t sizes[rank], steps[rank], reach = element_bytes;
  cuuint32_t box[rank], element_steps[rank];
  for (unsigned axis = 0; axis < rank; ++axis) {
    sizes[axis] = axes[axis].size;
    // One index alone has no next one; the driver still wants a step that could lead to it.
    const cuuint64_t beyond = (reach + 15) / 16 * 16, most = 1099511627760;
    steps[axis] = axes[axis].size > 1 ? axes[axis].step * element_bytes : beyond < most ? beyond : most;
    reach += (sizes[axis] - 1) * steps[axis];
    box[axis] = axes[axis].box;
    element_steps[axis] = 1;
  }
  // The innermost axis has no step of its own.
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encoder)(
      map, type, rank, const_cast<void*>(tensor), sizes, steps + 1, box, element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

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

// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t: 1 (invalid value) for an array the driver makes no tensor map of.
extern "C" int pg_roles_folds_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, unsigned short* __restrict__ y0, float* __restrict__ y1, int* __restrict__ y2, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0, float* parts, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if (N % 8) return 20004;
  if (M > 1 && x_stride0 < 0) return 20005;
  if (M > 1 && x_stride0 % 8) return 20006;
  if (N > 1 && w_stride0 < 0) return 20007;
  if (N > 1 && w_stride0 % 8) return 20008;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20009;
  if (M > 1 && y0_stride0 % 8) return 20010;
  if ((unsigned long long)x % 16) return 20011;
  if ((unsigned long long)w % 16) return 20012;
  if ((unsigned long long)y0 % 16) return 20013;
  if ((unsigned long long)y1 % 4) return 20014;
  if ((unsigned long long)y2 % 4) return 20015;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20016;
  if ((unsigned long long)y0 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20017;
  if ((unsigned long long)y1 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y1 + ((M - 1LL) + 1) * 4) return 20018;
  if ((unsigned long long)y1 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y1 + ((M - 1LL) + 1) * 4) return 20019;
  if ((unsigned long long)y1 < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2 && (unsigned long long)y0 < (unsigned long long)y1 + ((M - 1LL) + 1) * 4) return 20020;
  if ((unsigned long long)y2 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y2 + ((N - 1LL) + 1) * 4) return 20021;
  if ((unsigned long long)y2 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y2 + ((N - 1LL) + 1) * 4) return 20022;
  if ((unsigned long long)y2 < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2 && (unsigned long long)y0 < (unsigned long long)y2 + ((N - 1LL) + 1) * 4) return 20023;
  if ((unsigned long long)y2 < (unsigned long long)y1 + ((M - 1LL) + 1) * 4 && (unsigned long long)y1 < (unsigned long long)y2 + ((N - 1LL) + 1) * 4) return 20024;
  if (!parts || (unsigned long long)parts % 4) return (int)cudaErrorInvalidValue;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) <= alignof(CUtensorMap), "a tensor map is not passed as it is");
  CUtensorMap map_a;
  if (const cudaError_t map_status = polygen_encode_map(&map_a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, {{K, 1, 64}, {M, x_stride0, 128}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_b;
  if (const cudaError_t map_status = polygen_encode_map(&map_b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, w, {{K, 1, 64}, {N, w_stride0, 128}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_out_y0;
  if (const cudaError_t map_status = polygen_encode_map(&map_out_y0, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, y0, {{N, 1, 64}, {M, y0_stride0, 64}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_roles_folds, cudaFuncAttributeMaxDynamicSharedMemorySize, 229488);
  if (status != cudaSuccess) return (int)status;
  // Persistent blocks: as many whole clusters as run at once, at most one per cluster of tiles.
  static thread_local int resident = 0, resident_on = -1;
  int device = 0;
  cudaError_t asked = cudaGetDevice(&device);
  if (asked == cudaSuccess && device != resident_on) {
    asked = cudaDeviceGetAttribute(&resident, cudaDevAttrMultiProcessorCount, device);
    if (asked == cudaSuccess) resident_on = device;
  }
  if (asked != cudaSuccess) return (int)asked;
  if (resident < 1) return (int)cudaErrorInvalidConfiguration;
  const unsigned long long tiles_along = (M + 127) / 128;
  const unsigned long long tiles_across = (N + 127) / 128;
  const unsigned long long tile_clusters = tiles_along * tiles_across;
  const dim3 grid((tile_clusters < (unsigned)resident ? (unsigned)tile_clusters : (unsigned)resident) * 1);
  pg_roles_folds<<<grid, 384, 229488, (cudaStream_t)stream>>>(x, w, y0, y1, y2, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? y0_stride0 : 0), parts, *reinterpret_cast<const TensorMap*>(&map_a), *reinterpret_cast<const TensorMap*>(&map_b), *reinterpret_cast<const TensorMap*>(&map_out_y0));
  const cudaError_t launched = cudaGetLastError();
  if (launched != cudaSuccess) return (int)launched;
  return (int)polygen_launch_dependent(dim3((unsigned)(((1LL * M + 31) / 32) + ((1LL * N + 31) / 32))), 512, 0, stream, pg_roles_folds_folds, x, w, y0, y1, y2, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? y0_stride0 : 0), parts, *reinterpret_cast<const TensorMap*>(&map_a), *reinterpret_cast<const TensorMap*>(&map_b), *reinterpret_cast<const TensorMap*>(&map_out_y0));
}
#endif
