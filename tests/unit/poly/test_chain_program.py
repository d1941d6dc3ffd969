"""The tile program of chains: derived, proved, and refused where it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tile_mutants import moved_after, mutants, shifted

from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.by_chain import by_chain, frames
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import derive
from polygen.poly.emitted import Emitted, emitted_of
from polygen.poly.frames import check_frames
from polygen.poly.kernel_program import chain_program
from polygen.poly.key_tiles import KeyTiles, prove_key_tiles
from polygen.poly.place_trees import place_trees
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import leaves, without
from polygen.poly.tiling import Tiling
from polygen.rewrite.key_range import KeyRange, RowBound
from polygen.schedule.model import Pipeline

TILES = Tiling((128, 128, 128), (64, 128), (64, 8, 16))


def _shape(
    *, referenced: bool = True, states: bool = True, turns: bool = False, row_slots: int = 1
) -> ChainShape:
    return ChainShape(TILES, 128, 2, referenced, states, turns, row_slots)


def _emitted(program: TileProgram) -> Emitted:
    return emitted_of(derive(program))


@pytest.mark.parametrize(("turns", "slots"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("kind", [(True, True), (False, True), (False, False)])
def test_every_form_is_proved(turns: bool, slots: int, kind: tuple[bool, bool]) -> None:
    shape = _shape(referenced=kind[0], states=kind[1], turns=turns, row_slots=slots)
    assert len(refine(_emitted(by_chain(shape)))) == 10
    assert bool(check_frames(by_chain(shape), frames(shape))) == kind[0]


@pytest.mark.parametrize("turns", [False, True])
def test_what_the_first_product_leaves_is_read_behind_the_second(turns: bool) -> None:
    of = replace(_shape(referenced=False, states=False, turns=turns), behind=("",))
    program = by_chain(of)
    assert len(refine(_emitted(program))) == 10
    store = program.statement("store")
    early = tuple(one.replace("k_tiles - 1", "0") for one in store.reads)
    assert early != store.reads
    changed = replace(
        program,
        statements=tuple(replace(s, reads=early) if s is store else s for s in program.statements),
    )
    with pytest.raises((VerifyError, IllegalSchedule)):
        refine(_emitted(changed))


@pytest.mark.parametrize("paged", [("b", "c"), ("c",)])
def test_pages_are_found_before_the_slot_is_waited_for(paged: tuple[str, ...]) -> None:
    emitted = _emitted(by_chain(replace(_shape(), paged=paged)))
    assert len(refine(emitted)) == 10
    order = leaves(emitted.certificate)
    for ring in paged:
        at = [order.index(f"{name}{ring}") for name in ("find_", "wait_empty_ring_", "fill_")]
        assert at == sorted(at)


@pytest.mark.parametrize("ring", ["b", "c"])
def test_copies_that_take_the_pages_of_another_tile_are_refused(ring: str) -> None:
    emitted = _emitted(by_chain(replace(_shape(), paged=("b", "c"))))
    late = moved_after(emitted.certificate, f"find_{ring}", f"fill_{ring}")
    early = shifted(emitted.certificate, f"find_{ring}", -1)
    for tree in (late, early):
        trees = place_trees(emitted.program, tree, emitted.leaves)
        with pytest.raises(VerifyError, match=f"find_{ring}"):
            refine(replace(emitted, certificate=tree, trees=trees))


def test_both_products_are_in_flight() -> None:
    made = derive(by_chain(_shape()))
    pending = {s.name: s.pending for s in made.syncs if s.kind == "retire"}
    assert pending == {"retire_empty_ring_b": 1, "retire_empty_ring_c": 0}
    order = leaves(made.tree)
    assert order.index("multiply") < order.index("retire_empty_ring_b") < order.index("advance")
    assert order.index("weigh") < order.index("retire_empty_ring_c") < order.index("rescale")


def test_a_wait_that_leaves_one_group_more_is_refused() -> None:
    emitted = _emitted(by_chain(_shape()))
    for name in ("retire_empty_ring_b", "retire_empty_ring_c"):
        syncs = tuple(
            replace(s, pending=s.pending + 1) if s.name == name else s for s in emitted.syncs
        )
        with pytest.raises(VerifyError):
            refine(replace(emitted, syncs=syncs))


def test_without_the_rescale_sums_mix_references() -> None:
    program = by_chain(_shape())
    gone = replace(
        program,
        statements=tuple(s for s in program.statements if s.name != "rescale"),
        order=without(program.order, "rescale"),
        schedule=without(program.schedule, "rescale"),
        releases=(("ring_b", "advance"),),
    )
    refine(_emitted(gone))  # no dependence misses it: what it multiplies is algebra
    with pytest.raises(VerifyError, match="another reference"):
        check_frames(gone, frames(_shape()))


@pytest.mark.parametrize(("ring", "before"), [("ring_c", "score"), ("ring_b", "commit_score")])
def test_rings_released_before_their_last_use_are_refused(ring: str, before: str) -> None:
    program = by_chain(_shape())
    releases = tuple((r, before if r == ring else at) for r, at in program.releases)
    with pytest.raises((IllegalSchedule, VerifyError)):
        refine(_emitted(replace(program, releases=releases)))


@pytest.mark.parametrize(
    "found", [(None, 0), (-99, 0), (None, -5), (20, None), (-1024, 64), (0, 0)]
)
@pytest.mark.parametrize("keys", ["T", 300])
def test_every_key_of_a_range_is_visited(found, keys) -> None:
    tiles = KeyTiles(KeyRange(*found, "x", "y"), 128, 96)
    assert len(prove_key_tiles(tiles, keys, 64)) == 2


@pytest.mark.parametrize("found", [None, (None, 0), (-99, 5), (20, None)])
@pytest.mark.parametrize("keys", ["T", 300])
def test_every_key_is_in_one_part(found, keys) -> None:
    inside = KeyRange(*found, "x", "y") if found else None
    proofs = prove_key_tiles(KeyTiles(inside, 128, 96, 3), keys, 64)
    assert "every key of a row is in one part" in proofs[-1].claim


class _Overlapping(KeyTiles):
    """Parts that end a tile too late."""

    def number(self, *given, **more) -> str:
        return super().number(*given, **more).replace(", 3)", ", 4)")


class _Gaps(KeyTiles):
    """Parts that begin a tile too late."""

    def first(self, *given, **more) -> str:
        return super().first(*given, **more).replace("* 3", "* 4")


@pytest.mark.parametrize(("wrong", "why"), [(_Overlapping, "two parts"), (_Gaps, "in no tile")])
def test_parts_that_overlap_or_leave_keys_out_are_refused(wrong, why) -> None:
    with pytest.raises(VerifyError, match=why):
        prove_key_tiles(wrong(None, 64, 64, 3), "T", 64)


HELD = (RowBound("lower", "begin", 0), RowBound("upper", "end", -1))


@pytest.mark.sample(4)
@pytest.mark.parametrize("arrays", [HELD, HELD[:1], HELD[1:]])
@pytest.mark.parametrize("part", [0, 3])
def test_keys_between_what_arrays_hold_are_visited(arrays, part) -> None:
    for lower, upper in ((None, None), (None, 0), (-99, 5)):
        inside = KeyRange(lower, upper, "x", "", arrays)
        assert prove_key_tiles(KeyTiles(inside, 128, 96, part), "T", 64)


class _TooFew(KeyTiles):
    """The greatest key of a row is taken for the end."""

    def number(self, *given, **more) -> str:
        return super().number(*given, **more).replace("k_highest", "k_highest - 1")


def test_a_bound_off_by_one_is_refused() -> None:
    with pytest.raises(VerifyError, match="in no tile"):
        prove_key_tiles(_TooFew(KeyRange(None, None, "x", "", HELD), 128, 64), "T", 64)


class _OneLess(KeyTiles):
    """A tile less than there is."""

    def number(self, *given, **more) -> str:
        return super().number(*given, **more).replace(" + 1)", ")")


class _MaskOff(KeyTiles):
    """Tiles without mask that hold one masked key."""

    def within(self, row: str, span: int, key: str) -> str:
        return super().within(row, span, key).replace("<= ", "<= 1 + ")


@pytest.mark.parametrize("wrong", [_OneLess, _MaskOff])
def test_a_mask_off_by_one_is_refused(wrong) -> None:
    with pytest.raises(VerifyError):
        prove_key_tiles(wrong(KeyRange(None, 62, "x", "y"), 128, 128), "T", 64)


# --- warps that do everything ---------------------------------------------------------------------
WARP_TILES = Tiling((64, 64, 32), (32, 64), (16, 8, 16))


def _accepted(
    shape: ChainShape, tried: Callable[[str], bool] = lambda _: True
) -> tuple[set[str], int]:
    """Mistakes of a chain's trees that no proof refuses, and how many were tried."""
    chosen = [one for one in mutants(derive(chain_program(shape))) if tried(one[0])]
    accepted = set()
    for what, emitted in chosen:
        try:
            refine(emitted)
        except (VerifyError, IllegalSchedule):
            continue
        accepted.add(what)
    return accepted, len(chosen)


