// roles_registers: x @ w + r.T
//   in  x: f16[M, K]
//   in  w: f16[K, N]
//   in  r: f16[N, M]
//   out y0: f16[M, N]
//    S0  v0[i,j] += x[i,k] * w[k,j]       i < M, j < N, k < K   (f32)
//    P1  v1[i,j] = add(v0[i,j], r[j,i])   i < M, j < N   (f32)
//    P2  y0[i,j] = cast(v1[i,j])          i < M, j < N   (f16)
//
// mapping: block 128x64x64, 2 consumer warpgroup(s) of 64x64, instruction 64x64x16, wgmma_m64k16_f32_f16 on sm_90a
// needs: 384 threads, 98368 of 232448 B shared memory, about 72 registers per thread, 1 block(s) per multiprocessor
// arguments, and what the launcher returns for others (lengths in elements, addresses in bytes):
//   20001: M is 1 to 2147418112
//   20002: K is 1 to 2147418112
//   20003: N is 1 to 2147418112
//   20004: x_stride0 is not negative if M > 1
//   20005: x_stride0 is a multiple of 8 if M > 1
//   20006: w_stride0 is not negative if K > 1
//   20007: w_stride0 is a multiple of 8 if K > 1
//   20008: r_stride0 is not negative if N > 1
//   20009: r_stride0 is a multiple of 8 if N > 1
//   20010: y0_stride0 leads beyond a row of y0 if M > 1
//   20011: y0_stride0 is a multiple of 8 if M > 1
//   20012: the address of x is a multiple of 16
//   20013: the address of w is a multiple of 16
//   20014: the address of r is a multiple of 16
//   20015: the address of y0 is a multiple of 16
//   20016: y0 shares no memory with x
//   20017: y0 shares no memory with w
//   20018: y0 shares no memory with r
// barriers, and the dependences they enforce:
//   full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 4 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 4 version(s) later)
//   empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
// schedule:
//   format = 1
//   name = "roles_registers"
//   device = "sm_90a"
//   atom = "auto"
//   min_blocks = 1
//   [tile.cta]
//   m = 128
//   n = 64
//   k = 64
//   [tile.warp]
//   m = 64
//   n = 64
//   [pipeline]
//   stages = 4
//   distance = 2
//   order = ["mma", "copy"]
//   fragments = 2
//   lookahead = 1
//   copies = "whole"
//   across = true
//   in_flight = 0
//   [loops]
//   mma = ["k", "m", "n"]
//   k = "forward"
//   grid = ["m", "n"]
//   phases = ["main", "epilogue"]
//   [roles]
//   form = "cooperative"
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
// made by: polygen generate 'x @ w + r.T' 'x:f16[M,K]' 'w:f16[K,N]' 'r:f16[N,M]' --arch sm_90a --name roles_registers --size M=4096 N=4096 K=1024 --schedule tests/golden/schedules/roles_registers.toml -o -

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
// Brings the line of an element into the first-level cache.
__device__ __forceinline__ void warm(const void* from) {
  asm volatile("{ .reg .b8 byte; ld.global.nc.b8 byte, [%0]; }" :: "l"(from) : "memory");
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
// wgmma_m64k16_f32_f16: c[64,64] = a * b (+ c if accumulate), by a warpgroup
__device__ __forceinline__ void multiply_matrices(float (&c)[8][4], unsigned long long a, unsigned long long b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 1; }"
               : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
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

extern "C" __global__ void __launch_bounds__(384, 1)
pg_roles_registers(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ r_, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int r_stride0, int y0_stride0, const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(shared_memory);
  const int thread = threadIdx.x, lane = thread % 32;
  // The same in all threads of a warp, and known to be.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), group = warp / 4;
  const int k_tiles = (K + 63) / 64;
  // Work items are tiles; a block takes every `stride`-th.
  const int tiles_m = (M + 127) / 128, tiles_n = (N + 63) / 64;
  const int first = blockIdx.x / 1, stride = gridDim.x / 1;
  const int tiles = (tiles_m * tiles_n - first + stride - 1) / stride;

  // barriers: which dependence each enforces stands beside its wait
  if (thread == 0) {
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 98304 + 8 * slot, 1);  // full_ring
    for (int slot = 0; slot < 4; ++slot) barrier_init(shared + 98336 + 8 * slot, 2);  // empty_ring
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  if (thread == 256) prefetch_map(&map_a);
  if (thread == 256) prefetch_map(&map_b);
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
      // fill[i,k]: x -> ring_a, w -> ring_b, by the copy engine, zeros outside the arrays
      auto fill = [&](int, int k) __attribute__((always_inline)) {
        const unsigned full = shared + 98304 + ring_producer.slot * 8;
        barrier_expect(full, 24576);
        box_load(shared + 0 + ring_producer.slot * 16384 + 0, &map_a, full, k * 64 + 0, b_m * 128);
        box_load(shared + 65536 + ring_producer.slot * 8192 + 0, &map_b, full, b_n * 64 + 0, k * 64);
        ring_producer.advance();
      };
      // wait_empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
      auto wait_empty_ring = [&](int, int) __attribute__((always_inline)) {
        barrier_wait(shared + 98336 + ring_producer.slot * 8, ring_producer.parity ^ 1);
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
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int quarter = warp % 4 * 16, w_m = group, w_n = 0;
    float sum[1][8][4] = {};
    Cursor<4> ring_consumer;
    // multiply[i,k,s,m]: sum[m] += ring_a * ring_b, proved to read what the copies wrote
    const unsigned low_a = ((shared + 0 + group * 8192) & 0x3ffffu) / 16 + 0x10000u, low_b = ((shared + 65536) & 0x3ffffu) / 16 + 0x2000000u;
    auto multiply = [&](int, int k, int s, int m) __attribute__((always_inline)) {
      const unsigned address_a = low_a + (unsigned)(ring_consumer.slot * 16384 + s * 32 + m * 8192) / 16;
      const unsigned address_b = low_b + (unsigned)(ring_consumer.slot * 8192 + s * 2048) / 16;
      multiply_matrices(sum[m], (unsigned long long)0x40000040u << 32 | address_a, (unsigned long long)0x40000040u << 32 | address_b, k > 0 || s > 0);
    };
    auto commit = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); };
    // The fused pointwise statements, on one element.
    auto compute = [&](float sum, float r_0, float& y0_result) __attribute__((always_inline)) {
      const float t1 = sum + r_0;
      y0_result = t1;
    };
    // Results at the edge of the arrays, one at a time: element e of a vector at (row, column).
    auto finish_element = [&](int row, int column, int e, float sum) __attribute__((always_inline)) {
      const float r_0_element = from_f16(__ldg(r_ + row + (long long)(column + e) * r_stride0));
      float y0_out;
      compute(sum, r_0_element, y0_out);
      *(y0 + (long long)row * y0_stride0 + (column + e)) = to_f16(y0_out);
    };
    // store[m]: straight from the fragments, two adjacent results at a time
    auto store = [&](int, int m) __attribute__((always_inline)) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        {
          const int row = b_m * 128 + w_m * 64 + quarter + m * 64 + (lane / 4), column = b_n * 64 + w_n * 64 + n * 8 + 2 * (lane % 4);
          const int count = row < M ? N - column : 0;
          const float sums[2] = { sum[m][n][0], sum[m][n][1] };
          if (count >= 2) {
            const int i = 0, safe_row = row;
            float r_0_elements[1][2];
            #pragma unroll
            for (int e = 0; e < 2; ++e) r_0_elements[i][e] = from_f16(__ldg(r_ + safe_row + (long long)(column + e) * r_stride0));
            float y0_out[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) compute(sums[e], r_0_elements[i][e], y0_out[e]);
            write_f16<2, 4>(y0 + (long long)row * y0_stride0 + column, y0_out);
          } else
          {
            if (count > 0) finish_element(row, column, 0, sums[0]);
            if (count > 1) finish_element(row, column, 1, sums[1]);
          }
        }
        {
          const int row = b_m * 128 + w_m * 64 + quarter + m * 64 + (lane / 4) + 8, column = b_n * 64 + w_n * 64 + n * 8 + 2 * (lane % 4);
          const int count = row < M ? N - column : 0;
          const float sums[2] = { sum[m][n][2], sum[m][n][3] };
          if (count >= 2) {
            const int i = 0, safe_row = row;
            float r_0_elements[1][2];
            #pragma unroll
            for (int e = 0; e < 2; ++e) r_0_elements[i][e] = from_f16(__ldg(r_ + safe_row + (long long)(column + e) * r_stride0));
            float y0_out[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) compute(sums[e], r_0_elements[i][e], y0_out[e]);
            write_f16<2, 4>(y0 + (long long)row * y0_stride0 + column, y0_out);
          } else
          {
            if (count > 0) finish_element(row, column, 0, sums[0]);
            if (count > 1) finish_element(row, column, 1, sums[1]);
          }
        }
      }
    };
    // wait_full_ring: fill -> multiply (flow through ring_a); fill -> fill (reuse through ring_a, 4 version(s) later); fill -> multiply (flow through ring_b); fill -> fill (reuse through ring_b, 4 version(s) later)
    auto wait_full_ring = [&](int, int) __attribute__((always_inline)) {
      barrier_wait(shared + 98304 + ring_consumer.slot * 8, ring_consumer.parity);
    };
    // arrive_empty_ring: multiply -> fill (reuse through ring_a, 4 version(s) later); fill -> fill (reuse through ring_a, 4 version(s) later); multiply -> fill (reuse through ring_b, 4 version(s) later); fill -> fill (reuse through ring_b, 4 version(s) later)
    auto arrive_empty_ring = [&](int, int) __attribute__((always_inline)) {
      if (thread % 128 == 0) barrier_arrive(shared + 98336 + ring_consumer.slot * 8);
      ring_consumer.advance();
    };
    // retire_empty_ring: all group(s) of wgmma are complete
    auto retire_empty_ring = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); };
    auto fence_multiply = [&](int, int) __attribute__((always_inline)) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); };
    // The loops of a consumer, generated by isl from its schedule tree.
    #pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      locate(i);
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
      }
      store(i, 0);
    }
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
extern "C" int pg_roles_registers_launch(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w, const unsigned short* __restrict__ r_, unsigned short* __restrict__ y0, int M, int K, int N, int x_stride0, int w_stride0, int r_stride0, int y0_stride0, void* stream) {
  if (M < 1 || M > 2147418112) return 20001;
  if (K < 1 || K > 2147418112) return 20002;
  if (N < 1 || N > 2147418112) return 20003;
  if (M > 1 && x_stride0 < 0) return 20004;
  if (M > 1 && x_stride0 % 8) return 20005;
  if (K > 1 && w_stride0 < 0) return 20006;
  if (K > 1 && w_stride0 % 8) return 20007;
  if (N > 1 && r_stride0 < 0) return 20008;
  if (N > 1 && r_stride0 % 8) return 20009;
  if (M > 1 && y0_stride0 < (N - 1LL) + 1) return 20010;
  if (M > 1 && y0_stride0 % 8) return 20011;
  if ((unsigned long long)x % 16) return 20012;
  if ((unsigned long long)w % 16) return 20013;
  if ((unsigned long long)r_ % 16) return 20014;
  if ((unsigned long long)y0 % 16) return 20015;
  if ((unsigned long long)y0 < (unsigned long long)x + ((M - 1LL) * x_stride0 + (K - 1LL) + 1) * 2 && (unsigned long long)x < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20016;
  if ((unsigned long long)y0 < (unsigned long long)w + ((K - 1LL) * w_stride0 + (N - 1LL) + 1) * 2 && (unsigned long long)w < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20017;
  if ((unsigned long long)y0 < (unsigned long long)r_ + ((N - 1LL) * r_stride0 + (M - 1LL) + 1) * 2 && (unsigned long long)r_ < (unsigned long long)y0 + ((M - 1LL) * y0_stride0 + (N - 1LL) + 1) * 2) return 20018;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) <= alignof(CUtensorMap), "a tensor map is not passed as it is");
  CUtensorMap map_a;
  if (const cudaError_t map_status = polygen_encode_map(&map_a, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, x, {{K, 1, 64}, {M, x_stride0, 128}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  CUtensorMap map_b;
  if (const cudaError_t map_status = polygen_encode_map(&map_b, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, w, {{N, 1, 64}, {K, w_stride0, 64}}, CU_TENSOR_MAP_SWIZZLE_128B))
    return (int)map_status;
  const cudaError_t status =
      cudaFuncSetAttribute(pg_roles_registers, cudaFuncAttributeMaxDynamicSharedMemorySize, 98368);
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
  const unsigned long long tiles_across = (N + 63) / 64;
  const unsigned long long tile_clusters = tiles_along * tiles_across;
  const dim3 grid((tile_clusters < (unsigned)resident ? (unsigned)tile_clusters : (unsigned)resident) * 1);
  pg_roles_registers<<<grid, 384, 98368, (cudaStream_t)stream>>>(x, w, r_, y0, M, K, N, (M > 1 ? x_stride0 : 0), (K > 1 ? w_stride0 : 0), (N > 1 ? r_stride0 : 0), (M > 1 ? y0_stride0 : 0), *reinterpret_cast<const TensorMap*>(&map_a), *reinterpret_cast<const TensorMap*>(&map_b));
  return (int)cudaGetLastError();
}
#endif
