"""How fragments that consumers compute are made: formulas of lanes, and words of what is beside.

1. A lane's first element is a formula over its number, what its others add one over theirs; a
   stored row's byte lies where the swizzle puts it.
2. What is read beside the ring is read where it is needed, or a k tile ahead: then rows of every
   instruction, or runs along k of every step, have words of their own.

Nothing here is trusted: `polygen.lower.fragments` proves what comes out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polygen.frontend.program import Dim
from polygen.hardware.atom import Atom, atom_names
from polygen.hardware.atom import atom as hardware_atom
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.fragment_load import FragmentLoad, atom_load
from polygen.hardware.matrix_layout import MatrixLayout, span_swizzle
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import base, elements_along
from polygen.lower.computed import group
from polygen.lower.fragment_proofs import prove
from polygen.lower.fragments import Beside, Chunk, Make
from polygen.lower.lanes import flat_form
from polygen.lower.pairs import Pairs, in_pairs
from polygen.poly.elements import Element
from polygen.poly.operand import Operand
from polygen.poly.register_operands import kept

_MOST_BYTES = 8  # of one access: a pair of elements of four bytes
_MOST_SHARED = 16  # of one access whose bytes several lanes need
_WORD_BYTES = 4
_PAIR = 2


def make(
    operand: Operand,
    name: str,
    layout: MatrixLayout,
    atom: Atom,
    tile: tuple[int, int],
    part: str,
    k_tile: str,
    counter: str,
    slots: int,
    instructions: int,
    split: int,
) -> Make:
    """How fragments of an operand are made.

    Args:
        operand: whose ring has what they are computed from.
        name: "a", ...
        layout: of a tile in the ring.
        atom: the instruction.
        tile: of the block: rows, and indices of k.
        part: where the consumer's rows begin in the tile, as a term.
        k_tile: which of all k tiles the block's k-th is.
        counter: of the ring's slots.
        slots: steps whose fragments registers hold.
        instructions: along m of a consumer's tile.
        split: blocks that share sums.

    Raises:
        VerifyError: a formula leads to another element than the instruction takes.
    """
    of = operand.fragment
    assert of is not None
    table = atom.a.table
    run = _run(table)
    k_inner = layout.major == "k"
    size = operand.tensor.dtype.bytes
    access = run if k_inner and run * size // of.packed <= _MOST_BYTES else 1
    if access % of.packed:  # a lane begins between the numbers of a byte
        access = 1
    load = _load(operand, atom, k_inner)
    if load is not None:  # registers hold pairs along k, whatever the order of the ring
        access = run
    lanes, block = common_facts()["warp_size"], _block(operand, layout)
    beside = tuple(
        _beside(operand, one, run, block) for one in of.prologue.reads if one.name != of.name
    )
    beside = _with_words(operand, beside, table, run, tile[1], (tile[1] // atom.k, instructions))
    found = Make(
        operand=name,
        buffer=f"ring_{name}",
        counter=counter,
        tensor=operand.tensor,
        name=of.name,
        packed=of.packed,
        lane_row=flat_form(table[:lanes, 0, 0]),
        lane_k=flat_form(table[:lanes, 0, 1]),
        row_of=_bits(table[0, :, 0] - table[0, 0, 0]),
        k_of=_bits(table[0, :, 1] - table[0, 0, 1]),
        run=run,
        access=access,
        place=ring_place(layout),
        k_inner=k_inner,
        atom=(atom.m, atom.k),
        tile=tile,
        part=part,
        k_tile=k_tile,
        extents=(operand.extent(operand.role), of.depth),
        beside=beside,
        statements=of.prologue.statements,
        coordinates=of.prologue.coordinates,
        dtype=of.prologue.dtype,
        elements=atom.a.elements,
        slots=slots,
        load=load,
        block=block,
        block_of=_block_of(table, block),
        ends_whole=ends_whole(of.depth, tile[1] * split),
    )
    found = replace(found, pairs=pairs_of(found))
    found = replace(found, chunk=_chunk(found, table, atom.k))
    prove(found, layout, atom)
    return found


def pairs_of(of: Make) -> Pairs | None:
    """What pairs of elements go through, where a register has elements side by side.

    None: they are computed one by one.
    """
    together = of.elements // of.registers
    if together != of.run or (of.packed > 1 and of.access != of.run):
        return None
    if any(one.run == 1 and one.k_step != "0" and one.per[1] % together for one in of.beside):
        return None
    beside = {one.name: one.tensor.dtype for one in of.beside if one.tensor.dims}
    return in_pairs(of.statements, of.whole_numbers, beside, of.dtype)


def _chunk(of: Make, table: Integers, depth: int) -> Chunk | None:
    """What lanes read together of a row for a step; None: each reads what it needs.

    Lanes have pairs along k, in both halves of a step, or in words of it beside each other. Only
    pairs are read so: where f32 is computed of each element, to pick them takes longer than reads
    of their own (s8 with scales of f32, 16x8192x8192 on an H200: 40 us for 37).
    """
    if of.pairs is None:
        return None
    size, each = of.tensor.dtype.bytes, depth // of.packed
    if of.load is not None or size > 1 or (of.run, of.access) != (_PAIR, _PAIR):
        return None
    if not of.k_inner or each > _MOST_SHARED:
        return None
    lanes = common_facts()["warp_size"]
    row, byte = table[:lanes, :, 0], table[:lanes, :, 1] // of.packed
    rows = np.unique(row[0] - row[0, 0])
    own = byte[:, 0] - byte[0, 0]  # of a lane from the first one's, in every chunk
    pick = f"{1 << 8} + ({flat_form(own)}) * {0x101}"  # the second of a pair is the next one
    if of.packed > 1:  # both are in one byte, zeros above it
        pick = f"{0x4440} + {flat_form(own)}"
    return Chunk(
        bytes=each,
        rows=len(rows),
        row_of=_bits(rows, "r"),
        number=_bits(np.searchsorted(rows, row[0] - row[0, 0])),
        word=_bits(byte[0] // _WORD_BYTES),
        pick=pick,
    )


def ends_whole(depth: Dim, step: int) -> bool:
    """Whether so many indices of k are whole steps, of all the tiles that blocks have at a time."""
    return isinstance(depth, int) and depth % step == 0


def _load(operand: Operand, atom: Atom, k_inner: bool) -> FragmentLoad | None:
    """What loads the part of a fragment that a warp holds; None: no instruction does.

    That part is the fragment of an instruction of warps, for which the data has proved loads.
    """
    stored, lanes = operand.tensor.dtype, common_facts()["warp_size"]
    if stored.bits != atom.a.dtype.bits or operand.packed > 1:
        return None
    for name in atom_names():
        of = hardware_atom(name)
        alike = of.scope == "warp" and of.a.dtype == atom.a.dtype and of.k == atom.k
        if alike and np.array_equal(of.a.table, atom.a.table[:lanes]):
            found = atom_load(of, "a", k_inner)
            return found if found is not None and found.uses_ldmatrix else None
    return None


def _beside(operand: Operand, one: Element, run: int, block: int) -> Beside:
    tensor = one.tensor
    if not tensor.dims:
        return Beside(one.name, tensor, "0", "0", (1, 1), ())
    row, k = (elements_along(tensor, one.index, dim) for dim in (operand.role, "k"))
    per = group(one, operand.role), group(one, "k")
    together = run if runs(one, k, per[1], run, block) else 1
    return Beside(one.name, tensor, row, k, per, base(tensor, one.index), together)


def _with_words(
    operand: Operand,
    beside: tuple[Beside, ...],
    table: Integers,
    run: int,
    depth: int,
    counts: tuple[int, int],
) -> tuple[Beside, ...]:
    """What is read a k tile ahead, with its words: of rows, or of runs along k, of each step."""
    names = {one.name for one in kept(operand, depth)}
    rows, ks = (table[0, :, axis] - table[0, 0, axis] for axis in (0, 1))
    found, first = [], 0
    for one in beside:
        if one.name in names:
            own, other, along = (rows, 0 * ks, "m") if one.row_step != "0" else (0 * rows, ks, "s")
            if one.per[1] % depth == 0 and along == "s":
                other = 0 * ks
            step = one.run if along == "s" else 1
            starts = np.stack([own, other // step * step], 1)
            places = sorted({(int(row), int(k)) for row, k in starts})
            index = np.array([places.index((int(row), int(k))) for row, k in starts])
            count = counts[along == "m"]
            words = -(-one.run * one.tensor.dtype.bytes // 4)
            text = f"{along} * {len(places) * words} + ({_bits(index)}) * {words}"
            one = replace(
                one, kept=text, along=along, places=tuple(places), count=count, first=first
            )
            first += one.words
        found.append(one)
    return tuple(found)


def runs(one: Element, k_step: str, per: int, run: int, block: int) -> bool:
    """Whether the elements of a run along k are adjacent, aligned, and end together."""
    size = run * one.tensor.dtype.bytes
    adjacent = (k_step, per) == ("1", 1) and size <= _MOST_BYTES
    return adjacent and one.alignment % size == 0 and block % run == 0


def _run(table: Integers) -> int:
    """Elements of a lane that follow each other along k, the same everywhere."""
    first = table[0]
    count = 1
    while (
        count < len(first)
        and first[count, 0] == first[0, 0]
        and first[count, 1] == first[0, 1] + count
    ):
        count += 1
    return count


def _block(operand: Operand, layout: MatrixLayout) -> int:
    """Indices of k of which all or none are inside: whole units of the rows' alignment."""
    of = operand.fragment
    assert of is not None
    if isinstance(of.depth, int):
        return of.depth & -of.depth
    if layout.major != "k" or operand.ragged:
        return 1
    return operand.alignment // operand.tensor.dtype.bytes * of.packed