def _by_warps(
    *, referenced: bool = True, states: bool = True, background: bool = True, **more
) -> ChainShape:
    usual = {"stages": 2, "distance": 1, "order": ("copy", "mma"), "fragments": 2, "lookahead": 1}
    pipeline = Pipeline(**(usual | more))
    return ChainShape(
        WARP_TILES, 64, pipeline.stages, referenced, states, pipeline=pipeline,
        asynchronous=background,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"background": False},
        {"fragments": 1, "lookahead": 0},
        {"stages": 3, "distance": 2},
        {"stages": 2, "distance": 2, "order": ("mma", "copy")},
        {"stages": 1, "distance": 1, "order": ("mma", "copy")},
    ],
    ids=["usual", "through registers", "no lookahead", "three stages", "mma first", "one stage"],
)
def test_every_form_by_warps_is_proved(more: dict, kind: tuple[bool, bool]) -> None:
    shape = _by_warps(referenced=kind[0], states=kind[1], **more)
    program = chain_program(shape)
    assert len(refine(_emitted(program))) == 10
    assert bool(check_frames(program, frames(shape))) == kind[0]


def test_warps_meet_once_a_tile_of_keys() -> None:
    made = derive(chain_program(_by_warps()))
    assert [(s.kind, s.pending) for s in made.syncs] == [("bar", 0), ("retire", 0)]
    deeper = derive(chain_program(_by_warps(stages=3, distance=2, order=("mma", "copy"))))
    assert [(s.kind, s.pending) for s in deeper.syncs] == [("bar", 0), ("retire", 1)]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_no_rendezvous_of_warps_can_be_left_out(stages: int) -> None:
    pipeline = {"stages": stages, "distance": stages, "order": ("mma", "copy")}
    emitted = _emitted(chain_program(_by_warps(**pipeline)))
    for sync in emitted.syncs:
        tree = without(emitted.certificate, sync.wait)
        kept = tuple(leaf for leaf in emitted.leaves if leaf.name != sync.wait)
        trees = place_trees(emitted.program, tree, kept)
        syncs = tuple(one for one in emitted.syncs if one is not sync)
        with pytest.raises(VerifyError):
            refine(replace(emitted, certificate=tree, trees=trees, leaves=kept, syncs=syncs))


