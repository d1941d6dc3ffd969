"""Fragments that consumers compute: a ring's elements -> registers, from which they are multiplied.

Elements come from the ring, a run at a time, and from global memory, whose places end where the
arrays end: rows and k behind the last read the last, or zeros where what is read ahead for every k
ends with the operand (`Make.ends`). Rows behind the end make sums that nobody stores. What is
computed behind the end of k counts as zero, whatever the function makes of zeros; without a branch,
as the compiler lets no fragments be made in branches while products run.
"""

from __future__ import annotations

import re

from polygen.emit.leaf.computed_chunk import PACKED, ROUND_TF32, element_lines
from polygen.emit.leaf.fragment_pairs import pair_lines, pair_reads
from polygen.emit.leaf.fragment_words import (
    PAIR,
    WORD_BYTES,
    address,
    grouped,
    of_memory,
    of_ring,
    place_of_half,
    word,
)
from polygen.emit.leaf.load_threads import load_function
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import plus, size_name, slot_address
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.fragments import Beside, Chunk, Make
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.elements import Along

# Where a fragment begins, and where an element is.
_FIRST = re.compile(r"\b(?:first_row|first_k|step_k)\b")
_PLACES = re.compile(r"\b(?:row|column|own_row|own_k)\b")


@leaf(
    "make", "threads", Make, ("k", "s", "m"), needs=("pack", "computed", "shared_words", "cursor")
)
def _(plan: KernelPlan, one: Leaf, work: Make) -> Text:
    buffer, (rows, depth) = plan.buffer(work.buffer), work.atom
    fragment = f"fragment_{work.operand}[s % {work.slots}][m]"
    first = {
        "first_row": f"quarter + {work.lane_row} + m * {rows}{work.part}",
        "first_k": f"{work.lane_k}{_own_step(work)}",
        "step_k": f"{work.k_tile} * {work.tile[1]} + s * {depth}",
    }
    aside = [one for one in work.beside if one.run > 1 and not one.kept]
    lines = [
        *_loads(work),
        *(line for one in aside for line in _runs(one, work)),
        *(_in_pairs(work, fragment) if work.pairs else _one_by_one(work, fragment)),
    ]
    asked = {name for line in lines for name in _FIRST.findall(line)}
    return Text(
        block(
            f"const unsigned tile = {slot_address(buffer, f'{work.counter}.slot')};",
            *(f"const int {name} = {at};" for name, at in first.items() if name in asked),
            *lines,
        ),
        f"{one.statement}[i,k,s,m]: {work.buffer} -> {fragment}, computed where the instruction "
        "takes it; proved to read what the copies wrote",
        (
            f"unsigned fragment_{work.operand}[{work.slots}][{plan.tiles.atoms[0]}]"
            f"[{work.registers}];",
        ),
    )


def _one_by_one(work: Make, fragment: str) -> list[str]:
    """Elements are computed as f32, and rounded as a register takes them."""
    text, _ = made_lines(work)
    pack = f"{fragment}[i] = {PACKED[work.dtype.name]};"
    if work.dtype.name == "tf32":
        pack = ROUND_TF32.format(to=fragment)
    count, k_extent = work.elements, size_name(work.extents[1])
    return [
        f"float made[{count}];",
        "#pragma unroll",
        f"for (int e = 0; e < {count}; ++e) {{",
        *_where(work),
        f"  const float {work.name} = {of_ring(work)};",
        *(f"  const float {one.name} = {of_memory(one, work)};" for one in work.beside),
        *(f"  const float {name} = {_coordinate(place)};" for name, place in work.coordinates),
        *(f"  {line}" for line in text),
        *(
            []
            if work.whole or _by_words(work)
            else [f"  made[e] = own_k < {k_extent} ? made[e] : 0.0f;"]
        ),
        "}",
        "#pragma unroll",
        f"for (int i = 0; i < {work.registers}; ++i) {{",
        f"  {pack}",
        *_ends(work, fragment, k_extent, "const int e"),
        "}",
    ]


def _in_pairs(work: Make, fragment: str) -> list[str]:
    """Two elements go through instructions on pairs, which round as the program does."""
    assert work.pairs is not None
    lines = [f"  {line}" for line in (*pair_reads(work), *pair_lines(work))]
    return [
        "#pragma unroll",
        f"for (int i = 0; i < {work.registers}; ++i) {{",
        f"  const int e = i * {PAIR};",
        *_where(work, lines),
        *lines,
        f"  {fragment}[i] = {work.pairs.result};",
        *_ends(work, fragment, size_name(work.extents[1])),
        "}",
    ]


