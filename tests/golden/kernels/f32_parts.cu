// f32_parts: x @ w
//   in  x: f32[M, K]
//   in  w: f32[K, N]
//   out y0: f32[M, N]
//    R0  w0[q,i,k] = nearest_tf32(x[i,k])                                               q < 2, i < M, k < K   (f32)
//    R1  w1[q,i,k] = sub(x[i,k], w0[q,i,k])                                             q < 2, i < M, k < K   (f32)
//    R2  w2[q,i,k] = eq(q, 0.0)                                                         q < 2, i < M, k < K   (bool)
//    R3  w3[q,i,k] = where(w2[q,i,k], w1[q,i,k], w0[q,i,k])                             q < 2, i < M, k < K   (f32)
//    R4  w4[q,k,j] = nearest_tf32(w[k,j])                                               q < 2, k < K, j < N   (f32)
//    R5  w5[q,k,j] = sub(w[k,j], w4[q,k,j])                                             q < 2, k < K, j < N   (f32)
//    R6  w6[q,k,j] = eq(q, 1.0)                                                         q < 2, k < K, j < N   (bool)
//    R7  w7[q,k,j] = where(w6[q,k,j], w5[q,k,j], w4[q,k,j])                             q < 2, k < K, j < N   (f32)
//    S0  v0[i,j] += (w3[(p mod 2) + floor(p/2),i,k] * w7[(p mod 2),k,j] over 32 of k)   i < M, j < N, p < 3, k < K   (f32)
//    P1  y0[i,j] = cast(v0[i,j])                                                        i < M, j < N   (f32)
//
// mapping: block 128x128x32, 2 consumer warpgroup(s) of 64x128, instruction 64x128x8, wgmma_m64k8_f32_tf32 on sm_90a
// needs: 384 threads, 229440 of 232448 B shared memory, about 168 registers per thread, 1 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 715806037
//   20003: N is 1 to 2147418112
//   20004: N is a multiple of 4: rows of y0 are whole copies
//   20005: x_stride0 is not negative if M > 1
//   20006: x_stride0 is a multiple of 4 if M > 1
//   20007: w_stride0 is not negative if K > 1
//   20008: w_stride0 is a multiple of 4 if K > 1
//   20009: w3_stride1 is not negative if M > 1
//   20010: w3_stride1 is a multiple of 4 if M > 1
//   20011: w3_stride0 is not negative
//   20012: w3_stride0 is a multiple of 4
//   20013: w7_stride2 is not negative if N > 1
//   20014: w7_stride2 is a multiple of 4 if N > 1
//   20015: w7_stride0 is not negative
//   20016: w7_stride0 is a multiple of 4
//   20017: y0_stride0 leads beyond a row of y0 if M > 1
//   20018: y0_stride0 is a multiple of 4 if M > 1
//   20019: the address of x is a multiple of 16
//   20020: the address of w is a multiple of 16
//   20021: the address of w3 is a multiple of 16
//   20022: the address of w7 is a multiple of 16
//   20023: the address of y0 is a multiple of 16
//   20024: y0 shares no memory with x
//   20025: y0 shares no memory with w
//   20026: y0 shares no memory with w3
//   20027: y0 shares no memory with w7
// before it: pg_f32_parts_realign makes w3: tf32[2, M, K], w7: tf32[2, K, N] column-major: rows start at multiples of 128 bytes there
// barriers, and the dependences they enforce:
//   full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 4 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 4 version(s) later)
//   empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
//   bar_store (one agent): finish -> store (flow through result_y0, fence.proxy.async); store -> finish (reuse through result_y0, 3 version(s) later); finish -> finish (reuse through result_y0, 3 version(s) later)
// schedule:
//   format = 1
//   name = "cooperative_128x128x64_w64_s5_e3p2"
//   device = "sm_90a"
//   atom = "auto"
//   min_blocks = 1
//   [tile.cta]
//   m = 128
//   n = 128
//   k = 32
//   [tile.warp]
//   m = 64
//   n = 128
//   [pipeline]
//   stages = 4
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
//   form = "cooperative"
//   producer_registers = 40
//   consumer_registers = 232
//   computes = "before"
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
//   slots = 3
//   prefetch = 2
//   columns = 0
//   [launch]
//   realign = false
//   dependent = true
// made by: polygen generate 'x @ w' 'x:f32[M,K]' 'w:f32[K,N]' --arch sm_90a --name f32_parts --size M=4096 N=4096 K=1024 -o -

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
// A box at (inner, outer, third) of a tensor -> shared memory; elements outside the tensor read as zero.
__device__ __forceinline__ void box_load(unsigned to, const TensorMap* map, unsigned barrier, int inner, int outer, int third) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, { %3, %4, %5 }], [%2];"
               :: "r"(to), "l"(map), "r"(barrier), "r"(inner), "r"(outer), "r"(third) : "memory");
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
// What a chunk of a computed operand reads: adjacent bytes at a multiple of WIDTH, all of them inside
// of the array.
template <int BYTES, int WIDTH>
__device__ __forceinline__ void read_run(unsigned* to, const void* from) {
#pragma unroll
  for (int i = 0; i < BYTES / WIDTH; ++i) {
    if constexpr (WIDTH == 16) {
      const uint4 part = __ldca(reinterpret_cast<const uint4*>(from) + i);
      to[4 * i] = part.x, to[4 * i + 1] = part.y, to[4 * i + 2] = part.z, to[4 * i + 3] = part.w;
    } else if constexpr (WIDTH == 8) {
      const uint2 part = __ldca(reinterpret_cast<const uint2*>(from) + i);
      to[2 * i] = part.x, to[2 * i + 1] = part.y;
    } else if constexpr (WIDTH == 4) {
      to[i] = __ldca(reinterpret_cast<const unsigned*>(from) + i);
    } else if constexpr (WIDTH == 2) {
      const unsigned part = __ldca(reinterpret_cast<const unsigned short*>(from) + i);
      to[i / 2] = i % 2 ? to[i / 2] | part << 16 : part;
    } else {
      const unsigned part = __ldca(reinterpret_cast<const unsigned char*>(from) + i);
      to[i / 4] = i % 4 ? to[i / 4] | part << i % 4 * 8 : part;
    }
  }
}
// One element, in the low bits of a word.
template <int SIZE>
__device__ __forceinline__ unsigned read_one(const void* from) {
  if constexpr (SIZE == 1) return __ldca(reinterpret_cast<const unsigned char*>(from));
  if constexpr (SIZE == 2) return __ldca(reinterpret_cast<const unsigned short*>(from));
  return __ldca(reinterpret_cast<const unsigned*>(from));
}
// The first `count` of the elements that the words hold, `step` bytes from each to the next: at edges,
// and of arrays whose elements are not adjacent. Four reads are on their way at once.
template <int WORDS, int SIZE>
__device__ __forceinline__ void read_spaced(unsigned* to, const void* from, long long step, int count) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) to[i] = 0;
#pragma unroll 4
  for (int e = WORDS * 4 / SIZE - 1; e >= 0; --e) {
    unsigned element = 0;
    if (e < count) element = read_one<SIZE>(reinterpret_cast<const char*>(from) + e * step);
#pragma unroll
    for (int i = WORDS - 1; i > 0; --i) to[i] = SIZE == 4 ? to[i - 1] : __funnelshift_l(to[i - 1], to[i], SIZE * 8);
    to[0] = SIZE == 4 ? element : to[0] << SIZE * 8 % 32 | element;
  }
}
// Four computed words to shared memory; zeros behind the first `bytes`, whatever was computed there.
__device__ __forceinline__ void write_computed(unsigned to, unsigned (&w)[4], int bytes) {
  if (bytes < 16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] &= __funnelshift_lc(~0u, 0u, max(bytes - 4 * i, 0) * 8);
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
// wgmma_m64k8_f32_tf32: c[64,128] = a * b (+ c if accumulate), by a warpgroup
__device__ __forceinline__ void multiply_matrices(float (&c)[16][4], unsigned long long a, unsigned long long b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1; }"
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
// Four computed words to global memory; zeros behind the first `bytes`, whatever was computed there.
__device__ __forceinline__ void store_computed(unsigned char* to, unsigned (&w)[4], int bytes) {
  if (bytes < 16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] &= __funnelshift_lc(~0u, 0u, max(bytes - 4 * i, 0) * 8);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
}

// The nearest tf32, ties away from zero.
__device__ __forceinline__ float nearest_tf32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return __uint_as_float(rounded);
}

