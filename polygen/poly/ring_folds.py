"""Folds of operands in the dims of the instruction: what is folded of every ring."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import TF32
from polygen.frontend.program import Access, Constant, Dim, Extent, Tensor
from polygen.poly.elements import Along, Compute, Element
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.operand_folds import OperandFold, OperandFolds, RowResult
from polygen.poly.operand_rows import places_of
from polygen.poly.prologue import of_elements
from polygen.poly.row_values import RowOutput


@dataclass(frozen=True, slots=True)
class RingFold:
    """A fold of one ring's elements, over m or n, k and the batch dims.

    Attributes:
        value: what the program calls the results.
        monoid: how terms are combined.
        terms: of an element, a component each.
        element: the variable that holds the ring's element; "": no ring has what terms are of.
        reads: what else a term is computed from.
        statements: on one element, in order.
        coordinates: variable, and the number that it holds.
    """

    value: str
    monoid: str
    terms: tuple[str | float, ...]
    element: str
    reads: tuple[Element, ...]
    statements: tuple[Compute, ...]
    coordinates: tuple[tuple[str, Along], ...]


@dataclass(frozen=True, slots=True)
class RingOutput:
    """An output that has a number of every row of a ring.

    Attributes:
        tensor: the array.
        number: which of the ring's results it is.
        index: per axis, over m or n and the batch dims. Along all other dims every tile has the
            same numbers.
    """

    tensor: Tensor
    number: int
    index: tuple[Along, ...]


@dataclass(frozen=True, slots=True)
class RingFolds:
    """What is folded of a ring, what of a row's results its elements read, and what leaves.

    Attributes:
        ring: "a", ...
        role: its side, "m" or "n".
        folds: of its rows.
        statements: on the results of one row.
        results: the arrays that elements read, and outputs are made of, each with its value.
        sizes: name -> dims whose elements it counts.
        scalars: arguments that statements read.
        outputs: that are stored.
    """

    ring: str
    role: str
    folds: tuple[RingFold, ...]
    statements: tuple[Compute, ...]
    results: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, tuple[Dim, ...]], ...]
    scalars: tuple[str, ...]
    outputs: tuple[RingOutput, ...] = ()


def ring_folds(
    operands: OperandFolds, reads: tuple[Element, ...], match: Match
) -> tuple[RingFolds, ...]:
    """What is folded of every ring, in the order of the match's operands.

    A result that is read along m and along n is folded of one ring of each side.

    Args:
        operands: their folds, and what of them elements read.
        reads: of the elements behind the products, those of results among them.
        match: the operands.

    Raises:
        UnsupportedProgram: a result is not of the rows or columns of an operand.
    """
    found = _Rings(operands, match)
    known = {one.tensor.name: one for one in operands.results}
    for element in reads:
        if element.tensor.name in known:
            result = known[element.tensor.name]
            found.add(result, element.index, _side(found.first(result), element, match))
    for output in operands.outputs:
        found.leave(output)
    return tuple(
        _of_ring(
            name,
            operand.role,
            tuple(found.folds[name].values()),
            list(found.results[name]),
            tuple(found.outputs.get(name, ())),
        )
        for name, operand in match.operands
        if name in found.results
    )


class _Rings:
    """What is folded of each ring, by its name, as results are asked for one by one."""

    def __init__(self, operands: OperandFolds, match: Match) -> None:
        self.operands, self.match = operands, match
        self.of = {one.fold.write.name: one for one in operands.folds}
        self.folds: dict[str, dict[str, RingFold]] = {}
        self.results: dict[str, dict[RowResult, tuple[Along, ...]]] = {}  # with their indices
        self.outputs: dict[str, list[RingOutput]] = {}

    def first(self, result: RowResult) -> OperandFold:
        """The first fold that a result is computed of."""
        return self.of[result.folds[0]]

    def add(
        self, result: RowResult, index: tuple[Along, ...], side: list[tuple[str, Operand]]
    ) -> str:
        """Folds that a result is computed of, of the ring that the first is one of."""
        ring, _ = _ring_fold(self.first(result), index, side)
        for name in result.folds:
            _, fold = _ring_fold(self.of[name], index, [s for s in side if s[0] == ring])
            self.folds.setdefault(ring, {})[name] = fold
        self.results.setdefault(ring, {}).setdefault(result, index)
        return ring

    def leave(self, output: RowOutput) -> None:
        """A result that leaves: where elements read it of a ring, from there."""
        result = next(one for one in self.operands.results if one.value == output.value)
        ring = next((name for name, own in self.results.items() if result in own), "")
        if not ring:
            index, side = _rows_of(self.first(result), self.match)
            ring = self.add(result, index, side)
        row = self.results[ring][result]
        places = tuple(row[at] if at >= 0 else Along("") for at in output.axes)
        number = list(self.results[ring]).index(result)
        self.outputs.setdefault(ring, []).append(RingOutput(output.tensor, number, places))


def _rows_of(one: OperandFold, match: Match) -> tuple[tuple[Along, ...], list[tuple[str, Operand]]]:
    """Where results are of an operand's rows, and the operands that have these rows."""
    fold = one.fold
    if len(fold.folded) != 1:
        raise _not_of_rows(one, f"it is folded over {len(fold.folded)} axes", alone=True)
    depth = dict(fold.domain)[fold.folded[0]]
    batches = [dim for dim, _ in match.batches]
    for _, operand in match.operands:
        at = places_of(one, operand) if operand.extent("k") == depth else None
        if at is None:
            continue
        index = tuple(at[it] for it in fold.write.iterators)
        dims = {place.dim for place in index}
        rows = operand.role in dims or operand.extent(operand.role) == 1
        if not rows or not dims <= {"", operand.role, *batches}:
            continue
        side = [
            (name, other)
            for name, other in match.operands
            if other.role == operand.role and other.extent("k") == depth
        ]
        return index, side
    raise _not_of_rows(one, "no product sums that axis of an operand", alone=True)


