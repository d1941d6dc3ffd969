"""Terms of a lane that are all at hand: combined with less work than one after the other.

    extreme = the largest of COUNT values                 one instruction for each
    total += exp(value - extreme)                         a sum of exponentials: no rescaling
    index = the index of a value, where it is larger than all before it

1. `combine_all_NAME<COUNT>` takes arrays of terms in registers, in the order of their indices. Of
   which monoids there is one the vocabulary says (`Monoid.extreme`).
2. A leaf whose tile lies inside of the matrix keeps its terms, which take the place of the sums,
   and combines those of a row at its end. At edges terms go one after the other.
3. An extreme that is NaN says that a value is one: only then the first of them is looked for.
4. Where an index is looked for, terms go by groups: the extreme of a group is compared with that of
   those before it, and in the end the index is that of the first in the group that has the extreme.
5. An index that is the column itself is kept as how far it lies behind the lane's first column: a
   number that instructions have in them. That first one is added to the index that is left, in
   floats, which is exact below 2^24 like every coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polygen.emit.ctext import definition
from polygen.emit.doubles import literal_of
from polygen.emit.folds import combined
from polygen.emit.leaves import real_of
from polygen.frontend.dtypes import F32, F64
from polygen.frontend.functions import PUBLIC
from polygen.frontend.monoids import MONOIDS, Monoid
from polygen.lower.folds import at_hand
from polygen.lower.plan import KernelPlan
from polygen.lower.result_work import TERM_TURNS, Epilogue, FoldPart
from polygen.poly.elements import Along

# Terms of a group, of which the extreme alone is compared: a term costs 2 1/4 instructions in the
# place of 3, and a place as many registers as a group has terms.
_GROUP = 4
COLUMN = Along("n")
_BEATS = {"maximum": ">", "minimum": "<"}


def function_of_many(
    name: str, parameters: Sequence[str], count: int, real: str
) -> tuple[list[str], list[str]]:
    """The function that combines so many terms of a lane; beside values there are numbers.

    Args:
        name: of a monoid whose values have components of many.
        parameters: the components of what has been combined, as references.
        count: of the terms.
        real: the C type of terms.
    """
    of_many = MONOIDS[name].of_many
    assert of_many is not None
    values = [f"terms0[{at}]" for at in range(count)]
    body, made, needs = definition(lambda *v: of_many(v), values, "term_", real=real)
    numbers = "".join(f", const {real}" for _ in MONOIDS[name].terms[1:])
    into = ", ".join(one.rpartition(" ")[2] for one in parameters)
    lines = [
        "template <>",
        f"__device__ __forceinline__ void combine_all_{name}<{count}>({', '.join(parameters)}, "
        f"const {real} (&terms0)[{count}]{numbers}) {{",
        *(f"  {line}" for line in body),
        f"  combine_{name}({into}, {', '.join(made)});",
        "}",
    ]
    return lines, needs


def declared_of_many(name: str, parameters: Sequence[str], real: str) -> list[str]:
    """That there are such functions, of different counts."""
    numbers = "".join(f", const {real}" for _ in MONOIDS[name].terms[1:])
    head = f"combine_all_{name}({', '.join(parameters)}, const {real} (&terms0)[COUNT]{numbers})"
    return ["template <int COUNT>", f"__device__ __forceinline__ void {head};"]


def function(name: str, parameters: Sequence[str], real: str) -> tuple[list[str], list[str]]:
    """The function that combines all terms of a lane, and the helpers that it calls.

    Args:
        name: of the monoid.
        parameters: the components of what has been combined, as references.
        real: the C type of terms.
    """
    monoid = MONOIDS[name]
    finding, result, needs = (_sum if monoid.relative else _index)(monoid, real)
    sizes = "int COUNT" if monoid.relative else "int COUNT, int GROUP"
    second = f"{real} terms1"
    if not monoid.relative:
        second = f"{real} (&terms1)[COUNT], const {real} first"
    lines = [
        f"template <{sizes}>",
        f"__device__ __forceinline__ void combine_all_{name}({', '.join(parameters)}, "
        f"const {real} (&terms0)[COUNT], const {second}) {{",
        f"  {real} extreme = terms0[0];",
        *(f"  {line}" for line in finding),
        f"  combine_{name}(a0, a1, extreme, {result});",
        "}",
    ]
    return [line.replace("  #pragma", "#pragma") for line in lines], needs


def _sum(monoid: Monoid, real: str) -> tuple[list[str], str, list[str]]:
    """What values add beside their extreme: two passes."""
    relative = monoid.relative
    assert relative is not None
    terms, (term,), needs = definition(
        lambda v, m: (relative(v, m),),
        ["terms0[i]", "extreme"],
        "term_",
        fast=monoid.short,
        real=real,
    )
    taken, more = _taken(monoid, "extreme", "terms0[i]", real)
    lines = [
        *_each("i", "1", "COUNT", taken),
        f"{real} total[{TERM_TURNS}] = {{}};",
        *_each("i", "0", "COUNT", [*terms, f"total[i % {TERM_TURNS}] += {term};"]),
    ]
    sums = [f"total[{at}]" for at in range(TERM_TURNS)]
    while len(sums) > 1:
        sums = [f"({a} + {b})" for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return lines, f"terms1 * {sums[0]}", [*more, *needs]


def _index(monoid: Monoid, real: str) -> tuple[list[str], str, list[str]]:
    """The index of the first value that is the extreme: of groups, then in the group that has it.

    A group that beats all before it leaves its values; a group's last value is it if no other is.
    """
    of_group, needs = _taken(monoid, "best", "terms0[i + j]", real)
    of_first, _ = _taken(monoid, "extreme", "terms0[j]", real)
    of_all, _ = _taken(monoid, "extreme", "best", real)
    lines = [
        f"{real} index = terms1[0], kept[GROUP];",
        *_each("j", "0", "GROUP", ["kept[j] = terms0[j];", *of_first]),
        *_each("i", "GROUP", "COUNT", [
            f"{real} best = terms0[i];",
            *_each("j", "1", "GROUP", of_group),
            f"const bool better = best {_BEATS[monoid.extreme]} extreme;",
            "index = better ? terms1[i] : index;",
            *_each("j", "0", "GROUP - 1", ["kept[j] = better ? terms0[i + j] : kept[j];"]),
            *of_all,
        ], "i += GROUP"),
        f"{real} behind = terms1[GROUP - 1] - terms1[0];",
        *_each("j", "GROUP - 2", "0", [
            "behind = kept[j] == extreme ? terms1[j] - terms1[0] : behind;",
        ], "--j"),
        "index += behind;",
        "if (__builtin_expect(extreme != extreme, 0)) {",
        *(f"  {line}" for line in _each("i", "COUNT - 1", "0", [
            "if (terms0[i] != terms0[i]) index = terms1[i];",
        ], "--i")),
        "}",
    ]  # fmt: skip
    return lines, "first + index", needs


def _taken(monoid: Monoid, into: str, value: str, real: str) -> tuple[list[str], list[str]]:
    """The extreme of a variable and a value becomes the variable's; and the helpers of that."""
    extreme = PUBLIC[monoid.extreme]
    body, (found,), needs = definition(
        lambda a, b: (extreme(a, b),), [into, value], f"{into}_", real=real
    )
    return [*body, f"{into} = {found};"], needs


