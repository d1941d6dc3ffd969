"""Basic blocks of a kernel, and which registers must live in storage between blocks.

1. A block starts at a label and after every instruction that may change who runs next: branches,
   exits, barriers and mbarrier waits (`TERMINATORS`).
2. A register that some block reads before writing it needs storage; every other register is a
   local variable of its block.
3. A register with one definition, made only of constants, parameters and other such registers, has
   the same value in every thread: it is *uniform* and stored as one scalar.
4. A block with a warp-synchronous instruction should be entered by whole warps, one with wgmma by
   whole warpgroups (`Block.together`); only member masks may name fewer (`Block.strict`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from polygen.errors import PtxError
from polygen.machine import special
from polygen.machine.facts import Facts, facts
from polygen.machine.module import Instruction, Kernel, address

ENDS = frozenset({"bra", "brx", "ret", "exit", "trap"})
_NO_RESULT = frozenset(
    [
        "bra",
        "brx",
        "ret",
        "exit",
        "trap",
        "st",
        "sust",
        "tensormap",
        "red",
        "bar",
        "barrier",
        "cp",
        "fence",
        "membar",
        "griddepcontrol",
        "prefetch",
        "prefetchu",
        "setmaxnreg",
        "stmatrix",
        "nanosleep",
        "discard",
        "applypriority",
        "pmevent",
        "brkpt",
    ]
)
PURE = frozenset(
    [
        "mov",
        "add",
        "sub",
        "mul",
        "mad",
        "fma",
        "div",
        "rem",
        "abs",
        "neg",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "not",
        "shl",
        "shr",
        "selp",
        "setp",
        "cvt",
        "cvta",
        "bfe",
        "bfi",
        "popc",
        "clz",
        "brev",
        "prmt",
        "shf",
        "lop3",
        "slct",
        "copysign",
        "rcp",
        "sqrt",
        "rsqrt",
        "ex2",
        "lg2",
        "sin",
        "cos",
        "tanh",
    ]
)


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``begin .. end-1``; `terminator` is the last one when it ends the block."""

    begin: int
    end: int
    terminator: Instruction | None
    together: int  # threads that should enter together: 1, 32 (a warp) or 128 (a warpgroup)
    strict: bool  # they must: some of them alone is a mistake, not a member mask


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel ready for translation."""

    kernel: Kernel
    blocks: tuple[Block, ...]
    block_of: dict[str, int]  # label -> block number; the number of blocks means the kernel's end
    stored: dict[str, int]  # register -> storage slot, for registers that cross blocks
    uniform: frozenset[str]
    facts: Facts
    symbols: frozenset[str] = frozenset()  # names that stand for addresses


def ends_block(one: Instruction) -> bool:
    """Whether an instruction may change who runs next."""
    first = one.parts[0]
    if first in ENDS or (first == "bar" and one.parts[1] != "warp"):
        return True
    if first == "barrier":
        return True
    if first == "mbarrier":
        return one.parts[1] in ("try_wait", "test_wait")
    return False


def is_strict(one: Instruction) -> bool:
    """Whether an instruction is wrong unless its whole warp (or warpgroup) executes it."""
    named = one.parts[0] == "bar" and one.parts[1] in ("sync", "red")
    return one.parts[0] == "wgmma" or "aligned" in one.parts or named


def width(one: Instruction) -> int:
    """Threads that execute an instruction together: 1, a warp or a warpgroup."""
    if one.parts[0] in ("wgmma", "setmaxnreg"):
        return 128
    return 32 if is_strict(one) or "sync" in one.parts else 1


@functools.lru_cache(maxsize=1 << 16)  # analyses of a kernel ask for the same again and again
def _words(operand: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[%$\w]+", operand))


def names_in(operand: str, kernel: Kernel) -> list[str]:
    """The registers an operand mentions."""
    registers = kernel.registers
    return [name for name in _words(operand) if name in registers]


def definitions(one: Instruction, kernel: Kernel) -> list[str]:
    """The registers an instruction writes."""
    reduces = one.parts[0] in ("bar", "barrier") and "red" in one.parts
    if (one.parts[0] in _NO_RESULT and not reduces) or not one.operands:
        return []
    if one.parts[0] == "mbarrier" and one.parts[1] in ("init", "inval", "expect_tx", "complete_tx"):
        return []
    if one.parts[0] == "wgmma" and one.parts[1] != "mma_async":
        return []
    if one.parts[:2] == ("wmma", "store"):
        return []
    return names_in(one.operands[0], kernel)


def uses(one: Instruction, kernel: Kernel) -> list[str]:
    """The registers an instruction reads; a predicated one also reads what it may leave alone."""
    written = definitions(one, kernel)
    rest = one.operands[1:] if written or _sinks(one) else one.operands
    read = [name for operand in rest for name in names_in(operand, kernel)]
    if one.predicate:
        read += [one.predicate, *written]
    if one.parts[0] in ("wgmma",):
        read += written
    return read


def _sinks(one: Instruction) -> bool:
    return bool(one.operands) and one.operands[0] in ("_", "_|_")


def _cut(kernel: Kernel) -> tuple[Block, ...]:
    code = kernel.instructions
    if not code:
        return ()
    starts = {0, *kernel.labels.values()}
    for position, one in enumerate(code):
        if ends_block(one):
            starts.add(position + 1)
            if one.parts[0] == "mbarrier":  # a parked wait is executed again from its own block
                starts.add(position)
    ordered = sorted(start for start in starts if start < len(code))
    blocks = []
    for begin, end in zip(ordered, [*ordered[1:], len(code)], strict=True):
        last = code[end - 1]
        blocks.append(
            Block(
                begin,
                end,
                last if ends_block(last) else None,
                max(width(one) for one in code[begin:end]),
                any(is_strict(one) for one in code[begin:end]),
            )
        )
    return tuple(blocks)


def _uniform(kernel: Kernel) -> frozenset[str]:
    counts: dict[str, int] = {}
    single: dict[str, Instruction] = {}
    for one in kernel.instructions:
        for name in definitions(one, kernel):
            counts[name] = counts.get(name, 0) + 1
            single[name] = one
    found: set[str] = set()

    def constant(one: Instruction) -> bool:
        if one.predicate or "|" in one.operands[0] or one.operands[0].startswith("{"):
            return False
        if one.parts[:2] == ("ld", "param"):
            base, _ = address(one.operands[1])
            return base not in kernel.registers or base in found
        if one.parts[0] not in PURE or any(x in one.parts for x in ("f16x2", "bf16x2")):
            return False
        for operand in one.operands[1:]:
            if operand.startswith(("{", "!")):
                return False
            if operand in kernel.registers:
                if operand not in found:
                    return False
            elif operand.startswith("%") and not special.is_uniform(operand):
                return False
        return True

    for one in kernel.instructions:  # definitions come before uses in the text NVRTC writes
        for name in definitions(one, kernel):
            if counts[name] == 1 and constant(one):
                found.add(name)
    return frozenset(found)


def analyse(kernel: Kernel, symbols: frozenset[str] = frozenset()) -> Program:
    """Cut a kernel into blocks and find the registers that need storage.

    Args:
        kernel: without calls (`polygen.machine.calls`).
        symbols: variables of its module.

    Raises:
        PtxError: a branch to a label that does not exist, or a register of 128 bits.
    """
    blocks = _cut(kernel)
    starts = {block.begin: number for number, block in enumerate(blocks)}
    block_of = {label: starts.get(at, len(blocks)) for label, at in kernel.labels.items()}
    stored: dict[str, int] = {}
    for block in blocks:
        written: set[str] = set()
        for one in kernel.instructions[block.begin : block.end]:
            if one.parts[0] == "bra" and one.operands[0] not in block_of:
                raise PtxError(f"no label `{one.operands[0]}`", line=one.line)
            for name in uses(one, kernel):
                if kernel.registers[name] == "b128":
                    raise PtxError(f"`{one}` uses a register of 128 bits", line=one.line)
                if name not in written:
                    stored.setdefault(name, len(stored))
            written.update(definitions(one, kernel))
    names = symbols | {one.name for one in (*kernel.variables, *kernel.parameters)}
    return Program(kernel, blocks, block_of, stored, _uniform(kernel), facts(kernel), names)
