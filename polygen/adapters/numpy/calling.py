"""Calls: recorded where the operation is one that is recorded, and run at once otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import _getframe
from typing import Any

import numpy as np

from polygen.adapters.numpy.alone import counts, is_alone, run
from polygen.adapters.numpy.arrays import Array
from polygen.adapters.numpy.backends import NUMPY, active
from polygen.adapters.numpy.forcing import prepare_write, value_of
from polygen.adapters.numpy.nodes import PACKAGE, Node, known, noted, outside
from polygen.adapters.numpy.operations import KNOWN, ArrayForm, Operation, operation
from polygen.adapters.numpy.products import multiplied
from polygen.adapters.numpy.settings import Settings, current

_DEEPEST = 48  # operations that may be pending on the way to one: then it runs
_MOST_READ = 1024
_read: dict[tuple[type, type, Any], Any] = {}  # numbers, as operations read them
_GIVE_ARRAYS = frozenset(
    ["array", "asarray", "asanyarray", "ascontiguousarray", "copy", "zeros", "ones", "empty",
     "full", "zeros_like", "ones_like", "empty_like", "full_like", "reshape", "squeeze",
     "transpose", "view", "where"]
)  # fmt: skip


def recorded(name: str, operands: Sequence[Any], options: tuple[Any, ...] = ()) -> Array | None:
    """Record an operation.

    Args:
        name: of NumPy's function.
        operands: arrays and numbers, at least one of them an `Array`.
        options: of the operation, as `operations.operation` takes them.

    Returns:
        None: it is none that is recorded.
    """
    key: list[Any] = [name]
    args: list[Any] = []
    depth, numbers, shared = 0, False, False
    for operand in operands:
        kind = type(operand)
        if kind is Array:
            node = operand.node
            key.append(node.form)
            args.append(node)
            if node.depth > depth:
                depth = node.depth
        elif kind is float or kind is int or kind is bool:
            key.append(kind)
            args.append(operand)
            numbers = True
        elif isinstance(operand, np.generic):
            key.append(operand.dtype)
            args.append(operand)
            numbers = True
        else:
            array = made(operand)
            if array is None:
                return None
            shared = shared or array.node.value is operand
            key.append(array.node.form)
            args.append(array.node)
    key.extend(options)
    form = tuple(key)
    one = KNOWN.get(form) or operation(form)
    if one is None:
        return None
    if numbers:
        for place, arg in enumerate(args):
            if type(arg) is not Node:
                args[place] = read_as(arg, one.types[place])
        if any(arg is None for arg in args):
            return None
    found = kept(one, tuple(args), depth)
    if shared:
        value_of(found.node)  # whoever has an array that is none of ours may write to it next
    return found


def kept(one: Operation, args: tuple[Any, ...], depth: int) -> Array:
    """Record an operation; or run it, where recording it gains nothing.

    Args:
        one: the operation.
        args: nodes and numbers that it reads.
        depth: operations that are pending on the way to them.
    """
    frame: Any = _getframe(2)  # behind the function that asks; mostly the user's code
    if frame.f_globals.get("__package__") == PACKAGE:
        frame = outside(frame)
    place = None if frame is None else (frame.f_code, frame.f_lasti)
    if not depth:
        if place is not None:
            key = (place[0].co_firstlineno, place[1], one.family)
            if key in counts and is_alone(key):
                return Array(Node(one.form, None, (), 0, run(one, args), None), one.fixed)
    elif depth >= _DEEPEST:
        for arg in args:
            if type(arg) is Node:
                value_of(arg)
        depth = 0
    return Array(noted(one, args, depth, place), one.fixed)


def read_as(number: Any, kind: Any) -> Any:
    """A number as an operation reads it that reads `kind`, a class of NumPy's; None: it cannot.

    It keeps that type wherever it goes: what stands for a number of Python in a kernel that CuPy
    fuses takes the first type that it could be converted to, half precision for ``0.9``.
    """
    own = type(number)
    if kind is np.float64 and own is float:
        return kind(number)
    key = (kind, own, number or repr(number))  # zeros are equal, and have signs
    found = _read.get(key)
    if found is None:
        try:
            found = kind(number)
        except (OverflowError, ValueError):
            return None
        if len(_read) >= _MOST_READ:
            _read.clear()
        _read[key] = found
    return found


def made(operand: Any) -> Array | None:
    """What is no array yet as one: lists, and arrays of NumPy and the backend; None: it is none."""
    if isinstance(operand, np.ndarray | list | tuple | active().module.ndarray):
        return Array(known(active().module.asarray(unwrapped(operand))))
    return None


_AS_THEY_ARE = frozenset([int, float, bool, str, type(None), type(Ellipsis)])


_PARTS = frozenset([type(None), type(Ellipsis)])


def is_basic(key: Any) -> bool:
    """Whether an index gives a view, and always the same one: truth values and arrays do not."""
    for part in key if type(key) is tuple else (key,):
        kind = type(part)
        if kind is int:
            continue
        if kind is slice:
            start, stop, step = part.start, part.stop, part.step
            if start is not None and type(start) is not int:
                return False
            if stop is not None and type(stop) is not int:
                return False
            if step is not None and type(step) is not int:
                return False
        elif kind not in _PARTS:
            return False
    return True


def unwrapped(argument: Any) -> Any:
    """An argument with the backend's arrays for lazy ones, in lists and dictionaries too."""
    kind = type(argument)
    if kind is Array:
        return value_of(argument.node)
    if kind in _AS_THEY_ARE:
        return argument
    if kind is list or kind is tuple:
        return kind([unwrapped(part) for part in argument])
    if kind is dict:
        return {name: unwrapped(value) for name, value in argument.items()}
    if kind is slice:
        parts = argument.start, argument.stop, argument.step
        if Array not in map(type, parts):
            return argument
        return slice(*(part.__index__() if type(part) is Array else part for part in parts))
    if kind is np.ndarray and active().module is not np and argument.dtype.kind in "biufc":
        return active().module.asarray(argument)
    return argument


