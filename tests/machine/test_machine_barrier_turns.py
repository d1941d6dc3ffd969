"""Groups of warps that take turns by named barriers: the first one gives itself its first turn."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, run

# Two groups of two warps add to one cell in turns: a turn is an arrival of the other group, and the
# wait of one's own, at a barrier of 128 threads. Group 0 begins, by an arrival of its own.
SOURCE = """
#define SYNC(b) asm volatile("bar.sync %0, 128;" :: "r"(b) : "memory")
#define ARRIVE(b) asm volatile("bar.arrive %0, 128;" :: "r"(b) : "memory")
extern "C" __global__ void k(int* out) {
  __shared__ int cells[64];
  const int group = threadIdx.x / 64, lane = threadIdx.x % 64;
  if (group == 0) { FIRST cells[lane] = 0; BETWEEN }
  for (int turn = 0; turn < 3; ++turn) {
    SYNC(1 + group);
    cells[lane] = 3 * cells[lane] + group + 1;
    if (!(turn == 2 && group == 1)) ARRIVE(2 - group);
  }
  __syncthreads();
  if (group == 0) out[lane] = cells[lane];
}
"""


def found(first: str, between: str):
    ptx = to_ptx(SOURCE.replace("FIRST", first).replace("BETWEEN", between))
    return run(ptx, Launch((1, 1, 1), (128, 1, 1), 0, (np.zeros(64, np.int32),)))


def test_a_warp_that_arrives_and_then_waits_counts_twice():
    report = found("", "ARRIVE(1);")
    assert report.ok, str(report)
    value = 0
    for turn in range(6):
        value = 3 * value + turn % 2 + 1
    np.testing.assert_array_equal(report.arrays[0], np.full(64, value))


def test_without_its_own_arrival_nobody_begins():
    assert {one.code for one in found("", "").findings} == {"deadlock"}


def test_two_arrivals_are_a_turn_that_nobody_gave():
    """The barrier is complete without the other group, which then may be there at the same time."""
    codes = {one.code for one in found("", "ARRIVE(1); ARRIVE(2); ARRIVE(2);").findings}
    assert codes & {"race-write-read", "race-read-write", "race-write-write", "barrier-count"}


@pytest.mark.parametrize("count, codes", [(64, set()), (128, {"deadlock"})])
def test_lanes_that_come_one_after_the_other_are_one_arrival(count, codes):
    source = """
extern "C" __global__ void k(int* out) {
  const int lane = threadIdx.x % 32;
  if (lane < 7) asm volatile("barrier.sync 3, COUNT;" ::: "memory");
  else asm volatile("barrier.sync 3, COUNT;" ::: "memory");
  out[threadIdx.x] = 1;
}""".replace("COUNT", str(count))
    report = run(to_ptx(source), Launch((1, 1, 1), (64, 1, 1), 0, (np.zeros(64, np.int32),)))
    assert {one.code for one in report.findings} == codes
