from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
import tensor_map_samples as samples
from runtime_samples import Device, artifact, cupy_array

from polygen.emit.source import Argument, Launch, MapAxis
from polygen.errors import AlignmentMismatch, ArgumentError, ToolchainMissing
from polygen.frontend.dtypes import NAMED
from polygen.frontend.program import Tensor
from polygen.runtime import tensormaps
from polygen.runtime.arrays import library
from polygen.runtime.launch import Launcher
from polygen.runtime.tensormaps import MAP_BYTES, MapLayout, encode, map_layout

cupy = pytest.importorskip("cupy")

LAYOUT = MapLayout("x", "f16", (72, 20), (160,), (64, 8), 128)


def layout(dtype="f16", order=(0, 1), shape=(20, 72), strides=(80, 1), swizzle=128):
    tensor = Tensor("x", NAMED[dtype], ("M", "N"), order)
    axes = tuple(
        MapAxis(axis, tensor.dims[axis], side) for axis, side in zip(order, (8, 64), strict=True)
    )
    argument = Argument("x_map", "map", "x", axes=axes, swizzle=swizzle)
    return map_layout(argument, tensor, dict(zip("MN", shape, strict=True)), strides)


# --- layouts -------------------------------------------------------------------------------------
def test_a_row_major_tensor_has_its_columns_innermost():
    assert layout() == LAYOUT


def test_a_column_major_tensor_has_its_rows_innermost():
    found = layout("f32", (1, 0), (20, 72), (1, 24))
    assert (found.sizes, found.strides, found.box) == ((20, 72), (96,), (64, 8))


@pytest.mark.parametrize(
    ("dtype", "columns", "row_bytes"),
    [("f16", 8, 16), ("f16", 9, 32), ("e4m3", 1, 16), ("f32", 5, 32)],
)
def test_one_row_alone_has_a_legal_step(dtype, columns, row_bytes):
    assert layout(dtype, shape=(1, columns), strides=(0, 1)).strides == (row_bytes,)


STACK = Tensor("x", NAMED["f16"], ("B", "M", 72), (1, 0, 2))


def stack(*axes, sizes=(3, 20), strides=(80, 400, 1), tensor=STACK):
    argument = Argument("x_map", "map", "x", axes=axes, swizzle=128)
    return map_layout(argument, tensor, dict(zip("BM", sizes, strict=True)), strides)


INNER = MapAxis(2, 72, 64)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ((MapAxis(1, "M", 4), MapAxis(0, "B", 2), INNER), ((72, 3, 20), (160, 800), 0)),
        ((MapAxis(0, "B", 2), MapAxis(1, "M", 4), INNER), ((72, 20, 3), (800, 160), 0)),
        # Every second from the first on; from the fifth element of a row on.
        (
            (MapAxis(0, "B", 2), MapAxis(1, 9, 4, 1, 2), MapAxis(2, 64, 64, 5)),
            ((64, 9, 3), (1600, 160), 810),
        ),
        # At one index: the step must not be below what the faster axes reach.
        ((MapAxis(0, 1, 1, 2), MapAxis(1, "M", 4), INNER), ((72, 20, 1), (800, 15_344), 320)),
        ((MapAxis(1, 1, 1, 2), MapAxis(0, 1, 1), INNER), ((72, 1, 1), (144, 144), 1600)),
        ((MapAxis(None, 1, 1), MapAxis(0, "B", 2), INNER), ((72, 3, 1), (160, 464), 0)),
    ],
)
def test_maps_of_three_axes(axes, expected):
    found = stack(*axes)
    assert (found.sizes, found.strides, found.start) == expected
    assert found.box == tuple(axis.box for axis in reversed(axes))


def test_sizes_of_one_have_legal_steps_whatever_the_array_says():
    found = stack(MapAxis(1, "M", 4), MapAxis(0, "B", 2), INNER, sizes=(1, 1), strides=(0, 0, 1))
    assert found.strides == (144, 144)
    found = stack(MapAxis(1, "M", 4), MapAxis(0, "B", 2), INNER, sizes=(1, 20), strides=(0, 76, 1))
    assert found.strides == (144, 152)


def test_the_step_of_one_index_stays_below_two_to_the_forty():
    axes = (MapAxis(0, "B", 1), MapAxis(1, "M", 4), INNER)
    found = stack(*axes, sizes=(1, 2**20), strides=(0, 2**20, 1))
    assert found.strides == (2**21, 2**40 - 16)


