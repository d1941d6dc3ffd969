# ruff: noqa: E501 - CUDA text
"""Races between the lanes of a warp, and flags in shared memory: what was missed, and what was told for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from polygen.machine import Launch, run


def codes(compile_ptx, text: str, threads: int, *arrays: np.ndarray) -> tuple[list[str], tuple]:
    report = run(compile_ptx(text, "sm_80"), Launch((1, 1, 1), (threads, 1, 1), 0, arrays))
    return sorted({one.code for one in report.findings}), report.arrays


SCAN = """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x;
  s[t] = 0; s[32 + t] = x[t]; __syncwarp();
  for (int d = 1; d < 32; d *= 2) {
    const int v = s[32 + t] + s[32 + t - d]; READ
    s[32 + t] = v; __syncwarp();
  }
  y[t] = s[32 + t];
}
"""


@pytest.mark.parametrize("read, found", [("__syncwarp();", []), ("", ["race-read-write"])])
def test_two_lanes_have_read_what_one_of_them_writes(compile_ptx, read, found):
    """The writer itself may have been the last to read."""
    x = np.arange(1, 33, dtype=np.int32)
    given, arrays = codes(compile_ptx, SCAN.replace("READ", read), 32, x, np.zeros_like(x))
    assert given == found
    if not found:
        np.testing.assert_array_equal(arrays[1], np.cumsum(x))


BROADCAST = """
extern "C" __global__ void k(const int* x, int* y) {
  __shared__ int s[2]; const int t = threadIdx.x;
  if (t == LANE) s[0] = x[0];
  __syncwarp(); const int v = s[0]; READ
  if (t == LANE) s[0] = v + 1;
  __syncwarp(); y[t] = v + s[0];
}
"""


@pytest.mark.parametrize("lane", [0, 7, 31])
@pytest.mark.parametrize("read, found", [("__syncwarp();", []), ("", ["race-read-write"])])
def test_one_lane_writes_what_all_have_read_at_once(compile_ptx, lane, read, found):
    text = BROADCAST.replace("LANE", str(lane)).replace("READ", read)
    x = np.array([5], np.int32)
    assert codes(compile_ptx, text, 32, x, np.zeros(32, np.int32))[0] == found


TURNS = """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ volatile int turn; __shared__ float s; const int w = threadIdx.x / 32;
  if (threadIdx.x == 0) { turn = 0; s = 0; }
  __syncthreads();
  if (threadIdx.x % 32 == 0) { while (turn != w); TAKEN s += x[w] * (w + 1); GIVEN turn = w + 1; }
  __syncthreads();
  if (threadIdx.x == 0) y[0] = s;
}
"""
FENCE = "__threadfence_block();"


@pytest.mark.parametrize(
    "taken, given, silent", [(FENCE, FENCE, True), (FENCE, "", False), ("", FENCE, False)]
)
def test_flags_in_shared_memory_need_both_fences(compile_ptx, taken, given, silent):
    """A fence covers what came before it: the one of the turn before covers no later sum."""
    text = TURNS.replace("TAKEN", taken).replace("GIVEN", given)
    x = np.array([3, -2, 5, 7], np.float32)
    found, arrays = codes(compile_ptx, text, 128, x, np.zeros(1, np.float32))
    assert (found == []) == silent, found
    assert arrays[1][0] == 3 - 4 + 15 + 28
