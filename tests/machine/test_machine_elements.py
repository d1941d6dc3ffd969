"""Kernels that only fold elements, on the PTX machine, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from stream_samples import COLUMNS, OF_ROWS, ROWS, STREAMS, streamed

import polygen as pg
from polygen.errors import ScheduleError
from polygen.kernel import Kernel


def check(kernel: Kernel) -> None:
    """It is proved, and gives NumPy's results."""
    report = kernel.check()
    assert report.ok, str(report)
    assert "in no register" in kernel.source and "multiply(" not in kernel.source


@pytest.mark.parametrize("name", list(COLUMNS))
def test_columns_and_everything(name: str) -> None:
    for schedule in ("elements_64x256_w16x256_b4", "elements_128x64_w32x64_b4"):
        check(streamed(name, schedule))


@pytest.mark.parametrize("name", list(ROWS))
def test_rows(name: str) -> None:
    for schedule in OF_ROWS:
        check(streamed(name, schedule, rows=True))


@pytest.mark.parametrize("schedule", list(STREAMS))
def test_every_schedule(schedule: str) -> None:
    check(streamed("columns", schedule))


def test_rows_are_of_one_instruction() -> None:
    with pytest.raises(ScheduleError, match=r"tile.warp.m = 16 with a fold of rows .*warp.m = 8"):
        streamed("rows", "elements_64x256_w16x256_b4", rows=True)


def test_what_is_multiplied_has_to_be_zero() -> None:
    with pytest.raises(ScheduleError, match=r"S0, a product of other numbers than 0 .*auto"):
        pg.fuse(lambda x, w: np.sum(x @ w, axis=0), name="f").compile(
            "f16[M,K]", "f16[K,N]", arch="sm_80", schedule=STREAMS["elements_64x256_w16x256_b4"]
        )


def test_a_matrix_that_is_stored_is_none_of_it() -> None:
    """As where elements use results of their own columns, and leave."""
    found = pg.fuse(lambda x, w: (x @ w, pg.softmax(x, axis=0)), name="f").compile(
        "f16[M,K]", "f16[K,N]", arch="sm_80", sizes={"M": 40, "N": 16, "K": 24}
    )
    storing = next(one for one in found.kernels if len(one.program.outputs) and one.program.folds)
    assert not storing.schedule.of_elements
    with pytest.raises(ScheduleError, match="a matrix that is stored"):
        Kernel(storing.program, storing.passes.plan.device, {"M": 40, "K": 24},
               STREAMS["elements_64x256_w16x256_b4"])  # fmt: skip
