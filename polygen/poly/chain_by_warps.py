"""The program of a chain whose warps do everything: copies, fragment loads, both products, scans.

    copy_a[k,p]               every warp its share of the rows of the first product -> ring, once
    copy_b[k,p] copy_c[k,p]   of its keys, and of the values
    load_a[k,s] load_b[k,s]   rings -> fragments of the first product
    clear[k] score[k,s,m,n]   its sums: a tile of 16 rows and more of a warp by the keys of a tile
    advance[k] weigh[k] rescale[k] convert[k]     as with roles (`by_chain`)
    load_c[k,s] mma[k,s,m,n]  the second product, from the registers of the first
    complete[] store[m]

A block has one tile of rows, and all of its warps all keys. Time of the loop is `t`: tile k of keys
and values is copied at t = k, and used at t = k + distance. Fragment loads run `lookahead` steps
ahead of the products, in both.
"""

from __future__ import annotations

from polygen.poly.by_chain import ChainShape, between, end
from polygen.poly.kernel_parts import ALWAYS, flat
from polygen.poly.tile_program import Buffer, TileProgram, TileStatement
from polygen.poly.tile_tree import Loop, Node, loop, steps
from polygen.schedule.model import Pipeline

_PARTS = 1  # a tile is copied at once


def chain_by_warps(shape: ChainShape, pipeline: Pipeline) -> TileProgram:
    """The program.

    Args:
        shape: tiles, and what is between the products.
        pipeline: slots of rings and fragments, and how far copies and loads run ahead.
    """
    warps, asynchronous = shape.consumer, shape.asynchronous
    commit = f"0 <= t < k_tiles + {pipeline.distance}"
    statements = [
        *_copies(shape, asynchronous=asynchronous),
        *([warps.runs("commit", ("t",), commit, op="commit")] if asynchronous else []),
        warps.runs("zero", (), ALWAYS, (), (_sums(shape),)),
        *_products(shape),
        *between(shape),
        *end(shape),
    ]
    middle = [one.name for one in between(shape)]
    last = (*(("complete",) if shape.states else ()), loop("m", "store"))
    begin = ("zero",)
    copies = [loop("p", f"copy_{ring}") for ring in "abc"]
    score, multiply = (_steps(shape, 0, *of) for of in _BOTH)
    every = loop("k", flat(steps(*copies, "clear", score, *middle, multiply)))
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


# Loads and product of each.
_BOTH = ((("load_a", "load_b"), "score"), (("load_c",), "mma"))


def _sums(shape: ChainShape) -> str:
    return f"{shape.of_rows('sum', 'm', 'n')} : {shape.every(shape.tiles.cta[1])}"


def _steps(shape: ChainShape, ahead: int, loads: tuple[str, ...], product: str) -> Loop:
    """The instructions of a tile's product along what it sums over."""
    inner = loop("m", loop("n", product))
    times = {product: f"s + {ahead}"} if ahead else {}
    return loop("s", steps(*loads, inner), "unroll[x]" if ahead else "", **times)


def _pipelined(
    shape: ChainShape, pipeline: Pipeline, middle: list[str], *, asynchronous: bool
) -> Loop:
    """The loop over tiles of keys: copies at t = k, all else at t = k + distance."""
    score, multiply = (_steps(shape, pipeline.lookahead, *of) for of in _BOTH)
    copies = [loop("p", f"copy_{ring}") for ring in "abc"]
    groups: dict[str, tuple[Node | str, ...]] = {
        "copy": (*copies, *(("commit",) if asynchronous else ())),
        "mma": ("clear", score, *middle, multiply),
    }
    body = flat(steps(*(part for name in pipeline.order for part in groups[name])))
    names = ("clear", *(name for loads, product in _BOTH for name in (*loads, product)), *middle)
    times = dict.fromkeys(names, f"k + {pipeline.distance}")
    times |= {f"copy_{ring}": "k" for ring in "abc"}
    return loop("t", body, **times)


def _buffers(shape: ChainShape, pipeline: Pipeline) -> tuple[Buffer, ...]:
    warps, keys = shape.consumer, (("k",), f"k mod {pipeline.stages}")
    whole = (("k",), "0")
    found = [Buffer("ring_a", "shared", 0, 0, 1)]
    found += [Buffer(f"ring_{one}", "shared", 1, 0, pipeline.stages, slot=keys) for one in "bc"]
    for one, count in (
        ("a", shape.score_steps),
        ("b", shape.score_steps),
        ("c", shape.tiles.k_steps),
    ):
        held = min(pipeline.fragments, count)
        slot = (("k", "s"), f"s mod {held}")
        found.append(warps.keeps(f"fragment_{one}", 2, slots=held, slot=slot))
    found += [warps.keeps(name, 1, slot=whole) for name in ("scores", "weights")]
    found.append(warps.keeps("sum"))
    if shape.states:
        found.append(warps.keeps("states"))
    if shape.referenced:
        found.append(warps.keeps("correction", 1, slot=whole))
    return tuple(found)


def _copies(shape: ChainShape, *, asynchronous: bool) -> list[TileStatement]:
    """Global memory -> rings, by all warps."""
    found = []
    for ring, cell, bounds in (
        ("a", "[w,p]", "k = 0"), ("b", "[k,w,p]", shape.keys), ("c", "[k,w,p]", shape.keys),
    ):  # fmt: skip
        found.append(
            shape.consumer.runs(
                f"copy_{ring}", ("k", "p"), f"{bounds} and 0 <= p < {_PARTS}", (),
                (f"ring_{ring}{cell}",),
                "move", "cp.async" if asynchronous else "threads",
                group="commit" if asynchronous else "",
            )
        )  # fmt: skip
    return found


def _products(shape: ChainShape) -> list[TileStatement]:
    """Fragment loads, the first product's sums, and both products."""
    warps, keys = shape.consumer, shape.keys
    count = shape.consumers

    def load(ring: str, version: tuple[str, ...], number: int) -> TileStatement:
        cell = f"ring_{ring}[{','.join((*version, 'v', 'p'))}]"
        whole = f"{cell} : 0 <= v < {count} and 0 <= p < {_PARTS}"
        return warps.runs(
            f"load_{ring}", ("k", "s"), f"{keys} and 0 <= s < {number}", (whole,),
            (f"fragment_{ring}[k,s,w]",), "move",
        )  # fmt: skip

    def product(
        name: str, number: int, columns: int, operands: tuple[str, ...], total: str
    ) -> TileStatement:
        bounds = f"{keys} and 0 <= s < {number} and {shape.every(columns)}"
        return warps.runs(
            name, ("k", "s", "m", "n"), bounds, (*operands, total), (total,), "product", "mma.sync"
        )

    scores = shape.of_keys("scores", "m", "n")
    keys_each = shape.tiles.cta[2]
    return [
        load("a", (), shape.score_steps),
        load("b", ("k",), shape.score_steps),
        warps.runs("clear", ("k",), keys, (), (f"{scores} : {shape.every(keys_each)}",)),
        product(
            "score", shape.score_steps, keys_each,
            ("fragment_a[k,s,w]", "fragment_b[k,s,w]"), scores,
        ),
        load("c", ("k",), shape.tiles.k_steps),
        product(
            shape.second, shape.tiles.k_steps, shape.tiles.cta[1],
            (shape.of_keys("weights"), "fragment_c[k,s,w]"), shape.of_rows("sum", "m", "n"),
        ),
    ]  # fmt: skip
