"""Quotients of the numbers of work items, by inverses, on the PTX machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles
from pointwise_kernels import BLOCK, TEMPLATES, ptx_of

import polygen as pg
from polygen.machine import Launch, run

LARGEST = 2**31 - 1
KERNEL = """
extern "C" __global__ void k(const int* numbers, const int* by, int* quotients, int* remainders) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const Divisor divisor(by[i]);
  quotients[i] = numbers[i] / divisor, remainders[i] = numbers[i] % divisor;
}
"""


def edges(by, generator):
    """Numbers next to multiples of a divisor, the smallest and the largest among them."""
    largest = LARGEST // by
    factors = {0, 1, 2, largest - 1, largest, *generator.integers(0, largest + 1, 12).tolist()}
    near = (max(factor, 0) * by + beside for factor in factors for beside in (-1, 0, 1))
    return [number for number in (*near, by - 1, LARGEST) if 0 <= number <= LARGEST]


def test_quotients_and_remainders_are_those_of_whole_numbers():
    generator = np.random.default_rng(0)
    small = [*range(1, 70), *(2**n + d for n in range(7, 31) for d in (-1, 0, 1)), LARGEST]
    random = np.exp(generator.uniform(0, np.log(LARGEST), 400)).astype(np.int64).tolist()
    pairs = [(number, by) for by in (*small, *random) for number in edges(by, generator)]
    pairs += [(0, 1)] * (-len(pairs) % BLOCK)
    numbers, by = (np.array(each, np.int32) for each in zip(*pairs, strict=True))
    text = (TEMPLATES / "instructions/divisor.cu.j2").read_text() + KERNEL
    arrays = (numbers, by, np.zeros_like(numbers), np.zeros_like(numbers))
    report = run(ptx_of(text), Launch((len(pairs) // BLOCK, 1, 1), (BLOCK, 1, 1), 0, arrays))
    assert report.ok, str(report)
    assert np.array_equal(report.arrays[2], numbers // by)
    assert np.array_equal(report.arrays[3], numbers % by)


@pytest.mark.parametrize("batch", ["", "B,"])
@pytest.mark.parametrize("computes", [False, True])
def test_threads_that_compute_operands_keep_no_inverses(computes, batch):
    """They have no registers for numbers that stay the same for all tiles."""
    fused = pg.fuse(lambda x, w: (pg.relu(x) if computes else x) @ w.mT, name="layer")
    schedule = roles("one", 64, 64)
    schedule = replace(schedule, roles=replace(schedule.roles, producer_registers=128))
    signature = (f"bf16[{batch}M,K]", f"bf16[{batch}N,K]")
    kernel = fused.compile(*signature, arch="sm_90a", schedule=schedule)
    assert ("Divisor" in kernel.source) != computes
    assert "not proved" not in kernel.source
    assert kernel.check(sizes={"M": 130, "N": 72, "K": 72} | ({"B": 3} if batch else {})).ok
