"""A factor that is the same for all terms of a sum leaves it.

    sum over k of (a[k] * r) * v[k]   =   (sum over k of a[k] * v[k]) * r

It holds for products and quotients, through a choice whose other side is 0, and through rounding,
which is then of `a[k]` and not of its product. The quotient by a sum of terms that are all 0, as in
a row whose every element is masked, is made 0 instead of 0 / 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from polygen.frontend.dtypes import BOOL
from polygen.frontend.program import Access, Argument, Constant, Contraction, Pointwise, Statement
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values


@dataclass(frozen=True, slots=True)
class Taken:
    """A factor that has left: ``function`` "mul" or "div", and the value."""

    function: str
    value: Access


def factors_out(
    statements: Sequence[Statement],
    product: Contraction,
    operand: Access,
    is_row: Callable[[Argument], bool],
    fresh: Fresh,
) -> tuple[list[Statement], Contraction, tuple[Taken, ...]]:
    """Move what is the same for a whole row out of a product's operand, behind the product.

    Args:
        statements: of the program.
        product: that sums over the row.
        operand: the access of the operand, one of the product's.
        is_row: whether an argument is a value that is folded of the row, or made of such values.
        fresh: names.

    Returns:
        The statements, the product among them, and what has left, the innermost first.
    """
    values = Values(tuple(statements))
    made: list[Statement] = []

    def bare(arg: Argument) -> tuple[Argument, tuple[Taken, ...]]:
        writer = values.writers.get(arg.name) if isinstance(arg, Access) else None
        if not isinstance(writer, Pointwise):
            return arg, ()
        args = writer.args
        if writer.function == "cast":
            inner, taken = bare(args[0])
            return (again(writer, (inner,)), taken) if taken else (arg, ())
        if writer.function in ("mul", "div"):
            for at in (1, 0) if writer.function == "mul" else (1,):
                other = args[1 - at]
                one = args[at]
                if isinstance(one, Access) and is_row(one) and not is_row(other):
                    inner, taken = bare(other)
                    return inner, (*taken, Taken(writer.function, one))
            for at in (0, 1) if writer.function == "mul" else (0,):
                inner, taken = bare(args[at])
                if taken:
                    changed = (inner, args[1]) if at == 0 else (args[0], inner)
                    return again(writer, changed), taken
        if writer.function == "where":
            for at in (1, 2):
                other = args[3 - at]
                if isinstance(other, Constant) and other.value == 0.0:
                    inner, taken = bare(args[at])
                    if taken:
                        sides = (inner, other) if at == 1 else (other, inner)
                        return again(writer, (args[0], *sides)), taken
        return arg, ()

    def again(writer: Pointwise, args: Sequence[Argument]) -> Access:
        one = fresh.pointwise(writer, writer.function, args, writer.dtype)
        made.append(one)
        return one.write

    inner, taken = bare(operand)
    if not taken:
        return list(statements), product, ()
    assert isinstance(inner, Access)
    own = tuple(index for index in operand.index)
    read = replace(operand, name=_same_type(values, operand, inner, again).name, index=own)
    changed = replace(
        product,
        write=replace(product.write, name=fresh("w")),
        lhs=read if product.lhs == operand else product.lhs,
        rhs=read if product.rhs == operand else product.rhs,
    )
    behind: list[Statement] = []
    total = changed.write
    like = Pointwise(
        "", tuple(item for item in product.domain if item[0] in product.write.iterators),
        product.write, "", (), product.dtype,
    )  # fmt: skip
    for number, one in enumerate(taken):
        factor = replace(one.value, index=product.write.index[:-1])
        if one.function == "div":
            zero = fresh.pointwise(like, "eq", (factor, Constant(0.0)), BOOL)
            kept = fresh.pointwise(like, "where", (zero.write, Constant(1.0), factor))
            behind += [zero, kept]
            factor = kept.write
        last = number == len(taken) - 1
        step = fresh.pointwise(like, one.function, (total, factor))
        if last:
            step = replace(step, write=product.write)
        behind.append(step)
        total = step.write
    found: list[Statement] = []
    for statement in statements:
        found += [*made, changed, *behind] if statement is product else [statement]
    return found, changed, taken


def _same_type(
    values: Values,
    operand: Access,
    inner: Access,
    again: Callable[[Pointwise, Sequence[Argument]], Access],
) -> Access:
    """What is left, rounded as the operand was."""
    writer = values.writers[operand.name]
    assert isinstance(writer, Pointwise)
    known = values.writers.get(inner.name)
    if writer.function != "cast" or (known is not None and known.dtype == writer.dtype):
        return inner
    return inner if inner.name not in values.writers else again(writer, (inner,))
