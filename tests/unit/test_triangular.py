"""Results that masks leave a part of: what is said of them, what they cost, and what is checked."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from triangular_samples import lower

import polygen as pg
from polygen.decide import candidates
from polygen.errors import VerifyError
from polygen.hardware.device import device
from polygen.lower.verify import verify
from polygen.page.content import content
from polygen.schedule.load import load_schedule
from polygen.schedule.model import Schedule
from polygen.schedule.problem import Fitted
from polygen.tune.cost import cost, counts

PLAIN = ("bf16[M,K]", "bf16[K,N]")
SIZES = {"M": 1000, "N": 1536, "K": 512}
SCHEDULES = Path(__file__).parents[2] / "schedules"


def normed(x, w):
    x = x.astype("f32")
    return lower(x.astype("bf16"), w) * pg.rsqrt(pg.sum(x * x, axis=1))[:, None]


def two(x, w, y, u):
    return np.tril(x @ w), np.triu(y @ u)


def whole(x, w):
    return x @ w


@cache
def compiled(function, schedule="auto", signature=PLAIN, arch="sm_90a"):
    if isinstance(schedule, str) and schedule != "auto":
        schedule = SCHEDULES / schedule
    return pg.fuse(function).compile(*signature, arch=arch, sizes=SIZES, schedule=schedule)


CLUSTER = "sm_90a/cooperative_128x256x64_c2x1.toml"
# function, schedule, signature, target, what `show` says
SAID = {
    "warps": (lower, "sm_80/128x128x32_w64x64_s4.toml", PLAIN, "sm_80",
              "tiles of 128 x 128 that meet m - n >= 0; others store what reads no sum"),
    "roles": (lower, CLUSTER, PLAIN, "sm_90a",
              "products in tiles of 256 x 256 that meet m - n >= 0, which come before the others; "
              "others store what reads no sum"),
    "exchanged": (lower, "sm_90a/cooperative_128x16x64_w64_s11_lines_exchanged.toml", PLAIN,
                  "sm_90a", "products in tiles of 128 x 16 that meet -m + n >= 0, which come"),
    "shared sums": (lower, "sm_90a/cooperative_64x64x64_s11_k4.toml", PLAIN, "sm_90a",
                    "read only where m - n >= 0: blocks share the sums of a tile"),
    "lanes": (lower, "sm_80/dots_4x8x1024_w4x1_n16_f4_b3.toml", ("bf16[M,K]", "bf16[K,N]:col"),
              "sm_80", "read only where m - n >= 0: lanes multiply"),
    "folded operands": (normed, "auto", PLAIN, "sm_90a",
                        "read only where m - n >= 0: operands are folded beside the products"),
    "sections": (two, "auto", (*PLAIN, "bf16[P,K]", "bf16[K,Q]"), "sm_90a",
                 "read only where -m + n >= 0: a kernel of several sections"),
}  # fmt: skip


SLOW = [pytest.mark.slow, pytest.mark.sample(2)]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "roles" else SLOW) for one in SAID]
)
def test_the_plan_says_which_tiles_have_products(name):
    *given, said = SAID[name]
    assert said in compiled(*given[:2], *given[2:]).show("plan")


@pytest.mark.slow
def test_nothing_is_said_where_all_sums_are_read():
    assert "products in" not in compiled(whole).show("plan")
    assert "inside" not in compiled(whole).show("tree")


def test_a_mask_that_no_element_meets_leaves_no_domain():
    """Where sizes are numbers that is known; where they are names a launch may have products."""
    for signature, said in ((("bf16[64,32]", "bf16[32,48]"), False), (PLAIN, True)):
        made = pg.fuse(lambda x, w: np.triu(x @ w, 100)).compile(*signature, arch="sm_90a")
        assert ("products in tiles of" in made.show("plan")) is said


def test_pictures_show_a_tile_without_products():
    made = compiled(lower, CLUSTER)
    run = dict(content(made.passes, SIZES).run.sizes)
    assert 0 < run["inside"] < run["tiles"]
    assert "tiles more without products" in made.show("cost")


def test_the_cost_model_counts_the_tiles_that_have_products():
    known = device("sm_90a")
    program = pg.fuse(lower).program(*PLAIN)
    problem, _ = candidates(program, known, SIZES)
    full = replace(problem, domain=())
    for file in (CLUSTER, "sm_80/128x128x32_w64x64_s4.toml"):
        schedule: Schedule = load_schedule(SCHEDULES / file)
        fitted = Fitted(schedule, 1)
        tile, cluster = schedule.tile.cta, schedule.cluster
        rows, columns = tile.m * cluster.m, tile.n * cluster.n
        mask = np.tri(1024, 1536, dtype=bool)
        met = mask.reshape(1024 // rows, rows, 1536 // columns, columns).any(axis=(1, 3))
        found, every = (counts(known, fitted, one) for one in (problem, full))
        assert (found.clusters, found.others) == (met.sum(), met.size - met.sum())
        assert every.clusters == met.size and not every.others
        assert found.rounds == -(-found.clusters // found.slots)
        large = {"m": 8192, "n": 8192, "k": 8192}
        half, whole_one = (
            cost(known, fitted, replace(one, **large)).microseconds for one in (problem, full)
        )
        assert 1.7 < whole_one / half < 2


def test_a_plan_that_asks_for_other_tiles_is_refused():
    plan = compiled(lower, CLUSTER).passes.plan
    ((a, b, c),) = plan.tile_domain.planes
    other = replace(plan.tile_domain, planes=((a, b, c - 1),))
    for wrong in (other, None):
        with pytest.raises(VerifyError, match="products are not those of"):
            verify(replace(plan, tile_domain=wrong))
