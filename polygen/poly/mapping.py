"""`Scop` x `Schedule` -> `ScheduleTree`: tile, synchronise, and prove what is emitted.

1. The element statements are tiled; no dependence may connect two thread blocks.
2. The tiles become the statements of a kernel, joined by copies, fragment loads, staging
   (`kernel_program`). Every element is executed by exactly one of them.
3. What synchronises them is derived (`derive_syncs`), and every place gets its tree
   (`place_trees`).
4. The trees that are emitted are proved to refine the tile program, and to keep the dependences of
   the element statements, carried over from elements to tiles (`refine`).
5. The order in which k enters the sums is computed from them too (`sum_order`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass

from polygen import isl, remembered
from polygen.brief import Brief
from polygen.errors import VerifyError
from polygen.hardware.atom import Atom
from polygen.poly import ast
from polygen.poly.block_tree import BlockTree
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import emitted_of
from polygen.poly.fills import ring_pieces
from polygen.poly.fusion import Fusion
from polygen.poly.kernel_parts import Epilogue, MainLoop, main_loop
from polygen.poly.kernel_program import kernel_program
from polygen.poly.legality import Proof, check_blocks
from polygen.poly.match import Match
from polygen.poly.partial_sums import require_reassociable, within_blocks
from polygen.poly.pixel_boxes import prove_apart, prove_box
from polygen.poly.place_trees import PlaceTree
from polygen.poly.promotions import prove_whole_blocks
from polygen.poly.refine import refine
from polygen.poly.rest_map import joined, rest_elements, rest_orders
from polygen.poly.ring_folds import RingFolds
from polygen.poly.row_passes import between_passes
from polygen.poly.rows_out import row_elements
from polygen.poly.scop import Scop, space
from polygen.poly.sum_order import sum_orders
from polygen.poly.tile_domain import TileDomain, prove_tile_domain
from polygen.poly.tile_program import INSIDE, OWN_TILES, TileProgram
from polygen.poly.tiling import (
    Panels,
    Roles,
    RowVectors,
    Tiling,
    block_map,
    roles,
    tile_count,
    tile_map,
    tiling,
    whole_tile,
)
from polygen.poly.whole_rows import RowPasses
from polygen.schedule.model import Schedule
from polygen.schedule.sums import Sums


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleTree(Brief):
    """A legal schedule: the trees of all places, what synchronises them, and what was proved."""

    fusion: Fusion
    match: Match
    tiles: Tiling
    main: MainLoop  # rings and products, in the order of the match's
    elements: str  # element instance -> its tile statement in a block's first tile, isl text
    synchronised: Synchronised
    places: tuple[PlaceTree, ...]
    proofs: tuple[Proof, ...]
    panels: Panels  # what an epilogue moves by the copy engine
    sums: Sums  # in which order products add up
    domain: TileDomain | None = None  # the tiles that have products; None: all
    # What blocks of launches beside the kernel's do, each with what they are for.
    beside: tuple[tuple[str, BlockTree], ...] = ()

    def loops(self) -> ast.LoopAst:
        """The loops of the only place."""
        (place,) = self.places
        return place.loops()

    def __str__(self) -> str:
        parts = [f"# {self.tiles}", "# the program's statements, and the tiles that execute them"]
        parts += self.elements.strip("{ }").split("; ")
        for tree in self.places:
            parts.append(f"# {tree.place.name}: tiles, with what synchronises them as statements")
            parts.append(isl.to_yaml(remembered.read_schedule(tree.text)))
        parts += [f"# {proof}" for proof in self.proofs]
        for title, other in self.beside:
            parts += [f"# {title}", str(other)]
        return "\n".join(parts)


def map_program(
    scop: Scop,
    fusion: Fusion,
    matched: Match,
    schedule: Schedule,
    atom: Atom,
    *,
    asynchronous: bool,
    staged: bool = False,
    rows: RowVectors,
    panels: Panels | None = None,
    derived: Callable[[TileProgram], Synchronised] = derive,
    invariant: tuple[str, ...] = (),
    folds: bool = False,
    passes: RowPasses | None = None,
    longer: bool = False,
    tallies: tuple[RingFolds, ...] = (),
    domain: TileDomain | None = None,
    ahead: Collection[str] = (),
) -> ScheduleTree:
    """Build and prove the schedule tree.

    Args:
        scop: the program's polyhedral model.
        fusion: the band its statements share.
        matched: the roles of its contraction's iterators.
        schedule: the decisions.
        atom: the MMA instruction.
        asynchronous: whether copies run in the background until waited for.
        staged: whether they pass through registers, with products in between.
        rows: how a staged epilogue walks a warp tile.
        panels: what the epilogue of a schedule with roles moves.
        derived: what synchronises a tile program, derived or kept from before: it is proved again.
        invariant: dims that must have no part in the order of sums.
        folds: whether terms of results are folded.
        passes: of a tile that covers rows, over its sums.
        longer: whether a block may go through more k tiles than these sums have: those of other
            sections of the kernel. What lies outside the operands is zero.
        tallies: what is folded of operands beside the products.
        domain: the tiles that have products; None: all.
        ahead: operands that nobody writes while the grids before the kernel still run, and that a
            thread of their own has copied then.

    Raises:
        InvarianceError: they have; with a witness.
        IllegalSchedule: a dependence is broken; with a witness.
        VerifyError: what would be emitted does not do what the program says; with a witness.
    """
    tiles = tiling(schedule, atom)
    parts = require_reassociable((one.contraction for one in matched.products), tiles.split)
    pieces = ring_pieces(schedule, matched, tiles)
    main = main_loop(
        matched,
        pieces,
        tiles.cta[2],
        staged=staged,
        folded=tuple(one.ring for one in tallies),
        leaving=tuple(one.ring for one in tallies if one.outputs),
        inside=domain is not None,
        ahead=ahead,
    )
    statements = roles(scop, fusion, matched, [product.name for product in main.products], passes)
    blocks = isl.UnionMap(space(scop.parameters) + block_map(statements, tiles, schedule))
    more = rest_elements(scop, matched, tiles, schedule)
    if more is not None:
        scop = more.model
        blocks = blocks.union(isl.UnionMap(space(scop.parameters) + more.blocks))
    out = row_elements(scop, matched, tallies, tiles, schedule)
    if out is not None:
        scop = out.model
        blocks = blocks.union(isl.UnionMap(space(scop.parameters) + out.blocks))
    blocks = blocks.intersect_domain(scop.domain)
    needs = scop.dependences
    if passes is not None and passes.results:
        shape = isl.Set(f"{space(scop.parameters)}{{ : {_rows_in_tiles(matched, tiles)} }}")
        needs = needs.union(between_passes(scop, passes)).intersect_params(shape)
    apart = check_blocks(needs, blocks, "loops.grid", tiles.split * tiles.beside)
    boxes: tuple[Proof, ...] = ()
    if matched.box:
        places = {one.instance: (*one.batches, one.m, one.n, one.k or "0") for one in statements}
        prove_apart(places, scop.domain)
        boxes = (prove_box(matched.box),)
    holds = tuple(map(bool, passes.held)) if passes else ()
    epilogue = Epilogue(rows, panels or Panels(0, (), ()), folds, holds)
    program = kernel_program(tiles, schedule, epilogue, main, asynchronous=asynchronous)
    count = isl.Set(tile_count(scop, tiles, matched.lengths, longer=longer))
    kinds = []
    for one in tiles.kinds:
        elements = tile_map(statements, one, schedule, epilogue.rows, epilogue.panels)
        points = whole_tile(statements, one)
        if more is not None:
            elements, points = joined(elements, more.tiles), joined(points, more.whole)
        if out is not None:
            elements, points = joined(elements, out.tiles), joined(points, out.whole)
        relation = isl.UnionMap(space(tiles.counted(scop.parameters)) + elements)
        relation = relation.intersect_domain(scop.domain)
        kinds.append(_Kind(one, elements, points, relation, _first(tiles, one)))
    inside = (_check_domain(scop, statements, domain),) if domain else ()
    whole, *_ = [_check_whole(scop, program, kind, count, schedule.cluster.m) for kind in kinds]
    blocks_whole: tuple[Proof, ...] = ()
    if matched.block:
        prefix, each = space((*scop.parameters, "k_tiles")), matched.block // tiles.cta[2]
        blocks_whole = (prove_whole_blocks(count, prefix, each),)
    products = [product.called("multiply") for product in main.products]
    carried = "; ".join(_carried(scop, needs, kind, count, products) for kind in kinds)
    synchronised = derived(program)
    emitted = emitted_of(synchronised, carried)
    orders, sums = sum_orders(
        emitted,
        statements if more is None else (*statements, *more.roles),
        [(one.relation, one.tiles) for one in kinds],
        atom,
        matched.depths,
        invariant=bool(invariant),
        exchanged=schedule.exchange,
        over=tuple(extent for _, extent in matched.sums),
        block=matched.block,
    )
    orders = rest_orders(orders, matched, tiles)
    return ScheduleTree(
        fusion,
        matched,
        tiles,
        main,
        functools.reduce(joined, [one.elements for one in kinds]),
        synchronised,
        emitted.trees,
        (
            apart,
            *parts,
            *boxes,
            *(out.proofs if out is not None else ()),
            whole,
            *blocks_whole,
            *inside,
            *sums,
            *refine(emitted),
        ),
        epilogue.panels,
        Sums(orders, invariant),
        domain,
    )


def _check_domain(scop: Scop, statements: tuple[Roles, ...], domain: TileDomain) -> Proof:
    """Prove that tiles outside have no product, as the program is."""
    rows, columns = domain.tile
    each = [
        f"{s.instance} -> [floor({s.m}/{rows}), floor({s.n}/{columns})]"
        for s in statements
        if s.does != "map"
    ]
    tiles = isl.UnionMap(f"{space(scop.parameters)}{{ {'; '.join(each)} }}")
    return prove_tile_domain(domain, scop.domain, tiles)


def _rows_in_tiles(match: Match, tiles: Tiling) -> str:
    """A row ends where its tiles do, if not before: a condition of every call, as isl text."""
    return f"{match.n} <= {tiles.row}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Tiles that blocks execute alike: all of them, or those of a block's own, or shared ones.

    Attributes:
        tiles: their hierarchy.
        elements: element instance -> its tile statement in a block's first tile, isl text.
        points: the element instances of a whole one, isl text.
        relation: `elements`, of the program's instances.
        first: what says that a block's first tile is one of them, isl text; "": it always is.
    """

    tiles: Tiling
    elements: str
    points: str
    relation: isl.UnionMap
    first: str


