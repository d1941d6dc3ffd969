"""Comparison and selection: setp, set, selp, slct, testp."""

from __future__ import annotations

from polygen.machine.compute import BITWISE, FLOATS, rounded, widened
from polygen.machine.module import DTYPES, Instruction
from polygen.machine.writer import Writer, opcode

COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


def _sources(one: Instruction) -> tuple[str, ...]:
    return one.operands[1:]


def _comparison(w: Writer, one: Instruction, name: str, kind: str, a: str, b: str) -> str:
    """The expression of one comparison; float ones care about NaN, packed ones have 2 per lane."""
    read = w.full if kind.endswith("x2") else w.read
    x, y = (read(operand, DTYPES[kind]) for operand in (a, b))
    if kind not in FLOATS:
        return f"({x} {COMPARE[name]} {y})"
    x, y = w.fresh(widened(kind, x)), w.fresh(widened(kind, y))
    if "ftz" in one.parts:
        x, y = w.fresh(f"flush({x})"), w.fresh(f"flush({y})")
    if name == "num":
        return f"ordered({x}, {y})"
    if name == "nan":
        return f"~ordered({x}, {y})"
    if name == "ne":
        return f"(({x} != {y}) & ordered({x}, {y}))"
    if name == "neu":
        return f"({x} != {y})"
    if name in UNORDERED:
        opposite = UNORDERED[name]
        if opposite == "ne":
            return f"(({x} == {y}) | ~ordered({x}, {y}))"
        return f"~({x} {COMPARE[opposite]} {y})"
    return f"({x} {COMPARE[name]} {y})"


@opcode("setp")
def set_predicate(w: Writer, one: Instruction) -> None:
    """Comparison to one or two predicates, optionally combined with a third."""
    kind, name = one.parts[-1], one.parts[1]
    targets = [part.strip() for part in one.operands[0].split("|")]
    sources = _sources(one)
    uniform = w.is_uniform(*sources)
    test = w.fresh(_comparison(w, one, name, kind, sources[0], sources[1]))
    combine = next((part for part in one.parts[2:-1] if part in ("and", "or", "xor")), "")
    results = [test, f"~{test}"][: len(targets)]
    if kind.endswith("x2"):
        results, uniform = [f"{test}[0::2]", f"{test}[1::2]"][: len(targets)], False
    if combine:
        other = w.read(sources[2], "?")
        symbol = BITWISE[combine].split()[1]
        results = [f"{text} {symbol} {other}" for text in results]
    for target, text in zip(targets, results, strict=True):
        if target != "_":
            w.write(target, "?", text, uniform)


@opcode("set")
def set_value(w: Writer, one: Instruction) -> None:
    """Comparison to an integer mask or 1.0, per half for packed operands."""
    target, kind = one.parts[-2], one.parts[-1]
    sources = _sources(one)
    test = _comparison(w, one, one.parts[1], kind, sources[0], sources[1])
    if len(sources) > 2:
        raise w.refuse(one, why="set with a combining predicate is not modelled")
    uniform = w.is_uniform(*sources) and not kind.endswith("x2")
    if target in FLOATS:
        text = rounded(target, f"where({test}, N.float32(1), N.float32(0))")
    elif kind.endswith("x2"):
        text = f"where({test}, u2(0xFFFF), u2(0)).view(D_u4)"
    else:
        text = f"where({test}, u4(0xFFFFFFFF), u4(0)).view(D_{DTYPES[target]})"
    w.write(one.operands[0], DTYPES[target], text, uniform)


@opcode("selp")
def select(w: Writer, one: Instruction) -> None:
    """Choice by predicate."""
    dtype, (a, b, predicate) = DTYPES[one.parts[-1]], _sources(one)
    text = f"where({w.read(predicate, '?')}, {w.read(a, dtype)}, {w.read(b, dtype)})"
    w.write(one.operands[0], dtype, text, w.is_uniform(a, b, predicate))


@opcode("slct")
def select_by_sign(w: Writer, one: Instruction) -> None:
    """Choice by the sign of a third operand."""
    dtype, (a, b, sign) = DTYPES[one.parts[-2]], _sources(one)
    test = w.read(sign, DTYPES[one.parts[-1]])
    text = f"where({test} >= 0, {w.read(a, dtype)}, {w.read(b, dtype)})"
    w.write(one.operands[0], dtype, text, w.is_uniform(a, b, sign))


@opcode("testp")
def test_property(w: Writer, one: Instruction) -> None:
    """Float classification."""
    dtype, name = DTYPES[one.parts[-1]], w.read(one.operands[1], DTYPES[one.parts[-1]])
    small = f"(({name} != 0) & (abs({name}) < N.finfo(D_{dtype}).tiny))"
    tests = {
        "finite": f"N.isfinite({name})",
        "infinite": f"N.isinf({name})",
        "number": f"~N.isnan({name})",
        "notanumber": f"N.isnan({name})",
        # zero is normal to an H200
        "normal": f"(N.isfinite({name}) & ~{small})",
        "subnormal": small,
    }
    w.write(one.operands[0], "?", tests[one.parts[1]], w.is_uniform(one.operands[1]))
