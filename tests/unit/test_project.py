"""The rules of the project that a test can enforce; CONTRIBUTING lists them all."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from polygen.hardware.data_file import read
from polygen.hardware.device import FILE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "polygen"
MODULES = sorted(PACKAGE.rglob("*.py"))
TEMPLATES = sorted(PACKAGE.rglob("*.j2"))


def python(code: str, folder: Path) -> str:
    """Run code in a process of its own, in an empty folder that also holds its bytecode."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=folder, env=environment, check=True, timeout=1200,
    )  # fmt: skip
    return done.stdout


# --- importing
def test_importing_starts_nothing(tmp_path):
    code = """
        import json, sys, threading
        import polygen
        maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
        heavy = ["cupy", "torch", "jax", "rich", "polygen.cli"]
        print(json.dumps({
            "modules": [name for name in heavy if name in sys.modules],
            "cuda": [name for name in ("libcuda", "libnvrtc") if name in maps],
            "threads": threading.active_count(),
        }))
    """
    assert json.loads(python(code, tmp_path)) == {"modules": [], "cuda": [], "threads": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"bytecode"}


# --- where things are
def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The string constants of a module that are not documentation, with their lines."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documentation:
            yield node.lineno, node.value


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_cuda_text_is_written_by_emit_alone():
    cuda = re.compile(r"__device__|__global__ void|__shared__|\basm( volatile)?\(")
    found = [
        f"{relative(path)}:{line}"
        for path in MODULES
        if PACKAGE / "emit" not in path.parents
        for line, text in strings(ast.parse(path.read_text()))
        if cuda.search(text)
    ]
    assert found == []


def hardware_numbers() -> set[int]:
    """Numbers of the device data, but for powers of two and small ones, which mean much else."""
    tables = read(FILE)
    groups = [tables["common"], *(t["facts"] for name, t in tables.items() if name != "common")]
    numbers = {n for group in groups for facts in group.values() for n in facts.values()}
    return {n for n in numbers if n > 4096 and n & (n - 1) and n & (n + 1)}


def test_hardware_numbers_are_in_the_data_alone():
    numbers = hardware_numbers()
    assert {49152, 101376, 166912, 232448} <= numbers
    found = [
        f"{relative(path)}:{node.lineno}: {node.value}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in numbers
    ]
    assert found == []


def test_no_code_compares_architectures():
    target = re.compile(r"(sm|compute)_?\d*a?")

    def names_one(node: ast.AST) -> bool:
        text = node.value if isinstance(node, ast.Constant) else None
        return isinstance(text, str) and bool(target.fullmatch(text))

    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            asks = isinstance(node, (ast.Compare, ast.MatchValue))
            asks |= (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("startswith", "endswith")
            )
            if asks and any(names_one(part) for part in ast.walk(node)):
                found.append(f"{relative(path)}:{getattr(node, 'lineno', '?')}")
    assert found == []


# --- tests
CLOCKS = re.compile(r"^(time|time_ns|(perf_counter|process_time|monotonic|thread_time)(_ns)?)$")
# What shows a bar, and a script that measures; neither decides whether a test passes.
MAY_READ_CLOCKS = {"tests/progress.py", "tests/gpu/tuner_regret.py"}
LEAST_PATIENCE = 600  # seconds: a time limit in a test only guards against hangs


def timing(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What makes a test's verdict depend on time: clocks, short time limits, deadlines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and CLOCKS.match(node.attr):
                yield node.lineno, f"time.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield node.lineno, "from time import"
        elif isinstance(node, ast.Import) and any(one.name == "timeit" for one in node.names):
            yield node.lineno, "import timeit"
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            limit = node.value.value
            short = isinstance(limit, int | float) and limit < LEAST_PATIENCE
            if (node.arg == "timeout" and short) or (node.arg == "deadline" and limit is not None):
                yield node.value.lineno, f"{node.arg}={limit}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\nassert time.perf_counter() - start < 1", ["time.perf_counter"]),
        ("import time\ntime.time(), time.monotonic_ns()", ["time.time", "time.monotonic_ns"]),
        ("from time import process_time as now", ["from time import"]),
        ("import timeit", ["import timeit"]),
        ("process.wait(timeout=60)", ["timeout=60"]),
        ("@settings(deadline=200)\ndef test(): ...", ["deadline=200"]),
        ("import time\ntime.sleep(0.1)\nwait(timeout=600)\nsettings(deadline=None)", []),
    ],
)
def test_what_depends_on_time_is_seen(code, found):
    assert {what for _, what in timing(ast.parse(code))} == set(found)


def test_no_verdict_depends_on_time():
    paths = sorted((ROOT / "tests").rglob("*.py"))
    found = [
        f"{relative(path)}:{line}: {what}"
        for path in paths
        if relative(path) not in MAY_READ_CLOCKS
        for line, what in timing(ast.parse(path.read_text()))
    ]
    assert len(paths) > 100
    assert found == [], "CONTRIBUTING.md, Tests, says what to do instead"


# --- templates
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_render_leaves_and_hold_no_loop_nest(path):
    text = path.read_text()
    loops = re.findall(r"\bfor \([^;]*;[^;]*;[^)]*\)", text)
    assert not [loop for loop in loops if "k_tile" in loop or "tile_k" in loop]
    calls = r"\b(copy_[ab]|load_[ab]|mma|stage|store|commit)\([^)]*\);"
    assert re.findall(calls, text) == [], "statements are called by the loops that isl generates"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_do_no_arithmetic(path):
    """What they print is computed before; the host's launcher and header round tile counts up."""
    values = re.findall(r"\{\{(.*?)\}\}", re.sub(r'"[^"]*"', '""', path.read_text()))
    found = [value for value in values if re.search(r"[-+*/%]", value)]
    assert found == [] or path.name in ("launcher.cu.j2", "header.h.j2")


def test_there_are_templates_and_modules_to_look_at():
    assert len(TEMPLATES) > 5 and len(MODULES) > 50


# --- documentation
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "schedules").glob("*.md")]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_documents_exist(path):
    named = re.findall(r"`((?:polygen|tests|docs|schedules)/[\w./-]+)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


# Of what is known to some modules alone, which those are.
KNOWN_TO = {
    "islpy": {"isl"},
    "cupy": {"adapters", "bench", "runtime", "tune"},
    "jinja2": {"emit", "page"},
    "torch": {"adapters", "bench"},
}


def _contracts():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["importlinter"]["contracts"]


def _modules():
    package = ROOT / "polygen"
    files = {one.stem for one in package.glob("*.py")} - {"__init__"}
    return files | {one.parent.name for one in package.glob("*/__init__.py")}


def test_every_module_has_a_layer():
    (contract,) = (one for one in _contracts() if one["type"] == "layers")
    every = (name for layer in contract["layers"] for name in re.split("[|:]", layer))
    assert {name.strip().split(".")[1] for name in every} == _modules()


@pytest.mark.parametrize("library", KNOWN_TO)
def test_libraries_are_known_to_some_modules_alone(library):
    (contract,) = (one for one in _contracts() if library in one.get("forbidden_modules", ()))
    named = {name.removeprefix("polygen.") for name in contract["source_modules"]}
    assert named == _modules() - KNOWN_TO[library]


def test_the_page_on_the_pipeline_names_every_module_of_the_passes():
    page = (ROOT / "docs" / "pipeline.md").read_text()
    modules = [relative(path) for path in MODULES if path.name != "__init__.py"]
    passes = [one for one in modules if one.split("/")[1] in ("rewrite", "poly", "lower")]
    assert len(passes) > 100 and [one for one in passes if f"`{one}`" not in page] == []
