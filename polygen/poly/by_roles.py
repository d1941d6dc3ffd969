"""The program of a kernel whose places have roles: a producer, loaders, consumers.

    producer   fill[i,k]                 one thread has the copy engine fill rings
               get[i,k,q,s] put[i,k,q,s] threads fill rings that it cannot: piece s of round q
    loader     fetch_r[i,p]              one thread fetches panels of an operand for one consumer
    consumer   multiply[i,k,s,m]         by a warpgroup from the rings
               read_scales[i,k] promote[i,k,m]  sums in blocks of k (`promotions`)
               read_a[i,k] take_a[i,k]   what that takes beside the ring, read a k tile ahead
               make_a[i,k,s,m]           threads compute fragments of what is in a ring, to multiply
                                         them from registers
               tally_a[i,k]              threads fold what is in a ring (`ring_tallies`)
               convert[i] multiply_rest[i,s,m]
                                         what goes on with the sums behind the k tiles
                                         (`rest_parts`)
               send[i] combine[i,q]      with a sum that the blocks of a cluster share: parts
                                         -> totals (`partial_sums`); or chunk by chunk of columns,
                                         send[i,chunk] combine[i,chunk,q]
               finish[i,p] store[i,p]    sums -> panel; one thread has the copy engine store it
               fetch_r[i,p] store[i,p]   or all threads fetch and store panels, line by line

Blocks are persistent: `i` counts the output tiles of one. Where some tiles have no products, those
that have some are the first `inside`: no others are filled and multiplied. Blocks of a cluster
share operands: each copies its part for all that need it. Or they share the sums of one tile, each
with a range of k tiles of its own: `k` counts those of a block. Where that is only so in the last
round, the first `own_tiles` of a block's tiles are its own, with all `k_tiles`, and it has
`part_tiles` of each of the others.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.hardware.units import unit
from polygen.poly.fold_parts import Passes, folded, passed
from polygen.poly.kernel_parts import Epilogue, MainLoop, Part, Ring, flat
from polygen.poly.partial_sums import partial_sums
from polygen.poly.promotions import begun, inner_cell, promotions, whole_blocks
from polygen.poly.rest_parts import first_of_run, rest_parts
from polygen.poly.ring_tallies import shared_before, tallied
from polygen.poly.role_filling import Filling, filling_of
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_program import (
    INSIDE,
    OWN_TILES,
    Buffer,
    Place,
    TileProgram,
    TileStatement,
)
from polygen.poly.tile_tree import Leaf, Node, Steps, loop, steps
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

_THREADS, _COPY_ENGINE, _STORE_ENGINE = "threads", "tma.load", "tma.store"
_MULTIPLIED = "multiplied"  # closes the steps of a k tile


def by_roles(tiles: Tiling, schedule: Schedule, epilogue: Epilogue, main: MainLoop) -> TileProgram:
    """The program.

    Args:
        tiles: the tile hierarchy; `tiles.warp` is one consumer's.
        schedule: stages, form, cluster, epilogue.
        epilogue: the panels that it moves, and whether it folds.
        main: what is multiplied.
    """
    panels = epilogue.panels
    shape = RoleShape(tiles, schedule, panels, main)
    end = _end(shape)
    consumer, own = shape.consumer, shape.own(shape.consumer)
    if epilogue.folds:
        end = folded(end, consumer, ("i",), own)
    each = f"{own} and 0 <= m < {tiles.atoms[0]}"
    values = shape.elements("m"), shape.elements(shape.row_of_panel)
    passes = Passes(epilogue.passes, values, (tile_of(consumer),))
    end = passed(
        end, consumer, ("i",), (own, each), _completed(shape, "m"), passes,
        ("group", tiles.warps[1]),
        cluster=(schedule.cluster.m, tiles.beside),
    )  # fmt: skip
    end = shared_before(end, consumer, ("i",), own, main.folded)
    parts = [_main(shape), *rest_parts(shape), *_parts(shape), end]
    loaders = (shape.loader,) if panels.operands and not shape.in_lines else ()
    places = (shape.producer, *loaders, shape.consumer)
    located = [_locate(place, shape) for place in places]
    begin = [*(Leaf(one.name) for one, _ in located), *(Leaf(s.name) for s in _prepare(shape))]
    begin += [Leaf(f"begin_{ring}") for ring in main.folded]
    more, known = shape.counts
    return TileProgram(
        ("k_tiles", "tiles", *more),
        f"k_tiles >= 1 and tiles >= 0{whole_blocks(shape.block_tiles)}{known}",
        (*(b for _, b in located), *(b for part in parts for b in part.buffers)),
        (
            *(s for s, _ in located),
            *_prepare(shape),
            *(s for part in parts for s in part.statements),
        ),
        loop("i", flat(steps(*begin, *(flat(steps(part.order)) for part in parts)))),
        loop("i", flat(steps(*begin, *(flat(steps(part.schedule)) for part in parts)))),
        lags=tuple((f"ring_{ring.name}", shape.lag) for ring in main.rings),
        fields=(
            ("ring", "pipeline.stages or pipeline.in_flight"),
            ("result", "epilogue.slots"),
            ("panel", "epilogue.prefetch"),
        ),
    )


def _locate(place: Place, shape: RoleShape) -> tuple[TileStatement, Buffer]:
    """Which output tile is the block's i-th; every place keeps that for itself."""
    name = f"locate_{place.name}"
    buffer = Buffer(f"tile_{place.name}", "scalar", 1, len(place.agents))
    cell = f"{buffer.name}[{','.join(('i', *place.agents))}]"
    statement = TileStatement(
        name,
        ("i",),
        shape.working(place) if place == shape.producer else shape.own(place),
        (),
        (cell,),
        "frame",
        unit(_THREADS),
        place,
        calls="locate",
    )
    return statement, buffer


