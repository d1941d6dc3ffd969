"""Folds of few elements to one number, with what is around them: one kernel, run on the machine."""

from __future__ import annotations

import types

import numpy
import pytest
from test_numpy_elementwise import LIKE_CUPY, Plain, kernel_of, made_up, plain, values

from polygen.adapters.numpy import totals
from polygen.adapters.numpy.backends import CuPy
from polygen.adapters.numpy.operations import form_of, operation
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.steps import Member

cupy = pytest.importorskip("cupy")


class Module:
    """CuPy: what is traced is CuPy's, and what runs NumPy's."""

    def __init__(self, **given):
        vars(self).update(vars(LIKE_CUPY) | {"fuse": lambda kernel_name: Fused} | given)

    def __getattr__(self, name):
        def function(*operands, **options):
            real = any(isinstance(one, numpy.ndarray) for one in operands)
            return getattr(numpy if real else cupy, name)(*operands, **options)

        return function


class Fused:
    """What `cupy.fuse` gives."""

    def __init__(self, function):
        self.function, self._memo = function, {}

    def __call__(self, *operands):
        arrays = [isinstance(one, numpy.ndarray) for one in operands]
        given = zip(operands, arrays, strict=True)
        stand_ins = [made_up(one) if array else one for one, array in given]
        self._memo[0] = kernel_of(self.function, *stand_ins), {}
        return self.function(*operands)


def asked(name, *operands):
    """An operation of operands like these."""
    forms = [
        form_of(one.shape, one.dtype) if isinstance(one, numpy.ndarray) else one for one in operands
    ]
    found = operation((name, *forms))
    assert found is not None
    return found


def written_out(steps, operands):
    """What steps give of inputs."""
    slots = dict(enumerate(operands))
    for step in steps:
        found = step.run(*(slots[slot] for slot in step.reads))
        made = (found,) if len(step.writes) == 1 else found or ()
        slots.update(zip(step.writes, made, strict=True))
    return slots


WIDE = values(90, 40, dtype="float64")
CASES = {
    "whole": values(70, 30, dtype="float64"),
    "one column": WIDE[:, 3],
    "columns": WIDE[:, 3:20],
    "two elements": values(2, dtype="float64"),
    "as many as threads": values(1024, dtype="float64"),
    "one more": values(1025, dtype="float64"),
    "single precision": values(50, 21),
}


