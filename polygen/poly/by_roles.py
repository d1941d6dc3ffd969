"""The program of a kernel whose places have roles: a producer, loaders, consumers.

    producer   fill[i,k]                 one thread has the copy engine fill all rings
    loader     fetch_r[i,p]              one thread fetches panels of an operand for one consumer
    consumer   multiply[i,k,s,m]         by a warpgroup from the rings
               send[i] combine[i,q]      with a sum that the blocks of a cluster share: parts
                                         -> totals (`partial_sums`)
               finish[i,p] store[i,p]    sums -> panel; one thread has the copy engine store it

Blocks are persistent: `i` counts the output tiles of one. Blocks of a cluster share operands: each
copies its part for all that need it. Or they share the sums of one tile, each with a range of k
tiles of its own: `k` counts those of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.hardware.device import common_facts
from polygen.hardware.units import unit
from polygen.poly.kernel_parts import MainLoop, Part, Ring, flat
from polygen.poly.partial_sums import partial_sums
from polygen.poly.tile_program import Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import Leaf, loop, steps
from polygen.poly.tiling import Panels, Tiling
from polygen.schedule.model import Schedule

_THREADS, _COPY_ENGINE, _STORE_ENGINE = "threads", "tma.load", "tma.store"


def by_roles(tiles: Tiling, schedule: Schedule, panels: Panels, main: MainLoop) -> TileProgram:
    """The program.

    Args:
        tiles: the tile hierarchy; `tiles.warp` is one consumer's.
        schedule: stages, form, cluster, epilogue.
        panels: what the epilogue moves.
        main: what is multiplied.
    """
    shape = _Shape(tiles, schedule, panels, main)
    parts = [_main(shape), *_parts(shape), _end(shape)]
    places = (shape.producer, *((shape.loader,) if panels.operands else ()), shape.consumer)
    located = [_locate(place, shape) for place in places]
    begin = [*(Leaf(one.name) for one, _ in located), *(Leaf(s.name) for s in _prepare(shape))]
    return TileProgram(
        ("k_tiles", "tiles"),
        "k_tiles >= 1 and tiles >= 0",
        (*(b for _, b in located), *(b for part in parts for b in part.buffers)),
        (
            *(s for s, _ in located),
            *_prepare(shape),
            *(s for part in parts for s in part.statements),
        ),
        loop("i", flat(steps(*begin, *(flat(steps(part.order)) for part in parts)))),
        loop("i", flat(steps(*begin, *(flat(steps(part.schedule)) for part in parts)))),
        lags=tuple((f"ring_{ring.name}", schedule.pipeline.in_flight) for ring in main.rings),
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
    main: MainLoop

    @property
    def pingpong(self) -> bool:
        """Whether consumers take turns at whole tiles."""
        return self.schedule.roles.form == "pingpong"

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.schedule.cluster.blocks

    @property
    def completed(self) -> str:
        """What the sums are called that the epilogue reads."""
        return "total" if self.tiles.split > 1 else "sum"

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


def _filled(shape: _Shape, ring: Ring) -> str:
    """What the producer of one block writes of a ring.

    Blocks in one row of the cluster share tiles of the left operand, in one column of the right;
    each copies its part for all of them.
    """
    along = shape.schedule.cluster.m
    if shape.schedule.cluster.tiles == 1:
        return f"ring_{ring.name}[{','.join(('i', 'k', *shape.rank))}]"
    row, column = f"rank mod {along}", f"floor(rank/{along})"
    every = f"0 <= d < {shape.blocks}"
    if ring.side == "m":
        return f"ring_{ring.name}[i,k,d,{column}] : {every} and (d - rank) mod {along} = 0"
    return f"ring_{ring.name}[i,k,d,{row}] : {every} and floor(d/{along}) = {column}"


def _used(shape: _Shape, ring: Ring) -> str:
    """What a product of one block reads of a ring: all parts of its own copy."""
    cluster = shape.schedule.cluster
    if cluster.tiles == 1:
        return f"ring_{ring.name}[{','.join(('i', 'k', *shape.rank))}]"
    parts = cluster.n if ring.side == "m" else cluster.m
    return f"ring_{ring.name}[i,k,rank,q] : 0 <= q < {parts}"


def _main(shape: _Shape) -> Part:
    tiles, consumer, producer, main = shape.tiles, shape.consumer, shape.producer, shape.main
    k = "0 <= k < k_tiles"
    fill = TileStatement(
        "fill",
        ("i", "k"),
        f"{shape.own(producer)} and {k}",
        (_tile(producer),),
        tuple(_filled(shape, ring) for ring in main.rings),
        "move",
        unit(_COPY_ENGINE),
        producer,
    )
    own = f"{shape.own(consumer)} and {k}"
    rings = {ring.name: ring for ring in main.rings}
    inside = f"0 <= s < {tiles.k_steps} and 0 <= m < {tiles.atoms[0]}"
    products, sums = [], []
    for product in main.products:
        total = f"{product.called('sum')}[{shape.owner('i')},m]"
        tiles_read = (_used(shape, rings[x]) for x in (product.left, product.right))
        products.append(
            TileStatement(
                product.called("multiply"),
                ("i", "k", "s", "m"),
                f"{own} and {inside}",
                (*tiles_read, f"{total} : k + s > 0"),
                (total,),
                "product",
                unit("wgmma"),
                consumer,
                group="commit",
            )
        )
        sums.append(Buffer(product.called("sum"), "register", 1, len(consumer.agents)))
    threads = unit(_THREADS)
    commit = TileStatement("commit", ("i", "k"), own, (), (), "commit", threads, consumer)
    stages = shape.schedule.pipeline.stages
    buffers = tuple(
        Buffer(f"ring_{ring.name}", "shared", 2, len(shape.rank), stages) for ring in main.rings
    )
    body = steps("fill", loop("s", loop("m", steps(*(p.name for p in products)))), "commit")
    return Part(
        (fill, *products, commit),
        (*buffers, *sums),
        loop("k", body),
        loop("k", body, "separate[x]"),
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


def _parts(shape: _Shape) -> tuple[Part, ...]:
    """What joins the sums of several blocks, where they share them."""
    tiles, consumer = shape.tiles, shape.consumer
    if tiles.split == 1:
        return ()
    own = shape.own(consumer)
    return (partial_sums(consumer, own, shape.main.products, tiles.atoms[0], tiles.split),)


def _completed(shape: _Shape, m: str) -> tuple[str, ...]:
    """The sums that the epilogue reads: of instruction `m`, or totals, which are one cell."""
    products = (product.called(shape.completed) for product in shape.main.products)
    if shape.tiles.split > 1:
        return tuple(f"{name}[{shape.owner('i')}]" for name in products)
    condition = f" : m = {m}" if m != "m" else ""
    return tuple(f"{name}[{shape.owner('i')},m]{condition}" for name in products)


def _end(shape: _Shape) -> Part:
    tiles, panels, consumer = shape.tiles, shape.panels, shape.consumer
    threads, own = unit(_THREADS), shape.own(consumer)
    if not panels.columns:
        bounds = f"{own} and 0 <= m < {tiles.atoms[0]}"
        reads = (_tile(consumer), *_completed(shape, "m"))
        last = TileStatement("store", ("i", "m"), bounds, reads, (), "map", threads, consumer)
        each = loop("m", "store")
        return Part((last,), (), each, each)
    per_block = tiles.columns // panels.columns
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
            *_completed(shape, f"floor(p/{per_block})"),
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

    def panel(name: str, slots: int) -> Buffer:
        # Panels of a tile that fill whole rounds of the slots lie where their number says.
        slot = (("i", "p"), f"p mod {slots}") if count % slots == 0 else None
        return Buffer(name, "shared", 2, owners, slots, slot=slot)

    buffers = (
        *(panel(f"panel_{name}", schedule.prefetch) for name in panels.operands),
        *(panel(f"result_{name}", schedule.slots) for name in panels.outputs),
    )
    tree = loop("p", steps(*(f.name for f in fetches), "finish", "store"))
    return Part((*fetches, finish, store), buffers, tree, tree)
