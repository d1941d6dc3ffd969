"""What is stored of scores: results that are made of a product's sums, in pairs of adjacent keys.

Where an array has adjacent keys in adjacent places both of a pair leave in one access; what reaches
beyond the last key, or is not adjacent, leaves by itself. Addresses of rows are made once a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaf.score_reads import PAIR, ROWS
from polygen.emit.leaves import plus, position
from polygen.hardware.atom import Atom
from polygen.lower.accesses import Step
from polygen.lower.result_work import Write

_WORD_BYTES = 4


def stored_by_row(writes: Sequence[Write]) -> list[str]:
    """Where the elements of both rows of instruction `m` begin."""
    lines = []
    for one in writes:
        if _by_steps(one):
            at = [position(one, f"({row})", "first_key") for row in ROWS]
            lines.append(f"const auto {one.name}_first = {at[0]}, {one.name}_second = {at[1]};")
    return lines


def _by_steps(one: Write) -> bool:
    """Whether keys that follow each other lie side by side in all of a row."""
    return one.kind == "vector" and one.n == (Step("1"),)


def pair_held(writes: Sequence[Write]) -> list[str]:
    """The registers of a pair."""
    return [f"float {one.name}_pair[{PAIR}];" for one in writes]


def kept_for_pair(writes: Sequence[Write], element: int, values: Sequence[str]) -> list[str]:
    """What an element leaves there; `values`: of each result."""
    both = zip(writes, values, strict=True)
    return [f"{one.name}_pair[{element % PAIR}] = {value};" for one, value in both]


def pair_writes(atom: Atom, writes: Sequence[Write], element: int, edge: bool) -> list[str]:
    """Lines that store an element and the one before it, of the same row, where there is a row.

    Args:
        atom: the instruction.
        writes: the results.
        element: the second one.
        edge: whether keys may be behind the last one.
    """
    row, offset = atom.c.of_thread[element - 1]
    column = plus(f"n * {atom.n}", offset)
    lines = []
    for one in writes:
        kind, size, pair = epilogue_type(one.tensor), one.tensor.dtype.bytes, f"{one.name}_pair"
        start = f"{one.name}_{('first', 'second')[row]}"
        each, places = [], []
        for e in range(PAIR):
            at = f"first_key + {plus(column, e)}"
            own = f"{start} + {plus(column, e)}"
            place = own if _by_steps(one) else position(one, f"({ROWS[row]})", f"({at})")
            places.append(place)
            inside = f"if ({at} < keys) " if edge else ""
            each.append(f"{inside}*({place}) = to_{kind}({pair}[{e}]);")
        if one.kind == "vector" and one.width == PAIR * size and one.width >= _WORD_BYTES:
            whole = f"write_{kind}<{PAIR}, {one.width}>({places[0]}, {pair});"
            both = f"first_key + {plus(column, 1)} < keys"
            each = [f"if ({both}) {whole}", f"else {each[0]}"] if edge else [whole]
        lines += each
    return [f"if ({ROWS[row]} < rows) {{", *(f"  {line}" for line in lines), "}"] if lines else []
