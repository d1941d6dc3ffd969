"""What CuPy's fusion makes of recorded operations, traced without a GPU: the types are NumPy's.

The arrays have made-up addresses, which nothing reads: CuPy makes its kernels from types alone.
"""

from __future__ import annotations

import itertools
import types

import numpy
import pytest

import polygen.adapters.numpy as np
from polygen.adapters.numpy import forcing, structures
from polygen.adapters.numpy.backends import NUMPY, CuPy, active, steps_of
from polygen.adapters.numpy.calling import read_as
from polygen.adapters.numpy.namespace import Holder
from polygen.adapters.numpy.operations import FOLDS, POINTWISE, apply, form_of, operation
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.steps import Member

cupy = pytest.importorskip("cupy")
fusion = pytest.importorskip("cupy._core.fusion")
local = pytest.importorskip("cupy._core._fusion_thread_local").thread_local
TYPES = [numpy.dtype(kind) for kind in "?bBhiqefd"]
SHAPE = (3, 4)


def made_up(shape, dtype):
    memory = cupy.cuda.UnownedMemory(256, 1 << 20, None, 0)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def traced(function, *args, seen=None):
    """The kernel that `cupy.fuse` makes of a function; it falls back where this raises."""
    history = fusion._FusionHistory()
    local.history, local.is_old_fusing = history, True
    try:
        kernel, options = history.get_fusion(function, args, "sample")
    finally:
        local.history, local.is_old_fusing = None, False
    if seen is not None:
        seen.append(kernel)
    return [parameter.dtype for parameter in kernel.out_params], options


@pytest.mark.parametrize("name", sorted({*POINTWISE, "where", "astype"}))
def test_pointwise_functions_fuse_with_numpys_types(name):
    count = {"where": 3, "astype": 1}.get(name) or getattr(numpy, name).nin
    seen = 0
    for kinds in itertools.product(TYPES, repeat=min(count, 2)):
        forms = [(SHAPE, kind) for kind in kinds]
        if name == "where":
            forms.insert(0, (SHAPE, numpy.dtype(bool)))
        more = (numpy.dtype("float32"),) if name == "astype" else ()
        one = operation((name, *forms, *more))
        if one is None:
            continue
        seen += 1
        found, _ = traced(lambda *args: apply(cupy, one, list(args)),  # noqa: B023
                          *(made_up(*form) for form in forms))  # fmt: skip
        assert found == [one.dtype], f"{name} of {kinds}"
        if count == 2:  # and with a number in the place of the second
            for number in (2, 2.0):
                mixed = operation((name, forms[0], type(number)))
                if mixed is not None:
                    kernels = []
                    found, _ = traced(lambda *args: apply(cupy, mixed, list(args)),  # noqa: B023
                                      made_up(*forms[0]), read_as(number, mixed.types[1]),
                                      seen=kernels)  # fmt: skip
                    assert found == [mixed.dtype], f"{name} of {kinds[0]} and {number}"
                    given = [parameter.dtype for parameter in kernels[0].in_params]
                    assert given == [kinds[0], mixed.loop[1]]
                    if numpy.float16 not in (kinds[0], *mixed.loop, mixed.dtype):
                        assert "float16" not in kernels[0].operation, "nothing is rounded to it"
    assert seen


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_numbers_of_python_keep_the_type_in_which_they_are_read(kind):
    """CuPy's fusion takes one for the narrowest type there is: 0.9 and 1e-9 for half precision."""
    backend, functions, ran = CuPy(cupy), [], []
    backend.fuse = lambda function, ends=None: (
        functions.append(function) or (lambda *args: ran.append(args))
    )
    form = (SHAPE, numpy.dtype(kind))
    ops = [operation(("multiply", form, float)), operation(("greater", form, float)),
           operation(("where", (SHAPE, numpy.dtype(bool)), form, float))]  # fmt: skip
    members = [Member(4, ops[0], (0, 1)), Member(5, ops[1], (4, 2)), Member(6, ops[2], (5, 4, 3))]
    plan(members, frozenset({6}), [], backend)
    seen, one = [], numpy.dtype(kind).type
    assert all(read_as(number, one) == one(number) for number in (0.9, 1e-9, 1e9))
    numbers = [read_as(number, one) for number in (0.9, 1e-9, 1e9)]
    found, _ = traced(functions[0], made_up(*form), *numbers, seen=seen)
    assert found == [kind] and "float16" not in seen[0].operation
    assert [parameter.dtype for parameter in seen[0].in_params] == [kind] * 4


