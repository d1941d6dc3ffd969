"""The leaves that synchronise, and the counters of slots, from what was derived and proved.

Every wait, arrival, barrier, wait for groups, fence and skip of the tile program becomes one leaf.
A counter belongs to a place: leaves read the slot and the parity of the counter that they were
proved to have, and it goes up behind the leaves that the record names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polygen import isl, remembered
from polygen.errors import VerifyError
from polygen.lower.given import Given
from polygen.lower.plan import Leaf
from polygen.lower.sync_work import Grids, Groups, Nothing, Placed, Signal, Skip, Turn
from polygen.poly.counters import Counter, passed_over
from polygen.poly.dependent import KIND as GRID
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.tile_program import Sync, SyncStatement

# The name under which the code of a place knows its agent.
AGENTS = {"warps": "warp", "producer": "", "streamer": "", "loader": "owner", "consumer": "group"}
# The unit of the tile program -> that of a leaf.
_UNITS = {"tma.store": "tma", "fence.proxy.async": "generic", "wgmma.fence": "wgmma"}


def placed(synchronised: Synchronised, copied: dict[str, int]) -> tuple[Placed, ...]:
    """The barriers of a kernel, with their places in shared memory.

    Args:
        synchronised: the tile program.
        copied: bytes that a statement's copies bring.
    """
    found = []
    waits = {s.wait: s.pending for s in synchronised.syncs if s.kind == "retire"}
    for sync in synchronised.syncs:
        if sync.kind not in ("mbarrier", "turn", "bar"):
            continue
        place = leaf_named(synchronised, sync.wait).place
        found.append(
            Placed(
                sync,
                buffer="" if sync.kind == "bar" else sync.name,
                bytes=sum(copied.get(signal, 0) for signal, _ in sync.signals),
                threads=place.threads,
                owners=owners(synchronised, sync),
                remote=_is_remote(synchronised, sync),
                pending=waits.get(f"wait_{sync.name.removeprefix('bar_')}"),
            )
        )
    kinds = ("mbarrier", "bar", "turn")
    return tuple(sorted(found, key=lambda p: kinds.index(p.sync.kind)))


def leaf_named(synchronised: Synchronised, name: str) -> SyncStatement:
    """The leaf called `name`."""
    return next(leaf for leaf in synchronised.leaves if leaf.name == name)


def owners(synchronised: Synchronised, sync: Sync) -> int:
    """How many agents of a block have the barrier each for itself."""
    place = leaf_named(synchronised, sync.wait).place
    if sync.kind == "turn":
        return place.counts[-1]
    if sync.kind == "bar":
        return 1
    private = synchronised.program.buffer(sync.buffers[0]).owner - place.blocks
    return place.counts[-1] if private else 1


def _is_remote(synchronised: Synchronised, sync: Sync) -> bool:
    """Whether threads arrive at the barriers of several blocks."""
    names = {leaf.name: leaf for leaf in synchronised.leaves}
    arriving = [(names[signal], cells) for signal, cells in sync.signals if signal in names]
    if sync.kind != "mbarrier" or not arriving:
        return False
    program, buffer = synchronised.program, synchronised.program.buffer(sync.buffers[0])
    crossing = False
    for leaf, cells in arriving:
        whole = remembered.read_map(f"{program.prefix}{{ {cells} }}")
        own = whole
        for n in range(leaf.place.blocks):
            own = own.equate(isl.dim_type.in_, n, isl.dim_type.out, buffer.versions + n)
        crossing |= not whole.is_subset(own)
    if crossing and (
        buffer.owner > arriving[0][0].place.blocks or arriving[0][0].executes != "one"
    ):
        raise VerifyError(
            f"{sync.name}: no leaf arrives at the barriers of other blocks for one of their "
            "agents, or by several threads",
            where=buffer.name,
        )
    return crossing


def counters(given: Given, place: str) -> tuple[tuple[str, int], ...]:
    """The counters of a place, each with its slots."""
    program = given.tree.synchronised.program
    own = (c for c in given.tree.synchronised.counters if c.place == place)
    return tuple((c.name, program.buffer(c.buffers[0]).slots) for c in own)


def counter_of(synchronised: Synchronised, leaf: str, buffer: str) -> str:
    """The counter that says on which slot of a buffer a leaf works; "" if the loops say it."""
    for counter in synchronised.counters:
        if buffer in counter.buffers and leaf in dict(counter.uses):
            return counter.name
    return ""


def counting(leaves: Sequence[Leaf], kept: Sequence[Counter]) -> Iterator[Leaf]:
    """Leaves, with the counters that go up behind them."""
    for leaf in leaves:
        up = tuple(c.name for c in kept if leaf.statement in dict(c.advances))
        yield replace(leaf, advances=up) if up else leaf


def sync_leaves(given: Given, syncs: tuple[Placed, ...], everywhere: str) -> Iterator[Leaf]:
    """The leaves that synchronise.

    Args:
        given: the kernel.
        syncs: its barriers.
        everywhere: which threads of an agent arrive in other blocks of the cluster, one each.
    """
    tree = given.tree.synchronised
    of_barrier = {leaf: one for one in syncs for leaf in (one.sync.wait, *dict(one.sync.signals))}
    plain = {s.wait: s for s in tree.syncs if s.kind in ("retire", "fence", GRID)}
    for leaf in tree.leaves:
        if leaf.kind == "skip":
            yield _leaf(leaf, "mbarrier", Skip(versions_passed(tree, leaf)))
        elif leaf.name in plain:
            yield _of_unit(leaf, plain[leaf.name])
        elif leaf.kind == "bar":
            one = of_barrier[leaf.name]
            yield _leaf(leaf, rendezvous(one, len(given.tree.places), given.device.warp_size), one)
        elif of_barrier[leaf.name].sync.kind == "turn":
            yield _leaf(leaf, "turn", Turn(of_barrier[leaf.name]))
        else:
            yield _leaf(leaf, "mbarrier", _signal(tree, leaf, of_barrier[leaf.name], everywhere))


def versions_passed(tree: Synchronised, leaf: SyncStatement) -> tuple[tuple[str, str], ...]:
    """The counters that a skip moves on, and by how many versions of their buffers each."""
    found = []
    for counter in tree.counters:
        if leaf.name in dict(counter.skips):
            buffer = tree.program.buffer(counter.buffers[0])
            factors = passed_over(leaf.place, buffer, looped=bool(leaf.loops))
            count = " * ".join(factor for factor in factors if factor != "1")
            found.append((counter.name, count or "1"))
    return tuple(found)


def _leaf(leaf: SyncStatement, unit: str, work: Placed | Signal | Turn | Skip) -> Leaf:
    return Leaf(leaf.name, leaf.kind, unit, leaf.loops, work, leaf.place.name)


def unit_of(sync: Sync) -> str:
    """The unit of the leaf that is a fence, or a wait for groups."""
    return _UNITS.get(sync.unit, sync.unit)


def _of_unit(leaf: SyncStatement, sync: Sync) -> Leaf:
    """A fence, or a wait until few groups of a unit are left."""
    unit = unit_of(sync)
    if sync.kind in ("fence", GRID):
        work = Grids() if sync.kind == GRID else Nothing()
        return Leaf(leaf.name, sync.kind, unit, leaf.loops, work, leaf.place.name)
    left = f"all but the last {sync.pending}" if sync.pending else "all"
    note = f"{leaf.name}: {left} group(s) of {sync.unit} are complete"
    return Leaf(leaf.name, "retire", unit, leaf.loops, Groups(sync.pending, note), leaf.place.name)


def rendezvous(one: Placed, places: int, warp: int) -> str:
    """Who meets at a barrier of threads.

    Args:
        one: the barrier.
        places: of the kernel.
        warp: threads of one.
    """
    if one.sync.scope == "place":
        return "block" if places == 1 else "consumers"
    return "warp" if one.threads == warp else "warpgroup"


def _signal(tree: Synchronised, leaf: SyncStatement, one: Placed, everywhere: str) -> Signal:
    lead, statements = one.sync.buffers[0], {s.name: s for s in tree.program.statements}
    # Copy engines order what they write by themselves; what threads write is acquired.
    across = any(
        name in statements and statements[name].unit.proxy == "generic"
        for name, _ in one.sync.signals
    )
    return Signal(
        one,
        counter_of(tree, leaf.name, lead),
        AGENTS[leaf.place.name] if one.owners > 1 else "",
        leaf.executes if leaf.kind == "arrive" else "",
        everywhere if leaf.kind == "arrive" and one.remote else "",
        across and leaf.kind == "wait",
    )
