"""Symbolic tensors: what the user's function is run on.

Operators, NumPy functions and polygen's functions on a `Traced` record nodes in its `Trace`.
Whatever would need a value (a condition, a loop, a conversion) raises TraceError and names the
alternative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from polygen.errors import DTypeError, ShapeError, TraceError, without_addresses
from polygen.frontend import multiplying
from polygen.frontend.describing import describe
from polygen.frontend.dtypes import ALWAYS_STORED, BOOL, DType
from polygen.frontend.dtypes import dtype as to_dtype
from polygen.frontend.folding import METHODS, folded, reduction
from polygen.frontend.gathering import index_array
from polygen.frontend.names import closest, full_name
from polygen.frontend.nodes import Node
from polygen.frontend.numpy_functions import (
    BITWISE,
    OF_VECTORS,
    REDUCED,
    UFUNCS,
    handler_of,
    made_of_traced,
)
from polygen.frontend.program import Dim
from polygen.frontend.shapes import shape_text
from polygen.frontend.symbolic import Size, Symbolic
from polygen.frontend.trace import Trace
from polygen.frontend.views import diagonal, permutation, repetition, subscript, swapped

_NEEDS_VALUE = "a traced value has no number yet: the function is run once, for every input at once"


class Traced(Symbolic):
    """A tensor of which the function's text, not its numbers, is known.

    It takes the operators and NumPy functions of an array. Dims are names or numbers.
    """

    __slots__ = ("node", "trace")

    def __init__(self, trace: Trace, node: Node) -> None:
        self.trace, self.node = trace, node

    def __repr__(self) -> str:
        return f"<traced {describe(self.node)}: {self.dtype}{shape_text(self.node.dims)}>"

    def apply(self, function: str, *args: Any) -> Any:
        """The traced value of a pointwise function of the table."""
        return self._of(self.trace.apply(function, *(self._plain(arg) for arg in args)))

    def _of(self, node: Node) -> Traced:
        return Traced(self.trace, node)

    def _plain(self, value: Any) -> Any:
        if not isinstance(value, Traced):
            return value
        if value.trace is not self.trace:
            raise TraceError(f"{describe(value.node)} belongs to another run of a traced function")
        return value.node

    def _view(self, axes: Sequence[int | None]) -> Traced:
        return self._of(self.trace.view(self.node, axes))

    def matmul(self, lhs: Any, rhs: Any) -> Traced:
        """The matrix product of two operands, one of which may be this value."""
        return self._of(multiplying.matmul(self.trace, self._plain(lhs), self._plain(rhs)))

    def einsum(self, subscripts: object, *operands: Any) -> Traced:
        """The contraction of one or two operands, one of which may be this value."""
        return self._of(multiplying.einsum(self.trace, subscripts, *map(self._plain, operands)))

    def grouped_matmul(self, x: Any, w: Any, ends: Any) -> Traced:
        """The product of rows in groups, each with its group's matrix; any may be this value."""
        return self._of(multiplying.grouped_matmul(self.trace, *map(self._plain, (x, w, ends))))

    def per_group(self, rows: Any, ends: Any, like: Any) -> Traced:
        """The row of its group for each row of `like`; any may be this value."""
        return self._of(multiplying.per_group(self.trace, *map(self._plain, (rows, ends, like))))

    def indices(self) -> tuple[Traced, ...]:
        """Where every element is: a value per axis, of this one's shape."""
        return tuple(map(self._of, self.trace.coordinates(self.node)))

    # --- what an array has
    @property
    def shape(self) -> tuple[Size | int, ...]:
        """The dims: numbers, or names that kernels know the numbers of."""
        return tuple(map(self._size, self.node.dims))

    def _size(self, dim: Dim) -> Size | int:
        if isinstance(dim, int):
            return dim
        return Size(dim, lambda: self._of(self.trace.extent(dim)))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.node.dims)

    @property
    def dtype(self) -> DType:
        """The element type; f32 for anything computed."""
        return self.node.dtype

    @property
    def T(self) -> Traced:  # noqa: N802 - NumPy's name
        """The transpose: all axes in reverse."""
        return self.transpose()

    @property
    def mT(self) -> Traced:  # noqa: N802 - NumPy's name
        """The transposes of the matrices in the last two axes."""
        if self.ndim < 2:
            raise ShapeError(
                f"the matrix transpose of {describe(self.node)}",
                why=f"it is {shape_text(self.node.dims)}, and a matrix has two axes",
            )
        return self.swapaxes(-2, -1)

    def swapaxes(self, axis1: Any, axis2: Any) -> Traced:
        """The same elements with two axes in each other's place."""
        return self._view(swapped(axis1, axis2, describe(self.node), self.ndim))

    def transpose(self, *axes: Any) -> Traced:
        """The axes in another order; reversed when no order is given."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        if not order or order == (None,):
            order = tuple(reversed(range(self.ndim)))
        return self._view(permutation(order, describe(self.node), self.ndim))

    def astype(self, dtype: object, **_: Any) -> Traced:
        """The values rounded to a dtype; as the last step it decides the output's dtype."""
        return self._of(self.trace.cast(self.node, to_dtype(dtype, ALWAYS_STORED)))

    def clip(self, lo: Any = None, hi: Any = None) -> Any:
        """The values limited to [lo, hi]; None leaves a side open."""
        if lo is None and hi is None:
            return self
        if lo is None:
            return self.apply("minimum", self, hi)
        return self.apply("maximum", self, lo) if hi is None else self.apply("clip", self, lo, hi)

    def reshape(self, *shape: Any) -> Traced:
        """The same elements under other axes; one dim may be -1.

        Axes of size 1 come and go, and axes whose sizes are numbers are split and merged.
        """
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return self._of(self.trace.reshape(self.node, dims))

    def squeeze(self, axis: Any = None) -> Any:
        """The same elements without axes of one index."""
        return np.squeeze(self, axis)

    def windows(self, shape: Any, axis: Any = None) -> Traced:
        """NumPy's sliding windows: the same elements, with axes for those of a window."""
        return self._of(self.trace.windows(self.node, shape, axis))

    def pad(self, width: Any, value: Any = 0) -> Traced:
        """The elements with zeros around them, which products read."""
        return self._of(self.trace.pad(self.node, width, value))

    def repeat(self, repeats: Any, axis: Any = None) -> Traced:
        """Every element along an axis `repeats` times, one after the other."""
        return self._of(self.trace.repeat(self.node, *repetition(repeats, axis, self.node.dims)))

    def triangle(self, k: Any, *, below: bool) -> Any:
        """The elements on a diagonal and below it, or above it; zeros elsewhere."""
        first = diagonal(k, describe(self.node), self.node.dims)
        row, column = self.indices()[-2:]
        inside = column <= row + first if below else column >= row + first
        return self.apply("where", inside, self, 0.0)

    def __getitem__(self, key: Any) -> Traced:
        found = self.picked(key)
        if found is not None:
            return self._of(found.node)
        indices = index_array(key, describe(self.node), self.node.dims)
        if indices is not None:
            return self._of(self.trace.gather(self.node, self._plain(indices)))
        return self._of(
            self.trace.reach(self.node, *subscript(key, describe(self.node), self.node.dims))
        )

    # --- reductions
    def fold(self, function: str, axis: Any = None, keepdims: bool = False) -> Traced:
        """A reduction along axes, by the name of NumPy's function or `logsumexp`."""
        return self._of(folded(self.trace, self.node, function, axis, bool(keepdims)))

    sum, prod, max, min, mean, all, any, argmax, argmin = map(reduction, METHODS)
    var, std = (made_of_traced("statistics", name) for name in ("var", "std"))
    diagonal, picked = (made_of_traced("selecting", name) for name in ("diagonal", "picked"))

    # --- matmul, logic on bool
    def __matmul__(self, other: Any) -> Traced:
        return self.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Traced:
        return self.matmul(other, self)

    def dot(self, other: Any) -> Traced:
        """The matrix product."""
        return self.matmul(self, other)

    def _bits(self, function: str, *args: Any) -> Any:
        for arg in args:
            if isinstance(arg, Traced) and arg.dtype != BOOL:
                raise DTypeError(
                    f"bit operation on {describe(arg.node)}, which is {arg.dtype}",
                    nearest="& | ~ combine comparisons",
                )
        return self.apply(function, *args)

    def __and__(self, other: Any) -> Any:
        return self._bits("logical_and", self, other)

    def __or__(self, other: Any) -> Any:
        return self._bits("logical_or", self, other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Any:
        return self._bits("logical_not", self)

    def _no_operator(self, other: Any) -> NoReturn:
        raise TraceError(
            f"an operator on {describe(self.node)} that is not in the vocabulary",
            why="// % ^ << >> and divmod are not supported",
            nearest="There are + - * / ** @, comparisons, and & | ~ of comparisons",
        )

    __floordiv__ = __mod__ = __divmod__ = __xor__ = __lshift__ = __rshift__ = _no_operator
    __rfloordiv__ = __rmod__ = __rdivmod__ = __rxor__ = __rlshift__ = __rrshift__ = _no_operator

    # --- NumPy's protocols
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **keywords: Any) -> Any:
        name = ufunc.__name__
        if method == "reduce" and ufunc in REDUCED:
            return reduction(REDUCED[ufunc])(*args, **{"axis": 0} | keywords)
        if method != "__call__":
            reduces = method in ("reduce", "accumulate", "reduceat")
            raise TraceError(
                f"polygen has no `np.{name}.{method}`",
                why="a reduction is not supported yet" if reduces else "",
                nearest=f"There is `np.{name}` itself",
            )
        if name in OF_VECTORS and set(keywords) <= {"axis"}:
            return OF_VECTORS[name](*args, **keywords)
        if keywords:
            raise TraceError(f"np.{name} with {', '.join(keywords)}=", nearest="Leave it out")
        if ufunc is np.matmul:
            return self.matmul(*args)
        if ufunc is np.positive:
            return self
        if ufunc in BITWISE:
            return self._bits(BITWISE[ufunc], *args)
        if ufunc not in UFUNCS:
            raise TraceError(f"polygen has no `np.{name}`", nearest=closest(name))
        return self.apply(UFUNCS[ufunc], *args)

    def __array_function__(self, function: Any, types: Any, args: Any, keywords: Any) -> Any:
        name = function.__name__
        handler = handler_of(function)
        if handler is None:
            raise TraceError(f"polygen has no `{full_name(function)}`", nearest=closest(name))
        try:
            return handler(*args, **keywords)
        except TypeError as error:
            raise TraceError(
                f"np.{name} is called with arguments it does not take here",
                why=without_addresses(str(error)),
                nearest="Leave out what no operand needs",
            ) from error

    # --- what a traced value cannot do
    def _refuse(self, doing: str, nearest: str) -> NoReturn:
        raise TraceError(f"{doing} {describe(self.node)}", why=_NEEDS_VALUE, nearest=nearest)

    def __bool__(self) -> bool:
        self._refuse(
            "a condition (if, while, and, or, not, min, max, a chained comparison) on",
            "Use pg.where(condition, a, b), np.minimum, np.maximum or np.logical_and; "
            "np.arange of a size is pg.indices of a value",
        )

    def __iter__(self) -> NoReturn:
        self._refuse("a loop over", "Write whole-array operations; pg.where selects")

    def __len__(self) -> int:
        self._refuse("len() of", "Use pg.where to select; .shape gives the dims")

    def __float__(self) -> float:
        self._refuse("float() or a math function of", "Use pg.exp, np.exp, pg.where and so on")

    def __int__(self) -> int:
        self._refuse("int() of", 'Use .astype("s8") to round, pg.where to select')

    def __index__(self) -> int:
        self._refuse("an index made from", "Use pg.where to select")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("a NumPy array made from", "Keep to functions of traced values")

    def __setitem__(self, key: Any, value: Any) -> None:
        rows = index_array(key, describe(self.node), self.node.dims)
        if rows is None:
            self._refuse(
                "an assignment into",
                "Use pg.where(condition, new, old); out[rows] = value stores rows that a vector "
                "of s32 names",
            )
        self.trace.assign(self.node, self._plain(rows), self._plain(value))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # protocols and notebooks ask with hasattr
            raise AttributeError(name)
        raise TraceError(
            f"polygen has no `.{name}` of {describe(self.node)}", nearest=closest(name, method=True)
        )