extern "C" __global__ void __launch_bounds__(384, 1)
pg_f32_parts(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ w3, const float* __restrict__ w7, float* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int w3_stride0, int w3_stride1, int w7_stride0, int w7_stride2, int y0_stride0, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_out_y0) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  // Dependent kernels may begin when all blocks have; they wait for the end of this one themselves.
  asm volatile("griddepcontrol.launch_dependents;");
  const int thread = threadIdx.x, lane = thread % 32;
  // The same in all threads of a warp, and known to be.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), group = warp / 4;
  const int k_tiles = (3 * ((K + 31) / 32 * 32) + 31) / 32;
  // Work items are tiles; a block takes every `stride`-th.
  const int tiles_m = (M + 127) / 128, tiles_n = (N + 127) / 128;
  const int first = blockIdx.x / 1, stride = gridDim.x / 1;
  const int tiles = (tiles_m * tiles_n - first + stride - 1) / stride;

  // barriers: which dependence each enforces stands beside its wait
  if (thread == 0) {
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 229376 + 8 * slot, 1);  // full_ring
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 229408 + 8 * slot, 2);  // empty_ring
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
      Cursor<4> ring_producer;
      // fill[i,k]: w3 -> ring_a, w7 -> ring_b, by the copy engine, zeros outside the arrays
      auto fill = [&](int, int k) __attribute__((always_inline)) {
        const int over0 = k / ((K + 31) / 32);
        const int k_inside = k % ((K + 31) / 32);
        const unsigned full = shared + 229376 + ring_producer.slot * 8;
        barrier_expect(full, 32768);
        box_load(shared + 0 + ring_producer.slot * 16384 + 0, &map_a, full, k_inside * 32 + 0, b_m * 128, ((over0) % 2) + ((over0) / 2));
        box_load(shared + 65536 + ring_producer.slot * 16384 + 0, &map_b, full, k_inside * 32 + 0, b_n * 128, ((over0) % 2));
        ring_producer.advance();
      };
      // wait_empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
      auto wait_empty_ring = [&](int, int) __attribute__((always_inline)) {
        barrier_wait(shared + 229408 + ring_producer.slot * 8, ring_producer.parity ^ 1);
      };
      // wait_grids_producer: the grids before are complete, and their writes are visible
      auto wait_grids_producer = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w), "+l"(w3), "+l"(w7), "+l"(y0) :: "memory"); };
      wait_grids_producer();
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
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int quarter = warp % 4 * 16;
    float inner[1][16][4] = {}, sum[1][16][4] = {};
    Cursor<4> ring_consumer;
    Cursor<3> result_y0_consumer;
    // multiply[i,k,s,m]: inner[m] += ring_a * ring_b, proved to read what the copies wrote
    const unsigned low_a = ((shared + 0 + group * 8192) & 0x3ffffu) / 16 + 0x10000u, low_b = ((shared + 65536) & 0x3ffffu) / 16 + 0x10000u;
    auto multiply = [&](int, int k, int s, int m) __attribute__((always_inline)) {
      const unsigned address_a = low_a + (unsigned)(ring_consumer.slot * 16384 + s * 32 + m * 8192) / 16;
      const unsigned address_b = low_b + (unsigned)(ring_consumer.slot * 16384 + s * 32) / 16;
      multiply_matrices(inner[m], (unsigned long long)0x40000040u << 32 | address_a, (unsigned long long)0x40000040u << 32 | address_b, s > 0);
    };
    auto commit = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); };
    // promote[i,k,m]: sum[m] += inner[m]
    auto promote = [&](int, int k, int m) __attribute__((always_inline)) {
      if (k < 1) {  // the first block of a sum: -0 + x is x, and -0 where x is
      #pragma unroll
        for (int j = 0; j < 16; ++j) sum[m][j][0] = sum[m][j][1] = sum[m][j][2] = sum[m][j][3] = -0.0f;
        asm volatile("");  // a branch: nothing is selected, or moved, in other blocks
      }
      #pragma unroll
      for (int j = 0; j < 16; ++j) {
        sum[m][j][0] = sum[m][j][0] + inner[m][j][0];
        sum[m][j][1] = sum[m][j][1] + inner[m][j][1];
        sum[m][j][2] = sum[m][j][2] + inner[m][j][2];
        sum[m][j][3] = sum[m][j][3] + inner[m][j][3];
      }
    };
    // The fused pointwise statements, on one element.
    auto compute = [&](float sum, float& y0_result) __attribute__((always_inline)) {
      y0_result = sum;
    };
    // prepare[i]: operands with one value per column are near by the time the sums are complete
    auto prepare = [&](int) __attribute__((always_inline)) {
    };
    // finish[i,p]: 64 rows by 64 columns of sums -> pointwise functions -> a panel of results
    auto finish = [&](int, int p) __attribute__((always_inline)) {
      const int block = p / 2, first_block = p % 2 * 8;
      const unsigned y0_at = shared + 131072 + group * 49152 + result_y0_consumer.slot * 16384 + (quarter + lane / 4) * 128 + ((lane % 4 / 2 ^ ((lane / 4) & 7)) << 4) + lane % 2 * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float y0_out[2];
          compute(sum[block][first_block + j][2 * half + 0], y0_out[0]);
          compute(sum[block][first_block + j][2 * half + 1], y0_out[1]);
          pair_write((y0_at ^ j % 4 * 32) + j / 4 * 8192 + half * 1024, y0_out[0], y0_out[1]);
        }
      }
    };
    // store[i,p]: one thread of the warpgroup has the copy engine write the panel, clipped at the edges
    auto store = [&](int, int p) __attribute__((always_inline)) {
      if (thread % 128 == 0) {
        box_store(&map_out_y0, shared + 131072 + group * 49152 + result_y0_consumer.slot * 16384 + 0, b_n * 128 + p % 2 * 64 + 0, b_m * 128 + group * 64 + p / 2 * 64);
        box_store(&map_out_y0, shared + 131072 + group * 49152 + result_y0_consumer.slot * 16384 + 8192, b_n * 128 + p % 2 * 64 + 32, b_m * 128 + group * 64 + p / 2 * 64);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
      result_y0_consumer.advance();
    };
    // wait_full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 4 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 4 version(s) later)
    auto wait_full_ring = [&](int, int) __attribute__((always_inline)) {
      barrier_wait(shared + 229376 + ring_consumer.slot * 8, ring_consumer.parity);
    };
    // arrive_empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
    auto arrive_empty_ring = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 229408 + ring_consumer.slot * 8);
      ring_consumer.advance();
    };
    // retire_empty_ring: all group(s) of wgmma are complete
    auto retire_empty_ring = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); };
    // bar_store[i,p]: finish -> store (flow through result_y0, fence.proxy.async); store -> finish (reuse through result_y0, 3 version(s) later); finish -> finish (reuse through result_y0, 3 version(s) later)
    auto bar_store = [&](int, int) __attribute__((always_inline)) { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); };
    // wait_store: all but the last 1 group(s) of tma.store are complete
    auto wait_store = [&](int, int) __attribute__((always_inline)) { if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory"); };
    auto fence_multiply = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); };
    // fence_store: the copy engine sees what this thread has written
    auto fence_store = [&](int, int) __attribute__((always_inline)) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); };
    // wait_last_store: all group(s) of tma.store are complete
    auto wait_last_store = [&]() __attribute__((always_inline)) { if (thread % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); };
    // wait_grids_consumer: the grids before are complete, and their writes are visible
    auto wait_grids_consumer = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w), "+l"(w3), "+l"(w7), "+l"(y0) :: "memory"); };
    // The loops of a consumer, generated by isl from its schedule tree.
    wait_grids_consumer();
    #pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      locate(i);
      prepare(i);
      #pragma unroll 1
      for (int k = 0; k < k_tiles; ++k) {
        wait_full_ring(i, k);
        fence_multiply(i, k);
        #pragma unroll
        for (int s = 0; s <= 3; ++s) {
          multiply(i, k, s, 0);
        }
        commit(i, k);
        retire_empty_ring(i, k);
        arrive_empty_ring(i, k);
        promote(i, k, 0);
      }
      #pragma unroll
      for (int p = 0; p <= 1; ++p) {
        finish(i, p);
        fence_store(i, p);
        wait_store(i, p);
        bar_store(i, p);
        store(i, p);
      }
    }
    wait_last_store();
  }
}

