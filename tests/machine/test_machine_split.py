"""Products of f32 with roles: parts made before, three products of them in one sum, promoted.

Whole numbers are exact; with all mantissa bits errors are those of f32. The machine reports what is
read or written outside of an array, and every race.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from generated import edited
from matrix import roles

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks


def first(form: str = "one", n: int = 64, **changes: Any) -> Schedule:
    """A small schedule behind a launch that makes the parts."""
    found = roles(form, n, 32, **changes)
    launch = Launches(dependent=True)
    return replace(found, roles=replace(found.roles, computes="before"), launch=launch)


# function, signature, sizes, schedule
CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, int], Schedule]] = {
    "rows and columns": (
        lambda x, w: x @ w, ("f32[M,K]", "f32[K,N]"), {"M": 67, "N": 72, "K": 100}, first(),
    ),
    "odd rows behind an epilogue": (
        lambda x, w, b: pg.relu(x @ w.T + b), ("f32[M,K]@4", "f32[N,K]@4", "f32[N]"),
        {"M": 67, "N": 45, "K": 41}, first("two", through="lines"),
    ),
    "batches, one matrix for all": (
        lambda x, w: x @ w, ("f32[B,M,K]", "f32[K,N]"), {"B": 3, "M": 37, "N": 40, "K": 36},
        first(),
    ),
    "two products of one operand": (
        lambda x, v, w: (x @ v.T) * (x @ w.T), ("f32[M,K]", "f32[N,K]", "f32[N,K]"),
        {"M": 67, "N": 24, "K": 44}, first(n=32),
    ),
    "in turns": (
        lambda x, w: x.T @ w, ("f32[K,M]", "f32[K,N]"), {"M": 300, "N": 72, "K": 68},
        first("pingpong"),
    ),
    "in a cluster": (
        lambda x, w: x @ w.T, ("f32[M,K]", "f32[N,K]"), {"M": 300, "N": 72, "K": 68},
        first("two", cluster=(2, 1)),
    ),
    "exchanged": (
        lambda x, w: x @ w.T, ("f32[M,K]", "f32[N,K]"), {"M": 20, "N": 130, "K": 68},
        replace(first("two", n=32, through="lines"), exchange=True),
    ),
    "an operand with itself": (
        lambda x: pg.tril(x @ x.T), ("f32[M,K]",), {"M": 132, "K": 36}, first(),
    ),
    "steps, and a length that is known": (
        lambda x, w: x[:, ::2] @ w, ("f32[M,192]", "f32[96,N]"), {"M": 67, "N": 72}, first(),
    ),
    "results of 16 bits": (
        lambda x, w: (x @ w.T).astype("bf16"), ("f32[M,K]", "f32[N,K]"),
        {"M": 67, "N": 72, "K": 36}, first(),
    ),
}  # fmt: skip
QUICK = ("rows and columns", "two products of one operand")


@cache
def split(name: str) -> Kernel:
    function, signature, sizes, schedule = CASES[name]
    return pg.fuse(function, name="split").compile(
        *signature, arch="sm_90a", sizes=sizes, schedule=schedule
    )


def whole(name: str, seed: int = 0) -> tuple[Any, ...]:
    """Small whole numbers."""
    rng, sizes = np.random.default_rng(seed), CASES[name][2]
    return tuple(
        rng.integers(-4, 5, [d if isinstance(d, int) else sizes[d] for d in t.dims]).astype("f4")
        for t in split(name).program.inputs
    )


def wanted(name: str, given: tuple[Any, ...]) -> Any:
    kernel = split(name)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    (found,) = evaluate(kernel.program, arrays, dict(CASES[name][2]))
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name: str) -> None:
    kernel, given = split(name), whole(name)
    source = few_blocks(kernel.passes.source)
    assert source.realign is not None and "wgmma.mma_async" in kernel.source
    assert all(tensor.dims[0] == 2 for tensor in source.realign.made), "two parts, each once"
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    done = emulate(kernel.program, source, kernel.ptx, given)
    assert done.report.ok, str(done.report)
    assert np.array_equal(np.asarray(done.results).astype("f8"), wanted(name, given).astype("f8"))


def off(found: Any, x: Any, w: Any) -> tuple[float, float]:
    """Largest error and root of the mean square, of the sums of magnitudes."""
    x, w = x.astype("f8"), w.astype("f8")
    part = (found.astype("f8") - x @ w) / (np.abs(x) @ np.abs(w))
    return float(np.abs(part).max()), float(np.sqrt((part * part).mean()))


def in_steps(x: Any, w: Any) -> Any:
    """f32 sums by one fused step for each k, in order."""
    total = np.zeros((x.shape[0], w.shape[1]), "f4")
    for a, b in zip(x.T.astype("f8"), w.astype("f8"), strict=True):
        total = (total.astype("f8") + a[:, None] * b).astype("f4")
    return total


@pytest.mark.parametrize(
    ("data", "depth"),
    [
        ("normal", 128),
        *(pytest.param(data, depth, marks=pytest.mark.slow)
          for data in ("normal", "uniform", "wide") for depth in (256, 1024)),
    ],
)  # fmt: skip
def test_errors_are_no_larger_than_those_of_f32(data: str, depth: int) -> None:
    rng = np.random.default_rng(depth)
    made = rng.random if data == "uniform" else rng.standard_normal
    x, w = made((32, depth)).astype("f4"), made((depth, 32)).astype("f4")
    if data == "wide":
        x *= np.float32(2.0) ** rng.integers(-20, 20, x.shape).astype("f4")
    kernel = split("rows and columns")
    done = kernel.emulation(x, w)
    assert done.report.ok, str(done.report)
    for found, limit in zip(off(done.results, x, w), off(in_steps(x, w), x, w), strict=True):
        assert found <= limit
    (bound,) = expected(kernel.program, {"x": x, "w": w}, {"M": 32, "N": 32, "K": depth}, 8)
    assert bound.compare(done.results)[2] == 0
    near = [(one.view("u4") & np.uint32(0xFFFFE000)).view("f4") for one in (x, w)]
    assert bound.compare(in_steps(*near))[2] > 100, "what tf32 loses is found"


CHANGES = {
    "the same parts": ("((over0) % 2)", "((over0) / 2)"),
    "a first part that is not rounded": ("= nearest_tf32(w_0)", "= w_0"),
    "sums that are not added": ("= sum[m][j][1] + inner[m][j][1]", "= inner[m][j][1]"),
    "two of three products": ("(3 * ((K + 31) / 32 * 32)", "(2 * ((K + 31) / 32 * 32)"),
}


@pytest.mark.parametrize(
    "change", [pytest.param(c, marks=() if n == 0 else pytest.mark.slow)
               for n, c in enumerate(CHANGES)]
)  # fmt: skip
def test_changes_are_found(compile_ptx: Any, change: str) -> None:
    name = "rows and columns"
    kernel = split(name)
    rng, sizes = np.random.default_rng(3), CASES[name][2]
    x, w = (rng.standard_normal([sizes[d] for d in t.dims]).astype("f4")
            for t in kernel.program.inputs)  # fmt: skip
    source = edited(kernel.source, [CHANGES[change]])
    done = emulate(kernel.program, few_blocks(kernel.passes.source),
                   compile_ptx(source, "sm_90a"), (x, w))  # fmt: skip
    (bound,) = expected(kernel.program, {"x": x, "w": w}, sizes, 8)
    assert not done.report.ok or bound.compare(done.results)[2] > 0
