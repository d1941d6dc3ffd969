"""Lazy arrays have NumPy's semantics: types, views, writes, errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy
import pytest

import polygen.adapters.numpy as np
from polygen.adapters.numpy.backends import NUMPY


@pytest.fixture(autouse=True)
def on_numpy():
    with np.polygen_options(backend=NUMPY):
        yield


def pending(array):
    return array.node.value is None


def test_importing_imports_no_cupy_and_polygen_does_not_import_it():
    code = """
import sys, polygen
assert not [m for m in sys.modules if m.startswith("polygen.adapters")]
import polygen.adapters.numpy as np
assert "cupy" not in sys.modules and np.pi > 3 and np.float32 and np.newaxis is None
assert "cupy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1200)


def test_operations_wait_until_a_value_is_asked_for():
    a = np.arange(6.0).reshape(2, 3)
    b = np.exp(a) * 2 - a.sum(axis=1, keepdims=True)
    assert pending(b) and b.shape == (2, 3) and b.dtype == np.float64 and len(b) == 2
    plain = numpy.arange(6.0).reshape(2, 3)
    numpy.testing.assert_array_equal(
        b.get(), numpy.exp(plain) * 2 - plain.sum(axis=1, keepdims=True)
    )
    assert not pending(b)


FORCING = {
    "print": lambda s, a: print(s),
    "format": lambda s, a: f"{s:.3f}",
    "float": lambda s, a: float(s),
    "int": lambda s, a: int(s),
    "if": lambda s, a: 1 if s else 0,
    "item": lambda s, a: s.item(),
    "asarray": lambda s, a: numpy.asarray(s),
    "iteration": lambda s, a: list(s.reshape(1)),
    "library": lambda s, a: np.linalg.norm(s.reshape(1)),
    "index": lambda s, a: a[s.astype(int) * 0],
}


@pytest.mark.parametrize("how", FORCING)
def test_what_forces_a_value(how):
    a = np.asarray([1.0, 2.0])
    s = (a * 3.0).sum()
    assert pending(s)
    FORCING[how](s, a)
    assert how == "index" or not pending(s)


@pytest.mark.parametrize(
    "left", ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]
)
@pytest.mark.parametrize("right", [2, 2.5, True, numpy.float32(2), numpy.float64(2), "float16"])
@pytest.mark.parametrize("name", ["add", "divide", "power", "less", "maximum", "where"])
def test_types_are_numpys(left, right, name):
    plain = numpy.asarray([1, 0, 3]).astype(left)
    right = numpy.asarray([2, 1, 1], dtype=right) if isinstance(right, str) else right
    mine = np.asarray(right) if isinstance(right, numpy.ndarray) else right
    args, lazy = (plain, right), (np.asarray(plain), mine)
    if name == "where":
        args, lazy = (plain > 0, *args), (np.asarray(plain) > 0, *lazy)
    wanted, found = getattr(numpy, name)(*args), getattr(np, name)(*lazy)
    assert isinstance(found, np.ndarray) and found.dtype == wanted.dtype
    numpy.testing.assert_array_equal(found.get(), wanted)
    assert found.get().dtype == wanted.dtype


def test_numbers_that_do_not_fit_are_refused_as_by_numpy():
    small = np.asarray([1, 2], dtype=np.uint8)
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        small + 300
    assert (small < 300).get().tolist() == [True, True]


@pytest.mark.parametrize(
    "bounds", [(-1, 2), (0, 300), (-5, 1000), (-1, None), (None, 255), (1, 255), (2, 4.5)]
)
def test_bounds_behind_the_ends_of_a_type_clip_nothing(bounds):
    plain = numpy.asarray([3, 0, 200], numpy.uint8)
    wanted, found = numpy.clip(plain, *bounds), np.clip(np.asarray(plain), *bounds)
    assert found.dtype == wanted.dtype and found.get() is not plain
    numpy.testing.assert_array_equal(found.get(), wanted)
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        np.clip(np.asarray(plain), 300, 400)


def test_single_numbers_are_scalars_and_arrays_without_axes_are_not():
    total = np.ones(3).sum()
    other = total
    total += 1
    assert float(other) == 3 and float(total) == 4
    zero = np.zeros(())
    other = zero
    zero += 1
    assert float(other) == 1
    assert hash(np.ones(2).sum()) == hash(2.0)
    with pytest.raises(TypeError, match="unhashable"):
        hash(np.ones(2))


# --- writes
def test_an_update_in_place_leaves_earlier_readers_alone():
    a = np.ones(4)
    before = a * 10
    same = a
    a += 1
    assert pending(a) and pending(before), "nothing is written: the array has another value now"
    assert same is a and a.get().tolist() == [2] * 4
    assert before.get().tolist() == [10] * 4


