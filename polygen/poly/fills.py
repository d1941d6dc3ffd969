"""Which unit fills an operand's ring, and in which portions threads do.

1. The copy engine moves boxes of arrays whose rows start at whole units of tensor maps. What it
   cannot move, the threads of the producer read from global memory, shift into place and write.
   What is computed they read, compute and write.
2. A piece is what one thread moves at a time: some chunks of shared memory. In global memory each
   lies in two such chunks, and both are in registers until it is written; of a computed operand,
   all that is read for it. Reads of a piece are one batch: the hardware tells few batches apart.
3. As many pieces as registers hold are on their way at once: a round. While one round is written,
   the next one is read, so that a k tile of several rounds is one stream with the next k tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polygen.hardware.data_file import read
from polygen.hardware.device import common_facts
from polygen.hardware.swizzle import chunk_bytes
from polygen.poly.elements import Element
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

_WORD_BYTES = 4
_AROUND = 2  # chunks of global memory in which one of shared memory lies
PIECE_CHUNKS = 4


def by_threads(operand: Operand) -> bool:
    """Whether an operand is computed, or its rows are none that tensor maps describe."""
    aligned = operand.alignment >= common_facts()["tensor_map_row_bytes"]
    return operand.computed is not None or not aligned


@dataclass(frozen=True, slots=True)
class Held:
    """What threads that fill hold in registers.

    Attributes:
        words: of a chunk of shared memory, from reading to writing it.
        beside: registers for what else they do.
    """

    words: int
    beside: int


def shifted() -> Held:
    """Of rows that are shifted into place."""
    return Held(_AROUND * chunk_bytes() // _WORD_BYTES, figures()["beside"])


def held(operands: Iterable[Operand]) -> Held:
    """The most that threads hold of the operands that they fill rings with."""
    found = [Held(1, 0)]
    for operand in filter(by_threads, operands):
        if operand.computed is None:
            found.append(shifted())
        else:
            words = sum(chunk_words(operand, one) for one in operand.computed.reads)
            found.append(Held(words, figures()["computing"]))
    return Held(max(one.words for one in found), max(one.beside for one in found))


def chunk_words(operand: Operand, one: Element) -> int:
    """Words that hold what a chunk of a computed operand reads of an array."""
    if not one.tensor.dims:
        return 0
    axis = one.axis(operand.inner.dim)
    elements = chunk_bytes() // operand.tensor.dtype.bytes
    if axis is None or one.index[axis].per >= elements:
        return -(-one.tensor.dtype.bytes // _WORD_BYTES)
    elements = -(-elements // one.index[axis].per)
    return -(-elements * one.tensor.dtype.bytes // _WORD_BYTES)


def filling_threads() -> int:
    """Threads that fill: the producer's warpgroup."""
    facts = common_facts()
    return facts["warpgroup_warps"] * facts["warp_size"]


def figures() -> dict[str, int]:
    """Registers of threads that fill, as compiled kernels have them."""
    found: dict[str, int] = read("registers.toml")["producers"]
    return found


def piece_registers(of: Held) -> int:
    """Registers of a piece on its way."""
    return PIECE_CHUNKS * of.words


def piece_bytes() -> int:
    """Bytes of shared memory that all threads write of a piece."""
    return filling_threads() * PIECE_CHUNKS * chunk_bytes()


def ring_pieces(schedule: Schedule, matched: Match, tiles: Tiling) -> dict[str, int]:
    """Pieces of every thread per k tile, by operand; nothing without roles."""
    if not schedule.specialised:
        return {}
    found = {}
    for name, operand in matched.operands:
        if by_threads(operand):
            extent = tiles.cta[0] if operand.role == "m" else tiles.cta[1]
            tile = extent * tiles.cta[2] * operand.tensor.dtype.bytes
            found[name] = -(-tile // piece_bytes())
    return found


def rounds(pieces: int, registers: int, of: Held) -> tuple[int, int]:
    """How many rounds a k tile takes, and the pieces of one; as few rounds as registers allow.

    Args:
        pieces: of every thread per k tile.
        registers: per thread.
        of: what the thread holds.
    """
    most = max(1, (registers - of.beside) // piece_registers(of))
    count = -(-pieces // most)
    return count, -(-pieces // count)
