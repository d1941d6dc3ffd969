"""Pitches among the sizes: how far apart the rows of an array begin.

A size called ``x.pitch`` is the number of elements from one row of x to the next; without it rows
follow each other without gaps. A pitch stays a run-time argument, like every size: it says what to
optimise for, and how far rows are aligned.
"""

from __future__ import annotations

from collections.abc import Mapping

from polygen.errors import PolygenError
from polygen.frontend.indices import known_size
from polygen.frontend.program import Program, Tensor

_ENDING = ".pitch"


def pitch_of(name: str) -> str:
    """What the pitch of an array is called among the sizes."""
    return name + _ENDING


def pitches(program: Program) -> dict[str, Tensor]:
    """The arrays that have rows, by the names of their pitches."""
    tensors = (*program.inputs, *program.outputs)
    return {pitch_of(one.name): one for one in tensors if len(one.dims) > 1}


def sizes_in(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Of sizes those of a program's dims, and of its arrays' pitches."""
    wanted = {*program.sizes, *pitches(program)}
    return {name: size for name, size in sizes.items() if name in wanted}


def row_length(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """Elements of a row of an array that has rows; None: the size is not known."""
    return known_size(tensor.dims[tensor.order[-1]], sizes)


def row_step(tensor: Tensor, sizes: Mapping[str, int]) -> int | None:
    """Elements from one row of an array to the next; None: neither pitch nor size is known."""
    given = sizes.get(pitch_of(tensor.name))
    return row_length(tensor, sizes) if given is None else given


def check_pitch(tensor: Tensor, sizes: Mapping[str, int]) -> None:
    """Refuse a pitch with which rows overlap.

    Raises:
        PolygenError: with the least pitch.
    """
    name, length = pitch_of(tensor.name), row_length(tensor, sizes)
    if length is not None and sizes[name] < length:
        raise PolygenError(
            f"{name} = {sizes[name]}",
            where="sizes",
            why=f"rows of {tensor} have {length} elements, and would overlap",
            nearest=f"Use {name} = {length}, or more",
        )
