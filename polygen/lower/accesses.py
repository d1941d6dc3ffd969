"""Where elements of an array lie: steps along dims, and where the block's matrix begins, as C.

An array's index says of every axis which dim it runs along (`polygen.poly.match.Along`). A step
along a dim is then a stride, or several; what constants and batch dims add is the same for a whole
tile.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        Step(_times(tensor, axis, one.step), 1 if one.rows else one.per, one.modulo)
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
        if one.group and not one.rows:
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
    them, and two that it has split are two digits of one dim. Windows slide along one axis. Of a
    map any axis but the innermost may be slower than another, whatever the array's order: those
    that boxes have several elements of are in the order in which a tile has its rows.

    Args:
        tensor: the array.
        index: what indexes each of its axes.
        extents: of the dims.
        boxes: elements of a box along dims, rows of a tile outermost first; 1 along all others.
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
            row = _row_term(one, boxes)
            box, every = (boxes.get(row.dim, 1), row.scale) if row is not None else (1, 1)
            axes.append(MapAxis(axis, tensor.dims[axis], box, every=every if box > 1 else 1))
            dims.append(Sliding(one, row.dim if row is not None else ""))
            continue
        if one.places:  # a page, whose number is read
            axes.append(MapAxis(axis, tensor.dims[axis], 1))
            dims.append(one)
            continue
        terms = sorted(one.terms, key=lambda term: -term.scale) or [Along("", 1)]
        for term in terms:
            box = boxes.get(term.dim, 1) if term.per == 1 else 1
            start = one.offset if term is terms[-1] else 0
            count = _count(term, extents)
            own = tensor.dims[axis]
            if len(terms) == 1 and term.modulo and isinstance(own, int):
                count = min(term.modulo, own)  # runs may be longer, and have zeros behind it
            axes.append(MapAxis(axis, count, box, start, term.scale))
            dims.append(term)
    return _in_order(axes, dims, list(boxes))


def _in_order(
    axes: list[MapAxis], dims: list[Along | Sliding], order: list[str]
) -> tuple[tuple[MapAxis, ...], tuple[Along | Sliding, ...]]:
    """The axes that boxes have several elements of in the order of dims, in their own places."""
    several = [at for at, axis in enumerate(axes[:-1]) if axis.box > 1]
    wanted = sorted(several, key=lambda at: order.index(dims[at].dim))
    places = list(range(len(axes)))
    for at, source in zip(several, wanted, strict=True):
        places[at] = source
    return tuple(axes[at] for at in places), tuple(dims[at] for at in places)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Where windows lie on an axis: the sum of where one begins and of how far inside an element
    is, and the dim of the rows of a tile that follow each other on it.
    """

    place: Along
    dim: str = ""

    def corner(self, starts: dict[str, str]) -> str:
        """The position of a box, as C."""
        terms = []
        for one in self.place.terms:
            start, digit = starts.get(one.dim, one.dim), Step("", one.per, one.modulo)
            text = digit.of(start if digit == Step("") and one.scale == 1 else f"({start})")
            terms.append(text if one.scale == 1 else f"{one.scale} * {text}")
        return _plus(" + ".join(terms), self.place.offset)


def _plus(text: str, offset: int) -> str:
    return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}" if offset else text


def _row_term(one: Along, boxes: Mapping[str, int]) -> Along | None:
    """The term along which rows of a tile follow each other on an axis of windows."""
    sides = (term for term in one.terms if term.dim != "k")  # whose digits are those of taps
    inside = [term for term in sides if term.dim in ROLES or boxes.get(term.dim, 1) > 1]
    return inside[0] if inside else None


def row_step(index: tuple[Along, ...], dim: str) -> int:
    """Elements of an axis of windows from one row of a tile to the next along a dim; 1 of others:
    there a map has no elements in between.
    """
    terms = (term for one in index if one.together for term in one.terms)
    return next((term.scale for term in terms if term.dim == dim), 1)


def paddings(
    tensor: Tensor, index: tuple[Along, ...], dims: tuple[str, str]
) -> tuple[Padding, ...]:
    """What keeps the rows of a copy inside of axes that have zeros around them.

    Args:
        tensor: the array.
        index: what indexes each of its axes.
        dims: along stored rows, and along elements of one.
    """
    row, column = dims
    found = []
    for axis, one in enumerate(index):
        if one.padded:
            terms = [(t, Step(str(t.scale), t.per, t.modulo)) for t in one.terms]
            rest = [f"{t.scale} * {step.of(t.dim)}" for t, step in terms if t.dim not in dims]
            scale = sum(t.scale for t, _ in terms if t.dim == row)
            taps = tuple(step for t, step in terms if t.dim == column)
            text = _plus(" + ".join(rest) or "0", one.offset)
            found.append(Padding(scale, text, tensor.dims[axis], taps))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Padding:
    """A row is inside of an axis where ``0 <= scale * row + rest < extent``, with `taps` added."""

    scale: int
    rest: str  # over dims that are the same for a tile
    extent: Dim
    taps: tuple[Step, ...] = ()  # over elements of the row

    def place(self, row: str, column: str) -> str:
        """The element of the axis that an element of a stored row is of, as C."""
        terms = [f"{self.scale} * {row}"] if self.scale else []
        return " + ".join([*terms, *steps_text(column, self.taps), self.rest])


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
        starts: of the box, by dim; along a batch dim it is the block's. Of what numbers in memory
            say, by the text of the index.
    """
    found = []
    for one in dims:
        if isinstance(one, Along) and one.places:
            found.append(starts[str(one)])
            continue
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
