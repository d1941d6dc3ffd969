"""A program in PyTorch's own operations: for what no kernel is made of.

Contractions are einsums, pointwise statements run in float32 (float64 where the tensors are), and
`torch.compile` fuses them. The functions are those of the vocabulary; what has a definition in
terms of others runs that.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from polygen.adapters.torch.tensors import torch_dtype
from polygen.frontend import philox
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
    Index,
    Pointwise,
    Program,
    Within,
)
from polygen.frontend.symbolic import Symbolic


def _both(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two tensors, for calls with a number in the place of one."""

    def call(x: Any, y: Any) -> Any:
        tensor = x if isinstance(x, torch.Tensor) else y
        return function(*(v if isinstance(v, torch.Tensor) else tensor.new_full((), v)
                          for v in (x, y)))  # fmt: skip

    return call


def _where(condition: Any, x: Any, y: Any) -> Any:
    if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
        return torch.where(condition, x, y)
    return torch.where(condition, torch.full((), x, device=condition.device), y)


def _cbrt(x: Any) -> Any:
    return torch.sign(x) * torch.abs(x) ** (1.0 / 3.0)


def _nibble(byte: Any, place: Any) -> Any:
    """The low half of a byte where its place is even, else the high one."""
    high = torch.floor(torch.as_tensor(byte) / 16)
    return torch.where(torch.as_tensor(place) % 2 > 0, high, byte - 16 * high)


def _random_uniform(*args: Any) -> Any:
    """Philox 4x32-10 in 64-bit integers; a factor of 32 bits goes in two halves."""
    low = 0xFFFFFFFF
    tensor = next(arg for arg in args if isinstance(arg, torch.Tensor))
    wide = (torch.as_tensor(arg, device=tensor.device).to(torch.int64) for arg in args)
    a, b, c, d, first = torch.broadcast_tensors(*wide)
    second = torch.zeros_like(first)

    def times(word: Any, factor: int) -> tuple[Any, Any]:
        above, below = word * (factor >> 16), word * (factor & 0xFFFF)
        return (above + (below >> 16)) >> 16, (((above & 0xFFFF) << 16) + below) & low

    for _ in range(philox.ROUNDS):
        (left_high, left), (right_high, right) = map(times, (a, c), philox.MULTIPLIERS)
        a, b, c, d = right_high ^ b ^ first, right, left_high ^ d ^ second, left
        first, second = (first + philox.STEPS[0]) & low, (second + philox.STEPS[1]) & low
    return (a >> 8).to(tensor.dtype) * 2.0**-24


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "abs": torch.abs,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,
    "minimum": _both(torch.minimum),
    "maximum": _both(torch.maximum),
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "cbrt": _cbrt,
    "hypot": _both(torch.hypot),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "arctan2": _both(torch.arctan2),
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "gelu": torch.nn.functional.gelu,
    "copysign": _both(torch.copysign),
    "logaddexp": _both(torch.logaddexp),
    "pow": operator.pow,
    "where": _where,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
    "random_uniform": _random_uniform,
    "nibble_i4": lambda byte, place: (_nibble(byte, place) + 8) % 16 - 8,
    "nibble_u4": lambda byte, place: _nibble(byte, place),
}


