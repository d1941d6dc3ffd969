"""What recorded graphs become: kernels, library calls, groups around products; and when again."""

from __future__ import annotations

import numpy
import pytest

import polygen.adapters.numpy as np
from polygen.adapters.kernels import stored
from polygen.adapters.numpy import alone, calling, forcing, structures
from polygen.adapters.numpy.backends import NUMPY, Backend
from polygen.adapters.numpy.memory import are_apart
from polygen.hardware.device import device
from polygen.kernel import Kernel
from polygen.pipeline import with_sizes
from polygen.runtime.arrays import storage_order


class Watched(Backend):
    """NumPy, and what was fused: the names of the operations of each step that was planned."""

    def __init__(self):
        self.launched = []

    def launch(self, program, sizes, arrays):
        self.launched.append(program)
        return super().launch(program, sizes, arrays)


@pytest.fixture
def watched(monkeypatch):
    """A backend, and the steps of every graph that is planned on it, as text."""
    steps, made = [], structures.plan

    def plan(*args):
        found = made(*args)
        steps.append([str(step) for step in found])
        return found

    monkeypatch.setattr(structures, "plan", plan)
    backend = Watched()
    backend.steps = steps
    with np.polygen_options(backend=backend):
        yield backend


def arrays(*shapes, dtype=float):
    rng = numpy.random.default_rng(0)
    plain = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    return plain, [np.asarray(one) for one in plain]


def same(found, wanted):
    numpy.testing.assert_array_equal(numpy.asarray(found), wanted)
    assert found.dtype == wanted.dtype


# --- pointwise work and folds
def test_a_chain_is_one_kernel(watched):
    (a, b), (x, y) = arrays((4, 5), (5,))
    same(np.tanh(x * 2 + y) - 1, numpy.tanh(a * 2 + b) - 1)
    assert watched.steps == [["multiply + add + tanh + subtract"]]


def test_a_fold_takes_what_it_folds(watched):
    (a, b), (x, y) = arrays((4, 5), (5,))
    same(((x - y) ** 2).sum(axis=1), ((a - b) ** 2).sum(axis=1))
    assert watched.steps == [["subtract + square + sum"]]


def test_what_is_held_is_stored_and_not_computed_again(watched):
    (a,), (x,) = arrays((4, 5))
    e = np.exp(x)
    p = e / e.sum(axis=1, keepdims=True)
    same(p, numpy.exp(a) / numpy.exp(a).sum(axis=1, keepdims=True))
    assert watched.steps == [["exp", "sum", "divide"]]
    assert e.node.value is not None, "somebody holds it: it was stored on the way"
    y = x * 3
    z = (y + 1) * 2
    str(z)
    str(y)
    assert watched.steps[1:] == [["multiply + add + multiply"]], "with two results"


def test_smaller_arrays_are_computed_before_what_they_are_stretched_to(watched):
    (a, b), (x, y) = arrays((4, 5), (5,))
    same(x * np.exp(y * 2), a * numpy.exp(b * 2))
    assert watched.steps == [["multiply + exp", "multiply"]]


def test_single_numbers_are_computed_before_arrays_without_elements(watched):
    (a, b), (x, y) = arrays((1, 1), (0,))
    one, single = numpy.exp(a), np.exp(x)
    found = y * single
    same(found, b * one)
    same(single, one)
    assert found.get().dtype == numpy.float64
    assert watched.steps[0] == ["exp", "multiply"]


def test_single_numbers_are_computed_where_they_are_read(watched):
    (a,), (x,) = arrays((4, 5))
    same(x / np.sqrt((x * x).sum()), a / numpy.sqrt((a * a).sum()))
    assert watched.steps == [["multiply + sum", "sqrt + divide"]]


def test_what_only_a_later_kernel_reads_is_computed_in_it(watched):
    (a, b, c), (x, y, s) = arrays((4, 5), (5,), (5,))
    s = s.copy()
    s *= 0.5
    s -= x.sum(axis=0) + 2 * y
    same(s, c * 0.5 - (a.sum(axis=0) + 2 * b))
    assert watched.steps == [["sum", "multiply + multiply + add + subtract"]]
    t = y * 3
    u = t + x.sum(axis=0)
    same(u * t, (b * 3 + a.sum(axis=0)) * (b * 3))
    assert watched.steps[1:] == [["multiply", "sum", "add + multiply"]], "somebody holds t"


def test_folds_of_one_value_share_it(watched):
    (a,), (x,) = arrays((4, 5))
    y = x + 1
    same(y.max() - y.min(), (a + 1).max() - (a + 1).min())
    assert watched.steps == [["add", "min", "max + subtract"]]


