"""Calls of kernels that run one after another, on a machine without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from runtime_samples import Device, cupy_array

from polygen.errors import AlignmentMismatch, ArgumentError
from polygen.frontend.dtypes import BF16, F32
from polygen.frontend.program import Program, Tensor
from polygen.runtime import sequence, workspace
from polygen.runtime.arrays import ArrayView
from polygen.runtime.sequence import SequenceLauncher, Step, pitch, places

cupy = pytest.importorskip("cupy")

X, Y = Tensor("x", F32, ("M", "N"), (0, 1)), Tensor("y", F32, ("M", "N"), (0, 1))
A = Tensor("a", F32, ())
MIDDLE = Tensor("m0", BF16, ("M", "N"), (0, 1))
WHOLE = Program("f", "f(x, a)", (X, A), (Y,), ())
FIRST, LAST = replace(WHOLE, outputs=(MIDDLE,)), replace(WHOLE, inputs=(MIDDLE, X))


class Calls:
    """Records what steps are launched with."""

    def __init__(self) -> None:
        self.made: list[tuple] = []
        self.resumes = True
        self.mismatch: list[str] = []  # kernels that would have to be others

    def of(self, name: str):
        def launch(arrays, scalars, out, found, stream, workspace):
            at = None if workspace is None else workspace.pointer
            self.made.append((name, list(scalars), *found, stream, at))
            self.arrays = arrays, out

        return launch

    def again(self, name: str):
        def inspect(pointers):
            if name in self.mismatch:
                raise AlignmentMismatch("an address is odd")

        def launch(pointers, scalars, room, queue):
            self.made.append((f"{name} again", pointers, list(scalars), room, queue))

        ready = SimpleNamespace(inspect=inspect, launch=launch)
        return lambda forms: ready if self.resumes else None


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def launcher(calls, monkeypatch):
    monkeypatch.setattr(sequence, "cupy_driver", lambda: Device().driver)
    steps = (
        Step(FIRST, calls.of("first"), calls.again("first"), lambda _: 0),
        Step(LAST, calls.of("last"), calls.again("last"), lambda sizes: 100 * sizes["M"]),
    )
    return SequenceLauncher(WHOLE, steps, (MIDDLE,))


def test_rows_between_kernels_begin_at_multiples_of_16_bytes():
    assert pitch(MIDDLE, {"N": 13}) == 16
    assert pitch(MIDDLE, {"N": 16}) == 16
    assert pitch(MIDDLE, {}) is None
    assert pitch(Tensor("v", F32, ("N",), (0,)), {"N": 13}) is None
    whole, other = replace(MIDDLE, dims=(2, "M", 13)), Tensor("v", F32, ("M",), (0,))
    (first, last), end = places((whole, other), {"M": 5})
    assert (first.start, first.shape, first.strides) == (0, (2, 5, 13), (80, 16, 1))
    assert first.count == 2 * 5 * 16 * 2
    assert (last.start, last.strides, last.count) == (384, (1,), 20)
    assert end == 512


def test_every_kernel_gets_its_arrays(calls, launcher):
    x, y = cupy_array((5, 13), 0x10000), cupy_array((5, 13), 0x90000)
    room = cupy_array((4096,), 0xF0000, dtype="u1")
    assert launcher((x, 2.5), y, stream=7, workspace=room) is y
    first, last = calls.made
    view = ArrayView(0xF0000, (5, 13), (16, 1), BF16, 0, "cupy")
    steps = (x.shape, True, x.dtype, 0)
    assert first == ("first", [2.5], [0x10000, 0xF0000], [*steps, view.form], 7, 0xF0000 + 256)
    assert last == (
        "last", [], [0xF0000, 0x10000, 0x90000], [view.form, *steps, *steps], 7, 0xF0000 + 256,
    )  # fmt: skip
    assert launcher.workspace({"M": 5, "N": 13}) == 256 + 500


def test_a_combination_is_prepared_once(calls, launcher, monkeypatch):
    room = cupy_array((4096,), 0xF0000, dtype="u1")
    arrays = (cupy_array((5, 13), 0x10000), cupy_array((5, 13), 0x90000))
    launcher((arrays[0], 1.0), arrays[1], workspace=room)
    monkeypatch.setattr(launcher, "_prepare", None)
    launcher((cupy_array((5, 13), 0x20000), 1.0), (arrays[1],), workspace=room)
    assert calls.made[2][2] == [0x20000, 0xF0000]
    with pytest.raises(TypeError):
        launcher((cupy_array((6, 13), 0x20000), 1.0), (arrays[1],), workspace=room)


@pytest.fixture
def memory(monkeypatch):
    """Results and workspaces, at addresses of their own."""
    made = iter(range(0x100000, 0x200000, 0x1000))

    def allocator(library, device, shape, dtype, order):
        return lambda: cupy_array(shape, next(made), dtype=dtype.numpy)

    monkeypatch.setattr(sequence, "allocator", allocator)
    monkeypatch.setattr(workspace, "allocator", allocator)


def test_what_was_launched_once_is_launched_again_with_other_addresses(calls, launcher, memory):
    for at in (0x10000, 0x20000):
        y = launcher((cupy_array((5, 13), at), 2.5))
    names = [one[0] for one in calls.made]
    assert names == ["first", "last", "first again", "last again"]
    first, last = calls.made[2:]
    room = first[1][1]
    assert first == (
        "first again",
        [0x20000, room],
        [2.5],
        room + 256,
        Device().driver.current_stream(),
    )
    assert last[1] == [room, 0x20000, y.data.ptr] and last[3:] == first[3:]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_kernel_that_has_to_be_another_is_looked_for(calls, launcher, memory, resumes):
    x, calls.resumes = cupy_array((5, 13), 0x10000), resumes
    launcher((x, 2.5))
    calls.mismatch = ["last"]
    launcher((x, 2.5))
    assert [one[0] for one in calls.made] == ["first", "last"] * 2


def test_outputs_and_workspaces_that_are_given_are_looked_at(calls, launcher, memory):
    x, y = cupy_array((5, 13), 0x10000), cupy_array((5, 13), 0x90000)
    for _ in range(2):
        launcher((x, 2.5), y)
        launcher((x, 2.5), workspace=cupy_array((4096,), 0xF0000, dtype="u1"))
    assert [one[0] for one in calls.made] == ["first", "last"] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x, y, room: ((x,), y, room), "1 operands given, 2 expected"),
        (lambda x, y, room: ((x, 1.0), (y, y), room), "2 outputs given, 1 expected"),
        (lambda x, y, room: ((x, 1.0), x, room), "y and x overlap in memory"),
        (lambda x, y, room: ((x, 1.0), y, room[:700]), "the workspace has 700 bytes"),
        (lambda x, y, room: ((x[0], 1.0), y, room), "the array has 1 axes"),
        (lambda x, y, room: ((x.view("i4"), 1.0), y, room), "the array holds s32"),
    ],
)
def test_what_does_not_fit_is_refused(launcher, calls, given, message):
    x, y = cupy_array((5, 13), 0x10000), cupy_array((5, 13), 0x90000)
    operands, out, room = given(x, y, cupy_array((4096,), 0xF0000, dtype="u1"))
    with pytest.raises(ArgumentError, match=message):
        launcher(operands, out, workspace=room)
    assert not calls.made
