"""What a page says of kernels that run one after another: the whole, and each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polygen.frontend.program import Program, Tensor
from polygen.page.content import Content, content
from polygen.page.pictures import Picture, draw_order
from polygen.pipeline import Passes
from polygen.schedule.sums import Sums, reproducible


@dataclass(frozen=True, slots=True)
class Part:
    """One of the kernels.

    Attributes:
        content: what a page of it alone would say.
        makes: arrays, by name.
        reads: likewise.
        takes: the time that is predicted, as text.
    """

    content: Content
    makes: str
    reads: str
    takes: str


@dataclass(frozen=True, slots=True)
class SequenceContent:
    """All that the template prints."""

    title: str
    facts: tuple[tuple[str, str], ...]
    says: str
    order: Picture
    kernels: tuple[Part, ...]


def sequence_content(
    program: Program,
    each: Sequence[tuple[Passes, dict[str, int]]],
    between: Sequence[Tensor],
    sums: Sums,
) -> SequenceContent:
    """Gather a page.

    Args:
        program: of all kernels.
        each: passes of a kernel, and the sizes that it was optimised for, in order.
        between: the arrays that one makes and a later one reads.
        sums: of all of them.
    """
    parts = tuple(_part(*one, at) for at, one in enumerate(each, 1))
    times = [one.content.microseconds for one in parts]
    known = [taken for taken in times if taken is not None]
    tensors = (*program.inputs, *program.outputs)
    facts = (
        ("computes", program.source),
        *((t.name, str(t).partition(": ")[2]) for t in tensors),
        ("kernels", str(len(parts))),
        *((f"{t.name}, between", str(t).partition(": ")[2]) for t in between),
        ("target", str(each[0][0].plan.device)),
        ("bits", reproducible(sums)),
    )
    whole = len(known) == len(parts)
    return SequenceContent(
        program.name,
        facts,
        f"Widths are predicted times, {sum(known):.1f} us together, not measured."
        if whole
        else "Not all times are predicted: widths say nothing.",
        draw_order([(one.content.title, one.content.microseconds) for one in parts]),
        parts,
    )


def _part(passes: Passes, sizes: dict[str, int], at: int) -> Part:
    found = content(passes, sizes, f"kernel{at}-")
    own = passes.program
    taken = found.microseconds
    return Part(
        found,
        ", ".join(tensor.name for tensor in own.outputs),
        ", ".join(tensor.name for tensor in own.operands),
        "" if taken is None else f"{taken:.1f} us",
    )
