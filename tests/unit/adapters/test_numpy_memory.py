"""Whose memory arrays lie in: what is pending is computed before a write that it would see."""

from __future__ import annotations

import types

import numpy
import pytest

import polygen.adapters.numpy as np
from polygen.adapters.numpy.backends import NUMPY, CuPy
from polygen.adapters.numpy.memory import FOREIGN, are_apart


@pytest.fixture(autouse=True)
def _on_numpy():
    with np.polygen_options(backend=NUMPY):
        yield


def two_over_one_buffer(np):
    memory = bytearray(numpy.arange(8.0).tobytes())
    return np.frombuffer(memory), np.frombuffer(memory, count=4, offset=16)


def test_arrays_over_one_buffer_of_somebody_else_are_one_memory():
    for module in (numpy, np):
        first, second = two_over_one_buffer(module)
        later = first * 10.0  # pending, with the adapter, when the other array is written
        second[:] = -1.0
        assert later.tolist() == [0, 10, 20, 30, 40, 50, 60, 70]
        assert first.tolist() == [0, 1, -1, -1, -1, -1, 6, 7]


def test_an_update_in_place_that_reads_the_same_buffer_elsewhere_reads_it_before():
    for module in (numpy, np):
        first, second = two_over_one_buffer(module)
        first[1:5] += second * 1.0
        assert first.tolist() == [0, 3, 5, 7, 9, 5, 6, 7]


def test_a_number_of_a_foreign_buffer_stays_what_it_was():
    first, second = two_over_one_buffer(np)
    number = first[3]
    second += 1.0
    assert float(number) == 3.0 and float(first[3]) == 4.0


def test_foreign_arrays_that_are_apart_wait():
    memory = bytearray(64)
    low, high = np.frombuffer(memory, count=4), np.frombuffer(memory, count=4, offset=32)
    later = low + 1.0
    high[:] = 5.0
    assert later.node.value is None, "its operand has not changed"
    assert later.tolist() == [1.0] * 4


def test_numpy_says_what_owns_memory():
    one = numpy.arange(12.0).reshape(3, 4)
    whole = numpy.zeros(12)
    assert NUMPY.memory(whole[2:][::2]) is whole and NUMPY.memory(whole) is whole
    assert NUMPY.memory(one) is one.base
    assert NUMPY.memory(numpy.frombuffer(bytes(8))) is FOREIGN
    assert NUMPY.is_sole(whole) and not NUMPY.is_sole(whole[1:])
    assert not NUMPY.is_sole(numpy.frombuffer(bytes(8)))


def test_cupys_allocations_are_memories_and_what_it_wraps_is_foreign():
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.memory

    class Owned(memory.UnownedMemory):
        """Stands for what CuPy allocates, at an address that nothing reads."""

    def array(size, kind=Owned, address=1 << 12):
        made = kind(address, 8 * size, None, 0)
        return cupy.ndarray((size,), "d", cupy.cuda.MemoryPointer(made, 0))

    backend = CuPy(types.SimpleNamespace(ndarray=cupy.ndarray, empty=array, cuda=cupy.cuda))
    assert {memory.PooledMemory, memory.Memory} <= backend._own
    backend._own = frozenset([Owned])
    one, other = array(8), array(8)
    assert backend.memory(one) is backend.memory(one[2:]) is not backend.memory(other)
    assert are_apart(one, other, backend), "what CuPy allocates twice is apart, wherever it says"
    assert backend.is_sole(one)
    view = one[2:]
    assert not backend.is_sole(one) and not backend.is_sole(view)
    del view
    assert backend.is_sole(one)
    by_address = cupy.ndarray((4,), "d", one.data + 16)  # no view, and the same memory
    assert by_address.base is None and backend.memory(by_address) is backend.memory(one)
    assert not backend.is_sole(one) and not are_apart(one, by_address, backend)
    assert are_apart(one[:2], by_address, backend)

    wrapped = [array(8, memory.UnownedMemory, 1 << 12), array(8, memory.UnownedMemory, 4096 + 32)]
    assert all(backend.memory(each) is FOREIGN for each in wrapped)
    assert not backend.is_sole(wrapped[0])
    assert not are_apart(*wrapped, backend), "one library's memory, wrapped twice"
    assert are_apart(wrapped[0][:4], wrapped[1], backend)


