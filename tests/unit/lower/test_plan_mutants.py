"""Whatever one value of a plan is changed to, the plan is refused or does the same.

All fields of all records that are emitted are gone through (`tests/plan_mutants.py`). A change is
refused by the checks of the plan, or by the table of leaves; or the code and the launch stay the
same, comments aside; or it is listed below, with the reason why it is no mistake.

Of long plans one change in some is tried in the fast tests, and all in the slow ones.
"""

import dataclasses
import itertools
import re
from functools import cache

import pytest
from plan_changes import plan as small
from plan_mutants import mutants, mutated
from plan_samples import sample
from stream_samples import streamed
from test_verify_accesses import plan as large

from polygen.emit.cuda import emit
from polygen.emit.source import KernelSource
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.lower.verify_follow import check_following
from polygen.lower.verify_made import check_preceding

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
    ("Fetch", "width"): "the same elements, in narrower accesses",
    ("Line", "together"): "the same portions, more or fewer of them on their way at once",
    ("Source", "alignment"): "rows are taken to begin at more places than they do",
    ("Rows", "swizzle"): "another permutation of the chunks of whole rows, for who writes and who "
    "reads them: banks may conflict",
    ("Scan", "fast"): "functions in their full forms, for results of 16 bits",
    ("FoldPart", "turns"): "which of a place's registers takes a term: all are combined, and begin "
    "with what changes nothing; where the order matters it is checked",
    ("Terms", "coordinates"): "helpers have their parameters, and calls what they pass, in another "
    "order; which coordinate has which name is checked",
    (
        "Share",
        "first",
    ): "a tile that is moved in one part, whose number is 0, once more as a number",
    ("Share", "end"): "likewise",
    ("Share", "beyond"): "what none of its pieces is",
    ("Share", "step"): "of threads that have one piece each",
    ("Visits", "column"): "the number of a visit, modulo what it is less than",
    ("WordShift", "bit"): "with a bit more, which no shift by whole elements has",
    ("Locate", "computing"): "tiles are found by dividing, or by multiplying with numbers that are "
    "kept; both are proved",
    ("Epilogue", "fixed_column"): "what is the same in every pass is read again",
}


@cache
def plan(name: str) -> KernelPlan:
    """A kernel of the plans that other tests change, or of `plan_samples`."""
    if name in STREAMED:
        own, schedule, rows = STREAMED[name]
        return streamed(own, schedule, rows=rows).passes.plan
    if name in SAMPLES:
        return sample(name)
    return small(name.removeprefix("small ")) if name.startswith("small ") else large(name)


STREAMED = {
    "columns alone": ("columns", "elements_64x256_w16x256_b4", False),
    "rows alone": ("rows", "elements_32x256_w8x256_b4", True),
}
SAMPLES = (
    "chain", "masked chain", "padded chain", "paged chain", "chain in parts", "chain in pairs",
    "chain by warps", "tf32 chain", "chain of what is made", "layers", "layers in one ring",
    "chain in panels", "folded chain", "followed chain", "folded layers", "residuals", "rows",
    "left layers",
    "held rows", "followed", "covered rows", "staged", "copied", "made", "turned", "columns alone",
    "rows alone", "by words",
)  # fmt: skip
QUICK = ("small warps", "lanes", "by words")
# Of these one in so many is tried in the fast tests.
FEW = (
    "masked chain", "paged chain", "chain in parts", "chain in pairs", "chain by warps",
    "tf32 chain", "chain of what is made", "layers", "layers in one ring", "chain in panels",
    "folded chain", "followed chain", "folded layers", "residuals", "left layers", "held rows",
    "followed",
    "covered rows", "staged", "copied", "made", "turned", "columns alone", "rows alone",
    "small roles",
)  # fmt: skip
EVERY = 24
PARTS = 4  # in which all changes of a plan are tried by the slow tests
SLOW = (
    "small roles",
    "small cluster",
    "warps",
    "roles",
    "shared",
    "threads",
    "exchanged",
    *SAMPLES[:-1],
)
CASES = [
    *((name, 0, 1) for name in QUICK),
    *((name, 0, EVERY) for name in FEW),
    *(pytest.param(name, n, PARTS, marks=pytest.mark.slow) for name in SLOW for n in range(PARTS)),
]


def code(source: KernelSource) -> str:
    """What is compiled and launched, without comments, and whether loops are unrolled."""
    text = "\n".join(str(getattr(source, field.name)) for field in dataclasses.fields(source))
    text = re.sub(r"/\*.*?\*/|//[^\n]*|#pragma unroll[^\n]*", "", text, flags=re.DOTALL)
    return " ".join(text.split())


@pytest.mark.parametrize(("name", "first", "every"), CASES)
def test_every_change_is_refused_or_does_the_same(name, first, every):
    of = plan(name)
    unchanged, accepted, refused = code(emit(of, "")), [], 0
    for one in itertools.islice(mutants(of), first, None, every):
        changed = mutated(of, one)
        try:
            verify(changed)
            check_following(changed)
            check_preceding(changed)
            made = code(emit(changed, ""))
        except VerifyError:
            refused += 1
            continue
        if made != unchanged and (one.record, one.field) not in EQUIVALENT:
            accepted.append(one.name)
    assert not accepted
    assert refused > 500 // every


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
