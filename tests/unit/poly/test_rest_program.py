"""The tile program of products that share sums: derived, proved, and refused where it is broken."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.analysis import analysed
from polygen.errors import IllegalSchedule, VerifyError
from polygen.fit import instruction_for
from polygen.hardware.device import device
from polygen.pipeline import generate
from polygen.poly import mapping
from polygen.poly.ast import text
from polygen.poly.by_roles import by_roles
from polygen.poly.derive_syncs import derive
from polygen.poly.emitted import Emitted, emitted_of
from polygen.poly.kernel_parts import Epilogue, main_loop
from polygen.poly.raster import prove_runs
from polygen.poly.refine import refine
from polygen.poly.tile_program import TileProgram
from polygen.poly.tile_tree import Leaf, Loop, Node, Steps, leaves
from polygen.poly.tiling import Panels, RowVectors, tiling

RANK = 16
PROGRAM = pg.fuse(low_rank).program(*signature(RANK))


def _program(name: str = "cooperative", run: int = 1) -> TileProgram:
    matched, schedule = analysed(PROGRAM).prospect.matched, form(name, run)
    atom = instruction_for(matched, device("sm_90a"), schedule)
    out = Epilogue(RowVectors(8, 1, 32), Panels(64, (), ("y",)))
    return by_roles(tiling(schedule, atom), schedule, out, main_loop(matched, None, 64))


def _emitted(program: TileProgram) -> Emitted:
    return emitted_of(derive(program))


@pytest.mark.parametrize("name", ["cooperative", "pingpong", "cluster", "by columns"])
def test_every_form_is_proved(name: str) -> None:
    assert len(refine(_emitted(_program(name)))) == 10


@pytest.mark.parametrize(("name", "run"), [("cooperative", 4), ("pingpong", 4)])
def test_what_tiles_of_a_run_share_is_made_once(name: str, run: int) -> None:
    emitted = _emitted(_program(name, run))
    assert len(refine(emitted)) == 10
    (consumer,) = (tree for tree in emitted.trees if tree.place.name == "consumer")
    loops = text(consumer.loops())
    made, every = (len(re.findall(rf"\b{x}\(", loops)) for x in ("multiply_middle", "multiply"))
    assert 2 * made == every  # tiles that make it have loops of their own
    assert loops.count("convert(") == 1 and f"% {run}" in loops
    assert len(prove_runs(run)) == 1


def _before(node: Node, name: str, other: str) -> Node:
    """A tree in which a leaf stands in front of another one, beside which it was."""
    if isinstance(node, Loop):
        return replace(node, child=_before(node.child, name, other))
    if not isinstance(node, Steps):
        return node
    rest = [_before(child, name, other) for child in node.children if child != Leaf(name)]
    if Leaf(other) in rest and Leaf(name) in node.children:
        rest.insert(rest.index(Leaf(other)), Leaf(name))
    return Steps(tuple(rest))


def test_consumers_take_turns_for_all_that_they_skip() -> None:
    made = derive(_program("pingpong"))
    (turn,) = (sync for sync in made.syncs if sync.kind == "turn")
    assert len(turn.enforces) == 2 and "wait_full_ring_d begins" in turn.enforces[1]
    order = leaves(made.tree)
    assert order.index("wait_full_ring_d") < order.index("arrive_turn")
    # As it is where nothing goes on: then a wait may be for the phase before its own.
    early = _before(made.tree, "arrive_turn", "convert")
    assert leaves(early).index("arrive_turn") < leaves(early).index("wait_full_ring_d")
    emitted = emitted_of(replace(made, tree=early))
    with pytest.raises(VerifyError, match="phase"):
        refine(emitted)


def test_what_is_derived_orders_what_is_behind_the_k_tiles() -> None:
    enforced = {sync.name: sync.enforces for sync in derive(_program()).syncs}
    assert any("multiply_middle -> convert" in one for one in enforced["retire_empty_ring_rest"])
    assert any("fill_rest -> multiply_rest" in one for one in enforced["full_ring_d"])
    assert any("multiply_rest -> fill_rest" in one for one in enforced["empty_ring_d"])
    assert any("multiply_rest -> finish" in one for one in enforced["retire_empty_ring_d"])
    assert any("convert -> multiply_rest" in one for one in enforced["fence_multiply_rest"])


@pytest.mark.parametrize(
    "name", ["retire_empty_ring_rest", "retire_empty_ring_d", "retire_empty_ring"]
)
def test_sums_that_are_read_before_they_are_complete_are_refused(name: str) -> None:
    emitted = _emitted(_program())
    syncs = tuple(replace(s, pending=s.pending + 1) if s.name == name else s for s in emitted.syncs)
    with pytest.raises(VerifyError):
        refine(replace(emitted, syncs=syncs))


@pytest.mark.parametrize("name", ["empty_ring_d", "full_ring_d"])
def test_a_tile_that_nothing_waits_for_is_refused(name: str) -> None:
    emitted = _emitted(_program())
    syncs = tuple(s for s in emitted.syncs if s.name != name)
    with pytest.raises(VerifyError):
        refine(replace(emitted, syncs=syncs))


def _changed(program: TileProgram, name: str, **fields: object) -> TileProgram:
    statements = tuple(replace(s, **fields) if s.name == name else s for s in program.statements)  # type: ignore[arg-type]
    return replace(program, statements=statements)


BROKEN = {
    "the last k tile of what is between is left out": (
        "multiply_middle",
        lambda one: {"bounds": one.bounds.replace("k < k_tiles", "k < k_tiles - 1")},
    ),
    "a step of the product behind is left out": (
        "multiply_rest",
        lambda one: {"bounds": one.bounds.replace("s < 1", "s < 0")},
    ),
    "the operand is made of nothing": ("convert", lambda one: {"reads": ()}),
    "what is between is of another tile of the run": (
        "convert",
        lambda one: {"bounds": one.bounds.replace("i mod 4 = 0", "i mod 4 = 1")},
    ),
    "what is between is of the run before": (
        "multiply_rest",
        lambda one: {"reads": (one.reads[0].replace("4*floor(i/4)", "4*floor(i/4) - 4"),)},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_program_that_leaves_something_out_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, change = BROKEN[name]
    written = mapping.kernel_program

    def broken(*args: object, **options: object) -> TileProgram:
        program = written(*args, **options)  # type: ignore[arg-type]
        fields = change(program.statement(statement))
        assert any(getattr(program.statement(statement), key) != fields[key] for key in fields)
        return _changed(program, statement, **fields)

    monkeypatch.setattr(mapping, "kernel_program", broken)
    with pytest.raises((VerifyError, IllegalSchedule)):
        generate(PROGRAM, device("sm_90a"), {}, form(run=4))
