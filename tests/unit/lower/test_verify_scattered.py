"""A plan whose results are stored at other rows than the program's index names is refused."""

import dataclasses
from functools import cache

import pytest
from plan_changes import with_access
from test_verify_gathered import rows

from polygen import fuse
from polygen.errors import VerifyError
from polygen.frontend.program import Access
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.poly.elements import Along
from polygen.poly.prologue_proofs import prove_prologues


def scatter(x, w, r, q, out):
    """Rows by an index, beside another one."""
    out[r] = x @ w.T + q[:, None]
    return out


@cache
def plan() -> KernelPlan:
    signature = ("bf16[T,K]", "bf16[N,K]", "s32[T]", "s32[T]", "bf16[S,N]")
    return fuse(scatter, name="scattered").compile(*signature, arch="sm_90a").passes.plan


STORES = {
    "an index that is forgotten": (None, None),
    "rows of another index": (rows(vector="q"), None),
    "the next row's number": (rows(offset=1), None),
    "a number for two rows": (rows(per=2), None),
    "an end behind the array's": (rows(extent="T"), None),
    "columns for rows": (None, rows()),
}


def test_a_plan_is_sound():
    assert verify(plan()) is plan()


@pytest.mark.parametrize("name", STORES)
def test_other_rows_are_refused(name):
    with pytest.raises(VerifyError, match="out is stored at"):
        verify(with_access(plan(), "out", rows=STORES[name]))


RESULTS = {
    "an index that is forgotten": lambda one: Along(one.dim) if one.rows else one,
    "rows of another index": lambda one: dataclasses.replace(one, rows="q") if one.rows else one,
    "an end behind the array's": lambda one: (
        dataclasses.replace(one, extent="T") if one.rows else one
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_at_other_rows_than_the_programs_is_refused(name):
    of = plan()
    writes = tuple(
        dataclasses.replace(one, index=tuple(map(RESULTS[name], one.index)))
        for one in of.work.writes
    )
    with pytest.raises(VerifyError, match=r"stored by index are .*, in the program out\[r\] of S"):
        verify(dataclasses.replace(of, work=dataclasses.replace(of.work, writes=writes)))


def test_elements_that_are_stored_at_one_place_are_refused():
    """The promise is of numbers, so that places in the vector have to be apart."""
    program = plan().program
    *others, last = program.statements
    first, _ = last.write.index
    twice = dataclasses.replace(last, write=Access("out", (first, 0)))
    with pytest.raises(VerifyError, match=r"stores an element of out\[r\[i\],0\] several times"):
        prove_prologues(dataclasses.replace(program, statements=(*others, twice)))
