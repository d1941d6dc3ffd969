"""Products over output domains of their own: what one kernel does not take, and what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.adapters.gradients import derive
from polygen.errors import GradientError, ScheduleError, UnsupportedProgram
from polygen.hardware.device import device
from polygen.schedule.load import shipped
from polygen.schedule.model import Epilogue

X, WIDE, NARROW = "bf16[M,K]", "bf16[N,K]", "bf16[P,K]"


def two(x, w, u):
    return x @ w.T, x @ u.T


PROGRAMS = {
    "folds of operands": (
        lambda x, w, u: (x @ w.T / np.sum(x * x, axis=1)[:, None], x @ u.T), (X, WIDE, NARROW), {},
        ("and folds of operands (", "Split the function"),
    ),
    "columns that are not cut": (
        lambda x, w, u, v: (pg.silu(x @ w.T) * (x @ u.T), x @ v.T),
        (X, "bf16[64,K]", "bf16[64,K]", "bf16[33,K]"), {},
        ("2 and 1 of them in one (", "as many sums", "Split the function"),
    ),
    "rows by index": (
        lambda x, r, w, u: (x[r] @ w.T, x[r] @ u.T), (X, "s32[T]", WIDE, NARROW), {},
        ("and rows by index (", "Split the function"),
    ),
    "groups": (
        lambda x, w, e, u: (pg.grouped_matmul(x, w, e), x @ u.T),
        (X, "bf16[E,K,N]", "s32[E]", NARROW), {},
        ("and rows in groups (", "Split the function"),
    ),
    "invariant dims": (
        two, (X, WIDE, NARROW), {"invariant": ("M",)}, ("and invariant dims (", "Split the"),
    ),
    "a pair beside one": (
        lambda x, w, u, v: (pg.silu(x @ w.T) * (x @ u.T), x @ v.T), (X, WIDE, WIDE, NARROW), {},
        ("2 and 1 of them in one (", "as many sums", "Split the function"),
    ),
    "other orders": (
        lambda x, w, u: (x @ w.T, x @ u), (X, WIDE, "bf16[K,P]"), {},
        ("S0 and S1: operands are stored in other orders", "w along k", "Store weights all as"),
    ),
    "other types": (
        lambda x, w, y, u: (x @ w.T, y @ u.T), (X, WIDE, "f16[M,K]", "f16[P,K]"), {},
        ("S0 and S1 multiply bf16 x bf16 and f16 x f16", "Pass operands of the same types"),
    ),
    "a target without roles": (
        two, (X, WIDE, NARROW), {"arch": "sm_80"},
        ("S0 and S1: products over different output domains on sm_80", "Split the function"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_which_one_kernel_cannot_be_made(name):
    function, signature, options, fragments = PROGRAMS[name]
    with pytest.raises(UnsupportedProgram) as caught:
        pg.fuse(function, name="f").compile(
            *signature, **({"arch": "sm_90a", "single": True} | options)
        )
    for fragment in fragments:
        assert fragment in str(caught.value), caught.value


def schedule(specialised):
    """A shipped one of tiles of 128 x 128 in one block, with roles or without."""
    return next(
        one
        for one in shipped(device("sm_90a"))
        if one.specialised == specialised
        and not (one.by_lanes or one.exchange)
        and (one.tile.cta.m, one.tile.cta.n, one.cluster.blocks) == (128, 128, 1)
    )


@pytest.mark.parametrize(
    ("function", "signature", "specialised", "match"),
    [
        (two, (X, WIDE, NARROW), False, "domains without roles .*only persistent blocks"),
        (
            lambda x, w, u: (x @ w.T, pg.silu(x) @ u.T),
            (X, WIDE, NARROW),
            True,
            "operands do not come alike .*Compute operands of all products, or of none",
        ),
        (
            lambda x, w, u, r: (x @ w.T + r, x @ u.T),
            (X, WIDE, NARROW, "bf16[M,N]"),
            True,
            'panels of their epilogues are not the same .*epilogue.through = "registers"',
        ),
    ],
)
def test_schedules_with_which_sections_share_no_kernel(function, signature, specialised, match):
    given = schedule(specialised)
    with pytest.raises(ScheduleError, match=match):
        pg.fuse(function).compile(*signature, arch="sm_90a", schedule=given)


def test_the_automatic_choice_stores_from_registers_where_epilogues_differ():
    kernel = pg.fuse(lambda x, w, u, r: (x @ w.T + r, x @ u.T)).compile(
        X, WIDE, NARROW, "bf16[M,N]", arch="sm_90a",
        sizes={"M": 2048, "N": 4096, "P": 1024, "K": 4096},
    )  # fmt: skip
    assert kernel.schedule.epilogue.through == "registers"


def test_derivatives_of_parts_are_refused():
    types = (X, "bf16[64,K]", "bf16[64,K]")
    program = pg.fuse(lambda x, w, u: np.concatenate([x @ w.T, x @ u.T], 1)).program(*types)
    with pytest.raises(GradientError, match="results in parts") as caught:
        derive(program, frozenset({"x"}))
    assert "an operator of each part" in caught.value.nearest


def test_rows_in_tiles_that_exchange_operands_of_one_section():
    def function(q, k, x, w):
        v = np.swapaxes(np.matmul(q, k), 2, 1)
        return v - np.min(v, axis=-1, keepdims=True), x[:, 32:] @ w

    types = ("bf16[2,16,32]", "bf16[2,32,16]", "bf16[16,64]", "bf16[32,16]")
    tile = replace(roles("one"), epilogue=Epilogue(through="registers", rows="tile"))
    with pytest.raises(ScheduleError, match="S0 and S1: operands are stored in other") as error:
        pg.fuse(function).compile(*types, arch="sm_90a", schedule=tile)
    assert 'Use epilogue.rows = "after"' in str(error.value)
