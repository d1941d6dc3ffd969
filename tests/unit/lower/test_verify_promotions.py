"""Promotions whose records say something else than the program are refused."""

from dataclasses import replace
from functools import lru_cache

import pytest

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower.promoting import Promote
from polygen.lower.verify import verify
from polygen.lower.work import FIRST_OF_TILE, Product
from polygen.schedule.load import load_schedule, schedules_folder
from polygen.show import show_plan

ROLES = load_schedule(schedules_folder() / "sm_90a" / "cooperative_128x64x64.toml")


@lru_cache
def plan():
    return (
        pg.fuse(
            lambda x, s, w, t: (x * pg.repeat(s, 64, axis=1))
            @ (w * pg.repeat(pg.repeat(t, 128, axis=0), 128, axis=1)).T,
            name="scaled",
        )
        .compile(
            "e4m3[M,256]", "f32[M,4]", "e4m3[256,256]", "f32[2,2]", arch="sm_90a",
            sizes={"M": 4096}, schedule=ROLES,
        )
        .passes.plan
    )  # fmt: skip


def broken(kind, **changes):
    def change(leaf):
        return replace(leaf, work=replace(leaf.work, **changes))

    given = plan()
    leaves = tuple(change(x) if isinstance(x.work, kind) else x for x in given.leaves)
    return replace(given, leaves=leaves)


def work():
    return plan().of(Promote)[0]


def other_factor(number, **changes):
    factors = list(work().factors)
    factors[number] = replace(factors[number], **changes)
    return {"factors": tuple(factors)}


MISTAKES = {
    "a factor left out": (Promote, lambda: {"factors": work().factors[:1]}),
    "blocks twice as long": (Promote, lambda: {"block": 128}),
    "a factor of other groups": (Promote, lambda: other_factor(0, per=(1, 128))),
    "a factor along columns instead of rows": (Promote, lambda: other_factor(0, side="n")),
    "a factor of another step": (Promote, lambda: other_factor(1, step="t_stride1")),
    "rows of another lane": (Promote, lambda: {"lane_row": "lane % 4"}),
    "elements of other rows": (Promote, lambda: {"offsets": ((0, 0), (8, 0), (0, 1), (8, 1))}),
    "one number for too many columns": (Promote, lambda: {"each": 2 * work().each}),
    "another consumer's rows": (Promote, lambda: {"parts": ("", "")}),
    "one instruction's sums left out": (Promote, lambda: {"groups": work().groups - 1}),
    "sums that end elsewhere": (Promote, lambda: {"extents": ("M", "M")}),
    "sums that are not promoted": (Product, lambda: {"total": "sum"}),
    "a block that goes on with the last one's sum": (
        Product, lambda: {"overwrites": FIRST_OF_TILE},
    ),
    "a block that begins with every second tile": (
        Product, lambda: {"overwrites": (("k", 2), ("s", 0))},
    ),
}  # fmt: skip


def test_the_record_itself_is_sound():
    assert verify(plan())


def test_the_plan_says_what_multiplies_which_sum_and_what_is_read():
    text = show_plan(plan(), "given")
    lines = text.partition("promotions:")[2].splitlines()[1:4]
    assert "sum += factors * inner, the products of 64 of k" in lines[0]
    assert [line.split("reads ")[1].split(":")[0] for line in lines[1:]] == [
        "s[m, k / 64]", "t[n / 128, k / 128]",
    ]  # fmt: skip
    assert "blocks of 64 along k, each times its factors, if any, added up one after" in text


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name):
    kind, changes = MISTAKES[name]
    with pytest.raises(VerifyError):
        verify(broken(kind, **changes()))
