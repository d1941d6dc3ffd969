# ruff: noqa: E402 - tests are found first
"""Which instructions that the machine has no recorded launch contains: run it as a script.

Runs the tests that are replayed (a minute or two) and compares the first words of their PTX with
what the machine has handlers for.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import test_machine_calibration as calibration
from machine.conftest import kernel_source, to_ptx

from polygen.machine import run
from polygen.machine.parse import parse
from polygen.machine.writer import HANDLERS


def seen() -> set[str]:
    """First words of the instructions of all kernels that recorded tests launch."""
    words: set[str] = set()

    def noted(ptx, launch, *allowed, **options):
        del allowed
        for kernel in parse(ptx).kernels.values():
            words.update(one.opcode.split(".")[0] for one in kernel.instructions)
        return run(ptx, launch, **options)

    for case in calibration.cases(calibration.CHOSEN):
        module, function, arguments = case.values
        for name in ("run", "run_within"):
            if hasattr(module, name):
                setattr(module, name, noted)
        function(**calibration.arguments_of(module, function, arguments, to_ptx, kernel_source))
    return words


if __name__ == "__main__":
    missing = sorted(set(HANDLERS) - seen())
    print(f"{len(HANDLERS) - len(missing)} of {len(HANDLERS)} are recorded; not:", *missing)
