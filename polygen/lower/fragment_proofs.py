"""Proofs of fragments that consumers compute: on all lanes, elements, steps and instructions.

A lane's elements are those that the instruction takes; they are read where the copy engine writes
them; words that are read beside the ring hold what elements need.
"""

from __future__ import annotations

import itertools

import numpy as np

from polygen.errors import VerifyError
from polygen.hardware.atom import Atom
from polygen.hardware.atom import atom as hardware_atom
from polygen.hardware.data_file import Integers
from polygen.hardware.device import common_facts
from polygen.hardware.formula import value
from polygen.hardware.fragment_load import FragmentLoad
from polygen.hardware.matrix_layout import MatrixLayout, copied_to
from polygen.lower.fragments import Chunk, Make

_ZEROS_ABOVE = 0x444  # bytes of a second word, which is zero


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
    if of.chunk is not None:
        _prove_chunk(of, of.chunk, layout, atom, row, k)
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


def _prove_chunk(
    of: Make, chunk: Chunk, layout: MatrixLayout, atom: Atom, row: Integers, k: Integers
) -> None:
    """Lanes read the chunk where the copy engine puts it, and pick the bytes of their elements.

    Raises:
        VerifyError: with a step or a lane for which that is not so.
    """
    where, lanes, each = of.tensor.name, len(row), chunk.bytes
    lane = np.arange(lanes, dtype=np.int64)[:, None] % common_facts()["warp_size"]
    element = np.arange(of.elements, dtype=np.int64)[None, :]
    number, word = (value(text, {"e": element}) for text in (chunk.number, chunk.word))
    rows = value(chunk.row_of, {"r": number}) + row[:, :1]
    second = (k - k[:, :1]) % 2  # of a pair
    pick = value(chunk.pick, {"lane": lane})
    byte = pick >> 8 * second & 15
    inside = (byte < 8) & (number < chunk.rows)
    if of.packed > 1:  # both are in one byte of the word, below zeros
        byte = pick & 15
        inside = (byte < 4) & (pick >> 4 == _ZEROS_ABOVE) & (number < chunk.rows)
    found, wanted = 4 * word + byte, k // of.packed
    wrong = (rows != row) | (found != wanted) | ~inside | (found >= each)
    if not of.k_inner or of.tensor.dtype.bytes > 1 or wrong.any():
        at = tuple(int(x) for x in np.argwhere(np.broadcast_to(wrong, k.shape))[:1].ravel())
        raise VerifyError(
            f"lanes pick other bytes of a chunk for their elements: {at}", where=where
        )
    for m in range(0, of.tile[0], atom.m):
        for s in range(0, of.tile[1] // atom.k):
            start = value(of.place, {"row": row + m, "byte": np.full_like(row, s * each)})
            bytes_of = (
                copied_to(layout, row + m, np.full_like(row, s * each + b)) for b in range(each)
            )
            apart = any(not np.array_equal(start + b, one) for b, one in enumerate(bytes_of))
            if apart or (start % each).any() or each * of.packed != atom.k:
                raise VerifyError(
                    f"chunks of row {m}, step {s} are read from other bytes than the copy engine "
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
