"""Operands that a launch before the kernel makes: both launches, exact; bits as of other places.

The machine reports every byte that is read or written outside of an array, and the workspace is NaN
before: what the product reads of it, the launch before has written.
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
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Launches,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.small_problem import few_blocks

FIRST = Launches(dependent=True)


def making(
    form: str = "one", n: int = 64, k: int = 64, launch: Launches = FIRST, **changes: Any
) -> Schedule:
    """A small schedule behind a launch that makes what is computed."""
    found = roles(form, n, k, **changes)
    return replace(found, roles=replace(found.roles, computes="before"), launch=launch)


def by_producer(schedule: Schedule) -> Schedule:
    """The same sums, of operands that the producer's threads compute."""
    own = replace(
        schedule.roles, computes="producer", producer_registers=152, consumer_registers=168
    )
    return replace(schedule, roles=own, launch=Launches())


def by_warps(n: int = 32, k: int = 32) -> Schedule:
    """A small schedule without roles, behind such a launch."""
    return Schedule(
        name="warps",
        tile=Tile(CtaTile(32, n, k), WarpTile(16, 16)),
        pipeline=Pipeline(stages=3, distance=2),
        epilogue=Epilogue(through="registers"),
        roles=Roles(computes="before"),
    )


# function, signature, sizes, schedule, what is made
CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, int], Schedule, str]] = {
    "rows by index": (
        lambda x, r, w: x[r] @ w.T, ("bf16[S,K]", "s32[T]", "bf16[N,K]"),
        {"S": 13, "T": 67, "N": 48, "K": 136}, making(), "v0",
    ),
    "rows of any pitch, of both operands": (
        lambda x, r, w, c: x[r] @ w[c].T,
        ("bf16[S,K]@2", "s32[T]", "bf16[V,K]@2", "s32[N]"),
        {"S": 13, "T": 67, "N": 45, "K": 131, "V": 9}, making(through="lines"), "v0 v1",
    ),
    "rows that are summed": (
        lambda x, w, r: x @ w[r], ("bf16[M,T]", "bf16[V,N]", "s32[T]"),
        {"M": 20, "T": 72, "N": 72, "V": 11}, making(), "v0",
    ),
    "scaled columns": (
        lambda x, g, w: (x * g) @ w.T, ("bf16[M,K]", "bf16[K]", "bf16[N,K]"),
        {"M": 67, "N": 48, "K": 2056}, making("two"), "v1",
    ),
    "columns first": (
        lambda x, g, w: (x * g[:, None]).T @ w, ("bf16[K,M]", "bf16[K]", "bf16[K,N]"),
        {"M": 72, "N": 48, "K": 70}, making("pingpong"), "v1",
    ),
    "scales by group": (
        lambda x, q, s: x @ (q.astype("bf16") * pg.repeat(s, 32, axis=1)).T,
        ("bf16[M,128]", "i4[N,128]", "bf16[N,4]"),
        {"M": 33, "N": 72}, making(), "v3",
    ),
    "matrices, a number, coordinates": (
        lambda x, a, w: pg.where(pg.indices(x)[1] >= pg.indices(x)[2], x * a, 0) @ w.mT,
        ("f16[B,M,K]", "f32", "f16[B,N,K]"),
        {"B": 3, "M": 19, "N": 21, "K": 67},
        making(launch=Launches(realign=True, dependent=True), through="lines"), "v3",
    ),
    "beside an operand that is copied": (
        lambda x, g, w: (x * g) @ w.T, ("bf16[M,K]@2", "f32[K]", "bf16[N,K]@2"),
        {"M": 67, "N": 45, "K": 131},
        making(launch=Launches(realign=True), through="lines"), "v1",
    ),
    "of two sections": (
        lambda x, g, u, v: ((x * g) @ u.T, (x * g) @ v.T),
        ("bf16[M,K]", "bf16[K]", "bf16[N,K]", "bf16[L,K]"),
        {"M": 67, "N": 48, "L": 32, "K": 136}, making(), "v1",
    ),
    "both operands alike": (
        lambda x: pg.relu(x) @ pg.relu(x).T, ("bf16[M,K]",), {"M": 72, "K": 136}, making(), "v1",
    ),
    "tf32": (
        lambda x, r, w: (x[r] * 3) @ w.T, ("tf32[S,K]", "s32[T]", "tf32[N,K]"),
        {"S": 11, "T": 33, "N": 16, "K": 36}, making(k=32, through="lines"), "v0",
    ),
    "what lies across rows, of f32": (
        lambda x, m, y: (x - m).T @ y.T, ("tf32[K,M]", "tf32[M]", "tf32[N,K]"),
        {"M": 72, "N": 40, "K": 68}, making(k=32, through="lines"), "v0",
    ),
    "without roles": (
        lambda x, m: (x - m).T @ (x - m), ("f32[K,M]", "f32[M]"),
        {"M": 40, "K": 70}, by_warps(), "v1",
    ),
    "without roles, of f64": (
        lambda x, g, w: (x * g) @ w, ("f64[B,M,K]", "f64[K]", "f64[K,N]"),
        {"B": 2, "M": 37, "N": 24, "K": 50}, by_warps(k=16), "v1",
    ),
    "without roles, rows by index": (
        lambda x, r, w: x[r] @ w.T, ("f16[S,K]", "s32[T]", "f16[N,K]"),
        {"S": 11, "T": 37, "N": 24, "K": 72}, by_warps(), "v0",
    ),
    "in a cluster, more than one read of an element": (
        lambda x, r, q, y, w: (x[r] + x[q] * y) @ w.T,
        ("bf16[S,K]", "s32[T]", "s32[T]", "bf16[T,K]", "bf16[N,K]"),
        {"S": 11, "T": 150, "N": 48, "K": 72}, making("two", cluster=(2, 1)), "v2",
    ),
}  # fmt: skip
QUICK = (
    "rows by index",
    "beside an operand that is copied",
    "what lies across rows, of f32",
    "without roles",
    "without roles, of f64",
)