def test_writes_to_elements_leave_earlier_readers_alone():
    a = np.ones(4)
    before = a * 10
    a[1] = 7
    assert not pending(before)
    assert before.get().tolist() == [10] * 4 and a.get().tolist() == [1, 7, 1, 1]


def test_views_see_what_is_written_to_their_base_and_the_other_way():
    a = np.zeros((3, 4))
    row, column = a[1], a[:, 1]
    before = row + 1
    a += 1
    assert row.get().tolist() == [1] * 4 and before.get().tolist() == [1] * 4
    row *= 5
    assert a.get()[1].tolist() == [5] * 4 and column.get().tolist() == [1, 5, 1]
    a.T[0] = 9
    assert a.get()[:, 0].tolist() == [9, 9, 9]
    a[2] -= a[1]
    assert a.get()[2].tolist() == [0, -4, -4, -4]


def test_overlapping_writes_are_numpys():
    plain = numpy.arange(6.0)
    a = np.asarray(plain.copy()).copy()
    plain[1:] += plain[:-1]
    a[1:] += a[:-1]
    assert a.get().tolist() == plain.tolist()


def test_an_element_is_no_view():
    a = np.ones(3)
    first = a[0]
    a[0] = 5
    assert float(first) == 1


def test_numpys_arrays_share_memory_with_what_is_made_of_them():
    plain = numpy.zeros(3)
    a = np.asarray(plain)
    a += 1
    assert plain.tolist() == [1, 1, 1]


def test_functions_write_to_out_and_to_what_they_change():
    a, b = np.arange(4.0), np.zeros(4)
    reader = b + 1
    assert np.exp(a, out=b) is b and reader.get().tolist() == [1] * 4
    np.add(a, 1, out=a)
    np.copyto(b, a)
    a.sort()
    a.fill(3)
    np.add.at(a, [0, 0], 1)
    assert a.get().tolist() == [5, 3, 3, 3] and b.get().tolist() == [1, 2, 3, 4]
    whole = np.zeros(4, dtype=int)
    with pytest.raises(TypeError, match="same_kind"):
        whole += 0.5
    with pytest.raises(TypeError, match="same_kind"):
        np.add(a, 1, out=whole)
    with pytest.raises(ValueError, match=r"non-broadcastable output|could not be broadcast"):
        a += np.ones((2, 4))
    np.add(a, 1, out=(grid := np.zeros((2, 4))))
    assert grid.get()[1].tolist() == [6, 4, 4, 4]


def test_copies_are_copies():
    a = np.arange(3.0) + 0
    for other in (a.copy(), copy.copy(a), copy.deepcopy(a), np.array(a)):
        other[0] = 9
        assert float(a[0]) == 0
    assert np.asarray(a) is a
    assert pickle.loads(pickle.dumps(a)).tolist() == [0, 1, 2]


# --- everything else that NumPy has
def test_other_functions_run_on_the_backend():
    a = np.asarray([[2.0, 1.0], [1.0, 3.0]])
    x = np.linalg.solve(a + 0, np.ones(2))
    assert isinstance(x, np.ndarray) and numpy.allclose((a @ x).get(), 1)
    values, vectors = np.linalg.eigh(a)
    assert isinstance(vectors, np.ndarray) and values.shape == (2,)
    assert np.linalg.eigh(a).eigenvalues.shape == (2,)
    assert np.concatenate([a, a * 2]).shape == (4, 2)
    assert a.reshape(-1).shape == (4,) and np.sort(a, axis=0).shape == (2, 2)
    assert a[a > 1].get().tolist() == [2, 3] and a[[1, 0], 0].get().tolist() == [1, 2]
    assert np.maximum.reduce(a, axis=0).get().tolist() == [2, 3]
    assert np.linalg.LinAlgError is numpy.linalg.LinAlgError
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.inv(a * 0)
    assert np.float32 is numpy.float32 and np.iinfo(np.int8).max == 127
    assert isinstance(np.exp(1.0), numpy.float64)
    assert np.zeros_like(a * 2).shape == np.shape(a) and np.ndim(a) == 2
    assert 3.0 in a and 4.0 not in a
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        np.nonsense  # noqa: B018


