# ruff: noqa: E501 - CUDA text
"""Kernels in the styles of libraries: right and silent in every order, and not with a mistake."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from library_kernels import LIBRARY

from polygen.errors import PolygenError
from polygen.machine import run
from polygen.runtime.outside import compile_text
from polygen.verdict import differences

ORDERS = ("late", "early", "random")


@cache
def ptx(name: str) -> str:
    one = LIBRARY[name]
    return compile_text(one.source, Path("k.cu"), one.arch)


def wrong(name: str, text: str, order: str) -> str:
    """What is wrong with a run; "" when nothing is."""
    one = LIBRARY[name]
    given, wanted = one.made()
    try:
        report = run(text, given, completion=order, max_steps=50_000)
    except PolygenError as error:
        return str(error)
    found = (*report.findings, *differences(report.arrays, wanted, atol=one.atol))
    return "\n".join(map(str, found))


@pytest.mark.parametrize("name", LIBRARY)
def test_a_kernel_is_right_and_silent(name):
    assert not wrong(name, ptx(name), "late")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("name", LIBRARY)
def test_a_kernel_is_right_and_silent_in_other_orders(name, order):
    assert not wrong(name, ptx(name), order)


FAULTS = [
    ("attention with a running maximum", "landed<1>()", "landed<2>()"),
    ("attention with a running maximum", "    __syncthreads();\n  }\n  for (int h", "  }\n  for (int h"),
    ("attention with a running maximum", "l[h] *= less;", ""),
    ("attention with a running maximum", "ldsm_t(b,", "ldsm(b,"),
    ("attention with a running maximum", "top, 2)", "top, 1)"),
    ("stream-K with atomics", "atomicAdd(&c[", "c[0] += 0 * atomicExch(&c["),
    ("stream-K with atomics", "      __syncthreads();\n    }\n    return", "    }\n    return"),
    ("stream-K with a workspace and flags", "__threadfence(); } __syncthreads();", "} __syncthreads(); __threadfence();"),
    ("stream-K with a workspace and flags", "= sum; __threadfence(); __syncthreads();", "= sum; __syncthreads();"),
    ("stream-K with a workspace and flags", "= sum; __threadfence(); __syncthreads();", "= sum; __threadfence();"),
    ("wgmma behind three stages of TMA, one warpgroup", "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"),
    ("wgmma behind three stages of TMA, one warpgroup", 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");', ""),
    ("wgmma behind three stages of TMA, one warpgroup", "wait(bar + 8 * s, (done + i) / 3 & 1);", ""),
    ("wgmma behind three stages of TMA, one warpgroup", "i + 2 < steps) fetch(i + 2)", "i + 2 < steps) fetch(i + 3)"),
    ("rows by four-bit weights", "- 8)", "- 7)"),
    ("bytes by dp4a", "sb[8][9]", "sb[7][9]"),
    ("bytes by dp4a", "    __syncthreads(); }", "    }"),
    ("a scan that looks back", "if (lane == 31) s[warp] = v;", "s[warp] = v;"),
    ("a scan that looks back", "if ((seen & 3) == 0) continue;", ""),
    ("a scan that looks back", "    before = sum;\n  }\n  __syncthreads();", "    before = sum;\n  }"),
    ("a digit of a radix sort", "starts[t] = up - sum; }\n  __syncthreads();", "starts[t] = up - sum; }"),
    ("sparse rows, a warp each", "step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);", "step > 1; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);"),
    ("sparse rows, a warp each", "if (row >= rows) return;", ""),
    ("a table of keys", "atomicCAS(&table[at], 0u, keys[i])", "table[at]; if (old == 0) table[at] = keys[i]"),
    ("a frontier of a graph", "mine[atomicAdd(&have, 1)]", "mine[have++]"),
    ("a frontier of a graph", "  if (t == 0) base = atomicAdd(size, have);\n  __syncthreads();", "  if (t == 0) base = atomicAdd(size, have);"),
    ("a norm by running moments", "  __syncthreads();\n  mean = m2", "  mean = m2"),
    ("half pairs through a curve", "i < chunks", "i <= chunks"),
    ("a picture through a window", "i < 180", "i < 179"),
    ("a picture through a window", "  __syncthreads();\n", ""),
    ("sums by chunks that the copy engine adds", "FENCE_ASYNC; __syncthreads();", "__syncthreads();"),
    ("sums by chunks that the copy engine adds", "    sum += s[i & 1][t];\n    __syncthreads();", "    sum += s[i & 1][t];"),
    ("sums by chunks that the copy engine adds", "i / 2 & 1);", "0);"),
    ("groups of threads and the whole grid", "  block.sync();\n", ""),
    ("groups of threads and the whole grid", "  grid.sync();\n", ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name, text, instead", FAULTS)
def test_a_mistake_is_found(name, text, instead):
    one = LIBRARY[name]
    assert text in one.source
    faulty = compile_text(one.source.replace(text, instead), Path("k.cu"), one.arch)
    assert any(wrong(name, faulty, order) for order in ORDERS)
