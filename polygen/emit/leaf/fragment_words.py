"""Elements of fragments that consumers compute, in C: in which word they are, and where in it.

An element is number `e` of a lane's. It lies in the words `held` that were read from the ring, or
in those of an array in global memory, read a k tile ahead or where it is needed.
"""

from __future__ import annotations

from polygen.emit.element_types import of_word
from polygen.emit.leaf.computed_chunk import stored_type
from polygen.emit.leaves import scaled, size_name
from polygen.emit.names import c_name
from polygen.frontend.program import Tensor
from polygen.lower.fragments import Beside, Make

PAIR = 2  # elements of 16 bits in a word
WORD_BYTES = 4
_BOTH_HALVES = "0x1001u"  # a byte times it has its second number from bit 16 on


def grouped(text: str) -> str:
    """A term, or terms in parentheses."""
    return text if text == "0" else f"({text})"


def spread(work: Make) -> str:
    """A word with the stored numbers of elements e and e + 1 in its halves, in their low bits."""
    if work.chunk is not None:
        first = f"{work.chunk.number} * {work.chunk.words} + {work.chunk.word}"
        if work.packed > 1:
            return f"__byte_perm(held[{first}], 0u, pick) * {_BOTH_HALVES}"
        return f"__byte_perm(held[{first}], held[{first} + 1], pick)"
    if work.access == 1:
        return "held[e] | held[e + 1] << 16"
    if work.tensor.dtype.bytes == 2:
        return word(work)
    if work.packed > 1:
        return f"{word(work)} * {_BOTH_HALVES}"
    return f"__byte_perm({word(work)}, 0, 0x4140)"


def word(work: Make) -> str:
    """The word that holds element `e`, or the byte that it is in."""
    if work.chunk is not None:
        return spread(work)
    if work.access_words == 1:
        return "held[e]" if work.access == 1 else f"held[e / {work.access}]"
    return f"held[e * {work.tensor.dtype.bytes} / {WORD_BYTES}]"


def place_of_half(work: Make) -> str:
    """Which number of four bits element `e` is, of those in its word."""
    if work.chunk is not None:
        return f"e % {PAIR} * 4"
    return f"e % {work.packed}" if work.access > 1 else f"own_k % {work.packed}"


def of_ring(work: Make) -> str:
    """Element `e` of the ring, as a float."""
    place = f"e % {work.access} / {work.packed}" if work.access > work.packed else "0"
    if work.chunk is not None and work.packed == 1:
        place = f"e % {PAIR} * 2"
    return as_number(work.tensor, word(work), place)


def as_number(tensor: Tensor, word: str, place: str) -> str:
    """One of the elements that a word holds, as a float."""
    kind, size = stored_type(tensor), tensor.dtype.bytes
    if size == WORD_BYTES:
        return of_word(tensor.dtype, word)
    if size == 2:
        shift = "" if place == "0" else f" >> {place} * 16"
        return f"from_{kind}((unsigned short)({word}{shift}))"
    return f"from_{kind}({word}, {place})"


def of_memory(one: Beside, work: Make) -> str:
    """The element of an array that goes with element `e`, as a float."""
    if not one.tensor.dims:
        return c_name(one.tensor.name)
    return as_number(one.tensor, *word_of_memory(one, work))


def word_of_memory(one: Beside, work: Make) -> tuple[str, str]:
    """The word that holds the element of an array that goes with element `e`, and its place."""
    size = one.tensor.dtype.bytes
    if not one.kept and one.run == 1:
        return f"read_one<{size}>({address(one, work.atom[1], work)})", "0"
    words = f"of_{one.name}[", f"beside_{work.operand}[{one.first} + {one.kept}"
    if one.run * size <= WORD_BYTES:
        inside, place = f"e / {one.run}", f"e % {one.run}" if one.run > 1 else "0"
    else:
        inside, place = f"e * {size} / {WORD_BYTES}", "0"
    if not one.kept:
        return f"{words[0]}{inside}]", place
    if one.run * size > WORD_BYTES:
        return f"{words[1]} + e % {one.run} * {size} / {WORD_BYTES}]", place
    return f"{words[1]}]", place


def address(one: Beside, depth: int, work: Make) -> str:
    """Where the element of an array is that goes with `row` and `column`."""
    column, last = "column", f"{size_name(work.extents[1])} - 1"
    if one.per[1] % work.tile[1] == 0:  # one for all of the k tile, which may lie behind the end
        column = f"min({work.k_tile} * {work.tile[1]}, {last})"
    elif depth and one.per[1] % depth == 0:  # one for all of the fragment
        column = f"min(step_k, {last})"
    row, column = (
        name if count == 1 else f"({name}) / {count}"
        for name, count in zip(("row", column), one.per, strict=True)
    )
    steps = ((row, one.row_step), (column, one.k_step))
    parts = [
        scaled(f"({name})" if "/" in name else name, step) for name, step in steps if step != "0"
    ]
    return " + ".join([c_name(one.tensor.name), *one.base, *parts])
