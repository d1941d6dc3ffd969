"""The tuner with its processes, database and rounds, on recorded times: hangs, crashes, kills."""

from __future__ import annotations

import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_samples import (
    PATIENCE,
    SIGNATURE,
    SIZES,
    VERSION,
    Clock,
    few,
    fused,
    keys,
    replayed,
    target,
    task,
    times,
)

from polygen.cli import main
from polygen.errors import PolygenError
from polygen.runtime.child import Lost
from polygen.runtime.environment import current_arch
from polygen.tune import tuner
from polygen.tune.crew import Crew
from polygen.tune.gpu import GpuSource
from polygen.tune.identity import candidate_key
from polygen.tune.records import Records, Version
from polygen.tune.replay import ReplaySource
from polygen.tune.search import AnchorFailed, Progress
from polygen.tune.trials import Contender, Trial, Trials
from polygen.tune.tuner import tune

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    return task()


@pytest.fixture(scope="module")
def crew():
    """Processes for most of these tests: they are made for more tunings than one."""
    with Crew(2) as staff:
        yield staff


def fastest(chosen, recorded, but=()):
    names = {key: one.schedule.name for key, one in zip(keys(chosen), chosen, strict=True)}
    return names[min((k for k in recorded if k not in but), key=recorded.__getitem__)]


def test_halving_finds_the_best_of_a_noisy_record_within_its_budget(made, crew, tmp_path):
    chosen = few(made, 120)
    recorded = times(chosen)
    source = ReplaySource(tuple(recorded.items()), noise=0.02)
    clock = Clock(step=0.5)  # for each of 14 or 15 batches; the finals have what is left
    found = replayed(
        made,
        chosen,
        tmp_path / "a.sqlite",
        source,
        budget=20.0,
        now=clock,
        report=clock.report,
        crew=crew,
    )
    assert found.finished and not found.interrupted and 7.0 <= found.seconds <= 7.5
    assert dict(found.states) == {"timed": len(recorded)} and found.resumed == 0
    assert recorded[keys([found_in(chosen, found)])[0]] <= 1.01 * min(recorded.values())
    assert found.best.rung == 3 and found.best.repeats == 100
    assert found.speedup == pytest.approx(
        found.anchor_microseconds / found.best.microseconds, rel=0.02
    )
    again = replayed(made, chosen, tmp_path / "a.sqlite", source, crew=Idle())
    assert again.resumed == len(recorded) and again.best.schedule == found.best.schedule


class Idle:
    """A crew that has nothing to do: whatever asks it for a process fails."""

    builders = 1


def found_in(chosen, found):
    return next(one for one in chosen if one.schedule == found.best.schedule)


def test_the_budget_is_kept_and_what_is_left_is_measured_next_time(made, crew, tmp_path):
    """2 s at 0.25 s a batch: the finals keep 0.8 s, so five batches fit, and one at the end."""
    chosen = few(made, 200)
    source, path = ReplaySource(tuple(times(chosen).items())), tmp_path / "a.sqlite"
    clock = Clock(step=0.25)
    found = replayed(
        made, chosen, path, source, budget=2.0, now=clock, report=clock.report, crew=crew
    )
    assert found.finished and found.seconds == 1.25
    counted = dict(found.states)["timed"]
    assert 1 + 5 * 8 <= counted <= 1 + 6 * 8 < len(keys(chosen))
    again = replayed(
        made, chosen, path, source, budget=1.5, now=clock, report=clock.report, crew=crew
    )
    assert again.finished and again.seconds == 1.0
    assert again.resumed == counted
    assert counted + 4 * 8 <= dict(again.states)["timed"] <= counted + 5 * 8
    assert again.best.ratio <= found.best.ratio


class Hanging:
    """A crew whose timer loses every contender while it is checked."""

    builders = 1

    def __init__(self, clock, takes):
        self.timer, self.busy, self.batches = self, set(), []
        self._clock, self._takes = clock, takes

    def ask(self, job):
        _, batch = job
        self.batches.append(batch)
        self._clock.time += self._takes
        if batch.contenders:
            why = f"no answer within {batch.limit:g} s"
            raise Lost(f"check {batch.contenders[0].key}", why)
        return {batch.anchor.key: Trial()}


