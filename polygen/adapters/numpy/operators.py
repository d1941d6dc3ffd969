"""What an `Array` does as an operand: attached to it here, because it is done by `calling`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from polygen.adapters.numpy.arrays import Array
from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.calling import (
    before_writing,
    element,
    immediately,
    kept,
    product,
    read_as,
    recorded,
    unwrapped,
    wrapped,
)
from polygen.adapters.numpy.forcing import value_of
from polygen.adapters.numpy.nodes import Node
from polygen.adapters.numpy.operations import FOLDS, KNOWN, form_of
from polygen.adapters.numpy.writing import astype, update, write

BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
COMPARED = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
_POWERS: dict[float, str] = {2: "square", 0.5: "sqrt", -1: "reciprocal"}
_WITH_TYPE = ("sum", "prod", "mean", "var", "std")
_CHANGING = ("fill", "sort", "partition", "put", "resize", "byteswap", "setflags", "flat")


def pointwise(name: str, *operands: Any) -> Any:
    """Record a pointwise operation, or run it where it is none that is recorded."""
    found = recorded(name, operands)
    if found is None:
        if name == "power" and type(operands[0]) is Array:
            _check_exponent(*operands)
        return immediately(name, getattr(active().module, name), operands, {})
    return found


def _check_exponent(base: Any, exponent: Any, *_: Any) -> None:
    """Refuse a number below zero as the exponent of integers, which CuPy does not.

    Raises:
        ValueError: NumPy's own.
    """
    if active().module is np or not isinstance(exponent, int | np.integer) or exponent >= 0:
        return
    if base.size:
        np.power(np.ones(1, base.dtype), exponent)


def _operand(other: Any) -> bool:
    """Whether something is an operand of arithmetic; if not, Python asks it."""
    return isinstance(other, Array | int | float | complex | np.generic | np.ndarray | list | tuple)


def binary(name: str) -> Callable[[Array, Any], Any]:
    """The method of an operator with two operands; gives NotImplemented where Python asks on."""

    def method(self: Array, other: Any) -> Any:
        first, kind = self.node, type(other)  # what `recorded` does, of what is asked most
        if kind is Array:
            second = other.node
            one = KNOWN.get((name, first.form, second.form))
            if one is not None:
                depth = first.depth if first.depth > second.depth else second.depth
                return kept(one, (first, second), depth)
        elif kind is float or kind is int:
            one = KNOWN.get((name, first.form, kind))
            number = None if one is None else read_as(other, one.types[1])
            if one is not None and number is not None:
                return kept(one, (first, number), first.depth)
        found = recorded(name, (self, other))
        if found is not None:
            return found
        return pointwise(name, self, other) if _operand(other) else NotImplemented

    return method


def _reflected(name: str) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any) -> Any:
        kind = type(other)
        if kind is float or kind is int:
            second = self.node
            one = KNOWN.get((name, kind, second.form))
            number = None if one is None else read_as(other, one.types[0])
            if one is not None and number is not None:
                return kept(one, (number, second), second.depth)
        return pointwise(name, other, self) if _operand(other) else NotImplemented

    return method


def unary(name: str) -> Callable[[Array], Any]:
    """The method of an operator with one operand."""

    def method(self: Array) -> Any:
        node = self.node
        one = KNOWN.get((name, node.form))
        return pointwise(name, self) if one is None else kept(one, (node,), node.depth)

    return method


_EASY_POWERS = {exponent: unary(name) for exponent, name in _POWERS.items()}


def _power(self: Array, exponent: Any) -> Any:
    """Numbers that have a function of their own run that, as in NumPy."""
    kind, real = type(exponent), self.node.form[1].kind == "f"
    if (kind is float or kind is int) and exponent in _POWERS:
        whole = kind is int and exponent == 2 and self.node.form[1].kind in "iu"
        if real or whole:
            return _EASY_POWERS[exponent](self)
    if not _operand(exponent):
        return NotImplemented
    found = recorded("power", (self, exponent))
    if found is None:
        _check_exponent(self, exponent)
        return immediately("power", operator.pow, (self, exponent), {})  # not always `np.power`
    return found


def _in_place(operate: Callable[[Array, Any], Any], name: str) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any) -> Any:
        if self.fixed:
            return operate(self, other)
        return update(self, name, operate, other)

    return method


# --- indices, views -------------------------------------------------------------------------------
_INTEGER = frozenset([int])
_VIEWED = frozenset([int, slice, type(None), type(Ellipsis)])  # parts of indices that give views


def _item(self: Array, key: Any) -> Any:
    node = self.node
    value = node.value
    if value is None or node.borrowed:
        value = value_of(node)
    if not (_VIEWED.issuperset(map(type, key)) if type(key) is tuple else type(key) in _VIEWED):
        key = unwrapped(key)
        return element(value[key], key)
    view = value[key]
    shape = view.shape
    if shape:
        found = Array(Node(form_of(shape, node.form[1]), None, (), 0, view, None))
    elif type(view) is type(value) and type(view) is not np.ndarray and _is_places(key):
        found = Array(Node(form_of((), node.form[1]), None, (), 0, None, None), True)
        found.node.borrow(view)
    else:
        found = element(view, key)
        if type(found) is not Array:
            return found
    found.part = (value, key, view)
    return found


def _is_places(key: Any) -> bool:
    """Whether an index is numbers alone: of what has an ellipsis NumPy makes an array."""
    if type(key) is not tuple:
        return type(key) is int
    return _INTEGER.issuperset(map(type, key))


def _iterated(self: Array) -> Iterator[Any]:
    if not self.shape:
        raise TypeError("iteration over a 0-d array")
    if self.ndim == 1:
        return iter(self.get().copy())  # numbers: one copy for all
    return (_item(self, place) for place in range(len(self)))


def _contains(self: Array, one: Any) -> bool:
    return bool((self == one).any())


def fold(name: str, array: Array, axis: Any, keepdims: Any, rest: dict[str, Any]) -> Any:
    """A fold: recorded where it has no other options, else run at once."""
    if not rest and isinstance(keepdims, bool):
        if axis is not None and type(axis) is not int:
            several = isinstance(axis, tuple | list)
            axis = tuple(map(operator.index, axis)) if several else operator.index(axis)
        if name in ("var", "std") and array.dtype.char in "fd" and array.size:
            return _variance(name, array, axis, keepdims)
        found = recorded(name, (array,), (axis, keepdims))
        if found is not None:
            return found
    rest = rest | ({"axis": axis} if axis is not None else {})
    rest = rest | ({"keepdims": keepdims} if keepdims else {})
    return immediately(name, getattr(active().module, name), (array,), rest)


def _variance(name: str, array: Array, axis: Any, keepdims: bool) -> Any:
    """As NumPy computes it, in operations that fuse."""
    apart = pointwise("subtract", array, fold("mean", array, axis, True, {}))
    found = fold("mean", pointwise("multiply", apart, apart), axis, keepdims, {})
    return pointwise("sqrt", found) if name == "std" else found


def _fold(name: str) -> Callable[..., Any]:
    def method(
        self: Array, axis: Any = None, *args: Any, keepdims: Any = False, **rest: Any
    ) -> Any:
        plain = type(keepdims) is bool and (axis is None or type(axis) is int)
        if plain and not args and not rest:
            node = self.node
            one = KNOWN.get((name, node.form, axis, keepdims))
            if one is not None:
                return kept(one, (node,), node.depth)
        if args:
            more = ("dtype", "out") if name in _WITH_TYPE else ("out",)
            rest = dict(zip(more, args, strict=False)) | rest
        rest = {option: value for option, value in rest.items() if value is not None}
        return fold(name, self, axis, keepdims, rest)

    method.__name__ = name
    return method


def _other(self: Array, name: str) -> Any:
    """Whatever else arrays have: the backend's, on the value."""
    if name.startswith("__"):
        raise AttributeError(name)
    value = before_writing(self) if name in _CHANGING else value_of(self.node)
    found = getattr(value, name)
    if not callable(found):
        return wrapped(found)

    def method(*args: Any, **options: Any) -> Any:
        return immediately(name, found, args, options)

    return method


