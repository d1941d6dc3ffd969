"""A plan whose copies read other rows than the program's index names is refused."""

import dataclasses
from functools import cache

import pytest
from matrix import roles, small
from plan_changes import with_access
from test_verify_computed import changed, fetch

import polygen as pg
from polygen import fuse
from polygen.errors import VerifyError
from polygen.lower.computed import Rows
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.poly.elements import Along
from polygen.schedule.model import Roles, Schedule

SIGNATURE = ("bf16[S,K]", "s32[T]", "s32[T]", "f32[S]", "bf16[N,K]")
ARCHS = ("sm_80", "sm_90a")


def function(x, r, q, s, w):
    """Rows and numbers of rows by one index; another index beside it."""
    return (x[r] * s[r][:, None] + x[q]) @ w.T


def way(arch: str) -> Schedule:
    """Operands are computed on their way to shared memory, by the producer's threads or by all."""
    by_producer = dataclasses.replace(roles(), roles=Roles("cooperative", 152, 232))
    return by_producer if arch == "sm_90a" else small()


@cache
def plan(arch: str) -> KernelPlan:
    fused = fuse(function, name="gathered")
    return fused.compile(*SIGNATURE, arch=arch, schedule=way(arch)).passes.plan


def rows(**changes):
    return Rows(**{"vector": "r", "scale": 1, "offset": 0, "per": 1, "extent": "S"} | changes)


def match_with(of: KernelPlan, change) -> KernelPlan:
    """The plan whose match says other things of what is read; copies follow it."""
    operands = []
    for name, one in of.match.operands:
        if one.computed is not None:
            reads = tuple(
                dataclasses.replace(r, index=tuple(map(change, r.index)))
                for r in one.computed.reads
            )
            one = dataclasses.replace(one, computed=dataclasses.replace(one.computed, reads=reads))
        operands.append((name, one))
    return dataclasses.replace(of, match=dataclasses.replace(of.match, operands=tuple(operands)))


