"""MMA instructions: their fragments as relations, proved when loaded, and as NumPy tables.

An entry of ``data/atoms.toml`` gives each operand's fragment as an isl map from (lane, element) to
the position in the operand. Loading one enumerates its maps and proves, point by point:

1. every (lane, element) has exactly one position;
2. no two share a position, or as many as the entry says that there are copies;
3. together they cover the operand's box;
4. elements x element bits = registers x 32;
5. where an atom is several instructions, that these make its product (`hardware.quad_pairs`).

An entry with `like` takes from another what it does not say itself.

The proof is by enumeration because isl's own coverage test can explode on bit-shuffling maps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polygen.errors import DTypeError, HardwareDataError
from polygen.frontend.dtypes import DType, dtype
from polygen.hardware.data_file import Integers, read, take
from polygen.hardware.device import Device, common_facts
from polygen.hardware.fragment_table import fragment_table, map_pairs
from polygen.hardware.quad_pairs import Part, prove_parts

FILE = "atoms.toml"
REGISTER_BITS = 32
_FEW_TYPES = 64  # of operands and sums, on a device
_SCOPES = ("warp", "warpgroup", "lanes", "elements")
_AXES = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}


@dataclass(frozen=True, slots=True)
class Fragment:
    """One operand of an atom as the lanes of a warp hold it."""

    operand: str  # "a" (m x k), "b" (k x n) or "c" (m x n)
    dtype: DType
    registers: int  # 32-bit registers per lane
    elements: int  # per lane, packed into the registers in order
    shape: tuple[int, int]  # rows, columns of the operand
    map: str  # isl relation: (lane, element) -> (row, column)
    copies: int  # slots that hold each element
    table: Integers = field(repr=False, compare=False)  # [lanes, elements, 2] -> row, column

    @property
    def elements_per_register(self) -> int:
        """Elements packed into one 32-bit register; 0: one takes several."""
        return self.elements // max(1, self.registers)

    @property
    def variables(self) -> int:
        """What CUDA code holds it in, if it is sums: a register each, or an element of several."""
        return min(self.registers, self.elements)

    @property
    def of_thread(self) -> tuple[tuple[int, int], ...]:
        """Per element of a thread: which of its rows it is in, and columns from its first."""
        own = self.table[0]
        rows = sorted({int(row) for row in own[:, 0]})
        return tuple((rows.index(int(row)), int(column - own[0, 1])) for row, column in own)

    @property
    def half_rows(self) -> int:
        """From a thread's first row to its last."""
        return int(self.table[0, -1, 0] - self.table[0, 0, 0])

    @property
    def same_rows(self) -> tuple[int, ...]:
        """Bits in which the numbers of a warp's lanes differ that have elements of one row."""
        rows = self.table[: common_facts()["warp_size"], :, 0]
        lanes = np.arange(len(rows))
        bits = [1 << bit for bit in range(len(rows).bit_length() - 1)]
        return tuple(bit for bit in bits if np.array_equal(rows[lanes ^ bit], rows))


@dataclass(frozen=True, slots=True)
class Atom:
    """One MMA instruction, or a few that belong together: ``c[m,n] += a[m,k] * b[k,n]``."""

    name: str
    ptx: str  # mnemonic
    m: int
    n: int
    k: int
    # Who executes it together: "warp" or "warpgroup"; "lanes": each of a warp by itself, and their
    # parts of the sums are added up behind the last one; "elements": a warp, for which products of
    # zeros are nothing to execute.
    scope: str
    n_most: int  # columns that one instruction covers at most
    widths: tuple[int, ...]  # columns that one instruction may cover
    majors: tuple[str, ...]  # how operands may lie in shared memory: "k", "mn"; () for registers
    requires: tuple[str, ...]  # device features
    source: str
    exchangeable: bool  # both operands are treated alike: exchanged, they give the same bits
    parts: tuple[Part, ...]  # instructions, by their first registers of c, a and b; (): it is one
    # Of operands that are split: the products of their parts, in order; (): operands are whole.
    split: tuple[tuple[int, int], ...]
    a: Fragment
    b: Fragment
    c: Fragment

    def runs_on(self, device: Device) -> bool:
        """Whether the device has every feature the instruction needs."""
        return all(device.has(feature) for feature in self.requires)

    @property
    def pieces(self) -> int:
        """Parts of an element of a and b, with registers of their own."""
        return 1 + max((part for pair in self.split for part in pair), default=0)

    @property
    def lanes(self) -> int:
        """Threads that execute the instruction together."""
        return _lanes(self.scope)

    def fragment(self, operand: str) -> Fragment:
        """The fragment of operand ``a``, ``b`` or ``c``."""
        return {"a": self.a, "b": self.b, "c": self.c}[operand]

    def __str__(self) -> str:
        return self.name


