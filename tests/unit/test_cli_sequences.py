"""The command line on programs that take several kernels."""

from __future__ import annotations

import json

import pytest

import polygen as pg
from polygen import knobs
from polygen.cli import main, trial

PROGRAM = ["relu(x @ u) @ d", "x:bf16[M,K]", "u:bf16[K,H]", "d:bf16[H,N]", "--name", "mlp"]
SIZES = ["--arch", "sm_80", "--size", "M=64", "K=64", "H=520", "N=320"]


@pytest.fixture(autouse=True, scope="module")
def _cache_of_its_own(tmp_path_factory):
    with knobs.scope(cache_dir=tmp_path_factory.mktemp("cache"), arch=None, schedule=None):
        yield


def test_generate_writes_the_files_of_each(tmp_path, capsys):
    assert main(["generate", *PROGRAM, *SIZES, "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["manifest", str(tmp_path / "pg_mlp.json")]
    for number in (1, 2):
        assert f"{tmp_path}/pg_mlp_{number}.cu" in said
    assert said.count("0 B spilled") == 2 and said.count("target") == 2
    found = pg.KernelSequence.load(tmp_path / "pg_mlp.json")
    assert "polygen generate" in found.kernels[0].source


def test_generate_says_it_in_json(tmp_path, capsys):
    assert main(["generate", *PROGRAM, *SIZES, "-o", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["manifest"] == str(tmp_path / "pg_mlp.json") and said["deterministic"]
    first, last = said["kernels"]
    assert first["code"].endswith("pg_mlp_1.cu") and first["resources"]["spill_store_bytes"] == 0
    assert last["schedule"].startswith("shipped ")


def test_generate_prints_one_text(capsys):
    assert main(["generate", *PROGRAM, *SIZES, "-o", "-"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("// 2 kernels, one after another on one stream:")
    assert "namespace part2 {" in text


def test_show_and_check_are_of_each(capsys):
    assert main(["show", *PROGRAM, *SIZES]) == 0
    text = capsys.readouterr().out
    assert "== kernel 1 of 2, mlp_1: m0 of x, u" in text and "== kernel 2 of 2" in text
    assert main(["check", *PROGRAM, *SIZES, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] and "mlp_1 equal to NumPy" in said["comparison"]
    assert any(proof["subject"].startswith("mlp_2: ") for proof in said["proofs"])


def test_several_kernels_are_refused_where_one_is_asked_for(capsys):
    assert main(["generate", *PROGRAM, *SIZES, "-o", "-", "--single"]) == 2
    assert "a chain with 320 columns" in capsys.readouterr().err


def test_the_page_has_both(tmp_path, capsys):
    file = tmp_path / "page.html"
    assert main(["show", *PROGRAM, *SIZES, "--html", str(file)]) == 0
    assert str(file) in capsys.readouterr().out
    assert 'id="kernel2-stage-cuda"' in file.read_text()


def test_run_is_of_one_kernel(capsys, monkeypatch):
    monkeypatch.setattr(trial, "cupy_driver", lambda: None)
    assert main(["run", *PROGRAM, *SIZES]) == 2
    assert "2 kernels in order" in capsys.readouterr().err
