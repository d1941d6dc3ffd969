"""`polygen doctor`: every part that can be missing, and what it says mends it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from polygen import knobs
from polygen.cli import doctor as command
from polygen.cli import main
from polygen.errors import ToolchainBroken, ToolchainMissing
from polygen.runtime import doctor, doctor_parts, gpus, nvrtc_library, sass, toolkit
from polygen.runtime.doctor import THERE, Machine, examine, healthy
from polygen.runtime.doctor_parts import BROKEN, MISSING, OLD
from polygen.runtime.gpus import Gpu
from polygen.schedule import load

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
H200 = Gpu("NVIDIA H200", "sm_90a")

# A machine with everything, whatever this one has.
VERSIONS = {doctor_parts.distribution(r): r.partition(">=")[2] for r in doctor_parts.REQUIRED} | {
    "cupy-cuda13x": "14.2.0",
    "torch": "2.15.1",
    "jax": "0.10.2",
    "matplotlib": "3.11",
    "nvidia-ml-py": "13.1",
    "nvmath-python": "0.6",
}


class Nvrtc:
    """NVRTC of a version."""

    version = (13, 0)


@pytest.fixture(autouse=True)
def _whole(monkeypatch, tmp_path):
    monkeypatch.setattr(nvrtc_library, "library", Nvrtc)
    monkeypatch.setattr(sass, "find", lambda: "nvdisasm")
    monkeypatch.setattr(toolkit, "cupy_major", lambda: 13)
    with knobs.scope(cache_dir=tmp_path / "cache"):
        yield


WHOLE = Machine(
    python=(3, 12),
    load=importlib.import_module,
    version=VERSIONS.get,
    driver=lambda: (13000, (H200,)),
    cupy=lambda: None,
)


def part(machine, name):
    return next(p for p in examine(machine) if p.name == name)


def without(*names, **others):
    """The versions of a machine that lacks some packages, and has others."""
    return {name: v for name, v in (VERSIONS | others).items() if name not in names}.get


def loading(**instead):
    """Imports of which some raise."""

    def load(name):
        if name in instead:
            raise instead[name]
        return importlib.import_module(name)

    return load


# --- what is whole
def test_a_machine_with_everything_is_whole():
    parts = examine(WHOLE)
    assert {p.name: p.state for p in parts} == dict.fromkeys((p.name for p in parts), THERE)
    assert not any(p.mend for p in parts)
    assert all(healthy(parts, goal) for goal in doctor.GOALS)
    assert part(WHOLE, "driver, GPU").found == "CUDA 13.0: NVIDIA H200 (sm_90a)"
    counts = re.findall(r"(\d+) (\w+)", part(WHOLE, "data files").found)
    assert {name for count, name in counts if int(count)} == {
        "targets", "schedules", "templates", "measured",
    }  # fmt: skip


def test_the_cache_folder_is_left_empty(tmp_path):
    assert part(WHOLE, "cache folder").found == str(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_requirements_are_those_of_the_project():
    extras = PROJECT["optional-dependencies"]
    assert set(doctor_parts.REQUIRED) == set(PROJECT["dependencies"])
    for major in (12, 13):
        wanted = {
            doctor_parts.CUPY[major],
            doctor_parts.RUNTIME[major],
            nvrtc_library.PACKAGES[major],
        }
        assert set(extras[f"cuda{major}"]) == wanted
    assert set(doctor_parts.OPTIONAL) == set(extras["bench"])
    oldest = ".".join(map(str, doctor_parts.OLDEST_PYTHON))
    assert PROJECT["requires-python"] == f">={oldest}"
    prefix = "Programming Language :: Python :: 3."
    minors = [int(c.removeprefix(prefix)) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    first, last = doctor_parts.OLDEST_PYTHON[1], doctor_parts.NEWEST_PYTHON[1]
    assert minors == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("version", "requirement", "enough"),
    [
        ("2026.1", "islpy>=2026.1", True),
        ("2026.1.3", "islpy>=2026.1", True),
        ("2025.2.5", "islpy>=2026.1", False),
        ("3", "jinja2>=3.1", False),
        ("14.0.0rc1", "cupy-cuda13x>=14.0", True),
        ("10", "x>=9.4", True),
        ("13.0.88", "nvidia-cuda-nvrtc==13.0.*", True),
    ],
)
def test_versions_are_compared_as_numbers(version, requirement, enough):
    assert doctor_parts.new_enough(version, requirement) is enough


# --- what is not
MISSES = {
    "an old Python": ("Python", {"python": (3, 10)}, OLD, "Use Python 3.11 to 3.13", "generate"),
    "isl": (
        "isl", {"load": loading(islpy=ModuleNotFoundError("No module", name="islpy"))},
        MISSING, "pip install 'islpy>=2026.1'", "generate",
    ),
    "isl that does not load": (
        "isl", {"load": loading(islpy=ImportError("libisl.so: no such file"))},
        BROKEN, "pip install 'islpy>=2026.1' --force-reinstall", "generate",
    ),
    "what a package needs itself": (
        "cattrs", {"load": loading(cattrs=ModuleNotFoundError("No module", name="attrs"))},
        BROKEN, "pip install 'cattrs>=24.1' --force-reinstall", "generate",
    ),
    "an old NumPy": (
        "numpy", {"version": without(numpy="1.26.4")}, OLD, "pip install 'numpy>=2.1.2'",
        "generate",
    ),
    "the driver": (
        "driver, GPU", {"driver": lambda: None}, MISSING, "Install NVIDIA's driver", "run",
    ),
    "a GPU": ("driver, GPU", {"driver": lambda: (13000, ())}, MISSING, "nvidia-smi", "run"),
    "an old driver": (
        "driver, GPU", {"driver": lambda: (11080, (H200,))}, OLD, "driver of CUDA 12", "run",
    ),
    "a GPU that is a target": (
        "driver, GPU", {"driver": lambda: (13000, (Gpu("Tesla K80", "sm_37"),))},
        BROKEN, "polygen targets", "run",
    ),
    "CuPy": (
        "CuPy", {"version": without("cupy-cuda13x")}, MISSING, "pip install 'cupy-cuda13x>=14.0'",
        "run",
    ),
    "CuPy, with a driver of CUDA 12": (
        "CuPy", {"version": without("cupy-cuda13x"), "driver": lambda: (12090, (H200,))},
        MISSING, "pip install 'cupy-cuda12x>=14.0'", "run",
    ),
    "CuPy for the driver": (
        "CuPy", {"driver": lambda: (12080, (H200,))}, BROKEN,
        "pip uninstall cupy-cuda13x, then pip install 'cupy-cuda12x>=14.0'", "run",
    ),
    "one CuPy": (
        "CuPy", {"version": without(**{"cupy-cuda12x": "14.1"})}, BROKEN,
        "pip uninstall cupy-cuda12x cupy-cuda13x, then", "run",
    ),
    "a newer CuPy": (
        "CuPy", {"version": without(**{"cupy-cuda13x": "13.6"})}, OLD,
        "pip install 'cupy-cuda13x>=14.0'", "run",
    ),
    "PyTorch": ("torch", {"version": without("torch")}, MISSING, "pip install 'torch>=2.15'", None),
    "JAX": ("jax", {"version": without("jax")}, MISSING, "pip install 'jax>=0.10'", None),
    "plots": (
        "matplotlib", {"version": without("matplotlib")}, MISSING,
        "pip install 'matplotlib>=3.9'", None,
    ),
    "newer plots": (
        "matplotlib", {"version": without(matplotlib="2.0")}, OLD,
        "pip install 'matplotlib>=3.9'", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "state", "mend", "goal"), MISSES.values(), ids=MISSES)
def test_what_is_missing_is_said_with_what_mends_it(name, changes, state, mend, goal):
    machine = replace(WHOLE, **changes)
    found = part(machine, name)
    assert (found.state, found.needed_to) == (state, goal or doctor_parts.MORE)
    assert mend in found.mend and found.found
    parts = examine(machine)
    broken = doctor.GOALS[doctor.GOALS.index(goal) :] if goal else ()
    assert tuple(g for g in doctor.GOALS if not healthy(parts, g)) == broken


def test_an_older_pytorch_is_there_and_said_to_be_untried():
    found = part(replace(WHOLE, version=without(torch="2.9.0")), "torch")
    assert found.state == THERE and found.found == "2.9.0; older than what was tried, 2.15"


def test_a_newer_python_is_there_and_said_to_be_untried():
    found = part(replace(WHOLE, python=(3, 14)), "Python")
    assert found.state == THERE and found.found == "3.14; tried are 3.11 to 3.13"


def test_cupy_that_does_not_load_is_broken():
    def broken():
        raise RuntimeError("libcudart.so.13: cannot open")

    found = part(replace(WHOLE, cupy=broken), "CuPy")
    assert (found.state, found.mend) == (
        BROKEN, "pip install 'cupy-cuda13x>=14.0' --force-reinstall",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cupy", "driver", "package"),
    [(12, 13000, 12), (None, 12080, 12), (None, 13010, 13), (None, 14000, 13), (13, None, 13)],
)
def test_nvrtc_is_named_for_the_cupy_or_driver_there_is(monkeypatch, cupy, driver, package):
    def missing():
        raise ToolchainMissing("there is no CUDA compiler NVRTC")

    monkeypatch.setattr(nvrtc_library, "library", missing)
    monkeypatch.setattr(toolkit, "cupy_major", lambda: cupy)
    machine = replace(WHOLE, driver=lambda: (driver, (H200,)) if driver else None)
    found = part(machine, "NVRTC")
    assert (found.state, found.found) == (MISSING, "there is no CUDA compiler NVRTC")
    assert found.mend == f"pip install '{nvrtc_library.PACKAGES[package]}'"
    assert not healthy(examine(machine), "compile") and healthy(examine(machine), "generate")


def test_nvrtc_that_does_not_load_says_so_in_its_own_words(monkeypatch):
    def broken():
        raise ToolchainBroken("it cannot be loaded", why="no symbol", nearest="`pip install it`")

    monkeypatch.setattr(nvrtc_library, "library", broken)
    found = part(WHOLE, "NVRTC")
    assert (found.state, found.found, found.mend) == (
        BROKEN, "it cannot be loaded (no symbol)", "`pip install it`",
    )  # fmt: skip


def test_nvrtc_newer_than_the_driver_is_broken():
    found = part(replace(WHOLE, driver=lambda: (12040, (H200,))), "code for the driver")
    assert (found.state, found.needed_to) == (BROKEN, "run")
    assert found.found == "the compiler is of CUDA 13.0, the driver of 12.4"
    assert "'nvidia-cuda-nvrtc-cu12==12.9.*'" in found.mend


def test_a_package_without_its_schedules_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "schedules_folder", lambda: tmp_path)
    load._shipped.cache_clear()
    found = part(WHOLE, "data files")
    load._shipped.cache_clear()
    assert (found.state, found.found) == (MISSING, "no schedules")
    assert "Install polygen again" in found.mend


def test_no_disassembler(monkeypatch):
    monkeypatch.setattr(sass, "find", lambda: None)
    found = part(WHOLE, "nvdisasm")
    assert (found.state, found.mend) == (MISSING, f"pip install '{sass.PACKAGE}'")


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path):
    (tmp_path / "file").write_text("")
    with knobs.scope(cache_dir=tmp_path / "file" / "cache"):
        parts = examine(WHOLE)
    found = next(p for p in parts if p.name == "cache folder")
    assert found.state == BROKEN and "POLYGEN_CACHE_DIR" in found.mend
    assert all(healthy(parts, goal) for goal in doctor.GOALS)


# --- the command
@pytest.mark.parametrize(
    ("driver", "words", "goal", "code"),
    [
        (lambda: (13000, (H200,)), [], "run", 0),
        (lambda: (13000, ()), [], "run", 1),
        (lambda: None, [], "compile", 0),
        (lambda: None, ["--to", "run"], "run", 1),
        (lambda: (13000, ()), ["--to", "generate"], "generate", 0),
    ],
)
def test_the_exit_code_is_about_the_goal(monkeypatch, capsys, driver, words, goal, code):
    monkeypatch.setattr(command, "this_machine", lambda: replace(WHOLE, driver=driver))
    assert main(["doctor", "--json", *words]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["goal"]) == (code == 0, goal)
    assert found["able_to"][goal] is found["ok"]
    assert {p["name"] for p in found["parts"]} == {p.name for p in examine(WHOLE)}
    assert main(["doctor", *words]) == code


def test_the_report_for_people_names_commands(monkeypatch, capsys):
    machine = replace(WHOLE, version=without("cupy-cuda13x"))
    monkeypatch.setattr(command, "this_machine", lambda: machine)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^CuPy +run +missing +not installed$", out, re.MULTILINE)
    assert "  CuPy: pip install 'cupy-cuda13x>=14.0'" in out.splitlines()
    assert out.endswith("able to generate: yes, compile: yes, run: NO\n")


@pytest.mark.parametrize(
    ("module", "name"), [("islpy", "isl"), ("numpy", "numpy"), ("filelock", "filelock")]
)
def test_it_runs_without_a_package_that_all_else_needs(tmp_path, module, name):
    code = f"""
