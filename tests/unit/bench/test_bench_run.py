"""Runs without a GPU: replayed, killed and continued; and children that hang or die."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_samples import COMMITTED, GELU, MM, RESIDUAL, ROWS, sample
from filelock import FileLock

from polygen.bench import figures, protocol, record, replay, report, run, statistics
from polygen.bench.source import Job
from polygen.errors import BenchError, ToolchainMissing
from polygen.runtime.child import Lost

PEERS = ("separate", "eager", "cublaslt", "inductor")


class Quiet:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.todo: tuple[int, int] = (0, 0)

    def begin(self, rows: int, already: int) -> None:
        self.todo = (rows, already)

    def say(self, text: str) -> None: ...

    def row(self, line: dict[str, Any]) -> None:
        self.rows.append(line["key"])


def request(out: Path, rows: Any = ROWS, **changes: Any) -> run.Request:
    given = {"suites": ("hopper",), "peers": PEERS, "replayed": COMMITTED} | changes
    return run.Request(tuple(rows), out=out, **given)


def measured(path: Path) -> list[dict[str, Any]]:
    """Rows without the number of their run."""
    return [{k: v for k, v in line.items() if k != "run"} for line in record.load(path)["rows"]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The committed record replayed in one go."""
    out = tmp_path_factory.mktemp("replay") / "out.json"
    run.run(request(out), Quiet())
    return out


# --- replaying
def test_a_replay_goes_the_whole_way_and_has_the_medians_of_the_record(undisturbed):
    old, new = record.load(COMMITTED), record.load(undisturbed)
    before = old["rows"][: len(ROWS)]
    assert [line["key"] for line in new["rows"]] == [line["key"] for line in before]
    for then, now in zip(before, new["rows"], strict=True):
        assert {n: t["us"] for n, t in now["times"].items()} == {
            n: t["us"] for n, t in then["times"].items()
        }
        assert all(t["n"] == 101 and t["ci"] for t in now["times"].values())
        assert now["graph"] == then["graph"] and now["polygen"] == then["polygen"]
    made = new["runs"][-1]
    assert made["versions"] == old["runs"][-1]["versions"] and "interval" in made["protocol"]
    assert made["suites"] == new["suites"] and len(made["sources"]) == 12
    assert new["unfinished"] == []


def test_a_replay_has_the_shares_of_the_limit_of_the_record(undisturbed):
    old, new = record.load(COMMITTED), record.load(undisturbed)
    assert len({line["run"] for line in old["rows"]}) > 1  # with other ceilings each
    for then, now in zip(old["rows"], new["rows"], strict=False):
        assert figures.share_of_limit(new, now) == figures.share_of_limit(old, then), now["key"]


def test_launches_of_a_replay_depend_on_row_and_contender_alone():
    source = replay.ReplaySource(COMMITTED)
    work = source.open(Job(MM, None, PEERS), lambda *_: None)
    one, two = work.make("polygen"), work.make("polygen")
    first = work.timed([one] * 101)
    assert first == work.timed([two] * 101) and first != sorted(first)
    recorded = record.load(COMMITTED)["rows"][0]["times"]["polygen"]
    assert statistics.summary(first).median == recorded["us"]
    with pytest.raises(BenchError, match="not in the record"):
        work.make("triton")
    with pytest.raises(BenchError, match="no such row"):
        source.open(Job(ROWS[0].__class__("mm", 1, 2, 3), None, ()), lambda *_: None)


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from bench_samples import COMMITTED, ROWS
from polygen.bench import run

peers, out, target, delay = sys.argv[1].split(","), Path(sys.argv[2]), *map(float, sys.argv[3:])

def die():
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)

class Progress:
    def begin(self, rows, already):
        self.there, self.dying = already, False

    def say(self, text): ...

    def row(self, line):
        self.there += 1
        if self.there >= target and not self.dying:
            self.dying = True
            threading.Thread(target=die).start()
        if self.there >= target + 5:
            threading.Event().wait()  # that the signal comes before the end, on every machine

