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
    read_as,
    recorded,
    require_array,
    unwrapped,
    wrapped,
)
from polygen.adapters.numpy.forcing import store, value_of
from polygen.adapters.numpy.memory import are_apart, is_same
from polygen.adapters.numpy.nodes import Node, known
from polygen.adapters.numpy.operations import KNOWN, ArrayForm, Operation, operation
from polygen.adapters.numpy.planning import plan
from polygen.adapters.numpy.steps import Member

_OFTEN = 8  # updates in place of a form, before there is a kernel for them
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


def update(self: Array, name: str, operate: Callable[[Array, Any], Any], other: Any) -> Any:
    """``self op= other``, with NumPy's rules for shapes and types; or NotImplemented.

    Args:
        self: is written to.
        name: of the function.
        operate: the operation out of place.
        other: the operand.
    """
    own, lazy = _is_alone(self), type(other) is Array
    if own or name == "matmul":
        pass
    elif lazy and other.node.value is None:
        there, form = self.node, self.node.form
        one = KNOWN.get((name, form, other.node.form))
        if one is not None and one.form is form:
            node = Node(form, one, (there, other.node), other.node.depth + 1, None, None)
            if store(there, node, unseen=True, passing=sys.getrefcount(other) <= _PASSING):
                return self
    else:
        plain = other.node.value if lazy else unwrapped(other)
        target, backend = before_writing(self), active()
        if plain is target or are_apart(plain, target, backend):
            if not (backend.updates and _updated(name, self.node.form, other, target, backend)):
                getattr(backend.module, name)(target, plain, out=target)
            return self
    found = _operated(self, name, operate, other)
    if found is None:
        return NotImplemented
    node = found.node
    if node.form is self.node.form:
        if own:
            return _carried_on(self, node)
        if node.value is None and store(self.node, node):
            return self
    return assign(self, found)


def _updated(name: str, form: ArrayForm, other: Any, target: Any, backend: Any) -> bool:
    """Write ``x op y`` to the memory of ``x`` by a kernel, where one is worth compiling.

    Args:
        name: of the function.
        form: of ``x``.
        other: ``y``: whatever the program has there.
        target: the backend's array of ``x``.
        backend: runs it.

    Returns:
        Whether it was done: not where the result is of another form or type than ``x``, nor the
        first times.
    """
    kind = type(other)
    if kind is not Array and kind is not float and kind is not int:
        return False
    key = (name, form, other.node.form if kind is Array else kind)
    one = KNOWN.get(key) or operation(key)
    if one is None or one.form is not form:
        return False
    place = ("update", backend)
    run = one.ways.get(place, 0)
    if type(run) is int:
        one.ways[place] = run + 1 if run < _OFTEN else _update(one, backend)
        return False
    operand = other.node.value if kind is Array else read_as(other, one.types[1])
    if operand is None:
        return False
    run(target, operand)
    return True


def _update(one: Operation, backend: Any) -> Callable[..., Any]:
    """What runs an operation, and writes its result to the memory of its first operand."""
    store = operation(("store", one.form, one.form))
    assert store is not None, "what is recorded can be written"
    members = [Member(2, one, (0, 1)), Member(3, store, (0, 2))]
    (step,) = plan(members, frozenset(), (), backend)
    return step.run if step.reads == (0, 1) else lambda x, y: step.run(y, x)


def _operated(
    self: Array, name: str, operate: Callable[[Array, Any], Any], other: Any
) -> Array | None:
    """What is to be assigned, of a shape and type that can be; None: Python asks on.

    Raises:
        ValueError, TypeError: NumPy's own.
    """
    try:
        found = operate(self, other)
    except (TypeError, ValueError):
        _refuse(self, name, other)
        raise
    if type(found) is Array and fits(found, self):
        return found
    _refuse(self, name, other)
    return None


def fits(found: Array, out: Array) -> bool:
    """Whether functions may write a result to an array: NumPy's "same kind" of type is enough."""
    form, wanted = found.node.form, out.node.form
    if form is wanted:
        return True
    return form[0] == wanted[0] and np.can_cast(form[1], wanted[1], "same_kind")


def _refuse(self: Array, name: str, other: Any) -> None:
    """Let NumPy say what is wrong first, about arrays without memory of such shapes and types."""
    if type(other) is Array:
        other = np.broadcast_to(np.zeros((), other.dtype), other.shape)
    plain = np.broadcast_to(np.zeros((), self.dtype), self.shape)
    getattr(np, name)(plain, other, out=np.empty(self.shape, self.dtype))


def assign(self: Array, found: Array) -> Array:
    """``self[...] = found``, of what fits there.

    Raises:
        TypeError: a number is none that can be written to.
    """
    require_array(self)
    dtype = self.node.form[1]
    if found.node.form[1] != dtype:
        found = astype(found, dtype)
    if _is_alone(self):
        return _carried_on(self, found.node)
    write(self, Ellipsis, found)
    return self


def _carried_on(self: Array, node: Node) -> Array:
    """An array that nobody else sees, as another value."""
    self.node = node
    if node.depth >= _DEEP:
        value_of(node)
    return self


def _is_alone(self: Array) -> bool:
    """Whether nothing but this array sees its memory."""
    if not self.node.form[0]:
        return False  # what NumPy computes without axes is a scalar, which has no memory
    value, backend = self.node.value, active()
    if value is None or self.node.borrowed:
        return True
    if self.part is not None and self.part[2] is value:
        return False  # it is a view
    if not isinstance(value, backend.module.ndarray) or not backend.is_sole(value):
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


def _counted_passing() -> int:
    """What `update` counts for an operand that its statement alone has; 0: as for one of a name.

    The calls are those that lead there.
    """
    found: list[int] = []

    def counted(self: Any, name: str, operate: Any, other: Any) -> Any:
        found.append(sys.getrefcount(other))
        return self

    def method(self: Any, other: Any) -> Any:
        return counted(self, "", None, other)

    probe: Any = type("Probe", (), {"__isub__": method})
    target, named = probe(), probe()
    target -= probe()
    target -= named
    passing, other = found
    return passing if passing < other else 0


_PASSING = _counted_passing()


def write(self: Array, key: Any, new: Any) -> None:
    """``self[key] = new``; ``a[key] += x`` ends with one that writes elements to themselves."""
    if self.fixed:
        raise TypeError(f"'numpy.{self.dtype.name}' object does not support item assignment")
    if type(new) is Array and new.part is not None:
        value, index, view = new.part
        if index is key and value is self.node.value and view is new.node.value:
            return
    basic = key is Ellipsis or is_basic(key)
    if not basic:
        key = unwrapped(key)
    elif type(new) is Array:
        node = new.node
        if node.value is None:
            value = value_of(self.node)
            if store(self.node if key is Ellipsis else known(value[key]), node):
                return
    new = unwrapped(new)
    if basic and isinstance(new, active().module.ndarray) and new.base is not None:
        target = value_of(self.node)
        if is_same(target[key], new, active()):
            return
    before_writing(self)[key] = new
