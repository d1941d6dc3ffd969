"""Operands with folds over their own rows, made by a launch before the kernel: exact, and alone.

The machine reports every byte that is read or written outside of an array, and shared memory that
is read before a barrier; the workspace is NaN before. Data are small whole numbers, so that sums
are exact, and results are those of NumPy, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from generated import edited
from test_machine_made_first import making

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks


def largest(x: Any, axis: int = -1) -> Any:
    return x.max(axis=axis, keepdims=True)


# function, signature, sizes, schedule
CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, int], Schedule]] = {
    "max-normalised rows": (
        lambda x, w: (x - largest(x)).astype("bf16") @ w.T, ("bf16[M,K]", "bf16[N,K]"),
        {"M": 67, "N": 48, "K": 136}, making(),
    ),
    "two levels, vectors, a number": (
        lambda x, g, a, w: (
            pg.relu(x - largest(x) + 3) * g
            - (pg.relu(x - largest(x) + 3) * a).sum(axis=-1, keepdims=True)
        ).astype("bf16") @ w.T,
        ("bf16[M,K]", "f32[K]", "f32", "bf16[N,K]"), {"M": 19, "N": 48, "K": 72}, making("two"),
    ),
    "rows of any pitch, longer than a block reads at a time": (
        lambda x, w: (x + x.min(axis=-1, keepdims=True)).astype("bf16") @ w.T,
        ("bf16[M,K]@2", "bf16[N,K]"), {"M": 5, "N": 16, "K": 2056}, making(),
    ),
    "the right operand, of matrices": (
        lambda x, w: x @ (w * (w > 0).any(axis=-1, keepdims=True)).astype("bf16").mT,
        ("bf16[B,M,K]", "bf16[B,N,K]"), {"B": 3, "M": 17, "N": 40, "K": 72}, making(),
    ),
    "rows along the first axis": (
        lambda x, w: (x - largest(x, 0)).astype("bf16").T @ w, ("bf16[K,M]", "bf16[K,N]"),
        {"M": 72, "N": 40, "K": 136}, making("pingpong"),
    ),
    "wider types, places": (
        lambda x, w: (
            pg.where(pg.indices(x)[1] == pg.argmax(x, axis=-1)[:, None], 1, 0)
        ).astype("f16") @ w.T,
        ("f32[M,K]", "f16[N,K]"), {"M": 33, "N": 48, "K": 136}, making(),
    ),
    "both operands, beside one of chunks": (
        lambda x, g, w: (x - largest(x)).astype("bf16") @ (w - largest(w)).astype("bf16").T
        + (x * g) @ w.T,
        ("bf16[M,K]", "bf16[K]", "bf16[N,K]"), {"M": 33, "N": 40, "K": 72},
        making(launch=Launches()),
    ),
    "beside an operand that is copied": (
        lambda x, w: (x - largest(x)).astype("bf16") @ w.T, ("bf16[M,K]@2", "bf16[N,K]@2"),
        {"M": 67, "N": 45, "K": 131}, making(launch=Launches(realign=True), through="lines"),
    ),
    "of two sections": (
        lambda x, u, v: (
            (x - largest(x)).astype("bf16") @ u.T, (x - largest(x)).astype("bf16") @ v.T
        ),
        ("bf16[M,K]", "bf16[N,K]", "bf16[L,K]"), {"M": 67, "N": 48, "L": 32, "K": 136}, making(),
    ),
}  # fmt: skip
QUICK = ("max-normalised rows", "beside an operand that is copied")


@cache
def made(name: str) -> Kernel:
    function, signature, sizes, schedule = CASES[name]
    return pg.fuse(function, name="made").compile(
        *signature, arch="sm_90a", sizes=sizes, out_dtype="f32", schedule=schedule
    )


def operands(kernel: Kernel, sizes: dict[str, int], seed: int = 0) -> tuple[Any, ...]:
    """Small whole numbers."""
    rng, found = np.random.default_rng(seed), []
    for tensor in kernel.program.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
        values = rng.integers(-2, 3, shape).astype(np.float32)
        found.append(values.astype(tensor.dtype.numpy) if shape else 2.0)
    return tuple(found)


def run(kernel: Kernel, sizes: dict[str, int], given: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """The report, and what differs from NumPy."""
    done = emulate(kernel.program, few_blocks(kernel.passes.source), kernel.ptx, given)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    wanted = evaluate(kernel.program, arrays, dict(sizes))
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    pairs = zip(results, wanted, strict=True)
    return done.report, [
        np.argwhere(found.astype(np.float64) != exact.astype(np.float64))
        for found, exact in pairs
        if not np.array_equal(found.astype(np.float64), exact.astype(np.float64), equal_nan=True)
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name: str) -> None:
    kernel, sizes = made(name), CASES[name][2]
    source = kernel.passes.source
    assert source.realign is not None and source.realign.by_rows
    assert source.following is None
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    report, wrong = run(kernel, sizes, operands(kernel, sizes))
    assert report.ok, str(report)
    assert not wrong


@pytest.mark.parametrize(("warps", "words", "k"), [(1, 1, 136), (2, 2, 1031), (4, 1, 1032)])
def test_lanes_hold_words_that_are_folded(warps: int, words: int, k: int) -> None:
    """A part of a word at the end, elements that nobody holds behind it, a vector that is not."""
    function, signature, _, schedule = CASES["two levels, vectors, a number"]
    if k % 8:
        signature = ("bf16[M,K]@2", *signature[1:3], "bf16[N,K]@2")
        schedule = replace(schedule, launch=Launches(realign=True))
    epilogue = replace(schedule.epilogue, row_warps=warps, row_words=words)
    sizes = {"M": 5, "N": 16, "K": k}
    kernel = pg.fuse(function, name="made").compile(
        *signature, arch="sm_90a", sizes=sizes, out_dtype="f32",
        schedule=replace(schedule, epilogue=epilogue),
    )  # fmt: skip
    held = f"fold_read0_words[{words}];" in kernel.source
    assert held == (k % 8 == 0)  # else nothing lies in words
    assert kernel.passes.source.realign.warps == (warps if held else 8)
    report, wrong = run(kernel, sizes, operands(kernel, sizes))
    assert report.ok, str(report)
    assert not wrong


def test_the_same_bits_whatever_lanes_hold() -> None:
    function = pg.fuse(lambda x, w: pg.layer_norm(x).astype("bf16") @ w.T, name="made")
    rng, found = np.random.default_rng(3), []
    kind = making()
    for words in (0, 1, 2):
        epilogue = replace(kind.epilogue, row_warps=2, row_words=words)
        kernel = function.compile(
            "bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=replace(kind, epilogue=epilogue)
        )
        if not found:
            types = [t.dtype.numpy for t in kernel.program.inputs]
            given = [
                rng.standard_normal((m, 1032)).astype(t)
                for m, t in zip((5, 16), types, strict=True)
            ]
        found.append(emulate(kernel.program, few_blocks(kernel.passes.source), kernel.ptx, given))
        assert found[-1].report.ok
    for one in found[1:]:
        np.testing.assert_array_equal(one.results, found[0].results)


def test_nan_and_infinities_are_those_of_folds() -> None:
    name = QUICK[0]
    kernel, sizes = made(name), CASES[name][2]
    x, w = operands(kernel, sizes)
    x[3, 5], x[7, 0], x[8] = np.nan, np.inf, -np.inf
    report, wrong = run(kernel, sizes, (x, w))
    assert report.ok and not wrong


@pytest.mark.slow
def test_probabilities_are_near_those_of_float64() -> None:
    kernel = pg.fuse(lambda x, w: pg.softmax(x).astype("bf16") @ w.T, name="made").compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", sizes={"M": 33, "N": 48, "K": 136},
        schedule=making(), out_dtype="f32",
    )  # fmt: skip
    sizes = {"M": 33, "N": 48, "K": 136}
    x, w = operands(kernel, sizes)
    done = emulate(kernel.program, few_blocks(kernel.passes.source), kernel.ptx, (x, w))
    assert done.report.ok, str(done.report)
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True))
    wanted = e / e.sum(axis=1, keepdims=True) @ w.astype(np.float64).T
    assert np.abs(done.results - wanted).max() < 2.0**-8  # what rounding to bf16 leaves


FAULTS = {
    "no barrier between folds and elements": (
        "auto bar_take_1 = [&]() __attribute__((always_inline)) { __syncthreads(); };",
        "auto bar_take_1 = [&]() __attribute__((always_inline)) { };",
    ),
    "lanes that do not meet": (
        "combine_max(fold_v0_part0, __shfl_xor_sync(0xffffffffu, fold_v0_part0, 4));",
        "",
    ),
    "a warp that is not taken": (
        "combine_max(fold_v0_part0, fold_v0_given0[fold_w]);",
        "if (fold_w < 2) combine_max(fold_v0_part0, fold_v0_given0[fold_w]);",
    ),
    "another row": ("fold_result = fold_block;", "fold_result = fold_block / 2 * 2;"),
    "another chunk": ("fold_own = fold_e + 8 * lane;", "fold_own = fold_e + 8 * (lane / 2);"),
}
QUICK_FAULTS = ("no barrier between folds and elements", "another row")
FAULTY = {"M": 9, "N": 16, "K": 840}  # four warps have a part of a row


@cache
def faultless() -> Kernel:
    return pg.fuse(CASES[QUICK[0]][0], name="made").compile(
        *CASES[QUICK[0]][1], arch="sm_90a", schedule=making(through="lines"), out_dtype="f32"
    )


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=() if f in QUICK_FAULTS else pytest.mark.slow) for f in FAULTS]
)
def test_faults_of_rows_that_are_made_are_found(compile_ptx: Any, fault: str) -> None:
    kernel = faultless()
    given = operands(kernel, FAULTY)
    given[0][:, 824:832] += 8  # the largest are some that the last warp folds, by a lane
    given[0][::2] *= 2
    before, title, rest = kernel.source.partition("// The launch before it")
    broken = before + title + edited(rest, [FAULTS[fault]])
    ptx = compile_ptx(broken, "sm_90a")
    assert run_ptx(kernel, kernel.ptx, FAULTY, given)
    assert not run_ptx(kernel, ptx, FAULTY, given)


def run_ptx(kernel: Kernel, ptx: str, sizes: dict[str, int], given: tuple[Any, ...]) -> bool:
    """Whether some text does what the kernel has to."""
    done = emulate(kernel.program, few_blocks(kernel.passes.source), ptx, given)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    (wanted,) = evaluate(kernel.program, arrays, dict(sizes))
    return done.report.ok and np.array_equal(done.results, wanted.astype(np.float32))


# --- random programs -----------------------------------------------------------------------------
ELEMENT = ("relu(v)", "v * g", "v + 1", "-v", "v * 2", "abs(v)")
FOLDS = ("max", "min", "sum", "any", "all", "count")
JOINS = ("v - r", "v + r", "maximum(v, r)", "where(v > r, v, r)")


def drawn(seed: int) -> tuple[Any, tuple[str, ...], dict[str, int], Schedule]:
    """A random operand: pointwise work and folds over its rows, in turns; integers that stay small.

    Sums are of few whole numbers, kept below by a minimum, so that f32 and bf16 hold them.
    """
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(int(rng.integers(1, 4))):
        steps.append((str(rng.choice(ELEMENT)), str(rng.choice(FOLDS)), str(rng.choice(JOINS))))
    right, columns = bool(rng.integers(2)), bool(rng.integers(2))

    def operand(x: Any, g: Any, axis: int) -> Any:
        across = g if axis else g[:, None]
        v = x * across
        for element, fold, join in steps:
            v = {
                "relu(v)": lambda v: pg.relu(v), "v * g": lambda v: v * across,
                "v + 1": lambda v: v + 1, "-v": lambda v: -v, "v * 2": lambda v: v * 2,
                "abs(v)": lambda v: pg.abs(v),
            }[element](v)  # fmt: skip
            v = pg.minimum(pg.maximum(v, -8), 8)
            r = {
                "max": lambda v: v.max(axis=axis, keepdims=True),
                "min": lambda v: v.min(axis=axis, keepdims=True),
                "sum": lambda v: pg.minimum(v.sum(axis=axis, keepdims=True), 9),
                "any": lambda v: pg.where((v > 3).any(axis=axis, keepdims=True), 1, 2),
                "all": lambda v: pg.where((v > -3).all(axis=axis, keepdims=True), 1, 2),
                "count": lambda v: pg.minimum(
                    pg.where(v > 2, 1, 0).sum(axis=axis, keepdims=True), 7
                ),
            }[fold](v)  # fmt: skip
            v = {
                "v - r": lambda v, r: v - r, "v + r": lambda v, r: v + r,
                "maximum(v, r)": lambda v, r: pg.maximum(v, r),
                "where(v > r, v, r)": lambda v, r: pg.where(v > r, v, r),
            }[join](v, r)  # fmt: skip
            v = pg.minimum(pg.maximum(v, -16), 16)
        return v.astype("bf16")

    def function(x: Any, g: Any, w: Any) -> Any:
        made = operand(x, g, 0 if columns else 1)
        if right:
            return w @ (made if columns else made.T)
        return (made.T if columns else made) @ w.T

    kind = str(rng.choice(["bf16", "f32"]))
    mine = f"{kind}[K,M]" if columns else f"{kind}[M,K]"
    sizes = {"M": int(rng.integers(1, 80)), "N": 8 * int(rng.integers(1, 9)),
             "K": 8 * int(rng.integers(1, 60))}  # fmt: skip
    schedule = making(str(rng.choice(["one", "two", "pingpong"])), through="lines")
    launch = Launches(dependent=bool(rng.integers(2)))
    return function, (mine, "bf16[K]", "bf16[N,K]"), sizes, replace(schedule, launch=launch)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=() if s < 3 else pytest.mark.slow) for s in range(40)]
)
def test_random_operands_are_exact(seed: int) -> None:
    function, signature, sizes, schedule = drawn(seed)
    kernel = pg.fuse(function, name="drawn").compile(
        *signature, arch="sm_90a", sizes=sizes, out_dtype="f32", schedule=schedule
    )
    assert kernel.passes.source.realign is not None and kernel.passes.source.realign.by_rows
    report, wrong = run(kernel, sizes, operands(kernel, sizes, seed))
    assert report.ok, str(report)
    assert not wrong
