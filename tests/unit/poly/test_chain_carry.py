"""The second product of a tile's last keys runs while the next tile of rows begins: proofs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from tile_mutants import emitted, mutants
from tile_simulator import fault

from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.by_chain import ENDED, ENDED_TILE, ChainShape, by_chain, frames
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.frames import check_frames
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import (
    Loop,
    Node,
    Steps,
    isl_text,
    leaves,
    loop,
    steps,
    times,
    without,
)
from polygen.poly.tiling import Panels, Tiling

TILES = Tiling((128, 128, 128), (64, 128), (64, 8, 16))


def _shape(**changes) -> ChainShape:
    shape = ChainShape(TILES, 128, 2, True, True, True, 2, panels=Panels(64, (), ("y0",)))
    return replace(shape, carry=True, **changes)


@cache
def _made() -> Synchronised:
    return derive(by_chain(_shape()))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("kind", [(True, True), (False, True), (False, False)])
def test_every_form_is_proved(kind: tuple[bool, bool], turns: bool, slots: int) -> None:
    shape = _shape(referenced=kind[0], states=kind[1], turns=turns, slots=slots)
    assert len(refine(emitted(derive(by_chain(shape))))) == 10
    assert bool(check_frames(by_chain(shape), frames(shape))) == kind[0]


def test_tiles_with_numbers_of_their_own_carry_nothing() -> None:
    with pytest.raises(VerifyError, match="another number of tiles of keys"):
        by_chain(_shape(varying=True))


def test_a_tile_ends_in_the_first_step_of_the_next_one() -> None:
    when = {name: vector[1:4] for name, vector in times(_made().tree).items()}
    last = "k + 1 >= k_tiles"
    assert when["multiply"][0] == f"({last} ? i + 1 : i)" == when["commit_multiply"][0]
    assert when["finish"][0] == when["store"][0] == "i + 1"
    order = leaves(_made().tree)
    for before, behind in itertools.pairwise(("score", "multiply", "weigh", "finish", "store")):
        assert order.index(before) < order.index(behind)
    assert order.index("store") < order.index("convert") < order.index("complete")


def test_the_first_scores_of_a_kernel_have_a_wait_of_their_own() -> None:
    """Before all others a product of the tile before is in flight, which may stay so."""
    pending = {s.name: s.pending for s in _made().syncs if s.kind == "retire"}
    assert pending["retire_empty_ring_b_first"] == 0 and pending["retire_empty_ring_b"] == 1
    assert pending["retire_empty_ring_c"] == 0
    first = next(one for one in _made().leaves if one.name == "retire_empty_ring_b_first")
    assert "i = 0" in first.domain and "k = 0" in first.domain


@pytest.mark.parametrize("name", ["retire_empty_ring_b_first", "retire_empty_ring_b"])
def test_a_wait_that_leaves_one_group_more_is_refused(name: str) -> None:
    syncs = tuple(
        replace(one, pending=one.pending + 1) if one.name == name else one for one in _made().syncs
    )
    with pytest.raises(VerifyError):
        refine(emitted(_made(), syncs=syncs), necessary=False)


def _without(of: Synchronised, *names: str) -> Synchronised:
    rest = tuple(leaf for leaf in of.leaves if leaf.name not in names)
    syncs = tuple(sync for sync in of.syncs if sync.wait not in names)
    assert len(rest) + len(names) == len(of.leaves)
    return replace(of, tree=without(of.tree, *names), leaves=rest, syncs=syncs)


@pytest.mark.parametrize(
    "name",
    [
        "retire_empty_ring_b_first", "retire_empty_ring_b", "retire_empty_ring_c", "fence_store",
        "bar_store", "wait_last_store",
    ],
)  # fmt: skip
def test_what_is_dropped_is_missed(name: str) -> None:
    with pytest.raises(VerifyError):
        refine(emitted(_without(_made(), name)))


def _reading(program: TileProgram, **cells: str) -> TileProgram:
    """The program whose last statements read other cells than those that are kept."""
    ends = ("finish", "store", "complete", "keep")

    def other(texts: tuple[str, ...]) -> tuple[str, ...]:
        found = []
        for text in texts:
            name, bracket, rest = text.partition("[")
            found.append(cells.get(name, name) + bracket + rest)
        return tuple(dict.fromkeys(found))

    statements = tuple(
        replace(s, reads=other(s.reads), writes=other(s.writes)) if s.name in ends else s
        for s in program.statements
    )
    return replace(program, statements=statements)


@pytest.mark.parametrize(
    "cells", [{ENDED: "states"}, {ENDED_TILE: "tile_consumer"}], ids=["states", "coordinates"]
)
def test_what_the_next_tile_overwrites_is_kept(cells: dict[str, str]) -> None:
    """Of the tile that has ended: states of its rows, and where it is."""
    with pytest.raises((IllegalSchedule, VerifyError), match=r"states|tile_consumer"):
        refine(emitted(derive(_reading(by_chain(_shape()), **cells))))


def _moved(node: Node, changes: dict[str, dict[str, str]]) -> Node:
    """The tree with other times: by the loop's variable, of some leaves."""
    if isinstance(node, Loop):
        own = changes.get(node.variable, {})
        found = tuple((name, own.get(name, when)) for name, when in node.times)
        return replace(node, times=found, child=_moved(node.child, changes))
    if isinstance(node, Steps):
        return Steps(tuple(_moved(child, changes) for child in node.children))
    return node


@pytest.mark.parametrize(
    "changes",
    [
        {"i": {"finish": "i", "store": "i"}},  # before the last product
        {"i": {"finish": "i + 2", "store": "i + 2"}},
        {"i": {"store": "i + 2"}},
        {"k": {"finish": "1", "store": "1"}},  # behind sums of the next tile
        {"i": {"multiply": "i", "commit_multiply": "i"}},
    ],
)
def test_results_that_leave_in_another_step_are_refused(changes: dict) -> None:
    with pytest.raises(VerifyError):
        refine(emitted(_made(), tree=_moved(_made().tree, changes)), necessary=False)


def _sizes() -> tuple[dict[str, int], ...]:
    return tuple(
        {"tiles": tiles, "k_tiles": keys} for tiles, keys in itertools.product((1, 3), (1, 2))
    )


def test_what_is_proved_goes_wrong_in_no_order() -> None:
    assert fault(emitted(_made()), _sizes(), range(3)) == ""


@pytest.mark.slow
def test_every_mistake_is_refused_and_what_is_accepted_is_no_mistake() -> None:
    tried = 0
    for what, changed in mutants(_made()):
        tried += 1
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        assert fault(changed, _sizes(), range(1)) == "", what
    assert tried > 200


def test_a_choice_of_times_is_two_pieces_of_a_band() -> None:
    tree = loop("i", steps("a", "b"), a="(i >= n ? 0 : i + 1)")
    text = isl_text(tree, "[n] -> { a[i]; b[i] }", "[n] -> ", lambda name: f"{name}[i]")
    wanted = "a[i] -> [((0))] : i >= n; a[i] -> [((i + 1))] : not (i >= n); b[i] -> [(i)]"
    assert wanted in text
    later = loop("i", steps("a", "b"), a="(i >= n ? 0 : i + 1) + 2")
    text = isl_text(later, "[n] -> { a[i]; b[i] }", "[n] -> ", lambda name: f"{name}[i]")
    assert "a[i] -> [((0) + 2)] : i >= n; a[i] -> [((i + 1) + 2)] : not (i >= n)" in text
