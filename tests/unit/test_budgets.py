"""Time and reproducibility of generation: budgets in CPU seconds, bytes that never change."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matrix import CASES

from polygen import knobs

TO_SOURCE, TO_CUBIN = 0.5, 1.2  # CPU seconds
SAMPLE = CASES[::4]


@pytest.mark.alone
def test_generation_and_compilation_stay_in_their_budgets():
    """Medians over every fourth kernel of the matrix, with no cache."""
    sources, cubins = [], []
    with knobs.scope(cache=False):
        for case in SAMPLE:
            start = time.process_time()
            kernel = case.kernel()
            sources.append(time.process_time() - start)
            assert kernel.cubin
            cubins.append(time.process_time() - start)
    assert len(SAMPLE) >= 20
    assert statistics.median(sources) <= TO_SOURCE, sorted(sources)
    assert statistics.median(cubins) <= TO_CUBIN, sorted(cubins)
    assert max(sources) <= 4 * TO_SOURCE, sorted(sources)


def run_python(code, seed):
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(tests)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


HASHES = """
import hashlib
import pytest
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
