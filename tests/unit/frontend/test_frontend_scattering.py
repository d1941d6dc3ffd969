"""Rows that are stored by index: what is traced, what it means, and what is refused."""

import numpy as np
import pytest

import polygen as pg
from polygen.adapters.forms import Form, most_general
from polygen.cli.accuracy import expected
from polygen.cli.trial import random_operands
from polygen.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
)
from polygen.frontend.build import build_program
from polygen.frontend.dtypes import BF16, S32
from polygen.frontend.evaluate import evaluate, reference
from polygen.poly.prologue_proofs import prove_prologues
from polygen.poly.scop import scop
from polygen.tune.task import describe

X, W, R, OUT = "f16[T,K]", "f16[N,K]", "s32[T]", "f32[S,N]"


def scatter(x, w, rows, out):
    """The rows of a product, each to a row of an array that the call is given."""
    out[rows] = pg.relu(x @ w.T)
    return out


def program(function=scatter, *signature, **options):
    return pg.fuse(function, name="sample").program(*(signature or (X, W, R, OUT)), **options)


def test_the_array_is_an_output_that_the_call_is_given():
    made = program()
    assert [t.name for t in made.inputs] == ["x", "w", "rows"]
    assert [str(t) for t in made.outputs] == ["out: f32[S, N]"]
    assert [t.name for t in made.operands] == ["x", "w", "rows", "out"]
    assert made.in_place == (("out", 3),)
    assert str(made.statements[-1]) == "out[rows[i],j] = cast(v1[i,j])"
    assert made.statements[-1].domain == (("i", "T"), ("j", "N"))
    assert made.scattered == made.gathered == {"rows": "S"}
    assert made.inputs[2].alignment == 4, "indices are read one by one"
    first = program(lambda out, rows, x, w: scatter(x, w, rows, out), OUT, R, X, W)
    assert [t.name for t in first.operands] == ["out", "rows", "x", "w"]


def test_it_lies_as_the_array_does():
    (out,) = program(scatter, X, W, R, "bf16[S,N]:col@2").outputs
    assert (out.dtype.name, out.order, out.alignment) == ("bf16", (1, 0), 2)
    (wide,) = program(scatter, "tf32[T,K]", "tf32[N,K]", R, "tf32[S,N]").outputs
    assert wide.dtype.name == "f32"


def test_program_and_reference_are_numpys():
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (2, 6, 5)).astype(float)
    out, rows = rng.integers(-3, 4, (9, 6)).astype(float), np.array([5, 0, 8, 3, 1, 7], np.int32)
    before, wanted = out.copy(), scatter(x, w, rows, out.copy())
    arrays = dict(zip(("x", "w", "rows", "out"), (x, w, rows, out), strict=True))
    (found,) = evaluate(program(), arrays)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(reference(scatter, (x, w, rows, out)), wanted)
    np.testing.assert_array_equal(out, before)


def test_numbers_outside_store_nothing_in_programs():
    rows = np.array([-1, 2, 4, 0], np.int32)
    arrays = {"x": np.eye(4), "w": np.eye(4), "rows": rows, "out": np.full((4, 4), 7.0)}
    (found,) = evaluate(program(), arrays)
    np.testing.assert_array_equal(found[[2, 0]], np.eye(4)[[1, 3]])
    np.testing.assert_array_equal(found[[1, 3]], 7.0)


def test_stores_never_meet_under_the_promise():
    """isl sees rows by their places in the vector, and no dependence between two of them."""
    made = program()
    model = scop(made)
    assert "out[i, j]" in str(model.writes) and "out" not in str(model.dependences)
    inside, apart = "rows by index are rows", "stores by index never meet"
    assert [p.claim.startswith(apart) for p in prove_prologues(made)] == [True]
    both = program(lambda x, w, rows, out: scatter(x[rows], w, rows, out), "f16[S,K]", W, R, OUT)
    assert sorted(p.claim[: len(inside)] for p in prove_prologues(both))[1] == inside


def test_bounds_of_errors_know_rows_that_are_not_stored():
    made = program()
    sizes = {"T": 6, "K": 8, "S": 9, "N": 5}
    operands = random_operands(made, sizes, 0)
    arrays = dict(zip((t.name for t in made.operands), operands, strict=True))
    (one,) = expected(made, arrays, sizes, 16)
    rows = arrays["rows"]
    stored = rows[(rows >= 0) & (rows < 9)]
    assert len(set(rows)) == len(rows)
    others = np.setdiff1d(np.arange(9), stored)
    np.testing.assert_array_equal(one.value[others], arrays["out"][others])
    assert one.compare(one.value.astype(np.float32))[2] == 0


def product(x, w, rows, out):
    """What is stored where nothing else is said."""
    return x @ w.T


def storing(value=product, at=lambda rows: rows, back=lambda out, x, w: out):
    """A function that stores a value, and what it stores at and returns where that is other."""

    def function(x, w, rows, out):
        out[at(rows)] = value(x, w, rows, out)
        return back(out, x, w)

    return function


def computed(x, w, rows, out):
    """Stores into what is computed of the array."""
    return scatter(x, w, rows, out * 2)


def twice(x, w, rows, out):
    """Stores into one array two times."""
    return scatter(x, w, rows, scatter(x, w, rows, out))


