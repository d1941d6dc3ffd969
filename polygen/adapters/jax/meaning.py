"""A program in JAX's own operations: for what no kernel is made of.

Contractions are einsums, folds and pointwise statements run in float32, and XLA fuses them. The
functions are those of the vocabulary; what has a definition in terms of others runs that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from polygen.adapters.jax.rounding import multiplied, rounded
from polygen.adapters.kernels import sizes_of
from polygen.errors import UnsupportedProgram
from polygen.frontend.forms import Form
from polygen.frontend.functions import TABLE
from polygen.frontend.indexing import form_of
from polygen.frontend.indices import size_value
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Extent,
    Fold,
    Gathered,
    Pointwise,
    Program,
    Within,
)
from polygen.frontend.symbolic import Symbolic
from polygen.frontend.user_monoids import by_users

jnp = jax.numpy

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "neg": operator.neg, "abs": jnp.abs, "floor": jnp.floor, "ceil": jnp.ceil,
    "trunc": jnp.trunc, "round": jnp.round, "minimum": jnp.minimum, "maximum": jnp.maximum,
    "exp": jnp.exp, "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "cbrt": jnp.cbrt, "hypot": jnp.hypot,
    "sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan, "arctan2": jnp.arctan2, "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf, "erfc": jax.scipy.special.erfc,
    "erfinv": jax.scipy.special.erfinv, "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus, "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "copysign": jnp.copysign, "logaddexp": jnp.logaddexp,
    "pow": jnp.power, "where": jnp.where, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_not": jnp.logical_not,
}  # fmt: skip


class _Term(Symbolic):
    """An array inside the definition of a function."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def apply(self, function: str, *args: Any) -> Any:
        return _Term(applied(function, [a.value if isinstance(a, _Term) else a for a in args]))


def applied(function: str, args: Sequence[Any]) -> Any:
    """A function of the vocabulary on arrays and numbers.

    Raises:
        UnsupportedProgram: it has no form in JAX.
    """
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args)
    definition = TABLE[function].definition
    if definition is None:
        raise UnsupportedProgram(
            f"{function} outside a kernel",
            where="polygen.adapters.jax",
            why="what no kernel is made of runs in JAX's operations, and JAX has none for it",
            nearest="Compute it outside the function",
        )
    return definition(*(_Term(jnp.asarray(arg, jnp.float32)) for arg in args)).value


def run(program: Program, operands: Sequence[Any]) -> list[Any]:
    """A program's outputs.

    Args:
        program: what to compute.
        operands: in order, arrays and numbers.
    """
    values = dict(zip((t.name for t in program.inputs), operands, strict=True))
    shapes = [o.shape for t, o in zip(program.inputs, operands, strict=True) if t.dims]
    sizes = sizes_of(program, shapes)
    for statement in program.statements:
        extents = {i: size_value(e, sizes) for i, e in statement.domain}
        if isinstance(statement, Contraction):
            found = _contraction(statement, values, extents)
        elif isinstance(statement, Fold):
            found = _folded(statement, values, extents)
        else:
            found = _pointwise(statement, values, extents, sizes)
            name = statement.write.name
            if any(isinstance(index, Form) for index in statement.write.index):
                dims = program.tensors[name].dims
                shape = [size_value(dim, sizes) for dim in dims]
                found = _placed(statement, found, extents, shape, values.get(name))
            elif name in program.in_parts:
                found = _part(program, statement, found, values, sizes)
        values[statement.write.name] = found
    return [values[tensor.name] for tensor in program.outputs]


