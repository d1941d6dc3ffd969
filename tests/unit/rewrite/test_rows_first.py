"""Which operands with folds over their own rows a launch before the kernel makes, and which not."""

from __future__ import annotations

from typing import Any

import pytest

import polygen as pg
from polygen.decision import decision
from polygen.errors import UnsupportedProgram
from polygen.frontend.program import Program
from polygen.hardware.device import device
from polygen.poly.row_operands import row_operands, without_first
from polygen.poly.whole_rows import levels
from polygen.rewrite.programs import made_first, rewritten

X_W = ("bf16[M,K]", "bf16[N,K]")


def program(function: Any, signature: tuple[str, ...] = X_W, **options: Any) -> Program:
    return pg.fuse(function, name="rows").program(*signature, **options)


def softmax(x: Any, w: Any) -> Any:
    return pg.softmax(x).astype("bf16") @ w.T


def test_what_leaves_no_sum_is_made_first() -> None:
    given = program(softmax)
    found = rewritten(given)
    assert found.first == ("v5",) and found.statements == given.statements
    assert rewritten(found) is found and made_first(given) == found
    behind = without_first(found)
    assert [tensor.name for tensor in behind.inputs] == ["w", "v5"]
    assert [type(one).__name__ for one in behind.statements] == ["Contraction", "Pointwise"]


def test_norms_may_go_both_ways() -> None:
    given = program(
        lambda x, g, w: pg.rms_norm(x, g).astype("bf16") @ w.T, ("bf16[M,K]", "bf16[K]", X_W[1])
    )
    assert not rewritten(given).first
    found = made_first(given)
    assert found is not None and found.first == ("v7",)
    (made,) = row_operands(found).values()
    assert [one.function for one in made.after] == ["div", "add", "rsqrt"]  # once for a row
    assert all(len(one.domain) == 1 for one in made.after)
    assert made.passes == 1 and str(made.tensor) == "v7: bf16[M, K]"


@pytest.mark.parametrize("m", [4096, 8192])
def test_a_norm_whose_folds_would_slow_the_product_is_made_first(m: int) -> None:
    """Blocks have few warps, whose lanes hold the row; behind them the product is a plain one."""
    sizes = {"M": m, "N": 4096, "K": 4096}
    normed = pg.fuse(lambda x, w: pg.layer_norm(x).astype("bf16") @ w.T, name="normed")
    found = normed.program(*X_W)
    schedule, origin = decision(found, device("sm_90a"), sizes)
    assert schedule.makes_first and "are made first" in origin
    warps, words = schedule.epilogue.row_warps, schedule.epilogue.row_words
    assert warps * words * 32 * 8 == 4096 and warps <= 4
    plain = pg.fuse(lambda x, w: x @ w.T, name="plain").program(*X_W)
    if m == 4096:
        assert "measured fastest for 4096x4096x4096" in origin
        assert schedule.name == decision(plain, device("sm_90a"), sizes)[0].name


def test_levels_count_what_is_computed_of_results() -> None:
    given = program(lambda x, w: pg.layer_norm(x).astype("bf16") @ w.T)
    found = made_first(given)
    assert found is not None
    (made,) = row_operands(found).values()
    first, second = levels(made.rows, made.after)  # the mean is in what the variance folds
    assert [one.write.name for one in (*first, *second)] == ["v0", "v4"]
    assert made.passes == 2


@pytest.mark.parametrize(
    ("function", "signature", "made", "rows"),
    [
        (lambda x, w: x @ pg.softmax(w).astype("bf16").T, X_W, "bf16[N, K]", (0,)),
        (
            lambda x, w: pg.softmax(x, axis=0).astype("bf16").T @ w.T, ("bf16[K,M]", X_W[1]),
            "bf16[K, M] column-major", (1,),
        ),
        (
            lambda x, w: pg.softmax(x).astype("f16") @ w.mT, ("f16[B,M,K]", "f16[B,N,K]"),
            "f16[B, M, K]", (0, 1),
        ),
    ],
)  # fmt: skip
def test_rows_run_along_the_axis_that_is_summed(
    function: Any, signature: tuple[str, ...], made: str, rows: tuple[int, ...]
) -> None:
    (found,) = row_operands(rewritten(program(function, signature))).values()
    assert str(found.tensor).endswith(made) and found.rows.own == rows


def test_both_operands_are_made() -> None:
    found = rewritten(
        program(lambda x, w: pg.softmax(x).astype("bf16") @ pg.softmax(w).astype("bf16").T)
    )
    assert len(found.first) == len(row_operands(found)) == 2


def test_a_program_without_such_operands_is_its_own() -> None:
    given = program(lambda x, w: pg.softmax(x @ w.T))
    assert made_first(given) is None and rewritten(given) is given


def scores(x: Any, w: Any) -> Any:
    most = x.max(axis=-1, keepdims=True)
    return pg.exp(x - most).astype("bf16") @ w.T + most


REFUSED: dict[str, tuple[Any, tuple[str, ...], dict[str, Any], str]] = {
    "folds over columns": (
        lambda x, w: pg.softmax(x, axis=0).astype("bf16") @ w.T, X_W, {},
        "over another axis than the one that is summed",
    ),
    "folds over all": (
        lambda x, w: pg.exp(x - x.max()).astype("bf16") @ w.T, X_W, {},
        "over another axis than the one that is summed",
    ),
    "e4m3": (
        lambda x, w: pg.softmax(x).astype("e4m3") @ w.T, ("f16[M,K]", "e4m3[N,K]"), {},
        "v5 of e4m3, which is none of bf16, f16, f32,",
    ),
    "f64": (
        lambda x, w: pg.softmax(x) @ w.T, ("f64[M,K]", "f64[N,K]"), {}, "v5 of f64, which is none",
    ),
    "rows by index": (
        lambda x, r, w: pg.softmax(x[r]).astype("bf16") @ w.T,
        ("bf16[S,K]", "s32[T]", "bf16[N,K]"), {}, "read by index",
    ),
    "invariant sums": (softmax, X_W, {"invariant": "M"}, "rows of all sizes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_both_reasons(name: str) -> None:
    function, signature, options, message = REFUSED[name]
    with pytest.raises(UnsupportedProgram) as refused:
        rewritten(program(function, signature, **options))
    text = str(refused.value)
    assert "is not moved behind a product" in text
    assert message in text and "is not made before the kernel" in text


def test_what_else_reads_the_folds_is_named() -> None:
    with pytest.raises(UnsupportedProgram, match="which is used beside the operand"):
        rewritten(program(scores))