REFUSED = {
    "a slice": (
        storing(at=lambda rows: slice(1, None)),
        {},
        TraceError,
        ("an assignment into out", "s32 names"),
    ),
    "columns": (
        storing(at=lambda rows: (slice(None), rows)),
        {},
        UnsupportedProgram,
        ("another axis than the first",),
    ),
    "a part of the rows": (
        storing(at=lambda rows: rows[1:]),
        {"rows": "s32[8]"},
        UnsupportedProgram,
        ("is no argument",),
    ),
    "floats": (storing(), {"rows": "f32[T]"}, DTypeError, ("the index rows is f32",)),
    "a table of indices": (storing(), {"rows": "s32[T,2]"}, ShapeError, ("has one axis",)),
    "as many rows as the array": (
        storing(),
        {"x": "f16[M,K]"},
        ShapeError,
        ("out[rows] = x @ w.T ([M, N] into those rows, [T, N])",),
    ),
    "other columns": (storing(), {"out": "f32[S,L]"}, ShapeError, ("[T, N] into", "[T, L]")),
    "a number": (storing(lambda *_: 0), {}, ShapeError, ("out[rows] = 0 ([] into those rows",)),
    "batches": (storing(), {"out": "f32[B,S,N]"}, ShapeError, ("rows by index are those of",)),
    "what is computed": (
        computed,
        {},
        UnsupportedProgram,
        ("into out * 2", "an argument"),
    ),
    "not returned": (
        storing(back=lambda out, x, w: x @ w.T),
        {},
        TraceError,
        ("out[rows] = … is not returned",),
    ),
    "returned beside another": (
        storing(back=lambda out, x, w: (out, x @ w.T)),
        {},
        UnsupportedProgram,
        ("x @ w.T is returned beside",),
    ),
    "returned twice": (
        storing(back=lambda out, x, w: (out, out)),
        {},
        UnsupportedProgram,
        ("out is returned beside",),
    ),
    "stored twice": (
        twice,
        {},
        UnsupportedProgram,
        ("behind out[rows] = …", "Join the indices"),
    ),
    "added to": (
        storing(lambda x, w, rows, out: out[rows] + x @ w.T),
        {},
        UnsupportedProgram,
        ("out[rows[i],j] is read, and out[rows] stored", "Read another array"),
    ),
    "a concatenation": (
        storing(lambda x, w, *_: np.concatenate([x @ w.T, x @ w.T], axis=1)),
        {"w": "f16[8,K]", "out": "f32[S,16]"},
        UnsupportedProgram,
        ("rows of a concatenation",),
    ),
    "no product": (
        storing(lambda x, *_: x * 2),
        {"out": "f32[S,K]"},
        UnsupportedProgram,
        ("x * 2, reads no contraction",),
    ),
    "a reshape": (
        storing(lambda x, w, *_: (x @ w.T).reshape(12, 4)),
        {"x": "f16[4,K]", "w": "f16[12,K]", "rows": "s32[12]", "out": "f32[S,4]"},
        UnsupportedProgram,
        ("rows by index beside a reshape",),
    ),
    "beside a fold": (
        storing(lambda x, w, *_: pg.softmax(x @ w.T)),
        {},
        UnsupportedProgram,
        ("out is stored into by index", "Make functions of the parts"),
    ),
    "in a chain": (
        storing(lambda x, w, *_: pg.relu(x @ w.T) @ w),
        {"x": "f16[T,64]", "w": "f16[N,64]", "out": "f32[S,64]"},
        UnsupportedProgram,
        ("out is stored into by index", "Make functions of the parts"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, changes, error, fragments = REFUSED[name]
    given = {"x": X, "w": W, "rows": R, "out": OUT} | changes
    with pytest.raises(error) as caught:
        pg.fuse(function, name="sample").compile(*given.values(), arch="sm_90a")
    assert all(fragment in str(caught.value) for fragment in fragments), str(caught.value)


def test_another_type_than_the_arrays_is_refused():
    with pytest.raises(DTypeError, match=r"f16 is asked for, and out is f32 .*Leave out_dtype"):
        program(out_dtype="f16")


def test_rows_that_are_named_twice_are_found_on_request():
    pg.check_rows(np.array([3, 0, 2]), 4, unique=True)
    pg.check_rows(np.array([3, 0, 3]), 4)
    with pytest.raises(ArgumentError, match=r"rows 1 and 3 are both row 0 .*Name every row once"):
        pg.check_rows(np.array([3, 0, 2, 0, 3]), 4, unique=True)


def test_who_makes_results_of_its_own_refuses_it():
    """Tuning compares new arrays, and libraries take arguments to stay as they are."""
    with pytest.raises(UnsupportedProgram, match=r"out is stored into.*Tune the function that"):
        describe(pg.fuse(scatter), (X, W, R, OUT), arch="sm_80", sizes=dict.fromkeys("TKSN", 64))
    forms = [
        Form("x", BF16, (5, 8)), Form("w", BF16, (7, 8)), Form("rows", S32, (5,)),
        Form("out", BF16, (9, 7)),
    ]  # fmt: skip
    with pytest.raises(UnsupportedProgram, match=r"out is stored into.*Call what pg.fuse gives"):
        most_general(lambda ts: build_program(scatter, "f", "f", ts), forms)
