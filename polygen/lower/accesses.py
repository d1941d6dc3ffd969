"""Where elements of an array lie: steps along dims, and where the block's matrix begins, as C.

An array's index says of every axis which dim it runs along (`polygen.poly.match.Along`). A step
along a dim is then a stride, or several; what constants and batch dims add is the same for a whole
tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Dim, Tensor
from polygen.lower.launch import MapAxis, stride_argument
from polygen.poly.elements import ROLES, Along

# Of rows in groups: how many lie before the block's group, and how many it has.
ROWS_BEFORE, ROWS_OF_GROUP = "rows_before", "rows_of_group"


@dataclass(frozen=True, slots=True)
class Step:
    """Elements up to an index of a dim: ``stride * (floor(index / per) mod modulo)``."""

    stride: str  # an argument, a number, or a product of both
    per: int = 1
    modulo: int = 0  # 0: none

    def of(self, index: str) -> str:
        """The digit of an index, as C."""
        if self.per == 1 and not self.modulo:
            return index
        place = f"{index} / {self.per}" if self.per > 1 else index
        return f"({place} % {self.modulo})" if self.modulo else f"({place})"


def steps_along(tensor: Tensor, index: tuple[Along, ...], dim: str) -> tuple[Step, ...]:
    """Where the elements along a dim are: a step, or one for each digit that axes are read at."""
    return tuple(
        Step(_times(tensor, axis, one.step), one.per, one.modulo)
        for axis, along in enumerate(index)
        for one in along.terms
        if one.dim == dim
    )


def steps_text(variable: str, steps: tuple[Step, ...]) -> list[str]:
    """The terms of an address along a dim, as C."""
    return [f"{step.of(variable)} * {step.stride}" for step in steps]


def elements_along(tensor: Tensor, index: tuple[Along, ...], dim: str) -> str:
    """Elements from one index of a dim to the next; "0": the array does not depend on it."""
    steps = steps_along(tensor, index, dim)
    return steps[0].stride if steps else "0"


def base(tensor: Tensor, index: tuple[Along, ...]) -> tuple[str, ...]:
    """Terms that lead to the block's matrix: of batch dims, and where slices begin."""
    found = []
    for axis, one in enumerate(index):
        for term in one.terms:
            if term.dim not in ROLES:
                place = Step("", term.per, term.modulo).of(term.dim)
                found.append(f"(long long){place} * {_times(tensor, axis, term.scale)}")
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
) -> tuple[tuple[MapAxis, ...], tuple[Along | Sliding, ...]]:
    """An array as the copy engine sees it, slowest axis first, and what runs along each axis.

    Every term of an axis' index is an axis of the map: an axis that a reshape has merged is two of
    them, and two that it has split are two digits of one dim. Windows slide along one axis.

    Args:
        tensor: the array.
        index: what indexes each of its axes.
        extents: of the dims.
        boxes: elements of a box along dims; 1 along all others.
    """
    axes: list[MapAxis] = []
    dims: list[Along | Sliding] = []
    for dim in boxes:
        if not steps_along(tensor, index, dim):  # a vector is a matrix with one row
            axes.append(MapAxis(None, 1, boxes[dim]))
            dims.append(Along(dim))
    for axis in tensor.order:
        one = index[axis]
        if one.together:
            for map_axis, slid in _sliding_axes(tensor, axis, one, boxes):
                axes.append(map_axis)
                dims.append(slid)
            continue
        terms = sorted(one.terms, key=lambda term: -term.scale) or [Along("", 1)]
        for term in terms:
            box = boxes.get(term.dim, 1) if term.per == 1 else 1
            start = one.offset if term is terms[-1] else 0
            axes.append(MapAxis(axis, _count(term, extents), box, start, term.scale))
            dims.append(term)
    return tuple(axes), tuple(dims)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Where windows lie on an axis, as what runs along one or two axes of a map.

    Rows of a tile that are `step` elements apart are neighbours on an axis of every step-th
    element; where such a row begins inside of a step is another axis.
    """

    place: Along
    step: int
    rest: bool = False  # which of the two

    def corner(self, starts: dict[str, str]) -> str:
        """The position of a box, as C: no quotient of it is of a negative number."""
        terms = []
        for one in self.place.terms:
            if self.step == 1 or one.dim not in ROLES:
                start, digit = starts.get(one.dim, one.dim), Step("", one.per, one.modulo)
                text = digit.of(start if digit == Step("") and one.scale == 1 else f"({start})")
                terms.append(text if one.scale == 1 else f"{one.scale} * {text}")
        offset = self.place.offset
        if self.step == 1:
            return _plus(" + ".join(terms), offset)
        steps = max(0, -(offset // self.step))
        inside = f"({_plus(' + '.join(terms) or '0', offset + steps * self.step)})"
        if self.rest:
            return f"{inside} % {self.step}"
        (row,) = (one.dim for one in self.place.terms if one.dim in ROLES)
        return _plus(f"{starts[row]} + {inside} / {self.step}", -steps)


def _plus(text: str, offset: int) -> str:
    return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}" if offset else text


def _sliding_axes(
    tensor: Tensor, axis: int, one: Along, boxes: dict[str, int]
) -> list[tuple[MapAxis, Along | Sliding]]:
    """The axes of a map along an axis that windows slide along: zeros lie outside of all of it."""
    extent = tensor.dims[axis]
    row = next((term for term in one.terms if term.dim in ROLES), None)
    step = row.scale if row is not None else 1
    box = boxes.get(row.dim, 1) if row is not None else 1
    if step == 1:
        return [(MapAxis(axis, extent, box), Sliding(one, 1))]
    assert isinstance(extent, int)  # windows slide along axes with numbers
    return [
        (MapAxis(axis, extent // step, box, 0, step), Sliding(one, step)),
        (MapAxis(axis, step, 1), Sliding(one, step, rest=True)),
    ]


def unfit_steps(tensor: Tensor, index: tuple[Along, ...]) -> Along | None:
    """What windows are read at whose steps do not divide the axis, so that no map has them."""
    for axis, one in enumerate(index):
        extent = tensor.dims[axis]
        for term in one.terms if one.together else ():
            if term.dim in ROLES and isinstance(extent, int) and extent % term.scale:
                return one
    return None


def map_rank(tensor: Tensor, index: tuple[Along, ...]) -> int:
    """How many axes a map of an array has."""
    found = 0
    for one in index:
        stepped = any(term.dim in ROLES and term.scale > 1 for term in one.terms)
        found += (2 if stepped else 1) if one.together else max(1, len(one.terms))
    return found


def paddings(tensor: Tensor, index: tuple[Along, ...], row: str) -> tuple[Padding, ...]:
    """What keeps the rows of a copy inside of axes that have zeros around them.

    Args:
        tensor: the array.
        index: what indexes each of its axes.
        row: the dim along stored rows.
    """
    found = []
    for axis, one in enumerate(index):
        if one.padded:
            terms = [(t, Step("", t.per, t.modulo)) for t in one.terms]
            rest = [f"{t.scale} * {step.of(t.dim)}" for t, step in terms if t.dim != row]
            scale = sum(t.scale for t, _ in terms if t.dim == row)
            found.append(
                Padding(scale, _plus(" + ".join(rest) or "0", one.offset), tensor.dims[axis])
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Padding:
    """A row is inside of an axis where ``0 <= scale * row + rest < extent``."""

    scale: int
    rest: str  # over dims that are the same for a tile
    extent: Dim

    def place(self, row: str) -> str:
        """The element of the axis that a stored row is of, as C."""
        return f"{self.scale} * {row} + {self.rest}" if self.scale else self.rest


def _count(term: Along, extents: dict[str, Dim]) -> Dim:
    """Positions along an axis of a map."""
    if not term.dim:
        return 1
    extent = term.modulo or extents[term.dim]
    if term.modulo or term.per == 1:
        return extent
    assert isinstance(extent, int)  # of dims without a number there are no digits
    return -(-extent // term.per)


def corner(dims: tuple[Along | Sliding, ...], starts: dict[str, str]) -> tuple[str, ...]:
    """The position of a box along each axis of a map.

    Args:
        dims: what runs along the axes.
        starts: of the box, by dim; along a batch dim it is the block's.
    """
    found = []
    for one in dims:
        if isinstance(one, Sliding):
            found.append(one.corner(starts))
            continue
        start, digit = starts.get(one.dim, one.dim or "0"), Step("", one.per, one.modulo)
        found.append(digit.of(start if digit == Step("") else f"({start})"))
    return tuple(found)


def row_starts(index: tuple[Along, ...], starts: dict[str, str]) -> dict[str, str]:
    """Where a box starts, by dim, counted from the first row of all groups; see `corner`."""
    shifted = {one.dim for one in index if one.group}
    return {
        dim: f"{ROWS_BEFORE} + {start}" if dim in shifted else start
        for dim, start in starts.items()
    }
