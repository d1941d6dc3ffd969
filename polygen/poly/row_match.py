"""Products whose operands are made row by row: how, beside what they are to the products."""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.program import Program
from polygen.poly.match import Match
from polygen.poly.row_operands import row_operands, row_prologue


def with_row_operands(matched: Match, program: Program) -> Match:
    """The products, with what their operands are made of that a launch before makes by rows.

    Args:
        matched: of the program whose products read arrays in their place.
        program: that computes them.
    """
    found = row_operands(program)
    operands = tuple(
        (name, replace(one, computed=row_prologue(program, found[one.tensor.name], one.index)))
        if one.tensor.name in found
        else (name, one)
        for name, one in matched.operands
    )
    return replace(matched, operands=operands) if found else matched
