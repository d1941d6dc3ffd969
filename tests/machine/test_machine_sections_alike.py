"""Sections whose operands would come in two ways: all come by threads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polygen as pg

BF16 = ml_dtypes.bfloat16


def joined(x: Any, u: Any, w: Any) -> Any:
    return x @ np.concatenate([u, w]).T


def with_a_vector(x: Any, u: Any, w: Any) -> Any:
    return x @ u.T, x @ w


def of_two_inputs(x: Any, u: Any, w: Any) -> Any:
    return x @ u.T, w @ u.T


CASES = {
    "joined": (joined, ("bf16[M,K]", "bf16[17,K]", "bf16[1,K]"), ((9, 7), (17, 7), (1, 7))),
    "with a vector": (with_a_vector, ("bf16[M,K]", "bf16[17,K]", "bf16[K]"), ((9, 7), (17, 7), 7)),
    "of two inputs": (
        of_two_inputs, ("bf16[M,K]", "bf16[20,K]", "bf16[1,K]"), ((9, 7), (20, 7), (1, 7))
    ),
}  # fmt: skip


def arrays(shapes: Any) -> list[Any]:
    rng = np.random.default_rng(2)
    return [rng.integers(-3, 4, shape).astype(BF16) for shape in shapes]


def check(kernel: pg.Kernel, function: Any, given: list[Any]) -> None:
    found = kernel.emulation(*given)
    assert not found.report.findings
    wanted = function(*(one.astype(np.float32) for one in given))
    results = found.results if isinstance(wanted, tuple) else (found.results,)
    for one, other in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert np.array_equal(np.asarray(one).astype(np.float32), other)


@pytest.mark.parametrize("name", CASES)
def test_one_row_beside_rows_that_begin_anywhere(name: str) -> None:
    function, signature, shapes = CASES[name]
    program = pg.fuse(function, name="f")
    kernel = program.compile(*signature, arch="sm_90a", sizes={"M": 9, "K": 7})
    check(kernel, function, arrays(shapes))


@pytest.mark.parametrize("padded", [0, 1, 2])
def test_one_array_of_rows_that_begin_anywhere(padded: int) -> None:
    """A variant for such an array has all others come by threads, too."""
    program = pg.fuse(joined, name="f")
    signature = ("bf16[M,K]", "bf16[16,K]", "bf16[24,K]")
    kernel = program.compile(*signature, arch="sm_90a", sizes={"M": 8, "K": 24})
    given = arrays(((8, 24), (16, 24), (24, 24)))
    wide = np.zeros((given[padded].shape[0], 25), BF16)
    wide[:, :24] = given[padded]
    given[padded] = wide[:, :24]
    check(kernel, joined, given)
