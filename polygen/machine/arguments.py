"""What a launch's arguments are made of: arrays, tensor maps, and structs with pointers in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.errors import LaunchError
from polygen.machine.tensormap import TensorMap

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Struct:
    """A parameter by value that holds pointers, as iterators and views of libraries do.

    Attributes:
        data: its bytes; what they say at the places of pointers does not matter.
        pointers: by byte offset in it, the array that a pointer points to, or the array and how
            many bytes into it. A pointer alone, into the middle of an array, is a struct of 8.
    """

    data: bytes
    pointers: Mapping[int, Array | tuple[Array, int]] = field(default_factory=dict)

    def targets(self, where: str) -> list[tuple[int, Array, int]]:
        """(offset in the struct, array, bytes into it), in the order of the struct.

        Raises:
            LaunchError: a pointer that does not fit the struct, or its array.
        """
        found = []
        for offset, target in sorted(self.pointers.items()):
            array, start = target if isinstance(target, tuple) else (target, 0)
            if not 0 <= offset <= len(self.data) - 8:
                raise LaunchError(
                    f"a pointer at byte {offset} of a struct of {len(self.data)}", where=where
                )
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
    """The arrays among arguments, those of tensor maps and structs too, as a report has them."""
    memory = (one.memory if isinstance(one, TensorMap) else one for one in pieces(arguments))
    return [one for one in memory if isinstance(one, np.ndarray)]
