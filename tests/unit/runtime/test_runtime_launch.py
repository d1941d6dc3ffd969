from __future__ import annotations

import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from entered_functions import entered
from runtime_samples import A, Device, X, Y, artifact, cupy_array, source

from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.runtime import environment, launch, outputs, prepared
from polygen.runtime.arrays import describe, library
from polygen.runtime.binding import alignments, bind
from polygen.runtime.launch import Launcher

cupy = pytest.importorskip("cupy")


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def launcher(device):
    return Launcher(source(shared=100), artifact(), (X, A), (Y,), device.driver)


def test_parameters_reach_the_kernel_in_its_order(device, launcher):
    x = cupy_array((5, 130), 0x10000, strides=(1024, 4))
    y = cupy_array((5, 130), 0x90000)
    assert launcher((x,), (2.5,), y) is y
    assert device.launches == [
        (777, (3, 5, 1), (64, 1, 1), 100, 55, (0x90000, 130, 0x10000, 256, 5, 130, 2.5))
    ]
    assert device.loads == [(b"cubin", "scale", 100)]


def test_a_second_call_rewrites_addresses_and_scalars_only(device, launcher):
    x, y = cupy_array((5, 130), 0x10000), cupy_array((5, 130), 0x90000)
    launcher((x,), (2.5,), y)
    launcher((cupy_array((5, 130), 0x20000),), (np.float32(-1.5),), (y,), stream=3)
    assert device.launches[1][-2:] == (3, (0x90000, 130, 0x20000, 130, 5, 130, -1.5))
    assert len(device.loads) == 1


def test_every_combination_of_shapes_has_its_own_grid(device, launcher):
    for rows, columns in ((1, 1), (2, 64), (3, 65)):
        x, y = cupy_array((rows, columns), 0x10000), cupy_array((rows, columns), 0x90000)
        launcher((x,), (1,), y)
    assert [launch[1] for launch in device.launches] == [(1, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_persistent_blocks_are_as_many_as_the_gpu_holds(device):
    plain = source()
    launch = replace(plain.launch, persistent=132, cluster=(2, 1))
    persistent = Launcher(replace(plain, launch=launch), artifact(), (X, A), (Y,), device.driver)
    for rows, columns in ((5, 130), (5, 130), (2, 64), (400, 640)):
        x, y = cupy_array((rows, columns), 0x10000), cupy_array((rows, columns), 0x900000)
        persistent((x,), (1,), y)
    # Tiles of a cluster are 2 x 64; the GPU holds two clusters, whatever the target has.
    assert [launch[1][0] for launch in device.launches] == [4, 4, 2, 4]
    assert device.asked == [(777, launch, 0)], "asked once per device"


def test_an_axis_of_extent_one_may_have_any_stride(device, launcher):
    x = cupy_array((1, 8), 0x10000, strides=(12, 4))
    launcher((x,), (1,), cupy_array((1, 8), 0x90000))
    assert device.launches[0][-1] == (0x90000, 0, 0x10000, 0, 1, 8, 1.0)


def test_outputs_are_made_in_the_callers_library(device, launcher, monkeypatch):
    made = []

    def empty(shape, dtype):
        made.append((shape, np.dtype(dtype)))
        return cupy_array(shape, 0x90000)

    monkeypatch.setattr(cupy, "empty", empty)
    y = launcher((cupy_array((5, 130)),), (2.0,))
    assert isinstance(y, cupy.ndarray) and made == [((5, 130), np.dtype("f4"))]
    assert device.launches[0][-1][0] == 0x90000 and device.scopes == []
    launcher((cupy_array((5, 130)),), (2.0,), stream=9)
    assert device.scopes == [9] and device.launches[1][-2] == 9  # made on the stream it is used on


def test_several_outputs(device, monkeypatch):
    pointers = iter((0x90000, 0xA0000))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy_array(shape, next(pointers)))
    both = (Y, replace(Y, name="z"))
    twice = Launcher(source(outputs=both), artifact(), (X, A), both, device.driver)
    y, z = twice((cupy_array((5, 130)),), (2.0,))
    assert (y.data.ptr, z.data.ptr) == (0x90000, 0xA0000)


def test_a_jax_output_is_handed_over_after_the_launch(device, monkeypatch):
    handed = []

    class Array:
        def __dlpack__(self, stream=None):
            return np.ones((2, 64), np.float32).__dlpack__()

        def __dlpack_device__(self):
            return (2, 0)

    Array.__module__ = "jaxlib._jax"
    dlpack = type("dlpack", (), {"from_dlpack": lambda a: handed.append(len(device.launches)) or a})
    monkeypatch.setitem(sys.modules, "jax", type("jax", (), {"dlpack": dlpack}))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy_array(shape, 0x90000))
    Launcher(source(), artifact(), (X, A), (Y,), device.driver)((Array(),), (1.0,))
    assert handed == [1] and device.scopes == [55]


