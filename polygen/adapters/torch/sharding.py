"""Operators on DTensors: which placements a program takes, and what they give.

1. `polygen.parallel.cuts` says along which dims ranks may share a program. Per dim of the mesh the
   cut is taken that brings the fewest bytes together from how the operands lie; none where all of
   them are whole.
2. Every rank runs the program on its shards. Where the program is linear in the sums that ranks
   have parts of, the result is ``Partial``, and whoever reads it adds up.
3. Where a statement waits for a sum (a bias, a residual, an activation), ranks run what is before
   it, the parts are added up, and the rest is computed of the sums in PyTorch's operations. What
   only adds to a sum one rank adds to its part, in its kernel.
4. Parts go to the rank whose rows they are of, beside the products of other rows, and what that
   rank makes of them comes back (`sums`), where this is predicted to be quicker than an all-reduce.

Derivatives of operators are programs, and are shared in the same way.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polygen.adapters.torch.launching import read
from polygen.adapters.torch.reducing import Reduction, run_as, text_or_none
from polygen.adapters.torch.running import sizes_for
from polygen.errors import ArgumentError
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.parallel.cuts import PART, WHOLE, Cut, State, cuts
from polygen.runtime.recent import Recent

_MOST_KEPT = 1024
ProgramFor = Callable[[Any], tuple[Program, dict[str, Any]]]
_known: list[tuple[Any, ProgramFor]] = []
_cuts: Recent[Program, tuple[Cut, ...]] = Recent(_MOST_KEPT)


def register(overload: Any, program_for: ProgramFor) -> None:
    """Let an operator take DTensors, as soon as somebody has imported them.

    Args:
        overload: the operator.
        program_for: what a call with operands computes.
    """
    _known.append((overload, program_for))
    if "torch.distributed.tensor" in sys.modules:
        register_all()


def register_all() -> None:
    """Let all operators that there are take DTensors.

    That happens by itself where ``torch.distributed.tensor`` is imported before the last operator
    is made; who imports it later calls this.
    """
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 (a second to load)

    handlers = DTensor._op_dispatcher._custom_op_handlers
    for overload, program_for in _known:
        handlers[overload] = _handler(program_for)
    handlers[torch.ops.polygen.launch.default] = _launched
    _known.clear()


def _handler(program_for: ProgramFor) -> Callable[..., Any]:
    def handle(source: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
        found = shared(source, program_for, operands)
        return found if len(found) > 1 else found[0]

    return handle


def _launched(_: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    arrays, scalars, text = operands
    program = read(text)
    each, numbers = iter(arrays), iter(scalars)
    values = tuple(next(each) if tensor.dims else next(numbers) for tensor in program.inputs)
    return list(shared(text, lambda values: (program, {}), values))


def _checked(operands: Sequence[Any]) -> None:
    """Raise if operands lie on different meshes, or some on none."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    meshes = [o.device_mesh for o in tensors if isinstance(o, DTensor)]
    if len(meshes) < len(tensors):
        raise ArgumentError(
            "plain tensors beside DTensors",
            why="a plain one does not say what other ranks have",
            nearest="distribute_tensor(b, mesh, [Replicate()]) is the same on all",
        )
    if any(mesh != meshes[0] for mesh in meshes):
        raise ArgumentError(
            f"operands on different meshes: {', '.join(dict.fromkeys(map(str, meshes)))}",
            nearest="Distribute them over one mesh",
        )


# --- one call -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Shared:
    """What is decided about calls with operands of the same shapes, types and placements.

    Attributes:
        program: of the whole operands.
        wanted: per operand its placements; None of a number.
        dim: the dim of the mesh over which sums are waited for.
        text: of the program, if nothing waits; "" where no kernel can be made of it.
        results: per output its shape and placements.
        sums: what waits for sums, if something does.
        specs: of the results, by number and type, as DTensor describes them.
    """

    program: Program
    text: str
    wanted: tuple[tuple[Any, ...] | None, ...]
    dim: int
    results: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    sums: Reduction | None
    specs: dict[tuple[int, torch.dtype], Any] = field(default_factory=dict)


_decided: Recent[Any, _Shared] = Recent(_MOST_KEPT)


def shared(source: Any, program_for: ProgramFor, operands: Sequence[Any]) -> tuple[Any, ...]:
    """A program's outputs as DTensors.

    Args:
        source: what stands for the program, with the operands' shapes and types.
        program_for: the program, of the whole operands.
        operands: DTensors of one mesh, and numbers.

    Raises:
        ArgumentError: a dim that ranks do not divide, plain tensors, or different meshes.
    """
    _checked(operands)
    are = [isinstance(o, torch.Tensor) for o in operands]
    mesh = next(o for o, is_tensor in zip(operands, are, strict=True) if is_tensor).device_mesh
    key = (source, mesh, *((o.shape, o.dtype, o.placements) if is_tensor else None
                           for o, is_tensor in zip(operands, are, strict=True)))  # fmt: skip
    try:
        known = _decided.get(key)
    except TypeError:  # sizes of a trace have no hash
        known = _decision(program_for(tuple(operands))[0], operands, mesh)
    call = known or _decided.put(key, _decision(program_for(tuple(operands))[0], operands, mesh))
    local = []
    for operand, wanted in zip(operands, call.wanted, strict=True):
        if wanted is not None:
            if operand.placements != wanted:
                operand = operand.redistribute(mesh, wanted)
            operand = operand._local_tensor
        local.append(operand)
    if call.sums is None:
        results = run_as(call.program, call.text, local)
    else:
        given = dict(zip((tensor.name for tensor in call.program.inputs), local, strict=True))
        results = call.sums.results(given, mesh.get_group(call.dim))
    return tuple([_distributed(call, n, result, mesh) for n, result in enumerate(results)])