class _Term(Symbolic):
    """A tensor inside the definition of a function."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def apply(self, function: str, *args: Any) -> Any:
        plain = [arg.value if isinstance(arg, _Term) else arg for arg in args]
        return _Term(applied(function, plain))


def applied(function: str, args: Sequence[Any]) -> Any:
    """A function of the vocabulary on tensors and numbers, at least one of them a tensor."""
    if function in FUNCTIONS:
        return FUNCTIONS[function](*args)
    definition = TABLE[function].definition
    assert definition is not None
    first = next(arg for arg in args if isinstance(arg, torch.Tensor))
    return definition(
        *(_Term(arg if isinstance(arg, torch.Tensor) else first.new_full((), arg)) for arg in args)
    ).value


def run(program: Program, operands: Sequence[Any], sizes: Mapping[str, Any]) -> list[torch.Tensor]:
    """A program's outputs.

    Args:
        program: what to compute.
        operands: in order, tensors and numbers.
        sizes: of its symbolic dims.
    """
    values: dict[str, Any] = dict(zip((t.name for t in program.inputs), operands, strict=True))
    exact = any(isinstance(o, torch.Tensor) and o.dtype == torch.float64 for o in operands)
    working = torch.float64 if exact else torch.float32
    parts = program.in_parts
    for statement in program.statements:
        extents = {i: size_value(e, sizes) for i, e in statement.domain}
        if isinstance(statement, Contraction):
            values[statement.write.name] = _contraction(statement, values, extents)
        elif isinstance(statement, Fold):
            values[statement.write.name] = _folded(statement, values, extents, working)
        else:
            found = _pointwise(statement, values, extents, working, exact, sizes)
            name = statement.write.name
            if any(isinstance(index, Form) for index in statement.write.index):
                dims = program.tensors[name].dims
                shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
                found = _placed(statement, found, extents, shape, values.get(name))
            elif name in parts:
                found = _part(program, statement, found, values, sizes)
            values[statement.write.name] = found
    return [values[tensor.name] for tensor in program.outputs]


def _part(
    program: Program,
    statement: Pointwise,
    found: torch.Tensor,
    values: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> torch.Tensor:
    """The array that a statement writes a part of."""
    tensor = program.tensors[statement.write.name]
    whole = values.get(tensor.name)
    if whole is None:
        whole = found.new_empty([sizes[d] if isinstance(d, str) else d for d in tensor.dims])
    place: torch.Tensor = whole
    along = iter(found.shape)
    for axis, index in reversed(tuple(enumerate(statement.write.index))):
        if isinstance(index, int):
            place = place.select(axis, index)
    kept = [index for index in statement.write.index if not isinstance(index, int)]
    for axis, index in enumerate(kept):
        first = index.offset if isinstance(index, Affine) else 0
        place = place.narrow(axis, first, next(along))
    place.copy_(found)
    return whole


def _contraction(
    statement: Contraction, values: Mapping[str, Any], extents: Mapping[str, Any]
) -> torch.Tensor:
    numbers = {iterator: n for n, iterator in enumerate(extents)}
    operands: list[Any] = []
    for access in statement.reads:
        operands += [_selected(access, values, extents), [numbers[i] for i in access.axes]]
    found: torch.Tensor = torch.einsum(*operands, [numbers[i] for i in statement.write.iterators])
    return found


def _selected(access: Access, values: Mapping[str, Any], extents: Mapping[str, Any]) -> Any:
    """What an access reads: one axis per iterator, in the order of the array's axes."""
    tensor = values[access.name]
    if any(isinstance(index, Form) for index in access.index):
        return _by_digits(access, values, extents)
    for axis, index in reversed(tuple(enumerate(access.index))):
        if isinstance(index, int):
            tensor = tensor.select(axis, index)
        elif isinstance(index, Affine):
            steps = torch.arange(extents[index.iterator], device=tensor.device)
            tensor = tensor.index_select(axis, index.at(steps))
        elif isinstance(index, Gathered):
            rows = _selected(Access(index.rows, index.places), values, extents)
            named = rows.clamp(0, tensor.shape[axis] - 1)
            tensor = tensor.index_select(axis, named.reshape(-1)).unflatten(axis, named.shape)
        elif isinstance(index, str) and tensor.shape[axis] != extents[index]:
            tensor = tensor.narrow(axis, 0, extents[index])
    return tensor


