"""The 128 bytes of a tensor map, as the machine has them: what ``tensormap.replace`` changes.

1. An image is opaque, as the driver's is, and of the machine's own making: every field that PTX can
   name has a place. Code may copy the bytes in any way; what a copy of them means is what they say.
2. A map of the launch has a number, by which its name and its type are known. Zeros are no map, but
   fields may be put into them, as compilers do that make maps from nothing.
3. What is read back is checked as the driver checks what it encodes (`tensormap.problem`); a map
   that has changed may leave its array, which the driver never looks at (`bulk`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from polygen.machine.tensormap import IMAGE_BYTES, PlacedMap, problem

_MARK = b"tma map "
_FORM = np.dtype(
    {
        "names": [
            "mark", "number", "elemtype", "rank", "swizzle_mode", "fill_mode",
            "global_address", "global_stride", "global_dim", "box_dim", "element_stride",
        ],
        "formats": ["S8", "u4", "u1", "u1", "u1", "u1", "u8", ("u8", 4), ("u4", 5), ("u2", 5),
                    ("u1", 5)],
        "offsets": [0, 8, 12, 13, 14, 15, 16, 24, 56, 76, 86],
        "itemsize": IMAGE_BYTES,
    }
)  # fmt: skip
# Fields by what an instruction gives them: a number in a register, one for a dim, an immediate.
NUMBERS = {"global_address": "b64", "rank": "b32"}
BY_DIM = {"box_dim": "b32", "global_dim": "b32", "global_stride": "b64", "element_stride": "b32"}
CHOICES: Mapping[str, Mapping[int, Any]] = {
    "elemtype": {
        0: np.uint8, 1: np.uint16, 2: np.uint32, 3: np.int32, 4: np.uint64, 5: np.int64,
        6: np.float16, 7: np.float32, 9: np.float64, 10: ml_dtypes.bfloat16, 11: np.float32,
    },
    "interleave_layout": {0: 0},
    "swizzle_mode": {0: 0, 1: 32, 2: 64, 3: 128},
    "swizzle_atomicity": {0: 0},
    "fill_mode": {0: False, 1: True},
}  # fmt: skip
_TF32 = 11
_SAME = 255  # of an image's `elemtype`: that of the launch's map


def image(number: int, placed: PlacedMap, base: int) -> bytes:
    """The bytes of a map of the launch.

    Args:
        number: which one, from 0.
        placed: the map.
        base: address of global memory's first byte.
    """
    found, rank = np.zeros((), _FORM), len(placed.dims)
    swizzles = {span: code for code, span in CHOICES["swizzle_mode"].items()}
    found["mark"], found["number"] = _MARK, number + 1
    found["elemtype"], found["rank"] = _SAME, rank - 1
    found["swizzle_mode"], found["fill_mode"] = swizzles[placed.swizzle], placed.nan_fill
    found["global_address"] = base + placed.offset
    steps, every = np.array(placed.strides[1:], np.int64), np.array(placed.every)
    found["global_stride"][: rank - 1] = steps.view(np.uint64)  # any, of a dim of one element
    found["global_dim"][:rank], found["box_dim"][:rank] = placed.dims, every * placed.box
    found["element_stride"][:rank] = every
    return found.tobytes()


def changed(data: bytes, field: str, place: int, value: int) -> bytes | None:
    """An image with one field replaced; None: what was there is no map, nor zeros."""
    if data[: len(_MARK)] != _MARK and any(data):
        return None
    found = np.frombuffer(bytearray(data), _FORM)[0]
    found["mark"] = _MARK
    if field in (_FORM.names or ()):  # the other ones have one value that is modelled
        width = 8 * _FORM[field].base.itemsize
        held = value & (1 << width) - 1
        if field in BY_DIM:
            found[field][place] = held
        else:
            found[field] = held
    return bytes(found.tobytes())


def read(data: bytes, known: Sequence[PlacedMap], base: int) -> PlacedMap | str:
    """What an image says: a map, or why it is none.

    Args:
        data: its bytes.
        known: the maps of the launch.
        base: address of global memory's first byte.
    """
    found = np.frombuffer(data, _FORM)[0]
    number = int(found["number"]) - 1
    if data[: len(_MARK)] != _MARK or not -1 <= number < len(known):
        return "that is not a TensorMap argument"
    rank = int(found["rank"]) + 1
    if rank > len(found["global_dim"]):
        return f"of {rank} dims"
    origin, code = known[number] if number >= 0 else None, int(found["elemtype"])
    if code == _SAME and origin is not None:
        dtype, kind = origin.dtype, origin.kind
    else:
        dtype, kind = np.dtype(CHOICES["elemtype"][code]), "tf32" if code == _TF32 else ""
    name = f"{origin.name}, changed on the device" if origin else "a map made on the device"
    dims, boxes, every = (
        found[field][:rank].tolist() for field in ("global_dim", "box_dim", "element_stride")
    )
    placed = PlacedMap(
        name,
        int(found["global_address"]) - base,
        tuple(dims),
        (dtype.itemsize, *found["global_stride"][: rank - 1].tolist()),
        tuple(-(-side // max(each, 1)) for side, each in zip(boxes, every, strict=True)),
        CHOICES["swizzle_mode"][int(found["swizzle_mode"])],
        dtype,
        bool(found["fill_mode"]),
        kind,
        tuple(every),
        changed=True,
    )
    if 0 in dims:
        return f"of {' x '.join(map(str, dims[::-1]))} elements"
    what, _, nearest = problem(placed) or ("", "", "")
    return f"with {what}{f' ({nearest})' if nearest else ''}" if what else placed
