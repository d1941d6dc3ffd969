"""What is found out once about products with communication beside them, by shapes and types.

How the program is cut, the forms of its results, and the way of running it that is predicted to be
the quickest, on which all ranks agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from polygen.adapters.torch.operator import Operator
from polygen.adapters.torch.sums import Sums, sums_of
from polygen.adapters.torch.tensors import is_reference, torch_dtype
from polygen.adapters.torch.timing import agreed
from polygen.errors import ArgumentError, UnsupportedProgram
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.parallel.cuts import PART, WHOLE, Cut, State, cuts
from polygen.parallel.ways import GATHER, SUM, Way
from polygen.runtime.recent import Recent

_MOST_KEPT = 1024
_Forms = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(slots=True)
class Call:
    """What is known of calls with operands of the same shapes and types.

    Attributes:
        kind: "gather" or "sum".
        cut: along rows, or along the axis that is summed over.
        product: what is computed of rows.
        sizes: of its symbolic dims, for the rows of all ranks.
        dim: that of the rows.
        row: bytes of a row that ranks exchange.
        on_gpu: whether times can be predicted.
        results: of all rows, shape and type each.
        head: of a sum: what has rows of the program before it.
        rest: likewise behind it.
        sums: by rows, if they can be taken apart so.
        ways: that are predicted, by the group and by whether copies can be made.
    """

    kind: str
    cut: Cut
    product: Program
    sizes: dict[str, int]
    dim: str
    row: int
    on_gpu: bool
    results: _Forms = ()
    head: tuple[State, ...] = ()
    rest: tuple[State, ...] = ()
    sums: Sums | None = None
    ways: dict[Any, Way] = field(default_factory=dict)

    def way(self, group: dist.ProcessGroup | None, *, copies: bool) -> Way:
        """The way that the first rank predicts to be the quickest.

        Args:
            group: the ranks; None: all there are.
            copies: whether they reach each other's memory.
        """
        key = (group, copies)
        if key not in self.ways:
            self.ways[key] = agreed(
                self.kind, self.product, self.sizes, (self.dim, self.row), group,
                on_gpu=self.on_gpu, copies=copies,
            )  # fmt: skip
        return self.ways[key]


_known: Recent[Any, Call] = Recent(_MOST_KEPT)


def _forms(operands: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([(o.shape, o.dtype, o.device.type) if isinstance(o, torch.Tensor) else None
                  for o in operands])  # fmt: skip


def gathering(operator: Operator, x: torch.Tensor, operands: Sequence[Any], ranks: int) -> Call:
    """What is known of a product of rows that are gathered.

    Args:
        operator: whose first parameter gets them.
        x: this rank's.
        operands: the others.
        ranks: how many have as many rows.

    Raises:
        UnsupportedProgram: rows of the results need other rows of x.
    """
    key = (operator.name, ranks, GATHER, *_forms((x, *operands)))
    known = _known.get(key)
    if known is not None:
        return known
    whole = (x[:1].expand(x.shape[0] * ranks, *x.shape[1:]), *operands)  # for its shape alone
    program, sizes = operator.program_for(whole)
    cut = _by_rows(program, operator.parameters[0])
    found = Call(
        GATHER, cut, program, sizes, cut.dim, _row(tuple(x.shape), x.dtype), x.is_cuda,
        results=_results(program, sizes, whole),
    )  # fmt: skip
    return _known.put(key, found)


def scattering(
    operator: Operator, operands: Sequence[Any], shards: tuple[str, ...], ranks: int
) -> Call:
    """What is known of a sum whose rows are scattered.

    Args:
        operator: that computes it.
        operands: in order.
        shards: parameters that have this rank's rows alone.
        ranks: how many have a part.

    Raises:
        UnsupportedProgram: there is no such sum, or rows need other rows.
        ArgumentError: rows of a shard are needed before the sum.
    """
    key = (operator.name, ranks, SUM, shards, *_forms(operands))
    known = _known.get(key)
    if known is not None:
        return known
    rows = operands[0].shape[0]
    whole = tuple(
        operand[:1].expand(rows, *operand.shape[1:]) if name in shards else operand
        for name, operand in zip(operator.parameters, operands, strict=True)
    )
    program, sizes = operator.program_for(whole)
    cut = _over_sums(program, operator.parameters[0])
    head = _by_rows(cut.head, operator.parameters[0])
    early = {t.name for t, state in zip(cut.head.inputs, head.inputs, strict=True) if state == 0}
    if early & set(shards):
        name = min(early & set(shards))
        raise ArgumentError(
            f"{name} has this rank's rows alone",
            where="shards",
            why="a rank computes its part of the sum for the rows of all ranks",
            nearest=f"Pass all rows of {name}",
        )
    rest = () if cut.tail is None else _by_rows(cut.tail, cut.tail.inputs[0].name).inputs
    row = sum(_row(*form) for form in _results(cut.head, sizes, whole))
    found = Call(
        SUM, cut, cut.head, sizes, head.dim, row, operands[0].is_cuda,
        head=head.inputs, rest=rest, sums=sums_of(program, cut),
    )  # fmt: skip
    return _known.put(key, found)


def _row(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a row."""
    return int(math.prod(shape[1:]) * dtype.itemsize)


def _results(program: Program, sizes: dict[str, Any], operands: Sequence[Any]) -> _Forms:
    """Shape and type of each result."""
    exact = is_reference(operands)
    return tuple(
        (
            tuple(size_value(dim, sizes) for dim in tensor.dims),
            torch.float64 if exact else torch_dtype(tensor.dtype),
        )
        for tensor in program.outputs
    )


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
