"""Operands of f32 and tf32 with folds over their own rows, on the machine: exact, or near float64.

With roles the launch before the kernel makes parts of tf32, without them rows of f32 that warps
split. Sums of small whole numbers are exact; the machine reports what is read outside of an array.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fewer import one_in
from test_machine_made_first import making

import polygen as pg
from polygen.emulated import emulate
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks

F32, TF32 = ("f32[M,K]", "f32[N,K]"), ("tf32[M,K]", "tf32[N,K]")
IN_PARTS = making(k=32, through="lines")  # a block of products is promoted behind every k tile
Arrays = tuple[np.ndarray, ...]


def near(x: Any, axis: int = -1) -> Any:
    """What a row's largest elements have besides: no factor and no term leaves the sum."""
    most = x.max(axis=axis, keepdims=True)
    return (np if isinstance(x, np.ndarray) else pg).maximum(x - most + 4, 0)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def run(
    function: Any,
    signature: tuple[str, ...],
    given: Arrays,
    arch: str,
    schedule: Schedule | str = "auto",
) -> Any:
    """The results, of the variant that these arrays need."""
    kernel = pg.fuse(function, name="rows").compile(*signature, arch=arch, schedule=schedule)
    kernel = kernel.fitting(*given)
    source = kernel.passes.source
    assert source.realign is not None and source.realign.by_rows
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    done = emulate(kernel.program, few_blocks(source), kernel.ptx, given)
    assert done.report.ok, str(done.report)
    return done.results


def small(*shapes: tuple[int, ...]) -> Arrays:
    """Small whole numbers."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return tuple(rng.integers(-3, 4, shape).astype("f4") for shape in shapes)


def normal(*shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return tuple(rng.standard_normal(shape).astype("f4") for shape in shapes)


SIZES = [(33, 45, 131), (1, 40, 72), (67, 1, 36), (1, 1, 1), (5, 16, 2056), (3, 7, 4)]
TARGETS = [("sm_80", "auto"), ("sm_90a", IN_PARTS), ("sm_90a", "auto"), ("sm_120", "auto")]


@pytest.mark.parametrize(("arch", "schedule"), TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), one_in(3, SIZES))
@pytest.mark.parametrize("signature", [F32, TF32])
def test_maxima_are_exact(
    arch: str, schedule: Any, m: int, n: int, k: int, signature: tuple[str, ...]
) -> None:
    if schedule != "auto" and signature is TF32:  # whose right operand is an argument
        schedule = replace(schedule, launch=Launches(realign=True, dependent=True))
    given = small((m, k), (n, k))
    x, w = (one.astype("f8") for one in given)
    found = run(lambda x, w: near(x) @ w.T, signature, given, arch, schedule)
    assert np.array_equal(found, near(x) @ w.T)


@pytest.mark.parametrize(("arch", "schedule"), TARGETS[:3])
@pytest.mark.parametrize(("m", "n", "k"), one_in(6, SIZES))
def test_probabilities_are_in_the_accuracy_of_f32(
    arch: str, schedule: Any, m: int, n: int, k: int
) -> None:
    given = normal((m, k), (n, k))
    x, w = (one.astype("f8") for one in given)
    found = run(lambda x, w: pg.softmax(x) @ w.T, F32, given, arch, schedule)
    terms = softmax(x) @ np.abs(w).T
    assert (np.abs(found - softmax(x) @ w.T) <= 2.0**-20 * terms).all()


# function, NumPy's, signature, shapes
FORMS: dict[str, tuple[Any, Any, tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "batches": (
        lambda x, w: near(x) @ w.mT, lambda x, w: near(x) @ w.swapaxes(1, 2),
        ("f32[B,M,K]", "f32[B,N,K]"), ((3, 17, 72), (3, 40, 72)),
    ),
    "one matrix for all of a batch": (
        lambda x, w: near(x) @ w, lambda x, w: near(x) @ w,
        ("f32[B,M,K]", "f32[K,N]"), ((3, 17, 72), (72, 41)),
    ),
    "a vector": (
        lambda x, w: near(x) @ w, lambda x, w: near(x) @ w,
        ("f32[K]", "f32[K,N]"), ((71,), (71, 40)),
    ),
    "times a vector": (
        lambda x, w: near(x) @ w, lambda x, w: near(x) @ w,
        ("f32[M,K]", "f32[K]"), ((33, 70), (70,)),
    ),
    "the right operand": (
        lambda x, w: x @ near(w).T, lambda x, w: x @ near(w).T, F32, ((33, 72), (40, 72)),
    ),
    "both": (
        lambda x, w: near(x) @ near(w).T, lambda x, w: near(x) @ near(w).T,
        F32, ((33, 70), (40, 70)),
    ),
    "along columns": (
        lambda x, w: near(x, 0).T @ w, lambda x, w: near(x, 0).T @ w,
        ("f32[K,M]", "f32[K,N]"), ((71, 33), (71, 40)),
    ),
    "beside one of chunks, with an epilogue": (
        lambda x, w, g, b: pg.relu(near(x) @ (w * g).T + b),
        lambda x, w, g, b: np.maximum(near(x) @ (w * g).T + b, 0),
        (*F32, "f32[K]", "f32[N]"), ((33, 72), (40, 72), (72,), (40,)),
    ),
    "two products": (
        lambda x, u, v: (near(x) @ u.T) + (near(x) @ v.T),
        lambda x, u, v: (near(x) @ u.T) + (near(x) @ v.T),
        (*F32, "f32[N,K]"), ((33, 72), (40, 72), (40, 72)),
    ),
    "masks of places": (
        lambda x, w: near(pg.where(pg.indices(x)[1] <= pg.indices(x)[0], x, -9)) @ w.T,
        lambda x, w: near(np.where(np.tril(np.ones(x.shape)) > 0, x, -9)) @ w.T,
        F32, ((33, 72), (40, 72)),
    ),
    "of a part of an array": (
        lambda x, w: near(x[:, 1:]) @ w.T, lambda x, w: near(x[:, 1:]) @ w.T,
        ("f32[M,73]", "f32[N,72]"), ((33, 73), (40, 72)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arch", "schedule"), TARGETS[:2])
@pytest.mark.parametrize("name", one_in(4, FORMS))
def test_other_forms_are_exact(arch: str, schedule: Any, name: str) -> None:
    function, numpys, signature, shapes = FORMS[name]
    given = small(*shapes)
    wanted = numpys(*(one.astype("f8") for one in given))
    assert np.array_equal(run(function, signature, given, arch, schedule), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_rows_of_a_chain_end_anywhere(arch: str) -> None:
    """A number of keys along which no argument has rows: whoever reads them asks where they end."""
    given = normal((33, 64), (131, 64), (131, 64))
    q, k, v = (one.astype("f8") for one in given)
    found = run(
        lambda q, k, v: pg.softmax(q @ k.T) @ pg.softmax(v, axis=0),
        ("f32[M,64]", "f32[N,64]", "f32[N,64]"), given, arch,
    )  # fmt: skip
    assert np.abs(found - softmax(q @ k.T) @ softmax(v, 0)).max() < 2.0**-18