def _where(work: Make, lines: list[str] | None = None) -> list[str]:
    """Which element is the e-th, and where what is read beside it ends, if lines ask for it."""
    if lines is not None and not any(map(_PLACES.search, lines)):
        return []
    m_extent, k_extent = (size_name(extent) for extent in work.extents)
    return [
        f"  const int own_row = b_m * {work.tile[0]} + first_row + {grouped(work.row_of)};",
        f"  const int own_k = step_k + {work.lane_k} + {grouped(work.k_of)};",
        f"  const int row = min(own_row, {m_extent} - 1), column = min(own_k, {k_extent} - 1);",
    ]


def _loads(work: Make) -> list[str]:
    """Elements of the ring -> words: as fragments, or a run at a time."""
    if work.load is not None:
        return _fragment(work, work.load)
    if work.chunk is not None:
        return _chunks(work, work.chunk)
    size, packed, words = work.tensor.dtype.bytes, work.packed, work.access_words
    stored_k = f"k_inside / {packed}" if packed > 1 else "k_inside"
    inner, outer = (stored_k, "own_row") if work.k_inner else ("own_row", stored_k)
    accesses, address = work.elements // work.access, inner if size == 1 else f"({inner}) * {size}"
    place = work.place
    if step := _shared_step(work):
        # What differs between lanes stays inside of a unit of the swizzle.
        whole, part = f"s * {step}", f"s * {step} % {chunk_bytes()} + {address}"
        if step < chunk_bytes():
            whole = f"{whole} / {chunk_bytes()} * {chunk_bytes()}"
        else:
            part = address
        address, place = whole, f"{work.place} + {part}"
    return [
        f"unsigned held[{accesses * words}];",
        "#pragma unroll",
        f"for (int r = 0; r < {accesses}; ++r) {{",
        f"  const int e = r * {work.access};",
        f"  const int own_row = first_row + {grouped(work.row_of)};",
        f"  const int k_inside = first_k + {grouped(work.k_of)};",
        f"  const int row = {outer}, byte = {address};",
        f"  load_shared<{work.access_bytes}>(held + r * {words}, tile + {place});",
        "}",
    ]


def _shared_step(work: Make) -> int:
    """Bytes of a stored row that a step takes, if they are in one unit of the swizzle; 0: not."""
    each = work.atom[1] * work.tensor.dtype.bytes // work.packed
    return each if work.k_inner and each and chunk_bytes() % each == 0 else 0


def _own_step(work: Make) -> str:
    """Where along k a step begins, as a term of a lane's first k."""
    return "" if _shared_step(work) else f" + s * {work.atom[1]}"


def _chunks(work: Make, chunk: Chunk) -> list[str]:
    """Pieces of rows that several lanes need, and which of their bytes are a lane's."""
    return [
        f"const unsigned pick = {chunk.pick};",
        f"unsigned held[{chunk.rows * chunk.words}];",
        "#pragma unroll",
        f"for (int r = 0; r < {chunk.rows}; ++r) {{",
        f"  const int row = first_row + {grouped(chunk.row_of)}, byte = s * {chunk.bytes};",
        f"  load_shared<{chunk.bytes}>(held + r * {chunk.words}, tile + {work.place});",
        "}",
    ]


def _fragment(work: Make, load: FragmentLoad) -> list[str]:
    """One instruction of a warp: every lane gives the address of a row."""
    (rows, depth), size = work.atom, work.tensor.dtype.bytes
    own_rows, step = f"quarter + m * {rows}{work.part}", f"s * {depth}"
    unit = f"{load.unit_of_lane} * {load.unit_bytes}"
    along, across = (step, own_rows) if work.k_inner else (own_rows, step)
    results = ", ".join(f"held[{register}]" for _, register in load.register_map)
    return [
        f"unsigned held[{work.registers}];",
        "{",
        f"  const int row = {across} + {load.row_of_lane};",
        f"  const int byte = ({along}) * {size} + {unit};",
        f"  {load_function(load)}({results}, tile + {work.place});",
        "}",
    ]


