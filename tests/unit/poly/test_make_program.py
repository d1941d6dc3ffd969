"""The tile program of operands that are made before the kernel: what is emitted of it, and that no
proof accepts one that leaves a chunk out, computes it twice or of something else, or does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from matrix import roles
from test_follow_program import bounds, moved, refused
from test_realign_program import CHUNKS, DEPENDENT, PLAIN

import polygen as pg
from polygen.errors import ScheduleError, VerifyError
from polygen.lower import block_plan
from polygen.lower.computed import Rows
from polygen.lower.plan import MakePlan
from polygen.lower.realign_work import RowMake
from polygen.lower.verify_made import check_made
from polygen.poly import ast, block_tree
from polygen.poly.block_tree import BlockTree
from polygen.poly.derive_syncs import Synchronised
from polygen.poly.emitted import Emitted
from polygen.poly.make_program import check_making, make_program
from polygen.poly.realign_program import WHERE, RealignShape
from polygen.poly.tile_program import TileProgram
from polygen.schedule.model import Launches, Schedule


@cache
def tree(shape: RealignShape) -> BlockTree:
    return block_tree.block_tree(shape, make_program, check_making, WHERE)


BROKEN = CHUNKS | {
    "a wait behind what is read": (DEPENDENT, moved("made", "wait_grids_warps")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_trees_are_refused(name: str) -> None:
    shape, change = BROKEN[name]
    refused(tree(shape).emitted, change)


def of_others(program: TileProgram) -> TileProgram:
    """Chunks are computed of what is read for their neighbours."""
    (own,) = program.statements
    (read,) = own.reads
    return replace(
        program, statements=(replace(own, reads=(read.replace("+ lane and", "+ lane + 1 and"),)),)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (bounds("made", "0 <= chunk", "0 < chunk"), "is left out"),
        (bounds("made", "< 512", "< 513"), "is visited, and is not there"),
        (
            bounds("made", "chunk mod 128 = 0", "(chunk mod 128 = 0 or chunk = 64)"),
            "made visits something twice",
        ),
        (bounds("made", "warp < realign_rows", "warp < realign_rows - 1"), "is left out"),
        (of_others, r"given\[.* is not read"),
    ],
)
def test_programs_that_do_not_make_every_chunk_are_refused(
    change: Callable[[TileProgram], TileProgram], message: str
) -> None:
    program = make_program(PLAIN)
    check_making(PLAIN, program)
    with pytest.raises(VerifyError, match=message):
        check_making(PLAIN, change(program))


def test_loops_are_those_of_the_text() -> None:
    loops = ast.text(tree(DEPENDENT).place.loops())
    assert loops.startswith("wait_grids_warps()\nif (realign_rows >= (warp + 1)):\n  # chunk\n")
    assert "for chunk = 0; (chunk <= min(384, " in loops and "+= 128:\n    made(chunk)" in loops


def first(schedule: Schedule | None = None) -> Schedule:
    found = schedule or roles("one", 64, 64)
    own = replace(found.roles, computes="before")
    return replace(found, roles=own, launch=Launches(dependent=True))


@cache
def compiled() -> pg.Kernel:
    product = pg.fuse(lambda x, r, g, w: (x[r] * g) @ w.T, name="product")
    signature = ("bf16[S,K]", "s32[T]", "f32[K]", "bf16[N,K]")
    sizes = {"S": 9, "T": 67, "K": 128, "N": 48}
    return product.compile(*signature, arch="sm_90a", sizes=sizes, schedule=first())


def test_stages_show_it() -> None:
    kernel = compiled()
    title = "the launch that goes before, which makes v1"
    assert f"# {title}\ndomain:" in kernel.show("tree")
    assert f"# {title}\nwait_grids_warps()\n" in kernel.show("ast")
    plan = kernel.show("plan")
    assert f"{title}:\n  8 warps of a block\n" in plan
    assert "v1, bf16, made by the launch that goes before, once" in plan
    assert "reads x_0 = x[r[m], k]" in plan
    assert "before it:\n  pg_product_realign makes v1: bf16[T, K]: rows start at" in plan


def of_work(**changes: Any) -> Callable[[MakePlan], MakePlan]:
    """Another record of the leaf that makes an operand."""

    def change(of: MakePlan) -> MakePlan:
        leaves = tuple(
            replace(leaf, work=replace(leaf.work, **changes))
            if isinstance(leaf.work, RowMake)
            else leaf
            for leaf in of.leaves
        )
        return replace(of, leaves=leaves)

    return change


def of_fetch(at: int, **changes: Any) -> Callable[[MakePlan], MakePlan]:
    """Another read of what it computes."""

    def change(of: MakePlan) -> MakePlan:
        (own,) = (leaf.work for leaf in of.leaves if isinstance(leaf.work, RowMake))
        fetches = list(own.computed.fetches)
        fetches[at] = replace(fetches[at], **changes)
        return of_work(computed=replace(own.computed, fetches=tuple(fetches)))(of)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_work(length="T"), "are counted along"),
        (of_work(outer=(("m", "K"),)), "are counted along"),
        (of_work(outer=()), "are counted along"),
        (of_fetch(0, row_step="1"), "x is accessed at"),
        (of_fetch(0, base=("8",)), "x is accessed at"),
        (of_fetch(0, rows=None), "x is read at its own rows"),
        (of_fetch(0, rows=Rows("r", 1, 1, 1, "S")), r"x is read at Rows"),
        (of_fetch(0, width=32), "accesses of 32 bytes"),
        (of_fetch(1, first=0), "g is read as run into 8 words from 0 on"),
        (lambda of: replace(of, leaves=()), "nothing makes v1"),
    ],
)
def test_what_would_make_something_else_is_refused(
    change: Callable[[MakePlan], MakePlan], message: str
) -> None:
    plan = compiled().passes.plan
    (of,) = (one for one in plan.copies if isinstance(one, MakePlan))
    check_made(plan, of)
    with pytest.raises(VerifyError, match=message):
        check_made(plan, change(of))


def test_no_kernel_is_made_of_a_broken_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = block_tree.emitted_of

    def broken(made: Synchronised) -> Emitted:
        found = plain(made)
        (place,) = found.trees
        place = replace(place, text=place.text.replace("mod 128", "mod 256"))
        return replace(found, trees=(place,))

    monkeypatch.setattr(block_tree, "emitted_of", broken)
    block_plan.forget()
    scaled = pg.fuse(lambda x, g, w: (x * g) @ w.T, name="scaled")
    signature = ("bf16[67,128]", "bf16[128]", "bf16[48,128]")
    with pytest.raises(VerifyError, match=r"made\[.* is never executed"):
        scaled.compile(*signature, arch="sm_90a", schedule=first())
    block_plan.forget()


@pytest.mark.parametrize(
    ("function", "signature", "message"),
    [
        (lambda x, w: x @ w.T, ("bf16[M,64]", "bf16[N,64]"), '"before" with operands that are arg'),
        (
            lambda x, g, w: pg.max((x * g) @ w.T, axis=1),
            ("bf16[M,64]", "bf16[64]", "bf16[N,64]"),
            'roles.computes = "before" with v3, a fold.*Use roles.computes = "producer"',
        ),
        (
            lambda x, s, w, ends: pg.grouped_matmul(x * pg.per_group(s, ends, x), w, ends),
            ("bf16[T,64]", "bf16[E,64]", "bf16[E,64,N]", "s32[E]"),
            '"before" with v1, which is computed of what its rows\' groups have.*"producer"',
        ),
    ],
)
def test_what_needs_no_launch_before_or_has_one_behind_is_refused(
    function: Any, signature: tuple[str, ...], message: str
) -> None:
    in_lines = replace(first().epilogue, through="lines")
    schedule = replace(first(), launch=Launches(), epilogue=in_lines)
    with pytest.raises(ScheduleError, match=message):
        pg.fuse(function, name="refused").compile(*signature, arch="sm_90a", schedule=schedule)