def _each(name: str, first: str, last: str, body: Sequence[str], step: str = "") -> list[str]:
    """An unrolled loop: up to before the last number, or down to it."""
    step = step or f"++{name}"
    test = f"{name} >= {last}" if step.startswith("--") else f"{name} < {last}"
    return [
        "#pragma unroll",
        f"for (int {name} = {first}; {test}; {step}) {{",
        *(f"  {line}" for line in body),
        "}",
    ]


# --- of elements that stream from memory ---------------------------------------------------------
def of_streamed(e: Epilogue, place: Callable[[FoldPart], str], real: str) -> list[str]:
    """Statements that combine the terms of a batch of rows, of which all are kept.

    Args:
        e: the folds.
        place: of a fold's registers, those of element `e` of a lane's row `r`.
        real: the C type of terms.
    """
    lines = []
    for fold in e.together:
        of_row = fold.along == "m"
        own = "i" if of_row else "e"
        terms = [
            f"{_array(term)}[{own}]" if isinstance(term, str) else literal_of(term, real)
            for term in fold.terms
        ]
        given = ", ".join([*(name + place(fold) for name in fold.names), *terms])
        call = f"combine_all_{fold.monoid}<{at_hand(e, fold)}>({given});"
        known = "const int r = first + i; " if of_row else ""
        count = e.batch if of_row else e.vector
        head = f"for (int {own} = 0; {own} < {count}; ++{own})"
        lines += ["#pragma unroll", f"{head} {{ {known}{call} }}"]
    return lines


