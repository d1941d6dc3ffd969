"""Communication beside products: all-gather before one, reduce-scatter behind one.

1. Whether rows may be taken apart, and what has to wait for the sums, `polygen.parallel.cuts` says.
   What is found out about a combination of shapes is kept.
2. Where ranks reach each other's memory (`peers`) rows are copied there beside kernels, a rank's at
   a time; else they come and go in chunks through the engine's own collectives, each under way
   while the product of another chunk is computed. A rank begins with its own rows, which it need
   not wait for, or ends with them, for which nobody else waits.
3. Which of these, and how many chunks, `polygen.parallel.ways` predicts. Without a GPU ranks send
   each other messages in the place of copies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from polygen.adapters.torch import meaning
from polygen.adapters.torch.engine import engine
from polygen.adapters.torch.operator import Operator
from polygen.adapters.torch.overlap_calls import Call, gathering, scattering
from polygen.adapters.torch.peers import Peers, order, peers_of
from polygen.adapters.torch.reducing import run
from polygen.adapters.torch.running import sizes_for
from polygen.adapters.torch.sums import own_rows
from polygen.errors import ArgumentError, GradientError
from polygen.parallel.ways import CHUNKS, COPIES

_GATHERED, _SUMMED = "rows of all ranks", "sums over ranks"


def gathered(
    operator: Operator,
    x: torch.Tensor,
    *operands: Any,
    group: dist.ProcessGroup | None = None,
    chunks: int | None = None,
) -> Any:
    """The operator on the rows of all ranks, gathered while those that are there are multiplied.

    Args:
        operator: made by `op`; its first parameter gets the rows of all ranks.
        x: this rank's rows, along the first axis, as many as every rank has.
        *operands: the others, as for all rows.
        group: the ranks; None: all there are.
        chunks: into how many gathers the rows are divided; None: the way that is predicted to be
            the quickest, copies into peers' memory among them.

    Returns:
        What ``operator(all_gather(x), *operands)`` gives.

    Raises:
        ArgumentError: rows that chunks do not divide.
        UnsupportedProgram: rows of the results need other rows of x.
        GradientError: an operand needs a gradient, which this does not have.
        EngineError: a rank does not answer.
    """
    _no_gradients(operator, (x, *operands))
    ranks = dist.get_world_size(group)
    rows = x.shape[0]
    if chunks is not None:
        _divides(rows, chunks, "chunks", operator.parameters[0])
    call = gathering(operator, x, operands, ranks)
    peers, by = None, CHUNKS
    if chunks is None:
        peers = peers_of(group, x)
        way = call.way(group, copies=peers is not None)
        by, chunks = way.by, way.chunks
    whole = tuple(x.new_empty(shape, dtype=dtype) for shape, dtype in call.results)
    if peers is not None and by == COPIES:
        _gather_from_peers(operator, call, peers, (x, *operands), whole)
    else:
        _gather_in_chunks(operator, call, group, chunks, (x, *operands), whole)
    return whole[0] if len(whole) == 1 else whole


def _gather_from_peers(
    operator: Operator, call: Call, peers: Peers, operands: Sequence[Any],
    whole: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """Every rank's rows are copied to every other one, which multiplies them as they arrive."""
    x, *others = operands
    x, rows = x.contiguous(), x.shape[0]

    def compute(part: torch.Tensor, of: int) -> None:
        there = [o.narrow(0, of * rows, rows) if state == 0 else o
                 for o, state in zip(others, call.cut.inputs[1:], strict=True)]  # fmt: skip
        results = tuple(result.narrow(0, of * rows, rows) for result in whole)
        operator.into(results, (part, *there))

    steps = order(peers.ranks, peers.rank)
    peers.begin(x.numel() * x.element_size())
    try:
        for to, _ in steps:
            peers.push(to, x)
        compute(x, peers.rank)
        for _, source in steps:
            compute(peers.arrived(source, tuple(x.shape), x.dtype), source)
            peers.read(source)
        peers.end()
    except BaseException:
        peers.abandon()
        raise


