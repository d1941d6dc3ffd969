"""Code for tensor maps that kernels change: ``tensormap.replace`` and the fences of its proxy."""

from __future__ import annotations

from polygen.machine import map_image
from polygen.machine.module import Instruction
from polygen.machine.tensormap import IMAGE_BYTES
from polygen.machine.writer import Writer, opcode

_SCOPES = {"cta", "cluster", "gpu", "sys"}


@opcode("tensormap")
def tensormap(w: Writer, one: Instruction) -> None:
    """``tensormap.replace`` and ``tensormap.cp_fenceproxy``."""
    if one.parts[1] == "replace":
        _replace(w, one)
    elif one.parts[1] == "cp_fenceproxy":
        _copy(w, one)
    else:
        raise w.refuse(one)


def _replace(w: Writer, one: Instruction) -> None:
    name, *rest = one.parts[3:]
    space = next((part.split("::")[0] for part in rest if part[0] in "gs"), "generic")
    kind = {**map_image.NUMBERS, **map_image.BY_DIM}.get(name, "b32")
    if one.parts[2] != "tile" or rest[-2:] != ["b1024", kind]:
        raise w.refuse(one)
    where, place = w.address(one.operands[0]), 0
    given = one.operands[1:]
    if name in map_image.BY_DIM:
        place, given = int(given[0], 0), given[1:]
        if not 0 <= place < (4 if name == "global_stride" else 5):
            raise w.refuse(one, why=f"there is no dim {place}")
    if name in map_image.CHOICES:
        legal, value = map_image.CHOICES[name], int(given[0], 0)
        if value not in legal:
            nearest = ", ".join(map(str, legal))
            raise w.refuse(
                one, why=f"the value {value} of .{name} is not modelled", nearest=nearest
            )
    elif name not in map_image.NUMBERS and name not in map_image.BY_DIM:
        raise w.refuse(one, why=f"there is no field .{name}")
    value_name = w.read(given[0], "u8" if kind == "b64" else "u4")
    tail = f", {name!r}, {place}, {space!r}, {w.position}"
    w.call("map_changes.replace", [where, value_name], tail)


def _copy(w: Writer, one: Instruction) -> None:
    spaces, rest = one.parts[2:4], one.parts[4:]
    wanted = ("tensormap::generic", "release", "sync", "aligned")
    if spaces != ("global", "shared::cta") or tuple(p for p in rest if p not in _SCOPES) != wanted:
        raise w.refuse(one)
    _whole(w, one, one.operands[2])
    places = [w.address(one.operands[0]), w.address(one.operands[1])]
    w.call("map_changes.copy_release", places, f", {w.position}")


def fence(w: Writer, one: Instruction) -> None:
    """``fence.proxy.tensormap::generic``."""
    if one.parts[3] == "release":
        w.call("map_changes.release", [], f", {w.position}")
    elif one.parts[3] == "acquire":
        _whole(w, one, one.operands[1])
        w.call("map_changes.acquire", [w.address(one.operands[0])], f", {w.position}")
    else:
        raise w.refuse(one)


def _whole(w: Writer, one: Instruction, size: str) -> None:
    if int(size, 0) != IMAGE_BYTES:
        raise w.refuse(one, why=f"{size} bytes", nearest=str(IMAGE_BYTES))