@pytest.mark.parametrize(
    ("left", "limits", "states"),
    [
        (100.0, [3.0] * 4, {"a": "hung", "b": "hung"}),
        (11.0, [3.0, 3.0, 3.0, 2.0], {"a": "hung"}),  # the budget cuts b's short: no verdict
        (5.0, [3.0, 2.0], {}),
        (2.0, [2.0], {}),
        (0.2, [1.0], {}),  # the least that a check gets
    ],
)
def test_a_check_ends_with_the_budget_and_then_blames_nobody(left, limits, states):
    clock = Clock()
    crew = Hanging(clock, takes=3.0)
    anchor, *others = (Contender(key, key, None) for key in ("anchor", "a", "b"))
    with Trials(None, crew, 3.0, clock() + left, clock) as trials:
        found = trials.time(anchor, others, 5)
    assert [batch.limit for batch in crew.batches] == limits
    assert {key: one.state for key, one in found.items() if key != "anchor"} == states


class Slow(Hanging):
    """A crew whose timer is slow to check a contender for the first time, whichever it is."""

    def ask(self, job):
        _, batch = job
        if self.batches:
            self.batches.append(batch)
            return {one.key: Trial() for one in (batch.anchor, *batch.contenders)}
        return super().ask(job)


def test_who_is_slow_once_does_not_hang():
    """As the first check of a machine was, while the library compiled the comparison."""
    clock = Clock()
    crew = Slow(clock, takes=3.0)
    anchor, *others = (Contender(key, key, None) for key in ("anchor", "a", "b"))
    with Trials(None, crew, 3.0, now=clock) as trials:
        found = trials.time(anchor, others, 5)
    assert {key: one.state for key, one in found.items()} == dict.fromkeys("ab", "timed") | {
        "anchor": "timed"
    }
    assert [[one.key for one in batch.contenders] for batch in crew.batches] == [
        ["a", "b"], ["b", "a"]
    ]  # fmt: skip


def test_what_hangs_crashes_or_is_wrong_costs_nothing_else(made, crew, tmp_path):
    chosen = few(made, 24)
    recorded, own = times(chosen), keys(chosen)
    order = sorted(own[1:], key=recorded.__getitem__)
    behaviours = dict(
        zip(order, ["hang", "exit", "kill", "wrong", "refused", "crash-build"], strict=False)
    )
    behaviours[order[8]] = "hang-timing"
    source = ReplaySource(tuple(recorded.items()), tuple(behaviours.items()), hang_seconds=0.1)
    found = replayed(made, chosen, tmp_path / "a.sqlite", source, crew=crew)
    assert dict(found.states) == {
        "hung": 2, "crashed": 3, "wrong": 1, "refused": 1, "timed": len(own) - 7,
    }  # fmt: skip
    assert found.best.schedule.name == fastest(chosen, recorded, but=behaviours)
    with Records(tmp_path / "a.sqlite") as records:
        kept = records.measured(records.problem(target(made)), VERSION)
    assert {key: kept[key].state for key in behaviours} == {
        key: {"hang": "hung", "hang-timing": "hung", "wrong": "wrong", "refused": "refused"}.get(
            what, "crashed"
        )
        for key, what in behaviours.items()
    }
    assert "no answer within" in kept[order[0]].reason and "ended with" in kept[order[1]].reason


def test_an_anchor_that_is_the_fastest_stays(made, crew, tmp_path):
    chosen = few(made, 10)
    recorded = {key: 100.0 for key in keys(chosen)} | {keys(chosen)[0]: 50.0}
    found = replayed(
        made, chosen, tmp_path / "a.sqlite", ReplaySource(tuple(recorded.items())), crew=crew
    )
    assert found.best.schedule == chosen[0].schedule and found.speedup == 1.0


