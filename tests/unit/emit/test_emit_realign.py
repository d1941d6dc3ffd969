"""The host launcher of a kernel whose operands are copied first, compiled with CUDA's stubs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from host_launcher import COMPILER, HostLauncher
from matrix import roles

import polygen as pg
from polygen.runtime.arrays import ArrayView
from polygen.runtime.binding import bind
from polygen.schedule import realign
from polygen.schedule.model import Launches

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
SCHEDULE = replace(roles(through="lines"), launch=Launches(realign=True))
CASES = {
    "matrices": (
        pg.fuse(lambda x, w: x @ w.mT, name="product"),
        ("bf16[B,M,K]", "bf16[B,N,K]"),
        {"B": 3, "M": 20, "K": 131, "N": 45},
    ),
    "columns first": (
        pg.fuse(lambda x, w: x @ w.T, name="product"),
        ("bf16[M,K]:col", "bf16[N,K]"),
        {"M": 67, "K": 131, "N": 45},
    ),
    "bytes": (
        pg.fuse(lambda x, w: x @ w.T, name="product"),
        ("e4m3[M,K]", "e4m3[N,K]"),
        {"M": 67, "K": 9001, "N": 45},
    ),
}


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_c_launcher_copies_and_launches_as_calls_from_python_do(tmp_path, name, dependent):
    function, signature, sizes = CASES[name]
    schedule = replace(SCHEDULE, launch=Launches(realign=True, dependent=dependent))
    if name == "bytes":
        schedule = replace(roles(k=128, through="lines"), launch=schedule.launch)
    kernel = function.compile(
        *signature, arch="sm_90a", sizes=sizes, schedule=schedule, out_dtype="bf16"
    )
    program, source = kernel.program, kernel._generated.source
    given, views = dict(sizes), []
    tensors = (*program.inputs, *program.outputs)
    for at, tensor in enumerate(tensors, 1):
        shape, step, steps = [sizes[str(d)] for d in tensor.dims], 1, [0] * len(tensor.dims)
        for axis in reversed(tensor.order):
            steps[axis] = step
            if axis != tensor.order[-1]:
                given[f"{tensor.name}_stride{axis}"] = step
            step = step * shape[axis] + 3 * at
        given[tensor.name] = (at << 30) + tensor.dtype.bytes
        views.append(
            ArrayView(given[tensor.name], tuple(shape), tuple(steps), tensor.dtype, 0, "numpy")
        )
    host, start = HostLauncher(source, program, tmp_path), 1 << 40
    assert host.realigned(given, start) == 0
    assert host.number("dependents") == 2 * dependent
    binding = bind(source, program.inputs, program.outputs, views)
    blocks, wanted = 0, []
    offsets = source.realign.offsets(sizes)
    for at, steps, offset in zip(binding.copied, binding.steps, offsets, strict=False):
        numbers = realign.constants(tensors[at], sizes, steps)
        wanted += [given[tensors[at].name], start + offset, *numbers]
        blocks += numbers[0]
    assert host.copied() == (blocks, wanted)
    constants = [value for value in binding.constants if value is not None]
    assert host.passed() == constants
    maps = host.described(len(binding.maps))
    copies = {at: start + offset for at, offset in zip(binding.copied, offsets, strict=False)}
    for found, (at, layout) in zip(maps, binding.maps, strict=True):
        assert found.address == copies.get(at, given[tensors[at].name]) + layout.start
        assert (found.sizes, found.strides) == (layout.sizes, layout.strides)
    named = {d: sizes[d] for t in source.realign.tensors for d in map(str, t.dims)}
    assert host.workspace(*named.values()) == kernel.workspace()


def test_the_c_launcher_makes_operands_as_calls_from_python_do(tmp_path):
    """Of two operands, one by index and one beside a copy; the kernel multiplies what was made."""
    function = pg.fuse(lambda x, r, a, w: (x[r] * a) @ w.T, name="product")
    schedule = replace(SCHEDULE, roles=replace(SCHEDULE.roles, computes="before"))
    signature, sizes = ("bf16[S,K]", "s32[T]", "f32", "bf16[N,K]"), {"S": 9, "T": 67, "K": 131}
    kernel = function.compile(
        *signature, arch="sm_90a", sizes={**sizes, "N": 45}, schedule=schedule, out_dtype="bf16"
    )
    program, source = kernel.program, kernel._generated.source
    (made,) = source.realign.made
    given = {**sizes, "N": 45, "x_stride0": 140, "w_stride0": 131, "y0_stride0": 46}
    given |= {"x": 0x10002, "r": 0x20004, "w": 0x30002, "y0": 0x40002}
    host, start = HostLauncher(source, program, tmp_path), 1 << 40
    assert host.realigned(given, start) == 0
    copy, begins = start, start + 45 * 384
    blocks, values = host.copied()
    assert blocks == 6 + realign.blocks(made, sizes)
    assert values[:7] == [given["w"], copy, 6, 131, 45, 131, 9]
    assert values[7:13] == [given["x"], given["r"], 0, given["w"], begins, given["y0"]]
    assert values[13:] == [9, 131, 67, 45, 140, 131, 192, 46]
    assert host.passed() == [9, 131, 67, 45, 140, 192, 192, 46]
    left, right = host.described(2)
    assert (left.address, left.strides, right.address) == (begins, (384,), copy)
    assert host.workspace(45, 131, 67) == kernel.workspace() == (45 + 67) * 384
    assert host.realigned({**given, "x_stride0": -1}, start) != 0
    assert host.realigned({**given, "S": 0}, start) != 0


def test_the_c_launcher_copies_axes_in_another_order(tmp_path):
    """Before a kernel that another one follows: both take the room for parts of folds."""
    function = pg.fuse(lambda x, w: pg.max((x @ w).astype("f32"), axis=1), name="product")
    sizes = {"M": 67, "K": 131, "N": 45}
    kernel = function.compile("s8[M,K]", "s8[K,N]", arch="sm_80", sizes=sizes)
    program, source = kernel.program, kernel._generated.source
    (made,) = source.realign.made
    given = {**sizes, "x_stride0": 140, "w_stride0": 48}
    given |= {"x": 0x10002, "w": 0x30003, "y0": 0x40000, "parts": 0x50000}
    host, start = HostLauncher(source, program, tmp_path), 1 << 40
    assert host.realigned(given, start) == 0
    assert host.number("followed") == 1
    blocks, values = host.copied()
    assert blocks == source.realign.blocks(made, sizes) == 2
    assert values == [
        2, given["x"], given["w"], start, given["y0"], 67, 131, 45, 140, 48, 256, given["parts"],
    ]  # fmt: skip
    assert host.passed() == [67, 131, 45, 140, 48, 256]
    assert host.workspace(131, 45) == 45 * 256
    assert kernel.workspace() == 45 * 256 + source.following.workspace(sizes)
    assert host.realigned({**given, "w_stride0": -1}, start) != 0
    assert host.realigned(given, start + 64) == 1


def test_what_the_copy_does_not_take_is_refused(tmp_path):
    function, signature, sizes = CASES["columns first"]
    kernel = function.compile(*signature, arch="sm_90a", sizes=sizes, schedule=SCHEDULE)
    program = kernel.program
    host = HostLauncher(kernel._generated.source, program, tmp_path)
    steps = {"x_stride1": 67, "w_stride0": 131, "y0_stride0": 45}
    right = {**sizes, **steps, "x": 1 << 30, "w": 2 << 30, "y0": 3 << 30}
    assert host.realigned(right, 1 << 40) == 0
    for wrong in ({"x": (1 << 30) + 1}, {"x_stride1": -1}, {"K": 0}, {"y0_stride0": 3}):
        assert host.realigned({**right, **wrong}, 1 << 40) != 0, wrong
    assert host.realigned(right, (1 << 40) + 64) == 1


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_compiles_copies_and_dependent_launches(tmp_path):
    function, signature, sizes = CASES["matrices"]
    schedule = replace(SCHEDULE, launch=Launches(realign=True, dependent=True))
    kernel = function.compile(*signature, arch="sm_90a", sizes=sizes, schedule=schedule)
    (tmp_path / "kernel.cu").write_text(kernel.source)
    command = ["nvcc", "-gencode", "arch=compute_90a,code=sm_90a", "-Werror=all-warnings"]
    command += ["-c", "kernel.cu", "-o", "kernel.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"pg_product_realigned_launch" in (tmp_path / "kernel.o").read_bytes()