@pytest.mark.parametrize("name", sorted(FOLDS))
@pytest.mark.parametrize("axis", [None, 1, (0, 1)])
def test_folds_of_chains_fuse_with_numpys_types(name, axis):
    backend, functions = CuPy(cupy), []
    backend._multiprocessors, backend._is_one = (lambda: 0), (lambda: False)
    backend.fuse = lambda function, ends=None: functions.append(function) or function
    for kind in TYPES:
        square = operation(("multiply", (SHAPE, kind), (SHAPE, kind)))
        one = operation((name, square and (SHAPE, square.dtype), axis, True))
        if square is None or one is None:
            continue
        members = [Member(1, square, (0, 0)), Member(2, one, (1,))]
        steps = plan(members, frozenset({2}), [], backend)
        if name not in CuPy._FUSED or (name == "mean" and kind.char not in "fd"):
            assert len(steps) == 2
            continue
        assert len(steps) == 1
        given = [made_up(SHAPE, kind)] * (1 if axis == 1 else 2)  # short ones to one number
        found, options = traced(functions[-1], *given)
        assert found == [one.dtype], f"{name} of {kind}"
        assert options == ({} if axis is None else {"axis": axis})
    assert len(functions) >= 2 or name not in CuPy._FUSED


@pytest.mark.parametrize("results", [0, 1])
def test_what_is_written_to_memory_is_written_by_the_kernel(results):
    backend, functions = CuPy(cupy), []
    backend.fuse = lambda function, ends=None: functions.append(function) or function
    single, double = numpy.dtype("float32"), numpy.dtype("float64")
    product = operation(("multiply", (SHAPE, single), (SHAPE, double)))
    store = operation(("store", (SHAPE, single), (SHAPE, double)))
    members = [Member(2, product, (0, 1)), Member(3, store, (0, 2))]
    (step,) = plan(members, frozenset({2, 3} if results else {3}), [], backend)
    assert step.writes == ((2,) if results else ())
    given = {0: made_up(SHAPE, single), 1: made_up(SHAPE, double)}
    history = []
    found, _ = traced(functions[0], *(given[slot] for slot in step.reads), seen=history)
    assert found == [double] * results
    written = [parameter.is_const for parameter in history[0].in_params]
    assert written == [slot != 0 for slot in step.reads], "the kernel may write to the first alone"


def test_short_folds_of_one_array_are_one_launch():
    """CuPy hands functions of one array to CUB, which reduces to one number in two launches."""
    backend, functions = CuPy(cupy), []
    backend._multiprocessors, backend._is_one = (lambda: 0), (lambda: False)
    backend.fuse = lambda function, ends=None: functions.append(function) or (lambda *args: args)
    for length, count in ((8192, 2), (8193, 1)):
        form = ((length,), numpy.dtype(float))
        ops = [operation(("square", form)), operation(("sum", form, None, False))]
        members = [Member(1, ops[0], (0,)), Member(2, ops[1], (1,))]
        (step,) = plan(members, frozenset({2}), [], backend)
        assert step.reads == (0,)
        seen = []
        found, _ = traced(functions[-1], *[made_up(*form)] * count, seen=seen)
        assert found == [float] and len(seen[0].in_params) == count


def test_every_recorded_function_is_there():
    for name in POINTWISE:
        assert type(getattr(cupy, name)).__name__ == "ufunc"
    for name in (*FOLDS, "where", "matmul"):
        assert callable(getattr(cupy, name))


# --- the backend's own code, on NumPy's arrays in the place of CuPy's
@pytest.fixture
def like_cupy():
    """CuPy's backend with a module that is NumPy, but for fusing, which counts."""
    module = types.SimpleNamespace(**vars(numpy))
    module.asnumpy, module.refused, module.fused = numpy.array, False, []

    def fuse(kernel_name):
        def decorate(function):
            def run(*args):
                if module.refused:
                    raise TypeError("this cannot be fused")
                module.fused.append(kernel_name)
                return function(*args)

            return run

        return decorate

    module.fuse = fuse
    backend = CuPy(module)
    backend.times = False
    backend._multiprocessors = lambda: module.multiprocessors
    backend._is_one = lambda: False  # CuPy's own folds
    module.multiprocessors = 0
    backend.address, backend.memory = NUMPY.address, NUMPY.memory
    backend.is_sole = NUMPY.is_sole
    backend._is_short = lambda fold: False  # what fuses here is no kernel of CuPy's
    with np.polygen_options(backend=backend):
        yield module


