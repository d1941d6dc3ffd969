# ruff: noqa: E501 - CUDA text
"""Kernels in the styles of libraries: attention, stream-K, scans with look-back, tables, sparse rows.

As in `foreign_kernels`, none is taken from anywhere, and data are small integers where results are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from foreign_kernels import integers, launch
from test_machine_tma import COMMON
from wgmma_text import wgmma_function

from polygen.machine import Launch, TensorMap


@dataclass(frozen=True)
class Library:
    """A kernel, its launch, what its arrays hold afterwards (None: anything), and how exactly."""

    name: str
    arch: str
    source: str
    made: Callable[[], tuple[Launch, tuple[Any, ...]]]
    atol: float


LIBRARY: dict[str, Library] = {}


def library(name: str, source: str, arch: str = "sm_80", atol: float = 0.0):
    """Register a kernel; the decorated function makes its launch and results."""

    def register(made):
        LIBRARY[name] = Library(name, arch, source, cache(made), atol)
        return made

    return register


MMA = """
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); }
__device__ __forceinline__ void ldsm(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory"); }
__device__ __forceinline__ void ldsm_t(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory"); }
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned pack(float low, float high) { unsigned r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r; }
__device__ __forceinline__ void copy16(unsigned to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory"); }
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void landed() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
"""


# --- attention -----------------------------------------------------------------------------------
@library("attention with a running maximum", MMA + """
// two warps of 16 queries, keys and values by 32 in two slots, 32 numbers a row
extern "C" __global__ void k(const uint4* q, const uint4* kk, const uint4* v, float* o, int keys, float scale) {
  __shared__ __align__(16) uint4 sq[32][4], sk[2][32][4], sv[2][32][4];
  const int t = threadIdx.x, warp = t / 32, lane = t % 32, head = blockIdx.x;
  q += head * 32 * 4; kk += head * keys * 4; v += head * keys * 4; o += head * 32 * 32;
  auto fetch = [&](int tile) {
    for (int i = t; i < 128; i += 64) { const int r = i / 4, c = (i ^ r / 2) % 4;
      copy16(at(&sk[tile & 1][r][c]), kk + (tile * 32 + r) * 4 + i % 4); copy16(at(&sv[tile & 1][r][c]), v + (tile * 32 + r) * 4 + i % 4); }
    commit(); };
  for (int i = t; i < 128; i += 64) { const int r = i / 4; copy16(at(&sq[r][(i ^ r / 2) % 4]), q + i); }
  fetch(0);
  const int tiles = keys / 32;
  float m[2] = {-1e30f, -1e30f}, l[2] = {}, acc[4][4] = {}; unsigned qf[2][4];
  #pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) { fetch(tile + 1); landed<1>(); } else landed<0>();
    __syncthreads();
    if (tile == 0) for (int s = 0; s < 2; ++s) { const int r = 16 * warp + lane % 16, c = 2 * s + lane / 16; ldsm(qf[s], at(&sq[r][(c ^ r / 2) % 4])); }
    float p[4][4] = {};
    for (int n = 0; n < 2; ++n) for (int s = 0; s < 2; ++s) {
      unsigned b[4]; const int r = 16 * n + lane % 8 + lane / 16 * 8, c = 2 * s + lane / 8 % 2; ldsm(b, at(&sk[tile & 1][r][(c ^ r / 2) % 4]));
      mma(p[2 * n], qf[s], b[0], b[1]); mma(p[2 * n + 1], qf[s], b[2], b[3]); }
    for (int h = 0; h < 2; ++h) {
      float top = m[h];
      for (int n = 0; n < 4; ++n) for (int e = 0; e < 2; ++e) { p[n][2 * h + e] *= scale; top = fmaxf(top, p[n][2 * h + e]); }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1)); top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float less = exp2f(m[h] - top); m[h] = top; l[h] *= less;
      for (int n = 0; n < 4; ++n) for (int e = 0; e < 2; ++e) { acc[n][2 * h + e] *= less; const float x = exp2f(p[n][2 * h + e] - top); p[n][2 * h + e] = x; l[h] += x; } }
    for (int s = 0; s < 2; ++s) {
      const unsigned a[4] = {pack(p[2 * s][0], p[2 * s][1]), pack(p[2 * s][2], p[2 * s][3]), pack(p[2 * s + 1][0], p[2 * s + 1][1]), pack(p[2 * s + 1][2], p[2 * s + 1][3])};
      for (int n = 0; n < 2; ++n) { unsigned b[4]; const int r = 16 * s + lane % 16, c = 2 * n + lane / 16; ldsm_t(b, at(&sv[tile & 1][r][(c ^ r / 2) % 4]));
        mma(acc[2 * n], a, b[0], b[1]); mma(acc[2 * n + 1], a, b[2], b[3]); } }
    __syncthreads();
  }
  for (int h = 0; h < 2; ++h) {
    float sum = l[h] + __shfl_xor_sync(~0u, l[h], 1); sum += __shfl_xor_sync(~0u, sum, 2);
    for (int n = 0; n < 4; ++n) for (int e = 0; e < 2; ++e) o[(16 * warp + lane / 4 + 8 * h) * 32 + 8 * n + lane % 4 * 2 + e] = acc[n][2 * h + e] / sum; }
}""", atol=0.03)  # fmt: skip
def attention():
    heads, keys = 2, 96
    q, k, v = (
        integers((heads, n, 32), ml_dtypes.bfloat16, at, -2, 3)
        for at, n in enumerate((32, keys, keys))
    )
    s = np.exp2(q.astype("f4") @ k.astype("f4").swapaxes(1, 2) * 0.25)
    wanted = (s / s.sum(2, keepdims=True)) @ v.astype("f4")
    o = np.full((heads, 32, 32), np.nan, np.float32)
    return launch((heads,), (64,), (q, k, v, o, keys, np.float32(0.25))), (None, None, None, wanted)


# --- products ------------------------------------------------------------------------------------
TILE = """
  auto part = [&](int tile, int from, int to) {  // of the sum of one tile of 16 x 16
    const int row = tile / tiles_n * 16, column = tile % tiles_n * 16; float sum = 0;
    for (int i = from; i < to; ++i) {
      sa[ty][tx] = a[(row + ty) * p + i * 16 + tx]; sb[ty][tx] = b[(i * 16 + ty) * n + column + tx];
      __syncthreads();
      for (int j = 0; j < 16; ++j) sum += sa[ty][j] * sb[j][tx];
      __syncthreads();
    }
    return sum; };
