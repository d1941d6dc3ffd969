"""Operands that stay the same: aligned once, and left out of the calls."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from matrix import roles
from runtime_samples import cupy_array

import polygen as pg
from polygen.errors import ArgumentError
from polygen.frontend.program import Tensor
from polygen.planned import Planned
from polygen.runtime import aligned
from polygen.runtime.arrays import ArrayView
from polygen.schedule.model import Launches

cupy = pytest.importorskip("cupy")
BF16 = np.dtype(ml_dtypes.bfloat16)


@pg.fuse
def product(x, w, b):
    return pg.relu(x @ w.T + b)


@pytest.fixture(scope="module")
def kernel():
    from dataclasses import replace

    schedule = replace(roles(through="lines"), launch=Launches(realign=True))
    return product.compile(
        "bf16[M,K]", "bf16[N,K]", "f32[N]", arch="sm_90a", sizes={"M": 67, "N": 45, "K": 131},
        schedule=schedule,
    )  # fmt: skip


@pytest.fixture
def copies(monkeypatch):
    """Arrays that were copied, with what stands for their copies."""
    made = []

    def copy(array, tensor):
        made.append((tensor.name, cupy_array((45, 131), 0x80000, (384, 2), BF16)))
        return made[-1][1]

    monkeypatch.setattr("polygen.planned.aligned_copy", copy)
    return made


def test_what_stays_is_copied_once_and_only_the_rest_in_each_call(kernel, copies):
    w = cupy_array((45, 131), 0x90000, None, BF16)
    plan = kernel.plan(w=w)
    assert [name for name, _ in copies] == ["w"] and plan.kept["w"] is copies[0][1]
    copied = plan.kernel._generated.source.realign
    assert copied.names == ("x",) and plan.workspace() == 67 * 384
    assert plan.kernel.schedule == kernel.schedule and plan.kernel.sums == kernel.sums


def test_rows_that_the_copy_engine_takes_stay_where_they_are(kernel, copies):
    w = cupy_array((45, 131), 0x90000, (272, 2), BF16)
    x = cupy_array((67, 131), 0x20000, (272, 2), BF16)
    plan = kernel.plan(w=w, x=x)
    assert not copies and plan.kept == {"w": w, "x": x}
    assert plan.workspace() == 0, "nothing is left to copy"


def test_operands_come_in_the_kernels_order(copies):
    class Recorded:
        program = product.program("bf16[M,K]", "bf16[N,K]", "f32[N]")

        def __call__(self, *operands, out=None, stream=None, workspace=None):
            return (*operands, out, stream)

    w = cupy_array((45, 136), 0x90000, None, BF16)
    plan = Planned(Recorded(), {"w": w})
    assert plan.run("x", "b", out="y", stream=3) == ("x", w, "b", "y", 3)
    with pytest.raises(ArgumentError, match=r"1 operands given, 2 expected.*x, b"):
        plan.run("x")


def test_unknown_operands_are_refused(kernel):
    with pytest.raises(ArgumentError, match=r"no operand is called v.*x, w, b"):
        kernel.plan(v=1)


@pytest.mark.parametrize(
    ("order", "pointer", "strides", "wanted"),
    [
        ((0, 1), 0x1000, (136, 1), True),
        ((0, 1), 0x1000, (131, 1), False),
        ((0, 1), 0x1002, (136, 1), False),
        ((1, 0), 0x1000, (1, 48), True),
        ((1, 0), 0x1000, (1, 45), False),
    ],
)
def test_what_is_aligned(monkeypatch, order, pointer, strides, wanted):
    tensor = Tensor("w", product.program("bf16[M,K]", "bf16[N,K]", "f32[N]").inputs[1].dtype,
                    ("N", "K"), order)  # fmt: skip
    view = ArrayView(pointer, (45, 131), strides, tensor.dtype, 0, "cupy")
    monkeypatch.setattr(aligned, "describe", lambda array, name: view)
    assert aligned.is_aligned(None, tensor) is wanted


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_copies_have_rows_of_whole_lines_and_the_same_bits(monkeypatch, order):
    tensor = Tensor("w", product.program("bf16[M,K]", "bf16[N,K]", "f32[N]").inputs[1].dtype,
                    ("B", "N", "K"), order)  # fmt: skip
    array = np.arange(3 * 5 * 70, dtype=np.uint16).reshape(3, 5, 70).view(BF16)
    view = ArrayView(0, array.shape, (350, 70, 1), tensor.dtype, 0, "cupy")

    def allocator(library, device, shape, dtype, order):
        stored = np.zeros([shape[axis] for axis in order], BF16)
        return lambda: stored.transpose([order.index(axis) for axis in range(len(order))])

    monkeypatch.setattr(aligned, "describe", lambda array, name: view)
    monkeypatch.setattr(aligned, "allocator", allocator)
    monkeypatch.setattr(cupy, "asarray", lambda array: array)
    copy = aligned.aligned_copy(array, tensor)
    assert copy.shape == array.shape and copy.view("u2").tolist() == array.view("u2").tolist()
    assert copy.strides[order[-1]] == 2
    assert all(copy.strides[axis] % 128 == 0 for axis in order[:-1])
