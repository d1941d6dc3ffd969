"""The program of a kernel whose places have roles: a producer, a streamer, loaders, consumers.

    producer   fill[i,k]                 one thread has the copy engine fill rings
               get[i,k,q,s] put[i,k,q,s] threads fill rings that it cannot: piece s of round q
    streamer   fill_ahead[i,k]           as `fill`, of what nobody writes while grids before run
    loader     fetch_r[i,p]              one thread fetches panels of an operand for one consumer
    consumer   multiply[i,k,s,m]         by a warpgroup from the rings
               read_scales[i,k] promote[i,k,m]  sums in blocks of k (`promotions`)
               read_a[i,k] take_a[i,k]   what that takes beside the ring, read a k tile ahead
               make_a[i,k,s,m]           threads compute fragments of what is in a ring, to multiply
                                         them from registers
               tally_a[i,k] share_a[i] leave_a[i]
                                         threads fold what is in a ring (`ring_tallies`)
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

from polygen.poly.fold_parts import Passes, folded, passed
from polygen.poly.kernel_parts import Epilogue, MainLoop, Part, Ring, alone, flat, in_turn
from polygen.poly.panels_out import panel_buffer, panels_out
from polygen.poly.partial_sums import partial_sums
from polygen.poly.promotions import begun, inner_cell, promotions, whole_blocks
from polygen.poly.rest_parts import first_of_run, rest_parts
from polygen.poly.ring_tallies import shared_before, tallied
from polygen.poly.role_filling import filling_of
from polygen.poly.role_shape import RoleShape, tile_of
from polygen.poly.tile_program import (
    INSIDE,
    OWN_TILES,
    Buffer,
    Place,
    TileProgram,
    TileStatement,
)
from polygen.poly.tile_tree import leaves, loop, steps
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

_STEP = ("i", "k")  # loops
_GROUP = "g"  # of the steps of a k tile, of which all fragments are computed first
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
    end = shared_before(end, consumer, ("i",), own, main, tiles, (tile_of(consumer),))
    parts = [_main(shape), *rest_parts(shape), *_parts(shape), end]
    loaders = (shape.loader,) if panels.operands and not shape.in_lines else ()
    early = (shape.streamer,) if shape.ahead else ()
    places = (shape.producer, *early, *loaders, shape.consumer)
    located = [_locate(place, shape) for place in places]
    first = [*(one for one, _ in located), *_prepare(shape)]
    begin = steps(*(s.name for s in first), *(f"begin_{ring}" for ring in main.folded))
    whole = in_turn(alone(first, (kept for _, kept in located), begin), *parts)
    more, known = shape.counts
    return TileProgram(
        ("k_tiles", "tiles", *more),
        f"k_tiles >= 1 and tiles >= 0{whole_blocks(shape.block_tiles)}{known}",
        whole.buffers,
        whole.statements,
        loop("i", whole.order),
        loop("i", whole.schedule),
        lags=tuple((f"ring_{ring.name}", shape.lag) for ring in main.rings),
        fields=(
            ("ring", "pipeline.stages or pipeline.in_flight"),
            ("inner", "pipeline.overlap"),
            ("result", "epilogue.slots"),
            ("panel", "epilogue.prefetch"),
        ),
    )


def _locate(place: Place, shape: RoleShape) -> tuple[TileStatement, Buffer]:
    """Which output tile is the block's i-th; every place keeps that for itself."""
    filling = place in (shape.producer, shape.streamer)
    own = shape.working(place) if filling else shape.own(place)
    name, cells = f"locate_{place.name}", (tile_of(place),)
    statement = place.runs(name, ("i",), own, (), cells, "frame", calls="locate")
    return statement, place.keeps(f"tile_{place.name}", 1, "scalar")


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
            consumer.runs(
                product.called("multiply"), ("i", "k", "s", "m"), every,
                (*tiles_read, f"{total} : {added}"), (total,), "product", "wgmma", group="commit",
            )
        )  # fmt: skip
        sums.append(consumer.keeps(product.called("sum"), 1))
    # Fragments are written again a few steps later: each step is a group, or some of them are.
    closed: tuple[str, ...] = ("i", "k")
    steps_closed, some = own, shape.schedule.pipeline.together
    grouped = "s" if some == 1 else _GROUP
    if making.statements:
        closed = ("i", "k", grouped)
        steps_closed = f"{own} and 0 <= {grouped} < {tiles.k_steps // some}"
    commit = consumer.runs("commit", closed, steps_closed, op="commit")
    closing = [commit]
    if making.statements:  # and what counts slots is once in a k tile
        whole = consumer.runs(_MULTIPLIED, ("i", "k"), own, op="close")
        closing = [replace(commit, group=whole.name), whole]
    stages = shape.schedule.pipeline.stages
    buffers = (shape.producer.keeps(f"ring_{r.name}", 2, "shared", stages) for r in main.rings)
    each = loop("m", steps(*(p.name for p in products)))
    multiply = steps(loop("s", each), "commit")
    if making.statements:
        each_step = loop("s", flat(steps(making.order, each, "commit")))
        if some > 1:
            made_first = steps(loop("s", making.order), loop("s", each), "commit")
            time = f"floor(s / {some})"
            when_made = dict.fromkeys((*leaves(making.order), *leaves(each)), time)
            each_step = loop(_GROUP, made_first, "unroll[x]", **when_made)
        multiply = steps(each_step, _MULTIPLIED)
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
    first = in_turn(filling, ahead)
    promoted: tuple[TileStatement, ...] = ()
    runs, when, together = multiply, dict(first.early), ("", 1)
    if main.block:
        blocks = promotions(shape)
        promoted, together = blocks.statements, blocks.together
        registers += blocks.buffers
        (before, behind), (early, late) = blocks.order, blocks.schedule
        multiply, runs = flat(steps(before, multiply, behind)), flat(steps(early, multiply, late))
        when |= dict(blocks.late)
    emitted = loop("k", flat(steps(first.schedule, runs)), "separate[x]", **when)
    return Part(
        (*first.statements, *making.statements, *products, *closing, *tallies, *promoted),
        (*buffers, *first.buffers, *making.buffers, *sums, *registers),
        loop("k", flat(steps(first.order, multiply))),
        replace(emitted, together=together),
    )


