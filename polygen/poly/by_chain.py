"""The program of a chain: two products in one loop over keys, with scans between them.

    producer   fill_a[i] fill_b[i,k] fill_c[i,k]   one thread has the copy engine fill rings: the
                                                   rows of the first product, its keys, the values
               find_b[i,k] find_c[i,k]             of keys or values in pages it first reads where
                                                   these are, while it waits for a slot
    consumer   score[i,k,s,m]     a tile of the first product: 64 rows by the keys of a tile
               advance[i,k]       terms of the reference; its next state, and what corrects sums
               weigh[i,k]         terms under the reference; their states
               rescale[i,k]       the second product's sums, for the reference of this tile
               convert[i,k]       what is weighed -> the second product's left operand, in registers
               multiply[i,k,s,m]  the second product
               complete[i]        states of threads -> states of rows
               store[i,m]         sums and states -> results, straight from the registers; where
                                  results are folded it makes terms, between unfold[i] and fold[i],
                                  and where these use results of rows passes go before it: unfold_r0
                                  terms_r0 meet_r0 (`fold_parts`)
               finish[i,p] store[i,p]
                                  or sums and states -> panels; one thread has the copy engine store
                                  them, while the next tile is scored (`panels_out`)

Blocks are persistent: `i` counts the tiles of rows of one, `k` the tiles of keys, `s` instructions
along what is summed, `m` those along the rows of a consumer. Where a mask leaves tiles of rows
different numbers of tiles of keys, `k_tiles` is that of tile `i`: rings go on from one to the next.

The second product lags a tile: it runs while the next tile is scored and weighed. So the last
uses of rings stand where something else waits for them, so that both products are in flight.
"""

from __future__ import annotations

from polygen.poly.chain_layers import left_by
from polygen.poly.chain_shape import ChainShape
from polygen.poly.fold_parts import Passes, folded, passed
from polygen.poly.frames import Frames, Held
from polygen.poly.kernel_parts import Part, alone, flat, in_turn
from polygen.poly.panels_out import panel_buffer, panels_out
from polygen.poly.role_shape import tile_of
from polygen.poly.tile_program import Buffer, TileProgram, TileStatement, Varying
from polygen.poly.tile_tree import Node, loop, steps
from polygen.poly.tiling import in_pass


def by_chain(shape: ChainShape) -> TileProgram:
    """The program."""
    late = (*_finds(shape, "c"), "fill_c")
    lag = {name: "k + 1" for name in (*late, "multiply", "commit_multiply")}
    middle = [s.name for s in between(shape)]
    score, multiply = (loop("s", loop("m", name)) for name in ("score", "multiply"))
    first: tuple[Node | str, ...] = (*_finds(shape, "b"), "fill_b", score, "commit_score")
    second: tuple[Node | str, ...] = (*late, multiply, "commit_multiply")
    begin = ("locate_producer", "locate_consumer", "fill_a")
    ends = end(shape)
    every = loop("k", flat(steps(*first, *middle, *second)))
    runs = loop("k", flat(steps(*first, *second, *middle)), "separate[x]", **lag)
    # Where what a product makes is needed first: until then the other one may run as well.
    second_needed = "rescale" if shape.referenced else "convert"
    releases = (("ring_b", middle[0]), ("ring_c", second_needed))
    return TileProgram(
        ("k_tiles", "tiles"),
        "k_tiles >= 1 and tiles >= 0",
        (*_buffers(shape), *ends.buffers),
        (*_fills(shape), *_products(shape), *between(shape), *ends.statements),
        loop("i", flat(steps(*begin, every, ends.order))),
        loop("i", flat(steps(*begin, runs, ends.schedule))),
        fields=(
            ("ring", "pipeline.stages or pipeline.in_flight"),
            ("scores", "pipeline.in_flight"),
            ("weights", "pipeline.in_flight"),
            ("result", "epilogue.slots"),
        ),
        releases=releases,
        turns=(("score", "commit_multiply"),) if shape.turns else (),
        varying=varying(shape),
    )


