"""Elements in terms of dims: what indexes an array's axes, and what is computed of one element.

Dims are those of the instruction: m, n and k, and batch dims ("z0", "z1", ...). The epilogue's
statements (`polygen.poly.pointwise`) and those of computed operands (`polygen.poly.prologue`) are
both written in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Affine, Dim, Gathered, Index, Tensor, Within


@dataclass(frozen=True, slots=True)
class Along:
    """What indexes one axis of an array: ``scale * floor(dim / per) + offset``.

    Attributes:
        dim: "m", "n", "k", a batch dim ("z0", "z1", ...), or "" for a constant, the offset.
        scale: elements of the axis from one index of the dim to the next.
        offset: the element at index 0.
        per: indices of the dim that have one element.
        group: the batch dim that counts groups of rows, where index 0 is the first row of one.
        rows: the vector in which that is a place: the element is the one that stands there, kept
            inside of the axis.
        extent: of the axis, with `rows`.
    """

    dim: str
    scale: int = 1
    offset: int = 0
    per: int = 1
    group: str = ""
    rows: str = ""
    extent: Dim = 0

    @property
    def step(self) -> int:
        """Elements of the axis for one index of the dim; of the number that stands there, one."""
        return 1 if self.rows else self.scale

    @property
    def start(self) -> int:
        """The element where that is 0."""
        return 0 if self.rows else self.offset

    def __str__(self) -> str:
        if self.rows:
            return f"{self.rows}[{replace(self, rows='')}]"
        if self.group:
            return f"{self.group}.{self.dim}"
        if not self.dim:
            return str(self.offset)
        place = self.dim if self.per == 1 else f"floor({self.dim}/{self.per})"
        text = place if self.scale == 1 else f"{self.scale}*{place}"
        return f"{text}{self.offset:+d}" if self.offset else text


def along(index: Index, dims: dict[str, str]) -> Along:
    """An index in terms of dims, by iterator."""
    if isinstance(index, int):
        return Along("", 0, index)
    if isinstance(index, Within):
        return Along(dims[index.iterator], group=dims[index.group])
    if isinstance(index, Gathered):
        return replace(along(index.place, dims), rows=index.rows, extent=index.extent)
    if isinstance(index, Affine):
        return Along(dims[index.iterator], index.scale, index.offset, index.per)
    return Along(dims[index])


def composed(index: Index, at: Mapping[str, Along]) -> Along:
    """An index in terms of dims, by what each iterator itself is."""
    if isinstance(index, int):
        return Along("", 0, index)
    if isinstance(index, Within):
        raise UnsupportedProgram(
            "a product by groups of rows that are computed",
            why="rows of a group begin where the one before ends, and computed operands are copied "
            "from their first row on",
            nearest="Compute the rows before, and pass them",
        )
    if isinstance(index, Gathered):
        place = composed(index.place, at)
        if not place.dim:
            raise UnsupportedProgram(
                f"{index} at one place for all elements of an operand",
                nearest=f"Pass {index.rows} with as many elements as there are rows",
            )
        return replace(place, rows=index.rows, extent=index.extent)
    named = index if isinstance(index, Affine) else Affine(index, 1, 0)
    inner = at[named.iterator]
    if not inner.dim:
        return Along("", 0, named.at(inner.offset))
    if named.per > 1 and (inner.scale, inner.offset) != (1, 0):
        raise UnsupportedProgram(
            f"elements are repeated {named.per} times in a part of a value, {inner}",
            nearest="Take the part of the arguments before they are repeated",
        )
    offset = named.scale * inner.offset + named.offset
    return Along(inner.dim, named.scale * inner.scale, offset, inner.per * named.per)


def axis_of(index: tuple[Along, ...], dim: str) -> int | None:
    """The axis that runs along a dim; None: there is none."""
    return next((axis for axis, one in enumerate(index) if one.dim == dim), None)


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
        column = self.axis("n")
        if column is None:
            return "row"
        along = self.index[column]
        adjacent = column == self.tensor.contiguous_axis and (along.scale, along.per) == (1, 1)
        adjacent = adjacent and not along.rows
        return "vector" if adjacent else "strided"

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
        start = (1 if inner.group or inner.rows else inner.offset) * self.tensor.dtype.bytes
        bits = self.tensor.alignment | start
        return bits & -bits

    @property
    def addressed(self) -> tuple[Along, ...]:
        """The index where vectors say which row: that number itself in the place of the dim's."""
        return tuple(Along(one.dim) if one.rows else one for one in self.index)

    def axis(self, dim: str) -> int | None:
        """The tensor axis along a dim; None: it has none."""
        return axis_of(self.index, dim)


@dataclass(frozen=True, slots=True)
class Compute:
    """``result = function(args)`` on one element; args are values, reads' variables, constants."""

    result: str
    function: str
    args: tuple[str | float, ...]
    dtype: DType