def _used(shape: RoleShape, ring: Ring) -> str:
    """What a product of one block reads of a ring: all parts of its own copy."""
    if ring.pieces:
        return f"ring_{ring.name}[{','.join(('i', 'k', *shape.rank))},p] : 0 <= p < {ring.pieces}"
    cluster = shape.schedule.cluster
    if cluster.tiles == 1:
        return f"ring_{ring.name}[{','.join(('i', 'k', *shape.rank))}]"
    parts = cluster.n if ring.side == "m" else cluster.m
    return f"ring_{ring.name}[i,k,rank,q] : 0 <= q < {parts}"


def _main(shape: RoleShape) -> Part:
    tiles, consumer, main = shape.tiles, shape.consumer, shape.main
    k = shape.every_k
    filling = filling_of(shape)
    own = f"{shape.working(consumer)} and {k}"
    rings = {ring.name: ring for ring in main.rings}
    inside = f"0 <= s < {tiles.k_steps} and 0 <= m < {tiles.atoms[0]}"
    making, ahead = _making(shape, f"{own} and {inside}"), _beside(shape, own)
    products, sums = [], []
    for product in main.multiplied:
        every = f"{own} and {inside}"
        if main.rest is not None and product == main.rest.middle:
            every = first_of_run(shape, every)
        total, added = f"{product.called('sum')}[{shape.owner('i')},m]", "k + s > 0"
        if main.block:
            total, added = inner_cell(shape, product), begun(shape)
        tiles_read = (
            _fragment(shape, rings[x]) if rings[x].fragment else _used(shape, rings[x])
            for x in (product.left, product.right)
        )
        products.append(
            TileStatement(
                product.called("multiply"),
                ("i", "k", "s", "m"),
                every,
                (*tiles_read, f"{total} : {added}"),
                (total,),
                "product",
                unit("wgmma"),
                consumer,
                group="commit",
            )
        )
        sums.append(Buffer(product.called("sum"), "register", 1, len(consumer.agents)))
    threads = unit(_THREADS)
    # Fragments are written again a few steps later: each step is a group.
    closed: tuple[str, ...] = ("i", "k")
    steps_closed = own
    if making.statements:
        closed, steps_closed = ("i", "k", "s"), f"{own} and 0 <= s < {tiles.k_steps}"
    commit = TileStatement("commit", closed, steps_closed, (), (), "commit", threads, consumer)
    closing = [commit]
    if making.statements:  # and what counts slots is once in a k tile
        whole = TileStatement(_MULTIPLIED, ("i", "k"), own, (), (), "close", threads, consumer)
        closing = [replace(commit, group=whole.name), whole]
    stages = shape.schedule.pipeline.stages
    buffers = tuple(
        Buffer(f"ring_{ring.name}", "shared", 2, len(shape.rank), stages) for ring in main.rings
    )
    each = loop("m", steps(*(p.name for p in products)))
    multiply = steps(loop("s", each), "commit")
    if making.statements:
        multiply = steps(loop("s", flat(steps(making.order, each, "commit"))), _MULTIPLIED)
    tallies: list[TileStatement] = []
    registers: list[Buffer] = []
    for name in main.folded:
        made, held = tallied(
            name,
            _used(shape, rings[name]),
            consumer,
            (("i",), ("i", "k")),
            (shape.own(consumer), own),
        )
        tallies += made
        registers.append(held)
    multiply = flat(steps(multiply, *(f"tally_{name}" for name in main.folded)))
    promoted: tuple[TileStatement, ...] = ()
    if main.block:
        before, behind = promotions(shape)
        promoted = (*before.statements, *behind.statements)
        registers += before.buffers
        multiply = flat(steps(before.order, multiply, behind.order))
    return Part(
        (
            *(*filling.statements, *ahead.statements, *making.statements),
            *(*products, *closing, *tallies, *promoted),
        ),
        (*buffers, *filling.buffers, *ahead.buffers, *making.buffers, *sums, *registers),
        loop("k", flat(steps(filling.order, ahead.order, multiply))),
        loop(
            "k",
            flat(steps(filling.schedule, ahead.schedule, multiply)),
            "separate[x]",
            **filling.early,
            **ahead.early,
        ),
    )


