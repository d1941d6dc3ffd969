"""The table of leaves: every row is used, and every statement of a kernel has its row."""

from dataclasses import replace

import numpy as np
import paged_samples
import pytest
from chain_samples import few_rows
from matrix import UNUSUAL, case, roles, small, tiled
from plan_samples import sample
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.emit.leaf import kind_of, kinds
from polygen.emit.leaf.table import render
from polygen.schedule.model import (
    CtaTile,
    Epilogue,
    Launches,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

KERNELS = {
    "background": {"schedule": small()},
    "through_registers": {"alignment": 2, "schedule": small()},
    "pairs": {"schedule": UNUSUAL["registers"]},
    "panels": {"arch": "sm_90a", "epilogue": "gate", "schedule": roles("two", in_flight=1)},
    "shared": {"arch": "sm_90a", "schedule": roles("one", cluster=(1, 1, 2))},
    "lines": {
        "arch": "sm_90a", "alignment": 2, "epilogue": "bias_residual_relu",
        "schedule": replace(roles(through="lines"), roles=Roles("cooperative", 152, 200)),
    },
    "lanes": {
        "schedule": Schedule(
            atom="dot",
            tile=Tile(CtaTile(1, 16, 512), WarpTile(1, 2)),
            pipeline=Pipeline(fragments=2),
            epilogue=Epilogue("registers"),
        )
    },
    "dependent": {"arch": "sm_90a", "schedule": replace(roles(), launch=Launches(dependent=True))},
    "copied": {
        "arch": "sm_90a", "alignment": 2,
        "schedule": replace(roles(through="lines"), launch=Launches(realign=True)),
    },
    "turns": {"arch": "sm_90a", "schedule": roles("pingpong", through="registers")},
}  # fmt: skip


def plan_of(name):
    changes = {"epilogue": "bias", "alignment": 16, **KERNELS[name]}
    epilogue, alignment = changes.pop("epilogue"), changes.pop("alignment")
    return case("leaf", "nt", "bf16", epilogue, alignment, **changes).kernel().passes.plan


def folding(schedule):
    function = pg.fuse(lambda x, w: ((x @ w.T).sum(axis=1), x @ w.T))
    kernel = function.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=schedule)
    return kernel.passes.plan


FOLDS = {"folds": UNUSUAL["registers"], "folds_of_panels": roles("pingpong")}


MADE = replace(roles(), roles=Roles("cooperative", 40, 200, "consumer"))
FIRST = replace(roles(), roles=Roles(computes="before", form="cooperative"))
COMPUTED = {
    "computed": ("sm_80", small()), "made": ("sm_90a", MADE), "made first": ("sm_90a", FIRST),
}  # fmt: skip
BESIDE = replace(  # two consumers that have halves of a row each
    roles("two", through="registers"), tile=Tile(CtaTile(64, 128, 64), WarpTile(64, 64))
)
IN_TILES = Epilogue(through="registers", rows="tile")
COVERING = {
    "rows of a warp": ("sm_80", tiled((32, 96, 32), (16, 96), epilogue=IN_TILES)),
    "rows by warps": ("sm_80", tiled((32, 96, 32), (16, 48), epilogue=IN_TILES)),
    "rows by consumers": ("sm_90a", replace(BESIDE, epilogue=IN_TILES)),
    "rows by blocks": (
        "sm_90a",
        replace(roles("one", through="registers", cluster=(1, 2)), epilogue=IN_TILES),
    ),
}


def computed_plan(arch, schedule):
    """A kernel whose warps, whose consumers, or what goes before it computes an operand."""
    fused = pg.fuse(lambda x, g, w: pg.silu(x * g) @ w.T, name="leaf")
    kernel = fused.compile("bf16[M,K]", "bf16[K]", "bf16[N,K]", arch=arch, schedule=schedule)
    return kernel.passes.plan


def rows_plan():
    """A kernel behind which rows are finished, of which lanes hold the beginning."""
    fused = pg.fuse(lambda x, w: pg.softmax(x @ w.T), name="leaf")
    schedule = small(epilogue=replace(UNUSUAL["registers"].epilogue, row_words=1))
    return fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80", schedule=schedule).passes.plan


def leaves_of(plan):
    """Of the kernel, and of the launches before and behind it."""
    beside = (*plan.copies, *plan.groups)
    return [*plan.leaves, *(leaf for block in beside for leaf in block.leaves)]


def below_the_largest(v):
    return v - v.max(axis=1, keepdims=True)


def covering_plan(arch, schedule):
    """A kernel whose tiles cover rows that several agents share."""
    fused = pg.fuse(lambda x, w: below_the_largest(x @ w.T), name="leaf")
    kernel = fused.compile("bf16[M,K]", "bf16[N,K]", arch=arch, schedule=schedule)
    return kernel.passes.plan


def near_plan():
    """A kernel whose passes over rows read a matrix, which is brought near before."""
    schedule = roles("one", through="tma")
    schedule = replace(schedule, epilogue=replace(schedule.epilogue, rows="tile"))
    fused = pg.fuse(lambda x, w, r: below_the_largest(x @ w.T + r), name="leaf")
    kernel = fused.compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[M,N]", arch="sm_90a", schedule=schedule, out_dtype="bf16"
    )
    return kernel.passes.plan


