"""Arithmetic, logic and bit-field instructions.

Most are one row of a table: a NumPy expression over the operands. Float types below 32 bits are
computed in float32 and rounded once; packed pairs are vectors of twice the length.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.machine import small_parts
from polygen.machine.module import DTYPES, Instruction, type_bytes
from polygen.machine.writer import Writer, opcode

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
INTEGER = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "div": "divide({0}, {1})",
    "rem": "remainder({0}, {1})",
    "min": "N.minimum({0}, {1})",
    "max": "N.maximum({0}, {1})",
    "neg": "-{0}",
    "abs": "abs({0})",
}
BITWISE = {"and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}"}
FLOATING = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "abs": "abs({0})",
    "min": "lesser({0}, {1}, False)",
    "max": "greater({0}, {1}, False)",
    "rcp": "one / {0}",
    "sqrt": "N.sqrt({0})",
    "rsqrt": "one / N.sqrt({0})",
    "ex2": "N.exp2({0})",
    "lg2": "N.log2({0})",
    "sin": "N.sin({0})",
    "cos": "N.cos({0})",
    "tanh": "N.tanh({0})",
    "copysign": "N.copysign({1}, {0})",
}
_MODES = ("rz", "rm", "rp")
_MODIFIERS = {"rn", *_MODES, "ftz", "sat", "approx", "full", "NaN", "xorsign", "abs"}


def _sources(one: Instruction) -> tuple[str, ...]:
    return one.operands[1:]


def _known(w: Writer, one: Instruction, allowed: set[str]) -> None:
    """Refuse a modifier nobody has taught the machine."""
    for part in one.parts[1:-1]:
        if part not in allowed:
            raise w.refuse(one, why=f"the modifier .{part} is not modelled")


@opcode("add", "sub", "mul", "div", "neg", "abs", "min", "max", "rcp", "sqrt", "rsqrt", "ex2",
        "lg2", "sin", "cos", "tanh", "copysign", "rem")  # fmt: skip
def arithmetic(w: Writer, one: Instruction) -> None:
    """One- and two-operand arithmetic of integers and floats."""
    if one.parts[-1] == "relu":  # CUDA's headers write it behind the type
        one = replace(one, parts=(one.parts[0], "relu", *one.parts[1:-1]))
    kind = one.parts[-1]
    if kind in FLOATS:
        _floating(w, one, kind)
        return
    packed = next((part for part in one.parts if part in ("u16x2", "s16x2")), "")
    if packed:
        small_parts.pairs(w, one, packed)
        return
    if small_parts.carries(one):
        small_parts.with_carry(w, one)
        return
    name, sources = one.parts[0], _sources(one)
    uniform = w.is_uniform(*sources)
    dtype = DTYPES[kind]
    if name == "mul":
        _known(w, one, {"lo", "hi", "wide"})
        _multiply(w, one, dtype, sources[:2], None)
        return
    if name not in INTEGER:
        raise w.refuse(one)
    allowed = {"add": {"sat"}, "sub": {"sat"}, "min": {"relu"}, "max": {"relu"}}
    _known(w, one, allowed.get(name, set()))
    read = [w.read(source, dtype) for source in sources]
    if "sat" in one.parts:
        text = f"saturate_add({read[0]}, {read[1]}, {1 if name == 'add' else -1})"
    else:
        text = INTEGER[name].format(*read)
    if "relu" in one.parts:
        text = f"N.maximum({text}, 0)"
    w.write(one.operands[0], dtype, text, uniform)


def _multiply(
    w: Writer, one: Instruction, dtype: str, sources: tuple[str, ...], addend: str | None
) -> None:
    uniform = w.is_uniform(*one.operands[1:])
    a, b = (w.read(source, dtype) for source in sources)
    if "wide" in one.parts:
        wide = f"{dtype[0]}{2 * int(dtype[1])}"
        text, dtype = f"{a}.astype(D_{wide}) * {b}.astype(D_{wide})", wide
    elif "hi" in one.parts:
        text = f"multiply_high({a}, {b})"
    else:
        text = f"{a} * {b}"
    if addend is not None:
        text += f" + {w.read(addend, dtype)}"
    w.write(one.operands[0], dtype, text, uniform)


def widened(kind: str, name: str) -> str:
    """The expression of an operand widened to the type it is computed in."""
    if kind in ("f32", "f64"):
        return name
    if kind == "f16":
        return f"{name}.astype(D_f4)"
    if kind == "bf16":
        return f"from_bf16({name})"
    if kind == "f16x2":
        return f"{name}.view(D_f2).astype(D_f4)"
    return f"from_bf16({name}.view(D_u2))"


def rounded(kind: str, text: str, ftz: bool = False) -> str:
    """The expression of a result brought back to the operand type."""
    if kind in ("f32", "f64"):
        return text
    if kind.startswith("bf16"):
        text = f"to_bf16({text})"
    else:
        text = f"flush(to_half({text}))" if ftz else f"to_half({text})"
    return f"{text}.view(D_u4)" if kind.endswith("x2") else text


def _float_operands(w: Writer, one: Instruction, kind: str) -> tuple[list[str], bool]:
    sources = _sources(one)
    packed = kind.endswith("x2")
    names = [w.full(source, "u4") if packed else w.read(source, DTYPES[kind]) for source in sources]
    if "ftz" in one.parts and kind.startswith("f16"):
        names = [f"flush({name}.view(D_f2))" for name in names]
    names = [widened(kind, name) for name in names]
    if "ftz" in one.parts and not kind.startswith("f16"):
        names = [f"flush({name})" for name in names]
    return names, not packed and w.is_uniform(*sources)


def _finish(w: Writer, one: Instruction, kind: str, text: str, uniform: bool) -> None:
    ftz = "ftz" in one.parts
    if ftz and not kind.startswith("f16"):
        text = f"flush({text})"
    if "sat" in one.parts:
        text = f"clamp_unit({text})"
    if "relu" in one.parts:
        text = f"N.maximum({text}, 0)"
    computed = one.parts[0] != "copysign"  # which keeps all bits but one
    w.write(one.operands[0], DTYPES[kind], rounded(kind, text, ftz), uniform, computed)


def _floating(w: Writer, one: Instruction, kind: str) -> None:
    name = one.parts[0]
    if name not in FLOATING:
        raise w.refuse(one)
    _known(w, one, _MODIFIERS)
    names, uniform = _float_operands(w, one, kind)
    if len(names) > 2:
        raise w.refuse(one, why="three-operand forms are not modelled")
    mode = next((part for part in _MODES if part in one.parts), "")
    text = FLOATING[name].format(*names)
    if "abs" in one.parts[1:]:
        if name not in ("min", "max") or kind != "f32":
            raise w.refuse(one)
        size = FLOATING[name].format(*(f"abs({text_})" for text_ in names))
        text = f"with_sign_of_product({size}, {names[0]}, {names[1]})"
    if name in ("min", "max") and "NaN" in one.parts:
        text = text.replace("False", "True")
    elif mode:
        text = _directed(w, one, kind, names, mode)
    elif kind == "f64" and name in ("rcp", "rsqrt"):
        text = text.replace("one /", "1.0 /")
    elif kind == "f64" and name == "neg":
        text = f"negative({names[0]})"
    _finish(w, one, kind, text, uniform)


def _directed(w: Writer, one: Instruction, kind: str, names: list[str], mode: str) -> str:
    """The expression of a result that is not rounded to the nearest."""
    name = one.parts[0]
    if kind == "f64":
        called = "fma" if name == "mad" else name
        return f"directed_wide({called!r}, {mode!r}, {', '.join(names)})"
    if kind != "f32":
        raise w.refuse(one, why=f"directed rounding of {kind} is not modelled")
    wide = [f"{text}.astype(D_f8)" for text in names]
    if name in ("add", "sub"):
        return f"directed_sum({wide[0]}, {'-' if name == 'sub' else ''}{wide[1]}, {mode!r})"
    if name in ("fma", "mad"):
        return f"directed_sum({wide[0]} * {wide[1]}, {wide[2]}, {mode!r})"
    return f"directed({FLOATING[name].format(*wide)}, N.float64(0), {mode!r})"


@opcode("fma", "mad")
def multiply_add(w: Writer, one: Instruction) -> None:
    """``fma`` of floats and ``mad`` of integers or floats."""
    kind = one.parts[-1]
    if small_parts.carries(one):
        small_parts.with_carry(w, one)
        return
    if one.parts[1:] == ("hi", "sat", "s32"):
        names = [w.read(source, "i4") for source in _sources(one)]
        text = f"saturated_high({', '.join(names)})"
        w.write(one.operands[0], "i4", text, w.is_uniform(*_sources(one)))
        return
    if kind not in FLOATS:
        _known(w, one, {"lo", "hi", "wide"})
        _multiply(w, one, DTYPES[kind], one.operands[1:3], one.operands[3])
        return
    _known(w, one, {"rn", "rz", "rm", "rp", "ftz", "sat", "relu"})
    names, uniform = _float_operands(w, one, kind)
    mode = next((part for part in _MODES if part in one.parts), "")
    if mode:
        text = _directed(w, one, kind, names, mode)
    elif kind == "f64":
        text = f"fused_wide({', '.join(names)})"
    elif kind == "f32":
        text = f"fused({', '.join(names)})"
    else:
        text = f"fused_narrow({', '.join(names)}, {'bf16' in kind})"
    _finish(w, one, kind, text, uniform)


@opcode("and", "or", "xor", "not")
def bitwise(w: Writer, one: Instruction) -> None:
    """Bitwise logic, predicates included."""
    dtype = DTYPES[one.parts[-1]]
    names = [w.read(source, dtype) for source in _sources(one)]
    text = BITWISE[one.parts[0]].format(*names)
    w.write(one.operands[0], dtype, text, w.is_uniform(*_sources(one)))


@opcode("shl", "shr")
def shift(w: Writer, one: Instruction) -> None:
    """Shifts; a constant amount inside the width needs no clamping."""
    dtype, (a, amount) = DTYPES[one.parts[-1]], _sources(one)
    source, uniform = w.read(a, dtype), w.is_uniform(a, amount)
    symbol = "<<" if one.parts[0] == "shl" else ">>"
    if amount.isdigit() and int(amount) < 8 * type_bytes(one.parts[-1]):
        text = f"{source} {symbol} {w.read(amount, dtype)}"
    else:
        name = "shift_left" if symbol == "<<" else "shift_right"
        text = f"{name}({source}, {w.read(amount, 'u4')})"
    w.write(one.operands[0], dtype, text, uniform)


_FIELDS = {
    "bfe": ("bit_field_extract", 1),
    "bfi": ("bit_field_insert", 2),
    "popc": ("count_ones", 1),
    "clz": ("leading_zeros", 1),
    "brev": ("reverse_bits", 1),
    "bfind": ("find_highest", 1),
}


@opcode(*_FIELDS)
def bit_fields(w: Writer, one: Instruction) -> None:
    """Bit fields and bit counts; the first operands have the type, the rest are u32."""
    _known(w, one, {"shiftamt"} if one.parts[0] == "bfind" else set())
    if type_bytes(one.parts[-1]) < 4:
        raise w.refuse(one, why="it is for 32 and 64 bits")
    function, typed = _FIELDS[one.parts[0]]
    dtype, sources = DTYPES[one.parts[-1]], _sources(one)
    names = [w.read(text, dtype if at < typed else "u4") for at, text in enumerate(sources)]
    result = dtype if one.parts[0] in ("bfe", "bfi", "brev") else "u4"
    text = f"{function}({', '.join(names)})"
    if "shiftamt" in one.parts:
        bits = 8 * type_bytes(one.parts[-1])
        text = f"distance_to_top({text}, {bits})"
    w.write(one.operands[0], result, text, w.is_uniform(*sources))


@opcode("sad")
def absolute_difference(w: Writer, one: Instruction) -> None:
    """Sum of an absolute difference."""
    dtype = DTYPES[one.parts[-1]]
    a, b, c = (w.read(source, dtype) for source in _sources(one))
    text = f"{c} + N.maximum({a}, {b}) - N.minimum({a}, {b})"
    w.write(one.operands[0], dtype, text, w.is_uniform(*_sources(one)))


@opcode("shf")
def funnel(w: Writer, one: Instruction) -> None:
    """Funnel shifts."""
    names = [w.read(source, "u4") for source in _sources(one)]
    side = "left" if one.parts[1] == "l" else "right"
    text = f"funnel_{side}({', '.join(names)}, {'clamp' in one.parts})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*_sources(one)))


@opcode("lop3")
def logic3(w: Writer, one: Instruction) -> None:
    """Three-input logic by truth table."""
    if one.parts != ("lop3", "b32"):
        raise w.refuse(one, why="the predicate forms of lop3 are not modelled")
    *sources, table = _sources(one)
    names = [w.read(source, "u4") for source in sources]
    text = f"logic3({', '.join(names)}, {int(table, 0)})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*sources))
