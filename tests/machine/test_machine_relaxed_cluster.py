# ruff: noqa: E501 - CUDA and PTX text
"""Relaxed arrivals at a cluster's barrier: what fences before them publish, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, run

HEAD = """
typedef unsigned int word;
__device__ __forceinline__ word at(const void* p) { return (word)__cvta_generic_to_shared(p); }
__device__ __forceinline__ word there(word a, word rank) {
  word found; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(rank)); return found; }
#define MEET asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory")
#define LEAVE asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory")
"""

# Each block tells the other one's mbarrier, which a thread of it has initialised.
BARRIERS = (
    HEAD
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
  __shared__ __align__(8) unsigned long long barrier;
  __shared__ int word_of[32];
  word rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(at(&barrier)) : "memory");
  FENCE
  if (threadIdx.x >= 32) word_of[threadIdx.x - 32] = threadIdx.x;
  MEET;
  if (threadIdx.x >= 32) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(there(at(&barrier), rank ^ 1)) : "memory");
  if (threadIdx.x < 32) asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra L; }" :: "r"(at(&barrier)) : "memory");
  out[64 * rank + threadIdx.x] = 1 + READ;
  LEAVE;
}"""
)
INIT = 'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
MEMORY = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'


def codes(source: str, replacements: dict[str, str]) -> set[str]:
    for name, text in replacements.items():
        source = source.replace(name, text)
    report = run(
        to_ptx(source, "sm_90a"), Launch((2, 1, 1), (64, 1, 1), 0, (np.zeros(128, np.int32),))
    )
    if report.ok:
        np.testing.assert_array_equal(report.arrays[0] > 0, True)
    return {one.code for one in report.findings}


@pytest.mark.parametrize("fence", [INIT, MEMORY])
def test_initialised_mbarriers_are_known_behind_a_fence(fence):
    assert codes(BARRIERS, {"FENCE": fence, "READ": "0"}) == set()


@pytest.mark.parametrize(
    "fence", ["", "if (threadIdx.x >= 32) " + INIT, "if (threadIdx.x >= 32) " + MEMORY]
)
def test_without_the_fence_of_who_initialised_them_they_are_not(fence):
    assert "race-write-read" in codes(BARRIERS, {"FENCE": fence, "READ": "0"})


def test_a_fence_of_initialisations_is_none_of_other_writes():
    read = "(threadIdx.x < 32 && rank == 5 ? 0 : word_of[threadIdx.x % 32])"
    assert "race-write-read" in codes(BARRIERS, {"FENCE": INIT, "READ": read})


# Each block reads what the other one has written.
DATA = (
    HEAD
    + """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* out) {
  __shared__ int data[64];
  word rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  BEFORE
  data[threadIdx.x] = 1 + threadIdx.x;
  BEHIND
  MEET;
  int v; asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(there(at(data + 63 - threadIdx.x), rank ^ 1)) : "memory");
  out[64 * rank + threadIdx.x] = v;
  LEAVE;
}"""
)


@pytest.mark.parametrize(
    ("before", "behind", "found"),
    [
        ("", MEMORY, set()),
        ("", "__threadfence();", set()),
        ("", "", {"race-write-read"}),
        (MEMORY, "", {"race-write-read"}),
        ("", 'asm volatile("fence.acq_rel.cta;" ::: "memory");', {"race-write-read"}),
        ("", INIT, {"race-write-read"}),
        ("", "if (threadIdx.x < 32) " + MEMORY, {"race-write-read"}),
    ],
)
def test_what_a_fence_has_covered_is_published(before, behind, found):
    assert codes(DATA, {"BEFORE": before, "BEHIND": behind}) == found
