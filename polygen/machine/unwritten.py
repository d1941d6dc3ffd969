"""Registers and shared memory that nothing has written: what comes of them must not be used.

1. A register is *doubtful* when on some path from the entry an instruction reads it before one
   writes it. Most kernels have none, and then nothing is watched.
2. For the doubtful ones, and all that are computed from them, a flag per thread tells whether the
   value depends on a register that was not written (`step`). Moving and computing is no mistake:
   compilers do it with values that they then do not use.
3. A finding is where such a value is stored in global memory, is an address, decides a branch or a
   predicate of what has effects, or is an operand of a matrix instruction. Shared and local memory
   may hold it, as they do when whole vectors of a masked load are put there.
4. What a load finds in shared memory that nothing has written is followed likewise, as loops that
   look one element ahead read behind the last: the first such load begins the launch again, with
   all loads followed (`Again`). That it leaves the registers, by a shuffle or a store, is a use.
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
     "barrier", "mbarrier", "bra", "exit", "ret", "trap", "tex", "tld4", "suld", "sust",
     "tensormap"]
)  # fmt: skip
EVERYWHERE = True  # the flags of a register that no thread has written
REGISTER = 1  # a flag: it depends on a register; larger ones are of loads, by their first places
_EXCHANGES = frozenset(["shfl", "vote", "match", "redux", "activemask", "elect", "movmatrix"])


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is watched in a kernel.

    Attributes:
        registers: those that may be read before they are written.
        followed: they, what `loads` write, and what is computed from them.
        loads: positions of loads that may be from shared memory, where these are followed.
    """

    registers: frozenset[str]
    followed: frozenset[str]
    loads: frozenset[int] = frozenset()


class Again(Exception):
    """The launch has to begin again, with more of it watched.

    Attributes:
        buffers: of global memory, by their numbers: see `stores`.
        loads: whether loads from shared memory are followed.
    """

    def __init__(self, buffers: frozenset[int] = frozenset(), loads: bool = False) -> None:
        super().__init__(f"buffers {sorted(buffers)}, loads {loads}")
        self.buffers, self.loads = buffers, loads


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction that touches followed registers.

    Attributes:
        reads: followed registers that it reads, its predicate apart.
        writes: followed registers that it writes.
        predicate: of the instruction, when that is followed; else "".
        sums: followed accumulators of ``wgmma``, which are read where its predicate holds.
        either: the two operands of ``selp``, of which one counts; else empty.
        decides: operands of a logical operation, one of which may decide it alone; else empty.
        by: the value with which it does.
        leaves: followed registers whose values leave the registers of the thread.
        sink: whether an unwritten operand is a finding.
        position: of the instruction.
        names: all of these registers.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    predicate: str
    sums: tuple[str, ...]
    either: tuple[str, ...]
    decides: tuple[str, ...]
    by: bool
    leaves: tuple[str, ...]
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


def may_load_shared(one: Instruction) -> bool:
    """Whether an instruction is a load that may be from shared memory."""
    spaces = {part.split("::")[0] for part in one.parts}
    return one.parts[0] == "ld" and not spaces & {"global", "local", "param", "const"}


