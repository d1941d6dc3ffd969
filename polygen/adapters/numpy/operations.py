"""Which functions of NumPy are recorded, and the types and shapes of their results: NumPy's own.

An operation is asked for by name, by the forms of its operands (shape and type of arrays, Python's
type of a number, which takes the type of what it meets, and NumPy's type of a NumPy scalar), and by
its options. The same question has the same answer, one object, so that recorded graphs are compared
by these objects alone. What is not recorded has no operation: it runs at once, and NumPy or CuPy
say themselves what is wrong with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

# Elementwise functions of one result that NumPy and CuPy both have, as ufuncs.
_POINTWISE = """
    add subtract multiply divide true_divide floor_divide remainder mod fmod power
    negative positive absolute abs fabs sign square sqrt cbrt reciprocal exp exp2 expm1
    log log2 log10 log1p logaddexp sin cos tan arcsin arccos arctan arctan2 sinh cosh
    tanh arcsinh arccosh arctanh hypot floor ceil trunc rint maximum minimum fmax fmin
    copysign less less_equal greater greater_equal equal not_equal logical_and logical_or
    logical_xor logical_not bitwise_and bitwise_or bitwise_xor invert isnan isinf isfinite
"""
POINTWISE = frozenset(_POINTWISE.split())
COMPARISONS = frozenset(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
_FOLDS = "sum prod mean max min any all var std argmax argmin"
FOLDS = frozenset(_FOLDS.split())
_KINDS = frozenset("biuf")  # no complex numbers, objects, texts or times
_MOST = 1 << 16

Shape = tuple[int, ...]


class ArrayForm(tuple[Shape, np.dtype[Any]]):
    """Shape and type of an array: one object for all arrays of them, compared by being it."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


Form = Any  # an `ArrayForm`, int or float, or a dtype
_forms: dict[tuple[Shape, np.dtype[Any]], ArrayForm] = {}


def form_of(shape: Shape, dtype: np.dtype[Any]) -> ArrayForm:
    """The form of arrays of a shape and a type."""
    found = _forms.get((shape, dtype))
    if found is None:
        if len(_forms) >= _MOST:
            _forms.clear()  # forms that are in use stay what they are, and are asked about anew
        found = _forms[shape, dtype] = ArrayForm((shape, dtype))
    return found