@cache
def made(name: str, *, producer: bool = False) -> Kernel:
    function, signature, sizes, schedule, _ = CASES[name]
    return pg.fuse(function, name="made").compile(
        *signature, arch="sm_90a", sizes=sizes, out_dtype="f32",
        schedule=by_producer(schedule) if producer else schedule,
    )  # fmt: skip


def operands(name: str, seed: int = 0) -> tuple[Any, ...]:
    """Small whole numbers, and of rows by index now and then a number that names none."""
    kernel, sizes = made(name), CASES[name][2]
    rng, found = np.random.default_rng(seed), []
    for tensor in kernel.program.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in tensor.dims]
        values = rng.integers(-3, 4, shape)
        if tensor.name in kernel.program.gathered:
            values = rng.integers(-2, sizes[str(kernel.program.gathered[tensor.name])] + 2, shape)
        if not shape:
            found.append(3.0)
        else:
            found.append(values.astype(np.float32).astype(tensor.dtype.numpy))
    return tuple(found)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name: str) -> None:
    kernel, given = made(name), operands(name)
    source = few_blocks(kernel.passes.source)
    assert source.realign is not None
    assert [tensor.name for tensor in source.realign.made] == CASES[name][4].split()
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    done = emulate(kernel.program, source, kernel.ptx, given)
    assert done.report.ok, str(done.report)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    wanted = evaluate(kernel.program, arrays, dict(CASES[name][2]))
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    for found, exact in zip(results, wanted, strict=True):
        assert np.array_equal(found.astype(np.float64), exact.astype(np.float64))


@pytest.mark.slow
def test_the_bits_are_those_of_operands_that_the_producer_computes() -> None:
    name = "scaled columns"
    first, threads = made(name), made(name, producer=True)
    assert first.sums == threads.sums
    rng, kind = np.random.default_rng(1), first.program.inputs[0].dtype.numpy
    sizes = CASES[name][2]
    given = [rng.standard_normal([sizes[d] for d in t.dims]) for t in first.program.inputs]
    ours, theirs = (k.emulate(*(a.astype(kind) for a in given)) for k in (first, threads))
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


FAULTS = {
    "a chunk too few": ("if (own < realign_chunks)", "if (own + 1 < realign_chunks)"),
    "rows too close": ("+ rest * pitch", "+ rest * (pitch - 16)"),
    "the numbers of other rows": ("row_at(r_, row, S)", "row_at(r_, row / 2, S)"),
    "read behind the end of a row": ("2, left);", "2, left + 1);"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_what_goes_before_are_found(compile_ptx: Any, fault: str) -> None:
    name = "rows of any pitch, of both operands"
    kernel, given = made(name), operands(name)
    before, _, rest = kernel.source.partition("// The launch before it")
    broken = before + _ + edited(rest, [FAULTS[fault]])
    done = emulate(
        kernel.program, few_blocks(kernel.passes.source), compile_ptx(broken, "sm_90a"), given
    )
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    (wanted,) = evaluate(kernel.program, arrays, dict(CASES[name][2]))
    assert not (done.report.ok and np.array_equal(done.results, wanted.astype(np.float32)))
