"""Code for instructions on textures and surfaces: tex, tld4, suld, sust, txq, suq."""

from __future__ import annotations

from polygen.machine.module import DTYPES, Instruction, items, split_operands
from polygen.machine.texture import AXES
from polygen.machine.writer import Writer, opcode

_EXTENTS = ("width", "height", "depth", "array_size")
_BOUNDS = ("trap", "clamp", "zero")


def _place(w: Writer, one: Instruction, operand: str) -> tuple[str, tuple[str, ...]]:
    """The variable of the handle, and the coordinates, of ``[handle, {x, y}]``."""
    parts = split_operands(operand.strip().removeprefix("[").removesuffix("]"))
    if len(parts) != 2 or parts[0] not in w.kernel.registers:
        raise w.refuse(
            one,
            why="only handles in registers are modelled, with their sampler",
            nearest="A cudaTextureObject_t or cudaSurfaceObject_t",
        )
    return w.read(parts[0], "u8"), items(parts[1])


def _coordinates(
    w: Writer, one: Instruction, given: tuple[str, ...], shape: str, dtype: str
) -> list[str]:
    """Variables of the coordinates; a fourth of three is padding, a layer comes first."""
    layered = shape in ("a1d", "a2d")
    count = 3 if shape == "cube" else AXES[shape] + layered
    if len(given) < count:
        raise w.refuse(one, why=f"it has {len(given)} coordinates, .{shape} needs {count}")
    return [
        w.read(name, "u4" if layered and not place else dtype)
        for place, name in enumerate(given[:count])
    ]


@opcode("tex", "tld4")
def fetch(w: Writer, one: Instruction) -> None:
    """``tex`` and ``tld4`` of four 32-bit elements, by a handle in a register."""
    *front, vector, kind, coordinate = one.parts[1:]
    level = "level" in front
    component = (
        next((part for part in front if part in "rgba"), "") if one.parts[0] == "tld4" else ""
    )
    shape = front[-1] if front else ""
    known = {"level", shape, component}
    targets = items(one.operands[0])
    if (
        shape not in AXES
        or set(front) - known
        or vector != "v4"
        or kind not in ("u32", "s32", "f32")
        or coordinate not in ("s32", "f32")
        or len(targets) != 4
        or len(one.operands) != 2 + level
        or (one.parts[0] == "tld4") != bool(component)
        or (component and shape != "2d")
    ):
        raise w.refuse(one, why="gradients, offsets, comparisons and samples are not modelled")
    if level:
        lod = w.read(one.operands[2], "f4" if coordinate == "f32" else "i4")
        del lod  # there are no other levels than the first
    handle, given = _place(w, one, one.operands[1])
    ctype = DTYPES[coordinate]
    arrays = [handle, *_coordinates(w, one, given, shape, ctype)]
    gathers = "rgba".index(component) if component else -1
    dtype = DTYPES[kind]
    tail = f", {shape!r}, {dtype!r}, {ctype!r}, {gathers}, {w.position}"
    w.call("texture.fetch", arrays, tail, targets, dtype)


@opcode("suld", "sust")
def surface(w: Writer, one: Instruction) -> None:
    """``suld.b`` and ``sust.b``: bytes of a surface."""
    parts = [part for part in one.parts[1:] if part not in ("b", "v2", "v4", *_CACHES)]
    if "b" not in one.parts[1:2] or len(parts) != 3:
        raise w.refuse(one, why="only unformatted accesses (.b) are modelled")
    shape, kind, bounds = parts
    if shape not in AXES or shape == "cube" or bounds not in _BOUNDS or kind not in _WORDS:
        raise w.refuse(one)
    dtype, loads = DTYPES[kind], one.parts[0] == "suld"
    handle, given = _place(w, one, one.operands[1 if loads else 0])
    arrays = [handle, *_coordinates(w, one, given, shape, "i4")]
    if loads:
        targets = items(one.operands[0])
        tail = f", {shape!r}, {dtype!r}, {len(targets)}, {bounds!r}, {w.position}"
        w.call("texture.surface_load", arrays, tail, targets, dtype)
        return
    values = items(one.operands[1])
    arrays += [w.read(name, dtype) for name in values]
    tail = f", {len(values)}, {shape!r}, {dtype!r}, {bounds!r}, {w.position}"
    w.call("texture.surface_store", arrays, tail)


_CACHES = ("ca", "cg", "cs", "cv", "wb", "wt")
_WORDS = ("b8", "b16", "b32", "b64")


@opcode("txq", "suq")
def query(w: Writer, one: Instruction) -> None:
    """``txq`` and ``suq`` of extents."""
    name = one.operands[1].strip().removeprefix("[").removesuffix("]").strip()
    if one.parts[1] not in _EXTENTS or one.parts[2:] != ("b32",) or name not in w.kernel.registers:
        raise w.refuse(one, why="only extents are modelled, by handles in registers")
    tail = f", {one.parts[1]!r}, {w.position}"
    w.call("texture.queried", [w.read(name, "u8")], tail, (one.operands[0],), "u4")
