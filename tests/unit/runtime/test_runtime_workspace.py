"""Operands that are copied first: two launches, their arguments, and the memory between them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from matrix import roles
from runtime_samples import artifact, cupy_array

import polygen as pg
from polygen.errors import ArgumentError, LaunchError, ToolchainMissing
from polygen.generated import decode, encode
from polygen.runtime import dependent, occupancy, workspace
from polygen.runtime.driver import Driver
from polygen.runtime.graph_pool import of_a_capture
from polygen.runtime.launch import Launcher
from polygen.schedule.model import Launches

cupy = pytest.importorskip("cupy")
BF16 = np.dtype(ml_dtypes.bfloat16)
START = 0x7000_0000


@pg.fuse
def product(x, w):
    return x @ w.T


def made(*signature, **sizes):
    schedule = replace(roles(through="lines"), launch=Launches(realign=True))
    return product.compile(*signature, arch="sm_90a", sizes=sizes, schedule=schedule)


@pytest.fixture(scope="module")
def kernel():
    return made("bf16[M,K]", "bf16[N,K]", M=67, N=45, K=131)


class Device:
    """Stands in for CUDA: remembers what happens, in order."""

    def __init__(self, capturing: bool = False, copied: int = 2) -> None:
        self.kinds = (ctypes.c_uint64, ctypes.c_uint64, *[ctypes.c_int32] * 4) * copied
        self.events: list[tuple[object, ...]] = []
        self.maps: list[tuple[int, object]] = []
        self.handles: dict[int, str] = {}
        self.captures = capturing

    def load(self, cubin, entry, shared):
        self.handles[len(self.handles) + 1] = entry
        return len(self.handles), self

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        numbers: tuple[int, ...] = ()
        if self.handles[function].endswith("_realign"):
            addresses = (ctypes.c_void_p * len(self.kinds)).from_address(parameters)
            pairs = zip(self.kinds, addresses, strict=True)
            numbers = tuple(kind.from_address(address).value for kind, address in pairs)
        self.events.append((self.handles[function], (gx, gy, gz), bx, stream, *numbers))

    def encode(self, pointer, layout):
        self.maps.append((pointer, layout))
        return bytes(128)

    @contextlib.contextmanager
    def scope(self, stream):
        self.events.append(("scope", stream))
        yield

    def reserve(self, count, stream):
        self.events.append(("reserve", count, stream))
        return START

    @contextlib.contextmanager
    def beside(self):
        self.events.append(("beside",))
        yield

    @property
    def driver(self) -> Driver:
        return Driver(
            launch=self.launch,
            device=lambda: 0,
            load=self.load,
            current_stream=lambda: 55,
            pointer_device=lambda pointer: 0,
            wait=lambda producer, consumer: None,
            stream_scope=self.scope,
            encode_map=self.encode,
            resident=lambda function, launch, device: 132,
            capturing=lambda stream: self.captures,
            reserve=self.reserve,
            beside_captures=self.beside,
        )


def launcher(kernel, device):
    program = kernel.program
    found = Launcher(
        kernel._generated.source, artifact(), program.inputs, program.outputs, device.driver
    )
    return lambda *arrays, **more: found(arrays, (), **more)


def arrays(m=67, n=45, k=131, x_pitch=140):
    x = cupy_array((m, k), 0x10002, (2 * x_pitch, 2), BF16)
    return x, cupy_array((n, k), 0x90000, None, BF16), cupy_array((m, n), 0xF0000, None, BF16)


@pytest.fixture
def rooms(monkeypatch):
    """Allocations of CuPy's, without a GPU: how many bytes each has."""
    asked: list[int] = []

    def allocator(library, device, shape, dtype, order):
        def make():
            asked.append(shape[0] * dtype.bytes)
            return cupy_array(shape, START, None, "i1")

        return make

    monkeypatch.setattr(workspace, "allocator", allocator)
    return asked


ROWS = 384  # bytes: 131 elements in whole lines
COPY = (  # address, copy, blocks, elements of a row, rows, step; of x and of w
    0x10002, START, 9, 131, 67, 140, 0x90000, START + 67 * ROWS, 6, 131, 45, 131,
)  # fmt: skip


