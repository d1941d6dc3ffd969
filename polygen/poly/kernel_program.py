"""`Schedule` x `Tiling` -> `TileProgram`: the statements of a kernel, without synchronisation.

A kernel has a main loop and an epilogue. In the main loop tiles of the operands move into rings and
products are added to sums; in the epilogue sums become results. Who does what, and by which unit, is
what schedules differ in:

    warps      copy_a[k,p] copy_b[k,p]   every warp its share, by cp.async or through registers
               load_a[k,s] load_b[k,s]   ring -> fragments
               mma[k,s,m,n]              fragments -> sums
               stage[m] store[r]         sums -> scratch -> results, or store[m] from the fragments

    producer   fill[i,k]                 one thread has the copy engine fill both rings
    loader     fetch_r[i,p]              the same for panels of an operand matrix, a loader a consumer
    consumer   multiply[i,k,s,m]         by a warpgroup from the rings
               finish[i,p] store[i,p]    sums -> panel; one thread has the copy engine store it

`i` counts the output tiles of a persistent block, `k` the k tiles, `s` the instructions along k, `m`
and `n` those of a warp tile, `p` the panels of an epilogue or the parts of a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.device import common_facts
from polygen.hardware.units import unit
from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps, loop, steps
from polygen.poly.tiling import Panels, RowVectors, Tiling
from polygen.schedule.model import Schedule

_ALWAYS = "1 = 1"
_THREADS, _COPY_ENGINE, _STORE_ENGINE = "threads", "tma.load", "tma.store"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What the epilogue of a kernel moves, and how a warp walks its tile."""

    rows: RowVectors
    panels: Panels


@dataclass(frozen=True, slots=True)
class _Part:
    """Some statements with their memory; the trees say when they run in a tile."""

    statements: tuple[TileStatement, ...]
    buffers: tuple[Buffer, ...]
    order: Node
    schedule: Node


def kernel_program(
    tiles: Tiling, schedule: Schedule, epilogue: Epilogue, *, asynchronous: bool
) -> TileProgram:
    """Write down the statements of a kernel.

    Args:
        tiles: the tile hierarchy.
        schedule: stages, places, loop orders, epilogue.
        epilogue: what it moves.
        asynchronous: whether copies by warps run in the background until waited for.
    """
    if schedule.specialised:
        return _with_roles(tiles, schedule, epilogue.panels)
    return _by_warps(tiles, schedule, epilogue.rows, asynchronous=asynchronous)


# ---- every warp does everything -------------------------------------------------------------------


def copy_parts(tiles: Tiling, schedule: Schedule) -> int:
    """Parts into which the copy of a k tile is cut: one per MMA step when copies are spread."""
    return tiles.k_steps if spread_copies(schedule) else 1


def spread_copies(schedule: Schedule) -> bool:
    """Whether copies run between the MMA steps instead of as a group of their own."""
    return schedule.pipeline.copies == "spread" and schedule.loops.mma[0] == "k"


def _by_warps(
    tiles: Tiling, schedule: Schedule, rows: RowVectors, *, asynchronous: bool
) -> TileProgram:
    warps = Place("warps", ("w",), (tiles.warp_count,), common_facts()["warp_size"])
    main = _main_by_warps(tiles, schedule, warps, asynchronous=asynchronous)
    end = _end_by_warps(tiles, schedule, rows, warps)
    zero = TileStatement(
        "zero",
        (),
        _ALWAYS,
        (),
        (f"sum[w,m,n] : {_atoms(tiles)}",),
        "map",
        unit(_THREADS),
        warps,
    )
    phases = {"main": main.schedule, "epilogue": end.schedule}
    return TileProgram(
        ("k_tiles",),
        "k_tiles >= 1",
        (*main.buffers, *end.buffers),
        (zero, *main.statements, *end.statements),
        _flat(steps("zero", main.order, end.order)),
        _flat(steps("zero", *(phases[name] for name in schedule.loops.phases))),
        fields=(
            ("ring", "pipeline.stages, pipeline.distance or pipeline.order"),
            ("fragment", "pipeline.fragments, pipeline.lookahead or loops.mma"),
            ("sum", "loops.phases, loops.k or loops.mma"),
            ("scratch", "loops.phases"),
        ),
    )