@pytest.mark.parametrize("refused", [False, True])
def test_fused_folds_keep_axes_and_means_are_sums(like_cupy, refused):
    like_cupy.refused = refused
    plain = numpy.arange(12.0).reshape(3, 4)
    a = np.asarray(plain)
    mean = (a * 2).mean(axis=0, keepdims=True)
    assert mean.shape == (1, 4)
    numpy.testing.assert_allclose(mean.get(), (plain * 2).mean(axis=0, keepdims=True))
    total = (a * 2).sum()
    assert float(total) == plain.sum() * 2
    assert len(like_cupy.fused) == (0 if refused else 2)
    assert float((a[1:] - 1).max()) == 10


def test_folds_that_leave_the_gpu_idle_are_not_fused(like_cupy):
    like_cupy.multiprocessors = 20
    plain = numpy.arange(12000.0).reshape(3000, 4)
    a = np.asarray(plain)
    for axis, length in ((None, 0), (0, 0), (1, 1)):  # 1, 4 and 3000 results
        like_cupy.fused.clear()
        found, wanted = (a * 2 + 1).sum(axis=axis), (plain * 2 + 1).sum(axis=axis)
        numpy.testing.assert_allclose(found.get(), wanted)
        assert like_cupy.fused == ["polygen_numpy"]
        folded = len(structures._plans.values()[-1].steps)
        assert folded == 2 - length, "the fold is in the kernel, or a step of its own"


@pytest.mark.parametrize("name", ["sum", "mean", "std", "var"])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("usual", [False, True])
def test_sums_over_rows_of_few_columns_are_products(like_cupy, name, keepdims, usual):
    """Those of float32 where cuBLAS multiplies them as they are."""
    like_cupy.multiprocessors, calls = 100, []
    backend = active()
    backend.product = lambda *args: calls.append(args) or CuPy.product(backend, *args)
    backend._products.is_usual = lambda kind: usual
    plain = numpy.arange(40000.0).reshape(10000, 4) % 7
    for kind in (numpy.float64, numpy.float32, numpy.int64):
        one = plain.astype(kind)
        found = getattr(np.asarray(one), name)(axis=0, keepdims=keepdims)
        wanted = getattr(one, name)(axis=0, keepdims=keepdims)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        numpy.testing.assert_allclose(found.get(), wanted, rtol=1e-6)
    kinds = [numpy.float64, numpy.float32] if usual else [numpy.float64]
    times = 2 if name in ("std", "var") else 1
    assert [one.dtype for one, *_ in calls] == [kind for kind in kinds for _ in range(times)]
    assert all(form == form_of(one.shape, one.dtype) for one, _, form, _ in calls)
    assert all(form == form_of(two.shape, two.dtype) for _, two, _, form in calls)


