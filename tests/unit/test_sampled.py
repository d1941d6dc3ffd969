"""Checks of kernels whose smallest problem is large: some blocks run, with all their tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polygen as pg
from polygen.check import check
from polygen.sampled import Sample, sample
from polygen.small_problem import trial_sizes


def convolution(x, w):
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    v = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return pg.relu(pg.einsum("npqcrs,krsc->npqk", v, w))


def kernel(f=convolution, *signature, **sizes):
    if not signature:
        signature, sizes = ("bf16[N,56,56,64]", "bf16[64,3,3,64]"), {"N": 64}
    return pg.fuse(f, name="c").compile(*signature, arch="sm_90a", sizes=sizes)


@pytest.fixture(scope="module")
def large():
    found = kernel()
    plan, source = found.passes.plan, found.passes.source
    return found, sample(plan, source, trial_sizes(plan))


def test_first_and_last_tiles_are_in_a_sample(large):
    found, some = large
    blocks = some.source.launch.persistent
    own = [item for first in some.clusters for item in range(first, some.every, blocks)]
    assert len(own) == some.tiles < some.every // 4
    assert {0, some.every - 1} <= set(own)
    assert some.sides == (64, 2, 1, 64) and found.schedule.tile.pixels == (64, 2, 1)


def outputs(some, written=None):
    """An output of which the first tiles are written."""
    shape = (5, 56, 56, 64)
    expected = np.ones(shape, np.float32)
    found = np.full(shape, np.nan, np.float32)
    tiles = [(slice(None), slice(h, h + 2), w) for h in range(0, 56, 2) for w in range(56)]
    for tile in tiles[: some.tiles if written is None else written]:
        found[tile] = 1
    return found, expected


def test_what_no_block_wrote_counts_as_right(large):
    _, some = large
    found, expected = outputs(some)
    found[0, 0, 0, 0] = 7
    whole, finding = some.judged("y", found, expected)
    assert (
        finding is None and whole[0, 0, 0, 0] == 7 and (whole == expected).sum() == whole.size - 1
    )


@pytest.mark.parametrize("off", [-1, 1])
def test_tiles_are_counted(large, off):
    _, some = large
    _, finding = some.judged("y", *outputs(some, some.tiles + off))
    assert finding is not None and f"{some.tiles + off} tiles of y are written" in finding.sentence


def test_a_part_of_a_tile_is_found(large):
    _, some = large
    found, expected = outputs(some)
    found[4, 1, 0, 63] = np.nan
    _, finding = some.judged("y", found, expected)
    assert finding is not None and "tile at [0, 0, 0, 0]" in finding.sentence
    expected[4, 1, 0, 63] = np.nan  # so it is to be
    assert some.judged("y", found, expected)[1] is None


def test_a_sample_runs_and_finds_what_is_wrong(large):
    found, some = large
    report = found.check()
    assert report.ok and any(str(some.tiles) in note for note in report.notes)
    plan, source = found.passes.plan, found.passes.source
    one = "max.NaN.f32" if "max.NaN.f32" in found.ptx else "max.f32"
    assert one in found.ptx
    wrong = check(plan, source, found.ptx.replace(one, one.replace("max", "min")), None)
    assert any(finding.code == "wrong-value" for finding in wrong.findings)


def large_product(x, w):
    return x @ w.T


def rows(x, w):
    return (x @ w.T).sum(axis=-1)


def test_only_what_has_tiles_of_one_product_is_sampled():
    numbers = ("bf16[4096,1024]", "bf16[1024,1024]")
    whole = kernel(large_product, *numbers)
    plan, source = whole.passes.plan, whole.passes.source
    some = sample(plan, source, {})
    assert isinstance(some, Sample) and some.tiles < some.every
    small = kernel(large_product, "bf16[M,K]", "bf16[N,K]", M=64, N=64, K=64)
    assert sample(small.passes.plan, small.passes.source, {"M": 64, "N": 64, "K": 64}) is None
    given = replace(plan.program, in_place=(("y0", 2),))
    assert sample(replace(plan, program=given), source, {}) is None
    folded = kernel(rows, *numbers)
    assert sample(folded.passes.plan, folded.passes.source, {}) is None
