"""An operand of products: an array, what indexes it along m or n and k, and what follows of it."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.dtypes import DType
from polygen.frontend.program import (
    Dim,
    Tensor,
)
from polygen.poly.elements import Along as Along
from polygen.poly.elements import along as along
from polygen.poly.elements import axis_of as axis_of
from polygen.poly.elements import named as named
from polygen.poly.prologue import Fragment, Prologue


@dataclass(frozen=True, slots=True)
class Operand:
    """One matrix operand in the roles of the instruction; of a batch, one for each matrix."""

    tensor: Tensor
    role: str  # "m" for A, "n" for B: the output dim it carries
    index: tuple[Along, ...]  # per axis
    extents: tuple[tuple[str, Dim], ...]  # of its dims, by name
    # How its elements are computed: the tensor then is none that is stored.
    computed: Prologue | None = None
    # How consumers compute what they multiply from its elements, in their registers.
    fragment: Fragment | None = None
    # Elements along m or n that every tile has, which are all there are; 0: tiles cut them.
    whole: int = 0

    @property
    def inner(self) -> Along:
        """What indexes the contiguous axis."""
        return self.index[self.tensor.order[-1]]

    @property
    def k_contiguous(self) -> bool:
        """Whether neighbours along k are adjacent in memory, or at least none along m or n are."""
        return self.inner.dim != self.role or abs(self.inner.scale) != 1

    @property
    def in_rows(self) -> bool:
        """Whether the dim that counts as contiguous really is: neighbours are adjacent."""
        return self.inner.dim in (self.role, "k") and self.inner.scale == 1

    @property
    def in_boxes(self) -> bool:
        """Whether the copy engine can move it: adjacent elements, and no way backwards."""
        starts = all(one.padded or one.offset >= 0 for one in self.index)
        forwards = all(one.scale >= 0 and all(t.scale >= 0 for t in one.more) for one in self.index)
        return self.in_rows and starts and forwards

    @property
    def dims(self) -> frozenset[str]:
        """The dims that it has elements of its own for; of pages by the place of their numbers."""
        every = (term for one in self.index for each in (one, *one.places) for term in each.terms)
        return frozenset(term.dim for term in every)

    @property
    def padded(self) -> bool:
        """Whether elements outside of the array are read, as zeros."""
        return any(one.padded for one in self.index)

    @property
    def ragged(self) -> bool:
        """Whether a row may end inside one wide access."""
        dim = self.tensor.dims[self.tensor.order[-1]]
        extent = self.extent(self.inner.dim) if self.inner.dim else 1
        if extent == dim:
            return self.tensor.ends_anywhere
        return not isinstance(extent, int) or extent * self.tensor.dtype.bytes % self.alignment != 0

    @property
    def run(self) -> int:
        """Of sums over axes that are joined, neighbours along k that are on one axis; 0: all."""
        terms = (term for one in self.index for term in one.terms)
        return next((term.modulo for term in terms if (term.dim, term.per) == ("k", 1)), 0)

    @property
    def alignment(self) -> int:
        """Bytes that divide the address of every row, or run, that is read."""
        start = 1 if self.inner.group else self.inner.offset
        for one in self.inner.more:
            start |= one.scale
        start |= self.run if self.inner.dim == "k" else 0
        bits = self.tensor.alignment | start * self.tensor.dtype.bytes
        return bits & -bits

    @property
    def zero(self) -> bool:
        """Whether all of its elements are 0."""
        if self.computed is None or self.computed.reads:
            return False
        (*others, last) = self.computed.statements
        return not others and (last.function, last.args) == ("cast", (0.0,))

    @property
    def multiplied(self) -> DType:
        """The type that the instruction takes."""
        return self.tensor.dtype if self.fragment is None else self.fragment.prologue.dtype

    @property
    def packed(self) -> int:
        """Indices of k that one stored element holds."""
        return 1 if self.fragment is None else self.fragment.packed

    def extent(self, dim: str) -> Dim:
        """The size of the problem along one of its dims."""
        return dict(self.extents)[dim]

    def __str__(self) -> str:
        contiguous = "k" if self.k_contiguous else self.role
        text = f"{self.tensor.name}[{', '.join(map(str, self.index))}]"
        return f"{text}, contiguous along {contiguous}" if self.in_rows else text
