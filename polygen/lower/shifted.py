"""Lines of an array that begin anywhere, moved in its chunks: these are shifted on their way.

A panel's row begins with a chunk in shared memory, and `offset` elements behind the start of a
chunk in the array; `head` elements on, the array's next chunk begins. Which it is differs from row
to row. Names in formulas are these, `column`, where a portion of the panel begins, and `left`, how
many elements from the panel's first on are inside of the array.

1. What is stored goes by the array's chunks: each is made of two adjacent portions of the panel,
   shifted by `head`. In front of the first chunk and behind the last one elements go one by one.
2. What is fetched goes by the panel's portions: each is made of two adjacent chunks of the array,
   shifted by `offset`. Chunks that are not all of the row's are read element by element.

That every element inside is moved once, and none outside, is tried out for all places where rows
may begin and end (`check_shifted`); what a shift does to bytes, in `realign_work`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.realign_work import WordShift, word_shifts
from polygen.lower.shares import Share, check_share, line_share
from polygen.poly.realign_program import SOURCES

WHERE = "lines that begin anywhere"
_FEWEST = 4  # chunks of a panel's row


@dataclass(frozen=True, slots=True)
class Shifted:
    """How lines that begin anywhere are moved by chunks.

    Attributes:
        elements: of a chunk.
        columns: of the panel.
        ends: which slots for elements at the ends of rows are whose, as many as a chunk has; rows
            that end inside of the panel go through them twice.
        shifts: of a chunk, in bytes.
    """

    elements: int
    columns: int
    ends: Share
    shifts: tuple[WordShift, ...]

    @property
    def stored(self) -> str:
        """The element of the panel's row with which a chunk of the array begins."""
        return "head + column"

    @property
    def beside(self) -> str:
        """The portion of the panel of which a chunk is made besides that at `column`."""
        return f"min(column + {self.elements}, {self.columns - self.elements})"

    @property
    def whole(self) -> str:
        """Whether the chunk that begins with element `first` is stored whole."""
        return f"first + {self.elements} <= left"

    @property
    def slot(self) -> str:
        """The number of a slot, where `column` is its number among those of one way through."""
        return f"column + lap * {self.elements}"

    @property
    def end(self) -> str:
        """The element of the panel's row that goes with slot `e` of its ends, if it is inside."""
        return f"e + (e >= head) * (max(left - head, 0) / {self.elements} * {self.elements})"

    @property
    def fetched(self) -> str:
        """The element of the panel's row with which the array's chunk begins, of two the `h`-th."""
        return f"column + h * {self.elements} - offset"

    @property
    def in_row(self) -> str:
        """Whether all of that chunk is the row's, of which `before` elements precede the panel."""
        return f"first + before >= 0 && first + {self.elements} <= left"

    @property
    def at_ends(self) -> str:
        """Whether some chunks of a panel are not all of their rows': of one at rows' ends."""
        return f"before < {self.elements} || left < {self.columns + self.elements}"

    @property
    def needed(self) -> str:
        """Whether anything of that chunk is."""
        return "h == 0 || offset > 0"


def shifted(tile: tuple[int, int], size: int, width: int, threads: int) -> Shifted | None:
    """How a panel's lines are moved by chunks; None: by what the array's alignment allows.

    Args:
        tile: rows and columns of the panel.
        size: bytes of an element.
        width: of an access that the array's alignment allows.
        threads: that share the panel.
    """
    (rows, columns), elements = tile, chunk_bytes() // size
    chunks = columns // elements
    # Of rows of few chunks too much lies at their ends.
    if width >= chunk_bytes() // 2 or chunks < _FEWEST or columns % elements:
        return None
    if rows * chunks % threads or rows * elements % threads:
        return None
    ends = line_share((rows, elements), 1, threads, "n")
    return Shifted(elements, columns, ends, word_shifts(chunk_bytes()))


@lru_cache(maxsize=64)
def check_shifted(of: Shifted, tile: tuple[int, int], size: int, threads: int) -> None:
    """Elements inside are moved once, and no others, wherever rows begin and end.

    Args:
        of: how.
        tile: rows and columns of the panel.
        size: bytes of an element.
        threads: that share the panel.

    Raises:
        VerifyError: with a place where a row begins or ends, and what is wrong there.
    """
    if (of.elements * size, of.columns) != (chunk_bytes(), tile[1]):
        raise VerifyError(f"chunks of {of.elements} of {of.columns} elements", where=WHERE)
    for agent in range(2):
        check_share(of.ends, (tile[0], of.elements), threads, 1, before=agent * threads)
    check_stored(of)
    check_fetched(of)


