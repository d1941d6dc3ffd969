"""Fragments that consumers compute: where their elements lie in the ring, and what is read beside.

1. Elements of 16 bits are loaded as fragments, by `ldmatrix`, from a ring in either order. Of
   others a lane's elements follow each other in runs along k: in a ring with k innermost a run is
   one access of shared memory, of up to 8 bytes; in others every element is one.
2. A lane's first element, what its other elements add to that, and the place of a stored row's
   byte in the swizzled tile are formulas. They are proved on all lanes, elements, steps and
   instructions, against the instruction's fragment map and where the copy engine writes.
3. What else is read lies in global memory: an element for a row, for a k, or for a group of
   either; those of a run of k together, where their addresses allow it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.fragment_load import FragmentLoad
from polygen.lower.pairs import Pairs, halves_of, whole_of
from polygen.poly.elements import Along, Compute

_ARITHMETIC: dict[str, Callable[..., float]] = {
    "cast": float,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_NUMBERS_END = 6e4  # below it all types have numbers


@dataclass(frozen=True, slots=True)
class Beside:
    """One element of an array in global memory, for an element of the operand.

    Attributes:
        name: variable.
        tensor: the array.
        row_step: elements from one row of the operand to the next: an argument, a number, "0".
        k_step: likewise along k.
        per: rows, and indices of k, that have one element.
        base: terms that lead to the block's matrix.
        run: elements along k that are read at once.
        kept: over `s`, `m` and `e`: the word of a k tile's that holds an element; "": it is read
            where it is needed.
        along: what words are of: "m", rows of an instruction each, or "s", steps.
        places: rows and k of the words of one of these, from a lane's first.
        count: of these.
        first: the first word.
    """

    name: str
    tensor: Tensor
    row_step: str
    k_step: str
    per: tuple[int, int]
    base: tuple[str, ...]
    run: int = 1
    kept: str = ""
    along: str = ""
    places: tuple[tuple[int, int], ...] = ()
    count: int = 0
    first: int = 0

    @property
    def access_words(self) -> int:
        """Of one run."""
        return -(-self.run * self.tensor.dtype.bytes // 4)

    @property
    def words(self) -> int:
        """That hold what is read of it for a k tile."""
        return self.count * len(self.places) * self.access_words


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stored row with what all lanes that have the row need of it for a step.

    Each of them reads all of it, and picks the two bytes of a pair, or the byte that has both.

    Attributes:
        bytes: of it; they begin at a multiple of that.
        rows: that a lane has.
        row_of: over `r`: rows from a lane's first to its r-th.
        number: over `e`: which of them has element e.
        word: over `e`: of the chunk, where the bytes of all lanes for element e begin.
        pick: over `lane`: which of the eight bytes from there on are those of a pair, in the low
            ends of the halves of a word; of halves of bytes, which of the four bytes has the pair,
            and zeros above it.
    """

    bytes: int
    rows: int
    row_of: str
    number: str
    word: str
    pick: str

    @property
    def words(self) -> int:
        """Of four bytes."""
        return self.bytes // 4


