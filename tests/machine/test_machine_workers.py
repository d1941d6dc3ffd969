# ruff: noqa: E501 - CUDA text
"""Waves in several processes: the report of one process, whatever the blocks do to each other."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.errors import PtxError, StepLimit
from polygen.machine import Launch, run, waves

BLOCKS = 12

SUM = """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64]; const int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t]; __syncthreads();
  #pragma unroll 1
  for (int step = 32; step; step /= 2) { if (t < step) s[t] += s[t + step]; BARRIER }
  if (t == 0) y[blockIdx.x] = s[0];
}"""
KERNELS = {
    "right": SUM.replace("BARRIER", "__syncthreads();"),
    "a race in every block": SUM.replace("BARRIER", ""),
    "a race in some blocks": SUM.replace("BARRIER", "if (blockIdx.x % 5 != 3) __syncthreads();"),
    "in place": """
extern "C" __global__ void k(float* x, float* y) {
  const int i = blockIdx.x * 64 + threadIdx.x; x[i] = 2 * x[i] + 1; if (i < 12) y[i] = i;
}""",
    "out of bounds": """
extern "C" __global__ void k(const float* x, float* y) {
  const int i = blockIdx.x * 64 + threadIdx.x; const float v = x[i + 7]; if (v > 1e30f) y[i & 7] = v;
}""",
    "copies": """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64]; const int t = threadIdx.x;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(s + t)), "l"(x + blockIdx.x * 64 + t));
  asm volatile("cp.async.commit_group;");
  if (blockIdx.x != 7) asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  if (t == 5) y[blockIdx.x] = s[63];
}""",
    "stops in the middle": """
extern "C" __global__ void k(const float* x, float* y) {
  const int t = threadIdx.x; y[blockIdx.x] = 1; if (blockIdx.x == 6 && t < 32) { asm volatile("bar.sync 1, 64;"); }
}""",
}  # fmt: skip
TIED = {
    "one block reads what another wrote": """
extern "C" __global__ void k(float* x, float* y) {
  const int t = threadIdx.x, b = blockIdx.x; if (t == 0) y[b] = b ? y[b - 1] + x[b] : 1;
}""",
    "two blocks write the same": """
extern "C" __global__ void k(float* x, float* y) { y[threadIdx.x & 3] = blockIdx.x; }""",
    "the same value": """
extern "C" __global__ void k(float* x, float* y) { y[3] = 4; }""",
    "atomics": """
extern "C" __global__ void k(float* x, float* y) { atomicAdd(y, x[blockIdx.x * 64 + threadIdx.x]); }""",
    "a flag": """
extern "C" __global__ void k(float* x, volatile float* y) {
  const int b = blockIdx.x; if (b) while (y[b - 1] == 0) ; if (threadIdx.x == 0) y[b] = 1;
}""",
}  # fmt: skip


def launch():
    x = np.random.default_rng(0).integers(-4, 5, (BLOCKS, 64)).astype(np.float32)
    return Launch((BLOCKS, 1, 1), (64, 1, 1), 0, (x, np.zeros(BLOCKS, np.float32)))


def shown(source, workers, **options):
    report = run(to_ptx(source), launch(), workers=workers, profile=True, **options)
    arrays = [array.tobytes() for array in report.arrays]
    return arrays, dataclasses.replace(report, arrays=())


@pytest.fixture
def ran(monkeypatch):
    """Small waves; which launches ran their waves one by one."""
    found = []
    one_by_one = waves._one_by_one

    def noted(*given):
        found.append(True)
        return one_by_one(*given)

    monkeypatch.setattr(waves, "WAVE_THREADS", 128)
    monkeypatch.setattr(waves, "_one_by_one", noted)
    return found


@pytest.mark.parametrize("completion", ["late", "random"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_report_is_that_of_one_process(name, completion, ran):
    wanted = shown(KERNELS[name], 1, completion=completion)
    assert ran
    ran.clear()
    for workers in (2, 5):
        assert shown(KERNELS[name], workers, completion=completion) == wanted
    assert not ran  # apart, indeed
    assert bool(wanted[1].findings) == (name not in ("right", "in place"))


@pytest.mark.parametrize("name", TIED)
def test_blocks_that_depend_on_each_other_run_in_one_process(name, ran):
    wanted = shown(TIED[name], 1)
    once = len(ran)
    assert shown(TIED[name], 2) == wanted
    assert len(ran) == 2 * once


def test_one_wave_needs_no_processes(monkeypatch):
    monkeypatch.setattr(waves, "_apart", None)
    assert shown(KERNELS["right"], 4)[1].ok


def test_what_a_wave_meets_is_raised(ran):
    endless = """
extern "C" __global__ void k(volatile float* x, float* y) { if (blockIdx.x == 5) while (threadIdx.x < 99) __nanosleep(1); }"""
    said = []
    for workers in (1, 3):
        with pytest.raises(StepLimit) as met:
            run(to_ptx(endless), launch(), workers=workers, max_steps=500)
        said.append(str(met.value))
    assert said[0] == said[1]


def test_a_process_that_dies_is_told(ran, monkeypatch):
    monkeypatch.setattr(waves, "_noted", lambda *given: os._exit(3))
    with pytest.raises(PtxError, match="has died"):
        shown(KERNELS["right"], 2)


def test_progress_counts_blocks(ran):
    steps = []
    progress = lambda done, total: steps.append((done, total))  # noqa: E731
    run(to_ptx(KERNELS["right"]), launch(), workers=2, progress=progress)
    assert steps == [(done, BLOCKS) for done in range(2, BLOCKS + 1, 2)]