def _first(tiles: Tiling, kind: Tiling) -> str:
    """What says that a block's first tile is of a kind, as isl text."""
    if not tiles.last:
        return ""
    return f"{OWN_TILES} = 0" if kind.last else f"{OWN_TILES} >= 1"


def _carried(
    scop: Scop, needs: isl.UnionMap, kind: _Kind, count: isl.Set, products: list[str]
) -> str:
    """The program's dependences between the tile statements of one output tile, as isl text.

    Args:
        scop: the program.
        needs: its dependences.
        kind: of tiles.
        count: what `k_tiles` is.
        products: whose sums several blocks may share: each keeps the order of its own terms.
    """
    image = needs.apply_domain(kind.relation).apply_range(kind.relation)
    image = image.intersect_params(count).subtract(image.domain().identity())
    if kind.first:
        image = image.intersect_params(isl.Set(f"[{OWN_TILES}] -> {{ : {kind.first} }}"))
    if kind.tiles.split > 1:
        image = within_blocks(image, products)
    for name in scop.parameters:  # what is left are numbers of tiles
        image = image.project_out(isl.dim_type.param, _position(image, name), 1)
    return "; ".join(isl.pieces(image))


def _position(relation: isl.UnionMap, parameter: str) -> int:
    return int(relation.get_space().find_dim_by_name(isl.dim_type.param, parameter))