def test_a_wait_of_warps_that_leaves_one_group_more_is_refused() -> None:
    emitted = _emitted(chain_program(_by_warps()))
    syncs = tuple(
        replace(s, pending=s.pending + 1) if s.kind == "retire" else s for s in emitted.syncs
    )
    with pytest.raises(VerifyError):
        refine(replace(emitted, syncs=syncs))


# Changes that are no mistakes, and why.
EQUIVALENT = {
    "rescale without its first k": "behind the first tile of keys there are no sums to rescale",
    "load_a after load_b": "fragments of the two operands do not depend on each other",
    "load_b before load_a": "the same",
    "weigh after rescale": "the one is of scores and states, the other of sums",
    "rescale before weigh": "the same",
    "rescale after convert": "likewise",
    "convert before rescale": "the same",
}
COPY_FIRST = {
    "bar_copy_a after copy_a": "rows are copied once, and the barrier is for the tiles behind",
    "commit after clear": "the one is of copies, the other of scores",
    "clear before commit": "the same",
    "load_b after score": "with a lookahead the products between are of an earlier step",
    "load_c after mma": "likewise",
}
PRODUCTS_FIRST = {
    "clear after wait_load_a": "the wait is for copies, of which scores are none",
    "wait_load_a before clear": "the same",
}


