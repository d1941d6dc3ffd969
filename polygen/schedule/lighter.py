"""Schedules near one whose kernel needs more registers than a thread has.

Consumers get the registers that their block leaves; then what threads hold at a time becomes less:
copies on their way through registers, fragments, sums. The sums keep their order, and tiles of
blocks stay, so that a kernel's results, its memory and its place in a measurement are much the
same. Whether a schedule is legal, and compiles, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polygen.schedule.model import PANEL_COLUMNS, Roles, Schedule, leaves


def lighter(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules that hold less in registers, those that change least first; some are illegal."""
    seen = {schedule}
    for candidate in _candidates(schedule):
        if candidate not in seen:
            seen.add(candidate)
            yield candidate


def _candidates(schedule: Schedule) -> Iterator[Schedule]:
    if schedule.specialised:
        yield from _registers(schedule)
        # On rows that the copy engine takes, no thread holds what it copies.
        launch = replace(schedule.launch, realign=True)
        yield replace(schedule, launch=launch)
        yield from _panels(schedule)
    elif not schedule.without_rings:
        yield from _pipelines(schedule)
    yield from _warps(schedule)


def _registers(schedule: Schedule) -> Iterator[Schedule]:
    """As many registers as consumers usually have; fragments made while no product runs."""
    own = max(schedule.roles.consumer_registers, Roles().consumer_registers)
    more = replace(schedule, roles=replace(schedule.roles, consumer_registers=own))
    yield more
    if schedule.from_registers:
        yield replace(more, pipeline=replace(schedule.pipeline, in_flight=0))


def _pipelines(schedule: Schedule) -> Iterator[Schedule]:
    """A part of a tile's copies at a time; no fragments of the next k tile; one of each."""
    pipeline = schedule.pipeline
    spread = replace(pipeline, copies="spread")
    for changed in (spread, replace(pipeline, across=False), replace(spread, across=False)):
        yield replace(schedule, pipeline=changed)
    yield replace(schedule, pipeline=replace(spread, fragments=1, lookahead=0))


def _panels(schedule: Schedule) -> Iterator[Schedule]:
    """Narrower panels of results."""
    epilogue = schedule.epilogue
    if epilogue.through not in ("tma", "lines"):
        return
    for columns in PANEL_COLUMNS:
        if columns < (epilogue.columns or schedule.tile.warp.n):
            yield replace(schedule, epilogue=replace(epilogue, columns=columns))


def _warps(schedule: Schedule) -> Iterator[Schedule]:
    """Half as many sums a thread: in blocks of more threads, of which fewer may be resident."""
    warp = schedule.tile.warp
    for tile in (replace(warp, n=warp.n // 2), replace(warp, m=warp.m // 2)):
        if tile.m and tile.n:
            halved = replace(schedule, tile=replace(schedule.tile, warp=tile))
            yield halved
            yield replace(halved, min_blocks=1)


def difference(old: Schedule, new: Schedule) -> str:
    """The fields in which one schedule differs from another, as they are written."""
    was = dict(leaves(old))
    changed = [(path, value) for path, value in leaves(new) if value != was[path]]
    return ", ".join(f"{path} = {_written(value)}" for path, value in changed)


def _written(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
