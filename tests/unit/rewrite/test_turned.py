"""Operands that no instruction reads as they lie: which are copied first, and how they lie then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.poly.prologue_proofs import prove_prologues
from polygen.poly.row_operands import without_first
from polygen.poly.turned import turned_operands
from polygen.rewrite.programs import rewritten
from polygen.rewrite.turned import turned


def slid(x: Any, size: Any, axis: Any, pad: int = 0) -> Any:
    axes = (axis,) if isinstance(axis, int) else axis
    if pad:
        x = np.pad(x, tuple((pad, pad) if at in axes else (0, 0) for at in range(len(x.shape))))
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=axis)


def first(x: Any, w: Any) -> Any:
    return pg.einsum("nchwrs,ocrs->nohw", slid(x, (3, 3), (2, 3)), w)


def product(x: Any, w: Any) -> Any:
    return x @ w


# Function, arrays, and of what is copied how it lies then: the order of its axes.
CASES: dict[str, tuple[Any, tuple[str, ...], dict[str, tuple[int, ...]]]] = {
    "columns of bytes": (product, ("s8[M,K]", "s8[K,N]"), {"w_turned": (1, 0)}),
    "columns and rows of bytes": (
        lambda x, w: x.T @ w, ("e4m3[K,M]", "e4m3[K,N]"), {"x_turned": (1, 0), "w_turned": (1, 0)},
    ),
    "bytes along the sum": (lambda x, w: x @ w.T, ("s8[M,K]", "s8[N,K]"), {}),
    "bytes stored by columns": (product, ("s8[M,K]", "s8[K,N]:col"), {}),
    "columns of two bytes": (product, ("bf16[M,K]", "bf16[K,N]"), {}),
    "columns of four bytes": (product, ("tf32[M,K]", "tf32[K,N]"), {}),
    "columns backwards": (
        lambda x, w: x @ w[:, ::-1], ("s8[M,K]", "s8[K,6]"), {"w_turned": (1, 0)},
    ),
    "heads of columns of bytes": (
        lambda x, w: np.max((x @ w).reshape(-1, 4, 8), axis=-1), ("s8[M,K]", "s8[K,32]"),
        {"w_turned": (1, 0)},
    ),
    "matrices of bytes": (product, ("s8[B,M,K]", "s8[B,K,N]"), {"w_turned": (0, 2, 1)}),
    "one array in both ways": (
        lambda x: (x @ x).astype("f32"), ("s8[M,M]",), {"x_turned": (1, 0)},
    ),
    "channels first": (
        first, ("bf16[B,C,7,9]", "bf16[O,C,3,3]"),
        {"x_turned": (0, 2, 3, 1), "w_turned": (0, 2, 3, 1)},
    ),
    "channels first, windows along rows alone": (
        lambda x, w: pg.einsum("nchwr,ocr->nohw", slid(x, 3, 2), w),
        ("bf16[B,C,7,9]", "bf16[O,C,3]"), {"w_turned": (0, 2, 1)},
    ),
    "channels last": (
        lambda x, w: pg.einsum("nhwcrs,orsc->nhwo", slid(x, (3, 3), (1, 2)), w),
        ("bf16[B,7,9,C]", "bf16[O,3,3,C]"), {},
    ),
    "channels last, of bytes with results innermost": (
        lambda x, w: pg.einsum("nhwcrs,rsco->nhwo", slid(x, (3, 3), (1, 2)), w),
        ("s8[B,7,9,C]", "s8[3,3,C,O]"), {"w_turned": (0, 1, 3, 2)},
    ),
    "zeros along the innermost axis": (
        lambda x, w: pg.einsum("ck,cp->pk", w, np.pad(x, ((0, 0), (1, 1)))),
        ("bf16[C,9]", "bf16[C,K]"), {"x_turned": (1, 0)},
    ),
    "channels first, in groups": (
        lambda x, w: pg.einsum(
            "ngchwrs,gocrs->ngohw", slid(x.reshape(-1, 2, 8, 7, 9), (3, 3), (3, 4)),
            w.reshape(2, 4, 8, 3, 3),
        ),
        ("bf16[B,16,7,9]", "bf16[8,8,3,3]"),
        {"x_turned": (0, 2, 3, 1), "w_turned": (0, 2, 3, 1)},
    ),
    "a chain": (
        lambda q, k, v: pg.softmax(q @ k.mT) @ v,
        ("f16[B,M,64]", "f16[B,N,64]", "f16[B,N,64]"), {},
    ),
}  # fmt: skip
SIZES = {"M": 3, "N": 4, "K": 5, "B": 2, "C": 3, "O": 2}


def program_of(name: str) -> Program:
    function, signature, _ = CASES[name]
    return pg.fuse(function, name="read").program(*signature)


@pytest.mark.parametrize("name", CASES)
def test_what_is_copied_and_how_it_lies_then(name: str) -> None:
    program = program_of(name)
    found = turned(program)
    wanted = CASES[name][-1]
    assert {name: one.order for name, one in turned_operands(found).items()} == wanted
    assert (found is program) == (not wanted)
    assert turned(found) is found
    behind = without_first(found)
    own = {tensor.name: tensor for tensor in behind.inputs}
    for value in wanted:
        assert (own[value].alignment, own[value].ragged) == (16, True)
    assert not behind.turned and turned(behind) is behind


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[-1]])
def test_copies_change_no_result_and_have_all_that_is_read(name: str) -> None:
    program = program_of(name)
    found = rewritten(program)
    assert rewritten(found) is found and any("turned" in str(s) for s in found.statements)
    rng = np.random.default_rng(0)
    sizes = {dim: SIZES[dim] for dim in program.sizes}
    arrays = {
        t.name: rng.integers(-3, 4, [sizes.get(d, d) for d in t.dims]).astype(np.float64)
        for t in program.inputs
    }
    for one, other in zip(
        evaluate(program, arrays, sizes), evaluate(found, arrays, sizes), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert len(prove_prologues(found)) == len(found.turned)


def test_a_copy_that_leaves_out_what_is_read_is_refused() -> None:
    found = rewritten(program_of("channels first"))
    copy, *others = found.statements
    domain = tuple((it, 8 if dim == 9 else dim) for it, dim in copy.domain)
    short = replace(found, statements=(replace(copy, domain=domain), *others))
    with pytest.raises(VerifyError, match="reads what P2 does not compute"):
        prove_prologues(short)


def test_folds_of_what_is_copied_read_the_copy() -> None:
    """Sums of columns, as of numbers with a zero point, are made beside the product."""
    function = pg.fuse(
        lambda x, w: (x @ w).astype("f32") - 3 * pg.sum(w.astype("f32"), axis=0), name="read"
    )
    found = rewritten(function.program("s8[M,K]", "s8[K,N]"))
    assert [t.name for t in without_first(found).inputs] == ["x", "w_turned"]


def test_an_array_that_is_only_copied_may_begin_anywhere() -> None:
    found = rewritten(program_of("columns of bytes"))
    assert [(t.name, t.alignment) for t in found.inputs] == [("x", 16), ("w", 1)]
    beside = pg.fuse(lambda x: (x @ x).astype("f32") + x.astype("f32"), name="read")
    assert rewritten(beside.program("s8[M,M]")).inputs[0].alignment == 16


def test_a_copy_has_a_name_of_its_own() -> None:
    function = pg.fuse(lambda w, w_turned: w_turned @ w, name="read")
    found = rewritten(function.program("s8[K,N]", "s8[M,K]"))
    assert [value for value, _ in found.turned] == ["w_turned_"]


@pytest.mark.parametrize(
    ("function", "signature", "words"),
    [
        (first, ("f64[B,C,7,9]", "f64[O,C,3,3]"), "slide, or zeros lie, along the innermost axis"),
        (
            lambda x, w: pg.einsum("pr,kr->pk", slid(x, 3, 0), w), ("f16[9]", "f16[O,3]"),
            "Give the windows channels",
        ),
    ],
)  # fmt: skip
def test_what_no_copy_helps_is_refused_as_before(
    function: Any, signature: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UnsupportedProgram, match=words):
        pg.fuse(function, name="refused").compile(*signature, arch="sm_80")