// The launch before it: makes w3, w7, to rows that start at multiples of 128 bytes.
extern "C" __global__ void __launch_bounds__(256)
pg_f32_parts_realign(unsigned blocks_0, unsigned blocks_1, const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ w3, float* __restrict__ w7, float* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int w3_stride0, int w3_stride1, int w7_stride0, int w7_stride2, int y0_stride0) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned block = blockIdx.x;
  if (block < blocks_0) {
    const int realign_chunks = (int)((K * 4LL + 15) / 16);
    const unsigned segments = (realign_chunks + 511) / 512;
    const unsigned block_rows = block / segments, segment = block % segments;
    const int realign_first = segment * 512;
    const int realign_rows = (int)(1LL * M * 2 - block_rows * 8);
    unsigned rest = block_rows * 8 + warp;
    const long long pitch = (K + 31LL) / 32 * 128;
    unsigned char* const to = (unsigned char*)w3 + rest * pitch;
    const int row = rest % M;
    rest /= M;
    const int z0 = rest % 2;
    rest /= 2;
    // wait_grids_warps: the grids before are complete, and their writes are visible
    auto wait_grids_warps = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(x), "+l"(w3) :: "memory"); };
    // made: 4 chunks of each lane of w3, from chunk, computed; zeros behind the end of a row
    auto made = [&](int chunk) __attribute__((always_inline)) {
      unsigned held[4][4] = {};
      if (realign_first + chunk + 128 <= K / 4) {
      #pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int own = realign_first + chunk + 32 * u + lane, from_column = own * 4;
          read_run<16, 16>(held[u], x + (long long)row * x_stride0 + from_column);
        }
      } else {
      #pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int own = realign_first + chunk + 32 * u + lane, from_column = own * 4;
          const int left = K - from_column;
          if (left >= 4) {
            read_run<16, 16>(held[u], x + (long long)row * x_stride0 + from_column);
          } else if (left > 0) {
            read_spaced<4, 4>(held[u], x + (long long)row * x_stride0 + from_column, 4, left);
          }
        }
      }
      #pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int own = realign_first + chunk + 32 * u + lane, from_column = own * 4;
        if (own < realign_chunks) {
          float made[4];
      #pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float x_0 = __uint_as_float((held[u])[e]);
            const float at0 = (float)(z0);
            const float t1 = nearest_tf32(x_0);
            const float t2 = x_0 - t1;
            const bool t3 = at0 == 0.0f;
            const float t4 = t3 ? t2 : t1;
            made[e] = t4;
          }
          unsigned w[4];
      #pragma unroll
          for (int i = 0; i < 4; ++i) asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(w[i]) : "f"(made[i]));
          store_computed(to + own * 16LL, w, min(max(K - from_column, 0), 4) * 4);
        }
      }
    };
    // The loops, generated by isl from the schedule tree.
    wait_grids_warps();
    if (realign_rows >= (warp + 1)) {
      #pragma unroll 1
      for (int chunk = 0; chunk <= min(384, (realign_chunks - realign_first) - 1); chunk += 128) {
        made(chunk);
      }
    }
    return;
  }
  block -= blocks_0;
  const int realign_chunks = (int)((K * 4LL + 15) / 16);
  const unsigned segments = (realign_chunks + 31) / 32;
  const unsigned block_rows = block / segments, segment = block % segments;
  const int realign_first = segment * 32;
  const int realign_rows = (int)(1LL * N * 2 - block_rows * 32);
  unsigned rest = block_rows * 32 + 8 * (warp % 4) + lane % 8;
  const long long pitch = (K + 31LL) / 32 * 128;
  unsigned char* const to = (unsigned char*)w7 + rest * pitch;
  const int row = rest % N;
  rest /= N;
  const int z0 = rest % 2;
  rest /= 2;
  // wait_grids_warps: the grids before are complete, and their writes are visible
  auto wait_grids_warps = [&]() __attribute__((always_inline)) { asm volatile("griddepcontrol.wait;" : "+l"(w), "+l"(w7) :: "memory"); };
  // turned: a chunk of each lane's row of w7, from chunk, made of what lies across its rows; zeros behind the end of a row
  auto turned = [&](int chunk) __attribute__((always_inline)) {
    const int own = realign_first + chunk + 4 * (warp / 4) + lane / 8;
    if (own < realign_chunks && 8 * (warp % 4) + lane % 8 < realign_rows) {
      const int from_column = own * 4, left = K - from_column;
      unsigned held[4] = {};
      if (left >= 4) {
      read_spaced<4, 4>(held, w + row + (long long)from_column * w_stride0, 4LL * w_stride0, 4);
      } else {
      read_spaced<4, 4>(held, w + row + (long long)from_column * w_stride0, 4LL * w_stride0, left);
      }
      float made[4];
    #pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float w_0 = __uint_as_float((held)[e]);
        const float at0 = (float)(z0);
        const float t1 = nearest_tf32(w_0);
        const float t2 = w_0 - t1;
        const bool t3 = at0 == 1.0f;
        const float t4 = t3 ? t2 : t1;
        made[e] = t4;
      }
      unsigned w[4];
    #pragma unroll
      for (int i = 0; i < 4; ++i) asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(w[i]) : "f"(made[i]));
      store_computed(to + own * 16LL, w, min(max(left, 0), 4) * 4);
    }
  };
  // The loops, generated by isl from the schedule tree.
  wait_grids_warps();
