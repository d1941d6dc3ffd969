"""Code for instructions on parts of words: masks, bytes, packed 16-bit integers, and carries.

A carry lives in no register: it is a value of the block between the instruction that sets it and
those that take it. After a difference it is set where nothing was borrowed, as code of compilers
for 128 bits relies on.
"""

from __future__ import annotations

from polygen.machine.module import DTYPES, Instruction
from polygen.machine.writer import Writer, opcode


def _sources(one: Instruction) -> tuple[str, ...]:
    return one.operands[1:]


@opcode("cnot")
def logical_not(w: Writer, one: Instruction) -> None:
    """``cnot``: one for zero, else zero."""
    dtype = DTYPES[one.parts[-1]]
    target, source = one.operands
    text = f"({w.read(source, dtype)} == 0).astype(D_{dtype})"
    w.write(target, dtype, text, w.is_uniform(source))


@opcode("bmsk", "szext")
def masks(w: Writer, one: Instruction) -> None:
    """``bmsk`` and ``szext``: what lies beyond the word is cut off, or counted modulo its bits."""
    dtype, clamp = DTYPES[one.parts[-1]], one.parts[1] == "clamp"
    a, b = _sources(one)
    function = "bit_mask" if one.parts[0] == "bmsk" else "extended"
    text = f"{function}({w.read(a, dtype)}, {w.read(b, 'u4')}, {clamp})"
    w.write(one.operands[0], dtype, text, w.is_uniform(a, b))


@opcode("fns")
def nth(w: Writer, one: Instruction) -> None:
    """``fns``: the n-th set bit."""
    mask, base, offset = _sources(one)
    text = f"nth_set({w.read(mask, 'u4')}, {w.read(base, 'u4')}, {w.read(offset, 'i4')})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*_sources(one)))


@opcode("prmt")
def permute(w: Writer, one: Instruction) -> None:
    """Byte permutation, by a selector or by a mode."""
    names = ", ".join(w.read(source, "u4") for source in _sources(one))
    mode = one.parts[2] if len(one.parts) > 2 else ""
    if mode not in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        raise w.refuse(one, why=f"there is no mode .{mode}")
    text = f"permute_by_mode({names}, {mode!r})" if mode else f"permute_bytes({names})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*_sources(one)))


@opcode("mul24", "mad24")
def products24(w: Writer, one: Instruction) -> None:
    """Products of 24 bits."""
    dtype = DTYPES[one.parts[-1]]
    names = [w.read(source, dtype) for source in _sources(one)]
    if "sat" in one.parts:
        raise w.refuse(one, why="the modifier .sat is not modelled")
    text = f"product24({names[0]}, {names[1]}, {'hi' in one.parts})"
    text += f" + {names[2]}" if len(names) > 2 else ""
    w.write(one.operands[0], dtype, text, w.is_uniform(*_sources(one)))


@opcode("dp4a", "dp2a")
def dots(w: Writer, one: Instruction) -> None:
    """Dot products of four bytes, or of two halves and two bytes."""
    signed = tuple(part.startswith("s") for part in one.parts[-2:])
    a, b, c = _sources(one)
    dtype = "i4" if any(signed) else "u4"
    names = f"{w.read(a, 'u4')}, {w.read(b, 'u4')}, {w.read(c, dtype)}"
    if one.parts[0] == "dp4a":
        text = f"dot_four({names}, {signed[0]}, {signed[1]})"
    else:
        text = f"dot_two({names}, {signed}, {'hi' in one.parts})"
    w.write(one.operands[0], dtype, text, w.is_uniform(a, b, c))


@opcode("vabsdiff4")
def byte_differences(w: Writer, one: Instruction) -> None:
    """``vabsdiff4``: absolute differences of four bytes each, in their places or added up."""
    types = [part for part in one.parts[1:] if part in ("u32", "s32")]
    if set(one.parts[1:]) - {"u32", "s32", "add"} or len(types) != 3:
        raise w.refuse(one, why="only the forms without masks and saturation are modelled")
    a, b, c = _sources(one)
    signed = tuple(part == "s32" for part in types[1:])
    text = f"differences({w.read(a, 'u4')}, {w.read(b, 'u4')}, {signed}, {'add' in one.parts})"
    sources = [a, b]
    if "add" in one.parts:
        text = f"{w.read(c, 'u4')} + {text}"
        sources.append(c)
    w.write(one.operands[0], "u4", text, w.is_uniform(*sources))


PAIRS = {"add": "{0} + {1}", "min": "N.minimum({0}, {1})", "max": "N.maximum({0}, {1})",
         "neg": "-{0}"}  # fmt: skip


def pairs(w: Writer, one: Instruction, kind: str) -> None:
    """``u16x2`` and ``s16x2``: two integers in a word."""
    if one.parts[0] not in PAIRS or set(one.parts[1:]) - {"relu", kind}:
        raise w.refuse(one)
    half = "u2" if kind[0] == "u" else "i2"
    names = [f"{w.full(source, 'u4')}.view(D_{half})" for source in _sources(one)]
    text = PAIRS[one.parts[0]].format(*names)
    if "relu" in one.parts:
        text = f"N.maximum({text}, 0)"
    w.write(one.operands[0], "u4", f"({text}).view(D_u4)")


# --- carries -------------------------------------------------------------------------------------
def carries(one: Instruction) -> bool:
    """Whether an instruction sets or takes a carry."""
    return "cc" in one.parts or one.parts[0] in ("addc", "subc", "madc")


@opcode("addc", "subc", "madc")
def with_carry(w: Writer, one: Instruction) -> None:
    """Sums and differences that take a carry, set one (``.cc``), or both."""
    if w.guard:
        raise w.refuse(one, why="under a predicate, carries are not modelled")
    first = one.parts[0]
    dtype = f"u{DTYPES[one.parts[-1]][1]}"
    sources = list(_sources(one))
    if first.startswith("mad"):
        signed = DTYPES[one.parts[-1]]
        a, b = (w.read(source, signed) for source in sources[:2])
        product = f"multiply_high({a}, {b})" if "hi" in one.parts else f"{a} * {b}"
        x = w.fresh(f"({product}).view(D_{dtype})")
        y = w.read(sources[2], dtype)
    else:
        x, y = (w.read(source, dtype) for source in sources)
    minus = first.startswith("sub")
    taken = "N.bool_(False)"
    if first in ("addc", "subc", "madc"):
        if not w.carry:
            raise w.refuse(one, why="the carry that it takes is not of its own basic block")
        taken = w.fresh(f"~{w.carry}") if minus else w.carry
    if "cc" in one.parts:
        function = "~borrow_of" if minus else "carry_of"
        w.carry = w.fresh(f"{function}({x}, {y}, {taken})")
    sign = "-" if minus else "+"
    text = f"{x} {sign} {y} {sign} {taken}.astype(D_{dtype})"
    w.write(one.operands[0], dtype, text)