def check_stored(of: Shifted) -> None:
    """Chunks that are stored whole and elements at the ends are all that is inside, each once.

    Raises:
        VerifyError: for some row they are not, or a chunk is made of other elements.
    """
    size, columns = of.elements, of.columns
    head, left, column, slots = np.ix_(
        range(size), range(columns + 1), range(0, columns, size), range(SOURCES * size)
    )
    e = formula.value(of.slot, {"lap": slots // size, "column": slots % size})
    names = {"head": head, "left": left, "column": column, "e": e}
    first = formula.value(of.stored, names)
    beside, own = formula.value(of.beside, names), np.arange(size)
    if not ((beside >= 0) & (beside + size <= columns)).all():
        raise VerifyError("a chunk is made of what lies behind the panel", where=of.beside)
    whole = np.broadcast_to(
        formula.value(of.whole, names | {"first": first}), (size, columns + 1, columns // size, 1)
    )
    if ((first - head) % size).any():
        raise VerifyError("what is stored is no chunk of the array", where=of.stored)
    taken = head + own
    made = np.where(taken < size, column + taken, beside + taken - size)
    if ((made != first + own) & whole).any():
        raise VerifyError("a chunk is made of other elements", where=of.beside)
    count = np.zeros((size, columns + 1, columns + size), int)
    for at in range(columns // size):
        for one in range(size):
            place = np.broadcast_to(first[:, :, at, 0] + one, whole.shape[:2])
            np.add.at(count, (*np.indices(place.shape), place), whole[:, :, at, 0])
    end = np.broadcast_to(formula.value(of.end, names), (size, columns + 1, 1, SOURCES * size))
    inside = (end < left) & ((left < columns) | (slots < size))
    for slot in range(SOURCES * size):
        place = np.where(inside[:, :, 0, slot], end[:, :, 0, slot], 0)
        np.add.at(count, (*np.indices(place.shape), place), inside[:, :, 0, slot])
    wanted = np.arange(columns + size) < left[:, :, :, 0]
    if (end < 0).any():
        raise VerifyError("an element before the panel's is stored", where=of.end)
    wrong = np.argwhere((count != wanted).any(axis=2))
    if len(wrong):
        raise VerifyError(
            f"not every element is stored once where a chunk begins after {wrong[0][0]} elements "
            f"and the row ends after {wrong[0][1]}",
            where=f"{of.whole}; {of.end}",
        )


def check_fetched(of: Shifted) -> None:
    """What is fetched of chunks is a portion of the panel, and lies inside of the row.

    Raises:
        VerifyError: it is not, or a chunk outside is read.
    """
    size, columns = of.elements, of.columns
    offset, left, before, column, h, own = np.ix_(
        range(size), range(columns + size + 1), (0, 1, size), range(0, columns, size),
        range(SOURCES), range(size),
    )  # fmt: skip
    names = {"offset": offset, "column": column, "h": h, "left": left, "before": before}
    first = formula.value(of.fetched, names)
    if ((first + offset) % size).any():
        raise VerifyError("what is read is no chunk of the array", where=of.fetched)
    names["first"] = first
    outside = (first < -before) | (first + size > left)
    if (formula.value(of.in_row, names) & outside).any():
        raise VerifyError("a chunk is read that is not all of the row's", where=of.in_row)
    if (~formula.value(of.in_row, names) & ~formula.value(of.at_ends, names)).any():
        raise VerifyError("a chunk that is not all of the row's is left out", where=of.at_ends)
    # Element `offset` of the two chunks is the portion's first.
    behind = offset + own
    taken = np.where(behind < size, first[..., :1, :] + behind, first[..., 1:, :] + behind - size)
    missed = (behind >= size) & ~formula.value(of.needed, names)[..., 1:, :]
    if (
        (taken != column + own).any()
        or missed.any()
        or not formula.value(of.needed, names)[..., :1, :].all()
    ):
        raise VerifyError("a portion is made of other elements", where=of.needed)
