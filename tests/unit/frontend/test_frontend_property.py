"""Random expressions: the interpreted program equals the function run by NumPy in float64."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.signature import parse_signature

SIZES = {"M": 3, "N": 4, "K": 5}
SIGNATURES = {
    "x": "bf16[M,K]",
    "w": "bf16[K,N]",
    "u": "bf16[N,K]",
    "b": "f32[N]",
    "c": "f32[M,1]",
    "r": "bf16[M,N]",
    "t": "f16[N,M]",
    "s": "f32",
}
UNARY = {
    "neg": lambda v: -v,
    "abs": abs,
    "1 -": lambda v: 1 - v,
    "2 /": lambda v: 2 / (abs(v) + 1),
    "np.abs": np.abs,
    "relu": pg.relu,
    "gelu": pg.gelu,
    "gelu_tanh": pg.gelu_tanh,
    "silu": pg.silu,
    "mish": pg.mish,
    "hardswish": pg.hardswish,
    "leaky_relu": pg.leaky_relu,
    "tanh": np.tanh,
    "erf": pg.erf,
    "sigmoid": pg.sigmoid,
    "softplus": pg.softplus,
    "exp": lambda v: np.exp(-abs(v)),
    "log": lambda v: np.log1p(np.square(v)),
    "root": lambda v: np.sqrt(abs(v)),
    "sin": np.sin,
    "tan": lambda v: np.tan(np.cos(v)),
    "expm1": lambda v: np.expm1(-abs(v)),
    "cbrt": np.cbrt,
    "erfc": pg.erfc,
    "erfinv": lambda v: pg.erfinv(np.tanh(v)),
    "round": lambda v: np.round(v) + np.floor(v) - np.ceil(v) * np.trunc(v),
    "sign": np.sign,
    "reciprocal": lambda v: np.reciprocal(1 + v * v),
    "elu": lambda v: pg.elu(v) + pg.selu(v) - pg.celu(v, 2.0),
    "softsign": lambda v: pg.softsign(v) + pg.logsigmoid(v),
    "power": lambda v: (abs(v) + 1) ** -1.5,
    "clip": lambda v: np.clip(v, -2, 3),
    "bf16": lambda v: v.astype("bf16"),
    "f16": lambda v: np.clip(v, -9, 9).astype(np.float16),
    "e4m3": lambda v: v.astype("e4m3"),
    "s8": lambda v: v.astype("s8"),
}
BINARY = {
    "+": lambda v, o: v + o,
    "-": lambda v, o: v - o,
    "*": lambda v, o: v * o,
    "/": lambda v, o: v / (abs(o) + 1),
    "max": np.maximum,
    "hypot": np.hypot,
    "arctan2": np.arctan2,
    "heaviside": np.heaviside,
    "**": lambda v, o: (abs(v) + 1) ** np.tanh(o),
    "min": np.minimum,
    "where": lambda v, o: pg.where(v > o, v, o),
    "np.where": lambda v, o: np.where((v <= o) | (o != 0), v * 2, o),
    "bool": lambda v, o: (v >= o) * o,
}
LEAVES = ["S0", "S1", "S0t", "b", "c", "r", "t", "s", "b column", "1.5"]


def leaf(name, arrays):
    x, w, u = arrays["x"], arrays["w"], arrays["u"]
    return {
        "S0": lambda: x @ w,
        "S1": lambda: x @ u.T,
        "S0t": lambda: (w.T @ x.T).T,
        "t": lambda: arrays["t"].T,
        "b column": lambda: arrays["b"][:, None].T,
        "1.5": lambda: arrays["s"] * 0 + 1.5,
    }.get(name, lambda: arrays[name])()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("leaf"), st.sampled_from(LEAVES)),
        st.tuples(st.just("unary"), st.sampled_from(sorted(UNARY)), st.integers(0, 99)),
        st.tuples(
            st.just("binary"),
            st.sampled_from(sorted(BINARY)),
            st.integers(0, 99),
            st.integers(0, 99),
        ),
    ),
    min_size=4,
    max_size=14,
)


def make(program_steps, transposed):
    """A function of all arguments: a stack machine in which any earlier value may be used again."""

    def function(x, w, u, b, c, r, t, s):
        arrays = {"x": x, "w": w, "u": u, "b": b, "c": c, "r": r, "t": t, "s": s}
        values = [x @ w]
        for kind, name, *operands in program_steps:
            chosen = [values[index % len(values)] for index in operands]
            if kind == "leaf":
                values.append(leaf(name, arrays))
            else:
                values.append((UNARY if kind == "unary" else BINARY)[name](*chosen))
        everything = x @ u.T * b + c + r * t.T - s  # no argument is left unused
        first = values[-1] + x @ w
        return (first.T if transposed else first), everything

    return function


@settings(max_examples=120)
@given(steps, st.booleans(), st.integers(0, 2**32 - 1))
def test_program_equals_function(program_steps, transposed, seed):
    function = make(program_steps, transposed)
    tensors = [parse_signature(f"{name}:{text}") for name, text in SIGNATURES.items()]
    program = build_program(function, "k", "", tensors)
    rng = np.random.default_rng(seed)
    arrays = {
        t.name: rng.integers(-3, 4, [SIZES.get(d, d) for d in t.dims]).astype(float)
        for t in program.inputs
    }
    with np.errstate(all="ignore"):
        expected = reference(function, list(arrays.values()))
    got = evaluate(program, arrays, round_outputs=False)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(steps)
def test_values_are_defined_before_they_are_read_and_written_once(program_steps):
    tensors = [parse_signature(f"{name}:{text}") for name, text in SIGNATURES.items()]
    program = build_program(make(program_steps, False), "k", "", tensors)
    defined = [t.name for t in program.inputs]
    for statement in program.statements:
        assert all(access.name in defined for access in statement.reads)
        assert statement.write.name not in defined
        defined.append(statement.write.name)
        extents = dict(statement.domain)
        for access in statement.reads:
            tensor = program.tensors.get(access.name)
            for index, dim in zip(access.index, tensor.dims if tensor else (), strict=bool(tensor)):
                assert dim == (extents[index] if isinstance(index, str) else 1)
    bodies = [(s.domain, s.function, s.args, s.dtype) for s in program.pointwise]
    values = [b for b, s in zip(bodies, program.pointwise, strict=True) if s.write.name[0] == "v"]
    assert len(set(values)) == len(values), "an expression is computed twice"