_families: dict[Any, int] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One function on operands of certain forms.

    Attributes:
        kind: "pointwise", "fold" or "product".
        name: of NumPy's function; "clip", "where", "astype", and "store", which writes its second
            operand to the memory of the first, besides.
        loop: the types in which it reads its operands.
        dtype: of its result.
        shape: of its result.
        axis: of a fold; None: all.
        keepdims: of a fold.
        shapes: of the operands; () of numbers.
        direct: whether the function itself chooses this loop for arrays and Python's numbers; not
            where a number of NumPy's is of a type that arrays are converted to.
        form: of its result.
        types: NumPy's classes of the types in which it reads its operands.
        fixed: whether NumPy gives a scalar, which never changes.
        family: a number that operations have in common which do the same to about as many elements.
        ways: what runs it alone, on operands that are not the same, by backend.
    """

    kind: str
    name: str
    loop: tuple[np.dtype[Any], ...]
    dtype: np.dtype[Any]
    shape: Shape
    axis: Any = None
    keepdims: bool = False
    shapes: tuple[Shape, ...] = ()
    direct: bool = True
    form: ArrayForm = field(init=False)
    types: tuple[type, ...] = field(init=False)
    fixed: bool = field(init=False)
    family: int = field(init=False)
    ways: dict[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "form", form_of(self.shape, self.dtype))
        put(self, "types", tuple(dtype.type for dtype in self.loop))
        put(self, "ways", {})
        put(self, "fixed", not self.shape and self.name != "where")
        read = max((math.prod(shape) for shape in self.shapes), default=1)
        sizes = self.size.bit_length(), read.bit_length(), tuple(map(len, self.shapes))
        key = (self.kind, self.name, self.loop, self.dtype, self.axis, self.keepdims, *sizes)
        put(self, "family", _families.setdefault(key, len(_families)))

    @property
    def size(self) -> int:
        """How many elements the result has."""
        return math.prod(self.shape)


KNOWN: dict[Any, Operation] = {}  # by what `operation` is asked; looked at before it
_unknown: set[Any] = set()


def operation(key: tuple[Any, ...]) -> Operation | None:
    """The operation of a name, the operands' forms and options, in one tuple.

    Args:
        key: ("add", form, form), ("sum", form, axis, keepdims), ("astype", form, dtype),
            ("where", form, form, form), ("matmul", form, form).

    Returns:
        None: it is not recorded.
    """
    if key in _unknown:
        return None
    found = KNOWN.get(key) or _inferred(key)
    for kept in (KNOWN, _unknown):
        if len(kept) >= _MOST:
            kept.clear()
    if found is None:
        _unknown.add(key)
    else:
        KNOWN[key] = found
    return found


def _inferred(key: tuple[Any, ...]) -> Operation | None:
    name, *rest = key
    try:
        if name in FOLDS:
            return _fold(name, *rest)
        if name == "matmul":
            return _product(*rest)
        return _pointwise(name, rest)
    except (TypeError, ValueError, np.exceptions.AxisError):
        return None  # NumPy's own message comes from running it


def _type(form: Form) -> Any:
    return form[1] if isinstance(form, tuple) else np.dtype(bool) if form is bool else form


def _shape(form: Form) -> Shape:
    return form[0] if isinstance(form, tuple) else ()


def _pointwise(name: str, rest: list[Any]) -> Operation | None:
    loop: tuple[np.dtype[Any], ...]
    if name == "astype":
        form, dtype = rest
        loop, forms = (form[1],), [form]
    elif name == "store":
        forms, dtype = rest, rest[0][1]
        loop = (dtype, dtype)
    elif name == "clip":
        forms = rest
        sample = [np.ones(1, t) if isinstance(f, tuple) else t(1) if isinstance(t, type) else
                  t.type(1) for f, t in zip(forms, map(_type, forms), strict=True)]  # fmt: skip
        dtype = np.clip(*sample).dtype
        loop = (dtype,) * 3
    elif name == "where":
        forms = rest
        sample = [t(0) if isinstance(t, type) else t for t in map(_type, forms[1:])]
        dtype = np.result_type(*sample)
        loop = (np.dtype(bool), dtype, dtype)
    else:
        forms = rest
        *given, dtype = getattr(np, name).resolve_dtypes((*map(_type, forms), None))
        loop = tuple(given)
        if name == "power" and dtype.kind == "i":
            return None  # an exponent below zero is an error, which NumPy has to find at once
    shapes = tuple(map(_shape, forms))
    if any(one.kind not in _KINDS for one in (*loop, dtype)):
        return None
    arrays = [isinstance(form, tuple) for form in forms]
    kept = (
        not is_array or form[1] == own
        for is_array, form, own in zip(arrays, forms, loop, strict=True)
    )
    shape, direct = np.broadcast_shapes(*shapes), all(arrays) or all(kept)
    return Operation("pointwise", name, loop, dtype, shape, shapes=shapes, direct=direct)


def _fold(name: str, form: Form, axis: Any, keepdims: bool) -> Operation | None:
    shape, dtype = form
    if not math.prod(shape) or dtype.kind not in _KINDS:
        return None
    axes = range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))
    if isinstance(axis, tuple) and name.startswith("arg"):
        return None
    result = getattr(np, name)(np.ones(1, dtype)).dtype
    kept = tuple(
        1 if axis in axes else extent
        for axis, extent in enumerate(shape)
        if keepdims or axis not in axes
    )
    axis = None if axis is None else axes[0] if len(axes) == 1 else tuple(axes)
    return Operation("fold", name, (dtype,), result, kept, axis, keepdims, (shape,))


def _product(first: Form, second: Form) -> Operation | None:
    (a, kind), (b, other) = first, second
    if kind != other or len(a) < 2 or len(b) < 2 or a[-1] != b[-2] or not a[-1]:
        return None
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    return Operation("product", "matmul", (kind, kind), kind, shape, shapes=(a, b))


def apply(module: Any, one: Operation, operands: list[Any], *, direct: bool = False) -> Any:
    """Run an operation.

    Args:
        module: NumPy or CuPy.
        one: what to run.
        operands: arrays of the module and Python's numbers, or what stands for them in a trace.
        direct: the function converts arrays itself.
    """
    if one.name == "astype":
        return operands[0].astype(one.dtype)
    if one.name == "store":
        operands[0][...] = _converted(operands[1], one.dtype)
        return None
    function = getattr(module, one.name)
    if one.kind == "fold":
        return function(operands[0], axis=one.axis, keepdims=one.keepdims)
    if not direct:
        operands = [_converted(*pair) for pair in zip(operands, one.loop, strict=True)]
    return function(*operands)


def _converted(operand: Any, dtype: np.dtype[Any]) -> Any:
    other = hasattr(operand, "dtype") and operand.dtype != dtype
    return operand.astype(dtype) if other else operand