def _block_of(table: Integers, block: int) -> str:
    """The first k of an element's block in its step, over `e`, where it is that of all lanes."""
    starts = table[..., 1] // block * block
    return "" if (starts != starts[0]).any() else _bits(starts[0])


def _bits(values: Integers, variable: str = "e") -> str:
    """What elements add to the first one, as a formula: a term for each bit of an element."""
    terms = []
    bit = 1
    while bit < len(values):
        step = int(values[bit])
        if step:
            shifted = f"{variable} / {bit}" if bit > 1 else variable
            terms.append(f"{shifted} % 2 * {step}")
        bit *= 2
    return " + ".join(terms) or "0"


def ring_place(layout: MatrixLayout) -> str:
    """The byte of the tile where a stored row's byte lies, over `row` and `byte`."""
    swizzle, span, chunk = span_swizzle(layout.span), layout.span, chunk_bytes()
    shifted = f"row / {1 << swizzle.shift}" if swizzle.shift else "row"
    spread = f"{shifted} % {swizzle.mask + 1}"
    inside = "byte" if layout.boxes == 1 else f"byte % {span}"
    box = "" if layout.boxes == 1 else f"byte / {span} * {layout.box_bytes} + "
    return f"{box}row * {span} + (({inside} / {chunk}) ^ ({spread})) * {chunk} + byte % {chunk}"
