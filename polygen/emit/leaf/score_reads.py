"""What scores are computed with: values of rows, coordinates, elements of matrices in pairs.

A thread has two adjacent keys of a row in every group of columns. Where an array has adjacent keys
in adjacent places they come in one access; in tiles beyond the last key each by itself, and behind
the last one that again. Addresses of rows are made once a tile.
"""

from __future__ import annotations

from polygen.emit.leaf.elements import epilogue_type
from polygen.emit.leaves import c_type, coordinate, plus, position
from polygen.hardware.atom import Atom
from polygen.lower.result_work import Read
from polygen.lower.scan_work import Terms
from polygen.poly.chain_layers import nth

ROWS = ("first_row", "first_row + half_rows")  # of a thread
PAIR = 2  # adjacent keys
_BYTES = ("unsigned short", "({0}){1}", "({0})({1} >> 8)")
# Of elements of a type in C, what two come as, and both.
_PAIRS = {
    "unsigned char": _BYTES,
    "signed char": _BYTES,
    "unsigned short": ("unsigned", "({0}){1}", "({0})({1} >> 16)"),
    "int": ("uint2", "({0}){1}.x", "({0}){1}.y"),
    "float": ("float2", "{1}.x", "{1}.y"),
}


def by_row(terms: Terms) -> list[str]:
    """What is the same for a whole row, for both rows of instruction `m`."""
    lines = []
    for read in terms.reads:
        from_ = "" if read.kind == "scalar" else f"from_{epilogue_type(read.tensor)}"
        inside = [f"min({row}, rows - 1)" for row in ROWS]
        if read.kind == "row":
            at = [f"{from_}(__ldg({position(read, row, '0')}))" for row in inside]
            lines.append(f"const float {read.name}_of[2] = {{{', '.join(at)}}};")
        elif read.kind == "vector":
            at = [position(read, row, "first_key") for row in inside]
            lines.append(f"const auto {read.name}_first = {at[0]}, {read.name}_second = {at[1]};")
    for name, along in terms.coordinates:
        if along.dim != "n":
            both = ", ".join(coordinate(along, row, "") for row in ROWS)
            lines.append(f"const float {name}_of[2] = {{{both}}};")
        else:
            lines.append(f"const float {name}_first = {coordinate(along, '', 'first_key')};")
    return lines


def pair_reads(atom: Atom, terms: Terms, element: int, edge: bool) -> list[str]:
    """Lines that read what an element and the next one, of the same row, are computed with."""
    row, offset = atom.c.of_thread[element]
    assert atom.c.of_thread[element + 1] == (row, offset + 1)
    column = plus(f"n * {atom.n}", offset)
    lines = []
    for read in terms.reads:
        if read.kind == "vector":
            lines += _vector(read, row, column, edge)
        elif read.kind == "strided":
            from_, last = f"from_{epilogue_type(read.tensor)}", "keys - 1"
            at = f"min(first_row + {row} * half_rows, rows - 1)" if read.m else "0"
            each = [
                f"{from_}(__ldg({position(read, at, f'min(first_key + {column} + {e}, {last})')}))"
                for e in range(PAIR)
            ]
            lines.append(f"const float {read.name}[2] = {{{', '.join(each)}}};")
    return lines


def _vector(read: Read, row: int, column: str, edge: bool) -> list[str]:
    from_, size = f"from_{epilogue_type(read.tensor)}", read.tensor.dtype.bytes
    start, own = f"{read.name}_{('first', 'second')[row]}", c_type(read.tensor.dtype)
    if edge or read.width < PAIR * size or own not in _PAIRS:
        each = [f"{column} + {e}" for e in range(PAIR)]
        if edge:
            each = [f"min({one}, keys - 1 - first_key)" for one in each]
        values = [f"{from_}(__ldg({start} + {one}))" for one in each]
        return [f"const float {read.name}[2] = {{{', '.join(values)}}};"]
    kind, first, second = _PAIRS[own]
    word = f"{read.name}_word"
    both = ", ".join(f"{from_}({one.format(own, word)})" for one in (first, second))
    return [
        f"const {kind} {word} = __ldg(reinterpret_cast<const {kind}*>({start} + {column}));",
        f"const float {read.name}[2] = {{{both}}};",
    ]


def arguments(atom: Atom, scores: tuple[str, ...], terms: Terms, element: int) -> list[str]:
    """What the function of a score is called with for an element of group `n`."""
    row, offset = atom.c.of_thread[element]
    column = plus(f"n * {atom.n}", offset)
    held = {nth("score", n): f"{one}[m][n][{element}]" for n, one in enumerate(scores)}
    held["reference"] = f"reference[{row}]"
    found = [held[name] for _, name in terms.given]
    for read in terms.reads:
        if read.kind == "row":
            found.append(f"{read.name}_of[{row}]")
        elif read.kind != "scalar":
            found.append(f"{read.name}[{element % PAIR}]")
    for name, along in terms.coordinates:
        step = f"{along.scale} * ({column})" if along.scale != 1 else column
        found.append(f"{name}_first + {step}" if along.dim == "n" else f"{name}_of[{row}]")
    return found
