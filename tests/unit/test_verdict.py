# ruff: noqa: E501 - CUDA and PTX text
"""`pg.judge`: verdicts on kernels from outside, in a process with limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import polygen as pg
from polygen.errors import ArgumentError, UnknownTarget
from polygen.runtime import sandbox
from polygen.verdict import differences

TURN = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[64]; const int t = threadIdx.x;
  s[t] = x[t];
  SYNC
  y[t] = s[63 - t];
}"""
X = np.arange(64, dtype=np.float32)
LAUNCH = pg.Launch((1, 1, 1), (64, 1, 1), 0, (X, np.zeros(64, np.float32)))


TENSOR_MEMORY = """.version 8.6\n.target sm_100a\n.address_size 64
.entry k(.param .u64 x, .param .u64 y) { tcgen05.wait::ld.sync.aligned; ret; }"""


def turned(sync: str) -> str:
    return TURN.replace("SYNC", sync)


def test_a_right_kernel():
    verdict = pg.judge(turned("__syncthreads();"), LAUNCH, lambda x, y: x[::-1], arch="sm_80")
    assert (verdict.outcome, verdict.ok, verdict.reasons, str(verdict)) == (
        "right",
        True,
        (),
        "right",
    )
    np.testing.assert_array_equal(verdict.arrays[1], X[::-1])
    assert verdict.instructions > 0
    assert json.loads(json.dumps(verdict.as_json()))["outcome"] == "right"


def test_a_race_has_a_story():
    verdict = pg.judge(turned(""), LAUNCH, (None, X[::-1]), arch="sm_80")
    assert verdict.outcome == "wrong"
    (reason,) = verdict.reasons
    assert reason.code == "race-write-read" and reason.completions == ("late", "early", "random")
    assert "kernel.cu:3" in reason.story[0] and "writes it" in reason.story[0]
    assert "no barrier, wait or fence on it" in reason.story[1]
    assert "kernel.cu:5" in reason.story[2] and "reads it" in reason.story[2]


def test_wrong_values_and_what_they_may_differ_by():
    wanted = X[::-1] + np.float32(0.25)
    source = turned("__syncthreads();")
    wrong = pg.judge(source, LAUNCH, {1: wanted}, arch="sm_80", completions=("late",))
    assert [one.code for one in wrong.reasons] == ["wrong-value"]
    assert wrong.reasons[0].sentence == "element [0] is 63.0, expected 63.25"
    assert wrong.reasons[0].where == "array argument 1" and wrong.reasons[0].count == 64
    assert pg.judge(source, LAUNCH, wanted, arch="sm_80", completions=("late",), atol=0.25).ok


