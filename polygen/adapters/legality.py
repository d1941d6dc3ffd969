"""Whether a kernel can be made of a program, found out before anything is generated.

The analysis is the one that an automatic choice of schedule begins with; it needs no device, and is
kept, in memory and on disk.
"""

from __future__ import annotations

import functools

from polygen.analysis import ISL_LOCK, prospect
from polygen.chained import is_chain, matched
from polygen.errors import PolygenError, UnsupportedProgram
from polygen.frontend.program import Program
from polygen.pipeline import check_length
from polygen.poly.chain_operands import require_copies
from polygen.rewrite.cuts import cuts
from polygen.rewrite.programs import rewritten


@functools.lru_cache(maxsize=1024)
def refusal(program: Program) -> PolygenError | None:
    """Why no kernel can be made of a program; None: one can, if a device has the instruction.

    Args:
        program: of at least one statement; of a chain, by `with_numbers`.
    """
    if not program.contractions:
        return UnsupportedProgram(
            "no product", where=program.name, why="polygen fuses work around a matrix product"
        )
    try:
        check_length(program)
        if is_chain(program):
            with ISL_LOCK:
                require_copies(matched(program))
        else:
            prospect(program)
            found = rewritten(program).first
            if found:
                return _made_before(program, found)
    except PolygenError as reason:
        return reason
    return None


def refusal_in_order(program: Program) -> PolygenError | None:
    """Why neither one kernel nor several in a row can be made of a program; None: they can.

    Args:
        program: of at least one statement; its sizes may be symbolic.
    """
    reason = refusal(program)
    if reason is None or len(program.contractions) <= 1:
        return reason
    for cut in cuts(program, {}):
        if refusal(cut.before) is None and refusal_in_order(cut.after) is None:
            return None
    return reason


def _made_before(program: Program, values: tuple[str, ...]) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{', '.join(values)}: an operand with folds over its own rows",
        where=program.name,
        why="a launch before the kernel makes it, and pieces of graphs and operators have none "
        "that folds",
        nearest="Compute the operand beside the operator, or call polygen.fuse's function",
    )
