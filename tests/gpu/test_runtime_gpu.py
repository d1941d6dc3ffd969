"""Loads and launches a tiny kernel, y = a * x, on a real GPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from runtime_samples import A, X, Y, source

from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.runtime import environment, nvrtc
from polygen.runtime.arrays import describe
from polygen.runtime.launch import Launcher

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return torch


def make(shared=0, alignment=4):
    kernel = source(arch=environment.current_arch(), shared=shared, alignment=alignment)
    return Launcher(kernel, nvrtc.compile_source(kernel), (X, A), (Y,))


@pytest.fixture(scope="module")
def launcher():
    return make()


def numbers(cupy, rows=37, columns=130):
    return cupy.arange(rows * columns, dtype="f4").reshape(rows, columns)


def test_the_result_is_exact_for_many_shapes(cupy, launcher):
    for rows, columns in ((1, 1), (1, 64), (37, 130), (3, 65), (500, 1)):
        x = numbers(cupy, rows, columns)
        y = launcher((x,), (2.0,))
        assert isinstance(y, cupy.ndarray)
        np.testing.assert_array_equal(y.get(), 2 * x.get())


def test_strided_input_and_output(cupy, launcher):
    x = numbers(cupy, 40, 200)[3:, 5:135]
    whole = cupy.zeros((37, 300), "f4")
    y = whole[:, 100:230]
    assert launcher((x,), (3.0,), y) is y
    np.testing.assert_array_equal(y.get(), 3 * x.get())
    assert not whole[:, :100].any() and not whole[:, 230:].any()


def test_large_dynamic_shared_memory_is_allowed(cupy):
    x = numbers(cupy)
    np.testing.assert_array_equal(make(shared=96 * 1024)((x,), (2.0,)).get(), 2 * x.get())


def test_a_cubin_for_another_target_is_refused(cupy):
    from polygen.errors import ToolchainMissing

    other = "sm_80" if environment.current_arch() != "sm_80" else "sm_90a"
    if environment.current_arch() in ("sm_86", "sm_87", "sm_89"):
        pytest.skip("this GPU runs sm_80 cubins")
    kernel = source(arch=other)
    call = Launcher(kernel, nvrtc.compile_source(kernel), (X, A), (Y,))
    with pytest.raises(ToolchainMissing, match=f"compiled for {other}"):
        call((numbers(cupy),), (1.0,))


def test_streams_order_the_work(cupy, launcher):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = numbers(cupy)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        y = launcher((x,), (2.0,))  # the current stream
        z = launcher((y,), (2.0,))
    w = launcher((z,), (2.0,), stream=stream)  # named by object, then by number
    v = launcher((w,), (2.0,), stream=stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(v.get(), 16 * x.get())


def test_a_call_with_out_can_be_captured(cupy, launcher):
    x, y = numbers(cupy), cupy.zeros((37, 130), "f4")
    launcher((x,), (2.0,), y)
    y[:] = 0
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        launcher((x,), (5.0,), y)
        graph = stream.end_capture()
    assert not y.any()  # captured, not run
    for _ in range(2):
        x += 1
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_array_equal(y.get(), 5 * x.get())


def test_a_new_thread_has_a_context(cupy, launcher):
    import threading

    x, y, errors = numbers(cupy), cupy.zeros((37, 130), "f4"), []

    def call():
        try:
            launcher((x,), (2.0,), y)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    cupy.cuda.Device().synchronize()
    assert errors == []
    np.testing.assert_array_equal(y.get(), 2 * x.get())


def test_arrays_of_other_libraries_through_the_protocols(cupy, launcher):
    x = numbers(cupy)

    class Interface:
        __cuda_array_interface__ = x.__cuda_array_interface__

    class Dlpack:
        def __dlpack__(self, stream=None):
            return x.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    for other in (Interface(), Dlpack()):
        view = describe(other)
        assert (view.pointer, view.shape, view.strides) == (x.data.ptr, (37, 130), (130, 1))
        np.testing.assert_array_equal(launcher((other,), (2.0,)).get(), 2 * x.get())


def test_a_cupy_bfloat16_array_is_read(cupy):
    x = cupy.asarray(np.ones((2, 4), ml_dtypes.bfloat16))
    assert str(describe(x).dtype) == "bf16"


def test_torch_in_torch_out(torch, launcher):
    x = torch.arange(37 * 130, dtype=torch.float32, device="cuda").reshape(37, 130)
    y = launcher((x,), (2.0,))
    assert isinstance(y, torch.Tensor) and torch.equal(y, 2 * x)
    out = torch.empty_like(x)
    assert launcher((x,), (3.0,), out) is out and torch.equal(out, 3 * x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        z = launcher((x,), (4.0,))
    w = launcher((z,), (2.0,), stream=stream)
    torch.cuda.synchronize()
    assert torch.equal(w, 8 * x)
    assert str(describe(x.to(torch.bfloat16)).dtype) == "bf16"


def test_torch_graph_capture(torch, launcher):
    x = torch.arange(37 * 130, dtype=torch.float32, device="cuda").reshape(37, 130)
    launcher((x,), (2.0,))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = launcher((x,), (2.0,))  # the output comes from the graph's own pool
        z = launcher((y,), (2.0,))
    x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, 4 * x)


def test_host_tensors_and_wrong_devices(cupy, launcher):
    with pytest.raises(ArgumentError, match="host memory"):
        launcher((np.ones((2, 4), "f4"),), (1.0,))
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU only")
    x = numbers(cupy)
    with cupy.cuda.Device(1):
        other = numbers(cupy)
        np.testing.assert_array_equal(launcher((other,), (2.0,)).get(), 2 * other.get())
        with pytest.raises(ArgumentError, match="current device is 1"):
            launcher((x,), (1.0,))
    with pytest.raises(ArgumentError, match="y is on device 1, but x is on device 0"):
        launcher((x,), (1.0,), other)


def test_misaligned_arrays(cupy):
    call = make(alignment=16)
    x = numbers(cupy, 8, 128)
    np.testing.assert_array_equal(call((x,), (2.0,)).get(), 2 * x.get())
    with pytest.raises(AlignmentMismatch) as caught:
        call((x[:, 1:],), (1.0,), cupy.empty((8, 128), "f4")[:, :127])
    assert caught.value.alignment == (("x", 4), ("y", 16))


def test_the_environment_names_the_gpu():
    found = environment.environment()
    assert found["gpus"] and found["gpus"][0]["arch"].startswith("sm_")
    assert found["arch"] == environment.current_arch()
