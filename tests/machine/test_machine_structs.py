"""Parameters by value that hold pointers, as iterators and views of libraries do."""

from __future__ import annotations

import numpy as np
import pytest
from machine.conftest import to_ptx

import polygen as pg
from polygen.errors import LaunchError
from polygen.machine import Launch, Struct, run

SOURCE = """
struct View { int count; const float* from; float* to; };
extern "C" __global__ void k(View v, float* all) {
  if (threadIdx.x < v.count) { v.to[threadIdx.x] = 2 * v.from[threadIdx.x]; all[threadIdx.x] = 1; }
}"""
COUNT = (20).to_bytes(8, "little") + bytes(16)


def launch(pointers, data=COUNT, all_=None):
    return Launch((1, 1, 1), (32, 1, 1), 0, (Struct(data, pointers), all_))


def test_pointers_in_a_struct_lead_to_arrays():
    x, y, z = (np.full(24, one, np.float32) for one in (3, 0, 0))
    report = run(to_ptx(SOURCE), launch({8: x, 16: y}, all_=z))
    assert report.ok
    first, second, third = report.arrays
    assert np.array_equal(first, x) and np.array_equal(second, np.where(np.arange(24) < 20, 6, 0))
    assert np.array_equal(third, np.where(np.arange(24) < 20, 1, 0))


def test_a_pointer_may_be_into_an_array_that_another_has_too():
    x = np.arange(48, dtype=np.float32)
    report = run(to_ptx(SOURCE), launch({8: (x, 0), 16: (x, 96)}, all_=np.zeros(20, np.float32)))
    assert report.ok
    wanted = np.where(np.arange(24) < 20, 2 * np.arange(24), np.arange(24, 48))
    assert np.array_equal(report.arrays[0], np.r_[np.arange(24), wanted])
    assert np.array_equal(report.arrays[1], report.arrays[0])


def test_what_lies_beyond_the_array_is_found():
    x, y = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    report = run(to_ptx(SOURCE), launch({8: x, 16: (y, 32)}, all_=np.zeros(20, np.float32)))
    assert {one.code for one in report.findings} == {"out-of-bounds-global"}


def test_a_pointer_alone_may_be_into_an_array():
    x, y = np.arange(24, dtype=np.float32), np.zeros(40, np.float32)
    given = launch({8: x, 16: y}, all_=Struct(bytes(8), {0: (y, 80)}))
    report = run(to_ptx(SOURCE), given)
    assert report.ok and np.array_equal(report.arrays[1][20:], np.ones(20))


def test_the_judge_takes_structs():
    x, y, z = (np.full(20, one, np.float32) for one in (3, 0, 0))
    verdict = pg.judge(SOURCE, launch({8: x, 16: y}, all_=z), {1: y + 6, 2: z + 1}, arch="sm_80")
    assert verdict.ok
    assert pg.judge(SOURCE, launch({8: x, 16: y}, all_=z), {1: y + 5}).outcome == "wrong"


@pytest.mark.parametrize(
    "pointers, data, words",
    [
        ({20: np.zeros(4)}, COUNT, "a pointer at byte 20 of a struct of 24"),
        ({-8: np.zeros(4)}, COUNT, "a pointer at byte -8"),
        ({8: 7}, COUNT, "a pointer to a int.*Pass a NumPy array"),
        ({8: (np.zeros(4), 40)}, COUNT, "a pointer to byte 40 of an array of 32"),
        ({8: np.zeros(4)}, bytes(16), "16 bytes for a parameter of 24"),
    ],
)
def test_what_does_not_fit_is_refused(pointers, data, words):
    with pytest.raises(LaunchError, match=words):
        run(to_ptx(SOURCE), launch(pointers, data, np.zeros(20, np.float32)))
