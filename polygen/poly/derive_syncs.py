"""`TileProgram` -> the same tree with everything that synchronises it.

1. mbarriers between places (`handover`), barriers, waits for groups and fences inside them
   (`rendezvous`), skips and turns (`phases`); of dependent launches, waits for the grids before
   (`dependent`).
2. What the others imply is dropped.
3. Every sync is told which dependences need it.

Nothing here is trusted: `refine` proves the trees that come out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from polygen import isl
from polygen.errors import IllegalSchedule
from polygen.poly.count_versions import count_versions
from polygen.poly.counters import Counter
from polygen.poly.dependent import KIND as GRID
from polygen.poly.dependent import wait_for_grids
from polygen.poly.derivation import Derivation
from polygen.poly.frame import Frame, frame
from polygen.poly.handover import hand_over
from polygen.poly.phases import tell_apart
from polygen.poly.rendezvous import meet
from polygen.poly.tile_program import Sync, SyncStatement, TileProgram
from polygen.poly.tile_tree import Node
from polygen.poly.versions import Dependence


@dataclass(frozen=True, slots=True)
class Synchronised:
    """A tile program that can run."""

    program: TileProgram
    tree: Node
    leaves: tuple[SyncStatement, ...]
    syncs: tuple[Sync, ...]
    counters: tuple[Counter, ...]
    frame: Frame


@lru_cache(maxsize=64)
def derive(program: TileProgram) -> Synchronised:
    """Derive what synchronises a program.

    A parameter that varies is one number here: what follows from any one is proved for all of them.

    Raises:
        IllegalSchedule: the schedule reverses a dependence, or nothing can order one.
    """
    work = Derivation(replace(program, varying=None))
    hand_over(work)
    meet(work)
    tell_apart(work)
    wait_for_grids(work)
    users = _check(work)
    users = _prune(work, users)
    syncs = tuple(
        replace(s, enforces=s.enforces or _enforced(users.get(s.name, ()))) for s in work.syncs
    )
    work.syncs = syncs
    leaves = tuple(work.leaves.values())
    around = frame(work.model, syncs)
    return Synchronised(program, work.tree, leaves, syncs, count_versions(work), around)


def _check(work: Derivation) -> dict[str, tuple[Dependence, ...]]:
    """Every dependence is ordered; which syncs order it."""
    order = work.order()
    users: dict[str, tuple[Dependence, ...]] = {}
    for need in work.dependences:
        rest, used = order.open_part(need)
        if not rest.is_empty():
            raise IllegalSchedule(
                f"nothing orders a dependence: {isl.sample_pair(rest)}",
                where=need.buffer.name,
                why=str(need),
            )
        for name in used:
            users[name] = (*users.get(name, ()), need)
    return users


def _prune(
    work: Derivation, users: dict[str, tuple[Dependence, ...]]
) -> dict[str, tuple[Dependence, ...]]:
    """Drop what the others imply."""
    for sync in work.syncs:
        if sync.kind in ("turn", GRID) or sync.name.startswith("wait_last_"):
            continue
        order = work.order(tuple(s for s in work.syncs if s is not sync))
        needs = work.likely(sync, users.get(sync.name, ()))
        kept: dict[str, list[Dependence]] = {}
        for need in needs:
            if order.is_open(need, sync):
                break
            for name in order.open_part(need)[1]:
                kept.setdefault(name, []).append(need)
        else:
            work.syncs = order.syncs
            gone = {sync.wait, *(x for x, _ in sync.signals), *(x for x, _ in sync.skips)}
            still = {x for s in work.syncs for x in (s.wait, *dict(s.signals), *dict(s.skips))}
            work.take_out(*(x for x in gone - still if x in work.leaves))
            for name, more in kept.items():
                users[name] = tuple(dict.fromkeys((*users.get(name, ()), *more)))
    return users


def _enforced(needs: tuple[Dependence, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(str, needs)))
