"""What help() says of a pointwise function: formula, domain, types, error."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import polygen as pg
from polygen import vocabulary
from polygen.emit.function_errors import recorded_error
from polygen.errors import TraceError
from polygen.frontend.dtypes import BOOL
from polygen.frontend.functions import TABLE, Function
from polygen.frontend.parse import parse_expression

CONSTANTS = ("e", "inf", "nan", "pi")
NAMES = [name for name in pg.__all__ if name not in {*pg._HOMES, "random", *CONSTANTS}]
NUMPY = {name: getattr(np, name) for name in ("where", "minimum", "maximum", "tanh", "exp")}


def facts(name):
    lines = inspect.getdoc(getattr(pg, name)).splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line and line[0].isupper())


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_numpys(name):
    assert np.array_equal(getattr(pg, name), getattr(np, name), equal_nan=True)
    read = parse_expression(f"where(x > 0, x, -pg.{name})", ["x"])
    expected = [1, -getattr(np, name)]
    assert np.array_equal(read(np.array([1.0, -1.0])), expected, equal_nan=True)
    with pytest.raises(TraceError, match=f"Did you mean pg.{name}"):
        parse_expression(f"x + {name}", ["x"])


@pytest.mark.parametrize("name", NAMES)
def test_every_function_says_what_it_is(name):
    found = facts(name)
    assert found["Formula"].endswith(".") and "f32" in found["Types"]
    entry = TABLE[getattr(pg, name).__name__]
    assert ("Error" in found) is (entry.result != BOOL)
    assert ("Domain" in found) is (entry.arity[0] == 1 and entry.result != BOOL)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("silu", "x * sigmoid(x)"),
        ("clip", "minimum(maximum(x, lo), hi)"),
        ("leaky_relu", "where(x > 0, x, slope * x)"),
        ("hardswish", "x * (clip(x + 3, 0, 6) * 0.1666667)"),
        ("sigmoid", "1 / (1 + exp(-x))"),
        ("tanh", "tanh(x)"),
    ],
)
def test_a_formula_is_the_definition(name, formula):
    assert facts(name)["Formula"] == f"{formula}."


@pytest.mark.parametrize("name", [n for n, f in TABLE.items() if f.definition is not None])
def test_a_formula_computes_what_the_function_does(name):
    entry = TABLE[name]
    rng = np.random.default_rng(3)
    given = [rng.uniform(0.1, 3, 100) for _ in range(entry.arity[1])]
    names = {n: f.reference for n, f in TABLE.items()} | NUMPY | {"inf": np.inf}
    values = dict(zip(entry.parameters, given, strict=True))
    found = eval(vocabulary.formula(entry), {"__builtins__": {}} | names, values)
    assert np.allclose(found, entry.reference(*given), rtol=1e-5)


def function(reference):
    return Function("f", (1, 1), reference, None, ("x",))


@pytest.mark.parametrize(
    ("reference", "domain"),
    [
        (np.log, "x >= 0"),
        (np.log1p, "x >= -1"),
        (np.sqrt, "x >= 0"),
        (np.arctan, "every number"),
        (np.sin, "every number but -inf and inf"),
        (np.arcsin, "x >= -1 and x <= 1"),
        (np.arccosh, "x >= 1"),
        (lambda x: np.sqrt(2.5 - x), "x <= 2.5"),
        (lambda x: np.where(x < 0, x, np.nan), "x < 0"),
    ],
)
def test_a_domain_is_where_the_reference_is_a_number(reference, domain):
    assert vocabulary.domain(function(reference)) == domain


@pytest.mark.parametrize("name", ["exp", "tanh", "gelu", "mish", "silu", "hypot", "log"])
def test_an_error_is_the_recorded_one(name):
    accurate, fast = facts(name)["Error"].split("; for outputs of 16 bits or fewer ")
    for said, error in ((accurate, recorded_error(name, None, False)),
                        (fast, recorded_error(name, None, True))):  # fmt: skip
        terms = said.split("at most ")[1].split(",")[0].rstrip(".").replace("|f|", "* 1")
        assert sum(map(eval, terms.replace("^", "**").split(" + "))) == pytest.approx(sum(error))


@pytest.mark.parametrize("name", ["relu", "square", "abs", "where", "maximum"])
def test_a_function_that_only_rounds_says_so(name):
    assert facts(name)["Error"] == "that of rounding to f32."


def test_a_division_has_the_error_of_its_forms():
    absolute, relative = recorded_error("div", None, True)
    assert (absolute, relative) == (2.0**-126, 2.0**-21)
    assert facts("reciprocal")["Error"] == (
        "that of rounding to f32; for outputs of 16 bits or fewer at most 2^-21 |f| + 2^-126, "
        "then rounded."
    )


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 2.0, 3.0, 4.0, 7.0, 8.0, 2.5, 31.0, 100.0])
@pytest.mark.parametrize("fast", [False, True])
def test_a_power_is_as_good_as_said_with_every_exponent(exponent, fast):
    limits = vocabulary._recorded(TABLE["pow"], fast)
    assert all(map(float.__le__, recorded_error("pow", exponent, fast), limits))
