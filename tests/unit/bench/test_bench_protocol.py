"""The protocol, with a source that only counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from polygen.bench import protocol
from polygen.bench.rows import Row
from polygen.bench.source import EMPTY, POLYGEN, DeviceLost, Job
from polygen.errors import PolygenError

ROW = Row("bias_gelu", 64, 64, 64)
PEERS = ("separate", "cublaslt", "inductor")


class Counted:
    """Contenders that take fixed times, and remember who was launched."""

    def __init__(self, times: dict[str, float], **faults: Any) -> None:
        self.times, self.faults = times, faults
        self.launched: list[str] = []
        self.steps: list[str] = []

    def open(self, job: Job, stage: Any) -> Counted:
        return self

    def about(self, stage: Any) -> dict[str, Any]:
        return {}

    def make(self, name: str) -> Callable[[], Any]:
        self.steps.append(f"make {name}")
        fault = self.faults.get(f"make_{name}")
        if fault is not None:
            raise fault

        def call() -> float:
            self.launched.append(name)
            return self.times[name]

        return call

    def check(self, name: str, call: Any) -> tuple[float, float]:
        self.steps.append(f"check {name}")
        found: tuple[float, float] = self.faults.get(f"errors_{name}", (1e-3, 1e-3))
        return found

    def empty(self) -> Callable[[], Any] | None:
        return self.make(EMPTY) if EMPTY in self.times else None

    def poison(self) -> None:
        self.steps.append("poison")

    def left(self) -> tuple[float, float]:
        self.steps.append("left")
        found: tuple[float, float] = self.faults.get("left", (1e-3, 1e-3))
        return found

    def timed(self, calls: Any) -> list[float]:
        self.steps.append(f"timed {len(calls)}")
        return [call() for call in calls]

    def captured(self, name: str, call: Any) -> Any:
        if name == self.faults.get("no_graph"):
            raise RuntimeError("cannot capture")
        self.steps.append(f"graph {name}")
        return call

    def facts(self, name: str) -> dict[str, Any]:
        return {"of": name}

    def conditions(self) -> dict[str, Any]:
        return {"sm_mhz": 1755}


def measured(work: Counted, peers: tuple[str, ...] = PEERS, **leave_out: str) -> dict[str, Any]:
    stages: list[tuple[str, float]] = []
    job = Job(ROW, None, peers, leave_out, 11)
    line = protocol.measure(work, job, lambda *stage: stages.append(stage))
    line["stages"] = [name for name, _ in stages]
    return line


TIMES = {POLYGEN: 100.0, "separate": 200.0, "cublaslt": 120.0, "inductor": 110.0}


def test_contenders_alternate_in_random_order_and_every_launch_counts():
    work = Counted(TIMES)
    line = measured(work)
    assert {name: found["us"] for name, found in line["times"].items()} == TIMES
    assert all(found["n"] == 11 for found in line["times"].values())
    last = work.launched[-4 * 11 :]
    rounds = [tuple(last[i : i + 4]) for i in range(0, len(last), 4)]
    assert all(set(found) == set(TIMES) for found in rounds) and len(set(rounds)) > 4
    assert not line["graph"] and not any(step.startswith("graph") for step in work.steps)
    assert line["card"] == {"sm_mhz": 1755} and line["facts"]["inductor"] == {"of": "inductor"}


def test_results_are_checked_before_and_after_and_poisoned_between():
    work = Counted(TIMES)
    measured(work)
    steps = [step for step in work.steps if not step.startswith("make")]
    assert steps[:4] == [f"check {name}" for name in TIMES]
    assert steps[-4:-1] == ["poison", "timed 12", "timed 44"] and steps[-1] == "left"


def test_every_step_that_can_hang_is_announced():
    assert measured(Counted(TIMES))["stages"] == ["data", POLYGEN, *PEERS, "time", "time"]


def test_short_kernels_become_graphs_all_of_them():
    work = Counted(TIMES | {"inductor": 59.0})
    line = measured(work)
    assert line["graph"] and [s for s in work.steps if s.startswith("graph")] == [
        f"graph {name}" for name in TIMES
    ]
    line = measured(Counted(TIMES | {"inductor": 59.0}, no_graph="separate"))
    assert "separate" not in line["times"]
    assert line["skipped"]["separate"] == "no graph: RuntimeError: cannot capture"
    line = measured(Counted(TIMES | {"inductor": 59.0}, no_graph=POLYGEN))
    assert line["error"] == "no graph: RuntimeError: cannot capture" and "times" not in line


@pytest.mark.parametrize("ours", [100.0, 59.0])
def test_a_kernel_that_does_nothing_is_launched_beside_the_others(ours):
    """In the same rounds, as a graph where they are; it decides nothing, and is no contender."""
    work = Counted(TIMES | {POLYGEN: ours, EMPTY: 2.5})
    line = measured(work)
    assert set(line["times"]) == set(TIMES)
    assert (line[EMPTY]["us"], line[EMPTY]["n"]) == (2.5, 11)
    assert line["graph"] == (ours < protocol.GRAPH_BELOW)
    assert (f"graph {EMPTY}" in work.steps) == line["graph"]
    last = work.launched[-5 * 11 :]
    assert all(EMPTY in last[i : i + 5] for i in range(0, len(last), 5))
    assert f"check {EMPTY}" not in work.steps
    assert EMPTY not in measured(Counted(TIMES)), "a source that does not know it"


def test_a_library_that_fails_or_is_far_off_is_no_contender():
    faults = {"make_separate": ValueError("no bf16"), "errors_cublaslt": (0.06, 0.1)}
    line = measured(Counted(TIMES, **faults, errors_inductor=(math.nan, 0.0)))
    assert set(line["times"]) == {POLYGEN}
    assert line["skipped"] == {
        "separate": "ValueError: no bf16",
        "cublaslt": "Frobenius error 6.00e-02, bound 5e-02",
        "inductor": "Frobenius error nan, bound 5e-02",
    }
    assert line["errors"]["inductor"] == [None, 0.0]


def test_a_library_that_is_left_out_is_not_made():
    work = Counted(TIMES)
    line = measured(work, inductor="no time left after 9 s")
    assert "make inductor" not in work.steps and "inductor" not in line["times"]
    assert line["skipped"] == {"inductor": "no time left after 9 s"}


def test_a_wrong_kernel_is_an_error_and_has_no_time():
    line = measured(Counted(TIMES, errors_polygen=(6e-3, 1e-3)))
    assert line["error"] == "wrong result: Frobenius error 6.00e-03, bound 5.00e-03"
    assert "times" not in line
    line = measured(Counted(TIMES, left=(math.nan, math.nan)))
    assert line["error"].startswith("wrong result after the measurement: Frobenius error nan")
    assert "times" not in line
    line = measured(Counted(TIMES, make_polygen=PolygenError("too large")))
    assert line["error"] == "PolygenError: too large."


def test_what_leaves_the_device_useless_ends_the_process():
    with pytest.raises(DeviceLost):
        measured(Counted(TIMES, make_cublaslt=DeviceLost("illegal address")))
    with pytest.raises(RuntimeError):  # polygen's own faults are not hidden
        measured(Counted(TIMES, make_polygen=RuntimeError("bug")))


def test_the_bounds_refuse_nan():
    assert protocol.wrong(ROW, (1e-3, 1e-3)) is None
    assert "largest" in str(protocol.wrong(Row("mm", 1, 1, 1, "f16"), (5e-4, 0.1)))
    assert protocol.wrong(Row("mm", 1, 1, 1, "f16", "f16"), (5e-3, 0.05)) is None
    assert protocol.wrong(ROW, (math.nan, 0.0)) and protocol.wrong(ROW, (0.0, math.nan))
