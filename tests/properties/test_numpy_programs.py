"""Random NumPy programs, with views and writes, give through the lazy adapter what NumPy gives."""

from __future__ import annotations

import operator

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans_in_turns import Timed

import polygen.adapters.numpy as lazy
from polygen.adapters.numpy.backends import NUMPY

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "less", "equal", "logical_and")
UNARY = ("negative", "absolute", "square", "tanh", "isfinite", "sign")
FOLDS = ("sum", "max", "mean", "argmin", "any")
UPDATES = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand)
TYPES = ("float64", "float32", "float16", "int64", "int8", "bool")
KEYS = (0, -1, slice(1, None), slice(None, None, -1), (slice(None), 1), None, Ellipsis)
NUMBERS = (2, 0.5, True, -1, 1e3)
SHAPES = ((3, 4), (4,), (3, 1), (1, 4), (1,), ())

place = st.integers(0, 40)
instruction = st.one_of(
    st.tuples(st.just("binary"), st.sampled_from(BINARY), place, place),
    st.tuples(st.just("number"), st.sampled_from(BINARY), place, st.sampled_from(NUMBERS)),
    st.tuples(st.just("unary"), st.sampled_from(UNARY), place),
    st.tuples(st.just("fold"), st.sampled_from(FOLDS), place, st.sampled_from((None, 0, -1)),
              st.booleans()),
    st.tuples(st.just("update"), st.sampled_from(UPDATES), place, place),
    st.tuples(st.just("bump"), st.sampled_from(UPDATES), place, st.sampled_from(NUMBERS)),
    st.tuples(st.just("item"), place, st.sampled_from(KEYS)),
    st.tuples(st.just("set"), place, st.sampled_from(KEYS), place),
    st.tuples(st.just("out"), st.sampled_from(BINARY), place, place, place),
    st.tuples(st.just("astype"), place, st.sampled_from(TYPES)),
    st.tuples(st.just("where"), place, place, place),
    st.tuples(st.just("view"), st.sampled_from(("T", "ravel", "copy")), place),
    st.tuples(st.just("force"), place),
)  # fmt: skip


def run(np, start, program):
    """The arrays that a program leaves, and the classes of the errors on its way."""
    pool = [np.array(one) for one in start]
    errors = []
    for kind, *rest in program:

        def at(number):
            return pool[number % len(pool)]

        try:
            if kind in ("binary", "number"):
                name, first, second = rest
                second = second if kind == "number" else at(second)
                pool.append(getattr(np, name)(at(first), second))
            elif kind == "unary":
                pool.append(getattr(np, rest[0])(at(rest[1])))
            elif kind == "fold":
                name, one, axis, keepdims = rest
                more = {} if name in ("argmin",) else {"keepdims": keepdims}
                pool.append(getattr(np, name)(at(one), axis=axis, **more))
            elif kind in ("update", "bump"):
                function, first, second = rest
                second = second if kind == "bump" else at(second)
                pool[first % len(pool)] = function(at(first), second)
            elif kind == "item":
                pool.append(at(rest[0])[rest[1]])
            elif kind == "set":
                at(rest[0])[rest[1]] = at(rest[2])
            elif kind == "out":
                name, first, second, out = rest
                getattr(np, name)(at(first), at(second), out=at(out))
            elif kind == "astype":
                pool.append(at(rest[0]).astype(rest[1]))
            elif kind == "where":
                pool.append(np.where(*map(at, rest)))
            elif kind == "view":
                found = getattr(at(rest[1]), rest[0])
                pool.append(found() if callable(found) else found)
            else:
                str(at(rest[0]))
        except (TypeError, ValueError, IndexError) as error:
            errors.append((kind, type(error).__mro__[-3]))
    return pool, errors


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(TYPES)), min_size=2, max_size=4),
    st.lists(instruction, max_size=14),
)
def test_random_programs_give_what_numpy_gives(kinds, program):
    check(kinds, program)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(TYPES)), min_size=2, max_size=4),
    st.lists(instruction, max_size=8),
)
def test_short_random_programs_give_what_numpy_gives(kinds, program):
    check(kinds, program)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(TYPES)), min_size=2, max_size=4),
    st.lists(instruction, max_size=8),
)
def test_operations_apart_give_what_numpy_gives(kinds, program):
    backend = Timed()
    for _ in range(4):  # in turns
        check(kinds, program, backend)


def check(kinds, program, backend=NUMPY):
    rng = numpy.random.default_rng(len(program))
    start = [numpy.asarray(rng.integers(-3, 4, shape)).astype(dtype) for shape, dtype in kinds]
    with numpy.errstate(all="ignore"), lazy.polygen_options(backend=backend):
        wanted, raised = run(numpy, start, program)
        found, refused = run(lazy, start, program)
        assert refused == raised
        assert len(found) == len(wanted)
        for mine, its in zip(found, wanted, strict=True):
            assert mine.dtype == numpy.asarray(mine).dtype == its.dtype and mine.shape == its.shape
            numpy.testing.assert_array_equal(numpy.asarray(mine), its)
