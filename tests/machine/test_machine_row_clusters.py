"""Rows that the blocks of a cluster cover together, on the PTX machine: exact on integers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import row_samples
from matrix import roles

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.emit.leaf import fold_parts, row_exchange
from polygen.kernel import Kernel
from polygen.schedule.model import Schedule

X_W = ("bf16[M,K]", "bf16[N,K]")
two_levels = pg.fuse(row_samples.two_levels)


def beside(form: str, cluster: tuple[int, int], through: str = "registers") -> Schedule:
    """Blocks beside each other, of 64 columns each."""
    schedule = roles(form, through=through, cluster=cluster)
    return replace(schedule, epilogue=replace(schedule.epilogue, through=through, rows="tile"))


@pg.fuse
def beside_others(x, w):
    """What elements use and what leaves, of rows, of columns and of all."""
    v = x @ w.T
    most = np.max(v, axis=1, keepdims=True)
    return v - most, np.sum(v, axis=0), most, np.max(v - most, axis=1), np.min(v, keepdims=True)


@pg.fuse
def hits(x, w, s):
    """The first of equals, whatever block it is in."""
    v = pg.clip(x @ w.T, -3, 3)
    best = np.argmax(v, axis=1)
    return pg.where(pg.indices(v)[1] == best[:, None], s, 0.0), best


@pg.fuse
def all_ways(x, w, r):
    v = x @ w.T + r
    u = v - np.max(v, axis=1, keepdims=True)
    return u.astype("bf16"), v, np.sum(v, axis=0)


@cache
def made(function, schedule: Schedule, *more: str) -> Kernel:
    return function.compile(*X_W, *more, arch="sm_90a", schedule=schedule)


def right(kernel: Kernel, m: int, n: int, k: int) -> None:
    report = kernel.check({"M": m, "N": n, "K": k})
    assert report.ok, str(report)


def test_two_blocks_cover_a_row():
    """Several tiles of each cluster, so that landing areas come round; rows and columns outside."""
    kernel = made(two_levels, beside("one", (1, 2)))
    assert kernel.workspace({"M": 328, "N": 120, "K": 64}) > 0  # one result leaves as parts
    right(kernel, 328, 120, 64)


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("form", "cluster", "sizes"),
    [
        ("two", (1, 4), (200, 250, 64)),
        ("one", (1, 4), (330, 61, 32)),  # blocks without any column of theirs
        ("two", (2, 2), (300, 100, 96)),  # and blocks below one another, which share no rows
        ("pingpong", (1, 2), (330, 127, 64)),
    ],
)
def test_clusters_of_two_and_of_four(form, cluster, sizes):
    right(made(beside_others, beside(form, cluster)), *sizes)


@pytest.mark.slow
def test_ties_across_blocks():
    right(made(hits, beside("two", (1, 4)), "f32"), 72, 250, 32)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("way", ["tma", "lines"])
def test_results_that_leave_in_panels(way):
    """A matrix that the passes read, too."""
    schedule = beside("two", (1, 2), way)
    sizes = {"M": 200, "N": 120, "K": 96}
    kernel = all_ways.compile(*X_W, "bf16[M,N]", arch="sm_90a", schedule=schedule, sizes=sizes)
    right(kernel, *sizes.values())


@pg.fuse
def norm(x, w, b):
    return pg.layer_norm(x @ w.T + b)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [128, 83])
def test_norms_are_within_their_bound(n):
    """Random normal data, against float64: the bound is that of types and lengths alone."""
    kernel = made(norm, beside("two", (1, 2)), "bf16[N]")
    generator, sizes = np.random.default_rng(7), {"M": 72, "N": n, "K": 64}
    given = {
        t.name: generator.standard_normal([sizes[d] for d in t.dims]).astype(t.dtype.numpy)
        for t in kernel.program.inputs
    }
    done = kernel.emulation(*given.values())
    assert done.report.ok, str(done.report)
    (one,) = expected(kernel.program, given, sizes, kernel.passes.plan.atom.k)
    _, ratio, above = one.compare(np.asarray(done.results))
    assert not above and 0 < ratio <= 1 and np.isfinite(one.allowed).all()


@pytest.mark.slow
def test_a_block_that_is_sent_nothing_waits_for_ever(monkeypatch):
    plain = row_exchange._sent

    def fewer(work, numbers):
        return [line.replace("there < 2", "there < 1") for line in plain(work, numbers)]

    monkeypatch.setattr(row_exchange, "_sent", fewer)
    kernel = two_levels.compile(*X_W, arch="sm_90a", schedule=beside("one", (1, 2)))
    findings = kernel.check({"M": 72, "N": 120, "K": 64}).findings
    assert "deadlock" in {one.code for one in findings}


@pytest.mark.slow
def test_half_of_a_row_is_found(monkeypatch):
    """Every block takes the first one's part, twice."""
    plain = fold_parts.taken

    def first(plan, one, e, areas):
        return plain(plan, one, e, [areas[0], areas[0]])

    monkeypatch.setattr(row_exchange, "taken", first)
    kernel = two_levels.compile(*X_W, arch="sm_90a", schedule=beside("one", (1, 2)))
    findings = kernel.check({"M": 72, "N": 120, "K": 64}).findings
    assert "wrong-value" in {one.code for one in findings}
