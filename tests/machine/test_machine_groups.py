"""Products by groups of rows on the PTX machine: every way of computing them, any table of ends.

Outputs are filled with NaN before a run, and so is what the oracle leaves out: rows of no group
must still be NaN, and the machine itself finds what is read or written outside of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from fewer import one_in
from generated import SCHEDULE, edited
from machine.conftest import ptx_of

import polygen as pg
from polygen.check import emulate, launch_of
from polygen.frontend.evaluate import evaluate
from polygen.kernel import Kernel
from polygen.machine import run
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


def product(x, w, ends):
    return pg.grouped_matmul(x, w, ends)


def layer(x, w, ends, b, r):
    i, j = pg.indices(r)
    rows = pg.grouped_matmul(x, w, ends) + pg.per_group(b, ends, x)
    return pg.where(i + 2 * j >= 9, pg.relu(rows), 1.0) + r


def gated(x, w, v, ends, s):
    gate = pg.maximum(pg.grouped_matmul(x, v, ends) * pg.per_group(s, ends, x)[:, None], 0)
    return pg.grouped_matmul(x, w, ends) * gate


def transposed(x, w, ends):
    return pg.grouped_matmul(x, w.mT, ends)


def beside(x, w, ends, shared):
    return pg.grouped_matmul(x, w, ends) + x @ shared


def routed(x, rows, w, ends, s):
    return pg.grouped_matmul(x[rows], w, ends) * s[:, None]


def routed_pair(x, rows, w, v, ends, b):
    gate = pg.maximum(pg.grouped_matmul(x[rows], v.mT, ends) + pg.per_group(b, ends, x[rows]), 0)
    return pg.grouped_matmul(x[rows], w.mT, ends) * gate + x[rows] @ w[0].T


def unsorted(x, w, ends, rows, out):
    out[rows] = pg.grouped_matmul(x, w, ends)
    return out


def there_and_back(x, rows, w, ends, back, out, r):
    out[back] = pg.grouped_matmul(x[rows], w, ends) + r[back]
    return out


def scaled_rows(x, w, ends, s):
    i, j = pg.indices(x)
    kept = pg.where(i + 2 * j >= 9, x * s[:, None], 0)
    return pg.grouped_matmul(kept.astype("bf16"), w, ends)


def scaled_by_group(x, w, ends, s):
    rows = x * pg.per_group(s, ends, x)[:, None]
    return pg.grouped_matmul(rows.astype("bf16"), w, ends)


def in_f32(x, rows, w, ends, s):
    return pg.grouped_matmul(pg.maximum(x[rows], 0), w, ends) * s[:, None]


def narrow_matrices(x, rows, w, ends, s):
    return pg.grouped_matmul(x[rows], (w * s[:, :, None]).astype("bf16").mT, ends)


def roles(
    cta: tuple[int, int, int],
    warp: tuple[int, int],
    form: str = "cooperative",
    cluster: Cluster | None = None,
    through: str = "lines",
    registers: int = 40,
) -> Schedule:
    return Schedule(
        name="groups",
        device="sm_90a",
        tile=Tile(CtaTile(*cta), WarpTile(*warp)),
        roles=Roles(form, registers, 176 if registers == 152 else 232),
        pipeline=Pipeline(stages=3, in_flight=1),
        epilogue=Epilogue(through, 2, 2),
        cluster=cluster or Cluster(),
    )


PLAIN = ("bf16[T,K]", "bf16[E,K,N]", "s32[E]")
TURNED = ("bf16[T,K]", "bf16[E,N,K]", "s32[E]")
LAYER = (*PLAIN, "f32[E,N]", "bf16[T,N]")
GATED = ("bf16[T,K]", "bf16[E,K,N]", "bf16[E,K,N]", "s32[E]", "f32[E]")
SHALLOW = roles((128, 64, 64), (64, 64))
ROUTED = ("bf16[S,K]", "s32[T]", "bf16[E,K,N]", "s32[E]", "f32[T]")
PAIR = ("bf16[S,K]", "s32[T]", "bf16[E,N,K]", "bf16[E,N,K]", "s32[E]", "f32[E,N]")
UNSORTED = (*PLAIN, "s32[T]", "f32[S,N]")
BACK = (*ROUTED[:4], "s32[T]", "f32[S,N]", "bf16[S,N]")
SCALED = (*PLAIN, "f32[T]")
NARROW = ("bf16[S,K]", "s32[T]", "s8[E,N,K]", "s32[E]", "bf16[E,N]")
BY_GROUP = (*PLAIN, "f32[E]")
F32 = ("f32[S,K]", "s32[T]", "f32[E,K,N]", "s32[E]", "f32[T]")
FIRST = replace(SHALLOW, roles=Roles("cooperative", 40, 232, "before"))
COMPUTING = roles((128, 64, 64), (64, 64), registers=152)

# name -> (function, signature, schedule, sizes of a run)
KERNELS = {
    "warps": (layer, LAYER, SCHEDULE, (75, 72, 72)),
    "warps, from registers": (
        gated,
        GATED,
        replace(SCHEDULE, epilogue=Epilogue(through="registers")),
        (75, 72, 72),
    ),
    "warps, along n": (
        transposed,
        TURNED,
        replace(SCHEDULE, raster=Raster("n", 2)),
        (75, 136, 72),
    ),
    "warps, odd rows": (
        product,
        ("bf16[T,K]@2", "bf16[E,K,N]@2", "s32[E]"),
        SCHEDULE,
        (75, 71, 71),
    ),
    "warps, x column-major": (
        product,
        ("bf16[T,K]:col", "bf16[E,K,N]", "s32[E]"),
        SCHEDULE,
        (80, 72, 72),
    ),
    "roles": (layer, LAYER, SHALLOW, (270, 72, 136)),
    "roles, from registers": (
        gated,
        GATED,
        roles((128, 64, 64), (64, 64), through="registers"),
        (270, 72, 136),
    ),
    "roles, along n": (
        product,
        PLAIN,
        replace(SHALLOW, raster=Raster("n", 2)),
        (270, 200, 136),
    ),
    "roles, in turns": (
        transposed,
        TURNED,
        roles((64, 64, 64), (64, 64), "pingpong"),
        (270, 72, 136),
    ),
    "roles, cluster of rows": (
        product,
        PLAIN,
        roles((64, 64, 64), (64, 64), cluster=Cluster(2, 1)),
        (270, 72, 136),
    ),
    "roles, cluster of columns": (
        product,
        PLAIN,
        roles((64, 64, 64), (64, 64), cluster=Cluster(1, 2)),
        (140, 136, 136),
    ),
    "roles, shared sums": (
        product,
        PLAIN,
        roles((64, 64, 64), (64, 64), cluster=Cluster(1, 1, 2)),
        (140, 72, 264),
    ),
    "roles, odd rows": (
        product,
        ("bf16[T,K]@2", "bf16[E,K,N]@2", "s32[E]"),
        roles((64, 64, 64), (64, 64), registers=72),
        (140, 71, 135),
    ),
    "warps, rows by index": (routed, ROUTED, SCHEDULE, (75, 72, 72)),
    "warps, stored by index": (unsorted, UNSORTED, SCHEDULE, (75, 72, 72)),
    "warps, by index and stored by another": (
        there_and_back, BACK, replace(SCHEDULE, epilogue=Epilogue(through="registers")),
        (75, 72, 72),
    ),
    "warps, a computed operand": (scaled_rows, SCALED, SCHEDULE, (75, 72, 72)),
    "warps, rows by numbers of groups": (scaled_by_group, BY_GROUP, SCHEDULE, (75, 72, 72)),
    "warps, f32 by index": (
        in_f32, F32, replace(SCHEDULE, tile=Tile(CtaTile(64, 64, 32), WarpTile(32, 32))),
        (75, 72, 72),
    ),
    "roles, rows by numbers of groups": (scaled_by_group, BY_GROUP, COMPUTING, (270, 72, 136)),
    "roles, rows by index, made first": (routed, ROUTED, FIRST, (270, 72, 136)),
    "roles, a computed operand, made first": (scaled_rows, SCALED, FIRST, (270, 72, 136)),
    "roles, computed matrices, made first": (
        narrow_matrices, NARROW, replace(FIRST, tile=Tile(CtaTile(64, 64, 64), WarpTile(64, 64))),
        (140, 72, 136),
    ),
    "roles, made first and stored by index": (there_and_back, BACK, FIRST, (270, 72, 136)),
    "warps, computed matrices": (narrow_matrices, NARROW, SCHEDULE, (75, 72, 72)),
    "roles, rows by index": (routed, ROUTED, COMPUTING, (270, 72, 136)),
    "roles, a pair of rows by index": (
        routed_pair, PAIR, roles((64, 32, 64), (64, 32), registers=152), (140, 72, 136),
    ),
    "roles, rows by index, in turns": (
        routed, ROUTED, roles((64, 64, 64), (64, 64), "pingpong", registers=152), (270, 72, 136),
    ),
    "roles, stored by index": (unsorted, UNSORTED, SHALLOW, (270, 72, 136)),
    "roles, by index and stored by another": (
        there_and_back, BACK, COMPUTING, (270, 72, 136),
    ),
    "roles, a computed operand": (scaled_rows, SCALED, COMPUTING, (270, 72, 136)),
    "roles, computed matrices": (
        narrow_matrices, NARROW, roles((64, 64, 64), (64, 64), registers=152), (140, 72, 136),
    ),
    "roles, a product beside": (
        beside,
        (*PLAIN, "bf16[K,N]"),
        roles((64, 64, 64), (64, 64)),
        (140, 72, 136),
    ),
}  # fmt: skip
# As parts of the rows that there are: a group without rows, one with nearly all, unsorted and
# negative ends, ends behind the last row, rows without a group.
TABLES = {
    "an empty group, rows of none": (0.1, 0.1, 0.55, 0.96),
    "one huge group": (0.0, 0.0, 1.0, 1.0),
    "unsorted, negative": (-0.4, 0.6, 0.2, 0.9),
    "behind the last row": (0.3, 0.31, 0.32, 7.5),
    "no rows": (0.0, -1.0, 0.0, 0.0),
}


@cache
def kernel(name: str) -> Kernel:
    function, signature, schedule, (t, n, k) = KERNELS[name]
    arch = "sm_90a" if schedule.specialised else "sm_80"
    sizes = {"T": t, "N": n, "K": k, "E": 4, "S": t + 13}
    sizes = {name: sizes[name] for name in pg.fuse(function).program(*signature).sizes}
    return pg.fuse(function).compile(*signature, arch=arch, sizes=sizes, schedule=schedule)


@dataclass(frozen=True)
class Call:
    operands: tuple
    arrays: dict
    wanted: np.ndarray


def call(made: Kernel, sizes: tuple[int, int, int], table: tuple[float, ...]) -> Call:
    t, n, k = sizes
    known = {"T": t, "N": n, "K": k, "E": len(table), "S": t + 13}
    random = np.random.default_rng(sizes)
    operands = []
    for tensor in made.program.operands:
        shape = tuple(d if isinstance(d, int) else known[d] for d in tensor.dims)
        values = random.integers(-2, 3, shape)
        if tensor.name == made.program.ends:
            values = np.array([round(part * t) for part in table])
        if tensor.name in made.program.gathered:  # all apart, and some that are no rows
            values = random.permutation(np.arange(-2, known["S"] + 2))[:t]
        array = values.astype(np.float32).astype(tensor.dtype.numpy)
        order = tensor.order
        operands.append(array if order == tuple(range(len(order))) else np.asfortranarray(array))
    arrays = {x.name: a for x, a in zip(made.program.operands, operands, strict=True)}
    (wanted,) = evaluate(made.program, arrays, known)
    return Call(tuple(operands), arrays, wanted)


def right(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal, and NaN, as it was before, in the rows that have no group."""
    return np.array_equal(found.astype(np.float32), wanted.astype(np.float32), equal_nan=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", KERNELS)
def test_every_way_is_right_for_every_table(name):
    made = kernel(name)
    source = few_blocks(made.passes.source)
    for table in TABLES.values():
        given = call(made, KERNELS[name][3], table)
        done = emulate(made.program, source, made.ptx, given.operands)
        assert not done.report.findings, (table, done.report)
        assert right(done.results, given.wanted), table


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["warps", "roles"])
def test_more_groups_than_a_warp_has_lanes(name):
    made = kernel(name)
    source = few_blocks(made.passes.source)
    random = np.random.default_rng(0)
    for count in (31, 32, 33, 64, 70):
        cuts = np.sort(random.integers(0, 97, count)) / 100
        for table in (tuple(cuts), (*(0.0,) * (count - 1), 1.0), tuple(random.permutation(cuts))):
            given = call(made, KERNELS[name][3], table)
            done = emulate(made.program, source, made.ptx, given.operands)
            assert not done.report.findings, (count, done.report)
            assert right(done.results, given.wanted), (count, table)


