"""Where rows and their copies lie, and which of them a block has: formulas, and their proof.

The launch before a kernel, and the host that launches it, count chunks, segments and blocks, and
find rows of whole lines in a workspace. All of these formulas are here, as text of C, and the text
is tried:

1. Chunks of a copy's row have all of its bytes, and none is empty; rows of copies begin at lines
   and have room for their bytes, but not for another line.
2. The chunk of the array in which a row begins, and the one where it ends, hold its first and its
   last byte, wherever it begins.
3. The blocks that are launched are every group of rows with every segment, each once: what
   `polygen.poly.realign_program` proves of groups and segments is proved of them. Where two halves
   of the rows are made of the same, groups of both take turns: what the second of them reads may
   still be in the cache.

Lengths are tried up to some lines, and around the ends of segments; rows around whole groups.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.poly.digits import digits
from polygen.poly.realign_program import CHUNKS, WHERE, RealignShape
from polygen.poly.turn_program import TurnShape

BlockShape = RealignShape | TurnShape  # what a block does
_SEGMENTS = (1, 2, 3, 10, 10000)  # around whose ends lengths are tried


@dataclass(frozen=True, slots=True)
class RowTexts:
    """Formulas of rows; in braces stands what else is counted from.

    Attributes:
        chunks: of a row of the copy, of `bytes`.
        segments: of such a row.
        shift: bytes from the chunk in which a row begins to its `begin`.
        base: the address of that chunk.
        last: the chunk in which a row ends, counted from there.
        lines: of a row of a copy, of `length` elements.
        pitch: bytes from a row of a copy to the next.
        step: the same in elements.
        groups: of all `rows`.
        blocks: likewise.
    """

    chunks: str
    segments: str
    shift: str
    base: str
    last: str
    lines: str
    pitch: str
    step: str
    groups: str
    blocks: str


@lru_cache(maxsize=16)
def row_texts(shape: BlockShape, item: int, line: int) -> RowTexts:
    """The formulas, proved.

    Args:
        shape: what a block does.
        item: bytes of an element.
        line: bytes at whose multiples rows of copies begin.
    """
    size, group, each = shape.size, shape.rows, line // item
    segment = shape.segment * size
    lines = f"({{length}} + {each - 1}LL) / {each}"
    groups = f"({{rows}} + {group - 1}) / {group}"
    texts = RowTexts(
        chunks=f"({{bytes}} + {size - 1}) / {size}",
        segments=f"({CHUNKS} + {shape.segment - 1}) / {shape.segment}",
        shift=f"begin % {size}",
        base=f"begin & ~{size - 1}ULL",
        last=f"(shift + {{bytes}} - 1) / {size}",
        lines=lines,
        pitch=f"{lines} * {line}",
        step=f"{lines} * {each}",
        groups=groups,
        blocks=f"{groups} * (({{bytes}} + {segment - 1}) / {segment})",
    )
    check_rows(texts, shape, item, line)
    return texts


def of_block(*, turns: bool = False) -> tuple[str, str]:
    """Which group of rows and which segment are a block's, of its number.

    Args:
        turns: whether groups of the first and of the second half of all take turns.
    """
    rows, segment = digits("block", ["", "segments"])
    return f"({rows}) % 2 * ((groups + 1) / 2) + {rows} / 2" if turns else rows, segment


def check_rows(texts: RowTexts, shape: BlockShape, item: int, line: int) -> None:
    """Prove the formulas.

    Args:
        texts: what the code is written from.
        shape: what a block does.
        item: bytes of an element.
        line: bytes at whose multiples rows of copies begin.

    Raises:
        VerifyError: with the formula that counts otherwise.
    """
    size, segment = shape.size, shape.segment * shape.size
    around = [many * segment // item + np.arange(-2, 3) for many in _SEGMENTS]
    length = np.concatenate([np.arange(1, 4 * line // item), *around])
    count = length * item

    def found(text: str, **names: Any) -> Any:
        plain = text.format(bytes="bytes", length="length", rows="rows")
        return formula.value(plain, {"bytes": count, "length": length, **names})

    def check(holds: Any, text: str) -> None:
        if not np.all(holds):
            raise VerifyError(f"rows of some lengths are counted otherwise by {text}", where=WHERE)

    chunks, pitch = found(texts.chunks), found(texts.pitch)
    check((size * chunks >= count) & (size * chunks - size < count), texts.chunks)
    check((pitch % line == 0) & (count <= pitch) & (pitch < count + line), texts.pitch)
    check(found(texts.lines) * line == pitch, texts.lines)
    check(found(texts.step) * item == pitch, texts.step)
    for begin in range(3 * size, 5 * size, item):  # as addresses of elements are
        base, shift = (found(text, begin=begin) for text in (texts.base, texts.shift))
        inside = base % size == 0 and base <= begin < base + size
        check(inside and shift == begin - base, f"{texts.base}, {texts.shift}")
        last, end = base + size * found(texts.last, shift=shift), begin + count - 1
        check((last <= end) & (end < last + size), texts.last)
    segments = found(texts.segments, **{CHUNKS: chunks})
    check(segments == -(-chunks // shape.segment), texts.segments)
    for rows in (1, shape.rows - 1, shape.rows, shape.rows + 1, 3 * shape.rows, 4 * shape.rows):
        number, many = found(texts.blocks, rows=rows), -(-rows // shape.rows)
        check(number == many * segments, texts.blocks)
        check(found(texts.groups, rows=rows) == many, texts.groups)
        for each, turns in itertools.product(range(1, 4), (False, True)):
            both = of_block(turns=turns)
            names = {"segments": each, "groups": many, "block": np.arange(many * each)}
            pairs = zip(*(formula.value(one, names).tolist() for one in both), strict=True)
            check(sorted(pairs) == sorted(np.ndindex(many, each)), ", ".join(both))