def test_a_vector_as_one_row():
    vector = Tensor("x", NAMED["f32"], ("N",), (0,))
    argument = Argument("x_map", "map", "x", axes=(MapAxis(None, 1, 1), MapAxis(0, "N", 32, 8)))
    found = map_layout(argument, vector, {"N": 50}, (1,))
    assert found == MapLayout("x", "f32", (50, 1), (208,), (32, 1), 0, 32)


def test_maps_in_words():
    found = stack(MapAxis(0, "B", 2), MapAxis(1, 9, 4, 1, 2), MapAxis(2, 64, 64, 5))
    assert str(found) == (
        "3 x 9 x 64 f16, 160 x 1600 bytes apart, from byte 810 on, in boxes of 2 x 4 x 64 "
        "elements, swizzle 128 bytes"
    )
    assert (
        str(MapLayout("x", "s8", (64,), (), (32,), 0))
        == "64 s8, in boxes of 32 elements, no swizzle"
    )


# --- the call of the driver ----------------------------------------------------------------------
@pytest.fixture
def driver_calls(monkeypatch):
    """Stands in for ``cuTensorMapEncodeTiled``; reads what it is given as the driver would."""
    calls = []

    def encode_tiled(target, dtype, rank, pointer, sizes, steps, box, element_steps, *rest):
        assert target % 128 == 0
        ctypes.memset(target, 0xAB, MAP_BYTES)
        calls.append((dtype, rank, pointer, [*sizes], [*steps], [*box], [*element_steps], *rest))
        return encode_tiled.code

    encode_tiled.code = 0
    monkeypatch.setattr(tensormaps, "_encode_tiled", lambda: encode_tiled)
    return encode_tiled, calls


def test_the_driver_gets_everything_innermost_first(driver_calls):
    assert encode(0x10000, LAYOUT) == b"\xab" * 128
    assert driver_calls[1] == [(6, 2, 0x10000, [72, 20], [160], [64, 8], [1, 1], 0, 3, 2, 0)]


def test_the_driver_gets_what_boxes_span(driver_calls):
    found = stack(MapAxis(0, "B", 2), MapAxis(1, "M", 4, every=3), INNER)
    assert found.box == (64, 4, 2) and found.every == (1, 3, 1)
    assert "in boxes of 2 x 4 x 64 elements, every 1 x 3 x 1, swizzle" in str(found)
    encode(0x10000, found)
    assert driver_calls[1][0][5:7] == ([64, 12, 2], [1, 3, 1])


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_the_driver_gets_maps_of_every_rank(driver_calls, rank):
    sizes, strides, box = (
        (72, 20, 3, 5, 2)[:rank],
        (160, 3200, 9600, 48_000)[: rank - 1],
        [8] * rank,
    )
    encode(0x10000, MapLayout("x", "f16", sizes, strides, tuple(box), 0, 48))
    assert driver_calls[1] == [
        (6, rank, 0x10030, [*sizes], [*strides], box, [1] * rank, 0, 0, 2, 0)
    ]


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("f16", 6), ("bf16", 9), ("f32", 7), ("tf32", 11), ("e4m3", 0), ("e5m2", 0), ("s8", 0)],
)
def test_element_types_as_the_driver_counts_them(driver_calls, dtype, code):
    encode(0x10000, replace(LAYOUT, dtype=dtype))
    assert driver_calls[1][0][0] == code


@pytest.mark.parametrize(("swizzle", "code"), [(0, 0), (32, 1), (64, 2), (128, 3)])
def test_swizzles_as_the_driver_counts_them(driver_calls, swizzle, code):
    encode(0x10000, replace(LAYOUT, swizzle=swizzle))
    assert driver_calls[1][0][8] == code


def test_a_map_the_driver_refuses(driver_calls):
    driver_calls[0].code = 1
    with pytest.raises(ArgumentError) as caught:
        encode(0x10000, LAYOUT)
    assert str(caught.value) == (
        "x: the driver does not encode the tensor map (CUresult 1) (20 x 72 f16, 160 bytes "
        "apart, in boxes of 8 x 64 elements, swizzle 128 bytes, at address 0x10000). "
        "Pass a contiguous copy of the array."
    )