def atom_names() -> tuple[str, ...]:
    """The names of all atoms, in the order of preference."""
    return tuple(read(FILE))


@functools.cache
def _entry(name: str) -> dict[str, Any]:
    """The entry of that name, with what it takes from the one that it is like."""
    own: dict[str, Any] = read(FILE)[name]
    if "like" not in own:
        return own
    take(read(FILE), own["like"], f"hardware/data/{FILE}, {name}, like")
    of = _entry(own["like"])
    changed = {key: of[key] | own[key] for key in "abc" if key in own}
    merged: dict[str, Any] = of | own | changed
    return merged


def atoms_for(
    device: Device, a: str | DType, b: str | DType, c: str | DType | None = None
) -> tuple[Atom, ...]:
    """The atoms that run on a device and take the given element types, best first.

    Args:
        device: the target.
        a: element type of the left operand.
        b: element type of the right operand.
        c: element type of the accumulator; None takes any.
    """
    return tuple(atom(name) for name, _ in scopes_for(device, a, b, c))


def scopes_for(
    device: Device, a: str | DType, b: str | DType, c: str | DType | None = None
) -> tuple[tuple[str, str], ...]:
    """Names and scopes of the atoms of `atoms_for`: none of them is proved yet."""
    return _scopes_for(device, dtype(a), dtype(b), None if c is None else dtype(c))


@functools.lru_cache(maxsize=_FEW_TYPES)
def _scopes_for(device: Device, a: DType, b: DType, c: DType | None) -> tuple[tuple[str, str], ...]:
    wanted = {"a": a.name, "b": b.name}
    if c is not None:
        wanted["c"] = c.name
    found = []
    for name in atom_names():
        table = _entry(name)
        where = f"hardware/data/{FILE}, {name}"
        types = {operand: take(table, operand, where)["dtype"] for operand in wanted}
        if types == wanted and all(device.has(f) for f in take(table, "requires", where)):
            found.append((name, take(table, "scope", where)))
    return tuple(found)


@functools.cache
def products_of(a: DType, b: DType) -> int:
    """Products that instructions make of one; more than 1 where operands are split."""
    for name in atom_names():
        table = _entry(name)
        if (table["a"]["dtype"], table["b"]["dtype"]) == (a.name, b.name):
            return max(1, len(table.get("split", ())))
    return 1


@functools.cache
def atom(name: str) -> Atom:
    """The atom of that name, proved on first use.

    Raises:
        HardwareDataError: there is none, or its entry fails the proof.
    """
    if name not in atom_names():
        raise HardwareDataError(
            f"unknown atom {name!r}",
            where=f"hardware/data/{FILE}",
            nearest=f"Known: {', '.join(atom_names())}",
        )
    return build(name, _entry(name))


def build(name: str, table: dict[str, Any]) -> Atom:
    """An atom from its data table, proved.

    Raises:
        HardwareDataError: an entry is missing or a fragment fails its proof.
    """
    where = f"hardware/data/{FILE}, {name}"
    shape: dict[str, int] = take(table, "shape", where)
    scope = take(table, "scope", where)
    if scope not in _SCOPES:
        raise HardwareDataError(
            f"scope = {scope!r}", where=where, nearest=f"Known: {', '.join(_SCOPES)}"
        )
    lanes = _lanes(scope)
    parts = {
        operand: _fragment(operand, table, shape, lanes, f"{where}.{operand}") for operand in "abc"
    }
    own = tuple((int(c), int(a), int(b)) for c, a, b in table.get("parts", ()))
    if own:
        prove_parts(take(table, "ptx", where), own, parts["a"], parts["b"], parts["c"], where)
    widest: int = table.get("n_most", shape["n"])
    widths = tuple(table.get("widths", range(shape["n"], widest + 1, shape["n"])))
    if any(width % shape["n"] for width in widths) or max(widths) != widest:
        raise HardwareDataError(
            f"widths that are no multiples of {shape['n']} up to {widest}", where=where
        )
    return Atom(
        name=name,
        ptx=take(table, "ptx", where),
        m=shape["m"],
        n=shape["n"],
        k=shape["k"],
        scope=scope,
        n_most=widest,
        widths=widths,
        majors=tuple(table.get("majors", ())),
        requires=tuple(take(table, "requires", where)),
        source=take(table, "source", where),
        exchangeable="exchangeable" in table,
        parts=own,
        split=_split(table, where),
        a=parts["a"],
        b=parts["b"],
        c=parts["c"],
    )