@pytest.mark.parametrize(
    ("more", "own"),
    [
        ({}, COPY_FIRST),
        (
            {"stages": 3, "distance": 2, "order": ("mma", "copy"), "fragments": 1, "lookahead": 0},
            PRODUCTS_FIRST,
        ),
    ],
    ids=["copy first", "products first"],
)
def test_mistakes_of_warps_are_refused_by_proofs_alone(more: dict, own: dict) -> None:
    shape = replace(_by_warps(**more), tiles=Tiling((64, 64, 64), (32, 64), (16, 8, 16)))
    accepted, tried = _accepted(shape)
    assert tried > 70
    assert accepted == {*EQUIVALENT, *own}


def test_without_the_rescale_sums_of_warps_mix_references() -> None:
    shape = _by_warps()
    program = chain_program(shape)
    gone = replace(
        program,
        statements=tuple(s for s in program.statements if s.name != "rescale"),
        order=without(program.order, "rescale"),
        schedule=without(program.schedule, "rescale"),
    )
    refine(_emitted(gone))
    with pytest.raises(VerifyError, match="another reference"):
        check_frames(gone, frames(shape))


@pytest.mark.parametrize("name", ["clear", "zero"])
def test_sums_that_nothing_clears_are_refused(name: str) -> None:
    program = chain_program(_by_warps())
    gone = replace(
        program,
        statements=tuple(s for s in program.statements if s.name != name),
        order=without(program.order, name),
        schedule=without(program.schedule, name),
    )
    with pytest.raises(IllegalSchedule):
        derive(gone)


@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize(
    ("folds", "passes"), [(True, ()), (False, (True, False)), (True, (False,))]
)
def test_folds_of_results_are_proved_in_every_form(roles: bool, folds: bool, passes: tuple) -> None:
    shape = replace(_shape() if roles else _by_warps(), folds=folds, passes=passes)
    emitted = _emitted(chain_program(shape))
    assert refine(emitted) and check_frames(emitted.program, frames(shape))
    order = leaves(emitted.certificate)
    last = [name for n in range(len(passes)) for name in (f"terms_r{n}", f"meet_r{n}")]
    last += ["unfold", "store", "fold"] if folds else ["store"]
    at = [order.index(name) for name in ("complete", *last)]
    assert at == sorted(at)


def test_mistakes_of_folds_and_passes_are_refused_by_proofs_alone() -> None:
    """Registers of a pass are begun, results known before they are used, sums read while they are
    there: whatever stands elsewhere is refused, or reads and writes nothing of what it passes.
    """
    tiles = Tiling((64, 64, 64), (32, 64), (16, 8, 16))
    shape = replace(_by_warps(), tiles=tiles, folds=True, passes=(True, False))
    own = {"fold", "unfold", "store", *(f"{one}_r{n}" for one in ("unfold", "terms", "meet")
                                        for n in range(2))}  # fmt: skip
    accepted, tried = _accepted(shape, lambda what: bool(own & set(what.split())))
    assert tried > 15
    # Registers are cleared sooner or later than others are read.
    assert all({"after", "before"} & set(one.split()) and "unfold" in one for one in accepted)
