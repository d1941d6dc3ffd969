"""Same input, same bytes: ``polygen generate ... -o -`` prints what the golden file holds."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import replay
from golden_cases import FOLDER, GOLDEN, ROOT, matrix

from polygen.cli import main

KERNELS = FOLDER / "kernels"


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_generated_text_is_the_golden_file(case, golden, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(case.words) == 0
    golden(KERNELS / f"{case.name}.cu", capsys.readouterr().out)


def test_no_golden_file_is_left_over():
    assert {path.stem for path in KERNELS.glob("*")} == {case.name for case in GOLDEN}


def test_generating_twice_gives_the_same_bytes(capsys):
    first = main(GOLDEN[0].words), capsys.readouterr().out
    assert first == (main(GOLDEN[0].words), capsys.readouterr().out)


def test_the_replay_tells_changed_kernels_from_equal_ones(capsys):
    old, new = {"a": "1\n2\n", "b": "1\n"}, {"a": "1\n3\n", "b": "1\n", "c": "refused: no.\n"}
    assert replay.report(old, new, ("old", "new"), diffs=True) == 2
    out = capsys.readouterr().out
    assert "a: +1 -1" in out and "-2\n+3" in out
    assert "3 kernels: 1 same, 2 changed, 1 refused in new" in out


def test_the_replay_has_every_case_once():
    names = [case.name for case in matrix()]
    assert len(set(names)) == len(names) > 80


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("name", ["gelu_bias", "two_outputs", "cluster"])
def test_nvcc_compiles_a_golden_file_alone(name, tmp_path):
    arch = next(case.arch for case in GOLDEN if case.name == name)
    out = tmp_path / "kernel.o"
    # With -arch=sm_90a nvcc would also compile for compute_90, which lacks the instructions.
    target = f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}"
    command = ["nvcc", target, "-c", str(KERNELS / f"{name}.cu"), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"pg_{name}_launch".encode() in out.read_bytes()  # the host launcher, with C linkage
