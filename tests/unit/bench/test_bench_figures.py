"""Ratios, limits, means, losses and changes."""

from __future__ import annotations

import copy

import pytest
from bench_samples import COMMITTED, GATE, GELU, MM, RESIDUAL, SMALL, line, sample

from polygen.bench import figures, record
from polygen.bench.rows import Row


def by_key(made):
    return {line["key"]: line for line in made["rows"]}


def test_ratios_name_the_fastest_library():
    rows = by_key(sample())
    assert figures.ratio(rows[RESIDUAL.key], "separate") == 2.4
    assert figures.best(rows[RESIDUAL.key]) == "inductor"
    assert figures.best_ratio(rows[RESIDUAL.key]) == 1.2
    assert figures.best_ratio(rows[RESIDUAL.key], ("separate", "cublaslt")) == 1.5
    assert figures.best_ratio(rows[MM.key]) == 0.9
    assert figures.tflops(rows[MM.key]) == pytest.approx(2 * 4096**3 / 200 / 1e6)
    assert figures.ratio(rows[SMALL.key], "inductor") is None
    assert figures.best(rows[GATE.key]) is None and not figures.is_measured(rows[GATE.key])
    assert figures.called(rows[MM.key], "separate") == "cuBLAS"


def test_the_limit_is_the_larger_of_product_and_copy():
    made = sample()
    product = figures.limit(made, by_key(made)[MM.key])
    assert product is not None and product.bound == "product"
    assert product.microseconds == pytest.approx(2 * 4096**3 / 800e12 * 1e6)
    assert figures.share_of_limit(made, by_key(made)[MM.key]) == pytest.approx(
        product.microseconds / 200
    )
    few = line(Row("silu_mul", 1, 14336, 4096), 40, cublaslt=50)
    copy_bound = figures.limit(made, few)
    assert copy_bound is not None and copy_bound.bound == "copy"
    size = 2 * (4096 + 14336 * 4096 + 2 * 14336)
    assert copy_bound.microseconds == pytest.approx(size / 4000e9 * 1e6)
    half = line(Row("mm", 4096, 4096, 4096, "f16"), 200, cublaslt=190)
    rate = figures.limit(made, half)
    assert rate is not None and rate.microseconds == pytest.approx(2 * 4096**3 / 700e12 * 1e6)
    del made["runs"][0]["ceilings"]
    assert figures.limit(made, few) is None and figures.share_of_limit(made, few) is None


def test_means_leave_errors_out_and_count_separate_kernels_for_fused_rows_alone():
    made = sample()
    found = figures.means(made, made["rows"])
    best = found["the best library"]
    gelu = 150 / 99.96
    assert best.rows == 4 and best.lost == 1
    assert best.geomean == pytest.approx((0.9 * 1.2 * gelu * 1.2) ** 0.25)
    assert best.least == (0.9, MM.key) and best.largest == (pytest.approx(gelu), GELU.key)
    assert found["the best library, plain products"].geomean == pytest.approx(0.9)
    assert found["the best library, fused"].rows == 3
    separate = found["cuBLAS + separate"]
    assert separate.rows == 3 and separate.least == (2.4, RESIDUAL.key)
    assert separate.geomean == pytest.approx((2.4 * 300 / 99.96 * 2.5) ** (1 / 3))
    assert found["Inductor"].rows == 3 and found["the limit"].rows == 4 and "Triton" not in found
    assert figures.means(made, []) == {}


def test_limits_count_batches_and_all_products():
    made = sample()
    gated = line(Row("gated", 4096, 14336, 4096), 1300, separate=1500, inductor_joined=1400)
    found = figures.limit(made, gated)
    assert found is not None and found.bound == "product"
    assert found.microseconds == pytest.approx(2 * 2 * 4096 * 14336 * 4096 / 800e12 * 1e6)
    assert figures.tflops(gated) == pytest.approx(4 * 4096 * 14336 * 4096 / 1300 / 1e6)
    assert figures.best(gated) == "inductor_joined" and figures.is_fused(gated)
    assert figures.called(gated, "inductor_joined") == "Inductor, joined"
    batch = line(Row("bmm_nn", 1024, 1024, 128, batch=64), 60, separate=70)
    found = figures.limit(made, batch)
    assert found is not None and found.bound == "copy" and not figures.is_fused(batch)
    moved = 2 * 64 * (1024 * 128 * 2 + 1024 * 1024)
    assert found.microseconds == pytest.approx(moved / 4000e9 * 1e6)
    two = line(Row("qkv", 4096, 4096, 4096), 400, separate=380)
    assert figures.is_fused(two) and figures.called(two, "separate") == "cuBLAS + separate"


