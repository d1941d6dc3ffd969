"""Leaves of products that share sums that do not do what the program says are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.errors import VerifyError
from polygen.hardware.device import device
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.pipeline import generate


@pytest.fixture(scope="module")
def plan() -> KernelPlan:
    program = pg.fuse(low_rank).program(*signature(24))
    return generate(program, device("sm_90a"), {}, form()).plan


def _boxes(work):
    (one,) = work.boxes
    return replace(work, boxes=(replace(one, corner=("0", "b_n * 64")),))


CHANGES: dict[str, tuple[str, Callable]] = {
    "terms overwrite the sums": (
        "multiply_rest", lambda work: replace(work, overwrites=(("s", 0),)),
    ),
    "terms are added to other sums": (
        "multiply_rest", lambda work: replace(work, total="sum_middle"),
    ),
    "too few columns": ("multiply_middle", lambda work: replace(work, columns=16)),
    "registers in another order": (
        "convert", lambda work: replace(work, registers=work.registers[::-1]),
    ),
    "columns that there are not": ("convert", lambda work: replace(work, groups=4)),
    "sums that are not rounded as they are said to be": (
        "convert", lambda work: replace(work, statements=()),
    ),
    "a tile of other columns": ("fill_rest", _boxes),
    "runs of other tiles": ("locate", lambda work: replace(work, run=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_leaf_that_does_something_else_is_refused(plan: KernelPlan, name: str) -> None:
    statement, change = CHANGES[name]
    leaves = tuple(
        replace(leaf, work=change(leaf.work)) if leaf.statement == statement else leaf
        for leaf in plan.leaves
    )
    assert leaves != plan.leaves and verify(plan)
    with pytest.raises(VerifyError):
        verify(replace(plan, leaves=leaves))
