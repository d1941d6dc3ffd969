"""Reads of textures, and reads and writes of surfaces, lane by lane in vectors.

1. A handle names an image (`images`); lanes with one handle go together.
2. A coordinate becomes one texel per axis, or two and a weight of 8 bits with a linear filter
   (`_along`); addressing brings what lies outside back in, or marks it as border, which is 0.
3. What comes of the texels is a float, or the integer as it is, in four registers; channels that
   the texels lack are 0, the fourth of floats is 1.
4. Surfaces go by bytes along x and check their bounds as the instruction says.

The rules are those of the programming guide ("Texture Fetching") and the PTX manual; no GPU has
been asked yet how it rounds weights, nor about channels that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from polygen.machine import filters, grids
from polygen.machine.arithmetic import flush
from polygen.machine.data import as_bytes
from polygen.machine.images import HANDLE, PlacedImage, Surface, Texture
from polygen.machine.lanes import Lanes, Vector, full
from polygen.machine.report import Stop

if TYPE_CHECKING:
    from polygen.machine.state import Machine

AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 2}
FINEST = 2.0**21  # steps of a normalised coordinate that an H200 tells apart


def _images(
    machine: Machine, lanes: Lanes, handle: Any, kind: type[Any], shape: str, position: int
) -> Iterator[tuple[Vector, PlacedImage]]:
    """The places of the lanes, by the image that their handle names."""
    numbers = full(lanes, handle).view("i8") - HANDLE
    for number in np.unique(numbers).tolist():
        places = np.flatnonzero(numbers == number)
        known = 0 <= number < len(machine.images)
        found = machine.images[number] if known else None
        wrong = ""
        if found is None or not isinstance(found.image, kind):
            wrong = f"a handle of no {kind.__name__.lower()}"
        elif not _fits(found, shape):
            wrong = f"{found.name} as .{shape}, which has {len(found.extents)} axes"
        if wrong or found is None:
            lane = lanes.name(int(places[0]))
            machine.findings.add(
                "bad-descriptor", f"{lane} uses {wrong}", position, count=len(places)
            )
            raise Stop
        yield places, found


def _fits(found: PlacedImage, shape: str) -> bool:
    cube = isinstance(found.image, Texture) and found.image.cube
    layered = shape in ("a1d", "a2d")
    return (
        len(found.extents) == AXES[shape]
        and layered == found.image.layered
        and cube == (shape == "cube")
    )


# --- textures ------------------------------------------------------------------------------------
def fetch(
    machine: Machine,
    lanes: Lanes,
    handle: Any,
    *rest: Any,
) -> tuple[Vector, ...]:
    """``tex`` and ``tld4``: the coordinates, then shape, types, component and position.

    Returns:
        Four vectors of the type that the instruction names.
    """
    *coordinates, shape, dtype, ctype, gathers, position = rest
    values = [full(lanes, one) for one in coordinates]
    result = tuple(np.zeros(lanes.count, dtype) for _ in range(4))
    for places, found in _images(machine, lanes, handle, Texture, shape, position):
        image = found.image
        floats = image.array.dtype.kind == "f" or (isinstance(image, Texture) and image.as_floats)
        if floats != (dtype == "f4"):
            kinds = ("floats", "integers") if floats else ("integers", "floats")
            words = f"reads {found.name}, whose texels are {kinds[0]}, as {kinds[1]}"
            lane = lanes.name(int(places[0]))
            machine.findings.add("bad-descriptor", f"{lane} {words}", position, count=len(places))
            raise Stop
        some = lanes.pick(places)
        mine = [value[places] for value in values]
        part = _sampled(machine, some, found, mine, shape, ctype, gathers, position)
        for wide, channel in zip(result, part, strict=True):
            wide[places] = channel.astype(dtype, copy=False)
    return result


def _sampled(
    machine: Machine,
    lanes: Lanes,
    found: PlacedImage,
    values: list[Vector],
    shape: str,
    ctype: str,
    gathers: int,
    position: int,
) -> tuple[Vector, ...]:
    image = found.image
    assert isinstance(image, Texture)
    layer = np.zeros(lanes.count, np.int64)
    if shape in ("a1d", "a2d"):
        layer = np.clip(values.pop(0).view("u4").astype(np.int64), 0, found.layers - 1)
    elif shape == "cube":
        layer, *values = _face(*values[:3])
    whole = ctype == "i4"
    linear = not whole and (image.filter == "linear" or gathers >= 0)
    steps = found.steps
    if whole:
        axes = [_whole(value, n) for value, n in zip(values, found.extents, strict=False)]
    else:
        filtered = linear and gathers < 0
        modes = image.addressing, image.normalised or shape == "cube", linear, filtered
        axes = [_along(value, n, *modes) for value, n in zip(values, found.extents, strict=False)]
        if shape == "1d" and linear and image.addressing == "border":
            # a line is the only row of a plane, read at its upper edge: half of it is border
            axes.append(_along(np.zeros(lanes.count, "f4"), 1, *modes))
            steps = (*steps, 0)

    def texels(corner: tuple[int, ...], raw: bool = False) -> Vector:
        at = found.offset + layer * found.layer_bytes
        inside = np.ones(lanes.count, bool)
        for (indices, holds, _), step, side in zip(axes, steps, corner, strict=True):
            at = at + indices[side] * step
            inside = inside & holds[side]
        return _texels(machine, lanes, found, at, inside, position, raw)

    if gathers >= 0:
        return tuple(texels(corner)[:, gathers] for corner in ((0, 1), (1, 1), (1, 0), (0, 0)))
    if whole or not linear:
        return tuple(texels((0,) * len(axes)).T)
    parts = [part for _, _, part in axes]
    return tuple(filters.blended(parts, lambda corner: texels(corner, True), image.array.dtype).T)


_Axis = tuple[tuple[Vector, Vector], tuple[Vector, Vector], Vector]


def _along(
    values: Vector, extent: int, addressing: str, normalised: bool, linear: bool, filtered: bool
) -> _Axis:
    """Of one axis: the indices of two texels, whether they hold, and the second's 256ths."""
    given = flush(values.view("f4")).astype(np.float64)
    if addressing in ("wrap", "mirror"):  # after two, all begins again
        given = np.fmod(np.where(np.isfinite(given), given, 0), 2)
    u = np.nan_to_num(given, posinf=2.0**40, neginf=-(2.0**40))
    if normalised:
        u = np.floor(u * FINEST) / FINEST * extent
    steps = filters.WEIGHT if linear else 1
    place = np.floor((u - 0.5) * steps + 0.5) if linear else np.floor(u)
    whole = np.clip(place, -(2.0**50), 2.0**50).astype(np.int64)
    if addressing == "clamp" and filtered:
        whole = np.clip(whole, 0, (extent - 1) * steps)  # which leaves no part of the next texel
    first, part = whole // steps, whole % steps
    pair, holds = [], []
    for index in (first, first + 1):
        inside = np.ones(len(u), bool)
        if addressing == "border":
            inside = (index >= 0) & (index < extent)
        elif addressing == "wrap":
            index = index % extent
        elif addressing == "mirror":  # which shows its edges twice
            index = index % (2 * extent)
            index = np.where(index < extent, index, 2 * extent - 1 - index)
        pair.append(np.clip(index, 0, extent - 1))
        holds.append(inside)
    return (pair[0], pair[1]), (holds[0], holds[1]), part


