"""Arithmetic, logic, comparison and selection instructions.

Most are one row of a table: a NumPy expression over the operands. Float types below 32 bits are
computed in float32 and rounded once; packed pairs are vectors of twice the length.
"""

from __future__ import annotations

from polygen.machine.parse import Instruction, items, type_bytes
from polygen.machine.writer import DTYPES, Writer, opcode

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
    "min": "N.fmin({0}, {1})",
    "max": "N.fmax({0}, {1})",
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
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
           "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}  # fmt: skip
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_MODES = ("rz", "rm", "rp")


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
    kind = one.parts[-1]
    if kind in FLOATS:
        _floating(w, one, kind)
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
    _known(w, one, {"sat"})
    read = [w.read(source, dtype) for source in sources]
    if "sat" in one.parts:
        text = f"saturate_add({read[0]}, {read[1]}, {1 if name == 'add' else -1})"
    else:
        text = INTEGER[name].format(*read)
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


def _single(kind: str, name: str) -> str:
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


def _rounded(kind: str, text: str) -> str:
    """The expression of a result brought back to the operand type."""
    if kind in ("f32", "f64"):
        return text
    if kind == "f16":
        return f"({text}).astype(D_f2)"
    if kind == "bf16":
        return f"to_bf16({text})"
    if kind == "f16x2":
        return f"({text}).astype(D_f2).view(D_u4)"
    return f"to_bf16({text}).view(D_u4)"


def _float_operands(w: Writer, one: Instruction, kind: str) -> tuple[list[str], bool]:
    sources = _sources(one)
    if kind.endswith("x2"):
        return [_single(kind, w.full(source, "u4")) for source in sources], False
    names = [_single(kind, w.read(source, DTYPES[kind])) for source in sources]
    if "ftz" in one.parts and kind == "f32":
        names = [f"flush({name})" for name in names]
    return names, w.is_uniform(*sources)


def _finish(w: Writer, one: Instruction, kind: str, text: str, uniform: bool) -> None:
    if "ftz" in one.parts and kind == "f32":
        text = f"flush({text})"
    if "sat" in one.parts:
        text = f"clamp_unit({text})"
    if "relu" in one.parts:
        text = f"N.maximum({text}, 0)"
    w.write(one.operands[0], DTYPES[kind], _rounded(kind, text), uniform)


def _floating(w: Writer, one: Instruction, kind: str) -> None:
    name = one.parts[0]
    if name not in FLOATING:
        raise w.refuse(one)
    _known(w, one, {"rn", "rz", "rm", "rp", "ftz", "sat", "approx", "full", "NaN"})
    names, uniform = _float_operands(w, one, kind)
    if len(names) > 2:
        raise w.refuse(one, why="three-operand forms are not modelled")
    mode = next((part for part in _MODES if part in one.parts), "")
    text = FLOATING[name].format(*names)
    if name in ("min", "max") and "NaN" in one.parts:
        text = f"N.{name}imum({names[0]}, {names[1]})"
    elif mode:
        if kind != "f32":
            raise w.refuse(one, why=f"directed rounding of {kind} is not modelled")
        wide = [f"{text_}.astype(D_f8)" for text_ in names]
        text = f"directed({FLOATING[name].format(*wide)}, {mode!r})"
    elif kind == "f64" and name in ("rcp", "rsqrt"):
        text = text.replace("one /", "1.0 /")
    _finish(w, one, kind, text, uniform)


@opcode("fma", "mad")
def multiply_add(w: Writer, one: Instruction) -> None:
    """``fma`` of floats and ``mad`` of integers or floats."""
    kind = one.parts[-1]
    if kind not in FLOATS:
        _known(w, one, {"lo", "hi", "wide"})
        _multiply(w, one, DTYPES[kind], one.operands[1:3], one.operands[3])
        return
    _known(w, one, {"rn", "rz", "rm", "rp", "ftz", "sat", "relu"})
    names, uniform = _float_operands(w, one, kind)
    mode = next((part for part in _MODES if part in one.parts), "")
    if kind == "f64":
        text = f"fused_wide({', '.join(names)})"
    elif mode:
        a, b, c = (f"{name}.astype(D_f8)" for name in names)
        text = f"directed({a} * {b} + {c}, {mode!r})"
    elif kind == "f32":
        text = f"fused({', '.join(names)})"
    else:  # both factors have at most 11 bits: float64 holds the exact sum closely enough
        a, b, c = (f"{name}.astype(D_f8)" for name in names)
        text = f"({a} * {b} + {c}).astype(D_f4)"
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
    _known(w, one, set())
    function, typed = _FIELDS[one.parts[0]]
    dtype, sources = DTYPES[one.parts[-1]], _sources(one)
    names = [w.read(text, dtype if at < typed else "u4") for at, text in enumerate(sources)]
    result = dtype if one.parts[0] in ("bfe", "bfi", "brev") else "u4"
    w.write(one.operands[0], result, f"{function}({', '.join(names)})", w.is_uniform(*sources))


