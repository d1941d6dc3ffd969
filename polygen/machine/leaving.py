"""Blocks that leave at once, as those of a padded grid do, take no place in a wave.

1. Where the first block of instructions only computes, and then some may go to the end, it is run
   by itself: it touches nothing, and what it computes does not depend on the wave (`gate`).
2. Clusters all of whose threads go to the end are counted, and the wave is made of the others: what
   is done by all of these is done by everyone, without picking lanes, and who left has no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polygen.errors import PtxError
from polygen.machine.blocks import PURE, Program, names_in
from polygen.machine.lanes import Geometry, Lanes, Vector, full
from polygen.machine.report import Findings
from polygen.machine.state import Machine, Options, Placed
from polygen.machine.translate import Translation

_OF_THE_WAVE = ("%smid", "%nsmid", "%clock", "%globaltimer", "smem")
_FAILS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, PtxError)


@dataclass(frozen=True, slots=True)
class Gate:
    """A first block of instructions after which threads may leave.

    Attributes:
        registers: that it names.
        instructions: that a warp executes which leaves there.
    """

    registers: frozenset[str]
    instructions: int


def _end(program: Program, number: int) -> int | None:
    """The instructions to the end of a thread that goes to a block; None: it may do something."""
    if number >= len(program.blocks):
        return 0
    block = program.blocks[number]
    one = block.terminator
    ends = one is not None and one.parts[0] in ("ret", "exit") and not one.predicate
    return 1 if ends and block.end - block.begin == 1 else None


def gate(translation: Translation) -> Gate | None:
    """The gate of a kernel, if it has one."""
    program = translation.program
    if not program.blocks:
        return None
    first, kernel = program.blocks[0], program.kernel
    one = first.terminator
    if one is None or not one.predicate or one.parts[0] not in ("bra", "ret", "exit"):
        return None
    to = program.block_of[one.operands[0]] if one.parts[0] == "bra" else len(program.blocks)
    rest = _end(program, to)
    code = kernel.instructions[first.begin : first.end]
    names = {name for step in code for text in step.operands for name in names_in(text, kernel)}
    names |= {step.predicate for step in code if step.predicate}
    pure = all(
        (step.parts[0] in PURE or step.parts[:2] == ("ld", "param"))
        and not any(name in operand for operand in step.operands for name in _OF_THE_WAVE)
        for step in code[:-1]
    )
    if rest is None or not pure or names & translation.doubt.followed:
        return None
    return Gate(frozenset(names), first.end - first.begin + rest)


def who_stays(
    translation: Translation, found: Gate, geometry: Geometry, placed: Placed
) -> Vector | None:
    """Run the first block.

    Returns:
        The places in the wave of the blocks that stay; None: all, or it fails, as the run will say.
    """
    program = translation.program
    machine = Machine(
        program,
        geometry,
        placed,
        Findings(program.kernel),
        (0, 0, 0),
        Options("late", 0, False, None),
        found.registers,
    )
    lanes = machine.everyone
    if not lanes.everyone:
        lanes = Lanes(geometry, np.flatnonzero(geometry.exists))
    try:
        with np.errstate(all="ignore"):
            function = translation.block(0, lanes.everyone)
            leaves = full(lanes, function(machine, machine.registers, lanes))
    except _FAILS:
        return None
    stays = np.bincount(lanes.cta, ~leaves, len(geometry.ctas)) > 0
    stays = np.repeat(stays.reshape(-1, geometry.cluster).any(1), geometry.cluster)
    return None if stays.all() or not stays.any() else np.flatnonzero(stays)
