"""The same input gives the same bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import CASES


def run_python(code, seed):
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tests)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


HASHES = """
import hashlib
from matrix import CASES
for case in CASES[::9]:
    kernel = case.kernel()
    text = kernel.source + kernel.show("plan") + kernel.show("tree") + kernel.show("scop")
    print(case.name, hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_in_another_process():
    first, second = run_python(HASHES, "1"), run_python(HASHES, "4242")
    assert len(first.splitlines()) >= 10
    assert first == second


def test_the_same_input_gives_the_same_bytes_again_whatever_came_before():
    case = CASES[0]
    first = case.kernel().source
    CASES[5].kernel()
    assert case.kernel().source == first