def test_a_driver_that_cannot_encode_at_all(driver_calls):
    driver_calls[0].code = 801
    with pytest.raises(ToolchainMissing, match=r"CUresult 801.*20 x 72 f16"):
        encode(0x10000, replace(LAYOUT, swizzle=0))


def test_without_a_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    tensormaps._encode_tiled.cache_clear()
    monkeypatch.setattr(tensormaps.ctypes, "CDLL", missing)
    with pytest.raises(ToolchainMissing, match=r"tensor maps.*libcuda.*12\.0"):
        encode(0x10000, LAYOUT)


# --- launches ------------------------------------------------------------------------------------
@dataclass
class MapDevice(Device):
    """Reads two maps and two sizes; encodes a map as its address, sizes and steps."""

    def __post_init__(self):
        self.encoded = []

    def launch(self, *arguments):
        *_, parameters, _ = arguments
        addresses = (ctypes.c_uint64 * 4).from_address(parameters)
        assert addresses[0] % 128 == addresses[1] % 128 == 0
        maps = [(ctypes.c_uint64 * 16).from_address(addresses[n])[:4] for n in (0, 1)]
        sizes = [ctypes.c_int32.from_address(addresses[n]).value for n in (2, 3)]
        self.launches.append((arguments[1:4], *maps, sizes))

    def encode(self, pointer, layout):
        self.encoded.append((layout.name, pointer))
        return np.array([pointer, *layout.sizes, *layout.strides, *[0] * 12], "u8").tobytes()

    @property
    def driver(self):
        return replace(super().driver, encode_map=self.encode)


@pytest.fixture
def device():
    return MapDevice()


def launcher_for(device, dtype="f16", order=(0, 1), persistent=0):
    program, source = samples.program(dtype, order), samples.source(dtype, order, persistent)
    return Launcher(source, artifact(), program.inputs, program.outputs, device.driver)


def halves(pointer, shape=(20, 72), strides=None):
    return cupy_array(shape, pointer, strides, "f2")


def test_maps_reach_the_kernel_in_its_order(device):
    y = halves(0x90000)
    assert launcher_for(device)((halves(0x10000, strides=(160, 2)),), (), y) is y
    assert device.launches == [
        ((2, 3, 1), [0x10000, 72, 20, 160], [0x90000, 72, 20, 144], [20, 72])
    ]


@pytest.mark.parametrize(
    ("persistent", "resident", "blocks"),
    [(0, 0, (2, 5, 3)), (2, 2, (2, 1, 1)), (132, 132, (30, 1, 1))],
)
def test_arrays_of_rank_3(device, persistent, resident, blocks):
    """One block for each tile of each matrix, or persistent ones for the tiles of all."""
    made, layouts, launches = samples.source("f16", (1, 0, 2)), set(), []
    tiles = Launch("M", "N", 4, 64, 1, 32, 0, persistent, batches=("B",))

    def encode(pointer, layout):
        layouts.add((pointer, layout.sizes, layout.strides))
        return bytes(MAP_BYTES)

    driver = replace(
        device.driver,
        encode_map=encode,
        launch=lambda *given: launches.append(given[1:4]),
        resident=lambda *_: resident,
    )
    program = samples.program("f16", (1, 0, 2))
    call = Launcher(
        replace(made, launch=tiles), artifact(), program.inputs, program.outputs, driver
    )
    x, y = halves(0x10000, (3, 20, 72), (176, 528, 2)), halves(0x90000, (3, 20, 72), (144, 432, 2))
    call((x,), (), y)
    assert launches == [blocks]
    assert layouts == {(0x10000, (72, 3, 20), (176, 528)), (0x90000, (72, 3, 20), (144, 432))}


def test_column_major_arrays(device):
    x, y = (halves(pointer, (24, 72), (2, 48)) for pointer in (0x10000, 0x90000))
    launcher_for(device, order=(1, 0))((x,), (), y)
    assert device.launches[0][1:3] == ([0x10000, 24, 72, 48], [0x90000, 24, 72, 48])


def test_persistent_blocks_are_as_many_as_run_at_once(device):
    launch = launcher_for(device, persistent=4)
    for rows in (8, 20):
        launch((halves(0x10000, (rows, 72)),), (), halves(0x90000, (rows, 72)))
    assert [grid for grid, *_ in device.launches] == [(2, 1, 1), (4, 1, 1)]


