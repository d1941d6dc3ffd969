"""Every way in which a call's arguments do not fit is refused with a clear message."""

from __future__ import annotations

import sys
from collections import namedtuple
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from runtime_samples import A, Device, X, Y, artifact, cupy_array, source

from polygen.emit.conditions import conditions
from polygen.emit.source import Launch
from polygen.errors import AlignmentMismatch, ArgumentError, ToolchainMissing
from polygen.frontend.dtypes import BF16, F32
from polygen.frontend.program import Program, Tensor
from polygen.runtime.driver import cupy_driver
from polygen.runtime.launch import Launcher

pytest.importorskip("cupy")
OUT = 0x90000000000


def launcher(x=X, y=Y, **options):
    device = Device(**options)
    return Launcher(source(), artifact(), (x, A), (y,), device.driver)


def out(shape, **options):
    return cupy_array(shape, OUT, **options)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (cupy_array((4, 8), dtype="f2"), out((4, 8)), "x: the array holds f16.*Convert it to f32"),
        (cupy_array((4, 8), dtype="u2"), out((4, 8)), "x: the array holds uint16"),
        (cupy_array((4,)), out((4, 8)), "x: the array has 1 axes.*Reshape it to 2 axes"),
        (cupy_array((4, 8)), out((4, 9)), r"N: y.shape\[1\] = 9, but x.shape\[1\] = 8"),
        (cupy_array((0, 8)), out((0, 8)), r"x.shape\[0\]: the size is 0.*Legal: 1 to"),
        (cupy_array((2, 2**31), dtype="f4"), out((2, 2**31)), "the size is 2147483648"),
        (cupy_array((2, 2**31 - 1), dtype="f4"), out((2, 2**31 - 1)), "Legal: 1 to 2147418112"),
        (cupy_array((4, 8)), out((4, 8), device=1), "y is on device 1, but x is on device 0"),
        (cupy_array((4, 8), strides=(4, 16)), out((4, 8)), "x: axis 1 has stride 4.*contiguous"),
        (cupy_array((4, 8), strides=(-32, 4)), out((4, 8)), "x: axis 0 runs backwards"),
        (cupy_array((4, 8)), out((4, 8), strides=(0, 4)), "y: elements of the output overlap"),
        (cupy_array((4, 8)), out((4, 8), strides=(28, 4)), "y: elements of the output overlap"),
        (cupy_array((65536, 8)), out((65536, 8)), "needs 1 x 65536 blocks.*larger tile"),
    ],
)
def test_arrays_that_do_not_fit(x, y, message):
    call = launcher()
    with pytest.raises(ArgumentError, match=message):
        call((x,), (1.0,), y)
    assert len(call._prepared) == 0


def stacked(launch, *shape):
    """A launcher of a kernel of stacks, and arrays for it."""
    x, y = (Tensor(name, F32, ("B", "H", "M", "N"), (0, 1, 2, 3), 4) for name in "xy")
    conditions_ = conditions(Program("stack", "x", (x,), (y,), ()), (), launch)
    made = replace(source(), launch=launch, conditions=conditions_, arguments=())
    call = Launcher(made, artifact(), (x,), (y,), Device().driver)
    one = cupy_array(shape, strides=(0, 0, 4 * shape[-1], 4))
    other = cupy_array(shape, OUT, strides=[4 * int(np.prod(shape[n + 1 :])) for n in range(4)])
    return lambda: call((one,), (), other)


def test_more_matrices_than_the_grid_has_room_for():
    launch = Launch("M", "N", 64, 64, 1, 64, 0, batches=("B", "H"))
    with pytest.raises(ArgumentError) as caught:
        stacked(launch, 300, 219, 100, 8)()
    assert str(caught.value) == (
        "scale: the launch needs 1 x 2 x 65700 blocks (CUDA allows 2147483647 x 65535 x 65535; "
        "B = 300, H = 219, M = 100, N = 8). Use a larger tile or raster group, or split the arrays."
    )
    with pytest.raises(ArgumentError, match=r"needs 1 x 65536 x 6 blocks.*B = 2, H = 3, M = 41943"):
        stacked(launch, 2, 3, 64 * 65536, 1)()


def test_more_matrices_than_rounds_count():
    launch = Launch("M", "N", 64, 64, 1, 64, 0, batches=("B", "H"), layers=65_535)
    with pytest.raises(ArgumentError) as caught:
        stacked(launch, 2**16, 2**15, 1, 1)()
    assert str(caught.value) == (
        "scale: the launch has 2147483648 matrices (kernels count them, up to 2147418112; "
        "B = 65536, H = 32768, M = 1, N = 1). Use a larger tile or raster group, or split the "
        "arrays."
    )


