"""Results of chains in panels: synchronisation is derived and proved; mistakes are refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from tile_mutants import emitted, mutants
from tile_simulator import fault

from polygen.errors import VerifyError
from polygen.poly.by_chain import by_chain, frames
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.frames import Frames, Held, check_frames
from polygen.poly.refine import refine
from polygen.poly.tile_tree import (
    Loop,
    Node,
    Steps,
    insert,
    leaves,
    loops_around,
    replace_leaf,
    without,
)
from polygen.poly.tiling import Panels, Tiling

TILES = Tiling((128, 128, 128), (64, 128), (64, 8, 16))


def _shape(*, turns: bool = True, varying: bool = False, **changes) -> ChainShape:
    shape = ChainShape(TILES, 128, 2, True, True, turns, 2, (), varying)
    return replace(shape, panels=Panels(64, (), ("y0",)), **changes)


@cache
def _made(*, varying: bool = False, slots: int = 2) -> Synchronised:
    return derive(by_chain(_shape(varying=varying, slots=slots)))


@pytest.mark.sample(3)  # each number of slots, and each way of the others
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(
    ("slots", "columns"), [(1, 64), (2, 64), (3, 64), (2, 32), (3, 32), (4, 32)]
)
def test_every_form_is_proved(varying: bool, turns: bool, slots: int, columns: int) -> None:
    """Slots for one panel, for some of a tile, for all, and no whole rounds of them."""
    panels = Panels(columns, (), ("y0",))
    shape = replace(_shape(turns=turns, varying=varying, slots=slots), panels=panels)
    assert len(refine(emitted(derive(by_chain(shape))))) == 10 + varying
    assert check_frames(by_chain(shape), frames(shape))


def test_two_results_leave_together() -> None:
    shape = replace(_shape(), panels=Panels(64, (), ("y0", "y1")))
    made = derive(by_chain(shape))
    assert len(refine(emitted(made))) == 10
    assert [s.name for s in made.syncs if s.kind == "bar"] == ["bar_store", "bar_finish"]


@pytest.mark.parametrize(
    ("slots", "order", "pending"),
    [
        (1, "wait_finish bar_finish finish fence_store bar_store store", 0),
        (2, "wait_finish bar_finish finish fence_store bar_store store", 0),
        (3, "finish fence_store wait_store bar_store store", 1),
        (4, "finish fence_store wait_store bar_store store", 0),
    ],
)
def test_panels_wait_for_their_slots_alone(slots: int, order: str, pending: int) -> None:
    """Of two panels a tile: one slot, those of a tile, one more, those of two tiles."""
    made = _made(slots=slots)
    ends = [name for name in leaves(made.tree) if "finish" in name or "store" in name]
    assert ends == [*order.split(), "wait_last_store"]
    left = {sync.name: sync.pending for sync in made.syncs if sync.kind == "retire"}
    assert left[next(name for name in ends if name.startswith("wait"))] == pending


@pytest.mark.parametrize(("slots", "inside"), [(1, True), (2, False), (3, True), (4, False)])
def test_slots_for_a_tile_are_filled_before_any_is_stored(slots: int, inside: bool) -> None:
    """Then there is one barrier for all panels of a tile, outside of their loop."""
    made = _made(slots=slots)
    loops = {leaf.name: leaf.loops for leaf in made.leaves}
    assert loops["bar_store"] == (("i", "p") if inside else ("i",))


SYNCS = [
    *((2, name) for name in ("wait_finish", "bar_finish", "fence_store", "bar_store")),
    *((3, name) for name in ("fence_store", "wait_store", "bar_store")),
    (2, "wait_last_store"),
]


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize(("slots", "name"), SYNCS)
def test_what_is_dropped_is_missed(slots: int, name: str, varying: bool) -> None:
    """The fence between threads and copy engine, drains, barriers, the last drain."""
    of = _made(varying=varying, slots=slots)
    rest = tuple(leaf for leaf in of.leaves if leaf.name != name)
    syncs = tuple(sync for sync in of.syncs if sync.wait != name)
    assert len(rest) < len(of.leaves) and len(syncs) < len(of.syncs)
    with pytest.raises(VerifyError):
        refine(emitted(of, tree=without(of.tree, name), leaves=rest, syncs=syncs))
    with pytest.raises(VerifyError):
        refine(emitted(of, tree=without(of.tree, name), leaves=rest))


@pytest.mark.parametrize(
    ("slots", "name", "near", "after"),
    [
        (2, "bar_store", "finish", False),
        (2, "bar_store", "store", True),
        (2, "bar_finish", "wait_finish", False),
        (2, "bar_finish", "finish", True),
        (2, "wait_finish", "finish", True),
        (2, "fence_store", "bar_store", True),
        (2, "fence_store", "finish", False),
        (2, "finish", "bar_store", True),
        (3, "bar_store", "finish", False),
        (3, "bar_store", "store", True),
        (3, "fence_store", "bar_store", True),
        (3, "wait_store", "bar_store", True),
        (3, "finish", "bar_store", True),
    ],
)
def test_what_is_moved_is_too_early_or_too_late(
    slots: int, name: str, near: str, *, after: bool
) -> None:
    of = _made(slots=slots)
    level = len(loops_around(of.tree, name))
    times = tuple(one.time(name) for one in loops_around(of.tree, name))
    if name == "finish" and slots == 2:  # with its loop
        (own,) = (one for one in loops_around(of.tree, name) if one.variable == "p")
        tree = insert(without(of.tree, name), 1, (near,), "\0", ("i",), after=after)
        moved = replace_leaf(_named(tree, name), "\0", own)
    else:
        moved = insert(without(of.tree, name), level, (near,), name, times, after=after)
    with pytest.raises(VerifyError):
        refine(emitted(of, tree=moved), necessary=False)


def _named(node: Node, name: str) -> Node:
    """The tree whose loops know a leaf as the one that stands for it."""
    if isinstance(node, Loop):
        times = tuple((name if one == "\0" else one, when) for one, when in node.times)
        return replace(node, times=times, child=_named(node.child, name))
    if isinstance(node, Steps):
        return Steps(tuple(_named(child, name) for child in node.children))
    return node


@pytest.mark.parametrize(
    ("slots", "name"), [(2, "wait_finish"), (3, "wait_store"), (2, "wait_last_store")]
)
def test_a_drain_that_leaves_one_group_more_is_refused(slots: int, name: str) -> None:
    of = _made(slots=slots)
    syncs = tuple(
        replace(one, pending=one.pending + 1) if one.name == name else one for one in of.syncs
    )
    with pytest.raises(VerifyError):
        refine(emitted(of, syncs=syncs))


def test_a_panel_of_another_tile_of_keys_is_refused() -> None:
    """Sums leave under the reference of their own last tile of keys."""
    held = frames(_shape()).held
    wrong = tuple(Held("finish", "[i,k_tiles - 2]", "") if h.statement == "finish" else h
                  for h in held)  # fmt: skip
    with pytest.raises(VerifyError, match="another reference"):
        check_frames(by_chain(_shape()), Frames("sum", wrong))


def _sizes() -> tuple[dict[str, int], ...]:
    return tuple(
        {"tiles": tiles, "k_tiles": keys} for tiles, keys in itertools.product((1, 3), (1, 2))
    )


@pytest.mark.parametrize("slots", [2, 3])
def test_what_is_proved_goes_wrong_in_no_order(slots: int) -> None:
    assert fault(emitted(_made(slots=slots)), _sizes(), range(3)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 3])
def test_every_mistake_is_refused_and_what_is_accepted_is_no_mistake(slots: int) -> None:
    tried = 0
    for what, changed in mutants(_made(slots=slots)):
        tried += 1
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        assert fault(changed, _sizes(), range(1)) == "", what
    assert tried > 200
