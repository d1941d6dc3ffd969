"""Loads of operand fragments from shared memory, matched to atoms by proof.

An entry of ``data/ldmatrix.toml`` says which stored bytes end in which register. `atom_load` goes
through the entries for an operand and storage order and takes the first that is proved equal to the
atom's fragment map, in bytes:

    (lane, register, byte) -result-> (matrix, row, byte) -placement-> (stored row, stored byte)
                           -storage order-> (m or n, k, byte of the element)
 =  (lane, register, byte) -registers->  (atom tile, lane, element, byte) -fragment map-> the same

What a product sums over may be in another order, if it is so in both operands: then the fragment
map is followed by that permutation of k.

Bytes make one entry serve every element size. Both sides are compared point by point, as fragments
are: isl lists the points of each relation, of which there are some hundred. The closed-form
addresses (`row`, `unit`) are proved equal to the address relation by enumerating the lanes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polygen import remembered
from polygen.errors import HardwareDataError
from polygen.hardware.atom import Atom, atom
from polygen.hardware.data_file import Integers, evaluate, read, take

FILE = "ldmatrix.toml"
REGISTER_BYTES = 4
_COORDINATES = 3  # lane, register, byte; matrix, row, byte


@dataclass(frozen=True, slots=True)
class FragmentLoad:
    """How a warp fetches one operand tile: `count` instructions of the same form.

    Instruction i of lane l reads at stored row ``row_of_lane + offsets[i][0]`` and at byte
    ``unit_bytes * (unit_of_lane + offsets[i][1])`` of that row, both relative to the tile's corner.
    A stored row is one index of the dimension that is not contiguous in shared memory.
    """

    name: str
    atom: str
    operand: str  # "a" or "b"
    k_contiguous: bool
    ptx: str  # mnemonic
    transposed: bool
    matrices: int  # 8 x 16-byte matrices per instruction; 1 for a plain load
    results: int  # registers that one instruction fills
    count: int  # instructions per tile
    unit_bytes: int  # bytes a lane's address covers: 16 for ldmatrix, 4 or 16 for a plain load
    tile_mn: int  # elements of the tile along m (operand a) or n (operand b)
    tile_k: int  # elements along k: the atom's k
    subtiles: int  # atom tiles along m or n in one tile
    row_of_lane: str  # index formula over `lane`, valid as C and for `evaluate`
    unit_of_lane: str
    offsets: tuple[tuple[int, int], ...]  # per instruction: rows, units
    register_map: tuple[tuple[int, int], ...]  # result register -> (atom tile, fragment register)
    order: tuple[int, ...] = ()  # which index along k is at each k of the instruction; (): its own

    @property
    def uses_ldmatrix(self) -> bool:
        """False for plain loads."""
        return self.ptx.startswith("ldmatrix")

    def lane_addresses(self, instruction: int = 0) -> tuple[Integers, Integers]:
        """The stored row and the byte along it that each of the 32 lanes addresses."""
        lane = np.arange(32, dtype=np.int64)
        rows, units = self.offsets[instruction]
        row = evaluate(self.row_of_lane, {"lane": lane}, self.name) + rows
        unit = evaluate(self.unit_of_lane, {"lane": lane}, self.name) + units
        return row, unit * self.unit_bytes

    @property
    def active_lanes(self) -> int:
        """Lanes whose address the instruction uses (the first ones)."""
        return 8 * self.matrices if self.uses_ldmatrix else 32


def atom_load(
    of: Atom, operand: str, k_contiguous: bool, count: int = 4, order: tuple[int, ...] = ()
) -> FragmentLoad | None:
    """The load that fills the fragments of one operand.

    Args:
        of: the atom.
        operand: ``"a"`` or ``"b"``.
        k_contiguous: whether k is the contiguous dimension in shared memory.
        count: tiles of the instruction beside each other; one load may serve several of them.
        order: which index along k is at each k of the instruction; (): its own.

    Returns:
        None when no instruction loads that storage order: 8-bit elements not contiguous along k.

    Raises:
        HardwareDataError: an entry's address formula contradicts its relation.
    """
    return _atom_load(of.name, operand, k_contiguous, count, order)


@functools.cache
def _atom_load(
    name: str, operand: str, k_contiguous: bool, count: int, order: tuple[int, ...]
) -> FragmentLoad | None:
    contiguous = "k" if k_contiguous else "mn"
    for load_name, table in read(FILE)["loads"].items():
        if (table["operand"], table["contiguous"]) != (operand, contiguous):
            continue
        built = build(load_name, table, atom(name))
        if built.subtiles and count % built.subtiles == 0 and _is_right(load_name, name, order):
            return replace(built, order=order)
    return None


@functools.cache
def _is_right(load_name: str, name: str, order: tuple[int, ...]) -> bool:
    """Whether a load fills an atom's fragment, proved once whatever stands beside it."""
    return delivers(read(FILE)["loads"][load_name], atom(name), order)


