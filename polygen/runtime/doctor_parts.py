"""What polygen needs, part by part: a function each that says what is there, or raises what is not.

Nothing is imported before its part's turn: any of it may be missing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polygen.errors import told
from polygen.runtime import toolkit
from polygen.runtime.gpus import Gpu

GOALS = ("generate", "compile", "run")
MORE = "more"  # what no goal needs
THERE, MISSING, BROKEN, OLD = "there", "missing", "broken", "too old"

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)

# Distributions as pyproject.toml requires them, and the module that each is imported as; a test
# compares the two.
REQUIRED = {
    "islpy>=2026.1": "islpy",
    "jinja2>=3.1": "jinja2",
    "numpy>=2.1.2": "numpy",
    "ml_dtypes>=0.5": "ml_dtypes",
    "cattrs>=24.1": "cattrs",
    "platformdirs>=4.2": "platformdirs",
    "filelock>=3.15": "filelock",
    "tomli-w>=1.0": "tomli_w",
    "rich>=13.7": "rich",
}
CUPY = {13: "cupy-cuda13x>=14.0", 12: "cupy-cuda12x>=14.0"}
RUNTIME = {13: "nvidia-cuda-runtime==13.0.*", 12: "nvidia-cuda-runtime-cu12==12.9.*"}
# What docs/torch.md and docs/jax.md are written against: older ones may do, and were not tried.
TRIED = {"torch": ("2.15", "PyTorch operators and torch.compile"), "jax": ("0.10", "JAX calls")}
OPTIONAL = {
    "matplotlib>=3.9": "plots of measurements",
    "nvidia-ml-py>=12": "clocks and power beside measurements",
    "nvmath-python>=0.5": "cuBLASLt as a peer of benchmarks",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked of a machine.

    Attributes:
        python: major and minor version.
        load: import a module by name.
        version: the installed version of a distribution, or None.
        driver: the CUDA version that the driver takes, as 13000, with its GPUs; None without one.
        cupy: import CuPy.
    """

    python: tuple[int, int]
    load: Callable[[str], Any]
    version: Callable[[str], str | None]
    driver: Callable[[], tuple[int, tuple[Gpu, ...]] | None]
    cupy: Callable[[], Any]


class Wrong(Exception):
    """A part is not as it should be: its state, what was found, what mends it."""

    def __init__(self, state: str, found: str, mend: str) -> None:
        super().__init__(found)
        self.state, self.found, self.mend = state, found, mend