@opcode("shf")
def funnel(w: Writer, one: Instruction) -> None:
    """Funnel shifts."""
    names = [w.read(source, "u4") for source in _sources(one)]
    side = "left" if one.parts[1] == "l" else "right"
    text = f"funnel_{side}({', '.join(names)}, {'clamp' in one.parts})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*_sources(one)))


@opcode("prmt")
def permute(w: Writer, one: Instruction) -> None:
    """Byte permutation, default mode."""
    if one.parts != ("prmt", "b32"):
        raise w.refuse(one, why="only the default mode of prmt is modelled")
    names = [w.read(source, "u4") for source in _sources(one)]
    w.write(
        one.operands[0], "u4", f"permute_bytes({', '.join(names)})", w.is_uniform(*_sources(one))
    )


@opcode("lop3")
def logic3(w: Writer, one: Instruction) -> None:
    """Three-input logic by truth table."""
    if one.parts != ("lop3", "b32"):
        raise w.refuse(one, why="the predicate forms of lop3 are not modelled")
    *sources, table = _sources(one)
    names = [w.read(source, "u4") for source in sources]
    text = f"logic3({', '.join(names)}, {int(table, 0)})"
    w.write(one.operands[0], "u4", text, w.is_uniform(*sources))


def _comparison(w: Writer, one: Instruction, name: str, kind: str, a: str, b: str) -> str:
    """The expression of one comparison; float ones care about NaN."""
    dtype = DTYPES[kind]
    if kind.endswith("x2"):
        raise w.refuse(one, why="packed comparisons are not modelled")
    x, y = (w.read(operand, dtype) for operand in (a, b))
    if kind not in FLOATS:
        return f"({x} {COMPARE[name]} {y})"
    x, y = w.fresh(_single(kind, x)), w.fresh(_single(kind, y))
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
    if combine:
        other = w.read(sources[2], "?")
        symbol = BITWISE[combine].split()[1]
        results = [f"{text} {symbol} {other}" for text in results]
    for target, text in zip(targets, results, strict=True):
        if target != "_":
            w.write(target, "?", text, uniform)


@opcode("set")
def set_value(w: Writer, one: Instruction) -> None:
    """Comparison to an integer mask or 1.0."""
    target, kind = one.parts[-2], one.parts[-1]
    sources = _sources(one)
    test = _comparison(w, one, one.parts[1], kind, sources[0], sources[1])
    if len(sources) > 2 or target not in ("u32", "s32", "f32"):
        raise w.refuse(one, why="only plain set to 32-bit types is modelled")
    dtype = DTYPES[target]
    yes = (
        "D_f4.type(1)"
        if target == "f32"
        else f"D_{dtype}.type({'-1' if dtype == 'i4' else '0xFFFFFFFF'})"
    )
    w.write(
        one.operands[0], dtype, f"where({test}, {yes}, D_{dtype}.type(0))", w.is_uniform(*sources)
    )


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
    tests = {
        "finite": f"N.isfinite({name})",
        "infinite": f"N.isinf({name})",
        "number": f"~N.isnan({name})",
        "notanumber": f"N.isnan({name})",
        "normal": f"(N.isfinite({name}) & (abs({name}) >= N.finfo(D_{dtype}).tiny))",
        "subnormal": f"(({name} != 0) & (abs({name}) < N.finfo(D_{dtype}).tiny))",
    }
    w.write(one.operands[0], "?", tests[one.parts[1]], w.is_uniform(one.operands[1]))


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
    w.write(target, dtype, name, uniform)


@opcode("isspacep")
def is_space(w: Writer, one: Instruction) -> None:
    """Whether a generic address lies in a state space."""
    name = w.read(one.operands[1], "u8")
    space = one.parts[1].split("::")[0]
    if space not in ("shared", "local", "global"):
        raise w.refuse(one)
    w.write(one.operands[0], "?", f"in_space({name}, {space!r})", w.is_uniform(one.operands[1]))
