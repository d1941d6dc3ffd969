// silu_gate: silu(x @ w.T + b) * g
//   in  x: bf16[M, K]
//   in  w: bf16[N, K]
//   in  b: bf16[N]
//   in  g: bf16[M, N]
//   out y0: bf16[M, N]
//    S0  v0[i,j] += x[i,k] * w[j,k]       i < M, j < N, k < K   (f32)
//    P1  v1[i,j] = add(v0[i,j], b[j])     i < M, j < N   (f32)
//    P2  v2[i,j] = silu(v1[i,j])          i < M, j < N   (f32)
//    P3  v3[i,j] = mul(v2[i,j], g[i,j])   i < M, j < N   (f32)
//    P4  y0[i,j] = cast(v3[i,j])          i < M, j < N   (bf16)
//
// mapping: block 128x112x64, 2 consumer warpgroup(s) of 128x112, instruction 64x112x16, wgmma_m64k16_f32_bf16 on sm_90a
// needs: 384 threads, 231616 of 232448 B shared memory, about 152 registers per thread, 1 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 2147418112
//   20003: N is 1 to 2147418112
//   20004: N is a multiple of 8: rows of y0 are whole copies
//   20005: x_stride0 is not negative if M > 1
//   20006: x_stride0 is a multiple of 8 if M > 1
//   20007: w_stride0 is not negative if N > 1
//   20008: w_stride0 is a multiple of 8 if N > 1
//   20009: g_stride0 is not negative if M > 1
//   20010: g_stride0 is a multiple of 8 if M > 1
//   20011: y0_stride0 leads beyond a row of y0 if M > 1
//   20012: y0_stride0 is a multiple of 8 if M > 1
//   20013: the address of x is a multiple of 16
//   20014: the address of w is a multiple of 16
//   20015: the address of b is a multiple of 16
//   20016: the address of g is a multiple of 16
//   20017: the address of y0 is a multiple of 16
//   20018: y0 shares no memory with x
//   20019: y0 shares no memory with w
//   20020: y0 shares no memory with b
//   20021: y0 shares no memory with g
// barriers, and the dependences they enforce:
//   full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 7 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 7 version(s) later)
//   empty_ring: multiply -> fill (reuse through ring_a, 7 version(s) later); fill -> fill (reuse through ring_a, 7 version(s) later); multiply -> fill (reuse through ring_b, 7 version(s) later); fill -> fill (reuse through ring_b, 7 version(s) later)
//   full_g_1: fetch_g_1 -> finish (flow through panel_g_1); fetch_g_1 -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later)
//   empty_g_1: finish -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later); fetch_g_1 -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later)
//   bar_store (one agent): finish -> store (flow through result_y0, fence.proxy.async); store -> finish (reuse through result_y0, 2 version(s) later); finish -> finish (reuse through result_y0, 2 version(s) later)
//   turn: wait_full_ring begins when the phase before its own is over, for its parity bit
// schedule:
//   format = 1
//   name = "pingpong_128x112x64_s7"
//   device = "sm_90a"
//   atom = "auto"
//   min_blocks = 1
//   [tile.cta]
//   m = 128
//   n = 112
//   k = 64
//   [tile.warp]
//   m = 128
//   n = 112
//   [pipeline]
//   stages = 7
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
// made by: polygen generate 'silu(x @ w.T + b) * g' 'x:bf16[M,K]' 'w:bf16[N,K]' 'b:bf16[N]' 'g:bf16[M,N]' --arch sm_90a --name silu_gate --size M=512 N=14336 K=4096 -o -

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
  asm volatile("{ .reg .b8 byte; ld.global.nc.b8 byte, [%0]; }" :: "l"(from) : "memory");
}
__device__ __forceinline__ void matrices_read(unsigned from, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3 }, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}
__device__ __forceinline__ void pair_read(unsigned from, unsigned& first, unsigned& second) {
  asm volatile("ld.shared.v2.b32 { %0, %1 }, [%2];" : "=r"(first), "=r"(second) : "r"(from) : "memory");
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
// wgmma_m64k16_f32_bf16: c[64,112] = a * b (+ c if accumulate), by a warpgroup
__device__ __forceinline__ void multiply_matrices(float (&c)[14][4], unsigned long long a, unsigned long long b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55}, %56, %57, p, 1, 1, 0, 0; }"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3])
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

// 2 ** x in one instruction; below 2 ** -126 it is 0.
__device__ __forceinline__ float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x for x from 1 up in one instruction of the special function unit; beyond 2^126 it is 0.
__device__ __forceinline__ float short_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x / (1 + exp(-x)).
__device__ __forceinline__ float fast_silu(float x) {
  return x * short_reciprocal(1.0f + approximate_exp2(-1.442695f * x));
}

