"""The tile program of the copy that goes before: what is emitted of it, and that no proof accepts
one that leaves a chunk out, writes it twice, reads outside of its row or does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from matrix import roles
from test_follow_program import bounds, gone, moved, refused, text

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower import block_plan
from polygen.lower.realign_work import WordShift, word_shifts
from polygen.poly import ast, block_tree
from polygen.poly.block_tree import BlockTree
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.poly.realign_program import (
    WHERE,
    RealignShape,
    check_blocks,
    check_copy,
    check_lanes,
    realign_program,
)
from polygen.poly.tile_program import TileProgram
from polygen.schedule.model import Launches

PLAIN = RealignShape(8, 32, 4, 4, 16)
DEPENDENT = replace(PLAIN, dependent=True)


@cache
def tree(shape: RealignShape) -> BlockTree:
    return block_tree.block_tree(shape, realign_program, check_copy, WHERE)


# Mistakes of whatever goes through the chunks of rows before a kernel.
CHUNKS = {
    "the last chunks left out": (PLAIN, text("chunk < realign_c", "chunk < -1 + realign_c")),
    "the last round left out": (PLAIN, text("0 <= chunk <= 384", "0 <= chunk <= 256")),
    "a round of the next segment": (PLAIN, text("0 <= chunk <= 384", "0 <= chunk <= 512")),
    "chunks twice": (PLAIN, text("(chunk) mod 128 = 0", "(chunk) mod 64 = 0")),
    "no wait for the grids before": (DEPENDENT, gone("wait_grids_warps")),
}
BROKEN = CHUNKS | {
    "a row too many": (PLAIN, text("warp < realign_rows; sh", "warp <= realign_rows; sh")),
    "a row without its edges": (PLAIN, text("edges[] : 0 <= warp", "edges[] : 1 <= warp")),
    "edges behind what is made of them": (PLAIN, moved("shifted", "edges")),
    "a wait behind the edges": (DEPENDENT, moved("edges", "wait_grids_warps")),
    "a wait of some warps": (
        DEPENDENT,
        text("wait_grids_warps[] }", "wait_grids_warps[] : warp > 0 }"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_trees_are_refused(name: str) -> None:
    shape, change = BROKEN[name]
    refused(tree(shape).emitted, change)


def cells(statement: str, old: str, new: str) -> Callable[[TileProgram], TileProgram]:
    """Other cells that a statement reads or writes."""

    def change(program: TileProgram) -> TileProgram:
        own = program.statement(statement)
        reads, writes = (
            tuple(one.replace(old, new) for one in each) for each in (own.reads, own.writes)
        )
        assert (reads, writes) != (own.reads, own.writes)
        other = replace(own, reads=reads, writes=writes)
        every = (other if s is own else s for s in program.statements)
        return replace(program, statements=tuple(every))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bounds("shifted", "0 <= chunk", "0 < chunk"), "is left out"),
        (bounds("shifted", "< 512", "< 513"), "is visited, and is not there"),
        (
            bounds("shifted", "chunk mod 128 = 0", "(chunk mod 128 = 0 or chunk = 64)"),
            "shifted visits something twice",
        ),
        (bounds("shifted", "warp < realign_rows", "warp < realign_rows - 1"), "is left out"),
        (cells("shifted", "+ lane and", "+ lane + 1 and"), "is left out"),
        (cells("shifted", "0 < g and", "0 <= g and"), "is read outside of its row"),
        (cells("shifted", "< realign_last", "<= realign_last"), "is read outside of its row"),
        (cells("shifted", "0 < g and", "1 < g and"), r"array\[.* is not read"),
        (cells("shifted", "g < p + 2", "g < p + 1"), r"array\[.* is not read"),
        (cells("edges", "g = 0 or", "g = 1 or"), r"array\[.* is not read"),
    ],
)
def test_programs_that_do_not_copy_every_row_are_refused(
    change: Callable[[TileProgram], TileProgram], message: str
) -> None:
    program = realign_program(PLAIN)
    check_copy(PLAIN, program)
    with pytest.raises(VerifyError, match=message):
        check_copy(PLAIN, change(program))


def test_formulas_of_lanes_and_blocks_are_proved() -> None:
    with pytest.raises(VerifyError, match="two lanes visit one"):
        check_lanes(PLAIN, "chunk + 31 * u + lane")
    for row, first in (("y * 7 + warp", ""), ("y * 9 + warp", ""), ("", "s * 511")):
        with pytest.raises(VerifyError, match="not in exactly one segment"):
            check_blocks(PLAIN, row, first)


def test_bits_of_a_shift_move_words() -> None:
    assert word_shifts(16) == (WordShift(8, 2, 6), WordShift(4, 1, 5))


def test_loops_are_those_of_the_text() -> None:
    loops = ast.text(tree(DEPENDENT).place.loops())
    assert loops.startswith("wait_grids_warps()\nif (realign_rows >= (warp + 1)):\n  edges()\n")
    assert "for chunk = 0; (chunk <= min(384, " in loops and "+= 128:\n    shifted(chunk)" in loops


def compiled(*, dependent: bool = False) -> pg.Kernel:
    product = pg.fuse(lambda x, w: x @ w.T, name="product")
    launch = Launches(realign=True, dependent=dependent)
    schedule = replace(roles("one", 64, 64, through="lines"), launch=launch)
    return product.compile("bf16[67,131]", "bf16[45,131]", arch="sm_90a", schedule=schedule)


def test_addresses_are_made_behind_the_wait_for_the_grids_before() -> None:
    """To the compiler, which may hoist loads of constants above whatever does not change them."""
    text = compiled(dependent=True).source.partition("pg_product_realign(")[2]
    wait = 'asm volatile("griddepcontrol.wait;" : "+l"(begin), "+l"(base), "+l"(to) :: "memory");'
    assert text.count(wait) == 2
    for leaf in ("edges", "shifted"):
        body = text.partition(f"auto {leaf} = ")[2].partition("};")[0]
        assert "from_0" not in body and "to_0" not in body


def test_stages_show_it() -> None:
    kernel = compiled()
    title = "the copy that goes before, of x"
    assert f"# {title}\ndomain:" in kernel.show("tree")
    assert f"# {title}\nif (realign_rows >= (warp + 1)):\n  edges()" in kernel.show("ast")
    assert f"{title}:\n  8 warps of a block\n" in kernel.show("plan")


def test_no_kernel_is_made_of_a_broken_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = block_tree.emitted_of

    def broken(made: Synchronised) -> Emitted:
        found = plain(made)
        (place,) = found.trees
        place = replace(place, text=place.text.replace("mod 128", "mod 256"))
        return replace(found, trees=(place,))

    monkeypatch.setattr(block_tree, "emitted_of", broken)
    block_plan.forget()
    with pytest.raises(VerifyError, match=r"shifted\[.* is never executed"):
        compiled()
    block_plan.forget()
