"""Communication beside products, in chunks: all-gather before one, reduce-scatter behind one.

Rows come and go in chunks through the engine's own collectives, each under way while the product of
another chunk is computed. A rank begins with its own rows, which it need not wait for. Whether rows
may be taken apart, and what has to wait for the sums, `polygen.parallel.cuts` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from polygen.adapters.torch import meaning
from polygen.adapters.torch.operator import Operator
from polygen.adapters.torch.running import sizes_for
from polygen.adapters.torch.sharding import run
from polygen.errors import ArgumentError, GradientError, UnsupportedProgram
from polygen.frontend.program import Program
from polygen.parallel.cuts import PART, WHOLE, Cut, cuts


def gathered(
    operator: Operator,
    x: torch.Tensor,
    *operands: Any,
    group: dist.ProcessGroup | None = None,
    chunks: int = 2,
) -> Any:
    """The operator on the rows of all ranks, gathered while those that are there are multiplied.

    Args:
        operator: made by `op`; its first parameter gets the rows of all ranks.
        x: this rank's rows, along the first axis, as many as every rank has.
        *operands: the others, as for all rows.
        group: the ranks; None: all there are.
        chunks: into how many gathers the rows are divided.

    Returns:
        What ``operator(all_gather(x), *operands)`` gives.

    Raises:
        ArgumentError: rows that chunks do not divide.
        UnsupportedProgram: rows of the results need other rows of x.
        GradientError: an operand needs a gradient, which this does not have.
    """
    _no_gradients(operator, (x, *operands))
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    rows = x.shape[0]
    _divides(rows, chunks, "chunks", operator.parameters[0])
    whole = (x[:1].expand(rows * ranks, *x.shape[1:]), *operands)  # for its shape alone
    program, _ = operator.program_for(whole)
    cut = _by_rows(program, operator.parameters[0])
    each = rows // chunks
    arriving = []
    for chunk in x.split(each):
        buffer = x.new_empty((ranks * each, *x.shape[1:]))
        work = dist.all_gather_into_tensor(buffer, chunk.contiguous(), group=group, async_op=True)
        arriving.append((buffer, work))

    def pieces(operand: Any, first: int, last: int, chunk: slice) -> Any:
        """The rows of some ranks' chunks of an operand that has all rows."""
        apart = operand.unflatten(0, (ranks, chunks, each))[first:last, chunk]
        return apart.flatten(0, 2)

    results: list[torch.Tensor] = []

    def compute(part: torch.Tensor, first: int, last: int, chunk: slice) -> None:
        others = [pieces(o, first, last, chunk) if state == 0 else o
                  for o, state in zip(operands, cut.inputs[1:], strict=True)]  # fmt: skip
        found = operator(part, *others)
        found = found if isinstance(found, tuple) else (found,)
        if not results:
            results.extend(f.new_empty((rows * ranks, *f.shape[1:])) for f in found)
        for result, value in zip(results, found, strict=True):
            there = result.unflatten(0, (ranks, chunks, each))[first:last, chunk]
            there.copy_(value.reshape(there.shape))

    compute(x, rank, rank + 1, slice(0, chunks))
    for number, (buffer, work) in enumerate(arriving):
        work.wait()
        for first, last in ((rank + 1, ranks), (0, rank)):
            if first < last:
                here = slice(number, number + 1)
                compute(buffer[first * each : last * each], first, last, here)
    return results[0] if len(results) == 1 else tuple(results)


