"""Kernels that CuPy's fusion writes, launched for known layouts: compiled, run on the machine."""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
import types

import numpy
import pytest

from polygen.adapters.numpy import elementwise, launching
from polygen.adapters.numpy.backends import CuPy
from polygen.adapters.numpy.elementwise import Ends, Layout, layout, of_fused
from polygen.adapters.numpy.operations import form_of, operation
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.steps import Member
from polygen.emit.elementwise import NAME
from polygen.machine.run import Launch, run
from polygen.runtime.nvrtc_library import library

cupy = pytest.importorskip("cupy")
core = pytest.importorskip("cupy._core.core")
fusion = pytest.importorskip("cupy._core.fusion")
local = pytest.importorskip("cupy._core._fusion_thread_local").thread_local


def made_up(array):
    """An array of CuPy as an array of NumPy lies, at an address that nothing reads."""
    memory = cupy.cuda.UnownedMemory(256, 1 << 20, None, 0)
    pointer = cupy.cuda.MemoryPointer(memory, 1 << 12)
    array = numpy.atleast_1d(array)  # CuPy fuses nothing of arrays without axes alone
    return cupy.ndarray(array.shape, array.dtype, pointer, array.strides)


def kernel_of(function, *args):
    """CuPy's kernel of a function."""
    history = fusion._FusionHistory()
    local.history, local.is_old_fusing = history, True
    try:
        return history.get_fusion(function, args, "sample")[0]
    finally:
        local.history, local.is_old_fusing = None, False


class Plain(numpy.ndarray):
    """An array of NumPy that tells its address as CuPy's do."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.ctypes.data)


class Kernel:
    """What CuPy launches, on the machine."""

    def __init__(self, text, name):
        options = [*core.assemble_cupy_compiler_options(()), "-arch=compute_90"]
        made = library().compile(text, "sample.cu", [*options, "-default-device"])
        assert made.ptx and name == NAME, made.log
        self.text, self.kernel = made.ptx, self

    def __call__(self, grid, block, args):
        given = tuple(numpy.int64(one) if type(one) is int else one for one in args)
        report = run(self.text, Launch((*grid, 1, 1), (*block, 1, 1), 0, given))
        assert report.ok, report
        arrays = [one for one in args if isinstance(one, numpy.ndarray)]
        for one, found in zip(arrays, report.arrays, strict=True):
            if not numpy.shares_memory(one, args[0]) or one is args[0]:
                one[...] = found


def devices(count):
    runtime = types.SimpleNamespace(getDeviceCount=lambda: count)
    return types.SimpleNamespace(runtime=runtime, get_current_stream=None)


LIKE_CUPY = types.SimpleNamespace(ndarray=Plain, RawKernel=Kernel, cuda=devices(1))


def plain(operands):
    """Operands whose arrays tell their addresses."""
    return [one.view(Plain) if isinstance(one, numpy.ndarray) else one for one in operands]


def ran(function, operands, results, shape):
    """What a function gives on the machine, and how its operands lay."""
    stand_ins = [made_up(one) if isinstance(one, numpy.ndarray) else one for one in operands]
    ends = Ends(
        tuple(getattr(one, "shape", ()) for one in operands),
        tuple(form_of(shape, numpy.dtype(kind)) for kind in results), shape,
    )  # fmt: skip
    operands = plain(operands)
    way = of_fused(LIKE_CUPY, kernel_of(function, *stand_ins), operands, ends)
    assert way is not None
    found = way(*operands)
    (made,) = way._layouts.values()
    return found, made


def values(*shape, dtype="float32"):
    count = int(numpy.prod(shape))
    return numpy.asarray(numpy.arange(count).reshape(shape) % 23 - 7, dtype)


WIDE = values(6, 40)
CASES = {
    "whole": (values(5, 30), values(5, 30)),
    "a row": (values(5, 30), values(30)),
    "a column": (values(5, 30), values(5, 1)),
    "one element": (values(5, 30), values(1, 1)),
    "a row and a column": (values(5, 1), values(30)),
    "columns of a matrix": (WIDE[:, 3:20], WIDE[:, 1:18]),
    "one column": (WIDE[:, 3], WIDE[:, 4]),
    "a column beside a matrix": (WIDE[:, 5:], WIDE[:, 2, None]),
    "transposed": (values(30, 5).T, values(5, 30)),
    "every other": (values(60)[::2], values(30)),
    "three axes, two of them one": (values(2, 3, 20), values(2, 1, 1)),
    "no axes": (values(), values()),
}


@pytest.mark.parametrize("case", CASES)
def test_operands_are_where_their_strides_say(case):
    first, second = CASES[case]
    shape = numpy.broadcast_shapes(first.shape, second.shape)

    def function(a, b, number):
        lower = cupy.subtract(cupy.multiply(a, number), b)
        return lower, cupy.greater(lower, b)

    given = [first, second, numpy.float32(0.5)]
    (lower, greater), made = ran(function, given, ["float32", "bool"], shape)
    assert made, "it is launched without CuPy"
    wanted = first * numpy.float32(0.5) - second
    numpy.testing.assert_array_equal(lower, wanted)
    numpy.testing.assert_array_equal(greater, wanted > second)
    assert lower.flags.c_contiguous and lower.shape == shape


@pytest.mark.parametrize("part", [numpy.s_[:, 2:], numpy.s_[:, 3], numpy.s_[1:], numpy.s_[...]])
def test_what_is_written_to_memory_is_written_there_alone(part):
    whole = values(6, 40)
    before, target = whole.copy(), whole[part]
    factor = values(*target.shape) + 1

    def function(memory, factor):
        memory[...] = cupy.add(memory, factor)

    wanted = target + factor
    found, made = ran(function, [target, factor], [], target.shape)
    assert found is None and made
    before[part] = wanted
    numpy.testing.assert_array_equal(whole, before)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int32", "uint64", "float64", "float16"])
def test_numbers_and_elements_have_their_types(kind):
    one = values(3, 50, dtype=kind)
    number = numpy.dtype(kind).type(1)
    found, made = ran(lambda a, b: cupy.maximum(a, b), [one, number], [kind], one.shape)
    assert made and found.dtype == kind
    numpy.testing.assert_array_equal(found, numpy.maximum(one, number))


class Asked:
    """A kernel of CuPy's, as it is called."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __call__(self, *operands):
        return "CuPy's"

    def __getattr__(self, name):
        return getattr(self.kernel, name)


