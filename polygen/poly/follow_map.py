"""The tile program of a launch that follows -> its tree, with everything that was proved of it.

1. The program visits every part, element and result once, and every warp's result is taken once:
   whatever the sizes, by the cells of its statements and by the formulas of lanes.
2. It is synchronised as every tile program (`polygen.poly.derive_syncs`), and the text that loops
   are generated from is proved to do what the program says (`polygen.poly.refine`): the order in
   which parts, elements and warps are combined is one of its dependences.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from polygen import isl
from polygen.errors import VerifyError
from polygen.poly.block_tree import check_once
from polygen.poly.follow_program import (
    BESIDE,
    ELEMENTS,
    HELD,
    OWN,
    WARP,
    FollowShape,
    combining,
    element_of,
    over_held,
    parts_of,
    result_of,
)
from polygen.poly.legality import Proof
from polygen.poly.tile_program import TileProgram
from polygen.poly.versions import TileModel

WHERE = "the launch that follows"
_IN = isl.dim_type.in_


def check_visits(shape: FollowShape, program: TileProgram) -> tuple[Proof, ...]:
    """Prove of a program that it leaves nothing out, and meets nothing twice.

    Args:
        shape: what it has to do.
        program: its statements.

    Raises:
        VerifyError: with what is left out or met twice.
    """
    model = TileModel(program)
    visits = [(f"part_{one}", combining(one), parts_of(one)) for one in range(shape.parts)]
    for buffer, statement, count in visits:
        wanted = model.set(f"{buffer}[p] : 0 <= p < {count}")
        check_once(model.reads[buffer].get(statement), wanted, statement, WHERE)
    for walk in shape.walks:
        wanted = model.set(f"row[p] : 0 <= p < {ELEMENTS}")
        check_once(_read(shape, model, walk), wanted, walk, WHERE)
    for level in shape.levels:
        given, warps = f"given_{level}", f"0 <= o < {shape.warps}"
        takers = f"0 <= {WARP} < {shape.warps if shape.rows else 1}"
        wanted = model.set(f"{given}[{WARP},o] : {takers} and {warps}")
        taken = model.reads[given].get(f"take_{level}")
        check_once(taken, wanted, f"take_{level}", WHERE, by_warp=True)
        gives = model.writes[given].get(f"give_{level}")
        check_once(gives, model.set(f"{given}[o] : {warps}"), f"give_{level}", WHERE)
    each = 1 if shape.shared else shape.lanes
    check_results(each)
    if shape.stored:
        stored = model.set(f"result[l] : 0 <= l < {each}")
        check_once(model.writes["result"].get("store"), stored, "store", WHERE)
    if shape.written:
        wanted = model.set(f"element[p] : 0 <= p < {ELEMENTS}")
        written = _together(shape, model.writes["element"], "elements")
        check_once(written, wanted, "elements", WHERE)
    check_lanes(shape.lanes)
    check_lanes(shape.lanes, element_of(shape.wide), shape.wide)
    return (
        Proof("every part is combined once, and every warp's result taken once", WHERE),
        Proof("every result is stored once, and every element of a row visited once", WHERE),
    )


def _read(shape: FollowShape, model: TileModel, walk: str) -> isl.Map | None:
    """The elements that a walk reads: of the row itself, and what is held of it."""
    reads = dict(model.reads["row"])
    if shape.words:
        there = model.writes[HELD]["hold"].reverse().apply_range(reads["hold"])
        held = model.reads[HELD].get(over_held(walk))
        same = model.writes[HELD]["hold"].set_tuple_name(_IN, over_held(walk))
        if held is None or not held.is_equal(same):
            raise VerifyError(f"{over_held(walk)} reads what is held of others", where=WHERE)
        reads[over_held(walk)] = held.apply_range(there)
    return _together(shape, reads, walk)


def _together(shape: FollowShape, accesses: Mapping[str, isl.Map], walk: str) -> isl.Map | None:
    """What both statements of a walk access, their instances told apart by a number."""
    found = accesses.get(walk)
    if not shape.words or found is None or over_held(walk) not in accesses:
        return found
    both = [found, accesses[over_held(walk)]]
    numbered = [
        isl.Map(f"{{ {one.get_tuple_name(_IN)}[w,i] -> [{number},w,i] }}")
        .reverse()
        .apply_range(one)
        for number, one in enumerate(both)
    ]
    return numbered[0].union(numbered[1])


@lru_cache(maxsize=8)
def check_results(each: int, formula: str = "") -> None:
    """The lanes of all blocks have every result once.

    Args:
        each: results of a block.
        formula: of a lane's, if another.

    Raises:
        VerifyError: they do not.
    """
    own = formula or result_of(each)
    blocks = f"0 <= fold_block and {each} * fold_block < results"
    made = isl.Map(
        f"[results] -> {{ [fold_block,lane] -> [r] : r = {own} and {blocks} and "
        f"0 <= lane < {each} and r < results }}"
    )
    if not (made.is_injective() and made.range().is_equal(
        isl.Set("[results] -> { [r] : 0 <= r < results }")
    )):  # fmt: skip
        raise VerifyError(f"{own} is not every result once", where=WHERE)


@lru_cache(maxsize=8)
def check_lanes(lanes: int, formula: str = OWN, wide: int = 1) -> None:
    """The lanes of a warp visit what it does, each its own.

    Args:
        lanes: of a warp.
        formula: of what a lane visits.
        wide: how many it has beside each other.

    Raises:
        VerifyError: two visit one.
    """
    own = f"p = {formula.format('first')} and 0 <= lane < {lanes} and 0 <= {BESIDE} < {wide}"
    made = isl.Map(f"{{ [first,lane,{BESIDE}] -> [first,p] : {own} }}")
    if not made.is_injective():
        raise VerifyError(f"{formula}: two lanes visit one", where=WHERE)