def test_large_kernels_are_cut(watched):
    (a,), (x,) = arrays((4,))
    y, b = x, a
    for _ in range(100):
        y, b = y + 1, b + 1
    same(y, b)
    sizes = [[step.count("+") + 1 for step in steps] for steps in watched.steps]
    assert sizes == [[32, 16], [4]], "twice 48, which is planned once, and the rest"
    assert calling._DEEPEST == 48


def test_updates_in_place_are_recorded_until_they_are_many(watched):
    (a,), (x,) = arrays((4,))
    y = x * 1.0
    for _ in range(20):
        y += 1
    assert len(watched.steps) > 1, "a loop that asks for nothing runs all the same"
    same(y, a + 20)


# --- writes
def test_what_is_written_to_memory_is_computed_there(watched):
    (a, b), (x, y) = arrays((4, 5), (5,))
    x, plain = x.copy(), a.copy()
    whole = x.node.value
    for one, vector in ((x, y), (plain, b)):
        one[:, 1:] -= one[:, :1] * vector[1:]
        one[0] = vector * 2 + 1
        one[...] = one + vector
    same(x, plain)
    assert x.node.value is whole
    assert watched.steps == [
        ["multiply + subtract + store"], ["multiply + add + store"], ["add + store"]
    ]  # fmt: skip


def test_what_a_statement_alone_has_is_not_stored(watched, monkeypatch):
    wanted, made = [], structures.plan

    def plan(members, kept, *rest):
        wanted.append(len(kept))
        return made(members, kept, *rest)

    monkeypatch.setattr(structures, "plan", plan)
    (a, b), (x, y) = arrays((4, 5), (5,))
    x[:, 1:] - x[:, 1:]  # the operation is known then
    x, plain = x.copy(), a.copy()
    for one, vector in ((x, y), (plain, b)):
        one[:, 1:] -= one[:, :1] * vector[1:]
        one[:, 1:] -= one[:, 1:] * vector[1:]  # a product of what is written is stored
        product = one[:, :1] * vector[:2] + 0  # and what has a name
        one[:, 2:4] -= product
        one[:, 0] = 7
        one[:, 3] += product[:, 1]
    same(x, plain)
    assert wanted[:3] == [1, 2, 2], "results that are kept, the store's among them"


@pytest.mark.parametrize("first", [0, 1])
def test_what_has_a_name_can_still_be_read_after_a_write_that_was_called_by_name(watched, first):
    (a, b), (x, y) = arrays((4, 5), (5,))
    x, plain = x.copy(), a.copy()
    results = []
    for one, vector in ((x, y), (plain, b)):
        part, product = one[:, 1:], one[:, first : first + 4] * vector[1:]
        part.__isub__(product)  # counts like an operand without a name
        one[...] += 1
        results.append(product)
    same(results[0], results[1])
    same(x, plain)


def test_a_fold_is_written_to_memory_behind_it(watched):
    (a, b), (x, y) = arrays((4, 5), (4, 1))
    y, plain = y.copy(), b.copy()
    y[::-1] = x.sum(axis=1, keepdims=True)
    plain[::-1] = a.sum(axis=1, keepdims=True)
    same(y, plain)
    assert watched.steps == [["sum", "store"]]


def test_what_was_written_to_memory_can_still_be_read_after_the_next_write(watched):
    x = np.zeros((2, 3))
    y = np.arange(3.0) * 2 + 1
    x[0] = y
    assert y.node.borrowed
    z = y - 1
    x[0] = 7
    assert not y.node.borrowed and y.tolist() == [1, 3, 5] and z.tolist() == [0, 2, 4]
    t = np.arange(3.0) * 3
    x[1] = t
    t += 1
    t[0] = 9
    part = t[1:]
    part += 1
    assert x.tolist() == [[7, 7, 7], [0, 3, 6]] and t.tolist() == [9, 5, 8]
    u = np.arange(3.0) * 4
    x[1] = u
    view = u[::-1]  # of a copy: u is no part of x
    view[0] = 5
    assert x.tolist()[1] == [0, 4, 8] and u.tolist() == [0, 4, 5]


