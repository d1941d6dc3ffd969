"""What the passes after `Program` do not generate yet, refused by name before they start.

1. Products: no operand is computed by another product; those that values join have one output
   domain (others are sections, `polygen.poly.sections`).
2. Sums: over axes that both operands have; several are one for isl (`polygen.poly.depth`).
3. Outputs: arrays, or parts of them, of the products' output domain.
4. Indices: values are read whole, at their own point.

A capability that arrives takes its refusal out of here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from polygen.errors import UnsupportedProgram, VerifyError
from polygen.frontend.forms import Form
from polygen.frontend.indices import times_in
from polygen.frontend.program import (
    Access,
    Affine,
    Contraction,
    Dim,
    Index,
    Program,
    Statement,
)
from polygen.rewrite.read_by_index import paged


def require_supported(program: Program) -> None:
    """Refuse a program that no later pass can generate.

    Raises:
        UnsupportedProgram: with the statement, and the nearest program that can be generated.
        VerifyError: a rewrite has lost an axis.
    """
    if not program.contractions:
        return  # there is nothing to fuse, which is the next pass's to say
    for statement in program.statements:
        _require_its_iterators(program, statement)
    for product in program.contractions:
        for access in product.reads:
            _require_argument(program, product, access)
    extents = {s.write.name: _written(s) for s in program.statements}
    for statement in program.pointwise:
        _require_whole(program, statement, extents)
    for product in program.contractions:
        _require_one_sum(program, product)
    for product in program.contractions:
        require_each_once(program, product)
    _require_one_domain(program)


def _require_its_iterators(program: Program, statement: Statement) -> None:
    """What a statement reads and writes is told by the iterators of its domain.

    Raises:
        VerifyError: an axis was lost on the way here, by a rewrite.
    """
    own = {iterator for iterator, _ in statement.domain}
    for access in (statement.write, *statement.reads):
        lost = [iterator for iterator in access.iterators if iterator not in own]
        if lost:
            raise VerifyError(
                f"{statement.name}: {statement} has {access}, and no {lost[0]}",
                where=program.name,
                why=f"its domain is over {', '.join(sorted(own))}",
                nearest="Report it with the program: no array code says that",
            )


def _require_argument(program: Program, product: Contraction, access: Access) -> None:
    """A product's operand is an argument, or computed from arguments (`polygen.poly.prologue`)."""
    if access.name in program.tensors:
        return
    source = _product_behind(program, access.name)
    raise UnsupportedProgram(
        f"{product.name} multiplies what {source.name} sums: chains of products are not "
        "generated yet",
        where=program.name,
        why=f"{source.name}: {source}; {product.name}: {product}",
        nearest=f"Make two functions, the first one returning {source.write.name}",
    )


def require_rows_known(program: Program) -> None:
    """Refuse rows by index in chains, and behind products whose results are folded.

    Args:
        program: a chain; or with folds, without the statements that compute operands.

    Raises:
        UnsupportedProgram: with the statement.
    """
    for statement in program.statements:
        for access in (*statement.reads, statement.write):
            if isinstance(statement, Contraction) and paged(access) is not None:
                continue  # of a chain: boxes whose corner a table says
            if access.indexed_by and access == statement.write:
                raise UnsupportedProgram(
                    f"{access.name} is stored into by index, of what two products or folds make",
                    where=program.name,
                    why=f"rows go to places of their own behind one product: {statement}",
                    nearest="Make functions of the parts: one that returns what the last product "
                    f"multiplies, and one that stores into {access.name}",
                )
            if access.indexed_by:
                raise UnsupportedProgram(
                    f"{statement.name} reads {access}: rows by index in a chain, or behind a "
                    "product beside folds",
                    where=program.name,
                    why=f"{statement.name}: {statement}",
                    nearest=f"Pass {access.name} with its rows in the order of the result's; keys "
                    "may lie in pages, as in pages[table].reshape(B, T, D)",
                )


def require_sizes(program: Program) -> None:
    """Refuse axes outside of chains that a reshape merges of one without a number and others.

    Args:
        program: no chain.

    Raises:
        UnsupportedProgram: with the statement.
    """
    for statement in program.statements:
        for _, extent in statement.domain:
            if times_in(extent) > 1:
                raise UnsupportedProgram(
                    f"{statement.name} runs over an axis of {extent} elements, of pages that a "
                    "table names",
                    where=program.name,
                    why="pages are one axis of keys in a chain of products, f(q @ k.mT) @ v",
                    nearest="Gather the pages first, and pass what is gathered",
                )


def require_each_once(program: Program, statement: Statement) -> None:
    """What copies move has an element for every index of a tile; loops around it may read again,
    and so may other matrices, as those of heads that share keys do.

    Raises:
        UnsupportedProgram: elements are repeated.
    """
    again: tuple[str, ...] = ()
    if isinstance(statement, Contraction):
        again = (*statement.again, *statement.matrices)
    for access in statement.reads:
        repeated = any(_is_repeated(index, again) for index in access.index)
        if paged(access) is None and repeated:
            raise UnsupportedProgram(
                f"{statement.name} reads {access}: elements are repeated only in what operands are "
                "computed from, and as matrices of both operands",
                where=program.name,
                why=f"{statement.name}: {statement}",
                nearest="Pass what it reads with its elements repeated",
            )


