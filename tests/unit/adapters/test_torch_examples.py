"""The examples run, and say what they should, where PyTorch is installed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("name", ["torch_operator", "torch_compile"])
def test_an_example_gives_what_pytorch_gives(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    text = capsys.readouterr().out
    (difference,) = re.findall(r"largest difference.*: (\S+)", text)
    assert float(difference) < 0.1
