"""Textures and surfaces as arguments: what an array is to the instructions that read it as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polygen.errors import LaunchError

Array = np.ndarray[Any, Any]
HANDLE = 0x7B00_0000_0000  # handles are this and the number of a texture or surface
ADDRESSING = ("clamp", "border", "wrap", "mirror")
FILTERS = ("point", "linear")
_TEXELS = {"uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"}


@dataclass(frozen=True, slots=True)
class Texture:
    """A ``cudaTextureObject_t`` argument, described instead of made.

    Attributes:
        array: the texels: (width,), (height, width) or (depth, height, width); with more than one
            channel, an axis of them behind these; with layers, or as a cube, an axis of layers or
            of six faces in front.
        channels: 1, 2 or 4 numbers per texel.
        filter: "point" or "linear".
        addressing: "clamp", "border", "wrap" or "mirror", of all axes.
        normalised: coordinates are parts of the extents (``normalizedCoords``).
        as_floats: integers of 8 and 16 bits are read as floats of 0 to 1 or -1 to 1
            (``cudaReadModeNormalizedFloat``).
        layered: the first axis is of layers.
        cube: the first axis is of the six faces.
    """

    array: Array
    channels: int = 1
    filter: str = "point"
    addressing: str = "clamp"
    normalised: bool = False
    as_floats: bool = False
    layered: bool = False
    cube: bool = False


@dataclass(frozen=True, slots=True)
class Surface:
    """A ``cudaSurfaceObject_t`` argument; the array may be a texture's, too.

    Attributes:
        array: as a texture's.
        channels: 1, 2 or 4 numbers per texel.
        layered: the first axis is of layers.
    """

    array: Array
    channels: int = 1
    layered: bool = False


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """A texture or surface with its array in memory; extents and steps are innermost first."""

    name: str
    image: Texture | Surface
    offset: int  # of the first texel in global memory
    extents: tuple[int, ...]  # in texels, but for layers and faces
    steps: tuple[int, ...]  # bytes from one texel to the next, per axis
    layers: int  # or faces; 1 without
    layer_bytes: int

    @property
    def texel_bytes(self) -> int:
        """Bytes of a texel."""
        return self.image.array.itemsize * self.image.channels


def place(where: str, image: Texture | Surface, offset: int) -> PlacedImage:
    """Check an image against what the driver takes.

    Raises:
        LaunchError: it takes no such texture or surface.
    """
    array = image.array
    cube = isinstance(image, Texture) and image.cube
    if isinstance(image, Texture):
        _check_sampling(where, image)
    if array.dtype.name not in _TEXELS:
        raise LaunchError(
            f"texels of {array.dtype}", where=where, nearest=", ".join(sorted(_TEXELS))
        )
    if image.channels not in (1, 2, 4) or (image.channels > 1) != (
        array.ndim > 1 and array.shape[-1] == image.channels and image.channels > 1
    ):
        raise LaunchError(
            f"{image.channels} channels of an array of shape {array.shape}",
            where=where,
            nearest="1, 2 or 4; more than one are the last axis",
        )
    shape, steps = array.shape, array.strides
    inner = array.itemsize
    if image.channels > 1:
        if steps[-1] != inner:
            raise LaunchError("channels that are not neighbours", where=where)
        shape, steps = shape[:-1], steps[:-1]
    layers, layer_bytes = 1, 0
    if image.layered or cube:
        layers, layer_bytes, shape, steps = shape[0], steps[0], shape[1:], steps[1:]
    if not 1 <= len(shape) <= 3 or 0 in array.shape:
        raise LaunchError(f"an image of shape {array.shape}", where=where)
    if cube and (layers != 6 or len(shape) != 2 or shape[0] != shape[1]):
        raise LaunchError(f"a cube of shape {array.shape}", where=where, nearest="(6, side, side)")
    return PlacedImage(where, image, offset, shape[::-1], steps[::-1], layers, layer_bytes)


def _check_sampling(where: str, image: Texture) -> None:
    if image.filter not in FILTERS or image.addressing not in ADDRESSING:
        raise LaunchError(
            f"a texture with filter {image.filter!r} and addressing {image.addressing!r}",
            where=where,
            nearest=f"One of {FILTERS}, and one of {ADDRESSING}",
        )
    if image.addressing in ("wrap", "mirror") and not image.normalised:
        raise LaunchError(
            f"addressing {image.addressing!r} with coordinates that are not normalised",
            where=where,
            why="a driver takes `clamp` then",
            nearest="normalised=True, or addressing='clamp'",
        )
    floats = image.array.dtype.kind == "f"
    if image.as_floats and (floats or image.array.itemsize > 2):
        raise LaunchError(
            f"texels of {image.array.dtype} as floats of 0 to 1",
            where=where,
            nearest="Integers of 8 or 16 bits",
        )
    if image.filter == "linear" and not (floats or image.as_floats):
        raise LaunchError(
            f"a linear filter of {image.array.dtype}",
            where=where,
            nearest="filter='point', or as_floats=True",
        )
    if image.cube and image.layered:
        raise LaunchError("layers of cubes", where=where)
