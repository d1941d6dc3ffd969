"""The program of a kernel whose warps do everything: copies, fragment loads, products, epilogue.

    fetch_a[k,p] fetch_b[k,p] where copies are staged: every warp its share, memory -> registers
    copy_a[k,p] copy_b[k,p]   every warp its share, by cp.async or through registers -> ring
    load_a[k,s] load_b[k,s]   ring -> fragments
    mma[k,s,m,n]              fragments -> sums
    clear[k] read_scales[k]   in front of the products of a block of k, and behind them
    promote[k]                its inner sum -> sums (`promotions`)
    tally_a[k]                ring -> what is folded of its elements (`ring_tallies`)
    share_a leave_a           that -> numbers of rows, in shared memory, and outputs
    stage[m] store[r]         sums -> scratch -> results, or store[m] from the fragments

Time of the main loop is `t`: a copy of k tile k runs at t = k, the products that need it at t = k +
distance. Fragment loads run `lookahead` MMA steps ahead. Prologue, steady state and tail are not
written anywhere: they are the pieces into which isl splits the loop.

A staged copy is two statements, so that products stand between them and hide the way from memory:
with the MMAs first, `fetch` runs before them and `copy` behind; with the copy first, what was
fetched one step before is copied, and the next is fetched.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.hardware.device import common_facts
from polygen.poly.fold_parts import Passes, folded, passed
from polygen.poly.kernel_parts import ALWAYS, Epilogue, MainLoop, Part, Product, alone, flat
from polygen.poly.promotions import ByWarps, inner_of_warp, whole_blocks
from polygen.poly.promotions import by_warps as promoted_by_warps
from polygen.poly.ring_tallies import shared_before, tallied
from polygen.poly.tile_program import INSIDE, Buffer, Place, TileProgram, TileStatement
from polygen.poly.tile_tree import Leaf, Loop, Node, loop, steps
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Schedule


def copy_parts(tiles: Tiling, schedule: Schedule) -> int:
    """Parts into which the copy of a k tile is cut: one per MMA step when copies are spread."""
    return tiles.k_steps if spread_copies(schedule) else 1


def spread_copies(schedule: Schedule) -> bool:
    """Whether copies run between the MMA steps instead of as a group of their own."""
    return schedule.pipeline.copies == "spread" and schedule.loops.mma[0] == "k"


def by_warps(
    tiles: Tiling, schedule: Schedule, epilogue: Epilogue, main: MainLoop, *, asynchronous: bool
) -> TileProgram:
    """The program.

    Args:
        tiles: the tile hierarchy.
        schedule: stages, loop orders, epilogue.
        epilogue: how a staged one walks a warp tile, and whether it folds.
        main: what is multiplied.
        asynchronous: whether copies run in the background until waited for, but for those of
            operands that are computed.
    """
    warps = Place("warps", ("w",), (tiles.warp_count,), common_facts()["warp_size"])
    loops = _main(tiles, schedule, warps, main, asynchronous=asynchronous)
    end = _end(tiles, schedule, epilogue, warps, main)
    sums = tuple(f"{p.called('sum')}[w,m,n] : {_atoms(tiles)}" for p in main.products)
    first: tuple[TileStatement, ...] = (warps.runs("zero", (), ALWAYS, (), sums),)
    end = shared_before(end, warps, (), ALWAYS, main, tiles)
    if main.block:  # the first promotion of a sum overwrites it
        first = ()
    phases = {"main": loops.schedule, "epilogue": end.schedule}
    begin = (*(one.name for one in first), *(f"begin_{ring}" for ring in main.folded))
    parameters: tuple[str, ...] = ("k_tiles",)
    context, moved = f"k_tiles >= 1{whole_blocks(main.block // tiles.cta[2])}", loops.statements
    if main.inside:  # the block's only tile has products, or none
        parameters, context = (*parameters, INSIDE), f"{context} and 0 <= {INSIDE} <= 1"
        moved = tuple(replace(s, bounds=f"{s.bounds} and {INSIDE} >= 1") for s in moved)
    return TileProgram(
        parameters,
        context,
        (*loops.buffers, *end.buffers),
        (*first, *moved, *end.statements),
        flat(steps(*begin, loops.order, end.order)),
        flat(steps(*begin, *(phases[name] for name in schedule.loops.phases))),
        fields=(
            ("ring", "pipeline.stages, pipeline.distance or pipeline.order"),
            ("staged", "pipeline.distance or pipeline.order"),
            ("fragment", "pipeline.fragments, pipeline.lookahead or loops.mma"),
            ("sum", "loops.phases, loops.k or loops.mma"),
            ("scratch", "loops.phases"),
        ),
    )


def _atoms(tiles: Tiling) -> str:
    atoms_m, atoms_n = tiles.atoms
    return f"0 <= m < {atoms_m} and 0 <= n < {atoms_n}"


def _main(
    tiles: Tiling, schedule: Schedule, warps: Place, main: MainLoop, *, asynchronous: bool
) -> Part:
    pipeline = schedule.pipeline
    k, s = "0 <= k < k_tiles", f"0 <= s < {tiles.k_steps}"
    statements: list[TileStatement] = []
    buffers: list[Buffer] = []
    held = min(pipeline.fragments, tiles.k_steps)  # no more than there are steps are ever in use
    for ring in main.rings:
        background = asynchronous and not ring.computed
        statements += _copy_and_load(
            tiles, schedule, warps, ring.name, asynchronous=background, staged=ring.staged
        )
        slots = (("k",), f"k mod {pipeline.stages}")
        registers = (("k", "s"), f"s mod {held}")
        buffers += [
            Buffer(f"ring_{ring.name}", "shared", 1, 0, pipeline.stages, slot=slots),
            warps.keeps(f"fragment_{ring.name}", 2, slots=held, slot=registers),
        ]
        if ring.staged:
            buffers.append(warps.keeps(staging(ring.name), 1, slot=(("k",), "0")))
    blocks = promoted_by_warps(warps, main, tiles.cta[2], _atoms(tiles))
    for product in main.products:
        total = f"{product.called('sum')}[w,m,n]"
        if main.block:
            total = inner_of_warp(product, blocks.each)
        fragments = (f"fragment_{product.left}[k,s,w]", f"fragment_{product.right}[k,s,w]")
        statements.append(
            warps.runs(
                product.called("mma"), ("k", "s", "m", "n"), f"{k} and {s} and {_atoms(tiles)}",
                (*fragments, total), (total,), "product", "mma.sync",
            )
        )  # fmt: skip
        buffers.append(warps.keeps(product.called("sum")))
    for name in main.folded:
        whole = _whole(tiles, schedule, name)
        made, held_terms = tallied(name, whole, warps, ((), ("k",)), (ALWAYS, k))
        statements += made
        buffers.append(held_terms)
    if asynchronous:
        bounds = f"0 <= t < k_tiles + {pipeline.distance}"
        statements.append(warps.runs("commit", ("t",), bounds, op="commit"))
    statements += blocks.statements
    buffers += blocks.buffers
    copies = [loop("p", f"fetch_{ring.name}") for ring in main.rings if ring.staged]
    copies += [loop("p", f"copy_{ring.name}") for ring in main.rings]
    loads = [Leaf(f"load_{ring.name}") for ring in main.rings]
    multiply = [_nest(product, ("m", "n")) for product in main.products]
    tallies = [f"tally_{ring}" for ring in main.folded]
    each = loop("s", steps(*loads, *multiply))
    order = loop("k", steps(*copies, *blocks.before, each, *blocks.behind, *tallies))
    return Part(
        tuple(statements),
        tuple(buffers),
        order,
        _pipelined(tiles, schedule, main, blocks, asynchronous=asynchronous),
    )


def staging(ring: str) -> str:
    """The registers in which a warp's share of an operand's tile waits for its slot of the ring."""
    return f"staged_{ring}"


def _copy_and_load(
    tiles: Tiling, schedule: Schedule, warps: Place, ring: str, *, asynchronous: bool, staged: bool
) -> tuple[TileStatement, ...]:
    """Global memory -> ring, by all warps; ring -> the fragments of each warp."""
    parts = copy_parts(tiles, schedule)
    held = (f"{staging(ring)}[k,w,p]",) if staged else ()
    copy = warps.runs(
        f"copy_{ring}", ("k", "p"), f"0 <= k < k_tiles and 0 <= p < {parts}",
        held, (f"ring_{ring}[k,w,p]",), "move", "cp.async" if asynchronous else "threads",
        group="commit" if asynchronous else "",
    )  # fmt: skip
    load = warps.runs(
        f"load_{ring}", ("k", "s"), f"0 <= k < k_tiles and 0 <= s < {tiles.k_steps}",
        (_whole(tiles, schedule, ring),), (f"fragment_{ring}[k,s,w]",), "move",
    )  # fmt: skip
    if not staged:
        return copy, load
    fetch = replace(copy, name=f"fetch_{ring}", reads=(), writes=held)
    return fetch, copy, load


def _whole(tiles: Tiling, schedule: Schedule, ring: str) -> str:
    """A tile in a ring, which all warps have copied a share of."""
    parts = copy_parts(tiles, schedule)
    return f"ring_{ring}[k,v,p] : 0 <= v < {tiles.warp_count} and 0 <= p < {parts}"


def _nest(product: Product, dims: tuple[str, ...]) -> Node:
    """The loops over the instructions of a product, outermost first."""
    names = {"k": "s", "m": "m", "n": "n"}
    inner: Node = Leaf(product.called("mma"))
    for dim in reversed(dims):
        inner = loop(names[dim], inner)
    return inner


def _pipelined(
    tiles: Tiling, schedule: Schedule, main: MainLoop, blocks: ByWarps, *, asynchronous: bool
) -> Loop:
    """The k loop: a copy of k tile k runs at t = k, the products with it at t = k + distance.

    With the copy first, staged ones run a step later than what they wait for is fetched.
    """
    pipeline, forward = schedule.pipeline, schedule.loops.k == "forward"
    at = "k" if forward else "k_tiles - 1 - k"
    later = f"{at} + {pipeline.distance}"
    commit = ("commit",) if asynchronous else ()
    staged = [ring.name for ring in main.rings if ring.staged]
    times = {f"copy_{ring.name}": at for ring in main.rings}
    times |= {f"fetch_{name}": at for name in staged}
    if pipeline.order[0] == "copy":
        times |= {f"copy_{name}": f"{at} + 1" for name in staged}
    times |= {f"load_{ring.name}": later for ring in main.rings}
    tallies = [f"tally_{ring}" for ring in main.folded]
    times |= dict.fromkeys(tallies, later)
    across = f" + floor((s + {pipeline.lookahead})/{tiles.k_steps})"
    when = later + across if runs_across(schedule) else later
    times |= {product.called("mma"): when for product in main.products}
    times |= {name: when.replace("(s ", "(0 ") for name in blocks.before}
    times |= {name: when.replace("(s ", f"({tiles.k_steps - 1} ") for name in blocks.behind}
    if spread_copies(schedule):
        products = _products(tiles, schedule, main, blocks, spread=True)
        body = steps(products, *tallies, *commit)
    else:
        groups: dict[str, tuple[Node | str, ...]] = {
            "copy": (*(f"copy_{ring.name}" for ring in main.rings), *commit),
            "mma": (
                *(f"fetch_{name}" for name in staged),
                _products(tiles, schedule, main, blocks, spread=False),
                *tallies,
            ),
        }
        body = steps(*(part for name in pipeline.order for part in groups[name]))
    return loop("t", flat(body), "separate[x]", **times)


def runs_across(schedule: Schedule) -> bool:
    """Whether the lookahead of fragment loads runs on into the next k tile."""
    pipeline = schedule.pipeline
    return pipeline.across and pipeline.lookahead > 0 and schedule.loops.mma[0] == "k"


def _products(
    tiles: Tiling, schedule: Schedule, main: MainLoop, blocks: ByWarps, *, spread: bool
) -> Node:
    """The MMA steps of one k tile: fragment loads, products, parts of copies between them."""
    pipeline, nest = schedule.pipeline, schedule.loops.mma
    loads = [Leaf(f"load_{ring.name}") for ring in main.rings]
    if nest[0] != "k":
        multiply = [_nest(product, nest) for product in main.products]
        return steps(loop("s", steps(*loads)), *blocks.before, *multiply, *blocks.behind)
    copies = [Leaf(f"copy_{ring.name}") for ring in main.rings] if spread else []
    multiply = [_nest(product, nest[1:]) for product in main.products]
    rest = [*copies, *multiply] if pipeline.order[0] == "copy" else [*multiply, *copies]
    ahead = pipeline.lookahead
    when = f"(s + {ahead}) mod {tiles.k_steps}" if runs_across(schedule) else f"s + {ahead}"
    times = {product.called("mma"): when for product in main.products}
    times |= {leaf.name: "p" for leaf in copies}
    options = "unroll[x]" if ahead else ""
    if not runs_across(schedule):
        products = loop("s", steps(*loads, *rest), options, **times)
        return flat(steps(*blocks.before, products, *blocks.behind))
    # Products of two k tiles are in one iteration: a block ends and the next one begins inside.
    times |= {name: when.replace("(s ", "(0 ") for name in blocks.before}
    times |= {name: when.replace("(s ", f"({tiles.k_steps - 1} ") for name in blocks.behind}
    return loop("s", steps(*loads, *blocks.before, *rest, *blocks.behind), options, **times)


def _end(
    tiles: Tiling, schedule: Schedule, epilogue: Epilogue, warps: Place, main: MainLoop
) -> Part:
    """Sums to results: staged in rows and stored in vectors, or stored from the registers."""
    atoms_m, atoms_n = tiles.atoms
    m = f"0 <= m < {atoms_m}"
    sums = tuple(f"{p.called('sum')}[w,m,n] : 0 <= n < {atoms_n}" for p in main.products)
    if schedule.epilogue.through != "smem":
        part = alone([warps.runs("store", ("m",), m, sums)], [], loop("m", "store"))
        part = folded(part, warps, (), ALWAYS) if epilogue.folds else part
        every = f"[w,m,n] : 0 <= n < {atoms_n}"
        over = Passes(epilogue.passes, (every, every))
        return passed(part, warps, (), (ALWAYS, m), sums, over, ("w", tiles.warps[1]))
    hoisted, scratch = "hoisted[w]", f"scratch[w,m] : {m}"
    passes = f"0 <= r < {epilogue.rows.passes(tiles)}"
    statements = (
        warps.runs("prepare", (), ALWAYS, (), (hoisted,), "move"),
        warps.runs("stage", ("m",), m, sums, ("scratch[w,m]",), "move"),
        warps.runs("store", ("r",), passes, (scratch, hoisted)),
    )
    rings = tuple(f"ring_{ring.name}" for ring in main.rings)
    buffers = (warps.keeps("hoisted"), replace(warps.keeps("scratch", 0, "shared"), overlays=rings))
    return alone(statements, buffers, steps("prepare", loop("m", "stage"), loop("r", "store")))
