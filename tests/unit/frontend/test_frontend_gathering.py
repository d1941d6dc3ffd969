"""Rows by index: what is traced, and what it means."""

import numpy as np
import pytest

import polygen as pg
from polygen.frontend.evaluate import evaluate, reference
from polygen.frontend.parse import parse_expression
from polygen.poly.prologue_proofs import prove_prologues
from polygen.poly.scop import scop

X, R, W = "f16[S,K]", "s32[T]", "f16[N,K]"


def statements(function, *signature):
    return [str(s) for s in pg.fuse(function, name="sample").program(*signature).statements]


def test_rows_are_a_value_before_the_product():
    made = pg.fuse(lambda x, r, w: x[r] @ w.T, name="sample").program(X, R, W)
    assert [str(s) for s in made.statements] == [
        "v0[i,j] = cast(x[r[i],j])",
        "v1[i,j] += v0[i,k] * w[j,k]",
        "y0[i,j] = cast(v1[i,j])",
    ]
    assert made.statements[0].domain == (("i", "T"), ("j", "K"))
    assert [str(a) for a in made.statements[0].reads] == ["x[r[i],j]", "r[i]"]
    assert made.gathered == {"r": "S"}
    assert [t.alignment for t in made.inputs] == [16, 4, 16], "indices are read one by one"


@pytest.mark.parametrize(
    ("function", "first"),
    [
        (lambda x, r, w: (x[r] + 2) @ w.T, "v0[i,j] = add(x[r[i],j], 2.0)"),
        (lambda x, r, w: (x + 2)[r] @ w.T, "v0[i,j] = add(x[r[i],j], 2.0)"),
        (lambda x, r, w: x[r, :] @ w.T, "v0[i,j] = cast(x[r[i],j])"),
        (lambda x, r, w: x[r, ...][::2, 1:] @ w.T[1:], "v0[i,j] = cast(x[r[2*i],j+1])"),
        (lambda x, r, w: w @ x[r].T, "v0[i,j] = cast(x[r[j],i])"),
    ],
)
def test_functions_and_views_go_through_to_the_argument(function, first):
    assert statements(function, "f16[S,8]", "s32[6]", "f16[N,8]")[0] == first


def test_one_value_serves_two_products():
    found = statements(lambda x, r, u, v: x[r] @ u.T * (x[r] @ v.T), X, R, W, W)
    assert sum("cast(x" in one for one in found) == 1


FUNCTIONS = {
    "rows": lambda x, r, w: x[r] @ w.T,
    "columns": lambda x, r, w: x[1:] @ w[r].T,
    "scaled": lambda x, r, w: (x * 2 + 1)[r] @ w.T,
    "every other": lambda x, r, w: x[r][::2] @ w.T,
    "both": lambda x, r, w: x[r] @ w[r].T,
    "by the sum": lambda x, r, w: w.T @ x[r],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_program_and_reference_are_numpys(name):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (2, 6, 5)).astype(float)
    rows = np.array([5, 0, 3, 3, 1, 5], np.int32)
    function = FUNCTIONS[name]
    made = pg.fuse(function).program("f16[6,5]", "s32[6]", "f16[6,5]", out_dtype="f32")
    (found,) = evaluate(made, dict(zip("xrw", (x, rows, w), strict=True)))
    np.testing.assert_array_equal(found, function(x, rows, w))
    np.testing.assert_array_equal(reference(function, (x, rows, w)), function(x, rows, w))


def test_numbers_outside_name_some_row_in_programs():
    made = pg.fuse(FUNCTIONS["rows"]).program(X, R, W, out_dtype="f32")
    x, rows = np.eye(4), np.array([-7, 0, 9, 3], np.int32)
    (found,) = evaluate(made, {"x": x, "r": rows, "w": np.eye(4)})
    np.testing.assert_array_equal(found, x[[0, 0, 3, 3]])


def test_an_expression_names_rows_too():
    function = parse_expression("relu(x[rows] @ w.T)", ("x", "rows", "w"))
    found = pg.fuse(function, name="sample").program(X, R, W).statements
    assert str(found[0]) == "v0[i,j] = cast(x[rows[i],j])"


def test_any_row_may_be_read():
    """Dependences are of all rows that the vector may name, so they hold whatever it does."""
    made = pg.fuse(FUNCTIONS["rows"], name="sample").program(X, R, W)
    rows = scop(made, apart=True).reads
    text = next(line for line in str(rows).split(";") if "-> x[" in line)
    assert "<= any0 < S" in text, text
    inside, whole = prove_prologues(made)
    assert inside.claim.startswith("rows by index are rows of their array")
    assert inside.subject == "x[r[i],j] of P0"
    assert "one instance that computes it" in whole.claim