def test_the_copy_comes_first_and_the_kernel_gets_the_copies(kernel, rooms):
    device, (x, w, y) = Device(), arrays()
    assert launcher(kernel, device)(x, w, out=y) is y
    first, second = device.events
    assert first == ("pg_product_realign", (15, 1, 1), 256, 55, *COPY)
    assert second[0] == "pg_product" and second[3] == 55
    (left, left_map), (right, right_map) = device.maps
    assert (left, right) == (START, START + 67 * ROWS)
    assert (left_map.sizes, left_map.strides) == ((131, 67), (ROWS,))
    assert (right_map.sizes, right_map.strides) == ((131, 45), (ROWS,))
    assert rooms == [(67 + 45) * ROWS] == [kernel.workspace()]


def test_what_is_made_first_is_made_of_the_caller_s_arrays(rooms):
    """Rows of x by index, times a number; w is copied, and both lie in the workspace."""
    function = pg.fuse(lambda x, r, a, w: (x[r] * a).astype("bf16") @ w.T, name="made")
    schedule = replace(roles(through="lines"), launch=Launches(realign=True))
    schedule = replace(schedule, roles=replace(schedule.roles, computes="before"))
    sizes = {"S": 9, "T": 67, "K": 131, "N": 45}
    signature = ("bf16[S,K]", "s32[T]", "f32", "bf16[N,K]")
    kernel = function.compile(*signature, arch="sm_90a", sizes=sizes, schedule=schedule)
    program, device = kernel.program, Device()
    names = [argument.name for argument in kernel._generated.source.arguments]
    assert names[:6] == ["x", "r", "a", "w", "v1", "y0"]
    own = [ctypes.c_uint64] * 2 + [ctypes.c_float] + [ctypes.c_uint64] * 3
    device.kinds = (*device.kinds[:6], ctypes.c_uint32, *own, *[ctypes.c_int32] * 8)
    x, w, y = arrays()[0], *arrays()[1:]
    x = cupy_array((9, 131), 0x10002, (280, 2), BF16)
    r = cupy_array((67,), 0x40000, None, np.int32)
    found = Launcher(
        kernel._generated.source, artifact(), program.inputs, program.outputs, device.driver
    )
    assert found((x, r, w), (0.5,), y) is y
    copy, begins = START, START + 45 * ROWS
    (entry, blocks, _, _, *values), second = device.events
    assert (entry, second[0]) == ("pg_made_realign", "pg_made")
    assert values[:7] == [0x90000, copy, 6, 131, 45, 131, 9] and blocks == (6 + 9, 1, 1)
    assert values[7:13] == [0x10002, 0x40000, 0.5, 0x90000, begins, 0xF0000]
    steps = dict(zip(names[6:14], values[13:], strict=True))
    assert steps == {
        "S": 9, "K": 131, "T": 67, "N": 45, "x_stride0": 140, "w_stride0": 131,
        "v1_stride0": ROWS // 2, "y0_stride0": 45,
    }  # fmt: skip
    (left, left_map), (right, _) = device.maps
    assert (left, right) == (begins, copy) and left_map.strides == (ROWS,)
    assert rooms == [(45 + 67) * ROWS] == [kernel.workspace()]