def _whole(values: Vector, extent: int) -> _Axis:
    """Of one axis with integer coordinates: outside there is 0."""
    index = values.view("i4").astype(np.int64)
    inside, kept = (index >= 0) & (index < extent), np.clip(index, 0, extent - 1)
    return (kept, kept), (inside, inside), np.zeros(len(index))


def _face(x: Vector, y: Vector, z: Vector) -> tuple[Vector, Vector, Vector]:
    """Of a direction: the face of the cube, and coordinates of 0 to 1 on it."""
    x, y, z = (one.view("f4") for one in (x, y, z))
    a, b, c = abs(x), abs(y), abs(z)
    by_y = (b >= a) & (b > c)  # on a tie z comes first, then y
    by_x = (a > b) & (a > c)
    major = np.where(by_x, a, np.where(by_y, b, c))
    face = np.where(by_x, x < 0, np.where(by_y, 2 + (y < 0), 4 + (z < 0)))
    s = np.choose(face, [-z, z, x, x, x, -x])
    t = np.choose(face, [-y, -y, z, -z, -y, -y])
    half = np.float32(0.5)
    return face.astype(np.int64), half * (s / major + 1), half * (t / major + 1)


def _texels(
    machine: Machine,
    lanes: Lanes,
    found: PlacedImage,
    at: Vector,
    inside: Vector,
    position: int,
    raw: bool,
) -> Vector:
    """Texels at places in memory, as four numbers per lane; 0 where they are not inside.

    Integers that are read as floats are made floats unless they are wanted `raw`.
    """
    image, size = found.image, found.texel_bytes
    kind = image.array.dtype
    chosen = np.flatnonzero(inside)
    result = np.zeros((lanes.count, 4), np.float64 if kind.kind == "f" else np.int64)
    if len(chosen):
        loaded = _load(machine, lanes.pick(chosen), at[chosen], size, position)
        result[chosen, : image.channels] = loaded.view(kind)
    if isinstance(image, Texture) and image.as_floats and not raw:
        most = np.iinfo(kind).max
        result = np.maximum(result.astype(np.float64) / most, -1.0).astype(np.float32)
    return result


def _load(machine: Machine, lanes: Lanes, at: Vector, size: int, position: int) -> Vector:
    """Bytes of global memory, one row per lane."""
    grids.check(machine, lanes, at, size, position, writes=False)
    if machine.stores is not None:
        machine.stores.read(machine, lanes, at, size, position)
    return np.ascontiguousarray(machine.memory.bytes[at[:, None] + np.arange(size)])


