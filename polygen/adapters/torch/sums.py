"""Sums that ranks have parts of, by rows: a rank makes the rows of others first, then its own.

1. What is added up is cut along its rows too: a kernel computes the rows of one rank. Those of
   another rank are pushed to it while the next are computed (`peers`).
2. A rank's own rows come last. Where what waits for the sum only adds to it (a bias, a residual),
   the kernel of a rank's own rows does so, and every row has it once. What has arrived is added,
   and whatever else waits is computed of the sum.
3. Who needs all rows gathers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polygen.adapters.torch import meaning
from polygen.adapters.torch.peers import Peers, order
from polygen.adapters.torch.running import sizes_for
from polygen.adapters.torch.tensors import is_reference, torch_dtype
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.parallel.cuts import WHOLE, Cut, State, cuts

Run = Callable[[Program, Sequence[Any]], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A program of rows, and which operands have them: a state each, 0 or "whole"."""

    program: Program
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """A sum over ranks, with what waits for it, by rows.

    Attributes:
        others: what a rank computes of the rows of others.
        own: what it computes of its own.
        rest: what waits for the sum of these; None: nothing is left.
    """

    others: Rows
    own: Rows
    rest: Rows | None


def by_rows(program: Program) -> Rows | None:
    """The program of some of the rows of all its results, if it is made of rows."""
    for cut in cuts(program):
        split = cut.tail is None and all(state in (0, WHOLE) for state in cut.inputs)
        if split and all(state == 0 for state in cut.outputs):
            return Rows(program, cut.inputs)
    return None


def sums_of(program: Program, cut: Cut) -> Sums | None:
    """A cut whose one sum can be taken apart by rows; None: it cannot.

    Args:
        program: that is cut.
        cut: along a dim that is summed over.
    """
    head = by_rows(cut.head)
    if head is None or len(cut.head.outputs) != 1:
        return None
    if cut.tail is None:
        return Sums(head, head, None)
    if cut.once:
        own = by_rows(program)
        return None if own is None else Sums(head, own, None)
    rest = by_rows(cut.tail)
    return None if rest is None else Sums(head, head, rest)


def rows_of(sums: Sums, given: Mapping[str, Any]) -> int:
    """How many rows there are, those of all ranks."""
    return next(
        int(given[tensor.name].shape[0])
        for tensor, state in zip(sums.others.program.inputs, sums.others.states, strict=True)
        if state == 0
    )


def own_rows(
    sums: Sums,
    given: Mapping[str, Any],
    shards: Collection[str],
    peers: Peers,
    run: Run,
    gathered: bool,
) -> Sequence[torch.Tensor]:
    """Rows of the results: those of this rank, or of all.

    Args:
        sums: what is computed.
        given: operands by name.
        shards: those of them that have this rank's rows alone.
        peers: the ranks.
        run: computes a program.
        gathered: whether every rank gets all rows, which takes one result, of the sum's type.
    """
    ranks, rank = peers.ranks, peers.rank
    each = rows_of(sums, given) // ranks

    def operands(rows: Rows, of: int, known: Sequence[Any] = ()) -> list[Any]:
        found = list(known)
        both = list(zip(rows.program.inputs, rows.states, strict=True))
        for tensor, state in both[len(found) :]:
            value = given[tensor.name]
            if state == 0 and tensor.name not in shards:
                value = value.narrow(0, of * each, each)
            found.append(value)
        return found

    steps = order(ranks, rank)
    begun = False
    try:
        first = operands(sums.others, steps[0][0])
        shape, dtype = _form(sums.others.program, first)
        size = math.prod(shape) * dtype.itemsize
        peers.begin(size)
        begun = True
        pushed = []  # which has to stay until the round ends
        for to, _ in steps:
            (part,) = run(sums.others.program, operands(sums.others, to))
            pushed.append(part.contiguous())
            peers.push(to, pushed[-1])
        (total,) = run(sums.own.program, operands(sums.own, rank))
        total = total.contiguous()
        place = peers.place(shape, dtype) if gathered else None
        for number, (_, source) in enumerate(steps):
            part = peers.arrived(source, shape, dtype)
            last = number == len(steps) - 1 and sums.rest is None
            torch.add(total, part, out=place if last and place is not None else total)
            peers.read(source)
        results: Sequence[torch.Tensor] = (total,)
        if sums.rest is not None:
            values = operands(sums.rest, rank, (total,))
            sizes = sizes_for(sums.rest.program, values)
            results = meaning.run(sums.rest.program, values, sizes)
            if place is not None:
                place.copy_(results[0])
        if place is not None:
            whole = torch.empty((ranks * each, *shape[1:]), dtype=dtype, device=place.device)
            peers.gather(place, whole)
            results = (whole,)
        peers.end()
    except BaseException:
        if begun:
            peers.abandon()
        raise
    return results


def _form(program: Program, operands: Sequence[Any]) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of a program's one result."""
    sizes = sizes_for(program, operands)
    (tensor,) = program.outputs
    shape = tuple(size_value(dim, sizes) for dim in tensor.dims)
    return shape, torch.float64 if is_reference(operands) else torch_dtype(tensor.dtype)
