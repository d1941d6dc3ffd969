"""Exponentials of differences as powers of two: the same function, one product-and-sum."""

from __future__ import annotations

import math

import numpy as np

from polygen.emit.exponentials import by_powers_of_two
from polygen.frontend.dtypes import F32
from polygen.frontend.functions import TABLE
from polygen.poly.pointwise import Compute


def _value(statements, known: dict[str, float], result: str) -> float:
    values = dict(known)
    for one in statements:
        args = [values[a] if isinstance(a, str) else a for a in one.args]
        values[one.result] = float(TABLE[one.function].reference(*map(np.float64, args)))
    return values[result]


def _made(*rows: tuple) -> tuple[Compute, ...]:
    return tuple(Compute(r[0], r[1], tuple(r[2:]), F32) for r in rows)


def test_the_factors_of_both_sides_meet_that_of_the_base() -> None:
    given = _made(
        ("a", "mul", "x", 0.125), ("b", "mul", "m", 0.125), ("d", "sub", "a", "b"),
        ("e", "exp", "d"),
    )  # fmt: skip
    found = by_powers_of_two(given)
    assert [s.function for s in found] == ["mul", "mul", "sub", "exp2"]
    assert found[0].args == ("x", 0.125 / math.log(2.0))
    known = {"x": 3.0, "m": 5.5}
    assert math.isclose(_value(found, known, "e"), _value(given, known, "e"), rel_tol=1e-14)


def test_what_others_read_stays() -> None:
    given = _made(
        ("a", "mul", "x", 0.125), ("d", "sub", "a", "m"), ("e", "exp", "d"), ("f", "add", "a", "d")
    )
    assert by_powers_of_two(given) == given
    given = _made(("a", "mul", "x", 2.0), ("d", "sub", "a", "m"), ("e", "exp", "d"),
                  ("f", "add", "a", "e"))  # fmt: skip
    found = by_powers_of_two(given)
    assert "a" in {s.result for s in found}
    known = {"x": 0.3, "m": 0.7}
    assert math.isclose(_value(found, known, "f"), _value(given, known, "f"), rel_tol=1e-14)
