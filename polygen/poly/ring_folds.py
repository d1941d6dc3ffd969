"""Folds of operands in the dims of the instruction: what is folded of every ring."""

from __future__ import annotations

from dataclasses import dataclass

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import TF32
from polygen.frontend.program import Access, Constant, Dim, Extent
from polygen.poly.elements import Along, Compute, Element
from polygen.poly.match import Match
from polygen.poly.operand import Operand
from polygen.poly.operand_folds import OperandFold, OperandFolds, RowResult
from polygen.poly.prologue import of_elements


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
class RingFolds:
    """What is folded of a ring, and what of a row's results its elements read.

    Attributes:
        ring: "a", ...
        role: its side, "m" or "n".
        folds: of its rows.
        statements: on the results of one row.
        results: the arrays that elements read, each with its value.
        sizes: name -> dims whose elements it counts.
        scalars: arguments that statements read.
    """

    ring: str
    role: str
    folds: tuple[RingFold, ...]
    statements: tuple[Compute, ...]
    results: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, tuple[Dim, ...]], ...]
    scalars: tuple[str, ...]


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
    known = {one.tensor.name: one for one in operands.results}
    folds = {one.fold.write.name: one for one in operands.folds}
    found: dict[str, list[RowResult]] = {}
    made: dict[str, dict[str, RingFold]] = {}
    for element in reads:
        if element.tensor.name in known:
            result = known[element.tensor.name]
            first = folds[result.folds[0]]
            side = _side(first, element, match)
            own = [_ring_fold(folds[name], element.index, side) for name in result.folds]
            ring = own[0][0]
            for name in result.folds:
                _, fold = _ring_fold(folds[name], element.index, [s for s in side if s[0] == ring])
                made.setdefault(ring, {})[name] = fold
            found.setdefault(ring, []).append(result)
    return tuple(
        _of_ring(name, operand.role, tuple(made[name].values()), found[name])
        for name, operand in match.operands
        if name in found
    )


def _of_ring(
    ring: str, role: str, folds: tuple[RingFold, ...], results: list[RowResult]
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
        tuple(sizes.items()), tuple(scalars),
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


def _not_of_rows(one: OperandFold, what: str) -> UnsupportedProgram:
    fold = one.fold
    return UnsupportedProgram(
        f"{fold.write.name} is folded of an operand, and {what}",
        where=f"{fold.name}: {fold}",
        why="a block folds the rows of its operands' tiles, along the axis that its products sum",
        nearest=f"Compute {fold.write.name} in a function before, and pass it",
    )
