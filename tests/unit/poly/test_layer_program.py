"""The tile program of layers in front of a chain: derived, proved, and refused where broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tile_mutants import mutants

from polygen.errors import IllegalSchedule, VerifyError
from polygen.poly.by_chain import ChainShape, frames
from polygen.poly.chain_layers import LayerShape
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
TWO = (LayerShape("l0", 2, 48), LayerShape("l1", 3, 64))
GATED = (LayerShape("l0", 2, 48, 2), LayerShape("l1", 3, 64))
USUAL = {"stages": 2, "distance": 1, "order": ("copy", "mma"), "fragments": 2, "lookahead": 1}


def shape(
    layers: tuple[LayerShape, ...] = TWO,
    *,
    referenced: bool = False,
    states: bool = False,
    background: bool = True,
    products: int = 1,
    **more,
) -> ChainShape:
    pipeline = Pipeline(**(USUAL | more))
    return ChainShape(
        TILES, 64, pipeline.stages, referenced, states, pipeline=pipeline,
        asynchronous=background, layers=layers, products=products,
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
    ],
    ids=[
        "usual", "through registers", "no lookahead", "three stages", "mma first", "one stage",
        "two products of a row", "these alone", "softmax behind", "softmax of two products",
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


def test_no_rendezvous_can_be_left_out() -> None:
    of = emitted(chain_program(shape(stages=2, distance=2, order=("mma", "copy"))))
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
    "convert_l0 after zero": "the one is of the layer's sums, the other of the last product's",
    "zero before convert_l0": "the same",
    "zero after clear": "each is of its own sums",
    "clear before zero": "the same",
}


def test_mistakes_are_refused_by_proofs_alone() -> None:
    accepted, tried = set(), 0
    of = replace(shape(TWO[:1]), tiles=Tiling((64, 64, 64), (32, 64), (16, 8, 16)))
    for what, changed in mutants(derive(chain_program(of))):
        tried += 1
        try:
            refine(changed)
        except (VerifyError, IllegalSchedule):
            continue
        accepted.add(what)
    assert tried > 80
    assert accepted == {*EQUIVALENT}
