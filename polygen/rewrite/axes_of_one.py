"""Statements over axes of one index, without them: then two that compute the same are one.

    v47[b,i,j] = add(x[b,i,j], v46[b,i,j])   b < 1        v47[i,j] = add(x[0,i,j], v46[i,j])
    v63[i,j] = add(x[0,i,j], v46[0,i,j])             ->   and v47 where v63 is read

What is stored is computed over the axes that it has, and what goes on is over those of the product.
Where both are axes of one index that is one value, which a cut (`polygen.rewrite.cuts`) hands on
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polygen.frontend.forms import Form, composed
from polygen.frontend.indexing import form_of, index_of
from polygen.frontend.indices import Place
from polygen.frontend.program import (
    Access,
    Argument,
    Contraction,
    Coordinate,
    Dim,
    Gathered,
    Index,
    Program,
    Statement,
    Within,
)
from polygen.rewrite.simplify import each_once


def without_axes_of_one(program: Program) -> Program:
    """The program without them, where some of its statements are the same then; else as it is."""
    dropped: dict[str, tuple[int, ...]] = {}
    for one in program.statements:
        at = _dropped(one)
        if one.write.name in program.tensors:
            continue
        if dropped.setdefault(one.write.name, at) != at:
            return program
    statements = [_over_others(one, dropped) for one in program.statements]
    found = each_once(statements, [tensor.name for tensor in program.outputs])
    if len(found) == len(program.statements):
        return program
    return replace(program, statements=tuple(found))


def _ones(one: Statement) -> set[str]:
    """The iterators of a result's axes of one index."""
    return {it for it, extent in one.domain if extent == 1 and it in one.write.iterators}


def _dropped(one: Statement) -> tuple[int, ...]:
    """Which axes of a value have one index."""
    ones = _ones(one)
    return tuple(at for at, index in enumerate(one.write.index) if index == 0 or index in ones)


def _over_others(one: Statement, dropped: Mapping[str, tuple[int, ...]]) -> Statement:
    ones, sizes = _ones(one), dict(one.domain)
    domain = tuple((it, extent) for it, extent in one.domain if it not in ones)

    def access(arg: Access) -> Access:
        gone = dropped.get(arg.name, ())
        index = (at for number, at in enumerate(arg.index) if number not in gone)
        return replace(arg, index=tuple(_at_zero(at, ones, sizes) for at in index))

    def argument(arg: Argument) -> Argument:
        if isinstance(arg, Access):
            return access(arg)
        if isinstance(arg, Coordinate):
            return replace(arg, index=_at_zero(arg.index, ones, sizes))
        return arg

    if isinstance(one, Contraction):
        factors = tuple(map(access, one.factors))
        return replace(
            one, domain=domain, write=access(one.write), lhs=access(one.lhs), rhs=access(one.rhs),
            factors=factors,
        )  # fmt: skip
    made = replace(one, domain=domain, write=access(one.write))
    return replace(made, args=tuple(map(argument, one.args)))


def _at_zero(index: Index, ones: set[str], sizes: Mapping[str, Dim]) -> Index:
    """An index where some iterators are 0."""
    if isinstance(index, Gathered):
        return replace(index, places=tuple(_place(one, ones, sizes) for one in index.places))
    return _place(index, ones, sizes)


def _place(index: Place, ones: set[str], sizes: Mapping[str, Dim]) -> Place:
    if not set(Access("", (index,)).iterators) & ones or isinstance(index, Within):
        return index
    form = form_of(index)
    inner = {str(term.of): form_of(str(term.of)) for term in form.terms} | {
        name: Form(()) for name in ones
    }
    found = composed(form, inner, sizes)
    return index if found is None else index_of(found)