def chain_plan(schedule="auto"):
    """Attention, with what is known of rows beside it."""

    def function(q, k, v):
        scores = q @ k.mT
        i, j = pg.indices(scores)[-2:]
        scores = pg.where(i >= j, scores, -np.inf)
        return pg.softmax(scores) @ v, pg.logsumexp(scores, axis=-1)

    signature = ["bf16[B,S,64]"] * 3
    fused = pg.fuse(function, name="leaf")
    return fused.compile(*signature, arch="sm_90a", schedule=schedule).passes.plan


def staged_plan():
    """A kernel whose copies pass through registers."""
    fused = pg.fuse(lambda x, w: x @ w.T, name="leaf")
    kernel = fused.compile("f16[M,K]", "f16[N,K]", arch="sm_75", schedule=small())
    return kernel.passes.plan


def rest_plan():
    """A product that goes on with the sums of another, in runs of tiles."""
    fused = pg.fuse(low_rank, name="leaf")
    return fused.compile(*signature(16), arch="sm_90a", schedule=form(run=4)).passes.plan


def paged_plan():
    """Attention over a cache in pages."""
    shapes = paged_samples.signature(64, "J", heads=2, depth=64)
    kernel = pg.fuse(paged_samples.decoding(), name="leaf").compile(*shapes, arch="sm_90a")
    return kernel.passes.plan


def beside_plan():
    """A kernel that folds rows of an operand beside its product, for elements and as an output."""

    def function(x, w):
        squares = (x * x).sum(axis=1, keepdims=True)
        return (x @ w.T) * squares, squares

    fused = pg.fuse(function, name="leaf")
    return fused.compile("bf16[M,K]", "bf16[N,K]", arch="sm_80").passes.plan


def scaled_plan():
    """A kernel that promotes sums of blocks."""
    function = pg.fuse(lambda x, s, w: (x * pg.repeat(s, 32, axis=1)) @ w.T, name="leaf")
    return function.compile("e4m3[M,64]", "f32[M,2]", "e4m3[N,64]", arch="sm_89").passes.plan


@pytest.fixture(scope="module")
def plans():
    found = {name: plan_of(name) for name in KERNELS}
    found |= {name: computed_plan(*given) for name, given in COMPUTED.items()}
    found |= {"staged": staged_plan(), "chain": chain_plan(), "parts": chain_plan(few_rows(128))}
    found |= {"beside": beside_plan(), "rows": rows_plan(), "scaled": scaled_plan()}
    found |= {"rest": rest_plan(), "paged": paged_plan()}
    found |= {name: covering_plan(*given) for name, given in COVERING.items()}
    found |= {"near": near_plan(), "in pairs": sample("chain in pairs")}
    found |= {"turned": sample("turned")}
    found |= {"chain in panels": sample("chain in panels")}
    return found | {name: folding(schedule) for name, schedule in FOLDS.items()}


def test_no_leaf_is_in_the_table_for_nothing(plans):
    met = {(leaf.op, leaf.unit) for plan in plans.values() for leaf in leaves_of(plan)}
    assert met == set(kinds())


@pytest.mark.parametrize(
    "name",
    [
        *KERNELS, *COMPUTED, *COVERING, *FOLDS,
        "staged", "chain", "parts", "beside", "rows", "scaled", "rest", "paged",
        "near", "in pairs", "chain in panels",
    ],
)  # fmt: skip
def test_a_leaf_names_the_iterators_that_it_reads(plans, name):
    plan = plans[name]
    for leaf in leaves_of(plan):
        lines = render(plan, leaf, 0)
        head = next(line for line in lines if line.startswith(f"auto {leaf.statement} = "))
        parameters = head.partition("(")[2].partition(")")[0]
        if leaf.op in ("compute", "edge"):
            continue  # called by leaves, with values
        given = [p for p in parameters.split(", ") if p]
        assert len(given) == len(leaf.loops), head
        read = {p.rpartition(" ")[2] for p in given if p != "int"}
        assert read in [set(one) for one in kind_of(leaf).iterators], head


@pytest.mark.parametrize(
    ("columns", "given", "made"), [(192, 240, False), (208, 240, False), (256, 240, True)]
)
def test_addresses_are_made_where_they_are_used_if_registers_are_few(columns, given, made):
    """Those of a ring of one slot, a register for every step of the product."""
    types = [f"bf16[B,S,{columns}]"] * 3
    kernel = pg.fuse(lambda q, k, v: pg.softmax((q @ k.mT) * 0.1) @ v, name="few")
    plan = kernel.compile(*types, arch="sm_90a").passes.plan
    (ring,) = (one for one in plan.buffers if one.name == "ring_a")
    assert (ring.slots, plan.schedule.roles.consumer_registers) == (1, given)
    score = next(one for one in plan.leaves if one.statement == "score")
    assert ("own_a" in kind_of(score).text(plan, score).code) is made
    left = given - plan.resources.registers - 40  # those that results are addressed by
    assert (left < len(ring.matrix.k_steps)) is made
