"""Machines as they are: no home folder, one that cannot be written, no CuPy, odd variables."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from polygen import knobs
from polygen.errors import PolygenError, ToolchainBroken, ToolchainMissing
from polygen.runtime import cache, cupy_import, driver, sass, toolkit

ROOT = Path(__file__).parents[3]
PROGRAM = ["x @ w.T", "x:bf16[M,K]", "w:bf16[N,K]", "--arch", "sm_80", "--name", "up"]


def process(words, folder, **environment):
    """Run a Python process in `folder` with changed variables; None removes one."""
    found = {**os.environ, "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, cwd=folder,
        env={name: value for name, value in found.items() if value is not None},
    )  # fmt: skip


HOMES = {
    "missing": {"HOME": None},
    "empty": {"HOME": ""},
    "a file": {"HOME": "/dev/null"},
    "not there and not to be made": {"HOME": "/proc/nobody"},
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
@pytest.mark.parametrize("named", [True, False], ids=["with a cache folder", "without"])
def test_a_kernel_is_compiled_whatever_the_home_folder(tmp_path, home, named):
    variables = home | {"XDG_CACHE_HOME": None, "CUPY_CACHE_DIR": None, "POLYGEN_CACHE_DIR": ""}
    if named:
        variables["POLYGEN_CACHE_DIR"] = str(tmp_path / "cache")
    elif home["HOME"] in (None, ""):
        pytest.skip("would write the cache of whoever runs the tests")
    done = process(["-m", "polygen", "generate", *PROGRAM, "-o", "out"], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert "0 B spilled" in done.stdout and "not compiled" not in done.stdout
    made = {path.name for path in tmp_path.iterdir()}
    assert made == ({"out", "cache"} if named else {"out"})
    if named:
        assert done.stderr == ""
    else:
        assert done.stderr.count("The kernel is not kept.") == 1  # of several entries
        assert "POLYGEN_CACHE_DIR" in done.stderr


def test_warnings_as_errors_end_no_command(tmp_path):
    variables = {"POLYGEN_CACHE_DIR": "/dev/null", "PYTHONWARNINGS": "error"}
    done = process(["-m", "polygen", "generate", *PROGRAM, "-o", "out"], tmp_path, **variables)
    assert done.returncode == 0 and done.stderr.startswith("polygen: warning:"), done.stderr


@pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)
def test_cupy_can_be_imported_whatever_the_home_folder(tmp_path, home):
    pytest.importorskip("cupy")
    code = """
        import os
        from polygen.runtime.cupy_import import import_cupy
        import_cupy()
        print(os.environ.get("CUPY_CACHE_DIR"))
    """
    variables = {"CUPY_CACHE_DIR": None, "POLYGEN_CACHE_DIR": "/dev/null"} | home
    if home["HOME"] in (None, ""):
        pytest.skip("would write the cache of whoever runs the tests")
    done = process(["-c", textwrap.dedent(code)], tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.name.startswith("polygen-cupy-") and not folder.exists()  # gone with the process


def test_a_cupy_cache_goes_below_polygens(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", "/dev/null/cupy")
    monkeypatch.setattr(cupy_import.importlib, "import_module", lambda name: name)
    with knobs.scope(cache_dir=tmp_path):
        assert cupy_import.import_cupy.__wrapped__() == "cupy"
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "cupy")


def test_a_cupy_cache_that_works_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setattr(cupy_import.importlib, "import_module", lambda name: name)
    cupy_import.import_cupy.__wrapped__()
    assert os.environ["CUPY_CACHE_DIR"] == str(tmp_path / "mine")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid(), reason="only root can be another")
@pytest.mark.parametrize("cupy", [False, True])
def test_a_user_whom_the_system_does_not_know_compiles(tmp_path, cupy):
    if cupy:
        pytest.importorskip("cupy")
    code = f"""
        import os, tempfile, warnings
        import polygen.cli
        from polygen import knobs
        from polygen.runtime import cupy_import
        folder = tempfile.mkdtemp()
        with knobs.scope(cache_dir=__import__("pathlib").Path(folder, "warm")):
            # Everything is loaded now: the stranger may have no right to read Python's own files.
            polygen.cli.main(["generate", *{PROGRAM}, "-o", folder + "/out"])
        warnings.simplefilter("always")
        os.chmod(folder, 0o777)
        os.chdir(folder)
        os.setgid(54321)
        os.setuid(54321)
        if {cupy}:
            cupy_import.give_folder()
            assert "~" not in os.environ["CUPY_CACHE_DIR"], os.environ["CUPY_CACHE_DIR"]
        code = polygen.cli.main(["generate", *{PROGRAM}])
        print(sorted(os.listdir(".")), code)
    """
    gone = {"HOME": None, "POLYGEN_CACHE_DIR": None, "XDG_CACHE_HOME": None, "CUPY_CACHE_DIR": None}
    done = process(["-c", textwrap.dedent(code)], tmp_path, **gone)
    assert done.stdout.splitlines()[-1:] == ["['kernels_out', 'out', 'warm'] 0"], done.stderr
    assert "0 B spilled" in done.stdout and "/.cache/polygen" in done.stderr


def unknown(name):
    raise RuntimeError("could not determine the home directory")


@pytest.mark.parametrize("usual", [unknown, lambda name: Path("~/.cache", name)])
def test_a_user_whom_the_system_does_not_know_has_the_root_for_a_home(monkeypatch, usual):
    monkeypatch.setattr(cache.platformdirs, "user_cache_path", usual)
    with knobs.scope(cache_dir=None):
        assert cache.directory() == Path("/.cache/polygen")


# --- variables
def test_an_empty_variable_is_as_good_as_none(monkeypatch):
    for name in ("CACHE_DIR", "CACHE", "SCHEDULE", "ARCH", "LINE_INFO", "DEBUG"):
        monkeypatch.setenv(f"POLYGEN_{name}", "")
    assert knobs.current() == knobs.Knobs()


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POLYGEN_CACHE_DIR", "~/kernels")
    assert cache.directory() == tmp_path / "kernels"


def test_a_tilde_of_nobody_is_refused(monkeypatch):
    monkeypatch.setenv("POLYGEN_CACHE_DIR", "~no-such-user/kernels")
    with pytest.raises(PolygenError, match="POLYGEN_CACHE_DIR: '~no-such-user/kernels' names no"):
        cache.directory()


# --- CuPy
def test_cupy_that_is_not_installed_is_said_to_be(monkeypatch):
    def missing():
        raise ImportError("No module named 'cupy'")

    monkeypatch.setattr(driver, "import_cupy", missing)
    with pytest.raises(ToolchainMissing, match=r"No module named 'cupy'.*pip install cupy-cuda13x"):
        driver.cupy_driver.__wrapped__()


@pytest.mark.parametrize(("wheel", "major"), [("cupy-cuda12x", 12), ("cupy-cuda13x", 13)])
def test_the_toolkit_of_the_installed_cupy_comes_first(tmp_path, monkeypatch, wheel, major):
    nvidia = tmp_path / "nvidia"
    for name in ("cu13", "cu14", "cuda_nvrtc"):
        (nvidia / name / "lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(toolkit, "version", lambda name: "1" if name == wheel else None)
    found = [folder.parent.name for folder in toolkit.existing("lib") if nvidia in folder.parents]
    expected = ["cu13", "cu14", "cuda_nvrtc"] if major == 13 else ["cuda_nvrtc", "cu14", "cu13"]
    assert found == expected


# --- the disassembler
def a_tool(folder, text):
    folder.mkdir(parents=True)
    tool = folder / "nvdisasm"
    tool.write_text(text)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tool


@pytest.fixture
def no_tools(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(toolkit, "roots", lambda: ())


def test_a_disassembler_comes_from_its_package(no_tools, monkeypatch, tmp_path):
    a_tool(tmp_path / "bin", '#!/bin/sh\n[ "$1" = -c ] && read line <"$2" && echo "sass: $line"\n')
    monkeypatch.setattr(toolkit, "roots", lambda: (tmp_path,))
    assert sass.disassemble(b"cubin\n") == "sass: cubin\n"


def test_no_disassembler(no_tools):
    with pytest.raises(ToolchainMissing, match=r"pip install 'nvidia-cuda-nvdisasm>=13.2'"):
        sass.disassemble(b"cubin")


@pytest.mark.parametrize(
    ("text", "message"),
    [("#!/bin/sh\necho no such option >&2\nexit 3\n", "fails .no such option"), ("\0", "not run")],
)
def test_a_disassembler_that_fails(no_tools, monkeypatch, tmp_path, text, message):
    tool = a_tool(tmp_path / "bin", text)
    monkeypatch.setattr(toolkit, "roots", lambda: (tmp_path,))
    with pytest.raises(ToolchainBroken, match=f"{tool}: .*{message}"):
        sass.disassemble(b"cubin")
