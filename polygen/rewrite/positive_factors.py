"""A positive factor leaves a maximum: max over j of (c * x[j]) = c * max over j of x[j], for c > 0.

It leaves a choice whose other side is -inf as well. What is folded is then the bare score, and the
factor meets the others of the terms that are made with the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from polygen.frontend.dtypes import F32
from polygen.frontend.program import Access, Argument, Constant, Fold, Pointwise, Statement
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_SELECT = ("max",)


def factors_behind_folds(
    statements: Sequence[Statement], fresh: Fresh, whole: Collection[str]
) -> tuple[list[Statement], list[str]]:
    """The statements, with maxima of values without their positive factors; and what was done.

    Args:
        statements: of a chain.
        fresh: names.
        whole: folds that stay as they are.
    """
    found, steps = list(statements), []
    folds = [s for s in statements if isinstance(s, Fold) and s.write.name not in whole]
    for fold in [s for s in folds if s.function in _SELECT]:
        values = Values(tuple(found))
        (arg,) = fold.args
        if not isinstance(arg, Access):
            continue
        writer = values.writers.get(arg.name)
        if not isinstance(writer, Pointwise):
            continue
        made: list[Statement] = []
        inner, factor = _bare(values, writer, fresh, made)
        if factor == 1.0 or not isinstance(inner, Access):
            continue
        scaled = replace(writer, function="mul", args=(inner, Constant(factor)))
        own = replace(arg, name=inner.name)
        bare = replace(fold, write=replace(fold.write, name=fresh("w")), args=(own,))
        kept = tuple(item for item in fold.domain if item[0] in fold.write.iterators)
        scale = (bare.write, Constant(factor))
        result = Pointwise(fresh("R"), kept, fold.write, "mul", scale, F32)
        changed: list[Statement] = []
        for one in found:
            if one is writer:
                changed += [*made, scaled]
            else:
                changed += [bare, result] if one is fold else [one]
        found = changed
        steps.append(
            f"{fold.write.name} = {factor:g} * {bare.write.name}, the {fold.function} of "
            f"{inner.name}: a positive factor leaves a maximum"
        )
    return found, steps


def _bare(
    values: Values, writer: Pointwise, fresh: Fresh, made: list[Statement]
) -> tuple[Argument | None, float]:
    """A value without its positive factor, by new statements where it has to be; the factor."""
    if writer.function in ("mul", "div"):
        for at in (1, 0) if writer.function == "mul" else (1,):
            number, other = writer.args[at], writer.args[1 - at]
            if isinstance(number, Constant) and 0.0 < number.value < math.inf:
                by = number.value if writer.function == "mul" else 1.0 / number.value
                inner = values.writers.get(other.name) if isinstance(other, Access) else None
                if isinstance(inner, Pointwise):
                    more, factor = _bare(values, inner, fresh, made)
                    if factor != 1.0:
                        return more, factor * by
                return other, by
    if writer.function == "where":
        condition, inside, outside = writer.args
        inner = values.writers.get(inside.name) if isinstance(inside, Access) else None
        if outside == Constant(-math.inf) and isinstance(inner, Pointwise):
            more, factor = _bare(values, inner, fresh, made)
            if factor != 1.0 and more is not None:
                one = fresh.pointwise(writer, "where", (condition, more, outside))
                made.append(one)
                return one.write, factor
    return None, 1.0