def _atoms(tiles: Tiling) -> str:
    atoms_m, atoms_n = tiles.atoms
    return f"0 <= m < {atoms_m} and 0 <= n < {atoms_n}"


def _main_by_warps(tiles: Tiling, schedule: Schedule, warps: Place, *, asynchronous: bool) -> _Part:
    pipeline, count = schedule.pipeline, tiles.k_steps
    parts = copy_parts(tiles, schedule)
    k, s = "0 <= k < k_tiles", f"0 <= s < {count}"
    mover = unit("cp.async" if asynchronous else _THREADS)
    group = "commit" if asynchronous else ""
    statements, buffers = [], []
    held = min(pipeline.fragments, count)  # no more than there are steps are ever in use
    for x in "ab":
        statements.append(
            TileStatement(
                f"copy_{x}",
                ("k", "p"),
                f"{k} and 0 <= p < {parts}",
                (),
                (f"ring_{x}[k,w,p]",),
                "move",
                mover,
                warps,
                group=group,
            )
        )
        whole = f"ring_{x}[k,v,p] : 0 <= v < {tiles.warp_count} and 0 <= p < {parts}"
        statements.append(
            TileStatement(
                f"load_{x}",
                ("k", "s"),
                f"{k} and {s}",
                (whole,),
                (f"fragment_{x}[k,s,w]",),
                "move",
                unit(_THREADS),
                warps,
            )
        )
        ring = (("k",), f"k mod {pipeline.stages}")
        registers = (("k", "s"), f"s mod {held}")
        buffers += [
            Buffer(f"ring_{x}", "shared", 1, 0, pipeline.stages, slot=ring),
            Buffer(f"fragment_{x}", "register", 2, 1, held, slot=registers),
        ]
    product = TileStatement(
        "mma",
        ("k", "s", "m", "n"),
        f"{k} and {s} and {_atoms(tiles)}",
        ("fragment_a[k,s,w]", "fragment_b[k,s,w]", "sum[w,m,n]"),
        ("sum[w,m,n]",),
        "product",
        unit("mma.sync"),
        warps,
    )
    commit = TileStatement(
        "commit",
        ("t",),
        f"0 <= t < k_tiles + {pipeline.distance}",
        (),
        (),
        "commit",
        unit(_THREADS),
        warps,
    )
    step = steps("load_a", "load_b", loop("m", loop("n", "mma")))
    copies = steps(loop("p", "copy_a"), loop("p", "copy_b"))
    order = loop("k", steps(copies, loop("s", step)))
    return _Part(
        (*statements, product, *((commit,) if asynchronous else ())),
        (*buffers, Buffer("sum", "register", 0, 1)),
        order,
        _pipelined(tiles, schedule, asynchronous=asynchronous),
    )


def _pipelined(tiles: Tiling, schedule: Schedule, *, asynchronous: bool) -> Loop:
    """The k loop: a copy of k tile k runs at t = k, the products with it at t = k + distance."""
    pipeline, forward = schedule.pipeline, schedule.loops.k == "forward"
    at = "k" if forward else "k_tiles - 1 - k"
    later = f"{at} + {pipeline.distance}"
    commit = ("commit",) if asynchronous else ()
    times = {"load_a": later, "load_b": later, "mma": later, "copy_a": at, "copy_b": at}
    if runs_across(schedule):
        times["mma"] = f"{later} + floor((s + {pipeline.lookahead})/{tiles.k_steps})"
    if spread_copies(schedule):
        body = steps(_products(tiles, schedule, spread=True), *commit)
    else:
        groups: dict[str, tuple[Node | str, ...]] = {
            "copy": ("copy_a", "copy_b", *commit),
            "mma": (_products(tiles, schedule, spread=False),),
        }
        body = steps(*(part for name in pipeline.order for part in groups[name]))
    return loop("t", _flat(body), "separate[x]", **times)


