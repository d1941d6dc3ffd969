"""What a PTX file holds: kernels, functions, variables and instructions, as records.

Operands stay text; `items`, `address` and `split_operands` take them apart.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

from polygen.errors import PtxError

_OPAQUE = ("texref", "samplerref", "surfref")  # handles, which no instruction here reads
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


# PTX types and the NumPy types that hold them.
DTYPES = {
    "pred": "?", "u8": "u1", "b8": "u1", "s8": "i1", "u16": "u2", "b16": "u2", "s16": "i2",
    "u32": "u4", "b32": "u4", "s32": "i4", "u64": "u8", "b64": "u8", "s64": "i8",
    "f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8", "f16x2": "u4", "bf16x2": "u4",
    "tf32": "u4", "e4m3x2": "u2", "e5m2x2": "u2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    """One PTX instruction; operands stay text, with scoped names already made unique."""

    parts: tuple[str, ...]  # the opcode split at dots: ("ld", "global", "u32")
    operands: tuple[str, ...]
    predicate: str = ""  # register name; empty when unconditional
    negated: bool = False
    line: int = 0
    source: str = ""  # "kernel.cu:12" when the PTX carries line information

    @property
    def opcode(self) -> str:
        """The opcode as written."""
        return ".".join(self.parts)

    def __str__(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.predicate} " if self.predicate else ""
        shown = [text if len(text) < 60 else text[:40] + " …}" for text in self.operands]
        return f"{guard}{self.opcode} {', '.join(shown)}".rstrip()


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable with static storage, or a kernel parameter."""

    name: str
    space: str  # "param", "shared", "local", "global" or "const"
    align: int
    size: int  # bytes; 0 for an unsized extern array
    kind: str  # PTX type without the dot: "u64", "b8", "f32"
    initial: bytes = b""
    addresses: tuple[tuple[int, str], ...] = ()  # of other variables, by offset in `initial`


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point."""

    name: str
    parameters: tuple[Variable, ...]
    registers: dict[str, str]  # name -> PTX type
    variables: tuple[Variable, ...]  # declared inside the body
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]  # label -> index of the instruction it precedes
    cluster: tuple[int, int, int] = (1, 1, 1)
    clustered: bool = False  # it was compiled for this cluster, and can be launched in no other
    threads_most: int = 0  # of a block, by its launch bounds; 0: they do not say
    block: tuple[int, ...] = ()  # the block that it must be launched with; (): any
    blocks_least: int = 1  # of a multiprocessor, likewise
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)  # .branchtargets lists


@dataclass(frozen=True, slots=True)
class Function:
    """A device function; its formals have the space "param" or "reg"."""

    name: str
    results: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file."""

    kernels: dict[str, Kernel]
    variables: tuple[Variable, ...]
    target: str
    functions: dict[str, Function] = field(default_factory=dict)


@functools.cache
def type_bytes(kind: str) -> int:
    """Bytes of a PTX type such as ``u32``; 0 for ``pred``."""
    if kind == "pred":
        return 0
    if kind in ("f16x2", "bf16x2"):
        return 4
    if kind == "b128":
        return 16
    if kind in _OPAQUE:
        return 8
    size = _SIZES.get(re.sub(r"\D*(\d+).*", r"\1", kind))
    if size is None:
        raise PtxError(f"there is no type `.{kind}`")
    return size


def split_operands(text: str) -> tuple[str, ...]:
    """Cut at the commas outside every bracket."""
    result, depth, begin = [], 0, 0
    for match in re.finditer(r"[{}()\[\],]", text):
        character = match[0]
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif depth == 0:
            result.append(text[begin : match.start()].strip())
            begin = match.end()
    last = text[begin:].strip()
    return (*result, last) if last else tuple(result)


def items(operand: str) -> tuple[str, ...]:
    """The elements of a vector operand ``{a, b}``; a plain operand is a vector of one."""
    if operand.startswith("{"):
        return tuple(part.strip() for part in operand.strip("{}").split(","))
    return (operand,)


def address(operand: str) -> tuple[str, int]:
    """Base name and byte offset of ``[base+offset]``; an absolute address has the base ``""``.

    Raises:
        PtxError: a number in it is none.
    """
    inner = operand.strip().removeprefix("[").removesuffix("]").strip()
    match = re.fullmatch(r"(.+?)\s*\+\s*(-?\w+)", inner)
    try:
        base, offset = (match[1], int(match[2], 0)) if match else (inner, 0)
        if re.fullmatch(r"-?\d\w*", base):
            return "", int(base, 0) + offset
    except ValueError:
        raise PtxError(f"there is no address `{operand}`") from None
    return base, offset