def test_losses_come_worst_first():
    made = sample()
    worse = line(Row("mm", 512, 512, 512), 20, separate=10)
    assert figures.losses([*made["rows"], worse]) == [worse, made["rows"][0]]


def test_a_change_needs_intervals_apart_and_two_per_cent():
    old, new = sample(), copy.deepcopy(sample())
    new["rows"] = [
        line(MM, 206, separate=185.4, cublaslt=195.7, inductor=60),  # slower; so is the card
        line(RESIDUAL, 101.5, separate=240),  # apart, but by less than 2 %
        line(GELU, 80, separate=300),
        line(GATE, 100, separate=300),  # an error before
    ]
    found = {change.key: change for change in figures.changes(old, new)}
    assert list(found) == [MM.key, RESIDUAL.key, GELU.key]
    assert [c.verdict for c in found.values()] == ["slower", "same", "faster"]
    assert found[MM.key].change == pytest.approx(0.03)
    assert found[MM.key].card == pytest.approx(0.03)  # not counting the compiled code
    wide = copy.deepcopy(new)
    wide["rows"][0]["times"]["polygen"]["ci"] = [199.0, 213.0]
    assert figures.changes(old, wide)[0].verdict == "same"
    assert {c.verdict for c in figures.changes(old, old)} == {"same"}


def test_the_committed_record_has_the_figures_that_were_published_from_it():
    made = record.load(COMMITTED)
    rows = [line for line in made["rows"] if "hopper" in line["suites"]]
    found = figures.means(made, rows)
    fused, plain = found["cuBLAS + separate"], found["the best library, plain products"]
    assert fused.rows == 64 and fused.geomean == pytest.approx(1.622, abs=5e-4)
    assert fused.largest[0] == pytest.approx(2.985, abs=5e-4)
    assert plain.rows == 16 and plain.geomean == pytest.approx(1.0037, abs=5e-5)
    assert plain.least == (pytest.approx(0.9573, abs=5e-5), "mm bf16 3000x3000x3000")
    assert len(figures.losses(rows)) == 21 and len(figures.losses(made["rows"])) == 45


@pytest.mark.parametrize(
    ("ops", "geomean", "least"),
    [
        (("bias_gelu", "bias_relu"), 1.035, 0.966),
        (("bias_residual_relu", "bias_silu_mul"), 1.131, 0.961),
    ],
)
def test_the_committed_record_has_the_figures_of_fused_kernels(ops, geomean, least):
    lines = [x for x in record.load(COMMITTED)["rows"] if "hopper" in x["suites"]]
    libraries = ("cublaslt", "inductor")
    found = figures.mean(
        [x for x in lines if x["op"] in ops], lambda one: figures.best_ratio(one, libraries)
    )
    assert found.rows == 32 and found.geomean == pytest.approx(geomean, abs=1e-3)
    assert found.least[0] == pytest.approx(least, abs=1e-3)


def test_derived_figures_are_plain_values():
    rows = figures.derived(sample())
    assert rows[1]["ratio"] == {"separate": 2.4, "cublaslt": 1.5, "inductor": 1.2}
    assert rows[1]["best"] == "inductor" and rows[1]["bound"] == "product"
    assert "ratio" not in rows[3]


def test_attention_is_plotted_and_reported_beside_its_libraries():
    from polygen.bench import plots, report

    made, row = sample(), Row("attention", 4096, 4096, 128, batch=64)
    made["rows"].append(line(row, 800, ("attention",), cudnn=820, flash=1500))
    data = plots.bars(made, "attention")
    assert data["ratios"] == {"cudnn": [1.025], "flash": [1.875]}
    assert figures.tflops(made["rows"][-1]) == pytest.approx(4 * 64 * 4096**2 * 128 / 800 / 1e6)
    assert "attention" not in {point["op"] for point in plots.fusion(made)["points"]}
    assert "cuDNN" in report.page(made) and row.key in report.page(made)
