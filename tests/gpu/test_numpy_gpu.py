"""NumPy programs on the GPU, through CuPy and polygen's kernels."""

from __future__ import annotations

import numpy
import pytest

pytestmark = pytest.mark.gpu

cupy = pytest.importorskip("cupy")
np = pytest.importorskip("polygen.adapters.numpy")


@pytest.fixture(autouse=True)
def _counted():
    from polygen.adapters.numpy.backends import CuPy, active

    assert isinstance(active(), CuPy)


@pytest.fixture
def fused(monkeypatch):
    """How often a function that was to be one kernel ran as such, and how often it did not."""
    from polygen.adapters.numpy import structures
    from polygen.adapters.numpy.backends import active
    from polygen.runtime.recent import Recent

    found = []
    original = type(active()).fuse
    monkeypatch.setattr(type(active()), "times", False)  # what is planned runs
    monkeypatch.setattr(type(active()), "_is_one", lambda self: False)  # CuPy's own folds
    monkeypatch.setattr(structures, "_plans", Recent(4096))
    monkeypatch.setattr(active(), "_fused", Recent(4096))

    def fuse(self, function, ends=None):
        calls = [0]

        def counted(*args):
            calls[0] += 1
            return function(*args)

        run = original(self, counted, ends)

        def watched(*args):
            before = calls[0]
            result = run(*args)
            found.append(calls[0] - before)  # CuPy traces once: a second call ran it as it is
            return result

        return watched

    monkeypatch.setattr(type(active()), "fuse", fuse)
    return found


def integers(*shape, dtype=numpy.float64, seed=0):
    return numpy.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean"])
@pytest.mark.parametrize(("axis", "keepdims"), [(None, False), (0, True), (1, False)])
def test_folds_of_chains_are_one_kernel(fused, kind, name, axis, keepdims):
    a, b = integers(7, 33, dtype=kind), integers(33, dtype=kind, seed=1)
    if name == "prod":
        a, b = numpy.sign(a), numpy.sign(b)

    def run(module, x, y, number):
        return getattr(module.maximum(x * number - y, y), name)(axis=axis, keepdims=keepdims)

    for number in (1, 2) if name != "prod" else (1, 1):  # the second without a trace
        found, wanted = run(np, np.asarray(a), np.asarray(b), number), run(numpy, a, b, number)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        numpy.testing.assert_allclose(found.get(), wanted, rtol=1e-3 if kind == "float16" else 1e-6)
    assert fused[-1] == 0, "CuPy's kernel runs, and not the function"


def test_chains_with_two_results_are_one_kernel(fused):
    a = integers(5, 40)
    for _ in range(2):
        x = np.asarray(a)
        y = np.exp(x) + 1
        z = y * 2 - x
        numpy.testing.assert_allclose(z.get(), (numpy.exp(a) + 1) * 2 - a)
        assert y.node.value is not None
    assert fused == [1, 0]


