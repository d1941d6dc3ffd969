"""Fragments that consumers compute: where their elements lie in the ring, and what is read beside.

1. Elements of 16 bits are loaded as fragments, by `ldmatrix`, from a ring in either order. Of
   others a lane's elements follow each other in runs along k: in a ring with k innermost a run is
   one access of shared memory, of up to 8 bytes; in others every element is one.
2. A lane's first element, what its other elements add to that, and the place of a stored row's
   byte in the swizzled tile are formulas. They are proved on all lanes, elements, steps and
   instructions, against the instruction's fragment map and where the copy engine writes.
3. What else is read lies in global memory: an element for a row, for a k, or for a group of
   either; those of a run of k together, where their addresses allow it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from polygen.errors import VerifyError
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.atom import Atom, atom_names
from polygen.hardware.atom import atom as hardware_atom
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.fragment_load import FragmentLoad, atom_load
from polygen.hardware.matrix_layout import MatrixLayout, copied_to, span_swizzle
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.accesses import base, elements_along
from polygen.lower.computed import group
from polygen.lower.lanes import flat_form
from polygen.poly.elements import Along, Compute, Element
from polygen.poly.match import Operand
from polygen.poly.register_operands import kept

_NIBBLE = "nibble_"
_ARITHMETIC: dict[str, Callable[..., float]] = {
    "cast": float,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_NUMBERS_END = 6e4  # below it all types have numbers
_MOST_BYTES = 8  # of one access: a pair of elements of four bytes


@dataclass(frozen=True, slots=True)
class Beside:
    """One element of an array in global memory, for an element of the operand.

    Attributes:
        name: variable.
        tensor: the array.
        row_step: elements from one row of the operand to the next: an argument, a number, "0".
        k_step: likewise along k.
        per: rows, and indices of k, that have one element.
        base: terms that lead to the block's matrix.
        run: elements along k that are read at once.
        kept: over `s`, `m` and `e`: the word of a k tile's that holds an element; "": it is read
            where it is needed.
        along: what words are of: "m", rows of an instruction each, or "s", steps.
        places: rows and k of the words of one of these, from a lane's first.
        count: of these.
        first: the first word.
    """

    name: str
    tensor: Tensor
    row_step: str
    k_step: str
    per: tuple[int, int]
    base: tuple[str, ...]
    run: int = 1
    kept: str = ""
    along: str = ""
    places: tuple[tuple[int, int], ...] = ()
    count: int = 0
    first: int = 0

    @property
    def access_words(self) -> int:
        """Of one run."""
        return -(-self.run * self.tensor.dtype.bytes // 4)

    @property
    def words(self) -> int:
        """That hold what is read of it for a k tile."""
        return self.count * len(self.places) * self.access_words


@dataclass(frozen=True, slots=True)
class Make:
    """A ring -> fragments of the left operand, computed by the threads that multiply them.

    Attributes:
        operand: "a", ...
        buffer: the ring.
        counter: of its slots.
        tensor: what it holds.
        name: variable of its element.
        packed: indices of k that one of them holds.
        lane_row: over `lane`: the row of a lane's first element in its warp's part.
        lane_k: likewise along k.
        row_of: over `e`: rows from there to element e.
        k_of: likewise along k.
        run: elements that are adjacent along k.
        access: elements of one access.
        place: over `row` and `byte`: of a stored row's byte in the tile.
        k_inner: whether stored rows run along k.
        atom: rows and indices of k of an instruction.
        tile: of the block.
        part: where the consumer's rows begin in the tile, as a term.
        k_tile: which of all k tiles the block's k-th is.
        extents: of the operand along rows and k.
        beside: what else is read.
        statements: on one element; the last casts to the type that is multiplied.
        coordinates: variable, and which number it holds.
        dtype: what is multiplied.
        elements: of a lane's fragment.
        slots: steps whose fragments registers hold.
        load: of 16-bit elements: what loads a warp's fragment.
        block: indices of k that are inside of the operand together, or outside.
        block_of: over `e`: the block of an element among those of its step; "" if lanes differ.
    """

    operand: str
    buffer: str
    counter: str
    tensor: Tensor
    name: str
    packed: int
    lane_row: str
    lane_k: str
    row_of: str
    k_of: str
    run: int
    access: int
    place: str
    k_inner: bool
    atom: tuple[int, int]
    tile: tuple[int, int]
    part: str
    k_tile: str
    extents: tuple[Dim, Dim]
    beside: tuple[Beside, ...]
    statements: tuple[Compute, ...]
    coordinates: tuple[tuple[str, Along], ...]
    dtype: DType
    elements: int
    slots: int
    load: FragmentLoad | None
    block: int
    block_of: str

    @property
    def whole(self) -> bool:
        """Whether what lies behind the end of k is computed to some number.

        The copy engine brings zeros there, on both sides, and any number times zero is zero. What
        is read beside may be no number.
        """
        values = {self.name: 0.0}
        for one in self.statements:
            if one.result in self.halves:  # of a byte of zeros
                values[one.result] = 0.0
                continue
            known = [values.get(a) if isinstance(a, str) else a for a in one.args]
            if one.function not in _ARITHMETIC or None in known:
                return False
            made = _ARITHMETIC[one.function](*(x for x in known if x is not None))
            if not abs(made) < _NUMBERS_END:
                return False
            values[one.result] = made
        return True

    @property
    def result(self) -> str:
        """The value that is multiplied."""
        return self.statements[-1].result

    @property
    def words(self) -> int:
        """That hold what is read beside the ring for a k tile."""
        return sum(one.words for one in self.beside)

    @property
    def halves(self) -> dict[str, str]:
        """Values that are taken out of the ring's bytes, two in each -> their type of four bits."""
        if self.packed == 1:
            return {}
        places = dict(self.coordinates)
        return {
            one.result: one.function.removeprefix(_NIBBLE)
            for one in self.statements
            if one.function.startswith(_NIBBLE)
            and one.args[0] == self.name
            and places.get(str(one.args[1])) == Along("k")
        }

    @property
    def access_bytes(self) -> int:
        """Of one access to shared memory."""
        return max(1, self.access * self.tensor.dtype.bytes // self.packed)

    @property
    def access_words(self) -> int:
        """Registers that hold what one access brings."""
        return -(-self.access_bytes // 4)

    @property
    def registers(self) -> int:
        """Of a fragment."""
        return self.elements * self.dtype.bytes // 4


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
        place=_place(layout),
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
    )
    prove(found, layout, atom)
    return found


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


def _bits(values: Integers) -> str:
    """What elements add to the first one, as a formula over `e`: a term for each bit of `e`."""
    terms = []
    bit = 1
    while bit < len(values):
        step = int(values[bit])
        if step:
            shifted = f"e / {bit}" if bit > 1 else "e"
            terms.append(f"{shifted} % 2 * {step}")
        bit *= 2
    return " + ".join(terms) or "0"


def _place(layout: MatrixLayout) -> str:
    """The byte of the tile where a stored row's byte lies, over `row` and `byte`."""
    swizzle, span, chunk = span_swizzle(layout.span), layout.span, chunk_bytes()
    shifted = f"row / {1 << swizzle.shift}" if swizzle.shift else "row"
    spread = f"{shifted} % {swizzle.mask + 1}"
    inside = "byte" if layout.boxes == 1 else f"byte % {span}"
    box = "" if layout.boxes == 1 else f"byte / {span} * {layout.box_bytes} + "
    return f"{box}row * {span} + (({inside} / {chunk}) ^ ({spread})) * {chunk} + byte % {chunk}"


def prove(of: Make, layout: MatrixLayout, atom: Atom) -> None:
    """Every element of every fragment of the tile is read where the copy engine puts it.

    Raises:
        VerifyError: with the first that is not.
    """
    table, (rows, depth) = atom.a.table, of.tile
    threads = np.arange(atom.lanes, dtype=np.int64)[:, None]
    elements = np.arange(atom.a.elements, dtype=np.int64)[None, :]
    names = {"lane": threads % common_facts()["warp_size"], "e": elements}
    quarter = threads // common_facts()["warp_size"] * (atom.m // common_facts()["warpgroup_warps"])
    row = quarter + _value(of.lane_row, names) + _value(of.row_of, names)
    k = _value(of.lane_k, names) + _value(of.k_of, names)
    where = of.tensor.name
    wrong = (row != table[..., 0]) | (k != table[..., 1])
    if wrong.any():
        lane, element = (int(x) for x in np.argwhere(wrong)[0])
        raise VerifyError(
            f"element {element} of lane {lane} is made for row {int(row[lane, element])}, k "
            f"{int(k[lane, element])}, the instruction takes it as "
            f"{tuple(int(x) for x in table[lane, element])}",
            where=where,
        )
    _prove_words(of, row - row[:, :1], k - k[:, :1])
    # Accesses are of elements side by side: the first of each leads to the others.
    first = np.broadcast_to(elements - elements % of.access, k.shape)
    stored_k = np.take_along_axis(k, first, 1)
    apart = (k - stored_k != elements - first) | (np.take_along_axis(row, first, 1) != row)
    if apart.any() or (of.access > 1 and (stored_k % of.packed).any()):
        raise VerifyError(f"{of.access} elements of an access are not adjacent", where=where)
    if of.block_of:
        start = np.broadcast_to(_value(of.block_of, names), k.shape)
        if (start % of.block).any() or (k < start).any() or (k >= start + of.block).any():
            raise VerifyError(f"elements are outside of blocks of {of.block}", where=where)
    size, width = of.tensor.dtype.bytes, of.access_bytes
    if of.load is not None:
        _prove_load(of, of.load, layout, atom)
        return
    for m in range(0, rows, atom.m):
        for s in range(0, depth, atom.k):
            at_row, at_k = row + m, stored_k + s
            stored = (at_row, at_k // of.packed * size)
            if not of.k_inner:
                stored = (at_k // of.packed, at_row * size)
            found = _value(of.place, {"row": stored[0], "byte": stored[1]})
            wanted = copied_to(layout, *stored)
            if not np.array_equal(found, wanted) or (found % width).any():
                raise VerifyError(
                    f"fragments of row {m}, k {s} are read from other bytes than the copy engine "
                    "writes, or at addresses that no access has",
                    where=where,
                )


def _prove_words(of: Make, row: Integers, k: Integers) -> None:
    """A word holds what its element needs: of its row, or its k.

    Raises:
        VerifyError: with the array.
    """
    first = 0
    elements = np.arange(of.elements, dtype=np.int64)
    for one in of.beside:
        if not one.kept:
            continue
        each = len(one.places) * one.access_words
        for number in range(one.count):
            names = {"s": 0 * elements, "m": 0 * elements, "e": elements}
            names[one.along] = names[one.along] + number
            word = _value(one.kept, names) - number * each
            inside = (word >= 0) & (word < each) & (word % one.access_words == 0)
            at = np.array(one.places)[word // one.access_words % len(one.places)]
            right = inside & (at[:, 0] == row[0] if one.along == "m" else inside)
            if one.along == "s" and one.per[1] == 1:
                right &= (at[:, 1] <= k[0]) & (k[0] < at[:, 1] + one.run)
            if not right.all() or one.first != first:
                raise VerifyError(f"words of {one.tensor.name} are of others", where=one.name)
        first += one.words


def _prove_load(of: Make, load: FragmentLoad, layout: MatrixLayout, atom: Atom) -> None:
    """Lanes give the addresses where the copy engine has put the rows of their matrices.

    Raises:
        VerifyError: the load is of other fragments, or an address is another.
    """
    warp, size = common_facts()["warp_size"], of.tensor.dtype.bytes
    known = hardware_atom(load.atom).a.table
    if (
        load.count > 1
        or load.k_contiguous != of.k_inner
        or not np.array_equal(known, atom.a.table[:warp])
    ):
        raise VerifyError(f"{load.name} loads other fragments", where=of.tensor.name)
    own, inside = load.lane_addresses()
    quarters = range(0, atom.m, atom.m // common_facts()["warpgroup_warps"])
    for m, quarter in itertools.product(range(0, of.tile[0], atom.m), quarters):
        for s in range(0, of.tile[1], atom.k):
            row, byte = own + m + quarter, inside + s * size
            if not of.k_inner:
                row, byte = own + s, inside + (m + quarter) * size
            found = _value(of.place, {"row": row, "byte": byte})
            if not np.array_equal(found, copied_to(layout, row, byte)) or (found % 16).any():
                raise VerifyError(
                    f"lanes give other addresses for the fragment of row {m}, k {s} than the copy "
                    "engine writes",
                    where=of.tensor.name,
                )


def _value(text: str, names: dict[str, Integers]) -> Integers:
    """A formula on arrays: C and Python are alike but for the division."""
    found: Integers = eval(text.replace("/", "//"), {"__builtins__": {}}, dict(names))
    return found
