"""Parts of folds in a tile program: terms that an epilogue makes are combined in registers.

    unfold[i]        the registers hold the identity
    store[i,m]       makes results and terms, and combines the terms into the registers; with panels
                     finish[i,p] does
    fold[i]          threads meet, and write the part of the agent's tile

Nothing is handed to another agent: every agent writes parts of its own, once, and the launch that
follows reads them.

A tile that covers rows goes through its sums several times before it makes results of them:

    unfold_r0[i]     the registers hold the identity
    terms_r0[i,m]    terms from sums, and from what passes before have folded, combined into them
    meet_r0[i]       threads meet: every one that holds elements of a row has its result

Where those behind a pass need of the sums one value alone, `terms_r0` leaves it in registers of its
own (`held_r0`), which they read in place of the sums.

Where several agents share rows they hand what they have of them to each other, through shared
memory; what orders that is derived, like everything:

    give_r0[i]       threads of an agent meet, and write what it has of its rows
    take_r0[i]       every agent of a row combines what all of them have written, in their order

So do the blocks of a cluster that cover a row together (`row_exchange`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polygen.poly.kernel_parts import Part, alone, in_turn
from polygen.poly.row_exchange import between_blocks
from polygen.poly.tile_program import Buffer, Place, TileStatement
from polygen.poly.tile_tree import Leaf, Node, loop, steps
from polygen.poly.tiling import in_pass

FOLDED = "folded"  # the registers
ROW = "row"  # results of an agent's rows, in registers
HELD = "held"  # values of elements, in registers
SHARED = "given"  # what agents of a row have of it, in shared memory


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes over the sums of a tile that covers rows, before results are made.

    Attributes:
        holds: of every pass, whether it leaves values of elements for those behind it.
        values: the cells of such values that a pass has of instruction row `m`, and those that the
            statement has that makes results.
        place: what they read besides, as cells.
    """

    holds: tuple[bool, ...]
    values: tuple[str, str]
    place: tuple[str, ...] = ()


def folded(part: Part, place: Place, versions: tuple[str, ...], own: str) -> Part:
    """An epilogue, with the statements around it that make parts of folds.

    Args:
        part: whose statement that computes makes the terms, tile by tile.
        place: who.
        versions: the loops over output tiles.
        own: the tiles of an agent, as isl text.
    """
    cell = f"{FOLDED}[{','.join((*versions, *place.agents))}]"
    computing = tuple(
        replace(s, reads=(*s.reads, cell), writes=(*s.writes, cell)) if s.op == "map" else s
        for s in part.statements
    )
    first, last = (Leaf(name) for name in ("unfold", "fold"))
    return in_turn(
        alone([place.runs(first.name, versions, own, (), (cell,))], [], first),
        replace(part, statements=computing),
        alone(
            [place.runs(last.name, versions, own, (cell,))],
            [place.keeps(FOLDED, len(versions))],
            last,
        ),
    )


def passed(
    part: Part,
    place: Place,
    versions: tuple[str, ...],
    bounds: tuple[str, str],
    sums: tuple[str, ...],
    passes: Passes,
    across: tuple[str, int] = ("", 1),
    *,
    cluster: tuple[int, int] = (1, 1),
) -> Part:
    """An epilogue, behind passes over the sums that fold whole rows.

    Args:
        part: whose statements that compute use the results.
        place: who.
        versions: the loops over output tiles.
        bounds: the tiles of an agent, and its instructions along m, as isl text.
        sums: what a pass reads of the sums of instruction row `m`, as cells.
        passes: which there are, and what else they read.
        across: the agent, and how many follow each other along a row; 1: each has whole rows.
        cluster: blocks along m, and along n, which cover rows together; 1: each has whole rows.
    """
    own, each = bounds
    at = ",".join((*versions, *place.agents))
    before: list[TileStatement] = []
    buffers: list[Buffer] = []
    order: list[Node | str] = []
    known: tuple[str, ...] = ()
    held = ""
    for number, holding in enumerate(passes.holds):
        registers, rows = (f"{in_pass(what, number)}[{at}]" for what in (FOLDED, ROW))
        first, terms, meet = (in_pass(what, number) for what in ("unfold", "terms", "meet"))
        reads = (*passes.place, *(sums if not held else (held + passes.values[0],)))
        reads = (*reads, *known, registers)
        writes: tuple[str, ...] = (registers,)
        if holding:
            held = in_pass(HELD, number)
            writes = (registers, held + passes.values[0])
            buffers.append(place.keeps(held, len(versions)))
        before += [
            place.runs(first, versions, own, (), (registers,)),
            place.runs(terms, (*versions, "m"), each, reads, writes),
        ]
        if cluster[1] > 1:
            give, take, landed = (in_pass(what, number) for what in ("give", "take", SHARED))
            names, end = (give, take, landed), [give, take]
            met, landing = between_blocks(names, place, versions, own, (registers, rows), cluster)
            before += met
            buffers.append(landing)
        elif across[1] == 1:
            before.append(place.runs(meet, versions, own, (registers,), (rows,)))
            end = [meet]
        else:
            end = [in_pass(what, number) for what in ("give", "take")]
            given, every = _shared(number, place, versions, across)
            before += [
                place.runs(end[0], versions, own, (registers,), (given,), "move"),
                place.runs(end[1], versions, own, (every,), (rows,)),
            ]
            slot = (versions, "0") if versions else None
            shared = in_pass(SHARED, number)
            buffers.append(place.keeps(shared, len(versions), "shared", slot=slot))
        buffers += [place.keeps(in_pass(what, number), len(versions)) for what in (FOLDED, ROW)]
        order += [first, loop("m", terms), *end]
        known = (*known, rows)
    if not passes.holds:
        return part
    computing = (("store", "map"), ("finish", "map"))
    statements = tuple(
        replace(s, reads=(*_taken(s.reads, sums, held, passes.values[1]), *known))
        if (s.name, s.op) in computing
        else s
        for s in part.statements
    )
    return in_turn(alone(before, buffers, steps(*order)), replace(part, statements=statements))


def _taken(reads: tuple[str, ...], sums: tuple[str, ...], held: str, cell: str) -> tuple[str, ...]:
    """What a statement reads, with what is held in place of the sums; "": the same."""
    if not held:
        return reads
    names = {one.partition("[")[0] for one in sums}
    taken = (held + cell if one.partition("[")[0] in names else one for one in reads)
    return tuple(dict.fromkeys(taken))


def _shared(
    number: int, place: Place, versions: tuple[str, ...], across: tuple[str, int]
) -> tuple[str, str]:
    """What an agent gives of its rows, and what all agents of them have given, as cells."""
    agent, count = across
    name, own = in_pass(SHARED, number), ",".join((*versions, *place.agents))
    every = ",".join((*versions, *("v" if one == agent else one for one in place.agents)))
    most = dict(zip(place.agents, place.counts, strict=True))[agent]
    same = f"floor(v/{count}) = floor({agent}/{count})"
    return f"{name}[{own}]", f"{name}[{every}] : 0 <= v < {most} and {same}"
