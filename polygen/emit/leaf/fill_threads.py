"""Rows at any address -> rings of swizzled tiles, by the threads of the producer.

A piece of 16 bytes lies in two aligned chunks of global memory. `get` reads both into registers, a
round of pieces before `put` shifts them into one and writes it. A chunk is read whole if it lies
inside the rows that are adjacent in memory, else element by element: nothing outside is read.
"""

from __future__ import annotations

from collections.abc import Callable

from polygen.emit.leaf.move_cp_async import positions
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import slot_address
from polygen.emit.names import c_name
from polygen.lower.plan import KernelPlan, Leaf
from polygen.lower.work import Fill, Source

_NEEDS = ("pieces", "cursor")


@leaf("get", "threads", Fill, ("k", "q", "s"), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Fill) -> Text:
    return Text(
        block(*_each(work, lambda source: _read(source))),
        f"{one.statement}[i,k,q,s]: piece s of round q, with what lies around it, -> registers",
        (f"unsigned pieces[{work.each}][8];",),
    )


@leaf("put", "threads", Fill, ("k", "q", "s"), needs=_NEEDS)
def _(plan: KernelPlan, one: Leaf, work: Fill) -> Text:
    names = ", ".join(f"{s.copy.tensor.name} -> {s.copy.buffer}" for s in work.sources)
    return Text(
        block(*_each(work, lambda source: _write(plan, work, source))),
        f"{one.statement}[i,k,q,s]: {names}, shifted into place, zeros outside the arrays; "
        "proved to lie where the copy engine would put it",
    )


def _each(work: Fill, lines: Callable[[Source], list[str]]) -> list[str]:
    """The lines of the operand that a piece is of: which one is known where loops are unrolled."""
    found = [
        f"const unsigned own = again(thread % {work.threads});",
        f"const int number = q * {work.each} + s;",
    ]
    for source in work.sources:
        last = source is work.sources[-1]
        test = "" if last else f"if (number < {source.first + source.pieces}) "
        found.append(f"{'} else ' if source is not work.sources[0] else ''}{test}{{")
        first = f" - {source.first}" if source.first else ""
        found.append(f"  const int piece = number{first};")
        if source.pieces * work.threads > source.chunks:
            found.append(f"  if (piece * {work.threads} + own >= {source.chunks}) return;")
        found += [f"  {line}" for line in lines(source)]
    return [*found, "}"]


def _where(source: Source) -> list[str]:
    """Of the chunk: the row and the column of the array, and bytes that are left of its row."""
    c = source.copy
    row_base, column_base, _, columns = positions(c)
    return [
        f"const int from_row = {row_base} + {source.row};",
        f"const int from_column = {column_base} + {source.column};",
        f"const int left = min({columns} - from_column, 16) * {c.element_bytes};",
    ]


def _start(source: Source) -> str:
    """The address of the block's matrix."""
    c = source.copy
    return f"(unsigned long long)({' + '.join([c_name(c.tensor.name), *c.base])})"


def _read(source: Source) -> list[str]:
    c = source.copy
    _, _, rows, columns = positions(c)
    size = c.element_bytes
    return [
        *_where(source),
        f"const unsigned long long start = {_start(source)};",
        f"const unsigned long long row = start + (long long)from_row * {c.stride} * {size};",
        "// Rows without gaps are one range; else every row is one of its own.",
        f"const bool joined = {c.stride} == {columns};",
        "const unsigned long long low = joined ? start : row;",
        f"const unsigned long long high = "
        f"low + (joined ? (long long){rows} : 1LL) * {columns} * {size};",
        f"read_piece<{size}>(pieces[s], row + (long long)from_column * {size}, "
        f"from_row < {rows} ? left : 0, low, high);",
    ]


def _write(plan: KernelPlan, work: Fill, source: Source) -> list[str]:
    c = source.copy
    size = c.element_bytes
    to = slot_address(plan.buffer(c.buffer), f"{work.counter}.slot")
    return [
        *_where(source),
        f"const unsigned at = (unsigned){_start(source)} + "
        f"((unsigned)from_row * (unsigned){c.stride} + (unsigned)from_column) * {size};",
        f"write_piece<{source.alignment}>({to} + {source.place}, pieces[s], at % 16, left);",
    ]
