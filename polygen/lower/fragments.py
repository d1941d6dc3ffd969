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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from polygen.errors import VerifyError
from polygen.frontend.dtypes import DType
from polygen.frontend.program import Dim, Tensor
from polygen.hardware.atom import Atom
from polygen.hardware.atom import atom as hardware_atom
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.formula import value
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.matrix_layout import MatrixLayout, copied_to
from polygen.poly.elements import Along, Compute

_NIBBLE = "nibble_"
_ARITHMETIC: dict[str, Callable[..., float]] = {
    "cast": float,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}
_NUMBERS_END = 6e4  # below it all types have numbers


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
        zeros = (self.name, *self.halves)  # halves are of a byte of zeros
        known = numbers_made(self.statements, zeros)
        return all(one.result in known for one in self.statements)

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


def numbers_made(statements: Sequence[Compute], zeros: Iterable[str]) -> dict[str, float]:
    """The values that are known to be a number, and which, where some are zero.

    Args:
        statements: in their order.
        zeros: names of elements and values that are.
    """
    values = dict.fromkeys(zeros, 0.0)
    for one in statements:
        given = [values.get(a) if isinstance(a, str) else a for a in one.args]
        if one.result in values or one.function not in _ARITHMETIC or None in given:
            continue
        made = _ARITHMETIC[one.function](*(x for x in given if x is not None))
        if abs(made) < _NUMBERS_END:
            values[one.result] = made
    return values


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
    row = quarter + value(of.lane_row, names) + value(of.row_of, names)
    k = value(of.lane_k, names) + value(of.k_of, names)
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
        start = np.broadcast_to(value(of.block_of, names), k.shape)
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
            found = value(of.place, {"row": stored[0], "byte": stored[1]})
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
            word = value(one.kept, names) - number * each
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
            found = value(of.place, {"row": row, "byte": byte})
            if not np.array_equal(found, copied_to(layout, row, byte)) or (found % 16).any():
                raise VerifyError(
                    f"lanes give other addresses for the fragment of row {m}, k {s} than the copy "
                    "engine writes",
                    where=of.tensor.name,
                )
