"""Operands that threads compute: what a chunk of 16 bytes of shared memory reads, and where.

A tile lies in stored rows along k, or along m or n, as an argument's does. A chunk is a few
adjacent elements of one row: of an array whose elements are adjacent along the row it reads a run,
of others an element at a time, of arrays that do not vary along the row one element for all. All of
it is held in registers, as it was read, until the chunk is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import base, elements_along
from polygen.poly.elements import Along, Compute, Element
from polygen.poly.fills import chunk_words
from polygen.poly.operand import Operand

_MOVED_BITS = 16  # elements of more are rounded where they are copied, or of two words


@dataclass(frozen=True, slots=True)
class Rows:
    """Where a stored row's number stands: at ``scale * floor(row / per) + offset`` of a vector;
    of rows in groups behind those of the groups before.

    Attributes:
        vector: of s32.
        scale: places from one number to the next one.
        offset: the place of row 0's.
        per: stored rows that have one.
        extent: of the axis that the numbers are kept inside of.
        grouped: whether rows are counted in their group.
    """

    vector: str
    scale: int
    offset: int
    per: int
    extent: Dim
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a chunk reads of one array.

    Attributes:
        name: variable of its element.
        tensor: the array.
        kind: "run": adjacent along the stored row; "spaced": a step along it; "row": one element
            for the whole row, or "group": for the group of it that the chunk is in; "scalar": one
            for all.
        row_step: elements from one stored row to the next: an argument, a number, "0" for none.
            With `rows`, from one row of the array to the next.
        column_step: likewise along a row.
        per: stored rows, and elements of a row, that have one element.
        base: terms that lead to the block's matrix.
        width: bytes of one access of a run.
        first: the word of the chunk from which on it is held.
        words: that hold it.
        rows: which row of the array a stored row reads; None: the one of its number.
    """

    name: str
    tensor: Tensor
    kind: str
    row_step: str
    column_step: str
    per: tuple[int, int]
    base: tuple[str, ...]
    width: int
    first: int
    words: int
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Computed:
    """How a chunk of an operand is computed.

    Attributes:
        fetches: what it reads.
        statements: on one element; the last casts to the type that is stored.
        coordinates: variable, and which number it holds.
        dims: along stored rows: that of the rows, and that inside one.
        dtype: what is stored.
    """

    fetches: tuple[Fetch, ...]
    statements: tuple[Compute, ...]
    coordinates: tuple[tuple[str, Along], ...]
    dims: tuple[str, str]
    dtype: DType

    @property
    def result(self) -> str:
        """The value that is stored."""
        return self.statements[-1].result

    @property
    def moved(self) -> Fetch | None:
        """What its elements are as they are: bytes of an argument, in words; None: computed."""
        (one, *more), (fetch, *others) = self.statements, self.fetches or (None,)
        if (
            fetch is None
            or more
            or others
            or one.function != "cast"
            or self.dtype.bits > _MOVED_BITS
        ):
            return None
        lies = fetch.kind in ("run", "spaced") and fetch.per[1] == 1
        return fetch if lies and fetch.tensor.dtype == self.dtype else None

    @property
    def elements(self) -> int:
        """Of a chunk."""
        return chunk_bytes() // self.dtype.bytes

    @property
    def words(self) -> int:
        """That hold what a chunk reads."""
        return sum(fetch.words for fetch in self.fetches)


def computed(operand: Operand) -> Computed | None:
    """How an operand is computed; None: it is an argument."""
    made = operand.computed
    if made is None:
        return None
    dims = (operand.role, "k") if operand.k_contiguous else ("k", operand.role)
    fetches: list[Fetch] = []
    first = 0
    for one in made.reads:
        fetches.append(_fetch(operand, one, dims, first))
        first += fetches[-1].words
    return Computed(tuple(fetches), made.statements, made.coordinates, dims, made.dtype)


def group(one: Element, dim: str) -> int:
    """How many indices of a dim have one element of an array."""
    axis = one.axis(dim)
    return 1 if axis is None else one.index[axis].per


def _fetch(operand: Operand, one: Element, dims: tuple[str, str], first: int) -> Fetch:
    tensor = one.tensor
    if not tensor.dims:
        return Fetch(one.name, tensor, "scalar", "0", "0", (1, 1), (), 0, first, 0)
    row, column = (elements_along(tensor, one.index, dim) for dim in dims)
    rows = rows_of(one, dims[0])
    per = group(one, dims[0]) if rows is None else 1, group(one, dims[1])
    kind = "row" if column == "0" else "run" if column == "1" else "spaced"
    elements = chunk_bytes() // operand.tensor.dtype.bytes
    if per[1] > 1 and (per[1] >= elements or kind != "run"):
        kind = "group"
    if per[1] > 1 and (per[1] % elements if kind == "group" else elements % per[1]):
        raise UnsupportedProgram(
            f"{tensor.name} is repeated {per[1]} times along {operand.extent(dims[1])}",
            where=operand.tensor.name,
            why=f"a thread computes {elements} adjacent elements from one number of a group",
            nearest=f"Use groups of a multiple of {elements}",
        )
    bytes_read = max(1, elements // per[1]) * tensor.dtype.bytes
    return Fetch(
        one.name,
        tensor,
        kind,
        row,
        column,
        per,
        base(tensor, one.index),
        min(chunk_bytes(), bytes_read, one.alignment) if kind == "run" else tensor.dtype.bytes,
        first,
        chunk_words(operand, one),
        rows,
    )


def rows_of(one: Element, dim: str) -> Rows | None:
    """Which rows of an array are read along a dim; None: those of the dim's indices."""
    axis = one.axis(dim)
    index = one.index[axis] if axis is not None else None
    if index is None or not index.rows:
        return None
    return Rows(index.rows, index.scale, index.offset, index.per, index.extent, bool(index.group))
