"""Dependent launches: where a kernel waits for the grids before it on its stream.

A kernel that is launched dependently may begin while the grids before it still run. Until its wait
for them it must touch no global memory: what it reads may not be written yet, and what it writes
may still be read. So every place with a statement that touches global memory waits at its
beginning, each thread for itself; what comes before, initialising barriers and fetching the
descriptions of tensor maps, touches nothing that a grid writes.

Reads of what no grid still writes (`polygen.poly.ahead`) need no wait: a place that does nothing
else has none, and one that does waits in front of the first statement that needs it, which stands
in the loops where it runs first.

The proof reads the emitted trees: no instance of such a statement is without a wait of its own
agent, by all of its threads, before it.
"""

from __future__ import annotations

import re

from polygen import isl
from polygen.errors import VerifyError
from polygen.hardware.units import grid_wait
from polygen.poly.agent_order import LeafFacts
from polygen.poly.derivation import Derivation
from polygen.poly.happens_before import Order
from polygen.poly.tile_program import Place, Sync, TileProgram
from polygen.poly.tile_tree import leaves, loops_around

KIND = "grid"
_SET, _PARAM = isl.dim_type.set, isl.dim_type.param
_WHERE = "refinement"


def _outside(program: TileProgram, place: Place) -> tuple[str, ...]:
    """The statements of a place that touch global memory."""
    return tuple(s.name for s in program.statements if s.place == place and s.outside)


def wait_for_grids(work: Derivation) -> None:
    """A wait in every place that touches global memory: at its beginning, or behind early reads."""
    program = work.program
    for place in program.places if program.dependent else ():
        touching = _outside(program, place)
        if not touching:
            continue
        agents = ",".join(place.agents)
        name = f"wait_grids_{place.name}"
        domain = isl.Set(f"{{ {name}[{agents}] : {place.bounds} }}")
        everything = tuple(x for x in work.facts if work.facts[x].place == place)
        early = {s.name for s in program.statements if s.place == place and s.settled}
        near, times = (touching, _first_times(work, touching)) if early else (everything, ())
        work.put(name, KIND, (), domain, place, near, len(times), times)
        enforces = f"what {', '.join(touching)} may touch in global memory, after the grids before"
        work.add(Sync(KIND, name, name, unit=grid_wait(), enforces=(enforces,)))


def _first_times(work: Derivation, touching: tuple[str, ...]) -> tuple[str, ...]:
    """When the first of some statements runs first: its time in the loops around it."""
    first = next(name for name in leaves(work.tree) if name in touching)
    when = work.times_like(first, len(loops_around(work.tree, first)))
    own = "|".join(work.program.statement(first).loops)
    if not own:
        return when
    return tuple(re.sub(rf"\b({own})\b", "0", text) for text in when)


def check_waits(order: Order, program: TileProgram, facts: dict[str, LeafFacts]) -> None:
    """Prove that nothing touches global memory before its agent has waited for the grids.

    Raises:
        VerifyError: an instance may, or a wait is of no use; with the instance.
    """
    syncs = [s for s in order.syncs if s.kind == KIND]
    for sync in syncs:
        if sync.unit != grid_wait():
            raise VerifyError(f"grids: {sync.name} is no wait for grids", where=_WHERE)
        if not program.dependent or not _outside(program, facts[sync.wait].place):
            raise VerifyError(f"necessary: {sync.name} enforces nothing", where=_WHERE)
    for statement in program.statements if program.dependent else ():
        if not statement.outside:
            continue
        rest = order.times[statement.name].domain()
        for sync in syncs:
            leaf = facts[sync.wait]
            if leaf.place == statement.place and leaf.executes == "all":
                rest = rest.subtract(order.before(sync.wait, statement.name).range())
        if not rest.is_empty():
            raise VerifyError(
                f"grids: {isl.sample_point(rest)} may touch global memory before the grids before "
                "are complete",
                where=_WHERE,
            )
