"""Same input, same bytes: ``polygen generate ... -o -`` prints what the golden file holds."""

from __future__ import annotations

import pytest
from golden_cases import FOLDER, GOLDEN, ROOT

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
