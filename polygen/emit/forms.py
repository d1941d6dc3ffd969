"""Which forms of functions a kernel has: by target, and by who goes through sums at a time.

`silu`, `gelu_tanh` and `sigmoid` are e^x and a reciprocal. By the special function unit the latter
is one instruction instead of five, but a multiprocessor starts an eighth as many of them. Where
consumers multiply in turn, one of them goes through its sums at a time, and waits for its own
instructions rather than for the unit. Where several do, or others compute operands meanwhile, the
unit would keep them waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polygen.emit.instructions import computed_chunks
from polygen.emit.leaf.computed_chunk import lines as computed_lines
from polygen.emit.leaf.elements import statements
from polygen.emit.leaf.make_fragments import made_lines
from polygen.emit.leaf.rest import rest_helpers
from polygen.emit.leaf.scan import scan_helpers
from polygen.emit.leaf.tally import tally_helpers
from polygen.emit.primitives import SPECIAL, STEPPED
from polygen.lower.fragments import Make
from polygen.lower.plan import KernelPlan
from polygen.schedule.sums import SPECIAL_UNIT


def helpers(plan: KernelPlan) -> tuple[str, ...]:
    """The files of functions that statements call, behind and before the products."""
    return tuple(dict.fromkeys((*_behind(plan), *_before(plan), *scan_helpers(plan))))


def _behind(plan: KernelPlan) -> list[str]:
    last = [name for one in plan.each for name in statements(one, one.epilogue)[1]]
    every = ((one, e) for one in plan.each for e in one.epilogue.before)
    return [*last, *(name for one, e in every for name in statements(one, e)[1])]


def _before(plan: KernelPlan) -> list[str]:
    found = [name for one in computed_chunks(plan) for name in computed_lines(one)[1]]
    found += [name for work in plan.of(Make) for name in made_lines(work)[1]]
    return [*found, *tally_helpers(plan), *rest_helpers(plan)]


def with_reciprocals(plan: KernelPlan) -> KernelPlan:
    """The plan, which says so where the special function unit takes reciprocals of short forms.

    With invariant dims every kernel has the same forms, whoever multiplies.
    """
    in_turns = plan.schedule.roles.form == "pingpong" and not plan.program.invariant
    if not in_turns or STEPPED not in _behind(plan) or STEPPED in _before(plan):
        return plan
    return replace(plan, sums=replace(plan.sums, reciprocals=SPECIAL_UNIT))


def in_forms(plan: KernelPlan, names: Sequence[str]) -> tuple[str, ...]:
    """The files of functions, each once, in the forms that the target and the kernel have."""
    forms: dict[str, str] = {}
    if not plan.device.has("minmax_nan"):
        forms |= {one: f"{one}_by_select" for one in ("maximum", "minimum")}
    if plan.sums.reciprocals:
        forms |= SPECIAL
    return tuple(forms.get(one, one) for one in dict.fromkeys(names))