def _decision(program: Program, operands: Sequence[Any], mesh: Any) -> _Shared:
    sizes = sizes_for(program, operands)
    chosen = _choice(program, operands, mesh)
    _divisible(program.name, chosen, mesh, sizes)
    waiting = [dim for dim, cut in enumerate(chosen) if cut is not None and cut.tail is not None]
    cut = chosen[waiting[0]] if waiting else None
    return _Shared(
        program,
        "" if cut else text_or_none(program),
        tuple(
            tuple(_placement(cut.inputs[number] if cut else WHOLE) for cut in chosen)
            if isinstance(operand, torch.Tensor)
            else None
            for number, operand in enumerate(operands)
        ),
        waiting[0] if waiting else 0,
        tuple(
            (
                tuple(size_value(d, sizes) for d in tensor.dims),
                tuple(_placement(cut.outputs[number] if cut else WHOLE) for cut in chosen),
            )
            for number, tensor in enumerate(program.outputs)
        ),
        Reduction.of(program, cut) if cut else None,
    )


def _placement(state: State) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: PLC0415

    if isinstance(state, int):
        return Shard(state)
    return Partial("sum") if state == PART else Replicate()


def _distributed(call: _Shared, number: int, local: torch.Tensor, mesh: Any) -> Any:
    """A result as a DTensor."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    spec = call.specs.get((number, local.dtype))
    if spec is None:
        spec = call.specs[number, local.dtype] = _spec(call, number, local.dtype, mesh)
    return DTensor(local.contiguous(), spec, requires_grad=False)


def _spec(call: _Shared, number: int, dtype: torch.dtype, mesh: Any) -> Any:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta  # noqa: PLC0415

    shape, placements = call.results[number]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    meta = TensorMeta(torch.Size(shape), tuple(strides), dtype)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


# --- which cut ------------------------------------------------------------------------------------
def _choice(program: Program, operands: Sequence[Any], mesh: Any) -> list[Cut | None]:
    """Per dim of the mesh how the program is shared; at most one of them waits for sums."""
    known = _cuts.get(program) or _cuts.put(program, cuts(program))
    chosen: list[Cut | None] = []
    for dim in range(mesh.ndim):
        ranks = mesh.size(dim)
        may_wait = all(cut is None or cut.tail is None for cut in chosen)
        candidates = [None, *(cut for cut in known if cut.tail is None or may_wait)]
        costs = [_cost(program, operands, cut, dim, ranks) for cut in candidates]
        chosen.append(candidates[costs.index(min(costs))])
    return chosen


def _cost(
    program: Program, operands: Sequence[Any], cut: Cut | None, dim: int, ranks: int
) -> tuple[float, int, int, float]:
    """What a cut takes: bytes brought together, shards as they lie, new shards, bytes summed."""
    brought, used, made, summed = 0.0, 0, 0, 0.0
    for number, operand in enumerate(operands):
        if not isinstance(operand, torch.Tensor):
            continue
        wanted = _placement(cut.inputs[number] if cut else WHOLE)
        there = operand.placements[dim]
        size = operand.numel() * operand.element_size()
        if wanted == there:
            used += wanted.is_shard()
        elif there.is_replicate():
            made += 1
        elif wanted.is_shard() and there.is_shard():
            brought += size / ranks  # each rank sends to all
        else:
            brought += size * (1 if wanted.is_shard() or there.is_shard() else 2)
    if cut is not None and (cut.tail is not None or PART in cut.outputs):
        sums = cut.tail.inputs[: len(cut.head.outputs)] if cut.tail else program.outputs
        summed = 2.0 * sum(tensor.dtype.bytes for tensor in sums)
    return brought, -used, made, summed


def _divisible(where: str, chosen: list[Cut | None], mesh: Any, sizes: dict[str, Any]) -> None:
    """Raise if ranks would get shards of different sizes."""
    counts: dict[str, int] = {}
    for dim, cut in enumerate(chosen):
        if cut is not None:
            counts[cut.dim] = counts.get(cut.dim, 1) * mesh.size(dim)
    for name, ranks in counts.items():
        extent = sizes[name]
        if extent % ranks:
            near = max(1, round(extent / ranks)) * ranks
            raise ArgumentError(
                f"{name} = {extent} over {ranks} ranks",
                where=where,
                why="ranks run one kernel, on shards of one size",
                nearest=f"{name} = {near}, or operands that are whole",
            )