def test_an_anchor_that_cannot_be_built_is_said_to_be_so(made, crew, tmp_path):
    chosen = few(made, 4)
    refused = ((keys(chosen)[0], "refused"),)
    source = ReplaySource(tuple(times(chosen).items()), refused)
    with pytest.raises(AnchorFailed, match="refused in the record") as caught:
        replayed(made, chosen, tmp_path / "a.sqlite", source, crew=crew)
    assert caught.value.schedule == chosen[0].schedule


def test_an_anchor_that_hangs_stops_the_tuning(made, crew, tmp_path):
    chosen = few(made, 4)
    source = ReplaySource(
        tuple(times(chosen).items()), ((keys(chosen)[0], "hang-timing"),), hang_seconds=0.1
    )
    with pytest.raises(PolygenError, match=r"cannot be timed.*no answer within"):
        replayed(made, chosen, tmp_path / "a.sqlite", source, crew=crew)


def test_builders_compile_and_say_why_they_refuse(made):
    legal = made.candidates[0].schedule
    ring = legal.pipeline.stages
    illegal = replace(legal, pipeline=replace(legal.pipeline, in_flight=ring))
    source = GpuSource(made.program, made.device, tuple(made.sizes.items()))
    with Crew(1, build_limit=PATIENCE) as crew, Trials(source, crew, PATIENCE) as trials:
        built, refused = (trials.build(one).result() for one in (legal, illegal))
        kernel, artifact = built.payload
        assert kernel.entry.encode() in artifact.cubin
        assert refused.state == "refused" and "in_flight" in refused.reason
        if current_arch() is None:
            contender = Contender("key", "name", built.payload)
            with pytest.raises(PolygenError, match=r"cannot be timed.*no GPU"):
                trials.time(contender, (), 5)


def test_a_tuning_that_goes_on_reports_times_only_when_it_has_any(made, crew, tmp_path):
    chosen, path = few(made, 12), tmp_path / "a.sqlite"
    source = ReplaySource(tuple(times(chosen).items()))
    replayed(made, chosen[:6], path, source, crew=crew)
    seen: list[Progress] = []
    replayed(made, chosen, path, source, report=seen.append, crew=crew)
    assert seen[0].stage == "start" and seen[0].done == 6 and not seen[0].best
    assert all(not now.best or now.microseconds > 0 for now in seen) and seen[-1].best


def test_one_crew_tunes_one_problem_after_another(made, tmp_path):
    """What the first problem measured, and what hung there, does not reach the second."""
    chosen = few(made, 12)
    first, second = times(chosen, 1), times(chosen, 2)
    hung = min(first, key=first.__getitem__)
    with Crew(2) as crew:
        for number, (recorded, behaviours) in enumerate(((first, ((hung, "hang"),)), (second, ()))):
            source = ReplaySource(tuple(recorded.items()), behaviours, hang_seconds=0.1)
            path = tmp_path / f"{number}.sqlite"
            found = replayed(made, chosen, path, source, crew=crew)
            left = {key: time for key, time in recorded.items() if number or key != hung}
            best = min(left, key=left.__getitem__)
            assert candidate_key(found.best.schedule) == best
            assert dict(found.states).get("hung", 0) == 1 - number
        assert not crew.busy


@pytest.mark.parametrize("budget", [0, -1.0, math.inf, math.nan])
def test_a_budget_is_a_positive_time(made, budget):
    with pytest.raises(PolygenError, match="a budget of"):
        tune(fused(), *SIGNATURE, sizes=SIZES, arch="sm_90a", budget=budget)


