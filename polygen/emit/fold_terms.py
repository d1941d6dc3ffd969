"""Terms of a lane that are all at hand: combined with less work than one after the other.

    extreme = the largest of COUNT values                 one instruction for each
    total += exp(value - extreme)                         a sum of exponentials: no rescaling
    index = the index of a value, where it is larger than all before it

1. `combine_all_NAME<COUNT>` takes arrays of terms in registers, in the order of their indices. Of
   which monoids there is one the vocabulary says (`Monoid.extreme`).
2. A leaf whose tile lies inside of the matrix keeps its terms, which take the place of the sums,
   and combines those of a row at its end. At edges terms go one after the other.
3. An extreme that is NaN says that a value is one: only then the first of them is looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polygen.emit.ctext import definition
from polygen.emit.functions import literal
from polygen.frontend.functions import PUBLIC
from polygen.frontend.monoids import MONOIDS, Monoid
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import TERM_TURNS, Epilogue, FoldPart

_BEATS = {"maximum": ">", "minimum": "<"}


def function(name: str, parameters: Sequence[str]) -> tuple[list[str], list[str]]:
    """The function that combines all terms of a lane, and the helpers that it calls.

    Args:
        name: of the monoid.
        parameters: the components of what has been combined, as references.
    """
    monoid, (value, other) = MONOIDS[name], ("terms0", "terms1")
    extreme = PUBLIC[monoid.extreme]
    body, (next_one,), needs = definition(lambda a, b: (extreme(a, b),), ["extreme", f"{value}[i]"])
    constant = not isinstance(monoid.terms[1], str)
    second = f"const float {other}" if constant else f"const float (&{other})[COUNT]"
    finding, result, more = (_sum if monoid.relative else _index)(monoid, body, next_one)
    lines = [
        "template <int COUNT>",
        f"__device__ __forceinline__ void combine_all_{name}({', '.join(parameters)}, "
        f"const float (&{value})[COUNT], {second}) {{",
        f"  float extreme = {value}[0];",
        *(f"  {line}" for line in finding),
        f"  combine_{name}(a0, a1, extreme, {result});",
        "}",
    ]
    return [line.replace("  #pragma", "#pragma") for line in lines], [*needs, *more]


def _sum(monoid: Monoid, body: list[str], following: str) -> tuple[list[str], str, list[str]]:
    """What values add beside their extreme: two passes."""
    relative = monoid.relative
    assert relative is not None
    terms, (term,), needs = definition(
        lambda v, m: (relative(v, m),), ["terms0[i]", "extreme"], "term_", fast=monoid.short
    )
    lines = [
        *_each(1, [*body, f"extreme = {following};"]),
        f"float total[{TERM_TURNS}] = {{}};",
        *_each(0, [*terms, f"total[i % {TERM_TURNS}] += {term};"]),
    ]
    sums = [f"total[{at}]" for at in range(TERM_TURNS)]
    while len(sums) > 1:
        sums = [f"({a} + {b})" for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return lines, f"terms1 * {sums[0]}", needs


def _index(monoid: Monoid, body: list[str], following: str) -> tuple[list[str], str, list[str]]:
    """The index of the first value that is the extreme."""
    better = f"terms0[i] {_BEATS[monoid.extreme]} extreme"
    lines = [
        "float index = terms1[0];",
        *_each(1, [f"index = {better} ? terms1[i] : index;", *body, f"extreme = {following};"]),
        "if (extreme != extreme) {",
        *(
            f"  {line}"
            for line in _each(0, ["if (terms0[last] != terms0[last]) index = terms1[last];"], True)
        ),
        "}",
    ]
    return lines, "index", []


def _each(first: int, body: Sequence[str], backwards: bool = False) -> list[str]:
    """A loop over terms."""
    last = ["const int last = COUNT - 1 - i;"] if backwards else []
    return [
        "#pragma unroll",
        f"for (int i = {first}; i < COUNT; ++i) {{",
        *(f"  {line}" for line in (*last, *body)),
        "}",
    ]


# --- where terms are made ------------------------------------------------------------------------
def gathered(plan: KernelPlan, e: Epilogue) -> dict[str, Any]:
    """What a leaf declares for terms that are combined at once, and how it ends.

    Returns:
        Lines of C: `gathers` that declare arrays, `combines` behind all terms.
    """
    declared, ends = [], []
    for fold in e.at_once:
        count, slots = _count(plan, e, fold), len(fold.offsets)
        named = [term for term in fold.terms if isinstance(term, str)]
        declared += [f"float {_array(term)}[{slots}][{count}];" for term in named]
        for slot in range(slots):
            into = [f"{name}[m][{slot}][0]" for name in fold.names]
            terms = [
                f"{_array(term)}[{slot}]" if isinstance(term, str) else literal(term)
                for term in fold.terms
            ]
            given = ", ".join((*into, *terms))
            ends.append(f"combine_all_{fold.monoid}<{count}>({given});")
    return {"gathers": declared, "combines": ends}


def kept(plan: KernelPlan, e: Epilogue, fold: FoldPart, element: int, at: int) -> list[str]:
    """A term of an element of instruction n, kept until all are there.

    Args:
        plan: the kernel.
        e: the folds.
        fold: that the term is of.
        element: of the instruction's that the lane has.
        at: which of the terms at hand are its.
    """
    slot = fold.slots[element]
    each = _count(plan, e, fold) // (plan.tiles.columns // plan.atom.n)
    before = fold.slots[:element].count(slot)
    return [
        f"{_array(term)}[{slot}][n * {each} + {before}] = {term}_out[{at}];"
        for term in fold.terms
        if isinstance(term, str)
    ]


def _array(term: str) -> str:
    return f"{term}_terms"


def _count(plan: KernelPlan, e: Epilogue, fold: FoldPart) -> int:
    """Terms of a lane that are of one row."""
    each = {fold.slots.count(slot) for slot in fold.slots}
    assert len(each) == 1  # rows of a lane have as many elements each
    return each.pop() * (plan.tiles.columns // plan.atom.n)