def _fragment(shape: RoleShape, ring: Ring) -> str:
    """A fragment of an instruction, in the registers of its consumer."""
    return f"fragment_{ring.name}[{shape.owner('i', 'k', 's')},m]"


def _beside(shape: RoleShape, own: str) -> Filling:
    """What consumers read beside rings, a k tile ahead: it waits in registers of its own."""
    consumer, threads = shape.consumer, unit(_THREADS)
    statements, buffers, early = [], [], {}
    order: list[Node] = []
    schedule: list[Node] = []
    for ring in shape.main.rings:
        if not ring.beside:
            continue
        cell = f"[{shape.owner('i', 'k')}]"
        coming, there = f"ahead_{ring.name}", f"beside_{ring.name}"
        read, take = f"read_{ring.name}", f"take_{ring.name}"
        for name, reads, writes in (
            (read, (tile_of(consumer),), f"{coming}{cell}"),
            (take, (f"{coming}{cell}",), f"{there}{cell}"),
        ):
            statements.append(
                TileStatement(name, ("i", "k"), own, reads, (writes,), "move", threads, consumer)
            )
        buffers += [Buffer(name, "register", 2, len(consumer.agents)) for name in (coming, there)]
        order += [Leaf(read), Leaf(take)]
        schedule += [Leaf(take), Leaf(read)]
        early[read] = "k - 1"
    return Filling(
        tuple(statements), tuple(buffers), Steps(tuple(order)), Steps(tuple(schedule)), early
    )


def _making(shape: RoleShape, bounds: str) -> Part:
    """Fragments that consumers compute, some steps before they are written again."""
    statements, buffers = [], []
    consumer = shape.consumer
    for ring in shape.main.rings:
        if not ring.fragment:
            continue
        reads: tuple[str, ...] = (tile_of(consumer), _used(shape, ring))
        if ring.beside:
            reads = (*reads, f"beside_{ring.name}[{shape.owner('i', 'k')}]")
        name = f"make_{ring.name}"
        statements.append(
            TileStatement(
                name,
                ("i", "k", "s", "m"),
                bounds,
                reads,
                (_fragment(shape, ring),),
                "move",
                unit(_THREADS),
                consumer,
                group=_MULTIPLIED,
            )
        )
        slots, owners = shape.schedule.pipeline.fragments, len(consumer.agents)
        slot = (("i", "k", "s"), f"s mod {slots}")
        held = f"fragment_{ring.name}"
        buffers.append(Buffer(held, "register", 3, owners, slots, slot=slot))
    order = loop("m", steps(*(s.name for s in statements)))
    return Part(tuple(statements), tuple(buffers), order, order)


