"""`Kernel.check`: the access profile, sizes of another alignment class, and sizes too large."""

from __future__ import annotations

import pytest
from generated import kernel

import polygen as pg
from polygen.check import CheckReport, profile_lines
from polygen.cli.commands import check_json
from polygen.errors import PolygenError
from polygen.machine import AccessProfile
from polygen.small_problem import runnable_sizes


def test_the_report_has_the_access_profile():
    report = kernel("nn").check()
    assert report.ok and report.notes == ()
    assert {row.space for row in report.profile} == {"shared", "global"}
    shared = [row for row in report.profile if row.space == "shared"]
    total = sum(row.ideal for row in shared)
    assert total == sum(row.actual for row in shared) > 100, "no bank conflicts"
    assert f"shared memory: {total} wavefronts, ideal {total}: the ideal" in str(report)
    assert "global memory: " in str(report)
    json = check_json(report)
    assert len(json["profile"]) == len(report.profile) and json["notes"] == []
    assert set(json["profile"][0]) == {"where", "space", "executions", "actual", "ideal"}


def test_the_costliest_instructions_come_first():
    rows = tuple(AccessProfile(f"line {i}", "shared", 1, 4 + i, 4) for i in range(9))
    lines = profile_lines(rows)
    assert lines[0] == "shared memory: 72 wavefronts, ideal 36: 2 times the ideal"
    assert lines[1] == "  12 wavefronts, ideal 4, in 1 warps: line 8"
    assert lines[-1] == "  … and 2 more" and len(lines) == 8


@pytest.mark.parametrize("sizes", [{"K": 33}, {"N": 41, "K": 47}, {"M": 5, "N": 7, "K": 3}])
def test_sizes_of_another_alignment_class_run_their_variant(sizes):
    report = kernel("nt").check(sizes)
    assert report.ok, str(report)
    assert report.comparison == "equal to NumPy, bit for bit"
    assert dict(report.sizes).items() >= sizes.items()
    assert any("outside the alignment class" in note for note in report.notes)
    assert f"note: {report.notes[0]}" in str(report)


def test_a_size_that_fits_has_no_note():
    assert kernel("nt").check({"M": 33, "K": 40}).notes == ()


def test_a_size_too_large_becomes_one_with_the_same_boundaries():
    plan = kernel("nt").passes.plan
    asked = {"M": 100_003, "N": 8200, "K": 4104}
    chosen, note = runnable_sizes(plan, asked)
    for name, tile in zip(("M", "N", "K"), plan.tiles.cta, strict=True):
        assert chosen[name] % tile == asked[name] % tile
        assert chosen[name] >= 2 * tile
    assert chosen["K"] // plan.tiles.cta[2] == plan.schedule.pipeline.stages + 1
    assert "M = 100003, N = 8200, K = 4104 is too large" in note
    report = kernel("nt").check(asked)
    assert report.ok and dict(report.sizes) == chosen and report.notes == (note,)


def test_only_what_is_large_becomes_smaller():
    plan = kernel("nt").passes.plan
    assert runnable_sizes(plan, {"M": 8, "N": 72, "K": 4096}) == ({"M": 8, "N": 72, "K": 4096}, "")
    chosen, _ = runnable_sizes(plan, {"M": 8, "N": 1 << 20, "K": 4096})
    assert chosen["M"] == 8


def test_large_and_unaligned_sizes_say_both():
    report = kernel("nt").check({"M": 70_001, "N": 8201, "K": 4101})
    assert report.ok and len(report.notes) == 2
    assert dict(report.sizes)["M"] % 32 == 70_001 % 32


def test_a_dim_that_is_two_extents():
    @pg.fuse
    def square(x, w):
        return x @ w

    made = square.compile("f16[N,N]", "f16[N,N]", arch="sm_80", sizes={"N": 256})
    chosen, note = runnable_sizes(made.passes.plan, {"N": 20_008})
    assert note and all(chosen["N"] % t == 20_008 % t for t in made.passes.plan.tiles.cta)
    assert chosen["N"] < 2048


def test_unknown_sizes_are_refused():
    with pytest.raises(PolygenError, match="Z"):
        kernel("nt").check({"Z": 3})


def test_notes_and_profile_are_optional():
    report = CheckReport((), (), "equal", ())
    assert report.ok and str(report) == "ran the PTX with : equal\nno findings"
