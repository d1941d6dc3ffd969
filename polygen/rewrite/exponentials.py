"""Sums of exponentials relative to their largest, in one pass with it.

    F0  v0[j] = max over i of x[i,j]              F0  v0[j] = max over i of x[i,j]
    P1  v1[i,j] = sub(x[i,j], v0[j])       ->     F3  v3[j] = exponentials over i of x[i,j], 1.0
    P2  v2[i,j] = exp(v1[i,j])
    F3  v3[j] = sum over i of v2[i,j]

The monoid keeps the largest term so far beside the sum relative to it: what it ends with is that
sum, of the same terms. So both folds are of what is read once, where the second one of those on the
left begins when the first one has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from polygen.frontend.closure import needed
from polygen.frontend.program import Access, Argument, Constant, Fold, Pointwise, Program
from polygen.rewrite.values import Values

EXPONENTIALS = "exponentials"


def with_exponentials(program: Program, folds: Collection[str]) -> Program:
    """A program in which such sums are folds of the terms themselves.

    Args:
        program: any.
        folds: that may be changed, and that others may be beside, by name.
    """
    values = Values(program.statements)
    changed = []
    for one in program.statements:
        term = _term(values, one, folds) if isinstance(one, Fold) else None
        if term is not None:
            assert isinstance(one, Fold)
            one = replace(one, function=EXPONENTIALS, args=(term, Constant(1.0)))
        changed.append(one)
    wanted = [tensor.name for tensor in program.outputs]
    return replace(program, statements=tuple(needed(changed, wanted)))


def _term(values: Values, one: Fold, folds: Collection[str]) -> Access | None:
    """Of what a fold sums exponentials, relative to the largest along the same axes; or None."""
    if one.function != "sum" or one.write.name not in folds:
        return None
    apart = _argument(values, "exp", one.args[0])
    if apart is None:
        return None
    writer = values.writers.get(apart.name)
    if not isinstance(writer, Pointwise) or writer.function != "sub" or writer.write != apart:
        return None
    term, most = writer.args
    if not isinstance(term, Access) or not isinstance(most, Access) or most.name not in folds:
        return None
    largest = values.writers[most.name]
    same = isinstance(largest, Fold) and (largest.function, largest.args) == ("max", (term,))
    if not same or largest.write != most or largest.domain != one.domain:
        return None
    return term if one.write.index == most.index else None


def _argument(values: Values, function: str, value: Argument) -> Access | None:
    """What a value is a function of, element by element; None if it is of another."""
    writer = values.writers.get(value.name) if isinstance(value, Access) else None
    if not isinstance(writer, Pointwise) or writer.function != function or writer.write != value:
        return None
    (found,) = writer.args
    return found if isinstance(found, Access) else None
