"""What is said of accesses to shared memory that nothing orders: see `polygen.machine.races`.

Each kind of conflict is one finding for every pair of instructions, with the first threads and the
first byte that showed it, and how often it was so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from polygen.machine.clocks import CODE
from polygen.machine.lanes import Lanes, Vector
from polygen.machine.unwritten import Again, may_load_shared

if TYPE_CHECKING:
    from polygen.machine.races import Shadow

NEVER = np.int64(1 << 62)  # the write record of a cell nobody wrote
FLIGHT = np.int64(1 << 61)  # added to the record of a copy that has not landed


def pairs(wrong: Vector, records: Vector) -> list[tuple[int, int, int, int]]:
    """First (lane, place) per other instruction, with that record and the count."""
    found: dict[int, list[int]] = {}
    for lane, place in np.argwhere(np.broadcast_to(wrong, records.shape))[:4096]:
        record = int(records[lane, place])
        entry = found.setdefault(record & CODE, [lane, place, record, 0])
        entry[3] += 1
    return [(lane, place, record, count) for lane, place, record, count in found.values()]


def read(
    shadow: Shadow, lanes: Lanes, cells: Vector, wrong: Vector, position: int
) -> tuple[Vector, str] | None:
    """Reads of cells whose last write is not ordered before them; see `Shadow.read`."""
    last = shadow.written[cells]
    never = wrong & (last >= NEVER)
    followed = None
    if never.any():
        lane, place = np.argwhere(never)[0]
        where = shadow.offset(int(cells[lane, place]))
        sentence = f"{lanes.name(lane)} reads shared byte {where}, which nothing has written"
        if position in shadow.followed:
            followed = never, sentence
        elif may_load_shared(shadow.findings.kernel.instructions[position]):
            raise Again(loads=True)
        else:
            shadow.findings.add(
                "uninitialised-shared-read", sentence, position, count=int(never.any(1).sum())
            )
    _unordered(shadow, lanes, cells, (wrong & ~never, last), position, "read")
    return followed


def write(shadow: Shadow, lanes: Lanes, cells: Vector, wrong: Vector, position: int) -> None:
    """Writes to cells whose last write is not ordered before them."""
    _unordered(shadow, lanes, cells, (wrong, shadow.written[cells]), position, "write")


def _unordered(
    shadow: Shadow,
    lanes: Lanes,
    cells: Vector,
    found: tuple[Vector, Vector],
    position: int,
    what: str,
) -> None:
    """Accesses to cells against the last writes of others.

    Args:
        shadow: the cells.
        lanes: who accesses them.
        cells: by lane.
        found: where the access is wrong, and the records of the last writes.
        position: of the instruction.
        what: it does: "read" or "write".
    """
    for lane, place, record, count in pairs(*found):
        other = record & CODE
        flying = record >= FLIGHT
        if position in shadow.atomic and other in shadow.atomic:
            continue
        actor = shadow.who(record)
        detail = "a copy still in flight from" if flying else "a write not ordered before it, by"
        shadow.findings.add(
            "in-flight-access" if flying else f"race-write-{what}",
            f"{lanes.name(lane)} {what}s shared byte {shadow.offset(int(cells[lane, place]))} "
            f"against {detail} {actor}",
            position,
            other,
            count,
        )


def overwrite(shadow: Shadow, lanes: Lanes, cells: Vector, late: Vector, position: int) -> None:
    """Writes to cells that somebody may still have to read; `late`: by lane, cell and actor."""
    flying = shadow.being_read(cells)
    if flying.any():
        lane, place = np.argwhere(flying)[0]
        shadow.findings.add(
            "in-flight-access",
            f"{lanes.name(lane)} writes shared byte {shadow.offset(int(cells[lane, place]))} "
            "while an asynchronous operation still reads it",
            position,
            count=int(flying.any(1).sum()),
        )
    for column in np.flatnonzero(late.any((0, 1))):
        found = late[:, :, column], shadow.reads.records[column, cells]
        overwritten(shadow, lanes, cells, found, position)


def overwritten(
    shadow: Shadow, lanes: Lanes, cells: Vector, found: tuple[Vector, Vector], position: int
) -> None:
    """Writes to cells that were read: where the reads are not ordered before, and their records."""
    for lane, place, record, count in pairs(*found):
        other = record & CODE
        if position in shadow.atomic and other in shadow.atomic:
            continue
        shadow.findings.add(
            "race-read-write",
            f"{lanes.name(lane)} writes shared byte "
            f"{shadow.offset(int(cells[lane, place]))} while {shadow.who(record)} "
            "may still have to read it",
            position,
            other,
            count,
        )
