"""Registers that nothing has written: what comes of them must not be used.

1. A register is *doubtful* when on some path from the entry an instruction reads it before one
   writes it. Most kernels have none, and then nothing is watched.
2. For the doubtful ones, and all that are computed from them, a flag per thread tells whether the
   value depends on a register that was not written (`step`). Moving and computing is no mistake:
   compilers do it with values that they then do not use.
3. A finding is where such a value is stored in global memory, is an address, decides a branch or a
   predicate of what has effects, or is an operand of a matrix instruction. Shared and local memory
   may hold it, as they do when whole vectors of a masked load are put there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine.blocks import Block, Program, definitions, names_in
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.module import Instruction, Kernel

if TYPE_CHECKING:
    from polygen.machine.state import Machine
    from polygen.machine.writer import Writer

_SINKS = frozenset(
    ["st", "ld", "atom", "red", "cp", "mma", "wgmma", "wmma", "ldmatrix", "stmatrix", "bar",
     "barrier", "mbarrier", "bra", "exit", "ret", "trap"]
)  # fmt: skip
EVERYWHERE = True  # the flags of a register that no thread has written
_EXCHANGES = frozenset(["shfl", "vote", "match", "redux", "activemask", "elect"])


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is watched in a kernel.

    Attributes:
        registers: those that may be read before they are written.
        followed: they, and what is computed from them.
    """

    registers: frozenset[str]
    followed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction that touches followed registers.

    Attributes:
        reads: followed registers that it reads, its predicate apart.
        writes: followed registers that it writes.
        predicate: of the instruction, when that is followed; else "".
        sums: followed accumulators of ``wgmma``, which are read where its predicate holds.
        either: the two operands of ``selp``, of which one counts; else empty.
        sink: whether an unwritten operand is a finding.
        position: of the instruction.
        names: all of these registers.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    predicate: str
    sums: tuple[str, ...]
    either: tuple[str, ...]
    sink: bool
    position: int
    names: frozenset[str]


def _reads(one: Instruction, kernel: Kernel) -> list[str]:
    """Registers whose values an instruction uses, but for its predicate and accumulators."""
    keeps = bool(_writes(one, kernel)) or one.operands[:1] in (("_",), ("_|_",))
    rest = one.operands[1:] if keeps else one.operands
    if one.parts[0] == "st" and any(part.startswith(("shared", "local")) for part in one.parts):
        rest = one.operands[:1] + one.operands[2:]  # of st.async, the mbarrier's address
    return [name for operand in rest for name in names_in(operand, kernel)]


def _writes(one: Instruction, kernel: Kernel) -> list[str]:
    """Registers that an instruction writes; the address of an arrival without a result is none."""
    return [] if one.operands[:1] and one.operands[0].startswith("[") else definitions(one, kernel)


def _follows(block: Block, number: int, program: Program) -> list[int]:
    """The blocks that may come after a block."""
    one = block.terminator
    found = [number + 1]
    if one is not None and one.parts[0] in ("bra", "ret", "exit", "trap"):
        if not one.predicate:
            found = []
        if one.parts[0] == "bra":
            found.append(program.block_of[one.operands[0]])
    return [one for one in found if one < len(program.blocks)]


def doubtful(program: Program) -> Doubt:
    """The registers of a kernel that may be read before they are written, and what they reach."""
    kernel, blocks = program.kernel, program.blocks
    written = [
        {
            name
            for one in kernel.instructions[block.begin : block.end]
            if not one.predicate
            for name in _writes(one, kernel)
        }
        for block in blocks
    ]
    sure: list[set[str] | None] = [None] * len(blocks)  # written on all ways to a block
    sure[:1] = [set()]
    waiting = [0]
    while waiting:
        number = waiting.pop()
        known = sure[number]
        assert known is not None
        after = known | written[number]
        for following in _follows(blocks[number], number, program):
            old = sure[following]
            new = set(after) if old is None else old & after
            if new != old:
                sure[following] = new
                waiting.append(following)
    found: set[str] = set()
    for block, known in zip(blocks, sure, strict=True):
        if known is None:
            continue
        known = set(known)
        for one in kernel.instructions[block.begin : block.end]:
            read = _reads(one, kernel) + ([one.predicate] if one.predicate else [])
            if one.parts[:2] == ("wgmma", "mma_async"):
                read += _writes(one, kernel)
            found.update(name for name in read if name not in known)
            if not one.predicate:
                known.update(_writes(one, kernel))
    followed, size = set(found), 0
    passing = [
        ({*_reads(one, kernel), one.predicate}, _writes(one, kernel))
        for one in kernel.instructions
        if found and one.parts[0] not in _SINKS | _EXCHANGES
    ]
    while len(followed) != size:
        size = len(followed)
        for sources, targets in passing:
            if followed & sources:
                followed.update(targets)
    return Doubt(frozenset(found), frozenset(followed))


