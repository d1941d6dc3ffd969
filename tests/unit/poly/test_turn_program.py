"""The tile program of operands that are copied with their axes in another order: what is emitted of
it, and that no proof accepts one that leaves a chunk out, copies it twice or of something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from test_follow_program import bounds, moved, refused

import polygen as pg
from polygen.errors import VerifyError
from polygen.hardware import formula
from polygen.lower import block_plan
from polygen.lower.plan import MakePlan
from polygen.lower.realign import turn_shape
from polygen.lower.realign_work import RowMake
from polygen.lower.verify_made import check_made, check_preceding
from polygen.poly import ast, block_tree
from polygen.poly.block_tree import BlockTree
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.poly.realign_program import WHERE
from polygen.poly.realign_rows import row_texts
from polygen.poly.tile_program import TileProgram
from polygen.poly.turn_program import (
    TurnShape,
    check_rows_of_lanes,
    check_turning,
    turn_program,
)
from polygen.schedule.realign import Realign, line_bytes

PLAIN, DEPENDENT = turn_shape(32, 1), turn_shape(32, 1, dependent=True)
WIDER = [turn_shape(32, item) for item in (2, 4, 8)]  # elements: fewer fill a sector


@cache
def tree(shape: TurnShape) -> BlockTree:
    return block_tree.block_tree(shape, turn_program, check_turning, WHERE)


@pytest.mark.parametrize("shape", WIDER)
def test_lanes_of_a_warp_have_whole_sectors_of_rows_and_of_what_lies_across(
    shape: TurnShape,
) -> None:
    item = 32 // shape.group
    assert shape.group * item == 32 and shape.beside * shape.size >= 32
    check_turning(shape, turn_program(shape))
    tree(shape)
    wrong = [
        {"own": shape.own.partition(" + lane")[0]},
        {"row": shape.row("y").replace(f"{shape.group} * ", "")},
        {"row": shape.row("y").partition(" + lane")[0]},
    ]
    if shape.beside < shape.warps:  # else all warps have the same chunks
        wrong.append({"own": shape.own.replace(f"{shape.beside} * ", "")})
    for texts in wrong:
        with pytest.raises(VerifyError, match="exactly one segment"):
            check_rows_of_lanes(shape, **texts)


def test_a_tree_that_waits_behind_its_reads_is_refused() -> None:
    refused(tree(DEPENDENT).emitted, moved("turned", "wait_grids_warps"))


def of_others(program: TileProgram) -> TileProgram:
    """Chunks are made of what is read for their neighbours."""
    (own,) = program.statements
    (read,) = own.reads
    (changed,) = {read.replace("+ warp", "+ warp + 1")} - {read}
    return replace(program, statements=(replace(own, reads=(changed,)),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bounds("turned", "0 <= chunk", "0 < chunk"), "is left out"),
        (bounds("turned", "< 32", "< 33"), "is visited, and is not there"),
        (
            bounds("turned", "chunk mod 8 = 0", "(chunk mod 8 = 0 or chunk = 1)"),
            "turned visits something twice",
        ),
        (of_others, r"given\[.* is not read"),
    ],
)
def test_programs_that_do_not_copy_every_chunk_are_refused(
    change: Callable[[TileProgram], TileProgram], message: str
) -> None:
    program = turn_program(PLAIN)
    check_turning(PLAIN, program)
    with pytest.raises(VerifyError, match=message):
        check_turning(PLAIN, change(program))


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": "y * 31 + lane"}, {"row": "y * 32 + lane + 1"}, {"row": "y * 32"},
        {"first": "s * 31"}, {"own": "realign_first + chunk"},
        {"own": "realign_first + chunk + 2 * warp"},
    ],
)  # fmt: skip
def test_blocks_that_do_not_have_every_chunk_are_refused(wrong: dict[str, str]) -> None:
    check_rows_of_lanes(PLAIN)
    with pytest.raises(VerifyError, match="exactly one segment"):
        check_rows_of_lanes(PLAIN, **wrong)


def test_loops_are_those_of_the_text() -> None:
    loops = ast.text(tree(DEPENDENT).place.loops())
    assert loops.startswith("wait_grids_warps()\n")
    assert "for chunk = 0; (chunk <= min(24, " in loops and "+= 8:\n  turned(chunk)" in loops


@pytest.mark.parametrize("item", [1, 2, 4])
def test_kernel_and_host_count_the_same_blocks(item: int) -> None:
    """The text that the launcher is written from, and the number that a call from Python takes."""
    text = row_texts(PLAIN, item, line_bytes()).blocks
    for rows in (1, 31, 32, 33, 400):
        for length in (1, 67, 512 // item, 512 // item + 1, 9000):
            kind = {1: "s8", 2: "f16", 4: "tf32"}[item]
            tensor = (
                pg.fuse(lambda x, w: x @ w.T, name="one")
                .program(f"{kind}[{rows},{length}]", f"{kind}[8,{length}]")
                .inputs[0]
            )
            own = Realign("entry", (), (tensor,), turned=(tensor.name,)).blocks(tensor, {})
            said = text.format(rows=rows, bytes=length * item)
            assert own == formula.value(said, {})


def plain(x: Any, w: Any) -> Any:
    return x @ w


@cache
def compiled() -> pg.Kernel:
    return pg.fuse(plain, name="product").compile("s8[M,K]", "s8[K,N]", arch="sm_80")


def test_stages_show_it() -> None:
    kernel = compiled()
    title = "the launch that goes before, which makes w_turned"
    assert f"# {title}\ndomain:" in kernel.show("tree")
    assert f"# {title}\n" in kernel.show("ast") and f"{title}:\n  8 warps" in kernel.show("plan")
    made = "before it:\n  pg_product_realign makes w_turned: s8[K, N] column-major: rows start at"
    assert made in kernel.show("plan")
    assert "w_turned[a0,a1] = cast(w[a0,a1])" in kernel.show("rewrite")
    assert "operands are copied first, with their axes in another order" in kernel.schedule_origin


def of_work(**changes: Any) -> Callable[[MakePlan], MakePlan]:
    """Another record of the leaf."""

    def change(of: MakePlan) -> MakePlan:
        leaves = tuple(
            replace(leaf, work=replace(leaf.work, **changes))
            if isinstance(leaf.work, RowMake)
            else leaf
            for leaf in of.leaves
        )
        return replace(of, leaves=leaves)

    return change


def of_fetch(**changes: Any) -> Callable[[MakePlan], MakePlan]:
    """Another read of the array."""

    def change(of: MakePlan) -> MakePlan:
        (own,) = (leaf.work for leaf in of.leaves if isinstance(leaf.work, RowMake))
        (fetch,) = own.computed.fetches
        return of_work(computed=replace(own.computed, fetches=(replace(fetch, **changes),)))(of)

    return change


def of_statement(**changes: Any) -> Callable[[MakePlan], MakePlan]:
    """Something else that is done with an element."""

    def change(of: MakePlan) -> MakePlan:
        (own,) = (leaf.work for leaf in of.leaves if isinstance(leaf.work, RowMake))
        (one,) = own.computed.statements
        computed = replace(own.computed, statements=(replace(one, **changes),))
        return of_work(computed=computed)(of)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_work(length="N"), "are counted along"),
        (of_work(outer=()), "are counted along"),
        (of_fetch(row_step="w_stride0"), "w is accessed at"),
        (of_fetch(column_step="1"), "w is read as spaced"),
        (of_fetch(base=("8",)), "w is accessed at"),
        (of_statement(function="negative"), "is no array as it is"),
        (of_statement(args=(0.0,)), "is no array as it is"),
        (lambda of: replace(of, leaves=()), "nothing makes w_turned"),
    ],
)
def test_what_would_copy_something_else_is_refused(
    change: Callable[[MakePlan], MakePlan], message: str
) -> None:
    plan = compiled().passes.plan
    (of,) = (one for one in plan.copies if isinstance(one, MakePlan))
    check_made(plan, of)
    with pytest.raises(VerifyError, match=message):
        check_made(plan, change(of))


def test_blocks_of_another_kind_are_refused() -> None:
    """The host counts blocks by the kind of copy that the launch says it is."""
    plan = compiled().passes.plan
    assert plan.realign is not None
    check_preceding(plan)
    with pytest.raises(VerifyError, match="is made by blocks of"):
        check_preceding(replace(plan, realign=replace(plan.realign, turned=())))
    (of,) = plan.copies
    other = of_work(shape=replace(PLAIN, rounds=2))(of)  # type: ignore[arg-type]
    with pytest.raises(VerifyError, match="do not do"):
        check_preceding(replace(plan, copies=(other,)))


def test_no_kernel_is_made_of_a_broken_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    right = block_tree.emitted_of

    def broken(made: Synchronised) -> Emitted:
        found = right(made)
        (place,) = found.trees
        place = replace(place, text=place.text.replace("mod 8", "mod 16"))
        return replace(found, trees=(place,))

    monkeypatch.setattr(block_tree, "emitted_of", broken)
    block_plan.forget()
    with pytest.raises(VerifyError, match=r"turned\[.* is never executed"):
        pg.fuse(plain, name="broken").compile("s8[67,128]", "s8[128,48]", arch="sm_80")
    block_plan.forget()
