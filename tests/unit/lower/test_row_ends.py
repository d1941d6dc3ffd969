"""Rows that end inside of pieces: what leaves rely on is asked of arguments, or nothing is emitted.

The faults of plans are those that would have a kernel read behind rows, or lose their ends, on
arrays that it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from matrix import roles, small
from random_prologues import FRAGMENTS

import polygen as pg
from polygen.emit.launcher import checked, plan_conditions
from polygen.errors import VerifyError
from polygen.lower import row_ends
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import Store
from polygen.lower.work import Copy, Stream
from polygen.schedule.load import shipped


def product(x: Any, w: Any) -> Any:
    return x @ w.T


def scaled(x: Any, s: Any, w: Any) -> Any:
    return (x * s + 1) @ w.T


DOTS = next(one for one in shipped("sm_90a") if one.by_lanes)
# function, signature, target, schedule, what leaves move whole, and the arrays of it
KERNELS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str, Any, type, str]] = {
    "in the background": (product, ("f16[M,K]", "f16[N,K]"), "sm_80", small(), Copy, "x w"),
    "through registers": (product, ("f16[M,K]", "f16[N,K]"), "sm_75", "auto", Copy, "x w"),
    "by lanes": (product, ("bf16[1,K]", "bf16[N,K]"), "sm_90a", DOTS, Stream, "x w"),
    "by the copy engine": (product, ("bf16[M,K]", "bf16[N,K]"), "sm_90a", roles(), Store, "y0"),
    "made by consumers": (
        scaled, ("bf16[M,K]", "bf16[K]", "bf16[N,K]"), "sm_90a", FRAGMENTS[0], Make, "x",
    ),
}  # fmt: skip


@cache
def plan(name: str) -> KernelPlan:
    function, signature, arch, schedule, *_ = KERNELS[name]
    return pg.fuse(function).compile(*signature, arch=arch, schedule=schedule).passes.plan


@pytest.mark.parametrize("name", KERNELS)
def test_what_moves_whole_pieces_asks_for_rows_of_them(name: str) -> None:
    *_, kind, arrays = KERNELS[name]
    assert plan(name).of(kind)
    rows = [one for one in plan_conditions(plan(name)) if one.kind == "row"]
    assert [one.tensor for one in rows] == arrays.split()
    assert {one.multiple for one in rows} == {8}


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_without_a_condition_that_it_relies_on(name: str) -> None:
    """Each condition on rows alone; and where one asks for less."""
    every = plan_conditions(plan(name))
    for one in (condition for condition in every if condition.kind == "row"):
        for less in ((), (dataclasses.replace(one, multiple=4),)):
            left = (*(other for other in every if other != one), *less)
            with pytest.raises(VerifyError, match=f"of the last piece of a row of {one.tensor}"):
                checked(plan(name), left)


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_without_a_condition_on_what_is_aligned(name: str) -> None:
    every = plan_conditions(plan(name))
    aligned = [one for one in every if one.kind in ("address", "step")]
    assert {one.tensor for one in aligned} == set(plan(name).program.tensors)
    for one in aligned:
        for less in ((), (dataclasses.replace(one, multiple=one.multiple // 2),)):
            left = (*(other for other in every if other != one), *less)
            with pytest.raises(VerifyError, match=f"{one.tensor}: nothing asks for {one.kind}s"):
                checked(plan(name), left)


def changed(of: KernelPlan, kind: type, **fields: Any) -> KernelPlan:
    """The plan whose works of a kind have other fields."""
    leaves = tuple(
        dataclasses.replace(leaf, work=dataclasses.replace(leaf.work, **fields))
        if isinstance(leaf.work, kind)
        else leaf
        for leaf in of.leaves
    )
    return dataclasses.replace(of, leaves=leaves)


@pytest.mark.parametrize("name", ["in the background", "through registers"])
def test_copies_of_ragged_rows_rely_on_nothing(name: str) -> None:
    ragged = changed(plan(name), Copy, ragged=True)
    assert not [one for one in plan_conditions(ragged) if one.kind == "row"]
    with pytest.raises(VerifyError, match="elements of the last piece of a row"):
        checked(changed(ragged, Copy, ragged=False), plan_conditions(ragged))


def test_single_elements_rely_on_nothing() -> None:
    kernel = pg.fuse(product).compile("f16[M,K]@2", "f16[N,K]@2", arch="sm_80", schedule=small())
    assert not list(row_ends.row_ends(kernel.passes.plan))


def test_what_is_said_of_a_row_is_said_of_the_whole_row() -> None:
    """A condition on rows of an array says nothing of parts of them."""
    of = plan("in the background")
    part = changed(of, Copy, extents=("M", "L"))
    with pytest.raises(VerifyError, match="rows of L elements may end there"):
        checked(part, plan_conditions(of))


def test_work_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ends, "_INSIDE", row_ends._INSIDE - {row_ends.Product})
    with pytest.raises(VerifyError, match="nobody says what it moves of a row that ends inside"):
        plan_conditions(plan("by lanes"))


def test_rows_of_known_length_are_ragged_from_the_start() -> None:
    """Where the length of rows is a number, no variant is compiled to find out."""
    for arch, schedule in (("sm_80", small()), ("sm_75", "auto")):
        kernel = pg.fuse(product).compile(
            "f16[M,45]", "f16[N,45]", arch=arch, schedule=schedule,
            sizes={"x.pitch": 48, "w.pitch": 48},
        )  # fmt: skip
        assert all(copy.ragged for copy in kernel.passes.plan.of(Copy))
        assert not [one for one in kernel.passes.source.conditions if one.kind == "row"]
