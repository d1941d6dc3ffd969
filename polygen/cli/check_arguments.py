"""The arguments of a launch file, one record for each kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArrayArgument:
    """A pointer: an array in global memory.

    Attributes:
        dtype: of its elements.
        shape: elements per axis, row-major.
        fill: "random-integers", "zeros", "nan", "iota", or an ``.npy`` file beside the TOML.
        seed: of random integers.
        low: smallest random integer.
        high: largest random integer.
        expect: an ``.npy`` file that the array must equal after the run; "" for no comparison.
    """

    dtype: str
    shape: tuple[int, ...]
    fill: str = "random-integers"
    seed: int = 0
    low: int = -4
    high: int = 4
    expect: str = ""


@dataclass(frozen=True, slots=True)
class ScalarArgument:
    """A number by value."""

    dtype: str
    value: float | int


@dataclass(frozen=True, slots=True)
class StructArgument:
    """A struct by value.

    Attributes:
        size: bytes.
        fill: "zeros", or an ``.npy`` file of so many bytes, of any dtype, beside the TOML.
    """

    size: int
    fill: str = "zeros"


@dataclass(frozen=True, slots=True)
class MapArgument:
    """A ``CUtensorMap`` by value: of an array argument, or of an array of its own.

    Attributes:
        box: elements per axis, outermost first.
        of: which ``[[argument]]`` holds the tensor, counted from 0; -1: this table describes it.
        swizzle: 0, 32, 64 or 128 bytes.
        nan_fill: elements outside read as NaN instead of zero.
        every: per axis, elements of the tensor from one element of a box to the next; (): 1.
    """

    box: tuple[int, ...]
    of: int = -1
    swizzle: int = 0
    nan_fill: bool = False
    every: tuple[int, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    fill: str = "random-integers"
    seed: int = 0
    low: int = -4
    high: int = 4
    expect: str = ""


@dataclass(frozen=True, slots=True)
class TextureArgument(ArrayArgument):
    """A ``cudaTextureObject_t`` of an array of its own; the rest is as for `Texture`."""

    channels: int = 1
    filter: str = "point"
    addressing: str = "clamp"
    normalised: bool = False
    as_floats: bool = False
    layered: bool = False
    cube: bool = False


@dataclass(frozen=True, slots=True)
class SurfaceArgument(ArrayArgument):
    """A ``cudaSurfaceObject_t`` of an array of its own; the rest is as for `Surface`."""

    channels: int = 1
    layered: bool = False


Argument = (
    ArrayArgument
    | ScalarArgument
    | StructArgument
    | MapArgument
    | TextureArgument
    | SurfaceArgument
)
KINDS: dict[str, type[Argument]] = {
    "array": ArrayArgument,
    "scalar": ScalarArgument,
    "struct": StructArgument,
    "tensor-map": MapArgument,
    "texture": TextureArgument,
    "surface": SurfaceArgument,
}
