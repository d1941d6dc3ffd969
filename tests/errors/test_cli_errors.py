"""Wrong uses of the command line: exit code 2, one message, no output, no traceback."""

from __future__ import annotations

import pytest

from polygen import errors, knobs
from polygen.cli import main
from polygen.runtime import environment

XW = ["x:bf16[M,K]", "w:bf16[N,K]"]
GOOD = ["x @ w.T", *XW, "--arch", "sm_80"]


@pytest.fixture(autouse=True)
def _no_cache(tmp_path):
    with knobs.scope(cache_dir=tmp_path / "cache", arch=None, schedule=None, debug=False):
        yield


def refused(capsys, *words):
    """Run, and give the one message."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("polygen") and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        ([], ["required: COMMAND", "polygen --help"]),
        (["draw"], ["invalid choice: 'draw'", "generate"]),
        (["generat", *GOOD], ["invalid choice: 'generat'", "Did you mean generate? See"]),
        (["--josn", "env"], ["env: unrecognized arguments: --josn", "did you mean --json?"]),
        (["show"], ["PROGRAM"]),
        (["show", "x @ w.T"], ["OPERAND"]),
        (["show", *GOOD, "--stage", "llvm"], ["'llvm'", "sass"]),
        (["show", *GOOD, "--size", "M:4"], ["'M:4' is not NAME=NUMBER, as in M=4096"]),
        (["show", *GOOD, "--size", "x.stride=4"], ["'x.stride=4' is not", "x.pitch=4104"]),
        (["show", *GOOD, "--size", "q.pitch=4"], ["has the pitch 'q.pitch'", "Pitches: x.pitch"]),
        (["show", *GOOD, "--size", "M=-1"], ["'M=-1' is not NAME=NUMBER"]),
        (["show", *GOOD, "--josn"], ["unrecognized arguments: --josn", "did you mean --json?"]),
        (["show", *GOOD, "--stag=tree"], ["unrecognized arguments: --stag=tree", "--stage"]),
        (["show", *GOOD, "--siz", "M=4"], ["unrecognized arguments: --siz", "--size"]),
        (["show", *GOOD, "--size", "M=4", "K=8", "--size", "M=5"], ["M is given twice, as 4 and"]),
        (["show", "--size", "M=4", "M=5", *GOOD], ["M is given twice, as 4 and as 5"]),
        (["run", *GOOD, "--seed", "x"], ["--seed", "'x'"]),
        (["cache", "burn"], ["'burn'", "clear"]),
    ],
)
def test_wrong_usage(capsys, words, pieces):
    message = refused(capsys, *words)
    assert all(piece in message for piece in pieces), message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (["x @ v.T", *XW, "--arch", "sm_80"], ["unknown name 'v'", "^"]),
        (["foo(x @ w.T)", *XW, "--arch", "sm_80"], ["unknown function 'foo'"]),
        (["x @ w.T", "bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80"], ["needs a name", "x:bf16"]),
        (["x @ w.T", "x:bf16[M,K]", "x:bf16[N,K]"], ["two operands are called 'x'"]),
        (["x @ w", *XW, "--arch", "sm_80"], ["x", "w", "K", "N"]),
        (["x @ w.T", "x:bf16[M,K", "w:bf16[N,K]"], ["not an argument description"]),
        (["x @ w.T", "x:b16[M,K]", "w:bf16[N,K]"], ["unknown dtype 'b16'", "bf16"]),
        ([*GOOD, "--name", "no name"], ["--name", "'no name' is not a name"]),
        ([*GOOD, "--size", "Q=4"], ["no dim is called 'Q'", "Dims: M, K, N"]),
        ([*GOOD, "--size", "M=0"], ["M = 0", "at least 1"]),
        ([*GOOD, "--static", "M"], ["static dims without a size: M"]),
        ([*GOOD, "--out-dtype", "b16"], ["'b16'"]),
        ([*GOOD, "--out-dtype", "f16", "f16"], ["2 dtypes for 1 output"]),
        ([*GOOD, "--acc-dtype", "f16"], ["f16"]),
        ([*GOOD[:-1], "sm_9"], ["unknown architecture 'sm_9'", "Known: sm_70"]),
        ([*GOOD, "--schedule", "nowhere.toml"], ["nowhere.toml"]),
        (["nowhere.py:f", *XW], ["nowhere.py: no such file"]),
        (["model.py", *XW], ["a file without a function", "model.py:FUNCTION"]),
    ],
)
@pytest.mark.parametrize("command", ["generate", "check"])
def test_a_program_that_cannot_be(capsys, command, words, pieces, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, command, *words)
    assert all(piece in message for piece in pieces), message
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_no_target_and_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr("polygen.cli.load.current_arch", lambda: None)
    assert "Name a target, as in --arch sm_80" in refused(capsys, "show", "x @ w.T", *XW)


def test_run_without_a_gpu(capsys):
    if environment.current_arch() is not None:
        pytest.skip("there is a GPU")
    assert "there is no GPU to run on" in refused(capsys, "run", *GOOD)


def test_run_without_sizes(capsys, monkeypatch):
    monkeypatch.setattr("polygen.cli.trial.cupy_driver", lambda: None)
    message = refused(capsys, "run", *GOOD, "--size", "M=64")
    assert "no size for K, N" in message and "--size K=1024 N=1024" in message


# --- files
@pytest.mark.parametrize(
    ("text", "name", "pieces"),
    [
        ("def up(x, w):\n    return x @ w.T\n", "upp", ["no function is called 'upp'", "up"]),
        ("up = 3\n", "up", ["up is not a function", "It defines none"]),
        ("import polygen\n1 / 0\n", "up", ["model.py, line 2", "ZeroDivisionError"]),
        ("import sys\n\nsys.exit(0)\n", "up", ["model.py, line 3", "SystemExit: 0"]),
        ("def up(x:\n", "up", ["model.py, line 1", "SyntaxError"]),
        ("import not_a_module\n", "up", ["ModuleNotFoundError", "line 1"]),
        ("def up(x):\n    return x\n", "up", ["2 argument descriptions for up(x)"]),
        ("def up(a, b):\n    return a @ b.T\n", "up", ["describes x, but parameter 1 is a"]),
    ],
)
def test_a_file_that_cannot_be_used(capsys, tmp_path, text, name, pieces):
    file = tmp_path / "model.py"
    file.write_text(text)
    message = refused(capsys, "show", f"{file}:{name}", *XW, "--arch", "sm_80")
    assert all(piece in message for piece in pieces), message


def test_the_output_folder_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(capsys, "generate", *GOOD, "-o", str(tmp_path / "file" / "out"))
    assert "cannot be written" in message


# --- tracebacks
@pytest.mark.parametrize("words", [["--debug", "show"], ["show", "--debug"]])
def test_debug_shows_where(capsys, words):
    assert main([*words, "x @ v", *XW, "--arch", "sm_80"]) == 2
    message = capsys.readouterr().err
    assert "Traceback" in message and "ExpressionError: column 5" in message


def test_the_debug_variable_shows_where(capsys):
    with knobs.scope(debug=True):
        assert main(["show", "x @ v", *XW, "--arch", "sm_80"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_mistake_of_polygen_itself_is_one_message_too(capsys, monkeypatch):
    def broken(*_):
        raise KeyError("lost")

    monkeypatch.setattr("polygen.cli.load.fused", broken)
    message = refused(capsys, "show", *GOOD)
    assert "internal error: KeyError: 'lost'" in message and "--debug" in message
    assert main(["show", *GOOD, "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_malformed_variable_is_reported(capsys, monkeypatch):
    def malformed():
        raise errors.PolygenError("'maybe' is not a truth value", where="POLYGEN_DEBUG")

    monkeypatch.setattr(knobs, "current", malformed)
    assert "POLYGEN_DEBUG: 'maybe' is not a truth value" in refused(capsys, "show", *GOOD)