@pytest.mark.parametrize("low", [0, 0.0, numpy.float32(0)])
def test_clipped_zeros_keep_their_signs(low):
    zeros = numpy.array([-0.0, 0.0, -0.0, numpy.nan, -3.0, 9.0] * 5)
    for high in (1, 2.5):
        found, wanted = np.clip(np.array(zeros), low, high), numpy.clip(zeros, low, high)
        numpy.testing.assert_array_equal(found.get(), wanted)
        numpy.testing.assert_array_equal(numpy.signbit(found.get()), numpy.signbit(wanted))
    lows = numpy.zeros(zeros.shape)
    found = np.clip(np.array(zeros), np.array(lows), 2.0)
    wanted = numpy.clip(zeros, lows, 2.0)
    numpy.testing.assert_array_equal(numpy.signbit(found.get()), numpy.signbit(wanted))


def test_clip_is_recorded_and_has_numpys_types():
    for kind, low, high in [
        ("float32", 0, 1),
        ("int8", -300, 5),
        ("int16", 0.5, 2),
        ("bool", 0, 1),
    ]:
        plain = numpy.arange(-4, 5).astype(kind)
        found, wanted = np.clip(np.array(plain), low, high), numpy.clip(plain, low, high)
        assert found.dtype == wanted.dtype and found.node.value is None
        numpy.testing.assert_array_equal(found.get(), wanted)


@pytest.mark.parametrize("exponent", [-1, numpy.int8(-2), [1, -1, 2]])
def test_negative_powers_of_integers_are_refused_where_they_are_written(exponent):
    array = np.array([1, 2, 3])
    for raise_it in (lambda: array**exponent, lambda: np.power(array, exponent)):
        with pytest.raises(ValueError, match="Integers to negative integer powers") as raised:
            raise_it()
        assert not hasattr(raised.value, "__notes__"), "it is raised there"


def test_a_backend_that_computes_negative_powers_of_integers_refuses_numbers_too():
    module = types.SimpleNamespace(**vars(numpy))
    module.power = lambda base, exponent: base * 0
    backend = type(NUMPY)()
    backend.module = module
    with np.polygen_options(backend=backend):
        array = np.array([1, 2, 3])
        with pytest.raises(ValueError, match="Integers to negative integer powers"):
            np.power(array, -1)
        assert np.power(array, np.array([1, -1, 2])).tolist() == [0, 0, 0], "data are not looked at"
        assert np.power(np.zeros(0, dtype=int), -1).shape == (0,)


def test_powers_of_integers_by_arrays():
    plain = numpy.array([[1, 2, 3]])
    for exponent in (numpy.array([[2], [0]]), numpy.array([0.5, 2, 1]), numpy.array([3])):
        found = np.array(plain) ** np.array(exponent)
        numpy.testing.assert_array_equal(found.get(), plain**exponent)


def test_an_update_whose_operand_is_computed_for_another_write_first():
    """What waits for the memory is computed before, and with it part of the update's own graph."""
    for module in (numpy, np):
        whole = module.array(numpy.arange(4.0))
        half = whole[:2]
        shared = whole[2:] * 2.0
        both = half + shared  # waits for what is written next, and holds what that reads
        half -= shared
        assert half.tolist() == [-4.0, -5.0] and both.tolist() == [4.0, 7.0]


@pytest.mark.parametrize("other", [[1.5, 2.5], numpy.ones((3, 2)), "text", 1.5j])
def test_updates_that_cannot_be_are_refused_as_numpy_does(other):
    messages = []
    for module in (numpy, np):
        array = module.array(numpy.arange(3))
        with pytest.raises((TypeError, ValueError)) as raised:
            array += other
        messages.append((type(raised.value), str(raised.value)))
    assert messages[0] == messages[1]


def test_arrays_of_numpy_itself_are_read_where_they_are_operands():
    for module in (numpy, np):
        own = numpy.ones(3)
        added, clipped = module.zeros(3) + own, module.clip(module.full(3, 9.0), 0.0, own)
        subtracted = module.full(3, 5.0)
        subtracted -= own
        total, spread = module.sum(own), module.std(own)
        own[:] = [100.0, 1.0, 1.0]
        assert float(total) == 3.0 and float(spread) == 0.0
        assert added.tolist() == clipped.tolist() == [1.0] * 3
        assert subtracted.tolist() == [4.0] * 3


def test_a_pending_array_is_written_to_itself_backwards():
    for module in (numpy, np):
        array = module.array(numpy.arange(4.0))
        array += 1.0
        array[::-1] = array
        assert array.tolist() == [4.0, 3.0, 2.0, 1.0]