@pytest.mark.parametrize("shape", [(6,), (4, 6), (3, 4, 6)])
def test_parts_that_are_apart_have_no_element_in_common(shape):
    a = numpy.zeros(shape)
    keys = [
        slice(None),
        slice(0, 2),
        slice(2, 4),
        slice(1, 3),
        slice(None, None, 2),
        slice(5, 0, -1),
    ]
    parts = [part for one in keys for part in (a[..., one], a[one])]
    parts += [a.T, a[..., 0], a[0], a[-1:]]
    apart = 0
    for one in parts:
        for other in parts:
            if are_apart(one, other, NUMPY):
                apart += 1
                assert not numpy.shares_memory(one, other)
    assert apart >= 10
    assert are_apart(a[..., 2:], a[..., :2], NUMPY) and are_apart(a, numpy.zeros(3), NUMPY)


def test_what_reads_other_places_of_the_memory_is_computed_before(watched):
    (a,), (x,) = arrays((6,))
    x, plain = x.copy(), a.copy()
    x[1:] += x[:-1] * 2
    plain[1:] += plain[:-1] * 2
    x[::-1] = x + 1
    plain[::-1] = plain + 1
    same(x, plain)
    assert not any("store" in step for steps in watched.steps for step in steps)


# --- structures
def test_a_loop_plans_nothing_after_its_first_round():
    rng = numpy.random.default_rng(1)
    with np.polygen_options(backend=NUMPY):
        x, y = np.asarray(rng.standard_normal((20, 3))), np.asarray(rng.standard_normal(20))
        w, planned = np.zeros(3), []
        for step in range(5):
            error = np.tanh(x @ w) - y
            w -= (0.1 + 0.01 * step) * (x.T @ error)
            assert float((error**2).mean()) > 0
            planned.append(np.polygen_report().planned)
    assert planned[1:] == [planned[1]] * 4, "numbers are no part of the structure"


def test_other_shapes_types_and_holders_are_other_structures(watched):
    def run(x, hold):
        y = x * 2
        z = y + 1
        if not hold:
            del y
        str(z)

    for x in (np.ones(3), np.ones(4), np.ones(3, dtype=np.float32)):
        for hold in (True, False):
            run(x, hold)
            run(x, hold)
    assert len(watched.steps) == 6


def test_a_report_says_what_happened():
    with np.polygen_options(backend=NUMPY):
        before = np.polygen_report()
        str(np.ones(3) * 5)
        after = np.polygen_report()
    assert after.forced == before.forced + 1 and after.steps == before.steps + 1
    assert f"{after.forced} graphs run" in str(after)


# --- groups around products
def layer(np, x, w, b):
    return np.maximum(x @ w + b, 0)


def test_float16_products_with_work_around_them_are_kernels(watched):
    (a, u, c), (x, w, b) = arrays((16, 8), (8, 24), (24,), dtype=numpy.float16)
    with np.polygen_options(take="legal"):
        found = layer(np, x, w.T.copy().T, b)
        same(found, layer(numpy, a, u, c))
    assert watched.steps == [["matmul + add + maximum"]]
    assert [str(t) for t in watched.launched[0].inputs] == [
        "a0: f16[D0, D1]", "a1: f16[D1, D3]", "a2: f16[D3]"
    ]  # fmt: skip
    assert "taken  matmul, add, maximum over 16 x 24: legal" in str(np.polygen_report())


def test_float32_products_keep_numpys_accuracy_unless_tf32_is_allowed(watched):
    (a, u, c), (x, w, b) = arrays((16, 8), (8, 24), (24,), dtype=numpy.float32)
    with np.polygen_options(take="legal"):
        assert (x @ w).node.value is not None, "the library's, at once"
        same(layer(np, x, w, b), layer(numpy, a, u, c))
        assert watched.launched == []
        with np.polygen_options(tf32=True):
            same(layer(np, x, w, b), layer(numpy, a, u, c))
    (program,) = watched.launched
    assert [tensor.dtype.name for tensor in program.inputs] == ["tf32", "tf32", "f32"]
    with np.polygen_options(take="legal", tf32=True):
        double = x.astype(float)
        assert (double @ double.T).node.value is not None


def test_the_environment_may_allow_tf32(monkeypatch):
    from polygen.adapters.numpy.settings import _settings, current

    token = _settings.set(None)
    monkeypatch.setenv("POLYGEN_TF32", "1")
    assert current().tf32
    _settings.reset(token)


def test_what_no_gpu_predicts_is_left(watched):
    (a, u, c), (x, w, b) = arrays((16, 8), (8, 24), (24,), dtype=numpy.float16)
    same(layer(np, x, w, b), layer(numpy, a, u, c))
    assert watched.steps == [["matmul", "add + maximum"]] and watched.launched == []
    assert "there is no GPU to predict it for" in str(np.polygen_report())
    with np.polygen_options(take="never"):
        assert (x @ w).node.value is not None


