"""Keys between bounds that arrays hold, on the PTX machine: packed sequences, lengths of caches."""

from __future__ import annotations

import numpy as np
import pytest
from chain_samples import arrays_of, few_rows, run

import polygen as pg

PACKED = ("bf16[H,S,64]", "bf16[H,S,64]", "bf16[H,S,64]", "s32[S]", "s32[S]")
CACHE = ("bf16[B,K,G,1,64]", "bf16[B,K,1,T,64]", "bf16[B,K,1,T,64]", "s32[B]")


def packed(q, k, v, begin, end):
    """Sequences behind one another: a row sees the keys of its own, up to itself."""
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    seen = pg.logical_and(j >= begin[:, None], pg.logical_and(j < end[:, None], j <= i))
    return pg.softmax(pg.where(seen, s, -np.inf)) @ v


def cached(q, k, v, length):
    s = (q @ k.mT) * 0.125
    j = pg.indices(s)[-1]
    s = pg.where(length[:, None, None, None, None] > j, s, -np.inf)
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


def _sequences(*lengths: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the sequence of each row begins, and where it ends."""
    ends = np.cumsum(lengths)
    return tuple(np.repeat(at, lengths).astype(np.int32) for at in (ends - lengths, ends))


def test_packed_sequences() -> None:
    bounds = _sequences(70, 1, 100, 29)
    run(packed, PACKED, [*arrays_of(1, *[(1, 200, 64)] * 3), *bounds])


@pytest.mark.slow
def test_rows_of_any_bounds() -> None:
    rng = np.random.default_rng(2)
    begin = rng.integers(-50, 350, 140).astype(np.int32)
    bounds = [begin, (begin + rng.integers(-20, 200, 140)).astype(np.int32)]
    arrays = arrays_of(2, *[(1, 140, 64)] * 3)
    found, wanted = run(packed, PACKED, [*arrays, *bounds])
    empty = ~np.isfinite(wanted[0]).all(axis=-1)
    assert empty.any() and (found[0].astype(np.float64)[empty] == 0.0).all()


@pytest.mark.slow
def test_tiles_of_other_sequences_are_never_visited() -> None:
    kernel = pg.fuse(packed).compile(*PACKED, arch="sm_90a")
    arrays = arrays_of(3, *[(1, 1152, 64)] * 3)
    count = [
        kernel.emulation(*arrays, *_sequences(*lengths)).report.instructions
        for lengths in ([192] * 6, [1152])
    ]
    assert count[0] < 0.6 * count[1]  # of 6 tiles of rows: 12 tiles of keys, and 33


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 64])
def test_caches_of_different_lengths(part: int) -> None:
    arrays = arrays_of(4, (3, 1, 4, 1, 64), (3, 1, 1, 200, 64), (3, 1, 1, 200, 64))
    length = np.array([1, 130, 200], np.int32)
    run(cached, CACHE, [*arrays, length], schedule=few_rows(part))
