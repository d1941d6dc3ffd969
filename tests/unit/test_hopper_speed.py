"""The measurements beside other libraries, as far as they need no GPU: what runs, what is kept."""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu import contenders, hopper_speed, measuring
from gpu.contenders import CUBLAS, INDUCTOR, LT, SEPARATE, Row, all_rows, selected
from gpu.hopper_speed import Clock, merged, summary, table, tuned, unfinished

import polygen as pg
from polygen.runtime.child import Lost, Stage, Watched

ABOUT = {"schedule": "big", "schedule_origin": "shipped", "registers": 128}
KERNEL = {"kernel": b"", "about": ABOUT}


def times(row: Row, ours: float, **peers: float) -> dict[str, Any]:
    """What the child answers for a row."""
    names = {"separate": SEPARATE, "lt": LT, "inductor": INDUCTOR, "cublas": CUBLAS}
    found = {"polygen": [ours] * 3, **{names[name]: [us] * 3 for name, us in peers.items()}}
    skipped = {} if "inductor" in peers else {INDUCTOR: f"{hopper_speed.NO_TIME}, 1 s, was over"}
    line = {"graph": ours < 60, "errors": {}, "skipped": skipped, "sm_mhz": 1755}
    return line | contenders.ratios(row, found)


def line(row: Row, ours: float, **peers: float) -> dict[str, Any]:
    """A line of the record."""
    return hopper_speed.heading(row) | ABOUT | {"run": 0} | times(row, ours, **peers)


MM = Row("mm", 4096, 4096, 4096)
RELU, GELU = (Row(op, 4096, 4096, 4096) for op in ("bias_relu", "bias_gelu"))
RESIDUAL = Row("bias_residual_relu", 16384, 1024, 1024)
LINES = [
    line(MM, 200, cublas=180, lt=178, inductor=190),
    line(Row("mm", 8192, 8192, 8192), 1500, cublas=1600, lt=1650),
    line(RELU, 100, separate=240, lt=200, inductor=250),
    line(GELU, 100, separate=260, lt=210, inductor=50),
    line(RESIDUAL, 50, separate=140, lt=130, inductor=80),
    hopper_speed.heading(Row("bias_silu_mul", 4096, 4096, 4096)) | {"run": 0, "error": "wrong"},
]


# --- rows
def test_every_shape_has_every_op_and_the_telling_rows_come_first():
    rows = all_rows()
    assert len(rows) == len(set(rows)) == 5 * 16
    assert {row.op for row in rows} == set(contenders.FUNCTIONS) == set(contenders.EXPRESSIONS)
    assert rows[0] == MM and (rows[4].m, rows[4].k) == (8192, 8192)
    assert [row.op for row in rows[-16:]] == ["bias_relu"] * 16
    assert len([row for row in rows if row.dtype == "f16"]) == 10


def test_rows_are_selected_by_their_keys():
    assert selected("") == all_rows()
    assert [row.key for row in selected("gelu bf16 4096x4096x4096$")] == [
        "bias_gelu bf16 4096x4096x4096"
    ]
    assert {row.op for row in selected("^mm ")} == {"mm"} and len(selected("^mm ")) == 16
    assert selected("tf32") == []


@pytest.mark.parametrize("op", contenders.FUNCTIONS)
def test_polygen_reads_every_op(op):
    row = Row(op, 256, 384, 128)
    program = pg.fuse(contenders.FUNCTIONS[op], name=op).program(*row.signature, sizes=row.sizes)
    assert [tensor.name for tensor in program.inputs] == list(contenders.OPERANDS[op])


def test_a_kernel_survives_the_way_from_process_to_process(tmp_path):
    row = Row("bias_relu", 256, 256, 64)
    made = contenders.compiled(row, "sm_90a", "auto")
    assert made["about"]["registers"] > 0 and isinstance(made["kernel"], bytes)
    assert contenders.revived(made["kernel"]).schedule.name == made["about"]["schedule"]
    assert contenders.revived((row, "sm_90a", "auto")).source == (
        contenders.revived(made["kernel"]).source
    )
    broken = tmp_path / "broken.toml"
    broken.write_text("format = 1\nstages = 3\n")
    assert "unknown key" in contenders.compiled(row, "sm_90a", str(broken))["error"]


