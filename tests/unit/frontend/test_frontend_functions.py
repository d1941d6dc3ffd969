"""The vocabulary against independent formulas: on arrays, in programs, and expanded."""

import math
import statistics

import numpy as np
import pytest

import polygen
from polygen.errors import TraceError
from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.evaluate import evaluate
from polygen.frontend.expansion import expand
from polygen.frontend.functions import INTERNAL, PUBLIC, TABLE
from polygen.frontend.numpy_functions import UFUNCS
from polygen.frontend.signature import parse_signature

POSITIVE = {"log", "log1p", "sqrt", "rsqrt"}
BINARY = {"add", "sub", "mul", "div", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne"}

# Formulas by scalar math, written independently of the table.
SCALAR = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": lambda x: math.exp(x) / (1 + math.exp(x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "square": lambda x: x**2,
    "relu": lambda x: x if x > 0 else 0.0,
    "leaky_relu": lambda x, slope: x if x > 0 else slope * x,
    "silu": lambda x: x / (1 + math.exp(-x)),
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "minimum": min,
    "maximum": max,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_not": lambda x: not x,
    "where": lambda c, x, y: x if c else y,
    "clip": lambda x, lo, hi: min(max(x, lo), hi),
    "pow": lambda x, e: x**e,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "sign": lambda x: (x > 0) - (x < 0),
    "heaviside": lambda x, at_zero: float(x > 0) if x else at_zero,
    "reciprocal": lambda x: 1 / x,
    "expm1": math.expm1,
    "cbrt": lambda x: math.copysign(math.exp(math.log(abs(x)) / 3), x),
    "hypot": math.hypot,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "arctan2": math.atan2,
    "copysign": math.copysign,
    "logaddexp": lambda x, y: math.log(math.exp(x) + math.exp(y)),
    "isnan": math.isnan,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
    "erfc": math.erfc,
    "erfinv": lambda x: statistics.NormalDist(sigma=math.sqrt(0.5)).inv_cdf((1 + x) / 2),
    "elu": lambda x, alpha: x if x > 0 else alpha * math.expm1(x),
    "celu": lambda x, alpha: max(0, x) + min(0, alpha * math.expm1(x / alpha)),
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "logsigmoid": lambda x: -math.log1p(math.exp(-x)),
}
TENSORS = [parse_signature(text) for text in ("x:bf16[M,K]", "w:bf16[K,N]", "r:f32[M,N]")]


def test_every_function_is_there_under_its_name():
    """One line in the table is enough for ``pg.name``, and for NumPy's function of that name."""
    for name, function in PUBLIC.items():
        assert getattr(polygen, name) is function
        namesake = getattr(np, name, None)
        assert not isinstance(namesake, np.ufunc) or UFUNCS[namesake] == name
    with pytest.raises(AttributeError, match="no attribute 'gelo'"):
        polygen.gelo  # noqa: B018


def test_every_function_has_a_formula_here():
    assert set(SCALAR) == set(TABLE) - INTERNAL == set(PUBLIC)


def samples(name):
    x = np.linspace(-6.3, 6.1, 40).reshape(5, 8)
    if name in POSITIVE or name == "pow":
        x = np.abs(x) + 0.25
    if name == "erfinv":
        return (x / 6.4,)
    if name == "pow":
        return (x, 1.7)
    if name in ("leaky_relu", "elu", "celu"):
        return (x, 0.2)
    if name == "clip":
        return (x, -1.5, 2.5)
    if name == "where":
        return (x > 0.5, x, 2.0 - x)
    if name == "heaviside":
        return (np.floor(x), 0.3)
    if TABLE[name].arity[1] == 2:
        y = np.where(np.arange(40).reshape(5, 8) % 3, x[::-1], x)
        return (x > 0, y > 1) if name.startswith("logical") else (x, y)
    return (x > 0,) if name.startswith("logical") else (x,)


@pytest.mark.parametrize("name", sorted(SCALAR))
def test_reference_is_the_formula(name):
    args = samples(name)
    got = PUBLIC[name](*args)
    expected = [
        SCALAR[name](*(float(a) for a in point))
        for point in np.broadcast(*(np.asarray(a, np.float64) for a in args))
    ]
    np.testing.assert_allclose(
        np.asarray(got, np.float64).ravel(), expected, rtol=2e-14, atol=1e-15
    )


