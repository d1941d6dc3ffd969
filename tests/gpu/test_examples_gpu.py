"""The examples on a real GPU, at the sizes that their kernels are for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.py")
    if path.stem not in ("gallery", "several_gpus") and not path.stem.startswith("torch")
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_is_right(name, tmp_path):
    words = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    }
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "y0: right" in done.stdout
    if name != "edit_schedule":
        assert "time: " in done.stdout
