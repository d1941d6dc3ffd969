"""The program of a chain whose warps do everything: copies, fragment loads, both products, scans.

    copy_a[k,p]               every warp its share of the rows of the first product -> ring, once
    copy_b[k,p] copy_c[k,p]   of its keys, and of the values
    load_a[k,s] load_b[k,s]   rings -> fragments of the first product
    clear[k] score[k,s,m,n]   its sums: a tile of 16 rows and more of a warp by the keys of a tile
    advance[k] weigh[k] rescale[k] convert[k]     as with roles (`by_chain`)
    load_c[k,s] mma[k,s,m,n]  the second product, from the registers of the first
    complete[] store[m]       and unfold[], fold[] around it where results are folded

Where layers are in front (`chain_layers`), these make the rows of the first product, at k = 0: what
they leave in registers is its left operand, and `load_a` loads that of the first of them.

A block has one tile of rows, and all of its warps all keys. Time of the loop is `t`: tile k of keys
and values is copied at t = k, and used at t = k + distance. Fragment loads run `lookahead` steps
ahead of the products, in both.
"""

from __future__ import annotations

from polygen.poly.by_chain import between, end
from polygen.poly.chain_layers import (
    ONCE,
    between_layers,
    layer_cells,
    middle_of,
    next_tiles,
    nth,
)
from polygen.poly.chain_shape import ChainShape
from polygen.poly.kernel_parts import ALWAYS, flat
from polygen.poly.tile_program import Buffer, TileProgram, TileStatement
from polygen.poly.tile_tree import Loop, Node, leaves, loop, steps
from polygen.schedule.model import Pipeline

_PARTS = 1  # a tile is copied at once


def chain_by_warps(shape: ChainShape, pipeline: Pipeline) -> TileProgram:
    """The program.

    Args:
        shape: tiles, and what is between the products.
        pipeline: slots of rings and fragments, and how far copies and loads run ahead.
    """
    warps, asynchronous = shape.consumer, shape.asynchronous
    zero, ends = ("k",) if shape.layers else (), end(shape)
    commit = f"0 <= t < k_tiles + {pipeline.distance}"
    statements = [
        *_copies(shape, asynchronous=asynchronous),
        *([warps.runs("commit", ("t",), commit, op="commit")] if asynchronous else []),
        warps.runs("zero", zero, ONCE if zero else ALWAYS, (), (_sums(shape),)),
        *_products(shape),
        *between(shape),
        *ends.statements,
    ]
    middle = [one.name for one in between(shape)]
    begin = () if shape.layers else ("zero",)
    copies = [loop("p", f"copy_{ring}") for ring in _rings(shape)]
    score, multiply = (_steps(shape, 0, *of) for of in _both(shape))
    front = _in_front(shape, 0, asynchronous=asynchronous)
    inside = flat(steps(*copies, *front, "clear", score, *middle, multiply))
    every = loop("k", inside, **_of_tiles(shape, 0))
    runs = _pipelined(shape, pipeline, middle, asynchronous=asynchronous)
    return TileProgram(
        ("k_tiles",),
        "k_tiles >= 1",
        (*_buffers(shape, pipeline), *ends.buffers),
        tuple(statements),
        flat(steps(*begin, every, ends.order)),
        flat(steps(*begin, runs, ends.schedule)),
        fields=(
            ("ring", "pipeline.stages, pipeline.distance or pipeline.order"),
            ("fragment", "pipeline.fragments or pipeline.lookahead"),
        ),
    )


def _rings(shape: ChainShape) -> tuple[str, ...]:
    """The operands that come from memory."""
    return (*_once(shape), *shape.key_rings, "c")


def _once(shape: ChainShape) -> tuple[str, ...]:
    """Those that are copied once, in front of everything: rows, and right operands of layers."""
    return ("a", *(one.right for one in shape.layer_tiles if not shape.late(one)))


def _both(shape: ChainShape) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Loads and products of each of the chain's two."""
    rows = () if shape.layers else ("load_a",)
    keys = (f"load_{ring}" for ring in shape.key_rings)
    scores = tuple(nth("score", number) for number in range(shape.products))
    return ((*rows, *keys), scores), (("load_c",), ("mma",))


