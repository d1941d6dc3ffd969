"""Kernels for sm_75 and sm_70 on the GPU that is there: their text, compiled for it.

Newer cards have their instructions, if not their speed: results are compared, and nothing is timed.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest
from older_targets import TURING, VOLTA, as_for
from random_programs import Random, compile_program, older_program, run_random
from test_random_gpu import _on_gpu

from polygen.runtime.environment import current_arch

pytestmark = pytest.mark.gpu
COUNT = int(os.environ.get("POLYGEN_OLDER", "100"))


def _compiled(case: Random, arch: str) -> Any:
    return as_for(str(current_arch()), compile_program(case, arch))


def _one(given: tuple[str, int]) -> str:
    arch, seed = given
    try:
        return run_random(older_program(seed), arch, _on_gpu, True, _compiled)
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"


@pytest.mark.parametrize("arch", [TURING, VOLTA])
def test_random_programs_are_exact(arch: str) -> None:
    seeds = [(arch, seed) for seed in range(COUNT)]
    workers = max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        wrong = [text for text in pool.imap_unordered(_one, seeds, chunksize=2) if text]
    print(f"\n{arch}: {COUNT} random programs, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong[:10])