def test_axes_in_another_order_before_a_kernel_that_another_follows(rooms):
    """Of an array that begins at an odd byte; parts of folds lie behind the copy, in memory of the
    caller's.
    """
    function = pg.fuse(lambda x, w: pg.max((x @ w).astype("f32"), axis=1), name="made")
    sizes = {"M": 67, "K": 131, "N": 45}
    kernel = function.compile("s8[M,K]", "s8[K,N]", arch="sm_80", sizes=sizes)
    program, device = kernel.program, Device()
    source = kernel._generated.source
    device.kinds = (ctypes.c_uint32, *[ctypes.c_uint64] * 4, *[ctypes.c_int32] * 6, ctypes.c_uint64)
    x = cupy_array((67, 131), 0x10002, (140, 1), np.int8)
    w = cupy_array((131, 45), 0x90001, (48, 1), np.int8)
    y = cupy_array((67,), 0xF0000, None, np.float32)
    both = kernel.workspace()
    assert both == 45 * 256 + source.following.workspace(sizes)
    room = cupy_array((both,), 0xA0000, None, "u1")
    found = Launcher(source, artifact(), program.inputs, program.outputs, device.driver)
    assert found((x, w), (), y, workspace=room) is y
    first, second, third = device.events
    assert first[:4] == ("pg_made_realign", (2, 1, 1), 256, 55)
    assert first[4:] == (
        2, 0x10002, 0x90001, 0xA0000, 0xF0000, 67, 131, 45, 140, 48, 256, 0xA0000 + 45 * 256,
    )  # fmt: skip
    assert (second[0], third[0]) == ("pg_made", source.following.entry)
    assert not rooms
    assert decode(type(source), encode(source)) == source
    found((x, w), (), y)
    assert rooms == [both]


def test_the_workspace_belongs_to_the_stream_of_the_call(kernel, rooms):
    device, (x, w, y) = Device(), arrays()
    launcher(kernel, device)(x, w, out=y, stream=7)
    assert device.events[0] == ("scope", 7)
    assert [event[3] for event in device.events[1:]] == [7, 7]


def test_a_graph_that_is_captured_has_memory_of_its_own(kernel, rooms):
    device, (x, w, y) = Device(capturing=True), arrays()
    launcher(kernel, device)(x, w, out=y)
    names = [event[0] for event in device.events]
    assert names == ["reserve", "pg_product_realign", "pg_product"]
    assert device.events[0] == ("reserve", (67 + 45) * ROWS, 55) and not rooms


@pytest.mark.parametrize("own", [True, False])
def test_what_pytorch_keeps_to_its_graph_is_not_kept_again(rooms, monkeypatch, own):
    device = Device(capturing=True)
    monkeypatch.setattr(workspace, "of_a_capture", lambda array: own and array.shape == (4096,))
    monkeypatch.setattr(workspace, "address_reader", lambda _: lambda array: array.data.ptr)
    given, held = workspace.Room("torch", 0, 4096).taken(55, device.driver, explicit=False)
    assert given == START and (held is not None) == own
    assert device.events == [("beside",), *([] if own else [("reserve", 4096, 55)])]
    assert rooms == [4096]


@pytest.mark.parametrize(
    ("pool", "start", "own"),
    [
        ((3, 0), START - 512, True),
        ((0, 0), START - 512, False),  # a capture that others began
        ((0, 4), START - 512, False),  # a pool that the program made
        (None, START - 512, False),
        ((3, 0), START + 512, False),
    ],
)
def test_pools_of_pytorch_s_captures_are_known_by_their_numbers(monkeypatch, pool, start, own):
    other = {"address": 0, "total_size": 4096, "segment_pool_id": (9, 0)}
    segment = {"address": start, "total_size": 4096, "segment_pool_id": pool}
    cuda = SimpleNamespace(memory_snapshot=lambda: [other, segment])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert of_a_capture(SimpleNamespace(data_ptr=lambda: START)) is own


def test_copies_lie_in_a_workspace_that_is_given(kernel, rooms):
    device, (x, w, y) = Device(), arrays()
    given = cupy_array((kernel.workspace(),), 0x5000_0000, None, "u1")
    assert launcher(kernel, device)(x, w, out=y, workspace=given) is y
    assert [event[0] for event in device.events] == ["pg_product_realign", "pg_product"]
    assert [pointer for pointer, _ in device.maps] == [0x5000_0000, 0x5000_0000 + 67 * ROWS]
    assert not rooms
    for bytes_, start in ((kernel.workspace() - 1, 0x5000_0000), (1 << 20, 0x5000_0040)):
        short = cupy_array((bytes_,), start, None, "u1")
        with pytest.raises(ArgumentError, match=rf"the workspace has {bytes_} bytes .* of 128 on"):
            launcher(kernel, device)(x, w, out=y, workspace=short)
    assert len(device.events) == 2


