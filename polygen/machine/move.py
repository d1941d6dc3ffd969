"""Moves, packing of vectors, and conversions between address spaces."""

from __future__ import annotations

from polygen.machine.module import DTYPES, Instruction, items, type_bytes
from polygen.machine.writer import Writer, opcode


@opcode("mov")
def move(w: Writer, one: Instruction) -> None:
    """Moves, including packing to and unpacking from vectors."""
    kind, (target, source) = one.parts[-1], one.operands
    dtype = DTYPES[kind]
    if source.startswith("{"):
        _pack(w, target, dtype, items(source))
    elif target.startswith("{"):
        _unpack(w, items(target), dtype, source)
    elif source in w.kernel.registers and not w.guard:
        have = w.kernel.registers
        if type_bytes(have[source]) == type_bytes(have[target]):
            value = w.value(source)  # the same value object: no copy, and a pending one stays so
            value.alias = True
            w.put(target, value)
        else:
            w.write(target, dtype, w.read(source, dtype), w.is_uniform(source))
    else:
        w.write(target, dtype, w.read(source, dtype), w.is_uniform(source))


def _pack(w: Writer, target: str, dtype: str, parts: tuple[str, ...]) -> None:
    width = int(dtype[1:]) // len(parts)
    wide = f"u{dtype[1:]}"
    terms = []
    for place, part in enumerate(parts):
        name = f"{w.read(part, f'u{width}')}.astype(D_{wide})"
        terms.append(f"({name} << {wide}({8 * width * place}))" if place else name)
    w.write(target, wide, " | ".join(terms), w.is_uniform(*parts))


def _unpack(w: Writer, targets: tuple[str, ...], dtype: str, source: str) -> None:
    width = int(dtype[1:]) // len(targets)
    wide = f"u{dtype[1:]}"
    name, uniform = w.read(source, wide), w.is_uniform(source)
    for place, target in enumerate(targets):
        if target != "_":
            moved = f"({name} >> {wide}({8 * width * place}))" if place else name
            w.write(target, f"u{width}", f"{moved}.astype(D_u{width})", uniform)


@opcode("cvta")
def convert_address(w: Writer, one: Instruction) -> None:
    """Between state-space and generic addresses: each space has a window of generic addresses."""
    target, source = one.operands
    dtype = DTYPES[one.parts[-1]]
    space = one.parts[2] if one.parts[1] == "to" else one.parts[1]
    space = space.split("::")[0]
    name, uniform = w.read(source, dtype), w.is_uniform(source)
    if space in ("shared", "local"):
        sign = "-" if one.parts[1] == "to" else "+"
        name = f"{name} {sign} {dtype}(WINDOW_{space.upper()})"
    elif space == "param" and dtype == "u8":  # symbols are generic; their low words are not
        name = f"{name} & u8(0xFFFFFFFF)" if one.parts[1] == "to" else f"{name} | u8(WINDOW_PARAM)"
    w.write(target, dtype, name, uniform)


@opcode("isspacep")
def is_space(w: Writer, one: Instruction) -> None:
    """Whether a generic address lies in a state space."""
    name = w.read(one.operands[1], "u8")
    space = one.parts[1].split("::")[0]
    if space not in ("shared", "local", "global"):
        raise w.refuse(one)
    w.write(one.operands[0], "?", f"in_space({name}, {space!r})", w.is_uniform(one.operands[1]))
