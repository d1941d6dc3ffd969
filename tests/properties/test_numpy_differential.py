"""Random scripts, run by NumPy and by the lazy adapter: the same elements, types, errors and lines.

A script is a list of statements over a pool of values. It is drawn beside NumPy's own run, so that
most statements fit the shapes there are; those that NumPy refuses stay in, and the adapter has to
refuse them at the same statement with the same class of error.
"""

from __future__ import annotations

import contextlib
import operator
import random

import numpy
import pytest
from plans_in_turns import Timed

import polygen.adapters.numpy as lazy
from polygen.adapters.numpy import writing
from polygen.adapters.numpy.backends import NUMPY, Backend

TYPES = ["float64"] * 4 + ["float32"] * 3 + ["float16", "int64", "int64", "int32", "int8", "uint8",
                                             "bool", "bool"]  # fmt: skip
SHAPES = [
    (3, 4),
    (3, 4),
    (4,),
    (4,),
    (3, 1),
    (1, 4),
    (2, 3, 4),
    (5,),
    (1,),
    (),
    (0,),
    (0, 4),
    (4, 4),
]
BINARY = ["add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power",
          "maximum", "minimum", "fmax", "fmin", "copysign", "hypot", "arctan2", "less",
          "less_equal", "greater", "equal", "not_equal", "logical_and", "logical_xor",
          "bitwise_and", "bitwise_or", "left_shift", "logaddexp", "nextafter"]  # fmt: skip
UNARY = ["negative", "positive", "absolute", "fabs", "sign", "square", "sqrt", "exp", "expm1",
         "log1p", "tanh", "sin", "floor", "ceil", "trunc", "rint", "isnan", "isfinite", "signbit",
         "logical_not", "invert", "reciprocal", "cbrt"]  # fmt: skip
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
             operator.mod, operator.pow, operator.and_, operator.or_, operator.xor, operator.lt,
             operator.ge, operator.eq, operator.ne, operator.matmul]  # fmt: skip
UPDATES = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
           operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor]  # fmt: skip
FOLDS = ["sum", "sum", "prod", "mean", "max", "min", "any", "all", "argmax", "argmin", "var",
         "std", "cumsum", "ptp"]  # fmt: skip
NEGATED = [operator.neg, operator.pos, abs, operator.invert]
NUMBERS = [0, 1, 2, 3, -1, -2, 7, 300, 0.5, 2.0, -0.0, 1e300, float("nan"), float("inf"), True,
           1e-9, numpy.float32(1.5), numpy.float64(0.1), numpy.int8(3), numpy.uint8(200),
           numpy.int64(-2), numpy.bool_(True), numpy.float16(2)]  # fmt: skip
ONES = [slice(None), slice(1, None), slice(None, -1), slice(None, None, -1), slice(None, None, 2),
        slice(-2, None), slice(2, 0, -1), slice(1, 1), 0, -1, 1, None, Ellipsis]  # fmt: skip
# Variances are other operations; NumPy's numbers and arrays are raised to powers by two functions.
POWERS = ("power", operator.ipow)
ROUNDED = ("var", "std", operator.pow, *POWERS)
LAID = ["T", "ravel", "copy", "flatten", "transpose", "squeeze"]


