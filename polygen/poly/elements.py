"""Elements in terms of dims: what indexes an array's axes, and what is computed of one element.

Dims are those of the instruction: m, n and k, and batch dims ("z0", "z1", ...). The epilogue's
statements (`polygen.poly.pointwise`) and those of computed operands (`polygen.poly.prologue`) are
both written in them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import DType
from polygen.frontend.forms import Digit, Form
from polygen.frontend.program import Affine, Dim, Gathered, Index, Tensor, Within

ROLES = ("m", "n", "k")  # dims that lie inside a tile; the others are the same for all of it
OVER = "over"  # dims of outer loops of sums over several axes: over0, over1, ...
_ADJACENT = 16  # elements that a thread accesses at once, at most


@dataclass(frozen=True, slots=True)
class Along:
    """What indexes one axis of an array: ``scale * floor(dim / per) + offset``, and further terms.

    Attributes:
        dim: "m", "n", "k", a batch dim ("z0", "z1", ...), or "" for a constant, the offset.
        scale: elements of the axis from one index of the dim to the next.
        offset: the element at index 0.
        per: indices of the dim that have one element.
        group: the batch dim that counts groups of rows, where index 0 is the first row of one.
        rows: the vector in which that is a place: the element is the one that stands there, kept
            inside of the axis. With `group`, places count from the first of all groups.
        extent: of the axis, with `rows`.
        places: with `rows` of what boxes of the copy engine are read by: the place along each of
            its axes, in the place of a dim.
        modulo: of the digit that the dim is read at, ``floor(dim / per) mod modulo``; 0: none.
        more: further terms, of other dims or of other digits, none of them with an offset.
        padded: whether elements outside of the axis are read, as zeros.
    """

    dim: str
    scale: int = 1
    offset: int = 0
    per: int = 1
    group: str = ""
    rows: str = ""
    extent: Dim = 0
    modulo: int = 0
    more: tuple[Along, ...] = ()
    padded: bool = False
    places: tuple[Along, ...] = ()

    @property
    def of_digits(self) -> bool:
        """Whether it is more than a multiple of its dim: neighbours may have one element."""
        return bool(self.more or self.modulo or self.per > 1)

    @property
    def step(self) -> int:
        """Elements of the axis for one index of the dim; of the number that stands there, one."""
        return 1 if self.rows else self.scale

    @property
    def start(self) -> int:
        """The element where that is 0."""
        return 0 if self.rows else self.offset

    @property
    def terms(self) -> tuple[Along, ...]:
        """The terms, each alone; none of a constant."""
        own = replace(self, offset=0, more=(), padded=False) if self.more or self.padded else self
        return (*((own,) if self.dim else ()), *self.more)

    @property
    def together(self) -> bool:
        """Whether its terms are one place on one axis, as those of a window are.

        Then they overlap, and an axis of a tensor map has all of them. Else each dim has an axis of
        its own, whose end is the dim's.
        """
        terms = self.terms
        over = any(one.dim.startswith(OVER) for one in terms)
        taps = len(terms) > 1 and any(one.dim == "k" and one.per > 1 for one in terms)
        return self.padded or taps or (over and all(one.dim != "k" for one in terms))

    @property
    def plain(self) -> bool:
        """Whether a slice says it: one term, and no digit."""
        return not (self.modulo or self.more or self.padded)

    def renamed(self, names: Mapping[str, str]) -> Along:
        """The same over dims of other names."""
        more, places = (tuple(t.renamed(names) for t in own) for own in (self.more, self.places))
        return replace(self, dim=names.get(self.dim, self.dim), more=more, places=places)

    def at(self, places: Mapping[str, int]) -> int:
        """The element where dims are at their places, 0 of those that are left out."""
        found = self.offset
        for one in self.terms:
            digit = places.get(one.dim, 0) // one.per
            found += one.scale * (digit % one.modulo if one.modulo else digit)
        return found

    def __str__(self) -> str:
        if self.places:
            return f"{self.rows}[{', '.join(map(str, self.places))}]"
        if self.rows:
            return f"{self.rows}[{replace(self, rows='')}]"
        if self.group:
            return f"{self.group}.{self.dim}"
        if not self.dim:
            return str(self.offset)
        digits = [Digit(one.dim, one.scale, one.per, one.modulo) for one in self.terms]
        return str(Form(tuple(digits), self.offset))


def along(index: Index, dims: dict[str, str]) -> Along:
    """An index in terms of dims, by iterator."""
    if isinstance(index, int):
        return Along("", 0, index)
    if isinstance(index, Within):
        return Along(dims[index.iterator], group=dims[index.group])
    if isinstance(index, Gathered):
        if len(index.places) > 1:
            return named(index, tuple(along(place, dims) for place in index.places))
        return replace(along(index.place, dims), rows=index.rows, extent=index.extent)
    if isinstance(index, Affine):
        return Along(dims[index.iterator], index.scale, index.offset, index.per)
    if isinstance(index, Form):
        return _of_terms(
            [Along(dims[str(t.of)], t.scale, 0, t.per, modulo=t.modulo) for t in index.terms], index
        )
    return Along(dims[index])


def named(index: Gathered, places: tuple[Along, ...]) -> Along:
    """An index that an array of numbers says, read at places along its axes."""
    return Along("", 0, rows=index.rows, extent=index.extent, places=places)


def _of_terms(terms: list[Along], form: Form) -> Along:
    """The terms of one axis: first the one inside a tile, of several the one of least steps."""
    order = sorted(terms, key=lambda one: (one.dim not in ROLES, one.scale))
    return replace(order[0], offset=form.offset, more=tuple(order[1:]), padded=form.padded)


def composed(index: Index, at: Mapping[str, Along]) -> Along:
    """An index in terms of dims, by what each iterator itself is."""
    if isinstance(index, int):
        return Along("", 0, index)
    if isinstance(index, Within):
        return replace(composed(index.iterator, at), group=at[index.group].dim)
    if isinstance(index, Gathered):
        if len(index.places) > 1:
            raise UnsupportedProgram(
                f"an operand is read at {index}, by an array of several axes",
                why="threads compute rows of an operand each from one that a vector names; pages "
                "that a table names are keys and values, of a product in a chain",
                nearest=f"Pass {index.rows} as a vector, s32[T], with its rows in the order of the "
                "operand's",
            )
        place = composed(index.place, at)
        if not place.dim:
            raise UnsupportedProgram(
                f"{index} at one place for all elements of an operand",
                nearest=f"Pass {index.rows} with as many elements as there are rows",
            )
        return replace(place, rows=index.rows, extent=index.extent)
    if isinstance(index, Form):
        return _composed_form(index, at)
    named = index if isinstance(index, Affine) else Affine(index, 1, 0)
    inner = at[named.iterator]
    if inner.group:  # frontends leave no other places along rows of groups
        assert isinstance(index, str)
        return inner
    if not inner.plain:
        if isinstance(index, str) and not inner.padded:
            return inner
        form = Form((Digit(inner.dim),), inner.offset, padded=inner.padded)
        raise _not_computed(form, str(inner))
    if not inner.dim:
        return Along("", 0, named.at(inner.offset))
    if named.per > 1 and (inner.scale, inner.offset) != (1, 0):
        raise UnsupportedProgram(
            f"elements are repeated {named.per} times in a part of a value, {inner}",
            nearest="Take the part of the arguments before they are repeated",
        )
    offset = named.scale * inner.offset + named.offset
    return Along(inner.dim, named.scale * inner.scale, offset, inner.per * named.per)


def _composed_form(form: Form, at: Mapping[str, Along]) -> Along:
    """A sum of digits in what an operand is computed from: one of them inside the tile, whole."""
    terms = []
    for term in form.terms:
        inner = at[str(term.of)]
        simple = inner.plain and (inner.scale, inner.offset, inner.rows) == (1, 0, "")
        if not simple or (inner.per > 1 and term.modulo):
            raise _not_computed(form)
        if inner.dim:
            terms.append(Along(inner.dim, term.scale, 0, inner.per * term.per, modulo=term.modulo))
    inside = [one for one in terms if one.dim in ROLES]
    if form.padded or len(inside) > 1 or any(one.modulo for one in inside):
        raise _not_computed(form)
    return _of_terms(terms, form) if terms else Along("", 0, form.offset)


def _not_computed(form: Form, text: str = "") -> UnsupportedProgram:
    if form.padded:
        return UnsupportedProgram(
            f"an operand is computed of an image with zeros around it, at {text or form}",
            why="zeros lie around what is read as it is; those around an image that is computed "
            "would be computed as well",
            nearest="Compute the image in a function before, or window it without padding",
        )
    return UnsupportedProgram(
        f"an operand is computed from what is read at {text or form}",
        why="threads compute adjacent elements of a row, from rows that go on as its own do",
        nearest="Reshape outside, or multiply what is reshaped as it is, with no code before",
    )


def axis_of(index: tuple[Along, ...], dim: str) -> int | None:
    """The axis that runs along a dim; None: there is none."""
    found = (axis for axis, one in enumerate(index) if any(t.dim == dim for t in one.terms))
    return next(found, None)


@dataclass(frozen=True, slots=True)
class Element:
    """The element of a tensor that goes with the result at (m, n)."""

    name: str  # of a read's variable; of an output the tensor's, numbered from its second part on
    tensor: Tensor
    index: tuple[Along, ...]  # per axis, over "m", "n" and the batch dims

    @property
    def kind(self) -> str:
        """``"vector"``: adjacent along n; ``"strided"``; ``"row"``: one per row; ``"scalar"``."""
        if not self.tensor.dims:
            return "scalar"
        if self.axis("n") is None:
            return "row"
        inner = self.index[self.tensor.order[-1]]
        (along,) = [one for one in inner.terms if one.dim == "n"][:1] or [Along("")]
        adjacent = (along.dim, along.scale, along.per, along.rows) == ("n", 1, 1, "")
        return "vector" if adjacent and self.run("n") % _ADJACENT == 0 else "strided"

    @property
    def whole(self) -> bool:
        """Whether every result has its own."""
        return self.axis("m") is not None and self.axis("n") is not None

    @property
    def alignment(self) -> int:
        """Bytes that divide the address of every row that is accessed."""
        if not self.tensor.dims:
            return self.tensor.alignment
        inner = self.index[self.tensor.order[-1]]
        start = 1 if inner.group or inner.rows else inner.offset
        for one in inner.more:
            start |= one.scale
        bits = self.tensor.alignment | start * self.tensor.dtype.bytes
        return bits & -bits

    def run(self, dim: str) -> int:
        """How many indices of a dim are neighbours on one axis; 0: all of them."""
        terms = [one for axis in self.index for one in axis.terms if one.dim == dim]
        ends = [one.per * one.modulo for one in terms if one.modulo]
        return math.gcd(*ends, *(one.per for one in terms if one.per > 1 and len(terms) > 1))

    @property
    def addressed(self) -> tuple[Along, ...]:
        """The index where vectors say which row: that number itself in the place of the dim's."""
        return tuple(Along(one.dim) if one.rows else one for one in self.index)

    def axis(self, dim: str) -> int | None:
        """The tensor axis along a dim; None: it has none."""
        return axis_of(self.index, dim)


def map_rank(index: tuple[Along, ...]) -> int:
    """How many axes a tensor map of an array has."""
    return sum(1 if one.together else max(1, len(one.terms)) for one in index)


@dataclass(frozen=True, slots=True)
class Compute:
    """``result = function(args)`` on one element; args are values, reads' variables, constants."""

    result: str
    function: str
    args: tuple[str | float, ...]
    dtype: DType