def _check_whole(
    scop: Scop,
    program: TileProgram,
    kind: _Kind,
    count: isl.Set,
    below: int,
) -> Proof:
    """Prove that every element has one tile statement, and that those are a whole tile's.

    Where blocks have tiles for themselves and share others, of either kind: an element has one,
    whichever kind its tile is of.

    The tile is the first block's; of blocks that cover a row, those of the first row of the
    cluster, whose numbers are multiples of `below`.

    Raises:
        VerifyError: an element has no tile statement or several, or a tile statement that computes
            has no element or is none of the program's; with an instance where there is one.
    """
    tiles, relation = kind.tiles, kind.relation
    counted = scop.domain.intersect_params(count)
    if not relation.is_single_valued() or not counted.is_subset(relation.domain()):
        raise VerifyError("the tiles do not execute every instance exactly once", where="tiling")
    points = isl.UnionSet(program.prefix + kind.points)
    wanted = points.apply(isl.UnionMap(program.prefix + kind.elements))
    each = wanted.get_set_list()
    for position in range(each.n_set()):
        tile = each.get_at(position)
        statement = program.statement(str(tile.get_tuple_name()))
        domain = isl.Set(f"{program.prefix}{{ {statement.domain} }}")
        context = program.context.replace("tiles >= 0", f"tiles >= {tiles.run}")
        if INSIDE in program.parameters:
            context += f" and {INSIDE} >= 1"
        if kind.first:
            context += f" and {kind.first}"
        domain = domain.intersect_params(isl.Set(f"{program.prefix}{{ : {context} }}"))
        for n in range(len(statement.place.agents) + len(statement.loops)):
            name = (*statement.place.agents, *statement.loops)[n]
            if tiles.run > 1 and name in ("turn", "i"):  # tiles of the first run, of all agents
                if name == "i":
                    domain = domain.upper_bound_val(isl.dim_type.set, n, isl.Val(tiles.run - 1))
            elif name == "rank" and tiles.beside > 1:
                own = f"{{ {statement.instance} : rank mod {below} = 0 }}"
                domain = domain.intersect(isl.Set(f"{program.prefix}{own}"))
            elif name in ("turn", "i") or (name == "rank" and tiles.split == 1):
                domain = domain.fix_val(isl.dim_type.set, n, isl.Val(0))
        tile = tile.intersect_params(isl.Set(f"{program.prefix}{{ : {context} }}"))
        for claim, rest in (
            ("is no tile of the program", domain.subtract(tile)),
            ("is not executed", tile.subtract(domain)),
        ):
            if not rest.is_empty():
                raise VerifyError(f"{isl.sample_point(rest)} {claim}", where="tiling")
    return Proof("every element is executed by one tile, and every tile is whole", "tiling")
