"""Where graphs and operators are cut: before operands that a launch makes by rows."""

from __future__ import annotations

from typing import Any

import pytest

import polygen as pg
from polygen.adapters.legality import refusal


@pytest.mark.parametrize(
    ("function", "legal"),
    [
        (lambda x, w: pg.rms_norm(x).astype("bf16") @ w.T, True),
        (lambda x, w: pg.silu(x) @ w.T, True),
        (lambda x, w: pg.softmax(x).astype("bf16") @ w.T, False),
    ],
)
def test_operands_with_folds_over_their_rows_are_computed_beside(
    function: Any, legal: bool
) -> None:
    found = refusal(pg.fuse(function).program("bf16[M,K]", "bf16[N,K]"))
    assert (found is None) == legal
    assert legal or "v5: an operand with folds over its own rows" in str(found)
