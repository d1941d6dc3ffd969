"""Products that go on with the sums of another, and are refused: what, and what would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rest_samples import form, low_rank, signature

import polygen as pg
from polygen.errors import InvarianceError, PolygenError, ScheduleError, UnsupportedProgram
from polygen.schedule.model import Cluster, Epilogue, Schedule


def _refused(*types: str, error: type[PolygenError] = UnsupportedProgram, **more) -> str:
    with pytest.raises(error) as found:
        pg.fuse(low_rank).compile(*types, single=True, **({"arch": "sm_90a"} | more))
    return str(found.value)


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        ("R", ("has R columns", "Give R as a number")),
        ("136", ("has 136 columns", "at most 128")),
        ("12", ("has 12 columns", "Pad it to 16")),
    ],
)
def test_columns_between_the_products(rank: str, said: tuple[str, ...]) -> None:
    text = _refused("bf16[M,K]", "bf16[N,K]", f"bf16[{rank},K]", f"bf16[N,{rank}]")
    assert all(one in text for one in said), text


def test_targets_and_types_that_take_no_sums() -> None:
    text = _refused(*signature(16, "tf32"))
    assert "in f32" in text and "f16 or bf16" in text
    text = _refused(*signature(16), arch="sm_80")
    assert "goes on with the sums of S0" in text and 'arch="sm_90a" and f16 or bf16' in text


def test_types_that_differ() -> None:
    text = _refused("bf16[M,K]", "bf16[N,K]", "bf16[16,K]", "f16[N,16]")
    assert "operands of types bf16, f16" in text and "one type" in text


def test_rows_that_the_copy_engine_cannot_bring() -> None:
    text = _refused("bf16[M,K]", "bf16[N,K]", "bf16[16,K]", "bf16[N,16]@2")
    assert "the copy engine cannot move it" in text and "aligned rows" in text
    text = _refused("bf16[M,K]@2", "bf16[N,K]", "bf16[16,K]", "bf16[N,16]", error=ScheduleError,
                    schedule=form())  # fmt: skip
    assert "rows start at multiples of 2 bytes" in text and "launch.realign" in text


def test_arrays_between_the_products() -> None:
    with pytest.raises(UnsupportedProgram) as found:
        pg.fuse(lambda x, w, a, b, g: x @ w.T + ((x @ a.T) * g) @ b.T).compile(
            *signature(16), "bf16[16]", arch="sm_90a", single=True
        )
    assert "made of more than" in str(found.value) and "Multiply by the array" in str(found.value)


def test_rows_of_two_arrays() -> None:
    with pytest.raises(UnsupportedProgram) as found:
        pg.fuse(lambda x, w, z, a, b: x @ w.T + (z @ a.T) @ b.T).compile(
            "bf16[M,K]", "bf16[N,K]", "bf16[M,K]", "bf16[16,K]", "bf16[N,16]", arch="sm_90a",
            single=True,
        )  # fmt: skip
    assert "multiply different arrays" in str(found.value)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x, w, a, b: (x @ w.T + (x @ a.T) @ b.T).T, "N"),
        (lambda x, w, a, b: x @ w.T + ((x @ a.T) @ b.T).T, "M"),
    ],
)
def test_sums_that_are_transposed(function, rows: str) -> None:
    with pytest.raises(UnsupportedProgram) as found:
        types = ("bf16[M,K]", f"bf16[{rows},K]", "bf16[16,K]", f"bf16[{rows},16]")
        pg.fuse(function).compile(*types, arch="sm_90a", single=True)
    assert "transposes v" in str(found.value) and "Leave the transposition" in str(found.value)


def test_invariance() -> None:
    text = _refused(*signature(16), invariant=("M",), error=InvarianceError)
    assert "is not proved for all sizes" in text and "Leave invariant out" in text


def test_runs_of_tiles() -> None:
    text = _refused(*signature(16), schedule=form("pingpong", 3), error=ScheduleError)
    assert "raster.run = 3" in text and "Use raster.run = 4" in text
    with pytest.raises(ScheduleError) as found:
        pg.fuse(lambda x, w: x @ w.T).compile(
            *signature(16)[:2], arch="sm_90a", schedule=form(run=2)
        )
    assert "nothing is kept" in str(found.value) and "raster.run = 1" in str(found.value)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("exchange", {"exchange": True}),
        ("cluster.k", {"cluster": Cluster(1, 1, 2)}),
        ("roles.form", {"roles": Schedule().roles, "epilogue": Epilogue("smem")}),
    ],
)
def test_schedules_of_other_products(field: str, changes: dict[str, object]) -> None:
    schedule = replace(form(), **changes)  # type: ignore[arg-type]
    text = _refused(*signature(16), schedule=schedule, error=ScheduleError)
    assert field in text and "which goes on with the sums of S0" in text, text
