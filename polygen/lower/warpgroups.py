"""A persistent block whose warps have roles: its places, and the leaves of the loops of each.

1. One thread of the producer keeps the rings full; with panels coming in, one thread for each
   consumer brings them. Consumers are warpgroups that multiply and finish.
2. A place goes through the slots of a ring with a cursor of its own. A barrier is waited for and
   arrived at with the cursor of the statement it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polygen.lower import epilogue
from polygen.lower.given import Given
from polygen.lower.memory import memory, workers
from polygen.lower.operands import boxes, operand_layout
from polygen.lower.plan import Buffer, Inside, Leaf, Place
from polygen.lower.work import (
    Again,
    Boxes,
    Epilogue,
    Groups,
    Locate,
    Move,
    Nothing,
    Panel,
    Placed,
    Product,
    Signal,
    Skip,
)
from polygen.poly.role_barriers import GroupBarrier, Mbarrier, Sync, Turn

_TILE, _STEP, _PANEL = ("i",), ("i", "k"), ("i", "p")
_OWNER, _GROUP = "owner", "group"  # names of the agent in a loader and in a consumer


def inside(given: Given, out: Epilogue) -> Inside:
    """Buffers, leaves and places of the roles.

    Raises:
        ScheduleError: a tile has no layout.
    """
    mapping, schedule = given.tree.roles, given.schedule
    assert mapping is not None
    bare = memory(schedule, given.match, given.work, given.tiles, mapping.syncs)
    buffers = tuple(_with_layout(given, buffer) for buffer in bare)
    named = {buffer.name: buffer for buffer in buffers}
    chosen, elements = mapping.panels, {e.name: e for e in (*given.work.reads, *given.work.writes)}
    incoming, results = (
        tuple(
            epilogue.panel(given, elements[name], named[f"{kind}_{name}"], chosen) for name in names
        )
        for kind, names in (("panel", chosen.operands), ("result", chosen.outputs))
    )
    # Slots may be longer than the tiles in them; what is copied is the tiles.
    copied = {"fill": sum(b.matrix.bytes for b in buffers if b.kind == "ring")}
    copied |= {f"fetch_{panel.name}": panel.bytes for panel in incoming}
    syncs = _placed(mapping.syncs, copied)
    leaves = _Leaves(given, named, syncs).all(out, incoming, results)
    return Inside(buffers, tuple(leaves), _places(given), syncs)


def _with_layout(given: Given, buffer: Buffer) -> Buffer:
    for name, operand in given.match.operands:
        if buffer.name == f"ring_{name}":
            size = given.footprint(name).size
            extents = (size[operand.role_axis], size[operand.k_axis])
            made = operand_layout(name, operand, extents, given.schedule, given.atom)
            return replace(buffer, layout=made, note=operand.tensor.name)
    return buffer


def _placed(syncs: tuple[Sync, ...], copied: dict[str, int]) -> tuple[Placed, ...]:
    """The barriers with their places; `copied`: bytes that a statement's copies bring."""

    def of(kind: type, place: bool) -> Iterator[Placed]:
        for sync in syncs:
            if isinstance(sync, kind):
                brought = copied.get(sync.signal, 0) if isinstance(sync, Mbarrier) else 0
                yield Placed(sync, sync.dependences, sync.name if place else "", brought)

    return (*of(Mbarrier, True), *of(GroupBarrier, False), *of(Turn, True))