extern "C" __global__ void __launch_bounds__(384, 1)
pg_silu_gate(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, const unsigned short* __restrict__ g, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int g_stride0, int y0_stride0, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_in_g_1, const __grid_constant__ TensorMap map_out_y0) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32;
  // The same in all threads of a warp, and known to be.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), group = warp / 4;
  const int k_tiles = (K + 63) / 64;
  // Work items are tiles; a block takes every `stride`-th.
  const int tiles_m = (M + 127) / 128, tiles_n = (N + 111) / 112;
  const int first = blockIdx.x / 1, stride = gridDim.x / 1;
  const int tiles = (tiles_m * tiles_n - first + stride - 1) / stride;

  // barriers: which dependence each enforces stands beside its wait
  if (thread == 0) {
    for (int slot = 0; slot < 7; ++slot) barrier_init(shared + 231424 + 8 * slot, 1);  // full_ring
    for (int slot = 0; slot < 7; ++slot) barrier_init(shared + 231480 + 8 * slot, 1);  // empty_ring
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 231536 + 8 * slot, 1);  // full_g_1
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 231568 + 8 * slot, 4);  // empty_g_1
    for (int slot = 0; slot < 2; ++slot) barrier_init(shared + 231600 + 8 * slot, 1);  // turn
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (thread == 256) prefetch_map(&map_a);
  if (thread == 256) prefetch_map(&map_b);
  if (thread == 256) prefetch_map(&map_in_g_1);
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
      Cursor<7> ring_producer;
      // fill[i,k]: x -> ring_a, w -> ring_b, by the copy engine, zeros outside the arrays
      auto fill = [&](int, int k) __attribute__((always_inline)) {
        const unsigned full = shared + 231424 + ring_producer.slot * 8;
        barrier_expect(full, 30720);
        box_load(shared + 0 + ring_producer.slot * 16384 + 0, &map_a, full, k * 64 + 0, b_m * 128);
        box_load(shared + 114688 + ring_producer.slot * 14336 + 0, &map_b, full, k * 64 + 0, b_n * 112);
        ring_producer.advance();
      };
      // wait_empty_ring: multiply -> fill (reuse through ring_a, 7 version(s) later); fill -> fill (reuse through ring_a, 7 version(s) later); multiply -> fill (reuse through ring_b, 7 version(s) later); fill -> fill (reuse through ring_b, 7 version(s) later)
      auto wait_empty_ring = [&](int, int) __attribute__((always_inline)) {
        barrier_wait(shared + 231480 + ring_producer.slot * 8, ring_producer.parity ^ 1);
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
    }
    else if (warp < 11 && lane == 0) {
      const int owner = warp - 9;  // the warpgroup whose panels this loader brings
      const int turn = owner;
      Cursor<2> g_1_loader;
      // fetch_g_1[i,p]: g -> panel_g_1, 64 x 16
      auto fetch_g_1 = [&](int, int p) __attribute__((always_inline)) {
        const unsigned full = shared + 231536 + (owner * 2 + g_1_loader.slot) * 8;
        barrier_expect(full, 2048);
        const unsigned to = shared + 215040 + (owner * 2 + g_1_loader.slot) * 2048;
        box_load(to + 0, &map_in_g_1, full, b_n * 112 + p % 7 * 16 + 0, b_m * 128 + p / 7 * 64);
        g_1_loader.advance();
      };
      // wait_empty_g_1: finish -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later); fetch_g_1 -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later)
      auto wait_empty_g_1 = [&](int, int) __attribute__((always_inline)) {
        barrier_wait(shared + 231568 + (owner * 2 + g_1_loader.slot) * 8, g_1_loader.parity ^ 1);
      };
      #pragma unroll 1
      for (int i = turn; i < tiles; i += 2) {
        locate(i);
        #pragma unroll 1
        for (int p = 0; p <= 13; ++p) {
          wait_empty_g_1(i, p);
          fetch_g_1(i, p);
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int turn = group;
    const int quarter = warp % 4 * 16;
    float sum[2][14][4] = {};
    Cursor<7> ring_consumer;
    Cursor<7> ring_consumer_behind;
    Cursor<2> g_1_consumer;
    // multiply[i,k,s,m]: sum[m] += ring_a * ring_b, proved to read what the copies wrote
    const unsigned low_a = ((shared + 0) & 0x3ffffu) / 16 + 0x10000u, low_b = ((shared + 114688) & 0x3ffffu) / 16 + 0x10000u;
    auto multiply = [&](int, int k, int s, int m) __attribute__((always_inline)) {
      const unsigned address_a = low_a + (unsigned)(ring_consumer.slot * 16384 + s * 32 + m * 8192) / 16;
      const unsigned address_b = low_b + (unsigned)(ring_consumer.slot * 14336 + s * 32) / 16;
      multiply_matrices(sum[m], (unsigned long long)0x40000040u << 32 | address_a, (unsigned long long)0x40000040u << 32 | address_b, k > 0 || s > 0);
    };
    auto commit = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); ring_consumer.advance(); };
    // The fused pointwise statements, on one element.
    auto compute = [&](float sum, float b_0, float g_1, float& y0_result) __attribute__((always_inline)) {
      const float t1 = sum + b_0;
      const float t2 = fast_silu(t1);
      const float t3 = t2 * g_1;
      y0_result = t3;
    };
    // prepare[i]: operands with one value per column are near by the time the sums are complete
    auto prepare = [&](int) __attribute__((always_inline)) {
      if (thread % 128 < 3) warm(b + min(b_n * 112 + thread % 128 * 64, N - 1));
    };
    // finish[i,p]: 64 rows by 16 columns of sums -> pointwise functions -> a panel of results
    auto finish = [&](int, int p) __attribute__((always_inline)) {
      const int block = p / 7, first_block = p % 7 * 2;
      unsigned b_0_words[2];
      const int first_column = b_n * 112 + p % 7 * 16 + lane % 4 * 2;
      if (first_column - lane % 4 * 2 + 16 <= N) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = first_column + j * 8;
          b_0_words[j] = __ldg(reinterpret_cast<const unsigned*>(b + column));
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = first_column + j * 8, low = min(column, N - 1), high = min(column + 1, N - 1);
          b_0_words[j] = __ldg(b + low) | (unsigned)__ldg(b + high) << 16;
        }
      }
      unsigned g_1_words[2][2];
      const unsigned g_1_at = shared + 215040 + group * 4096 + p % 2 * 2048 + (quarter + lane % 16) * 32 + ((lane / 16 ^ (lane % 8 >> 2 & 1)) << 4);
      #pragma unroll
      for (int j = 0; j < 2; j += 2) matrices_read(g_1_at ^ j << 4, g_1_words[j + 0][0], g_1_words[j + 0][1], g_1_words[j + 1][0], g_1_words[j + 1][1]);
      const unsigned y0_at = shared + 223232 + group * 4096 + p % 2 * 2048 + (quarter + lane % 16) * 32 + ((lane / 16 ^ (lane % 8 >> 2 & 1)) << 4);
      unsigned y0_words[2][2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float y0_out[2];
          compute(sum[block][first_block + j][2 * half + 0], from_bf16((unsigned short)(b_0_words[j])), from_bf16((unsigned short)(g_1_words[j][half])), y0_out[0]);
          compute(sum[block][first_block + j][2 * half + 1], from_bf16((unsigned short)(b_0_words[j] >> 16)), from_bf16((unsigned short)(g_1_words[j][half] >> 16)), y0_out[1]);
          y0_words[j][half] = pack_bf16(y0_out[0], y0_out[1]);
        }
      }
      #pragma unroll
      for (int j = 0; j < 2; j += 2) matrices_write(y0_at ^ j << 4, y0_words[j + 0][0], y0_words[j + 0][1], y0_words[j + 1][0], y0_words[j + 1][1]);
    };
    // store[i,p]: one thread of the warpgroup has the copy engine write the panel, clipped at the edges
    auto store = [&](int, int p) __attribute__((always_inline)) {
      if (thread % 128 == 0) {
        box_store(&map_out_y0, shared + 223232 + group * 4096 + p % 2 * 2048 + 0, b_n * 112 + p % 7 * 16 + 0, b_m * 128 + p / 7 * 64);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    };
    // wait_full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 7 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 7 version(s) later)
    auto wait_full_ring = [&](int, int) __attribute__((always_inline)) {
      barrier_wait(shared + 231424 + ring_consumer.slot * 8, ring_consumer.parity);
    };
    // arrive_empty_ring: multiply -> fill (reuse through ring_a, 7 version(s) later); fill -> fill (reuse through ring_a, 7 version(s) later); multiply -> fill (reuse through ring_b, 7 version(s) later); fill -> fill (reuse through ring_b, 7 version(s) later)
    auto arrive_empty_ring = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 231480 + ring_consumer_behind.slot * 8);
      ring_consumer_behind.advance();
    };
    // retire_empty_ring: all but the last 1 group(s) of wgmma are complete
    auto retire_empty_ring = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); };
    // arrive_empty_ring_rest: multiply -> fill (reuse through ring_a, 7 version(s) later); fill -> fill (reuse through ring_a, 7 version(s) later); multiply -> fill (reuse through ring_b, 7 version(s) later); fill -> fill (reuse through ring_b, 7 version(s) later)
    auto arrive_empty_ring_rest = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 231480 + ring_consumer_behind.slot * 8);
      ring_consumer_behind.advance();
    };
    // retire_empty_ring_rest: all group(s) of wgmma are complete
    auto retire_empty_ring_rest = [&](int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); };
    // wait_full_g_1: fetch_g_1 -> finish (flow through panel_g_1); fetch_g_1 -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later)
    auto wait_full_g_1 = [&](int, int) __attribute__((always_inline)) {
      barrier_wait(shared + 231536 + (group * 2 + g_1_consumer.slot) * 8, g_1_consumer.parity);
    };
    // arrive_empty_g_1: finish -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later); fetch_g_1 -> fetch_g_1 (reuse through panel_g_1, 2 version(s) later)
    auto arrive_empty_g_1 = [&](int, int) __attribute__((always_inline)) {
      __syncwarp();
      if (lane == 0) barrier_arrive(shared + 231568 + (group * 2 + g_1_consumer.slot) * 8);
      g_1_consumer.advance();
    };
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
      barrier_wait(shared + 231600 + group * 8, turn_parity);
      turn_parity ^= 1;
    };
    auto arrive_turn = [&](int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 231600 + (1 - group) * 8);
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
      #pragma unroll
      for (int p = 0; p <= 13; ++p) {
        wait_full_g_1(i, p);
        finish(i, p);
        arrive_empty_g_1(i, p);
        fence_store(i, p);
        wait_store(i, p);
        bar_store(i, p);
        store(i, p);
      }
      skip_ring(i);
    }
    wait_last_store();
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

