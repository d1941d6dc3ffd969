# ruff: noqa: E501 - CUDA text
"""What the machine puts off or leaves out to be fast changes nothing that it says."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, cells, races, run, waves

# Many reads by the whole block, then a write: behind a barrier, or not in some blocks.
READS = """
extern "C" __global__ void k(const float4* x, float* y, int n) {
  __shared__ float4 s[128]; __shared__ float2 p[128]; const int t = threadIdx.x, b = blockIdx.x;
  if (b >= n) return;
  s[t] = x[t]; p[t] = make_float2(t, b); __syncthreads();
  float sum = 0;
  #pragma unroll 1
  for (int i = 0; i < 40; ++i) { const float4 v = s[(t + i) & 127]; sum += v.x + v.w; sum += p[(t * 3 + i) & 127].y; }
  BARRIER
  ((float*)s)[t] = sum; p[t].x = sum; __syncthreads();
  y[b * 128 + t] = sum + ((float*)s)[127 - t] + p[127 - t].x;
}"""
BARRIERS = {
    "right": "__syncthreads();",
    "none": "",
    "in some blocks": "if (b % 3) __syncthreads();",
    "of some warps": 'if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");',
}


def launch(blocks: int, stay: int) -> Launch:
    x = np.arange(512, dtype=np.float32) % 7
    y = np.zeros(128 * blocks, np.float32)
    return Launch((blocks, 1, 1), (128, 1, 1), 0, (x, y, np.int32(stay)))


def said(name: str, blocks: int = 6, stay: int = 6):
    report = run(to_ptx(READS.replace("BARRIER", BARRIERS[name])), launch(blocks, stay))
    return report.findings, report.instructions, report.arrays[1].tobytes()


@pytest.mark.parametrize("name", BARRIERS)
def test_reads_that_are_put_off_are_found(name, monkeypatch):
    wanted = said(name)
    assert {one.code for one in wanted[0]} == (set() if name == "right" else {"race-read-write"})
    monkeypatch.setattr(cells, "MOST_PUT_OFF", 1)  # each is in the records at once
    monkeypatch.setattr(races.Reads, "forget", lambda self, behind: None)
    assert said(name) == wanted


@pytest.mark.parametrize("stay", [6, 5, 1, 0])
@pytest.mark.parametrize("name", ["right", "in some blocks"])
def test_blocks_that_leave_at_once_count_and_no_more(name, stay, monkeypatch):
    wanted = said(name, 6, stay)
    seen = []
    monkeypatch.setattr(waves, "who_stays", lambda *given: seen.append(given))
    assert said(name, 6, stay) == wanted
    assert seen


def test_blocks_in_the_middle_leave(monkeypatch):
    """Findings name the blocks of the grid, not those of the wave."""
    source = """
extern "C" __global__ void k(float* y, int n) {
  __shared__ float s[64]; if (blockIdx.x != 2 && blockIdx.x != 5) return;
  s[threadIdx.x] = n; y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}"""
    given = Launch((8, 1, 1), (64, 1, 1), 0, (np.zeros(512, np.float32), np.int32(3)))
    report = run(to_ptx(source), given)
    assert np.flatnonzero(report.arrays[0]).tolist() == [*range(128, 192), *range(320, 384)]
    assert "of block (2, 0, 0)" in str(report)
    monkeypatch.setattr(waves, "who_stays", lambda *given: None)
    assert str(run(to_ptx(source), given)) == str(report)


def test_a_part_of_a_copy_needs_the_alignment_of_the_whole():
    source = """
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[128]; const int t = threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((unsigned)__cvta_generic_to_shared(s + 4 * t)), "l"(x + 4 * t + SHIFT), "r"(t == 31 ? 8 : 16));
  asm volatile("cp.async.wait_all;"); __syncthreads();
  for (int i = 0; i < 4; ++i) y[4 * t + i] = s[4 * t + i];
}"""
    x = np.arange(128, dtype=np.float32)
    for shift, codes in (("0", []), ("(t == 31)", ["misaligned"])):
        given = Launch((1, 1, 1), (32, 1, 1), 0, (x, np.zeros_like(x)))
        report = run(to_ptx(source.replace("SHIFT", shift)), given)
        assert [one.code for one in report.findings] == codes, str(report)
        if not codes:
            assert np.array_equal(report.arrays[1], np.where(np.arange(128) < 126, x, 0))
