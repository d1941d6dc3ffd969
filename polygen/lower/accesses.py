"""Where elements of an array lie: steps along dims, and where the block's matrix begins, as C.

An array's index says of every axis which dim it runs along (`polygen.poly.match.Along`). A step
along a dim is then a stride, or several; what constants and batch dims add is the same for a whole
tile.
"""

from __future__ import annotations

from polygen.frontend.program import Dim, Tensor
from polygen.lower.launch import MapAxis, stride_argument
from polygen.poly.match import Along

_ROLES = ("m", "n", "k")
# Of rows in groups: how many lie before the block's group, and how many it has.
ROWS_BEFORE, ROWS_OF_GROUP = "rows_before", "rows_of_group"


def elements_along(tensor: Tensor, index: tuple[Along, ...], dim: str) -> str:
    """Elements from one index of a dim to the next; "0": the array does not depend on it."""
    axis = next((a for a, one in enumerate(index) if one.dim == dim), None)
    if axis is None:
        return "0"
    return _times(tensor, axis, index[axis].step)


def base(tensor: Tensor, index: tuple[Along, ...]) -> tuple[str, ...]:
    """Terms that lead to the block's matrix: of batch dims, and where slices begin."""
    found = []
    for axis, one in enumerate(index):
        if one.dim and one.dim not in _ROLES:
            found.append(f"(long long){one.dim} * {_times(tensor, axis, one.scale)}")
        if one.start:
            found.append(_times(tensor, axis, one.start))
        if one.group:
            found.append(f"(long long){ROWS_BEFORE} * {_times(tensor, axis, one.scale)}")
    return tuple(found)


def _times(tensor: Tensor, axis: int, count: int) -> str:
    """Elements of `count` indices of an axis."""
    if axis == tensor.contiguous_axis:
        return str(count)
    stride = stride_argument(tensor, axis)
    return stride if count == 1 else f"({count}LL * {stride})"


def map_axes(
    tensor: Tensor,
    index: tuple[Along, ...],
    extents: dict[str, Dim],
    boxes: dict[str, int],
) -> tuple[tuple[MapAxis, ...], tuple[str, ...]]:
    """An array as the copy engine sees it, slowest axis first, and the dim along each axis.

    Args:
        tensor: the array.
        index: what indexes each of its axes.
        extents: of the dims.
        boxes: elements of a box along dims; 1 along all others.
    """
    axes, dims = [], []
    for dim in boxes:
        if dim not in {one.dim for one in index}:  # a vector is a matrix with one row
            axes.append(MapAxis(None, 1, boxes[dim]))
            dims.append(dim)
    for axis in tensor.order:
        one = index[axis]
        extent = extents[one.dim] if one.dim else 1
        axes.append(
            MapAxis(axis, extent, boxes.get(one.dim, 1), one.offset, one.scale if one.dim else 1)
        )
        dims.append(one.dim)
    return tuple(axes), tuple(dims)


def corner(dims: tuple[str, ...], starts: dict[str, str]) -> tuple[str, ...]:
    """The position of a box along each axis of a map.

    Args:
        dims: along the axes.
        starts: of the box, by dim; along a batch dim it is the block's.
    """
    return tuple(starts.get(dim, dim or "0") for dim in dims)


def row_starts(index: tuple[Along, ...], starts: dict[str, str]) -> dict[str, str]:
    """Where a box starts, by dim, counted from the first row of all groups; see `corner`."""
    shifted = {one.dim for one in index if one.group}
    return {
        dim: f"{ROWS_BEFORE} + {start}" if dim in shifted else start
        for dim, start in starts.items()
    }
