"""Persistent blocks whose tiles of rows have different numbers of keys, on the PTX machine.

Few blocks run, so that each has several tiles of rows, and rings go on from one to the next.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from chain_samples import arrays_of, bf16
from fewer import one_in
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import reference
from polygen.kernel import Kernel
from polygen.schedule.model import (
    LONGEST,
    PAIRS,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)

SIGNATURE = ("bf16[H,S,64]", "bf16[H,T,64]", "bf16[H,T,64]")


def seen(q, k, v, mask):
    s = (q @ k.mT) * 0.125
    i, j = pg.indices(s)[-2:]
    s = pg.where(mask(i, j), s, -np.inf)
    return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)


MASKS = {
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: pg.logical_and(i >= j, i - j < 100),
    "behind": lambda i, j: j >= i + 20,
}


def schedule(order: str, slots: int, consumers: int = 1, keys: int = 32) -> Schedule:
    rows = 64 * consumers
    return Schedule(
        "ordered",
        "sm_90a",
        tile=Tile(CtaTile(rows, 64, keys), WarpTile(64, 64)),
        pipeline=Pipeline(stages=2, in_flight=1),
        roles=Roles("pingpong" if consumers > 1 else "cooperative", 24, 232),
        epilogue=Epilogue("registers", prefetch=slots),
        raster=Raster("m", 1, order=order),
    )


@cache
def kernel(mask: str, order: str, slots: int = 2, consumers: int = 1, keys: int = 32) -> Kernel:
    function = MASKS[mask]
    return pg.fuse(lambda q, k, v: seen(q, k, v, function)).compile(
        *SIGNATURE, arch="sm_90a", schedule=schedule(order, slots, consumers, keys)
    )


def arrays(matrices: int, rows: int, keys: int) -> tuple[np.ndarray, ...]:
    sides = ((matrices, rows, 64), (matrices, keys, 64), (matrices, keys, 64))
    return tuple(arrays_of(rows, *sides, dtype=bf16))


def run(made: Kernel, given: tuple, mask: str, blocks: int, edits: list[tuple] | None = None):
    """The findings, and whether the values are right, of a launch of few blocks."""
    source, ptx = made.passes.source, made.ptx
    if source.launch.persistent:
        source = replace(source, launch=replace(source.launch, persistent=blocks))
    if edits:
        source = replace(source, text=edited(source.text, edits))
        ptx = ptx_of(source)
    done = emulate(made.program, source, ptx, given)
    with np.errstate(all="ignore"):
        wanted, logs = reference(lambda q, k, v: seen(q, k, v, MASKS[mask]), given)
    values, found = (one.astype(np.float64) for one in done.results)
    there = np.isfinite(wanted).all(axis=-1)
    right = bool((np.abs(values - wanted)[there] <= 0.03).all() and not values[~there].any())
    right = right and bool(np.allclose(found[there], logs[there], atol=1e-4))
    return {finding.code for finding in done.report.findings}, right


@pytest.mark.parametrize("order", [LONGEST, PAIRS])
@pytest.mark.parametrize("mask", sorted(MASKS))
def test_every_mask_with_few_blocks(order: str, mask: str) -> None:
    given = arrays(3, 200, 210)
    assert run(kernel(mask, order), given, mask, 3) == (set(), True)


@pytest.mark.sample(4)
@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("matrices", [1, 2, 5, 30])
def test_any_number_of_blocks_and_matrices(blocks: int, matrices: int) -> None:
    """With 30 matrices of 2 tiles each, some are in pairs, and the rounds begin in the middle."""
    given = arrays(matrices, 100, 90)
    assert run(kernel("causal", PAIRS), given, "causal", blocks) == (set(), True)


@pytest.mark.parametrize(("slots", "consumers"), [(1, 1), (1, 2), (2, 2)])
def test_turns_and_slots_of_rows(slots: int, consumers: int) -> None:
    given = arrays(3, 300, 300)
    made = kernel("causal", PAIRS, slots, consumers)
    assert run(made, given, "causal", 2) == (set(), True)


def test_tiles_of_the_last_matrices_are_taken_together() -> None:
    """Blocks of one tile each: of more matrices than are taken together some come before."""
    given = arrays(4, 330, 64)
    made = kernel("causal", LONGEST)
    text = made.passes.source.text
    assert "(4 * 132 + tiles_m - 1) / tiles_m" in text
    few = [("(4 * 132 + tiles_m - 1) / tiles_m", "2")]
    assert run(made, given, "causal", 0) == (set(), True)
    assert run(made, given, "causal", 0, few) == (set(), True)


OVERWRITTEN = {"in-flight-access", "race-read-write", "race-write-write", "race-write-read"}
HANGS = {"deadlock"}
WRONG = "wrong values"
BROKEN = {
    "a tile of keys less than its rows have": ([("+ 63, 0) / 32 + 1)", "+ 63, 0) / 32)")], WRONG),
    "the number of the rows before, by the producer and the consumer": (
        [("    k_tiles = max(", "    k_tiles = i ? k_tiles : max(")], WRONG,
    ),
    "keys before they have come, of rows that are not the first": (
        [(" wait_full_ring_b(i, 0);", " if (i == 0) wait_full_ring_b(i, 0);")], OVERWRITTEN,
    ),
    "values before they have come": (
        [(" wait_full_ring_c(i, k_tiles - 1);", " if (i == 0) wait_full_ring_c(i, k_tiles - 1);")],
        OVERWRITTEN,
    ),
    "a slot that is not waited for, of rows that are not the first": (
        [(" wait_empty_ring_b(i, 0);", " if (i == 0) wait_empty_ring_b(i, 0);")], OVERWRITTEN,
    ),
    "rows that come before the ones before are used": (
        [(" wait_empty_ring_a(i);", "")], OVERWRITTEN,
    ),
    "parity that begins anew with each tile of rows": (
        [("ring_b_consumer.parity);", "(unsigned)(k / 2 & 1));"),
         ("auto wait_full_ring_b = [&](int, int)", "auto wait_full_ring_b = [&](int, int k)")],
        OVERWRITTEN | HANGS,
    ),
    "a pair's second tile of the first matrix": ([("* 2 + i % 2;", "* 2;")], WRONG),
    "rounds that all go forwards": ([("at = lap % 2 ?", "at = false ?")], WRONG),
    "the tiles of the first round twice": ([("+ behind, at", "+ 0, at")], WRONG),
}  # fmt: skip


@pytest.mark.parametrize("what", one_in(2, sorted(BROKEN)))
def test_mistakes_in_the_text_are_found(what: str) -> None:
    edits, shown = BROKEN[what]
    one_slot = what.startswith("rows that come")
    made = kernel("causal", PAIRS, 1 if one_slot else 2)
    findings, right = run(made, arrays(16, 140, 130), "causal", 5, edits)
    if shown == WRONG:
        assert not right
    else:
        assert findings & set(shown), findings