def _is_repeated(index: Index, again: tuple[str, ...]) -> bool:
    if isinstance(index, Form):
        return any((t.per > 1 or t.modulo) and t.of not in again for t in index.terms)
    return isinstance(index, Affine) and index.per > 1 and index.iterator not in again


def _product_behind(program: Program, value: str) -> Contraction:
    """The contraction whose sums a value is computed from that is none of arguments alone."""
    writers = {statement.write.name: statement for statement in program.statements}
    stack, seen = [value], {value}
    while True:
        statement = writers[stack.pop()]
        if isinstance(statement, Contraction):
            return statement
        further = {access.name for access in statement.reads if access.name in writers} - seen
        seen |= further
        stack.extend(sorted(further))


def _require_one_domain(program: Program) -> None:
    """All statements run over the same output points, in some order of their axes."""
    domains = {}
    for statement in program.statements:
        extents = dict(statement.domain)
        along = statement.write.iterators
        if not isinstance(statement, Contraction):
            along = tuple(extents)
        domains[statement.name] = [str(extents[iterator]) for iterator in along]
    first = next(iter(domains))
    for name, dims in domains.items():
        if sorted(dims) != sorted(domains[first]):
            products = name in {product.name for product in program.contractions}
            joined = " that values join" if products else ""
            nearest = "Split the function: return one product, and pass it to a second function"
            if not products:
                nearest = _outside(program, name, domains[first], dims)
            raise UnsupportedProgram(
                f"{'products' if products else 'statements'} over different output domains{joined}",
                where=program.name,
                why=", ".join(f"{n} over [{', '.join(domains[n])}]" for n in (first, name)),
                nearest=nearest,
            )


def _outside(program: Program, name: str, own: list[str], wider: list[str]) -> str:
    """What to write in the place of a statement that reads a product's elements several times."""
    product, *others = program.contractions
    statement = next(one for one in program.pointwise if one.name == name)
    beside = [one.name for one in statement.reads if one.name in program.tensors]
    more = Counter(_several(wider)) - Counter(_several(own))
    fewer = Counter(_several(own)) - Counter(_several(wider))
    if others or not more or fewer or not beside:
        return "Return what has the product's own axes, and change the axes outside"
    of = "a number" if not _several(own) else f"of [{', '.join(_several(own))}]"
    operands = " and ".join(dict.fromkeys(one.name for one in product.reads))
    return (
        f"Return the product of {operands} alone, which is {of}, and combine it with "
        f"{', '.join(dict.fromkeys(beside))} outside: an element of a product is in one place of "
        "the result"
    )


def _several(dims: list[str]) -> list[str]:
    """The extents of axes along which there are several elements."""
    return [dim for dim in dims if dim != "1"]


def _require_one_sum(program: Program, product: Contraction) -> None:
    summed = product.summed
    for access in product.reads:
        own = access.iterators if paged(access) is None else access.axes
        if not summed or summed[0] not in own or len(set(own)) < len(own):
            alone = summed and summed[0] not in own and dict(product.domain)[summed[0]] == 1
            raise UnsupportedProgram(
                f"{product.name}: {product} is not a matrix product",
                where=program.name,
                why="a tensor-core instruction sums over one axis that both operands have, and "
                "meets every axis of an operand once",
                nearest=f"Multiply elementwise, as in {access.name}[:, None] * w"
                if alone
                else "Write it as x @ w on arrays whose axes are all different",
            )


def _written(statement: Statement) -> tuple[Dim, ...]:
    """The extents of what a statement writes."""
    sizes = dict(statement.domain)
    return tuple(sizes[iterator] for iterator in statement.write.iterators)


def _require_whole(
    program: Program, statement: Statement, extents: Mapping[str, tuple[Dim, ...]]
) -> None:
    """No value is read at another point than its own: only arrays are read in parts."""
    for access in statement.reads:
        if access.name in program.tensors or all(
            isinstance(index, str) or (index == 0 and extent == 1)
            for index, extent in zip(access.index, extents[access.name], strict=True)
        ):
            continue
        raise UnsupportedProgram(
            f"{statement.name} reads {access}: parts of computed values are not generated yet",
            where=program.name,
            why="a value lives at one point of the output, in a register",
            nearest=_instead(access),
        )


def _instead(access: Access) -> str:
    """What to write in the place of a value's element that is read elsewhere."""
    if any(isinstance(index, Form) and index.padded for index in access.index):
        return "Pad what the function returns, as in np.pad(f(x, w), 1)"
    if any(isinstance(index, Affine) and index.per > 1 for index in access.index):
        return "Repeat what the function returns, as in np.repeat(f(x, w), 2, axis=1)"
    return "Slice the operands instead, as in x @ w[:, ::2] for (x @ w)[:, ::2]"