"""


@library("stream-K with atomics", """
extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int p) {
  __shared__ float sa[16][16], sb[16][17]; const int tx = threadIdx.x, ty = threadIdx.y, tiles_n = n / 16, steps = p / 16;
""" + TILE + """
  const int all = m / 16 * tiles_n * steps, each = (all + gridDim.x - 1) / gridDim.x;
  int at = blockIdx.x * each; const int end = min(at + each, all);
  while (at < end) {
    const int tile = at / steps, from = at % steps, to = min(steps, from + end - at);
    const float sum = part(tile, from, to);
    atomicAdd(&c[(tile / tiles_n * 16 + ty) * n + tile % tiles_n * 16 + tx], sum);
    at += to - from;
  }
}""")  # fmt: skip
def stream_k():
    a, b = integers((32, 80)), integers((80, 48), seed=1)
    return launch((4,), (16, 16), (a, b, np.zeros((32, 48), np.float32), 32, 48, 80)), (
        None,
        None,
        a @ b,
    )


@library("stream-K with a workspace and flags", """
extern "C" __global__ void k(const float* a, const float* b, float* c, float* space, int* flags, int m, int n, int p) {
  __shared__ float sa[16][16], sb[16][17]; const int tx = threadIdx.x, ty = threadIdx.y, tiles_n = n / 16, steps = p / 16, t = ty * 16 + tx;
""" + TILE + """
  const int all = m / 16 * tiles_n * steps, each = (all + gridDim.x - 1) / gridDim.x;
  int at = blockIdx.x * each; const int end = min(at + each, all);
  while (at < end) {
    const int tile = at / steps, from = at % steps, to = min(steps, from + end - at);
    float sum = part(tile, from, to);
    at += to - from;
    if (to < steps) {  // the block after this one finishes the tile
      if (from) { if (t == 0) { while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) ; __threadfence(); } __syncthreads(); sum += ((volatile float*)space)[(blockIdx.x - 1) * 256 + t]; }
      space[blockIdx.x * 256 + t] = sum; __threadfence(); __syncthreads();
      if (t == 0) atomicExch(&flags[blockIdx.x], 1);
    } else {
      if (from) { if (t == 0) { while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) ; __threadfence(); } __syncthreads(); sum += ((volatile float*)space)[(blockIdx.x - 1) * 256 + t]; }
      c[(tile / tiles_n * 16 + ty) * n + tile % tiles_n * 16 + tx] = sum;
    }
  }
}""")  # fmt: skip
def stream_k_flags():
    a, b = integers((32, 80)), integers((80, 48), seed=1)
    c, space = np.full((32, 48), np.nan, np.float32), np.zeros((5, 256), np.float32)
    arguments = (a, b, c, space, np.zeros(5, np.int32), 32, 48, 80)
    return launch((5,), (16, 16), arguments), (None, None, a @ b, None, None)


@library("wgmma behind three stages of TMA, one warpgroup", wgmma_function("multiply", 64, 16, "f32.bf16.bf16") + COMMON.replace("typedef unsigned int word;", "") + """
__device__ __forceinline__ unsigned long long descriptor(word at) { return (unsigned long long)(at >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ void box(word to, const Map* map, word bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory"); }
extern "C" __global__ void __launch_bounds__(128) k(const __grid_constant__ Map ma, const __grid_constant__ Map mb, float* c, int tiles_n, int tiles, int steps, int n) {
  extern __shared__ __align__(1024) unsigned char memory[]; __shared__ __align__(8) unsigned long long bars[3];
  const int t = threadIdx.x; const word base = shared_address(memory), bar = shared_address(bars);
  if (t == 0) { for (int s = 0; s < 3; ++s) init(bar + 8 * s, 1); FENCE_INIT; }
  __syncthreads();
  int done = 0;
  #pragma unroll 1
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int y = tile / tiles_n * 64, x = tile % tiles_n * 64;
    auto fetch = [&](int i) { const int s = (done + i) % 3; expect(bar + 8 * s, 16384); box(base + 16384 * s, &ma, bar + 8 * s, 64 * i, y); box(base + 16384 * s + 8192, &mb, bar + 8 * s, 64 * i, x); };
    if (t == 0) for (int i = 0; i < 2 && i < steps; ++i) fetch(i);
    float acc[32];
    #pragma unroll 1
    for (int i = 0; i < steps; ++i) {
      const int s = (done + i) % 3;
      wait(bar + 8 * s, (done + i) / 3 & 1);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int j = 0; j < 4; ++j) multiply(acc, descriptor(base + 16384 * s + 32 * j), descriptor(base + 16384 * s + 8192 + 32 * j), i + j);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      __syncthreads();
      if (t == 0 && i + 2 < steps) fetch(i + 2);
    }
    done += steps;
    for (int e = 0; e < 32; ++e) c[(y + t / 32 * 16 + t % 32 / 4 + e / 2 % 2 * 8) * n + x + e / 4 * 8 + t % 4 * 2 + e % 2] = acc[e];
  }
}""", "sm_90a")  # fmt: skip
def wgmma_stages():
    a, b = integers((128, 256), ml_dtypes.bfloat16), integers((128, 256), ml_dtypes.bfloat16, 1)
    c = np.full((128, 128), np.nan, np.float32)
    maps = [TensorMap(one, (64, 64), 128) for one in (a, b)]
    given = launch((3,), (128,), (*maps, c, 2, 4, 4, 128), 3 * 16384)
    return given, (None, None, a.astype("f4") @ b.astype("f4").T)


@library("rows by four-bit weights", """
extern "C" __global__ void k(const unsigned* w, const float* scale, const float* x, float* y, int columns) {
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32; float sum = 0;
  for (int i = lane; i < columns / 8; i += 32) { const unsigned word = w[row * columns / 8 + i];
    for (int j = 0; j < 8; ++j) sum += (int)((word >> 4 * j & 15) - 8) * x[8 * i + j]; }
  for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
  if (lane == 0) y[row] = sum * scale[row];
}""")  # fmt: skip
def four_bits():
    q = integers((8, 320), np.int64, 0, -8, 8)
    words = sum((q[:, j::8] + 8) << 4 * j for j in range(8)).astype(np.uint32)
    x, scale = integers((320,)), integers((8,), seed=3)
    return launch((2,), (128,), (words, scale, x, np.full(8, np.nan, np.float32), 320)), (
        None,
        None,
        None,
        (q @ x * scale).astype(np.float32),
    )


@library("bytes by dp4a", """
extern "C" __global__ void k(const int* a, const int* b, int* c, int n, int p) {
  __shared__ int sa[8][9], sb[8][9]; const int x = threadIdx.x, y = threadIdx.y; int sum = 0;
  for (int i = 0; i < p; i += 8) {
    sa[y][x] = a[(blockIdx.y * 8 + y) * p + i + x]; sb[y][x] = b[(blockIdx.x * 8 + y) * p + i + x]; __syncthreads();
    for (int j = 0; j < 8; ++j) sum = __dp4a(sa[y][j], sb[x][j], sum);
    __syncthreads(); }
  c[(blockIdx.y * 8 + y) * n + blockIdx.x * 8 + x] = sum;
}""")  # fmt: skip
def by_dp4a():
    a, b = integers((16, 96), np.int8, 0, -100, 100), integers((24, 96), np.int8, 1, -100, 100)
    return launch(
        (3, 2), (8, 8), (a.view(np.int32), b.view(np.int32), np.zeros((16, 24), np.int32), 24, 24)
    ), (None, None, a.astype(int) @ b.T.astype(int))


# --- scans, sorting, sparse ----------------------------------------------------------------------
@library("a scan that looks back", """
extern "C" __global__ void k(const int* x, int* y, volatile int* state, int* count, int n) {
  __shared__ int s[128], number, before; const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  if (t == 0) number = atomicAdd(count, 1);
  __syncthreads();
  const int tile = number, i = tile * 128 + t; int v = i < n ? x[i] : 0;
  for (int step = 1; step < 32; step *= 2) { const int other = __shfl_up_sync(~0u, v, step); if (lane >= step) v += other; }
  if (lane == 31) s[warp] = v;
  __syncthreads();
  int base = 0; for (int w = 0; w < warp; ++w) base += s[w];
  v += base;
  if (t == 127) {  // one word has the sum and a mark: 1 a tile's own, 2 all up to it
    int sum = 0;
    if (tile == 0) state[0] = v * 4 + 2;
    else {
      state[tile] = v * 4 + 1;
      for (int at = tile - 1;; ) { const int seen = state[at]; if ((seen & 3) == 0) continue; sum += seen >> 2; if ((seen & 3) == 2) break; --at; }
      state[tile] = (sum + v) * 4 + 2;
    }
    before = sum;
  }
  __syncthreads();
  if (i < n) y[i] = v + before;
}""")  # fmt: skip
def look_back():
    x = integers((700,), np.int32, 0, 0, 9)
    return launch(
        (6,), (128,), (x, np.zeros_like(x), np.zeros(6, np.int32), np.zeros(1, np.int32), 700)
    ), (None, x.cumsum(), None, None)


@library("a digit of a radix sort", """
extern "C" __global__ void k(const unsigned* x, unsigned* y, int shift) {
  __shared__ unsigned counts[4][16], starts[16]; const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  if (t < 64) counts[t / 16][t % 16] = 0;
  __syncthreads();
  const unsigned v = x[t], digit = v >> shift & 15, same = __match_any_sync(~0u, digit), rank = __popc(same & ((1u << lane) - 1));
  if (rank == 0) counts[warp][digit] = __popc(same);
  __syncthreads();
  if (t < 16) { unsigned sum = 0; for (int w = 0; w < 4; ++w) { const unsigned c = counts[w][t]; counts[w][t] = sum; sum += c; }
    unsigned up = sum; for (int step = 1; step < 16; step *= 2) { const unsigned other = __shfl_up_sync(0xffff, up, step); if (t >= step) up += other; }
    starts[t] = up - sum; }
  __syncthreads();
  y[starts[digit] + counts[warp][digit] + rank] = v;
}""")  # fmt: skip
def radix_digit():
    x = integers((128,), np.uint32, 0, 0, 4096)
    return launch((1,), (128,), (x, np.zeros_like(x), 4)), (
        None,
        x[np.argsort(x >> 4 & 15, kind="stable")],
    )


@library("sparse rows, a warp each", """
extern "C" __global__ void k(const int* begin, const int* column, const float* value, const float* x, float* y, int rows) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0; for (int i = begin[row] + lane; i < begin[row + 1]; i += 32) sum += value[i] * x[column[i]];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) y[row] = sum;
}""")  # fmt: skip
def sparse():
    dense = integers((11, 90)) * (integers((11, 90), seed=5) > 2)
    begin = np.r_[0, np.count_nonzero(dense, 1).cumsum()].astype(np.int32)
    column, value = np.nonzero(dense)[1].astype(np.int32), dense[dense != 0]
    x = integers((90,), seed=7)
    return launch((3,), (128,), (begin, column, value, x, np.full(11, np.nan, np.float32), 11)), (
        None,
        None,
        None,
        None,
        dense @ x,
    )


@library("a table of keys", """
extern "C" __global__ void k(const unsigned* keys, unsigned* table, unsigned* counts, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  for (unsigned at = keys[i] * 2654435761u >> 26;; at = at + 1 & 63) {
    const unsigned old = atomicCAS(&table[at], 0u, keys[i]);
    if (old == 0 || old == keys[i]) { atomicAdd(&counts[keys[i]], 1u); break; }
  }
}""")  # fmt: skip
def key_table():
    keys = integers((200,), np.uint32, 0, 1, 40)
    return launch((2,), (128,), (keys, np.zeros(64, np.uint32), np.zeros(40, np.uint32), 200)), (
        None,
        None,
        np.bincount(keys, minlength=40),
    )


@library("a frontier of a graph", """
extern "C" __global__ void k(const int* begin, const int* edge, int* depth, int* next, int* size, int level, int n) {
  __shared__ int mine[512], have, base; const int t = threadIdx.x; if (t == 0) have = 0; __syncthreads();
  for (int node = blockIdx.x * blockDim.x + t; node < n; node += gridDim.x * blockDim.x)
    if (((volatile int*)depth)[node] == level) for (int e = begin[node]; e < begin[node + 1]; ++e)
      if (atomicCAS(&depth[edge[e]], -1, level + 1) == -1) mine[atomicAdd(&have, 1)] = edge[e];
  __syncthreads();
  if (t == 0) base = atomicAdd(size, have);
  __syncthreads();
  for (int i = t; i < have; i += blockDim.x) next[base + i] = mine[i];
}""")  # fmt: skip
def frontier():
    n, random = 100, np.random.default_rng(4)
    edges = [random.choice(n, 4, False) for _ in range(n)]
    begin, edge = np.arange(0, 4 * n + 1, 4, dtype=np.int32), np.concatenate(edges).astype(np.int32)
    depth = np.full(n, -1, np.int32)
    depth[[3, 50, 77]] = 0
    wanted = depth.copy()
    for node in (3, 50, 77):
        wanted[[other for other in edges[node] if depth[other] == -1]] = 1
    size = np.zeros(1, np.int32)
    given = launch((2,), (64,), (begin, edge, depth, np.zeros(n, np.int32), size, 0, n))
    return given, (None, None, wanted, None, np.array([(wanted == 1).sum()]))


# --- elementwise, norms, images ------------------------------------------------------------------
@library("a norm by running moments", """
extern "C" __global__ void k(const float* x, const float* gain, float* y, int n) {
  __shared__ float mean_of[4], m2_of[4], n_of[4]; const int t = threadIdx.x, lane = t % 32, warp = t / 32; x += blockIdx.x * n; y += blockIdx.x * n;
  float mean = 0, m2 = 0, count = 0;
  for (int i = t; i < n; i += 128) { const float d = x[i] - mean; count += 1; mean += d / count; m2 += d * (x[i] - mean); }
  auto merge = [&](float om, float o2, float on) { const float all = count + on; if (all == 0) return; const float d = om - mean; mean += d * on / all; m2 += o2 + d * d * count * on / all; count = all; };
  for (int step = 16; step; step /= 2) { const float om = __shfl_xor_sync(~0u, mean, step), o2 = __shfl_xor_sync(~0u, m2, step), on = __shfl_xor_sync(~0u, count, step); merge(om, o2, on); }
  if (lane == 0) { mean_of[warp] = mean; m2_of[warp] = m2; n_of[warp] = count; }
  __syncthreads();
  mean = m2 = count = 0; for (int w = 0; w < 4; ++w) merge(mean_of[w], m2_of[w], n_of[w]);
  const float r = rsqrtf(m2 / n + 1e-5f);
  for (int i = t; i < n; i += 128) y[i] = (x[i] - mean) * r * gain[i];
}""", atol=1e-5)  # fmt: skip
def running_norm():
    x, gain = integers((3, 200)), integers((200,), seed=2)
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gain
    return launch((3,), (128,), (x, gain, np.full_like(x, np.nan), 200)), (None, None, wanted)


@library("half pairs through a curve", """
#include <cuda_fp16.h>
extern "C" __global__ void k(const uint4* x, uint4* y, int chunks) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < chunks; i += gridDim.x * blockDim.x) {
    uint4 v = x[i]; __half2* h = (__half2*)&v;
    for (int j = 0; j < 4; ++j) h[j] = __hmul2(h[j], __hadd2(__float2half2_rn(1.f), __hmax2(h[j], __float2half2_rn(0.f))));
    y[i] = v; }
}""")  # fmt: skip
def half_pairs():
    x = integers((800,), np.float16)
    return launch((2,), (32,), (x, np.zeros_like(x), 100)), (None, x * (1 + np.maximum(x, 0)))


@library("a picture through a window", """
__constant__ int weights[9] = {1, 2, 1, 2, 4, 2, 1, 2, 1};
extern "C" __global__ void k(const unsigned char* x, unsigned char* y, int width, int height) {
  __shared__ unsigned char s[10][18]; const int tx = threadIdx.x, ty = threadIdx.y, left = blockIdx.x * 16 - 1, top = blockIdx.y * 8 - 1;
  for (int i = ty * 16 + tx; i < 180; i += 128) { const int r = min(max(top + i / 18, 0), height - 1), c = min(max(left + i % 18, 0), width - 1); s[i / 18][i % 18] = x[r * width + c]; }
  __syncthreads();
  int sum = 8; for (int i = 0; i < 9; ++i) sum += weights[i] * s[ty + i / 3][tx + i % 3];
  const int r = blockIdx.y * 8 + ty, c = blockIdx.x * 16 + tx; if (r < height && c < width) y[r * width + c] = sum >> 4;
}""")  # fmt: skip
def window():
    x = integers((21, 37), np.uint8, 0, 0, 256)
    wide = np.pad(x.astype(int), 1, "edge")
    w = np.array([1, 2, 1])
    wanted = sum(w[i] * w[j] * wide[i : i + 21, j : j + 37] for i in range(3) for j in range(3))
    return launch((3, 3), (16, 8), (x, np.zeros_like(x), 37, 21)), (None, wanted + 8 >> 4)


@library("sums by chunks that the copy engine adds", COMMON + """
extern "C" __global__ void k(const int* x, int* y, int rows) {
  __shared__ __align__(128) int s[2][64]; __shared__ __align__(8) unsigned long long b[2]; const int t = threadIdx.x; const word full = shared_address(b), data = shared_address(s);
  if (t == 0) { init(full, 1); init(full + 8, 1); FENCE_INIT; }
  __syncthreads();
  auto fetch = [&](int i) { const int slot = i & 1; expect(full + 8 * slot, 256);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" :: "r"(data + 256 * slot), "l"(x + (blockIdx.x * rows + i) * 64), "r"(full + 8 * slot) : "memory"); };
  if (t == 0) fetch(0);
  int sum = 0;
  #pragma unroll 1
  for (int i = 0; i < rows; ++i) {
    if (t == 0 && i + 1 < rows) fetch(i + 1);
    wait(full + 8 * (i & 1), i / 2 & 1);
    sum += s[i & 1][t];
    __syncthreads();
  }
  s[0][t] = sum; FENCE_ASYNC; __syncthreads();
  if (t == 0) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 256;" :: "l"(y), "r"(data) : "memory");
    asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
}""", "sm_90a")  # fmt: skip
def engine_adds():
    x = integers((3, 5, 64), np.int32)
    return launch((3,), (64,), (x, np.zeros(64, np.int32), 5)), (None, x.sum((0, 1)))


@library("groups of threads and the whole grid", """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* x, int* part, int* y, int n) {
  auto grid = cg::this_grid(); auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<16>(block);
  __shared__ int s[4]; int v = 0;
  for (int i = grid.thread_rank(); i < n; i += grid.size()) v += x[i];
  for (int step = tile.size() / 2; step; step /= 2) v += tile.shfl_down(v, step);
  if (tile.thread_rank() == 0) s[tile.meta_group_rank()] = v;
  block.sync();
  if (block.thread_rank() == 0) part[blockIdx.x] = s[0] + s[1] + s[2] + s[3];
  grid.sync();
  if (grid.thread_rank() == 0) { int sum = 0; for (int b = 0; b < (int)gridDim.x; ++b) sum += part[b]; y[0] = sum; }
}""")  # fmt: skip
def cooperative():
    x = integers((500,), np.int32)
    return launch((3,), (64,), (x, np.zeros(3, np.int32), np.zeros(1, np.int32), 500)), (
        None,
        None,
        x.sum(keepdims=True),
    )
