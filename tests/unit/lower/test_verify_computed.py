"""A plan whose leaves compute an operand otherwise than the program says is refused."""

import dataclasses
from functools import cache

import pytest
from matrix import small

from polygen import fuse, indices, silu
from polygen.errors import VerifyError
from polygen.frontend.dtypes import F16
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.lower.work import Copy, Fill
from polygen.schedule.load import load_schedule, schedules_folder

SIGNATURE = ("bf16[2,M,K]", "s8[B,N,K]", "f32[N]", "bf16[K]", "f32")


def function(x, q, s, g, a):
    """Both operands computed: of a slice and coordinates, and of narrow weights with scales."""
    i, j = indices(x[1])
    left = silu(x[1] * g + a) * (j - i)
    return left.astype("bf16") @ (q.astype("bf16") * s[:, None]).mT.astype("bf16")


@cache
def plan(family: str) -> KernelPlan:
    name = {"warps": "sm_80/64x64x64_w32x32_s4.toml", "roles": "sm_90a/cooperative_128x64x64.toml"}
    one = load_schedule(schedules_folder() / name[family])
    if family == "roles":
        one = dataclasses.replace(
            one,
            roles=dataclasses.replace(one.roles, producer_registers=152, consumer_registers=176),
            pipeline=dataclasses.replace(one.pipeline, stages=3),
        )
    arch = name[family].split("/")[0]
    return fuse(function).compile(*SIGNATURE, arch=arch, schedule=one).passes.plan


def changed(of: KernelPlan, operand: str, change) -> KernelPlan:
    """The plan with the copy of one operand changed, whoever makes it."""
    leaves = []
    for leaf in of.leaves:
        work = leaf.work
        if isinstance(work, Copy) and work.operand == operand:
            work = change(work)
        elif isinstance(work, Fill):
            sources = tuple(
                dataclasses.replace(s, copy=change(s.copy)) if s.copy.operand == operand else s
                for s in work.sources
            )
            work = dataclasses.replace(work, sources=sources)
        leaves.append(dataclasses.replace(leaf, work=work))
    return dataclasses.replace(of, leaves=tuple(leaves))


def computed(change):
    return lambda copy: dataclasses.replace(copy, computed=change(copy.computed))


def record(**changes):
    return computed(lambda one: dataclasses.replace(one, **changes))


def fetch(name, **changes):
    """Changes what is read of one array."""

    def apply(one):
        fetches = tuple(
            dataclasses.replace(f, **changes) if f.tensor.name == name else f for f in one.fetches
        )
        return dataclasses.replace(one, fetches=fetches)

    return computed(apply)


def statement(number, **changes):
    def apply(one):
        found = list(one.statements)
        found[number] = dataclasses.replace(found[number], **changes)
        return dataclasses.replace(one, statements=tuple(found))

    return computed(apply)


MUTANTS = {
    "a slice that begins at 0": ("a", fetch("x", base=()), "x is accessed at"),
    "rows of another pitch": ("a", fetch("x", row_step="x_stride0"), "x is accessed at"),
    "a matrix without its batch": ("b", fetch("q", base=()), "q is accessed at"),
    "a scale along k": ("b", fetch("s", row_step="0", column_step="1"), "s is read as row"),
    "a scale of the next row": ("b", fetch("s", base=("1",)), "s is accessed at"),
    "one scale for all rows": ("b", fetch("s", row_step="0"), "s is accessed at"),
    "a vector along rows": ("a", fetch("g", row_step="1"), "g is accessed at"),
    "runs of an array with a step": ("a", fetch("x", kind="spaced"), "is read as spaced"),
    "accesses that are too wide": ("b", fetch("q", width=16), "accesses of 16 bytes"),
    "words of another array": ("a", fetch("g", first=0), "words from 0 on"),
    "fewer words than a chunk takes": ("a", fetch("g", words=2), "into 2 words"),
    "another array": (
        "a",
        computed(
            lambda one: dataclasses.replace(
                one,
                fetches=(
                    dataclasses.replace(one.fetches[0], tensor=one.fetches[1].tensor),
                    *one.fetches[1:],
                ),
            )
        ),
        "is read for x",
    ),
    "an array left out": (
        "a", computed(lambda one: dataclasses.replace(one, fetches=one.fetches[:-1])), "reads",
    ),
    "another function": ("a", statement(0, function="add"), "computes"),
    "arguments exchanged": ("b", statement(1, args=("s_1", "q_0")), "computes"),
    "a statement left out": (
        "a", computed(lambda one: dataclasses.replace(one, statements=one.statements[1:])),
        "computes",
    ),
    "rounding to another type": ("b", statement(-1, dtype=F16), "computes"),
    "another coordinate": (
        "a",
        computed(
            lambda one: dataclasses.replace(
                one, coordinates=tuple((n, p) for (n, _), (_, p) in zip(
                    one.coordinates, one.coordinates[::-1], strict=True))
            )
        ),
        "computes",
    ),
    "rows for columns": (
        "a", computed(lambda one: dataclasses.replace(one, dims=one.dims[::-1])), "ends at",
    ),
    "an end that is not the operand's": (
        "a", lambda copy: dataclasses.replace(copy, extents=("K", "M")), "ends at",
    ),
    "moved where it has to be computed": (
        "a", lambda copy: dataclasses.replace(copy, computed=None), "moves v",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", ["warps", "roles"])
def test_plans_are_sound(family):
    assert verify(plan(family)) is plan(family)


@pytest.mark.parametrize("family", ["warps", "roles"])
@pytest.mark.parametrize("name", MUTANTS)
def test_an_operand_that_is_computed_otherwise_is_refused(name, family):
    operand, change, message = MUTANTS[name]
    with pytest.raises(VerifyError, match=message):
        verify(changed(plan(family), operand, change))


def test_an_argument_that_is_computed_is_refused():
    of = fuse(lambda x, w: x @ silu(w).T).compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=small()
    ).passes.plan  # fmt: skip
    made = next(leaf.work for leaf in of.leaves if getattr(leaf.work, "operand", "") == "b")
    with pytest.raises(VerifyError, match="computes x, which the program moves"):
        verify(changed(of, "a", lambda copy: dataclasses.replace(copy, computed=made.computed)))
