"""Where a fold's rows are those of an operand: from the elements that both are made of.

An operand's element at (m, k) is one of an array, or computed of elements of several; so is a term
of a fold at its iterators. Where both are of one element, each iterator runs along a dim: the one
that is folded along k, the others along the operand's rows and batch dims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polygen.frontend.program import Dim
from polygen.poly.elements import Along
from polygen.poly.operand import Operand
from polygen.poly.operand_folds import OperandFold
from polygen.poly.row_values import Source


def places_of(one: OperandFold, operand: Operand) -> dict[str, Along] | None:
    """What each iterator of a fold runs along, all of the dim; None: no term is of the operand.

    Args:
        one: the fold.
        operand: whose rows may be its own.
    """
    sizes = dict(one.fold.domain)
    (folded,) = one.fold.folded
    for source in one.sources:
        for other in _sources(operand):
            at = _bound(source, other, sizes)
            if at is None or at.get(folded) != Along("k"):
                continue
            at = {it: Along("") for it, extent in sizes.items() if extent == 1} | at
            whole = all(sizes[it] == operand.extent(p.dim) for it, p in at.items() if p.dim)
            if set(at) == set(sizes) and whole:
                return at
    return None


def _sources(operand: Operand) -> Iterator[Source]:
    """The elements of arrays that an operand's is, or is computed of."""
    made = operand.computed
    if operand.fragment is not None:
        made = operand.fragment.prologue
    if made is None:
        yield operand.tensor.name, operand.index
    else:
        yield from ((read.tensor.name, read.index) for read in made.reads)


def _bound(source: Source, other: Source, sizes: Mapping[str, Dim]) -> dict[str, Along] | None:
    """What iterators are where two accesses are of one element; None: nowhere."""
    found: dict[str, Along] = {}
    if source[0] != other[0]:
        return None
    for own, at in zip(source[1], other[1], strict=True):
        if own.dim and not at.dim and sizes[own.dim] == 1 and own.offset == at.offset:
            found[own.dim] = Along("")
        elif replace(own, dim=at.dim) != at or found.get(own.dim, Along(at.dim)).dim != at.dim:
            return None
        elif own.dim:
            found[own.dim] = Along(at.dim)
    dims = [one.dim for one in found.values() if one.dim]
    return found if len(set(dims)) == len(dims) else None
