"""Tiles of rows of one block with numbers of tiles of keys of their own: proved, and refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest
from tile_mutants import emitted, mutants
from tile_simulator import fault

from polygen.errors import VerifyError
from polygen.poly.ast import Binary, Block, Call, Const, For, Var
from polygen.poly.by_chain import by_chain, frames, varying
from polygen.poly.chain_shape import ChainShape
from polygen.poly.derive_syncs import Synchronised, derive
from polygen.poly.emitted import Emitted
from polygen.poly.frames import Frames, Held, check_frames
from polygen.poly.read_loops import check_variable
from polygen.poly.refine import refine
from polygen.poly.tile_program import Varying
from polygen.poly.tiling import Tiling

TILES = Tiling((128, 128, 128), (64, 128), (64, 8, 16))
# Numbers of three tiles of rows, and where those begin.
NUMBERS = ((1, 1, 1), (3, 1, 2), (1, 2, 1), (2, 3, 1))


def _shape(
    *, referenced: bool = True, states: bool = True, turns: bool = True, row_slots: int = 1
) -> ChainShape:
    return ChainShape(TILES, 32, 2, referenced, states, turns, row_slots, (), varying=True)


@cache
def _made(*, turns: bool = True) -> Synchronised:
    return derive(by_chain(_shape(turns=turns)))


def _sizes(tiles: int = 4) -> tuple[dict[str, int], ...]:
    return tuple(
        {"tiles": tiles, "i_window": at} | {f"k_tiles_{n}": one for n, one in enumerate(numbers)}
        for numbers, at in zip(NUMBERS, itertools.cycle((0, 1)), strict=False)
    )


@pytest.mark.parametrize(("turns", "slots"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("kind", [(True, True), (False, True), (False, False)])
def test_every_form_is_proved_for_any_numbers(
    turns: bool, slots: int, kind: tuple[bool, bool]
) -> None:
    shape = _shape(referenced=kind[0], states=kind[1], turns=turns, row_slots=slots)
    claims = [proof.claim for proof in refine(emitted(derive(by_chain(shape))))]
    assert any(one.startswith("all that for any k_tiles in every iteration of i") for one in claims)
    assert bool(check_frames(by_chain(shape), frames(shape))) == kind[0]


def test_synchronisation_is_that_of_one_number() -> None:
    alike = derive(by_chain(replace(_shape(), varying=False)))
    made = _made()
    assert (made.tree, made.leaves, made.syncs) == (alike.tree, alike.leaves, alike.syncs)
    assert made.counters == alike.counters


def test_what_is_proved_goes_wrong_in_no_order() -> None:
    """The bounded model has numbers for tiles of rows, and no proof."""
    assert fault(emitted(_made()), _sizes(), range(3)) == ""


@pytest.mark.slow
def test_every_mistake_is_refused_and_what_is_accepted_is_no_mistake() -> None:
    accepted = set()
    for what, changed in mutants(_made()):
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        accepted.add(what)
        assert fault(changed, _sizes(), range(1)) == "", what
    alike = derive(by_chain(replace(_shape(), varying=False)))
    same = set()
    for what, changed in mutants(alike):
        try:
            refine(changed, necessary=False)
        except VerifyError:
            continue
        same.add(what)
    assert accepted <= same
    assert len(accepted) < 30 and len(list(mutants(_made()))) > 200


def _with_slots(of: Synchronised, formula: str) -> Emitted:
    """Slots of keys as a formula over loops, in the place of counters."""
    loops = (("i", "k"), formula)
    buffers = tuple(replace(b, slot=loops) if b.name == "ring_b" else b for b in of.program.buffers)
    program = replace(of.program, buffers=buffers, context=f"{of.program.context} and {_EVEN}")
    return emitted(replace(of, program=program))


_EVEN = "k_tiles mod 2 = 0"


def test_a_slot_that_begins_anew_is_right_for_even_numbers_alone() -> None:
    """With as many tiles of keys as there are slots, or twice as many, k mod 2 would do."""
    alike = derive(by_chain(replace(_shape(turns=False), varying=False)))
    refine(_with_slots(alike, "k mod 2"), necessary=False)
    with pytest.raises(
        VerifyError, match=r"of ring_b: ring_b.0,0. -> ring_b.1,0. with .* k_tiles_0 = 1"
    ):
        refine(_with_slots(_made(turns=False), "k mod 2"), necessary=False)


def test_a_store_that_waits_for_another_tile_of_keys_is_refused() -> None:
    """The last one of its own rows: not of those before."""
    shape = _shape()
    held = frames(shape).held
    wrong = tuple(
        Held("store", "[i,k_tiles - 2]", "") if one.statement == "store" else one for one in held
    )
    with pytest.raises(VerifyError, match="another reference"):
        check_frames(by_chain(shape), Frames("sum", wrong))


def test_a_window_that_is_too_narrow_is_refused() -> None:
    """Slots are taken again two versions later: three tiles of rows, of one tile of keys each."""
    of = _made()
    narrow = replace(of.program, varying=replace(varying(_shape()), window=2))  # type: ignore[type-var]
    with pytest.raises(VerifyError, match=r"window: .* are more than 1 iterations of i apart"):
        refine(emitted(replace(of, program=narrow)), necessary=False)


def test_what_stands_outside_of_the_loop_cannot_depend_on_the_number() -> None:
    of = _made()
    locate = next(s for s in of.program.statements if s.name == "fill_a")
    outside = replace(locate, loops=(), bounds="k_tiles > 1", reads=(), writes=("ring_a[0]",))
    statements = tuple(outside if s.name == "fill_a" else s for s in of.program.statements)
    with pytest.raises(VerifyError, match="k_tiles is another number in every iteration of i"):
        refine(emitted(replace(of, program=replace(of.program, statements=statements))))


def _loops(*body: object, condition: str = "tiles") -> For:
    test = Binary("<", Var("i"), Var(condition))
    return For("i", Const(0), test, 1, Block(tuple(body)), False)  # type: ignore[arg-type]


LOCATE = Call("locate", (Var("i"),))
READS = Call("fill", (Binary("-", Var("k_tiles"), Const(1)),))


@pytest.mark.parametrize(
    "loops",
    [
        _loops(READS, LOCATE),
        _loops(Call("locate", (Const(0),)), READS),
        _loops(LOCATE, READS, condition="k_tiles"),
        Block((_loops(LOCATE, READS), READS)),
        For("k", Const(0), Binary("<", Var("k"), Var("k_tiles")), 1, _loops(LOCATE), False),
    ],
)
def test_a_number_that_is_read_before_it_is_set_is_refused(loops) -> None:
    check_variable(_loops(LOCATE, READS), "k_tiles", "i", "locate")
    with pytest.raises(VerifyError, match=r"read where no locate\(i\) has set it"):
        check_variable(loops, "k_tiles", "i", "locate")


def test_numbers_of_a_window_and_around_it() -> None:
    found = Varying("n", "i", 1, 3)
    assert found.parameters == ("i_window", "n_0", "n_1", "n_2")
    assert found.said("i") == (
        "(i <= i_window + 0 and n = n_0) or (i = i_window + 1 and n = n_1) or "
        "(i >= i_window + 2 and n = n_2)"
    )
