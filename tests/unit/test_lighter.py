"""A given schedule whose kernel spills: variants take one near it, and errors name one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen import described
from polygen.errors import CompileError, SpillError
from polygen.schedule.lighter import difference, lighter
from polygen.schedule.load import load_schedule
from polygen.schedule.model import Schedule

SCHEDULES = Path(__file__).resolve().parents[2] / "schedules"
# Copies of elements of two bytes go through registers, beside 128 sums and two sets of fragments.
GIVEN = SCHEDULES / "sm_80" / "128x128x32_w64x64_s4.toml"
SIZES = {"M": 4096, "N": 4096, "K": 4096}


def compiled(alignment: str, schedule: Path | Schedule = GIVEN) -> pg.Kernel:
    layer = pg.fuse(lambda x, w, b: pg.gelu(x @ w.T + b), name="layer")
    signature = (f"bf16[M,K]{alignment}", f"bf16[N,K]{alignment}", "bf16[N]")
    return layer.compile(*signature, arch="sm_80", schedule=schedule, sizes=SIZES)


def test_a_variant_takes_a_schedule_near_the_given_one():
    kernel = compiled("")
    random = np.random.default_rng(7)
    x, w, b = (
        random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16)
        for shape in ((130, 67), (136, 67), (136,))
    )
    variant = kernel.fitting(x, w, b)
    assert variant is not kernel
    given, taken = load_schedule(GIVEN), variant.schedule
    assert taken.pipeline.copies == "spread" != given.pipeline.copies
    assert taken == replace(given, pipeline=taken.pipeline)
    assert variant.resources.spill_store_bytes == variant.resources.spill_load_bytes == 0
    assert variant.sums.text == kernel.sums.text
    assert "pipeline.copies" in variant.schedule_origin and "spills" in variant.schedule_origin
    assert kernel.schedule == given  # what was asked for is what arrays that fit get
    assert variant.check({"M": 130, "N": 136, "K": 67}).ok


def test_a_kernel_that_was_asked_for_is_refused_with_a_schedule_that_compiles():
    with pytest.raises(SpillError, match=r'With pipeline\.copies = "spread" it compiles') as caught:
        compiled("@2").artifact  # noqa: B018
    assert "spill" in caught.value.log
    given = load_schedule(GIVEN)
    named = replace(given, pipeline=replace(given.pipeline, copies="spread"))
    assert compiled("@2", named).resources.spill_store_bytes == 0


def test_where_no_schedule_near_it_compiles_the_error_is_the_first(monkeypatch):
    tried = []

    def spills(source):
        tried.append(source.text)
        raise SpillError("it spills", nearest="Do something else")

    monkeypatch.setattr(described, "compile_cached", spills)
    with pytest.raises(SpillError, match="Do something else"):
        compiled("@2").artifact  # noqa: B018
    assert len(tried) == len(set(tried)) > 3  # nothing is compiled twice


def test_other_mistakes_of_the_compiler_are_not_gone_round(monkeypatch):
    def refuses(_):
        raise CompileError("no such instruction")

    monkeypatch.setattr(described, "compile_cached", refuses)
    with pytest.raises(CompileError, match="no such instruction"):
        compiled("@2").artifact  # noqa: B018


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("sm_80/128x128x32_w64x64_s4.toml", 'pipeline.copies = "spread"'),
        ("sm_90a/cooperative_128x256x64.toml", "launch.realign = true"),
    ],
)
def test_schedules_near_one_are_others_and_keep_the_tile_of_blocks(path, first):
    given = load_schedule(SCHEDULES / path)
    near = list(lighter(given))
    assert difference(given, near[0]) == first
    assert len(set(near)) == len(near) > 3 and given not in near
    for one in near:
        assert (one.tile.cta, one.cluster, one.loops) == (
            given.tile.cta,
            given.cluster,
            given.loops,
        )
        assert difference(given, one)