def streamed_terms(e: Epilogue, real: str) -> list[str]:
    """Declarations of the arrays that hold these terms until all of a batch are there."""
    return [
        f"{real} {_array(term)}[{e.batch if fold.along == 'm' else e.vector}][{at_hand(e, fold)}];"
        for fold in e.together
        for term in fold.terms
        if isinstance(term, str)
    ]


def streamed_kept(e: Epilogue) -> list[str]:
    """Statements that keep the outcomes of element `e` of row `i` of a batch."""
    return [
        f"{_array(term)}{'[i][e]' if fold.along == 'm' else '[e][i]'} = {term}_out[e];"
        for fold in e.together
        for term in fold.terms
        if isinstance(term, str)
    ]


# --- where terms are made ------------------------------------------------------------------------
def gathered(plan: KernelPlan, e: Epilogue) -> dict[str, Any]:
    """What a leaf declares for terms that are combined at once, and how it ends.

    Returns:
        Lines of C: `gathers` that declare arrays, `combines` behind all terms.
    """
    declared, ends, real = [], [], real_of(plan)
    for fold in e.at_once:
        count, slots = _count(plan, e, fold), len(fold.offsets)
        named = [term for term in fold.terms if isinstance(term, str)]
        declared += [f"{real} {_array(term)}[{slots}][{count}];" for term in named]
        for slot in range(slots):
            into = [f"{name}[m][{slot}][0]" for name in fold.names]
            terms = [
                f"{_array(term)}[{slot}]" if isinstance(term, str) else literal_of(term, real)
                for term in fold.terms
            ]
            sizes = [count]
            if not MONOIDS[fold.monoid].relative:
                index = named[-1]
                terms.append(_first(plan, e, index))
                sizes.append(_group(plan, e, fold) if is_column(e, index) else 1)
            given = ", ".join((*into, *terms))
            ends.append(f"combine_all_{fold.monoid}<{', '.join(map(str, sizes))}>({given});")
    return {"gathers": declared, "combines": ends}


def together(e: Epilogue) -> list[str]:
    """Statements by which registers that took terms by turns, at edges, become one for each row."""
    lines = []
    for fold in e.at_once:
        for slot in range(len(fold.offsets)):
            into, *others = (
                [f"{name}[m][{slot}][{turn}]" for name in fold.names]
                for turn in range(fold.registers)
            )
            lines += [combined(fold.monoid, into, other) for other in others]
    return lines


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
    behind = e.element_offsets[element][1]
    return [
        f"{_array(term)}[{slot}][n * {each} + {before}] = "
        + (f"n * {plan.atom.n} + {behind}" if is_column(e, term) else f"{term}_out[{at}]")
        + ";"
        for term in fold.terms
        if isinstance(term, str)
    ]


def _group(plan: KernelPlan, e: Epilogue, fold: FoldPart) -> int:
    """How many terms are a group, of which all have the same columns behind their first."""
    own = [at for at, slot in enumerate(fold.slots) if slot == fold.slots[0]]
    behind = [e.element_offsets[at][1] for at in own]
    steps = range(plan.tiles.columns // plan.atom.n)
    columns = np.array([n * plan.atom.n + at for n in steps for at in behind])
    size = math.gcd(len(columns), _GROUP)
    while (np.diff(columns.reshape(-1, size) - columns[::size, None], axis=0) != 0).any():
        size //= 2
    return size


def is_column(e: Epilogue, term: str) -> bool:
    """Whether a term is the number of its element's column, and nothing else."""
    columns = {name for name, along in e.coordinates if along == COLUMN}
    return any(
        s.result == term and s.function == "cast" and s.dtype in (F32, F64) and s.args[0] in columns
        for s in e.statements
    )


def _first(plan: KernelPlan, e: Epilogue, term: str) -> str:
    """What is added to an index that is left: the lane's first column, of indices that lie behind
    it, else nothing.
    """
    real = real_of(plan)
    base = f"({real})({e.column_base} + {e.column_of_lane})"
    return base if is_column(e, term) else literal_of(0.0, real)


def _array(term: str) -> str:
    return f"{term}_terms"


def _count(plan: KernelPlan, e: Epilogue, fold: FoldPart) -> int:
    """Terms of a lane that are of one row."""
    each = {fold.slots.count(slot) for slot in fold.slots}
    assert len(each) == 1  # rows of a lane have as many elements each
    return each.pop() * (plan.tiles.columns // plan.atom.n)
