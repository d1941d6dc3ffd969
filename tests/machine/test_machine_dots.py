"""Dot products by lanes, on the PTX machine: exact, in one order, refused where rows do not fit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from matrix import dots

import polygen as pg
from polygen.errors import IllegalSchedule, ScheduleFileError, UnsupportedProgram
from polygen.schedule.load import shipped
from polygen.schedule.model import (
    Cluster,
    Epilogue,
    Loops,
    Pipeline,
    Roles,
)
from polygen.small_problem import trial_operands

PLAIN = (lambda x, w: x @ w.T, ("bf16[M,K]", "bf16[N,K]"))
EPILOGUE = (
    lambda x, w, b, r: pg.relu(x @ w.T + b) + r,
    ("bf16[M,K]", "bf16[N,K]", "bf16[N]", "bf16[M,N]"),
)
SIZES = {"M": 4, "N": 136, "K": 520}


TURNED = (lambda x, w: (x @ w.T, (x @ w.T).mT), PLAIN[1])
SEVERAL = (lambda x, u, v: (x @ u.T) * (x @ v.T), ("bf16[M,K]", "bf16[N,K]", "bf16[N,K]"))
BATCHES = (lambda x, w: x @ w.mT, ("bf16[B,M,K]", "bf16[B,N,K]"))
VECTOR = (lambda x, w: w @ x, ("bf16[K]", "bf16[N,K]"))
F16 = (PLAIN[0], ("f16[M,K]", "f16[N,K]"))
F32, F64 = (
    (EPILOGUE[0], tuple(one.replace("bf16", kind) for one in EPILOGUE[1]))
    for kind in ("f32", "f64")
)
CASES = {
    "epilogue": (EPILOGUE, dots((4, 16, 1024), (4, 2), 4), {}),
    "warps along m": (EPILOGUE, dots((4, 8, 512), (2, 2)), {}),
    "one step in registers": (F16, dots((2, 16, 256), (2, 2), 1), {"out_dtype": "f32"}),
    "exchanged": (EPILOGUE, dots((16, 2, 512), (2, 2), exchange=True), {}),
    "several": (SEVERAL, dots((2, 16, 512), (2, 2)), {}),
    "batches": (BATCHES, dots((2, 16, 512), (2, 2)), {"sizes": SIZES | {"B": 3}}),
    "vector": (VECTOR, dots((1, 16, 512), (1, 2)), {"sizes": {"N": 136, "K": 520}}),
    "turned": (TURNED, dots((2, 16, 512), (2, 2)), {}),
    "by name": (PLAIN, dots((1, 16, 256), (1, 2), 1, atom="dot_k256_f32_bf16"), {}),
    "f32": (F32, dots((4, 16, 512), (4, 2), 4), {}),
    "f32, one step": (F32, dots((1, 16, 128), (1, 4), 1), {"arch": "sm_90a"}),
    "f64": (F64, dots((2, 16, 128), (2, 2), 2), {"sizes": SIZES | {"K": 130}}),
    "f64, exchanged": (F64, dots((16, 2, 64), (4, 2), 1, exchange=True), {"arch": "sm_90a"}),
    "hopper": (EPILOGUE, dots((1, 16, 1024), (1, 2), 4), {"arch": "sm_90a"}),
}


def compiled(case, schedule, **options):
    function, signature = case
    given = {"arch": "sm_80", "sizes": SIZES} | options
    return pg.fuse(function).compile(*signature, schedule=schedule, **given)


@pytest.mark.parametrize("case", CASES)
def test_runs_as_numpy_says(case):
    program, schedule, options = CASES[case]
    kernel = compiled(program, schedule, **options)
    report = kernel.check()
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"
    assert kernel.resources.shared_bytes == 0 and kernel.deterministic


@pytest.mark.parametrize("seed", range(8))
def test_random_sizes_are_exact(seed):
    rng = random.Random(seed)
    schedule = rng.choice([one for one in shipped("sm_80") if one.by_lanes])
    m, n, k = rng.randint(1, 9), rng.randint(1, 70), 8 * rng.randint(1, 300)
    sizes = {"M": m, "N": n, "K": k}
    program = rng.choice([PLAIN, EPILOGUE])
    kernel = compiled(program, schedule, sizes=sizes, out_dtype="f32")
    operands = trial_operands(kernel.program, sizes, seed)
    found = kernel.emulate(*operands)
    x, w, *rest = (one.astype(np.float32) for one in operands)
    wanted = x @ w.T
    if rest:
        wanted = np.maximum(wanted + rest[0], 0) + rest[1]
    assert np.array_equal(np.asarray(found, np.float32), wanted)


def test_tiles_have_no_part_in_the_bits():
    """Of one class are all tiles with as many groups; rows of a batch have the bits they have
    alone.
    """
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((4, 1032), (24, 1032)))
    sizes = {"M": 4, "N": 24, "K": 1032}
    both = [
        compiled(F16, dots(*one), sizes=sizes, out_dtype="f32")
        for one in (((4, 8, 512), (4, 1), 2), ((1, 16, 512), (1, 2), 1))
    ]
    assert both[0].sums == both[1].sums
    whole = np.asarray(both[0].emulate(x, w))
    for row in range(4):
        alone = np.asarray(both[1].emulate(np.ascontiguousarray(x[row : row + 1]), w))
        assert np.array_equal(alone.view(np.uint32), whole[row : row + 1].view(np.uint32))


def test_the_order_of_the_sum_is_the_one_that_is_documented():
    """Lanes add up chunks of 8, 256 apart; then lanes 16, 8, 4, 2 and 1 apart are added."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal((1, 1032)).astype(np.float16) for _ in range(2))
    kernel = compiled(
        F16, dots((1, 8, 512), (1, 1)), sizes={"M": 1, "N": 1, "K": 1032}, out_dtype="f32"
    )
    products = np.zeros(1536, np.float64)
    products[:1032] = x[0].astype(np.float64) * w[0].astype(np.float64)  # exact
    parts = np.zeros(32, np.float32)
    for step in products.reshape(-1, 32, 8):
        for e in range(8):
            parts = (parts.astype(np.float64) + step[:, e]).astype(np.float32)
    for away in (16, 8, 4, 2, 1):
        parts = parts + parts[np.arange(32) ^ away]
    assert np.asarray(kernel.emulate(x, w))[0, 0] == parts[0]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            dots((1, 16, 256), (1, 2), 1, roles=Roles("cooperative")),
            'atom = "dot" with roles: every warp reads for itself. Nearest legal: roles.form = "no',
        ),
        (
            dots((1, 16, 256), (1, 2), 1, epilogue=Epilogue("smem")),
            'epilogue.through = "smem" with atom = "dot": sums lie in lanes. Nearest legal: "regi',
        ),
        (
            dots((1, 16, 256), (1, 2), 1, loops=Loops(k="backward")),
            'loops.k with atom = "dot": it decides nothing there',
        ),
        (dots((1, 16, 200), (1, 2), 1), "tile.cta.k = 200 is not a multiple of 256"),
        (dots((1, 16, 256), (1, 2), 1, cluster=Cluster(2, 1)), "cluster 2 x 1 without roles"),
    ],
)
def test_what_does_not_go_with_dots(schedule, message):
    with pytest.raises(ScheduleFileError) as caught:
        compiled(PLAIN, schedule)
    assert message in str(caught.value)


