"""What rows by index refuse, and what is said about it."""

import dataclasses

import numpy as np
import pytest

import polygen as pg
from polygen.errors import (
    ArgumentError,
    DTypeError,
    ScheduleError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
)
from polygen.schedule.load import load_schedule, schedules_folder

X, R, W = "bf16[S,K]", "s32[T]", "bf16[N,K]"

REFUSED = {
    "an index of another type": (
        lambda x, r, w: x[r] @ w.T, (X, "f32[T]", W), DTypeError,
        ("the index r is f32", "Say s32[T] in the signature, and pass int32"),
    ),
    "a mask": (
        lambda x, r, w: x[x > 0] @ w.T + r[0], (X, R, W), DTypeError,
        ("the index x > 0 is bool", "pg.where selects"),
    ),
    "an index of two axes": (
        lambda x, r, w: x[r] @ w.T, (X, "s32[B,T]", W), UnsupportedProgram,
        ("read at r[b,i], by an array of several axes", "Pass r as a vector, s32[T]"),
    ),
    "an index of two axes behind a product": (
        lambda x, w, e, r: x @ w.mT + e[r],
        ("bf16[B,M,K]", "bf16[B,N,K]", "f32[V]", "s32[B,M]"), ShapeError, ("add of",),
    ),
    "an index that is one number": (
        lambda x, r, w: x[r] @ w.T, (X, "f32", W), ShapeError,
        ("the index r is one number", "the rows that an argument names, as x[rows]"),
    ),
    "an index that is computed": (
        lambda x, r, w: x[(r + 1).astype("s32")] @ w.T, (X, R, W), UnsupportedProgram,
        ('the index (r + 1).astype("s32") is no argument', "x[rows][::2]"),
    ),
    "two index arrays": (
        lambda x, r, w: x[r, r] @ w.T, (X, R, W), UnsupportedProgram,
        ("indexing of x [S, K] with 2 index arrays", "Write x[rows]"),
    ),
    "slices mixed with indices": (
        lambda x, r, w: x[r, ::2] @ w.T, (X, R, W), UnsupportedProgram,
        ("an index array beside slices", "x[rows][:, ::2]"),
    ),
    "an index of the other axis": (
        lambda x, r, w: x[:, r] @ w.T, (X, R, W), UnsupportedProgram,
        ("another axis than the first", "x.T[columns].T"),
    ),
    "more indices than axes": (
        lambda x, r, w: x[r, :, :] @ w.T, (X, R, W), TraceError, ("3 indices", "2 axes"),
    ),
    "rows of a batch": (
        lambda x, r, w: x[r] @ w.T, ("bf16[B,S,K]", R, W), UnsupportedProgram,
        ("reads r[z0]", "all from one row by index"),
    ),
    "rows of a new axis": (
        lambda x, r, w: x[None][r] @ w.T, ("bf16[K]", R, W), ShapeError, ("is [1, K]",),
    ),
    "rows of a product": (
        lambda x, r, w: (x @ w.T)[r], (X, R, W), UnsupportedProgram,
        ("[r] reads x @ w.T by index", "x[rows] @ w for"),
    ),
    "coordinates by index": (
        lambda x, r, w: (x * pg.indices(x)[0])[r] @ w.T, (X, R, W), UnsupportedProgram,
        ("reads coordinates by index", "Take indices of x[rows]"),
    ),
    "rows of a part": (
        lambda x, r, w: x[4:][r] @ w.T, ("bf16[64,K]", R, W), UnsupportedProgram,
        ("rows of a part", "Add to the numbers"),
    ),
    "an index of an index": (
        lambda x, r, w: x[r][r] @ w.T, (X, R, W), UnsupportedProgram,
        ("is an index of an index", "Pass first[second]"),
    ),
    "an index of an index below a function": (
        lambda x, r, w: (x[r] * 2)[r] @ w.T, (X, R, W), UnsupportedProgram,
        ("is an index of an index", "Pass first[second]"),
    ),
    "one of the rows": (
        lambda x, r, w: x[r][0] @ w.T, (X, R, W), UnsupportedProgram,
        ("one of the rows that r names", "as many elements as there are rows"),
    ),
    "matrices of the result by index": (
        lambda x, r, w, s: x @ w.mT * s[r][:, None, None],
        ("bf16[B,M,K]", "s32[B]", "bf16[B,N,K]", "f32[S]"), UnsupportedProgram,
        ("is read at r[z0]", "along the rows or columns of matrices", "Pass s with a matrix"),
    ),
    "matrices of an operand by index": (
        lambda x, r, w, s: (x * s[r][:, None, None]) @ w.mT,
        ("bf16[B,M,K]", "s32[B]", "bf16[B,N,K]", "f32[S]"), UnsupportedProgram,
        ("reads r[z0]", "all from one row by index"),
    ),
    "rows behind a fold": (
        lambda x, r, w: pg.softmax(x @ w.T, axis=1) + x[r], (X, "s32[S]", "bf16[K,K]"),
        UnsupportedProgram,
        ("reads x[r[i],j]: rows by index in a chain, or behind", "Pass x with its rows"),
    ),
    "rows of 8-bit elements that are computed": (
        lambda x, r, w: pg.relu(x[r]).astype("e4m3") @ w.T,
        ("e4m3[S,K]", R, "e4m3[N,K]"), UnsupportedProgram,
        ("is computed and rounded to e4m3", 'Write .astype("bf16")'),
    ),
    "both axes of an operand": (
        lambda x, r, w: (x[r] * x.T[r].T) @ w.T, ("bf16[K,K]", "s32[K]", W), UnsupportedProgram,
        ("reads r[m] and r[k]", "Index the axis that is not summed"),
    ),
    "the sum of tf32": (
        lambda x, r, w: w @ x[r], ("tf32[S,N]", R, "tf32[M,T]"), UnsupportedProgram,
        ("reads r[k]", "lies along the sum", "Index the axis that is not summed"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    function, signature, error, fragments = REFUSED[name]
    with pytest.raises(error) as caught:
        pg.fuse(function, name="sample").compile(*signature, arch="sm_90a")
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


def test_the_copy_engine_brings_no_rows_by_index():
    one = load_schedule(schedules_folder() / "sm_90a/cooperative_128x64x64.toml")
    one = dataclasses.replace(one, epilogue=dataclasses.replace(one.epilogue, through="tma"))
    with pytest.raises(ScheduleError, match="cannot move rows by index"):
        pg.fuse(lambda x, w, b, r: x @ w.T + b[r]).compile(
            "bf16[M,K]", W, "bf16[S,N]", "s32[M]", arch="sm_90a", schedule=one
        )


def test_consumers_compute_no_rows_by_index():
    one = load_schedule(schedules_folder() / "sm_90a/cooperative_128x64x64.toml")
    roles = dataclasses.replace(one.roles, computes="consumer")
    with pytest.raises(ScheduleError, match="rows by index it cannot bring"):
        pg.fuse(lambda x, r, w: x[r] @ w.T).compile(
            X, R, W, arch="sm_90a", schedule=dataclasses.replace(one, roles=roles)
        )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 4, 9], "row 1 is row 4 of an array that has 4"),
        ([3, -1, -2], "row 1 is row -1 of an array that has 4"),
        ([[3, 0], [2, 4]], "row 1, 1 is row 4 of an array that has 4"),
    ],
)
def test_rows_outside_are_refused_on_request(rows, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        pg.check_rows(np.array(rows, np.int32), 4)
    assert "Legal there: 0 to 3" in str(caught.value)


@pytest.mark.parametrize("rows", [np.zeros((), int), np.array([1.0])])
def test_what_is_no_vector_of_whole_numbers_is_refused(rows):
    with pytest.raises(ArgumentError, match="Pass whole numbers, one for each row"):
        pg.check_rows(rows, 4)


def test_rows_inside_pass():
    pg.check_rows(np.array([0, 3, 3], np.int32), 4)
    pg.check_rows(np.zeros(0, np.int64), 4)
    pg.check_rows(np.array([[0, 3], [1, 2]], np.int32), 4)
