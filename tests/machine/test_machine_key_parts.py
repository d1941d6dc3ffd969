"""Keys in parts, on the PTX machine: both launches, every form of states, and mistakes in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from chain_samples import arrays_of, few_rows, run
from generated import edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.emulated import emulate
from polygen.frontend.evaluate import reference

HEADS = ("bf16[B,K,G,1,64]", "bf16[B,K,1,T,64]", "bf16[B,K,1,T,64]")
ROWS = ("bf16[S,64]", "bf16[T,64]", "bf16[T,64]")


def _scored(score: Callable) -> Callable:
    def function(q, k, v):
        s = (q @ k.mT) * 0.125
        i, j = pg.indices(s)[-2:]
        s = score(s, i, j)
        return pg.softmax(s) @ v, pg.logsumexp(s, axis=-1)

    return function


def _window(s, i, j):
    return pg.where(pg.logical_and(i + 70 >= j, j + 100 >= i), s, -np.inf)


def _none_of_some_rows(s, i, j):
    return pg.where(i >= j + 90, s, -np.inf)


def test_the_heads_of_a_group_are_the_rows_of_a_tile() -> None:
    arrays = arrays_of(1, (1, 2, 4, 1, 64), (1, 2, 1, 300, 64), (1, 2, 1, 300, 64))
    arrays[1][:, :, :, 130:] *= 20  # a maximum that grows from part to part
    run(_scored(lambda s, i, j: s), HEADS, arrays, schedule=few_rows(128))


@pytest.mark.slow
@pytest.mark.parametrize("score", [_window, _none_of_some_rows])
def test_masks_leave_parts_without_a_key(score: Callable) -> None:
    arrays = arrays_of(2, (140, 64), (300, 64), (300, 64))
    found, wanted = run(_scored(score), ROWS, arrays, schedule=few_rows(64))
    empty = ~np.isfinite(wanted[0]).all(axis=-1)
    assert (found[0].astype(np.float64)[empty] == 0.0).all()
    assert (found[1][empty] == -np.inf).all()


@pytest.mark.slow
def test_parts_without_states_add_up() -> None:
    arrays = arrays_of(3, (10, 64), (200, 64), (200, 40))
    signature = ("bf16[S,64]", "bf16[T,64]", "bf16[T,40]")
    few = few_rows(64, columns=48)
    run(lambda q, k, v: pg.sigmoid((q @ k.mT) * 0.1) @ v * 0.05, signature, arrays, schedule=few)


@pytest.mark.slow
def test_scores_take_functions_of_one_instruction() -> None:
    arrays = arrays_of(4, (10, 64), (200, 64), (200, 64))
    short = replace(few_rows(64), functions="short")
    run(_scored(lambda s, i, j: pg.tanh(s * 0.2) * 5.0), ROWS, arrays, schedule=short)


# --- mistakes ------------------------------------------------------------------------------------
BROKEN = {
    "parts that are worth what they are": [(": c_t6;", ": 1.0f;")],
    "states that are worth what they are": [("fold_result) * part);", "fold_result));")],
    "a part that is left out": [("fold_parts_0 = 1LL * ((T + 127) / 128);", "fold_parts_0 = 1;")],
    "a tile that is visited twice": [("part * 2, k_tiles", "part * 1, k_tiles")],
    "a part without its last tile": [("- k_first, 2), 1)", "- k_first, 1), 1)")],
    "the parts of another row": [("part * fold_rows + (long", "part * 4 + (long")],
}


@functools.cache
def _kernel() -> pg.Kernel:
    function = _scored(lambda s, i, j: s)
    return pg.fuse(function).compile(*HEADS, arch="sm_90a", schedule=few_rows(128))


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_are_found(name: str) -> None:
    kernel = _kernel()
    arrays = arrays_of(1, (1, 2, 4, 1, 64), (1, 2, 1, 300, 64), (1, 2, 1, 300, 64))
    source = kernel.passes.source
    changed = replace(source, text=edited(source.text, BROKEN[name]))
    done = emulate(kernel.program, changed, ptx_of(changed), tuple(arrays))
    wanted = reference(_scored(lambda s, i, j: s), arrays)
    right = all(
        (np.abs(one.astype(np.float64) - other) <= 0.03).all()
        for one, other in zip(done.results, wanted, strict=True)
    )
    assert done.report.findings or not right