#pragma unroll 1
  for (int chunk = 0; chunk <= min(24, ((((warp % 4) + realign_chunks) - realign_first) - warp) - 1); chunk += 8) {
    turned(chunk);
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
extern "C" int pg_f32_parts_launch(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ w3, const float* __restrict__ w7, float* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int w3_stride0, int w3_stride1, int w7_stride0, int w7_stride2, int y0_stride0, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 715806037) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if (N % 4) return 20004;
  if (M > 1 && x_stride0 < 0) return 20005;
  if (M > 1 && x_stride0 % 4) return 20006;
  if (K > 1 && w_stride0 < 0) return 20007;
  if (K > 1 && w_stride0 % 4) return 20008;
  if (M > 1 && w3_stride1 < 0) return 20009;
  if (M > 1 && w3_stride1 % 4) return 20010;
  if (w3_stride0 < 0) return 20011;
  if (w3_stride0 % 4) return 20012;
  if (N > 1 && w7_stride2 < 0) return 20013;
  if (N > 1 && w7_stride2 % 4) return 20014;
  if (w7_stride0 < 0) return 20015;
  if (w7_stride0 % 4) return 20016;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20017;
  if (M > 1 && y0_stride0 % 4) return 20018;
  if ((unsigned long long)x % 16) return 20019;
  if ((unsigned long long)w % 16) return 20020;
  if ((unsigned long long)w3 % 16) return 20021;
  if ((unsigned long long)w7 % 16) return 20022;
  if ((unsigned long long)y0 % 16) return 20023;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 4 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20024;
  if ((unsigned long long)y0 < (unsigned long long)w + ((K - 1LL) * w_stride0 + (N - 1LL) + 1) * 4 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20025;
  if ((unsigned long long)y0 < (unsigned long long)w3 + ((2 - 1LL) * w3_stride0 + (M - 1LL) * w3_stride1 + (K - 1LL) + 1) * 4 && (unsigned long long)w3 < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20026;
  if ((unsigned long long)y0 < (unsigned long long)w7 + ((2 - 1LL) * w7_stride0 + (N - 1LL) * w7_stride2 + (K - 1LL) + 1) * 4 && (unsigned long long)w7 < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 4) return 20027;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) <= alignof(CUtensorMap), "a tensor map is not passed as it is");
  CUtensorMap map_a;
  if (const cudaError_t map_status = polygen_encode_map(&map_a, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, w3, {{K, 1, 32}, {M, w3_stride1, 128}, {2, w3_stride0, 1}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_b;
  if (const cudaError_t map_status = polygen_encode_map(&map_b, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 4, w7, {{K, 1, 32}, {N, w7_stride2, 128}, {2, w7_stride0, 1}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_out_y0;
  if (const cudaError_t map_status = polygen_encode_map(&map_out_y0, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, y0, {{N, 1, 32}, {M, y0_stride0, 64}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_f32_parts, cudaFuncAttributeMaxDynamicSharedMemorySize, 229440);
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
  return (int)polygen_launch_dependent(grid, 384, 229440, stream, pg_f32_parts, x, w, w3, w7, y0, M, K, N, (M > 1 ? x_stride0 : 0), (K > 1 ? w_stride0 : 0), w3_stride0, (M > 1 ? w3_stride1 : 0), w7_stride0, (N > 1 ? w7_stride2 : 0), (M > 1 ? y0_stride0 : 0), *reinterpret_cast<const TensorMap*>(&map_a), *reinterpret_cast<const TensorMap*>(&map_b), *reinterpret_cast<const TensorMap*>(&map_out_y0));
}

// Makes w3, w7 into `workspace`, as many bytes as pg_f32_parts_workspace says at a multiple of 128, and launches on the copies. Returns what pg_f32_parts_launch does.
extern "C" int pg_f32_parts_realigned_launch(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int y0_stride0, void* workspace, void* stream) {
  if ((unsigned long long)workspace % 128) return (int)cudaErrorInvalidValue;
  unsigned char* const copies = (unsigned char*)workspace;
  const long long rows_0 = 1LL * 2 * M, pitch_0 = (K + 31LL) / 32 * 32;
  const long long end_0 = rows_0 * pitch_0 * 4;
  const unsigned blocks_0 = (unsigned)((rows_0 + 7) / 8 * ((K * 4LL + 8191) / 8192));
  const long long rows_1 = 1LL * 2 * N, pitch_1 = (K + 31LL) / 32 * 32;
  const unsigned blocks_1 = (unsigned)((rows_1 + 31) / 32 * ((K * 4LL + 511) / 512));
  if (pitch_0 * M > 2147483647) return (int)cudaErrorInvalidValue;
  if (pitch_1 * N > 2147483647) return (int)cudaErrorInvalidValue;
  const cudaError_t status = polygen_launch_dependent(dim3(blocks_0 + blocks_1), 256, 0, stream, pg_f32_parts_realign, blocks_0, blocks_1, x, w, (float*)(copies), (float*)(copies + end_0), y0, M, K, N, (M > 1 ? x_stride0 : 0), (K > 1 ? w_stride0 : 0), (int)(pitch_0 * M), (int)(pitch_0), (int)(pitch_1 * N), (int)(pitch_1), (M > 1 ? y0_stride0 : 0));
  if (status != cudaSuccess) return (int)status;
  return pg_f32_parts_launch(x, w, (float*)(copies), (float*)(copies + end_0), y0, M, K, N, x_stride0, w_stride0, (int)(pitch_0 * M), (int)(pitch_0), (int)(pitch_1 * N), (int)(pitch_1), y0_stride0, stream);
}
#endif
