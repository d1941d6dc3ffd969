"""A given schedule whose kernel spills: variants take one near it, and errors name one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from random_products import compile_products, product_program
from random_programs import operands_of, stored_numpy
from random_prologues import compile_fragments, fragment_program

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


@pytest.mark.parametrize(
    ("seed", "fields"),
    [
        (40075, "roles.consumer_registers = 232"),
        (40015, "pipeline.in_flight = 0, roles.consumer_registers = 232"),
    ],
)
def test_consumers_that_make_fragments_of_ragged_rows_get_the_registers_of_their_block(
    seed, fields
):
    """Of rows that end anywhere, elements are read and made one by one."""
    case = fragment_program(seed, 70)
    kernel = compile_fragments(case, "sm_90a")
    given = operands_of(case, kernel)
    operands = [stored_numpy(*one[:3]) if isinstance(one, tuple) else one for one in given]
    variant = kernel.fitting(*operands)
    assert difference(kernel.schedule, variant.schedule) == fields
    assert variant.resources.spill_store_bytes == variant.resources.spill_load_bytes == 0
    assert variant.sums.text == kernel.sums.text
    assert fields in variant.schedule_origin


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


def three_products() -> pg.Kernel:
    """Five operands whose elements are copied one by one."""
    return compile_products(product_program(40079, 70), "sm_89")


@pytest.mark.slow
def test_where_all_choices_spill_one_near_the_best_is_taken():
    kernel = three_products()
    assert kernel.resources.spill_store_bytes == kernel.resources.spill_load_bytes == 0
    assert "as shipped, the kernel spills" in kernel.schedule_origin
    assert kernel.check().ok


@pytest.mark.parametrize("spread", [True, False])
def test_a_choice_is_replaced_by_one_near_it_where_no_other_is_left(spread, monkeypatch):
    """As if all schedules spilled that do not bring a tile in parts, or all that there are."""
    compile_cached, tried = described.compile_cached, []

    def spills(source):
        tried.append(source.text)
        if spread and 'copies = "spread"' in source.text:
            return compile_cached(source)
        raise SpillError("it spills", nearest="Do something else")

    monkeypatch.setattr(described, "compile_cached", spills)
    if spread:
        kernel = three_products()
        assert kernel.schedule.pipeline.copies == "spread"
        assert 'pipeline.copies = "spread": as shipped, it spills' in kernel.schedule_origin
    else:
        with pytest.raises(SpillError, match=r"spills\. No shipped schedule has registers enough"):
            three_products()
    assert len(tried) == len(set(tried)) > 3


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
        (
            "sm_90a/cooperative_128x8x128_w64_s5_registers_f4_b2_exchanged_made.toml",
            "roles.consumer_registers = 232",
        ),
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
