"""Products as cuBLAS is asked for them: NumPy plays the library, at the addresses given."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import types

import numpy
import pytest

from polygen.adapters.numpy.backends import CuPy
from polygen.adapters.numpy.cublas import laid_out
from polygen.adapters.numpy.operations import form_of

SINGLE, DOUBLE, COMPUTE_SINGLE, COMPUTE_DOUBLE, HANDLE = 0, 1, 68, 70, 4711


class Owned(numpy.ndarray):
    """An array of NumPy that says where it is as CuPy's do."""

    def __new__(cls, shape, dtype):
        return numpy.full(shape, numpy.nan, dtype).view(cls)

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def __matmul__(self, other):
        ASKED.append("CuPy")
        return (self.view(numpy.ndarray) @ other.view(numpy.ndarray)).view(Owned)


ASKED: list[str] = []


def _matrix(address, kind, rows, columns, leading):
    """A matrix of columns in memory."""
    dtype = numpy.dtype("fd"[kind])
    assert leading >= rows, "cuBLAS refuses columns that overlap"
    reach = ((columns - 1) * leading + rows) * dtype.itemsize
    memory = (ctypes.c_char * reach).from_address(address)
    flat = numpy.frombuffer(memory, dtype)
    steps = (dtype.itemsize, leading * dtype.itemsize)
    return numpy.lib.stride_tricks.as_strided(flat, (rows, columns), steps)


def _gemm(handle, first, second, m, n, k, alpha, a, kind, lead, b, other, step, beta, c, result,
          across, compute, _):  # fmt: skip
    ASKED.append("cuBLAS")
    assert handle == HANDLE and kind == other == result
    assert compute == (COMPUTE_DOUBLE if kind == DOUBLE else COMPUTE_SINGLE)
    scalar = ctypes.c_double if kind == DOUBLE else ctypes.c_float
    assert [scalar.from_address(one).value for one in (alpha, beta)] == [1, 0]
    one = _matrix(a, kind, k, m, lead).T if first else _matrix(a, kind, m, k, lead)
    two = _matrix(b, kind, n, k, step).T if second else _matrix(b, kind, k, n, step)
    _matrix(c, kind, m, n, across)[...] = one @ two


@pytest.fixture
def multiply(monkeypatch):
    """The product of a backend for a GPU."""
    library = types.SimpleNamespace(
        gemmEx=_gemm, CUBLAS_COMPUTE_32F=COMPUTE_SINGLE, CUBLAS_COMPUTE_64F=COMPUTE_DOUBLE,
        CUBLAS_GEMM_DEFAULT=-1,
    )  # fmt: skip
    usual = types.SimpleNamespace(COMPUTE_TYPE_DEFAULT=1, get_compute_type=lambda _: usual.kind)
    usual.kind = 1
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", library)
    monkeypatch.setitem(sys.modules, "cupy._core._routines_linalg", usual)
    runtime = types.SimpleNamespace(
        getDeviceCount=lambda: multiply.devices, CUDA_R_32F=SINGLE, CUDA_R_64F=DOUBLE
    )
    device = types.SimpleNamespace(get_cublas_handle=lambda: HANDLE)
    cuda = types.SimpleNamespace(runtime=runtime, device=device)
    backend = CuPy(types.SimpleNamespace(ndarray=Owned, cuda=cuda))
    ASKED.clear()

    def multiply(first, second):
        forms = (form_of(one.shape, one.dtype) for one in (first, second))
        return backend.product(first, second, *forms)

    multiply.devices, multiply.usual = 1, usual
    return multiply


def values(*shape, kind="d", seed=0):
    drawn = numpy.random.default_rng(seed).integers(-4, 5, shape)
    return drawn.astype(kind).view(Owned)


WIDE, TALL, ROW = values(6, 20), values(20, 6, seed=1), values(20, seed=2)
CASES = {
    "matrices": (WIDE, TALL),
    "columns of both": (WIDE.T, TALL.T),
    "rows and columns": (WIDE, values(6, 20, seed=3).T),
    "a vector and a matrix": (ROW, TALL),
    "a matrix and a vector": (WIDE, ROW),
    "a column and the columns behind it": (TALL[:, 1], TALL[:, 2:]),
    "every other row, columns of it": (WIDE[::2, 3:15], TALL[3:15]),
    "a matrix and a column": (WIDE, TALL[:, 3]),
    "every third element": (values(9, seed=4)[::3], values(3, 5)),
    "a row and a column": (WIDE[:1], TALL[:, :1]),
    "an outer product": (values(5, 1), values(1, 7)),
    "an outer product of columns": (TALL[:, :1], WIDE[:1, ::-1][:, :1]),
    "one element each": (values(1, 1), values(1, 1, seed=5)),
}


