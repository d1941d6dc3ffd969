"""What waits for a sum over ranks, computed on whole operands: the way that is predicted to be the
quickest, of three.

1. *By rows*: parts go to the rank whose rows they are of, beside the products of other rows; what
   that rank makes of its sum comes back (`sums`).
2. *Added once*: what only adds to the sum, one rank adds to its part, in its kernel; the parts are
   added up in place by the engine's all-reduce.
3. Else the parts are added up, and the rest is computed of the sum in PyTorch's operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from polygen.adapters.legality import refusal
from polygen.adapters.torch import meaning
from polygen.adapters.torch.engine import engine
from polygen.adapters.torch.launching import is_plain, launch, launch_plainly, text_of
from polygen.adapters.torch.peers import Peers, peers_of
from polygen.adapters.torch.running import sizes_for
from polygen.adapters.torch.sums import Sums, own_rows, rows_of, sums_of
from polygen.adapters.torch.timing import agreed
from polygen.frontend.indices import size_value
from polygen.frontend.program import Program
from polygen.parallel.cuts import Cut
from polygen.parallel.ways import COPIES, TOTAL
from polygen.runtime.recent import Recent

_MOST_KEPT = 1024


def run(program: Program, operands: Sequence[Any]) -> Sequence[torch.Tensor]:
    """A program on tensors of one rank: as a kernel, or in PyTorch's operations."""
    return run_as(program, text_or_none(program), operands)


def run_as(program: Program, text: str, operands: Sequence[Any]) -> Sequence[torch.Tensor]:
    """A program of which the text is known, "" where no kernel can be made of it."""
    if not text:
        return meaning.run(program, operands, sizes_for(program, operands))
    if is_plain(operands) and any([isinstance(o, torch.Tensor) and o.is_cuda for o in operands]):
        return launch_plainly(text, operands)
    return launch(text, operands)


def text_or_none(program: Program) -> str:
    """A program as text; "" where no kernel can be made of it."""
    known = _texts.get(id(program))  # programs are large: to find one by its content takes long
    if known is None or known[0] is not program:
        text = text_of(program) if refusal(program) is None else ""
        known = _texts.put(id(program), (program, text))
    return known[1]


_texts: Recent[int, tuple[Program, str]] = Recent(_MOST_KEPT)


@dataclass(slots=True)
class Reduction:
    """A program that waits for a sum, for operands of one shape and type.

    Attributes:
        program: of whole operands.
        cut: that waits.
        rows: it by rows, if it can be taken apart so and has one result, of the sum's form.
        ways: that are predicted, by group.
    """

    program: Program
    cut: Cut
    rows: Sums | None = None
    ways: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, cut: Cut) -> Reduction:
        """What a cut of a program comes to."""
        assert cut.tail is not None
        rows = sums_of(program, cut)
        (first, *_), results = cut.head.outputs, cut.tail.outputs
        if len(results) > 1 or (results[0].dims, results[0].dtype) != (first.dims, first.dtype):
            rows = None
        return cls(program, cut, rows)

    def results(self, given: Mapping[str, Any], group: dist.ProcessGroup) -> Sequence[torch.Tensor]:
        """The program's results, whole on every rank.

        Args:
            given: this rank's operands, by name.
            group: the ranks that have parts of the sum.
        """
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        plain = is_plain(tensors)
        if plain and self.rows is not None:
            peers = self._peers(given, tensors[0], group)
            if peers is not None:
                return own_rows(self.rows, given, (), peers, run, gathered=True)
        once = self.cut.once and dist.get_rank(group) == 0
        computed = self.program if once else self.cut.head
        parts = run(computed, [given[tensor.name] for tensor in computed.inputs])
        sums = [_added_up(part, group, plain) for part in parts]
        if self.cut.once:
            return sums
        assert self.cut.tail is not None
        kept = self.cut.tail.inputs[len(sums) :]
        values = [*sums, *(given[tensor.name] for tensor in kept)]
        return meaning.run(self.cut.tail, values, sizes_for(self.cut.tail, values))

    def _peers(
        self, given: Mapping[str, Any], tensor: torch.Tensor, group: dist.ProcessGroup
    ) -> Peers | None:
        """The ranks, where it is quicker to go by rows."""
        assert self.rows is not None
        ranks, rows = dist.get_world_size(group), rows_of(self.rows, given)
        if ranks == 1 or rows % ranks:
            return None
        peers = peers_of(group, tensor)
        if peers is None:
            return None
        if group not in self.ways:
            head = self.cut.head
            sizes = sizes_for(head, [given[tensor.name] for tensor in head.inputs])
            (part,) = head.outputs
            row = math.prod(size_value(d, sizes) for d in part.dims[1:])
            self.ways[group] = agreed(
                TOTAL, head, sizes, (str(part.dims[0]), row * part.dtype.bytes), group,
                on_gpu=tensor.is_cuda, copies=True,
            )  # fmt: skip
        return peers if self.ways[group].by == COPIES else None


def _added_up(part: torch.Tensor, group: dist.ProcessGroup, plain: bool) -> torch.Tensor:
    """A sum over ranks; in place where nothing traces it."""
    if plain:
        part = part.contiguous()
        engine(lambda: dist.all_reduce(part, group=group), "a sum over ranks")
        return part
    found: torch.Tensor = torch.distributed._functional_collectives.all_reduce(part, "sum", group)
    return found
