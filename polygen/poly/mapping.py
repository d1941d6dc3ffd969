"""`Scop` x `Schedule` -> `ScheduleTree`: tile, synchronise, and prove what is emitted.

1. The element statements are tiled: grid, k tile, warp, instruction and point bands. The tree is
   checked against the program's dependences, and the grid against dependences between thread
   blocks.
2. The tiles become the statements of a kernel, joined by copies, fragment loads, staging
   (`kernel_program`). Every element is executed by exactly one of them.
3. What synchronises them is derived (`derive_syncs`), and every place gets its tree
   (`place_trees`).
4. The trees that are emitted are proved to refine the tile program, and to keep the dependences of
   the element statements, carried over from elements to tiles (`refine`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen import isl
from polygen.errors import VerifyError
from polygen.hardware.atom import Atom
from polygen.poly import ast
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import Emitted
from polygen.poly.footprint import Footprint, footprint
from polygen.poly.fusion import Fusion
from polygen.poly.kernel_parts import Epilogue
from polygen.poly.kernel_program import kernel_program
from polygen.poly.legality import Proof, check_blocks, check_order
from polygen.poly.match import Match
from polygen.poly.place_trees import PlaceTree, place_trees
from polygen.poly.refine import refine
from polygen.poly.scop import Scop, space
from polygen.poly.tile_program import TileProgram
from polygen.poly.tiling import (
    Panels,
    Roles,
    RowVectors,
    Tiling,
    block_map,
    element_tree,
    roles,
    tile_count,
    tile_map,
    tiling,
    whole_tile,
)
from polygen.poly.tree import to_isl_text
from polygen.schedule.model import Schedule


@dataclass(frozen=True, slots=True)
class ScheduleTree:
    """A legal schedule: the trees of all places, what synchronises them, and what was proved."""

    fusion: Fusion
    match: Match
    tiles: Tiling
    footprints: tuple[tuple[str, Footprint], ...]  # by operand
    element: str  # isl text of the tiled tree of element statements
    synchronised: Synchronised
    places: tuple[PlaceTree, ...]
    proofs: tuple[Proof, ...]
    panels: Panels  # what an epilogue moves by the copy engine

    def loops(self) -> ast.LoopAst:
        """The loops of the only place."""
        (place,) = self.places
        return place.loops()

    def __str__(self) -> str:
        parts = [f"# {self.tiles}", "# the program's statements, tiled"]
        parts.append(isl.to_yaml(isl.Schedule(self.element)))
        for tree in self.places:
            parts.append(f"# {tree.place.name}: tiles, with what synchronises them as statements")
            parts.append(isl.to_yaml(isl.Schedule(tree.text)))
        return "\n".join([*parts, *(f"# {proof}" for proof in self.proofs)])


def map_program(
    scop: Scop,
    fusion: Fusion,
    matched: Match,
    schedule: Schedule,
    atom: Atom,
    *,
    asynchronous: bool,
    rows: RowVectors,
    panels: Panels | None = None,
) -> ScheduleTree:
    """Build and prove the schedule tree.

    Args:
        scop: the program's polyhedral model.
        fusion: the band its statements share.
        matched: the roles of its contraction's iterators.
        schedule: the decisions.
        atom: the MMA instruction.
        asynchronous: whether copies run in the background until waited for.
        rows: how a staged epilogue walks a warp tile.
        panels: what the epilogue of a schedule with roles moves.

    Raises:
        IllegalSchedule: a dependence is broken; with a witness.
        VerifyError: what would be emitted does not do what the program says; with a witness.
    """
    tiles = tiling(schedule, atom)
    statements = roles(fusion, matched)
    element, proofs = _tiled(scop, statements, tiles, schedule)
    footprints = tuple((name, footprint(operand, tiles)) for name, operand in matched.operands)
    epilogue = Epilogue(rows, panels or Panels(0, (), ()))
    program = kernel_program(tiles, schedule, epilogue, asynchronous=asynchronous)
    carried = _carried(scop, matched, statements, tiles, schedule, epilogue, program)
    synchronised = derive(program)
    trees = place_trees(program, synchronised.tree, synchronised.leaves)
    emitted = Emitted(
        program,
        synchronised.leaves,
        synchronised.syncs,
        synchronised.counters,
        trees,
        synchronised.tree,
        synchronised.frame,
        carried,
    )
    proofs += refine(emitted)
    return ScheduleTree(
        fusion,
        matched,
        tiles,
        footprints,
        element,
        synchronised,
        trees,
        tuple(proofs),
        epilogue.panels,
    )


def _tiled(
    scop: Scop, statements: tuple[Roles, ...], tiles: Tiling, schedule: Schedule
) -> tuple[str, list[Proof]]:
    """The tiled tree of the element statements, and what was proved about it."""
    element = to_isl_text(element_tree(scop, statements, tiles, schedule), scop.parameters)
    blocks = isl.UnionMap(space(scop.parameters) + block_map(statements, tiles, schedule))
    return element, [
        check_blocks(scop.dependences, blocks.intersect_domain(scop.domain), "loops.grid"),
        check_order(
            scop.dependences,
            isl.Schedule(element).get_map(),
            where="tiled program",
            claim="tiling keeps every dependence of the program",
            field="loops.mma",
        ),
    ]


def _carried(
    scop: Scop,
    matched: Match,
    statements: tuple[Roles, ...],
    tiles: Tiling,
    schedule: Schedule,
    epilogue: Epilogue,
    program: TileProgram,
) -> str:
    """The program's dependences between the tile statements of one output tile, as isl text.

    Raises:
        VerifyError: tiles do not execute every element exactly once.
    """
    text = tile_map(statements, tiles, schedule, epilogue.rows, epilogue.panels)
    count = tile_count(scop, tiles, str(matched.extent("k")))
    relation = isl.UnionMap(space(scop.parameters) + text).intersect_domain(scop.domain)
    if not relation.is_single_valued() or not scop.domain.is_subset(relation.domain()):
        raise VerifyError("the tiles do not execute every instance exactly once", where="tiling")
    _check_whole(program, statements, tiles, text)
    image = scop.dependences.apply_domain(relation).apply_range(relation)
    image = image.intersect_params(isl.Set(count)).subtract(image.domain().identity())
    for name in scop.parameters:  # what is left are numbers of tiles
        image = image.project_out(isl.dim_type.param, _position(image, name), 1)
    return "; ".join(isl.pieces(image))


def _position(relation: isl.UnionMap, parameter: str) -> int:
    return int(relation.get_space().find_dim_by_name(isl.dim_type.param, parameter))


def _check_whole(
    program: TileProgram, statements: tuple[Roles, ...], tiles: Tiling, text: str
) -> None:
    """Prove that the tile statements that compute are those of a whole tile, no more and no fewer.

    Raises:
        VerifyError: with an instance.
    """
    elements = isl.UnionSet(f"{program.prefix}{whole_tile(statements, tiles)}")
    wanted = elements.apply(isl.UnionMap(program.prefix + text))
    each = wanted.get_set_list()
    for position in range(each.n_set()):
        tile = each.get_at(position)
        statement = program.statement(str(tile.get_tuple_name()))
        domain = isl.Set(f"{program.prefix}{{ {statement.domain} }}")
        context = program.context.replace("tiles >= 0", "tiles >= 1")
        domain = domain.intersect_params(isl.Set(f"{program.prefix}{{ : {context} }}"))
        for n in range(len(statement.place.agents) + len(statement.loops)):
            name = (*statement.place.agents, *statement.loops)[n]
            if name in ("rank", "turn", "i"):
                domain = domain.fix_val(isl.dim_type.set, n, isl.Val(0))
        tile = tile.intersect_params(isl.Set(f"{program.prefix}{{ : {context} }}"))
        for claim, rest in (
            ("is no tile of the program", domain.subtract(tile)),
            ("is not executed", tile.subtract(domain)),
        ):
            if not rest.is_empty():
                raise VerifyError(f"{isl.sample_point(rest)} {claim}", where="tiling")