def _by_words(work: Make) -> bool:
    """Whether the elements of a register end together."""
    return work.block % (work.elements // work.registers) == 0


def _ends(work: Make, fragment: str, extent: str, name: str = "") -> list[str]:
    """Registers behind the end of k, which count as zero; over an element `e`, by that name."""
    if work.whole or not _by_words(work):
        return []
    place, per = work.block_of, work.elements // work.registers
    if not place:
        place = f"{work.lane_k} + {grouped(work.k_of)}"
    first = "i" if per == 1 else f"i * {per}"
    return [
        *([f"  {name} = {first};"] if name else []),
        f"  {fragment}[i] = step_k + {place} < {extent} ? {fragment}[i] : 0;",
    ]


@leaf("read_beside", "threads", Make, ("k",), needs=("computed",))
def _(plan: KernelPlan, one: Leaf, work: Make) -> Text:
    name = f"ahead_{work.operand}"
    return Text(
        block(*(line for array in work.beside if array.kept for line in _ahead(array, work, name))),
        f"{one.statement}[i,k]: what fragments of k tile k take beside the ring -> registers",
        (f"unsigned {name}[{work.words}], beside_{work.operand}[{work.words}];",),
    )


@leaf("take_beside", "threads", Make)
def _(plan: KernelPlan, one: Leaf, work: Make) -> Text:
    moved = f"beside_{work.operand}[i] = ahead_{work.operand}[i];"
    return Text(f"#pragma unroll\n  for (int i = 0; i < {work.words}; ++i) {moved}")


def _ahead(one: Beside, work: Make, to: str) -> list[str]:
    """Words of a k tile of an array: of rows of every instruction, or of runs of every step."""
    (rows, depth), words = work.atom, one.access_words
    size = one.run * one.tensor.dtype.bytes
    m_extent, k_extent = (size_name(extent) for extent in work.extents)
    lines = ["#pragma unroll", f"for (int n = 0; n < {one.count}; ++n) {{"]
    for number, (row, k) in enumerate(one.places):
        own_row = f"b_m * {work.tile[0]} + quarter + {work.lane_row}{work.part} + {row}"
        own_k = f"{work.k_tile} * {work.tile[1]} + {work.lane_k} + {k}"
        if one.along == "m":
            own_row += f" + n * {rows}"
        else:
            own_k += f" + n * {depth}"
        word = f"{one.first + number * words} + n * {len(one.places) * words}"
        at, column = address(one, 0, work), f"min({own_k}, {k_extent} - {one.run})"
        if work.ends(one):
            column = own_k
        if work.ends(one) and not work.ends_whole:
            read = f"read_inside<{size}>({to} + {word}, column < {k_extent}, {at});"
        elif one.run > 1:
            read = f"read_run<{size}, {size}>({to} + {word}, {at});"
        else:
            read = f"{to}[{word}] = read_one<{size}>({at});"
        where = {"row": f"min({own_row}, {m_extent} - 1)", "column": column}
        asked = set(_PLACES.findall(read))
        lines += [
            "  {",
            *(f"    const int {name} = {at};" for name, at in where.items() if name in asked),
            f"    {read}",
            "  }",
        ]
    return [*lines, "}"]


def made_lines(work: Make) -> tuple[list[str], tuple[str, ...]]:
    """The statements on element `e` of a fragment, and the helper files they need."""
    tensors = {work.name: work.tensor} | {one.name: one.tensor for one in work.beside}
    names = {name: name for name in (*tensors, *(name for name, _ in work.coordinates))}
    stored = {name: tensor.dtype.name for name, tensor in tensors.items()}
    halves = {
        value: (kind, f"from_{kind}({word(work)}, {place_of_half(work)})")
        for value, kind in work.halves.items()
    }
    return element_lines(work.statements, names, stored, halves, work.dtype)


def _runs(one: Beside, work: Make) -> list[str]:
    """Runs along k of an array -> words."""
    size = one.run * one.tensor.dtype.bytes
    words, count = -(-size // WORD_BYTES), work.elements // one.run
    rows, extents = work.tile[0], [size_name(extent) for extent in work.extents]
    return [
        f"unsigned of_{one.name}[{count * words}];",
        "#pragma unroll",
        f"for (int r = 0; r < {count}; ++r) {{",
        f"  const int e = r * {one.run};",
        f"  const int own_row = b_m * {rows} + first_row + {grouped(work.row_of)};",
        f"  const int own_k = step_k + {work.lane_k} + {grouped(work.k_of)};",
        f"  const int row = min(own_row, {extents[0]} - 1);",
        f"  const int column = min(own_k, {extents[1]} - {one.run});",
        f"  read_run<{size}, {size}>(of_{one.name} + r * {words}, {address(one, 0, work)});",
        "}",
    ]


def _coordinate(place: Along) -> str:
    """A coordinate of element `e` as a float."""
    variable = {"k": "own_k", "m": "own_row"}.get(place.dim, place.dim)
    variable = variable if place.per == 1 else f"({variable} / {place.per})"
    text = variable if place.scale == 1 else f"{variable} * {place.scale}"
    return f"(float)({plus(text, place.offset)})"