def _in_front(shape: ChainShape, ahead: int, *, asynchronous: bool) -> tuple[Node | str, ...]:
    """The layers, one behind the other.

    Where a ring has fewer slots than tiles, a tile is copied once the one before it in its slot has
    been multiplied, while layers between them are.
    """
    found: list[Node | str] = []
    for at, one in enumerate(shape.layers):
        loads = (*(() if at else ("load_a",)), *(f"load_{right}" for right in one.rights))
        scores = tuple(nth(one.called("score"), number) for number in range(one.products))
        products = _steps(shape, ahead, loads, scores)
        late = next_tiles(shape.layer_tiles, one, shape.layer_slots)
        found += [one.called("clear"), products, *(loop("p", f"copy_{right}") for right in late)]
        found += [one.called("commit")] if late and asynchronous else []
        found += middle_of(one)
    return (*found, *(("zero",) if found else ()))


def _sums(shape: ChainShape) -> str:
    return f"{shape.of_rows('sum', 'm', 'n')} : {shape.every(shape.tiles.cta[1])}"


def _steps(
    shape: ChainShape, ahead: int, loads: tuple[str, ...], products: tuple[str, ...]
) -> Loop:
    """The instructions of a tile's products along what they sum over."""
    inner = (loop("m", loop("n", product)) for product in products)
    times = dict.fromkeys(products, f"s + {ahead}") if ahead else {}
    return loop("s", steps(*loads, *inner), "unroll[x]" if ahead else "", **times)


def _pipelined(
    shape: ChainShape, pipeline: Pipeline, middle: list[str], *, asynchronous: bool
) -> Loop:
    """The loop over tiles of keys: copies at t = k, all else at t = k + distance."""
    score, multiply = (_steps(shape, pipeline.lookahead, *of) for of in _both(shape))
    copies = [loop("p", f"copy_{ring}") for ring in _rings(shape)]
    front = flat(steps(*_in_front(shape, pipeline.lookahead, asynchronous=asynchronous)))
    groups: dict[str, tuple[Node | str, ...]] = {
        "copy": (*copies, *(("commit",) if asynchronous else ())),
        "mma": (front, "clear", score, *middle, multiply),
    }
    body = flat(steps(*(part for name in pipeline.order for part in groups[name])))
    both = (name for loads, products in _both(shape) for name in (*loads, *products))
    names = (*leaves(front), "clear", *both, *middle)
    times = dict.fromkeys(names, f"k + {pipeline.distance}")
    times |= {f"copy_{ring}": "k" for ring in _rings(shape)}
    times |= _of_tiles(shape, pipeline.distance)
    return loop("t", body, **times)


def _of_tiles(shape: ChainShape, distance: int) -> dict[str, str]:
    """When a layer's right operands are copied, loaded and multiplied, by statement."""
    found: dict[str, str] = {}
    for layer in shape.layers:
        for n, tile in enumerate(layer.tiles):
            names = (f"load_{tile.right}", nth(layer.called("score"), n))
            found |= dict.fromkeys(names, tile.time(distance))
            found[f"copy_{tile.right}"] = tile.time(distance if shape.late(tile) else 0)
    return found


def _buffers(shape: ChainShape, pipeline: Pipeline) -> tuple[Buffer, ...]:
    warps, keys = shape.consumer, (("k",), f"k mod {pipeline.stages}")
    whole = (("k",), "0")
    alone = ("a", *(one.ring for one in shape.layer_tiles if one.number < 0))
    once = [Buffer(f"ring_{one}", "shared", 0, 0, 1) for one in alone]
    rings = dict.fromkeys(one.ring for one in shape.layer_tiles if one.number >= 0)
    turns = (("k",), f"k mod {shape.layer_slots}")
    once += [Buffer(f"ring_{one}", "shared", 1, 0, shape.layer_slots, slot=turns) for one in rings]
    each = [
        Buffer(f"ring_{one}", "shared", 1, 0, pipeline.stages, slot=keys)
        for one in (*shape.key_rings, "c")
    ]
    # Barriers are placed for the first dependence first. Layers are run once: one for all tiles of
    # keys, in front of everything of a tile, is theirs as well.
    found = [*each, *once] if shape.layers else [*once, *each]
    for one, count in (
        ("a", _steps_of_rows(shape)),
        *((right, layer.steps) for layer in shape.layers for right in layer.rights),
        *((ring, shape.score_steps) for ring in shape.key_rings),
        ("c", shape.tiles.k_steps),
    ):
        held = min(pipeline.fragments, count)
        slot = (("k", "s"), f"s mod {held}")
        found.append(warps.keeps(f"fragment_{one}", 2, slots=held, slot=slot))
    found += layer_cells(shape.layers, warps)
    found += [warps.keeps(name, 1, slot=whole) for name in (*shape.all_scores, "weights")]
    found.append(warps.keeps("sum"))
    if shape.states:
        found.append(warps.keeps("states"))
    if shape.referenced:
        found.append(warps.keeps("correction", 1, slot=whole))
    return tuple(found)