def test_threads_do_not_share_parameters(device, launcher):
    """Each launch sees its own addresses, although all use one prepared combination."""
    barrier, seen, together = threading.Barrier(4), [], threading.Event()
    plain = device.launch

    def slow(*arguments):
        if together.is_set():
            barrier.wait(timeout=600)  # all four have written their block
        plain(*arguments)

    launcher._driver = replace(device.driver, launch=slow)
    launcher((cupy_array((2, 64)),), (9.0,), cupy_array((2, 64), 0x90000))  # leaves a free block
    device.launches.clear()
    together.set()

    def call(n):
        x, y = cupy_array((2, 64), 0x10000 + 4096 * n), cupy_array((2, 64), 0x90000 + 4096 * n)
        launcher((x,), (float(n),), y)
        seen.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    values = {launch[-1] for launch in device.launches}
    assert values == {
        (0x90000 + 4096 * n, 64, 0x10000 + 4096 * n, 64, 2, 64, float(n)) for n in range(4)
    }


def test_each_device_loads_its_own_module(device, launcher):
    for current in (0, 1):
        device.current = current
        x, y = (cupy_array((2, 64), p, device=current) for p in (0x10000, 0x90000))
        launcher((x,), (1.0,), y)
    assert [launch[0] for launch in device.launches] == [777, 778] and len(device.loads) == 2


def test_the_table_of_combinations_is_bounded(device, monkeypatch):
    monkeypatch.setattr("polygen.runtime.launch._MOST_PREPARED", 3)
    launcher = Launcher(source(shared=100), artifact(), (X, A), (Y,), device.driver)
    for rows in range(1, 12):
        launcher((cupy_array((rows, 4)),), (1.0,), cupy_array((rows, 4), 0x90000))
    assert len(launcher._prepared) <= 3


@pytest.mark.parametrize(
    ("pointer", "row_bytes", "expected"),
    [(0x10000, 64, 16), (0x10008, 64, 8), (0x10000, 72, 8), (0x10004, 64, 4), (0x10000, 68, 4)],
)
def test_alignment_is_that_of_address_and_strides(pointer, row_bytes, expected):
    x = cupy_array((4, 4), pointer, strides=(row_bytes, 4))
    binding = bind(source(), (X,), (Y,), (describe(x), describe(cupy_array((4, 4), 0x90000))))
    assert alignments(binding, (pointer, 0x90000)) == (expected, 16)


def test_the_host_work_of_a_warm_call_is_small(device, launcher):
    """Nine functions when this was written; what that takes is for a benchmark to say."""
    launcher._driver = replace(device.driver, launch=lambda *arguments: None)
    x, y = cupy_array((64, 64)), cupy_array((64, 64), 0x90000)
    cold = entered(lambda: launcher((x,), (1.5,), y))
    launcher((x,), (1.5,), y)
    warm = entered(lambda: launcher((x,), (1.5,), y))
    assert "bind" in cold and "bind" not in warm
    assert len(warm) <= 20 < len(cold), warm


def test_environment_without_a_gpu():
    import json

    found = environment.environment()
    json.dumps(found)
    assert found["numpy"] == np.__version__ and found["nvrtc"]
    assert {"python", "islpy", "cupy", "gpus", "driver", "arch", "cache"} <= found.keys()
    assert (environment.current_arch() is None) == (found["gpus"] == [])


