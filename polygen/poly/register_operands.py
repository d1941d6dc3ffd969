"""Left operands that consumers compute: their rings have what they are computed from.

A warpgroup's instruction takes its left operand from shared memory, or from registers. In the
second case nobody has to write what is computed: the copy engine brings the elements of one array
as they are stored, at one byte or half a byte each if they are narrow, and every consumer reads
those of its own rows, computes, and multiplies.

1. The array in the ring is the largest of those that the operand is computed from: each of its
   elements, or each pair of packed ones, has one place in the operand. What else is read, vectors
   along rows or k, one number for a group, a few elements of another matrix, comes from memory.
2. From there on the operand is that array, with its type, its rows and its alignment, and a note of
   how fragments are made of it. All passes read names and types, so none of them asks.
"""

from __future__ import annotations

import math
from dataclasses import replace

from polygen.errors import ScheduleError
from polygen.frontend.dtypes import TF32
from polygen.hardware.device import common_facts
from polygen.poly.elements import Element
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.prologue import Fragment, Prologue
from polygen.poly.tiling import Tiling
from polygen.schedule.idle import computed_by
from polygen.schedule.model import Schedule

_LEFT = "m"
_PACKED = (1, 2)  # indices of k that a stored element may hold


def in_registers(match: Match, schedule: Schedule) -> Match:
    """The products as consumers run them that compute their left operands.

    Args:
        match: with operands in the roles that the schedule gives them.
        schedule: with roles.

    Raises:
        ScheduleError: no left operand is computed, or one of them from nothing that the copy engine
            can bring.
    """
    made = {
        name: _stored(operand, operand.computed, schedule)
        for name, operand in match.operands
        if operand.role == _LEFT and operand.computed is not None
    }
    if not made:
        right = any(operand.computed is not None for _, operand in match.operands)
        raise ScheduleError(
            'roles.computes = "consumer" with left operands that are arguments',
            where=f"schedule {schedule.name}",
            why="consumers compute what the instruction takes from registers, the left operand",
            nearest=f"exchange = {str(not schedule.exchange).lower()}"
            if right
            else computed_by(schedule, "producer"),
        )
    operands = tuple((name, made.get(name, operand)) for name, operand in match.operands)
    return replace(match, operands=operands)


def _stored(operand: Operand, made: Prologue, schedule: Schedule) -> Operand:
    """The operand as its ring has it."""
    found = stored(operand)
    if found is not None:
        return found
    raise ScheduleError(
        f'roles.computes = "consumer" with {operand.tensor.name}, computed of '
        f"{', '.join(one.tensor.name for one in made.reads) or 'coordinates'}",
        where=f"schedule {schedule.name}",
        why="the copy engine brings the elements of one matrix, which are adjacent, and begin rows "
        f"at multiples of {common_facts()['tensor_map_row_bytes']} bytes; vectors and numbers of "
        "groups are read beside them; rows by index it cannot bring",
        nearest=computed_by(schedule, "producer"),
    )


def stored(operand: Operand) -> Operand | None:
    """A computed operand as a ring may have it: the elements of one array, as they are stored.

    None: it is no such operand, or the copy engine cannot bring any of its arrays.
    """
    made = operand.computed
    if made is None or any(along.rows for one in made.reads for along in one.index):
        return None
    for one in sorted(made.reads, key=_most):
        packed = _packed(one, operand.role)
        if packed == 0 or (packed > 1 and not _in_halves(made, one)):
            continue
        depth = operand.extent("k")
        extents, index = dict(operand.extents), one.index
        if packed > 1:
            assert isinstance(depth, int)  # what is repeated has a number as its size
            extents["k"] = -(-depth // packed)
            index = tuple(replace(along, per=1) if along.dim == "k" else along for along in index)
        fragment = Fragment(operand.tensor.name, made, one.name, packed, depth)
        found = Operand(one.tensor, operand.role, index, tuple(extents.items()), None, fragment)
        aligned = found.alignment >= common_facts()["tensor_map_row_bytes"]
        if found.in_boxes and aligned and not _others(made, one, operand.role):
            return found
    return None


def stored_bits(operand: Operand) -> int:
    """Bits of what a ring has for an element that consumers compute; 0: they cannot."""
    found = stored(operand)
    return 0 if found is None else found.tensor.dtype.bits // found.packed


def kept(operand: Operand, depth: int) -> tuple[Element, ...]:
    """What consumers read a k tile ahead: numbers for a row, for a k, or for groups of k tiles.

    Args:
        operand: whose fragments they compute.
        depth: indices of k of a tile.
    """
    of = operand.fragment
    if of is None:
        return ()
    reads = (one for one in of.prologue.reads if one.name != of.name)
    return tuple(one for one in reads if _is_kept(one, operand.role, depth))


def _is_kept(one: Element, role: str, depth: int) -> bool:
    row, k = one.axis(role), one.axis("k")
    if k is None:
        return row is not None
    whole = one.index[k].per % depth == 0
    return whole or (row is None and one.index[k].per == 1)


def _others(made: Prologue, ring: Element, role: str) -> list[Element]:
    """What else has an element of its own for every place: more than threads read beside."""
    return [one for one in made.reads if one is not ring and _packed(one, role)]


def _most(one: Element) -> int:
    return math.prod(along.per for along in one.index)


def _packed(one: Element, role: str) -> int:
    """Indices of k that have one element of a matrix over rows and k; 0: it is none."""
    row, column = one.axis(role), one.axis("k")
    if row is None or column is None or one.index[row].per > 1:
        return 0
    if any(along.group for along in one.index) or one.tensor.dtype == TF32:
        return 0  # rows of groups begin anywhere; the copy engine would round tf32 on its way
    per = one.index[column].per
    return per if per in _PACKED else 0


def _in_halves(made: Prologue, one: Element) -> bool:
    """Whether an element is taken apart: else it is repeated, and has as many bits as it has."""
    taken = (s for s in made.statements if s.function.startswith("nibble_"))
    return any(statement.args[0] == one.name for statement in taken)


def tile_extents(operand: Operand, tiles: Tiling) -> tuple[int, int]:
    """Stored elements of an operand's tile: along m or n, and along k."""
    rows, columns, depth = tiles.cta
    if operand.whole:
        return operand.whole, depth
    return (rows if operand.role == "m" else columns), depth // operand.packed
