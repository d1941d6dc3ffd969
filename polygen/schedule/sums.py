"""`Sums`: in which order a kernel adds up, as far as bits depend on it; a plain record.

Two kernels of one program whose `Sums` have one text give an element the same bits, whatever tile
it lies in: `polygen.poly.sum_order` computes it from the trees that are emitted, and says why.
What is not in it (tiles, stages, clusters, who multiplies, the way out) has no part in the bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from polygen.frontend.dtypes import DType

ASCENDING, DESCENDING, VARIES = "ascending", "descending", "varying"
FROM_ZERO, FROM_FIRST = "to zeros", "to the first of them"
SPECIAL_UNIT = "reciprocals of short forms by the special function unit"
IN_TURN = "added up one after the other"
_DIGITS = 16  # hexadecimal, of a digest: for people, and for logs


@dataclass(frozen=True, slots=True)
class SumOrder:
    """How the elements of one product's sums come about.

    Attributes:
        product: the statement.
        instruction: the kind of instruction, by the name of its atom; "" where no bit depends on
            it, because sums of integers are exact in any order.
        accumulator: type of the sums.
        depth: elements of k that one instruction adds: the groups of k.
        order: in which the groups enter a sum: `ASCENDING`, `DESCENDING`, a text that says it as a
            relation of k tiles and steps, or `VARIES`.
        count: groups of a sum, those behind its end included, which add zeros: a number, or a
            formula of the sizes.
        begins: what the first group is added to.
        parts: which k are summed apart from each other, as a relation; "": one sum takes all.
        combine: in which order parts are added up; "" with parts: that is not proved.
        last: the same of the tiles of the last round, where blocks share the sums of these alone;
            "": they do not.
        last_fixed: whether one order is all there is of these, too.
    """

    product: str
    instruction: str
    accumulator: str
    depth: int
    order: str
    count: str
    begins: str
    parts: str = ""
    combine: str = ""
    last: str = ""
    last_fixed: bool = True

    @property
    def fixed(self) -> bool:
        """Whether one order is all there is: it is proved, and nothing is added as it comes.

        Where blocks share the sums of the last round: one order for each kind of tiles, whose
        numbers follow from the sizes and from how many blocks run at once.
        """
        own = self.order != VARIES and bool(self.combine or not self.parts)
        return not self.instruction or (own and self.last_fixed)

    @property
    def alike(self) -> bool:
        """Whether all elements have the same order, whatever tile they are in."""
        return self.fixed and not self.last

    def beside(self, other: SumOrder) -> SumOrder:
        """The order of tiles that blocks have for themselves, with that of those they share."""
        if not self.instruction:
            return self
        parts = other.parts or "one part"
        said = (
            f"{other.count} group(s), {other.order}, in parts {parts}, "
            f"{other.combine or 'added up as they come'}"
        )
        return replace(self, last=said, last_fixed=other.fixed)

    def __str__(self) -> str:
        if not self.instruction:
            return f"{self.product}: exact sums in {self.accumulator}, the same in any order"
        split = f"; in parts {self.parts}, {self.combine or 'added up as they come'}"
        last = f"; in tiles of the last round {self.last}"
        return (
            f"{self.product}: {self.instruction}, {self.count} group(s) of {self.depth} along k, "
            f"{self.order}, added {self.begins}, sums in {self.accumulator}"
            f"{split if self.parts else ''}"
            f"{last if self.last else ''}"
        )


def sum_order(
    product: str,
    instruction: str,
    accumulator: DType,
    depth: int,
    order: str,
    *,
    count: str,
    begins: str,
    parts: str = "",
    combine: str = "",
) -> SumOrder:
    """A record of what bits depend on: of sums of integers, which never round, nothing."""
    if accumulator.kind == "int":
        return SumOrder(product, "", accumulator.name, 0, "", "", "")
    kind = accumulator.name
    return SumOrder(product, instruction, kind, depth, order, count, begins, parts, combine)


def turned(instruction: str, exchanged: bool, exchangeable: bool) -> str:
    """The kind of instruction, and whether its left operand is the program's right one.

    Products commute, and both ways add the same groups of them. Where it is not known that the
    hardware treats both operands alike, kernels with operands exchanged are of a class of their
    own.
    """
    apart = exchanged and not exchangeable
    return f"{instruction} with operands exchanged" if apart else instruction


def ranges(count: int) -> str:
    """The parts of a sum whose k tiles are shared out in equal numbers, in their order."""
    return f"{count} ranges of as many k tiles"


def in_blocks(block: int) -> str:
    """The parts of a sum whose blocks of k are promoted, in their order."""
    return f"blocks of {block} along k, each times its factors, if any"


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """In which order the terms of a fold are combined: one order for all launches.

    Attributes:
        value: the fold's result.
        function: how terms are combined.
        order: in words; "" where no bit depends on it, because a result is one of the terms.
    """

    value: str
    function: str
    order: str = ""

    def __str__(self) -> str:
        return f"{self.value}: {self.function}, {self.order or 'the same in any order'}"


@dataclass(frozen=True, slots=True)
class Sums:
    """The class of a kernel's sums.

    Attributes:
        orders: of the products, in the order of the statements.
        invariant: dims whose sizes, and places along which, are proved to have no part in them.
        folds: of the folds: parts are written once and combined in the order of their numbers, so
            that nothing depends on who comes first.
        reciprocals: what takes those of short forms, where it is not the other instructions.
    """

    orders: tuple[SumOrder, ...]
    invariant: tuple[str, ...] = ()
    folds: tuple[FoldOrder, ...] = ()
    reciprocals: str = ""

    @property
    def said(self) -> tuple[str, ...]:
        """All of it, a line each."""
        return tuple(map(str, filter(None, (*self.orders, *self.folds, self.reciprocals))))

    @property
    def text(self) -> str:
        """What two kernels of one program have to share for the same bits."""
        ordered = tuple(one for one in self.folds if one.order)
        return "\n".join(replace(self, folds=ordered).said)

    @property
    def digest(self) -> str:
        """The text in 16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGITS]

    @property
    def deterministic(self) -> bool:
        """Whether the same arguments give the same bits in every launch."""
        return all(one.fixed for one in self.orders)


@dataclass(frozen=True, slots=True)
class SumClass:
    """The class of sums that kernels for all sizes of some dims share.

    Attributes:
        text: theirs, as `Sums.text`.
    """

    text: str


def reproducible(sums: Sums) -> str:
    """What a kernel promises of its bits, in a sentence."""
    if not sums.deterministic:
        return "not deterministic: parts of sums are added up as they come"
    if any(one.last for one in sums.orders):
        return "deterministic where as many blocks run at once: the same arguments, the same bits"
    if not sums.invariant:
        return "deterministic: the same arguments give the same bits"
    return (
        f"deterministic, and the same bits for every {', '.join(sums.invariant)} "
        f"in kernels of class {sums.digest}"
    )