def scattered(
    operator: Operator,
    *operands: Any,
    shards: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
    chunks: int = 2,
) -> Any:
    """The operator on sums that ranks have parts of; every rank gets its own rows of the results.

    What the operator computes before its sums runs on this rank's part of the summed axis; sums are
    added up over ranks chunk by chunk while the next is computed, and the rest is computed of a
    rank's rows of them.

    Args:
        operator: made by `op`; its first parameter has rows along its first axis, and another axis
            that is summed over, of which this rank has its part.
        *operands: in order; those with the summed axis as parts.
        shards: parameters of which this rank passes its own rows alone, such as a residual.
        group: the ranks; None: all there are.
        chunks: into how many sums the rows of a rank are divided.

    Returns:
        This rank's rows of what the operator gives of the whole.

    Raises:
        ArgumentError: rows that ranks and chunks do not divide, or no such parameter.
        UnsupportedProgram: the operator has no such sum, or rows need other rows.
        GradientError: an operand needs a gradient, which this does not have.
    """
    _no_gradients(operator, operands)
    ranks = dist.get_world_size(group)
    names = operator.parameters
    unknown = [name for name in shards if name not in names]
    if unknown:
        raise ArgumentError(
            f"no parameter is called {unknown[0]}", where="shards",
            nearest=f"Parameters: {', '.join(names)}",
        )  # fmt: skip
    rows = operands[0].shape[0]
    _divides(rows, ranks * chunks, "ranks and chunks", names[0])
    given = dict(zip(names, operands, strict=True))
    whole = tuple(
        given[n][:1].expand(rows, *given[n].shape[1:]) if n in shards else given[n] for n in names
    )
    program, _ = operator.program_for(whole)
    cut = _over_sums(program, names[0])
    head_rows = _by_rows(cut.head, names[0])
    each = rows // (ranks * chunks)

    def mine(name: str, state: object, number: int) -> Any:
        """A chunk of every rank's rows of an operand that has all rows."""
        if state != 0:
            return given[name]
        return given[name].unflatten(0, (ranks, chunks, each))[:, number].flatten(0, 1)

    def rest(number: int, sums: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What is computed of a chunk's sums, which are of this rank's rows."""
        if cut.tail is None:
            return sums
        states = _by_rows(cut.tail, cut.tail.inputs[0].name).inputs
        values: list[Any] = list(sums)
        for tensor, state in list(zip(cut.tail.inputs, states, strict=True))[len(sums) :]:
            value = given[tensor.name]
            if state == 0:
                value = _own(value, tensor.name, shards, (ranks, chunks, each), group)[number]
            values.append(value)
        return meaning.run(cut.tail, values, sizes_for(cut.tail, values))

    under_way = []
    for number in range(chunks):
        inputs = zip(cut.head.inputs, head_rows.inputs, strict=True)
        local = [mine(tensor.name, state, number) for tensor, state in inputs]
        sums, works = [], []
        for part in run(cut.head, local):
            total = part.new_empty((each, *part.shape[1:]))
            works.append(
                dist.reduce_scatter_tensor(total, part.contiguous(), group=group, async_op=True)
            )
            sums.append(total)
        under_way.append((sums, works))
    found = []
    for number, (sums, works) in enumerate(under_way):
        for work in works:
            work.wait()
        found.append(rest(number, sums))
    results = tuple(torch.cat(parts) for parts in zip(*found, strict=True))
    return results[0] if len(results) == 1 else results


def _own(
    value: torch.Tensor, name: str, shards: Sequence[str], extents: tuple[int, int, int],
    group: dist.ProcessGroup | None,
) -> torch.Tensor:  # fmt: skip
    """The rows of this rank, by chunk, of an operand that has them all or is a shard."""
    ranks, chunks, each = extents
    if name in shards:
        return value.unflatten(0, (chunks, each))
    return value.unflatten(0, (ranks, chunks, each))[dist.get_rank(group)]


def _by_rows(program: Program, name: str) -> Cut:
    """The cut along the first axis of an input.

    Raises:
        UnsupportedProgram: there is none that gives rows of all results.
    """
    number = [tensor.name for tensor in program.inputs].index(name)

    def fits(cut: Cut) -> bool:
        split = cut.inputs[number] == 0 and cut.tail is None
        split = split and all(state in (0, WHOLE) for state in cut.inputs)
        return split and all(state == 0 for state in cut.outputs)

    return _first(program, fits, f"rows of the results are not made of rows of {name} alone")


def _over_sums(program: Program, name: str) -> Cut:
    """The cut along an axis of an input that is summed over."""
    number = [tensor.name for tensor in program.inputs].index(name)

    def fits(cut: Cut) -> bool:
        return cut.inputs[number] not in (0, WHOLE) and (
            cut.tail is not None or all(state == PART for state in cut.outputs)
        )

    return _first(program, fits, f"no sum over an axis of {name} can be taken apart")


def _first(program: Program, fits: Callable[[Cut], bool], why: str) -> Cut:
    found = next((cut for cut in cuts(program) if fits(cut)), None)
    if found is None:
        raise UnsupportedProgram(
            "the program has no such cut",
            where=program.name,
            why=why,
            nearest="Gather the operands first, and call the operator",
        )
    return found


def _divides(rows: int, parts: int, of: str, name: str) -> None:
    if rows % parts or not rows:
        near = max(1, round(rows / parts)) * parts
        raise ArgumentError(
            f"{rows} rows for {parts} {of}",
            where=name,
            why="chunks are of one size",
            nearest=f"{near} rows",
        )


def _no_gradients(operator: Operator, operands: Sequence[Any]) -> None:
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise GradientError(
            "an operand needs a gradient",
            where=operator.name,
            why="chunks beside communication are not differentiated",
            nearest="torch.no_grad(), or DTensors, whose layers are",
        )
