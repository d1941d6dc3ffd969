"""Parts of a sum: which agent takes which k of an element, and how parts are added up.

Most kernels have one part: all k of an element are one agent's. Where agents share them, which one
takes a k has to be a function of k alone, and so has the order in which a third statement adds up
what they have: from the sums, through the cells in which they are sent, to the one that combines
them, and when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen import isl
from polygen.poly.tile_program import TileProgram, TileStatement
from polygen.poly.versions import TileModel
from polygen.schedule.sums import IN_TURN, ranges

_IN, _OUT, _PARAM = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.param


@dataclass(frozen=True, slots=True)
class Parts:
    """Which sum takes a k.

    Attributes:
        coordinates: those of an instruction that name its part; none where there is one part.
        count: of parts.
        name: which k they have, in words or as isl text; "" where there is one part.
        witness: why that is no function of k, or a part has several sums; "" if all is well.
    """

    coordinates: tuple[int, ...] = ()
    count: int = 1
    name: str = ""
    witness: str = ""


def parts(
    elements: isl.Map,
    k: int,
    group: Sequence[int],
    sums: Sequence[isl.Map],
    tile: int,
    parameters: Sequence[str],
    part_tiles: str = "k_tiles",
) -> Parts:
    """The parts of the sums of one product.

    Args:
        elements: element -> instruction.
        k: the position of k in an element.
        group: positions in an instruction of what says its group of k.
        sums: instruction -> the cells that it adds to, for each buffer.
        tile: elements of k in a k tile.
        parameters: of the tile program.
        part_tiles: the one that counts the k tiles of a part.
    """
    others = [at for at in range(elements.dim(_OUT)) if at not in group]
    somewhere = elements.project_out(_IN, k, 1)
    own = tuple(at for at in others if not only(somewhere, _OUT, [at]).is_single_valued())
    found = _named(elements, k, own, tile, parameters, part_tiles) if own else Parts()
    for cells in sums:
        if not (_one_cell(elements, k, own, cells) and _same_cell(cells, group)):
            name = found.name or isl.canonical(elements.apply_range(cells))
            return replace(found, name=name, witness="an element's sum lies in several cells")
    return found


def _named(
    elements: isl.Map,
    k: int,
    own: tuple[int, ...],
    tile: int,
    parameters: Sequence[str],
    part_tiles: str,
) -> Parts:
    taken = function_of(elements, k, own, parameters)
    if taken is None:
        text = isl.canonical(only(elements, _OUT, own))
        return Parts(own, 0, text, "which part takes k depends on the element")
    values = taken.range()
    count = isl.count(values.project_out(_PARAM, 0, values.dim(_PARAM)))
    each = (
        f"[k] -> [{part}] : {part}*{part_tiles}*{tile} <= k < {part + 1}*{part_tiles}*{tile}"
        for part in range(count)
    )
    if len(own) == 1:
        said = isl.Map(f"[{part_tiles}] -> {{ {'; '.join(each)} }}")
        said = said.intersect_domain(taken.domain())
        if taken.is_equal(said):
            return Parts(own, count, ranges(count))
    return Parts(own, count, isl.canonical(taken))


def _one_cell(elements: isl.Map, k: int, own: tuple[int, ...], cells: isl.Map) -> bool:
    """Whether every part of an element has one cell."""
    part = only(cells.domain().identity(), _OUT, own)
    both = elements.apply_range(part.flat_range_product(cells)).project_out(_IN, k, 1)
    both = both.reset_tuple_id(_IN).reset_tuple_id(_OUT)
    return bool(both.move_dims(_IN, both.dim(_IN), _OUT, 0, len(own)).is_single_valued())


def _same_cell(cells: isl.Map, group: Sequence[int]) -> bool:
    """Whether the groups of k of one place in one tile, whichever that is, add to one cell."""
    others = [at for at in range(cells.dim(_IN)) if at not in group]
    return bool(only(cells, _IN, others).is_single_valued())


def added_up(
    model: TileModel,
    program: TileProgram,
    times: Mapping[str, isl.Map],
    product: TileStatement,
    split: Parts,
) -> str:
    """In which order the parts of a sum are added up; "" if none is proved.

    Args:
        model: the tile program's accesses.
        program: its statements.
        times: leaf -> time, of the emitted trees.
        product: the statement that adds to the parts.
        split: its parts.
    """
    for chain, sender, last in _combined(model, program, product):
        # Chunks, in which sums are sent, are of other elements.
        inner = [
            len(last.place.agents) + at
            for at, name in enumerate(last.loops)
            if name not in (*product.loops, *sender.loops)
        ]
        before = order_of(times[last.name], inner)
        reached = only(only(chain, _IN, split.coordinates), _OUT, inner)
        if isinstance(before, str) or not reached.is_bijective():
            return ""
        order = reached.apply_range(before).apply_range(reached.reverse())
        ascending = isl.Map.lex_lt(order.get_space().domain())
        domain = reached.domain()
        if not order.is_equal(ascending.intersect_domain(domain).intersect_range(domain)):
            return f"{IN_TURN} by {isl.canonical(order)}"
        return IN_TURN
    return ""


def _combined(
    model: TileModel, program: TileProgram, product: TileStatement
) -> list[tuple[isl.Map, TileStatement, TileStatement]]:
    """Instruction -> what combines its sum with those of others, through the cells in between.

    With who sends it, and who combines it. Cells in between are of another buffer: totals may come
    to stand in the place of sums, where they are read as well.
    """
    found = []
    for buffer, writers in model.writes.items():
        if product.name not in writers:
            continue
        for sender, reads in model.reads[buffer].items():
            for between, sent in model.writes.items():
                if between == buffer:
                    continue
                for reader, landed in model.reads[between].items() if sender in sent else ():
                    if program.statement(reader).op == "combine":
                        chain = writers[product.name].apply_range(reads.reverse())
                        chain = chain.apply_range(sent[sender]).apply_range(landed.reverse())
                        found.append((chain, program.statement(sender), program.statement(reader)))
    return found


# --- relations that hold for all -----------------------------------------------------------------
def only(relation: isl.Map, side: isl.dim_type, kept: Sequence[int]) -> isl.Map:
    """The relation of some coordinates of one side."""
    for at in reversed(range(relation.dim(side))):
        if at not in kept:
            relation = relation.project_out(side, at, 1)
    return relation.reset_tuple_id(side) if relation.has_tuple_id(side) else relation


def function_of(
    elements: isl.Map, k: int, kept: Sequence[int], parameters: Sequence[str]
) -> isl.Map | None:
    """K -> some coordinates of the instruction that takes it; None if that is no function.

    Args:
        elements: element -> instruction.
        k: the position of k in an element.
        kept: positions of the coordinates.
        parameters: that it may depend on; of the others it has to be independent.
    """
    found = only(only(elements, _IN, [k]), _OUT, kept)
    for at in reversed(range(found.dim(_PARAM))):
        if found.get_dim_name(_PARAM, at) not in parameters:
            found = found.project_out(_PARAM, at, 1)
    return found if found.is_single_valued() else None


def order_of(timed: isl.Map, kept: Sequence[int]) -> isl.Map | str:
    """What comes before what, as a relation of some coordinates, where all others are equal.

    Args:
        timed: instance -> time.
        kept: positions of the coordinates.

    Returns:
        The relation; or that it depends on the others, with a pair of instances.
    """
    name, domain = str(timed.get_tuple_name(_IN)), timed.domain()
    others = [at for at in range(timed.dim(_IN)) if at not in kept]

    def elsewhere_equal(pairs: isl.Map) -> isl.Map:
        for at in others:
            pairs = pairs.equate(_IN, at, _OUT, at)
        return pairs

    before = elsewhere_equal(timed.lex_lt_map(timed)).coalesce()
    alone = only(only(before, _IN, kept), _OUT, kept).coalesce()
    # What is left says nothing of the other coordinates: put back, it holds for all of them.
    whole = alone
    for at in others:
        whole = whole.insert_dims(_IN, at, 1).insert_dims(_OUT, at, 1)
    whole = elsewhere_equal(whole.set_tuple_name(_IN, name).set_tuple_name(_OUT, name))
    rest = whole.intersect_domain(domain).intersect_range(domain).subtract(before)
    return alone if rest.is_empty() else f"others have the order {isl.sample_pair(rest)}"