# --- surfaces ------------------------------------------------------------------------------------
def _surface_places(
    machine: Machine, lanes: Lanes, found: PlacedImage, values: list[Vector], rest: tuple[Any, ...]
) -> tuple[Vector, Vector]:
    """Places in memory of accesses to a surface, and which of them are inside."""
    shape, size, bounds, position = rest
    layer, inside = np.zeros(lanes.count, np.int64), np.ones(lanes.count, bool)
    numbers = [value.view("i4").astype(np.int64) for value in values]
    if shape in ("a1d", "a2d"):
        layer = numbers.pop(0) & 0xFFFFFFFF  # which has no sign: what is below 0 is far behind
        inside &= layer < found.layers
    at = found.offset + np.clip(layer, 0, found.layers - 1) * found.layer_bytes
    ends = (found.extents[0] * found.texel_bytes - size + 1, *found.extents[1:])
    steps = (1, *found.steps[1:])
    for index, end, step in zip(numbers, ends, steps, strict=False):
        inside &= (index >= 0) & (index < end)
        at = at + np.clip(index, 0, end - 1) * step
    odd = numbers[0] % size != 0
    if odd.any():
        lane = int(odd.argmax())
        words = f"{lanes.name(lane)} accesses {size} bytes of {found.name} at byte "
        words += f"{int(numbers[0][lane])} of a row, not a multiple of {size}"
        machine.findings.add("misaligned", words, position, count=int(odd.sum()))
        raise Stop
    if bounds == "trap" and not inside.all():
        lane = int((~inside).argmax())
        where = ", ".join(str(int(one[lane])) for one in numbers)
        words = f"{lanes.name(lane)} accesses {found.name} at ({where}), which it does not have"
        machine.findings.add("out-of-bounds-global", words, position, count=int((~inside).sum()))
    return at, inside if bounds != "clamp" else np.ones(lanes.count, bool)


def surface_load(machine: Machine, lanes: Lanes, handle: Any, *rest: Any) -> tuple[Vector, ...]:
    """``suld.b``: the coordinates, then shape, NumPy type, elements, bounds and position."""
    *coordinates, shape, dtype, count, bounds, position = rest
    values = [full(lanes, one) for one in coordinates]
    size = np.dtype(dtype).itemsize * count
    result = np.zeros((lanes.count, count), dtype)
    for places, found in _images(machine, lanes, handle, Surface, shape, position):
        some, mine = lanes.pick(places), [value[places] for value in values]
        options = shape, size, bounds, position
        at, inside = _surface_places(machine, some, found, mine, options)
        if inside.any():
            raw = _load(machine, some.pick(inside), at[inside], size, position)
            result[places[inside]] = raw.view(dtype)
    return tuple(np.ascontiguousarray(result.T))


def surface_store(machine: Machine, lanes: Lanes, handle: Any, *rest: Any) -> None:
    """``sust.b``: coordinates and values, then how many values, shape, type, bounds, position."""
    *given, count, shape, dtype, bounds, position = rest
    coordinates = [full(lanes, one) for one in given[: len(given) - count]]
    new = as_bytes(lanes, tuple(given[len(given) - count :]), dtype)
    size = new.shape[1]
    for places, found in _images(machine, lanes, handle, Surface, shape, position):
        some, mine = lanes.pick(places), [value[places] for value in coordinates]
        options = shape, size, bounds, position
        at, inside = _surface_places(machine, some, found, mine, options)
        if inside.any():
            _store(machine, some.pick(inside), at[inside], new[places[inside]], position)


def _store(machine: Machine, lanes: Lanes, at: Vector, new: Vector, position: int) -> None:
    size = new.shape[1]
    grids.check(machine, lanes, at, size, position, writes=True)
    if machine.stores is not None:
        machine.stores.write(machine, lanes, at, size, new, position)
    machine.memory.bytes[at[:, None] + np.arange(size)] = new
    if machine.stores is not None:
        machine.stores.collide(machine, lanes, at, new, position)


def queried(
    machine: Machine, lanes: Lanes, handle: Any, what: str, position: int
) -> tuple[Vector, ...]:
    """``txq`` and ``suq``: an extent, or how many layers there are."""
    result = np.zeros(lanes.count, "u4")
    numbers = full(lanes, handle).view("i8") - HANDLE
    for number in np.unique(numbers).tolist():
        places = np.flatnonzero(numbers == number)
        if not 0 <= number < len(machine.images):
            machine.findings.add(
                "bad-descriptor", f"{lanes.name(int(places[0]))} asks of no image", position
            )
            raise Stop
        result[places] = _extent(machine.images[number], what)
    return (result,)


def _extent(found: PlacedImage, what: str) -> int:
    if what == "array_size":
        return found.layers
    axis = ("width", "height", "depth").index(what)
    return found.extents[axis] if axis < len(found.extents) else 0