@pytest.mark.parametrize(("fragments", "lookahead"), [(2, 2), (4, 3)])
def test_registers_that_are_still_to_be_read_are_not_loaded(fragments, lookahead):
    """Five steps of a k tile in four registers, or a load as far ahead as there are registers."""
    depth = 1280 if fragments == 4 else 1024
    schedule = dots(
        (1, 16, depth), (1, 2), pipeline=Pipeline(fragments=fragments, lookahead=lookahead)
    )
    with pytest.raises(IllegalSchedule, match=r"fragment_b: .*dot\[.*load_b\[.*pipeline.fragments"):
        compiled(PLAIN, schedule)


@pytest.mark.parametrize(
    ("program", "sizes", "message"),
    [
        (
            (lambda x, w: x @ w, ("bf16[M,K]", "bf16[K,N]")),
            SIZES,
            "k is not innermost (lanes multiply chunks of rows along k)",
        ),
        (PLAIN, SIZES | {"K": 101}, "begin or end inside chunks of 16 bytes"),
        (
            (PLAIN[0], ("bf16[M,K]@8", "bf16[N,K]@8")),
            SIZES,
            "begin or end inside chunks of 16 bytes",
        ),
        (
            (PLAIN[0], ("tf32[M,K]", "tf32[N,K]")),
            SIZES,
            "has no lanes instruction for tf32 x tf32",
        ),
    ],
)
def test_rows_that_lanes_cannot_read_are_refused(program, sizes, message):
    with pytest.raises(UnsupportedProgram) as caught:
        compiled(program, dots((1, 16, 256), (1, 2), 1), sizes=sizes)
    assert message in str(caught.value)
