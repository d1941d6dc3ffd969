"""A wheel of polygen works from an empty folder, with nothing of the checkout within reach."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="hatchling, of the extra dev, builds it"
)

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROGRAM = ["gelu(x @ w.T + b)", "x:bf16[M,K]", "w:bf16[N,K]", "b:bf16[N]", "--arch", "sm_90a"]
SIZES = ["--size", "M=4096", "N=4096", "K=1024"]


def run(words, folder, **variables):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder,
        env=os.environ | variables, check=True,
    ).stdout  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by the project's own backend."""
    folder = tmp_path_factory.mktemp("wheel")
    run(["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """An empty folder, and variables with which Python finds the wheel's files and no checkout."""
    installed = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:  # what installing a pure wheel comes to
        archive.extractall(installed)
    folder = tmp_path_factory.mktemp("empty")
    # -P: the folder itself is not searched; an editable install of the checkout comes later.
    return folder, {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}


def test_what_runs_is_the_wheel(empty):
    folder, variables = empty
    code = "import polygen.schedule.load as l; print(l.__file__); print(l.schedules_folder())"
    module, schedules = map(Path, run(["-c", code], folder, **variables).split())
    installed = Path(variables["PYTHONPATH"])
    assert installed in module.parents and installed in schedules.parents


def test_every_file_of_the_package_is_in_the_wheel(names):
    kept = {".py", ".j2", ".toml", ".css", ".js"}
    package = [p for p in (ROOT / "polygen").rglob("*") if p.suffix in kept or p.name == "py.typed"]
    assert {str(p.relative_to(ROOT)) for p in package} <= names
    schedules = [p for p in (ROOT / "schedules").rglob("*.toml")]
    assert len(schedules) > 100
    wanted = {f"polygen/_schedules/{p.relative_to(ROOT / 'schedules')}" for p in schedules}
    assert wanted <= names and any("/tuned/" in name for name in wanted)


def test_nothing_else_is_in_the_wheel(names):
    others = [name for name in names if not re.match(r"polygen(/|-[\d.]+\.dist-info/)", name)]
    assert others == [] and not any("__pycache__" in name for name in names)


def test_its_metadata_is_the_projects(wheel, names):
    metadata = next(name for name in names if name.endswith("/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        found = email.message_from_bytes(archive.read(metadata))
        entries = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert found["Requires-Python"] == ">=3.11"
    classifiers = found.get_all("Classifier")
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers
    extras = set(found.get_all("Provides-Extra"))
    assert extras == set(PROJECT["optional-dependencies"]) and {"cuda12", "cuda13"} <= extras
    for extra, package in (("cuda12", "cupy-cuda12x"), ("cuda13", "cupy-cuda13x")):
        needed = [line for line in found.get_all("Requires-Dist") if f"'{extra}'" in line]
        assert any(line.startswith(package) for line in needed), needed
        assert any(line.startswith("nvidia-cuda-nvrtc") and "==" in line for line in needed)
    assert "polygen = polygen.cli:main" in entries and "[torch_dynamo_backends]" in entries


def test_it_generates(empty):
    folder, variables = empty
    words = ["-m", "polygen", "generate", *PROGRAM, *SIZES, "--name", "up", "-o", "out", "--json"]
    said = json.loads(run(words, folder, **variables))
    assert {path.name for path in folder.iterdir()} == {"out"}
    assert "__global__" in (folder / "out" / "pg_up.cu").read_text()
    assert "shipped" in said["schedule"] and said["resources"]["spill_store_bytes"] == 0


def test_it_shows_what_the_checkout_shows(empty):
    folder, variables = empty
    words = ["-m", "polygen", "show", *PROGRAM, *SIZES, "--stage"]
    assert run([*words, "plan"], folder, **variables) == run([*words, "plan"], ROOT)


def test_its_doctor_finds_its_data(empty):
    folder, variables = empty
    said = json.loads(
        run(["-m", "polygen", "doctor", "--to", "compile", "--json"], folder, **variables)
    )
    data = next(part for part in said["parts"] if part["name"] == "data files")
    assert said["ok"] and data["state"] == "there" and " 0 " not in f" {data['found']}"
