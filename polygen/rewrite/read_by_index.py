"""Operands that are arguments read by index: what copies them is left out, and products read them.

    v0[b,i,k] = cast(pages[table[b,floor(i/16)],(i mod 16),k])
    v1[b,i,j] += q[b,i,k] * v0[b,j,k]

    v1[b,i,j] += q[b,i,k] * pages[table[b,floor(j/16)],(j mod 16),k]

An index names one number for many elements where it runs along matrices, and along digits of keys
whose other digits are places in a page. Those are what boxes of the copy engine have: a page's
number is a coordinate of the box. Rows that have a number each stay computed operands.

The copies round nothing, so that the product reads the same numbers: that is the side condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.frontend.closure import needed
from polygen.frontend.forms import Digit, Form
from polygen.frontend.indices import Place
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Gathered,
    Index,
    Pointwise,
    Program,
    Statement,
    Within,
)


@dataclass(frozen=True, slots=True)
class Paged:
    """How an access reads pages that an array of numbers names.

    Attributes:
        keys: the iterator whose digits name a page and a place in it; "": a page has all keys.
        page: keys of a page; 0: all of them.
    """

    keys: str
    page: int


def paged(access: Access) -> Paged | None:
    """How an access reads pages; None: it reads none, or is read by index in another way."""
    named = [one for one in access.index if isinstance(one, Gathered)]
    if len(named) != 1:
        return None
    digits = [place for place in named[0].places if not isinstance(place, str | int)]
    if not digits:
        plain = all(not isinstance(one, Form) for one in access.index)
        return Paged("", 0) if plain else None
    inside = [one for one in access.index if isinstance(one, Form)]
    if len(digits) != 1 or len(inside) != 1:
        return None
    (page,), (row,) = digits, inside
    if not isinstance(page, Affine) or (page.scale, page.offset) != (1, 0):
        return None
    wanted = Form((Digit(page.iterator, modulo=page.per),))
    return Paged(page.iterator, page.per) if row == wanted else None


def operands_by_index(program: Program) -> Program:
    """The program whose products read pages themselves.

    Args:
        program: its operands by index are values that statements copy.
    """
    writers: dict[str, Statement] = {s.write.name: s for s in program.statements}
    found: list[Statement] = []
    for one in program.statements:
        if isinstance(one, Contraction):
            lhs, rhs = (_source(program, writers, one, access) for access in one.reads)
            one = replace(one, lhs=lhs, rhs=rhs)
        found.append(one)
    if tuple(found) == program.statements:
        return program
    outputs = [tensor.name for tensor in program.outputs]
    return replace(program, statements=tuple(needed(found, outputs)))


def _source(
    program: Program, writers: Mapping[str, Statement], product: Contraction, access: Access
) -> Access:
    """What a product reads in place of a copy of pages; else what it reads."""
    writer = writers.get(access.name)
    if not isinstance(writer, Pointwise) or writer.function != "cast":
        return access
    (source,) = writer.args
    own = tuple(iterator for iterator, _ in writer.domain)
    if not isinstance(source, Access) or writer.write.index != own or paged(source) is None:
        return access
    tensor = program.tensors.get(source.name)
    names = {it: at for it, at in zip(own, access.index, strict=True) if isinstance(at, str)}
    if tensor is None or tensor.dtype != writer.dtype or not set(source.iterators) <= set(names):
        return access
    found = Access(source.name, tuple(renamed(one, names) for one in source.index))
    (named,) = (one for one in found.index if isinstance(one, Gathered))
    # Rows and columns have a number each: only matrices share one.
    plain = {place for place in named.places if isinstance(place, str)}
    return found if plain <= {*product.matrices} else access


def renamed(index: Index, names: Mapping[str, str]) -> Index:
    """An index over iterators of other names."""
    if isinstance(index, Gathered):
        return replace(index, places=tuple(_place(one, names) for one in index.places))
    return _place(index, names)


def _place(place: Place, names: Mapping[str, str]) -> Place:
    assert not isinstance(place, Within)  # of rows in groups there are no chains
    if isinstance(place, Form):
        terms = tuple(replace(term, of=names[str(term.of)]) for term in place.terms)
        return replace(place, terms=terms)
    if isinstance(place, Affine):
        return replace(place, iterator=names[place.iterator])
    return place if isinstance(place, int) else names[place]
