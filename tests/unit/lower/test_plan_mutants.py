"""Whatever one value of a plan is changed to, the plan is refused or does the same.

All fields of all records that are emitted are gone through (`tests/plan_mutants.py`). A change is
refused by the checks of the plan, or by the table of leaves; or the code and the launch stay the
same, comments aside; or it is listed below, with the reason why it is no mistake.
"""

import dataclasses
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from chain_samples import few_rows
from plan_changes import plan as small
from plan_mutants import mutants, mutated
from test_verify_accesses import plan as large

import polygen as pg
from polygen.emit.cuda import emit
from polygen.emit.source import KernelSource
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.schedule.model import PAIRS

# (record, field) -> why the changes of it that are accepted are no mistakes.
EQUIVALENT = {
    ("Boxes", "once"): "a hint to the L2 cache, which need not keep what is read once",
    ("Stream", "once"): "a hint to the caches, likewise",
    ("Product", "overwrites"): "loops are compared with the numbers one by one, in any order",
    ("Read", "base"): "terms of an address are added up, in any order",
    ("Write", "base"): "terms of an address are added up, in any order",
    ("Copy", "base"): "terms of an address are added up, in any order",
    ("Read", "width"): "the same elements, in narrower accesses",
    ("Write", "width"): "the same elements, in narrower accesses",
    ("Line", "width"): "the same elements, in narrower accesses",
    ("Source", "alignment"): "rows are taken to begin at more places than they do",
    ("Rows", "swizzle"): "another permutation of the chunks of whole rows, for who writes and who "
    "reads them: banks may conflict",
    ("Scan", "fast"): "functions in their full forms, for results of 16 bits",
    ("FoldPart", "turns"): "which of a place's registers takes a term: all are combined, and begin "
    "with what changes nothing; where the order matters it is checked",
    ("Terms", "coordinates"): "helpers have their parameters, and calls what they pass, in another "
    "order; which coordinate has which name is checked",
    ("Epilogue", "fixed_column"): "what is the same in every pass is read again",
}


def _causal(q, k, v):
    s = q @ k.mT
    i, j = pg.indices(s)[-2:]
    return pg.softmax(pg.where(i >= j, s, -np.inf)) @ v


def _shipped(name: str) -> KernelPlan:
    if name == "chain":
        kernel = pg.fuse(lambda q, k, v: pg.softmax(q @ k.mT, axis=-1) @ v).compile(
            "bf16[B,M,64]", "bf16[B,N,64]", "bf16[B,N,64]", arch="sm_90a"
        )
    elif name == "chain in pairs":
        schedule = few_rows()
        raster, rows = replace(schedule.raster, order=PAIRS), replace(schedule.epilogue, prefetch=2)
        schedule = replace(schedule, raster=raster, epilogue=rows)
        kernel = pg.fuse(_causal).compile(
            "bf16[B,M,64]", "bf16[B,N,64]", "bf16[B,N,64]", arch="sm_90a", schedule=schedule
        )
    else:
        kernel = pg.fuse(lambda x, w: pg.softmax(x @ w.T, axis=-1)).compile(
            "bf16[M,K]", "bf16[256,K]", arch="sm_90a"
        )
    return kernel.passes.plan


@cache
def plan(name: str) -> KernelPlan:
    """A kernel of the plans that other tests change, of a chain, or of rows that tiles cover."""
    if name in ("chain", "chain in pairs", "rows"):
        return _shipped(name)
    return small(name.removeprefix("small ")) if name.startswith("small ") else large(name)


QUICK = ("small warps", "small roles", "lanes")
SLOW = (
    "small cluster", "warps", "roles", "shared", "threads", "exchanged", "chain", "chain in pairs",
    "rows",
)  # fmt: skip
CASES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def code(source: KernelSource) -> str:
    """What is compiled and launched, without comments."""
    text = "\n".join(str(getattr(source, field.name)) for field in dataclasses.fields(source))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return " ".join(text.split())


@pytest.mark.parametrize("name", CASES)
def test_every_change_is_refused_or_does_the_same(name):
    of = plan(name)
    unchanged, accepted, refused = code(emit(of, "")), [], 0
    for one in mutants(of):
        changed = mutated(of, one)
        try:
            verify(changed)
            made = code(emit(changed, ""))
        except VerifyError:
            refused += 1
            continue
        if made != unchanged and (one.record, one.field) not in EQUIVALENT:
            accepted.append(one.name)
    assert not accepted
    assert refused > 500


def test_a_record_is_changed_wherever_it_stands():
    of = plan("small roles")
    panel = next(one for one in mutants(of) if one.record == "Panel" and one.field == "address")
    changed = mutated(of, panel)
    finish, store = changed.leaf("finish").work, changed.leaf("store").work
    assert finish.results[0] == store.panels[0][0] != of.leaf("store").work.panels[0][0]


def test_the_fields_named_in_what_was_once_accepted_are_changed():
    """Addresses of panels, threads and dims of lines, parameters, widths, maps: all are tried."""
    found = {(one.record, one.field) for one in mutants(plan("threads"))}
    found |= {(one.record, one.field) for one in mutants(plan("small roles"))}
    assert found >= {
        ("Panel", "address"), ("Panel", "step"), ("Line", "along"), ("Lines", "threads"),
        ("Argument", "kind"), ("Argument", "tensor"), ("Read", "width"), ("MapAxis", "extent"),
        ("MapAxis", "box"), ("Place", "first_warp"), ("Buffer", "slots"), ("Launch", "persistent"),
    }  # fmt: skip