@pytest.mark.parametrize("name", sorted(set(SCALAR) - {"where", "logical_and", "logical_or"}))
def test_program_of_each_function(name):
    """w is the identity, so the function meets known numbers inside a program."""
    first, *rest = samples(name)
    scalars = [value for value in rest if isinstance(value, float)]
    arrays = [value for value in rest if isinstance(value, np.ndarray)]
    if name == "logical_not":
        function = lambda x, w, r: pg.where(pg.logical_not(x @ w > 0), r, -r)  # noqa: E731
        expected = np.where(~first, 1.0, -1.0)
        value, r = np.where(first, 1.0, -1.0), np.ones_like(first, np.float64)
    else:
        boolean = TABLE[name].result.name == "bool"
        call = PUBLIC[name]

        def function(x, w, r):
            v = x @ w
            result = call(v, *([r] if arrays else []), *scalars)
            result = pg.where(result, 1.0, 0.0) if boolean else result
            return result if arrays else result + 0.0 * r

        value, r = first, arrays[0] if arrays else np.zeros_like(first)
        expected = np.asarray(TABLE[name].reference(first, *rest), np.float64)
    program = build_program(function, name, name, TENSORS, out_dtypes="f32")
    eye = np.eye(value.shape[1])
    (got,) = evaluate(program, {"x": value, "w": eye, "r": r}, round_outputs=False)
    np.testing.assert_allclose(got, expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", sorted(n for n, f in TABLE.items() if f.definition))
def test_expand_reaches_primitives_only(name):
    """The definition run over an emitter's strings gives the same numbers as the reference."""
    args = samples(name)
    temporaries, used = [], []

    def primitive(function, *operands):
        assert TABLE[function].definition is None
        used.append(function)
        text = ", ".join(o if isinstance(o, str) else repr(float(o)) for o in operands)
        temporaries.append(f"{function}({text})")
        return f"t{len(temporaries) - 1}"

    inputs = [f"a{i}" if isinstance(a, np.ndarray) else a for i, a in enumerate(args)]
    result = expand(name, inputs, primitive)
    scope = {f"a{i}": a for i, a in enumerate(args)} | {"inf": math.inf}
    vocabulary = {key: TABLE[key].reference for key in used}
    for number, text in enumerate(temporaries):
        scope[f"t{number}"] = eval(text, vocabulary | scope)
    np.testing.assert_array_equal(scope[result], TABLE[name].reference(*args))


def test_expand_of_a_primitive_calls_it_once():
    calls = []
    assert expand("exp", ["v"], lambda *call: calls.append(call) or "t") == "t"
    assert calls == [("exp", "v")]


def test_expand_fills_defaults():
    seen = []
    expand("leaky_relu", ["v"], lambda name, *args: seen.append((name, args)) or "t")
    assert ("mul", (0.01, "v")) in seen


def test_expand_refuses_unknown_names():
    with pytest.raises(TraceError, match="gelu"):
        expand("gelo", ["x"], lambda *a: a)


def test_numbers_and_single_precision_arrays_work():
    assert pg.relu(-2.0) == 0.0
    assert pg.gelu(1.0) == pytest.approx(0.8413447460685429, rel=1e-14)
    assert pg.silu(np.ones(3, np.float32)).dtype == np.float32


def test_gelu_approximate():
    x = np.linspace(-3, 3, 7)
    assert np.array_equal(pg.gelu(x, approximate="tanh"), pg.gelu_tanh(x))
    with pytest.raises(TraceError, match="approximate='erf'"):
        pg.gelu(x, approximate="erf")


def test_extreme_values_stay_finite():
    x = np.array([-1e4, -800.0, 800.0, 1e4])
    assert np.array_equal(pg.sigmoid(x), [0.0, 0.0, 1.0, 1.0])
    assert np.array_equal(pg.softplus(x), [0.0, 0.0, 800.0, 1e4])
    assert np.array_equal(pg.mish(x), [0.0, 0.0, 800.0, 1e4])
