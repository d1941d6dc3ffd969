"""Kernels for sm_75 and sm_70 on the GPU that is there: their text, compiled for it.

Newer cards have their instructions, if not their speed: results are compared, and nothing is timed.
"""

from __future__ import annotations

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


@pytest.mark.parametrize("arch", [TURING, VOLTA])
def test_random_programs_are_exact(arch: str) -> None:
    failures = []
    for seed in range(COUNT):
        try:
            failures.append(run_random(older_program(seed), arch, _on_gpu, True, _compiled))
        except Exception as error:
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
    wrong = [text for text in failures if text]
    print(f"\n{arch}: {COUNT} random programs, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong[:10])
