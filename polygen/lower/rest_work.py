"""What the leaf between two products works on that share sums: registers, on both sides."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.poly.elements import Compute, Element


@dataclass(frozen=True, slots=True)
class Convert:
    """Sums of a product -> the left operand of the next, in the registers where they are.

    Attributes:
        total: the sums.
        fragment: the operand.
        value: what the statements call a sum.
        statements: on one of them; the last rounds to what is multiplied.
        reads: numbers that they use.
        dtype: what is multiplied.
        rows: instructions along m of an agent.
        registers: per k step and register of the operand: the pair of sums that it holds, (group,
            element) of the first, beside the second.
        groups: of columns that there are; those behind them are zero.
    """

    total: str
    fragment: str
    value: str
    statements: tuple[Compute, ...]
    reads: tuple[Element, ...]
    dtype: str
    rows: int
    registers: tuple[tuple[tuple[int, int], ...], ...]
    groups: int
