"""Calls of kernels that fold: two launches on one stream, and the workspace between them."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from runtime_samples import A, Device, X, Y, artifact, cupy_array, source

import polygen as pg
from polygen.errors import ArgumentError
from polygen.lower.launch import Argument, Count, Following, Parts, Results
from polygen.runtime.launch import Launcher

cupy = pytest.importorskip("cupy")

# One part of a row for every 64 columns; 130 columns: three.
PARTS = Parts("v1", 1, (Count("N", 64),), ("M",))
AFTER = Following("scale_folds", 256, 32, (Results(("M",), 1, ("v1",), ("P2",), ("y",)),), (PARTS,))
ROWS, COLUMNS = 5, 130
BYTES = ROWS * 3 * 4


@pytest.fixture
def device():
    kinds = (*Device.kinds, ctypes.c_uint64)
    return Device(kinds=kinds)


@pytest.fixture
def launcher(device):
    plain = source()
    arguments = (*plain.arguments, Argument("workspace", "workspace"))
    folding = replace(plain, arguments=arguments, following=AFTER)
    return Launcher(folding, artifact(), (X, A), (Y,), device.driver)


def arrays():
    return cupy_array((ROWS, COLUMNS), 0x10000), cupy_array((ROWS, COLUMNS), 0x90000)


def test_both_launches_get_one_block_of_parameters(device, launcher):
    x, y = arrays()
    room = cupy_array((BYTES,), 0xF0000, dtype="u1")
    assert launcher((x,), (2.5,), y, workspace=room) is y
    first, second = device.launches
    assert first[-1] == second[-1] == (0x90000, 130, 0x10000, 130, 5, 130, 2.5, 0xF0000)
    assert first[1:5] == ((3, 5, 1), (64, 1, 1), 0, 55)
    assert second[1:5] == ((1, 1, 1), (256, 1, 1), 0, 55)
    assert [entry for _, entry, _ in device.loads] == ["scale", "scale_folds"]


def test_a_workspace_is_made_on_the_stream(device, launcher, monkeypatch):
    made = []

    def empty(shape, dtype):
        made.append((shape, np.dtype(dtype)))
        return cupy_array(shape, 0xF0000, dtype="i1")

    monkeypatch.setattr(cupy, "empty", empty)
    x, y = arrays()
    launcher((x,), (1.0,), y)
    assert made == [((BYTES,), np.dtype("i1"))] and device.scopes == []
    launcher((x,), (1.0,), y, stream=9)
    assert device.scopes == [9] and [launch[-2] for launch in device.launches] == [55, 55, 9, 9]
    assert {launch[-1][-1] for launch in device.launches} == {0xF0000}


def test_a_graph_that_is_captured_has_its_own(device, launcher, monkeypatch):
    """Whoever captures it: no library knows what another one captures."""
    taken = []

    def reserve(count, stream):
        taken.append((count, stream))
        return 0xF0000

    monkeypatch.setattr(
        launcher,
        "_driver",
        replace(
            device.driver,
            capturing=lambda stream: stream == 55,
            reserve=reserve,
        ),
    )
    x, y = arrays()
    launcher((x,), (1.0,), y)
    assert taken == [(BYTES, 55)]
    assert [launch[-1][-1] for launch in device.launches] == [0xF0000] * 2


@pytest.mark.parametrize(
    "room",
    [
        cupy_array((BYTES - 1,), 0xF0000, dtype="u1"),
        cupy_array((BYTES,), 0xF0002, dtype="u1"),
        cupy_array((2, BYTES), 0xF0000, strides=(1024, 4)),
        cupy_array((BYTES,), 0xF0000, dtype="u1", device=1),
    ],
    ids=["small", "misaligned", "gaps", "elsewhere"],
)
def test_a_workspace_that_does_not_fit(launcher, room):
    x, y = arrays()
    with pytest.raises(ArgumentError, match=r"the workspace has \d+ bytes on device") as error:
        launcher((x,), (1.0,), y, workspace=room)
    assert f'cupy.empty({BYTES}, "u1")' in str(error.value)


def test_a_workspace_for_nothing(device):
    x, y = arrays()
    plain = Launcher(source(), artifact(), (X, A), (Y,), replace(Device().driver))
    with pytest.raises(ArgumentError, match="this kernel takes none") as error:
        plain((x,), (1.0,), y, workspace=cupy_array((BYTES,), 0xF0000, dtype="u1"))
    assert "Leave workspace= away" in str(error.value)


def test_sizes_decide_parts_and_blocks():
    sizes = {"M": 1000, "N": 4096}
    assert AFTER.workspace(sizes) == 1000 * 64 * 4
    assert AFTER.grid(sizes) == 32
    both = replace(AFTER, groups=(*AFTER.groups, Results((), 32, ("v2",), (), ())))
    assert both.grid(sizes) == 33
    assert Count("N", 128, 4).value({"N": 129}) == 8
    assert str(Count("N", 128, 4)) == "ceil(N / 128) * 4" and str(Count(3)) == "3"


def test_an_output_without_axes_is_an_address():
    largest = pg.fuse(lambda x, w: np.max(x @ w.T)).compile(
        "f16[M,K]", "f16[N,K]", arch="sm_80", sizes={"M": 32, "N": 32, "K": 32}
    )
    program, kinds = largest.program, (ctypes.c_uint64,) * 3 + (ctypes.c_int32,) * 5
    device = Device(kinds=(*kinds, ctypes.c_uint64))
    launcher = Launcher(
        largest._generated.source, artifact(), program.inputs, program.outputs, device.driver
    )
    x, w = (cupy_array((32, 32), place, dtype="f2") for place in (0x10000, 0x20000))
    number = cupy_array((), 0x30000)
    room = cupy_array((largest.workspace({"M": 32, "N": 32, "K": 32}),), 0x40000, dtype="u1")
    assert launcher((x, w), (), number, workspace=room) is number
    assert [launch[-1][2] for launch in device.launches] == [0x30000, 0x30000]
    with pytest.raises(ArgumentError, match="the array has 1 axes"):
        launcher((x, w), (), cupy_array((1,), 0x30000), workspace=room)