@pytest.mark.parametrize("kind", ["d", "f"])
@pytest.mark.parametrize("case", CASES)
def test_operands_are_read_where_they_are(multiply, case, kind):
    first, second = CASES[case]
    if kind == "f":
        first, second = _narrow(first), _narrow(second)
    wanted = numpy.asarray(first) @ numpy.asarray(second)
    for _ in range(3):
        found = multiply(first, second)
        assert found.dtype == wanted.dtype
        numpy.testing.assert_array_equal(numpy.asarray(found), wanted)
    assert ASKED == ["CuPy", "cuBLAS", "cuBLAS"], "the first time is CuPy's"


def _narrow(array):
    """The same elements, with the same gaps, in half of the width."""
    base = numpy.full(array.shape, numpy.nan, "f")
    steps = tuple(step // 2 for step in array.strides)
    if any(step < 0 for step in steps):
        return numpy.ascontiguousarray(array).astype("f").view(Owned)
    reach = sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True)) // 4 + 1
    base = numpy.full(reach, numpy.nan, "f")
    found = numpy.lib.stride_tricks.as_strided(base, array.shape, steps)
    found[...] = array
    return found.view(Owned)


def test_products_of_random_views_are_numpys(multiply):
    draw, left = random.Random(0), 0
    for _ in range(400):
        n, k, m = (draw.choice([1, 2, 3, 5]) for _ in range(3))
        pair = []
        for shape in ((n, k), (k, m)):
            whole = values(12, 12, seed=draw.randrange(1 << 20))
            rows, columns = (
                slice(draw.randrange(2), None, draw.choice([1, 1, 2])) for _ in range(2)
            )
            view = whole[rows, columns]
            view = (view if draw.random() < 0.5 else view.T)[: shape[0], : shape[1]]
            pair.append(view[::-1] if draw.random() < 0.1 else view)
        if draw.random() < 0.3:
            pair[0] = pair[0][0]
        elif draw.random() < 0.3:
            pair[1] = pair[1][:, 0]
        wanted = numpy.asarray(pair[0]) @ numpy.asarray(pair[1])
        for _ in range(2):
            numpy.testing.assert_array_equal(numpy.asarray(multiply(*pair)), wanted)
        left += ASKED[-1] == "CuPy"
    assert 20 < left < 200


def test_what_is_none_of_cublas_is_cupys(multiply):
    stack = values(2, 3, 4), values(2, 4, 5)
    pairs = [stack, (values(3, 4, kind="i"), values(4, 2, kind="i")), (values(4), values(4)),
             (values(3, 4), values(4, 2, kind="f")), (values(3, 0), values(0, 2)),
             (values(8, 8)[::2, ::2], values(4, 2)),
             (values(5, 5)[::-1], values(5, 2))]  # fmt: skip
    for pair in pairs:
        for _ in range(2):
            found = numpy.asarray(multiply(*pair))
            numpy.testing.assert_array_equal(found, numpy.asarray(pair[0]) @ numpy.asarray(pair[1]))
    assert set(ASKED) == {"CuPy"}
    with pytest.raises(ValueError, match="mismatch"):
        multiply(values(3, 4), values(3, 4))


@pytest.mark.parametrize("what", ["several devices", "another precision", "no library"])
def test_where_cupy_multiplies_otherwise_it_does(multiply, what, monkeypatch):
    if what == "several devices":
        multiply.devices = 2
    elif what == "another precision":
        multiply.usual.kind = 3
    else:
        monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.cublas", None)
    for _ in range(2):
        multiply(WIDE, TALL)
    assert ASKED == ["CuPy", "CuPy"]


def test_types_and_strides_have_calls_of_their_own(multiply):
    """One table serves all: nothing of a call may be left over in another."""
    pairs = [CASES[case] for case in CASES]
    pairs += [(_narrow(a), _narrow(b)) for a, b in pairs]
    for first, second in itertools.chain(pairs, pairs, reversed(pairs)):
        wanted = numpy.asarray(first) @ numpy.asarray(second)
        numpy.testing.assert_array_equal(numpy.asarray(multiply(first, second)), wanted)


def test_sizes_that_do_not_fit_32_bits_are_left():
    assert laid_out((1 << 31, 2), (2, 1), (2, 3), (3, 1)) is None
    assert laid_out((4, 2), (1 << 31, 1), (2, 3), (3, 1)) is None
    assert laid_out((4, 2), (2, 1), (3, 3), (3, 1)) is None, "they do not fit"
    assert laid_out((4, 2), (1, 1), (2, 3), (3, 1)) is None, "rows that overlap"
