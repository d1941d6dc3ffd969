"""Whole kernels of products that share sums on the PTX machine: exact data, every form."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from rest_samples import form, low_rank, signature, wanted, whole_numbers

import polygen as pg
from polygen.cli.accuracy import expected
from polygen.emulated import emulate
from polygen.schedule.model import Schedule
from polygen.small_problem import few_blocks


def _run(
    rank: int,
    sizes: tuple[int, int, int],
    schedule: Schedule | str,
    types: tuple[str, ...] = (),
    dtype: object = ml_dtypes.bfloat16,
) -> None:
    arrays = whole_numbers(rank, rank, *sizes, dtype)
    kernel = pg.fuse(low_rank).compile(
        *(types or signature(rank)), arch="sm_90a", schedule=schedule
    )
    if types:  # columns adjacent in memory
        arrays = [np.asfortranarray(one) if ":col" in t else one
                  for one, t in zip(arrays, types, strict=True)]  # fmt: skip
    done = kernel.emulation(*arrays)
    assert done.report.findings == ()
    np.testing.assert_array_equal(done.results.astype(float), wanted(arrays).astype(float))


def test_results_are_the_programs() -> None:
    _run(8, (70, 72, 40), form())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "sizes", "name"),
    [
        (16, (130, 136, 136), "pingpong"),
        (64, (200, 264, 200), "cluster"),
        (24, (70, 264, 72), "by columns"),
        (128, (130, 72, 136), "cooperative"),
        (16, (129, 130, 64), "registers"),
    ],
)
def test_results_are_the_programs_in_every_form(
    rank: int, sizes: tuple[int, int, int], name: str
) -> None:
    _run(rank, sizes, form(name))


@pytest.mark.slow
def test_results_are_the_programs_with_what_is_chosen() -> None:
    _run(16, (136, 264, 200), "auto")
    _run(8, (72, 72, 136), form(), tuple(f"{t}:col" for t in signature(8)))
    _run(8, (66, 72, 72), form(), signature(8, "f16"), np.float16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("cooperative", 4),
        ("pingpong", 1),
        ("pingpong", 2),
        ("three in turns", 1),
        ("three in turns", 3),
        ("three in turns", 6),
    ],
)
def test_blocks_of_many_tiles_with_short_sums(name: str, run: int) -> None:
    kernel = pg.fuse(low_rank).compile(*signature(16), arch="sm_90a", schedule=form(name, run))
    arrays = whole_numbers(1, 16, 150, 712, 40)
    done = emulate(kernel.program, few_blocks(kernel.passes.source), kernel.ptx, tuple(arrays))
    assert done.report.findings == ()
    np.testing.assert_array_equal(done.results.astype(float), wanted(arrays).astype(float))


@pytest.mark.slow
def test_numbers_work_behind_and_between_products() -> None:
    @pg.fuse
    def layer(x, w, a, b, c, s):
        return pg.silu(x @ w.T + c + pg.relu(x @ a.T) @ b.T * s)

    types = (*signature(24), "bf16[N]", "f32")
    kernel = layer.compile(*types, arch="sm_90a", schedule=form())
    rng = np.random.default_rng(3)
    shapes = ((140, 136), (136, 136), (24, 136), (136, 24), (136,))
    arrays = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    done = kernel.emulation(*arrays, 0.3)
    given = dict(zip("xwabcs", (*arrays, 0.3), strict=True))
    (one,) = expected(layer.program(*types), given, {"M": 140, "N": 136, "K": 136}, 16)
    assert done.report.findings == () and one.compare(np.asarray(done.results))[2] == 0
    assert np.median(one.allowed) < 0.5  # of numbers up to a hundred
    report = kernel.check(sizes={"M": 136, "N": 136, "K": 136})
    assert report.ok, str(report)


@pytest.mark.slow
def test_matrices_of_a_batch() -> None:
    types = ("bf16[B,M,K]", "bf16[N,K]", "bf16[16,K]", "bf16[N,16]")
    kernel = pg.fuse(low_rank).compile(*types, arch="sm_90a", schedule=form())
    x, w, a, b = whole_numbers(5, 16, 2 * 70, 72, 72)
    done = kernel.emulation(x.reshape(2, 70, 72), w, a, b)
    assert done.report.findings == ()
    found = done.results.reshape(140, 72).astype(float)
    np.testing.assert_array_equal(found, wanted([x, w, a, b]).astype(float))