def test_rows_without_a_group_are_meant_to_be_left():
    made = kernel("warps")
    given = call(made, KERNELS["warps"][3], TABLES["an empty group, rows of none"])
    assert np.isnan(given.wanted[72:].astype(np.float32)).all()
    assert np.isfinite(given.wanted[:72].astype(np.float32)).all()


@pytest.mark.parametrize("name", ["warps", "warps, odd rows", "roles", "roles, odd rows"])
def test_sentinels_around_the_results_and_in_rows_of_none_stay(name):
    """The results are a window of a larger array: the machine refuses what is written around it."""
    made = kernel(name)
    source = few_blocks(made.passes.source)
    given = call(made, KERNELS[name][3], TABLES["an empty group, rows of none"])
    rows, columns = given.wanted.shape
    big = np.full((rows + 2, columns + 16 + -columns % 8), 7.0, given.wanted.dtype)
    launch = launch_of(made.program, source, given.operands)
    arguments = list(launch.arguments)
    names = [argument.name for argument in source.arguments]
    arguments[names.index("y0")] = big[1:-1, 8 : columns + 8]
    arguments[names.index("y0_stride0")] = np.int32(big.shape[1])
    report = run(made.ptx, replace(launch, arguments=tuple(arguments)))
    assert not report.findings, report
    arrays = [a.tensor for a in source.arguments if a.kind in ("pointer", "map")]
    found = dict(zip(arrays, report.arrays, strict=True))["y0"]
    known = np.isfinite(given.wanted.astype(np.float32)).all(axis=1)
    assert 0 < known.sum() < rows
    np.testing.assert_array_equal(found[known], given.wanted[known])
    assert (found[~known] == 7.0).all()