def _places(given: Given) -> tuple[Place, ...]:
    """The roles as places: consumers first, behind them the warps of the producer's warpgroup."""
    assert given.tree.roles is not None
    loops = {one.role: one.loops() for one in given.tree.roles.trees}
    consumers, roles = workers(given.schedule, given.tiles), given.schedule.roles
    first, few = consumers * given.device.warpgroup_warps, roles.producer_registers
    found = [
        ("producer", first, 1, 1, True, "", few),
        ("loader", first + 1, consumers, consumers, True, _OWNER, few),
        ("consumer", 0, first, consumers, False, _GROUP, roles.consumer_registers),
    ]
    return tuple(Place(*one, loops[one[0]]) for one in found if one[0] in loops)


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Writes down the leaves of all places, in the order in which they are declared."""

    given: Given
    buffers: dict[str, Buffer]
    syncs: tuple[Placed, ...]

    def all(
        self, out: Epilogue, incoming: tuple[Panel, ...], results: tuple[Panel, ...]
    ) -> Iterator[Leaf]:
        """The leaves.

        Args:
            out: the pointwise statements.
            incoming: panels of operands of the epilogue.
            results: panels that leave; () when results are stored from the registers.
        """
        raster, cluster = self.given.schedule.raster, self.given.schedule.cluster
        across = "n" if raster.along == "m" else "m"
        locate = Locate(raster.along, across, raster.group, (cluster.m, cluster.n))
        yield Leaf("locate", "locate", "threads", _TILE, locate)
        moved = tuple(
            boxes(self.given, name, operand, self.buffers[f"ring_{name}"].matrix)
            for name, operand in self.given.match.operands
        )
        names = ", ".join(f"{b.tensor.name} -> {b.buffer}" for b in moved)
        note = f"{names}, by the copy engine, zeros outside the arrays"
        yield from self._moves("fill", moved, _STEP, "producer", "fill_ring", note)
        for panel in incoming:
            name = f"fetch_{panel.name}"
            one = epilogue.panel_boxes(panel, self.given.tiles, _OWNER, "in")
            yield from self._moves(name, (one,), _PANEL, "loader", f"{name}_cursor", one.note)
        leave = self._panels(out, incoming, results) if results else _pairs(out)
        for leaf in (*self._products(moved), *leave):
            yield replace(leaf, place="consumer")

    def _moves(
        self, statement: str, moved: tuple[Boxes, ...], loops: tuple[str, ...], place: str,
        cursor: str, note: str,
    ) -> Iterator[Leaf]:  # fmt: skip
        """A step of a ring, with the waits in front of it."""
        full = next(p for p in self.syncs if p.bytes and p.signal == statement)
        agent = _OWNER if place == "loader" else ""
        for wait in self._waits(statement, loops, {_memory(full): cursor}, agent):
            yield replace(wait, place=place)
        work = Move(moved, full, cursor, note)
        yield Leaf(statement, "move", "tma", loops, work, place)

    def _waits(
        self, statement: str, loops: tuple[str, ...], cursors: dict[str, str], agent: str = ""
    ) -> Iterator[Leaf]:
        """The waits in front of a statement; `cursors` by ring."""
        for placed in self.syncs:
            if isinstance(placed.sync, Mbarrier) and placed.sync.wait == statement:
                work = Signal(placed, cursors[_memory(placed)], agent)
                name = f"wait_{placed.name}"
                yield Leaf(name, "wait", "mbarrier", loops, work, before=statement)

    def _released(self, statement: str) -> list[Placed]:
        """The barriers at which a statement's completion arrives through threads."""
        return [p for p in self.syncs if not p.bytes and p.signal == statement]

    def _products(self, moved: tuple[Boxes, ...]) -> Iterator[Leaf]:
        tiles, pending = self.given.tiles, self.given.schedule.pipeline.in_flight
        a, b = (self.buffers[one.buffer] for one in moved)
        steps = (tiles.atoms[0] * a.matrix.block, b.matrix.block)
        parts = [epilogue.own_part(tiles, n, _GROUP, step) for n, step in enumerate(steps)]
        at, behind = "multiply_ring", "release_ring"
        product = Product((a.name, b.name), (at, behind), (parts[0], parts[1]))
        yield from self._waits("multiply", _STEP, {"ring": at})
        yield Leaf("fence_multiply", "fence", "wgmma", _STEP, Nothing(), before="multiply")
        yield Leaf("multiply", "multiply", "wgmma", ("i", "k", "s", "m"), product)
        yield Leaf("commit", "commit", "wgmma", _STEP, Groups(advance=at))
        running = f"{pending} later one(s) may be running"
        note = f"retire_empty_ring[i,k]: the products of k tile k have completed; {running}"
        yield Leaf("retire_empty_ring", "retire", "wgmma", _STEP, Groups(pending, note))
        if pending:
            yield Leaf("retire_empty_ring_rest", "retire", "wgmma", _TILE, Groups())
        for placed in self._released("multiply"):
            name = f"arrive_{placed.name}"
            work = Signal(placed, behind, "", True, "warpgroup", self._everywhere(placed))
            yield Leaf(name, "arrive", "mbarrier", _STEP, work)
            if pending:
                yield Leaf(f"{name}_rest", "again", "threads", _STEP, Again(name))
        for placed in self.syncs:
            if isinstance(placed.sync, Turn):
                yield Leaf(f"wait_{placed.name}", "wait", "turn", _TILE, placed)
                yield Leaf(f"arrive_{placed.name}", "arrive", "turn", _TILE, placed)
        if self.given.schedule.roles.form == "pingpong":
            for name, loops in (("skip_ring", _TILE), ("skip_ring_first", ())):
                yield Leaf(name, "skip", "mbarrier", loops, Skip(product.cursors))

    def _everywhere(self, placed: Placed) -> str:
        """Which threads of a warpgroup send an arrival to a block of the cluster each."""
        if not (isinstance(placed.sync, Mbarrier) and placed.sync.remote):
            return ""
        own, cluster = f"thread % {self.given.device.group_threads}", self.given.schedule.cluster
        along, across = cluster.m, cluster.n
        condition = f"{own} < {along * across}"
        if along > 1 and across > 1:
            same_row = f"({own} - rank) % {along} == 0"
            condition += f" && ({same_row} || {own} / {along} == rank / {along})"
        return condition

    def _panels(
        self, out: Epilogue, incoming: tuple[Panel, ...], results: tuple[Panel, ...]
    ) -> Iterator[Leaf]:
        released = self._released("finish")
        cursors = {panel.buffer: panel.cursor for panel in incoming}
        work = epilogue.finish(self.given, out, incoming, results, [_memory(p) for p in released])
        yield Leaf("compute", "compute", "threads", (), out)
        yield Leaf("prepare", "prepare", "cache", _TILE, epilogue.warm(work, self.given.tiles))
        yield from self._waits("finish", _PANEL, cursors, _GROUP)
        yield Leaf("finish", "finish", "threads", _PANEL, work)
        for placed in released:
            signal = Signal(placed, cursors[_memory(placed)], _GROUP, True, "warp")
            yield Leaf(f"arrive_{placed.name}", "arrive", "mbarrier", _PANEL, signal)
        for placed in self.syncs:
            if isinstance(placed.sync, GroupBarrier):
                yield Leaf("fence_store", "fence", "generic", _PANEL, Nothing())
                read = "but the latest panels have been read by the copy engine"
                note = f"wait_store[i,p]: all {read}"
                yield Leaf("wait_store", "retire", "tma", _PANEL, Groups(placed.sync.pending, note))
                yield Leaf(placed.name, "bar", "warpgroup", _PANEL, placed)
                note = "wait_last_store: shared memory stays until the last panels have been read"
                yield Leaf("wait_last_store", "retire", "tma", (), Groups(0, note))
        yield Leaf("store", "store", "tma", _PANEL, epilogue.store(results, self.given.tiles))


def _pairs(out: Epilogue) -> Iterator[Leaf]:
    yield Leaf("compute", "compute", "threads", (), out)
    yield Leaf("finish_element", "edge", "threads", (), out)
    yield Leaf("store", "store_pairs", "threads", ("i", "m"), out)


def _memory(placed: Placed) -> str:
    return placed.sync.memory if isinstance(placed.sync, Mbarrier) else ""
