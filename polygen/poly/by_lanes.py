"""The program of a kernel of dot products: rows stream from memory into the lanes of each warp.

    load_a[k,s] load_b[k,s]   global memory -> registers, 16 bytes of a row for every lane
    dot[k,s,m,n]              registers -> the parts of a sum that the lanes have
    store[m]                  parts -> one sum, by exchanges between lanes -> results

Nothing is shared between warps, so that none waits for another; of a dependent launch each waits
for the grids before, behind the first loads of what nobody writes meanwhile. A warp has all of k;
the lanes share it, a chunk each of every step. The operand that carries n streams: its loads run
`lookahead` steps ahead, into a ring of `fragments` registers. The other one is the same for all
warps, and comes from the cache when it is needed.
"""

from __future__ import annotations

from polygen.hardware.device import common_facts
from polygen.poly.kernel_parts import ALWAYS, MainLoop
from polygen.poly.tile_program import Place, TileProgram
from polygen.poly.tile_tree import Leaf, Loop, Node, loop, steps
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule

STREAMED = "n"  # the side whose loads run ahead


def held(schedule: Schedule, tiles: Tiling, side: str) -> int:
    """Steps of an operand of one side that registers hold."""
    return min(schedule.pipeline.fragments, tiles.k_steps) if side == STREAMED else 1


def by_lanes(tiles: Tiling, schedule: Schedule, main: MainLoop) -> TileProgram:
    """The program.

    Args:
        tiles: the tile hierarchy; an instruction is one row by one column.
        schedule: registers of what streams, and how far it runs ahead.
        main: what is multiplied.
    """
    warps = Place("warps", ("w",), (tiles.warp_count,), common_facts()["warp_size"])
    rows, columns = tiles.atoms
    step = f"0 <= k < k_tiles and 0 <= s < {tiles.k_steps}"
    cells = f"0 <= m < {rows} and 0 <= n < {columns}"
    sums = tuple(f"{one.called('sum')}[w,m,n]" for one in main.products)
    all_sums = tuple(f"{total} : {cells}" for total in sums)
    loads = tuple(
        warps.runs(
            f"load_{ring.name}",
            ("k", "s"),
            step,
            (),
            (f"fragment_{ring.name}[k,s,w]",),
            "move",
            settled=ring.ahead,
        )
        for ring in main.rings
    )
    products = tuple(
        warps.runs(
            one.called("dot"), ("k", "s", "m", "n"), f"{step} and {cells}",
            (f"fragment_{one.left}[k,s,w]", f"fragment_{one.right}[k,s,w]", total), (total,),
            "product", "dot",
        )
        for one, total in zip(main.products, sums, strict=True)
    )  # fmt: skip
    early = any(ring.ahead for ring in main.rings)
    zero = warps.runs("zero", (), ALWAYS, (), all_sums, settled=early)
    row = tuple(f"{total} : 0 <= n < {columns}" for total in sums)
    store = warps.runs("store", ("m",), f"0 <= m < {rows}", row)
    each: list[Node] = [loop("m", loop("n", one.name)) for one in products]
    order = loop("k", loop("s", steps(*(one.name for one in loads), *each)))
    end = loop("m", "store")
    return TileProgram(
        ("k_tiles",),
        "k_tiles >= 1",
        (
            *(
                warps.keeps(
                    f"fragment_{ring.name}", 2, slots=held(schedule, tiles, ring.side),
                    slot=(("k", "s"), f"s mod {held(schedule, tiles, ring.side)}"),
                )
                for ring in main.rings
            ),
            *(warps.keeps(one.called("sum")) for one in main.products),
        ),
        (zero, *loads, *products, store),
        steps("zero", order, end),
        steps("zero", _streamed(tiles, schedule, main, each), end),
        fields=(
            ("fragment", "pipeline.fragments or pipeline.lookahead"),
            ("sum", "pipeline.lookahead"),
        ),
    )  # fmt: skip


def _streamed(tiles: Tiling, schedule: Schedule, main: MainLoop, each: list[Node]) -> Loop:
    """The k loop: what streams is loaded `lookahead` steps before its products, in any k tile."""
    ahead, count = schedule.pipeline.lookahead, tiles.k_steps
    early = [Leaf(f"load_{ring.name}") for ring in main.rings if ring.side == STREAMED]
    late = [Leaf(f"load_{ring.name}") for ring in main.rings if ring.side != STREAMED]
    names = [one.called("dot") for one in main.products] + [one.name for one in late]
    inner = {name: f"(s + {ahead}) mod {count}" for name in names}
    outer = {name: f"k + floor((s + {ahead})/{count})" for name in names}
    body = loop("s", steps(*early, *late, *each), "unroll[x]", **inner)
    return loop("k", body, "separate[x]", **outer)