@pytest.mark.parametrize(
    ("rows", "columns", "parts"), [(1 << 17, 32, 64), (270000, 16, 16), (270002, 16, 0), (99, 4, 0)]
)
def test_large_sums_over_many_rows_of_single_precision_are_sums_of_parts(rows, columns, parts):
    """Products of float32 may be of fewer bits, and their partial sums are long."""
    backend = CuPy(cupy)
    backend._multiprocessors = lambda: 100
    one = operation(("sum", ((rows, columns), numpy.dtype("float32")), 0, False))
    run = backend.alone(one)
    assert (run is None) == (parts == 0)
    if run is None:
        return
    shapes = []

    class Watched(numpy.ndarray):
        def sum(self, axis):
            shapes.append(self.shape)
            return super().sum(axis=axis)

    tiny = numpy.full((rows, columns), 2.0**-40, numpy.float32)
    assert (run(tiny.view(Watched)) == rows * 2.0**-40).all()
    assert shapes == [(parts, rows // parts, columns), (parts, columns)]


def test_vectors_down_the_rows_do_not_lead_kernels_astray():
    backend = CuPy(cupy)
    backend._multiprocessors = lambda: 100
    one = operation(("sum", ((9000, 4096), numpy.dtype(float)), 1, False))
    assert backend.folds(one, [(9000, 4096), (4096,)])
    assert backend.folds(one, [(9000, 1), (4096,)]), "nothing large is read"
    assert not backend.folds(one, [(9000, 4096), (9000, 1)])
    few = operation(("sum", ((900, 4096), numpy.dtype(float)), 0, False))
    assert backend.folds(few, [(900, 4096)]) and backend.alone(few) is None
    none = operation(("sum", ((900, 3168), numpy.dtype(float)), 0, False))
    assert not backend.folds(none, [(900, 3168)]) and backend.alone(none)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_products_of_vectors_are_sums_of_products(like_cupy, kind):
    plain = numpy.arange(9).astype(kind)
    a = np.asarray(plain)
    found = a @ a
    assert (getattr(found, "node", None) is not None) == (kind != "int64"), "NumPy gives a scalar"
    assert found.shape == () and found.dtype == kind and float(found) == plain @ plain
    assert float((a @ a - 1) * a[1]) == plain @ plain - 1
    assert like_cupy.fused == (["polygen_numpy"] * 3 if kind != "int64" else [])
    with pytest.raises(ValueError, match="mismatch"):
        a @ a[1:]


def test_comparisons_that_are_asked_for_are_made_by_the_host():
    ran = []
    with np.polygen_options(backend=NUMPY):
        x = np.asarray(numpy.arange(4.0))
        for number, wanted in ((2.9, False), (3, True), (numpy.float32(3), True)):
            least = x.max() <= number
            before = forcing.counts.steps
            assert bool(least) is wanted
            ran.append(forcing.counts.steps - before)
            assert numpy.asarray(np.where(least, x, -x))[1] == (1 if wanted else -1)
            assert (number >= x.max()).item() is wanted
        assert not ((np.asarray(numpy.nan) * 1.0).sum() == numpy.nan).item()
    assert ran == [1, 1, 1], "the largest element alone is computed there"


def test_what_the_backend_lacks_runs_on_the_host(like_cupy):
    del like_cupy.trim_zeros
    found = np.trim_zeros(np.asarray([0, 1, 0]) + 0)
    assert isinstance(found, np.ndarray) and found.get().tolist() == [1]


def test_distributions_that_the_backend_lacks_are_drawn_on_the_host(like_cupy):
    class Few:
        integers = staticmethod(lambda high: numpy.asarray(high - 1))

    generator = Holder(Few())
    first, second = generator.normal(2.0, size=3), generator.normal(2.0, size=3)
    wanted = numpy.random.default_rng((1 << 31) - 1)
    numpy.testing.assert_array_equal(first.get(), wanted.normal(2.0, size=3))
    numpy.testing.assert_array_equal(second.get(), wanted.normal(2.0, size=3))
    with pytest.raises(AttributeError, match="'Few' object has no attribute 'shuffle'"):
        generator.shuffle(first)


def test_odd_strides_are_copied_for_kernels(like_cupy):
    from polygen.adapters.numpy.backends import active

    plain = numpy.zeros((4, 6), numpy.float16)
    views = {"T": plain.T, "part": plain[:, 1:5], "steps": plain[:, ::2], "back": plain[::-1]}
    for name, view in views.items():
        assert (active()._plain(view) is view) == (name in ("T", "part"))
        assert steps_of(view) == [stride // 2 for stride in view.strides]


@pytest.mark.parametrize("capturing", [False, True])
def test_what_is_timed_begins_and_ends_with_an_idle_stream_that_nothing_captures(capturing):
    happened = []
    stream = types.SimpleNamespace(
        is_capturing=lambda: capturing, synchronize=lambda: happened.append("wait")
    )
    cuda = types.SimpleNamespace(get_current_stream=lambda: stream)
    backend = CuPy(types.SimpleNamespace(cuda=cuda))
    assert backend.waits() is not capturing
    spent = backend.timed(lambda: happened.append("run"))
    assert 0 <= spent.host <= spent.whole
    assert happened == ["wait", "run", "wait"]


def test_the_kernel_that_was_fused_first_is_called_itself():
    backend, calls = CuPy(cupy), []

    class Fused:
        new_fusion = None

        def __init__(self):
            self._memo = {}

        def __call__(self, *args):
            calls.append("found")
            self._memo["key"] = (lambda *args, **options: calls.append(options), {"axis": 1})

    backend.module = types.SimpleNamespace(fuse=lambda kernel_name: lambda function: Fused())
    run = backend.fuse(lambda x: x)
    run(1)
    run(1)
    run(1)
    assert calls == ["found", {"axis": 1}, {"axis": 1}]


def test_cupy_keeps_its_fused_kernels_where_they_are_looked_for():
    fused = cupy.fuse()(lambda x: x + 1)
    assert fused._memo == {} and fused.new_fusion is None


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_what_is_updated_in_place_often_is_written_by_a_kernel(like_cupy, kind):
    plain = numpy.arange(24, dtype=kind).reshape(4, 6) + 1
    a, calls = np.array(plain), []
    like_cupy.divide = lambda *given, **options: (
        calls.append("out" in options) or numpy.divide(*given, **options)
    )
    memory = a.node.value
    for _ in range(20):
        for one in (a, plain):
            one[:, 2] /= one[1, 1:2]
            one[:, 3] /= 2
            one[1] /= 1.5
    numpy.testing.assert_array_equal(a.get(), plain)
    assert a.node.value is memory
    first, last = calls[:24], calls[-12:]
    assert all(first) and not any(last), "functions of CuPy's, and then kernels"