import sys
sys.modules[{module!r}] = None
from polygen.cli import main
print("code", main(["doctor"]))
print("code", main(["show", "x @ w", "x:f16[M,K]", "w:f16[K,N]", "--arch", "sm_80"]))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "POLYGEN_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{name} +generate +missing", done.stdout, re.MULTILINE), done.stdout
    assert f"  {name}: pip install '{name if name != 'isl' else 'islpy'}>=" in done.stdout
    assert [line for line in done.stdout.splitlines() if re.match(r"code \d", line)] == [
        "code 1", "code 2",
    ]  # fmt: skip
    assert "a package that polygen needs is missing" in done.stderr
    assert "`polygen doctor` says which" in done.stderr and "Traceback" not in done.stderr


def test_a_machine_without_a_driver_says_none(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpus.ctypes, "CDLL", missing)
    assert gpus.cuda_driver() is None


class FakeCuda:
    """The driver's library, with two GPUs."""

    def __init__(self, fails=()):
        self.fails = fails

    def __getattr__(self, name):
        known = getattr(type(self), f"tell_{name}", lambda *_: 0)
        return lambda *arguments: 999 if name in self.fails else known(*arguments)

    @staticmethod
    def tell_cuDriverGetVersion(version):
        version._obj.value = 13010

    @staticmethod
    def tell_cuDeviceGetCount(count):
        count._obj.value = 2

    @staticmethod
    def tell_cuDeviceGet(device, ordinal):
        device._obj.value = ordinal

    @staticmethod
    def tell_cuDeviceGetName(name, size, device):
        name.value = b"NVIDIA H200" if device.value else b"NVIDIA A100"

    @staticmethod
    def tell_cuDeviceGetAttribute(value, what, device):
        value._obj.value = {75: 8 + device.value, 76: 0}[what]


def test_the_driver_is_asked_for_its_gpus(monkeypatch):
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: FakeCuda())
    assert gpus.cuda_driver() == (13010, (Gpu("NVIDIA A100", "sm_80"), H200))


@pytest.mark.parametrize(
    ("fails", "found"),
    [("cuDriverGetVersion", None), ("cuInit", (13010, ())), ("cuDeviceGetCount", (13010, ()))],
)
def test_a_driver_that_fails_has_no_gpus(monkeypatch, fails, found):
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: FakeCuda({fails}))
    assert gpus.cuda_driver() == found