# kernel, fault, edits of the CUDA text
FAULTS = [
    (
        "warps",
        "rows end where the array does",
        [("if (row < rows_of_group) {", "if (row < T - rows_before) {")],
    ),
    (
        "warps",
        "the wrong matrix",
        [("w + (long long)z0 * w_stride0", "w + (long long)min(z0, 1) * w_stride0")],
    ),
    (
        "warps",
        "rows count from the first of the array",
        [("x + (long long)rows_before * x_stride0 + ", "x + ")],
    ),
    (
        "warps",
        "coordinates count from the first of the group",
        [("(float)((rows_before + row))", "(float)(row)")],
    ),
    (
        "roles",
        "rows end where the array does",
        [("to_row < rows_of_group", "to_row < T - rows_before")],
    ),
    (
        "roles",
        "boxes of x count from the first of the array",
        [(", rows_before + b_m", ", b_m")],
    ),
    ("roles", "the wrong matrix", [("z0 = groups.group,", "z0 = min(groups.group, 1),")]),
    (
        "roles",
        "the last tile of a group is left out",
        [("tiles = (rows + tile - 1) / tile;", "tiles = rows / tile;")],
    ),
    (
        "warps, rows by index",
        "numbers of rows count from the first of the group",
        [("row_at(rows, (rows_before + safe_row)", "row_at(rows, (safe_row)")],
    ),
    (
        "roles, rows by index",
        "numbers of rows count from the first of the group",
        [("row_at(rows, (rows_before + safe_row)", "row_at(rows, (safe_row)")],
    ),
    (
        "roles, rows by index",
        "numbers of rows count from the first of the block",
        [("row_at(rows, (rows_before + safe_row)", "row_at(rows, (safe_row - b_m * 128)")],
    ),
    (
        "warps, stored by index",
        "places of rows count from the first of the group",
        [("stored_row(rows, (rows_before + row)", "stored_row(rows, (row)")],
    ),
    (
        "warps, a computed operand",
        "coordinates count from the first of the group",
        [("(float)((rows_before + from_row))", "(float)(from_row)")],
    ),
    (
        "roles, computed matrices",
        "the numbers of another matrix",
        [("z0 * s_stride0", "min(z0, 1) * s_stride0")],
    ),
    ("roles", "ends are not clipped", [("rows = max(min(end, most) -", "rows = max(end -")]),
    ("roles", "ends go back", [("- before, 0);", "- before, -9);")]),
]


@pytest.mark.parametrize(("name", "fault", "edits"), one_in(2, FAULTS))
def test_faults_in_groups_are_found(name, fault, edits):
    made = kernel(name)
    text = edited(made.source, edits)
    source = few_blocks(replace(made.passes.source, text=text))
    ptx = ptx_of(source)
    found = False
    for table in TABLES.values():
        given = call(made, KERNELS[name][3], table)
        done = emulate(made.program, source, ptx, given.operands)
        found = found or bool(done.report.findings) or not right(done.results, given.wanted)
    assert found, fault


@pytest.mark.parametrize("name", ["warps", "roles"])
def test_check_runs_groups(name):
    report = kernel(name).check()
    assert report.ok
    assert report.comparison == "equal to NumPy, bit for bit"
    claims = "\n".join(map(str, report.proofs))
    assert "every row of a group is in exactly one of its tiles, none of them empty" in claims