def doubtful(program: Program, follow_loads: bool = False) -> Doubt:
    """The registers of a kernel that may be read before they are written, and what they reach."""
    kernel, blocks, code = program.kernel, program.blocks, program.kernel.instructions
    reads = [_reads(one, kernel) for one in code]
    writes = [_writes(one, kernel) for one in code]
    written = [
        {
            name
            for at in range(block.begin, block.end)
            if not code[at].predicate
            for name in writes[at]
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
        for at in range(block.begin, block.end):
            one = code[at]
            found.update(name for name in reads[at] if name not in known)
            if one.predicate and one.predicate not in known:
                found.add(one.predicate)
            if one.parts[:2] == ("wgmma", "mma_async"):
                found.update(name for name in writes[at] if name not in known)
            if not one.predicate:
                known.update(writes[at])
    loads = {at for at, one in enumerate(code) if follow_loads and may_load_shared(one)}
    followed, size = found.union(*(writes[at] for at in loads)), 0
    apart = _SINKS | _EXCHANGES
    passing = [
        ({*read, one.predicate}, write)
        for one, read, write in zip(code, reads, writes, strict=True)
        if followed and one.parts[0] not in apart
    ]
    while len(followed) != size:
        size = len(followed)
        for sources, targets in passing:
            if followed & sources:
                followed.update(targets)
    return Doubt(frozenset(found), frozenset(followed), frozenset(loads))


def watch(w: Writer, one: Instruction, doubt: Doubt) -> None:
    """Emit what follows the flags through an instruction, in front of it."""
    followed, kernel = doubt.followed, w.kernel
    written = tuple(name for name in _writes(one, kernel) if name in followed)
    reads = tuple(name for name in _reads(one, kernel) if name in followed)
    predicate = one.predicate if one.predicate in followed else ""
    leaves: tuple[str, ...] = ()
    if doubt.loads and (one.parts[0] in _EXCHANGES or one.parts[0] == "st"):
        hidden = {*names_in(",".join(one.operands[1:]), kernel)} - {*_reads(one, kernel)}
        other = _reads(one, kernel) if one.parts[0] in _EXCHANGES else sorted(hidden)
        leaves = tuple(name for name in other if name in followed)
    multiplies = one.parts[:2] == ("wgmma", "mma_async")
    if not (written or reads or predicate or leaves):
        return
    first = one.parts[0]
    either: tuple[str, ...] = ()
    decides, choice = _deciders(one), "None"
    if decides:
        choice = f"({', '.join(w.read(text, '?') for text in decides)},)"
    elif first == "selp":
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
        tuple(name.removeprefix("!") for name in decides),
        "or" in one.parts,
        leaves,
        first in _SINKS,
        w.position,
        frozenset({*reads, *written, *leaves, predicate, *either} & followed),
    )
    if w.followed is None:
        w.followed = set()
        w.recheck = True
    if w.recheck:  # only what has flags at the block's begin, or gets them by a load, has them
        w.emit(f"U = not M.unwritten.keys().isdisjoint({w.constant(w.followed)})")
        w.recheck = False
    w.followed.update(step.names)
    w.emit(f"if U: unwritten.step(M, L, {w.constant(step)}, {guard}, {choice})")
    if w.position in doubt.loads:
        w.recheck = True


def _deciders(one: Instruction) -> tuple[str, ...]:
    """Operands of a logical operation of predicates of which one alone may decide the result."""
    logical = {"and", "or"} & set(one.parts)
    if logical and one.parts[0] == "setp":
        return one.operands[-1:]
    return one.operands[1:3] if logical and one.parts[-1] == "pred" else ()


def step(machine: Machine, lanes: Lanes, one: Step, guard: Any, choice: Any) -> None:
    """Pass flags on from what an instruction reads to what it writes, and report a bad use.

    Args:
        machine: whose flags and findings.
        lanes: that execute the instruction.
        one: the instruction.
        guard: its predicate per lane; None without one.
        choice: the predicate of ``selp``, or of adding to accumulators, per lane; the values of
            operands that may decide; else None.
    """
    known = machine.unwritten
    if known.keys().isdisjoint(one.names):
        return

    def now(name: str) -> Any:
        return _flags(machine, name)[lanes.index] if name in known else np.int32(0)

    here = np.ones(lanes.count, bool) if guard is None else full(lanes, guard)
    tainted = np.zeros(lanes.count, np.int32)
    for name in one.reads:
        tainted = np.maximum(tainted, now(name))
    if one.either:
        tainted = np.maximum(
            tainted, np.where(full(lanes, choice), now(one.either[0]), now(one.either[1]))
        )
    for name, value in zip(one.decides, choice if one.decides else (), strict=True):
        tainted = np.where((now(name) == 0) & (full(lanes, value) == one.by), 0, tainted)
    for name in one.leaves:
        flags = now(name) * here
        _report(machine, lanes, np.where(flags > REGISTER, flags, 0), one, (name,))
    if one.sink:
        for name in one.sums:
            counts = True if choice is None else full(lanes, choice)
            tainted = np.maximum(tainted, now(name) * counts)
        bad = tainted * here
        if one.predicate:
            bad = np.maximum(bad, now(one.predicate))
        _report(machine, lanes, bad, one, (*one.reads, *one.sums, one.predicate))
        tainted[:] = 0  # told once; what memory holds is watched elsewhere
    elif one.predicate:
        tainted = np.maximum(tainted, now(one.predicate))
    for name in one.writes:
        if lanes.everyone and guard is None and not tainted.any():
            known.pop(name, None)
            continue
        column = _flags(machine, name)
        column[lanes.index] = np.where(here, tainted, column[lanes.index])
        if not column.any():
            del known[name]


def _flags(machine: Machine, name: str) -> Vector:
    """The flags of a register, one per thread of the wave."""
    found = machine.unwritten.get(name)
    if found is None or found is EVERYWHERE:
        found = np.full(machine.geometry.total, REGISTER * (found is EVERYWHERE), np.int32)
        machine.unwritten[name] = found
    return found


def _report(
    machine: Machine, lanes: Lanes, bad: Vector, one: Step, suspects: tuple[str, ...]
) -> None:
    """A use of what nothing has written, by lanes whose flags are not 0."""
    for flag in np.unique(bad[bad > 0]).tolist():
        wrong = bad == flag
        if flag > REGISTER:
            sentence, position = machine.unwritten_loads[flag - REGISTER - 1]
            machine.findings.add(
                "uninitialised-shared-read", sentence, position, count=int(wrong.sum())
            )
            continue
        lane = int(np.flatnonzero(wrong)[0])
        name = next(n for n in suspects if n and np.any(_flags(machine, n)[lanes.index] == flag))
        machine.findings.add(
            "unwritten-register",
            f"{lanes.name(lane)} uses register {name}, which nothing has written, or what was "
            "computed from such a register",
            one.position,
            count=int(wrong.sum()),
        )


def loaded(machine: Machine, lanes: Lanes, never: Vector, sentence: str, position: int) -> None:
    """A load whose flags are followed has found bytes that nothing has written.

    Args:
        machine: whose flags.
        lanes: that load.
        never: which of their cells, one row per lane.
        sentence: what is found when it matters.
        position: of the load.
    """
    one = machine.program.kernel.instructions[position]
    targets = [part.strip() for part in one.operands[0].strip("{}").split(",")]
    machine.unwritten_loads.append((sentence, position))
    flag = len(machine.unwritten_loads) + REGISTER
    parts = len(targets) if never.shape[1] % len(targets) == 0 else 1
    by_part = never.reshape(lanes.count, parts, -1).any(2)
    for place, name in enumerate(targets):
        if name in machine.program.kernel.registers:
            column = _flags(machine, name)
            column[lanes.index[by_part[:, place % parts]]] = flag