def build(name: str, table: dict[str, Any], of: Atom) -> FragmentLoad:
    """A load from its data table, with its address formulas proved.

    Raises:
        HardwareDataError: the formulas or the counts contradict the relations.
    """
    where = f"hardware/data/{FILE}, {name}"
    instruction = _instruction(table, where)
    operand: str = take(table, "operand", where)
    registers = tuple((int(tile), int(register)) for tile, register in table["registers"])
    fragment = of.fragment(operand)
    subtiles = len(registers) // fragment.registers
    load = FragmentLoad(
        name=name,
        atom=of.name,
        operand=operand,
        k_contiguous=take(table, "contiguous", where) == "k",
        ptx=instruction["ptx"],
        transposed=instruction["transposed"],
        matrices=instruction["matrices"],
        results=_results(instruction),
        count=take(table, "count", where),
        unit_bytes=instruction["unit_bytes"],
        tile_mn=subtiles * (of.m if operand == "a" else of.n),
        tile_k=of.k,
        subtiles=subtiles,
        row_of_lane=take(table, "row", where),
        unit_of_lane=take(table, "unit", where),
        offsets=tuple((int(row), int(unit)) for row, unit in take(table, "offsets", where)),
        register_map=registers,
    )
    if len(load.offsets) != load.count or len(registers) != load.count * load.results:
        raise HardwareDataError("count, offsets and registers do not fit together", where=where)
    _prove_addresses(load, instruction, take(table, "placement", where), where)
    return load


def delivers(table: dict[str, Any], of: Atom, order: tuple[int, ...] = ()) -> bool:
    """Whether a load's relation equals the atom's fragment map, compared byte by byte.

    Args:
        table: the load's entry.
        of: the atom.
        order: which index along k is at each k of the instruction; (): its own.
    """
    fragment, k_contiguous = of.fragment(table["operand"]), table["contiguous"] == "k"
    instruction = _instruction(table, table["operand"])
    matrices, results = instruction["matrices"], _results(instruction)
    result, placement = (_function(text) for text in (instruction["result"], table["placement"]))
    wanted = _wanted(table, of, order)
    if not result or not placement or wanted is None:
        return False
    size, loaded = fragment.dtype.bytes, {}
    for (lane, register, byte), (matrix, row, at) in result.items():
        for number in range(table["count"]):
            stored = placement.get((matrix + number * matrices, row, at))
            if stored is not None:
                across, along = stored[0], stored[1] // size
                place = (across, along) if k_contiguous else (along, across)
                loaded[lane, register + number * results, byte] = (*place, stored[1] % size)
    return loaded == wanted


def _function(text: str) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    """The points of a relation that a text says, as a table; None if it is no function."""
    pairs = remembered.points_said(text)
    found = {pair[:_COORDINATES]: pair[_COORDINATES:] for pair in pairs}
    return found if len(found) == len(pairs) else None


def _wanted(
    table: dict[str, Any], of: Atom, order: tuple[int, ...]
) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    """(lane, register, byte) -> (m or n, k, byte of the element), as the atom needs it.

    Returns:
        None where registers are none of the fragment's.
    """
    operand = table["operand"]
    fragment, size = of.fragment(operand), of.fragment(operand).dtype.bytes
    extent, axes = (of.m, [0, 1]) if operand == "a" else (of.n, [1, 0])
    tiles, registers = np.array(table["registers"], np.int64).T
    if registers.max() >= fragment.registers:
        return None
    byte = REGISTER_BYTES * registers[:, None] + np.arange(REGISTER_BYTES)
    wanted = np.empty((len(fragment.table), *byte.shape, _COORDINATES), np.int64)
    wanted[..., :2] = fragment.table[:, byte // size][..., axes]
    if order:
        wanted[..., 1] = np.array(order)[wanted[..., 1]]
    wanted[..., 0] += extent * tiles[:, None]
    wanted[..., 2] = byte % size
    slots = np.ndindex(wanted.shape[:-1])
    return dict(zip(slots, map(tuple, wanted.reshape(-1, _COORDINATES).tolist()), strict=True))


def _results(instruction: dict[str, Any]) -> int:
    """Registers that an instruction fills: one for each matrix, if the data does not say."""
    found: int = instruction.get("registers", instruction["matrices"])
    return found


def _instruction(table: dict[str, Any], where: str) -> dict[str, Any]:
    name = take(table, "instruction", where)
    found: dict[str, Any] = take(read(FILE)["instructions"], name, where)
    return found


def _prove_addresses(
    load: FragmentLoad, instruction: dict[str, Any], placement: str, where: str
) -> None:
    """The closed-form addresses equal the address relation, for every lane and instruction."""
    stored = remembered.points_said(placement)
    corner = {(q, y): (row, byte) for q, y, x, row, byte in stored if x == 0}
    pairs = remembered.points_said(instruction["address"])
    for number in range(load.count):
        rows, bytes_ = load.lane_addresses(number)
        for lane, matrix, row in pairs:
            wanted = corner.get((matrix + number * load.matrices, row))
            found = (int(rows[lane]), int(bytes_[lane]))
            if found != wanted:
                raise HardwareDataError(
                    f"lane {lane} of instruction {number}: the formulas give row, byte {found}",
                    where=where,
                    why=f"the address relation and the placement give {wanted}",
                )