def test_random_numbers_come_from_the_backend():
    mine, its = np.random.default_rng(3), numpy.random.default_rng(3)
    found = mine.standard_normal((2, 3))
    assert isinstance(found, np.ndarray)
    numpy.testing.assert_array_equal(found.get(), its.standard_normal((2, 3)))
    np.random.seed(1)
    numpy.random.seed(2)
    assert isinstance(np.random.rand(3), np.ndarray)
    mine.shuffle(a := np.arange(5))
    assert sorted(a.tolist()) == [0, 1, 2, 3, 4]


def test_numpys_own_functions_take_lazy_arrays():
    a, plain = np.arange(3.0) * 2, numpy.ones(3)
    total = numpy.add(plain, a)
    assert isinstance(total, np.ndarray) and total.get().tolist() == [1, 3, 5]
    assert isinstance(plain + a, np.ndarray) and isinstance(plain[:2] * a[1:], np.ndarray)
    assert isinstance(numpy.concatenate([a, a]), np.ndarray)
    assert float(numpy.float32(2) * a.sum()) == 12
    numpy.testing.assert_allclose(a, [0, 2, 4])
    plain += a
    assert type(plain) is numpy.ndarray and plain.tolist() == [1, 3, 5]


# --- errors
def test_errors_name_the_line_that_recorded_the_operation():
    a = np.zeros(3)
    with np.errstate(all="raise"):
        b = 1.0 + a
        c = b / a  # the line
        d = c + b
        with pytest.raises(FloatingPointError, match="divide by zero") as caught:
            print(d)
    line = test_errors_name_the_line_that_recorded_the_operation.__code__.co_firstlineno + 4
    assert caught.value.__notes__ == [f"recorded at {__file__}:{line}: divide"]


def test_errors_of_writes_name_the_line_that_recorded_the_operation():
    x = np.zeros(5)
    view = x[1:]
    line = test_errors_of_writes_name_the_line_that_recorded_the_operation.__code__.co_firstlineno
    for step in range(4):  # the plan is new, and then it is known
        y, z = np.ones(4), np.full(4, 0.0 if step in (0, 3) else 2.0)
        with np.errstate(all="raise"):
            if step in (0, 3):
                with pytest.raises(FloatingPointError, match="divide by zero") as caught:
                    x[1:] = (y + 1) / z + 2
                assert caught.value.__notes__ == [f"recorded at {__file__}:{line + 9}: divide"]
            else:
                x[1:] = (y + 1) / z + 2
                assert view.tolist() == [3] * 4 and float(x[0]) == 0


def test_errors_of_shapes_come_at_once():
    with pytest.raises(
        ValueError, match=r"could not be broadcast together with shapes \(3,\) \(4,\)"
    ):
        np.zeros(3) + np.zeros(4)
    with pytest.raises(np.exceptions.AxisError):
        np.zeros(3).sum(axis=2)
    with pytest.raises(ValueError, match="zero-size array"):
        np.zeros((0, 2)).max()
    with pytest.raises(ValueError, match="truth value"):
        bool(np.zeros(3) == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tf23": True}, "polygen_options: no option is called tf23. Known: tf32, take"),
        ({"tf32": 1}, "polygen_options: tf32 = 1. True or False"),
        ({"take": "all"}, "polygen_options: take = 'all'. Legal: predicted, legal, never"),
        ({"threshold": "high"}, "threshold = 'high'. A number such as 1.05"),
        ({"backend": numpy}, "backend = .*A Backend of polygen.adapters.numpy.backends"),
    ],
)
def test_options_that_are_none_are_refused(options, message):
    from polygen.errors import ArgumentError

    with pytest.raises(ArgumentError, match=message), np.polygen_options(**options):
        pass


def parts(np):
    """Writes of parts to where they are, and to where they are no more."""
    x, y = np.arange(12.0).reshape(3, 4).copy(), np.zeros((3, 4))
    key = (slice(None), 1)
    t = x[key]
    x[key] = 9.0
    x[key] = t  # a view of what was written
    t += 1
    x[key] = t
    y[key] = t  # the same place of another array
    i = np.array(0)
    row = x[i]
    i += 1
    x[i] = row  # another row by now
    u = x[key]
    x = x * 2
    x[key] = u  # of the array before
    v = x[1:]
    v = v + 1
    x[1:] = v
    rows = [2, 0]
    w = x[rows]
    rows[0] = 1
    x[rows] = w
    x[1:] += np.broadcast_to(x[0], (2, 4))
    x[1:] += np.broadcast_to(y[0], (2, 4))
    whole = x[:]
    whole += np.broadcast_to(x[1], (3, 4)) * 2
    return x, y


def test_parts_are_written_to_where_they_are():
    for mine, its in zip(parts(np), parts(numpy), strict=True):
        numpy.testing.assert_array_equal(numpy.asarray(mine), its)