def wrapped(result: Any, *, fixed: bool = True) -> Any:
    """A result with lazy arrays for the backend's.

    Args:
        result: of a function of the backend.
        fixed: whether an array without axes is a number that never changes; NumPy's own are not,
            it has scalars.
    """
    module = active().module
    if isinstance(result, module.ndarray):
        node = known(result)
        return Array(node, fixed and not node.form[0] and module is not np)
    if isinstance(result, tuple):
        parts = [wrapped(part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, list):
        return [wrapped(part) for part in result]
    return result


def immediately(
    name: str, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Run a function of the backend at once.

    Args:
        name: of it, without its module.
        function: takes the backend's arrays.
        args: as the program gave them; where the function changes one, in place of it.
        options: by keyword; `out` is written to.
    """
    out = options.get("out")
    outs = [one for one in (out if isinstance(out, tuple) else (out,)) if type(one) is Array]
    plain_args, plain = unwrapped(tuple(args)), unwrapped(options)
    for one in outs:
        require_array(one)
        before_writing(one)
    result = function(*plain_args, **plain)
    if outs:
        return out if isinstance(out, tuple) and len(outs) > 1 else outs[0]
    for before, after in zip(args, plain_args, strict=True):
        if after is result and type(before) is Array:
            return before  # as asarray of an array does
    return wrapped(result, fixed=name not in _GIVE_ARRAYS)


def on_host(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Run a function of NumPy that the backend does not have; its arrays go back there."""
    args, options = _hosted(tuple(args)), _hosted(options)
    result = function(*args, **options)
    return wrapped(unwrapped(result)) if active() is not NUMPY else wrapped(result)


def _hosted(argument: Any) -> Any:
    if type(argument) is Array:
        return argument.get()
    if type(argument) in (list, tuple):
        return type(argument)(map(_hosted, argument))
    if type(argument) is dict:
        return {name: _hosted(value) for name, value in argument.items()}
    return argument


def before_writing(array: Array) -> Any:
    """The memory of an array that is going to be written: what still reads it, is computed.

    Returns:
        The backend's array.
    """
    value = value_of(array.node)
    prepare_write(value)
    return value


def require_array(out: Array) -> None:
    """Refuse to write to a number, in NumPy's words.

    Raises:
        TypeError: it is one.
    """
    if out.fixed:
        raise TypeError("return arrays must be of ArrayType")


def element(value: Any, key: Any) -> Any:
    """What an index gave: an array, or a number of its own even where it is a view.

    With an ellipsis it is an array, as in NumPy.
    """
    found = wrapped(value)
    if type(found) is Array and found.fixed:
        if Ellipsis in key if isinstance(key, tuple) else key is Ellipsis:
            found.fixed = False
        elif getattr(value, "base", None) is not None:
            found.node.borrow(value)
    return found


_MOST_PRODUCTS = 4096
# Of forms whose product is the library's: the settings for which it is, and the result's form.
_products: dict[tuple[ArrayForm, ArrayForm], tuple[Settings, ArrayForm]] = {}


def product(first: Any, second: Any) -> Any:
    """``first @ second``: recorded where kernels may have it, else the library's at once."""
    if type(first) is not Array or type(second) is not Array:
        return immediately("matmul", active().module.matmul, (first, second), {})
    one, other = first.node, second.node
    forms, settings = (one.form, other.form), current()
    seen = _products.get(forms)
    if seen is not None and seen[0] is not settings:
        seen = None
    if seen is None:
        found = _recorded_product(first, second)
        if found is not None:
            return found
    x = value_of(one) if one.value is None else one.value
    y = value_of(other) if other.value is None else other.value
    found = active().product(x, y, *forms)
    if seen is not None:
        return Array(Node(seen[1], None, (), 0, found, None))
    if type(found) is not type(one.value) or not found.shape:
        return wrapped(found)
    if len(_products) >= _MOST_PRODUCTS:
        _products.clear()
    node = known(found)
    _products[forms] = settings, node.form
    return Array(node)


def _recorded_product(first: Array, second: Array) -> Array | None:
    """A product that kernels may have, or one of two vectors as a sum; None: the library's."""
    one, other = first.node, second.node
    kind = one.form[1]
    if kind.char != "d" and multiplied(kind, current()):
        return recorded("matmul", (first, second))
    if one.form is other.form and len(one.form[0]) == 1 and active().sums(kind):
        found = recorded("multiply", (first, second))
        return None if found is None else recorded("sum", (found,), (None, False))
    return None
