"""The tile program of a launch that follows: what it derives, and that broken ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from polygen.errors import VerifyError
from polygen.poly import ast
from polygen.poly.block_tree import BlockTree, block_tree
from polygen.poly.emitted import Emitted
from polygen.poly.follow_keys import KeysShape, check_keys, keys_program
from polygen.poly.follow_map import WHERE, check_lanes, check_results, check_visits
from polygen.poly.follow_program import FollowShape, element_of, follow_program
from polygen.poly.place_trees import place_trees
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import leaves, steps, without

OWN = FollowShape(1, 0, 8, 32, shared=False)  # a result for every lane
SHARED = FollowShape(2, 0, 8, 32, shared=True)  # one for a block, of two numbers of parts
ROWS = FollowShape(1, 1, 8, 32, shared=True, rows=True, written=True)
WIDE = replace(ROWS, wide=4)  # lanes have words of elements
HOLDS = replace(WIDE, words=2)  # and hold two of them
# Rows of arguments, in a launch that goes before: two levels of folds, and no parts.
MADE = FollowShape(
    0, 2, 8, 32, shared=True, rows=True, written=True, stored=False, wide=8, dependent=True
)
# Results beside elements of arguments, which grids before may have written.
GIVEN = replace(OWN, given=True, dependent=True)
KEYS = KeysShape(4, 32, referenced=True, states=True)  # rows whose keys are in parts


@cache
def tree(shape: FollowShape | KeysShape) -> BlockTree:
    if isinstance(shape, KeysShape):
        return block_tree(shape, keys_program, check_keys, WHERE)
    return block_tree(shape, follow_program, check_visits, WHERE)


def text(old: str, new: str) -> Callable[[Emitted], Emitted]:
    """Another text of the tree that loops are generated from."""

    def change(emitted: Emitted) -> Emitted:
        (place,) = emitted.trees
        assert old in place.text
        return replace(emitted, trees=(replace(place, text=place.text.replace(old, new)),))

    return change


def gone(bar: str) -> Callable[[Emitted], Emitted]:
    """Without a barrier, in tree and records."""

    def change(emitted: Emitted) -> Emitted:
        rest = without(emitted.certificate, bar)
        kept = tuple(leaf for leaf in emitted.leaves if leaf.name != bar)
        return replace(
            emitted,
            certificate=rest,
            leaves=kept,
            trees=place_trees(emitted.program, rest, kept),
            syncs=tuple(one for one in emitted.syncs if one.name != bar),
        )

    return change


def moved(leaf: str, before: str) -> Callable[[Emitted], Emitted]:
    """A child of the tree in front of another."""

    def change(emitted: Emitted) -> Emitted:
        children = list(emitted.certificate.children)
        (own,) = (child for child in children if leaf in leaves(child))
        children.remove(own)
        (at,) = (n for n, child in enumerate(children) if before in leaves(child))
        order = steps(*children[:at], own, *children[at:])
        trees = place_trees(emitted.program, order, emitted.leaves)
        return replace(emitted, certificate=order, trees=trees)

    return change


BROKEN = {
    "the last part left out": (OWN, text("fold_q < fold_parts_0", "fold_q < -1 + fold_parts_0")),
    "the last of the second number of parts": (
        SHARED,
        text("fold_q < fold_parts_1", "fold_q < -1 + fold_parts_1"),
    ),
    "parts of the warp before": (OWN, text("(-warp + fold_q)", "(1 - warp + fold_q)")),
    "parts in another order": (OWN, text("-> [(fold_q)]", "-> [(-fold_q)]")),
    "a warp's result not taken": (SHARED, text("fold_w <= 7", "fold_w <= 6")),
    "warps in another order": (SHARED, text("-> [(fold_w)]", "-> [(7 - fold_w)]")),
    "results stored by all warps": (OWN, text("store[] : warp = 0", "store[]")),
    "no barrier": (OWN, gone("bar_take_0")),
    "no barrier between levels": (ROWS, gone("bar_take_1")),
    "a barrier too early": (SHARED, moved("bar_take_0", "give_0")),
    "a barrier too late": (ROWS, moved("take_1", "bar_take_1")),
    "registers begun behind their first part": (OWN, moved("combine_0", "begin_0")),
    "the last element left out": (
        ROWS,
        text("fold_e < fold_elements; store", "fold_e < -32 + fold_elements; store"),
    ),
    "the last word left out": (
        WIDE,
        text("fold_e < fold_elements; store", "fold_e < -4 + fold_elements; store"),
    ),
    "words of the warp before": (WIDE, text("(-128warp + fold_e)", "(128 - 128warp + fold_e)")),
    "elements before their results": (ROWS, moved("elements", "finish_1")),
    "terms before the results that they use": (ROWS, moved("walk_1", "finish_0")),
    "the last word of a row left out that is made": (
        MADE,
        text(
            "warp <= 7 and 0 <= fold_e < fold_elements; give_1",
            "warp <= 7 and 8 <= fold_e < fold_elements; give_1",
        ),
    ),
    "no barrier between folds of a row that is made": (MADE, gone("bar_take_1")),
    "no barrier before its elements": (MADE, gone("bar_take_2")),
    "a fold of it before the one that it uses": (MADE, moved("walk_2", "finish_1")),
    "its elements before their results": (MADE, moved("elements", "finish_2")),
    "a warp of it not taken": (MADE, text("fold_w <= 7", "fold_w <= 6")),
    "its fold begun once more behind the walk": (MADE, moved("walk_2", "begin_2")),
    "it is read before the grids before are over": (MADE, gone("wait_grids_warps")),
    "arguments are read before the grids before are over": (GIVEN, gone("wait_grids_warps")),
    "their elements before the wait": (GIVEN, moved("finish_0", "wait_grids_warps")),
    "what is held before it is read": (HOLDS, moved("walk_1_held", "hold")),
    "a part of the sums left out": (
        KEYS,
        text("fold_q < fold_parts_0; results", "fold_q < -1 + fold_parts_0; results"),
    ),
    "parts of the reference in another order": (
        KEYS,
        text("merge_reference[fold_q] -> [(fold_q)]", "merge_reference[fold_q] -> [(-fold_q)]"),
    ),
    "states before their reference": (KEYS, moved("merge_states", "merge_reference")),
    "columns before the states": (KEYS, moved("results", "begin_states")),
}


def refused(emitted: Emitted, change: Callable[[Emitted], Emitted]) -> None:
    """What is emitted is proved, and with a change refused."""
    refine(emitted)
    with pytest.raises(VerifyError):
        refine(change(emitted))


@pytest.mark.parametrize("name", BROKEN)
def test_broken_trees_are_refused(name: str) -> None:
    shape, change = BROKEN[name]
    refused(tree(shape).emitted, change)


def bounds(statement: str, old: str, new: str) -> Callable[[TileProgram], TileProgram]:
    def change(program: TileProgram) -> TileProgram:
        own = program.statement(statement)
        assert old in own.bounds
        other = replace(own, bounds=own.bounds.replace(old, new))
        every = (other if s is own else s for s in program.statements)
        return replace(program, statements=tuple(every))

    return change


def reads(statement: str, old: str, new: str) -> Callable[[TileProgram], TileProgram]:
    def change(program: TileProgram) -> TileProgram:
        own = program.statement(statement)
        assert any(old in cells for cells in own.reads)
        other = replace(own, reads=tuple(cells.replace(old, new) for cells in own.reads))
        every = (other if s is own else s for s in program.statements)
        return replace(program, statements=tuple(every))

    return change


@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        (OWN, bounds("combine_0", "fold_q < fold", "fold_q < -1 + fold"), r"combine_0.*left out"),
        (SHARED, bounds("take_0", "< 8", "< 9"), "is visited, and is not there"),
        (OWN, bounds("combine_0", "mod 8 = warp", "mod 4 = warp mod 4"), "something twice"),
        (SHARED, bounds("take_0", "< 8", "< 7"), r"take_0.*left out"),
        (ROWS, bounds("take_1", "1 = 1", "warp < 7"), r"take_1.*left out"),
        (ROWS, bounds("walk_1", "= 32*warp", "= 32*warp and fold_e > 0"), r"walk_1.*left out"),
        (OWN, bounds("store", "warp = 0", "warp <= 1"), "store visits something twice"),
        (WIDE, bounds("elements", "mod 1024 = 128", "mod 512 = 128*(warp mod 4) + 0"), "twice"),
        (WIDE, bounds("walk_1", "= 128*warp", "= 128*warp and fold_e > 0"), r"walk_1.*left out"),
        (MADE, bounds("take_2", "< 8", "< 7"), r"take_2.*left out"),
        (MADE, bounds("walk_2", "= 256*warp", "= 256*warp and fold_e > 0"), r"walk_2.*left out"),
        (MADE, bounds("elements", "mod 2048 = 256*warp", "mod 1024 = 256*(warp mod 4)"), "twice"),
        (HOLDS, bounds("walk_1", "2048 <=", "2049 <="), r"walk_1.*left out"),
        (HOLDS, bounds("walk_1", "2048 <=", "1024 <="), "walk_1 visits something twice"),
        (HOLDS, bounds("walk_1_held", "fold_c < 2", "fold_c < 1"), "walk_1_held reads what is h"),
        (HOLDS, bounds("elements_held", "0 <= fold_c", "1 <= fold_c"), "elements_held reads what"),
        (HOLDS, bounds("hold", "fold_c < 2", "fold_c < 1"), "walk_1_held reads what is held of"),
        (HOLDS, reads("hold", "1024 * fold_c", "512 * fold_c"), "walk_1.*left out"),
        (HOLDS, reads("elements_held", "fold_c]", "1 - fold_c]"), "elements_held reads what is h"),
    ],
)
def test_programs_that_leave_something_out_are_refused(
    shape: FollowShape, change: Callable[[TileProgram], TileProgram], message: str
) -> None:
    program = follow_program(shape)
    check_visits(shape, program)
    with pytest.raises(VerifyError, match=message):
        check_visits(shape, change(program))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bounds("merge_sum", "fold_q < fold", "fold_q < -1 + fold"), r"merge_sum.*left out"),
        (bounds("merge_reference", "0 <= fold_q", "1 <= fold_q"), r"merge_reference.*left out"),
        (bounds("merge_states", "0 <= fold_q", "warp <= 2 and 0 <= fold_q"), r"states.*left out"),
        (bounds("results", "mod 128 = 32*warp", "mod 32 = 0"), "results visits something twice"),
    ],
)
def test_programs_of_keys_that_leave_something_out_are_refused(
    change: Callable[[TileProgram], TileProgram], message: str
) -> None:
    program = keys_program(KEYS)
    check_keys(KEYS, program)
    with pytest.raises(VerifyError, match=message):
        check_keys(KEYS, change(program))


def test_formulas_of_lanes_are_proved() -> None:
    check_results(32)
    check_results(1)
    check_lanes(32)
    check_lanes(32, element_of(4), 4)
    with pytest.raises(VerifyError, match="not every result once"):
        check_results(32, "fold_block * 31 + lane")
    with pytest.raises(VerifyError, match="two lanes visit one"):
        check_lanes(32, "{} + floor(lane/2)")
    with pytest.raises(VerifyError, match="two lanes visit one"):
        check_lanes(32, "{} + 2 * lane + fold_v", 4)


def test_barriers_say_what_they_are_for() -> None:
    first, second = tree(ROWS).synchronised.syncs
    assert first.enforces == ("give_0 -> take_0 (flow through given_0)",)
    assert second.enforces == ("give_1 -> take_1 (flow through given_1)",)
    assert len(tree(SHARED).synchronised.syncs) == 1  # however many folds meet


def test_rows_that_are_made_wait_for_the_grids_before() -> None:
    *others, last = tree(MADE).synchronised.syncs
    assert last.name == "wait_grids_warps"
    assert [one.enforces[0] for one in others] == [
        "give_1 -> take_1 (flow through given_1)",
        "give_2 -> take_2 (flow through given_2)",
    ]
    assert MADE.levels == range(1, 3) and ROWS.levels == range(2)
    loops = ast.text(tree(MADE).place.loops())
    assert loops.startswith("wait_grids_warps()\nbegin_1()\n")


def test_loops_are_those_of_the_text() -> None:
    assert not tree(KEYS).synchronised.syncs  # no warp gives another anything
    loops = ast.text(tree(SHARED).place.loops())
    assert "for fold_q = (32 * warp); (fold_q < fold_parts_1); += 256:\n  combine_0_1" in loops
    assert "if (warp == 0):\n  # fold_w\n  for fold_w = 0; (fold_w <= 7)" in loops
