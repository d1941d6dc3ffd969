"""Shipped schedules chosen from measurements: few files, the right one for every problem."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from polygen.errors import ScheduleFileError
from polygen.hardware.device import device
from polygen.schedule.load import dumps, load_schedule, shipped
from polygen.schedule.problem import Fitted, Problem
from polygen.schedule.tuned import Tuned, dump_tuned, read_tuned, tuned
from polygen.tune.measured import Measured, read_record
from polygen.tune.schedule_name import schedule_name
from polygen.tune.ship import chosen, cover, main

D = device("sm_90a")
PROBLEM = Problem(4096, 4096, 512, matrices=1, pointwise=True, k_inner=(True, False))


def test_a_file_gives_back_what_was_written(tmp_path):
    entries = {
        PROBLEM: Tuned("a", 12.5, "GPU"),
        Problem(3000, 3000, 3000, astride=(0.875, 0.875)): Tuned("b", 85.0, "GPU"),
    }
    (tmp_path / "gpu.toml").write_text(dump_tuned("GPU", entries))
    assert read_tuned(tmp_path / "gpu.toml") == entries


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("m = 4096", "m = 4096.0"), "m = 4096.0 is no int"),
        (("m = 4096", "rows = 4096"), "no field is called rows"),
        (("m = 4096", ""), "m: missing"),
        (('schedule = "a"', ""), "schedule: missing"),
        (("format = 1", "format = 2"), "format: 2 cannot be read"),
        (('gpu = "GPU"', ""), "gpu: missing"),
        (("format = 1", "format ="), "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path, change, message):
    text = dump_tuned("GPU", {PROBLEM: Tuned("a", 12.5, "GPU")})
    assert change[0] in text
    path = tmp_path / "gpu.toml"
    path.write_text(text.replace(*change))
    with pytest.raises(ScheduleFileError, match=message):
        read_tuned(path)


def test_what_is_shipped_names_schedules_that_are_shipped():
    names = {schedule.name for schedule in shipped(D)}
    missing = {best.schedule for best in tuned(D).values()} - names
    assert not missing


def test_few_names_cover_all_and_what_is_there_comes_first():
    good = [{"a": 1.0, "b": 1.0}, {"b": 2.0, "c": 1.9}, {"c": 3.0}, {"old": 5.0, "c": 4.9}]
    assert cover(good, []) == ["a", "c", "c", "c"]
    assert cover(good, ["old"]) == ["b", "c", "c", "c"], "c is there for others, and faster"
    assert cover(good[3:], ["old"]) == ["old"], "no new file for what an old one does as well"
    assert cover([{"a": 1.0}, {"b": 1.0, "a": 1.1}], []) == ["a", "a"]


def _record(times: dict[str, float]) -> dict[str, object]:
    known = {schedule.name: schedule for schedule in shipped(D)}
    base = known["pingpong_128x128x64"]
    tables = [{**tomllib.loads(dumps(known.get(name, base))), "name": name} for name in times]
    rows = [{"schedule": n, "microseconds": time} for n, time in enumerate(times.values())]
    problem = {
        "op": "mm", "expression": "x @ w.T", "signature": ["x:bf16[M,K]", "w:bf16[N,K]"],
        "sizes": {"M": 512, "N": 640, "K": 768}, "arch": "sm_90a", "measurements": rows,
    }  # fmt: skip
    return {
        "format": 1, "provenance": {"gpu": {"name": "My GPU 3"}}, "schedules": tables,
        "problems": [problem],
    }  # fmt: skip


def test_ship_writes_new_schedules_and_the_index(tmp_path, capsys):
    record = tmp_path / "record.json"
    record.write_text(json.dumps(_record({"brand_new": 10.0, "pingpong_128x128x64": 10.2})))
    assert main([str(record), "--fewest", "1", "--schedules", str(tmp_path)]) == 0
    assert load_schedule(tmp_path / "sm_90a" / "brand_new.toml").name == "brand_new"
    found = read_tuned(tmp_path / "sm_90a" / "tuned" / "my_gpu_3.toml")
    assert found == {Problem(512, 640, 768): Tuned("brand_new", 10.0, "My GPU 3")}
    assert "1 problems, 1 new schedules" in capsys.readouterr().out
    assert (
        main([str(record), "--fewest", "1", "--schedules", str(tmp_path / "b"), "--within", "1.05"])
        == 0
    )
    assert [p.name for p in (tmp_path / "b" / "sm_90a").iterdir()] == ["tuned"], "the old one does"


def test_ship_keeps_what_no_record_has(tmp_path):
    record, file = tmp_path / "record.json", tmp_path / "sm_90a" / "tuned" / "my_gpu_3.toml"
    others = {
        Problem(512, 640, 768): Tuned("before", 20.0, "My GPU 3"),
        Problem(1, 2, 3): Tuned("another", 5.0, "My GPU 3"),
    }
    for keep in ([], ["--keep"]):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump_tuned("My GPU 3", others))
        record.write_text(json.dumps(_record({"brand_new": 10.0})))
        given = [str(record), "--fewest", "1", "--schedules", str(tmp_path), *keep]
        assert main(given) == 0
        kept = {Problem(1, 2, 3): others[Problem(1, 2, 3)]} if keep else {}
        now = {Problem(512, 640, 768): Tuned("brand_new", 10.0, "My GPU 3")}
        assert read_tuned(file) == kept | now


def test_ship_refuses_what_makes_no_sense(tmp_path, capsys):
    record = tmp_path / "record.json"
    record.write_text(json.dumps(_record({"brand_new": 10.0})))
    other = _record({"brand_new": 10.0})
    other["provenance"] = {"gpu": {"name": "another"}}
    second = tmp_path / "second.json"
    second.write_text(json.dumps(other))
    assert (
        main([str(record), "--fewest", "1", "--within", "0.9", "--schedules", str(tmp_path)]) == 2
    )
    assert main([str(record), str(second), "--fewest", "1", "--schedules", str(tmp_path)]) == 2
    assert main([str(tmp_path / "none.json"), "--schedules", str(tmp_path)]) == 2
    messages = capsys.readouterr().err
    assert "--within 0.9" in messages and "records of My GPU 3, another" in messages
    assert main([str(record), "--schedules", str(tmp_path)]) == 2
    assert "no problem has 8 measured schedules" in capsys.readouterr().err
    assert not (tmp_path / "sm_90a").exists(), "nothing is written"


def test_what_was_measured_before_roles_fitted_does_not_ship(tmp_path, capsys):
    """f16 sums were products of single warps once; where roles do not fit, they still are."""
    names = [schedule.name for schedule in shipped(D) if not schedule.specialised][:2]
    record = _record(dict.fromkeys(names, 10.0))
    problem = record["problems"][0]
    problem |= {"signature": ["x:f16[M,K]", "w:f16[N,K]"], "acc_dtype": "f16"}
    wide = {"signature": ["x:f64[M,K]", "w:f64[N,K]"], "acc_dtype": None, "out_dtype": "f64"}
    record["problems"] = [problem, problem | wide | {"sizes": {"M": 512, "N": 640, "K": 768}}]
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    assert [one.partial for one in read_record(path)] == [True, False]
    assert main([str(path), "--fewest", "1", "--schedules", str(tmp_path)]) == 0
    found = read_tuned(tmp_path / "sm_90a" / "tuned" / "my_gpu_3.toml")
    assert [one.k for one in found] == [768]
    assert "1 problems" in capsys.readouterr().out


def test_what_was_measured_before_few_rows_had_schedules_does_not_ship(tmp_path, capsys):
    """Only where one of them is predicted faster: 16 rows, and not 4096."""
    usual = [one.name for one in shipped(D) if not one.for_few_rows]
    few = next(one.name for one in shipped(D) if one.exchange)
    measured = ["16x64x128_w16x16_s6", "cooperative_128x256x64"]
    assert set(measured) <= set(usual)
    record = _record(dict.fromkeys([*measured, few], 18.0))
    (problem,) = record["problems"]
    *before, _ = problem["measurements"]

    def of(rows, times, **given):
        kept = [one | given for one in times]
        return problem | {"sizes": {"M": rows, "N": 4096, "K": 4096}, "measurements": kept}

    slow = {"microseconds": 182.0}
    record["problems"] = [
        of(16, before), of(16, problem["measurements"]), of(16, before, microseconds=9.0),
        of(4096, before, **slow),
    ]  # fmt: skip
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    assert [one.partial for one in read_record(path)] == [True, False, False, False]
    record["problems"] = [of(16, before), of(4096, before, **slow)]
    path.write_text(json.dumps(record))
    assert main([str(path), "--fewest", "1", "--schedules", str(tmp_path)]) == 0
    found = read_tuned(tmp_path / "sm_90a" / "tuned" / "my_gpu_3.toml")
    assert [one.m for one in found] == [4096]
    assert "1 problems" in capsys.readouterr().out


@pytest.mark.slow
def test_what_ships_was_measured_beside_all_that_matters():
    """No entry is what a record of before says that leaves its problem to the model."""
    entries, results = tuned(D), Path(__file__).parents[3] / "docs" / "results"
    partial, whole = {}, set()
    for name in ("h200_tuned", "h200_exchanged_tuned", "h200_few_and_odd_tuned"):
        for one in read_record(results / f"{name}.json"):
            best = entries.get(one.problem)
            if best and best.schedule in {fitted.schedule.name for fitted in one.schedules}:
                partial.setdefault(one.problem, one.name) if one.partial else whole.add(one.problem)
    assert len(whole) > 20
    assert {name for problem, name in partial.items() if problem not in whole} == set()


def test_another_way_out_is_another_schedule():
    """Records keep the name of a fit; what ships is named after the way out that was measured."""
    tma = next(s for s in shipped(D) if s.name == "pingpong_128x128x64")
    direct = replace(tma, epilogue=replace(tma.epilogue, through="registers"))
    problem = Problem(4096, 4096, 64)
    fitted = (Fitted(tma, 1), Fitted(direct, 1))
    measured = Measured("mm", "4096", D, "GPU", problem, fitted, np.array([9.0, 8.0]), (9, 9))
    rows, new = chosen([measured], 1.01)
    assert [(name, time) for _, name, time in rows] == [("pingpong_128x128x64_registers", 8.0)]
    assert new == {rows[0][1]: replace(direct, name=rows[0][1])}
    assert schedule_name(direct).endswith("_registers")
