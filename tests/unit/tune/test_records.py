"""The records: what counts as the same problem, staleness, and files that cannot be used."""

from __future__ import annotations

import json
import sqlite3
import warnings
from dataclasses import replace

import pytest
from tuning_samples import SIGNATURE, SIZES, fused

from polygen import knobs
from polygen.errors import CacheError, PolygenError
from polygen.hardware.device import device
from polygen.pipeline import with_sizes
from polygen.schedule.model import Schedule
from polygen.tune import lookup as module
from polygen.tune.exported import export
from polygen.tune.identity import candidate_key, canonical, generator_digest
from polygen.tune.lookup import best
from polygen.tune.recorded import read
from polygen.tune.records import Measurement, Records, Target, Version

CURRENT = Version(generator_digest(), "compiler", "1")
STALE = Version("older", "compiler", "0")


@pytest.fixture
def folder(tmp_path):
    module._warn_once.cache_clear()
    with knobs.scope(cache_dir=tmp_path, cache=True):
        yield tmp_path


def program(**sizes):
    return with_sizes(fused().program(*SIGNATURE), {**SIZES, **sizes})


def target(**changes):
    text = canonical(program(), SIZES)
    given = Target(
        text, "sm_90a", "GPU", "gpu", "op", "gelu(x @ w.T + b)", SIGNATURE, tuple(SIZES.items())
    )
    return replace(given, **changes)


def timed(name="fast", microseconds=60.0, rung=3, stages=4):
    schedule = Schedule(name=name)
    schedule = replace(schedule, pipeline=replace(schedule.pipeline, stages=stages))
    quartiles = (microseconds - 1, microseconds + 1)
    return Measurement(schedule, "timed", "", microseconds, quartiles, 100, rung, 0.8)


def enter(version=CURRENT, found=None, **changes):
    found = found or timed()
    with Records() as records:
        number = records.problem(target(**changes))
        records.measure(number, version, found)
        records.conclude(number, version, found, ("first choice", 75.0), finished=True)


def look_up(**sizes):
    return best(program(**sizes), device("sm_90a"), {**SIZES, **sizes})


# --- what a problem is
def test_names_do_not_matter_and_sizes_layouts_and_types_do():
    def text(expression, signature, **sizes):
        made = with_sizes(fused(expression, signature).program(*signature), sizes)
        return canonical(made, sizes)

    one = text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64)
    renamed = ("u:bf16[A,C]", "v:bf16[B,C]", "c:bf16[B]")
    assert text("gelu(u @ v.T + c)", renamed, A=512, B=512, C=64) == one
    shared = ("u:bf16[A,C]", "v:bf16[A,C]", "c:bf16[A]")  # as a direct call names equal extents
    assert text("gelu(u @ v.T + c)", shared, A=512, C=64) == one
    fixed = ("x:bf16[512,K]", "w:bf16[N,K]", "b:bf16[N]")
    assert text("gelu(x @ w.T + b)", fixed, N=512, K=64) == one
    others = [
        text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=128),
        text("relu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64),
        text("gelu(x @ w.T + b)", ("x:f16[M,K]", "w:f16[N,K]", "b:f16[N]"), M=512, N=512, K=64),
        text("gelu(x @ w.T + b)", ("x:bf16[M,K]:col", *SIGNATURE[1:]), M=512, N=512, K=64),
        text("gelu(x @ w.T + b)", ("x:bf16[M,K]@8", *SIGNATURE[1:]), M=512, N=512, K=64),
        text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64, **{"x.pitch": 72}),
        text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64, **{"w.pitch": 72}),
        text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64, **{"w.pitch": 80}),
    ]
    assert text("gelu(x @ w.T + b)", SIGNATURE, M=512, N=512, K=64, **{"x.pitch": 64}) == one
    assert len({one, *others}) == len(others) + 1
    assert canonical(fused().program(*SIGNATURE), {"M": 1}) is None


def test_the_name_of_a_schedule_does_not_tell_it_apart():
    one = timed().schedule
    assert candidate_key(one) == candidate_key(replace(one, name="other"))
    assert candidate_key(one) != candidate_key(timed(stages=5).schedule)


# --- looking up
def test_a_look_up_finds_exactly_the_problem_and_creates_nothing(folder):
    assert look_up() is None and list(folder.iterdir()) == []
    enter()
    before = sorted(path.name for path in folder.iterdir())
    found = look_up()
    assert found.schedule == timed().schedule and not found.stale
    assert "60.0 us on GPU" in found.origin and "first choice" in found.origin
    assert look_up(M=2048) is None
    assert best(program(), device("sm_80"), SIZES) is None
    assert sorted(path.name for path in folder.iterdir()) == before
    with knobs.scope(cache=False):
        assert look_up() is None


