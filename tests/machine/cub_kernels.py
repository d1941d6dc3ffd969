# ruff: noqa: E501 - CUDA text
"""Kernels around CUB's primitives of a warp, a block and a grid; each with its launch and results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.machine import Launch, Struct

R = np.random.default_rng(1)


@dataclass(frozen=True)
class Cub:
    """A kernel, its launch, and what its arrays hold afterwards (None: anything)."""

    source: str
    launch: Launch
    wanted: tuple[Any, ...]


CUB: dict[str, Cub] = {}


def cub(
    name: str,
    source: str,
    *arguments: Any,
    wanted: tuple[Any, ...],
    block: int = 128,
    grid: int = 1,
) -> None:
    CUB[name] = Cub(source, Launch((grid, 1, 1), (block, 1, 1), 0, arguments), wanted)


def small(*shape: int) -> np.ndarray:
    return R.integers(-9, 9, shape).astype(np.int32)


def before(x: np.ndarray) -> np.ndarray:
    """Sums of what comes before, along the last axis."""
    return (np.cumsum(x, -1) - x).astype(x.dtype)


def _reduce(algorithm: str, kind: str, dtype: type) -> None:
    x = small(256).astype(dtype)
    cub(f"a sum of a block, {algorithm or 'as it comes'}, {kind}", f"""
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void k(const {kind}* x, {kind}* y) {{
  using R = cub::BlockReduce<{kind}, 128{", cub::" + algorithm if algorithm else ""}>;
  __shared__ typename R::TempStorage t;
  const {kind} s = R(t).Sum(x[blockIdx.x * 128 + threadIdx.x]);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}}""", x, np.zeros(2, dtype), wanted=(x, x.reshape(2, 128).sum(1).astype(dtype)), grid=2)  # fmt: skip


_reduce("", "int", np.int32)
_reduce("BLOCK_REDUCE_RAKING", "float", np.float32)
_reduce("BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY", "long long", np.int64)

x = small(1024)
cub("a scan of a block between loads and stores that transpose", """
#include <cub/block/block_load.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
extern "C" __global__ void k(const int* x, int* y) {
  using S = cub::BlockScan<int, 128>;
  using L = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
  using W = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union { typename S::TempStorage s; typename L::TempStorage l; typename W::TempStorage w; } t;
  int v[4];
  L(t.l).Load(x + blockIdx.x * 512, v); __syncthreads();
  S(t.s).ExclusiveSum(v, v); __syncthreads();
  W(t.w).Store(y + blockIdx.x * 512, v);
}""", x, np.zeros_like(x), wanted=(x, before(x.reshape(2, 512)).ravel()), grid=2)  # fmt: skip

x = small(128)
cub("a scan of a block by warps, and its sum", """
#include <cub/block/block_scan.cuh>
extern "C" __global__ void k(const int* x, int* y) {
  using S = cub::BlockScan<int, 128, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ typename S::TempStorage t;
  int v = x[threadIdx.x], all;
  S(t).InclusiveSum(v, v, all);
  y[threadIdx.x] = v + all;
}""", x, np.zeros_like(x), wanted=(x, (np.cumsum(x) + x.sum()).astype(np.int32)))  # fmt: skip

x = R.integers(0, 2**32, 1024, np.uint64).astype(np.uint32)
cub("a radix sort of a block", """
#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void k(const unsigned* x, unsigned* y) {
  using S = cub::BlockRadixSort<unsigned, 128, 4>;
  __shared__ typename S::TempStorage t;
  unsigned v[4];
  for (int i = 0; i < 4; ++i) v[i] = x[blockIdx.x * 512 + threadIdx.x * 4 + i];
  S(t).Sort(v);
  for (int i = 0; i < 4; ++i) y[blockIdx.x * 512 + threadIdx.x * 4 + i] = v[i];
}""", x, np.zeros_like(x), wanted=(x, np.sort(x.reshape(2, 512), 1).ravel()), grid=2)  # fmt: skip

x, p = small(192), np.arange(192, dtype=np.int16)
o = np.argsort(-x, kind="stable")
cub("a radix sort of pairs, falling", """
#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void k(const int* x, const short* p, int* y, short* q) {
  using S = cub::BlockRadixSort<int, 64, 3, short>;
  __shared__ typename S::TempStorage t;
  int v[3]; short w[3];
  for (int i = 0; i < 3; ++i) { v[i] = x[threadIdx.x * 3 + i]; w[i] = p[threadIdx.x * 3 + i]; }
  S(t).SortDescending(v, w);
  for (int i = 0; i < 3; ++i) { y[threadIdx.x * 3 + i] = v[i]; q[threadIdx.x * 3 + i] = w[i]; }
}""", x, p, np.zeros_like(x), np.zeros_like(p), wanted=(x, p, x[o], p[o]), block=64)  # fmt: skip

x = R.integers(0, 2**32, 512, np.uint64).astype(np.uint32)
ranks = np.empty(512, np.int32)
ranks[np.argsort(x & 255, kind="stable")] = np.arange(512)
cub("ranks of digits by matching lanes", """
#include <cub/block/block_radix_rank.cuh>
extern "C" __global__ void k(const unsigned* x, int* y) {
  using R = cub::BlockRadixRankMatchEarlyCounts<128, 8, false>;
  __shared__ typename R::TempStorage t;
  unsigned v[4]; int r[4], counts[R::BINS_TRACKED_PER_THREAD];
  const int at = threadIdx.x / 32 * 128 + threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) v[i] = x[at + i * 32];
  R(t).RankKeys(v, r, cub::BFEDigitExtractor<unsigned>(0, 8), counts);
  for (int i = 0; i < 4; ++i) y[at + i * 32] = r[i];
}""", x, np.zeros_like(ranks), wanted=(x, ranks))  # fmt: skip

x = small(512)
cub("a merge sort, which looks one element ahead", """
#include <cub/block/block_merge_sort.cuh>
struct Less { __device__ bool operator()(int a, int b) const { return a < b; } };
extern "C" __global__ void k(const int* x, int* y) {
  using S = cub::BlockMergeSort<int, 128, 4>;
  __shared__ typename S::TempStorage t;
  int v[4];
  for (int i = 0; i < 4; ++i) v[i] = x[threadIdx.x * 4 + i];
  S(t).Sort(v, Less());
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = v[i];
}""", x, np.zeros_like(x), wanted=(x, np.sort(x)))  # fmt: skip

x = R.integers(0, 256, 512).astype(np.uint8)
for way in ("SORT", "ATOMIC"):
    cub(f"a histogram of a block by {way.lower()}", f"""
