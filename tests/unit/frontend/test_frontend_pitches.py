"""Pitches among the sizes: how far rows lie apart, and what follows for alignments and choices."""

import pytest
from matrix import case

import polygen as pg
from polygen.decide import candidates
from polygen.frontend.pitches import pitches, row_length, row_step
from polygen.hardware.device import device

SIZES = {"M": 2048, "N": 4096, "K": 1024}
H200 = device("sm_90a")


def product(**sizes):
    fused = pg.fuse(lambda x, w, r: x @ w.T + r, name="product")
    return fused.compile(
        "bf16[M,K]", "bf16[N,K]", "bf16[M,N]", arch="sm_90a", sizes={**SIZES, **sizes}
    )


def test_arrays_with_rows_have_pitches():
    program = case("rows", "tn", "bf16", "bias_residual_relu").kernel().program
    assert list(pitches(program)) == ["x.pitch", "w.pitch", "r.pitch", "y0.pitch"]
    x = program.inputs[0]
    assert row_length(x, {"M": 7}) == row_step(x, {"M": 7}) == 7
    assert (row_length(x, {}), row_step(x, {}), row_step(x, {"x.pitch": 9})) == (None, None, 9)


@pytest.mark.parametrize(
    ("sizes", "alignment", "astride"),
    [
        ({}, 16, (0, 0)),
        ({"x.pitch": 1032}, 16, (7 / 8, 0)),
        ({"x.pitch": 1040, "w.pitch": 1056}, 16, (3 / 4, 1 / 2)),
        ({"x.pitch": 1088}, 16, (0, 0)),
        ({"x.pitch": 1028}, 8, (15 / 16, 0)),
        ({"K": 1023}, 2, (63 / 64, 63 / 64)),
        ({"K": 1023, "x.pitch": 1024, "w.pitch": 1024}, 16, (0, 0)),
        ({"K": 16}, 16, (0, 0)),  # four rows in each line
        ({"K": 24}, 16, (1 / 4, 1 / 4)),
    ],
)
def test_pitches_decide_alignments_and_what_is_chosen_for(sizes, alignment, astride):
    """Padding makes rows of any length whole copies again; or spreads them over more lines."""
    made = product(**sizes)
    assert made.program.inputs[0].alignment == alignment
    problem, _ = candidates(made.program, H200, {**SIZES, **sizes})
    assert (problem.astride, problem.access_bytes[0]) == (astride, alignment)
    assert problem.access_bytes[1] == made.program.inputs[1].alignment
    assert (problem.threaded == (0, 0)) == (alignment == 16)  # what tensor maps take


def test_what_was_measured_without_gaps_is_no_offer_for_rows_with_gaps():
    usual = product(M=4096)
    assert "measured fastest" in usual.schedule_origin
    apart = product(M=4096, **{"x.pitch": 1032, "w.pitch": 1032})
    assert "by the cost model" in apart.schedule_origin
    assert apart.schedule.cluster.m * apart.schedule.cluster.n > 1


def test_a_check_runs_on_rows_with_gaps():
    """On the machine, where what lies between the rows is not-a-number."""
    made = product(K=1023, **{"x.pitch": 1024, "w.pitch": 1024})
    sizes = {"M": 131, "N": 96, "K": 131, "x.pitch": 136, "w.pitch": 144, "r.pitch": 104}
    report = made.check(sizes)
    assert report.ok, str(report)
    assert dict(report.sizes)["w.pitch"] == 144
    assert report.comparison == "equal to NumPy, bit for bit"
    assert not report.notes
    with pytest.raises(pg.PolygenError, match=r"x.pitch = 8 .*would overlap"):
        made.check({"x.pitch": 8})