def _flat(node: Steps) -> Steps:
    """Steps in steps as one list."""
    found: list[Node] = []
    for child in node.children:
        found += child.children if isinstance(child, Steps) else (child,)
    return Steps(tuple(found))


def runs_across(schedule: Schedule) -> bool:
    """Whether the lookahead of fragment loads runs on into the next k tile."""
    pipeline = schedule.pipeline
    return pipeline.across and pipeline.lookahead > 0 and schedule.loops.mma[0] == "k"


def _products(tiles: Tiling, schedule: Schedule, *, spread: bool) -> Node:
    """The MMA steps of one k tile: fragment loads, products, parts of copies between them."""
    pipeline, nest = schedule.pipeline, schedule.loops.mma
    names = {"k": "s", "m": "m", "n": "n"}

    def product(dims: tuple[str, ...]) -> Node:
        inner: Node = Leaf("mma")
        for dim in reversed(dims):
            inner = loop(names[dim], inner)
        return inner

    if nest[0] != "k":
        return steps(loop("s", steps("load_a", "load_b")), product(nest))
    copies = (Leaf("copy_a"), Leaf("copy_b")) if spread else ()
    multiply = product(nest[1:])
    rest = (*copies, multiply) if pipeline.order[0] == "copy" else (multiply, *copies)
    ahead = pipeline.lookahead
    when = f"(s + {ahead}) mod {tiles.k_steps}" if runs_across(schedule) else f"s + {ahead}"
    times = {"mma": when} | ({"copy_a": "p", "copy_b": "p"} if spread else {})
    options = "unroll[x]" if ahead else ""
    return loop("s", steps("load_a", "load_b", *rest), options, **times)


def _end_by_warps(tiles: Tiling, schedule: Schedule, rows: RowVectors, warps: Place) -> _Part:
    """Sums to results: staged in rows and stored in vectors, or stored from the registers."""
    atoms_m, atoms_n = tiles.atoms
    row, m = f"sum[w,m,n] : 0 <= n < {atoms_n}", f"0 <= m < {atoms_m}"
    threads = unit(_THREADS)
    if schedule.epilogue.through != "smem":
        store = TileStatement("store", ("m",), m, (row,), (), "map", threads, warps)
        each = loop("m", "store")
        return _Part((store,), (), each, each)
    hoisted, scratch = "hoisted[w]", f"scratch[w,m] : {m}"
    statements = (
        TileStatement("prepare", (), _ALWAYS, (), (hoisted,), "move", threads, warps),
        TileStatement("stage", ("m",), m, (row,), ("scratch[w,m]",), "move", threads, warps),
        TileStatement(
            "store",
            ("r",),
            f"0 <= r < {rows.passes(tiles)}",
            (scratch, hoisted),
            (),
            "map",
            threads,
            warps,
        ),
    )
    buffers = (
        Buffer("hoisted", "register", 0, 1),
        Buffer("scratch", "shared", 0, 1, overlays=("ring_a", "ring_b")),
    )
    tree = steps("prepare", loop("m", "stage"), loop("r", "store"))
    return _Part(statements, buffers, tree, tree)


# ---- places with roles ----------------------------------------------------------------------------