def _grid(extents: Mapping[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
    """Every iterator's values, along an axis of its own."""
    return {
        it: torch.arange(count, device=device).reshape(
            [-1 if other == it else 1 for other in extents]
        )
        for it, count in extents.items()
    }


def _by_digits(
    access: Access, values: Mapping[str, Any], extents: Mapping[str, Any]
) -> torch.Tensor:
    """What an access reads at sums of digits; zeros outside of axes that are padded."""
    tensor = values[access.name]
    own = {it: extents[it] for it in access.axes}
    places = _grid(own, tensor.device)
    inside = torch.ones(tuple(own.values()), dtype=torch.bool, device=tensor.device)
    at = []
    for index, count in zip(access.index, tensor.shape, strict=True):
        assert not isinstance(index, Within)  # operators take no ends of groups
        if isinstance(index, Gathered):
            named = values[index.rows][tuple(form_of(one).at(places) for one in index.places)]
            at.append(named.clamp(0, count - 1))
            continue
        place = form_of(index).at(places)
        if isinstance(index, Form) and index.padded:
            inside = inside & (place >= 0) & (place < count)
            place = place.clamp(0, count - 1)
        at.append(torch.as_tensor(place, device=tensor.device))
    found = tensor[tuple(at)].expand(tuple(own.values()))
    return torch.where(inside, found, torch.zeros_like(found))


def _pointwise(
    statement: Pointwise,
    values: Mapping[str, Any],
    extents: Mapping[str, Any],
    working: torch.dtype,
    exact: bool,
    sizes: Mapping[str, Any],
) -> torch.Tensor:
    args: list[Any] = [_argument(arg, values, extents, working, sizes) for arg in statement.args]
    if statement.function == "cast":
        found = args[0].to(working if exact else torch_dtype(statement.dtype))
    else:
        found = applied(statement.function, args)
    along, shape = list(extents), list(extents.values())
    whole: torch.Tensor = found.expand(shape)
    if any(isinstance(index, Form) for index in statement.write.index):
        return whole
    return whole.permute([along.index(iterator) for iterator in statement.write.iterators])


def _placed(
    statement: Pointwise,
    found: torch.Tensor,
    extents: Mapping[str, Any],
    shape: Sequence[Any],
    before: torch.Tensor | None = None,
) -> torch.Tensor:
    """What is written at sums of digits, over the axes of what it is written to."""
    places = _grid(extents, found.device)
    at = []
    for index in statement.write.index:
        assert not isinstance(index, (Within, Gathered))
        at.append(torch.as_tensor(form_of(index).at(places), device=found.device))
    result = found.new_empty(list(shape)) if before is None else before
    result[tuple(at)] = found
    return result


def _folded(
    statement: Fold, values: Mapping[str, Any], extents: Mapping[str, Any], working: torch.dtype
) -> torch.Tensor:
    (first, *_), own = statement.args, list(extents)
    assert isinstance(first, Access)
    whole = _aligned(first, values, extents, working).expand(list(extents.values()))
    found, axes = whole, sorted((own.index(it) for it in statement.folded), reverse=True)
    if statement.function == "deviations":  # about the mean of all
        return (whole - whole.mean(axes, keepdim=True)).square().sum(axes)
    for axis in axes:
        found = _FOLDS[statement.function](found, axis)
    return found


# One axis after the other; an index is along the only one.
_FOLDS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "sum": lambda tensor, axis: tensor.sum(axis),
    "prod": lambda tensor, axis: tensor.prod(axis),
    "max": lambda tensor, axis: tensor.amax(axis),
    "min": lambda tensor, axis: tensor.amin(axis),
    "argmax": lambda tensor, axis: tensor.argmax(axis),
    "argmin": lambda tensor, axis: tensor.argmin(axis),
    "logsumexp": lambda tensor, axis: tensor.logsumexp(axis),
}


def _places(
    index: Index, extents: Mapping[str, Any], working: torch.dtype, device: torch.device
) -> Any:
    """A coordinate along its axis of the domain."""
    if isinstance(index, int):
        return torch.full((), index, dtype=working, device=device)
    assert not isinstance(index, (Within, Gathered))  # operators take no ends of groups
    if isinstance(index, Form):
        placed: torch.Tensor = index.at(_grid(extents, device)).to(working)
        return placed
    along = index if isinstance(index, Affine) else Affine(index, 1, 0)
    steps = torch.arange(extents[along.iterator], dtype=working, device=device)
    shape = [-1 if iterator == along.iterator else 1 for iterator in extents]
    at: torch.Tensor = along.at(steps)
    return at.reshape(shape)


def _argument(
    arg: Argument,
    values: Mapping[str, Any],
    extents: Mapping[str, Any],
    working: torch.dtype,
    sizes: Mapping[str, Any],
) -> Any:
    if isinstance(arg, Constant):
        return arg.value
    if isinstance(arg, Extent):
        return math.prod(sizes[dim] if isinstance(dim, str) else dim for dim in arg.dims)
    return _aligned(arg, values, extents, working)


def _aligned(
    access: Access | Coordinate,
    values: Mapping[str, Any],
    extents: Mapping[str, Any],
    working: torch.dtype,
) -> Any:
    """An argument with an axis per iterator of the domain, of size 1 where it has none."""
    if isinstance(access, Coordinate):
        device = next(v.device for v in values.values() if isinstance(v, torch.Tensor))
        return _places(access.index, extents, working, device)
    if not isinstance(values[access.name], torch.Tensor):
        return values[access.name]  # a run-time scalar
    tensor = _selected(access, values, extents)
    own = access.axes
    used = [iterator for iterator in extents if iterator in own]
    tensor = tensor.permute([own.index(iterator) for iterator in used])
    for axis, iterator in enumerate(extents):
        if iterator not in own:
            tensor = tensor.unsqueeze(axis)
    return tensor if tensor.dtype == torch.bool else tensor.to(working)
