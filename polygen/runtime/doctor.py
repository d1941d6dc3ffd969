"""What polygen needs on this machine: part by part, whether it is there, and what mends it.

1. A part is looked at by a function of its own, in `doctor_parts`, which says what is there or
   raises what is wrong: nothing is imported before its part's turn, so that the report comes out
   whatever is missing.
2. `Machine` holds what the functions ask: imports, versions, libraries, the driver. Tests replace
   it.
3. Each part is for a goal: to generate code, to compile it, to run it, or something more. A goal is
   reached when the parts of it and of the goals before it are there.

No CUDA context is created, and nothing is written but a file in the cache folder, which goes again.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from polygen.errors import PolygenError, told
from polygen.runtime import toolkit
from polygen.runtime.doctor_parts import BROKEN, GOALS, THERE, Machine, Wrong, all_parts
from polygen.runtime.gpus import cuda_driver

__all__ = ["GOALS", "THERE", "Machine", "Part", "examine", "healthy", "this_machine"]


@dataclass(frozen=True, slots=True)
class Part:
    """What was found of one part.

    Attributes:
        name: of the part.
        needed_to: a goal, or "more".
        state: there, missing, broken or too old.
        found: a version and the like, or what is wrong.
        mend: the command or the step that mends it; "" where nothing is wrong.
    """

    name: str
    needed_to: str
    state: str
    found: str
    mend: str = ""


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        sys.version_info[:2], importlib.import_module, toolkit.version, cuda_driver, _cupy
    )


def examine(machine: Machine) -> tuple[Part, ...]:
    """Look at every part.

    Args:
        machine: what is asked.

    Returns:
        The parts, those that most things need first. Nothing is raised.
    """
    found = []
    for name, goal, look in all_parts(machine):
        try:
            found.append(Part(name, goal, THERE, look()))
        except Wrong as wrong:
            found.append(Part(name, goal, wrong.state, wrong.found, wrong.mend))
        except PolygenError as error:  # the part's own words
            text = f"{error.what} ({error.why})" if error.why else error.what
            found.append(Part(name, goal, BROKEN, text, error.nearest))
        except Exception as error:  # a part that fails to load may raise anything
            found.append(Part(name, goal, BROKEN, told(error), "Mend the parts above first"))
    return tuple(found)


def healthy(parts: tuple[Part, ...], goal: str) -> bool:
    """Whether the parts that a goal needs, with the goals before it, are there."""
    wanted = GOALS[: GOALS.index(goal) + 1]
    return all(part.state == THERE for part in parts if part.needed_to in wanted)


def _cupy() -> Any:
    from polygen.runtime.cupy_import import import_cupy  # noqa: PLC0415 (needs platformdirs)

    return import_cupy()