# --- figures
def test_ratios_are_of_medians_and_name_the_best_library():
    found = contenders.ratios(MM, {"polygen": [9, 10, 30], CUBLAS: [8, 8, 8], LT: [7, 20, 21]})
    assert found["microseconds"] == {"polygen": 10, CUBLAS: 8, LT: 20}
    assert found["p25_p75"]["polygen"] == [9.5, 20]
    assert found["ratio"] == {CUBLAS: 0.8, LT: 2.0} and found["best"] == CUBLAS
    assert found["inductor_us"] is None
    assert found["tflops"] == round(2 * 4096**3 / 10 / 1e6, 1)
    assert contenders.ratios(MM, {"polygen": [1.0]})["best"] is None


def test_the_bounds_refuse_nan():
    assert contenders.wrong("bf16", (1e-3, 1e-3)) is None
    assert "Frobenius" in contenders.wrong("bf16", (6e-3, 1e-3))
    assert "largest" in contenders.wrong("f16", (5e-4, 0.1))
    assert contenders.wrong("bf16", (math.nan, 0.0)) and contenders.wrong("bf16", (0.0, math.nan))
    assert contenders.short((0.00123456, math.nan)) == [0.00123, None]


def test_the_summary_takes_the_fastest_library_and_leaves_errors_out():
    found = summary(LINES)
    plain = found["mm_best"]
    assert plain["rows"] == 2 and plain["without_inductor"] == 1
    assert np.isclose(plain["geomean"], math.sqrt(178 / 200 * 1600 / 1500), atol=1e-4)
    assert (plain["min"], plain["min_row"]) == (0.89, MM.key)
    assert found["activation_best"]["geomean"] == 1.0  # 2 and 0.5
    assert found["others_best"]["geomean"] == 1.6 and found["others_best"]["rows"] == 1
    separate = found["fused_separate"]
    assert separate["rows"] == 3 and separate["without_inductor"] == 0
    assert (separate["max"], separate["max_row"]) == (2.8, RESIDUAL.key)
    assert np.isclose(separate["geomean"], (2.4 * 2.6 * 2.8) ** (1 / 3), atol=1e-4)


def test_a_summary_of_nothing_has_no_figures():
    assert {found["geomean"] for found in summary([]).values()} == {None}
    assert measuring.geometric_mean([]) is None
    assert measuring.geometric_mean([2.0, 8.0]) == pytest.approx(4)


def test_the_table_says_all_there_is():
    text = table({"rows": LINES})
    assert "mm bf16 4096x4096x4096                        200.0  0.890  cuBLASLt\n" in text
    assert "1.067  cuBLAS (no Inductor)" in text
    assert "1.600  Inductor*" in text and "error  wrong" in text
    assert "all fused rows, beside cuBLAS and separate kernels" in text
    assert max(map(len, text.splitlines()[: len(LINES) + 2])) < 90


# --- what is kept
def test_resuming_skips_what_is_there_and_right():
    rows = all_rows()
    left = unfinished(rows, LINES)
    assert len(left) == len(rows) - 5
    assert MM not in left and Row("bias_silu_mul", 4096, 4096, 4096) in left
    again = unfinished(rows, LINES, refill=True)
    assert set(again) - set(left) == {Row("mm", 8192, 8192, 8192)}
    partial = {"key": MM.key, "candidates": [], "partial": True}
    assert unfinished([MM], [partial]) == [MM]
    assert unfinished([MM], [{**partial, "partial": False}]) == []


def test_lines_are_kept_shape_by_shape_and_replaced():
    lines: list[dict[str, Any]] = []
    for found in (LINES[4], LINES[2], LINES[0], LINES[3]):
        lines = merged(lines, found, all_rows())
    keys = [found["key"] for found in lines]
    assert keys == [MM.key, GELU.key, RELU.key, RESIDUAL.key]
    lines = merged(lines, {**LINES[0], "run": 7}, all_rows())
    assert len(lines) == 4 and lines[0]["run"] == 7


