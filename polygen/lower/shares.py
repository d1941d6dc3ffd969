"""How threads share the pieces of a tile: formulas, and the proof that each piece is moved once.

A tile in shared memory is stored rows; a piece is adjacent elements of one, as wide as an access.
Pieces are numbered along rows, and consecutive threads have consecutive ones, so that what lies
beside each other in memory moves at once. Which row and which elements a thread's `i`-th piece has
are formulas over its number, text that C and the proof read alike. The proof tries all pieces:

1. Who has no piece has none in later passes either, so that a loop may end there.
2. All pieces of all others, in all parts, are those of the tile, each once.
3. Where a thread keeps its column from pass to pass, its places in shared memory are as far apart
   as its rows (`check_step`).

What of a piece lies inside of an array are formulas, too (`Edge`), proved for all sizes by isl.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from polygen import isl
from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.lower.buffers import Rows

WHERE = "the pieces of a tile"


@dataclass(frozen=True, slots=True)
class Names:
    """What formulas call the number of who shares a tile, the part of it, and a piece's number."""

    thread: str = "thread"
    part: str = "p"
    piece: str = "piece"


THREADS, LANES = Names(), Names("lane", "r", "item")


@dataclass(frozen=True, slots=True)
class Share:
    """Which pieces of a tile each thread has.

    Names in formulas: `i`, which of a thread's pieces; and those of `Names`.

    Attributes:
        piece: a number from which row and column follow; "": they are given without it.
        row: the stored row of a piece.
        column: its first element.
        elements: of a piece.
        first: of a part, the first `i`.
        end: the one behind its last.
        beyond: whether a thread has no further piece in a part; "": it has all.
        step: rows from one `i` to the next, besides what `row` says.
    """

    piece: str
    row: str
    column: str
    elements: int
    first: str
    end: str
    beyond: str = ""
    step: int = 0


