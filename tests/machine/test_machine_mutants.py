"""Mutants of kernels in many styles: what the machine finds, and what it does not.

Mutants are made from PTX by operators that know no kernel (`ptx_mutants`), of kernels that other
people might have written (`foreign_kernels`) and of kernels that polygen generates. A mutant is
*found* when the run has a finding, is refused, or its values are wrong. One that is not found is
*no mutant of this launch* when its line is never executed, or when it changes a branch or its
condition and the launch executes the same instructions all the same. Others that change nothing
that matters are listed with the reason (`EQUIVALENT`), and what is missed with that (`MISSED`).

One mutant per operator and kernel, and one kind of generated kernels, by ``make slow-test``; all
with POLYGEN_MUTANTS=all, which takes some minutes and prints the table of docs/machine.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from foreign_kernels import FOUND, integers, launch
from generated import kernel
from generated_kinds import KINDS, execute_kind, kind
from machine.conftest import kernel_source, to_ptx
from ptx_mutants import OPERATORS, Mutant, sample
from wgmma_text import wgmma_function

from polygen.check import launch_of
from polygen.errors import StepLimit
from polygen.machine import Launch, Report, TensorMap, run
from polygen.verdict import differences

ORDERS = ("late", "early", "random")
STEPS = 20_000
EVERYTHING = os.environ.get("POLYGEN_MUTANTS") == "all"
MOST = 1000 if EVERYTHING else 1
CONTROL = {"a guard is dropped", "a guard is turned", "a comparison is off by one"}


class Case(NamedTuple):
    """A kernel, and what runs a text in its place: the report, and whether values are wrong."""

    ptx: str
    run: Callable[..., tuple[Report, bool]]


def launched(ptx: str, given: Launch, wanted: tuple) -> Case:
    """Of one launch; `wanted` has None for arrays that may hold anything."""

    def done(text: str, **options) -> tuple[Report, bool]:
        report = run(text, given, **options)
        return report, bool(differences(report.arrays, wanted))

    return Case(ptx, done)


@cache
def case(name: str) -> Case:
    if name in FOUND:
        one = FOUND[name]
        return launched(to_ptx(one.source, one.arch), *one.made())
    return of_kind(name) if name in KINDS else OTHERS[name]()


def of_kind(name: str) -> Case:
    """What the kernel itself gives is what is wanted: `Kernel.check` says that it is right."""
    made = kind(name)
    assert made.check(KINDS[name].sizes).ok
    wanted = all_of(execute_kind(name, made.ptx).results)

    def done(text: str, **options) -> tuple[Report, bool]:
        found = execute_kind(name, text, **options)
        return found.report, bool(differences(all_of(found.results), wanted))

    return Case(made.ptx, done)


def all_of(results) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


def generated(name: str) -> Case:
    made = kernel(name)
    m, n, k = 40, 72, 104
    shapes = {"nt": ((m, k), (n, k), (n,)), "nn": ((m, k), (k, n), (m, n))}[name]
    x, w, b = (
        integers(shape, tensor.dtype.numpy, at)
        for at, (shape, tensor) in enumerate(zip(shapes, made.program.inputs, strict=True))
    )
    wide = [one.astype(np.float32) for one in (x, w, b)]
    product = wide[0] @ (wide[1].T if name == "nt" else wide[1]) + wide[2]
    given = launch_of(made.program, made.passes.source, (x, w, b))
    arrays = sum(isinstance(one, np.ndarray) for one in given.arguments)
    wanted = np.maximum(product, 0) if name == "nt" else product
    out = made.program.outputs[0].dtype.numpy
    return launched(made.ptx, given, (*[None] * (arrays - 1), wanted.astype(out)))


def by_cp_async() -> Case:
    m, n, k = 72, 72, 104
    a, b = integers((m, k), np.float16), integers((k, n), np.float16, 1)
    bias, d = integers((n,), np.float32, 2), np.full((m, n), np.nan, np.float32)
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32) + bias, 0)
    given = launch((2, 2), (128,), (a, b, bias, d, m, n, k), 3 * 2 * 64 * 32 * 2)
    return launched(to_ptx(kernel_source("gemm_cp_async.cu")), given, (None, None, None, wanted))


def by_wgmma() -> Case:
    m, n, k, brain = 136, 128, 328, ml_dtypes.bfloat16
    a, b = integers((m, k), brain), integers((n, k), brain, 1)
    bias, d = integers((n,), np.float32, 2), np.full((m, n), np.nan, brain)
    maps = [TensorMap(one, (128, 64), 128) for one in (a, b, d)]
    given = launch((1, 2), (384,), (*maps, bias, m, n, k), 4 * 32768 + 48)
    product = a.astype(np.float32) @ b.astype(np.float32).T + bias
    text = wgmma_function("multiply_128", 128, 16, "f32.bf16.bf16")
    wanted = np.maximum(product, 0).astype(brain)
    return launched(
        to_ptx(text + kernel_source("gemm_tma_wgmma.cu"), "sm_90a"),
        given,
        (None, None, wanted, None),
    )


OTHERS = {
    "generated, bf16, results through shared memory": lambda: generated("nt"),
    "generated, f16, results from registers": lambda: generated("nn"),
    "product with three stages of cp.async": by_cp_async,
    "product by wgmma with TMA and roles": by_wgmma,
}
SHOWN = [*KINDS] if EVERYTHING else ["boxes of pixels with strides"]
NAMES = [*FOUND, *OTHERS, *SHOWN]
# Those whose runs take longer have fewer mutants per operator, spread over the text.
SLOWER = {
    **dict.fromkeys([*OTHERS, *KINDS], 3),
    "product by wgmma with TMA and roles": 1,
    "rows that the blocks of a cluster share": 1,
}

DROPPED, TURNED, OFF = "a guard is dropped", "a guard is turned", "a comparison is off by one"
OF_THE_WARP, LEFT_OUT = "a barrier becomes one of the warp", "a barrier of the block is left out"
EXCHANGED = "an exchange goes the other way"
LANE_0 = "lane 0, whose value counts, takes that of lane 1 either way"
GENERATED = "generated, bf16, results through shared memory"
# (kernel, operator, the line): why nothing that matters changes.
EQUIVALENT = {
    ("tree sum", DROPPED, "@%p5 bra \t$L__BB0_9;"): "all threads store the sum",
    ("tree sum", TURNED, "@%p5 bra \t$L__BB0_9;"): "the others store the sum",
    ("tree sum", OFF, "setp.gt.u32 \t%p4, %r15, 2;"): "one more round, with a step of 0",
    ("shuffle sum", DROPPED, "@%p8 bra \t$L__BB0_9;"): "every warp adds up, and stores the same",
    ("shuffle sum", TURNED, "@%p8 bra \t$L__BB0_9;"): "the other warps do, with the same result",
    ("shuffle sum", EXCHANGED, "shfl.sync.bfly.b32 \t%r26|%p6, %r24, %r25, %r11, %r13;"): LANE_0,
    ("softmax of rows", EXCHANGED, "shfl.sync.bfly.b32 \t%r43|%p9, %r41, %r42, %r31, %r33;"): (
        "the greatest is in another lane"
    ),
    ("softmax of rows", EXCHANGED, "shfl.sync.bfly.b32 \t%r46|%p10, %r44, %r45, %r31, %r33;"): (
        LANE_0
    ),
    ("softmax of rows", EXCHANGED, "shfl.sync.bfly.b32 \t%r70|%p21, %r68, %r69, %r55, %r57;"): (
        LANE_0
    ),
    ("softmax of rows", DROPPED, "@%p23 bra \t$L__BB0_20;"): "all threads store the same",
    ("softmax of rows", TURNED, "@%p23 bra \t$L__BB0_20;"): "the others store the same",
    ("last block adds up", OF_THE_WARP, "bar.sync \t0;"): "after the first step one warp works",
    ("last block adds up", "a store is left out", "st.global.u32 \t[count], %r27;"): (
        "the count is for the next launch"
    ),
    ("last block adds up", OFF, "setp.gt.u32 \t%p2, %r20, 2;"): "one more round, with a step of 0",
    ("scan with two buffers", OFF, "setp.lt.u32 \t%p2, %r23, 64;"): "one more round copies all",
    ("bitonic sort", OF_THE_WARP, "bar.sync \t0;"): "the first step stays within a warp",
    ("bitonic sort", OFF, "setp.gt.u32 \t%p6, %r18, 2;"): "one more round, with a step of 0",
    ("sums over blocks behind a lock", DROPPED, "@%p3 bra \t$L__BB0_5;"): "all threads wait for it",
    ("sums over blocks behind a lock", TURNED, "@%p3 bra \t$L__BB0_5;"): "the others wait for it",
    ("sums over blocks behind a lock", DROPPED, "@%p3 bra \t$L__BB0_9;"): "all threads release it",
    ("sums over blocks behind a lock", TURNED, "@%p3 bra \t$L__BB0_9;"): "the others release it",
    ("two warps and named barriers", DROPPED, "@%p3 bra \t$L__BB0_5;"): (
        "two more arrivals, for which nobody waits"
    ),
    ("two warps and named barriers", OFF, "setp.ge.s32 \t%p3, %r18, %r11;"): (
        "one more arrival, for which nobody waits"
    ),
    ("a ring of bulk copies", OFF, "setp.gt.u32 \t%p8, %r58, 1;"): (
        "one more wait, for a phase that is over"
    ),
    ("boxes in and out", LEFT_OUT, "bar.sync \t0;"): "who begins the next copy has waited itself",
    ("boxes in and out", OF_THE_WARP, "bar.sync \t0;"): "likewise",
    ("boxes in and out", DROPPED, "@%p1 bra \t$L__BB0_16;"): "all threads store the same box",
    ("boxes in and out", TURNED, "@%p1 bra \t$L__BB0_16;"): "the others store the box",
    (GENERATED, DROPPED, "@%p1 bra \t$L__BB0_29;"): "tiles outside store nothing",
    (GENERATED, DROPPED, "@%p11 bra \t$L__BB0_6;"): "one more empty group",
    (GENERATED, TURNED, "@%p11 bra \t$L__BB0_6;"): "one more empty group",
    (
        "product by wgmma with TMA and roles",
        "a fence of products is left out",
        ("wgmma.fence.sync.aligned;"),
    ): "since the wait before it no thread has touched the registers",
    ("generated, f16, results from registers", DROPPED, "@%p1 bra \t$L__BB0_48;"): (
        "tiles outside store nothing"
    ),
}
# Of the kinds of generated kernels, likewise; the number is that of the line among equal ones.
PROXY, PRODUCTS = "a proxy fence is left out", "a fence of products is left out"
GIVEN, AGAIN = "registers are not given back", "a wait does not ask again"
SHARED_ROWS, PARTS = "rows that the blocks of a cluster share", "attention with its keys in parts"
PROMOTED = "scaled eight-bit floats with promoted sums"
GOES_ON = "sums that go on with those of another product"
TRIANGLE, PIXELS = "a triangle that persistent blocks walk", "boxes of pixels with strides"
BY_NUMBER = "rows that are stored by number"
NO_TILES = "tiles outside store nothing"
EQUIVALENT_KINDS = {
    **{
        (name, PROXY, "fence.proxy.async.shared::cta;", 1): (
            "fence.mbarrier_init, the line before it, covers the mbarriers, too"
        )
        for name in (TRIANGLE, PROMOTED, SHARED_ROWS, PIXELS, GOES_ON, PARTS)
    },
    **{
        (name, GIVEN, "setmaxnreg.dec.sync.aligned.u32 40;", 1): (
            "two warpgroups have registers enough from the beginning"
        )
        for name in (TRIANGLE, PROMOTED, SHARED_ROWS)
    },
    **{
        (name, PRODUCTS, "wgmma.fence.sync.aligned;", nth): (
            "since the fence before it no thread has touched the registers"
        )
        for name, nth in ((TRIANGLE, 2), (SHARED_ROWS, 2), (PIXELS, 2), (GOES_ON, 2), (PARTS, 3))
    },
    (SHARED_ROWS, "a release is relaxed", "barrier.cluster.arrive.release;", 1): (
        "fence.mbarrier_init, ahead of it, covers the mbarriers, and nothing else is behind it"
    ),
    (SHARED_ROWS, "a release is relaxed", "barrier.cluster.arrive.release;", 2): (
        "it only keeps blocks alive: nothing is read behind it"
    ),
    (
        SHARED_ROWS,
        "another block of the cluster is meant",
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %r315, %r13; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }",
        1,
    ): "two threads mean both blocks, now each the other's",
    (
        PARTS,
        AGAIN,
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r481], %r600; "
        "@done bra ready; bra again; ready: }",
        1,
    ): "the phase before the first is over from the beginning, and blocks have one tile",
    (BY_NUMBER, DROPPED, "@%p1 bra \t$L__BB0_22;", 1): NO_TILES,
    (BY_NUMBER, OFF, "setp.ge.s32 \t%p1, %r4, %r62;", 1): NO_TILES,
    (BY_NUMBER, OFF, "setp.lt.s32 \t%p13, %r702, %r8;", 1): "one more part of k adds zeros",
    (f"{BY_NUMBER}, sm_80", DROPPED, "@%p1 bra \t$L__BB0_28;", 1): NO_TILES,
    (f"{BY_NUMBER}, sm_80", OFF, "setp.ge.s32 \t%p1, %r4, %r59;", 1): NO_TILES,
}
# Likewise: why the machine does not see it.
MISSED: dict[tuple[str, str, str], str] = {}


def executed(one: Case, text: str, order: str) -> tuple[Report | None, bool]:
    """The report of a run, if it ends, and whether anything is wrong."""
    try:
        report, wrong = one.run(text, completion=order, max_steps=STEPS)
    except StepLimit:  # and no other error: every mutant is a kernel
        return None, True
    return report, bool(report.findings) or wrong


def outcome(name: str, mutant: Mutant) -> str:
    """ "found", or why it is not."""
    one, same = case(name), True
    for order in ORDERS:
        report, wrong = executed(one, mutant.text, order)
        if wrong:
            return "found"
        if mutant.operator in CONTROL:
            whole, _ = executed(one, one.ptx, order)
            same = same and report.instructions == whole.instructions
    key = name, mutant.operator, mutant.before
    known = key in EQUIVALENT or (*key, mutant.nth) in EQUIVALENT_KINDS
    if mutant.operator in CONTROL and same:
        return "decides nothing"
    lines = one.ptx.split("\n")
    lines[mutant.line - 1] = "trap;"
    if not any(executed(one, "\n".join(lines), order)[1] for order in ORDERS):
        return "not executed"
    return "equivalent" if known else "missed"


@pytest.mark.parametrize(
    "name", [*FOUND, *OTHERS, *(pytest.param(name, marks=pytest.mark.slow) for name in SHOWN)]
)
def test_unmodified_kernels_are_right_and_silent(name):
    for order in ORDERS if EVERYTHING else ORDERS[:1]:
        report, wrong = executed(case(name), case(name).ptx, order)
        assert not wrong, f"{order}: {report}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES if EVERYTHING else NAMES[::4])
def test_unmodified_kernels_in_other_orders(name):
    for order in ORDERS[1:]:
        report, wrong = executed(case(name), case(name).ptx, order)
        assert not wrong, f"{order}: {report}"


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str, str], str]:
    """What came of every mutant."""
    found = {}
    for name in NAMES:
        for mutant in sample(case(name).ptx, min(MOST, SLOWER.get(name, MOST))):
            key = name, mutant.operator, f"{mutant.line}: {mutant.before}"
            found[key] = outcome(name, mutant)
            if found[key] == "missed":
                print("missed", *key, mutant.after, sep=" | ")
    return found


@pytest.mark.slow
def test_mutants_are_found(outcomes):
    """But for those that are listed, every mutant that makes a difference."""
    if EVERYTHING:
        print(table(outcomes))
    missed = {
        (name, operator, line.partition(": ")[2])
        for (name, operator, line), what in outcomes.items()
        if what == "missed"
    }
    assert missed <= MISSED.keys()
    real = [what for what in outcomes.values() if what in ("found", "missed")]
    assert real.count("found") >= 0.99 * len(real)
    assert len(real) >= (900 if EVERYTHING else 150)
    operators = {operator for _, operator, _ in outcomes}
    assert operators <= OPERATORS.keys() and len(operators) >= 20


def table(outcomes: dict[tuple[str, str, str], str]) -> str:
    """The rows of the table in docs/machine.md."""
    rows = []
    for operator in OPERATORS:
        mine = Counter(what for (_, name, _), what in outcomes.items() if name == operator)
        real = mine["found"] + mine["missed"]
        rest = sum(mine.values()) - real
        rows.append(f"| {operator} | {mine['found']} of {real} | {rest or ''} |")
    total = Counter(outcomes.values())
    rows.append(f"{dict(total)}")
    return "\n".join(rows)
