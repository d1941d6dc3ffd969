"""Random programs on the PTX machine: exact, and nothing found."""

from __future__ import annotations

from typing import Any

import pytest
from random_programs import random_program, roomy_program, run_random, stored_numpy


def _on_machine(kernel: Any, operands: list[Any]) -> list[Any]:
    arrays = [stored_numpy(*item[:3]) if isinstance(item, tuple) else item for item in operands]
    done = kernel.emulation(*arrays)
    assert done.report.ok, str(done.report)
    return list(done.results) if isinstance(done.results, tuple) else [done.results]


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_are_exact_on_the_machine(seed: int) -> None:
    arch = ("sm_80", "sm_90a", "sm_89")[seed % 3]
    assert run_random(random_program(seed, largest=140), arch, _on_machine) == ""


ROOMY = [seed if seed < 10 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(24)]


@pytest.mark.parametrize("seed", ROOMY)
def test_roomy_programs_are_exact_on_the_machine(seed: int) -> None:
    assert run_random(roomy_program(seed, largest=140), "sm_90a", _on_machine) == ""
