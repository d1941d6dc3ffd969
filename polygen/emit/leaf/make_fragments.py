"""Fragments that consumers compute: a ring's elements -> registers, from which they are multiplied.

Elements come from the ring, a run at a time, and from global memory, whose places end where the
arrays end: rows and k behind the last read the last. Rows behind the end make sums that nobody
stores. What is computed behind the end of k counts as zero, whatever the function makes of zeros;
without a branch, as the compiler lets no fragments be made in branches while products run.
"""

from __future__ import annotations

from polygen.emit.element_types import of_word
from polygen.emit.leaf.computed_chunk import PACKED, ROUND_TF32, element_lines, stored_type
from polygen.emit.leaf.load_threads import load_function
from polygen.emit.leaf.table import Text, block, leaf
from polygen.emit.leaves import plus, scaled, size_name, slot_address
from polygen.emit.names import c_name
from polygen.frontend.program import Tensor
from polygen.hardware.fragment_load import FragmentLoad
from polygen.lower.fragments import Beside, Make
from polygen.lower.plan import KernelPlan, Leaf
from polygen.poly.elements import Along

_WORD_BYTES = 4


@leaf(
    "make", "threads", Make, ("k", "s", "m"), needs=("pack", "computed", "shared_words", "cursor")
)
def _(plan: KernelPlan, one: Leaf, work: Make) -> Text:
    buffer, (rows, depth) = plan.buffer(work.buffer), work.atom
    m_extent, k_extent = (size_name(extent) for extent in work.extents)
    text, _ = made_lines(work)
    fragment = f"fragment_{work.operand}[s % {work.slots}][m]"
    pack = f"{fragment}[i] = {PACKED[work.dtype.name]};"
    if work.dtype.name == "tf32":
        pack = ROUND_TF32.format(to=fragment)
    count = work.elements
    return Text(
        block(
            f"const unsigned tile = {slot_address(buffer, f'{work.counter}.slot')};",
            f"const int first_row = quarter + {work.lane_row} + m * {rows}{work.part};",
            *([] if work.load else [f"const int first_k = {work.lane_k} + s * {depth};"]),
            f"const int step_k = {work.k_tile} * {work.tile[1]} + s * {depth};  // of the fragment",
            *_loads(work),
            *(
                line
                for one in work.beside
                if one.run > 1 and not one.kept
                for line in _runs(one, work)
            ),
            f"float made[{count}];",
            "#pragma unroll",
            f"for (int e = 0; e < {count}; ++e) {{",
            f"  const int own_row = b_m * {work.tile[0]} + first_row + {_sum(work.row_of)};",
            f"  const int own_k = step_k + {work.lane_k} + {_sum(work.k_of)};",
            f"  const int row = min(own_row, {m_extent} - 1), column = min(own_k, {k_extent} - 1);",
            f"  const float {work.name} = {_of_ring(work)};",
            *(f"  const float {one.name} = {_of_memory(one, depth, work)};" for one in work.beside),
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
            *_ends(work, fragment, k_extent),
            "}",
        ),
        f"{one.statement}[i,k,s,m]: {work.buffer} -> {fragment}, computed where the instruction "
        "takes it; proved to read what the copies wrote",
        (
            f"unsigned fragment_{work.operand}[{work.slots}][{plan.tiles.atoms[0]}]"
            f"[{work.registers}];",
        ),
    )