MUTANTS = {
    "an index that is forgotten": (fetch("s", rows=None), "s is read at its own rows, and is s"),
    "rows of another index": (fetch("s", rows=rows(vector="q")), "vector='q'"),
    "the next row's number": (fetch("s", rows=rows(offset=1)), "offset=1"),
    "every other number": (fetch("s", rows=rows(scale=2)), "scale=2"),
    "a number for two rows": (fetch("s", rows=rows(per=2)), "per=2"),
    "rows of another extent": (fetch("s", rows=rows(extent="T")), "extent='T'"),
    "an index where none is": (fetch("s", rows=rows(), row_step="0"), "s is accessed at 0"),
    "rows of another pitch": (fetch("x", row_step="(2LL * x_stride0)"), "x is accessed at"),
    "rows read along columns": (
        fetch("x", row_step="1", column_step="x_stride0"), "x is read as run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
def test_plans_are_sound(arch):
    assert verify(plan(arch)) is plan(arch)
    kernel = fuse(function).compile(*SIGNATURE, arch=arch, schedule=way(arch))
    assert "row_at(r_, " in kernel.source


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MUTANTS)
def test_other_rows_are_refused(name, arch):
    change, message = MUTANTS[name]
    with pytest.raises(VerifyError, match=message):
        verify(changed(plan(arch), "a", change))


def behind(x, w, b, r, q, c):
    """Rows of a table and numbers of columns, behind the product."""
    return x @ w.T + b[r] + c[q]


@cache
def plan_behind(arch: str) -> KernelPlan:
    signature = ("bf16[M,K]", "bf16[N,K]", "f32[E,N]", "s32[M]", "s32[N]", "f32[E]")
    return fuse(behind, name="behind").compile(*signature, arch=arch).passes.plan


NUMBERS = rows(extent="E")
READS = {
    "an index that is forgotten": ("b", {"rows": (None, None)}),
    "rows of another index": ("b", {"rows": (rows(vector="q", extent="E"), None)}),
    "the next row's number": ("b", {"rows": (rows(offset=1, extent="E"), None)}),
    "columns for rows": ("b", {"rows": (None, NUMBERS)}),
    "rows for columns": ("c", {"rows": (rows(vector="q", extent="E"), None)}),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", READS)
def test_other_rows_behind_a_product_are_refused(name, arch):
    array, changes = READS[name]
    with pytest.raises(VerifyError, match=f"{array} is read at"):
        verify(with_access(plan_behind(arch), array, **changes))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_result_of_other_rows_than_the_programs_is_refused(arch):
    of = plan_behind(arch)
    reads = tuple(
        dataclasses.replace(r, index=tuple(Along(i.dim) if i.rows else i for i in r.index))
        for r in of.work.reads
    )
    with pytest.raises(VerifyError, match=r"the result is computed of .* in the program of"):
        verify(dataclasses.replace(of, work=dataclasses.replace(of.work, reads=reads)))


MATCHES = {
    "an index that is forgotten": lambda one: Along(one.dim) if one.rows else one,
    "rows of another index": lambda one: dataclasses.replace(one, rows="q") if one.rows else one,
    "an end behind the array's": lambda one: (
        dataclasses.replace(one, extent="T") if one.rows else one
    ),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", MATCHES)
def test_a_match_that_says_other_rows_than_the_program_is_refused(name, arch):
    """Also where copies do what it says."""
    with pytest.raises(VerifyError, match="in the program of"):
        verify(match_with(plan(arch), MATCHES[name]))


GROUPED = ("bf16[S,K]", "s32[T]", "bf16[E,K,N]", "s32[E]", "s32[T]", "f32[S,N]")


def grouped(x, r, w, ends, p, out):
    """Rows of groups by one index, stored by another."""
    i, j = pg.indices(x[r])
    kept = pg.where(i + j > 9, x[r], 0).astype("bf16")
    out[p] = pg.grouped_matmul(kept, w, ends)
    return out


@cache
def plan_of_groups(arch: str) -> KernelPlan:
    schedule = way(arch)
    if arch == "sm_90a":
        schedule = dataclasses.replace(
            schedule,
            roles=Roles("cooperative", 152, 176),
            epilogue=dataclasses.replace(schedule.epilogue, through="lines"),
        )
    made = fuse(grouped, name="grouped").compile(*GROUPED, arch=arch, schedule=schedule)
    return made.passes.plan


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_of_groups_by_index_are_those_behind_the_groups_before(arch):
    of = plan_of_groups(arch)
    assert verify(of) is of
    for changes in ({"grouped": False}, {"grouped": True, "offset": 1}):
        change = fetch("x", rows=rows(**{"grouped": True} | changes))
        with pytest.raises(VerifyError, match="x is read at"):
            verify(changed(of, "a", change))
    written = rows(vector="p", grouped=False)
    with pytest.raises(VerifyError, match="out is stored at"):
        verify(with_access(of, "out", rows=(written, None)))


IN_GROUPS = {
    "rows that count from the first of their group": lambda one: (
        dataclasses.replace(one, group="") if one.rows else one
    ),
    "rows of another index": lambda one: dataclasses.replace(one, rows="p") if one.rows else one,
    "groups of no index": lambda one: (
        Along(one.dim, group=one.group) if one.rows else one
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", IN_GROUPS)
def test_a_match_with_other_rows_of_groups_is_refused(name, arch):
    with pytest.raises(VerifyError, match="in the program of"):
        verify(match_with(plan_of_groups(arch), IN_GROUPS[name]))


@pytest.mark.parametrize("arch", ARCHS)
def test_results_that_are_stored_at_rows_of_one_group_are_refused(arch):
    of = plan_of_groups(arch)
    writes = tuple(
        dataclasses.replace(
            w, index=tuple(dataclasses.replace(i, group="") if i.rows else i for i in w.index)
        )
        for w in of.work.writes
    )
    with pytest.raises(VerifyError, match=r"stored by index are .* in the program"):
        verify(dataclasses.replace(of, work=dataclasses.replace(of.work, writes=writes)))


@pytest.mark.parametrize("arch", ARCHS)
def test_coordinates_of_another_batch_dim_are_refused(arch):
    of = plan_of_groups(arch)
    operands = []
    for name, one in of.match.operands:
        if one.computed is not None:
            at = tuple(
                (variable, dataclasses.replace(place, group="z9") if place.group else place)
                for variable, place in one.computed.coordinates
            )
            one = dataclasses.replace(
                one, computed=dataclasses.replace(one.computed, coordinates=at)
            )
        operands.append((name, one))
    match = dataclasses.replace(of.match, operands=tuple(operands))
    with pytest.raises(VerifyError, match=r"computes|is no row of a group"):
        verify(dataclasses.replace(of, match=match))
