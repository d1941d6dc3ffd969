"""An einsum of several operands as steps of two: in which order, and what each step leaves.

1. *Factors* of the result, all of whose labels the output and the others have, are left for the
   end: ``bk,nk,n->bn`` scales what comes of ``bk,nk->bn``, in f32.
2. The others are parted into two groups that have every summed label both, if that is possible:
   operands of a group are multiplied element by element, and one product is left, as
   ``bi,oij,bj->bo`` is ``(x[b,i] * y[b,j])`` times ``w``; a group has no more labels than the
   operand that has the most, so that nothing large is made. Of several ways the one is taken in
   which both groups have labels of the output for themselves, then whose groups have the fewest
   labels, then the first, counted from the left.
3. Where that is not possible, the first two operands, from the left, that alone have a summed label
   are multiplied, which makes a chain, as ``ij,jk,kl->il`` does; and the rest again from 2.

The order depends on the subscripts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

from polygen.frontend.subscripts import Labels

_MOST_PARTED = 10  # operands, of which 2^9 ways are looked at


@dataclass(frozen=True, slots=True)
class Step:
    """One product of two.

    Attributes:
        first: which operand; those that steps make are counted on behind the given ones.
        second: which other one.
        output: labels of what comes of it.
    """

    first: int
    second: int
    output: Labels


class _Steps:
    """Operands that are there, and the steps that made them."""

    def __init__(self, labels: Sequence[Labels], output: Labels) -> None:
        self.labels, self.output = dict(enumerate(labels)), output
        self.steps: list[Step] = []
        self.count = len(labels)

    def multiply(self, first: int, second: int, *, whole: bool = False) -> int:
        """Multiply two operands, and sum the labels that nothing else has; `whole`: none."""
        one, other = self.labels.pop(first), self.labels.pop(second)
        needed = {label for own in self.labels.values() for label in own} | {*self.output}
        both = dict.fromkeys((*one, *other))
        kept = tuple(label for label in both if whole or label in needed)
        if not self.labels or {*kept} <= {*self.output}:
            kept = tuple(label for label in self.output if label in both)
        made = self.count + len(self.steps)
        self.steps.append(Step(first, second, kept))
        self.labels[made] = kept
        return made

    def group(self, members: Sequence[int]) -> int:
        """Multiply operands element by element, from the left."""
        found, *others = members
        for one in others:
            found = self.multiply(found, one, whole=True)
        return found


def steps_of(labels: Sequence[Labels], output: Labels) -> list[Step]:
    """The steps of an einsum, in order; none of one operand.

    Args:
        labels: per operand, those of its axes.
        output: those of the result.
    """
    made = _Steps(labels, output)
    factors = _factors(labels, output) if len(labels) > 2 else []
    inner = [at for at in range(len(labels)) if at not in factors]
    while len(inner) > 1:
        parts = _parted([made.labels[at] for at in inner], output)
        if parts is not None:
            first, second = ([inner[at] for at in part] for part in parts)
            inner = [made.multiply(made.group(first), made.group(second))]
            continue
        pair = _alone(inner, made.labels, output)
        place = inner.index(pair[0])
        inner = [at for at in inner if at not in pair]
        inner.insert(place, made.multiply(*pair))
    if inner:
        factors = [inner[0], *factors]
    made.group(factors)
    return made.steps


def _factors(labels: Sequence[Labels], output: Labels) -> list[int]:
    """Operands that scale the result of the others, of which there is a sum."""
    found: list[int] = []
    for at, own in enumerate(labels):
        others = {one for n, o in enumerate(labels) if n != at and n not in found for one in o}
        if {*own} <= {*output} & others:
            found.append(at)
    rest = {label for at, own in enumerate(labels) if at not in found for label in own}
    return found if rest - {*output} else []


def _parted(
    labels: Sequence[Labels], output: Labels
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Operands in two groups that both have all summed labels; None: there are none such."""
    summed = {label for own in labels for label in own} - {*output}
    most = max(map(len, labels))
    if len(labels) > _MOST_PARTED:
        return None
    best: tuple[tuple[int, int, int], tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    for sides in product((0, 1), repeat=len(labels) - 1):
        groups = tuple(
            tuple(at for at, side in enumerate((0, *sides)) if side == one) for one in (0, 1)
        )
        unions = [{label for at in group for label in labels[at]} for group in groups]
        if not groups[1] or not all(summed <= union and len(union) <= most for union in unions):
            continue
        own = [len(one - other) for one, other in (unions, unions[::-1])]
        cost = (own.count(0), max(map(len, unions)), sum(map(len, unions)))
        if best is None or cost < best[0]:
            best = cost, (groups[0], groups[1])
    return best and best[1]


def _alone(inner: Sequence[int], given: dict[int, Labels], output: Labels) -> tuple[int, int]:
    """The first two operands that alone have a summed label; the first two where none have."""
    for pair in combinations(inner, 2):
        others = {label for at, own in given.items() if at not in pair for label in own}
        if ({*given[pair[0]]} & {*given[pair[1]]}) - others - {*output}:
            return pair
    return inner[0], inner[1]


def spelled(left: Labels, right: Labels, output: Labels) -> str:
    """A step as subscripts, for messages; leading axes that had no letter are ``...``."""

    def text(own: Labels) -> str:
        leading = any(label.startswith("...") for label in own)
        return "..." * leading + "".join(label for label in own if not label.startswith("..."))

    return f"{text(left)},{text(right)}->{text(output)}"
