"""Results that masks leave a part of, on the PTX machine: results, and which tiles have products.

Every run is compared with NumPy exactly, and the machine's own count of products with the number of
tiles that the mask meets: tiles outside are stored, and never multiplied.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, wraps

import numpy as np
import pytest
from generated import SCHEDULE, edited
from machine.conftest import ptx_of
from triangular_samples import banded, far, lower, rising, upper

import polygen as pg
from polygen.check import emulate
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.machine import mma, wgmma
from polygen.schedule.model import (
    Cluster,
    CtaTile,
    Epilogue,
    Pipeline,
    Raster,
    Roles,
    Schedule,
    Tile,
    WarpTile,
)
from polygen.small_problem import few_blocks

PLAIN = ("bf16[M,K]", "bf16[K,N]")
BATCHED = ("bf16[B,M,K]", "bf16[B,K,N]")
band, steep, beyond = banded(30, 50), rising(40, 90), far(1000)


def residual(x, w, r, b):
    v = x @ w
    i, j = pg.indices(v)
    return pg.where(i >= j, v + b, r)


def folded(x, w):
    v = np.tril(x @ w, 8)
    return v, v.sum(axis=1), v.max()


def roles(
    cta: tuple[int, int, int] = (64, 64, 64),
    form: str = "cooperative",
    cluster: Cluster | None = None,
    through: str = "tma",
) -> Schedule:
    return Schedule(
        name="triangular",
        device="sm_90a",
        tile=Tile(CtaTile(*cta), WarpTile(64, 64)),
        roles=Roles(form),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue(through, 2, 2),
        cluster=cluster or Cluster(),
        raster=Raster("m", 2),
    )


def triangle(i, j):
    return i >= j


MASKS = {
    lower: triangle,
    upper: lambda i, j: j - i >= 40,
    band: lambda i, j: (i - j < 30) & (j - i < 50),
    steep: lambda i, j: (abs(i - 2 * j) <= 40) & (j < 90),
    beyond: lambda i, j: j - i >= 1000,
    residual: triangle,
    folded: lambda i, j: j - i <= 8,
}
ADDED = (*PLAIN, "bf16[M,N]", "f32[N]")
FROM_REGISTERS = replace(SCHEDULE, epilogue=Epilogue(through="registers"))
WIDE = ((136, 1160, 40),)  # more columns of tiles than a walk passes over at once
SMALL, LARGE = ((136, 104, 72), (40, 200, 40)), ((200, 264, 136), (330, 72, 72))
WARPS = {
    "warps, lower": (lower, PLAIN, SCHEDULE, SMALL),
    "warps, upper": (upper, PLAIN, FROM_REGISTERS, SMALL),
    "warps, band": (band, PLAIN, replace(SCHEDULE, raster=Raster("n", 2)), SMALL),
    "warps, batches": (lower, BATCHED, SCHEDULE, SMALL[:1]),
    "warps, beyond": (beyond, PLAIN, SCHEDULE, SMALL[:1]),
}
ROLES = {
    "roles, lower": (lower, PLAIN, roles(), LARGE),
    "roles, upper": (upper, PLAIN, roles(through="lines"), (*LARGE, *WIDE)),
    "roles, band": (band, PLAIN, replace(roles(), raster=Raster("n", 3)), LARGE),
    "roles, steep": (steep, PLAIN, roles(), WIDE),
    "roles, beyond": (beyond, PLAIN, roles(), LARGE[:1]),
    "roles, batches": (lower, BATCHED, roles(), LARGE[:1]),
    "roles, residual": (residual, ADDED, roles(), LARGE[:1]),
    "roles, folded": (folded, PLAIN, roles(through="registers"), LARGE[:1]),
    "roles, in turns": (lower, PLAIN, roles(form="pingpong"), LARGE),
    "roles, cluster": (upper, PLAIN, roles(cluster=Cluster(2, 1)), LARGE[:1]),
}
CASES = WARPS | ROLES
QUICK, SLOW = ("roles, steep",), [pytest.mark.slow, pytest.mark.sample(3)]


@cache
def kernel(name: str) -> Kernel:
    function, signature, schedule, ((m, n, k), *_) = CASES[name]
    arch = "sm_90a" if schedule.specialised else "sm_80"
    sizes = {"M": m, "N": n, "K": k} | ({"B": 2} if signature is BATCHED else {})
    return pg.fuse(function).compile(*signature, arch=arch, sizes=sizes, schedule=schedule)


def operands(made: Kernel, sizes: dict[str, int]) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(list(sizes.values()))
    found = []
    for tensor in made.program.inputs:
        shape = tuple(sizes[str(dim)] for dim in tensor.dims)
        found.append(random.integers(-2, 3, shape).astype(np.float32).astype(tensor.dtype.numpy))
    return tuple(found)


def tiles_of(mask, size: tuple[int, int], tile: tuple[int, int]) -> int:
    """Tiles that the mask meets; the last ones are whole, though results may end inside them."""
    whole = mask(*np.indices([-(-n // step) * step for n, step in zip(size, tile, strict=True)]))
    rows, columns = (range(0, extent, step) for extent, step in zip(size, tile, strict=True))
    return sum(whole[i : i + tile[0], j : j + tile[1]].any() for i in rows for j in columns)


@pytest.fixture
def products(monkeypatch):
    """Counts what the machine multiplies: a list of instructions, each by warp or warpgroup."""
    seen: list[int] = []

    def counting(module, name, count):
        own = getattr(module, name)

        @wraps(own)
        def multiply(*arguments):
            seen.append(count(arguments))
            return own(*arguments)

        monkeypatch.setattr(module, name, multiply)

    counting(wgmma, "multiply", lambda given: given[1].count // 128)
    counting(mma, "multiply", lambda given: len(given[0]))
    return seen


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in QUICK else SLOW) for one in CASES]
)
def test_results_are_right_and_tiles_outside_have_no_products(name, products):
    made = kernel(name)
    function = CASES[name][0]
    plan = made.passes.plan
    (rows, columns, depth), cluster = plan.tiles.cta, plan.schedule.cluster
    item = (rows * cluster.m, columns * cluster.n)
    for m, n, k in CASES[name][3]:
        sizes = {"M": m, "N": n, "K": k, "B": 2}
        given = operands(made, sizes)
        arrays = {t.name: a for t, a in zip(made.program.inputs, given, strict=True)}
        wanted = evaluate(made.program, arrays, sizes)
        products.clear()
        done = emulate(made.program, few_blocks(made.passes.source), made.ptx, given)
        assert not done.report.findings, done.report
        results = done.results if isinstance(done.results, tuple) else (done.results,)
        for found, right in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(found.astype(np.float32), right.astype(np.float32))
        inside = tiles_of(MASKS[function], (m, n), item) * (2 if plan.batches else 1)
        a_tile = rows * cluster.m * columns * cluster.n * depth
        one = plan.atom.m * (plan.tiles.warp[1] if plan.launch.persistent else plan.atom.n)
        assert sum(products) == inside * -(-k // depth) * a_tile // (one * plan.atom.k)


# kernel, what is wrong, the CUDA text and what it is changed to
FAULTS = [
    (
        "roles, lower", "the first tile of a column has no product",
        ("min(max(low, column),", "min(max(low, column + 1),"),
    ),
    (
        "roles, lower", "one tile fewer has products",
        ("int inside = (domain_items -", "int inside = (domain_items - 1 -"),
    ),
    (
        "roles, upper", "tiles with products are not passed over",
        ("low + place + end - begin;", "low + place;"),
    ),
    (
        "warps, lower", "tiles on the diagonal have no products",
        ("b_m - 2 * b_n >= 0;", "b_m - 2 * b_n >= 1;"),
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "fault", "edit"), FAULTS)
def test_faults_are_found(name, fault, edit):
    made = kernel(name)
    source = few_blocks(replace(made.passes.source, text=edited(made.source, [edit])))
    ptx = ptx_of(source)
    found = False
    for m, n, k in CASES[name][3]:
        sizes = {"M": m, "N": n, "K": k}
        given = operands(made, sizes)
        arrays = {t.name: a for t, a in zip(made.program.inputs, given, strict=True)}
        (wanted,) = evaluate(made.program, arrays, sizes)
        done = emulate(made.program, source, ptx, given)
        same = np.array_equal(done.results.astype(np.float32), wanted.astype(np.float32))
        found = found or bool(done.report.findings) or not same
    assert found, fault
