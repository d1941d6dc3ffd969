"""CUB's primitives: right and silent in every order, and not with a mistake around them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from cub_kernels import CUB

from polygen.errors import PolygenError
from polygen.machine import run
from polygen.runtime import toolkit
from polygen.runtime.outside import compile_text
from polygen.verdict import differences

pytestmark = pytest.mark.skipif(not toolkit.libraries(), reason="no CCCL beside the compiler")
ORDERS = ("late", "early", "random")


@cache
def ptx(source: str, arch: str) -> str:
    return compile_text(source, Path("k.cu"), arch)


def wrong(name: str, source: str, order: str, arch: str = "sm_80") -> str:
    """What is wrong with a run; "" when nothing is."""
    one = CUB[name]
    try:
        report = run(ptx(source, arch), one.launch, completion=order, max_steps=20_000)
    except PolygenError as error:
        return str(error)
    return "\n".join(map(str, (*report.findings, *differences(report.arrays, one.wanted))))


FEW = ("a merge sort, which looks one element ahead", "a scan of a grid of two words and a status")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in CUB]
)
def test_a_primitive_is_right_and_silent(name):
    assert not wrong(name, CUB[name].source, "late")


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CUB)
def test_a_primitive_is_right_and_silent_for_hopper(name, order):
    assert not wrong(name, CUB[name].source, order, "sm_90a")


FAULTS = [
    (
        "a scan of a block between loads and stores that transpose",
        "v); __syncthreads();\n  S",
        "v);\n  S",
    ),
    (
        "a scan of a block between loads and stores that transpose",
        "v, v); __syncthreads();",
        "v, v);",
    ),
    ("a histogram of a block by atomic", "  __syncthreads();\n", ""),
    (
        "a scan of a grid that looks back over tiles",
        "state.SetInclusive(0, all)",
        "state.SetPartial(0, all)",
    ),
    ("a scan of a grid that looks back over tiles", "BlockScan<int, 128>", "BlockScan<int, 96>"),
    ("a merge sort, which looks one element ahead", "return a < b;", "return a <= b || b < a;"),
    ("a radix sort of a block", "S(t).Sort(v);", "S(t).Sort(v, 0, 16);"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, text, instead", FAULTS)
def test_a_mistake_is_found(name, text, instead):
    assert text in CUB[name].source
    faulty = CUB[name].source.replace(text, instead)
    assert any(wrong(name, faulty, order) for order in ORDERS)
