"""The program of a chain whose warps do everything: copies, fragment loads, both products, scans.

    copy_a[k,p]               every warp its share of the rows of the first product -> ring, once
    copy_b[k,p] copy_c[k,p]   of its keys, and of the values
    load_a[k,s] load_b[k,s]   rings -> fragments of the first product
    clear[k] score[k,s,m,n]   its sums: a tile of 16 rows and more of a warp by the keys of a tile
    advance[k] weigh[k] rescale[k] convert[k]     as with roles (`by_chain`)
    load_c[k,s] mma[k,s,m,n]  the second product, from the registers of the first
    complete[] store[m]

Where layers are in front (`chain_layers`), these make the rows of the first product, at k = 0: what
they leave in registers is its left operand, and `load_a` loads that of the first of them.

A block has one tile of rows, and all of its warps all keys. Time of the loop is `t`: tile k of keys
and values is copied at t = k, and used at t = k + distance. Fragment loads run `lookahead` steps
ahead of the products, in both.
"""

from __future__ import annotations

from polygen.poly.by_chain import ChainShape, between, end
from polygen.poly.chain_layers import (
    ONCE,
    between_layers,
    layer_cells,
    middle_of,
    nth,
)
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
    zero = ("k",) if shape.layers else ()
    commit = f"0 <= t < k_tiles + {pipeline.distance}"
    statements = [
        *_copies(shape, asynchronous=asynchronous),
        *([warps.runs("commit", ("t",), commit, op="commit")] if asynchronous else []),
        warps.runs("zero", zero, ONCE if zero else ALWAYS, (), (_sums(shape),)),
        *_products(shape),
        *between(shape),
        *end(shape),
    ]
    middle = [one.name for one in between(shape)]
    last = (*(("complete",) if shape.states else ()), loop("m", "store"))
    begin = () if shape.layers else ("zero",)
    copies = [loop("p", f"copy_{ring}") for ring in _rings(shape)]
    score, multiply = (_steps(shape, 0, *of) for of in _both(shape))
    front = _in_front(shape, 0)
    every = loop("k", flat(steps(*copies, *front, "clear", score, *middle, multiply)))
    runs = _pipelined(shape, pipeline, middle, asynchronous=asynchronous)
    return TileProgram(
        ("k_tiles",),
        "k_tiles >= 1",
        _buffers(shape, pipeline),
        tuple(statements),
        flat(steps(*begin, every, *last)),
        flat(steps(*begin, runs, *last)),
        fields=(
            ("ring", "pipeline.stages, pipeline.distance or pipeline.order"),
            ("fragment", "pipeline.fragments or pipeline.lookahead"),
        ),
    )


def _rings(shape: ChainShape) -> tuple[str, ...]:
    """The operands that come from memory."""
    return (*_once(shape), *shape.key_rings, "c")


def _once(shape: ChainShape) -> tuple[str, ...]:
    """Those that are copied once: rows, and right operands of layers."""
    return ("a", *(right for one in shape.layers for right in one.rights))


def _both(shape: ChainShape) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Loads and products of each of the chain's two."""
    rows = () if shape.layers else ("load_a",)
    keys = (f"load_{ring}" for ring in shape.key_rings)
    scores = tuple(nth("score", number) for number in range(shape.products))
    return ((*rows, *keys), scores), (("load_c",), ("mma",))


def _in_front(shape: ChainShape, ahead: int) -> tuple[Node | str, ...]:
    """The layers, one behind the other."""
    found: list[Node | str] = []
    for at, one in enumerate(shape.layers):
        loads = (*(() if at else ("load_a",)), *(f"load_{right}" for right in one.rights))
        scores = tuple(nth(one.called("score"), number) for number in range(one.products))
        products = _steps(shape, ahead, loads, scores)
        found += [one.called("clear"), products, *middle_of(one)]
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
    front = flat(steps(*_in_front(shape, pipeline.lookahead)))
    groups: dict[str, tuple[Node | str, ...]] = {
        "copy": (*copies, *(("commit",) if asynchronous else ())),
        "mma": (front, "clear", score, *middle, multiply),
    }
    body = flat(steps(*(part for name in pipeline.order for part in groups[name])))
    both = (name for loads, products in _both(shape) for name in (*loads, *products))
    names = (*leaves(front), "clear", *both, *middle)
    times = dict.fromkeys(names, f"k + {pipeline.distance}")
    times |= {f"copy_{ring}": "k" for ring in _rings(shape)}
    return loop("t", body, **times)


def _buffers(shape: ChainShape, pipeline: Pipeline) -> tuple[Buffer, ...]:
    warps, keys = shape.consumer, (("k",), f"k mod {pipeline.stages}")
    whole = (("k",), "0")
    once = [Buffer(f"ring_{one}", "shared", 0, 0, 1) for one in _once(shape)]
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
    once = ((one, "[w,p]", ONCE) for one in _once(shape))
    each = ((one, "[k,w,p]", shape.keys) for one in (*shape.key_rings, "c"))
    for ring, cell, bounds in (*once, *each):
        found.append(
            shape.consumer.runs(
                f"copy_{ring}", ("k", "p"), f"{bounds} and 0 <= p < {_PARTS}", (),
                (f"ring_{ring}{cell}",),
                "move", "cp.async" if asynchronous else "threads",
                group="commit" if asynchronous else "",
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

    def load(ring: str, version: tuple[str, ...], number: int, of: str = keys) -> TileStatement:
        cell = f"ring_{ring}[{','.join((*version, 'v', 'p'))}]"
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
    rows, found = "fragment_a[k,s,w]", []
    found.append(load("a", (), _steps_of_rows(shape), ONCE if shape.layers else keys))
    for one in shape.layers:
        every = shape.every(one.columns)
        cells = [f"{nth(one.called('scores'), n)}[w,m,n]" for n in range(one.products)]
        cleared = tuple(f"{cell} : {every}" for cell in cells)
        found += [
            *(load(right, (), one.steps, ONCE) for right in one.rights),
            warps.runs(one.called("clear"), ("k",), ONCE, (), cleared),
            *(
                product(
                    nth(one.called("score"), n), one.steps, one.columns,
                    (rows, f"fragment_{right}[k,s,w]"), cells[n], ONCE,
                )
                for n, right in enumerate(one.rights)
            ),
            *between_layers(one, warps, every),
        ]  # fmt: skip
        rows = f"{one.called('weights')}[w]"
    return [
        *found,
        *(load(ring, ("k",), shape.score_steps) for ring in shape.key_rings),
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
        load("c", ("k",), shape.tiles.k_steps),
        product(
            shape.second, shape.tiles.k_steps, shape.tiles.cta[1],
            (shape.of_keys("weights"), "fragment_c[k,s,w]"), shape.of_rows("sum", "m", "n"),
        ),
    ]  # fmt: skip
