"""The examples on a real GPU, at the sizes that their kernels are for."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.py")
    if path.stem not in ("gallery", "several_gpus") and not path.stem.startswith("torch")
)
WITH_TORCH = sorted(path.stem for path in (ROOT / "examples").glob("torch_*.py"))
SCRIPTS = sorted(path.stem for path in (ROOT / "examples" / "numpy").glob("*.py"))


def ran(path, folder):
    """What an example prints."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
    words = [sys.executable, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_is_right(name, tmp_path):
    said = ran(ROOT / "examples" / f"{name}.py", tmp_path)
    assert "y0: right" in said
    if name != "edit_schedule":
        assert "time: " in said


@pytest.mark.parametrize("name", WITH_TORCH)
def test_an_example_gives_what_pytorch_gives(name, tmp_path):
    pytest.importorskip("torch")
    said = ran(ROOT / "examples" / f"{name}.py", tmp_path)
    (difference,) = re.findall(r"largest difference.*: (\S+)", said)
    assert float(difference) < 0.1


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_numpy_script_gives_what_cupy_gives(name, capsys):
    """Small, and again and again: plans are tried in both ways, and places run at once."""
    measure = types.SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "measure_numpy.py")))
    path, options = measure.SCRIPTS / f"{name}.py", measure.SMALL[name]
    wanted = measure.loaded(path, "import cupy as np")(**options)
    script = measure.loaded(path, measure.IMPORT)
    for _ in range(12):
        assert measure.difference(wanted, script(**options)) <= measure.TOLERANCE
    assert capsys.readouterr().out
