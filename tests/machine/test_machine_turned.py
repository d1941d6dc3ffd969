"""Operands that are copied first with their axes in another order: both launches, exact.

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
from matrix import roles, small

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.schedule.model import Launches, Schedule
from polygen.small_problem import few_blocks

SIZES = {"B": 2, "M": 37, "K": 67, "N": 45, "L": 16, "C": 24, "O": 20, "E": 3, "T": 50}
LINES = roles("one", 64, 64, through="lines")
BYTES = replace(roles("one", 64, 128, through="lines"), launch=Launches(realign=True))
EARLY = replace(BYTES, launch=Launches(realign=True, dependent=True))


def first(size: int = 3, stride: int = 1, pad: int = 0) -> Any:
    """A convolution of images with channels first, as PyTorch has them by default."""

    def function(x: Any, w: Any) -> Any:
        around = ((0, 0), (0, 0), (pad, pad), (pad, pad))
        x = np.pad(x, around) if pad else x
        found = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
        return pg.einsum("nchwrs,ocrs->nohw", found[:, :, ::stride, ::stride], w)

    return function


def lines(x: Any, w: Any) -> Any:
    found = np.lib.stride_tricks.sliding_window_view(x, 3, axis=2)
    return pg.einsum("nclk,ock->nol", found, w)


def weights_first(x: Any, w: Any) -> Any:
    found = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return pg.einsum("nhwcrs,ocrs->nhwo", found, w)


def in_groups(x: Any, w: Any) -> Any:
    parts = x.reshape(-1, 2, 16, 7, 9)
    found = np.lib.stride_tricks.sliding_window_view(parts, (3, 3), axis=(3, 4))
    return pg.einsum("ngchwrs,gocrs->ngohw", found, w.reshape(2, 4, 16, 3, 3))


def gated(x: Any, u: Any, v: Any) -> Any:
    return pg.relu(x @ u) * (x @ v)


CASES: dict[str, tuple[Any, tuple[str, ...], str, Schedule | str, str]] = {
    "whole numbers": (
        lambda x, w: x @ w, ("s8[M,K]", "s8[K,N]"), "sm_80", small(), "w",
    ),
    "whole numbers, both": (
        lambda x, w: x.T @ w, ("u8[K,M]", "s8[K,N]"), "sm_80", small(), "x w",
    ),
    "whole numbers of an older target": (
        lambda x, w: x @ w, ("s8[M,K]", "s8[K,N]"), "sm_75", "auto", "w",
    ),
    "rows and columns that are sliced": (
        lambda x, w: x @ w[::2, 3:], ("s8[M,67]", "s8[134,48]"), "sm_80", "auto", "w",
    ),
    "8-bit floats": (lambda x, w: x @ w, ("e4m3[M,K]", "e4m3[K,N]"), "sm_90a", EARLY, "w"),
    "8-bit floats of five bits": (
        lambda x, w: x @ w, ("e5m2[M,K]", "e5m2[K,N]"), "sm_90a", BYTES, "w",
    ),
    "8-bit floats, any schedule": (
        lambda x, w: x @ w, ("e4m3[M,K]", "e4m3[K,N]"), "sm_90a", "auto", "w",
    ),
    "matrices": (lambda x, w: x @ w, ("s8[B,M,K]", "s8[B,K,N]"), "sm_90a", BYTES, "w"),
    "several products": (
        gated, ("e4m3[M,K]", "e4m3[K,N]", "e4m3[K,N]"), "sm_90a", EARLY, "u v",
    ),
    "two sections": (
        lambda x, u, v: (x @ u, x @ v), ("s8[M,K]", "s8[K,N]", "s8[K,L]"), "sm_90a", BYTES, "u v",
    ),
    "a matrix with itself": (
        lambda x: (x.T @ x).astype("f32"), ("e4m3[K,M]",), "sm_90a", BYTES, "x",
    ),
    "read as it lies beside": (
        lambda x: (x @ x).astype("f32") + x.astype("f32"), ("s8[M,M]",), "sm_80", "auto", "x",
    ),
    "groups of rows": (
        pg.grouped_matmul, ("e4m3[T,64]", "e4m3[E,64,N]", "s32[E]"), "sm_90a", "auto", "w",
    ),
    "folds behind": (
        lambda x, w: pg.max((x @ w).astype("f32"), axis=1), ("s8[M,K]", "s8[K,N]"), "sm_80",
        "auto", "w",
    ),
    "sums of columns beside": (
        lambda x, w: (x @ w).astype("f32") - 3 * pg.sum(w.astype("f32"), axis=0),
        ("s8[M,K]", "s8[K,N]"), "sm_90a", "auto", "w",
    ),
    "scales of groups": (
        lambda x, s, w: (x * pg.repeat(s, 128, axis=1)) @ w,
        ("e4m3[M,256]", "f32[M,2]", "e4m3[256,N]"), "sm_90a", "auto", "w",
    ),
    "channels first, in groups": (
        in_groups, ("bf16[B,32,7,9]", "bf16[8,16,3,3]"), "sm_80", "auto", "x w",
    ),
    "channels first": (
        first(), ("bf16[B,C,7,9]", "bf16[O,C,3,3]"), "sm_90a", LINES, "x w",
    ),
    "channels first, by warps": (
        first(stride=2, pad=1), ("f16[B,C,7,9]", "f16[O,C,3,3]"), "sm_80", "auto", "x w",
    ),
    "channels first, with zeros around": (
        first(pad=1), ("bf16[B,C,7,9]", "bf16[O,C,3,3]"), "sm_90a",
        replace(LINES, launch=Launches(dependent=True)), "x w",
    ),
    "three channels": (
        first(pad=1), ("f16[B,3,7,9]", "f16[O,3,3,3]"), "sm_80", "auto", "x w",
    ),
    "channels first of bytes": (
        first(), ("s8[B,C,7,9]", "s8[O,C,3,3]"), "sm_80", "auto", "x w",
    ),
    "channels first of words": (
        first(), ("tf32[B,C,7,9]", "tf32[O,C,3,3]"), "sm_80", "auto", "x w",
    ),
    "channels first of f32": (
        first(), ("f32[B,C,7,9]", "f32[O,C,3,3]"), "sm_90a", "auto", "x w",
    ),
    "along one axis": (lines, ("bf16[B,C,40]", "bf16[O,C,3]"), "sm_90a", LINES, "x w"),
    "weights alone": (weights_first, ("bf16[B,7,9,C]", "bf16[O,C,3,3]"), "sm_80", "auto", "w"),
}  # fmt: skip
QUICK = ("whole numbers", "8-bit floats", "matrices", "channels first", "channels first, by warps")


@cache
def turned(name: str) -> Kernel:
    function, signature, arch, schedule, _ = CASES[name]
    fused = pg.fuse(function, name="turned")
    sizes = {dim: SIZES[dim] for dim in fused.program(*signature).sizes}
    return fused.compile(*signature, arch=arch, sizes=sizes, schedule=schedule)


def operands(name: str) -> tuple[Any, ...]:
    """Small whole numbers, and where groups end."""
    rng, found = np.random.default_rng(0), []
    for tensor in turned(name).program.inputs:
        if tensor.dtype.name == "s32":
            found.append(np.array([13, 13, SIZES["T"]], np.int32))
            continue
        shape = [dim if isinstance(dim, int) else SIZES[dim] for dim in tensor.dims]
        values = rng.integers(0 if tensor.dtype.name == "u8" else -3, 4, shape)
        found.append(values.astype(np.float32).astype(tensor.dtype.numpy))
    return tuple(found)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_exact_and_nothing_outside(name: str) -> None:
    kernel, given = turned(name), operands(name)
    source = few_blocks(kernel.passes.source)
    assert source.realign is not None
    assert source.realign.turned == tuple(f"{one}_turned" for one in CASES[name][-1].split())
    assert (kernel.resources.spill_store_bytes, kernel.resources.stack_bytes) == (0, 0)
    done = emulate(kernel.program, source, kernel.ptx, given)
    assert done.report.ok, str(done.report)
    arrays = {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)}
    sizes = {dim: SIZES[dim] for dim in kernel.program.sizes}
    wanted = evaluate(kernel.program, arrays, sizes)
    results = done.results if isinstance(done.results, tuple) else (done.results,)
    for found, exact in zip(results, wanted, strict=True):
        assert np.array_equal(found.astype(np.float64), exact.astype(np.float64))


def test_arrays_that_begin_and_step_anywhere() -> None:
    """A view of a larger array, which begins at an odd byte: elements are read one by one."""
    kernel, (x, _) = turned("whole numbers"), operands("whole numbers")
    whole = np.random.default_rng(1).integers(-3, 4, (SIZES["K"] + 2, SIZES["N"] + 8))
    w = whole.astype(np.int8)[1 : SIZES["K"] + 1, 5 : SIZES["N"] + 5]
    done = emulate(kernel.program, few_blocks(kernel.passes.source), kernel.ptx, (x, w))
    assert done.report.ok, str(done.report)
    assert np.array_equal(done.results, x.astype(np.int32) @ w.astype(np.int32))


MISTAKES = {
    "another chunk": ("realign_first + chunk + warp", "realign_first + chunk + warp + 1"),
    "elements in another order": ("e % 4 * 8;", "(3 - e % 4) * 8;"),
    "a column more": ("if (column < K)", "if (column <= K)"),
    "rows behind the last": ("&& lane < realign_rows", ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_seen(compile_ptx: Any, name: str) -> None:
    kernel, given = turned("whole numbers"), operands("whole numbers")
    before, title, rest = kernel.source.partition("// The launch before it")
    ptx = compile_ptx(before + title + edited(rest, [MISTAKES[name]]), "sm_80")
    done = emulate(kernel.program, few_blocks(kernel.passes.source), ptx, given)
    (exact,) = evaluate(
        kernel.program,
        {t.name: a for t, a in zip(kernel.program.inputs, given, strict=True)},
        {dim: SIZES[dim] for dim in kernel.program.sizes},
    )
    assert not (done.report.ok and np.array_equal(done.results, exact))