def test_groups_are_decided_by_the_cost_model(watched, monkeypatch):
    monkeypatch.setattr(watched, "device", lambda: device("sm_90a"), raising=False)
    _, (x, w, b) = arrays((1024, 64), (64, 2048), (2048,), dtype=numpy.float16)
    mixed = np.tanh(x @ w + b) * np.asarray(numpy.ones((1024, 2048), numpy.float16))
    str(mixed[0, 0])
    assert len(watched.launched) == 1
    with np.polygen_options(threshold=1000):
        str((np.tanh(x @ w + b))[0, 0])
    assert len(watched.launched) == 1
    last = np.polygen_report().groups[-1]
    assert not last.taken and "predicted" in last.why and "times as long" in last.why


def test_comparisons_casts_and_other_results_stay_right_around_groups(watched):
    (a, u, c), (x, w, b) = arrays((16, 8), (8, 24), (24,), dtype=numpy.float16)

    def program(np, x, w, b):
        z = x @ w + b
        h = np.where(z > 0, z, 0.5 * z).astype(np.float32)
        return z, h, h.sum(axis=0), (z > 0).astype(np.float16) * b

    with np.polygen_options(take="legal"):
        found = program(np, x, w, b)
        for mine, its in zip(reversed(found), reversed(program(numpy, a, u, c)), strict=True):
            same(mine, its)
    assert len(watched.launched) == 1


def test_numbers_that_change_are_no_constants_of_ever_more_kernels(watched):
    _, (x, w) = arrays((16, 8), (8, 24), dtype=numpy.float16)
    with np.polygen_options(take="legal"):
        for step in range(12):
            str(np.maximum((x @ w) * (step / 4), 0))
    assert len(watched.launched) == 8
    assert watched.steps[-1] == ["matmul", "multiply + maximum"]


class OnTheMachine(Backend):
    """NumPy, with groups as kernels on the PTX machine."""

    def launch(self, program, sizes, arrays):
        orders = [
            storage_order(a.shape, [step // a.itemsize for step in a.strides]) for a in arrays
        ]
        program = with_sizes(stored(program, orders), dict(sizes))
        found = Kernel(program, device("sm_80"), dict(sizes), "auto", "").emulate(*arrays)
        return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_groups_run_as_kernels_on_the_machine(kind):
    (a, u, c), (x, w, b) = arrays((32, 16), (16, 32), (32,), dtype=kind)
    with np.polygen_options(backend=OnTheMachine(), take="legal", tf32=True):
        same(layer(np, x, w, b), layer(numpy, a, u, c))


# --- what runs at once
def rounds(count, work):
    """How many graphs each of some rounds of a program forces."""
    found = []
    for number in range(count):
        before = forcing.counts.forced
        work(number)
        found.append(forcing.counts.forced - before)
    return found


def test_operations_whose_graphs_gain_nothing_run_at_once(watched):
    (a, b), (x, y) = arrays((4, 5), (4, 5))

    def work(number):
        same(x * y, a * b)
        same((x + number).sum(axis=0), (a + number).sum(axis=0))

    found = rounds(100, work)
    assert found[: alone._AFTER] == [2] * alone._AFTER, "recorded at first"
    assert set(found[alone._AFTER :]) == {1, 2}, "the sum of a sum goes on to be one kernel"
    again = [number for number, forced in enumerate(found) if forced == 2][alone._AFTER :]
    assert len(again) == 100 // alone._AGAIN, "recorded again now and then"


def test_where_a_graph_fuses_now_recording_begins_anew(watched):
    (a,), (x,) = arrays((4, 5))

    def doubled():
        return x * 2

    assert set(rounds(12, lambda _: same(doubled(), a * 2))) == {0, 1}
    before = len(watched.steps)
    for _ in range(alone._AGAIN + 2):
        same(doubled() + 1, a * 2 + 1)
    assert ["multiply + add"] in watched.steps[before:]
    assert rounds(2, lambda _: same(doubled() + 1, a * 2 + 1)) == [1, 1], "in one kernel from then"


def test_what_runs_at_once_reads_one_array_twice(watched):
    (a,), (x,) = arrays((4, 5))
    for _ in range(2 * alone._AFTER):
        same(x * x, a * a)
        same(np.maximum(x, 1), numpy.maximum(a, 1))


def test_zeros_keep_their_signs(watched):
    for zero in (0.0, -0.0, 0.0):
        x = np.ones(2, np.float32)
        assert list(numpy.signbit(numpy.asarray(x * zero))) == [bool(numpy.signbit(zero))] * 2
