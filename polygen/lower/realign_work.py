"""What leaves of the launch before a kernel do: their records, and how a chunk is shifted.

A chunk of the copy is bytes `shift` to `shift + 15` of two adjacent chunks of the array. `shift`
differs from row to row, so that no instruction can have it as a constant: a step for each of its
bits moves words by that many bytes or leaves them where they are, and one instruction moves bytes
inside words. That this makes each of the bytes for each shift is proved of the text that is written
of it (`polygen/emit/proofs/realigned.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Dim, Tensor
from polygen.lower.computed import Computed
from polygen.poly.realign_program import RealignShape
from polygen.poly.realign_rows import BlockShape
from polygen.poly.turn_program import TurnShape

WORD = 4  # bytes


@dataclass(frozen=True, slots=True)
class WordShift:
    """One step: words that lie so far behind take the place of others, or stay.

    Attributes:
        bit: of the shift, in bytes, which decides.
        words: how far.
        results: words that later steps read.
    """

    bit: int
    words: int
    results: int


@dataclass(frozen=True, slots=True)
class RowCopy:
    """A row of an array -> a row of its copy.

    Attributes:
        item: bytes of an element.
        shape: what a block does.
        shifts: the steps, in order; then bytes are shifted inside of words.
    """

    item: int
    shape: RealignShape
    shifts: tuple[WordShift, ...]

    @property
    def words(self) -> int:
        """Of a chunk."""
        return self.shape.size // WORD

    @property
    def pointers(self) -> tuple[str, ...]:
        """The variables from which all addresses are made: of the row, and of its copy."""
        return "begin", "base", "to"


@dataclass(frozen=True, slots=True)
class RowMake:
    """What an operand is computed from -> a row of it.

    Attributes:
        at: its number among all that the launch leaves.
        tensor: the operand, as an array.
        shape: what a block does.
        computed: how a chunk is computed.
        outer: variable and extent of every axis but the row's own, the fastest first.
        length: elements of a row.
        turns: whether the rows are two halves that are made of the same, whose blocks take turns.
    """

    at: int
    tensor: Tensor
    shape: BlockShape
    computed: Computed
    outer: tuple[tuple[str, Dim], ...]
    length: Dim
    turns: bool = False

    @property
    def by_lanes(self) -> bool:
        """Whether lanes of a warp have several rows: what they read lies across these."""
        return isinstance(self.shape, TurnShape)

    @property
    def arrays(self) -> tuple[str, ...]:
        """What it reads and writes."""
        reads = (fetch.tensor for fetch in self.computed.fetches if fetch.tensor.dims)
        vectors = (fetch.rows.vector for fetch in self.computed.fetches if fetch.rows)
        named = (*(tensor.name for tensor in reads), *vectors, self.tensor.name)
        return tuple(dict.fromkeys(named))


def word_shifts(size: int) -> tuple[WordShift, ...]:
    """The steps for chunks of `size` bytes, a power of two; largest first."""
    found, bit = [], size // 2
    while bit >= WORD:
        found.append(WordShift(bit, bit // WORD, size // WORD + bit // WORD))
        bit //= 2
    return tuple(found)