def _loads(work: Make) -> list[str]:
    """Elements of the ring -> words: as fragments, or a run at a time."""
    if work.load is not None:
        return _fragment(work, work.load)
    size, packed, words = work.tensor.dtype.bytes, work.packed, work.access_words
    stored_k = f"k_inside / {packed}" if packed > 1 else "k_inside"
    inner, outer = (stored_k, "own_row") if work.k_inner else ("own_row", stored_k)
    accesses = work.elements // work.access
    return [
        f"unsigned held[{accesses * words}];",
        "#pragma unroll",
        f"for (int r = 0; r < {accesses}; ++r) {{",
        f"  const int e = r * {work.access};",
        f"  const int own_row = first_row + {_sum(work.row_of)};",
        f"  const int k_inside = first_k + {_sum(work.k_of)};",
        f"  const int row = {outer}, byte = {inner if size == 1 else f'({inner}) * {size}'};",
        f"  load_shared<{work.access_bytes}>(held + r * {words}, tile + {work.place});",
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


def _ends(work: Make, fragment: str, extent: str) -> list[str]:
    """Registers behind the end of k, which count as zero."""
    if work.whole or not _by_words(work):
        return []
    place, per = work.block_of, work.elements // work.registers
    if not place:
        place = f"{work.lane_k} + {_sum(work.k_of)}"
    first = "i" if per == 1 else f"i * {per}"
    return [
        f"  const int e = {first};",
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
        read = f"{to}[{word}] = read_one<{size}>({_address(one, 0, work)});"
        if one.run > 1:
            read = f"read_run<{size}, {size}>({to} + {word}, {_address(one, 0, work)});"
        lines += [
            "  {",
            f"    const int row = min({own_row}, {m_extent} - 1);",
            f"    const int column = min({own_k}, {k_extent} - {one.run});",
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
        value: (kind, f"from_{kind}({_word(work)}, {_place_of_half(work)})")
        for value, kind in work.halves.items()
    }
    return element_lines(work.statements, names, stored, halves, work.dtype)


def _sum(text: str) -> str:
    """A term, or terms in parentheses."""
    return text if text == "0" else f"({text})"


def _word(work: Make) -> str:
    """The word that holds element `e`, or the byte that it is in."""
    if work.access_words == 1:
        return "held[e]" if work.access == 1 else f"held[e / {work.access}]"
    return f"held[e * {work.tensor.dtype.bytes} / {_WORD_BYTES}]"


def _place_of_half(work: Make) -> str:
    return f"e % {work.packed}" if work.access > 1 else f"own_k % {work.packed}"


def _of_ring(work: Make) -> str:
    """Element `e` of the ring, as a float."""
    place = f"e % {work.access} / {work.packed}" if work.access > work.packed else "0"
    return _float(work.tensor, _word(work), place)


def _float(tensor: Tensor, word: str, place: str) -> str:
    """One of the elements that a word holds, as a float."""
    kind, size = stored_type(tensor), tensor.dtype.bytes
    if size == _WORD_BYTES:
        return of_word(tensor.dtype, word)
    if size == 2:
        shift = "" if place == "0" else f" >> {place} * 16"
        return f"from_{kind}((unsigned short)({word}{shift}))"
    return f"from_{kind}({word}, {place})"


def _of_memory(one: Beside, depth: int, work: Make) -> str:
    """The element of an array that goes with element `e`, as a float."""
    if not one.tensor.dims:
        return c_name(one.tensor.name)
    size = one.tensor.dtype.bytes
    if one.kept:
        word, place = f"{one.first} + {one.kept}", "0"
        if one.run > 1 and one.run * size <= _WORD_BYTES:
            place = f"e % {one.run}"
        elif one.run > 1:
            word = f"{word} + e % {one.run} * {size} / {_WORD_BYTES}"
        return _float(one.tensor, f"beside_{work.operand}[{word}]", place)
    if one.run > 1:
        if one.run * size <= _WORD_BYTES:
            return _float(one.tensor, f"of_{one.name}[e / {one.run}]", f"e % {one.run}")
        return _float(one.tensor, f"of_{one.name}[e * {size} / {_WORD_BYTES}]", "0")
    return _float(
        one.tensor, f"read_one<{one.tensor.dtype.bytes}>({_address(one, depth, work)})", "0"
    )


def _runs(one: Beside, work: Make) -> list[str]:
    """Runs along k of an array -> words."""
    size = one.run * one.tensor.dtype.bytes
    words, count = -(-size // _WORD_BYTES), work.elements // one.run
    rows, extents = work.tile[0], [size_name(extent) for extent in work.extents]
    return [
        f"unsigned of_{one.name}[{count * words}];",
        "#pragma unroll",
        f"for (int r = 0; r < {count}; ++r) {{",
        f"  const int e = r * {one.run};",
        f"  const int own_row = b_m * {rows} + first_row + {_sum(work.row_of)};",
        f"  const int own_k = step_k + {work.lane_k} + {_sum(work.k_of)};",
        f"  const int row = min(own_row, {extents[0]} - 1);",
        f"  const int column = min(own_k, {extents[1]} - {one.run});",
        f"  read_run<{size}, {size}>(of_{one.name} + r * {words}, {_address(one, 0, work)});",
        "}",
    ]


def _address(one: Beside, depth: int, work: Make) -> str:
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


def _coordinate(place: Along) -> str:
    """A coordinate of element `e` as a float."""
    variable = {"k": "own_k", "m": "own_row"}.get(place.dim, place.dim)
    variable = variable if place.per == 1 else f"({variable} / {place.per})"
    text = variable if place.scale == 1 else f"{variable} * {place.scale}"
    return f"(float)({plus(text, place.offset)})"