def _split(table: dict[str, Any], where: str) -> tuple[tuple[int, int], ...]:
    """The products of an element's parts, after proving which they leave out.

    Part p of an element is about 2^-(11 p) of it. All products down to the smallest part's size
    have to be there, each once: what is left out is smaller than any that is not.

    Raises:
        HardwareDataError: one is missing, or there twice.
    """
    found = tuple((int(left), int(right)) for left, right in table.get("split", ()))
    if not found:
        return ()
    last = max(part for pair in found for part in pair)
    wanted = {(i, j) for i in range(last + 1) for j in range(last + 1 - i)}
    if set(found) != wanted or len(found) != len(wanted):
        raise HardwareDataError(
            f"split = {[list(pair) for pair in found]} of {last + 1} parts",
            where=where,
            nearest=f"Have each of {sorted(map(list, wanted))} once",
        )
    return found


def _lanes(scope: str) -> int:
    facts = common_facts()
    return facts["warp_size"] * (facts["warpgroup_warps"] if scope == "warpgroup" else 1)


def _fragment(
    operand: str, table: dict[str, Any], shape: dict[str, int], lanes: int, where: str
) -> Fragment:
    entry = take(table, operand, where)
    try:
        element = dtype(take(entry, "dtype", where))
    except DTypeError as error:
        raise HardwareDataError(error.what, where=where) from None
    registers: int = take(entry, "registers", where)
    rows, columns = (take(shape, axis, where) for axis in _AXES[operand])
    if registers == 0:  # the operand is read from shared memory
        nothing = np.zeros((0, 0, 2), np.int64)
        return Fragment(operand, element, 0, 0, (rows, columns), "", 1, nothing)
    text, copies = take(entry, "map", where), int(entry.get("copies", 1))
    parted = bool(entry.get("parts", False))
    elements = rows * columns if parted else rows * columns * copies // lanes
    if elements * element.bits != registers * REGISTER_BITS:
        raise HardwareDataError(
            f"{elements} elements of {element.bits} bits do not fill {registers} registers",
            where=where,
            nearest=f"registers = {elements * element.bits // REGISTER_BITS}",
        )
    if parted:
        return _parted(operand, element, registers, elements, (rows, columns), lanes, entry, where)
    proved = _prove(text, lanes, elements, (rows, columns), where, copies)
    return Fragment(operand, element, registers, elements, (rows, columns), text, copies, proved)


def _parted(
    operand: str,
    element: DType,
    registers: int,
    elements: int,
    shape: tuple[int, int],
    lanes: int,
    entry: dict[str, Any],
    where: str,
) -> Fragment:
    """A fragment of which every lane holds a part of all: its own map covers the operand.

    Raises:
        HardwareDataError: a lane's does not, or lanes differ.
    """
    each: list[list[tuple[int, ...]]] = [[] for _ in range(lanes)]
    for pair in map_pairs(entry["map"], where):
        if not 0 <= pair[0] < lanes:
            raise HardwareDataError(f"lane {pair[0]} is none of {lanes}", where=where)
        each[pair[0]].append(pair)
    tables = [
        fragment_table(own, lanes, elements, shape, where)[lane] for lane, own in enumerate(each)
    ]
    table = np.stack(tables)
    if not np.array_equal(table, np.broadcast_to(table[0], table.shape)):
        raise HardwareDataError("lanes hold parts of different elements", where=where)
    table.setflags(write=False)
    return Fragment(operand, element, registers, elements, shape, entry["map"], 1, table)


def _prove(
    text: str, lanes: int, elements: int, shape: tuple[int, int], where: str, copies: int = 1
) -> Integers:
    """The map as a table, after proving that it holds every element of the operand `copies` times.

    With one copy that is a bijection.
    """
    return fragment_table(map_pairs(text, where), lanes, elements, shape, where, copies)