def _copied(self: Array, *_: Any) -> Any:
    return wrapped(value_of(self.node).copy(), fixed=self.fixed)


def _transposed(self: Array) -> Any:
    (shape, dtype), value = self.node.form, value_of(self.node).T
    return Array(Node(form_of(shape[::-1], dtype), None, (), 0, value, None), self.fixed)


def _attach() -> None:
    for short, name in BINARY.items():
        operate = _power if short == "pow" else binary(name)
        setattr(Array, f"__{short}__", operate)
        setattr(Array, f"__r{short}__", _reflected(name))
        setattr(Array, f"__i{short}__", _in_place(operate, name))
    for short, name in COMPARED.items():
        setattr(Array, f"__{short}__", binary(name))
    for short, name in UNARY.items():
        setattr(Array, f"__{short}__", unary(name))
    for name in FOLDS:
        setattr(Array, name, _fold(name))
    methods: dict[str, Any] = {
        "__matmul__": product, "__rmatmul__": lambda self, other: product(other, self),
        "__imatmul__": _in_place(product, "matmul"), "dot": _dot,
        "__getitem__": _item, "__setitem__": write, "__iter__": _iterated,
        "__contains__": _contains, "__getattr__": _other, "astype": astype, "copy": _copied,
        "__copy__": _copied, "__deepcopy__": _copied,
        "T": property(_transposed),
    }  # fmt: skip
    for name, method in methods.items():
        setattr(Array, name, method)


def _dot(self: Array, other: Any) -> Any:
    return dot(self, other)


def dot(first: Any, second: Any) -> Any:
    """NumPy's `dot`: of matrices it is their product."""
    if type(first) is Array and type(second) is Array and first.ndim == second.ndim == 2:
        return product(first, second)
    return immediately("dot", active().module.dot, (first, second), {})


_attach()
