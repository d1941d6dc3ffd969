"""Kernels whose operands are exchanged, on the PTX machine: few rows are the instruction's n."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from random_products import product_program
from random_programs import run_random, stored_numpy

import polygen as pg
from polygen.api import fuse
from polygen.errors import PolygenError
from polygen.frontend.parse import parse_expression
from polygen.schedule.load import shipped
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

EPILOGUE = (
    lambda x, w, b, r: pg.relu(x @ w.T + b) + r,
    ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]"),
)
PLAIN = (lambda x, w: x @ w.T, ("bf16[M,K]", "bf16[N,K]"))
SIZES = {"M": 16, "N": 136, "K": 200}


def roles(cta, warp=None, *, through="lines", form="cooperative", cluster=None, **more):
    return Schedule(
        name="exchanged",
        device="sm_90a",
        tile=Tile(CtaTile(*cta), WarpTile(*(warp or cta[:2]))),
        roles=Roles(form),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue(through),
        cluster=cluster or Cluster(),
        exchange=True,
        **more,
    )


def warps(through):
    return Schedule(
        name="exchanged",
        tile=Tile(CtaTile(32, 16, 64), WarpTile(16, 16)),
        pipeline=Pipeline(stages=3, distance=2),
        epilogue=Epilogue(through),
        exchange=True,
    )


TURNED = (lambda x, w: (x @ w, (x @ w).mT), ("bf16[M,K]", "bf16[K,N]"))
BATCHES = (lambda x, w: x @ w.mT, ("bf16[B,M,K]", "bf16[B,N,K]"))
VECTOR = (lambda x, w: w @ x, ("bf16[K]", "bf16[N,K]"))
CASES = {
    "lines": (EPILOGUE, roles((64, 16, 64)), {}),
    "registers": (EPILOGUE, roles((64, 8, 64), through="registers"), {}),
    "f32 results": (EPILOGUE, roles((64, 16, 64)), {"out_dtype": "f32"}),
    "two consumers": (EPILOGUE, roles((128, 16, 64), (64, 16)), {}),
    "two instructions": (EPILOGUE, roles((128, 16, 64), (128, 16)), {}),
    "in turns": (EPILOGUE, roles((64, 16, 64), form="pingpong"), {}),
    "shared by two": (
        EPILOGUE,
        roles((64, 16, 64), through="registers", cluster=Cluster(k=2)),
        {},
    ),
    "shared by two, in lines": (EPILOGUE, roles((64, 64, 64), cluster=Cluster(k=2)), {}),
    "multicast": (EPILOGUE, roles((64, 16, 64), cluster=Cluster(2, 1)), {}),
    "two spans": (PLAIN, roles((64, 16, 128)), {}),
    "turned": (TURNED, roles((64, 16, 64)), {}),
    "batches": (BATCHES, roles((64, 16, 64)), {"sizes": SIZES | {"B": 3}}),
    "vector": (VECTOR, roles((64, 8, 64), through="registers"), {"sizes": {"N": 136, "K": 200}}),
    "e4m3": (
        (PLAIN[0], ("e4m3[M,K]", "e4m3[N,K]")),
        roles((64, 16, 128)),
        {"out_dtype": "bf16", "sizes": {"M": 16, "N": 144, "K": 400}},
    ),
    "tf32": (
        (PLAIN[0], ("tf32[M,K]", "tf32[N,K]")),
        roles((64, 16, 32)),
        {"out_dtype": "f32"},
    ),
    "warps": (EPILOGUE, warps("smem"), {"arch": "sm_80"}),
    "warps, registers": (EPILOGUE, warps("registers"), {"arch": "sm_80"}),
}


def compiled(case):
    (function, signature), schedule, options = CASES[case]
    given = {"arch": "sm_90a", "sizes": SIZES} | options
    return pg.fuse(function).compile(*signature, schedule=schedule, **given)


@pytest.mark.parametrize("case", CASES)
def test_runs_as_numpy_says(case):
    report = compiled(case).check()
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"


def test_weights_that_one_row_of_tiles_reads_are_the_first_to_leave_the_cache():
    one, plain = compiled("lines").source, CASES["lines"]
    (function, signature), schedule, _ = plain
    other = pg.fuse(function).compile(
        *signature, arch="sm_90a", sizes=SIZES, schedule=replace(schedule, exchange=False)
    )
    assert "read_policy(tiles_n == 1)" in one and "read_policy" not in other.source


def _on_machine(kernel, operands):
    arrays = [stored_numpy(*item[:3]) if isinstance(item, tuple) else item for item in operands]
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    return list(done.results) if isinstance(done.results, tuple) else [done.results]


def _exchanged(case, arch):
    """With a random one of the shipped schedules that exchange operands, or without roles."""
    fused = fuse(parse_expression(case.expression, case.names), name=f"few_{case.seed}")
    choices = [one for one in shipped(arch) if one.exchange]
    random.Random(case.seed).shuffle(choices)
    choices.append(warps("smem"))
    for choice in choices:
        for stages in (4, 2):
            pipeline = replace(choice.pipeline, stages=stages)
            schedule = replace(choice, pipeline=pipeline)
            try:
                kernel = fused.compile(
                    *case.signature, arch=arch, sizes=case.sizes, schedule=schedule
                )
                kernel.artifact  # noqa: B018  (may spill)
            except PolygenError:  # it does not fit this program
                continue
            return kernel
    raise AssertionError(f"no shipped schedule that exchanges operands fits {case.expression}")


@pytest.mark.parametrize(
    "seed", [n if n < 4 else pytest.param(n, marks=pytest.mark.slow) for n in range(14)]
)
def test_random_products_with_few_rows_are_exact(seed):
    case = product_program(seed, 140, roomy=True)
    sizes = case.sizes | ({"M": 16 * (1 + seed % 2)} if "M" in case.sizes else {})
    case = replace(case, sizes=sizes)
    assert run_random(case, "sm_90a", _on_machine, compiled=_exchanged) == ""


def test_one_row_is_exact():
    generator = np.random.default_rng(5)
    x = generator.integers(-3, 4, (1, 328)).astype(np.float16)
    w = generator.integers(-3, 4, (200, 328)).astype(np.float16)
    kernel = pg.fuse(lambda x, w: x @ w.T).compile(
        "f16[M,K]", "f16[N,K]", arch="sm_90a", sizes={"M": 1, "N": 200, "K": 328},
        schedule=roles((64, 16, 64), through="registers", cluster=Cluster(k=2)), out_dtype="f32",
    )  # fmt: skip
    wanted = x.astype(np.float32) @ w.astype(np.float32).T
    assert np.array_equal(kernel.emulate(x, w), wanted)