// Host launcher. Returns 0, the code of the first condition that the arguments break, or a cudaError_t: 1 (invalid value) for an array the driver makes no tensor map of.
extern "C" int pg_silu_gate_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ b, const unsigned short* __restrict__ g, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int g_stride0, int y0_stride0, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if (N % 8) return 20004;
  if (M > 1 && x_stride0 < 0) return 20005;
  if (M > 1 && x_stride0 % 8) return 20006;
  if (N > 1 && w_stride0 < 0) return 20007;
  if (N > 1 && w_stride0 % 8) return 20008;
  if (M > 1 && g_stride0 < 0) return 20009;
  if (M > 1 && g_stride0 % 8) return 20010;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20011;
  if (M > 1 && y0_stride0 % 8) return 20012;
  if ((unsigned long long)x % 16) return 20013;
  if ((unsigned long long)w % 16) return 20014;
  if ((unsigned long long)b % 16) return 20015;
  if ((unsigned long long)g % 16) return 20016;
  if ((unsigned long long)y0 % 16) return 20017;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20018;
  if ((unsigned long long)y0 < (unsigned long long)w + ((N - 1LL) * w_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20019;
  if ((unsigned long long)y0 < (unsigned long long)b + ((N - 1LL) + 1) * 2 && (unsigned long long)b < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20020;
  if ((unsigned long long)y0 < (unsigned long long)g + ((M - 1LL) * g_stride0 + (N - 1LL) + 1) * 2 && (unsigned long long)g < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20021;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) <= alignof(CUtensorMap), "a tensor map is not passed as it is");
  CUtensorMap map_a;
  if (const cudaError_t map_status = polygen_encode_map(&map_a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, x, {{K, 1, 64}, {M, x_stride0, 128}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_b;
  if (const cudaError_t map_status = polygen_encode_map(&map_b, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, w, {{K, 1, 64}, {N, w_stride0, 112}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_in_g_1;
  if (const cudaError_t map_status = polygen_encode_map(&map_in_g_1, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, g, {{N, 1, 16}, {M, g_stride0, 64}}, CU_TENSOR_MAP_SWIZZLE_32B))
    return (int)map_status;
  CUtensorMap map_out_y0;
  if (const cudaError_t map_status = polygen_encode_map(&map_out_y0, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, y0, {{N, 1, 16}, {M, y0_stride0, 64}}, CU_TENSOR_MAP_SWIZZLE_32B))
    return (int)map_status;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_silu_gate, cudaFuncAttributeMaxDynamicSharedMemorySize, 231616);
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
  const unsigned long long tiles_across = (N + 111) / 112;
  const unsigned long long tile_clusters = tiles_along * tiles_across;
  const dim3 grid((tile_clusters < (unsigned)resident ? (unsigned)tile_clusters : (unsigned)resident) * 1);
  pg_silu_gate<<<grid, 384, 231616, (cudaStream_t)stream>>>(x, w, b, g, y0, M, K, N, (M > 1 ? x_stride0 : 0), (N > 1 ? w_stride0 : 0), (M > 1 ? g_stride0 : 0), (M > 1 ? y0_stride0 : 0), *reinterpret_cast<const TensorMap*>(&map_a), *reinterpret_cast<const TensorMap*>(&map_b), *reinterpret_cast<const TensorMap*>(&map_in_g_1), *reinterpret_cast<const TensorMap*>(&map_out_y0));
  return (int)cudaGetLastError();
}
#endif
