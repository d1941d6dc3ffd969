"""Whole programs: what NVRTC does not take is compiled by nvcc, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from polygen.cli import main
from polygen.errors import CompileError
from polygen.runtime import toolkit
from polygen.runtime.outside import compile_ptx, compile_text

KERNEL = 'extern "C" __global__ void k(int* x) { x[threadIdx.x] = threadIdx.x; }'
PROGRAM = f'#include <cstdio>\n{KERNEL}\nint main() {{ k<<<1, 32>>>(nullptr); puts(""); }}\n'
LAUNCH = """format = 1
entry = "k"
grid = [1]
block = [32]
[[argument]]
kind = "array"
dtype = "s32"
shape = [32]
expect = "x.npy"
"""
STAND_IN = """#!{python}
import sys
assert sys.argv[1:4] == ["-ptx", "-lineinfo", "-w"] and "-arch=sm_80" in sys.argv
if {fails!r}:
    print({fails!r}, file=sys.stderr)
    sys.exit(2)
open(sys.argv[sys.argv.index("-o") + 1], "w").write(open({ptx!r}).read())
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.cu"
    path.write_text(PROGRAM)
    (tmp_path / "program.toml").write_text(LAUNCH)
    np.save(tmp_path / "x.npy", np.arange(32, dtype=np.int32))
    return path


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """Puts a stand-in for nvcc in its place: it gives the kernel's PTX, or fails with words."""

    def put(fails=""):
        ptx, script = tmp_path / "out" / "made.txt", tmp_path / "out" / "nvcc"
        ptx.parent.mkdir()
        ptx.write_text(compile_text(KERNEL, Path("program.cu"), "sm_80"))
        python = os.path.realpath("/proc/self/exe")
        script.write_text(STAND_IN.format(python=python, fails=fails, ptx=str(ptx)))
        script.chmod(0o755)
        monkeypatch.setattr(toolkit, "nvcc", lambda: script)

    return put


def test_a_program_is_compiled_by_nvcc(program, nvcc, capsys):
    nvcc()
    assert main(["check", str(program), str(program.with_suffix(".toml")), "--arch", "sm_80"]) == 0
    assert "1 array(s) equal" in capsys.readouterr().out


def test_a_folder_with_programs(program, nvcc, capsys):
    nvcc()
    assert main(["check", str(program.parent), "--arch", "sm_80"]) == 0
    assert "silent   program.cu" in capsys.readouterr().out


def test_what_nvcc_says(program, nvcc, capsys):
    nvcc(f'{program}(3): error: identifier "puts" is undefined')
    with pytest.raises(CompileError, match=r'line 3: nvcc says: .*"puts" is undefined'):
        compile_ptx(program, "sm_80")
    assert main(["check", str(program.parent), "--arch", "sm_80"]) == 0
    assert "refused  program.cu: " in (said := capsys.readouterr().out)
    assert '"puts" is undefined' in said


def test_a_header_that_both_lack(program, nvcc):
    program.write_text("#include <cutlass/none.h>\n")
    nvcc("program.cu:1:10: fatal error: cutlass/none.h: No such file or directory")
    with pytest.raises(CompileError, match=r"there is no header <cutlass/none\.h>"):
        compile_ptx(program, "sm_80")


def test_without_nvcc_a_program_is_refused(program, monkeypatch, capsys):
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    with pytest.raises(CompileError, match="or install nvcc"):
        compile_ptx(program, "sm_80")
    assert main(["check", str(program.parent), "--arch", "sm_80"]) == 0
    assert "refused  program.cu: " in capsys.readouterr().out


def test_a_mistake_in_a_kernel_is_not_taken_to_nvcc(program, monkeypatch):
    monkeypatch.setattr(toolkit, "nvcc", lambda: pytest.fail("it is asked"))
    program.write_text(KERNEL.replace("= threadIdx", "= treadIdx"))
    with pytest.raises(CompileError, match="NVRTC says"):
        compile_ptx(program, "sm_80")


def test_nvcc_needs_a_compiler_of_the_host(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    monkeypatch.setattr(toolkit, "roots", lambda: (tmp_path,))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert toolkit.nvcc() is None
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "g++" else None)
    assert toolkit.nvcc() == tmp_path / "bin" / "nvcc"
    (tmp_path / "bin" / "nvcc").unlink()
    assert toolkit.nvcc() is None


@pytest.mark.slow
@pytest.mark.skipif(toolkit.nvcc() is None, reason="no nvcc")
def test_a_program_around_a_library(program, capsys):
    """As nvcc itself has it; `cub/cub.cuh` declares functions of the host."""
    program.write_text("#include <cub/cub.cuh>\n" + PROGRAM)
    assert main(["check", str(program), str(program.with_suffix(".toml")), "--arch", "sm_80"]) == 0
    assert "1 array(s) equal" in capsys.readouterr().out