def _with_roles(tiles: Tiling, schedule: Schedule, panels: Panels) -> TileProgram:
    shape = _Shape(tiles, schedule, panels)
    main, end = _main_with_roles(shape), _end_with_roles(shape)
    places = (shape.producer, *((shape.loader,) if panels.operands else ()), shape.consumer)
    located = [_locate(place, shape) for place in places]
    begin = [*(Leaf(one.name) for one, _ in located), *(Leaf(s.name) for s in _prepare(shape))]
    tree = [*begin, *(n for n in (main.order, end.order))]
    return TileProgram(
        ("k_tiles", "tiles"),
        "k_tiles >= 1 and tiles >= 0",
        (*(b for _, b in located), *main.buffers, *end.buffers),
        (*(s for s, _ in located), *_prepare(shape), *main.statements, *end.statements),
        loop("i", _flat(steps(*tree))),
        loop("i", _flat(steps(*begin, main.schedule, end.schedule))),
        lags=tuple((f"ring_{x}", schedule.pipeline.in_flight) for x in "ab"),
        fields=(
            ("ring", "pipeline.stages or pipeline.in_flight"),
            ("result", "epilogue.slots"),
            ("panel", "epilogue.prefetch"),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Coordinates and places of a kernel with roles."""

    tiles: Tiling
    schedule: Schedule
    panels: Panels

    @property
    def pingpong(self) -> bool:
        """Whether consumers take turns at whole tiles."""
        return self.schedule.roles.form == "pingpong"

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.schedule.cluster.m * self.schedule.cluster.n

    @property
    def rank(self) -> tuple[str, ...]:
        """The coordinate of the block, where there are several."""
        return ("rank",) if self.blocks > 1 else ()

    @property
    def group(self) -> str:
        """The coordinate of a consumer."""
        return "turn" if self.pingpong else "group"

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return 2 if self.pingpong else self.tiles.warp_count

    def place(self, name: str, threads: int, *, each_consumer: bool) -> Place:
        """A place of every block, or of every consumer of it."""
        agents, counts = self.rank, (self.blocks,) * len(self.rank)
        if each_consumer:
            agents, counts = (*agents, self.group), (*counts, self.consumers)
        return Place(name, agents, counts, threads, len(self.rank))

    @property
    def producer(self) -> Place:
        """The thread that fills the rings."""
        return self.place("producer", 1, each_consumer=False)

    @property
    def loader(self) -> Place:
        """The thread that fetches the operand panels of one consumer."""
        return self.place("loader", 1, each_consumer=True)

    @property
    def consumer(self) -> Place:
        """A warpgroup that multiplies."""
        facts = common_facts()
        threads = facts["warpgroup_warps"] * facts["warp_size"]
        return self.place("consumer", threads, each_consumer=True)

    def own(self, place: Place) -> str:
        """The tiles of an agent: all, or every second one."""
        every = "0 <= i < tiles"
        if self.pingpong and self.group in place.agents:
            return f"{every} and (i - {self.group}) mod 2 = 0"
        return every

    def owner(self, *coordinates: str) -> str:
        """Coordinates of a cell with the agent's after them: ``i,p,rank,group``."""
        return ",".join((*coordinates, *self.rank, self.group))


def _locate(place: Place, shape: _Shape) -> tuple[TileStatement, Buffer]:
    """Which output tile is the block's i-th; every place keeps that for itself."""
    name = f"locate_{place.name}"
    buffer = Buffer(f"tile_{place.name}", "scalar", 1, len(place.agents))
    cell = f"{buffer.name}[{','.join(('i', *place.agents))}]"
    statement = TileStatement(
        name,
        ("i",),
        shape.own(place),
        (),
        (cell,),
        "frame",
        unit(_THREADS),
        place,
        calls="locate",
    )
    return statement, buffer


def _tile(place: Place) -> str:
    return f"tile_{place.name}[{','.join(('i', *place.agents))}]"


def _main_with_roles(shape: _Shape) -> _Part:
    tiles, consumer, producer = shape.tiles, shape.consumer, shape.producer
    along, across = shape.schedule.cluster.m, shape.schedule.cluster.n
    k = "0 <= k < k_tiles"
    clustered = shape.blocks > 1
    if clustered:
        # Blocks in one row of the cluster share tiles of the left operand, in one column of the
        # right; each copies its part for all of them.
        row, column = f"rank mod {along}", f"floor(rank/{along})"
        each = f"0 <= d < {shape.blocks}"
        writes = (
            f"ring_a[i,k,d,{column}] : {each} and (d - rank) mod {along} = 0",
            f"ring_b[i,k,d,{row}] : {each} and floor(d/{along}) = {column}",
        )
        reads = (
            f"ring_a[i,k,rank,q] : 0 <= q < {across}",
            f"ring_b[i,k,rank,q] : 0 <= q < {along}",
        )
    else:
        writes = reads = ("ring_a[i,k]", "ring_b[i,k]")
    fill = TileStatement(
        "fill",
        ("i", "k"),
        f"{shape.own(producer)} and {k}",
        (_tile(producer),),
        writes,
        "move",
        unit(_COPY_ENGINE),
        producer,
    )
    total = f"sum[{shape.owner('i')},m]"
    inside = f"0 <= s < {tiles.k_steps} and 0 <= m < {tiles.atoms[0]}"
    multiply = TileStatement(
        "multiply",
        ("i", "k", "s", "m"),
        f"{shape.own(consumer)} and {k} and {inside}",
        (*reads, f"{total} : k + s > 0"),
        (total,),
        "product",
        unit("wgmma"),
        consumer,
        group="commit",
    )
    commit = TileStatement(
        "commit",
        ("i", "k"),
        f"{shape.own(consumer)} and {k}",
        (),
        (),
        "commit",
        unit(_THREADS),
        consumer,
    )
    stages = shape.schedule.pipeline.stages
    rings = tuple(Buffer(f"ring_{x}", "shared", 2, len(shape.rank), stages) for x in "ab")
    sums = Buffer("sum", "register", 1, len(consumer.agents))
    product = loop("s", loop("m", "multiply"))
    return _Part(
        (fill, multiply, commit),
        (*rings, sums),
        loop("k", steps("fill", product, "commit")),
        loop("k", steps("fill", product, "commit"), "separate[x]"),
    )


def _prepare(shape: _Shape) -> tuple[TileStatement, ...]:
    """Operands with one value per column are brought near while the products run."""
    if not shape.panels.columns:
        return ()
    place = shape.consumer
    reads = (_tile(place),)
    threads = unit(_THREADS)
    own = shape.own(place)
    return (TileStatement("prepare", ("i",), own, reads, (), "move", threads, place),)


def _end_with_roles(shape: _Shape) -> _Part:
    tiles, panels, consumer = shape.tiles, shape.panels, shape.consumer
    threads, own = unit(_THREADS), shape.own(consumer)
    if not panels.columns:
        bounds = f"{own} and 0 <= m < {tiles.atoms[0]}"
        reads = (_tile(consumer), f"sum[{shape.owner('i')},m]")
        last = TileStatement("store", ("i", "m"), bounds, reads, (), "map", threads, consumer)
        each = loop("m", "store")
        return _Part((last,), (), each, each)
    per_block = tiles.warp[1] // panels.columns
    p = f"0 <= p < {tiles.atoms[0] * per_block}"
    cell = shape.owner("i", "p")
    fetches = tuple(
        TileStatement(
            f"fetch_{name}",
            ("i", "p"),
            f"{shape.own(shape.loader)} and {p}",
            (_tile(shape.loader),),
            (f"panel_{name}[{cell}]",),
            "move",
            unit(_COPY_ENGINE),
            shape.loader,
        )
        for name in panels.operands
    )
    results = tuple(f"result_{name}[{cell}]" for name in panels.outputs)
    finish = TileStatement(
        "finish",
        ("i", "p"),
        f"{own} and {p}",
        (
            _tile(consumer),
            f"sum[{shape.owner('i')},m] : m = floor(p/{per_block})",
            *(f"panel_{name}[{cell}]" for name in panels.operands),
        ),
        results,
        "map",
        threads,
        consumer,
    )
    store = TileStatement(
        "store",
        ("i", "p"),
        f"{own} and {p}",
        (_tile(consumer), *results),
        (),
        "move",
        unit(_STORE_ENGINE),
        consumer,
        executes="one",
        group="store",
    )
    owners, schedule = len(consumer.agents), shape.schedule.epilogue
    count = tiles.atoms[0] * per_block
    # Panels of a tile that fill whole rounds of the slots lie where their number says.
    whole = count % schedule.slots == 0
    slot = (("i", "p"), f"p mod {schedule.slots}") if whole else None
    buffers = (
        *(Buffer(f"panel_{n}", "shared", 2, owners, schedule.prefetch) for n in panels.operands),
        *(
            Buffer(f"result_{n}", "shared", 2, owners, schedule.slots, slot=slot)
            for n in panels.outputs
        ),
    )
    tree = loop("p", steps(*(f.name for f in fetches), "finish", "store"))
    return _Part((*fetches, finish, store), buffers, tree, tree)
