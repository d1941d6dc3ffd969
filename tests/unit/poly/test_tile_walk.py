"""The walk over tiles with products: the record that code is written from, and its mutants."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower.plan import KernelPlan
from polygen.lower.verify import verify
from polygen.lower.work import Locate
from polygen.poly.tile_domain import TileDomain
from polygen.poly.tile_walk import Pass, TileWalk, prove_walk, tile_walk

BAND = ((1, -2, 9), (-2, 3, 50), (0, -1, 30))
WALK = tile_walk(TileDomain(BAND, (16, 16), BAND), "m", 4, 32)
SEVERAL, ONE = WALK.passes
(FIRST,), (LAST,), (CROSSED,) = WALK.first, WALK.last, WALK.crossed


def steps(*passes: Pass) -> TileWalk:
    return replace(WALK, passes=passes)


MUTANTS = {
    "columns begin a tile late": replace(WALK, first=((f"{FIRST[0]} + 1", FIRST[1]),)),
    "columns end a tile early": replace(WALK, last=((f"{LAST[0]} - 2", LAST[1]),)),
    "columns begin where another plane says": replace(WALK, first=()),
    "columns without a tile are not left out": replace(WALK, crossed=()),
    "columns are left out too early": replace(WALK, crossed=(f"{CROSSED} - 1",)),
    "quotients are rounded up": replace(
        WALK, lower=(WALK.lower[0], (("", "number"), ("-", "by - number")))
    ),
    "quotients are rounded to zero": replace(
        WALK, lower=("number >= number", (("", "number"), ("", "number")))
    ),
    "a tile inside is not counted": replace(WALK, inside="end - begin - 1"),
    "a tile inside counts among the others": replace(WALK, others="high - low - (end - begin) + 1"),
    "all tiles count among the others": replace(WALK, others="high - low"),
    "tiles inside from the second on": replace(WALK, tile_inside="begin + place + 1"),
    "one tile for all numbers": replace(WALK, tile_inside="begin"),
    "others lie among those inside": replace(
        WALK, tile_other=("low + place <= begin", *WALK.tile_other[1:])
    ),
    "others behind those inside are passed by": replace(
        WALK, tile_other=(*WALK.tile_other[:2], "low + place + end - begin + 1")
    ),
    "groups end a tile early": replace(WALK, high="min(low + group - 1, along)"),
    "groups go on into the next": replace(WALK, high="min(low + group + 1, along)"),
    "the last group goes on behind the last tile": replace(WALK, high="low + group"),
    "several columns skip one": steps(Pass(8, "column + 9 <= across", "column + 9"), ONE),
    "several columns go on behind the last": steps(replace(SEVERAL, to="column + 9"), ONE),
    "several columns come to the last of them again": steps(replace(SEVERAL, to="column + 7"), ONE),
    "several columns leave one out of the count": steps(replace(SEVERAL, columns=7), ONE),
    "several columns count one that is not there": steps(
        replace(SEVERAL, within="column + 7 <= across"), ONE
    ),
    "one column skips the next": steps(SEVERAL, replace(ONE, to="column + 2")),
    "one column stays where it is": steps(SEVERAL, replace(ONE, to="column")),
    "the last column is not looked at": steps(SEVERAL, replace(ONE, within="column + 1 < across")),
    "a column behind the last is looked at": steps(
        SEVERAL, replace(ONE, within="column <= across")
    ),
    "no column is looked at alone": steps(ONE, SEVERAL),
    "every second group": replace(WALK, next_low="low + 2 * group"),
    "the same group again": replace(WALK, next_low="low"),
    "groups backwards": replace(WALK, next_low="low - group"),
    "groups that begin amidst others": replace(WALK, next_low="low + group - 1"),
    "groups from the second column on": replace(WALK, next_column="1"),
    "groups where the last one ended": replace(WALK, next_column="column"),
    "never anew": replace(WALK, again="before < 0"),
    "anew for every number": replace(WALK, again="before <= number"),
    "anew behind the first": replace(WALK, again="before > first"),
    "another domain": replace(WALK, domain=TileDomain(BAND, (16, 16), BAND[:2])),
    "along the other dim": replace(WALK, dim="n"),
    "groups of another size": replace(WALK, next_low="low + 4", group=8),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_no_proof_accepts_a_walk_that_is_broken(name: str) -> None:
    prove_walk(WALK)
    with pytest.raises(VerifyError):
        prove_walk(MUTANTS[name])


@pytest.mark.parametrize(
    "passes",
    [(ONE,), (replace(SEVERAL, within="column + 99 <= across"), ONE), (SEVERAL,) * 2 + (ONE,)],
)
def test_other_steps_that_find_every_tile_are_right(passes: tuple[Pass, ...]) -> None:
    assert prove_walk(steps(*passes))


def test_a_refusal_shows_what_is_skipped() -> None:
    with pytest.raises(VerifyError, match=r"skips a column that it does not count: .*0, ?8"):
        prove_walk(MUTANTS["several columns skip one"])


@cache
def triangle() -> KernelPlan:
    lower = pg.fuse(lambda x, w: np.tril(x @ w))
    return lower.compile("bf16[M,K]", "bf16[K,N]", arch="sm_90a", schedule=roles()).passes.plan


def changed(plan: KernelPlan, **fields: object) -> KernelPlan:
    """With another walk in the leaf that says which tile is a block's."""
    leaves = []
    for leaf in plan.leaves:
        if isinstance(leaf.work, Locate):
            assert leaf.work.walk is not None
            walk = replace(leaf.work.walk, **fields)
            leaf = replace(leaf, work=replace(leaf.work, walk=walk))
        leaves.append(leaf)
    return replace(plan, leaves=tuple(leaves))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"next_low": "low + 2 * group"}, "skips a column"),
        ({"again": "before < 0"}, "does not start anew"),
        ({"lanes": 16}, "tiles are not walked in"),
        ({"group": 7}, "tiles are not walked in"),
    ],
)
def test_no_code_is_written_for_a_plan_with_another_walk(
    fields: dict[str, object], message: str
) -> None:
    verify(triangle())
    with pytest.raises(VerifyError, match=message):
        verify(changed(triangle(), **fields))
