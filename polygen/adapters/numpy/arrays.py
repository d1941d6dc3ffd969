"""`Array`: what `numpy.ndarray` is in a program that runs through this adapter.

It points to a node. What Python and other libraries ask of it that needs a value is here; what it
does as an operand is in `operators`, and is attached there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polygen.adapters.numpy.backends import active
from polygen.adapters.numpy.forcing import compared, compares, read, value_of
from polygen.adapters.numpy.nodes import Node, known
from polygen.adapters.numpy.operations import Shape


class Array:
    """A lazy array.

    Attributes:
        node: the value, there or pending.
        fixed: whether it is a single number that NumPy would give as a scalar: it never changes,
            ``x += 1`` makes another one.
        part: an array of the backend, an index, and the view there, which this is: ``a[i] += x``
            ends with ``a[i] = a[i]``.
    """

    __slots__ = ("__weakref__", "fixed", "node", "part")
    __array_priority__ = 1000.0

    def __init__(self, node: Node, fixed: bool = False) -> None:
        self.node, self.fixed = node, fixed
        self.part: tuple[Any, Any, Any] | None = None

    # --- what is known without a value ------------------------------------------------------------
    @property
    def shape(self) -> Shape:
        """Extents."""
        return self.node.form[0]

    @shape.setter
    def shape(self, shape: Any) -> None:
        self.node = known(value_of(self.node).reshape(shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self.node.form[1]

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.node.form[0])

    @property
    def size(self) -> int:
        """How many elements it has."""
        total = 1
        for extent in self.node.form[0]:
            total *= extent
        return total

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.node.form[1].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def __len__(self) -> int:
        if not self.node.form[0]:
            raise TypeError("len() of unsized object")
        return self.node.form[0][0]

    # --- values -----------------------------------------------------------------------------------
    def value(self) -> Any:
        """The backend's array; what is pending is computed."""
        return value_of(self.node)

    def get(self) -> np.ndarray[Any, Any]:
        """The elements as an array of NumPy, a copy where there is a GPU."""
        node = self.node
        if node.value is None and compares(node):
            return compared(node)
        found: np.ndarray[Any, Any] = active().host(read(node))
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.get(), dtype=dtype, copy=True if copy is None else copy)

    @property
    def __cuda_array_interface__(self) -> Any:
        return value_of(self.node).__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return value_of(self.node).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return value_of(self.node).__dlpack_device__()

    def item(self, *place: Any) -> Any:
        """One element as a number of Python."""
        return self.get().item(*place)

    def tolist(self) -> Any:
        """Nested lists of Python's numbers."""
        return self.get().tolist()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __hash__(self) -> int:
        if not self.fixed:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        return hash(self.item())

    def __format__(self, form: str) -> str:
        return format(self.get()[()] if self.fixed else self.get(), form)

    def __str__(self) -> str:
        return str(self.get()[()] if self.fixed else self.get())

    def __repr__(self) -> str:
        return repr(self.get()[()] if self.fixed else self.get())

    def __reduce__(self) -> Any:
        return np.array, (self.get(),)