def _prepare(shape: RoleShape) -> tuple[TileStatement, ...]:
    """Operands with one value per column are brought near while the products run."""
    if not shape.panels.columns:
        return ()
    place = shape.consumer
    reads = (tile_of(place),)
    threads = unit(_THREADS)
    own = shape.own(place)
    return (TileStatement("prepare", ("i",), own, reads, (), "move", threads, place),)


def _parts(shape: RoleShape) -> tuple[Part, ...]:
    """What joins the sums of several blocks, where they share them."""
    tiles, consumer = shape.tiles, shape.consumer
    if tiles.split == 1:
        return ()
    own = shape.shared(shape.own(consumer))
    return (partial_sums(consumer, own, shape.main.products, tiles),)


def _completed(shape: RoleShape, m: str) -> tuple[str, ...]:
    """The sums that the epilogue reads: of instruction `m`, or totals, which are one cell."""
    products = (product.called(shape.completed) for product in shape.main.products)
    conditions = [f"m = {m}"] if m != "m" else []
    if shape.main.inside:  # behind the tiles that have products nobody reads sums
        conditions.append(f"i < {INSIDE}")
    if shape.completed == "total":
        return tuple(f"{name}[{shape.owner('i')}]" for name in products)
    condition = f" : {' and '.join(conditions)}" if conditions else ""
    return tuple(f"{name}[{shape.owner('i')},m]{condition}" for name in products)


def _end(shape: RoleShape) -> Part:
    tiles, panels, consumer = shape.tiles, shape.panels, shape.consumer
    threads, own = unit(_THREADS), shape.own(consumer)
    if not panels.columns:
        bounds = f"{own} and 0 <= m < {tiles.atoms[0]}"
        reads = (tile_of(consumer), *_completed(shape, "m"))
        last = TileStatement("store", ("i", "m"), bounds, reads, (), "map", threads, consumer)
        each = loop("m", "store")
        return Part((last,), (), each, each)
    per_block = tiles.columns // panels.columns
    count = tiles.atoms[0] * per_block
    p = f"0 <= p < {count}"
    if tiles.last:  # of a tile whose sums blocks share, a block has some of the columns
        p += f" and (i < {OWN_TILES} or p mod {per_block} < {per_block // tiles.split})"
    cell = shape.owner("i", "p")
    fetcher, by = shape.loader, unit(_COPY_ENGINE)
    if shape.in_lines:
        fetcher, by = consumer, threads
    fetches = tuple(
        TileStatement(
            f"fetch_{name}",
            ("i", "p"),
            f"{shape.own(fetcher)} and {p}",
            (tile_of(fetcher),),
            (f"panel_{name}[{cell}]",),
            "move",
            by,
            fetcher,
        )
        for name in panels.operands
    )
    results = tuple(f"result_{name}[{cell}]" for name in panels.outputs)
    finish = TileStatement(
        "finish",
        ("i", "p"),
        f"{own} and {p}",
        (
            tile_of(consumer),
            *_completed(shape, shape.row_of_panel),
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
        (tile_of(consumer), *results),
        (),
        "move",
        threads if shape.in_lines else unit(_STORE_ENGINE),
        consumer,
        executes="all" if shape.in_lines else "one",
        group="" if shape.in_lines else "store",
    )
    owners, schedule = len(consumer.agents), shape.schedule.epilogue
    counts = [count, count // tiles.split] if tiles.last else [count]

    def panel(name: str, slots: int) -> Buffer:
        # Panels of a tile that fill whole rounds of the slots lie where their number says.
        whole_rounds = all(one % slots == 0 for one in counts)
        in_order = not tiles.last or tiles.atoms[0] == 1
        slot = (("i", "p"), f"p mod {slots}") if whole_rounds and in_order else None
        return Buffer(name, "shared", 2, owners, slots, slot=slot)

    buffers = (
        *(panel(f"panel_{name}", schedule.prefetch) for name in panels.operands),
        *(panel(f"result_{name}", schedule.slots) for name in panels.outputs),
    )
    tree = loop("p", steps(*(f.name for f in fetches), "finish", "store"))
    return Part((*fetches, finish, store), buffers, tree, tree)