def test_one_row_may_have_any_stride(device):
    x, y = halves(0x10000, (1, 40), (12, 2)), halves(0x90000, (1, 40))
    launcher_for(device)((x,), (), y)
    assert device.launches[0][1:3] == ([0x10000, 40, 1, 80], [0x90000, 40, 1, 80])


def test_a_map_is_encoded_once_per_address(device):
    launch = launcher_for(device)
    for x, y in ((0x10000, 0x90000), (0x10000, 0x90000), (0x20000, 0x90000), (0x10000, 0x90000)):
        launch((halves(x),), (), halves(y))
    assert device.encoded == [("x", 0x10000), ("y", 0x90000), ("x", 0x20000)]
    assert [found[1][0] for found in device.launches] == [0x10000, 0x10000, 0x20000, 0x10000]
    launch((halves(0x10000, (40, 72)),), (), halves(0x90000, (40, 72)))
    assert device.encoded[3:] == [("x", 0x10000), ("y", 0x90000)]  # another shape, other maps


def test_the_same_arrays_again_are_not_looked_at(device, monkeypatch):
    launch, x, y = launcher_for(device), halves(0x10000), halves(0x90000)
    launch((x,), (), y)
    monkeypatch.setattr(tensormaps.MapCache, "write", None)
    launch((x,), (), y)
    assert len(device.launches) == 2 and device.launches[0] == device.launches[1]


def test_outputs_made_by_the_call_get_maps(device, monkeypatch):
    made = iter((0x90000, 0xA0000, 0x90000))
    monkeypatch.setattr(
        cupy, "empty", lambda shape, dtype: cupy_array(shape, next(made), None, dtype)
    )
    launch = launcher_for(device)
    for _ in range(3):
        launch((halves(0x10000),))
    assert [found[2][0] for found in device.launches] == [0x90000, 0xA0000, 0x90000]
    assert len(device.encoded) == 3


def test_the_maps_kept_are_bounded(device, monkeypatch):
    monkeypatch.setattr(tensormaps, "_MOST_ENCODED", 4)
    library(cupy.ndarray)  # whose forms are read fast from now on, whatever test comes first
    launch = launcher_for(device)
    for n in range(20):
        launch((halves(0x10000 + 4096 * n),), (), halves(0x90000))
    (ready,) = launch._prepared.values()
    assert len(ready._maps._encoded) <= 4
    assert [found[1][0] for found in device.launches] == [0x10000 + 4096 * n for n in range(20)]


def test_misaligned_arrays_are_refused_before_their_maps_are_made(device):
    for x in (halves(0x10008), halves(0x10000, strides=(152, 2))):
        with pytest.raises(AlignmentMismatch):
            launcher_for(device)((x,), (), halves(0x90000))
    assert device.encoded == []


def test_a_refused_map_does_not_spoil_the_next_launch(device, monkeypatch):
    encode_map = device.encode

    def refuse(pointer, layout):
        if pointer == 0xA0000:
            raise ArgumentError("refused")
        return encode_map(pointer, layout)

    monkeypatch.setattr(device, "encode", refuse)
    launch = launcher_for(device)
    launch((halves(0x10000),), (), halves(0x90000))
    with pytest.raises(ArgumentError, match="refused"):
        launch((halves(0x20000),), (), halves(0xA0000))  # x's map is written, then y's refused
    launch((halves(0x10000),), (), halves(0x90000))
    assert [found[1:3] for found in device.launches] == [
        ([0x10000, 72, 20, 144], [0x90000, 72, 20, 144])
    ] * 2


def test_threads_do_not_share_maps(device):
    """Every running launch sees its own maps, although all use one prepared combination."""
    barrier, together, plain = threading.Barrier(4), threading.Event(), device.launch

    def slow(*arguments):
        if together.is_set():
            barrier.wait(timeout=600)  # all four have written their block
        plain(*arguments)

    launch = launcher_for(device)
    launch._driver = replace(device.driver, launch=slow)
    launch((halves(0x10000),), (), halves(0x90000))
    together.set()

    def call(n):
        for turn in range(5):
            at = 4096 * ((n + turn) % 4)
            launch((halves(0x10000 + at),), (), halves(0x90000 + at))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [(x[0] - 0x10000, y[0] - 0x90000) for _, x, y, _ in device.launches[1:]]
    assert len(found) == 20 and all(x == y for x, y in found)
    assert all(found.count((4096 * n, 4096 * n)) == 5 for n in range(4))
