"""A row for products that have none: every product of a kernel has an m, an n and a sum.

A matrix times a vector has an output with one free axis. An instruction multiplies matrices, so the
statements get one more axis, of extent 1, that no operand has: the vector becomes a matrix with one
row. A vector times a vector has none, and gets two. Arrays stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, count

from polygen.frontend.program import Access, Contraction, Pointwise, Program, Statement

_NAMES = "ijrstuvw"


def with_rows(program: Program) -> Program:
    """The program, with axes of extent 1 if its products have columns and no rows, or neither."""
    if not program.contractions or not all(map(_is_row, program.contractions)):
        return program
    used = {*program.tensors, *program.sizes}
    used |= {iterator for s in program.statements for iterator, _ in s.domain}
    candidates = chain(_NAMES, (f"r{number}" for number in count()))
    name = next(one for one in candidates if one not in used)
    arrays = set(program.tensors)
    extended = tuple(_extended(s, name, arrays) for s in program.statements)
    return with_rows(replace(program, statements=extended))


def _is_row(product: Contraction) -> bool:
    """Whether the output lacks an axis: it is a number, or a number in one row; or it has an axis
    that one operand alone has, and none to go with it.
    """
    left, right = (set(access.iterators) for access in product.reads)
    written = set(product.write.iterators)
    if not written & (left | right):
        return len(written) < 2
    return bool(written & (left - right)) != bool(written & (right - left)) and not (
        written - left - right
    )


def _extended(statement: Statement, name: str, arrays: set[str]) -> Statement:
    domain = ((name, 1), *statement.domain)

    def value(access: Access) -> Access:
        return access if access.name in arrays else Access(access.name, (name, *access.index))

    if isinstance(statement, Contraction):
        return replace(statement, domain=domain, write=value(statement.write))
    assert isinstance(statement, Pointwise)
    args = tuple(value(a) if isinstance(a, Access) else a for a in statement.args)
    return replace(statement, domain=domain, write=value(statement.write), args=args)