def _gather_in_chunks(
    operator: Operator, call: Call, group: dist.ProcessGroup | None, chunks: int,
    operands: Sequence[Any], whole: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """By collectives, a part of every rank's rows each."""
    x, *others = operands
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    each = x.shape[0] // chunks
    arriving = []
    for chunk in x.split(each):
        buffer = x.new_empty((ranks * each, *x.shape[1:]))
        begin = functools.partial(
            dist.all_gather_into_tensor, buffer, chunk.contiguous(), group=group, async_op=True
        )
        arriving.append((buffer, engine(begin, _GATHERED)))

    def pieces(operand: Any, first: int, last: int, chunk: slice) -> Any:
        """The rows of some ranks' chunks of an operand that has all rows."""
        return operand.unflatten(0, (ranks, chunks, each))[first:last, chunk]

    def compute(part: torch.Tensor, first: int, last: int, chunk: slice) -> None:
        there = [pieces(o, first, last, chunk).flatten(0, 2) if state == 0 else o
                 for o, state in zip(others, call.cut.inputs[1:], strict=True)]  # fmt: skip
        places = [pieces(result, first, last, chunk) for result in whole]
        if all(place.is_contiguous() for place in places):
            operator.into(tuple(place.flatten(0, 2) for place in places), (part, *there))
            return
        found = operator(part, *there)
        for place, value in zip(places, found if isinstance(found, tuple) else (found,),
                                strict=True):  # fmt: skip
            place.copy_(value.reshape(place.shape))

    compute(x, rank, rank + 1, slice(0, chunks))
    for number, (buffer, work) in enumerate(arriving):
        engine(work.wait, _GATHERED)
        for first, last in ((rank + 1, ranks), (0, rank)):
            if first < last:
                here = slice(number, number + 1)
                compute(buffer[first * each : last * each], first, last, here)


def scattered(
    operator: Operator,
    *operands: Any,
    shards: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
    chunks: int | None = None,
) -> Any:
    """The operator on sums that ranks have parts of; every rank gets its own rows of the results.

    What the operator computes before its sums runs on this rank's part of the summed axis; sums are
    added up over ranks piece by piece while the next is computed, and the rest is computed of a
    rank's rows of them.

    Args:
        operator: made by `op`; its first parameter has rows along its first axis, and another axis
            that is summed over, of which this rank has its part.
        *operands: in order; those with the summed axis as parts.
        shards: parameters of which this rank passes its own rows alone, such as a residual.
        group: the ranks; None: all there are.
        chunks: into how many sums the rows of a rank are divided; None: the way that is predicted
            to be the quickest, copies into peers' memory among them.

    Returns:
        This rank's rows of what the operator gives of the whole.

    Raises:
        ArgumentError: rows that ranks and chunks do not divide, or no such parameter.
        UnsupportedProgram: the operator has no such sum, or rows need other rows.
        GradientError: an operand needs a gradient, which this does not have.
        EngineError: a rank does not answer.
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
    _divides(rows, ranks * (chunks or 1), "ranks and chunks", names[0])
    call = scattering(operator, operands, tuple(shards), ranks)
    given = dict(zip(names, operands, strict=True))
    peers, by = None, CHUNKS
    if chunks is None:
        peers = peers_of(group, operands[0]) if call.sums is not None else None
        way = call.way(group, copies=peers is not None)
        by, chunks = way.by, way.chunks
    if peers is not None and call.sums is not None and by == COPIES:
        found = tuple(own_rows(call.sums, given, shards, peers, run, gathered=False))
    else:
        found = _scatter_in_chunks(call, given, shards, group, chunks, rows)
    return found[0] if len(found) == 1 else found


def _scatter_in_chunks(
    call: Call, given: dict[str, Any], shards: Sequence[str], group: dist.ProcessGroup | None,
    chunks: int, rows: int,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """By collectives, a part of every rank's rows each."""
    cut, ranks = call.cut, dist.get_world_size(group)
    each = rows // (ranks * chunks)

    def mine(name: str, state: object, number: int) -> Any:
        """A chunk of every rank's rows of an operand that has all rows."""
        if state != 0 or chunks == 1:
            return given[name]
        return given[name].unflatten(0, (ranks, chunks, each))[:, number].flatten(0, 1)

    def rest(number: int, sums: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What is computed of a chunk's sums, which are of this rank's rows."""
        if cut.tail is None:
            return sums
        values: list[Any] = list(sums)
        for tensor, state in list(zip(cut.tail.inputs, call.rest, strict=True))[len(sums) :]:
            value = given[tensor.name]
            if state == 0:
                value = _own(value, tensor.name, shards, (ranks, chunks, each), group)[number]
            values.append(value)
        return meaning.run(cut.tail, values, sizes_for(cut.tail, values))

    under_way = []
    for number in range(chunks):
        inputs = zip(cut.head.inputs, call.head, strict=True)
        local = [mine(tensor.name, state, number) for tensor, state in inputs]
        sums, works = [], []
        for part in run(cut.head, local):
            total = part.new_empty((each, *part.shape[1:]))
            begin = functools.partial(
                dist.reduce_scatter_tensor, total, part.contiguous(), group=group, async_op=True
            )
            works.append(engine(begin, _SUMMED))
            sums.append(total)
        under_way.append((sums, works))
    found = []
    for number, (sums, works) in enumerate(under_way):
        for work in works:
            engine(work.wait, _SUMMED)
        found.append(rest(number, sums))
    if chunks == 1:
        return tuple(found[0])
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def _own(
    value: torch.Tensor, name: str, shards: Sequence[str], extents: tuple[int, int, int],
    group: dist.ProcessGroup | None,
) -> torch.Tensor:  # fmt: skip
    """The rows of this rank, by chunk, of an operand that has them all or is a shard."""
    ranks, chunks, each = extents
    if name in shards:
        return value.unflatten(0, (chunks, each))
    return value.unflatten(0, (ranks, chunks, each))[dist.get_rank(group)]


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
