"""`polygen check FOLDER`: every kernel below it gets a line, and what stops one stops no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from polygen.cli import check_folder, main
from polygen.cli.check_arrays import arguments
from polygen.cli.check_launch import load_launch
from polygen.errors import LaunchFileError, MachineFault
from polygen.machine import Launch, arithmetic, run
from polygen.runtime import toolkit
from polygen.verdict import Reason, Verdict

KERNELS = Path(__file__).parents[1] / "machine" / "kernels"
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
TWO = """
struct Five { float a[5]; };
struct Two { short a; };
extern "C" __global__ void first(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void second(Five s, float* x) { x[threadIdx.x] = s.a[threadIdx.x % 5]; }
extern "C" __global__ void third(Two s, bool b, float* x) { x[threadIdx.x] = s.a + b; }
extern "C" __global__ void late(float* x) {
  __shared__ float s[128];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[127 - threadIdx.x];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Kernels of every outcome but one that the machine stumbles over."""
    for name in ("sum_race.cu", "sum.toml", "sum_expected.npy"):
        shutil.copy(KERNELS / name, tmp_path / name.replace("sum.toml", "sum_race.toml"))
    deeper = tmp_path / "deeper"
    deeper.mkdir()
    (deeper / "two.cu").write_text(TWO)
    (tmp_path / "host.cu").write_text("#include <iostream>\nint main() {}\n")
    (tmp_path / "cut.ptx").write_text(HEAD)
    (tmp_path / "cube.ptx").write_text(HEAD + ".visible .entry f() { tex.1d.v4.f32.s32 {}, [0]; }")
    return tmp_path


def test_every_kernel_gets_a_line(folder, capsys, monkeypatch):
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    words = ["check", str(folder), "--arch", "sm_80", "--seconds", "900", "--workers", "2"]
    assert main(words) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    said = {tuple(line.split(":")[0].split()): line for line in lines}
    assert said.keys() == {
        ("refused", "cube.ptx", "f"), ("refused", "cut.ptx"), ("silent", "deeper/two.cu", "first"),
        ("silent", "deeper/two.cu", "second"), ("silent", "deeper/two.cu", "third"),
        ("found", "deeper/two.cu", "late"), ("refused", "host.cu"), ("found", "sum_race.cu"),
    }  # fmt: skip
    assert "no header <iostream>" in said["refused", "host.cu"]
    assert "`tex.1d.v4.f32.s32`" in said["refused", "cube.ptx", "f"]
    assert said["found", "sum_race.cu"].endswith(": race-write-read"), "as its launch file says"
    assert total == "5 file(s), 8 kernel(s): 3 silent, 2 found, 3 refused, 0 stopped, 0 failed"


def test_the_same_as_json(tmp_path, capsys):
    (tmp_path / "two.cu").write_text(TWO)
    assert main(["check", str(tmp_path), "--arch", "sm_80", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"silent": 3, "found": 1}
    assert [row["kernel"] for row in found["rows"]] == ["first", "second", "third", "late"]
    assert all(row["drafted"] for row in found["rows"])


def test_what_never_ends_is_stopped(tmp_path, capsys):
    """No limit is too long for it, and the next kernel has its turn."""
    (tmp_path / "loop.ptx").write_text(HEAD + ".visible .entry f()\n{ L: bra L; }\n")
    (tmp_path / "next.ptx").write_text(HEAD)
    assert main(["check", str(tmp_path), "--seconds", "3"]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert first.startswith("stopped  loop.ptx") and second.startswith("refused  next.ptx")
    assert total.endswith("1 stopped, 0 failed")


def test_a_mistake_of_the_machine_is_no_refusal(tmp_path, capsys, monkeypatch):
    def stumbles(*_):
        raise ValueError("shapes differ")

    stumbles.__module__ = arithmetic.__name__  # blocks are translated with the module's functions
    monkeypatch.setattr(arithmetic, "shift_left", stumbles)
    code = ".reg .b32 %r<3>; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, %r1; ret;"
    with pytest.raises(MachineFault, match="shapes differ") as caught:
        run(HEAD + f".visible .entry f() {{ {code} }}", Launch((1, 1, 1), (32, 1, 1)))
    reason = Reason(type(caught.value).__name__, str(caught.value))
    (tmp_path / "f.ptx").write_text(HEAD + ".visible .entry f()\n{ ret; }\n")
    monkeypatch.setattr(check_folder, "judge", lambda *_, **__: Verdict("refused", (reason,)))
    assert main(["check", str(tmp_path)]) == 1
    line, total = capsys.readouterr().out.splitlines()
    assert line.startswith("failed   f.ptx f: PTX line 4: the machine fails")
    assert total.endswith("0 stopped, 1 failed")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--explain"], "is a folder, of which every kernel gets one line"),
        (["--format", "sarif"], "is a folder, of which every kernel gets one line"),
        ([], "has no .cu and no .ptx"),
    ],
)
def test_wrong_usage(tmp_path, capsys, more, words):
    assert main(["check", str(tmp_path), *more]) == 2
    assert words in capsys.readouterr().err


# --- structs -------------------------------------------------------------------------------------
ONE = 'format = 1\narch = "sm_80"\ngrid = [1]\nblock = [128]\nentry = "second"\n'
STRUCT = '[[argument]]\nkind = "struct"\nsize = 20\nfill = "five.npy"\n'
ARRAY = '[[argument]]\nkind = "array"\ndtype = "f32"\nshape = [128]\nexpect = "wanted.npy"\n'


def test_a_struct_by_value(tmp_path, capsys):
    five = np.arange(5, dtype=np.float32)
    np.save(tmp_path / "five.npy", five)
    np.save(tmp_path / "wanted.npy", np.resize(five, 128))
    (tmp_path / "two.cu").write_text(TWO)
    (tmp_path / "two.toml").write_text(ONE + STRUCT + ARRAY)
    assert main(["check", str(tmp_path / "two.cu"), str(tmp_path / "two.toml")]) == 0
    assert "1 array(s) equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "instead", "words"),
    [
        ("size = 20", "size = 0", "argument[0].size: 0 is not between 1 and 32764 bytes"),
        ("size = 20", "size = 24", "five.npy has 20 bytes, not 24"),
        ("size = 20\n", "", "argument[0].size: missing"),
        (
            "five.npy",
            "ones",
            "argument[0].fill: 'ones' is unknown. Legal: 'zeros', or an .npy file",
        ),
        ("five.npy", "six.npy", "six.npy cannot be read"),
    ],
)
def test_mistakes_about_structs(tmp_path, text, instead, words):
    np.save(tmp_path / "five.npy", np.zeros(5, np.float32))
    path = tmp_path / "l.toml"
    assert text in STRUCT
    path.write_text(ONE + STRUCT.replace(text, instead))
    with pytest.raises(LaunchFileError) as caught:
        arguments(load_launch(path), path)
    assert words in str(caught.value)