def test_more_tiles_than_persistent_blocks_count():
    launch = Launch("M", "N", 64, 64, 1, 64, 0, 132, batches=("B", "H"))
    with pytest.raises(ArgumentError) as caught:
        stacked(launch, 2**16, 2**15, 1, 1)()
    assert str(caught.value) == (
        "scale: the launch has 2147483648 tiles (kernels count the tiles of all matrices, up to "
        "2147418112; B = 65536, H = 32768, M = 1, N = 1). Use a larger tile or raster group, or "
        "split the arrays."
    )


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        ((96, 48, 16, 4), None),
        ((96, 44, 16, 4), r"y: elements of the output overlap \(axis 1 has stride 11\)"),
        ((80, 48, 16, 4), r"y: elements of the output overlap \(axis 0 has stride 20\)"),
        (
            (48, 192, 16, 4),
            r"y: axis 0 of the output has stride 12, and faster .*0, 1, 2, 3, the s",
        ),
        ((48, 140, 16, 4), r"y: elements of the output overlap \(axis 0 has stride 12\)"),
        ((96, 48, 4, 12), r"y: axis 3 has stride 3"),
        ((96, -48, 16, 4), r"y: axis 1 runs backwards"),
    ],
)
def test_outputs_of_rank_4(strides, message):
    launch = Launch("M", "N", 64, 64, 1, 64, 0, batches=("B", "H"))
    x, y = (Tensor(name, F32, ("B", "H", "M", "N"), (0, 1, 2, 3), 4) for name in "xy")
    conditions_ = conditions(Program("stack", "x", (x,), (y,), ()), (), launch)
    made = replace(source(), launch=launch, conditions=conditions_, arguments=())
    call = Launcher(made, artifact(), (x,), (y,), replace(Device().driver, launch=lambda *_: None))
    arrays = cupy_array((3, 2, 3, 4)), cupy_array((3, 2, 3, 4), OUT, strides=strides)
    if message is None:
        call(arrays[:1], (), arrays[1])
        return
    with pytest.raises(ArgumentError, match=message):
        call(arrays[:1], (), arrays[1])


def test_an_input_may_repeat_itself():
    launcher()((cupy_array((4, 8), strides=(0, 4)),), (1.0,), out((4, 8)))


def test_a_fixed_size():
    call = launcher(replace(X, dims=("M", 128)), replace(Y, dims=("M", 128)))
    with pytest.raises(ArgumentError, match="the size is 64, the kernel was compiled for 128"):
        call((cupy_array((4, 64)),), (1.0,), out((4, 64)))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("shift", "refused"), [(0, True), (4 * 31, True), (-4 * 31, True), (128, False), (-128, False)]
)
def test_outputs_that_overlap_an_input(shift, refused, warm):
    call = launcher()
    if warm:
        call((cupy_array((4, 8)),), (1.0,), out((4, 8)))
    arguments = (cupy_array((4, 8), OUT),), (1.0,), cupy_array((4, 8), OUT + shift)
    if refused:
        with pytest.raises(ArgumentError, match="y and x overlap in memory"):
            call(*arguments)
    else:
        call(*arguments)


def test_outputs_that_overlap_each_other():
    device = Device()
    outputs = (Y, replace(Y, name="z"))
    call = Launcher(source(outputs=outputs), artifact(), (X, A), outputs, device.driver)
    with pytest.raises(ArgumentError, match="z and y overlap in memory"):
        call((cupy_array((4, 8)),), (1.0,), (out((4, 8)), out((4, 8))))
    assert device.launches == []


@pytest.mark.parametrize("warm", [False, True])
def test_the_current_device_must_be_the_arrays_device(warm):
    device = Device()
    call = Launcher(source(), artifact(), (X, A), (Y,), device.driver)
    arguments = (cupy_array((4, 8)),), (1.0,), out((4, 8))
    if warm:
        call(*arguments)
    device.current = 1
    with pytest.raises(ArgumentError, match="arrays are on device 0, but the current device is 1"):
        call(*arguments)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("x", "y", "alignment"),
    [
        (cupy_array((4, 8), 0x10008), out((4, 8)), (("x", 8), ("y", 16))),
        (cupy_array((4, 8), strides=(40, 4)), out((4, 8)), (("x", 8), ("y", 16))),
        (cupy_array((4, 6)), out((4, 6)), (("x", 8), ("y", 8))),
        (cupy_array((4, 7), 0x10000), out((4, 7), strides=(32, 4)), (("x", 4), ("y", 16))),
    ],
)
def test_low_alignment_names_the_variant_that_fits(x, y, alignment, warm):
    call = Launcher(source(alignment=16), artifact(), (X, A), (Y,), Device().driver)
    if warm:
        call((cupy_array((4, 8)),), (1.0,), out((4, 8)))
    with pytest.raises(AlignmentMismatch, match="x: address and strides are multiples") as caught:
        call((x,), (1.0,), y)
    assert caught.value.alignment == alignment


