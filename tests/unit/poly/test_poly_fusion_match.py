"""Fusion by dependences, and the roles that the accesses of a contraction give its iterators."""

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen import isl
from polygen.api import fuse
from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.parse import parse_expression
from polygen.poly.fusion import fuse as fuse_statements
from polygen.poly.match import axis_of, match
from polygen.poly.scop import scop


def parts(expression, **signature):
    function = parse_expression(expression, tuple(signature))
    program = fuse(function, name="f").program(*signature.values())
    fusion = fuse_statements(program, scop(program))
    return program, fusion, match(program, fusion)


XW = {"x": "bf16[M,K]", "w": "bf16[K,N]"}


@pytest.mark.parametrize(
    ("expression", "extra"),
    [
        ("x @ w", {}),
        ("relu(x @ w + b)", {"b": "f32[N]"}),
        ("(x @ w) * c + b", {"c": "f32[M,1]", "b": "f32[1,N]"}),
        ("silu(x @ w + b) * g", {"b": "bf16[N]", "g": "bf16[M,N]"}),
        ("x @ w + r.T", {"r": "bf16[N,M]"}),
        ("(relu(x @ w), (x @ w) * 2, x @ w + r)", {"r": "f32[M,N]"}),
        ("s * (x @ w)", {"s": "f32"}),
        ("where(x @ w > r, x @ w, r)", {"r": "bf16[M,N]"}),
    ],
)
def test_everything_around_one_product_fuses(expression, extra):
    program, fusion, _ = parts(expression, **XW, **extra)
    assert [name for name, _ in fusion.band][:2] == ["Z0", "S0"]
    members = dict(fusion.members)
    covered = [own for name, _ in fusion.band for own in members.get(name, (name,))]
    assert covered == ["Z0", *(s.name for s in program.statements)]


@pytest.mark.parametrize(
    ("expression", "extra"),
    [
        ("gelu(x @ w + b) * s", {"b": "f32[N]", "s": "f32"}),
        ("(relu(x @ w), (x @ w).T * 2, x @ w + r, (x @ w).T + 1)", {"r": "f32[M,N]"}),
        ("((x @ w + r.T).T, relu((x @ w).T + r))", {"r": "bf16[N,M]"}),
        ("(relu(x @ w) + (x @ w), relu((x @ w).T))", {}),
    ],
)
def test_groups_are_placed_as_their_statements_would_be_alone(expression, extra):
    function = parse_expression(expression, (*XW, *extra))
    program = fuse(function, name="f").program(*XW.values(), *extra.values())
    together = fuse_statements(program, scop(program))
    apart = fuse_statements(program, scop(program, apart=True))
    assert together.members and not apart.members
    for statement in program.statements:
        assert together.iterators(statement.name) == apart.iterators(statement.name)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("sizes", [("64", "80", "64"), ("M", "K", "M"), ("1", "80", "1")], ids=str)
def test_a_square_matrix_and_its_transpose_leave_one_kernel(sizes, arch):
    m, k, n = sizes

    @fuse
    def both(x, w):
        v = (x @ w) * 2
        return v, (v + 1).T

    kernel = both.compile(f"f16[{m},{k}]", f"f16[{k},{n}]", arch=arch)
    rows, depth = ({"M": 40, "K": 24}.get(size) or int(size) for size in (m, k))
    x = np.arange(rows * depth).reshape(rows, depth) % 7 - 3.0
    w = np.arange(depth * rows).reshape(depth, rows) % 5 - 2.0
    v, turned = kernel.emulate(x.astype(np.float16), w.astype(np.float16))
    np.testing.assert_array_equal(v, x @ w * 2)
    np.testing.assert_array_equal(turned, (x @ w * 2 + 1).T)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("sizes", [("1", "1", "1"), ("2", "S", "S")], ids=str)