# --- processes of their own
def start(path, build=0.02, launch=1e-3, kill_at=0):
    words = [str(path), str(build), str(launch), str(kill_at)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])}
    return subprocess.Popen(
        [sys.executable, str(TESTS / "tuning_samples.py"), *words],
        stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def rows(path):
    if not path.exists():
        return 0
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        there = connection.execute("SELECT name FROM sqlite_master WHERE name = 'measurements'")
        if there.fetchone() is None:
            return 0
        return connection.execute("SELECT count(*) FROM measurements").fetchone()[0]


def wait_for_rows(path, least, process):
    """Until there are so many, or the process has ended."""
    for _ in range(int(PATIENCE / 0.05)):
        if process.poll() is not None:
            return
        if path.exists():
            try:
                if rows(path) >= least:
                    return
            except sqlite3.OperationalError:
                pass  # the tuner is making the file
        time.sleep(0.05)


def test_a_killed_tuner_is_continued_and_nothing_is_lost(made, tmp_path):
    """Killed once in the middle of its work, and once at whatever moment the signal comes."""
    path, chosen = tmp_path / "a.sqlite", few(made)
    first = start(path, kill_at=4)
    assert first.wait(timeout=PATIENCE) == -signal.SIGKILL
    before = rows(path)
    assert 4 <= before < len(keys(chosen))
    second = start(path)
    wait_for_rows(path, before + 10, second)
    time.sleep(random.uniform(0, 0.2))
    second.send_signal(signal.SIGKILL)
    second.communicate(timeout=PATIENCE)
    after = rows(path)
    assert after >= before + 10
    last = start(path)
    name, resumed = last.communicate(timeout=PATIENCE)[0].split()
    assert last.returncode == 0 and int(resumed) == after
    assert rows(path) == len(keys(chosen)) and name == fastest(chosen, times(chosen))


def test_two_tuners_at_once_both_finish_and_share_the_file(made, tmp_path):
    path, chosen = tmp_path / "a.sqlite", few(made)
    both = [start(path, build=0.0, launch=1e-4) for _ in range(2)]
    names = [process.communicate(timeout=PATIENCE)[0].split()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert names == [fastest(chosen, times(chosen))] * 2
    assert rows(path) == len(keys(chosen))


def test_ctrl_c_keeps_what_was_measured(made, tmp_path):
    path = tmp_path / "a.sqlite"
    chosen = few(made, 30)
    source = ReplaySource(tuple(times(chosen).items()))

    def stop(progress):
        if progress.done >= 8:
            raise KeyboardInterrupt

    found = replayed(made, chosen, path, source, report=stop)
    assert found.interrupted and not found.finished and rows(path) >= 8
    again = replayed(made, chosen, path, source)
    assert again.finished and again.resumed == rows_before(found)


def rows_before(found):
    return sum(count for _, count in found.states)


def test_suites_take_no_option_of_one_program(capsys):
    for words in (["--list"], ["--write-schedule", "somewhere"], ["--invariant", "M"]):
        assert main(["tune", "--suite", "hopper", *words]) == 2
        assert f"{words[0]} is for one program" in capsys.readouterr().err
    assert main(["tune"]) == 2 and "nothing to tune" in capsys.readouterr().err
    assert main(["tune", "x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--suite", "hopper"]) == 2
    assert "a program and suites" in capsys.readouterr().err


def test_times_beside_another_anchor_are_not_mixed(tmp_path, monkeypatch):
    """The automatic choice changes when schedules ship; ratios to the old one are other figures."""
    made, recorded = task(), {}
    chosen = few(made, 10)
    recorded = times(chosen, 3)
    slow = max(range(len(chosen)), key=lambda at: recorded[keys(chosen)[at]])
    fast = min(range(len(chosen)), key=lambda at: recorded[keys(chosen)[at]])
    source = ReplaySource(tuple(recorded.items()))
    version = Version("digest", "compiler", "0")
    for anchor in (slow, fast):
        given = replace(made, candidates=(chosen[anchor], *chosen))
        with Records(tmp_path / "a.sqlite") as records, Crew(2) as crew:
            found = tuner._search(
                given, target(made), version, source, records, crew, None, lambda _: None, Clock()
            )
        assert found.best.schedule == chosen[fast].schedule
        assert found.anchor == chosen[anchor].schedule.name
        assert found.anchor_microseconds == pytest.approx(recorded[keys(chosen)[anchor]])
    assert found.speedup == 1.0