def test_a_file_and_ptx(tmp_path):
    path = tmp_path / "turn.cu"
    path.write_text(turned("__syncwarp();"))
    verdict = pg.judge(path, LAUNCH, arch="sm_80", completions=("late",))
    assert "turn.cu:5" in verdict.reasons[0].where
    ptx = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) { .reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [y]; mov.u32 %v, %tid.x; st.global.u32 [%a], 7; ret; }"""
    launch = pg.Launch((1, 1, 1), (1, 1, 1), 0, (X, np.zeros(2, np.int32)))
    assert pg.judge(ptx, launch, np.array([7, 0]), completions=("early",)).ok


@pytest.mark.parametrize(
    "source, code, words",
    [
        ("garbage", "CompileError", "line 1: NVRTC says"),
        ("#include <cub/cub.hpp>", "CompileError", "there is no header <cub/cub.hpp>"),
        (
            'extern "C" __global__ void other(int* x) {}',
            "LaunchError",
            "2 arguments for 1 parameters",
        ),
        (
            TENSOR_MEMORY,
            "PtxError",
            "tensor memory is not modelled",
        ),
        (
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(",
            "PtxError",
            "the text ends inside",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_reason(source, code, words):
    verdict = pg.judge(source, LAUNCH, arch="sm_80")
    assert verdict.outcome == "refused" and not verdict.ok
    (reason,) = verdict.reasons
    assert reason.code == code and words in reason.sentence


def test_what_never_ends_is_stopped():
    """The kernel has no end: no limit is too long for it."""
    verdict = pg.judge(
        turned('while (true) { asm volatile(""); }'), LAUNCH, arch="sm_80", seconds=3
    )
    assert verdict.outcome == "stopped"
    assert [one.code for one in verdict.reasons] == ["time-limit"]


def test_what_needs_too_much_memory_is_stopped():
    big = np.zeros(1 << 25, np.float32)
    launch = pg.Launch((1, 1, 1), (64, 1, 1), 0, (X, big))
    verdict = pg.judge(turned("__syncthreads();"), launch, arch="sm_80", memory=192 << 20)
    assert verdict.outcome == "stopped"
    assert verdict.reasons[0].code in ("memory-limit", "died")


def test_memory_that_is_shared_stays_so():
    """The same array twice, a part of it, and a map: what one writes the others see."""
    whole = np.zeros((4, 32), np.float32)
    source = 'extern "C" __global__ void k(float* x, float* y, float* z) { x[threadIdx.x] = 1; y[32 + threadIdx.x] = 2; z[64 + threadIdx.x] = 3; }'
    launch = pg.Launch((1, 1, 1), (32, 1, 1), 0, (whole, whole, whole.T))
    verdict = pg.judge(source, launch, arch="sm_80", completions=("late",))
    assert verdict.ok, str(verdict)
    np.testing.assert_array_equal(verdict.arrays[0], np.repeat([[1], [2], [3], [0]], 32, 1))
    np.testing.assert_array_equal(verdict.arrays[2], verdict.arrays[0].T)


def test_types_of_eight_bits_come_back():
    launch = pg.Launch(
        (1, 1, 1),
        (32, 1, 1),
        0,
        (np.ones(32, ml_dtypes.float8_e4m3fn), np.zeros(32, ml_dtypes.bfloat16)),
    )
    source = 'extern "C" __global__ void k(const unsigned char* x, unsigned short* y) { y[threadIdx.x] = 0x3F80 + (x[threadIdx.x] != 0x38); }'
    verdict = pg.judge(source, launch, np.ones(32), arch="sm_80", completions=("late",))
    assert verdict.ok and verdict.arrays[1].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "given, words",
    [
        ({"reference": (X,)}, "1 expected arrays for 2 of the launch"),
        ({"reference": {2: X}}, "is expected of array argument 2"),
        ({"reference": {1: X[:5]}}, r"an array of shape \(5,\) is expected of array argument 1"),
        ({"completions": ()}, r"completions \(\)"),
        ({"completions": ("soon",)}, "completions"),
        ({"launch": pg.Launch((1, 1, 1), (1, 1, 1), 0, (np.array(3.0),))}, "without axes"),
        ({"source": Path("none.cu")}, "none.cu: cannot be read"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(given, words):
    arguments = {"source": turned(""), "launch": LAUNCH, **given}
    with pytest.raises(ArgumentError, match=words):
        pg.judge(**arguments)


def test_an_unknown_target():
    with pytest.raises(UnknownTarget):
        pg.judge(turned(""), LAUNCH, arch="sm_1")


def test_no_guard_is_needed_in_a_script(tmp_path):
    """The process does not import the script that asked for it."""
    script = tmp_path / "agent.py"
    script.write_text(
        "import numpy as np, polygen as pg\n"
        f"source = '''{turned('')}'''\n"
        "launch = pg.Launch((1, 1, 1), (64, 1, 1), 0, (np.zeros(64, np.float32),) * 2)\n"
        "print(pg.judge(source, launch, arch='sm_80', completions=('late',)).outcome)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
        check=True,
    )
    assert done.stdout == "wrong\n"


def test_nan_equals_nan_and_integers_are_exact():
    after = (np.array([np.nan, 1.0]), np.array([1, 2]))
    assert not differences(after, (np.array([np.nan, 1.0]), None))
    found = differences(after, (np.array([0.0, 1.0]), np.array([1, 3])), atol=5.0)
    assert [one.where for one in found] == ["array argument 0", "array argument 1"]


def test_the_process_may_not_write_files(tmp_path):
    said, arrays = sandbox.ask(
        f"{__name__}:write_a_file", str(tmp_path / "x"), seconds=600, memory=1 << 30
    )
    assert said == {"wrote": False} and arrays == ()
    assert not Path(tmp_path / "x").read_bytes()


def write_a_file(path: str):
    try:
        Path(path).write_text("much")
    except OSError:
        return {"wrote": False}, ()
    return {"wrote": True}, ()


def test_a_process_that_dies_says_so():
    with pytest.raises(sandbox.Stopped, match="ended with 7"):
        sandbox.ask(f"{__name__}:die", None, seconds=600, memory=1 << 30)


def die(job):
    os._exit(7)
