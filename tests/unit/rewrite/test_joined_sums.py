"""Operands of chains in parts, or of several axes: one product, of the same meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polygen as pg
from polygen.chained import as_made, is_chain, matched, one_product, whole_dims
from polygen.frontend.evaluate import evaluate
from polygen.frontend.program import Program
from polygen.poly.prologue import prologues

SIZES = {"S": 5, "T": 6, "M": 4, "H": 2}
HEADS = ("bf16[S,16]", "bf16[T,16]", "bf16[T,8]")
ANGLES = ("bf16[S,8]", "bf16[S,8]")


def halves(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., :8], x[..., 8:]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def neighbours(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(x.shape)


def thirds(q: Any, k: Any, v: Any) -> Any:
    """Three parts, of which the last begin at multiples of their lengths; places that count."""
    parts = [q[:, :8] * pg.indices(q[:, :8])[1], q[:, 8:12] + 1, q[:, 12:] * 2]
    return pg.relu(np.concatenate(parts, axis=1) @ k.T) @ v


# A program, its types, its products, and the operands that are made of digits of rows.
JOINED: dict[str, tuple[Any, tuple[str, ...], int, int]] = {
    "halves": (
        lambda q, k, v, c, s: pg.relu(halves(q, c, s) @ k.T) @ v, (*HEADS, *ANGLES), 2, 1,
    ),
    "halves of both": (
        lambda q, v, c, s: pg.relu(halves(q, c, s) @ halves(q, s, c).T) @ v,
        (HEADS[0], "bf16[S,8]", *ANGLES), 2, 2,
    ),
    "neighbours": (
        lambda q, k, v, c, s: pg.relu(neighbours(q, c, s) @ k.T) @ v, (*HEADS, *ANGLES), 2, 1,
    ),
    "neighbours behind a fold": (
        lambda q, k, v, c, s: pg.relu(
            neighbours(q - q.max(axis=-1, keepdims=True), c, s) @ (k * 2).T) @ v,
        (*HEADS, *ANGLES), 2, 1,
    ),
    "halves beside what is computed alike": (
        lambda q, k, v, c, s: pg.relu(halves(q, c, s) @ (k * k + pg.indices(k)[1]).T) @ v,
        (*HEADS, *ANGLES), 2, 1,
    ),
    "three parts": (thirds, HEADS, 2, 1),
    "arrays behind one another": (
        lambda q, p, k, r, v: pg.relu(q @ k.T + p @ r.T) @ v,
        (HEADS[0], "bf16[S,8]", HEADS[1], "bf16[T,8]", HEADS[2]), 2, 2,
    ),
    "of layers": (
        lambda x, c, s, a, b, d: pg.relu(pg.relu(halves(x, c, s) @ a) @ b) @ d,
        (HEADS[0], *ANGLES, "bf16[16,16]", "bf16[16,16]", "bf16[16,8]"), 3, 1,
    ),
}  # fmt: skip


def given(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        t.name: rng.integers(-2, 3, [d if isinstance(d, int) else SIZES[d] for d in t.dims])
        for t in program.inputs
    }


@pytest.mark.parametrize("name", JOINED)
def test_one_product_means_the_same(name: str) -> None:
    function, types, products, by_rows = JOINED[name]
    program = pg.fuse(function).program(*types)
    found = one_product(program)
    assert is_chain(program) and len(found.contractions) == products
    assert len(program.contractions) > products or name.startswith("neighbours")
    assert all(len(one.summed) == 1 for one in found.contractions)
    arrays = given(program)
    (wanted,), (got,) = evaluate(program, arrays), evaluate(found, arrays)
    assert wanted.any() and np.array_equal(wanted, got)
    made = as_made(program)
    assert len(made.first) == by_rows
    assert matched(program).chain.values.outputs == program.outputs
    assert whole_dims(program) == ()


def test_what_is_computed_alike_is_not_in_parts() -> None:
    function, types, _, _ = JOINED["halves beside what is computed alike"]
    made = as_made(pg.fuse(function).program(*types))
    ((value, statements),) = prologues(made).items()
    assert value not in made.first
    assert [one.function for one in statements] == ["mul", "add", "cast"]
    assert all(str(one.write).endswith("[i,j]") for one in statements)


SAME: dict[str, tuple[Any, tuple[str, ...]]] = {
    "products of the same rows": (
        lambda x, a, b, d: pg.relu(x @ a + x @ b) @ d, (*["bf16[M,16]"], *["bf16[16,16]"] * 3),
    ),
    "no chain": (lambda q, k, c, s: halves(q, c, s) @ k.T, (*HEADS[:2], *ANGLES)),
    "a sum with a rest": (
        lambda x, w, a, b: x @ w + (x @ a) @ b,
        ("bf16[M,16]", "bf16[16,16]", "bf16[16,8]", "bf16[8,16]"),
    ),
    "parts that begin elsewhere": (
        lambda q, p, k, r, v: pg.relu(p @ r.T + q @ k.T) @ v,
        (HEADS[0], "bf16[S,8]", HEADS[1], "bf16[T,8]", HEADS[2]),
    ),
    "sums that are read besides": (
        lambda q, p, k, r, v: pg.relu((a := q @ k.T) + p @ r.T + a * a) @ v,
        (HEADS[0], HEADS[0].replace("S", "S"), HEADS[1], HEADS[1], HEADS[2]),
    ),
    "sizes without numbers": (
        lambda q, p, k, r, v: pg.relu(q @ k.T + p @ r.T) @ v,
        ("bf16[S,D]", "bf16[S,E]", "bf16[T,D]", "bf16[T,E]", HEADS[2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_others_stay_as_they_are(name: str) -> None:
    function, types = SAME[name]
    program = pg.fuse(function).program(*types)
    assert one_product(program) == program
