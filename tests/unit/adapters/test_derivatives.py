"""Every derivative of the table against central differences of the vocabulary's own functions."""

from __future__ import annotations

import numpy as np
import pytest

from polygen.adapters.derivatives import DERIVATIVES, defined, has_rules
from polygen.frontend.functions import INTERNAL, LATER, TABLE

STEP = 1e-6
# Where all functions are smooth; the positions are away from kinks and whole numbers.
POINTS = np.array([-2.63, -1.37, -0.61, -0.22, 0.31, 0.74, 1.41, 2.83])
POSITIVE = np.abs(POINTS)
RANGES = {  # of the arguments, where not all numbers will do
    "log": [POSITIVE],
    "log1p": [POSITIVE],
    "sqrt": [POSITIVE],
    "rsqrt": [POSITIVE],
    "pow": [POSITIVE, POINTS[::-1]],
    "where": [POINTS > 0, POINTS, POINTS[::-1]],
    "logical_and": [POINTS > 0, POINTS > 1],
    "logical_or": [POINTS > 0, POINTS > 1],
    "logical_not": [POINTS > 0],
    "clip": [POINTS, np.full(8, -0.9), np.full(8, 1.1)],
    "elu": [POINTS, POSITIVE[::-1]],
    "celu": [POINTS, POSITIVE[::-1]],
}
DIFFERENTIATED = sorted(set(TABLE) - INTERNAL)


def pulled(name, gradient, arguments):
    """What reaches each argument, with arrays for values; definitions one level at a time."""
    if has_rules(name):
        result = TABLE[name].reference(*arguments)
        return [
            0.0 if rule is None else rule(gradient, result, *arguments)
            for rule in DERIVATIVES[name]
        ]
    return through_the_definition(name, gradient, arguments)


def through_the_definition(name, gradient, arguments):
    from polygen.frontend.symbolic import Symbolic

    class Recorded(Symbolic):
        """A value of the definition, with what it was computed from."""

        def __init__(self, value, function=None, args=()):
            self.value, self.function, self.args = value, function, args

        def apply(self, function, *args):
            values = [a.value if isinstance(a, Recorded) else a for a in args]
            made = Recorded(TABLE[function].reference(*values), function, args)
            order.append(made)
            return made

    order = []
    leaves = [Recorded(a) if isinstance(a, np.ndarray) else a for a in arguments]
    result = defined(name)(*leaves)
    reached = {id(result): gradient}
    for made in reversed(order):
        if id(made) not in reached:
            continue
        values = [a.value if isinstance(a, Recorded) else a for a in made.args]
        for arg, part in zip(
            made.args, pulled(made.function, reached[id(made)], values), strict=True
        ):
            if isinstance(arg, Recorded):
                reached[id(arg)] = reached.get(id(arg), 0.0) + part
    return [reached.get(id(leaf), 0.0) for leaf in leaves]


def arguments_of(name):
    count = len(TABLE[name].parameters)
    return RANGES.get(name, [POINTS, POINTS[::-1] + 0.05, POINTS / 3][:count])


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_it_is_what_central_differences_give(name):
    arguments = arguments_of(name)
    gradient = np.linspace(0.5, 1.5, len(POINTS))
    found = pulled(name, gradient, arguments)
    assert len(found) == len(TABLE[name].parameters)
    for position, argument in enumerate(arguments):
        if argument.dtype == bool:
            assert np.all(np.asarray(found[position]) == 0.0)
            continue
        shifted = [
            [a + sign * STEP if n == position else a for n, a in enumerate(arguments)]
            for sign in (1, -1)
        ]
        high, low = (np.asarray(TABLE[name].reference(*a), np.float64) for a in shifted)
        wanted = gradient * (high - low) / (2 * STEP)
        np.testing.assert_allclose(
            np.broadcast_to(found[position], wanted.shape), wanted, rtol=1e-7, atol=1e-8
        )


def test_every_function_has_rules_or_a_definition():
    for name, function in TABLE.items():
        assert has_rules(name) or function.definition is not None or name in LATER
        if has_rules(name):
            assert len(DERIVATIVES[name]) == len(function.parameters)
    assert set(DERIVATIVES) <= set(TABLE)


def test_kinks_are_pytorch_s():
    zero, g = np.zeros(1), np.ones(1)
    assert pulled("maximum", g, [zero, 0.0])[0] == 0.0, "relu"
    assert [p.item() for p in pulled("maximum", g, [zero, zero])] == [0.5, 0.5]
    assert [p.item() for p in pulled("minimum", g, [zero, zero])] == [0.5, 0.5]
    assert pulled("clip", g, [zero, 0.0, 6.0])[0] == 1.0
    assert pulled("abs", g, [zero])[0] == 0.0
    assert pulled("pow", g, [zero, 0.0])[0] == 0.0


@pytest.mark.parametrize("name", ["elu", "celu", "selu", "gelu", "gelu_tanh", "silu", "mish"])
def test_far_away_nothing_overflows(name):
    with np.errstate(all="ignore"):
        far = pulled(name, np.ones(2), [np.array([-1e4, 1e4]), 1.0][: len(TABLE[name].parameters)])
    slope = {"selu": 1.0507009873554805}.get(name, 1.0)
    np.testing.assert_allclose(far[0], [0.0, slope], atol=1e-12)
