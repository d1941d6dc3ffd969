"""The names of NumPy: recorded functions, those of the backend run at once, and NumPy's own types.

A name of a submodule is looked up there: ``linalg.solve``. What the backend does not have runs on
the host, with NumPy.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.adapters.numpy.arrays import Array
from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.calling import (
    before_writing,
    immediately,
    kept,
    made,
    on_host,
    product,
    recorded,
    wrapped,
)
from polygen.adapters.numpy.forcing import value_of
from polygen.adapters.numpy.operations import FOLDS, KNOWN, POINTWISE
from polygen.adapters.numpy.operators import binary, dot, fold
from polygen.adapters.numpy.writing import assign, fits

# Functions that write to their first argument.
_CHANGING = frozenset(
    ["copyto", "fill_diagonal", "put", "place", "putmask", "put_along_axis", "shuffle", "at"]
)
_LIKE = {"zeros_like": "zeros", "ones_like": "ones", "empty_like": "empty"}
_ON_HOST = ("testing", "savetxt", "array2string", "array_str", "array_repr", "printoptions")


class Function:
    """A function of NumPy by its name, run at once on the backend in force."""

    def __init__(self, path: str) -> None:
        self._path, self.__name__ = path, path.rpartition(".")[2]
        self._module: Any = None  # whose function is `_own`
        self._own: Any = None

    def __repr__(self) -> str:
        return f"<lazy {self._path}>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As NumPy's function."""
        module = active().module
        if self._module is not module:
            hosted = self._path.split(".")[0] in _ON_HOST
            self._own = None if hosted else _found(module, self._path)
            self._module = module
        own = self._own
        if own is None:
            return on_host(_found(np, self._path), args, options)
        if self.__name__ in _CHANGING and args and type(args[0]) is Array:
            before_writing(args[0])
        return foreign(immediately(self.__name__, own, args, options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Function(f"{self._path}.{name}")


def _found(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def foreign(result: Any) -> Any:
    """An object of the backend that makes arrays, such as a generator of random numbers."""
    makes = type(result).__module__.startswith(("numpy.random", "cupy.random"))
    return Holder(result) if makes else result


class Holder:
    """A generator of the backend; its methods take and give lazy arrays.

    Distributions that CuPy's generators do not have are drawn on the host, by a generator of NumPy
    whose seed is drawn from CuPy's.
    """

    def __init__(self, held: Any) -> None:
        self._held = held
        self._host: Any = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._held, name, None)
        if found is None and name not in _CHANGING and hasattr(np.random.Generator, name):
            self._host = self._host or np.random.default_rng(int(self._held.integers(1 << 31)))
            return lambda *args, **options: on_host(getattr(self._host, name), args, options)
        if found is None:
            raise AttributeError(f"{type(self._held).__name__!r} object has no attribute {name!r}")
        if not callable(found):
            return wrapped(found)

        def method(*args: Any, **options: Any) -> Any:
            if name in _CHANGING and args and type(args[0]) is Array:
                before_writing(args[0])
            return foreign(immediately(name, found, args, options))

        return method


class Pointwise(Function):
    """An elementwise function: recorded where an operand is an array."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._pair = binary(path)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As NumPy's function."""
        name = self.__name__
        if not options and type(args[0]) is Array:
            if len(args) == 1:
                one = KNOWN.get((name, args[0].node.form))
                if one is not None:
                    return kept(one, (args[0].node,), args[0].node.depth)
            elif len(args) == 2:
                found = self._pair(*args)
                if found is not NotImplemented:
                    return found
            found = recorded(name, args)
            if found is not None:
                return found
        if not any(map(_is_array, args)) and not options:
            return getattr(np, name)(*args)  # numbers: NumPy's own scalars
        out: Any = options.get("out")
        out = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        if not options or (len(options) == 1 and type(out) is Array):
            found = recorded(name, args)
            if found is not None and out is None:
                return found
            if found is not None and fits(found, out):
                return assign(out, found)
        return super().__call__(*args, **options)


def _is_array(argument: Any) -> bool:
    if type(argument) is Array:
        return True
    return isinstance(argument, np.ndarray | list | tuple | active().module.ndarray)


# --- functions with arguments of their own --------------------------------------------------------
def _where(condition: Any, *rest: Any) -> Any:
    if len(rest) == 2 and any(_is_array(one) for one in (condition, *rest)):
        found = recorded("where", (condition, *rest))
        if found is not None:
            return found
    return Function("where")(condition, *rest)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **options: Any) -> Any:
    low, high = options.pop("min", a_min), options.pop("max", a_max)
    if type(a) is not Array or options or (low is None and high is None):
        return Function("clip")(a, low, high, **options)
    if a.dtype.kind in "iu":  # numbers of Python behind the least and the greatest bound nothing
        ends = np.iinfo(a.dtype)
        low = None if type(low) is int and low <= ends.min else low
        high = None if type(high) is int and high >= ends.max else high
        if low is None and high is None:
            return Pointwise("positive")(a)
    if low is None or high is None:
        return Pointwise("maximum")(a, low) if high is None else Pointwise("minimum")(a, high)
    found = recorded("clip", (a, low, high))
    return Function("clip")(a, low, high) if found is None else found


def _folded(name: str) -> Callable[..., Any]:
    def function(a: Any, axis: Any = None, *args: Any, keepdims: Any = False, **rest: Any) -> Any:
        array = a if type(a) is Array else made(a)
        if array is None or args:
            extra = {} if axis is None else {"axis": axis}
            extra |= {"keepdims": keepdims} if keepdims else {}
            return Function(name)(a, *args, **extra, **rest)
        rest = {option: value for option, value in rest.items() if value is not None}
        found = fold(name, array, axis, keepdims, rest)
        if array.node.value is a and type(found) is Array:
            value_of(found.node)  # whoever has an array that is none of ours may write to it next
        return found

    function.__name__ = name
    return function


def _matmul(first: Any, second: Any, **options: Any) -> Any:
    return Function("matmul")(first, second, **options) if options else product(first, second)


def _dotted(first: Any, second: Any, **options: Any) -> Any:
    return Function("dot")(first, second, **options) if options else dot(first, second)


def _like(name: str) -> Callable[..., Any]:
    """Of an array only shape and type are read: nothing is computed for them."""

    def function(a: Any, dtype: Any = None, **options: Any) -> Any:
        if type(a) is not Array or options:
            return Function(name)(a, dtype=dtype, **options)
        return Function(_LIKE[name])(a.shape, dtype=dtype or a.dtype)

    return function


OWN: dict[str, Any] = {
    "ndarray": Array, "where": _where, "clip": _clip, "matmul": _matmul, "dot": _dotted,
    "shape": lambda a: a.shape if type(a) is Array else np.shape(a),
    "ndim": lambda a: a.ndim if type(a) is Array else np.ndim(a),
    "amax": _folded("max"), "amin": _folded("min"),
}  # fmt: skip
OWN |= {name: _folded(name) for name in FOLDS} | {name: _like(name) for name in _LIKE}
OWN |= {name: Pointwise(name) for name in POINTWISE}


class Module:
    """A submodule of NumPy."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return lookup(f"{self._path}.{name}")


def lookup(path: str) -> Any:
    """What a name stands for in a program that runs through this adapter.

    Raises:
        AttributeError: NumPy has no such name, and the backend neither.
    """
    if path in OWN:
        return OWN[path]
    found = _found(np, path)
    if found is None and path != "newaxis":
        found = _found(active().module, path)
        if found is None:
            raise AttributeError(f"module 'numpy' has no attribute {path!r}")
    if isinstance(found, types.ModuleType):
        return Module(path)
    makes = callable(found) and (not isinstance(found, type) or path.startswith("random."))
    return Function(path) if makes else found


# --- NumPy's own functions, called with lazy arrays -----------------------------------------------
def _array_ufunc(self: Array, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    name = ufunc.__name__
    outs = options.get("out", ())
    if any(isinstance(one, np.ndarray) for one in outs):  # NumPy's arrays stay on the host
        return getattr(ufunc, method)(*map(_on_host, inputs), **options)
    found = lookup(name) if hasattr(np, name) else Function(name)
    return (found if method == "__call__" else getattr(found, method))(*inputs, **options)


def _on_host(argument: Any) -> Any:
    return argument.get() if type(argument) is Array else argument


def _array_function(self: Array, function: Any, kinds: Any, args: Any, options: Any) -> Any:
    module = function.__module__.removeprefix("numpy").strip(".")
    path = f"{module}.{function.__name__}" if module and _found(np, module) else function.__name__
    if _found(np, path) is None:
        return on_host(function, args, options)
    return lookup(path)(*args, **options)


Array.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
Array.__array_function__ = _array_function  # type: ignore[attr-defined]