def test_names_of_targets():
    names = [environment.arch_name(*pair) for pair in ((8, 0), (8, 9), (9, 0), (10, 0), (12, 1))]
    assert names == ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_121a"]


def test_streams_module_needs_no_cupy_for_numbers():
    assert outputs.stream_pointer(4) == 4


def test_buffers_in_turns_have_parameters_of_their_own(device, launcher):
    """Blocks wait under the addresses they hold; addresses that were in order are not all."""
    x, places = cupy_array((2, 64), 0x10000), [0x90000 + 0x1000 * n for n in range(160)]
    for _ in range(2):
        for place in places:
            launcher((x,), (float(place),), cupy_array((2, 64), place))
    assert [values[0] for *_, values in device.launches] == [*places, *places]
    assert all(values[-1] == values[0] for *_, values in device.launches)
    *_, ready = launcher._prepared.values()  # the first call of a process may read arrays slowly
    assert len(ready._pool) == prepared._MOST_BLOCKS and len(ready.passed) == len(places)
    with pytest.raises(ArgumentError, match="overlap"):
        launcher((x,), (1.0,), cupy_array((2, 64), 0x10000))
    ready.passed = set(map(tuple, np.ndindex(launch._MOST_PASSED, 1)))  # full
    launcher((x,), (1.0,), cupy_array((2, 64), 0xF0000))
    assert ready.passed == {(0x10000, 0xF0000)}


def test_contiguous_arrays_are_told_from_others_of_their_shape(device, launcher):
    y = cupy_array((4, 64), 0x90000)
    for strides in (None, (512, 4), None):
        launcher((cupy_array((4, 64), 0x10000, strides=strides),), (1.0,), y)
    assert [values[3] for *_, values in device.launches] == [64, 128, 64]
    mixed = [describe(cupy_array((4, 64), 0x10000)), cupy_array((4, 64), 0x90000)]
    launcher(mixed[:1], (1.0,), mixed[1])
    assert device.launches[-1][-1] == device.launches[0][-1]


@pytest.fixture
def unscaled(device, monkeypatch):
    """A launcher without scalars, and how outputs are made at addresses one after the other."""
    places = iter(range(0x90000, 0x900000, 0x10000))
    monkeypatch.setattr(cupy, "empty", lambda shape, dtype: cupy_array(shape, next(places)))
    plain = source(alignment=16)
    source_ = replace(plain, arguments=plain.arguments[:-1])
    device.kinds = device.kinds[:-1]
    library(cupy.ndarray)  # the first call with a type reads it another way than later ones
    inputs, outputs_ = (replace(X, alignment=16),), (replace(Y, alignment=16),)
    return Launcher(source_, artifact(), inputs, outputs_, device.driver)


def test_a_repeated_call_reads_addresses_alone(device, unscaled):
    first = unscaled((cupy_array((5, 128), 0x10000),))
    again = unscaled.repeated((cupy_array((5, 128), 0x20000),))
    (second,) = again((cupy_array((5, 128), 0x30000),))
    assert (first.data.ptr, second.data.ptr) == (0x90000, 0xA0000)
    assert second.shape == (5, 128)
    one, two = device.launches
    assert one[:-1] == two[:-1]
    assert one[-1] == (0x90000, 128, 0x10000, 128, 5, 128)
    assert two[-1] == (0xA0000, 128, 0x30000, 128, 5, 128)


def test_a_repeated_call_refuses_what_a_call_refuses(device, unscaled):
    unscaled((cupy_array((5, 128), 0x10000),))
    again = unscaled.repeated((cupy_array((5, 128), 0x10000),))
    with pytest.raises(AlignmentMismatch):
        again((cupy_array((5, 128), 0x10004),))
    device.current = 1
    with pytest.raises(LookupError):
        again((cupy_array((5, 128), 0x10000),))
    assert len(device.launches) == 1


def test_calls_that_are_more_than_a_launch_are_not_repeated(launcher, unscaled, monkeypatch):
    arrays = (cupy_array((5, 130), 0x10000),)
    assert unscaled.repeated(arrays) is None, "no such call was made"
    launcher(arrays, (2.5,))
    assert launcher.repeated(arrays) is None, "it has a scalar"