def watch(w: Writer, one: Instruction, doubt: Doubt) -> None:
    """Emit what follows the flags through an instruction, in front of it."""
    followed, kernel = doubt.followed, w.kernel
    written = tuple(name for name in _writes(one, kernel) if name in followed)
    reads = tuple(name for name in _reads(one, kernel) if name in followed)
    predicate = one.predicate if one.predicate in followed else ""
    multiplies = one.parts[:2] == ("wgmma", "mma_async")
    if not (written or reads or predicate):
        return
    first = one.parts[0]
    either: tuple[str, ...] = ()
    choice = "None"
    if first == "selp":
        either = one.operands[1:3]
        reads = tuple(name for name in one.operands[3:] if name in followed)
        choice = w.read(one.operands[3], "?")
    elif multiplies and len(one.operands) > 3:
        scale = one.operands[3]
        choice = f"N.bool_({scale != '0'})" if scale.isdigit() else w.read(scale, "?")
    guard = "None"
    if one.predicate:
        name = w.read(one.predicate, "?")
        guard = w.fresh(f"~{name}") if one.negated else name
    step = Step(
        () if first in _EXCHANGES else reads,  # other lanes' values: not followed
        written,
        predicate,
        written if multiplies else (),
        either,
        first in _SINKS,
        w.position,
        frozenset({*reads, *written, predicate, *either} & followed),
    )
    if w.followed is None:  # only what is followed at the block's begin has flags in it
        w.followed = set()
        w.emit(f"U = not M.unwritten.keys().isdisjoint({w.constant(w.followed)})")
    w.followed.update(step.names)
    w.emit(f"if U: unwritten.step(M, L, {w.constant(step)}, {guard}, {choice})")


def step(machine: Machine, lanes: Lanes, one: Step, guard: Any, choice: Any) -> None:
    """Pass flags on from what an instruction reads to what it writes, and report a bad use.

    Args:
        machine: whose flags and findings.
        lanes: that execute the instruction.
        one: the instruction.
        guard: its predicate per lane; None without one.
        choice: the predicate of ``selp``, or of adding to accumulators, per lane; else None.
    """
    known = machine.unwritten
    if known.keys().isdisjoint(one.names):
        return

    def flags(name: str) -> Vector:
        found = known.get(name)
        if found is None or found is EVERYWHERE:
            found = known[name] = np.full(machine.geometry.total, found is EVERYWHERE)
        return found

    def now(name: str) -> Any:
        return flags(name)[lanes.index] if name in known else np.bool_(False)

    here = np.ones(lanes.count, bool) if guard is None else full(lanes, guard)
    tainted = np.zeros(lanes.count, bool)
    suspects = list(one.reads)
    for name in one.reads:
        tainted |= now(name)
    if one.either:
        tainted |= np.where(full(lanes, choice), now(one.either[0]), now(one.either[1]))
    if one.sink:
        for name in one.sums:
            tainted |= now(name) & (True if choice is None else full(lanes, choice))
        bad = tainted & here
        if one.predicate:
            bad |= now(one.predicate)
        if bad.any():
            suspects += [*one.sums, one.predicate]
            lane = int(np.flatnonzero(bad)[0])
            name = next(name for name in suspects if name and np.any(now(name)))
            machine.findings.add(
                "unwritten-register",
                f"{lanes.name(lane)} uses register {name}, which nothing has written, or what was "
                "computed from such a register",
                one.position,
                count=int(bad.sum()),
            )
        tainted = np.zeros(lanes.count, bool)  # told once; what memory holds is watched elsewhere
    elif one.predicate:
        tainted = tainted | now(one.predicate)
    for name in one.writes:
        if lanes.everyone and guard is None and not tainted.any():
            known.pop(name, None)
            continue
        column = flags(name)
        column[lanes.index] = np.where(here, tainted, column[lanes.index])
        if not column.any():
            del known[name]
