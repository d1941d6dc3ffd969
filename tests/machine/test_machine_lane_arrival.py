# ruff: noqa: E501 - CUDA text
"""One lane says for its warp that a stage is free: the others' reads need a barrier of the warp before it."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

from polygen.machine import Launch, run

SOURCE = """
extern "C" __global__ void k(const float* in, float* out) {
  __shared__ __align__(128) float stage[32]; __shared__ __align__(8) unsigned long long full, empty;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned s = (unsigned)__cvta_generic_to_shared(stage), f = (unsigned)__cvta_generic_to_shared(&full), e = (unsigned)__cvta_generic_to_shared(&empty);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 1; fence.mbarrier_init.release.cluster;" :: "r"(f), "r"(e) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (warp == 1) {
    if (lane == 0)
      for (int step = 0; step < 4; ++step) {
        asm volatile("{ .reg .pred p; L%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L%=; }" :: "r"(e), "r"(step + 1 & 1) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(f) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" :: "r"(s), "l"(in + 32 * step), "r"(f) : "memory");
      }
  } else {
    float total = 0;
    for (int step = 0; step < 4; ++step) {
      asm volatile("{ .reg .pred p; L%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L%=; }" :: "r"(f), "r"(step & 1) : "memory");
      total += stage[31 - lane]; MEET
      if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(e) : "memory");
    }
    out[lane] = total;
  }
}"""


@pytest.mark.parametrize("meet, found", [("__syncwarp();", set()), ("", {"race-read-write"})])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_the_other_lanes_have_read(meet, found, completion):
    rows = np.random.default_rng(0).integers(-9, 9, (4, 32)).astype(np.float32)
    launch = Launch((1, 1, 1), (64, 1, 1), 0, (rows, np.zeros(32, np.float32)))
    report = run(to_ptx(SOURCE.replace("MEET", meet), "sm_90a"), launch, completion=completion)
    assert {one.code for one in report.findings} == found, str(report)
    np.testing.assert_array_equal(report.arrays[1], rows.sum(0)[::-1])