def _part(
    program: Program,
    statement: Pointwise,
    found: Any,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> Any:
    """The array that a statement writes a part of."""
    tensor = program.tensors[statement.write.name]
    shape = [size_value(dim, sizes) for dim in tensor.dims]
    whole = values.get(tensor.name, jnp.zeros(shape, found.dtype))
    along, place = iter(found.shape), []
    for index in statement.write.index:
        first = index.offset if isinstance(index, Affine) else 0
        place.append(index if isinstance(index, int) else slice(first, first + next(along)))
    return whole.at[tuple(place)].set(found)


def _contraction(
    statement: Contraction, values: Mapping[str, Any], extents: Mapping[str, int]
) -> Any:
    number = {iterator: n for n, iterator in enumerate(extents)}
    read = [_selected(access, values, extents) for access in statement.reads]
    sums, kind = multiplied([jnp.asarray(one).dtype for one in read])
    operands: list[Any] = []
    for access, one in zip(statement.reads, read, strict=True):
        operands += [jnp.asarray(one).astype(kind), [number[i] for i in access.axes]]
    operands.append([number[i] for i in statement.write.iterators])
    return jnp.einsum(*operands, preferred_element_type=sums)


def _selected(access: Access, values: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    """What an access reads: one axis per iterator, in the order of the array's axes."""
    array = values[access.name]
    if any(isinstance(index, Form) for index in access.index):
        return _by_digits(access, values, extents)
    for axis, index in reversed(tuple(enumerate(access.index))):
        if isinstance(index, int):
            array = jnp.take(array, index, axis=axis)
        elif isinstance(index, Affine):
            steps = jnp.arange(extents[index.iterator])
            array = jnp.take(array, index.at(steps), axis=axis)
        elif isinstance(index, Gathered):
            rows = _selected(Access(index.rows, index.places), values, extents)
            array = jnp.take(array, jnp.clip(rows, 0, array.shape[axis] - 1), axis=axis)
        elif isinstance(index, str) and array.shape[axis] != extents[index]:
            array = jnp.take(array, jnp.arange(extents[index]), axis=axis)
    return array


def _grid(extents: Mapping[str, int]) -> dict[str, Any]:
    """Every iterator's values, along an axis of its own."""
    return {
        it: jnp.arange(count).reshape([-1 if other == it else 1 for other in extents])
        for it, count in extents.items()
    }


def _by_digits(access: Access, values: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    """What an access reads at sums of digits; zeros outside of axes that are padded."""
    array = values[access.name]
    own = {it: extents[it] for it in access.axes}
    places = _grid(own)
    inside: Any = True
    at = []
    for index, count in zip(access.index, array.shape, strict=True):
        assert not isinstance(index, Within)  # operators take no ends of groups
        if isinstance(index, Gathered):
            named = values[index.rows][tuple(form_of(one).at(places) for one in index.places)]
            at.append(jnp.clip(named, 0, count - 1))
            continue
        place = form_of(index).at(places)
        if isinstance(index, Form) and index.padded:
            inside = inside & (place >= 0) & (place < count)
            place = jnp.clip(place, 0, count - 1)
        at.append(place)
    found = jnp.broadcast_to(array[tuple(at)], tuple(own.values()))
    return jnp.where(inside, found, 0)


def _placed(
    statement: Pointwise,
    found: Any,
    extents: Mapping[str, int],
    shape: Sequence[int],
    before: Any = None,
) -> Any:
    """What is written at sums of digits, over the axes of what it is written to."""
    places = _grid(extents)
    at = []
    for index in statement.write.index:
        assert not isinstance(index, (Within, Gathered))
        at.append(form_of(index).at(places))
    whole = jnp.zeros(tuple(shape), found.dtype) if before is None else before
    return whole.at[tuple(at)].set(found)


def _folded(statement: Fold, values: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    (first, *_), own = statement.args, list(extents)
    assert isinstance(first, Access)
    whole = jnp.broadcast_to(_aligned(first, values, extents), tuple(extents.values()))
    axes = tuple(own.index(iterator) for iterator in statement.folded)
    if statement.function not in _FOLDS:
        raise by_users(statement.function)
    return _FOLDS[statement.function](whole, axes)


def _squares_about_mean(array: Any, axes: tuple[int, ...]) -> Any:
    return ((array - array.mean(axes, keepdims=True)) ** 2).sum(axes)


# An index is along the only axis.
_FOLDS: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min,
    "argmax": lambda array, axes: jnp.argmax(array, axes[0]),
    "argmin": lambda array, axes: jnp.argmin(array, axes[0]),
    "logsumexp": jax.scipy.special.logsumexp, "deviations": _squares_about_mean,
    "exponentials": lambda array, axes: jnp.exp(array - array.max(axes, keepdims=True)).sum(axes),
}  # fmt: skip


def _pointwise(
    statement: Pointwise,
    values: Mapping[str, Any],
    extents: Mapping[str, int],
    sizes: Mapping[str, int],
) -> Any:
    if statement.function == "cast":
        (arg,), whole_numbers = statement.args, statement.dtype.kind == "int"
        value = _argument(arg, values, extents, sizes, as_it_is=whole_numbers)
        found = rounded(jnp.asarray(value), statement.dtype)
    else:
        args = [_argument(arg, values, extents, sizes) for arg in statement.args]
        found = jnp.asarray(applied(statement.function, args))
    along, whole = list(extents), jnp.broadcast_to(found, tuple(extents.values()))
    if any(isinstance(index, Form) for index in statement.write.index):
        return whole
    return whole.transpose([along.index(iterator) for iterator in statement.write.iterators])


def _argument(
    arg: Argument, values: Mapping[str, Any], extents: Mapping[str, int], sizes: Mapping[str, int],
    *, as_it_is: bool = False,
) -> Any:  # fmt: skip
    """An argument's value, in float32 or `as_it_is`."""
    if isinstance(arg, Constant):
        return arg.value
    if isinstance(arg, Extent):
        return float(math.prod(size_value(dim, sizes) for dim in arg.dims))
    return _aligned(arg, values, extents, as_it_is=as_it_is)


def _aligned(
    access: Access | Coordinate, values: Mapping[str, Any], extents: Mapping[str, int],
    *, as_it_is: bool = False,
) -> Any:  # fmt: skip
    """An argument with an axis per iterator of the domain, of size 1 where it has none."""
    if isinstance(access, Coordinate):
        index = access.index
        if isinstance(index, int):
            return float(index)
        assert not isinstance(index, (Within, Gathered))  # operators take no ends of groups
        if isinstance(index, Form):
            return index.at(_grid(extents)).astype(jnp.float32)
        along = index if isinstance(index, Affine) else Affine(index, 1, 0)
        steps = jnp.arange(extents[along.iterator], dtype=jnp.float32)
        shape = [-1 if iterator == along.iterator else 1 for iterator in extents]
        return along.at(steps).reshape(shape)
    if not hasattr(values[access.name], "shape"):
        return values[access.name]  # a run-time scalar
    array, own = _selected(access, values, extents), access.axes
    used = [iterator for iterator in extents if iterator in own]
    array = array.transpose([own.index(iterator) for iterator in used])
    array = array.reshape([extents[i] if i in own else 1 for i in extents])
    return array if as_it_is or array.dtype == jnp.bool_ else array.astype(jnp.float32)