def test_folds_of_one_array_and_of_long_rows_are_numpys():
    a = integers(3000, 700)
    x = np.asarray(a)
    for axis in (None, 0, 1):
        numpy.testing.assert_allclose((x * x).sum(axis=axis).get(), (a * a).sum(axis=axis))
        numpy.testing.assert_allclose((x + 1).max(axis=axis).get(), (a + 1).max(axis=axis))
    row = ((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    numpy.testing.assert_allclose(
        row.get(), ((a - a.mean(axis=1, keepdims=True)) ** 2).sum(axis=1), rtol=1e-10
    )


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_sums_over_many_rows_are_numpys(kind):
    a = integers(100_003, 8, dtype=kind)
    x = np.asarray(a)
    for name in ("sum", "mean", "std", "var"):
        found, wanted = getattr(x * 2, name)(axis=0), getattr(a * 2, name)(axis=0)
        assert found.dtype == wanted.dtype
        numpy.testing.assert_allclose(found.get(), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["float32", "int64"])
def test_writes_of_what_is_pending_go_straight_to_memory(fused, kind):
    plain, b = integers(40, 30, dtype=kind), integers(29, dtype=kind, seed=1)
    x, y = np.array(plain), np.asarray(b)
    memory = x.node.value.data.ptr
    for _ in range(2):
        for one, vector in ((x, y), (plain, b)):
            one[:, 1:] -= one[:, :1] * vector
            one[3, :29] = vector * 2 + one[4, :29]
            one[...] = one + 1
            one.T[1:] += one.T[:-1] * 2
    numpy.testing.assert_array_equal(x.get(), plain)
    assert x.node.value.data.ptr == memory and fused[-1] == 0


def test_views_and_writes_are_numpys():
    plain = integers(6, 5)
    a, b = np.array(plain), plain.copy()
    for one in (a, b):
        row = one[1]
        one[:, 2] -= one[:, 1]
        row *= 3
        one[2:] += one[:-2]
        one += one.sum(axis=0)
        one[one > 20] = 0
        one[[0, 1]] = one[[1, 0]]
    numpy.testing.assert_array_equal(a.get(), b)
    first, before = a[0, 0], float(b[0, 0])
    a[0, 0] = 99
    assert float(first) == before
    assert f"{a[0, 0]:.1f}" == "99.0" and repr(np.ones(2)) == "array([1., 1.])"


def test_numpys_arrays_meet_lazy_ones():
    plain = integers(4)
    total = plain + np.asarray(plain) * 2
    assert isinstance(total, np.ndarray)
    numpy.testing.assert_array_equal(numpy.asarray(total), plain * 3)
    assert isinstance(total.value(), cupy.ndarray)
    assert isinstance(np.trim_zeros(np.asarray([0.0, 1.0])), np.ndarray)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_groups_are_kernels_of_polygen(kind):
    a, u, c = (integers(*shape, dtype=kind) for shape in ((96, 64), (64, 128), (128,)))
    x, w, b = map(np.asarray, (a, u, c))
    with np.polygen_options(take="legal", tf32=True):
        for first, second in ((x, w), (x, np.asfortranarray(w)), (x[::2], w)):
            found = np.maximum(first @ second + b, 0)
            wanted = numpy.maximum(first.get() @ u + c, 0)
            numpy.testing.assert_array_equal(found.get(), wanted)
    assert np.polygen_report().groups[-1].taken


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_products_of_parts_are_numpys_where_they_are(kind):
    a, b, c = integers(33, 64, dtype=kind), integers(64, 40, dtype=kind), integers(64, dtype=kind)
    pairs = [(a, b), (b.T, a.T), (c, b), (a, c), (a[:, 3], a[:, 4:]), (a[::2, 5:25], b[5:25]),
             (a, b[:, 7]), (a[:, :1], b[:1]), (a[::2, ::2], b[:32]), (b[:, 1].T, b)]  # fmt: skip
    x, y, z = (np.array(one) for one in (a, b, c))
    for _ in range(3):
        lazy = [(x, y), (y.T, x.T), (z, y), (x, z), (x[:, 3], x[:, 4:]), (x[::2, 5:25], y[5:25]),
                (x, y[:, 7]), (x[:, :1], y[:1]), (x[::2, ::2], y[:32]), (y[:, 1].T, y)]  # fmt: skip
        for (one, other), (first, second) in zip(lazy, pairs, strict=True):
            found, wanted = one @ other, first @ second
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            numpy.testing.assert_array_equal(found.get(), wanted)


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_updates_of_parts_are_numpys_however_they_run(kind):
    plain, other = integers(40, 30, dtype=kind), integers(40, dtype=kind, seed=1)
    with np.polygen_options(backend=type(backend_of())(cupy)):
        x, y = np.array(plain), np.array(other)
        for _ in range(40):
            for one, vector in ((x, y), (plain, other)):
                one[:, 3] += vector
                one[:, 4] -= one[:, 2]
                one[:, 3] -= vector
                one[1:, 5] *= -1
                one[2, 6:] = vector[6:30]
            numpy.testing.assert_array_equal(
                np.maximum(x[:, 2:9].T, y).get(), numpy.maximum(plain[:, 2:9].T, other)
            )
        numpy.testing.assert_array_equal(x.get(), plain)
        with pytest.raises(TypeError, match="cast"):
            np.array([1, 2])[:1] /= 2


def backend_of():
    from polygen.adapters.numpy.backends import active

    return active()


def test_groups_are_taken_where_they_are_predicted_to_win():
    x, w = (np.asarray(integers(2048, 2048, dtype=numpy.float16, seed=s)) for s in (0, 1))
    found = np.tanh((x @ w) * 0.001)
    wanted = cupy.tanh((x.value() @ w.value()) * 0.001)
    cupy.testing.assert_allclose(found.value(), wanted, atol=2e-3)
    assert np.polygen_report().groups


# --- what a kernel computes with, and which way it runs
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_numbers_of_python_are_not_rounded_to_half_precision(fused, kind):
    a = numpy.linspace(0.5, 2, 1000, dtype=kind)
    for _ in range(2):
        x = np.asarray(a)
        found = np.where(x > 1.0001, 0.9 * x + 1e-9, 1e6 - x) * 3e-7
        wanted = numpy.where(a > 1.0001, 0.9 * a + 1e-9, 1e6 - a) * 3e-7
        assert found.dtype == kind
        numpy.testing.assert_allclose(
            found.get(), wanted, rtol=1e-6 if kind == "float32" else 1e-15
        )
        one = np.where(x > 1, 1.0, 0.1) * 1.0
        numpy.testing.assert_allclose(one.get(), numpy.where(a > 1, 1.0, 0.1), rtol=1e-15)
    assert fused[-1] == 0


@pytest.mark.parametrize("size", [1e-7, 1.0])
@pytest.mark.parametrize("columns", [16, 1024])
def test_sums_over_rows_keep_single_precision(columns, size):
    a = (numpy.random.default_rng(0).standard_normal((8192, columns)) * size).astype(numpy.float32)
    found, wanted = np.asarray(a).sum(axis=0), a.astype(float).sum(axis=0)
    assert found.dtype == numpy.float32
    bound = 8192 * numpy.finfo(numpy.float32).eps * numpy.abs(a).astype(float).sum(axis=0)
    assert (numpy.abs(found.get() - wanted) <= bound / 64).all()


@pytest.mark.parametrize("kind", ["float32", "float64", "int32"])
def test_whichever_way_is_timed_results_are_the_same(kind):
    from polygen.adapters.numpy import structures

    a, b = integers(40, 33, dtype=kind), integers(33, dtype=kind, seed=1)
    memory, plain = np.asarray(a).copy(), a.copy()
    for step in range(24):
        x, y = np.asarray(a), np.asarray(b)
        total = ((x * y - step) * (x * y - step)).sum(axis=1)
        numpy.testing.assert_array_equal(total.get(), ((a * b - step) ** 2).sum(axis=1))
        memory[1:] -= y * 2 + memory[:1]
        plain[1:] -= b * 2 + plain[:1]
        numpy.testing.assert_array_equal(memory.get(), plain)
        assert float(x[0] @ y) == float(a[0] @ b)
        assert bool(y.max() > 100) is False
    assert any(trial.winner for trial in structures._trials.values())


def test_nothing_is_timed_in_a_capture():
    x = np.asarray(integers(50))
    y = np.asarray(numpy.zeros(50))
    for _ in range(3):
        y[...] = x * 3 + 1
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y[...] = x * 3 + 1
        stream.synchronize()
        stream.begin_capture()
        y[...] = x * 3 + 1
        graph = stream.end_capture()
    y[...] = 0
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    numpy.testing.assert_array_equal(y.get(), integers(50) * 3 + 1)


WIDE = integers(60, 40)
LAYOUTS = {
    "whole": (integers(5, 30), integers(5, 30, seed=1)),
    "a row": (integers(5, 30), integers(30)),
    "a column": (integers(5, 30), integers(5, 1)),
    "one element": (integers(5, 30), integers(1, 1)),
    "columns of a matrix": (WIDE[:, 3:20], WIDE[:, 1:18]),
    "one column": (WIDE[:, 3], WIDE[:, 4]),
    "backwards": (WIDE[::-1, 3:9], WIDE[:, 30:24:-1]),
    "transposed": (integers(30, 5).T, integers(5, 30)),
    "three axes": (integers(8, 6, 10)[:, ::2, ::5], integers(8, 3, 2)),
    "no axes": (integers(), integers(seed=1)),
    "large": (integers(3000, 1000), integers(1000)),
}


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int32", "uint8"])
@pytest.mark.parametrize("case", LAYOUTS)
def test_kernels_read_operands_of_any_layout(case, kind, monkeypatch):
    """The first run of a plan launches CuPy's kernel; what follows is launched without CuPy."""
    from polygen.adapters.numpy import elementwise

    monkeypatch.setattr(type(np_backend()), "times", False)
    launched, original = [], elementwise.Elementwise.__call__

    def watched(self, *operands):
        launched.append(case)
        return original(self, *operands)

    monkeypatch.setattr(elementwise.Elementwise, "__call__", watched)
    first, second = (numpy.asarray(one).astype(kind) for one in LAYOUTS[case])
    a, b = map(laid_out, (first, second), LAYOUTS[case])
    three = numpy.dtype(kind).type(3)
    for _ in range(3):
        found = a * 3 + b
        larger = found > b
        numpy.testing.assert_array_equal(numpy.asarray(found), first * three + second)
        numpy.testing.assert_array_equal(numpy.asarray(larger), first * three + second > second)
    assert launched


def laid_out(values, like):
    """A lazy array of the elements, which lie as those of another array do."""
    cupys = cupy.empty(4 * max(1, values.size) + 4096, values.dtype)
    steps = tuple(step // like.itemsize * values.itemsize for step in like.strides)
    pairs = zip(steps, like.shape, strict=True)
    low = sum(min(0, step * (extent - 1)) for step, extent in pairs)
    there = cupy.ndarray(values.shape, values.dtype, cupys.data - low, steps)
    there[...] = cupy.asarray(values)
    return np.asarray(there)


def np_backend():
    from polygen.adapters.numpy.backends import active

    return active()


def test_views_are_written_by_kernels_where_they_are():
    plain = integers(60, 40)
    lazy = np.asarray(plain.copy())
    row = integers(1, 38)
    for step in range(4):
        for here, matrix in ((numpy, plain), (np, lazy)):
            column = matrix[:, step, None] * 2
            matrix[:, 2:] -= column * here.asarray(row)
            matrix[:, step] /= 4.0
            matrix[3, 3] = here.sqrt(here.abs(matrix[2, 2] + 1.0))
    numpy.testing.assert_allclose(lazy.get(), plain, rtol=1e-14)


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("count", [1, 33, 5000, 20_000, 40_000])
def test_folds_to_a_number_are_numpys(count, name, kind):
    whole = integers(count, 3, dtype=kind)
    lazy = np.asarray(whole)
    for _ in range(3):
        for plain, mine in ((whole, lazy), (whole[:, 1], lazy[:, 1]), (whole[::-1], lazy[::-1])):
            found = getattr(mine * mine - 1, name)()
            wanted = getattr(plain * plain - 1, name)()
            numpy.testing.assert_allclose(numpy.asarray(found), wanted, 1e-6)
            found = getattr(mine, name)(keepdims=True)
            numpy.testing.assert_allclose(found.get(), getattr(plain, name)(keepdims=True), 1e-6)
    whole[0, 0] = numpy.nan
    assert numpy.isnan(float(getattr(np.asarray(whole) * 2, name)()))


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_folds_to_a_number_and_what_is_around_them_are_one_kernel(kind, monkeypatch):
    from polygen.adapters.numpy import structures, totals

    monkeypatch.setattr(type(np_backend()), "times", False)
    ran, original = [], totals.Folding.__call__
    monkeypatch.setattr(
        totals.Folding, "__call__", lambda self, *given: ran.append(1) or original(self, *given)
    )
    whole = integers(20_000, 6, dtype=kind)
    lazy, places = np.asarray(whole), np.zeros((3, 6), dtype=kind)
    for step in range(6):
        before = structures.counts.steps
        places[1, step] = np.sqrt((lazy[:, step] ** 2).sum()) + 1
        assert structures.counts.steps == before + 1
    numpy.testing.assert_allclose(places.get()[1], numpy.sqrt((whole**2).sum(axis=0)) + 1, 1e-6)
    assert not places.get()[[0, 2]].any() and len(ran) >= 5