run.run(run.Request(ROWS, ("hopper",), tuple(peers), out, replayed=COMMITTED), Progress())
"""


def test_a_run_that_is_killed_at_any_moment_goes_on_and_ends_the_same(tmp_path, undisturbed):
    out, generator, seen = tmp_path / "out.json", random.Random(5), []
    folders = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    for target in sorted(generator.sample(range(1, 70), 5)):
        # Rows take some milliseconds: the signal comes while one is measured, or written.
        words = [",".join(PEERS), str(out), str(target), str(generator.random() / 50)]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, *words], env=environment, stderr=subprocess.DEVNULL,
            check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL
        found = record.load(out)  # never half a file
        keys = [line["key"] for line in found["rows"]]
        assert target <= len(keys) < len(ROWS) and set(seen) <= set(keys), "nothing is lost"
        seen = keys
    run.run(request(out), Quiet())
    assert measured(out) == measured(undisturbed)
    assert len(record.load(out)["runs"]) == 6
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".json" and p != out]


def test_a_finished_record_is_left_alone_and_fresh_begins_again(tmp_path, undisturbed):
    out = tmp_path / "out.json"
    out.write_bytes(undisturbed.read_bytes())
    heard = Quiet()
    run.run(request(out), heard)
    assert (
        heard.todo == (0, 80)
        and heard.rows == []
        and out.read_bytes() == (undisturbed.read_bytes())
    )
    run.run(request(out, rows=ROWS[:3], fresh=True), heard)
    assert heard.todo == (3, 0) and len(record.load(out)["rows"]) == 3


def test_two_runs_do_not_write_one_record(tmp_path):
    out = tmp_path / "out.json"
    with FileLock(tmp_path / ".out.json.lock"), pytest.raises(BenchError, match="another run"):
        run.run(request(out), Quiet())
    assert not out.exists()


def test_without_a_card_there_is_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "current_arch", lambda: None)
    monkeypatch.setattr(run.Watched, "start", lambda self: None)
    with pytest.raises(ToolchainMissing, match=r"no GPU to measure on.*--replay"):
        run.run(request(tmp_path / "out.json", replayed=None), Quiet())
    assert list(tmp_path.iterdir()) == []  # nor is there a lock


# --- children that hang or die
class Child:
    """Answers jobs; loses those of some stages."""

    def __init__(self, *lost: Lost) -> None:
        self.jobs: list[Job] = []
        self._lost = list(lost)

    def __call__(self, job: Job) -> dict[str, Any]:
        self.jobs.append(job)
        for lost in self._lost:
            if lost.stage not in job.leave_out and not (
                lost.stage == "time" and "triton" in job.leave_out
            ):
                if lost.stage == "start":
                    self._lost.remove(lost)
                raise lost
        return {"times": {}, "skipped": job.leave_out}


KERNEL = {"kernel": b"", "about": {"schedule": "big"}}
ALL = ("separate", "cublaslt", "triton", "inductor")


def test_a_library_that_hangs_is_left_out_of_the_row_and_named():
    child = Child(Lost("inductor", "no answer within 150 s"), Lost("triton", "ended with -9"))
    line = run.measured(MM, KERNEL, child, ALL, {})
    assert len(child.jobs) == 3 and "error" not in line and line["polygen"] == {"schedule": "big"}
    assert line["skipped"] == {
        "inductor": "inductor: no answer within 150 s", "triton": "triton: ended with -9",
    }  # fmt: skip


def test_a_kernel_that_hangs_is_an_error_that_names_it():
    line = run.measured(MM, KERNEL, Child(Lost("polygen", "no answer within 30 s")), ALL, {})
    assert line == {
        "polygen": {"schedule": "big"}, "error": "polygen: no answer within 30 s",
    }  # fmt: skip


def test_a_row_that_is_lost_while_timing_is_measured_beside_fewer_libraries():
    child = Child(Lost("time", "no answer within 90 s"))
    line = run.measured(MM, KERNEL, child, ALL, {})
    assert set(line["skipped"]) == {"triton", "inductor"} and len(child.jobs) == 2
    line = run.measured(MM, KERNEL, Child(Lost("time", "x")), ("separate",), {})
    assert line["error"] == "time: x"


def test_a_child_that_died_between_rows_is_started_again_once():
    assert "error" not in run.measured(MM, KERNEL, Child(Lost("start", "has ended")), ALL, {})
    with pytest.raises(Lost, match="no CUDA"):
        run.measured(MM, KERNEL, Child(Lost("start", "x"), Lost("start", "no CUDA")), ALL, {})


def test_a_kernel_that_cannot_be_compiled_is_an_error():
    assert run.measured(MM, {"error": "why"}, Child(), ALL, {}) == {"error": "why"}


# --- time
def test_the_slow_library_takes_part_while_all_rows_can_still_be_measured():
    now = 0.0
    clock = run.Clock(100, lambda: now)
    assert clock.leave_out(ALL, 40, 2.0) == {} and not clock.over and clock.left(0.4) == 40
    now = 76.0
    assert clock.leave_out(ALL, 10, 2.0) == {}, "18 s for the others, 6 s for this one"
    assert clock.leave_out(ALL, 11, 2.0) == {"inductor": "no time left after 76 s for 11 more rows"}
    both = (*ALL, "inductor_joined")
    assert clock.leave_out(both, 7, 2.0) == {}, "12 s for the others, 12 s for these two"
    assert set(clock.leave_out(both, 8, 2.0)) == {"inductor", "inductor_joined"}
    assert clock.leave_out(("separate",), 99, 2.0) == {} and clock.left(0.4) == 1 and not clock.over
    now = 100.0
    assert clock.over
    assert not run.Clock(None, lambda: now).over


class Stepping(Quiet):
    """A clock that every row moves on by a second."""

    def __call__(self) -> float:
        return float(len(self.rows))


def test_a_run_that_has_no_time_left_says_what_it_lacks(tmp_path):
    out, clock = tmp_path / "out.json", Stepping()
    found = run.run(request(out, budget=12.5), clock, now=clock)
    assert len(found["rows"]) == 13 and found == record.load(out)
    assert found["runs"][-1]["seconds"] == 13.0
    keys = [line["key"] for line in found["rows"]]
    assert [*keys, *found["unfinished"]] == [row.key for row in ROWS]
    assert "0 errors, 67 rows not done" in report.terminal(found, found["rows"])


# --- libraries
def test_libraries_are_named():
    assert run.check_peers(["inductor", "separate"]) == ("separate", "inductor")
    with pytest.raises(BenchError, match=r"no library is called 'cutlass'.*Known: separate, eager"):
        run.check_peers(["cutlass"])


def test_a_missing_library_is_said_in_every_row(tmp_path):
    old, replayed = sample(), tmp_path / "old.json"
    record.save(replayed, old)
    new = run.run(
        request(tmp_path / "new.json", (MM, RESIDUAL, GELU), peers=("separate", "cupy"),
                replayed=replayed), Quiet(),
    )  # fmt: skip
    assert [line["skipped"]["cupy"] for line in new["rows"]] == [
        "ModuleNotFoundError: No module named 'cupy'"
    ] * 3
    assert json.loads((tmp_path / "new.json").read_text())["rows"][0]["times"].keys() == {
        "polygen", "separate",
    }  # fmt: skip


def test_the_empty_kernel_is_replayed_where_the_record_has_it(tmp_path):
    made = sample()
    summary = statistics.summary([2.0 + at / 100 for at in range(-5, 6)])
    made["rows"][0]["empty"] = statistics.to_json(summary)
    path = tmp_path / "old.json"
    record.save(path, made)
    source = replay.ReplaySource(path)
    lines = [
        protocol.measure(source, Job(row, None, ("cublaslt",)), lambda *_: None)
        for row in (MM, RESIDUAL)
    ]
    assert lines[0]["empty"]["us"] == 2.0 and "empty" not in lines[1]
    assert [set(line["times"]) for line in lines] == [{"polygen", "cublaslt"}] * 2
