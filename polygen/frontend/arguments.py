"""What a statement reads: elements of arrays and values, numbers, coordinates, sizes."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.forms import Form
from polygen.frontend.indices import Affine, Dim, Gathered, Index, by_group, places_of


@dataclass(frozen=True, slots=True)
class Access:
    """A read or write: the tensor or value, and what indexes each axis."""

    name: str
    index: tuple[Index, ...]

    @property
    def iterators(self) -> tuple[str, ...]:
        """The iterators that occur, axis by axis; an axis indexed by a constant has none."""
        found: list[str] = []
        for index in self.by_group:
            for placed in places_of(index):
                if isinstance(placed, Form):
                    found += placed.iterators
                elif isinstance(placed, str | Affine):
                    found.append(placed.iterator if isinstance(placed, Affine) else placed)
        return tuple(found)

    @property
    def axes(self) -> tuple[str, ...]:
        """The iterators along what it reads, as an array: each once where digits of them index."""
        if any(isinstance(index, Form) for index in self.index):
            return tuple(dict.fromkeys(self.iterators))
        return self.iterators

    @property
    def indexed_by(self) -> tuple[Access, ...]:
        """The reads of arrays that say which elements are meant."""
        return tuple(Access(i.rows, i.places) for i in self.index if isinstance(i, Gathered))

    @property
    def by_place(self) -> Access:
        """The same with places in vectors for the numbers that stand there.

        So different numbers, as of rows that are stored, are different elements.
        """
        index = tuple(i.place if isinstance(i, Gathered) else i for i in self.index)
        return Access(self.name, index)

    @property
    def by_group(self) -> tuple[str | int | Affine | Form | Gathered, ...]:
        """The index with rows of groups by group and row: two axes that say the same."""
        return tuple(placed for index in self.index for placed in by_group(index))

    def __str__(self) -> str:
        return f"{self.name}[{','.join(map(str, self.index))}]" if self.index else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A Python scalar of the traced function. 0.0 and -0.0 are two, and NaN is one."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    @property
    def _bits(self) -> tuple[type, str]:
        return type(self.value), repr(self.value)

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Where on an axis an element is: an index itself, as a number."""

    index: Index

    @property
    def iterators(self) -> tuple[str, ...]:
        """The iterator that it depends on; none of a constant."""
        return Access("", (self.index,)).iterators

    def __str__(self) -> str:
        return str(self.index)


@dataclass(frozen=True, slots=True)
class Extent:
    """How many elements there are along some dims, as a number."""

    dims: tuple[Dim, ...]

    @property
    def iterators(self) -> tuple[str, ...]:
        """It is the same everywhere."""
        return ()

    def __str__(self) -> str:
        return f"size({', '.join(map(str, self.dims))})"


Argument = Access | Constant | Coordinate | Extent
