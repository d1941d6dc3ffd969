"""A persistent block whose warps have roles: its places, and the leaves of the loops of each.

1. One thread of the producer keeps the rings full; with panels coming in, one thread for each
   consumer brings them. Consumers are warpgroups that multiply and finish.
2. What synchronises them, and the counters of slots, come from the tile program
   (`polygen.lower.synchronise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from polygen.lower import epilogue
from polygen.lower.buffers import Buffer
from polygen.lower.fill import fill
from polygen.lower.folds import around
from polygen.lower.given import Given
from polygen.lower.making import make
from polygen.lower.memory import memory
from polygen.lower.operands import boxes, k_of_all, operand_layout
from polygen.lower.partial_sums import landings
from polygen.lower.plan import Inside, Leaf, Place
from polygen.lower.promoting import promote
from polygen.lower.rest import given_columns, rest_boxes, rest_fills, rest_layout, rest_leaves
from polygen.lower.result_work import Epilogue, Panel
from polygen.lower.row_exchange import exchanged, sent_bytes
from polygen.lower.sync_work import Groups, Nothing, Placed
from polygen.lower.synchronise import (
    AGENTS,
    counter_of,
    counters,
    counting,
    owners,
    placed,
    sync_leaves,
)
from polygen.lower.tallies import leaves as tallied
from polygen.lower.tallies import tallies
from polygen.lower.work import FIRST_OF_TILE, Boxes, Combine, Locate, Move, Product, Send
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.match import REST_RING
from polygen.poly.pointwise import Element
from polygen.poly.promoted_by import PROMOTE_LAST

_TILE, _STEP, _PANEL = ("i",), ("i", "k"), ("i", "p")
_GROUP = AGENTS["consumer"]


def inside(given: Given, out: Epilogue) -> Inside:
    """Buffers, leaves and places of the roles.

    Raises:
        ScheduleError: a tile has no layout.
    """
    tree, schedule = given.tree.synchronised, given.schedule
    chosen = given.tree.panels
    bare = memory(schedule, given.match, given.work, given.tiles, barriers(tree))
    buffers = tuple(_with_layout(given, buffer) for buffer in bare)
    named = {buffer.name: buffer for buffer in buffers}

    def made(kind: str, names: tuple[str, ...], moved: tuple[Element, ...]) -> tuple[Panel, ...]:
        buffers = [named[f"{kind}_{name}"] for name in names]
        return tuple(
            epilogue.panel(given, element, buffer, chosen, counter_of(tree, "finish", buffer.name))
            for element, buffer in zip(moved, buffers, strict=False)
        )

    incoming = made("panel", chosen.operands, given.work.matrices)
    results = made("result", chosen.outputs, given.work.writes)
    # Slots may be longer than the tiles in them; what is copied is the tiles.
    copied = {
        fill: sum(named[f"ring_{name}"].matrix.bytes for name in moved)
        for fill, _, moved in _by_engine(given)
    }
    copied |= {_fetch(panel): panel.bytes for panel in incoming}
    met = landings(given)
    copied |= {leaf: named[f"ring_{REST_RING}"].matrix.bytes for leaf in rest_fills(given)}
    copied["send"] = given.tiles.split * sum(one.part_bytes for one in met)
    copied |= sent_bytes(given.work, given.tiles)
    syncs = placed(tree, copied)
    leaves = tuple(_Leaves(given, named, syncs).all(out, incoming, results))
    return Inside(buffers, tuple(counting(leaves, tree.counters)), places(given), syncs)


def _with_layout(given: Given, buffer: Buffer) -> Buffer:
    for name, operand in given.match.operands:
        if buffer.name == f"ring_{name}":
            made = operand_layout(operand, given.extents(operand), given.schedule, given.atom)
            return replace(buffer, layout=made, note=operand.tensor.name)
    rest = given.match.rest
    if rest is not None and buffer.name == f"ring_{REST_RING}":
        return replace(buffer, layout=rest_layout(given, rest), note=rest.operand.tensor.name)
    return buffer


def barriers(tree: Synchronised) -> list[tuple[str, int, int]]:
    """What lies in shared memory for who waits: name, slots and owners; those of turns last."""
    return [
        (sync.name, sync.slots, owners(tree, sync))
        for sync in sorted(tree.syncs, key=lambda sync: sync.kind == "turn")
        if sync.kind in ("mbarrier", "turn")
    ]


def places(given: Given) -> tuple[Place, ...]:
    """The roles as places: consumers first, behind them the warps of the producer's warpgroup."""
    loops = {one.place.name: one.loops() for one in given.tree.places}
    consumers, roles = given.schedule.consumers, given.schedule.roles
    first, few = consumers * given.device.warpgroup_warps, roles.producer_registers
    warps, alone = 1, True
    if any(ring.pieces for ring in given.tree.main.rings):  # its threads fill rings
        warps, alone = given.device.warpgroup_warps, False
    next_to = 1 + (consumers if "loader" in loops else 0)
    found = [
        ("producer", first, warps, 1, alone, AGENTS["producer"], few),
        ("loader", first + 1, consumers, consumers, True, AGENTS["loader"], few),
        ("streamer", first + next_to, 1, 1, True, AGENTS["streamer"], few),
        ("consumer", 0, first, consumers, False, _GROUP, roles.consumer_registers),
    ]
    return tuple(
        Place(*one, loops[one[0]], counters(given, one[0])) for one in found if one[0] in loops
    )


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
        match, blocks = self.given.match, (cluster.m, cluster.n)
        batches = () if match.groups else match.counted
        sides = tuple(match.box.side(dim) for dim, _ in batches)
        locate = Locate(
            raster.along, across, raster.group, blocks, batches, match.groups, sides,
            walk=self.given.walk, run=raster.run,
            split=cluster.k if cluster.last else 1,
            computing=any(operand.computed is not None for _, operand in match.operands),
        )  # fmt: skip
        yield Leaf("locate", "locate", "threads", _TILE, locate)
        yield from self._fills()
        by_threads = self.given.schedule.epilogue.through == "lines"
        for panel in incoming if by_threads else ():
            moved = epilogue.lines(self.given, out, (panel,), _GROUP)
            yield Leaf(_fetch(panel), "fetch", "lines", _PANEL, moved, "consumer")
        for panel in () if by_threads else incoming:
            name = _fetch(panel)
            read = next(e for e in self.given.work.reads if e.name == panel.name)
            one = epilogue.panel_boxes(self.given, read, panel, AGENTS["loader"], "in")
            yield self._move(name, (one,), _PANEL, "loader", one.note)
        leave = self._panels(out, incoming, results) if results else self._pairs(out)
        folded = tallied(self.given, tallies(self.given, self.buffers), _TILE)
        made = (*self._products(), *self._rest(), *self._promotions())
        for leaf in (*made, *folded, *self._parts(), *leave):
            yield replace(leaf, place=leaf.place or "consumer")
        yield from sync_leaves(self.given, self.syncs, self._everywhere())

    def _fills(self) -> Iterator[Leaf]:
        """What brings the operands: the copy engine, threads, or both."""
        given, rings = self.given, self.given.tree.main.rings
        layouts = {ring.name: self.buffers[f"ring_{ring.name}"].matrix for ring in rings}
        for statement, place, own in _by_engine(given):
            moved = tuple(
                boxes(given, name, given.match.operand(name), layouts[name]) for name in own
            )
            names = ", ".join(f"{b.tensor.name} -> {b.buffer}" for b in moved)
            note = f"{names}, by the copy engine, zeros outside the arrays"
            yield self._move(statement, moved, _STEP, place, note)
        first = next((ring.name for ring in rings if ring.pieces), None)
        if first is not None:
            counter = counter_of(given.tree.synchronised, "put", f"ring_{first}")
            work = fill(given, layouts, counter)
            for statement in ("get", "put"):
                yield Leaf(statement, statement, "threads", (*_STEP, "q", "s"), work, "producer")

    def _move(
        self,
        statement: str,
        moved: tuple[Boxes, ...],
        loops: tuple[str, ...],
        place: str,
        note: str,
    ) -> Leaf:
        """A step of a ring, for the barrier that its bytes complete."""
        full = next(p for p in self.syncs if p.bytes and statement in dict(p.sync.signals))
        counter = counter_of(self.given.tree.synchronised, statement, full.sync.buffers[0])
        return Leaf(statement, "move", "tma", loops, Move(moved, full, counter, note), place)

    def _products(self) -> Iterator[Leaf]:
        tiles, tree = self.given.tiles, self.given.tree
        made = {ring.name for ring in tree.main.rings if ring.fragment}
        yield from self._fragments(sorted(made))
        for one in tree.main.multiplied:
            a, b = (self.buffers[f"ring_{name}"] for name in (one.left, one.right))
            steps = (tiles.atoms[0] * a.matrix.block, b.matrix.block)
            parts = [epilogue.own_part(tiles, n, _GROUP, step) for n, step in enumerate(steps)]
            columns = given_columns(self.given, one.right)
            if columns:  # which every agent has all of
                parts[1] = ""
            name = one.called("multiply")
            read = b if one.left in made else a  # the left ring is read by who computes fragments
            counter = counter_of(tree.synchronised, name, read.name)
            total = one.called("sum")
            slots = self.given.schedule.pipeline.fragments
            fragment = f"fragment_{one.left}[s % {slots}][m]" if one.left in made else ""
            product = Product(
                (one.left, one.right), total, counter, (parts[0], parts[1]), fragment,
                columns=columns, overwrites=FIRST_OF_TILE,
            )  # fmt: skip
            if tree.main.block:
                each = tree.main.block // tiles.cta[2]
                begins = (("k", each), ("s", 0)) if each > 1 else (("s", 0),)
                total = one.called("inner")
                sets = tree.synchronised.program.buffer(total).slots
                product = replace(product, total=total, overwrites=begins, sets=sets)
            yield Leaf(name, "multiply", "wgmma", ("i", "k", "s", "m"), product)
        loops = tree.synchronised.program.statement("commit").loops
        yield Leaf("commit", "commit", "wgmma", loops, Groups())
        if made:
            yield Leaf("multiplied", "close", "threads", _STEP, Nothing())

    def _rest(self) -> Iterator[Leaf]:
        """What goes on with the sums, behind the k tiles."""
        given, rest = self.given, self.given.match.rest
        if rest is None:
            return
        layout = self.buffers[f"ring_{REST_RING}"].matrix
        (fill,) = rest_fills(given)
        moved = rest_boxes(given, rest, layout)
        yield self._move(fill, (moved,), _TILE, "producer", moved.note)
        yield from rest_leaves(given, rest, layout, _GROUP)

    def _promotions(self) -> Iterator[Leaf]:
        """What promotes the blocks of sums."""
        given, tiles = self.given, self.given.tiles
        if not given.tree.main.block:
            return
        rows, columns = (epilogue.own_part(tiles, n, _GROUP, tiles.warp[n]) for n in range(2))
        for one, product in zip(given.tree.main.products, given.match.products, strict=True):
            names = (one.called("inner"), one.called("sum"), one.called("scales"))
            extents = (given.match.m, given.match.n)
            sets = given.tree.synchronised.program.buffer(names[0]).slots
            work = promote(product, names, tiles, given.atom, (rows, columns), extents, sets)
            if one.scaled:
                yield Leaf(one.called("read_scales"), "read_scales", "threads", _STEP, work)
            for name in ("promote", PROMOTE_LAST) if sets > 1 else ("promote",):
                yield Leaf(one.called(name), "promote", "threads", ("i", "k", "m"), work)

    def _fragments(self, made: list[str]) -> Iterator[Leaf]:
        """What consumers compute of a ring, to multiply it from registers."""
        given, tiles = self.given, self.given.tiles
        for name in made:
            ring, statement = self.buffers[f"ring_{name}"], f"make_{name}"
            part = epilogue.own_part(tiles, 0, _GROUP, tiles.warp[0])
            counter = counter_of(given.tree.synchronised, statement, ring.name)
            tile, operand = (tiles.cta[0], tiles.cta[2]), given.match.operand(name)
            slots = given.schedule.pipeline.fragments
            work = make(
                operand, name, ring.matrix, given.atom, tile, part, k_of_all(tiles), counter, slots,
                tiles.atoms[0], tiles.split,
            )  # fmt: skip
            for op in ("read", "take") if work.words else ():
                yield Leaf(f"{op}_{name}", f"{op}_beside", "threads", _STEP, work)
            yield Leaf(statement, "make", "threads", ("i", "k", "s", "m"), work)

    def _parts(self) -> Iterator[Leaf]:
        """What joins the sums of several blocks."""
        met, tree = landings(self.given), self.given.tree.synchronised
        if not met:
            return
        full = next(p for p in self.syncs if "send" in dict(p.sync.signals))
        counter = counter_of(tree, "send", met[0].buffer)
        send = Send(met, full, counter, self.given.tiles.split)
        loops = tree.program.statement("send").loops
        yield Leaf("send", "send", "st.async", loops, send)
        counter = counter_of(tree, "combine", met[0].buffer)
        yield Leaf("combine", "combine", "threads", (*loops, "q"), Combine(met, counter))
        yield Leaf("combined", "close", "threads", loops, Nothing())

    def _everywhere(self) -> str:
        """Which threads of a warpgroup send an arrival to a block of the cluster each."""
        own, cluster = f"thread % {self.given.device.group_threads}", self.given.schedule.cluster
        along, across = cluster.m, cluster.n
        condition = f"{own} < {along * across}"
        if along > 1 and across > 1:
            same_row = f"({own} - rank) % {along} == 0"
            condition += f" && ({same_row} || {own} / {along} == rank / {along})"
        return condition

    def _meet(self) -> Callable[[Epilogue], tuple[Leaf, ...]] | None:
        """What ends a pass over the sums where blocks cover rows together."""
        if self.given.tiles.beside == 1:
            return None
        return lambda one: exchanged(self.given, self.syncs, one, _TILE)

    def _pairs(self, out: Epilogue) -> Iterator[Leaf]:
        yield Leaf("compute", "compute", "threads", (), out)
        yield Leaf("finish_element", "edge", "threads", (), out)
        store = Leaf("store", "store_pairs", "threads", ("i", "m"), out)
        yield from around((store,), out, _TILE, self._meet())

    def _panels(
        self, out: Epilogue, incoming: tuple[Panel, ...], results: tuple[Panel, ...]
    ) -> Iterator[Leaf]:
        work = epilogue.finish(self.given, out, incoming, results)
        yield Leaf("compute", "compute", "threads", (), out)
        near = epilogue.warm(self.given, work)
        op = "prepare_rows" if near.matrices else "prepare"
        yield Leaf("prepare", op, "cache", _TILE, near)
        finish = (Leaf("finish", "finish", "threads", _PANEL, work),)
        yield from around(finish, out, _TILE, self._meet())
        if self.given.schedule.epilogue.through == "lines":
            moved = epilogue.lines(self.given, out, results, _GROUP)
            yield Leaf("store", "store", "lines", _PANEL, moved)
        else:
            yield Leaf("store", "store", "tma", _PANEL, epilogue.store(self.given, results))


def _by_engine(given: Given) -> Iterator[tuple[str, str, list[str]]]:
    """What has the copy engine fill rings: statement, place, and which rings."""
    rings = [ring for ring in given.tree.main.rings if not ring.pieces]
    for statement, place, ahead in (("fill", "producer", False), ("fill_ahead", "streamer", True)):
        own = [ring.name for ring in rings if ring.ahead == ahead]
        if own:
            yield statement, place, own


def _fetch(panel: Panel) -> str:
    """The statement that brings a panel."""
    return f"fetch_{panel.buffer.removeprefix('panel_')}"