def test_records_are_written_whole_and_read_again(tmp_path):
    path = tmp_path / "record.json"
    empty = hopper_speed.loaded(path, "peers", resume=True)
    assert empty["rows"] == []
    measuring.write_record(path, empty | {"rows": LINES, "provenance": {"date": "then"}})
    assert list(tmp_path.iterdir()) == [path]
    again = hopper_speed.loaded(path, "peers", resume=True)
    assert again["rows"] == json.loads(json.dumps(LINES))
    assert again["earlier_runs"] == [{"date": "then"}]
    assert hopper_speed.loaded(path, "peers", resume=False)["rows"] == []
    with pytest.raises(SystemExit, match="no record of this kind"):
        hopper_speed.loaded(path, "tuning", resume=True)


# --- the parent, with a child that only answers
class Child:
    """Takes jobs as the child process does, and remembers them."""

    def __init__(self, seconds: float = 10, lost: dict[str, Lost] | None = None) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.now, self._seconds, self._lost = 0.0, seconds, lost or {}

    def __call__(self, job: dict[str, Any]) -> dict[str, Any]:
        self.jobs.append(job)
        self.now += self._seconds
        lost = self._lost.get(job["row"].key)
        if lost is not None and (lost.stage != "inductor" or job["no_inductor"] is None):
            raise lost
        peers = {} if job["no_inductor"] else {"inductor": 120.0}
        return times(job["row"], 100, separate=200, lt=150, **peers)


def run(child: Child, budget: float = 100, share: float = 0.5, rows: str = "4096x4096x4096"):
    record = hopper_speed.loaded(Path("none"), "peers", resume=False)
    saved: list[int] = []
    clock = Clock(budget, share, lambda: child.now)
    hopper_speed.measure(
        selected(rows), lambda row: KERNEL, child, clock, record,
        lambda: saved.append(len(record["rows"])),
    )  # fmt: skip
    return record, saved


def test_inductor_stops_at_its_share_and_rows_at_the_budget(capsys):
    child = Child()
    record, saved = run(child)
    assert saved == [*range(1, 11)] and record["unfinished"] == []
    reasons = [job["no_inductor"] for job in child.jobs]
    assert reasons == [None] * 5 + ["its share of the time, 50 s, was over"] * 5
    assert [found["inductor_us"] for found in record["rows"]].count(None) == 5
    assert record["summary"]["fused_separate"]["geomean"] == 2.0
    assert "[  10 s] mm bf16 4096x4096x4096: 100.0 us, 1.200 Inductor" in capsys.readouterr().out
    record, _ = run(Child(), budget=35)
    assert len(record["rows"]) == 4 and len(record["unfinished"]) == 6
    record, _ = run(Child(), share=0)
    assert {found["inductor_us"] for found in record["rows"]} == {None}


def test_a_row_whose_child_is_lost_is_an_error_and_the_next_goes_on():
    child = Child(lost={MM.key: Lost("polygen", "no answer within 20 s")})
    record, _ = run(child, rows="bf16 4096x4096x4096")
    assert record["rows"][0]["error"] == "polygen: no answer within 20 s"
    assert record["rows"][0]["schedule"] == "big"
    assert [found.get("error") for found in record["rows"][1:]] == [None] * 4
    assert record["unfinished"] == [MM.key]


def test_a_row_that_inductor_loses_is_measured_without_it():
    child = Child(lost={MM.key: Lost("inductor", "no answer within 150 s")})
    record, _ = run(child, rows="mm bf16 4096x4096x4096")
    assert [job["no_inductor"] for job in child.jobs] == [
        None,
        "compiling: no answer within 150 s",
    ]
    assert record["rows"][0]["ratio"] == {SEPARATE: 2.0, LT: 1.5}


def test_a_child_that_does_not_start_ends_the_run():
    child = Child(lost={MM.key: Lost("start", "no CUDA")})
    with pytest.raises(Lost, match="no CUDA"):
        run(child, rows="mm bf16 4096x4096x4096")


def test_a_kernel_that_cannot_be_compiled_is_an_error():
    made = hopper_speed.measured(MM, {"error": "why"}, Child(), None)
    assert made["error"] == "why" and made["key"] == MM.key


