# ruff: noqa: E501 - CUDA text
"""``st.async``: stores to another block of the cluster, in flight until its mbarrier has their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from polygen.errors import PtxError
from polygen.machine import Launch, run

EXCHANGE = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) exchange(const uint4* in, uint4* out) {
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned shared = (unsigned)__cvta_generic_to_shared(memory);
  const unsigned barrier = shared + 64 * 16, mine = shared + threadIdx.x * 16;
  const int rank = blockIdx.x % 2;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  if (threadIdx.x == 0)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(barrier) : "memory");
  unsigned there, told;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(mine), "r"(1 - rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(barrier), "r"(1 - rank));
  const uint4 v = in[blockIdx.x * 64 + threadIdx.x];
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], { %1, %2, %3, %4 }, [%5];"
               :: "r"(there), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(told) : "memory");
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @done bra ready; bra again; ready: }"
               :: "r"(barrier) : "memory");
  uint4 got;
  asm volatile("ld.shared.v4.b32 { %0, %1, %2, %3 }, [%4];"
               : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w) : "r"(mine) : "memory");
  out[blockIdx.x * 64 + threadIdx.x] = got;
}
"""
WAIT = "@done bra ready; bra again; ready: }"


def execute(ptx: str, **options):
    words = np.random.default_rng(1).integers(0, 1 << 32, (2, 64, 4), np.uint32)
    out = np.zeros_like(words)
    report = run(ptx, Launch((2, 1, 1), (64, 1, 1), 1032, (words, out)), **options)
    return report, np.array_equal(report.arrays[1], words[::-1])


@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_blocks_exchange_what_they_hold(compile_ptx, completion):
    report, exact = execute(compile_ptx(EXCHANGE, "sm_90a"), completion=completion)
    assert exact and report.ok, str(report)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (WAIT, "}", "in-flight-access"),  # asks once, and does not wait
        ("_, [%0], 1024;", "_, [%0], 1040;", "deadlock"),
        ("[%0], 1024;", "[%0], 512;", "deadlock"),
        ('"r"(told)', '"r"(barrier)', "out-of-bounds-shared"),  # the own block is told
        ('"r"(v.w), "r"(told)', '"r"(v.w), "r"(told + 8)', "out-of-bounds-shared"),
        (': "r"(mine), "r"(1 - rank)', ': "r"(mine + 4), "r"(1 - rank)', "misaligned"),
        (
            ': "r"(mine), "r"(1 - rank)',
            ': "r"(shared + threadIdx.x / 2 * 32), "r"(1 - rank)',
            "race-write-write",
        ),
    ],
)
def test_mistakes_are_found(compile_ptx, old, new, code):
    assert EXCHANGE.count(old) == 1
    report, _ = execute(compile_ptx(EXCHANGE.replace(old, new), "sm_90a"), max_steps=2000)
    assert code in {finding.code for finding in report.findings}, str(report)


NARROWER = {
    2: (
        "bytes.v2.b32 [%0], { %1, %2 }",
        "ld.shared.v2.b32 { %0, %1 }, [%4]; mov.b32 %2, 0; mov.b32 %3, 0;",
    ),
    1: (
        "bytes.f32 [%0], %1",
        "ld.shared.b32 %0, [%4]; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;",
    ),
}


@pytest.mark.parametrize("count", NARROWER)
def test_one_word_and_two(compile_ptx, count):
    """Each lands at its own bytes, and counts as many."""
    store, load = NARROWER[count]
    text = EXCHANGE.replace("bytes.v4.b32 [%0], { %1, %2, %3, %4 }", store)
    text = text.replace("ld.shared.v4.b32 { %0, %1, %2, %3 }, [%4];", load)
    text = text.replace("[%0], 1024;", f"[%0], {256 * count};")
    ptx = compile_ptx(text, "sm_90a")
    words = np.random.default_rng(1).integers(0, 1 << 32, (2, 64, 4), np.uint32)
    words[..., count:] = 0
    given = (words, np.zeros_like(words))
    report = run(ptx, Launch((2, 1, 1), (64, 1, 1), 1032, given))
    assert report.ok, str(report)
    np.testing.assert_array_equal(report.arrays[1][..., :count], words[::-1, :, :count])


def test_stores_of_other_than_words_are_refused(compile_ptx):
    wide = EXCHANGE.replace("bytes.v4.b32 [%0], { %1, %2, %3, %4 }", "bytes.b64 [%0], wide")
    wide = wide.replace(
        'asm volatile("st.async', 'asm volatile("{ .reg .b64 wide; mov.b64 wide, 1; st.async'
    )
    wide = wide.replace(', [%5];"\n', ', [%5]; }"\n')
    with pytest.raises(PtxError, match="stores of other than words are not modelled"):
        execute(compile_ptx(wide, "sm_90a"))