def _of_ring(
    ring: str,
    role: str,
    folds: tuple[RingFold, ...],
    results: list[RowResult],
    outputs: tuple[RingOutput, ...],
) -> RingFolds:
    """Folds of a ring, with what is computed of their results."""
    sizes: dict[str, tuple[Dim, ...]] = {}
    scalars: dict[str, None] = {}
    statements = []
    every = dict.fromkeys(s for one in results for s in one.statements)
    values = {fold.value for fold in folds} | {s.write.name for s in every}
    for statement in every:
        args: list[str | float] = []
        for arg in statement.args:
            if isinstance(arg, Constant):
                args.append(arg.value)
            elif isinstance(arg, Extent):
                sizes[str(arg)] = arg.dims
                args.append(str(arg))
            else:
                assert isinstance(arg, Access)
                args.append(arg.name)
                if arg.name not in values:
                    scalars[arg.name] = None
        statements.append(
            Compute(statement.write.name, statement.function, tuple(args), statement.dtype)
        )
    return RingFolds(
        ring, role, folds, tuple(statements),
        tuple((one.tensor.name, one.value) for one in results),
        tuple(sizes.items()), tuple(scalars), outputs,
    )  # fmt: skip


def _side(one: OperandFold, element: Element, match: Match) -> list[tuple[str, Operand]]:
    """The operands that have the rows which a result is read of."""
    fold = one.fold
    plain = all(at == Along(at.dim) and at.dim for at in element.index)
    along = [at.dim for at in element.index if at.dim in ("m", "n")]
    if not plain or len(along) != 1 or len(fold.folded) != 1:
        raise _not_of_rows(one, f"it is used at [{', '.join(map(str, element.index))}]")
    depth = dict(fold.domain)[fold.folded[0]]
    side = [
        (name, operand)
        for name, operand in match.operands
        if operand.role == along[0] and operand.extent("k") == depth
    ]
    if not side:
        raise _not_of_rows(one, f"no operand of a product has its terms along {along[0]}")
    return side


def _ring_fold(
    one: OperandFold, index: tuple[Along, ...], side: list[tuple[str, Operand]]
) -> tuple[str, RingFold]:
    """The fold of a ring that has what its terms are made of, or else of the first."""
    fold = one.fold
    at = dict(zip(fold.write.iterators, index, strict=True)) | {fold.folded[0]: Along("k")}
    arguments = {t.name: t for t in one.tensors}
    for name, operand in side:
        tensors = arguments
        if _is_exact(operand):
            tensors = arguments | {operand.tensor.name: operand.tensor}
        reads, coordinates, statements = of_elements(tensors, one.statements, at)
        mine = next((read for read in reads if _is_element(read, operand)), None)
        if mine is not None:
            return name, _placed(one, mine, reads, statements, coordinates)
    # No ring has what terms are made of: they are read beside the first, whose rows are theirs.
    read = {a.name for s in one.statements for a in s.reads}
    if not read <= {s.write.name for s in one.statements} | set(arguments):
        raise _not_of_rows(one, "its terms are of a value that no ring has as it is")
    reads, coordinates, statements = of_elements(arguments, one.statements, at)
    return side[0][0], _placed(one, None, reads, statements, coordinates)


def _placed(
    one: OperandFold,
    mine: Element | None,
    reads: tuple[Element, ...],
    statements: tuple[Compute, ...],
    coordinates: tuple[tuple[str, Along], ...],
) -> RingFold:
    fold, beside = one.fold, tuple(read for read in reads if read is not mine)
    element = mine.name if mine is not None else ""
    return RingFold(
        fold.write.name, fold.function, one.terms, element, beside, statements, coordinates
    )


def _is_exact(operand: Operand) -> bool:
    """Whether a ring has a computed operand's value as the program has it, and not rounded."""
    return operand.computed is not None and operand.tensor.dtype != TF32


def _is_element(read: Element, operand: Operand) -> bool:
    """Whether that is the element of an operand that a product multiplies there."""
    if read.tensor.name != operand.tensor.name:
        return False
    if operand.computed is not None:  # its axes are in the order in which rings have them
        return {at.dim for at in read.index} == {at.dim for at in operand.index}
    return read.index == operand.index


def _not_of_rows(one: OperandFold, what: str, *, alone: bool = False) -> UnsupportedProgram:
    """A refusal; `alone`: elements of the products' results do not use it."""
    fold, where = one.fold, "of its own" if alone else "before, and pass it"
    return UnsupportedProgram(
        f"{fold.write.name} is folded of an operand, and {what}",
        where=f"{fold.name}: {fold}",
        why="a block folds the rows of its operands' tiles, along the axis that its products sum",
        nearest=f"Compute {fold.write.name} in a function {where}",
    )
