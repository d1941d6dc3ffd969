"""A program in PyTorch's own operations: for what no kernel is made of.

Contractions are einsums, pointwise statements run in float32 (float64 where the tensors are), and
`torch.compile` fuses them. The functions are those of the vocabulary; what has a definition in
terms of others runs that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from polygen.adapters.torch.rounding import multiplied, rounded
from polygen.adapters.torch.vocabulary import applied
from polygen.frontend.forms import Form
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
from polygen.frontend.user_monoids import by_users


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
                shape = [size_value(dim, sizes) for dim in dims]
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
        whole = found.new_empty([size_value(d, sizes) for d in tensor.dims])
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
    read = [_selected(access, values, extents) for access in statement.reads]
    kind = multiplied([one.dtype for one in read])
    operands: list[Any] = []
    for access, one in zip(statement.reads, read, strict=True):
        operands += [one.to(kind), [numbers[i] for i in access.axes]]
    found: torch.Tensor = torch.einsum(*operands, [numbers[i] for i in statement.write.iterators])
    return found if read[0].is_floating_point() else found.to(torch.int32)


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
    cast = statement.function == "cast"
    if cast and statement.dtype.kind == "int":
        working = torch.float64  # an s32 sum has more digits than float32
    args: list[Any] = [_argument(arg, values, extents, working, sizes) for arg in statement.args]
    if cast:
        found = args[0].to(working) if exact else rounded(args[0], statement.dtype)
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
    if statement.function == "exponentials":  # relative to the largest of all
        return (whole - whole.amax(axes, keepdim=True)).exp().sum(axes)
    if statement.function not in _FOLDS:
        raise by_users(statement.function)
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
        return math.prod(size_value(dim, sizes) for dim in arg.dims)
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
