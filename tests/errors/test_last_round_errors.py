"""Blocks that share the sums of the last round: what does not go with that, by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matrix import roles

import polygen as pg
from polygen.errors import InvarianceError, PolygenError, ScheduleError, ScheduleFileError
from polygen.schedule.model import Cluster, Epilogue, Raster

LAST = replace(roles("one"), cluster=Cluster(k=2, share="last", columns=16))
PLAIN = (lambda x, w: x @ w.T, ("bf16[M,K]", "bf16[N,K]"))


def refused(error, function, signature, schedule=LAST, **options):
    with pytest.raises(error) as caught:
        pg.fuse(function).compile(*signature, arch="sm_90a", schedule=schedule, **options)
    return str(caught.value)


def summed(x, w):
    v = x @ w.T
    return v, v.sum(axis=1)


PROGRAMS = {
    "v2, a fold": (summed, PLAIN[1]),
    "rows in groups": (
        lambda x, w, ends: pg.grouped_matmul(x, w, ends),
        ("bf16[T,K]", "bf16[E,K,N]", "s32[E]"),
    ),
    "2 sections": (
        lambda x, y, u, v: (x @ u.T, y @ v.T),
        ("bf16[M,K]", "bf16[L,K]", "bf16[N,K]", "bf16[O,K]"),
    ),
    "sums over 2 axes": (
        lambda x, w: np.einsum("ajk,njk->an", x, w),
        ("bf16[A,J,K]", "bf16[N,J,K]"),
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_programs_that_number_tiles_otherwise_or_need_them_whole(what):
    schedule = LAST
    if what == "rows in groups":
        schedule = replace(LAST, epilogue=Epilogue("lines"))
    said = refused(ScheduleError, *PROGRAMS[what], schedule)
    assert f'cluster.share = "last" with {what}' in said
    assert 'Use cluster.share = "all", or cluster.k = 1' in said


def test_tiles_of_pixels():
    tile = replace(LAST.tile, pixels=(64,))
    said = refused(ScheduleError, *PLAIN, replace(LAST, tile=tile))
    assert 'cluster.share = "last" with tiles of pixels' in said


def test_clusters_that_cover_rows_and_chains():
    wide = replace(LAST, epilogue=Epilogue("tma", rows="tile"))
    said = refused(ScheduleError, lambda x, w: pg.softmax(x @ w.T, axis=-1), PLAIN[1], wide)
    assert "cluster 1 x 1 x 2 with rows in a tile" in said

    def attention(q, k, v):
        return pg.softmax(q @ k.mT, axis=-1) @ v

    matrices = ("bf16[H,Q,64]", "bf16[H,K,64]", "bf16[H,K,64]")
    direct = replace(LAST, epilogue=Epilogue("registers"))
    said = refused(ScheduleError, attention, matrices, direct)
    assert "cluster does not fit a chain of products" in said and "clusters of 1" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cluster": Cluster(share="last")}, 'cluster.share = "last" without blocks that share'),
        ({"cluster": Cluster(columns=8)}, "cluster.columns = 8 without blocks that share sums"),
        (
            {"cluster": Cluster(k=2, share="last", columns=24)},
            "cluster.columns = 24 of shares of 32: sums are sent in whole groups of 8 columns, as "
            "many each time. Nearest legal: 16",
        ),
        (
            {"cluster": Cluster(2, 1, 2, "last")},
            "cluster.k = 2 in a cluster of 2 x 1 tiles: blocks share the sums of one tile",
        ),
        (
            {"epilogue": Epilogue("registers")},
            'cluster.share = "last" with epilogue.through = "registers": of some tiles',
        ),
        (
            {"raster": Raster(run=2)},
            'cluster.share = "last" with raster.run = 2: a block has tiles of one row',
        ),
        (
            {"roles": replace(LAST.roles, form="pingpong")},
            'cluster.k = 2 with roles.form = "pingpong"',
        ),
    ],
)
def test_schedules_that_do_not_fit_together(changes, words):
    said = refused(ScheduleFileError, *PLAIN, replace(LAST, **changes))
    assert words in said and "Nearest legal" in said


def test_operands_that_consumers_compute():
    made = replace(LAST, roles=replace(LAST.roles, computes="consumer"))
    said = refused(ScheduleFileError, lambda x, w: pg.relu(x) @ w.T, PLAIN[1], made)
    assert 'cluster.share = "last" with roles.computes = "consumer": which k tile' in said


def test_sums_that_round_after_every_step_have_no_parts():
    said = refused(PolygenError, lambda x, w: x @ w.T, ("f16[M,K]", "f16[N,K]"), acc_dtype="f16")
    assert "cluster.k = 2 adds up" in said


def test_bits_would_depend_on_how_many_rows_there_are():
    said = refused(InvarianceError, *PLAIN, invariant=("M",))
    for words in (
        "is not one for all elements: blocks share the sums of some tiles, and which depends on "
        "the sizes",
        "Use a schedule that takes k in one order for all tiles",
    ):
        assert words in said
