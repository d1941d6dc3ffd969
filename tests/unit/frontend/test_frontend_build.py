"""Array code to Program: statements, indices, dtypes, and what is one and the same program."""

import math

import numpy as np
import pytest

from polygen.frontend import functions as pg
from polygen.frontend.build import build_program
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.signature import parse_signature

ARRAYS = {
    "x": "bf16[M,K]",
    "w": "bf16[K,N]",
    "wt": "bf16[N,K]",
    "u": "bf16[K,N]",
    "b": "f32[N]",
    "c": "f32[M]",
    "r": "bf16[M,N]",
    "rt": "bf16[N,M]",
    "row": "f32[1,N]",
    "column": "f32[M,1]",
    "one": "f32[1,1]",
    "s": "f32",
}
SIZES = {"M": 5, "N": 6, "K": 4, "1": 1}


def tensors(function, **override):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [parse_signature(f"{n}:{override.get(n, ARRAYS[n])}") for n in names]


def build(function, out_dtypes=None, acc_dtype="f32", **override):
    return build_program(
        function, "kernel", "", tensors(function, **override), out_dtypes, acc_dtype
    )


def numbers(program, seed=0):
    """Small integers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: [SIZES[str(d)] for d in t.dims] for t in program.inputs}
    return {n: rng.integers(-4, 5, shape).astype(np.float64) for n, shape in shapes.items()}


def same(function, **keywords):
    """The interpreted program equals the function run by NumPy, exactly."""
    program = build(function, **keywords)
    arrays = numbers(program)
    got = evaluate(program, arrays, round_outputs=False)
    expected = reference(function, list(arrays.values()))
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return program


def test_the_statements_of_a_linear_layer():
    program = build(lambda x, wt, b: pg.gelu(x @ wt.T + b))
    assert [f"{s.name} {s}" for s in program.statements] == [
        "S0 v0[i,j] += x[i,k] * wt[j,k]",
        "P1 v1[i,j] = add(v0[i,j], b[j])",
        "P2 v2[i,j] = gelu(v1[i,j])",
        "P3 y0[i,j] = cast(v2[i,j])",
    ]
    contraction, *pointwise = program.statements
    assert contraction.domain == (("i", "M"), ("j", "N"), ("k", "K"))
    assert {s.domain for s in pointwise} == {(("i", "M"), ("j", "N"))}
    assert [s.dtype.name for s in program.statements] == ["f32", "f32", "f32", "bf16"]
    assert str(program.outputs[0]) == "y0: bf16[M, N]"
    assert program.outputs[0].order == (0, 1) and program.outputs[0].alignment == 16
    assert program.sizes == ("M", "K", "N")


SPELLINGS = [
    (lambda x, w, b: pg.relu(x @ w + b), lambda x, w, b: np.maximum(x @ w + b, 0)),
    (lambda x, w, b: pg.relu(x @ w + b), lambda x, w, b: np.maximum(0.0, np.matmul(x, w) + b)),
    (lambda x, w: abs(x @ w), lambda x, w: np.abs(np.dot(x, w))),
    (lambda x, w: (x @ w) ** 2, lambda x, w: np.square(x @ w)),
    (lambda x, w: (x @ w) ** 0.5, lambda x, w: np.sqrt(x @ w)),
    (lambda x, w: 1 / np.sqrt(x @ w), lambda x, w: np.sqrt(x.dot(w)) ** -1),
    (lambda x, w: (x @ w) ** -0.5, lambda x, w: np.float_power(x @ w, -0.5)),
    (lambda x, w, b: (x @ w) ** b, lambda x, w, b: pg.power(x @ w, b)),
    (lambda x, w: (x @ w) ** -1, lambda x, w: np.reciprocal(x @ w)),
    (lambda x, w: (x @ w) ** 3, lambda x, w: np.power(x @ w, 3.0)),
    (lambda x, w: 2 ** (x @ w), lambda x, w: np.exp2(x @ w)),
    (lambda x, w: 2 * (x @ w), lambda x, w: np.multiply(x @ w, np.float32(2))),
    (lambda x, w: -(x @ w), lambda x, w: np.negative(+(x @ w))),
    (lambda x, w: pg.sin(x @ w), lambda x, w: np.sin(x @ w)),
    (lambda x, w: pg.arctan2(x @ w, 2), lambda x, w: np.arctan2(x @ w, 2)),
    (lambda x, w: pg.round_half_even(x @ w), lambda x, w: np.round(x @ w)),
    (lambda x, w: pg.round_half_even(x @ w), lambda x, w: np.rint(x @ w)),
    (lambda x, w: pg.trunc(x @ w), lambda x, w: np.fix(x @ w)),
    (lambda x, w: pg.reciprocal(x @ w), lambda x, w: 1 / (x @ w)),
    (lambda x, w: pg.absolute(x @ w), lambda x, w: np.fabs(x @ w)),
    (lambda x, w: x @ w + math.nan, lambda x, w: x @ w + np.float32("nan")),
    (lambda x, w: pg.clip(x @ w, -1, 1), lambda x, w: np.clip(x @ w, -1, 1)),
    (lambda x, w: np.clip(x @ w, None, 6), lambda x, w: np.minimum(x @ w, 6)),
    (lambda x, w: np.clip(x @ w, 0, None), lambda x, w: (x @ w).clip(0)),
    (
        lambda x, w, b: np.where(b > 0, x @ w, 1),
        lambda x, w, b: pg.where(np.greater(b, 0), x @ w, 1),
    ),
    (lambda x, wt: x @ wt.T, lambda x, wt: np.matmul(x, np.transpose(wt))),
    (lambda x, wt: x @ wt.T, lambda x, wt: x @ wt.T.T.transpose(1, 0)),
    (lambda x, w, c: x @ w + c[:, None], lambda x, w, c: x @ w + c.reshape(-1, 1)),
    (lambda x, w: 1 + (x @ w), lambda x, w: x @ w + 1),
    (lambda x, w, b: x @ w + b, lambda x, w, b: x @ w + np.reshape(b, (1, -1))[:, :]),
    (lambda x, w, b: x @ w + b, lambda x, w, b: x @ w + b[None]),
    (lambda x, w, b: x @ w + b, lambda x, w, b: x @ w + b[None, ...]),
    (lambda x, w: pg.leaky_relu(x @ w), lambda x, w: pg.leaky_relu(x @ w, slope=0.01)),
    (lambda x, w: np.true_divide(x @ w, 3), lambda x, w: (x @ w) / 3),
    (lambda x, w: np.absolute(x @ w) - 1, lambda x, w: np.subtract(abs(x @ w), 1)),
    (lambda x, w: (x @ w) * (x @ w), lambda x, w: (lambda v: v * v)(x @ w)),
]


@pytest.mark.parametrize(("first", "second"), SPELLINGS)
def test_spellings_give_equal_programs(first, second):
    assert build(first) == build(second)


def test_negative_zero_is_not_zero():
    program = build(lambda x, w: (np.maximum(x @ w, 0.0), np.maximum(x @ w, -0.0)))
    assert len([s for s in program.pointwise if s.function == "maximum"]) == 2


BROADCASTS = {
    "vector": lambda x, w, b: x @ w + b,
    "vector as row": lambda x, w, b: x @ w * b[None, :],
    "vector as column": lambda x, w, c: x @ w - c[:, None],
    "row": lambda x, w, row: x @ w + row,
    "column": lambda x, w, column: x @ w + column,
    "row and column meet first": lambda x, w, row, column: (row * column) + x @ w,
    "one": lambda x, w, one: x @ w * one,
    "dropped axis": lambda x, w, row: x @ w + row.reshape(-1),
    "row turned": lambda x, w, row: (x @ w).T + row.T,
    "scalar": lambda x, w, s: s * (x @ w) + 1,
    "scalar function": lambda x, w, s: abs(s) * (x @ w),
    "vector function": lambda x, w, b: x @ w + abs(b),
    "matrix": lambda x, w, r: x @ w + r,
    "transposed matrix": lambda x, w, rt: x @ w + rt.T,
    "transposed product": lambda x, w, rt: (x @ w).T + rt,
    "twice transposed": lambda x, w, rt, r: ((x @ w).T + rt).T * r,
    "column of a product's transpose": lambda x, w, b: (x @ w).T * b[:, None],
    "same operand twice": lambda x: x @ x.T,
    "operand reused": lambda x, u: x @ u + (x @ u) * 2,
    "left transposed": lambda rt, wt: rt.T @ wt,
    "both transposed": lambda u, x: u.T @ x.T,
    "two contractions": lambda x, w, u: x @ w * pg.relu(x @ u),
    "condition": lambda x, w, b: pg.where((x @ w > b) & (b != 1) | ~(b < 2), x @ w, -1),
    "bool times": lambda x, w, b: (b > 0) * (x @ w),
    "number as condition": lambda x, w, b: np.where(b, x @ w, 0) + np.logical_not(b),
    "casts": lambda x, w, b: (x @ w / 3).astype("bf16") * b + (b / 7).astype(np.float16),
    "in-place": lambda x, w, b: in_place(x @ w, b),
    "two outputs": lambda x, w, b: (x @ w, pg.relu(x @ w + b)),
    "outputs of two shapes": lambda x, w, b: [x @ w + b, (x @ w + b).T],
}


def in_place(value, b):
    value += b
    value *= 2
    return value


@pytest.mark.parametrize("name", sorted(BROADCASTS))
def test_broadcasting_equals_numpy(name):
    same(BROADCASTS[name])


def test_indices_of_broadcast_and_transposed_operands():
    program = build(lambda x, w, rt, row, s: ((x @ w).T + rt) * row.T - s)
    assert [str(s) for s in program.statements[1:4]] == [
        "v1[i,j] = add(v0[j,i], rt[i,j])",
        "v2[i,j] = mul(v1[i,j], row[0,i])",
        "v3[i,j] = sub(v2[i,j], s)",
    ]
    assert program.statements[1].domain == (("i", "N"), ("j", "M"))


def test_vector_functions_have_the_full_domain():
    program = build(lambda x, w, b: x @ w + np.exp(b))
    exp = program.pointwise[0]
    assert str(exp) == "v1[i,j] = exp(b[j])"
    assert exp.domain == (("i", "M"), ("j", "N"))


def test_a_shared_expression_is_computed_once_per_domain():
    program = build(lambda x, w, b: (pg.gelu(x @ w + b), pg.gelu(x @ w + b) * 2, (x @ w + b).T))
    functions = [s.function for s in program.pointwise]
    assert functions.count("gelu") == 1
    assert functions.count("add") == 2
    assert len(program.contractions) == 1
    assert [t.name for t in program.outputs] == ["y0", "y1", "y2"]


def test_same_operand_twice_has_one_input():
    program = same(lambda x: x @ x.T)
    assert str(program.contractions[0]) == "v0[i,j] += x[i,k] * x[j,k]"
    assert program.contractions[0].domain == (("i", "M"), ("j", "M"), ("k", "K"))


def test_two_contractions_are_numbered_first():
    program = same(lambda x, w, u: pg.silu(x @ w) * (x @ u))
    assert [s.name for s in program.statements] == ["S0", "S1", "P2", "P3", "P4"]
    assert [s.rhs.name for s in program.contractions] == ["w", "u"]


def test_sizes_may_be_numbers_one_included():
    program = build(lambda x, w, b: x @ w + b, x="bf16[1,64]", w="bf16[64,N]")
    assert program.sizes == ("N",)
    assert program.outputs[0].dims == (1, "N")
    rng = np.random.default_rng(1)
    x, w, b = (rng.integers(-3, 4, shape) for shape in ((1, 64), (64, 3), (3,)))
    (got,) = evaluate(program, {"x": x, "w": w, "b": b}, round_outputs=False)
    assert np.array_equal(got, x @ w + b)


def test_symbolic_sizes_unify_by_name():
    program = build(lambda x, w: x @ w, x="bf16[N,N]", w="bf16[N,N]")
    assert program.sizes == ("N",)


@pytest.mark.parametrize(
    ("operand", "expected"),
    [
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("tf32", "f32"),
        ("e4m3", "f16"),
        ("e5m2", "f16"),
        ("s8", "s32"),
    ],
)
def test_default_output_dtype(operand, expected):
    program = build(lambda x, w: x @ w, x=f"{operand}[M,K]", w=f"{operand}[K,N]")
    assert program.outputs[0].dtype.name == expected
    assert program.contractions[0].dtype.name == ("s32" if operand == "s8" else "f32")


def test_scaled_integers_come_out_as_f32():
    program = build(lambda x, w, s: (x @ w) * s, x="s8[M,K]", w="s8[K,N]")
    assert program.outputs[0].dtype.name == "f32"


def test_integers_are_exact_beyond_single_precision():
    program = build(lambda x, w: x @ w, x="s8[M,K]", w="s8[K,N]")
    x, w = np.full((1, 2000), 127, np.int8), np.full((2000, 1), 127, np.int8)
    w[0] = 126
    (got,) = evaluate(program, {"x": x, "w": w})
    assert got.dtype == np.int32 and got[0, 0] == 127 * 127 * 2000 - 127


def test_whole_numbers_are_not_rounded_to_single_precision():
    operands = {"x": "s8[M,K]", "w": "s8[N,K]"}
    sums = build(lambda x, w: x @ w.T, **operands)
    made = build(lambda x, w: (x @ w.T * 1e6).astype("s32"), **operands)
    x, w = np.full((1, 2048), 127, np.int8), np.full((1, 2048), 127, np.int8)
    x[0, 0] = 126
    for program, wanted in ((sums, 127 * 127 * 2048 - 127), (made, 2**31 - 1)):
        for single in (False, True):
            (found,) = evaluate(program, {"x": x, "w": w}, single=single)
            assert found.dtype == np.int32 and found.item() == wanted


def test_last_cast_decides_the_output_dtype():
    program = build(lambda x, w: pg.relu(x @ w).astype("f16").T)
    assert program.outputs[0].dtype.name == "f16"
    assert [s.function for s in program.pointwise] == ["maximum", "cast"]


def test_requested_dtype_overrides_and_the_inner_cast_still_rounds():
    program = build(lambda x, w: (x @ w).astype("bf16"), out_dtypes="f32")
    assert [(s.function, s.dtype.name) for s in program.pointwise] == [
        ("cast", "bf16"),
        ("cast", "f32"),
    ]


def test_one_dtype_per_output():
    program = build(lambda x, w: (x @ w, -(x @ w), x @ w), out_dtypes=("f32", None, "f16"))
    assert [t.dtype.name for t in program.outputs] == ["f32", "bf16", "f16"]


def test_output_of_a_comparison_after_a_cast():
    program = same(lambda x, w: (x @ w > 0).astype("s8"))
    assert program.outputs[0].dtype.name == "s8"


def test_half_accumulator():
    program = build(lambda x, w: x @ w, acc_dtype="f16", x="f16[M,K]", w="f16[K,N]")
    assert program.contractions[0].dtype.name == "f16"


def test_names_never_collide():
    def function(v0, y0, S0):
        return v0 @ y0 + S0

    given = [parse_signature(t) for t in ("bf16[M,K]", "bf16[K,N]", "bf16[M,N]")]
    program = build_program(function, "my-kernel 2", "", given)
    names = [t.name for t in program.inputs] + [s.write.name for s in program.statements]
    assert len(set(names)) == len(names)
    assert program.name == "my_kernel_2"


def test_default_parameters_stay_numbers():
    def function(x, w, scale=0.5):
        return (x @ w) * scale

    program = build_program(
        function, "k", "", [parse_signature("bf16[M,K]"), parse_signature("bf16[K,N]")]
    )
    assert str(program.pointwise[0]) == "v1[i,j] = mul(v0[i,j], 0.5)"


def test_expressions_deeper_than_the_stack():
    def function(x, w):
        value = x @ w
        for _ in range(3000):
            value = value + 1
        return value

    program = build(function)
    assert len(program.statements) == 3002
    (got,) = evaluate(program, {"x": np.eye(2), "w": np.eye(2)}, round_outputs=False)
    assert np.array_equal(got, np.eye(2) + 3000)


def test_building_twice_gives_equal_programs():
    function = BROADCASTS["two contractions"]
    assert build(function) == build(function)
    assert hash(build(function)) == hash(build(function))


def test_outputs_keep_clear_of_dims():
    program = build(lambda x, w: x @ w, x="bf16[y0,K]")
    assert str(program.outputs[0]) == "y_0: bf16[y0, N]"
