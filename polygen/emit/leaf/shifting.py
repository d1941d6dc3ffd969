"""Chunks that are made of two adjacent ones: words in registers, shifted by bytes."""

from __future__ import annotations

from collections.abc import Sequence

from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.realign_work import WORD, WordShift


def shift_words(shifts: Sequence[WordShift], source: str, shift: str) -> list[str]:
    """C that declares `words` of a chunk, shifted.

    Args:
        shifts: the steps, proved.
        source: the words of both chunks.
        shift: how many bytes.
    """
    lines = [f"unsigned words[{shifts[0].results}];"]
    for step in shifts:
        moved = f"({shift}) & {step.bit} ? {source}[i + {step.words}] : {source}[i]"
        lines += _unrolled(f"i < {step.results}", f"words[i] = {moved};")
        source = "words"
    count = chunk_bytes() // WORD
    turn = f"words[i] = __funnelshift_r(words[i], words[i + 1], ({shift}) * 8);"
    return [*lines, *_unrolled(f"i < {count}", turn)]


def _unrolled(condition: str, line: str) -> list[str]:
    return ["#pragma unroll", f"for (int i = 0; {condition}; ++i) {line}"]
