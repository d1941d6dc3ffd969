"""Standard streams as scripts and machines leave them: full, closed, with another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polygen import errors, knobs
from polygen.cli import main

ROOT = Path(__file__).parents[2]
GOOD = ["x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"]


def shell(text, folder=None, **environment):
    """Run a line of shell in which $polygen is the command."""
    found = {**os.environ, "PYTHONPATH": str(ROOT), "polygen": f"{sys.executable} -m polygen"}
    return subprocess.run(
        ["sh", "-c", text], capture_output=True, text=True, cwd=folder, env=found | environment
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "words", ["targets", "targets --json", "--help", "--version", "show --help", "cache info"]
)
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_an_error(words, buffered):
    done = shell(f"$polygen {words} >/dev/full", PYTHONUNBUFFERED=buffered)
    assert done.returncode == 2
    assert done.stderr.startswith("polygen: stdout: the output cannot be written (No space left")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_long_output_on_a_full_disk_is_an_error():
    done = shell(f"$polygen show '{GOOD[0]}' {' '.join(GOOD[1:])} --stage cuda >/dev/full")
    assert done.returncode == 2 and "No space left" in done.stderr


@pytest.mark.parametrize("words", ["targets", "targets --json"])
def test_a_closed_output_is_an_error(words):
    done = shell(f"$polygen {words} >&-")
    assert done.returncode == 2
    assert done.stderr.startswith("polygen: stdout: the output cannot be written (it is closed)")


def test_an_output_that_the_program_closes_is_an_error(tmp_path):
    up = "def up(x, w):\n    return x @ w.T\n"
    (tmp_path / "model.py").write_text(f"import sys\nsys.stdout.close()\n{up}")
    done = shell(f"$polygen show model.py:up {' '.join(GOOD[1:])}", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("polygen: stdout: the output cannot be written (it is closed)")


@pytest.mark.parametrize(
    "line", ["sys.stdout = None", "sys.stderr = sys.stdout = None", "sys.path.clear()"]
)
def test_a_program_cannot_take_the_streams_away(line, tmp_path):
    up = "def up(x, w):\n    return x @ w.T\n"
    (tmp_path / "model.py").write_text(f"import sys\n{line}\n{up}")
    words = f"model.py:up {' '.join(GOOD[1:])} --stage program"
    done = shell(f"$polygen show {words}", tmp_path)
    assert done.returncode == 0 and "x @ w.T" in done.stdout, done.stderr
    done = shell(f"$polygen show model.py:down {' '.join(GOOD[1:])}", tmp_path)
    assert done.returncode == 2 and "no function is called 'down'" in done.stderr


def test_files_do_not_get_the_number_of_a_closed_stream(tmp_path):
    words = f"generate '{GOOD[0]}' {' '.join(GOOD[1:])} --name up -o out"
    done = shell(f"$polygen {words} <&- >&- 2>&-", tmp_path)
    assert done.returncode == 2 and (done.stdout, done.stderr) == ("", "")
    text = (tmp_path / "out" / "pg_up.cu").read_text()
    assert text.startswith("// compiled by NVRTC") and text.endswith("#endif\n")


def test_closed_errors_do_not_change_the_exit_code():
    assert shell("$polygen targets 2>&-").returncode == 0
    assert shell("$polygen show 2>&-").returncode == 2
    assert shell("$polygen show 2>/dev/full").returncode == 2


def test_a_reader_that_leaves_is_no_error():
    done = shell("$polygen targets --json | head -1")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_encoding_that_lacks_a_character(tmp_path):
    file = tmp_path / "größer.toml"
    file.write_text("format = 1\n")
    words = f"show '{GOOD[0]}' {' '.join(GOOD[1:])} --schedule {file}"
    done = shell(f"$polygen {words}", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"gr\xf6\xdfer.toml" in done.stdout


# --- errors for programs
def as_json(capsys, *words):
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert err.startswith("polygen: ")
    found = json.loads(out)
    assert found["ok"] is False
    return found["error"], err


@pytest.mark.parametrize("command", ["generate", "show", "check"])
def test_an_error_has_its_parts(capsys, command):
    error, said = as_json(capsys, command, *GOOD[:-1], "sm_81", "--json", "--size", "M=1")
    assert error["kind"] == "UnknownTarget" and "Nearest: sm_80" in error["nearest"]
    assert said == f"polygen: {error['message']}\n"


@pytest.mark.parametrize(
    ("words", "kind", "piece"),
    [
        (["show", "--json"], "UsageError", "PROGRAM"),
        (["draw", "--json"], "UsageError", "invalid choice"),
        (["cache", "burn", "--json"], "UsageError", "burn"),
        (["targets", "--all", "--json"], "UsageError", "--all"),
    ],
)
def test_wrong_usage_is_an_error_like_others(capsys, words, kind, piece):
    error, _ = as_json(capsys, *words)
    assert error["kind"] == kind and piece in error["what"] and "--help" in error["nearest"]


def test_all_problems_of_a_file_are_listed(capsys, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("format = 1\nnam = 3\nmin_blocks = 0\n")
    error, _ = as_json(capsys, "show", *GOOD, "--schedule", str(file), "--json")
    assert error["kind"] == "ScheduleFileError" and len(error["problems"]) == 2


def test_an_expression_error_has_its_column(capsys):
    error, _ = as_json(capsys, "show", "x @ v.T", *GOOD[1:], "--json")
    assert (error["kind"], error["column"]) == ("ExpressionError", 4)


def test_a_mistake_of_polygen_itself(capsys, monkeypatch):
    def broken(*_):
        raise KeyError("lost")

    monkeypatch.setattr("polygen.cli.load.fused", broken)
    error, _ = as_json(capsys, "show", *GOOD, "--json")
    assert error == {"kind": "KeyError", "message": "'lost'"}


def test_a_compiler_that_does_not_load_is_no_success(capsys, monkeypatch, tmp_path):
    def broken(*_):
        raise errors.ToolchainBroken("the CUDA compiler NVRTC cannot be loaded", where="lib")

    monkeypatch.setattr("polygen.runtime.nvrtc.library", broken)
    monkeypatch.setattr("polygen.runtime.nvrtc.compiler_identity", broken)
    with knobs.scope(cache_dir=tmp_path / "cache"):
        assert main(["generate", *GOOD, "-o", str(tmp_path / "out")]) == 2
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
