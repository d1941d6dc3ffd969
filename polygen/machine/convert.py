"""``cvt``: every conversion between numeric types."""

from __future__ import annotations

from polygen.machine.module import DTYPES, Instruction
from polygen.machine.writer import Writer, opcode

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
_ROUNDING = {"rni": "N.rint", "rzi": "N.trunc", "rmi": "N.floor", "rpi": "N.ceil"}
_EIGHT = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}


@opcode("cvt")
def convert(w: Writer, one: Instruction) -> None:
    """``cvt.rounding.flags.target.source``."""
    if one.parts[1:3] == ("pack", "sat"):
        _pack(w, one)
        return
    target, source = one.parts[-2], one.parts[-1]
    flags = set(one.parts[1:-2])
    unknown = flags - {
        "rn",
        "rz",
        "rm",
        "rp",
        "rna",
        "ftz",
        "sat",
        "satfinite",
        "relu",
        *_TO_INTEGER,
    }
    if unknown:
        raise w.refuse(one, why=f"the modifier .{unknown.pop()} is not modelled")
    if target in _EIGHT or source in _EIGHT or target in ("f16x2", "bf16x2"):
        _packed(w, one, target, source, flags)
    elif target in _INTEGERS and source in _INTEGERS:
        _integers(w, one, target, source)
    elif target in _INTEGERS:
        _to_integer(w, one, target, source, flags)
    else:
        _to_float(w, one, target, source, flags)


def _pack(w: Writer, one: Instruction) -> None:
    """``cvt.pack.sat.target.s32[.b32]``."""
    target = one.parts[3]
    if target not in ("u16", "s16", "u8", "s8") or one.parts[4] != "s32":
        raise w.refuse(one, why="it packs 16 or 8 bits each")
    a, b, *below = one.operands[1:]
    names = [w.read(a, "i4"), w.read(b, "i4"), w.read(below[0], "u4") if below else "u4(0)"]
    text = f"packed_bytes({', '.join(names)}, {DTYPES[target]!r})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*one.operands[1:]))


def _integers(w: Writer, one: Instruction, target: str, source: str) -> None:
    operand = one.operands[1]
    have, want = DTYPES[source], DTYPES[target]
    name = w.read(operand, have)
    if "sat" in one.parts:
        text = f"narrow({name}, {want!r})"
    elif have == want:
        text = name
    else:
        text = f"{name}.astype(D_{want})"
    w.write(one.operands[0], want, text, w.is_uniform(operand))


def _float(w: Writer, source: str, operand: str) -> str:
    """A float operand as float32 (or float64)."""
    name = w.read(operand, DTYPES[source])
    if source == "f16":
        return w.fresh(f"{name}.astype(D_f4)")
    if source == "bf16":
        return w.fresh(f"from_bf16({name})")
    return name


def _to_integer(w: Writer, one: Instruction, target: str, source: str, flags: set[str]) -> None:
    mode = next((flag for flag in flags if flag in _TO_INTEGER), "rzi")
    name, want = _float(w, source, one.operands[1]), DTYPES[target]
    if "ftz" in flags:
        name = f"flush({name})"
    text = f"to_integer({name}, {want!r}, {mode!r})"
    w.write(one.operands[0], want, text, w.is_uniform(one.operands[1]))


def _mode(flags: set[str]) -> str:
    return next((flag for flag in ("rna", "rz", "rm", "rp", "rn") if flag in flags), "rn")


def _to_float(w: Writer, one: Instruction, target: str, source: str, flags: set[str]) -> None:
    operand, mode = one.operands[1], _mode(flags)
    if source in _INTEGERS:
        name = w.read(operand, DTYPES[source])
        if mode != "rn" and target in ("f32", "f64"):
            text = f"directed_whole({name}, {mode!r}, {DTYPES[target]!r})"
            w.write(one.operands[0], DTYPES[target], text, w.is_uniform(operand))
            return
        if target == "bf16":
            name = w.fresh(f"to_odd({name})")
        elif target == "f16":
            name = w.fresh(f"{name}.astype(D_f8)")
    else:
        name = _float(w, source, operand)
    if "ftz" in flags and source == "f32":
        name = w.fresh(f"flush({name})")
    to_integral = next((flag for flag in flags if flag in _ROUNDING), "")
    if to_integral:
        name = w.fresh(f"{_ROUNDING[to_integral]}({name})")
    if "sat" in flags:
        name = w.fresh(f"clamp_unit({name})")
    if "relu" in flags:
        name = w.fresh(f"N.maximum({name}, 0)")
    text = _narrowed(w, one, target, name, mode)
    w.write(one.operands[0], DTYPES[target], text, w.is_uniform(operand), source in ("f16", "f32"))


def _narrowed(w: Writer, one: Instruction, target: str, name: str, mode: str) -> str:
    if target == "f64":
        return f"{name}.astype(D_f8)"
    if target == "f32":
        if mode in ("rz", "rm", "rp"):
            return f"directed({name}.astype(D_f8), N.float64(0), {mode!r})"
        return f"{name}.astype(D_f4)"
    if target == "tf32":
        return f"to_tf32({name}, {mode!r})"
    if target == "f16":
        function = "double_to_half" if one.parts[-1] == "f64" else "to_half"
        return f"{function}({name}, {mode!r})"
    if mode not in ("rn", "rz"):
        raise w.refuse(one, why=f"the rounding .{mode} to {target} is not modelled")
    if target == "bf16":
        wide = f"to_odd({name})" if one.parts[-1] == "f64" else f"{name}.astype(D_f4)"
        return f"to_bf16({wide}, {mode!r})"
    raise w.refuse(one)


def _packed(w: Writer, one: Instruction, target: str, source: str, flags: set[str]) -> None:
    """Two values per register: the first source goes to the upper half."""
    operands = one.operands[1:]
    if source in _EIGHT and target == "f16x2":
        name = w.full(operands[0], "u2")
        text = f"eight_pair_to_half({name}, {_EIGHT[source]!r})"
        w.write(one.operands[0], "u4", text)
        return
    if target in _EIGHT and source == "f16x2":
        name = w.full(operands[0], "u4")
        text = f"to_eight({name}.view(D_f2).astype(D_f4), {_EIGHT[target]!r}).view(D_u2)"
        w.write(one.operands[0], "u2", text)
        return
    if source != "f32" or len(operands) != 2:
        raise w.refuse(one)
    high, low = (w.read(operand, "f4") for operand in operands)
    if "relu" in flags:
        high, low = w.fresh(f"N.maximum({high}, 0)"), w.fresh(f"N.maximum({low}, 0)")
    uniform = w.is_uniform(*operands)
    if target in _EIGHT:
        kind = _EIGHT[target]
        parts = [f"to_eight({name}, {kind!r}).astype(D_u2)" for name in (low, high)]
        w.write(one.operands[0], "u2", f"{parts[0]} | ({parts[1]} << u2(8))", uniform)
        return
    function = "to_bf16({0}, {1!r})" if target == "bf16x2" else "to_half({0}, {1!r}).view(D_u2)"
    mode = _mode(flags)
    parts = [f"{function.format(name, mode)}.astype(D_u4)" for name in (low, high)]
    w.write(one.operands[0], "u4", f"{parts[0]} | ({parts[1]} << u4(16))", uniform)