def _fragment(shape: RoleShape, ring: Ring) -> str:
    """A fragment of an instruction, in the registers of its consumer."""
    return f"fragment_{ring.name}[{shape.owner('i', 'k', 's')},m]"


def _beside(shape: RoleShape, own: str) -> Part:
    """What consumers read beside rings, a k tile ahead: it waits in registers of its own."""
    consumer, cell = shape.consumer, f"[{shape.owner('i', 'k')}]"
    parts = []
    for ring in shape.main.rings:
        if not ring.beside:
            continue
        coming, there = f"ahead_{ring.name}", f"beside_{ring.name}"
        read, take = f"read_{ring.name}", f"take_{ring.name}"
        reading = consumer.runs(read, _STEP, own, (tile_of(consumer),), (coming + cell,), "move")
        taking = consumer.runs(take, _STEP, own, (coming + cell,), (there + cell,), "move")
        kept = tuple(consumer.keeps(name, 2) for name in (coming, there))
        order, ahead = steps(read, take), steps(take, read)
        parts.append(Part((reading, taking), kept, order, ahead, ((read, "k - 1"),)))
    return in_turn(*parts)


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
            consumer.runs(
                name, ("i", "k", "s", "m"), bounds, reads, (_fragment(shape, ring),), "move",
                group=_MULTIPLIED,
            )
        )  # fmt: skip
        slots = shape.schedule.pipeline.fragments
        slot = (("i", "k", "s"), f"s mod {slots}")
        buffers.append(consumer.keeps(f"fragment_{ring.name}", 3, slots=slots, slot=slot))
    return alone(statements, buffers, loop("m", steps(*(s.name for s in statements))))


def _prepare(shape: RoleShape) -> tuple[TileStatement, ...]:
    """Operands with one value per column are brought near while the products run."""
    if not shape.panels.columns:
        return ()
    place = shape.consumer
    return (place.runs("prepare", ("i",), shape.own(place), (tile_of(place),), op="move"),)


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
    own = shape.own(consumer)
    if not panels.columns:
        bounds = f"{own} and 0 <= m < {tiles.atoms[0]}"
        reads = (tile_of(consumer), *_completed(shape, "m"))
        last = consumer.runs("store", ("i", "m"), bounds, reads)
        return alone([last], [], loop("m", "store"))
    per_block = tiles.columns // panels.columns
    count = tiles.atoms[0] * per_block
    p = f"0 <= p < {count}"
    if tiles.last:  # of a tile whose sums blocks share, a block has some of the columns
        p += f" and (i < {OWN_TILES} or p mod {per_block} < {per_block // tiles.split})"
    cell = shape.owner("i", "p")
    fetcher, brings = (consumer, "threads") if shape.in_lines else (shape.loader, "tma.load")
    panel_of = {name: f"panel_{name}[{cell}]" for name in panels.operands}
    fetches = tuple(
        fetcher.runs(
            f"fetch_{name}", ("i", "p"), f"{shape.own(fetcher)} and {p}",
            (tile_of(fetcher),), (panel,), "move", brings,
        )
        for name, panel in panel_of.items()
    )  # fmt: skip
    reads = (*_completed(shape, shape.row_of_panel), *panel_of.values())
    finish, store = panels_out(
        consumer, f"{own} and {p}", cell, reads, panels, tile_of(consumer), in_lines=shape.in_lines
    )
    schedule = shape.schedule.epilogue
    counts = [count, count // tiles.split] if tiles.last else [count]
    in_order = not tiles.last or tiles.atoms[0] == 1
    buffers = tuple(
        panel_buffer(consumer, f"{kind}_{name}", slots, counts, numbered=in_order)
        for kind, names, slots in (
            ("panel", panels.operands, schedule.prefetch),
            ("result", panels.outputs, schedule.slots),
        )
        for name in names
    )
    tree = loop("p", steps(*(f.name for f in fetches), "finish", "store"))
    return alone((*fetches, finish, store), buffers, tree)