# --- tuning
class Tuner:
    """A child that times schedules by their numbers; some hang."""

    def __init__(self, hangs: str = "", later: str = "") -> None:
        self.batches: list[list[str]] = []
        self._hangs, self._later = hangs, later

    def __call__(self, job: dict[str, Any]) -> dict[str, Any]:
        names = list(job["kernels"])
        self.batches.append(names)
        if self._hangs in names:
            raise Lost(f"check {self._hangs}", "no answer within 20 s")
        if self._later in names:
            raise Lost("time", "no answer within 90 s")
        good = [name for name in names if name != "s0"]
        return {
            "refused": {"s0": "wrong result"} if "s0" in names else {},
            "errors": {name: [0.001, 0.001] for name in good},
            "reference": {"name": CUBLAS, "microseconds": 100.0},
            "graph": False,
            "times": {name: [0, 50.0 + int(name[1:]), 99] for name in good},
        }


def tuning_kernels(count: int) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {f"s{n}": KERNEL for n in range(count)}
    return made | {"bad": {"error": "does not fit"}}


def test_tuning_sorts_what_runs_and_names_what_does_not(capsys):
    child = Tuner()
    found = tuned(MM, tuning_kernels(20), child, lambda: False)
    assert list(map(len, child.batches)) == [12, 8]
    assert [c["name"] for c in found["candidates"]] == [f"s{n}" for n in range(1, 20)]
    assert found["refused"] == {"bad": "does not fit", "s0": "wrong result"}
    assert found["candidates"][0]["ratio"] == round(100 / 51, 4) and not found["partial"]
    text = hopper_speed.tuning_table(found)
    assert text.startswith("mm bf16 4096x4096x4096: 19 timed, 2 refused")
    assert "51.0 us  1.961  s1" in text and "refused 1x: wrong result" in text


def test_a_schedule_that_hangs_is_left_out():
    child = Tuner(hangs="s5")
    found = tuned(MM, tuning_kernels(12), child, lambda: False)
    assert list(map(len, child.batches)) == [12, 11]
    assert found["refused"]["s5"] == "check s5: no answer within 20 s"
    assert len(found["candidates"]) == 10


def test_a_schedule_that_hangs_later_is_found_alone():
    child = Tuner(later="s3")
    found = tuned(MM, tuning_kernels(5), child, lambda: False)
    assert list(map(len, child.batches)) == [5, 1, 1, 1, 1, 1]
    assert found["refused"]["s3"] == "time: no answer within 90 s"
    assert [c["name"] for c in found["candidates"]] == ["s1", "s2", "s4"]


def test_tuning_ends_with_the_time():
    found = tuned(MM, tuning_kernels(5), Tuner(), lambda: True)
    assert found["candidates"] == [] and found["partial"]
    assert found["refused"]["s2"] == "no time left"


def test_schedule_files_of_folders_and_patterns(tmp_path):
    (tmp_path / "deeper").mkdir()
    for name in ("a.toml", "deeper/b.toml", "c.txt"):
        (tmp_path / name).write_text("")
    both = [tmp_path / "a.toml", tmp_path / "deeper/b.toml"]
    assert hopper_speed.schedule_files([str(tmp_path)]) == both
    assert hopper_speed.schedule_files([f"{tmp_path}/*.toml", f"{tmp_path}/deep*"]) == both
    assert hopper_speed.schedule_files([f"{tmp_path}/nothing"]) == []


# --- the command
def test_the_command_lists_rows_and_refuses_empty_choices(capsys, tmp_path, monkeypatch):
    out = str(tmp_path / "out.json")
    assert hopper_speed.main([out, "--list", "--rows", "^mm f16"]) == 0
    assert capsys.readouterr().out == "mm f16 4096x4096x4096\nmm f16 8192x6144x4096\n"
    with pytest.raises(SystemExit, match="no row"):
        hopper_speed.main([out, "--rows", "nothing"])
    with pytest.raises(SystemExit, match="no schedule file"):
        hopper_speed.main([out, "--schedules", str(tmp_path)])
    monkeypatch.setattr(hopper_speed, "current_arch", lambda: None)
    with pytest.raises(SystemExit, match="no GPU"):
        hopper_speed.main([out])


