"""Calls that store into one of their arrays; the compiler, the driver and the GPU are stubs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runtime_samples import cupy_array
from test_calls import INT, WIDE, Machine, machine  # noqa: F401

import polygen as pg
from polygen.errors import ArgumentError, ShapeError
from polygen.runtime import launch
from polygen.runtime.arrays import describe

pytest.importorskip("cupy")

X, W, R, OUT = (n << 40 for n in range(1, 5))


def scatter(out, x, w, rows):
    """The array that is stored into comes first, as a call may have it."""
    out[rows] = x @ w.T
    return out


@pytest.fixture
def arrays(machine):  # noqa: F811
    machine.device.kinds = (*(WIDE,) * 4, *(INT,) * 7)
    machine.call = pg.fuse(scatter)
    return {
        "out": cupy_array((900, 256), OUT, dtype="f2"),
        "x": cupy_array((300, 512), X, dtype="f2"),
        "w": cupy_array((256, 512), W, dtype="f2"),
        "rows": cupy_array((300,), R, dtype="i4"),
    }


def test_the_array_that_is_stored_into_is_what_a_call_gives_back(machine, arrays):  # noqa: F811
    out = arrays["out"]
    assert machine.call(*arrays.values()) is out
    *pointers, t, k, n, s, _, _, _ = machine.device.launches[-1][-1]
    assert pointers == [X, W, R, OUT]
    assert (t, k, n, s) == (300, 512, 256, 900)
    assert machine.call(*arrays.values(), out=out) is out
    arrays["out"] = cupy_array((901, 256), OUT, dtype="f2")
    assert machine.call(*arrays.values()) is arrays["out"]
    assert len(machine.generated) == 1, "one kernel for arrays of any number of rows"


def test_operands_that_stay_go_with_it_and_others_are_refused(machine, arrays):  # noqa: F811
    given = tuple(arrays.values())
    kernel = machine.call._kernel_for(given)
    planned = kernel.plan(w=arrays["w"])
    assert planned.run(arrays["out"], arrays["x"], arrays["rows"]) is arrays["out"]
    with pytest.raises(ArgumentError, match=r"no operand is called out.*Operands: x, w, rows"):
        kernel.plan(out=arrays["out"])
    with pytest.raises(ArgumentError, match="out= is given, and out is stored into"):
        kernel(*given, out=cupy_array((900, 256), W, dtype="f2"))
    with pytest.raises(ArgumentError, match="3 operands given, 4 expected"):
        kernel(*given[:3])


def test_arrays_that_do_not_fit_are_refused(machine, arrays, monkeypatch):  # noqa: F811
    for name, shape, kind in (("out", (900, 255), "f2"), ("rows", (299,), "i4")):
        other = arrays | {name: cupy_array(shape, R, dtype=kind)}
        with pytest.raises(ShapeError, match="into those rows"):
            machine.call(*other.values())
    other = arrays | {"x": cupy_array((300, 512), OUT + 512, dtype="f2")}
    with pytest.raises(ArgumentError, match="out and x overlap in memory"):
        machine.call(*other.values())

    def frozen(array, **rest):
        view = describe(array, **rest)
        return replace(view, readonly=view.pointer == OUT, library="jax")

    monkeypatch.setattr(launch, "describe", frozen)
    monkeypatch.setattr(launch, "READS", {})
    monkeypatch.setattr(launch, "read", lambda _: None)
    other = arrays | {"out": cupy_array((902, 256), OUT, dtype="f2")}
    with pytest.raises(ArgumentError, match="the output array is read-only"):
        machine.call(*other.values())
    assert not machine.device.launches