def all_parts(machine: Machine) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Name, goal and look of every part, in the order of the report."""
    yield "Python", "generate", partial(_python, machine)
    for requirement, module in REQUIRED.items():
        name = "isl" if module == "islpy" else distribution(requirement)
        yield name, "generate", partial(_package, machine, requirement, module)
    yield "data files", "generate", partial(_data, machine)
    yield "NVRTC", "compile", partial(_nvrtc, machine)
    yield "driver, GPU", "run", partial(_driver, machine)
    yield "code for the driver", "run", partial(_takes_code, machine)
    yield "CuPy", "run", partial(_launches, machine)
    yield "cache folder", MORE, partial(_cache, machine)
    yield "nvdisasm", MORE, partial(_disassembler, machine)
    for package, (tried, use) in TRIED.items():
        yield package, MORE, partial(_adapter, machine, package, tried, use)
    for requirement, use in OPTIONAL.items():
        yield distribution(requirement), MORE, partial(_installed, machine, requirement, use)


# --- versions -----------------------------------------------------------------------------------
def distribution(requirement: str) -> str:
    """The name in ``name>=1.2``."""
    return re.split(r"[<>=]", requirement)[0]


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``13.0.*`` is (13, 0), ``2026.1rc1`` (2026, 1)."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


def new_enough(version: str, requirement: str) -> bool:
    """Whether a version is at least the one that a requirement names; zeros may be left out."""
    least = numbers(re.split(r"[<>=]+", requirement)[1])
    found = numbers(version)
    return found + (0,) * (len(least) - len(found)) >= least


# --- parts --------------------------------------------------------------------------------------
def _python(machine: Machine) -> str:
    text = ".".join(map(str, machine.python))
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    if machine.python < OLDEST_PYTHON:
        raise Wrong(OLD, text, f"Use Python {oldest} to {newest}")
    return text if machine.python <= NEWEST_PYTHON else f"{text}; tried are {oldest} to {newest}"


def _package(machine: Machine, requirement: str, module: str) -> str:
    mend = f"pip install '{requirement}'"
    name = distribution(requirement)
    try:
        loaded = machine.load(module)
    except ModuleNotFoundError as reason:
        if reason.name not in (None, module):  # what it needs itself
            raise Wrong(BROKEN, str(reason), f"{mend} --force-reinstall") from reason
        raise Wrong(MISSING, "not installed", mend) from reason
    except ImportError as reason:
        raise Wrong(BROKEN, str(reason), f"{mend} --force-reinstall") from reason
    version = machine.version(name) or getattr(loaded, "__version__", "")
    if version and not new_enough(version, requirement):
        raise Wrong(OLD, version, mend)
    return version or "version unknown"


def _installed(machine: Machine, requirement: str, use: str) -> str:
    version = machine.version(distribution(requirement))
    if version is None:
        raise Wrong(MISSING, f"for {use}", f"pip install '{requirement}'")
    if not new_enough(version, requirement):
        raise Wrong(OLD, version, f"pip install '{requirement}'")
    return version


def _adapter(machine: Machine, package: str, tried: str, use: str) -> str:
    version, wanted = machine.version(package), f"{package}>={tried}"
    if version is None:
        raise Wrong(MISSING, f"for {use}", f"pip install '{wanted}'")
    if not new_enough(version, wanted):
        return f"{version}; older than what was tried, {tried}"
    return version


def _data(machine: Machine) -> str:
    """Schedules, tuned tables, templates and hardware data lie in the package, and can be read."""
    mend = "Install polygen again: a wheel holds its data files"
    devices = machine.load("polygen.hardware.device").devices()
    load = machine.load("polygen.schedule.load")
    tuned = machine.load("polygen.schedule.tuned")
    templates = Path(machine.load("polygen.emit").__path__[0]) / "templates"
    schedules = len({s.name for device in devices for s in load.shipped(device)})
    rows = sum(len(tuned.tuned(d)) for d in {d.schedule_families[0]: d for d in devices}.values())
    texts = sum(1 for _ in templates.rglob("*.j2"))
    counts = {"targets": len(devices), "schedules": schedules, "templates": texts}
    if absent := [name for name, count in counts.items() if not count]:
        raise Wrong(MISSING, f"no {' and no '.join(absent)}", mend)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{said}, {rows} measured problems"


def _cache(machine: Machine) -> str:
    folder: Path = machine.load("polygen.runtime.cache").directory()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as reason:
        raise Wrong(
            BROKEN,
            f"{folder} cannot be written ({reason.strerror}): every process compiles again",
            "export POLYGEN_CACHE_DIR=FOLDER, of a folder that can be written",
        ) from reason


def _nvrtc(machine: Machine) -> str:
    library = machine.load("polygen.runtime.nvrtc_library")
    try:
        version = library.library().version
    except machine.load("polygen.errors").ToolchainMissing as reason:
        raise Wrong(
            MISSING, reason.what, f"pip install '{_matching(machine, library)}'"
        ) from reason
    return ".".join(map(str, version))


def _takes_code(machine: Machine) -> str:
    """The driver is at least as new as the toolkit whose compiler makes the code."""
    library, driver = machine.load("polygen.runtime.nvrtc_library"), machine.driver()
    if driver is None:
        raise Wrong(MISSING, "no driver", "See the line of the driver")
    version = library.library().version
    text = f"the compiler is of CUDA {version[0]}.{version[1]}, the driver of {_cuda(driver[0])}"
    if version[0] > driver[0] // 1000:
        packages = library.PACKAGES[min(CUPY)], RUNTIME[min(CUPY)], CUPY[min(CUPY)]
        raise Wrong(BROKEN, text, f"pip install {' '.join(map(repr, packages))}")
    return text


def _matching(machine: Machine, library: Any) -> str:
    """The compiler's package for the CuPy that is there, else for the driver, else the newest."""
    driver = machine.driver()
    major = toolkit.cupy_major() or (driver[0] // 1000 if driver else max(library.PACKAGES))
    return str(library.PACKAGES.get(major, library.PACKAGES[max(library.PACKAGES)]))


def _driver(machine: Machine) -> str:
    found = machine.driver()
    if found is None:
        raise Wrong(
            MISSING,
            "no NVIDIA driver; kernels are generated, compiled and checked without one",
            "Install NVIDIA's driver, or give the container its GPUs (docker run --gpus all)",
        )
    api, gpus = found
    if not gpus:
        raise Wrong(
            MISSING,
            f"the driver, of CUDA {_cuda(api)}, sees no GPU",
            "nvidia-smi says why; CUDA_VISIBLE_DEVICES may hide it",
        )
    if api // 1000 < min(CUPY):
        raise Wrong(OLD, f"CUDA {_cuda(api)}", f"Install a driver of CUDA {min(CUPY)} or newer")
    known = {device.name for device in machine.load("polygen.hardware.device").devices()}
    texts = [f"{g.name} ({g.arch}{'' if g.arch in known else ', not a target'})" for g in gpus]
    if not any(gpu.arch in known for gpu in gpus):
        mend = "`polygen targets` lists the GPUs that kernels are made for"
        raise Wrong(BROKEN, ", ".join(texts), mend)
    return f"CUDA {_cuda(api)}: {', '.join(texts)}"


def _launches(machine: Machine) -> str:
    """CuPy, of the toolkit that the driver takes."""
    driver = machine.driver()
    takes = driver[0] // 1000 if driver else max(CUPY)
    wanted = CUPY[min(max(takes, min(CUPY)), max(CUPY))]
    wheels = {w: version for w in toolkit.CUPY_WHEELS if (version := machine.version(w))}
    if not wheels:
        raise Wrong(MISSING, "not installed", f"pip install '{wanted}'")
    if len(wheels) > 1:
        names = " ".join(sorted(wheels))
        mend = f"pip uninstall {names}, then pip install '{wanted}'"
        raise Wrong(BROKEN, f"{len(wheels)} of them hide each other: {names}", mend)
    ((wheel, version),) = wheels.items()
    major = toolkit.CUPY_WHEELS[wheel]
    if driver and major and major > takes:
        mend = f"pip uninstall {wheel}, then pip install '{wanted}'"
        raise Wrong(BROKEN, f"{wheel} {version}, and the driver takes CUDA {takes}", mend)
    if not new_enough(version, wanted):
        raise Wrong(OLD, f"{wheel} {version}", f"pip install '{wanted}'")
    try:
        machine.cupy()
    except Exception as reason:  # of its libraries
        raise Wrong(BROKEN, told(reason), f"pip install '{wanted}' --force-reinstall") from reason
    return f"{wheel} {version}"


def _disassembler(machine: Machine) -> str:
    sass = machine.load("polygen.runtime.sass")
    tool = sass.find()
    if tool is None:
        raise Wrong(MISSING, "for `polygen show --stage sass`", f"pip install '{sass.PACKAGE}'")
    return str(tool)


def _cuda(api: int) -> str:
    """``13000`` as 13.0."""
    return f"{api // 1000}.{api % 1000 // 10}"
