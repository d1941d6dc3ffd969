"""Exponentials of differences as powers of two: the same function, one product-and-sum."""

from __future__ import annotations

import math

import numpy as np

from polygen.emit.exponentials import (
    become_exponents,
    by_powers_of_two,
    with_factors_met,
    with_short_tangents,
)
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


def test_products_by_numbers_are_one() -> None:
    given = _made(("a", "mul", "x", 0.088), ("b", "div", "a", 30.0), ("c", "mul", 2.0, "b"))
    (found,) = with_factors_met(given, ("c",))
    assert (found.result, found.function, found.args[0]) == ("c", "mul", "x")
    assert math.isclose(_value([found], {"x": 7.0}, "c"), _value(given, {"x": 7.0}, "c"))


def test_products_that_others_read_or_that_f32_does_not_hold_stay() -> None:
    given = _made(("a", "mul", "x", 0.5), ("b", "mul", "a", 3.0))
    assert with_factors_met(given, ("a", "b")) == given
    for number in (1e-30, 0.0):
        given = _made(("a", "mul", "x", 1e-30), ("b", "mul", "a", number))
        assert with_factors_met(given, ("b",)) == given
    given = _made(("a", "mul", "x", "y"), ("b", "mul", "a", 3.0))
    assert with_factors_met(given, ("b",)) == given


def test_tangents_that_become_exponents_take_powers_of_two() -> None:
    given = _made(("a", "mul", "x", 0.1), ("t", "tanh", "a"), ("s", "mul", "t", 30.0))
    found = with_factors_met(with_short_tangents(given, "s"), ("s",))
    assert [one.function for one in found] == ["mul", "tanh_of_power", "mul"]
    for x in (-50.0, -0.3, 0.0, 2.0):
        wanted = _value(given, {"x": x}, "s")
        assert math.isclose(_value(found, {"x": x}, "s"), wanted, rel_tol=1e-14, abs_tol=1e-14)


def test_tangents_of_another_use_stay() -> None:
    """Where they are multiplied by each other, or chosen by, small ones have to be precise."""
    for last in (("s", "mul", "t", "t"), ("s", "div", 1.0, "t"), ("s", "where", "t", "x", 0.0)):
        given = _made(("t", "tanh", "x"), last)
        assert with_short_tangents(given, "s") == given


def test_what_becomes_an_exponent() -> None:
    weights = (("d", "sub", "x", "m"), ("c", "mul", "d", 2.0), ("e", "exp", "c"))
    assert become_exponents(_made(*weights), "x", ("e",))
    assert not become_exponents(_made(*weights), "x", ("e", "c"))
    assert not become_exponents(_made(*weights, ("g", "mul", "e", "x")), "x", ("g",))
    assert not become_exponents(_made(("e", "sigmoid", "x")), "x", ("e",))