def varying(shape: ChainShape) -> Varying | None:
    """The number of tiles of keys, where it is not the same for all tiles of rows.

    Slots are taken again as many versions later as a ring has: with a tile of keys for each tile of
    rows, so many tiles of rows later.
    """
    if not shape.varying:
        return None
    return Varying("k_tiles", "i", 1, 1 + max(shape.stages, shape.row_slots))


def frames(shape: ChainShape) -> Frames:
    """Under which tile's reference sums are taken, and left."""
    if not shape.referenced:
        return Frames("sum", ())
    rows = "".join(f"{loop}," for loop in shape.rows_of_block)
    now, before, last = (f"[{rows}{key}]" for key in ("k", "k-1", "k_tiles - 1"))
    cleared = () if shape.roles else (Held("zero", "", "[0]"),)
    ends = (*(in_pass("terms", number) for number in range(len(shape.passes))), shape.ends)
    return Frames(
        "sum",
        (
            *cleared,
            Held("rescale", before, now),
            Held(shape.second, now, now),
            *(Held(name, last, "") for name in ends),
        ),
    )


def _buffers(shape: ChainShape) -> tuple[Buffer, ...]:
    producer, consumer = shape.producer, shape.consumer
    found = [
        *(place.keeps(f"tile_{place.name}", 1, "scalar") for place in (producer, consumer)),
        *(producer.keeps(page_registers(ring), 2, "scalar") for ring in shape.paged),
        producer.keeps("ring_a", 1, "shared", shape.row_slots),
        producer.keeps("ring_b", 2, "shared", shape.stages),
        producer.keeps("ring_c", 2, "shared", shape.stages),
        *(consumer.keeps(name, 2) for name in ("scores", "weights")),
        consumer.keeps("sum", 1),
    ]
    if shape.states:
        found.append(consumer.keeps("states", 1))
    if shape.referenced:
        found.append(consumer.keeps("correction", 2))
    for name in shape.panels.outputs:
        found.append(panel_buffer(consumer, f"result_{name}", shape.slots, [shape.panel_count]))
    return tuple(found)


def _finds(shape: ChainShape, ring: str) -> tuple[str, ...]:
    """The statement that finds the pages of a ring's next tile; none where it has no pages."""
    return (f"find_{ring}",) if ring in shape.paged else ()


def page_registers(ring: str) -> str:
    """Where the numbers of a tile's pages are, from the table to the copies."""
    return f"page_{ring}"


def _fills(shape: ChainShape) -> tuple[TileStatement, ...]:
    rows = "0 <= i < tiles"
    keys = f"{rows} and 0 <= k < k_tiles"
    producer, found = shape.producer, []
    for place in (producer, shape.consumer):
        name, cells = f"locate_{place.name}", (tile_of(place),)
        found.append(place.runs(name, ("i",), rows, (), cells, "frame", calls="locate"))
    reads = (tile_of(producer),)
    for ring, loops, bounds in (
        ("a", ("i",), rows),
        ("b", ("i", "k"), keys),
        ("c", ("i", "k"), keys),
    ):
        cell = f"ring_{ring}[{','.join(loops)}]"
        own: tuple[str, ...] = reads
        if ring in shape.paged:
            pages = f"{page_registers(ring)}[{','.join(loops)}]"
            own = (*reads, pages)
            found.append(producer.runs(f"find_{ring}", loops, bounds, reads, (pages,)))
        found.append(producer.runs(f"fill_{ring}", loops, bounds, own, (cell,), "move", "tma.load"))
    return tuple(found)


def _products(shape: ChainShape) -> tuple[TileStatement, ...]:
    consumer = shape.consumer
    keys, m = "0 <= i < tiles and 0 <= k < k_tiles", f"0 <= m < {shape.tiles.atoms[0]}"
    scores, total = "scores[i,k,group,m]", "sum[i,group,m]"
    loops = ("i", "k", "s", "m")
    score = consumer.runs(
        "score", loops, f"{keys} and 0 <= s < {shape.score_steps} and {m}",
        ("ring_a[i]", "ring_b[i,k]", f"{scores} : s > 0"), (scores,),
        "product", "wgmma", group="commit_score",
    )  # fmt: skip
    multiply = consumer.runs(
        "multiply", loops, f"{keys} and 0 <= s < {shape.tiles.k_steps} and {m}",
        ("weights[i,k,group]", "ring_c[i,k]", f"{total} : k + s > 0"), (total,),
        "product", "wgmma", group="commit_multiply",
    )  # fmt: skip
    # Behind the first scores of a row tile nothing is multiplied yet: the group is empty, and as
    # many groups follow the scores as later on.
    behind = "0 <= i < tiles and -1 <= k < k_tiles"
    commits = (("commit_score", keys), ("commit_multiply", behind))
    closing = (consumer.runs(name, ("i", "k"), own, op="commit") for name, own in commits)
    return (score, multiply, *closing)