def copy_share(
    tile: tuple[int, int], elements: int, threads: int, parts: int, period: int = 0
) -> Share:
    """The pieces of an operand's tile among all threads of a block.

    Args:
        tile: its stored rows, and elements of one.
        elements: of a piece.
        threads: of the block.
        parts: the tile is moved in so many.
        period: rows after which its swizzle repeats, where threads may keep their columns; else 0.
    """
    rows, columns = tile
    per_row = columns // elements
    pieces, number = rows * per_row, f"i * {threads} + thread"
    passes = -(-pieces // threads)
    each = -(-passes // parts)
    last = f"(p + 1) * {each}"
    keep = period > 0 and threads % per_row == 0 and threads // per_row % period == 0
    of = "thread" if keep else "piece"
    return Share(
        piece="" if keep else number,
        row=f"{of} / {per_row}",
        column=f"{of} % {per_row} * {elements}",
        elements=elements,
        first=f"p * {each}",
        end=last if passes % parts == 0 else f"min({last}, {passes})",
        beyond=f"{number} >= {pieces}" if pieces % threads else "",
        step=threads // per_row if keep else 0,
    )


def held_share(tile: tuple[int, int], elements: int, threads: int) -> Share:
    """The same where a thread holds all of its pieces in registers."""
    found = copy_share(tile, elements, threads, 1)
    pieces = tile[0] * tile[1] // elements
    beyond = f"piece >= {pieces}" if pieces % threads else ""
    return replace(found, first="0", end=str(-(-pieces // threads)), beyond=beyond)


def line_share(tile: tuple[int, int], elements: int, threads: int, along: str) -> Share:
    """The portions of a panel among the threads of a warpgroup.

    Args:
        tile: rows and columns of the panel.
        elements: of a portion.
        threads: of the warpgroup.
        along: the dim of its lines: "n", or "m" for single elements of a column.
    """
    rows, columns = tile
    number = f"(i * {threads} + thread % {threads})"
    per_line = columns // elements if along == "n" else rows
    outer, inner = f"{number} / {per_line}", f"{number} % {per_line}"
    inner += f" * {elements}" if elements > 1 else ""
    row, column = (outer, inner) if along == "n" else (inner, outer)
    count = rows * columns // elements // threads
    return Share("", row, column, elements, "0", str(count))


def vector_share(tile: tuple[int, int], vector: int, lanes: int, batch: int) -> Share:
    """The vectors of results of a warp's tile among its lanes, a batch of them at a time.

    Args:
        tile: rows and columns of it; a row has a vector at least, what is behind it is outside.
        vector: elements of one.
        lanes: of the warp.
        batch: vectors of a lane whose reads are on their way together.
    """
    rows, columns = tile
    per_row = max(1, columns // vector)
    items = rows * per_row
    return Share(
        piece=f"r * {lanes * batch} + lane",
        row=f"(item + i * {lanes}) / {per_row}",
        column=f"item % {per_row} * {vector}",
        elements=vector,
        first="0",
        end=str(batch),
        beyond=f"item >= {items}" if items % (lanes * batch) else "",
    )


@lru_cache(maxsize=256)
def check_share(
    of: Share,
    tile: tuple[int, int],
    threads: int,
    parts: int,
    called: Names = THREADS,
    *,
    before: int = 0,
) -> None:
    """Every piece of a tile is one thread's, in one pass of one part.

    Args:
        of: who has which.
        tile: its stored rows, and elements of one.
        threads: that share it.
        parts: it is moved in so many.
        called: the names in its formulas.
        before: threads of the block in front of them.

    Raises:
        VerifyError: a piece is nobody's, two have it, or it is not of the tile.
    """
    rows, columns = tile
    if of.elements < 1 or columns % of.elements:
        raise VerifyError(f"pieces of {of.elements} of {columns} elements", where=WHERE)
    per_row, found = columns // of.elements, []
    for part in range(parts):
        names: dict[str, Any] = {called.part: part}
        first, end = (int(formula.value(text, names)) for text in (of.first, of.end))
        if end - first > rows * columns:
            raise VerifyError(f"part {part} has passes up to {of.end}", where=WHERE)
        i, thread = np.indices((max(end - first, 0), threads))
        i = i + first
        names |= {"i": i, called.thread: thread + before}
        if of.piece:
            names[called.piece] = formula.value(of.piece, names)
        own = np.ones(i.shape, bool)
        if of.beyond:
            own &= ~np.broadcast_to(formula.value(of.beyond, names), i.shape).astype(bool)
        if (own[1:] & ~own[:-1]).any():
            raise VerifyError(f"a thread has pieces behind its last: {of.beyond}", where=WHERE)
        row, column = (
            np.broadcast_to(formula.value(t, names), i.shape)[own] for t in (of.row, of.column)
        )
        row = row + (i * of.step)[own]
        if not ((row < rows) & (column < columns) & (column % of.elements == 0)).all():
            raise VerifyError(
                f"a thread has a piece of no tile: {of.row}, {of.column}", where=WHERE
            )
        found.append(row * per_row + column // of.elements)
    if not np.array_equal(np.sort(np.concatenate(found)), np.arange(rows * per_row)):
        raise VerifyError(
            f"not every piece is moved once by {threads} threads: {of.row}, {of.column}",
            where=WHERE,
        )


def check_step(of: Share, layout: Rows) -> None:
    """Rows of a thread that are a step apart lie so many rows apart in shared memory.

    Raises:
        VerifyError: the swizzle has them elsewhere.
    """
    if of.step % layout.swizzle.period:
        raise VerifyError(f"pieces {of.step} rows apart do not lie alike", where=WHERE)


@dataclass(frozen=True, slots=True)
class Edge:
    """What of a piece at (`row`, `column`) lies inside of an array: conditions as C.

    `{m}` and `{n}` are where its rows end, and the elements of one.

    Attributes:
        row: whether the row is inside.
        whole: whether all of the piece's elements are, in a row that is.
        left: of the elements from the piece's first on how many are inside, in such a row.
    """

    row: str
    whole: str
    left: str


@lru_cache(maxsize=32)
def edge(elements: int, row: str = "row", column: str = "column") -> Edge:
    """The conditions of pieces of so many elements, proved.

    Args:
        elements: of a piece.
        row: the variable that says its row.
        column: that says the first of its elements.
    """
    last = f"{column} + {elements} <= {{n}}" if elements > 1 else f"{column} < {{n}}"
    made = Edge(f"{row} < {{m}}", last, f"{{n}} - {column}")
    check_edge(made, elements, row, column)
    return made


def check_edge(of: Edge, elements: int, row: str = "row", column: str = "column") -> None:
    """Whole pieces and the rest of one are all elements that are inside, and no others.

    Raises:
        VerifyError: one is left out, or lies outside.
    """
    inside, whole, left = (text.format(m="m", n="n") for text in (of.row, of.whole, of.left))
    names, place = "[m, n] -> ", f"[{row}, {column}, e]"
    known = f"{row} >= 0 and {column} >= 0 and 0 <= e"
    wanted = isl.Set(
        f"{names}{{ {place} : {known} and e < {elements} and {row} < m and {column} + e < n }}"
    )
    pieces = isl.Set(f"{names}{{ {place} : {known} and {inside} and {whole} }}")
    all_of = isl.Set(f"{names}{{ {place} : {known} and {row} < m and {column} + {elements} <= n }}")
    at_once = isl.Set(f"{names}{{ {place} : {known} and e < {elements} and {inside} and {whole} }}")
    others = isl.Set(f"{names}{{ {place} : {known} and {inside} and e < {left} }}")
    others = others.subtract(isl.Set(f"{names}{{ {place} : {whole} }}"))
    if not (pieces.is_equal(all_of) and at_once.union(others).is_equal(wanted)):
        raise VerifyError(
            f"elements inside are not where {of.whole}, or e < {of.left}", where=WHERE
        )