class Script:
    """Draws statements; each is a name, and what the statement of that name takes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def place(self) -> int:
        """Of a value; late ones are more often of interest."""
        return -self.draw.randrange(1, 9) if self.draw.random() < 0.6 else self.draw.randrange(40)

    def key(self):
        draw, kind = self.draw, self.draw.random()
        if kind < 0.5:
            return ("plain", draw.choice(ONES))
        if kind < 0.8:
            return ("plain", tuple(draw.choice(ONES) for _ in range(draw.randrange(1, 4))))
        if kind < 0.9:
            return ("mask", self.place())
        return ("plain", [draw.randrange(-2, 3) for _ in range(draw.randrange(0, 4))])

    def operand(self):
        return ("at", self.place()) if self.draw.random() < 0.7 else ("is", self.number())

    def number(self):
        return self.draw.choice(NUMBERS)

    def axis(self):
        return self.draw.choice([None, None, 0, 0, 1, -1, (0, 1), (-1,), 2])

    def start(self):
        draw = self.draw
        return draw.choice(SHAPES), draw.choice(TYPES), draw.randrange(1 << 30)

    def statement(self):
        draw = self.draw
        first = self.place()
        kinds = {
            "operator": lambda: (draw.choice(OPERATORS), first, self.operand(),
                                 draw.random() < 0.2),
            "binary": lambda: (draw.choice(BINARY), first, self.operand()),
            "unary": lambda: (draw.choice(UNARY), first),
            "negated": lambda: (draw.choice(NEGATED), first),
            "fold": lambda: (draw.choice(FOLDS), first, self.axis(), draw.random() < 0.3,
                             draw.random() < 0.5),
            "folded": lambda: (draw.choice(["sum", "prod", "mean"]), first, self.axis(),
                               draw.choice(["float64", "float32", "int64"])),
            "fold out": lambda: (draw.choice(["sum", "max", "mean"]), first, self.axis(),
                                 self.place()),
            "update": lambda: (draw.choice(UPDATES), first, self.operand()),
            "part": lambda: (draw.choice(UPDATES), first, self.key(), self.operand()),
            "item": lambda: (first, self.key()),
            "set": lambda: (first, self.key(), self.operand()),
            "out": lambda: (draw.choice(BINARY), first, self.operand(), self.place()),
            "unary out": lambda: (draw.choice(UNARY), first, self.place()),
            "astype": lambda: (first, draw.choice(TYPES)),
            "where": lambda: (first, self.operand(), self.operand()),
            "clip": lambda: (first, self.operand(), self.operand()),
            "clip one": lambda: (first, self.number(), draw.random() < 0.5),
            "laid": lambda: (draw.choice(LAID), first),
            "reshape": lambda: (first, draw.choice([(-1,), (4, 3), (2, -1), (1, -1), (12,)])),
            "same": lambda: (first,),
            "force": lambda: (draw.choice([str, float, int, bool, len]), first),
            "call": lambda: (draw.choice(["sort", "concatenate", "stack", "argsort", "dot",
                                          "zeros_like", "outer", "unique", "count_nonzero",
                                          "nonzero", "flip", "roll"]), first, self.place()),
            "fill": lambda: (first, self.number()),
            "copyto": lambda: (first, self.operand()),
            "drop": lambda: (first,),
        }  # fmt: skip
        weights = {
            "operator": 5,
            "binary": 3,
            "update": 5,
            "part": 4,
            "item": 4,
            "set": 4,
            "fold": 4,
        }
        kind = draw.choices(list(kinds), [weights.get(kind, 1) for kind in kinds])[0]
        return kind, *kinds[kind]()


def elements(shape, dtype, seed):
    """Small numbers, with zeros of both signs, and now and then what is no number."""
    draw = numpy.random.default_rng(seed)
    found = draw.integers(-3, 4, shape)
    if numpy.dtype(dtype).kind != "f":
        return numpy.asarray(found).astype(dtype)
    found = numpy.where(draw.random(shape) < 0.2, -0.0, found * 0.75)
    found = numpy.where(draw.random(shape) < 0.04, numpy.nan, found)
    return numpy.asarray(numpy.where(draw.random(shape) < 0.04, numpy.inf, found)).astype(dtype)


def begun(np, starts, shared):
    """The pool: arrays of their own, and some that lie in one buffer of neither."""
    pool = [np.array(elements(*start)) for start in starts]
    if shared:
        # The buffer is NumPy's, and two arrays over it that nothing else connects.
        memory = bytearray(elements((16,), "float64", shared).tobytes())
        pool += [np.frombuffer(memory, "float64"), np.frombuffer(memory, "float64", 8, 32)]
    return pool


def run(np, starts, shared, program):
    """What a script leaves, and what each statement gave besides: an error, or a text."""
    pool, told = begun(np, starts, shared), []
    for statement in program:
        try:
            told.append(executed(np, pool, *statement))
        except Exception as error:
            several = statement[0] == "fold out" or statement[1] is operator.matmul
            told.append("refused" if several else kind_of(error))  # by what is found first
    return pool, told


def kind_of(error):
    """The class that programs catch: NumPy has its own below these."""
    for kind in (IndexError, TypeError, ValueError, OverflowError, ZeroDivisionError):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__


def executed(np, pool, kind, *rest):
    def at(place):
        return pool[place % len(pool)]

    def operand(told):
        return at(told[1]) if told[0] == "at" else told[1]

    def key(told):
        return at(told[1]) > 0 if told[0] == "mask" else told[1]

    match kind:
        case "operator":
            function, first, second, reflected = rest
            pair = (at(first), operand(second))
            pool.append(function(*(pair[::-1] if reflected else pair)))
        case "binary":
            name, first, second = rest
            pool.append(getattr(np, name)(at(first), operand(second)))
        case "unary":
            pool.append(getattr(np, rest[0])(at(rest[1])))
        case "negated":
            pool.append(rest[0](at(rest[1])))
        case "fold":
            name, first, axis, keepdims, method = rest
            more = {"keepdims": True} if keepdims and name != "cumsum" else {}
            one = at(first)
            if method and hasattr(numpy.ndarray, name):
                pool.append(getattr(one, name)(axis=axis, **more))
            else:
                pool.append(getattr(np, name)(one, axis=axis, **more))
        case "folded":
            name, first, axis, dtype = rest
            pool.append(getattr(np, name)(at(first), axis=axis, dtype=dtype))
        case "fold out":
            name, first, axis, out = rest
            getattr(np, name)(at(first), axis=axis, out=at(out))
        case "update":
            function, first, second = rest
            place = first % len(pool)
            pool[place] = function(pool[place], operand(second))
        case "part":
            function, first, where, second = rest
            array, there = at(first), key(where)
            array[there] = function(array[there], operand(second))
        case "item":
            pool.append(at(rest[0])[key(rest[1])])
        case "set":
            first, where, second = rest
            at(first)[key(where)] = operand(second)
        case "out":
            name, first, second, out = rest
            getattr(np, name)(at(first), operand(second), out=at(out))
        case "unary out":
            getattr(np, rest[0])(at(rest[1]), out=at(rest[2]))
        case "astype":
            pool.append(at(rest[0]).astype(rest[1]))
        case "where":
            pool.append(np.where(at(rest[0]) > 0, operand(rest[1]), operand(rest[2])))
        case "clip":
            pool.append(np.clip(at(rest[0]), operand(rest[1]), operand(rest[2])))
        case "clip one":
            first, number, low = rest
            pair = (number, None) if low else (None, number)
            pool.append(np.clip(at(first), *pair))
        case "laid":
            found = getattr(at(rest[1]), rest[0])
            pool.append(found() if callable(found) else found)
        case "reshape":
            pool.append(at(rest[0]).reshape(rest[1]))
        case "same":
            pool.append(at(rest[0]))
        case "force":
            return repr(rest[0](at(rest[1])))
        case "call":
            return called(np, pool, rest[0], at(rest[1]), at(rest[2]))
        case "fill":
            at(rest[0]).fill(rest[1])
        case "copyto":
            np.copyto(at(rest[0]), operand(rest[1]))
        case "drop":
            if len(pool) > 3:
                del pool[rest[0] % len(pool)]
    return None


def called(np, pool, name, first, second):
    if name in ("concatenate", "stack"):
        pool.append(getattr(np, name)([first, second]))
    elif name in ("dot", "outer"):
        pool.append(getattr(np, name)(first, second))
    elif name == "nonzero":
        pool.extend(np.nonzero(first))
    elif name == "roll":
        pool.append(np.roll(first, 1))
    else:
        pool.append(getattr(np, name)(first))


def drawn(seed):
    """A script, with statements that NumPy takes more often than they come by chance."""
    script = Script(seed)
    starts = [script.start() for _ in range(script.draw.randrange(2, 5))]
    shared = script.draw.randrange(1, 1 << 20) if script.draw.random() < 0.3 else 0
    pool, program = begun(numpy, starts, shared), []
    for _ in range(script.draw.randrange(3, 18)):
        for _ in range(4):  # tries, of which the last one may fail
            statement = script.statement()
            try:
                trial = [one.copy() if hasattr(one, "copy") else one for one in pool]
                executed(numpy, trial, *statement)
                break
            except Exception:
                continue
        program.append(statement)
        with contextlib.suppress(Exception):
            executed(numpy, pool, *statement)
    return starts, shared, program


def same(mine, its, close, signs=True):
    """Whether two results are one: bits, but for what is no number, and for rounding if `close`.

    The signs of zeros count if `signs`.
    """
    array = numpy.asarray(mine)
    other = numpy.asarray(its)
    if array.dtype != other.dtype or array.shape != other.shape:
        return False
    if hasattr(mine, "dtype") and (mine.dtype != other.dtype or mine.shape != other.shape):
        return False
    if other.dtype.kind not in "f":
        return bool((array == other).all())
    if close:
        return numpy.allclose(array, other, rtol=1e-3, atol=1e-3, equal_nan=True)
    nans = numpy.isnan(other)
    return bool(
        (numpy.isnan(array) == nans).all()
        and (array[~nans] == other[~nans]).all()
        and (not signs or (numpy.signbit(array[~nans]) == numpy.signbit(other[~nans])).all())
    )


def check(seed, backend=NUMPY):
    with numpy.errstate(all="ignore"), lazy.polygen_options(backend=backend):
        starts, shared, program = drawn(seed)
        wanted, its = run(numpy, starts, shared, program)
        found, mine = run(lazy, starts, shared, program)
        if any(one[1] in POWERS and text for one, text in zip(program, its, strict=True)):
            assert mine == its
            return  # NumPy has left an array with some of its elements raised
        close = any(statement[1] in ROUNDED for statement in program)
        # Of zeros on both sides of a bound NumPy takes one or the other, by how bounds are given.
        signs = all(statement[0] != "clip" for statement in program)
        text = f"script {seed}: {starts}, {shared}\n" + "\n".join(map(str, program))
        if not close:  # rounded values decide what is told of them
            pairs = enumerate(zip(mine, its, strict=True))
            differs = next(((n, a, b) for n, (a, b) in pairs if a != b), None)
            assert differs is None, f"statement, what it told, what NumPy's: {differs}\n{text}"
        assert len(found) == len(wanted), text
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert same(one, other, close, signs), f"value {place}: {one!r}, not {other!r}\n{text}"


@pytest.mark.filterwarnings("ignore")
def test_scripts_give_what_numpy_gives():
    for seed in range(150):
        check(seed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_many_scripts_give_what_numpy_gives(part):
    for seed in range(1000 + part * 750, 1000 + (part + 1) * 750):
        check(seed)


@pytest.mark.filterwarnings("ignore")
def test_scripts_whose_operations_run_apart_give_what_numpy_gives():
    backend = Timed()
    for seed in range(60):
        for _ in range(4):
            check(seed, backend)


class Updating(Backend):
    """NumPy, where what is updated in place is written by kernels of their own."""

    updates = True


@pytest.mark.filterwarnings("ignore")
def test_scripts_whose_updates_in_place_are_kernels_give_what_numpy_gives(monkeypatch):
    monkeypatch.setattr(writing, "_OFTEN", 0)
    updated, original = [], writing._update
    monkeypatch.setattr(
        writing, "_update", lambda one, backend: updated.append(one) or original(one, backend)
    )
    backend = Updating()
    for seed in range(90):
        for _ in range(2):
            check(seed, backend)
    assert len(updated) > 20
