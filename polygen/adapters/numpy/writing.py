"""Writing to arrays: in place, by index, and to `out`.

An array that nobody else's memory is part of is not written to; it points to a new value, which is
recorded like any other. Where others see its memory (views, NumPy's own arrays), what is pending
and reads it is computed first, and then it is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.adapters.numpy.arrays import Array
from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.calling import (
    before_writing,
    is_basic,
    recorded,
    require_array,
    unwrapped,
    wrapped,
)
from polygen.adapters.numpy.forcing import store, value_of
from polygen.adapters.numpy.memory import are_apart, is_same, memory_of
from polygen.adapters.numpy.nodes import known

_DEEP = 8  # pending operations at which an update in place is run: loops carry its array on


def astype(self: Array, dtype: Any, order: str = "K", casting: str = "unsafe",
           subok: bool = True, copy: bool = True) -> Any:  # fmt: skip
    """The array with elements of another type; as NumPy's."""
    wanted = np.dtype(dtype)
    if not copy and wanted == self.dtype:
        return self
    found = None
    if order == "K" and casting == "unsafe":
        found = recorded("astype", (self,), (wanted,))
    if found is None:
        plain = value_of(self.node)
        found = wrapped(plain.astype(dtype, order=order, casting=casting, copy=copy))
    if type(found) is Array:
        found.fixed = self.fixed
    return found


def update(self: Array, name: str, operate: Callable[[Array, Any], Any], other: Any) -> Array:
    """``self op= other``, with NumPy's rules for shapes and types.

    Args:
        self: is written to.
        name: of the function.
        operate: the operation out of place.
        other: the operand.
    """
    if name == "matmul" or _is_alone(self):
        return assign(self, operate(self, other))
    lazy = type(other) is Array
    if not lazy or other.node.value is not None:
        plain = other.node.value if lazy else unwrapped(other)
        target, backend = before_writing(self), active()
        if plain is target or are_apart(plain, target, backend):
            getattr(backend.module, name)(target, plain, out=target)
            return self
        return assign(self, operate(self, other))
    found = operate(self, other)
    same = type(found) is Array and found.node.form is self.node.form
    if same and found.node.value is None and store(self.node, found.node):
        return self
    return assign(self, found)


def assign(self: Array, found: Array) -> Array:
    """``self[...] = found``, as functions with `out` do: NumPy's "same kind" of type is enough.

    Raises:
        ValueError, TypeError: NumPy's own, where the array cannot have it.
    """
    require_array(self)
    shape, dtype = self.node.form
    form = found.node.form
    if form[0] != shape or not (form[1] is dtype or np.can_cast(form[1], dtype, "same_kind")):
        # NumPy words the error; of a broadcast array, which has no memory.
        new = np.broadcast_to(np.zeros((), found.dtype), found.shape)
        np.positive(new, out=np.empty(shape, dtype))
    if form[1] is not dtype and form[1] != dtype:
        found = astype(found, dtype)
    if _is_alone(self):
        self.node = found.node
        if self.node.depth >= _DEEP:
            value_of(self.node)
    else:
        write(self, Ellipsis, found)
    return self


def _is_alone(self: Array) -> bool:
    """Whether nothing but this array sees its memory."""
    if not self.node.form[0]:
        return False  # what NumPy computes without axes is a scalar, which has no memory
    value = self.node.value
    if value is None or self.node.borrowed:
        return True
    if getattr(value, "base", None) is not None or not hasattr(value, "strides"):
        return False
    return _seen(value) <= _ALONE


def _seen(value: Any) -> int:
    return sys.getrefcount(value)


def _counted_alone() -> int:
    """What `_seen` gives for a value that only its node and `_is_alone` hold."""
    node = known(np.empty(1))
    value = node.value
    return _seen(value)


_ALONE = _counted_alone()


def write(self: Array, key: Any, new: Any) -> None:
    """``self[key] = new``; ``a[key] += x`` ends with one that writes elements to themselves."""
    if self.fixed:
        raise TypeError(f"'numpy.{self.dtype.name}' object does not support item assignment")
    basic = key is Ellipsis or is_basic(key)
    if not basic:
        key = unwrapped(key)
    elif type(new) is Array:
        node, part = new.node, new.part
        if part is not None and part[1] is key:
            if part[0] is self.node.value and part[2] is node.value:
                return
        if node.value is None:
            value = value_of(self.node)
            part = self.node if key is Ellipsis else known(value[key])
            if store(part, node):
                return
    new = unwrapped(new)
    if basic and getattr(new, "base", None) is not None:
        target = value_of(self.node)
        if memory_of(new) is memory_of(target) and is_same(target[key], new, active()):
            return
    before_writing(self)[key] = new
