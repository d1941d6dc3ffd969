"""Proofs of computed operands: all that a product reads is computed, from arguments alone."""

from __future__ import annotations

from collections.abc import Sequence

from polygen import isl
from polygen.errors import VerifyError
from polygen.frontend.forms import Form
from polygen.frontend.grouping import apart_from_groups
from polygen.frontend.indices import named_in
from polygen.frontend.program import (
    Access,
    Dim,
    Fold,
    Gathered,
    Pointwise,
    Program,
    Statement,
    Within,
)
from polygen.poly.legality import Proof
from polygen.poly.prologue import prologues
from polygen.poly.row_operands import row_operands
from polygen.poly.scop import space

_BEFORE = "rows_before"  # a group's own


def prove_prologues(program: Program) -> tuple[Proof, ...]:
    """Prove that every element of a computed operand is one that the statements compute.

    And that rows by index, before products and behind them, are rows of their arrays.

    Raises:
        VerifyError: a product reads an element that none computes, with its instance.
    """
    found: dict[str, tuple[Pointwise | Fold, ...]] = dict(prologues(program))
    by_rows = row_operands(program)
    found |= {value: one.own for value, one in by_rows.items()}
    sizes = (name for dim in _extents(program) for name in named_in(dim))
    prefix = space((*dict.fromkeys(sizes), _BEFORE))
    proofs = [
        prove_inside(statement.name, access)
        for statement in program.pointwise
        for access in statement.reads
        if access.indexed_by
    ]
    proofs += [_prove_apart(s) for s in program.pointwise if s.write.indexed_by]
    for value, statements in found.items():
        written = _instances(statements[-1], statements[-1].write, prefix)
        for product in program.contractions:
            for access in product.reads:
                if access.name != value:
                    continue
                of_all = any(one.write.name == value for one in _of_all(program))
                last = statements[-1]
                sizes_of = dict(last.domain)
                extents = [sizes_of.get(str(one), 1) for one in last.write.index]
                read = _instances(product, access, prefix, of_all=of_all, extents=extents)
                source = read.apply_range(written.reverse())
                missing = read.subtract_domain(source.domain())
                if not missing.is_empty():
                    raise VerifyError(
                        f"{product.name} reads what {statements[-1].name} does not compute: "
                        f"{isl.sample_pair(missing)}",
                        where=program.name,
                    )
                if not source.is_single_valued():
                    raise VerifyError(
                        f"{value} has several writers: {isl.sample_pair(source)}",
                        where=program.name,
                    )
        names = ", ".join(s.name for s in statements)
        if value in by_rows:
            proofs.append(
                Proof(
                    "every element of an operand that is made by rows is one of a row, made of "
                    "arguments and of its own row alone",
                    f"{value} by {names}",
                )
            )
            continue
        proofs.append(
            Proof(
                "every element of a computed operand has one instance that computes it, from "
                "arguments alone, so that each copy may compute it again",
                f"{value} by {names}",
            )
        )
    return tuple(proofs)


def prove_inside(name: str, access: Access) -> Proof:
    """Whatever an array says, an element of the other is read: for every size and number.

    Args:
        name: of the statement that reads it.
        access: by index.

    Raises:
        VerifyError: some number would lead outside.
    """
    for index in access.index:
        if not isinstance(index, Gathered):
            continue
        prefix = space((index.extent,) if isinstance(index.extent, str) else ())
        kept = f"{index.extent} >= 1 and read = max(0, min(said, {index.extent} - 1))"
        read = isl.Map(f"{prefix}{{ [said] -> [read] : {kept} }}").range()
        outside = read.subtract(isl.Set(f"{prefix}{{ [at] : 0 <= at < {index.extent} }}"))
        if not outside.is_empty():
            raise VerifyError(f"{name} reads {access} outside: {outside}")
    return Proof(
        "rows by index are rows of their array, whatever numbers stand in memory",
        f"{access} of {name}",
    )


def _prove_apart(statement: Statement) -> Proof:
    """No two instances store by one place of the vector in one column: for every size."""
    prefix = space(tuple(dict.fromkeys(d for _, d in statement.domain if isinstance(d, str))))
    stored = _instances(statement, statement.write.by_place, prefix)
    met = stored.reverse()
    if not met.is_single_valued():
        raise VerifyError(
            f"{statement.name} stores an element of {statement.write} several times: "
            f"{isl.sample_pair(stored.apply_range(met))}"
        )
    (vector,) = statement.write.indexed_by
    return Proof(
        f"stores by index never meet where the numbers in {vector.name} differ, which is promised: "
        "each element has a place of its own there",
        f"{statement.write} of {statement.name}",
    )


def _extents(program: Program) -> list[Dim]:
    return [extent for s in program.statements for _, extent in s.domain]


def _of_all(program: Program) -> tuple[Statement, ...]:
    """The statements of a program in groups that compute the rows of all groups."""
    return apart_from_groups(program) if program.ends else ()


def _instances(
    statement: Statement,
    access: Access,
    prefix: str,
    *,
    of_all: bool = False,
    extents: Sequence[Dim] = (),
) -> isl.UnionMap:
    """Instance -> the cell that it accesses; with `of_all` rows of groups, of which any number lie
    before a group's own, by their numbers in the rows of all, which end with the last.

    Outside of an axis with zeros around it, of one of `extents`, nothing is read.
    """
    own = ",".join(iterator for iterator, _ in statement.domain)
    bounds = " and ".join(f"0 <= {it} < {extent}" for it, extent in statement.domain)
    assert not access.indexed_by  # products read values that are computed, at their own points
    cell = f"{access.name}[{','.join(map(str, access.by_group))}]"
    for index, extent in zip(access.index, extents, strict=False):
        if isinstance(index, Form) and index.padded:
            bounds += f" and 0 <= {index} < {extent}"
    within = [index for index in access.index if isinstance(index, Within)]
    if of_all and within:
        places = [
            f"{_BEFORE} + {one.iterator}" if isinstance(one, Within) else str(one)
            for one in access.index
        ]
        rows = dict(statement.domain)[within[0].iterator]
        cell = f"{access.name}[{','.join(places)}]"
        bounds += f" and 0 <= {_BEFORE} and {places[access.index.index(within[0])]} < {rows}"
    return isl.UnionMap(f"{prefix}{{ {statement.name}[{own}] -> {cell} : {bounds} }}")