@dataclass(frozen=True, slots=True)
class Make:
    """A ring -> fragments of the left operand, computed by the threads that multiply them.

    Attributes:
        operand: "a", ...
        buffer: the ring.
        counter: of its slots.
        tensor: what it holds.
        name: variable of its element.
        packed: indices of k that one of them holds.
        lane_row: over `lane`: the row of a lane's first element in its warp's part.
        lane_k: likewise along k.
        row_of: over `e`: rows from there to element e.
        k_of: likewise along k.
        run: elements that are adjacent along k.
        access: elements of one access.
        place: over `row` and `byte`: of a stored row's byte in the tile.
        k_inner: whether stored rows run along k.
        atom: rows and indices of k of an instruction.
        tile: of the block.
        part: where the consumer's rows begin in the tile, as a term.
        k_tile: which of all k tiles the block's k-th is.
        extents: of the operand along rows and k.
        beside: what else is read.
        statements: on one element; the last casts to the type that is multiplied.
        coordinates: variable, and which number it holds.
        dtype: what is multiplied.
        elements: of a lane's fragment.
        slots: steps whose fragments registers hold.
        load: of 16-bit elements: what loads a warp's fragment.
        block: indices of k that are inside of the operand together, or outside.
        block_of: over `e`: the block of an element among those of its step; "" if lanes differ.
        ends_whole: whether all k tiles lie inside of the operand.
        pairs: what pairs of adjacent elements go through; None: elements are computed one by one.
        chunk: what lanes read together; None: each reads its own elements.
    """

    operand: str
    buffer: str
    counter: str
    tensor: Tensor
    name: str
    packed: int
    lane_row: str
    lane_k: str
    row_of: str
    k_of: str
    run: int
    access: int
    place: str
    k_inner: bool
    atom: tuple[int, int]
    tile: tuple[int, int]
    part: str
    k_tile: str
    extents: tuple[Dim, Dim]
    beside: tuple[Beside, ...]
    statements: tuple[Compute, ...]
    coordinates: tuple[tuple[str, Along], ...]
    dtype: DType
    elements: int
    slots: int
    load: FragmentLoad | None
    block: int
    block_of: str
    ends_whole: bool = False
    pairs: Pairs | None = None
    chunk: Chunk | None = None

    @property
    def whole(self) -> bool:
        """Whether what lies behind the end of k is computed to some number, or nothing lies there.

        The copy engine brings zeros there, on both sides, and any number times zero is zero. What
        is read beside may be no number, unless zeros are taken in its place.
        """
        return self.ends_whole or self._known(()) or bool(self.ended)

    @property
    def ended(self) -> tuple[str, ...]:
        """What is read ahead for every k and ends where the operand does: zeros lie behind that.

        None where what is computed is a number without, or none in spite of it.
        """
        found = tuple(one.name for one in self.beside if self.ends(one))
        taken = not self.ends_whole and not self._known(()) and self._known(found)
        return found if taken else ()

    def ends(self, one: Beside) -> bool:
        """Whether what is read ahead for every k ends where the operand does."""
        return one.along == "s" and one.per[1] == 1 and self.block % one.run == 0

    def _known(self, zeros: tuple[str, ...]) -> bool:
        """Whether numbers are computed of zeros in the ring, and of others."""
        known = numbers_made(self.statements, (self.name, *self.halves, *zeros))
        return all(one.result in known for one in self.statements)  # halves: of a byte of zeros

    @property
    def result(self) -> str:
        """The value that is multiplied."""
        return self.statements[-1].result

    @property
    def words(self) -> int:
        """That hold what is read beside the ring for a k tile."""
        return sum(one.words for one in self.beside)

    @property
    def halves(self) -> dict[str, str]:
        """Values that are taken out of the ring's bytes, two in each -> their type of four bits."""
        return halves_of(self.statements, self.coordinates, self.name, self.packed)

    @property
    def whole_numbers(self) -> dict[str, str]:
        """Elements and values that are stored whole numbers -> their type."""
        return whole_of(self.halves, self.name, self.tensor.dtype)

    @property
    def access_bytes(self) -> int:
        """Of one access to shared memory."""
        return max(1, self.access * self.tensor.dtype.bytes // self.packed)

    @property
    def access_words(self) -> int:
        """Registers that hold what one access brings."""
        return -(-self.access_bytes // 4)

    @property
    def registers(self) -> int:
        """Of a fragment."""
        return self.elements * self.dtype.bytes // 4


def numbers_made(statements: Sequence[Compute], zeros: Iterable[str]) -> dict[str, float]:
    """The values that are known to be a number, and which, where some are zero.

    Args:
        statements: in their order.
        zeros: names of elements and values that are.
    """
    values = dict.fromkeys(zeros, 0.0)
    for one in statements:
        given = [values.get(a) if isinstance(a, str) else a for a in one.args]
        if one.result in values or one.function not in _ARITHMETIC or None in given:
            continue
        made = _ARITHMETIC[one.function](*(x for x in given if x is not None))
        if abs(made) < _NUMBERS_END:
            values[one.result] = made
    return values
