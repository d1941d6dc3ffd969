"""The tile program of layers in front of a chain: derived, proved, and refused where broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tile_mutants import mutants

from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.by_chain import frames
from polygen.poly.chain_layers import LayerShape
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import derive
from polygen.poly.emitted import Emitted, emitted_of
from polygen.poly.frames import check_frames
from polygen.poly.kernel_program import chain_program
from polygen.poly.place_trees import place_trees
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import without
from polygen.poly.tiling import Tiling
from polygen.schedule.model import Pipeline

TILES = Tiling((64, 64, 32), (32, 64), (16, 8, 16))
NARROW = Tiling((64, 32, 32), (32, 32), (16, 8, 16))  # as many columns as a layer has
TWO = (LayerShape("l0", 2, 48), LayerShape("l1", 3, 64))
GATED = (LayerShape("l0", 2, 48, 2), LayerShape("l1", 3, 64))
# Five of one form, which share a ring of two slots; and two with a gate, which do.
SHARED = tuple(LayerShape(f"l{n}", 4, 64, shared=(("l0", n),)) for n in range(5))
GATES = tuple(LayerShape(f"l{n}", 4, 64, 2, (("l0", 2 * n), ("l0", 2 * n + 1))) for n in range(2))
# What a layer leaves is read behind the next one's sums, and in front of the last product.
AGAIN = (LayerShape("l0", 2, 32), LayerShape("l1", 2, 32, again=("l0",)))
# What a layer, and the first product, leave is read behind the last one.
BEHIND = (LayerShape("l0", 2, 32),)
USUAL = {"stages": 2, "distance": 1, "order": ("copy", "mma"), "fragments": 2, "lookahead": 1}


def shape(
    layers: tuple[LayerShape, ...] = TWO,
    *,
    referenced: bool = False,
    states: bool = False,
    background: bool = True,
    products: int = 1,
    slots: int = 1,
    again: tuple[str, ...] = (),
    behind: tuple[str, ...] = (),
    **more,
) -> ChainShape:
    pipeline = Pipeline(**(USUAL | more))
    return ChainShape(
        NARROW if behind else TILES, 64, pipeline.stages, referenced, states, pipeline=pipeline,
        asynchronous=background, layers=layers, products=products, layer_slots=slots,
        again=again, behind=behind,
    )  # fmt: skip


def emitted(program: TileProgram) -> Emitted:
    return emitted_of(derive(program))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"background": False},
        {"fragments": 1, "lookahead": 0},
        {"stages": 3, "distance": 2},
        {"stages": 2, "distance": 2, "order": ("mma", "copy")},
        {"stages": 1, "distance": 1, "order": ("mma", "copy")},
        {"layers": GATED, "products": 2},
        {"layers": (), "products": 2},
        {"layers": TWO[:1], "referenced": True, "states": True},
        {"layers": TWO[:1], "referenced": True, "states": True, "products": 2},
        {"layers": SHARED, "slots": 2},
        {"layers": SHARED, "slots": 2, "background": False},
        {"layers": SHARED, "slots": 2, "distance": 2, "order": ("mma", "copy")},
        {"layers": GATES, "slots": 2},
        {"layers": SHARED[:3], "slots": 1},
        {"layers": AGAIN, "again": ("l1",)},
        {"layers": AGAIN, "again": ("l0", "l1"), "products": 2},
        {"layers": AGAIN, "again": ("l1",), "behind": ("l1",)},
        {"layers": (), "behind": ("",)},
        {"layers": AGAIN, "behind": ("l0", ""), "products": 2},
        {"layers": (), "behind": ("",), "states": True},
    ],
    ids=[
        "usual", "through registers", "no lookahead", "three stages", "mma first", "one stage",
        "two products of a row", "these alone", "softmax behind", "softmax of two products",
        "a ring of layers", "one through registers", "one with products first", "one of gates",
        "one slot", "residuals", "two of them", "one behind all", "of the first product",
        "of both", "beside states",
    ],
)  # fmt: skip
def test_every_form_is_proved(more: dict) -> None:
    of = shape(**more)
    program = chain_program(of)
    assert len(refine(emitted(program))) == 10
    assert bool(check_frames(program, frames(of))) == of.referenced


def test_warps_meet_as_often_as_without_layers() -> None:
    for layers in ((), TWO, GATED):
        made = derive(chain_program(shape(layers)))
        assert [(s.kind, s.pending) for s in made.syncs] == [("bar", 0), ("retire", 0)]


@pytest.mark.parametrize("layers", [TWO, SHARED[:3]], ids=["a ring each", "one ring"])
def test_no_rendezvous_can_be_left_out(layers: tuple[LayerShape, ...]) -> None:
    pipeline = {"stages": 2, "distance": 2, "order": ("mma", "copy")}
    of = emitted(chain_program(shape(layers, slots=2, **pipeline)))
    for sync in of.syncs:
        tree = without(of.certificate, sync.wait)
        kept = tuple(leaf for leaf in of.leaves if leaf.name != sync.wait)
        trees = place_trees(of.program, tree, kept)
        syncs = tuple(one for one in of.syncs if one is not sync)
        with pytest.raises(VerifyError):
            refine(replace(of, certificate=tree, trees=trees, leaves=kept, syncs=syncs))


@pytest.mark.parametrize("name", ["clear_l0", "clear_l1", "clear", "zero"])
def test_sums_that_nothing_clears_are_refused(name: str) -> None:
    program = chain_program(shape())
    gone = replace(
        program,
        statements=tuple(s for s in program.statements if s.name != name),
        order=without(program.order, name),
        schedule=without(program.schedule, name),
    )
    with pytest.raises(IllegalSchedule):
        derive(gone)


def test_what_is_overwritten_before_it_is_read_behind_is_refused() -> None:
    """What a tile of keys leaves is gone with the next one: results read that of the last."""
    program = chain_program(shape((), behind=("",)))
    store = program.statement("store")
    early = tuple(one.replace("scores[k_tiles - 1,", "scores[0,") for one in store.reads)
    assert early != store.reads
    statements = tuple(
        replace(one, reads=early) if one is store else one for one in program.statements
    )
    with pytest.raises((VerifyError, IllegalSchedule)):
        refine(emitted(replace(program, statements=statements)))


def test_a_wait_that_leaves_a_group_more_is_refused() -> None:
    of = emitted(chain_program(shape(SHARED[:3], slots=2)))
    waits = [one for one in of.syncs if one.kind == "retire"]
    assert len(waits) == 2
    for wait in waits:
        syncs = tuple(replace(s, pending=s.pending + 1) if s is wait else s for s in of.syncs)
        with pytest.raises(VerifyError):
            refine(replace(of, syncs=syncs))


# Changes that are no mistakes, and why.
EQUIVALENT = {
    "bar_copy_a after copy_a": "what is copied once has nothing before it to wait for",
    "commit after clear_l0": "the one is of copies, the other of sums",
    "clear_l0 before commit": "the same",
    "load_a after load_l0": "fragments of the two operands do not depend on each other",
    "load_l0 before load_a": "the same",
    "load_l0 after score_l0": "with a lookahead the products between are of an earlier step",
    "load_b after score": "likewise",
    "load_c after mma": "likewise",
    "zero after clear": "each is of its own sums",
    "clear before zero": "the same",
}
ONE = {
    "convert_l0 after zero": "the one is of the layer's sums, the other of the last product's",
    "zero before convert_l0": "the same",
}
IN_ONE_RING = {
    "convert_l0 after clear_l1": "each is of its own layer's sums",
    "clear_l1 before convert_l0": "the same",
    "convert_l1 after clear_l2": "likewise",
    "clear_l2 before convert_l1": "the same",
    "convert_l2 after zero": "likewise",
    "zero before convert_l2": "the same",
    "load_l1 after score_l1": "with a lookahead, as above",
    "load_l2 after score_l2": "the same",
    "commit_l0 after weigh_l0": "what closes a group is only wanted in front of the wait",
    "weigh_l0 before commit_l0": "the same",
    "clear_l2 after wait_load_l2": "the wait is for copies, of which sums are none",
    "wait_load_l2 before clear_l2": "the same",
}
RESIDUAL = {
    "convert_l0 after clear_l1": "each is of its own layer's sums",
    "clear_l1 before convert_l0": "the same",
    "convert_l1 after zero": "the one is of the layer's sums, the other of the last product's",
    "zero before convert_l1": "the same",
    "load_l1 after score_l1": "with a lookahead, as above",
}


@pytest.mark.parametrize(
    ("layers", "own"),
    [(TWO[:1], ONE), (SHARED[:3], IN_ONE_RING), (AGAIN, RESIDUAL), (BEHIND, ONE)],
    ids=["a layer", "three in one ring", "residuals", "one behind all"],
)
def test_mistakes_are_refused_by_proofs_alone(
    layers: tuple[LayerShape, ...], own: dict[str, str]
) -> None:
    accepted, tried = set(), 0
    again = ("l0", "l1") if layers is AGAIN else ()
    behind = ("l0", "") if layers is BEHIND else ()
    tiles = Tiling((64, 64, 32 if again else 64), (32, 64), (16, 8, 16))
    tiles = NARROW if behind else tiles
    of = replace(shape(layers, slots=2, again=again, behind=behind), tiles=tiles)
    for what, changed in mutants(derive(chain_program(of))):
        tried += 1
        try:
            refine(changed)
        except (VerifyError, IllegalSchedule):
            continue
        accepted.add(what)
    assert tried > 80
    assert accepted == {*EQUIVALENT, *own}
