"""Words of the command line: options in any place, JSON of every command, completion."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess

import pytest

from polygen import knobs
from polygen.cli import arguments, commands, completion, main

PROGRAM = ["gelu(x @ w.T + b)", "x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]"]
OPTIONS = [
    ["--arch", "sm_80"],
    ["--size", "M=64", "N=96", "K=128"],
    ["--static", "K", "N"],
    ["--out-dtype", "f32"],
    ["--json"],
]


@pytest.fixture(autouse=True, scope="module")
def _cache_of_its_own(tmp_path_factory):
    with knobs.scope(cache_dir=tmp_path_factory.mktemp("cache"), arch=None, schedule=None):
        yield


def flat(options):
    return itertools.chain.from_iterable(options)


def parsed(*words):
    found = vars(arguments.parser().parse_args(list(words)))
    return {name: value for name, value in found.items() if name != "run"}


# --- places
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("before", range(len(OPTIONS) + 1))
def test_options_may_stand_before_the_program(order, before):
    options = [OPTIONS[i] for i in (*order, 3, 4)]
    words = [*flat(options[:before]), *PROGRAM, *flat(options[before:])]
    assert parsed("show", *words) == parsed("show", *PROGRAM, *flat(OPTIONS))


def test_options_may_stand_before_the_command():
    wanted = parsed("show", *PROGRAM, "--arch", "sm_80", "--json")
    assert parsed("--arch", "sm_80", "--json", "show", *PROGRAM) == wanted
    assert parsed("--json", "show", "--arch", "sm_80", *PROGRAM) == wanted


@pytest.mark.parametrize("command", ["show", "tune"])
def test_options_may_stand_among_the_operands(command):
    words = [PROGRAM[0], "--arch", "sm_80", *PROGRAM[1:3], "--size", "M=64", PROGRAM[3]]
    found = parsed(command, *words)
    assert found["program"] == PROGRAM[0] and found["signature"] == PROGRAM[1:]
    assert found["size"] == [("M", 64)] and found["arch"] == "sm_80"


def test_a_program_may_begin_with_a_minus():
    found = parsed("show", "-(x@w)", "x:f16[M,K]", "w:f16[K,N]", "--debug")
    assert found["program"] == "-(x@w)" and found["debug"]


def test_values_may_be_joined_to_their_options():
    found = parsed("generate", "-oout", "--arch=sm_80", *PROGRAM)
    assert (found["out"], found["arch"], found["program"]) == ("out", "sm_80", PROGRAM[0])
    assert parsed("generate", "-o", "-", *PROGRAM)["out"] == "-"


def test_all_after_two_dashes_is_no_option():
    found = parsed("show", "--arch", "sm_80", "--", *PROGRAM)
    assert found["program"] == PROGRAM[0] and found["signature"] == PROGRAM[1:]


# --- JSON
def json_of(capsys, *words):
    assert main(list(words)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_generate_describes_what_it_wrote(capsys, tmp_path):
    words = ["generate", *PROGRAM, *OPTIONS[0], *OPTIONS[1], "--json"]
    found = json_of(capsys, *words, "-o", str(tmp_path))
    written = {str(path) for path in tmp_path.iterdir()}
    assert {found[name] for name in commands.FILES if name in found} == written
    assert found["target"] == "sm_80" and found["resources"]["spill_store_bytes"] == 0
    assert found["compiler"].startswith("NVRTC") and found["not_compiled"] is None
    printed = json_of(capsys, *words, "-o", "-")
    assert "__global__" in printed["source"] and printed["schedule"] == found["schedule"]


def test_show_gives_the_stage(capsys):
    words = ["show", *PROGRAM, *OPTIONS[0], *OPTIONS[1], "--stage", "program"]
    found = json_of(capsys, *words, "--json")
    assert main(words) == 0
    assert capsys.readouterr().out == found["text"] + "\n"
    assert found["stage"] == "program" and "shipped" in found["schedule"]


def test_cache_counts(capsys, tmp_path):
    with knobs.scope(cache_dir=tmp_path):
        empty = {"path": str(tmp_path), "entries": 0, "bytes": 0}
        assert json_of(capsys, "cache", "info", "--json") == empty
        assert json_of(capsys, "cache", "clear", "--json") == {"path": str(tmp_path), "removed": 0}


# --- completion
COMMANDS = [
    "generate", "show", "check", "run", "bench", "tune", "targets", "env", "doctor", "cache",
    "completion",
]  # fmt: skip


def completed(capsys, tmp_path, *words):
    """What bash offers for the last of some words."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "polygen.bash"
    script.write_text(capsys.readouterr().out)
    line = " ".join(f"'{word}'" for word in ("polygen", *words))
    text = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _polygen; "
    text += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], COMMANDS),
        (["ge"], ["generate"]),
        (["cache", ""], ["info", "clear", "--help", "--json", "--debug"]),
        (["completion", "b"], ["bash"]),
        (["show", "x @ w", "--st"], ["--static", "--stage"]),
        (["show", "x @ w", "--stage", "p"], ["program", "plan", "ptx", "pipeline"]),
        (["show", "--arch", "sm_9"], ["sm_90", "sm_90a"]),
        (["show", "x @ w", "x:"], []),
    ],
)
def test_bash_completes(capsys, tmp_path, words, offered):
    assert sorted(completed(capsys, tmp_path, *words)) == sorted(offered)


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_no_option_is_forgotten(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    sub = next(
        action for action in arguments.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )  # fmt: skip
    assert list(sub.choices) == COMMANDS
    for name, parser in sub.choices.items():
        lines = [line for line in script.splitlines() if name in line]
        for action in parser._actions:
            for option in action.option_strings[-1:]:
                form = option if shell != "fish" else f"-l {option[2:]}"
                form = f"-s {option[1:]}" if shell == "fish" and option[1] != "-" else form
                assert any(form in line for line in lines), (name, option)


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_shell_takes_the_script(capsys, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
