"""Timetables on paper: by hand, against ticks of one length, and the committed record."""

from __future__ import annotations

import dataclasses
import json
import runpy
from pathlib import Path

import pytest

from polygen.errors import HardwareDataError
from polygen.hardware.links import Link, link
from polygen.parallel import KNOWN, plan, prove, timetable
from polygen.parallel.simulate import Machine, simulate

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "simulate_pipelines.py"))

AT_ONCE = Link("none", float("inf"), 0.0)
TICKS = tuple((phase, 1.0) for phase in ("forward", "backward", "weights"))
IDEAL = Machine(TICKS, 1.0, 1.0, 1.0, 8, AT_ONCE, AT_ONCE)


@pytest.mark.parametrize("name", KNOWN)
def test_at_ticks_of_one_length_the_bubble_is_the_timetables(name):
    made = plan(prove(timetable(name, 8, 4)), 8)
    found = simulate(made, IDEAL)
    assert found.bubble == pytest.approx(made.bubble)
    assert found.seconds == pytest.approx(made.ticks)
    assert found.bounds == "compute"
    assert dict(found.critical)["compute"] == pytest.approx(found.seconds)


def test_what_is_kept_is_what_was_proved():
    proved = prove(timetable("1f1b", 4, 4))
    machine = dataclasses.replace(IDEAL, message=0.0)
    assert simulate(plan(proved, 8), machine).peak == max(
        ring.slots for ring in proved.rings if ring.slots
    )


def test_a_slow_link_bounds():
    """Two ranks, one microbatch: forward, message, forward, backward, message, backward."""
    slow, fast = Link("slow", 10.0, 0.5), Link("fast", 100.0, 0.1)
    machine = Machine((("forward", 1.0), ("backward", 2.0)), 20.0, 5.0, 100.0, 1, fast, slow)
    found = simulate(plan(prove(timetable("gpipe", 2, 2)), 1), machine)
    assert found.seconds == pytest.approx(1 + 2.5 + 1 + 2 + 2.5 + 2)
    assert found.bounds == "slow"
    assert dict(found.critical) == pytest.approx({"compute": 6.0, "slow": 5.0})
    assert found.peak == pytest.approx(25.0)  # a gradient, and what its stage keeps
    assert found.busiest == ("slow 0 -> 1", pytest.approx(2 / 11))
    inside = simulate(
        plan(prove(timetable("gpipe", 2, 2)), 1),
        dataclasses.replace(machine, host=2, copies=3),
    )
    assert inside.seconds == pytest.approx(6 + 2 * 0.3 + 4 * (0.5 + 100 / 3 / 10))
    assert inside.bounds == "copies"


def test_the_record_says_that_nothing_is_measured_and_is_what_is_simulated():
    record = json.loads((ROOT / "docs" / "results" / "simulated_pipelines.json").read_text())
    assert record["kind"] == "simulated" and record["measured"] is False
    assert {row["ranks"] for row in record["rows"]} == {8 << n for n in range(10)}
    once = SCRIPT["forward"]()
    assert record["assumed"]["forward_seconds"] == once
    for name in ("1f1b", "zero-bubble"):
        line = SCRIPT["row"](name, 8, "infiniband", once)
        assert line in record["rows"]


def test_the_picture_of_the_page_is_the_schedules():
    assert SCRIPT["TIMELINE"].read_text() == SCRIPT["timeline"]()


def test_a_link_that_is_not_known():
    with pytest.raises(HardwareDataError, match="Links: nvlink, nccl, infiniband"):
        link("string")