def test_a_new_output_counts_for_alignment(monkeypatch):
    import cupy

    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: out(shape))
    call = Launcher(source(alignment=16), artifact(), (X, A), (Y,), Device().driver)
    with pytest.raises(AlignmentMismatch) as caught:
        call((cupy_array((4, 6), strides=(32, 4)),), (1.0,))
    assert caught.value.alignment == (("x", 16), ("y", 8))


@pytest.mark.parametrize(
    ("arrays", "scalars", "outputs", "message"),
    [
        ((), (1.0,), None, "0 arrays given, 1 expected"),
        ((cupy_array((4, 8)), out((4, 8))), (1.0,), None, r"2 arrays given, 1 expected.*x: f32"),
        ((cupy_array((4, 8)),), (), out((4, 8)), "0 scalars given, 1 expected"),
        ((cupy_array((4, 8)),), (1.0,), (), "0 outputs given, 1 expected"),
        ((cupy_array((4, 8)),), ("1",), out((4, 8)), "a: str is not a scalar"),
        ((cupy_array((4, 8)),), (cupy_array(()),), out((4, 8)), "would synchronise"),
        ((cupy_array((4, 8)),), (10**400,), out((4, 8)), "a: the scalar is too large"),
        ((cupy_array((4, 8)),), (1e300,), out((4, 8)), "too large.*passed as f32"),
        ((np.ones((4, 8), "f4"),), (1.0,), None, "x: the array is in host memory"),
        (([1.0],), (1.0,), None, "x: list is not an array in device memory"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_calls_that_do_not_fit(arrays, scalars, outputs, message, warm):
    call = launcher()
    if warm:
        call((cupy_array((4, 8)),), (1.0,), out((4, 8)))
    with pytest.raises(ArgumentError, match=message):
        call(arrays, scalars, outputs)
    call((cupy_array((4, 8)),), (1.0,), out((4, 8)))  # the launcher still works


def test_a_read_only_output():
    class Frozen:
        def __dlpack__(self, stream=None):
            return np.ones((4, 8), np.float32).__dlpack__()

        def __dlpack_device__(self):
            return (2, 0)

    Frozen.__module__ = "jaxlib._jax"
    with pytest.raises(ArgumentError, match=r"y: the output array is read-only.*Leave out= away"):
        launcher()((cupy_array((4, 8)),), (1.0,), Frozen())


def test_a_kernel_that_the_gpu_cannot_run():
    def load(*arguments):
        raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU")

    driver = replace(Device().driver, load=load)
    call = Launcher(source(), artifact(), (X, A), (Y,), driver)
    with pytest.raises(ToolchainMissing, match="NO_BINARY_FOR_GPU; it was compiled for sm_80"):
        call((cupy_array((4, 8)),), (1.0,), out((4, 8)))


def test_no_gpu_is_said_plainly(monkeypatch):
    import cupy

    def fail():
        raise RuntimeError("no driver")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fail)
    cupy_driver.cache_clear()
    try:
        with pytest.raises(ToolchainMissing, match=r"no GPU to run on \(no driver\).*emulate"):
            Launcher(source(), artifact(), (X, A), (Y,))((cupy_array((4, 8)),), (1.0,))
    finally:
        cupy_driver.cache_clear()


def test_a_wrong_dtype_of_half_precision():
    with pytest.raises(ArgumentError, match=r"holds f16.*Convert it to bf16"):
        launcher(replace(X, dtype=BF16))((cupy_array((4, 8), dtype="f2"),), (1.0,), out((4, 8)))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("which", ["x", "y"])
def test_gradients_are_not_lost_in_silence(monkeypatch, which, warm):
    place = namedtuple("device", "type index")

    class Tensor:
        def __init__(self, pointer, requires_grad=False):
            self.shape, self.dtype, self.requires_grad = (4, 8), "torch.float32", requires_grad
            self.device, self._pointer = place("cuda", 0), pointer

        def stride(self):
            return (8, 1)

        def data_ptr(self):
            return self._pointer

        def is_neg(self):
            return False

    Tensor.__module__ = "torch"
    fake = ModuleType("torch")
    fake.is_grad_enabled = lambda: True
    fake._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 0)
    monkeypatch.setitem(sys.modules, "torch", fake)
    call = launcher()
    if warm:
        call((Tensor(1 << 32),), (1.0,), Tensor(2 << 32))
    x, y = Tensor(1 << 32, which == "x"), Tensor(2 << 32, which == "y")
    message = rf"{which}: the tensor requires grad.*lost in silence.*{which}\.detach\(\).*no_grad"
    with pytest.raises(ArgumentError, match=message):
        call((x,), (1.0,), y)
