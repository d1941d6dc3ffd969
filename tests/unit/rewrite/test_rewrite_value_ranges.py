"""Intervals of values, whatever arrays hold: random expressions lie in theirs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.program import Access
from polygen.rewrite.value_ranges import ANY, Range, range_of
from polygen.rewrite.values import Values


def _of(function) -> tuple[Range, Values, str]:
    """The range of what a pointwise function of a matrix returns, before it is rounded."""
    program = pg.fuse(lambda x, w: function(x @ w).astype("f32")).program("f32[M,8]", "f32[8,N]")
    (output,) = program.outputs
    values = Values(program.statements)
    return range_of(values, Access(output.name, ())), values, output.name


@pytest.mark.parametrize(
    ("function", "low", "high", "alone"),
    [
        (lambda s: pg.tanh(s / 30) * 30, -30, 30, ()),
        (lambda s: 2 - pg.sigmoid(s) * 4, -2, 2, ()),
        (lambda s: pg.exp(pg.tanh(s) - 1), math.exp(-2), 1, ()),
        (lambda s: pg.clip(s, -3, 5) - pg.cos(s), -4, 6, ()),
        (lambda s: pg.minimum(pg.maximum(s, 2), 7) / -2, -3.5, -1, ()),
        (lambda s: pg.where(s > 1, pg.tanh(s), -math.inf), -1, 1, (-math.inf,)),
        (lambda s: pg.exp(pg.where(s > 1, pg.tanh(s), -math.inf)), 1 / math.e, math.e, (0.0,)),
        (lambda s: pg.tanh(pg.where(s > 1, s, -math.inf)) + 1, 0, 2, ()),
        (lambda s: pg.where(s > 1, pg.sin(s) + 5, 0.0), 4, 6, (0.0,)),
        (lambda s: pg.where(s > 1, pg.sin(s), 3.0), -1, 3, ()),
    ],
)
def test_ranges(function, low: float, high: float, alone: tuple[float, ...]) -> None:
    found, _, _ = _of(function)
    assert math.isclose(found.low, low) and math.isclose(found.high, high)
    assert found.alone == frozenset(alone) and found.bounded


@pytest.mark.parametrize(
    "function",
    [
        lambda s: s * 2,
        lambda s: pg.tanh(s) * s,
        lambda s: pg.tanh(s) / 0.0,
        lambda s: pg.maximum(s, 0.0),
        lambda s: pg.where(s > 0, s, 1.0),
        lambda s: pg.floor(pg.tanh(s)),
    ],
)
def test_what_has_no_bound(function) -> None:
    assert not _of(function)[0].bounded


def test_a_missing_writer_may_have_any_value() -> None:
    assert range_of(Values(()), Access("x", ())) == ANY


def _random(choose: random.Random, value, depth: int):
    """An expression of a value."""
    number = choose.choice((-2.5, -1.0, 0.5, 3.0))
    made = choose.choice(
        [
            lambda: pg.tanh(value), lambda: pg.sigmoid(value), lambda: pg.sin(value),
            lambda: value * number, lambda: number - value, lambda: value + number,
            lambda: value / number, lambda: -value, lambda: pg.clip(value, -1.0, 2.0),
            lambda: pg.exp(pg.minimum(value, 2.0)), lambda: pg.where(value > 0, value, number),
            lambda: pg.where(value > 0.5, value, -math.inf), lambda: pg.erf(value),
        ]
    )()  # fmt: skip
    return made if depth == 0 else _random(choose, made, depth - 1)


@pytest.mark.parametrize("seed", range(40))
def test_values_lie_in_their_ranges(seed: int) -> None:
    try:
        found, values, name = _of(lambda s: _random(random.Random(seed), s, 4))
    except pg.PolygenError:  # nothing of the matrix is left in it
        return
    inputs = sorted(values.behind(name) - set(values.writers))
    (total,) = (s.write.name for s in values.statements if s.write.name not in inputs and
                type(s).__name__ == "Contraction")  # fmt: skip
    for x in (*np.linspace(-40, 40, 161), 0.0):
        at = values.number(name, {total: float(x)}, {})
        slack = 1e-12 * max(1.0, abs(at)) if math.isfinite(at) else 0.0
        inside = found.low - slack <= at <= found.high + slack
        assert math.isnan(at) or inside or at in found.alone, (x, at, found)