def test_a_replayed_result_is_not_taken_for_a_measurement(folder):
    enter(source="replay")
    assert look_up() is None


def test_a_stale_result_says_so_and_gives_way_to_a_current_one(folder):
    enter(STALE, timed("old", 50.0))
    found = look_up()
    assert found.stale and found.schedule.name == "old" and "another version" in found.origin
    enter(CURRENT, timed("new", 60.0))
    assert look_up().schedule.name == "new"
    with Records() as records:
        stale = list(records.stale_best(records.problem(target()), CURRENT))
    assert [one.name for one in stale] == ["old"]


def test_a_gpu_that_is_present_comes_first(folder, monkeypatch):
    enter(found=timed("mine"), gpu="GPU")
    enter(found=timed("other"), gpu="Other GPU")
    for name, wanted in (("GPU", "mine"), ("Other GPU", "other")):
        monkeypatch.setattr(module, "_present", lambda name=name: frozenset([name]))
        assert look_up().schedule.name == wanted


@pytest.mark.parametrize(
    "content", [b"", b"not a database" * 100, b"SQLite format 3\0" + b"\0" * 4096]
)
def test_a_damaged_file_warns_once_and_is_ignored(folder, content):
    module.location().write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert look_up() is None and look_up() is None
    assert len(caught) == 1 and "Tuned schedules are not used" in str(caught[0].message)


def test_a_damaged_file_stops_a_tuner_before_it_works(folder):
    module.location().write_bytes(b"not a database" * 100)
    with pytest.raises(CacheError, match=r"cannot be used.*Remove the file"):
        Records()


def test_another_format_is_refused(folder):
    enter()
    with sqlite3.connect(module.location()) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(CacheError, match="format is 99"):
        Records()


def test_a_folder_that_cannot_be_made_is_refused(folder):
    (folder / "file").write_text("")
    with pytest.raises(CacheError), knobs.scope(cache_dir=folder / "file" / "below"):
        Records()


def test_a_read_only_folder_can_be_read(folder):
    enter()
    for path in folder.iterdir():
        path.chmod(0o400)
    folder.chmod(0o500)
    try:
        assert look_up() is not None  # (root may write anyway: the URI is what makes it read-only)
        assert sorted(path.name for path in folder.iterdir()) == [module.FILE]
    finally:
        folder.chmod(0o700)


def test_a_look_up_sees_what_a_writer_that_is_still_open_has_written(folder):
    with Records() as records:
        number = records.problem(target())
        records.measure(number, CURRENT, timed())
        records.conclude(number, CURRENT, timed(), ("first", 75.0), finished=True)
        assert look_up() is not None


def test_a_writer_that_holds_the_file_does_not_stop_a_look_up(folder):
    enter()
    with Records() as records:
        records._run("BEGIN EXCLUSIVE")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert look_up() is not None


# --- measurements
def test_a_later_round_replaces_an_earlier_one_and_not_the_other_way_round(folder):
    with Records() as records:
        number = records.problem(target())
        assert records.problem(target()) == number
        records.measure(number, CURRENT, timed(microseconds=60, rung=2))
        records.measure(number, CURRENT, timed(microseconds=50, rung=0))
        records.measure(number, CURRENT, timed(microseconds=70, rung=0, stages=5))
        records.measure(number, STALE, timed(microseconds=10, rung=3))
        found = records.measured(number, CURRENT)
    assert sorted((m.microseconds, m.rung) for m in found.values()) == [(60, 2), (70, 0)]


def test_an_export_is_what_a_replay_reads(folder):
    enter()
    refused = replace(timed("bad", stages=7), state="refused", reason="why", microseconds=None)
    with Records() as records:
        records.measure(records.problem(target()), CURRENT, refused)
        path = folder / "record.json"
        assert export(records, path, "GPU") == 1
        with pytest.raises(PolygenError, match="nothing was measured on Other"):
            export(records, path, "Other")
    (problem,) = read(path)
    assert problem.times == ((timed().schedule, 60.0),) and dict(problem.sizes) == SIZES
    raw = json.loads(path.read_text())
    assert raw["problems"][0]["refused"] == {"bad": "refused: why"}
    assert raw["provenance"]["sources"] == [generator_digest()]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "problems": []}'])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(PolygenError, match="no record of measured schedules"):
        read(path)
