"""What products by groups refuse: the sentence, its reason, and the nearest legal thing."""

from __future__ import annotations

import pytest

import polygen as pg
from polygen.errors import (
    DTypeError,
    GradientError,
    ScheduleError,
    ShapeError,
    UnsupportedProgram,
)
from polygen.schedule.model import CtaTile, Epilogue, Pipeline, Roles, Schedule, Tile, WarpTile

SCHEDULE = Schedule(
    name="groups",
    device="sm_90a",
    tile=Tile(CtaTile(128, 64, 64), WarpTile(64, 64)),
    pipeline=Pipeline(stages=3, in_flight=1),
    roles=Roles("cooperative", 40, 232, "before"),
    epilogue=Epilogue(through="lines"),
)

X, W, ENDS = "bf16[T,K]", "bf16[E,K,N]", "s32[E]"


def refused(error, match, function, *signature, **compiled):
    fused = pg.fuse(function)
    with pytest.raises(error, match=match) as found:
        if compiled:
            fused.compile(*signature, single=True, **compiled)
        else:
            fused.program(*signature)
    assert found.value.nearest
    return found.value


def product(x, w, ends):
    return pg.grouped_matmul(x, w, ends)


@pytest.mark.parametrize(
    ("signature", "error", "match"),
    [
        ((X, "bf16[F,K,N]", ENDS), ShapeError, "w has F groups, ends has E"),
        ((X, "bf16[E,L,N]", ENDS), ShapeError, "x has K to sum over, w has L"),
        ((X, "bf16[K,N]", ENDS), ShapeError, r"w is \[K, N\].*w has 3 axes"),
        (("bf16[B,T,K]", W, ENDS), ShapeError, r"x is \[B, T, K\].*x has 2 axes"),
        ((X, W, "s32[E,2]"), ShapeError, r"ends is \[E, 2\].*ends has 1 axes"),
        ((X, W, "f32[E]"), DTypeError, "ends is f32.*Say s32"),
        ((X, W, "bf16[E]"), DTypeError, "ends is bf16.*Say s32"),
        ((X, "f16[E,K,N]", ENDS), DTypeError, "x is bf16, w is f16"),
        (("s32[T,K]", W, ENDS), DTypeError, "x is s32"),
    ],
)
def test_operands_that_do_not_fit(signature, error, match):
    refused(error, match, product, *signature)


def test_ends_that_are_computed():
    match = "groups end at ends \\+ 1, which is computed.*Pass them as an argument"
    refused(
        UnsupportedProgram, match, lambda x, w, ends: pg.grouped_matmul(x, w, ends + 1), X, W, ENDS
    )


def test_two_tables_of_groups():
    refused(
        UnsupportedProgram,
        "groups end at a and at b.*Use the same ends",
        lambda x, w, a, b: pg.grouped_matmul(x, w, a) + pg.grouped_matmul(x, w, b),
        X,
        W,
        ENDS,
        ENDS,
    )


def test_a_chain_of_products_by_groups():
    refused(
        UnsupportedProgram,
        "chains of products are not generated yet",
        lambda x, w, v, ends: pg.grouped_matmul(pg.grouped_matmul(x, w, ends), v, ends),
        X,
        W,
        "bf16[E,N,L]",
        ENDS,
        arch="sm_80",
    )


def test_results_at_other_rows_than_their_own():
    match = "is read at other rows than its own.*outside it"
    refused(
        UnsupportedProgram,
        match,
        lambda x, w, ends, r: pg.grouped_matmul(x, w, ends).T + r,
        X,
        "bf16[E,K,T]",
        ENDS,
        "bf16[T,T]",
    )


def test_rows_in_steps():
    refused(
        UnsupportedProgram,
        "rows in groups are read at 2\\*i.*rows of a group are adjacent.*or x.rows. with a vector",
        lambda x, w, ends: pg.grouped_matmul(x[::2], w, ends),
        "bf16[8,K]",
        W,
        ENDS,
    )


def test_rows_by_index_in_steps():
    refused(
        UnsupportedProgram,
        "rows in groups are read at 2\\*i.*rows of a group are adjacent",
        lambda x, rows, w, ends: pg.grouped_matmul(x[rows][::2], w, ends),
        "bf16[8,K]",
        "s32[8]",
        W,
        ENDS,
    )


def test_operands_that_a_launch_before_makes():
    refused(
        ScheduleError,
        'roles.computes = "before" with v.*what its rows. groups have.*rows of all groups alike',
        lambda x, s, w, ends: pg.grouped_matmul(
            (x * pg.per_group(s, ends, x)[:, None]).astype("bf16"), w, ends
        ),
        X,
        "f32[E]",
        W,
        ENDS,
        arch="sm_90a",
        schedule=SCHEDULE,
    )


def test_statements_without_the_rows_that_are_in_groups():
    refused(
        UnsupportedProgram,
        "has not the T rows that are in groups",
        lambda x, w, ends, a, b: (pg.grouped_matmul(x, w, ends), a @ b),
        X,
        W,
        ENDS,
        "bf16[M,K]",
        "bf16[K,N]",
    )


@pytest.mark.parametrize(
    ("rows", "match"),
    [("bf16[F,N]", r"b is \[F, N\], ends \[E\]"), ("bf16[E,N,N]", "the first axis counts groups")],
)
def test_rows_of_groups_that_do_not_fit(rows, match):
    refused(
        ShapeError,
        match,
        lambda x, w, ends, b: pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x),
        X,
        W,
        ENDS,
        rows,
    )


def test_rows_of_groups_that_are_computed():
    refused(
        UnsupportedProgram,
        "has a row for each group, and is computed",
        lambda x, w, ends, b: pg.grouped_matmul(x, w, ends) + pg.per_group(b * 2, ends, x),
        X,
        W,
        ENDS,
        "bf16[E,N]",
    )


def test_rows_of_groups_like_a_vector():
    refused(
        ShapeError,
        r"b is \[N\].*its rows are those in groups",
        lambda x, w, ends, r, b: pg.grouped_matmul(x, w, ends) + pg.per_group(r, ends, b),
        X,
        W,
        ENDS,
        "bf16[E,N]",
        "bf16[N]",
    )


def test_rows_of_groups_without_a_product_by_groups():
    refused(
        UnsupportedProgram,
        "per_group in a function whose products are not in groups",
        lambda x, w, ends, b: x @ w + pg.per_group(b, ends, x),
        X,
        "bf16[K,N]",
        ENDS,
        "bf16[E,N]",
    )


def test_gradients_of_products_by_groups():
    from polygen.adapters.gradients import derive

    program = pg.fuse(product).program(X, W, ENDS)
    with pytest.raises(GradientError, match=r"a product by groups.*sums over the rows of each"):
        derive(program, frozenset({"x"}))
