"""A product with a vector as a fold of elements.

    S0  v0[i] += x[k,i] * y[k]        ->      P0  w0[k,i] = mul(x[k,i], y[k])
                                              F0  v0[i] = sum over k of w0[k,i]

Such a product multiplies each element of a matrix once, so that nothing is used again: it takes as
long as the matrix comes from memory. Folds of elements go through it as it lies, whichever of its
axes is summed. That reals are added in another order is all that this assumes of numbers.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.dtypes import F32, F64
from polygen.frontend.program import Access, Contraction, Fold, Pointwise, Program, Statement
from polygen.rewrite.simplify import Fresh


def with_folded_product(program: Program) -> tuple[Program, str] | None:
    """A program whose only product, one with a vector, is a fold.

    Args:
        program: of one product over one axis.

    Returns:
        The program, and the name of the fold; None where it is no such program, or where the axis
        that is summed is the matrix's innermost.
    """
    if len(program.contractions) != 1:
        return None
    (product,) = program.contractions
    if len(product.summed) != 1 or product.block or product.dtype not in (F32, F64):
        return None
    matrix = matrix_of(product)
    if matrix is None:
        return None
    stored = program.tensors.get(matrix.name)
    lying = [
        str(matrix.index[axis]) for axis in (stored.order if stored else range(len(matrix.index)))
    ]
    if lying[-1] == product.summed[0]:
        return None
    fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
    extents = dict(product.domain)
    domain = tuple((name, extents[name]) for name in lying)
    terms = Access(fresh("w"), tuple(lying))
    made: list[Statement] = [
        Pointwise(fresh("P"), domain, terms, "mul", product.reads, product.dtype),
        Fold(fresh("F"), domain, product.write, "sum", (terms,), product.dtype),
    ]
    statements: list[Statement] = []
    for one in program.statements:
        statements += made if one == product else [one]
    return replace(program, statements=tuple(statements)), product.write.name


def matrix_of(product: Contraction) -> Access | None:
    """Of a product with a vector the other operand, which has an element for each that is
    multiplied; None where none has, or is read elsewhere than at the iterators themselves.
    """
    every = {name for name, _ in product.domain}
    for one in product.reads:
        plain = all(isinstance(index, str) for index in one.index)
        if plain and len(one.index) == len(every) and {*one.iterators} == every:
            return one
    return None
