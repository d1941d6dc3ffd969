# ruff: noqa: E501 - CUDA text
"""Kernels in the styles of tutorials, samples and libraries, each with a launch and its results.

None is taken from anywhere: they are written for these tests, in the ways that people write such
kernels. Data are small integers, so that every result is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from test_machine_tma import COMMON

from polygen.machine import Launch, TensorMap


@dataclass(frozen=True)
class Foreign:
    """A kernel, its launch, and what the arrays hold afterwards (None: anything)."""

    name: str
    arch: str
    source: str
    made: Callable[[], tuple[Launch, tuple[Any, ...]]]


def integers(shape, dtype=np.float32, seed=0, low=-4, high=5):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def launch(grid, block, arguments, shared=0):
    three = lambda sides: (*sides, 1, 1)[:3]  # noqa: E731
    return Launch(three(grid), three(block), shared, tuple(arguments))


FOUND: dict[str, Foreign] = {}


def foreign(name: str, source: str, arch: str = "sm_80"):
    """Register a kernel; the decorated function makes its launch and results."""

    def register(made):
        FOUND[name] = Foreign(name, arch, source, cache(made))
        return made

    return register


# --- reductions ----------------------------------------------------------------------------------
@foreign("tree sum", """
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float s[128]; const int t = threadIdx.x;
  float v = 0; for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) v += x[i];
  s[t] = v; __syncthreads();
  #pragma unroll 1
  for (int step = 64; step; step /= 2) { if (t < step) s[t] += s[t + step]; __syncthreads(); }
  if (t == 0) y[blockIdx.x] = s[0];
}""")  # fmt: skip
def tree_sum():
    x = integers(500)
    wanted = np.array(
        [sum(x[i : i + 128].sum() for i in range(128 * b, 500, 256)) for b in range(2)], np.float32
    )
    return launch((2,), (128,), (x, np.full(2, np.nan, np.float32), 500)), (None, wanted)


@foreign("shuffle sum", """
extern "C" __global__ void k(const float* x, float* y, int n) {
  __shared__ float s[4]; const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  float v = t < n ? x[blockIdx.x * n + t] : 0;
  #pragma unroll
  for (int step = 16; step; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
  if (lane == 0) s[warp] = v;
  __syncthreads();
  if (warp == 0) { v = lane < 4 ? s[lane] : 0; v += __shfl_down_sync(0xffffffff, v, 2); v += __shfl_down_sync(0xffffffff, v, 1); if (lane == 0) y[blockIdx.x] = v; }
}""")  # fmt: skip
def shuffle_sum():
    x = integers((3, 100))
    return launch((3,), (128,), (x, np.full(3, np.nan, np.float32), 100)), (None, x.sum(1))


@foreign("softmax of rows", """
extern "C" __global__ void k(const float* x, float* most, float* total, int n) {
  __shared__ float s[8]; const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  const float* row = x + blockIdx.x * n;
  float m = -1e30f; for (int i = t; i < n; i += 128) m = fmaxf(m, row[i]);
  for (int step = 16; step; step /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
  if (lane == 0) s[warp] = m;
  __syncthreads();
  m = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
  float sum = 0; for (int i = t; i < n; i += 128) sum += exp2f(row[i] - m);
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) s[4 + warp] = sum;
  __syncthreads();
  if (t == 0) { most[blockIdx.x] = m; total[blockIdx.x] = s[4] + s[5] + s[6] + s[7]; }
}""")  # fmt: skip
def softmax_rows():
    x = integers((2, 200))
    x[:, 190] = 5  # in what the loops come to last
    m = x.max(1)
    nan = np.full(2, np.nan, np.float32)
    return launch((2,), (128,), (x, nan, nan.copy(), 200)), (
        None,
        m,
        np.exp2(x - m[:, None]).sum(1).astype(np.float32),
    )


@foreign("last block adds up", """
__device__ unsigned count;
extern "C" __global__ void k(const float* x, float* part, float* y, int n) {
  __shared__ float s[64]; __shared__ bool last; const int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t]; __syncthreads();
  #pragma unroll 1
  for (int step = 32; step; step /= 2) { if (t < step) s[t] += s[t + step]; __syncthreads(); }
  if (t == 0) { part[blockIdx.x] = s[0]; __threadfence(); last = atomicAdd(&count, 1) == gridDim.x - 1; }
  __syncthreads();
  if (last) { __threadfence(); if (t == 0) { float v = 0; for (int i = 0; i < (int)gridDim.x; ++i) v += ((volatile float*)part)[i]; y[0] = v; count = 0; } }
}""")  # fmt: skip
def last_block():
    x = integers((5, 64))
    return launch((5,), (64,), (x, np.zeros(5, np.float32), np.full(1, np.nan, np.float32), 5)), (
        None,
        x.sum(1),
        x.sum(keepdims=True)[0],
    )


# --- scans, sorting, moving ----------------------------------------------------------------------
@foreign("scan with two buffers", """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[2][64]; const int t = threadIdx.x; int in = 0;
  s[0][t] = x[blockIdx.x * 64 + t]; __syncthreads();
  #pragma unroll 1
  for (int step = 1; step < 64; step *= 2) {
    s[in ^ 1][t] = s[in][t] + (t >= step ? s[in][t - step] : 0);
    in ^= 1; __syncthreads();
  }
  y[blockIdx.x * 64 + t] = s[in][t];
}""")  # fmt: skip
def scan():
    x = integers((2, 64), np.int32)
    return launch((2,), (64,), (x, np.zeros_like(x))), (None, x.cumsum(1))


@foreign("transpose by tiles", """
extern "C" __global__ void k(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) if (r + i < rows && c < columns) tile[threadIdx.y + i][threadIdx.x] = x[(r + i) * columns + c];
  __syncthreads();
  c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8) if (r + i < columns && c < rows) y[(r + i) * rows + c] = tile[threadIdx.x][threadIdx.y + i];
}""")  # fmt: skip
def transpose():
    x = integers((40, 50))
    return launch((2, 2), (32, 8), (x, np.full((50, 40), np.nan, np.float32), 40, 50)), (None, x.T)


@foreign("histogram", """
extern "C" __global__ void k(const unsigned char* x, unsigned* bins, int n) {
  __shared__ unsigned mine[16]; const int t = threadIdx.x;
  if (t < 16) mine[t] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 64 + t; i < n; i += gridDim.x * 64) atomicAdd(&mine[x[i]], 1);
  __syncthreads();
  if (t < 16) atomicAdd(&bins[t], mine[t]);
}""")  # fmt: skip
def histogram():
    x = integers(300, np.uint8, 1, 0, 16)
    return launch((2,), (64,), (x, np.zeros(16, np.uint32), 300)), (
        None,
        np.bincount(x, minlength=16),
    )


@foreign("stencil with a halo", """
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ int s[64 + 4]; const int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t + 2] = i < n ? x[i] : 0;
  if (t < 2) { s[t] = i >= 2 ? x[i - 2] : 0; s[t + 66] = i + 64 < n ? x[i + 64] : 0; }
  __syncthreads();
  if (i < n) y[i] = s[t] + 2 * s[t + 1] + 3 * s[t + 2] + 2 * s[t + 3] + s[t + 4];
}""")  # fmt: skip
def stencil():
    x = integers(150, np.int32)
    return launch((3,), (64,), (x, np.zeros(150, np.int32), 150)), (
        None,
        np.convolve(x, [1, 2, 3, 2, 1], "same"),
    )


@foreign("bitonic sort", """
extern "C" __global__ void k(int* x) {
  __shared__ int s[64]; const int t = threadIdx.x; s[t] = x[blockIdx.x * 64 + t]; __syncthreads();
  #pragma unroll 1
  for (int size = 2; size <= 64; size *= 2)
    #pragma unroll 1
    for (int step = size / 2; step; step /= 2) {
      const int other = t ^ step;
      if (other > t) { const int a = s[t], b = s[other]; if ((a > b) == ((t & size) == 0)) { s[t] = b; s[other] = a; } }
      __syncthreads();
    }
  x[blockIdx.x * 64 + t] = s[t];
}""")  # fmt: skip
def bitonic():
    x = integers((2, 64), np.int32, 2, -50, 50)
    return launch((2,), (64,), (x,)), (np.sort(x, 1),)


# --- products ------------------------------------------------------------------------------------
@foreign("tiled product", """
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int p) {
  __shared__ float x[16][16], y[16][16];
  const int r = blockIdx.y * 16 + threadIdx.y, q = blockIdx.x * 16 + threadIdx.x; float sum = 0;
  #pragma unroll 1
  for (int i = 0; i < p; i += 16) {
    x[threadIdx.y][threadIdx.x] = r < m && i + threadIdx.x < p ? a[r * p + i + threadIdx.x] : 0;
    y[threadIdx.y][threadIdx.x] = q < n && i + threadIdx.y < p ? b[(i + threadIdx.y) * n + q] : 0;
    __syncthreads();
    #pragma unroll
    for (int j = 0; j < 16; ++j) sum += x[threadIdx.y][j] * y[j][threadIdx.x];
    __syncthreads();
  }
  if (r < m && q < n) c[r * n + q] = sum;
}""")  # fmt: skip
def tiled_product():
    a, b = integers((20, 40)), integers((40, 24), seed=1)
    return launch((2, 2), (16, 16), (a, b, np.full((20, 24), np.nan, np.float32), 20, 24, 40)), (
        None,
        None,
        a @ b,
    )


@foreign("product through two slots", """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const float* a, const float* b, float* c, int p) {
  __shared__ __align__(16) float x[2][16][16], y[2][16][16];
  const int t = threadIdx.x, row = t / 4, part = t % 4 * 4, tiles = p / 16;
  auto copy = [&](int i) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(&x[i & 1][row][part])), "l"(a + row * p + i * 16 + part) : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at(&y[i & 1][row][part])), "l"(b + (i * 16 + row) * 16 + part) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum[4] = {};
  copy(0);
  #pragma unroll 1
  for (int i = 0; i < tiles; ++i) {
    if (i + 1 < tiles) { copy(i + 1); asm volatile("cp.async.wait_group 1;" ::: "memory"); }
    else asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    for (int j = 0; j < 16; ++j) for (int e = 0; e < 4; ++e) sum[e] += x[i & 1][row][j] * y[i & 1][j][part + e];
    __syncthreads();
  }
  for (int e = 0; e < 4; ++e) c[row * 16 + part + e] = sum[e];
}""")  # fmt: skip
def two_slots():
    a, b = integers((16, 64)), integers((64, 16), seed=1)
    return launch((1,), (64,), (a, b, np.full((16, 16), np.nan, np.float32), 64)), (
        None,
        None,
        a @ b,
    )


@foreign("product by mma", """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const uint4* a, const uint4* b, float* c) {
  __shared__ __align__(16) uint4 x[64][2], y[64][2];
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  x[t / 2][t % 2] = a[t]; y[t / 2][t % 2] = b[t];
  __syncthreads();
  unsigned f[4], g[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(at(&x[16 * warp + lane % 16][lane / 16])));
  for (int j = 0; j < 64; j += 16) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(g[0]), "=r"(g[1]), "=r"(g[2]), "=r"(g[3]) : "r"(at(&y[j + lane % 8 + lane / 16 * 8][lane / 8 % 2])));
    for (int h = 0; h < 2; ++h) {
      float d[4] = {};
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[2 * h]), "r"(g[2 * h + 1]));
      for (int e = 0; e < 4; ++e) c[(16 * warp + lane / 4 + e / 2 * 8) * 64 + j + 8 * h + lane % 4 * 2 + e % 2] = d[e];
    }
  }
}""")  # fmt: skip
def by_mma():
    import ml_dtypes

    a, b = integers((64, 16)), integers((64, 16), seed=1)
    brain = ml_dtypes.bfloat16
    return launch(
        (1,), (128,), (a.astype(brain), b.astype(brain), np.full((64, 64), np.nan, np.float32))
    ), (None, None, a @ b.T)


@foreign("product by wmma", """
extern "C" __global__ void k(const uint4* a, const uint4* b, float* c) {
  __shared__ __align__(32) uint4 x[64], y[64]; const int t = threadIdx.x, warp = t / 32;
  if (t < 64) { x[t] = a[t]; y[t] = b[t]; }
  __syncthreads();
  unsigned f[8], g[8]; float d[8] = {};
  const unsigned px = (unsigned)__cvta_generic_to_shared(x) + 512 * (warp & 1), py = (unsigned)__cvta_generic_to_shared(y);
    asm volatile("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], 16;" : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]), "=r"(f[4]), "=r"(f[5]), "=r"(f[6]), "=r"(f[7]) : "r"(px));
    asm volatile("wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], 16;" : "=r"(g[0]), "=r"(g[1]), "=r"(g[2]), "=r"(g[3]), "=r"(g[4]), "=r"(g[5]), "=r"(g[6]), "=r"(g[7]) : "r"(py + 512 * (warp / 2)));
    asm volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, {%0, %1, %2, %3, %4, %5, %6, %7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(f[4]), "r"(f[5]), "r"(f[6]), "r"(f[7]), "r"(g[0]), "r"(g[1]), "r"(g[2]), "r"(g[3]), "r"(g[4]), "r"(g[5]), "r"(g[6]), "r"(g[7]));
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, 32;"
    :: "l"(c + (warp & 1) * 512 + warp / 2 * 16), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]) : "memory");
}""")  # fmt: skip
def by_wmma():
    a, b = integers((32, 16), np.float16), integers((32, 16), np.float16, 1)
    c = np.full((32, 32), np.nan, np.float32)
    return launch((1,), (128,), (a, b, c)), (
        None,
        None,
        a.astype(np.float32) @ b.T.astype(np.float32),
    )


@foreign("sums over blocks behind a lock", """
extern "C" __global__ void k(const float* x, float* y, int* lock, int n) {
  const int t = threadIdx.x; float v = 0;
  for (int i = blockIdx.x; i < n; i += gridDim.x) v += x[i * 64 + t];
  if (t == 0) { int seen; do { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(lock) : "memory"); } while (seen != (int)blockIdx.x); }
  __syncthreads();
  y[t] = (blockIdx.x ? y[t] : 0.f) + v;
  __syncthreads();
  if (t == 0) asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(lock), "r"((int)blockIdx.x + 1) : "memory");
}""")  # fmt: skip
def behind_a_lock():
    x = integers((7, 64))
    return launch((3,), (64,), (x, np.full(64, np.nan, np.float32), np.zeros(1, np.int32), 7)), (
        None,
        x.sum(0),
        np.array([3]),
    )


# --- warps with roles ----------------------------------------------------------------------------
@foreign("two warps and named barriers", """
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ int s[2][32]; const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
      if (i > 1) asm volatile("bar.sync %0, 64;" :: "r"(3 + (i & 1)) : "memory");
      s[i & 1][lane] = x[i * 32 + lane];
      asm volatile("bar.arrive %0, 64;" :: "r"(1 + (i & 1)) : "memory");
    }
  } else {
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
      asm volatile("bar.sync %0, 64;" :: "r"(1 + (i & 1)) : "memory");
      y[i * 32 + lane] = s[i & 1][31 - lane];
      if (i + 2 < n) asm volatile("bar.arrive %0, 64;" :: "r"(3 + (i & 1)) : "memory");
    }
  }
}""")  # fmt: skip
def named_barriers():
    x = integers((5, 32), np.int32)
    return launch((1,), (64,), (x, np.zeros_like(x), 5)), (None, x[:, ::-1])


@foreign("a ring of bulk copies", COMMON + """
extern "C" __global__ void k(const int* x, int* y, int n) {
  __shared__ __align__(128) int s[2][32]; __shared__ __align__(8) unsigned long long b[4];
  const int t = threadIdx.x, lane = t % 32; const word full = shared_address(b), empty = full + 16, data = shared_address(s);
  if (t == 0) { init(full, 1); init(full + 8, 1); init(empty, 32); init(empty + 8, 32); FENCE_INIT; }
  __syncthreads();
  if (t == 32) {
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const int slot = i & 1, round = i / 2;
      if (i > 1) wait(empty + 8 * slot, (round - 1) & 1);
      expect(full + 8 * slot, 128);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" :: "r"(data + 128 * slot), "l"(x + 32 * i), "r"(full + 8 * slot) : "memory");
    }
  } else if (t < 32) {
    #pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const int slot = i & 1, round = i / 2;
      wait(full + 8 * slot, round & 1);
      y[32 * i + lane] = 2 * s[slot][31 - lane];
      arrive(empty + 8 * slot);
    }
  }
}""", "sm_90a")  # fmt: skip
def bulk_ring():
    x = integers((6, 32), np.int32)
    return launch((1,), (64,), (x, np.zeros_like(x), 6)), (None, 2 * x[:, ::-1])


@foreign("boxes in and out", COMMON + """
extern "C" __global__ void k(const __grid_constant__ Map from, const __grid_constant__ Map to, int rows) {
  extern __shared__ __align__(1024) unsigned char memory[]; __shared__ __align__(8) unsigned long long b[1];
  const int t = threadIdx.x; const word at = shared_address(memory), full = shared_address(b);
  float* s = (float*)memory;
  if (t == 0) { init(full, 1); FENCE_INIT; }
  __syncthreads();
  #pragma unroll 1
  for (int i = 0; i < rows; i += 8) {
    if (t == 0) {
      expect(full, 1024);
      asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(at), "l"(&from), "r"(full), "r"((int)blockIdx.x * 32), "r"(i) : "memory");
    }
    wait(full, i / 8 & 1);
    for (int j = t; j < 256; j += 64) s[j] = 3 * s[j] + 1;
    FENCE_ASYNC;
    __syncthreads();
    if (t == 0) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];" :: "r"(at), "l"(&to), "r"((int)blockIdx.x * 32), "r"(i) : "memory");
      asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
  }
}""", "sm_90a")  # fmt: skip
def boxes():
    x = integers((20, 48))
    y = np.full_like(x, np.nan)
    return launch((2,), (64,), (TensorMap(x, (8, 32)), TensorMap(y, (8, 32)), 20), 1024), (
        None,
        3 * x + 1,
    )


@foreign("a pair of blocks", COMMON + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x; word rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  s[t] = x[blockIdx.x * 64 + t];
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  word there; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(s) + 4 * (63 - t)), "r"(rank ^ 1));
  int v; asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(there) : "memory");
  y[blockIdx.x * 64 + t] = v;
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}""", "sm_90a")  # fmt: skip
def pair_of_blocks():
    x = integers((4, 64), np.int32)
    return launch((4,), (64,), (x, np.zeros_like(x))), (None, x[[1, 0, 3, 2], ::-1])