def _copies(shape: ChainShape, *, asynchronous: bool) -> list[TileStatement]:
    """Global memory -> rings, by all warps."""
    found = []
    once = [("a", "ring_a[w,p]", ONCE, "commit")]
    for layer in shape.layers:
        tiles = shape.layer_tiles
        late = [one for one in tiles if one.right in next_tiles(tiles, layer, shape.layer_slots)]
        own = (one for one in layer.tiles if not shape.late(one))
        once += [(one.right, one.cell("w", "p"), one.bounds, "commit") for one in own]
        group = layer.called("commit")
        once += [(one.right, one.cell("w", "p"), one.bounds, group) for one in late]
        if late and asynchronous:
            found.append(shape.consumer.runs(group, ("k",), ONCE, op="commit"))
    each = ((one, f"ring_{one}[k,w,p]", shape.keys, "commit") for one in (*shape.key_rings, "c"))
    for ring, cell, bounds, group in (*once, *each):
        found.append(
            shape.consumer.runs(
                f"copy_{ring}", ("k", "p"), f"{bounds} and 0 <= p < {_PARTS}", (), (cell,),
                "move", "cp.async" if asynchronous else "threads",
                group=group if asynchronous else "",
            )
        )  # fmt: skip
    return found


def _steps_of_rows(shape: ChainShape) -> int:
    """Instructions along what the product of the rows from memory sums over."""
    return shape.layers[0].steps if shape.layers else shape.score_steps


def _products(shape: ChainShape) -> list[TileStatement]:
    """Fragment loads, sums that are cleared, and products: of layers, and the chain's two."""
    warps, keys = shape.consumer, shape.keys
    count = shape.consumers

    def load(ring: str, cell: str, number: int, of: str = keys) -> TileStatement:
        whole = f"{cell} : 0 <= v < {count} and 0 <= p < {_PARTS}"
        return warps.runs(
            f"load_{ring}", ("k", "s"), f"{of} and 0 <= s < {number}", (whole,),
            (f"fragment_{ring}[k,s,w]",), "move",
        )  # fmt: skip

    def product(
        name: str, number: int, columns: int, operands: tuple[str, ...], total: str, of: str = keys
    ) -> TileStatement:
        bounds = f"{of} and 0 <= s < {number} and {shape.every(columns)}"
        return warps.runs(
            name, ("k", "s", "m", "n"), bounds, (*operands, total), (total,), "product", "mma.sync"
        )

    scores = tuple(shape.of_keys(name, "m", "n") for name in shape.all_scores)
    keys_each = shape.tiles.cta[2]
    rows, found = f"fragment_a[{'0' if shape.layers else 'k'},s,w]", []
    once = ONCE if shape.layers else keys
    found.append(load("a", "ring_a[v,p]", _steps_of_rows(shape), once))
    for one in shape.layers:
        every = shape.every(one.columns)
        cells = [f"{nth(one.called('scores'), n)}[w,m,n]" for n in range(one.products)]
        cleared = tuple(f"{cell} : {every}" for cell in cells)
        found += [
            *(load(of.right, of.cell("v", "p"), one.steps, of.bounds) for of in one.tiles),
            warps.runs(one.called("clear"), ("k",), ONCE, (), cleared),
            *(
                product(
                    nth(one.called("score"), n), one.steps, one.columns,
                    (rows, f"fragment_{of.right}[k,s,w]"), cells[n], of.bounds,
                )
                for n, of in enumerate(one.tiles)
            ),
            *between_layers(one, warps, every),
        ]  # fmt: skip
        rows = f"{one.called('weights')}[w]"
    return [
        *found,
        *(load(ring, f"ring_{ring}[k,v,p]", shape.score_steps) for ring in shape.key_rings),
        warps.runs(
            "clear", ("k",), keys, (), tuple(f"{one} : {shape.every(keys_each)}" for one in scores)
        ),
        *(
            product(
                nth("score", n), shape.score_steps, keys_each,
                (rows, f"fragment_{ring}[k,s,w]"), scores[n],
            )
            for n, ring in enumerate(shape.key_rings)
        ),
        load("c", "ring_c[k,v,p]", shape.tiles.k_steps),
        product(
            shape.second, shape.tiles.k_steps, shape.tiles.cta[1],
            (shape.of_keys("weights"), "fragment_c[k,s,w]"), shape.of_rows("sum", "m", "n"),
        ),
    ]  # fmt: skip