def test_what_takes_three_axes_is_left_to_cupy():
    odd = values(4, 7, 10)[:, ::2, ::5]
    assert layout(odd.shape, [odd.shape], [(70, 20, 5)]) is None
    assert layout((1 << 16, 1 << 16), [()], [()]) is None
    assert layout((0, 3), [(0, 3)], [(3, 1)]) is None
    far = layout((2, 3), [(2, 3)], [(1 << 30, 1)])
    assert far is None, "its last element is behind what 32 bits reach"
    assert layout((2, 3), [(2, 3)], [(-7, 1)]) == Layout("s", 6, (6, 3, -7, 1))
    way = of_fused(
        LIKE_CUPY, kernel_of(lambda a: cupy.negative(a), made_up(odd)), plain([odd]),
        Ends((odd.shape,), (form_of(odd.shape, odd.dtype),), odd.shape),
    )  # fmt: skip
    way._kernel = Asked(way._kernel)
    (odd,) = plain([odd])
    assert way(odd) == way(odd) == "CuPy's"
    again = numpy.ascontiguousarray(odd).view(Plain)
    assert way(again)[0, 0, 0] == 7, "of another layout it is not"


def test_layouts_give_each_operand_its_element():
    shapes = [(3, 4), (1, 4), (3, 1), (4,), (1,), (), None]
    for kinds in itertools.product(shapes, repeat=2):
        arrays = [None if own is None else values(*own) for own in kinds]
        steps = [tuple(s // 4 for s in one.strides) for one in arrays if one is not None]
        made = layout((3, 4), kinds, steps)
        tail = iter(made.tail[2:])
        inner = made.tail[1] if "s" in made.ways else 1
        for way, array in zip(made.ways, arrays, strict=True):
            if way == "n":
                assert array is None
                continue
            outer, along = (next(tail), next(tail)) if way == "s" else (0, 0)
            wanted = numpy.broadcast_to(array, (3, 4)).ravel()
            for i in range(12):
                at = {"w": i, "o": 0, "s": i // inner * outer + i % inner * along}[way]
                assert array.ravel()[at] == wanted[i]


def test_layouts_of_random_views_give_each_operand_its_element():
    draw, left = random.Random(0), 0
    for _ in range(600):
        shape = tuple(draw.choice([1, 1, 2, 3, 4]) for _ in range(draw.randrange(0, 5)))
        views = []
        for _ in range(draw.randrange(1, 4)):
            own = [extent if draw.random() < 0.7 else 1 for extent in shape]
            own = own[draw.randrange(0, len(own) + 1) if draw.random() < 0.3 else 0 :]
            order = draw.sample(range(len(own)), len(own))
            whole = numpy.arange(4 ** len(own) * 16).reshape([4] * len(own) + [16])
            whole = whole[..., draw.randrange(3)].transpose(order)
            parts = [
                draw.choice([slice(0, n), slice(n - 1, None, -1), slice(4 - n, 4)]) for n in own
            ]
            views.append(whole[tuple(parts)])
        shape = numpy.broadcast_shapes(*(view.shape for view in views))
        steps = [tuple(s // 8 for s in view.strides) for view in views]
        made = layout(shape, [view.shape for view in views], steps)
        if made is None:
            left += 1
            continue
        size = int(numpy.prod(shape))
        assert made.size == made.tail[0] == size
        tail, inner = iter(made.tail[2:]), made.tail[1] if "s" in made.ways else 1
        i = numpy.arange(size)
        for way, view in zip(made.ways, views, strict=True):
            outer, along = (next(tail), next(tail)) if way == "s" else (0, 0)
            at = {"w": i, "o": 0 * i, "s": i // inner * outer + i % inner * along}[way]
            wanted = numpy.broadcast_to(view, shape).ravel()
            first = view.ravel()[0]  # elements are their own places
            numpy.testing.assert_array_equal(at + first, wanted)
    assert 20 < left < 300


def test_several_devices_other_types_and_folds_are_cupys():
    one = values(3, 4).view(Plain)
    kernel = kernel_of(lambda a: cupy.negative(a), made_up(one))
    ends = Ends((one.shape,), (form_of(one.shape, one.dtype),), one.shape)
    assert of_fused(LIKE_CUPY, kernel, [one], ends) is not None
    assert of_fused(LIKE_CUPY, kernel, [one], None) is None
    assert of_fused(LIKE_CUPY, kernel, [one.astype("float64")], ends) is None
    assert of_fused(LIKE_CUPY, kernel, [one, one], ends) is None
    several = types.SimpleNamespace(**vars(LIKE_CUPY) | {"cuda": devices(2)})
    assert of_fused(several, kernel, [one], ends) is None
    other = Ends((one.shape,), (form_of((4,), one.dtype),), one.shape)
    assert of_fused(LIKE_CUPY, kernel, [one], other) is None
    fold = kernel_of(lambda a: cupy.sum(cupy.negative(a)), made_up(one))
    assert of_fused(LIKE_CUPY, fold, [one], ends) is None


def test_kernels_of_one_text_are_compiled_once(monkeypatch):
    monkeypatch.setattr(elementwise, "_kernels", {})
    for rows in (2, 3):
        one = values(rows, 50)
        ran(lambda a: cupy.negative(a), [one], ["float32"], one.shape)
    assert len(elementwise._kernels) == 1


def test_cupy_traces_a_function_once_for_all_shapes():
    traced = []

    class Fused:
        """What `cupy.fuse` gives; its results are of no interest here."""

        def __init__(self, function):
            self.function, self._memo = function, {}

        def __call__(self, *operands):
            stand_ins = [
                made_up(one) if isinstance(one, numpy.ndarray) else one for one in operands
            ]
            traced.append(self.function)
            self._memo[len(operands)] = kernel_of(self.function, *stand_ins), {}

    backend = CuPy(types.SimpleNamespace(**vars(LIKE_CUPY) | {"fuse": lambda kernel_name: Fused}))
    kind = numpy.dtype("float32")
    for rows in (3, 5):
        first, second = values(rows, 40), values(40)
        twice = operation(("multiply", form_of((rows, 40), kind), float))
        less = operation(("subtract", form_of((rows, 40), kind), form_of((40,), kind)))
        members = [Member(3, twice, (0, 1)), Member(4, less, (3, 2))]
        backend.module.multiply, backend.module.subtract = cupy.multiply, cupy.subtract
        (step,) = plan(members, frozenset({4}), [], backend)
        given = plain([first, numpy.float32(2), second])
        if rows == 3:
            assert step.run(*given) is None  # CuPy's own launch
        numpy.testing.assert_array_equal(step.run(*given), first * 2 - second)
    assert len(traced) == 1
    other = [Member(3, twice, (0, 1)), Member(4, less, (3, 2))]
    (step,) = plan(other, frozenset({3, 4}), [], backend)
    step.run(*given)
    assert len(traced) == 2, "another result is another text"


def test_launches_hand_addresses_and_numbers_to_the_driver_and_what_it_refuses_to_cupy():
    """Parameters lie in slots of 8 bytes, in a table of their addresses."""
    seen, asked, failing = [], [], []

    class Failed(Exception):
        pass

    def submit(function, *given):
        *size, shared, stream, table, extra = given
        assert (function, size, shared, extra) == (5, [3, 1, 1, 64, 1, 1], 0, 0)
        if failing:
            raise Failed
        places = (ctypes.c_uint64 * 6).from_address(table)
        seen.append((stream, [ctypes.string_at(place, 8) for place in places]))

    driver = types.SimpleNamespace(launchKernel=submit, CUDADriverError=Failed)
    cuda = types.SimpleNamespace(
        driver=driver, get_current_stream=lambda: types.SimpleNamespace(ptr=9)
    )

    class Raw:
        kernel = types.SimpleNamespace(ptr=5)

        def __call__(self, *given):
            asked.append(given)

    letters = [launching.ADDRESS, *(launching.letter_of(numpy.dtype(k)) for k in "f?l")]
    made = launching.Launch(types.SimpleNamespace(cuda=cuda), Raw(), letters, (7, -1), 3, 64)
    values = [1 << 40, numpy.float32(0.5), numpy.bool_(True), numpy.int64(-3)]
    assert made(values)
    wanted = struct.pack("<Qf4x?7xqqq", 1 << 40, 0.5, True, -3, 7, -1)
    assert seen == [(9, [wanted[at : at + 8] for at in range(0, 48, 8)])]
    failing.append(True)
    assert not made(values)
    made.ask(["array", *values[1:]])
    made._lock.acquire()
    assert not made(values), "another thread has the block"
    made._lock.release()
    failing.clear()
    assert made(values)
    made.ask(["other"])
    assert [given for _, _, given in asked] == [("array", *values[1:], 7, -1), ("other", 7, -1)]
    assert [size for *size, _ in asked] == [[(3,), (64,)]] * 2 and len(seen) == 2
    nameless = launching.Launch(types.SimpleNamespace(cuda=cuda), Raw(), [""], (7, -1), 3, 64)
    assert not nameless([1])
    assert len(seen) == 2


def test_types_that_have_no_name_as_a_parameter_are_not_named():
    for kind, letter in (("?", "?"), ("b", "b"), ("H", "H"), ("i", "i"), ("Q", "Q"), ("e", "e")):
        assert launching.letter_of(numpy.dtype(kind)) == letter
        assert struct.calcsize(f"<{letter}") == numpy.dtype(kind).itemsize
    assert launching.letter_of(numpy.dtype("longdouble")) == ""
    assert launching.letter_of(numpy.dtype("complex64")) == ""