def test_heads_inside_rows_and_their_logarithms_leave_one_kernel(sizes, arch):
    """Rows and heads are as many as each other: their axes are told apart by who reads them."""
    batch, rows, heads = sizes

    @fuse
    def attention(q, k, v):
        q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
        scores = (q @ k.mT) * 0.125
        return (pg.softmax(scores) @ v).swapaxes(1, 2), pg.logsumexp(scores, axis=-1)

    keys = f"bf16[{batch},T,{heads},64]"
    kernel = attention.compile(f"bf16[{batch},{rows},{heads},64]", keys, keys, arch=arch)
    count = 3 if rows == "S" else int(rows)
    random = np.random.default_rng(7)
    shapes = [(int(batch), length, count, 64) for length in (count, 21, 21)]
    arrays = [random.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    values, logs = kernel.emulate(*arrays)
    wanted, wanted_logs = attention.reference(*arrays)
    np.testing.assert_allclose(logs, wanted_logs, rtol=1e-4)
    np.testing.assert_allclose(values.astype(np.float64), wanted, atol=0.03)


def test_what_isl_does_is_the_same_for_two_operations_and_for_two_hundred():
    """In isl's own count of operations; a statement each, twenty took fifteen times as many."""

    def chain(operations):
        def function(x, w, b):
            value = x @ w
            for number in range(operations):
                value = value * 1.5 if number % 2 else value + b
            return value

        return fuse(function, name="f").program("bf16[M,K]", "bf16[K,N]", "f32[N]")

    for operations in (2, 200):
        program = chain(operations)
        assert len(program.pointwise) == operations + 1
        with isl.operations_budget(60_000):
            fuse_statements(program, scop(program))
    program = chain(20)
    with pytest.raises((VerifyError, isl.Error)), isl.operations_budget(60_000):
        fuse_statements(program, scop(program, apart=True))


def test_a_fusion_prints_the_iterators_of_its_groups():
    _, fusion, _ = parts("gelu(x @ w + b)", **XW, b="f32[N]")
    assert "  P1, P2, P3: (i, j)" in str(fusion)


def test_a_transposed_output_aligns_crosswise():
    _, fusion, _ = parts("(x @ w, (x @ w).T)", **XW)
    assert fusion.iterators("S0") == ("i", "j")
    assert fusion.iterators("P1") == ("i", "j")
    assert fusion.iterators("P2") == ("j", "i")


# --- roles ---------------------------------------------------------------------------------------
def roles(expression, **signature):
    _, _, found = parts(expression, **signature)
    a, b = found.a, found.b
    return (
        (a.tensor.name, axis_of(a.index, a.role), a.k_contiguous),
        (b.tensor.name, axis_of(b.index, b.role), b.k_contiguous),
    )


@pytest.mark.parametrize(
    ("expression", "signature", "a", "b"),
    [
        ("x @ w.T", {"x": "[M,K]", "w": "[N,K]"}, ("x", 0, True), ("w", 0, True)),
        ("x @ w", {"x": "[M,K]", "w": "[K,N]"}, ("x", 0, True), ("w", 1, False)),
        ("x.T @ w", {"x": "[K,M]", "w": "[K,N]"}, ("x", 1, False), ("w", 1, False)),
        ("x.T @ w.T", {"x": "[K,M]", "w": "[N,K]"}, ("x", 1, False), ("w", 0, True)),
        ("(w @ x.T).T", {"x": "[M,K]", "w": "[N,K]"}, ("x", 0, True), ("w", 0, True)),
        ("x @ w.T", {"x": "[M,K]:col", "w": "[N,K]"}, ("x", 0, False), ("w", 0, True)),
        ("x @ w.T", {"x": "[M,K]", "w": "[N,K]:col"}, ("x", 0, True), ("w", 0, False)),
        ("x.T @ w", {"x": "[K,M]:col", "w": "[K,N]:col"}, ("x", 1, True), ("w", 1, True)),
        ("x @ x.T", {"x": "[M,K]"}, ("x", 0, True), ("x", 0, True)),
        ("x.T @ x", {"x": "[K,M]"}, ("x", 1, False), ("x", 1, False)),
        ("x @ x", {"x": "[M,M]"}, ("x", 0, True), ("x", 1, False)),
    ],
)
def test_layouts_and_operand_orders(expression, signature, a, b):
    typed = {name: f"f16{text}" for name, text in signature.items()}
    assert roles(expression, **typed) == (a, b)


def test_n_is_the_contiguous_dim_of_the_first_output():
    """Transposing the output swaps which operand is called A, and nothing else."""
    _, _, straight = parts("x @ w", **XW)
    _, _, turned = parts("(x @ w).T", **XW)
    assert (straight.a.tensor.name, straight.extent("m"), straight.extent("n")) == ("x", "M", "N")
    assert (turned.a.tensor.name, turned.extent("m"), turned.extent("n")) == ("w", "N", "M")
    assert straight.extent("k") == turned.extent("k") == "K"


def test_transposed_residual_does_not_change_the_roles():
    _, _, found = parts("x @ w + r.T", **XW, r="bf16[N,M]")
    assert found.axes == ("m", "n")


def test_a_match_prints_its_roles():
    _, _, found = parts("x @ w", **XW)
    text = str(found)
    assert "S0: a * b, k = k; i = m, j = n" in text
    assert "contiguous along k" in text
    assert "contiguous along n" in text


# --- extents of 1, of which isl makes no loop
@pytest.mark.parametrize(
    ("x", "w", "b"),
    [
        ("bf16[1,K]", "bf16[K,N]", "f32[N]"),
        ("bf16[M,K]", "bf16[K,1]", "f32[1]"),
        ("bf16[1,K]", "bf16[K,1]", "f32[1,1]"),
        ("bf16[1,1]", "bf16[1,1]", "f32[1]"),
        ("bf16[1,one]", "bf16[one,N]", "f32[N]"),
    ],
)
def test_single_rows_and_columns_fuse(x, w, b):
    _, fusion, found = parts("x @ w + b", x=x, w=w, b=b)
    assert {name: fusion.iterators(name) for name in ("Z0", "S0", "P1", "P2")} == dict.fromkeys(
        ("Z0", "S0", "P1", "P2"), ("i", "j")
    )
    assert found.axes == ("m", "n")


def test_a_single_row_spread_over_many_does_not_fuse():
    with pytest.raises(UnsupportedProgram, match=r"S0 over \[1, N\], P1 over \[M, N\]"):
        parts("x @ w + r", x="bf16[1,K]", w="bf16[K,N]", r="bf16[M,N]")


def test_one_row_of_each_head_leaves_the_heads_as_rows() -> None:
    _, _, found = parts("q @ k.mT", q="bf16[B,H,G,1,64]", k="bf16[B,H,1,T,64]")
    assert (found.m, found.batches) == ("G", (("z0", "B"), ("z1", "H"), ("z2", 1)))
