"""What takes the reciprocals that short forms of functions end with.

`silu`, `gelu_tanh` and `sigmoid` are e^x and a reciprocal. By the special function unit the latter
is one instruction instead of five, but a multiprocessor starts an eighth as many of them. Where
consumers multiply in turn, one of them goes through its sums at a time, and waits for its own
instructions rather than for the unit. Where several do, or others compute operands meanwhile, the
unit would keep them waiting.
"""

from __future__ import annotations

from polygen.frontend.expansion import expand
from polygen.frontend.functions import TABLE
from polygen.frontend.program import Program
from polygen.schedule.model import Schedule
from polygen.schedule.sums import SPECIAL_UNIT


def reciprocals(schedule: Schedule, program: Program, products: Program) -> str:
    """`SPECIAL_UNIT` where it takes them; "" where it does not, or there are none.

    With invariant dims every kernel has the same forms, whoever multiplies.

    Args:
        schedule: the decisions.
        program: what is computed.
        products: the same, computed operands as arguments.
    """
    if schedule.roles.form != "pingpong" or program.invariant:
        return ""
    behind = set(products.pointwise)
    before = any(_has_sigmoid(one.function) for one in program.pointwise if one not in behind)
    found = any(_has_sigmoid(one.function) for one in behind)
    return SPECIAL_UNIT if found and not before else ""


def _has_sigmoid(function: str) -> bool:
    if function not in TABLE:  # a cast
        return False
    found: list[str] = []

    def note(primitive: str, *_: object) -> str:
        found.append(primitive)
        return primitive

    expand(function, ["x"] * len(TABLE[function].parameters), note)
    return "sigmoid" in found
