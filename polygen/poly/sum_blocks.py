"""Blocks of a sum: which k enter one inner sum, and in which order inner sums are promoted.

Through the cells that products add to, an element's inner sum is a function of k, and has to be
that of its block: all k of one, and of no other. What reads these cells and adds to the whole sum
is a promotion; when they run, block by block, is the order in which blocks are added up.
"""

from __future__ import annotations

from collections.abc import Mapping

from polygen import isl
from polygen.poly.sum_parts import Parts, only, order_of
from polygen.poly.tile_program import TileProgram, TileStatement
from polygen.poly.versions import TileModel, union_of_maps
from polygen.schedule.sums import IN_TURN, in_blocks

_IN, _OUT, _PARAM = isl.dim_type.in_, isl.dim_type.out, isl.dim_type.param
_ANY = "promotions"


def block_parts(
    model: TileModel, product: TileStatement, elements: isl.Map, k: int, block: int
) -> Parts:
    """The blocks of a product's sums as parts of them.

    Args:
        model: the tile program's accesses.
        product: the statement that adds to inner sums.
        elements: element -> instruction.
        k: the position of k in an element.
        block: indices of k of a block.
    """
    found = Parts(name=in_blocks(block))
    for buffer, writers in model.writes.items():
        if product.name not in writers:
            continue
        at = (
            model.versions[buffer] - 1
        )  # the block is the last of the coordinates that are versions
        cells = elements.apply_range(writers[product.name])
        taken = _without_sizes(only(only(cells, _IN, [k]), _OUT, [at]), model)
        said = isl.Map(f"{{ [k] -> [floor(k/{block})] }}").intersect_domain(taken.domain())
        if not taken.is_equal(said):
            return Parts(name=found.name, witness=f"inner sums take {isl.canonical(taken)}")
        others = cells.project_out(_IN, k, 1).reset_tuple_id(_IN).reset_tuple_id(_OUT)
        apart = others.move_dims(_IN, others.dim(_IN), _OUT, at, 1)
        if not apart.is_single_valued():
            return Parts(name=found.name, witness="the sum of a block lies in several cells")
    return found


def promoted(
    model: TileModel, program: TileProgram, times: Mapping[str, isl.Map], product: TileStatement
) -> str:
    """In which order the blocks of a sum are promoted; "" if none is proved.

    Args:
        model: the tile program's accesses.
        program: its statements.
        times: leaf -> time, of the emitted trees.
        product: the statement that adds to inner sums.
    """
    orders = set()
    for buffer, writers in model.writes.items():
        if product.name not in writers:
            continue
        readers = {n: cells for n, cells in model.reads[buffer].items() if n != product.name}
        if readers:
            orders.add(_order(model, program, readers, model.versions[buffer] - 1, times))
    return orders.pop() if len(orders) == 1 else ""


def _order(
    model: TileModel,
    program: TileProgram,
    readers: Mapping[str, isl.Map],
    at: int,
    times: Mapping[str, isl.Map],
) -> str:
    """In which order blocks are read, by all that promote some of them."""
    statements = [program.statement(name) for name in readers]
    (names, *others_names) = [(*s.place.agents, *s.loops) for s in statements]
    if any(one != names for one in others_names):
        return ""
    tile = [names.index("k")]
    others = [at for at in range(len(names)) if at not in tile]

    def joined(maps: Mapping[str, isl.Map]) -> isl.Map:
        """Of all that promote, as if they were one statement."""
        return union_of_maps(maps[name].set_tuple_name(_IN, _ANY) for name in readers)

    for writers in model.writes.values():
        if not any(name in writers for name in readers):
            continue
        if not all(name in writers for name in readers):
            return ""  # some promote to other sums
        sums = joined(writers)
        elsewhere = only(sums.domain().identity(), _OUT, others)
        if not elsewhere.apply_range(only(sums, _IN, others)).is_equal(sums):
            return ""  # not all blocks are added to the same sums
    before = order_of(joined(times), tile)
    reached = only(only(joined(readers), _IN, tile), _OUT, [at])
    if isinstance(before, str) or not reached.is_bijective():
        return ""
    order = reached.reverse().apply_range(before).apply_range(reached)
    domain = reached.range()
    ascending = isl.Map.lex_lt(domain.get_space())
    ascending = ascending.intersect_domain(domain).intersect_range(domain)
    return IN_TURN if order.is_equal(ascending) else f"{IN_TURN} by {isl.canonical(order)}"


def _without_sizes(relation: isl.Map, model: TileModel) -> isl.Map:
    """A relation that has to hold for all sizes of the program."""
    for at in reversed(range(relation.dim(_PARAM))):
        if relation.get_dim_name(_PARAM, at) not in model.program.parameters:
            relation = relation.project_out(_PARAM, at, 1)
    return relation
