"""Tensor maps that the driver encodes: a kernel with nothing else copies an array box by box."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import tensor_map_samples as samples

from polygen.emit.conditions import refusals
from polygen.emit.launcher import plan_conditions
from polygen.errors import ArgumentError
from polygen.frontend.dtypes import F16
from polygen.frontend.program import Program, Tensor
from polygen.hardware.device import device
from polygen.lower.build import arguments
from polygen.runtime import environment, nvrtc
from polygen.runtime.launch import Launcher
from polygen.runtime.tensormaps import MapLayout, encode

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    cupy = pytest.importorskip("cupy")
    arch = environment.current_arch()
    if arch is None or arch != device(samples.ARCH).compile_target:
        pytest.skip(f"the kernel is for {samples.ARCH}")
    return cupy


def integers(cupy, dtype, shape):
    storage = {"f16": "f2", "f32": "f4", "tf32": "f4", "e4m3": "u1"}[dtype]
    return cupy.random.randint(0, 100, shape).astype(storage)


def launcher_for(dtype, order=(0, 1), persistent=0):
    program, source = samples.program(dtype, order), samples.source(dtype, order, persistent)
    return Launcher(source, nvrtc.compile_source(source), program.inputs, program.outputs)


@pytest.mark.parametrize("dtype", ["f16", "f32", "tf32", "e4m3"])
@pytest.mark.parametrize("persistent", [0, 5])
def test_boxes_of_every_type(cupy, dtype, persistent):
    launch = launcher_for(dtype, persistent=persistent)
    for shape in ((1, 16), (8, 64), (37, 144), (500, 1008)):
        x = integers(cupy, dtype, shape)
        np.testing.assert_array_equal(launch((x,)).get(), x.get())


def test_column_major_arrays(cupy):
    x = cupy.asfortranarray(integers(cupy, "f16", (144, 37)))
    y = launcher_for("f16", (1, 0))((x,))
    assert y.strides == x.strides
    np.testing.assert_array_equal(y.get(), x.get())


@pytest.mark.parametrize(
    "order", [(0,), (0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0, 3), (3, 1, 0, 2), (0, 3, 1, 4, 2)]
)
@pytest.mark.parametrize("persistent", [0, 5])
def test_arrays_of_every_rank_and_order(cupy, order, persistent):
    """Whole ones, and parts of larger ones, whose steps are no multiples of one another."""
    launch, back = (
        launcher_for("f16", order, persistent),
        [order.index(n) for n in range(len(order))],
    )
    extents = (3, 5, 3, 10, 72)[-len(order) :]
    padded = cupy.zeros([extent + 8 for extent in extents], "f2")
    for stored in (cupy.zeros(extents, "f2"), padded[tuple(slice(n) for n in extents)]):
        stored[...] = integers(cupy, "f16", extents)
        x = stored.transpose(back)
        y = launch((x,))
        assert y.transpose(order).flags.c_contiguous
        np.testing.assert_array_equal(y.get(), x.get())
        into = cupy.full([extent + 16 for extent in extents], 7, "f2")
        launch((x,), (), into[tuple(slice(8, 8 + n) for n in extents)].transpose(back))
        wanted = np.full(into.shape, 7, "f2")
        wanted[tuple(slice(8, 8 + n) for n in extents)] = stored.get()
        np.testing.assert_array_equal(into.get(), wanted)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1, 3)])
def test_extents_of_one_have_any_stride(cupy, order):
    launch, back = launcher_for("f16", order), [order.index(n) for n in range(len(order))]
    for extents in ((1, 9, 64), (5, 1, 72), (1, 1, 40), (1, 1, 8), (2, 3, 8)):
        stored = integers(cupy, "f16", (*[1] * (len(order) - 3), *extents))
        steps = [
            3 if n == 1 else step for n, step in zip(stored.shape, stored.strides, strict=True)
        ]
        x = cupy.ndarray(stored.shape, "f2", stored.data, [step // 2 * 2 for step in steps])
        np.testing.assert_array_equal(launch((x.transpose(back),)).get(), x.transpose(back).get())


@pytest.mark.parametrize("case", samples.WINDOWS, ids=[case[0] for case in samples.WINDOWS])
def test_windows_of_arrays(cupy, case):
    """What the PTX machine does with starts and steps; outside the window nothing is written."""
    _, x_shape, x_axes, read, y_shape, y_axes, written = case
    x, y = (
        Tensor(name, F16, shape, tuple(range(len(shape))))
        for name, shape in (("x", x_shape), ("y", y_shape))
    )
    program = Program("copy", "x", (x,), (y,), ())
    source = samples.copy_of(program, x_axes, y_axes)
    launch = Launcher(source, nvrtc.compile_source(source), (x,), (y,))
    given, into = integers(cupy, "f16", x_shape), cupy.full(y_shape, 7, "f2")
    launch((given,), (), into)
    wanted = np.full(y_shape, 7, "f2")
    written(wanted)[...] = read(given.get())
    np.testing.assert_array_equal(into.get(), wanted)


def test_windows_and_new_addresses(cupy):
    launch, whole = launcher_for("f16"), integers(cupy, "f16", (100, 256))
    for x in (whole[:40, :72], whole[3:43, 64:136], whole[60:, 8:80], whole[:40, :72]):
        y = cupy.zeros((50, 80), "f2")
        launch((x,), (), y[5:45, :72])
        np.testing.assert_array_equal(y[5:45, :72].get(), x.get())
        assert not y[:5].any() and not y[45:].any() and not y[:, 72:].any()


def test_one_row_of_any_length_and_stride(cupy):
    launch = launcher_for("f16")
    for columns in (1, 7, 8, 100):
        x = cupy.ndarray((1, columns), "f2", integers(cupy, "f16", (columns,)).data, (6, 2))
        np.testing.assert_array_equal(launch((x,)).get(), x.get())


def test_the_driver_refuses_what_it_cannot_describe(cupy):
    with pytest.raises(ArgumentError, match=r"CUresult 1.*8 x 512 elements"):
        encode(cupy.zeros(1024, "f2").data.ptr, MapLayout("x", "f16", (64, 8), (128,), (512, 8), 0))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("persistent", [0, 5])
def test_the_launcher_in_the_source_encodes_its_own_maps(cupy, persistent, tmp_path):
    plan = samples.plan_with_maps(persistent=persistent)
    text = samples.text("bf16", entry=plan.entry) + "\n" + samples.host_text(plan)
    (tmp_path / "kernel.cu").write_text(text)
    command = f"nvcc -arch={samples.ARCH} -shared -Xcompiler -fPIC kernel.cu -o kernel.so"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    function = ctypes.CDLL(str(tmp_path / "kernel.so")).pg_maps_launch
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 6 + [ctypes.c_void_p]
    for rows, columns in ((1, 8), (37, 72), (300, 1000)):
        x = integers(cupy, "f16", (rows, columns))  # the copy does not look at the numbers
        y, w = cupy.zeros_like(x), cupy.zeros((columns, columns), "f2")
        sizes = (rows, columns, columns, columns, columns, columns)
        assert function(x.data.ptr, w.data.ptr, y.data.ptr, *sizes, None) == 0
        np.testing.assert_array_equal(y.get(), x.get())
    every = refusals(plan_conditions(plan), plan.launch, plan.program.tensors)
    (aligned,) = (r.code for r in every if r.sentence == "the address of x is a multiple of 16")
    assert function(x.data.ptr + 2, w.data.ptr, y.data.ptr, *sizes, None) == aligned


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0, 3)])
def test_the_launcher_in_the_source_encodes_maps_of_more_axes(cupy, order, tmp_path):
    program, made = samples.program("bf16", order), samples.source("bf16", order)
    plan = samples.plan_of(program, made.arguments[:2], made.launch, pointers=False)
    sizes = [a.name for a in plan.arguments if a.kind == "size"]
    assert sizes == list(program.sizes)
    text = samples.text_of(made.arguments[0].axes, "bf16", sizes, plan.entry)
    # The kernel takes the maps first, the plan's arguments end with them.
    plan = replace(plan, arguments=(*plan.arguments[len(sizes) :], *plan.arguments[: len(sizes)]))
    (tmp_path / "kernel.cu").write_text(text + "\n" + samples.host_text(plan))
    command = f"nvcc -arch={samples.ARCH} -shared -Xcompiler -fPIC kernel.cu -o kernel.so"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    function = getattr(ctypes.CDLL(str(tmp_path / "kernel.so")), f"{plan.entry}_launch")
    parameters = arguments(program)
    kinds = {"pointer": ctypes.c_void_p}
    function.argtypes = [kinds.get(p.kind, ctypes.c_int) for p in parameters] + [ctypes.c_void_p]
    for extents in ((3, 4, 10, 72)[-len(order) :], (1, 2, 9, 64)[-len(order) :]):
        stored = integers(cupy, "f16", extents)
        x = stored.transpose([order.index(axis) for axis in range(len(order))])
        y = cupy.zeros_like(stored).transpose([order.index(axis) for axis in range(len(order))])
        given = {"x": x, "y": y}
        values = [
            given[p.tensor].data.ptr
            if p.kind == "pointer"
            else x.shape[program.inputs[0].dims.index(p.dim)]
            if p.kind == "size"
            else given[p.tensor].strides[p.axis] // 2
            for p in parameters
        ]
        assert function(*values, None) == 0
        np.testing.assert_array_equal(y.get(), x.get())