class FakeCompiler:
    """In place of the pool of processes."""

    def __init__(self, arch: str, processes: int) -> None:
        self.closed = False

    def submit(self, row: Row, schedule: str = "auto") -> None: ...

    def result(self, row: Row, schedule: str = "auto", limit: float = 0) -> dict[str, Any]:
        return KERNEL

    def close(self) -> None:
        self.closed = True


class FakeBench:
    """In place of the child process."""

    jobs: list[str]

    def __init__(self, make: Any, log: Path) -> None:
        FakeBench.jobs = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["do"] == "about":
            return {"torch": "2.11", "cuda": "13.0", "triton": "3.6", "cupy": "14.2"}
        FakeBench.jobs.append(job["row"].key)
        return times(job["row"], 100, separate=200, lt=150, inductor=120)


def test_a_run_and_its_continuation(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(hopper_speed, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(hopper_speed, "Compiler", FakeCompiler)
    monkeypatch.setattr(hopper_speed, "Watched", FakeBench)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "16")
    out = tmp_path / "results" / "out.json"
    assert hopper_speed.main([str(out), "--rows", "gelu bf16 .*x4096$"]) == 0
    first = FakeBench.jobs
    assert first[0] == GELU.key and len(first) == 5
    shown = capsys.readouterr().out
    assert "geomean 1.200" in shown and shown.endswith("0 errors, 0 rows not done\n")
    assert hopper_speed.main([str(out), "--rows", "gelu bf16", "--resume"]) == 0
    assert len(FakeBench.jobs) == 9 and not set(FakeBench.jobs) & set(first)
    record = json.loads(out.read_text())
    assert record["kind"] == "peers" and len(record["rows"]) == 14
    assert [found["run"] for found in record["rows"]].count(0) == 5
    made = record["provenance"]
    assert made["command"].endswith("--rows 'gelu bf16' --resume") and made["torch"] == "2.11"
    assert made["environment"]["TORCHINDUCTOR_COMPILE_THREADS"] == "16"
    assert len(made["sources"]) == 12 and made["date"].endswith("+00:00")


# --- the child process
def handler() -> Any:
    """Does what jobs say, in a process of its own."""
    kept: list[Any] = []

    def handle(job: dict[str, Any], stage: Stage) -> Any:
        kept.append(job)
        stage(job.get("stage", "work"), job.get("limit", 30.0))
        if job["do"] == "hang":
            time.sleep(600)
        if job["do"] == "die":
            os._exit(7)
        if job["do"] == "fail":
            raise ValueError("the card\nis gone")
        print("worked")
        return os.getpid(), len(kept)

    return handle


def broken() -> Any:
    raise RuntimeError("no CUDA")


def test_a_child_that_hangs_dies_or_fails_is_replaced(tmp_path):
    log = tmp_path / "log"
    worker = Watched(handler, log=log)
    try:
        first, count = worker.ask({"do": "work"})
        assert (first, 2) == worker.ask({"do": "work", "padding": b"x" * 1_000_000})
        start = time.monotonic()
        with pytest.raises(Lost, match=r"check: no answer within 0.2 s") as caught:
            worker.ask({"do": "hang", "stage": "check", "limit": 0.2})
        assert caught.value.stage == "check" and time.monotonic() - start < 30
        second, count = worker.ask({"do": "work"})
        assert second != first and count == 1
        with pytest.raises(Lost, match="the process ended with 7"):
            worker.ask({"do": "die"})
        with pytest.raises(Lost, match="ValueError: the card is gone"):
            worker.ask({"do": "fail"})
        assert worker.ask({"do": "work"})[1] == 1
    finally:
        worker.stop()
        worker.stop()
    assert log.read_text().count("worked") == 4 and "ValueError" in log.read_text()


def test_a_child_that_cannot_start_says_why():
    worker = Watched(broken)
    with pytest.raises(Lost, match="start: RuntimeError: no CUDA"):
        worker.ask({"do": "work"})
    worker.stop()


def test_jobs_can_be_sent():
    job = {"do": "row", "row": MM, "kernel": b"", "no_inductor": None}
    assert pickle.loads(pickle.dumps(job)) == job
    assert Watched(contenders.Bench)  # by name, and without PyTorch here
