"""Exponentials of differences as powers of two: the same function, one product-and-sum."""

from __future__ import annotations

import math

import numpy as np

from polygen.emit.exponentials import (
    become_exponents,
    by_powers_of_two,
    tangent_of,
    with_factors_met,
    with_scaled_tangents,
    with_short_tangents,
    within_limits,
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


def test_tangents_of_scores_have_forms_with_an_absolute_bound() -> None:
    given = _made(
        ("a", "mul", "x", 0.5), ("b", "div", "a", 5.0), ("t", "tanh", "b"), ("s", "mul", "t", 30.0)
    )
    found = with_short_tangents(with_factors_met(given, ("s",)), "x", ("s",))
    assert [one.function for one in found] == ["tanh_of_score", "mul"]
    assert found[0].args == ("x", 0.1) and tangent_of(found, "x") == 0.1
    small = within_limits(found)
    assert [one.function for one in small] == ["tanh_within", "mul"]
    for x in (-50.0, -0.3, 0.0, 2.0):
        wanted = _value(given, {"x": x}, "s")
        for made in (found, small):
            assert math.isclose(_value(made, {"x": x}, "s"), wanted, rel_tol=1e-14, abs_tol=1e-14)


def test_tangents_of_sums_take_powers_of_two() -> None:
    """Which of them are small does not follow from the scores."""
    given = _made(("a", "add", "x", 0.1), ("t", "tanh", "a"), ("s", "mul", "t", 30.0))
    found = with_short_tangents(given, "x", ("s",))
    assert [one.function for one in found] == ["add", "mul", "tanh_of_power", "mul"]
    assert tangent_of(found, "x") is None and within_limits(found) == found
    for x in (-50.0, -0.3, 0.0, 2.0):
        wanted = _value(given, {"x": x}, "s")
        assert math.isclose(_value(found, {"x": x}, "s"), wanted, rel_tol=1e-14, abs_tol=1e-14)


def test_scales_whose_powers_f32_does_not_hold_take_powers_of_two() -> None:
    given = _made(("a", "mul", "x", 1e-7), ("t", "tanh", "a"))
    found = with_short_tangents(given, "x", ("t",))
    assert [one.function for one in found] == ["mul", "mul", "tanh_of_power"]


def test_a_product_that_others_read_stays_in_front_of_its_tangent() -> None:
    given = _made(("a", "mul", "x", 0.1), ("t", "tanh", "a"), ("s", "add", "t", "a"))
    found = with_short_tangents(given, "x", ("s",))
    assert [one.function for one in found] == ["mul", "mul", "tanh_of_power", "add"]


def test_tangents_of_another_use_stay() -> None:
    """Where they are multiplied by each other, or chosen by, small ones have to be precise."""
    for last in (("s", "mul", "t", "t"), ("s", "div", 1.0, "t"), ("s", "where", "t", "x", 0.0)):
        given = _made(("t", "tanh", "x"), last)
        assert with_short_tangents(given, "x", ("s",)) == given


def test_what_becomes_an_exponent() -> None:
    weights = (("d", "sub", "x", "m"), ("c", "mul", "d", 2.0), ("e", "exp", "c"))
    assert become_exponents(_made(*weights), "x", ("e",))
    assert not become_exponents(_made(*weights), "x", ("e", "c"))
    assert not become_exponents(_made(*weights, ("g", "mul", "e", "x")), "x", ("g",))
    assert not become_exponents(_made(("e", "sigmoid", "x")), "x", ("e",))


_WEIGHT = (
    ("t", "tanh_of_score", "x", 0.1), ("s", "mul", "t", 30.0), ("c", "cast", "s"),
    ("d", "sub", "c", 30.0), ("e", "exp2", "d"),
)  # fmt: skip


def test_products_and_sums_with_numbers_are_part_of_the_tangent() -> None:
    given = _made(*_WEIGHT)
    found = with_scaled_tangents(given)
    assert [one.function for one in found] == ["scaled_tanh", "exp2"]
    assert found[0].args == ("x", 0.1, 30.0, -30.0) and tangent_of(found, "x") == 0.1
    small = within_limits(found)
    assert [one.function for one in small] == ["scaled_tanh_within", "exp2"]
    for x in (-50.0, -0.3, 0.0, 2.0):
        wanted = _value(_made(*_WEIGHT[:2], *_WEIGHT[3:], ("d", "sub", "s", 30.0),
                              ("e", "exp2", "d")), {"x": x, "c": 0.0}, "e")  # fmt: skip
        assert math.isclose(_value(found, {"x": x}, "e"), wanted, rel_tol=1e-12)


def test_a_mask_stays_behind_the_tangent() -> None:
    given = _made(
        ("t", "tanh_of_score", "x", 0.1), ("w", "where", "seen", "t", -math.inf),
        ("s", "mul", "w", 30.0), ("d", "add", -30.0, "s"), ("e", "exp2", "d"),
    )  # fmt: skip
    found = with_scaled_tangents(given)
    assert [one.function for one in found] == ["scaled_tanh", "where", "exp2"]
    for seen in (0.0, 1.0):
        known = {"x": 0.7, "seen": seen}
        wanted = _value(given, known, "e")
        assert math.isclose(_value(found, known, "e"), wanted, rel_tol=1e-14)


def test_what_others_read_of_a_tangent_stays() -> None:
    for more in (
        (("s", "mul", "t", 30.0), ("e", "exp2", "s")),  # a product alone
        (("s", "mul", "t", 30.0), ("d", "sub", "s", 30.0), ("e", "add", "d", "s")),
        (("d", "sub", "t", "y"), ("e", "exp2", "d")),
        (("w", "where", "c", "t", -math.inf), ("s", "mul", "w", -2.0), ("e", "add", "s", 1.0)),
        (("d", "add", "t", "t"), ("e", "add", "d", 1.0)),
    ):
        given = _made(("t", "tanh_of_score", "x", 0.1), *more)
        found = with_scaled_tangents(given)
        assert found[-1] == given[-1]
        known = {"x": 0.7, "y": 0.2, "c": 1.0}
        assert _value(found, known, "e") == _value(given, known, "e")
