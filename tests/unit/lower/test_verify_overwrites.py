"""Leaves that begin a sum anew where their statement adds, or the other way round, are refused."""

from dataclasses import replace
from functools import lru_cache

import pytest
from chain_samples import few_rows
from plan_changes import with_program

import polygen as pg
from polygen.errors import VerifyError
from polygen.lower.promoting import Promote
from polygen.lower.verify import verify
from polygen.lower.work import FIRST_OF_TILE, Product
from polygen.schedule.load import load_schedule, schedules_folder


def _shipped(path):
    return load_schedule(schedules_folder() / path)


def _product(x, w):
    return x @ w.T


def _attention(q, k, v):
    return pg.softmax(q @ k.mT, axis=-1) @ v


def _scaled(x, s, w):
    return (x * pg.repeat(s, 128, axis=1)) @ w.T


KERNELS = {
    "warps": (_product, ("bf16[M,K]", "bf16[N,K]"), "sm_80/64x64x64_w32x32_s4.toml"),
    "dots": (_product, ("bf16[2,K]", "bf16[N,K]"), "auto"),
    "roles": (_product, ("bf16[M,K]", "bf16[N,K]"), "sm_90a/cooperative_128x64x64.toml"),
    "blocks": (
        _scaled, ("e4m3[M,512]", "f32[M,4]", "e4m3[N,512]"), "sm_90a/cooperative_128x64x64.toml",
    ),
    "chain": (_attention, ("bf16[M,64]", "bf16[N,64]", "bf16[N,64]"), few_rows()),
}  # fmt: skip
NEVER, STEPS, TILES = None, (("s", 0),), (("k", 0),)
MISTAKES = (
    ("warps", "mma", {"overwrites": FIRST_OF_TILE}),
    ("dots", "dot", {"overwrites": TILES}),
    ("roles", "multiply", {"overwrites": NEVER}),
    ("roles", "multiply", {"overwrites": STEPS}),
    ("roles", "multiply", {"overwrites": TILES}),
    ("roles", "multiply", {"overwrites": (("k", 2), ("s", 0))}),
    ("blocks", "multiply", {"overwrites": FIRST_OF_TILE}),
    ("blocks", "multiply", {"overwrites": STEPS}),
    ("blocks", "promote", {"block": 256}),
    ("chain", "score", {"overwrites": FIRST_OF_TILE}),
    ("chain", "multiply", {"overwrites": STEPS}),
    ("chain", "multiply", {"overwrites": NEVER}),
)


@lru_cache
def plan(name):
    function, signature, schedule = KERNELS[name]
    given = _shipped(schedule) if "/" in str(schedule) else schedule
    arch = "sm_80" if name in ("warps", "dots") else "sm_90a"
    made = pg.fuse(function).compile(*signature, arch=arch, schedule=given).passes.plan
    assert made.of(Product)
    return made


def _marked(case):
    """Few kernels run always: those of other families differ little from them."""
    return pytest.param(*case, marks=pytest.mark.slow if case[0] in ("dots", "blocks") else ())


@pytest.mark.parametrize(("name", "statement", "changes"), [_marked(case) for case in MISTAKES])
def test_a_leaf_that_begins_elsewhere_than_its_statement_is_refused(name, statement, changes):
    given = plan(name)
    leaves = tuple(
        replace(leaf, work=replace(leaf.work, **changes)) if leaf.statement == statement else leaf
        for leaf in given.leaves
    )
    assert leaves != given.leaves
    with pytest.raises(VerifyError):
        verify(replace(given, leaves=leaves))


@pytest.mark.parametrize(
    ("name", "statement", "adds"),
    [
        ("roles", "multiply", "k + s > 1"),
        ("chain", "score", "s >= 0"),
        _marked(("blocks", "promote", "k > 0")),
    ],
)
def test_a_statement_that_adds_elsewhere_than_its_leaf_is_refused(name, statement, adds):
    given = plan(name)
    (leaf,) = (one for one in given.leaves if one.statement == statement)
    assert isinstance(leaf.work, Product | Promote)

    def changed(one):
        cells = (
            f"{cell.partition(' : ')[0]} : {adds}"
            if cell.partition("[")[0] == leaf.work.total
            else cell
            for cell in one.reads
        )
        return replace(one, reads=tuple(cells)) if one.name == statement else one

    program = given.tile_program
    program = replace(program, statements=tuple(changed(one) for one in program.statements))
    with pytest.raises(VerifyError, match=f"{leaf.work.total} is"):
        verify(with_program(given, program))
