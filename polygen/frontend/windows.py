"""Windows and padding: what slides along axes, as sums of digits of where and of how far inside.

``sliding_window_view(x, (R, S), axis=(1, 2))[n, p, q, c, r, s]`` is ``x[n, p + r, q + s, c]``:
slices of the windows are strides, slices inside them dilations. ``np.pad`` shifts an index, so that
it may lie outside of the axis, where products read zeros: ``x[n, p*2 + r - 1, ...]`` is a
convolution's.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from polygen.errors import (
    PolygenError,
    ShapeError,
    TraceError,
    UnsupportedProgram,
    shortened,
    without_number,
)
from polygen.frontend.forms import Digit, Form
from polygen.frontend.nodes import Dims, Reach, reach_of
from polygen.frontend.program import Dim
from polygen.frontend.shapes import shape_text

_AS = "As in np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))"


def windows(text: str, dims: Dims, shape: Any, axis: Any) -> tuple[list[Reach], list[Dim]]:
    """What NumPy's sliding windows read, and their dims.

    Args:
        text: how the value reads, for messages.
        dims: its dims.
        shape: of a window: a number, or one for each axis that it slides along.
        axis: these axes; None: all.

    Returns:
        Per axis of the value where it is read, and the view's dims: windows, then elements of one.

    Raises:
        ShapeError: a window that is larger than the axis, or an axis without a number.
        TraceError: windows that are no numbers, or axes that there are not.
    """
    where = f"windows of {text} {shape_text(dims)}"
    sizes = _numbers(shape, f"{where} of {shortened(repr(shape))}")
    chosen = range(len(dims)) if axis is None else _numbers(axis, f"{where} along axis {axis!r}")
    axes = [one + len(dims) if one < 0 else one for one in chosen]
    if len(axes) != len(sizes) or any(not 0 <= one < len(dims) for one in axes):
        raise TraceError(
            f"{where}: {len(sizes)} sizes along axes {tuple(axes)}",
            nearest=f"{_AS}: a size for each axis, of which there are {len(dims)}",
        )
    left: list[Dim] = list(dims)
    terms = [[Digit(place)] for place in range(len(dims))]
    for number, (at, size) in enumerate(zip(axes, sizes, strict=True)):
        extent = left[at]
        if isinstance(extent, str):
            what = f"{where} of {size} along {extent}"
            raise without_number(ShapeError, what, extent, "how many there are")
        if not 1 <= size <= extent:
            raise ShapeError(
                f"{where} of {size} along an axis of {dims[at]}",
                why="a window lies inside of the axis",
                nearest=f"Windows of 1 to {extent}, or np.pad before",
            )
        left[at] = extent - size + 1
        terms[at].append(Digit(len(dims) + number))
    return [reach_of(Form(tuple(own))) for own in terms], [*left, *sizes]


def padded(text: str, dims: Dims, width: Any, value: Any) -> tuple[list[Reach], list[Dim]]:
    """What an array with zeros around it reads, and its dims.

    Args:
        text: how the value reads, for messages.
        dims: its dims.
        width: as NumPy takes it: how many before and behind, of every axis.
        value: what stands there.

    Raises:
        UnsupportedProgram: it is not 0.
        TraceError: widths that are none.
        ShapeError: an axis without a number gets longer.
    """
    where = f"np.pad of {text} {shape_text(dims)}"
    try:
        zero = float(value) == 0
    except (TypeError, ValueError, PolygenError):
        zero = False
    if not zero:
        raise UnsupportedProgram(
            f"{where} with {shortened(repr(value))}",
            why="what lies outside of an array is read as zeros",
            nearest="Pad with zeros",
        )
    reaches: list[Reach] = []
    found: list[Dim] = []
    for axis, ((before, behind), dim) in enumerate(
        zip(_pairs(width, dims, where), dims, strict=True)
    ):
        if before == behind == 0:
            reaches.append(Reach(axis))
            found.append(dim)
            continue
        if isinstance(dim, str):
            what = f"{where} by {before} and {behind} along {dim}"
            raise without_number(ShapeError, what, dim, "how long that is")
        reaches.append(reach_of(Form((Digit(axis),), -before, padded=True)))
        found.append(dim + before + behind)
    return reaches, found


def _pairs(width: Any, dims: Dims, where: str) -> list[tuple[int, int]]:
    """How many before and behind, axis by axis."""
    rows = list(width) if isinstance(width, Sequence) else [width]
    nested = [list(one) if isinstance(one, Sequence) else [one] for one in rows]
    if all(not isinstance(one, Sequence) for one in rows):  # one pair, or one number, for all
        nested = [rows]
    if len(nested) == 1:
        nested = nested * len(dims)
    found = []
    for own in nested:
        numbers = _numbers(own, f"{where} by {shortened(repr(width))}")
        found.append((numbers[0], numbers[-1]))
    if len(found) != len(dims) or any(min(pair) < 0 for pair in found):
        raise TraceError(
            f"{where} by {shortened(repr(width))}",
            nearest="Write how many before and behind for every axis: "
            "((0, 0), (1, 1), (1, 1), (0, 0))",
        )
    return found


def _numbers(given: Any, where: str) -> list[int]:
    try:
        found = [index(one) for one in (given if isinstance(given, Sequence) else [given])]
    except (TypeError, PolygenError):
        raise TraceError(f"{where}: no whole numbers", nearest=_AS) from None
    if not found:
        raise TraceError(f"{where}: none given", nearest=_AS)
    return found