#include <cub/block/block_histogram.cuh>
extern "C" __global__ void k(const unsigned char* x, unsigned* y) {{
  using H = cub::BlockHistogram<unsigned char, 128, 4, 256, cub::BLOCK_HISTO_{way}>;
  __shared__ typename H::TempStorage t;
  __shared__ unsigned h[256];
  unsigned char v[4];
  for (int i = 0; i < 4; ++i) v[i] = x[threadIdx.x * 4 + i];
  H(t).Histogram(v, h);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += 128) y[i] = h[i];
}}""", x, np.zeros(256, np.uint32), wanted=(x, np.bincount(x, minlength=256).astype(np.uint32)))  # fmt: skip

x = small(128)
cub("sums and maxima of warps", """
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
struct Greater { __device__ int operator()(int a, int b) const { return a > b ? a : b; } };
extern "C" __global__ void k(const int* x, int* y, int* z) {
  using R = cub::WarpReduce<int>; using S = cub::WarpScan<int>;
  __shared__ typename R::TempStorage r[4]; __shared__ typename S::TempStorage s[4];
  const int v = x[threadIdx.x], w = threadIdx.x / 32;
  const int most = R(r[w]).Reduce(v, Greater());
  int sum; S(s[w]).ExclusiveSum(v, sum);
  if (threadIdx.x % 32 == 0) y[w] = most;
  z[threadIdx.x] = sum;
}""", x, np.zeros(4, np.int32), np.zeros_like(x),
    wanted=(x, x.reshape(4, 32).max(1), before(x.reshape(4, 32)).ravel()))  # fmt: skip

LOOK_BACK = """
#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_scan.cuh>
using State = cub::ScanTileState<VALUE>;
extern "C" __global__ void k(const VALUE* x, VALUE* y, State state, int tiles) {
  using S = cub::BlockScan<VALUE, 128>;
  using Before = cub::TilePrefixCallbackOp<VALUE, cuda::std::plus<>, State>;
  __shared__ typename S::TempStorage scan;
  __shared__ typename Before::TempStorage look;
  const int tile = blockIdx.x;
  VALUE v = x[tile * 128 + threadIdx.x];
  if (tile == 0) {
    VALUE all; S(scan).InclusiveSum(v, v, all);
    if (threadIdx.x == 0) state.SetInclusive(0, all);
  } else {
    Before before(state, look, cuda::std::plus<>{}, tile);
    S(scan).InclusiveScan(v, v, cuda::std::plus<>{}, before);
  }
  y[tile * 128 + threadIdx.x] = v;
}"""
TILES, PADDING = 90, 32


def looked_back(name: str, value: str, dtype: type, status: type) -> None:
    """A scan that looks back over tiles: padding, then tiles of which nothing is known."""
    x = R.integers(-9, 9, TILES * 128).astype(dtype)
    states = np.zeros(
        (PADDING + TILES, 2), status
    )  # (status, value); of the padding 0: out of bounds
    states[:PADDING, 0], states[PADDING:, 0] = 0, 99  # as `InitializeStatus` leaves them
    cub(name, LOOK_BACK.replace("VALUE", value), x, np.zeros_like(x), Struct(bytes(8), {0: states}), TILES,
        wanted=(x, np.cumsum(x).astype(dtype), None), grid=TILES)  # fmt: skip


looked_back("a scan of a grid that looks back over tiles", "int", np.int32, np.uint32)
looked_back("a scan of a grid of two words and a status", "long long", np.int64, np.uint64)