def test_an_operand_that_needs_no_copy_stays_where_it_is(rooms):
    kernel = made("bf16[M,K]", "bf16[N,K]", M=67, N=45, K=136, **{"x.pitch": 137})
    device, (x, w, y) = Device(copied=1), arrays(k=136, x_pitch=137)
    launcher(kernel, device)(x, w, out=y)
    (left, _), (right, right_map) = device.maps
    assert (left, right) == (START, 0x90000) and right_map.strides == (272,)
    assert kernel.workspace() == 67 * 384 and kernel._generated.source.realign.names == ("x",)


def test_backward_steps_are_refused_before_anything_runs(kernel, rooms):
    device, (x, w, y) = Device(), arrays()
    with pytest.raises(ArgumentError, match="backwards"):
        launcher(kernel, device)(x[::-1], w, out=y)
    assert not device.events and not rooms


def test_the_workspace_follows_the_sizes(kernel):
    assert kernel.workspace({"M": 1, "N": 1, "K": 64}) == 256
    assert kernel.workspace({"K": 65}) == (67 + 45) * 256
    aligned = product.compile("bf16[M,K]", "bf16[N,K]", arch="sm_90a", schedule=kernel.schedule)
    assert aligned.workspace() == 0, "rows that the copy engine takes stay where they are"
    unsized = product.compile("bf16[M,K]@2", "bf16[N,K]@2", arch="sm_90a", schedule=kernel.schedule)
    with pytest.raises(ArgumentError, match="sizes without K, M, N"):
        unsized.workspace()


def test_a_copy_survives_as_json(kernel):
    source = kernel._generated.source
    assert decode(type(source), encode(source)) == source


def test_dependent_launches_go_to_the_driver_with_an_attribute(rooms):
    schedule = replace(roles(through="lines"), launch=Launches(realign=True, dependent=True))
    kernel = product.compile(
        "bf16[M,K]", "bf16[N,K]", arch="sm_90a", sizes={"N": 45, "K": 131}, schedule=schedule
    )
    device, (x, w, y) = Device(), arrays()
    plain, device.launch = device.launch, None
    driver = replace(device.driver, launch_dependent=plain)
    program = kernel.program
    found = Launcher(kernel._generated.source, artifact(), program.inputs, program.outputs, driver)
    found((x, w), (), y)
    assert [event[0] for event in device.events] == ["pg_product_realign", "pg_product"]


def test_the_records_of_a_dependent_launch_lie_as_cuda_h_has_them():
    attribute, config = dependent._Attribute, occupancy.LaunchConfig
    assert (attribute.id.offset, attribute.value.offset) == (0, 8)
    assert ctypes.sizeof(attribute) == 72
    offsets = (config.grid, config.block, config.shared_bytes, config.stream, config.attributes)
    assert [one.offset for one in (*offsets, config.count)] == [0, 12, 24, 32, 40, 48]
    assert ctypes.sizeof(config) == 56


def test_a_dependent_launch_says_what_the_driver_refuses(monkeypatch):
    seen = []

    def driver(config, function, parameters, extra):
        found = occupancy.LaunchConfig.from_address(config)
        attribute = dependent._Attribute.from_address(found.attributes)
        seen.append(
            (tuple(found.grid), tuple(found.block), found.shared_bytes, found.stream, found.count)
        )
        seen.append((attribute.id, attribute.value, function, parameters, extra))
        return int(len(seen) > 2)

    monkeypatch.setattr(dependent, "_launch_kernel_ex", lambda: driver)
    dependent.launch(77, 3, 2, 1, 256, 1, 1, 4096, 55, 0x1000, 0)
    assert seen == [((3, 2, 1), (256, 1, 1), 4096, 55, 1), (6, 1, 77, 0x1000, None)]
    with pytest.raises(LaunchError, match=r"a dependent launch \(CUresult 1\)"):
        dependent.launch(77, 3, 2, 1, 256, 1, 1, 4096, 55, 0x1000, 0)


def test_without_a_driver_a_dependent_launch_says_so(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    dependent._launch_kernel_ex.cache_clear()
    with pytest.raises(ToolchainMissing, match="no dependent launches"):
        dependent._launch_kernel_ex()
