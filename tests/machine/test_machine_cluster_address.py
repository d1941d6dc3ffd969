"""In a cluster no shared address is a plain offset: its upper bits name the block, as on an H200.

A matrix descriptor made from such an address without cutting it to its field has the block's rank
in the field beside it. Operands with k innermost ignore that field; the others do not.
"""

from __future__ import annotations

import numpy as np
import pytest

import polygen as pg
from polygen.check import emulate
from polygen.frontend.evaluate import evaluate
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.small_problem import few_blocks, trial_operands

SIZES = {"M": 264, "N": 264, "K": 72}


def product(cluster: tuple[int, int]):
    schedule = Schedule(
        name="cluster",
        device="sm_90a",
        tile=Tile(CtaTile(64, 128, 64), WarpTile(64, 128)),
        pipeline=Pipeline(stages=2),
        roles=Roles("cooperative"),
        cluster=Cluster(*cluster),
        epilogue=Epilogue("tma"),
    )
    fused = pg.fuse(lambda x, w: x @ w)
    return fused.compile("bf16[M,K]", "bf16[K,N]", arch="sm_90a", schedule=schedule)


def runs_right(kernel, text: str, compile_ptx) -> bool:
    operands = trial_operands(kernel.program, SIZES, 0)
    given = dict(zip(("x", "w"), operands, strict=True))
    (wanted,) = evaluate(kernel.program, given, SIZES)
    source = few_blocks(kernel.passes.source)
    done = emulate(kernel.program, source, compile_ptx(text, "sm_90a"), operands)
    equal = np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
    return bool(equal and done.report.ok)


@pytest.mark.parametrize(("cluster", "shows"), [((2, 1), True), ((1, 1), False)])
def test_an_address_that_is_not_cut_to_its_field(cluster, shows, compile_ptx):
    kernel = product(cluster)
    cut = " & 0x3ffffu"
    assert kernel.source.count(cut) == 2
    assert runs_right(kernel, kernel.source, compile_ptx)
    assert runs_right(kernel, kernel.source.replace(cut, ""), compile_ptx) is not shows