def between(shape: ChainShape) -> tuple[TileStatement, ...]:
    """What runs from the scores of a tile to the second product's operand."""
    consumer, loops, keys = shape.consumer, (*shape.rows_of_block, "k"), shape.keys
    scores, *beside = (
        f"{shape.of_keys(name, *shape.atoms)} : {shape.every(shape.tiles.cta[2])}"
        for name in shape.all_scores
    )
    of_layers = (f"{left_by(name)}[{','.join((*consumer.agents, *shape.atoms))}]"
                 for name in shape.again)  # fmt: skip
    beside += [f"{cell} : {shape.every(shape.tiles.cta[2])}" for cell in of_layers]
    sums = f"{shape.of_rows('sum', *shape.atoms)} : {shape.every(shape.tiles.cta[1])}"
    states, seen = shape.of_rows("states"), f"{shape.of_rows('states')} : k > 0"
    correction, weights = shape.of_keys("correction"), shape.of_keys("weights")
    found = []
    if shape.referenced:
        reads, writes = (*shape.located, scores, *beside, seen), (scores, states, correction)
        beside = []
        found.append(consumer.runs("advance", loops, keys, reads, writes))
    own = (states,) if shape.states else ()
    before = ((states,) if shape.referenced else (seen,)) if shape.states else ()
    corrects = (correction,) if shape.referenced else ()
    reads = (*shape.located, scores, *beside, *before, *corrects)
    found.append(consumer.runs("weigh", loops, keys, reads, (scores, *own)))
    if shape.referenced:
        later = f"{keys} and k > 0"
        found.append(consumer.runs("rescale", loops, later, (correction, sums), (sums,)))
    found.append(consumer.runs("convert", loops, keys, (scores,), (weights,)))
    return tuple(found)


def end(shape: ChainShape) -> Part:
    """What becomes of sums and states behind the last tile of keys.

    Where there are slots for all panels of a tile they are made first, and then stored: what the
    slots wait for are the stores of a whole tile before. Else they go one by one.
    """
    consumer, loops = shape.consumer, shape.rows_of_block
    states = (shape.of_rows("states"),) if shape.states else ()
    complete = (consumer.runs("complete", loops, shape.rows, states, states),) if states else ()
    first = [one.name for one in complete]
    if shape.panels.columns:
        bounds = f"{shape.rows} and 0 <= p < {shape.panel_count}"
        m = f"floor(p/{shape.panels_beside})"
        reads = (f"sum[i,group,m] : m = {m}", *states)
        (located,) = shape.located
        out = panels_out(consumer, bounds, "i,p,group", reads, shape.panels, located)
        if shape.slots % shape.panel_count == 0:
            leave = steps(*first, loop("p", "finish"), loop("p", "store"))
        else:
            leave = steps(*first, loop("p", steps("finish", "store")))
        return alone((*complete, *out), (), leave)
    each = f"{shape.rows} and 0 <= m < {shape.tiles.atoms[0]}"
    cell = shape.of_rows("", *shape.atoms)
    if not shape.roles:
        cell = f"{cell} : 0 <= n < {shape.tiles.atoms[1]}"
    total, place = f"sum{cell}", (*shape.located, *shape.left, *states)
    reads = (*shape.located, total, *shape.left, *states)
    store = consumer.runs("store", (*loops, "m"), each, reads)
    part = alone((store,), (), loop("m", "store"))
    part = folded(part, consumer, loops, shape.rows) if shape.folds else part
    over = Passes(shape.passes, (cell, cell), place)
    part = passed(part, consumer, loops, (shape.rows, each), (total,), over)
    return in_turn(alone(complete, (), steps(*first)), part)