@pytest.mark.parametrize("fold", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("case", CASES)
def test_elements_folds_and_what_is_computed_of_them_are_one_kernel(case, fold):
    a = CASES[case]
    backend, number = CuPy(Module()), a.dtype.type(0.5)
    square = asked("multiply", a, a)
    scaled = asked("multiply", a, float)
    folded = operation((fold, scaled.form, None, False))
    root = asked("add", numpy.asarray(a.dtype.type(0)), float)
    members = [Member(2, square, (0, 0)), Member(3, scaled, (2, 1)), Member(4, folded, (3,)),
               Member(5, root, (4, 1))]  # fmt: skip
    steps = plan(members, frozenset({5}), [], backend)
    assert len(steps) == 1
    given = plain([a, number])
    first = written_out(steps, given)[5]
    second = written_out(steps, given)[5]
    assert isinstance(second, Plain) and second.shape == (), "the kernel's own result"
    wanted = getattr(a * a * number, fold)() + number
    for found in (first, second):
        numpy.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("fold", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_folds_alone_and_with_kept_axes(fold, keepdims):
    for a in (CASES["one column"], CASES["whole"], -CASES["single precision"] - 1):
        backend = CuPy(Module())
        one = operation((fold, form_of(a.shape, a.dtype), None, keepdims))
        (step,) = plan([Member(1, one, (0,))], frozenset({1}), [], backend)
        found = step.run(*plain([a]))
        assert found.shape == one.shape and found.dtype == a.dtype
        numpy.testing.assert_allclose(found, getattr(a, fold)(keepdims=keepdims), rtol=1e-6)


def test_what_is_no_number_stays_in_folds():
    for fold in ("max", "min", "sum"):
        for place in (0, 40, 99):
            a = values(100, dtype="float64")
            a[place] = numpy.nan
            one = operation((fold, form_of(a.shape, a.dtype), None, False))
            (step,) = plan([Member(1, one, (0,))], frozenset({1}), [], CuPy(Module()))
            assert numpy.isnan(step.run(*plain([a])))
    for fold, end in (("max", -numpy.inf), ("min", numpy.inf)):
        a = numpy.full(33, end)
        one = operation((fold, form_of(a.shape, a.dtype), None, False))
        (step,) = plan([Member(1, one, (0,))], frozenset({1}), [], CuPy(Module()))
        assert step.run(*plain([a])) == end


def test_what_is_computed_of_a_fold_is_written_to_memory():
    a, target = values(300, dtype="float64"), values(6, 7, dtype="float64")
    there = target[2, 3, ...]
    backend, before = CuPy(Module()), target.copy()
    square, total = asked("square", a), operation(("sum", form_of((300,), a.dtype), None, False))
    root = asked("sqrt", numpy.asarray(0.0))
    store = operation(("store", form_of((), a.dtype), form_of((), a.dtype)))
    members = [Member(2, square, (0,)), Member(3, total, (2,)), Member(4, root, (3,)),
               Member(5, store, (1, 4))]  # fmt: skip
    steps = plan(members, frozenset(), [], backend)
    assert [len(step.members) for step in steps] == [4] and steps[0].writes == ()
    for _ in range(2):
        target[2, 3] = 0
        assert steps[0].run(*plain([a, there])) is None
        before[2, 3] = numpy.sqrt((a * a).sum())
        numpy.testing.assert_allclose(target, before, rtol=1e-14)


def test_what_others_read_is_stored_and_what_is_written_meanwhile_is_read_before():
    a = values(300, dtype="float64")
    form, one = form_of((300,), a.dtype), form_of((), a.dtype)
    total, root = operation(("sum", form, None, False)), operation(("sqrt", one))
    members = [Member(1, total, (0,)), Member(2, root, (1,))]
    wanted = plan(members, frozenset({1, 2}), [], CuPy(Module()))
    assert [str(step) for step in wanted] == ["sum", "sqrt"], "the program has the sum as well"
    twice = [*members, Member(3, operation(("multiply", form, one)), (0, 1))]
    steps = plan(twice, frozenset({2, 3}), [], CuPy(Module()))
    assert [len(step.members) for step in steps] == [1, 1, 1]
    least = operation(("min", form, None, False))
    both = [Member(1, total, (0,)), Member(2, least, (0,)),
            Member(3, operation(("subtract", one, one)), (1, 2))]  # fmt: skip
    steps = plan(both, frozenset({3}), [], CuPy(Module()))
    assert [str(step) for step in steps] == ["min", "sum + subtract"]
    for _ in range(2):
        assert written_out(steps, plain([a]))[3] == a.sum() - a.min()


def test_many_elements_other_types_and_several_devices_are_cupys():
    kind = numpy.dtype("float64")
    assert totals.is_total(operation(("sum", form_of((1 << 15,), kind), None, False)))
    for shape, dtype, axis, name in (
        (((1 << 15) + 1,), "float64", None, "sum"), ((9,), "int64", None, "sum"),
        ((9,), "float16", None, "sum"), ((9, 3), "float64", 0, "sum"),
        ((1,), "float64", None, "sum"), ((9,), "float64", None, "prod"),
        ((9,), "int64", None, "mean"), ((9,), "float64", None, "argmax"),
    ):  # fmt: skip
        one = operation((name, form_of(shape, numpy.dtype(dtype)), axis, False))
        assert not totals.is_total(one), one
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 2)
    several = CuPy(Module(cuda=types.SimpleNamespace(runtime=runtime)))
    assert not several.totals(operation(("sum", form_of((9,), kind), None, False)))


def test_operands_of_three_axes_are_computed_in_parts():
    odd = values(4, 7, 10, dtype="float64")[:, ::2, ::5]
    one = operation(("sum", form_of(odd.shape, odd.dtype), None, False))
    (step,) = plan([Member(1, one, (0,))], frozenset({1}), [], CuPy(Module()))
    assert step.run(*plain([odd])) == odd.sum()
    (again,) = plain([numpy.ascontiguousarray(odd)])
    assert step.run(again) == odd.sum() and isinstance(step.run(again), Plain)
