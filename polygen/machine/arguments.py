"""What a launch's arguments are made of: arrays, tensor maps, images, structs of all these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.errors import LaunchError
from polygen.machine.images import Surface, Texture
from polygen.machine.tensormap import IMAGE_BYTES, MAP_ALIGNMENT, TensorMap

Array = np.ndarray[Any, Any]
Target = Array | Texture | Surface | TensorMap


@dataclass(frozen=True, slots=True)
class Struct:
    """A parameter by value that holds pointers, handles or tensor maps, as libraries' records do.

    Attributes:
        data: its bytes; what they say at the places of pointers does not matter.
        pointers: by byte offset in it, the array that a pointer points to, or the array and how
            many bytes into it, the texture or surface of a handle, or the tensor map whose 128
            bytes begin there. A pointer alone, into the middle of an array, is a struct of 8.
    """

    data: bytes
    pointers: Mapping[int, Target | tuple[Array, int]] = field(default_factory=dict)

    def targets(self, where: str) -> list[tuple[int, Target, int]]:
        """(offset in the struct, array, image or map, bytes into it), in the struct's order.

        Raises:
            LaunchError: a pointer that does not fit the struct, or its array.
        """
        found: list[tuple[int, Target, int]] = []
        for offset, target in sorted(self.pointers.items()):
            array, start = target if isinstance(target, tuple) else (target, 0)
            is_map = isinstance(array, TensorMap)
            size = IMAGE_BYTES if is_map else 8
            if not 0 <= offset <= len(self.data) - size:
                what = "tensor map" if is_map else "pointer"
                raise LaunchError(
                    f"a {what} at byte {offset} of a struct of {len(self.data)}", where=where
                )
            if is_map and offset % MAP_ALIGNMENT:
                raise LaunchError(
                    f"a tensor map at byte {offset} of a struct",
                    where=where,
                    nearest=f"A multiple of {MAP_ALIGNMENT}",
                )
            if isinstance(array, Texture | Surface | TensorMap) and not start:
                found.append((offset, array, 0))
                continue
            if not isinstance(array, np.ndarray):
                raise LaunchError(
                    f"a pointer to a {type(array).__name__}",
                    where=where,
                    nearest="Pass a NumPy array, or one and the bytes into it",
                )
            if not 0 <= start <= array.nbytes:
                raise LaunchError(
                    f"a pointer to byte {start} of an array of {array.nbytes}", where=where
                )
            found.append((offset, array, start))
        return found


def pieces(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """Arguments one by one: the elements of tuples, and the arrays of structs in their order."""
    for one in arguments:
        for piece in one if isinstance(one, tuple) else (one,):
            if isinstance(piece, Struct):
                yield from (array for _, array, _ in piece.targets("launch"))
            else:
                yield piece


def arrays_in(arguments: tuple[Any, ...]) -> list[Array]:
    """The arrays among arguments, those of maps, images and structs too, as a report has them."""
    memory = (memory_of(one) for one in pieces(arguments))
    return [one for one in memory if isinstance(one, np.ndarray)]


def memory_of(piece: Any) -> Any:
    """The array whose memory a piece of an argument has; what is none stays as it is."""
    if isinstance(piece, TensorMap):
        return piece.memory
    return piece.array if isinstance(piece, Texture | Surface) else piece
