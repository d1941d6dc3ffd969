"""Checks that what copies compute of an operand is what the program's statements say.

1. The statements of a computed operand are found in the program again: what is computed, and what
   is rounded to. A leaf computes them in their order, on what the match says that they read.
2. Every array is read at the program's address, for all strides and coordinates, in runs that its
   alignment allows, into words that are this array's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from polygen.errors import VerifyError
from polygen.frontend.dtypes import DType
from polygen.frontend.indices import places_of
from polygen.frontend.program import Access, Dim, Gathered, Index, Pointwise, Within
from polygen.hardware.swizzle import chunk_bytes
from polygen.lower.computed import Computed, Fetch, group, rows_of
from polygen.lower.plan import KernelPlan
from polygen.lower.work import Copy
from polygen.poly.elements import Along, Element
from polygen.poly.prologue import Prologue, multiplied, prologues

Address = Callable[[Fetch, tuple[Along, ...], str, dict[str, str]], None]


def check_computed(plan: KernelPlan, c: Copy, check_address: Address) -> None:
    """Check one operand's copy.

    Args:
        plan: the kernel.
        c: what copies it.
        check_address: refuses a formula over `row` and `column` that is not where an index is.

    Raises:
        VerifyError: with what differs.
    """
    operand, of = plan.match.operand(c.operand), c.computed
    made = operand.computed
    if made is not None:
        check_statements(plan, made, c.tensor.name)
    if of is None or made is None:
        raise VerifyError(
            f"copy_{c.operand} {'moves' if of is None else 'computes'} {c.tensor.name}, which the "
            f"program {'computes' if of is None else 'moves'}",
            where=plan.entry,
        )
    dims = (operand.role, "k") if c.k_contiguous else ("k", operand.role)
    if of.dims != dims or c.extents != tuple(operand.extent(dim) for dim in dims):
        raise VerifyError(f"copy_{c.operand} ends at {c.extents}", where=plan.entry)
    if of.dtype != c.tensor.dtype or c.tensor != operand.tensor:
        raise VerifyError(f"copy_{c.operand} makes {of.dtype}", where=plan.entry)
    check_chunks(plan, of, made, f"copy_{c.operand}", check_address)


def check_chunks(
    plan: KernelPlan, of: Computed, made: Prologue, who: str, check_address: Address
) -> None:
    """Check what chunks of an operand are computed of, and how.

    Args:
        plan: the kernel.
        of: how they are computed.
        made: how the program computes an element.
        who: computes them, for messages.
        check_address: as for `check_computed`.

    Raises:
        VerifyError: with what differs.
    """
    dims = of.dims
    if of.statements != made.statements or of.coordinates != made.coordinates:
        raise VerifyError(
            f"{who} computes {_text(of)}, the program {_text(made)}", where=plan.entry
        )
    if of.dtype != made.dtype:
        raise VerifyError(f"{who} makes {of.dtype}", where=plan.entry)
    if [f.name for f in of.fetches] != [one.name for one in made.reads]:
        raise VerifyError(f"{who} reads {[f.name for f in of.fetches]}", where=plan.entry)
    first = 0
    for fetch, one in zip(of.fetches, made.reads, strict=True):
        _check_fetch(plan, of, fetch, one, first)
        if one.tensor.dims:
            row, column = (
                name if count == 1 else f"({name} / {count})"
                for name, count in zip(("row", "column"), fetch.per, strict=True)
            )
            text = " + ".join(
                [*fetch.base, f"{row} * {fetch.row_step}", f"{column} * {fetch.column_step}"]
            )
            # Of rows by index `row` is the number that stands in the vector, which is any.
            check_address(
                fetch, one.addressed, text, dict(zip(dims, ("row", "column"), strict=True))
            )
        first += fetch.words


def check_statements(plan: KernelPlan, made: Prologue, value: str, *, of_all: bool = False) -> None:
    """What the match says of an operand is what the program's statements say.

    Args:
        plan: the kernel.
        made: how an element is computed.
        value: that the program calls it.
        of_all: whether rows of groups are computed all together, before any group is known.

    Raises:
        VerifyError: with both.
    """
    statements = prologues(plan.program)[value]
    rows = {
        statements[-1].write.index[axis]
        for product in plan.program.contractions
        for access in product.reads
        if access.name == value
        for axis, index in enumerate(access.index)
        if isinstance(index, Within)
    }
    check_rows(plan, made.reads, statements, value, frozenset(() if of_all else map(str, rows)))
    functions = [(s.write.name, s.function, s.dtype) for s in statements]
    own = [(s.result, s.function, s.dtype) for s in made.statements]
    # A value of f32 is multiplied as tf32, which no statement of the program says.
    rounding = _rounding(functions[-1], multiplied(plan.program, statements[-1]))
    if own[: len(functions)] != functions or own[len(functions) :] != rounding:
        raise VerifyError(
            f"{value} is computed by {own}, in the program by {functions}", where=plan.entry
        )


def check_rows(
    plan: KernelPlan,
    reads: Iterable[Element],
    statements: Iterable[Pointwise],
    what: str,
    of_groups: frozenset[str] = frozenset(),
) -> None:
    """Arrays are read by index where the program's statements read them so, by the same vectors.

    Args:
        plan: the kernel.
        reads: what the match says that they read.
        statements: the program's.
        what: is computed, for messages.
        of_groups: iterators of the last statement that products count in groups.

    Raises:
        VerifyError: with both.
    """
    arrays, listed = plan.program.tensors, tuple(reads)
    given = tuple(statements)
    places = (
        [at for at, (name, _) in enumerate(given[-1].domain) if name in of_groups] if given else []
    )
    wanted = {
        (
            access.name,
            tuple(_named(i, [statement.domain[at][0] for at in places]) for i in access.index),
        )
        for statement in given
        for access in statement.args
        if isinstance(access, Access) and access.name in arrays
    }
    found = {(one.tensor.name, tuple(map(_found, one.index))) for one in listed}
    kept = {
        (index.rows, index.extent, one.tensor.dims[axis])
        for one in listed
        for axis, index in enumerate(one.index)
        if index.rows
    }
    # Of a part that begins at the first row the numbers are kept inside of the part.
    inside = all(
        extent == dim or (isinstance(extent, int) and isinstance(dim, int) and extent < dim)
        for _, extent, dim in kept
    )
    if found != wanted or not inside:
        raise VerifyError(
            f"{what} is computed of {sorted(found)}, in the program of {sorted(wanted)}; rows by "
            f"index end at {sorted(map(str, kept))}",
            where=plan.entry,
        )


def _named(index: Index, rows: Sequence[str] = ()) -> str:
    """The vector that names elements in the program, with a dot where rows of groups do, which
    are iterators of operands that are computed for all of them.
    """
    grouped = any(isinstance(place, Within) or place in rows for place in places_of(index))
    return (index.rows if isinstance(index, Gathered) else "") + "." * grouped


def _found(along: Along) -> str:
    """The same of what the match says."""
    return along.rows + "." * bool(along.group)


def check_stored_rows(plan: KernelPlan, statements: Iterable[Pointwise]) -> None:
    """Results are stored by index where the program stores them so, by the same vectors.

    Args:
        plan: the kernel.
        statements: the program's, behind the products.

    Raises:
        VerifyError: with both.
    """
    outputs = {tensor.name: tensor for tensor in plan.program.outputs}

    def listed(indices: Iterable[tuple[str, str, Dim]]) -> str:
        return ", ".join(sorted(f"{name}[{rows}] of {extent}" for name, rows, extent in indices))

    wanted = listed(
        (statement.write.name, _named(index), outputs[statement.write.name].dims[axis])
        for statement in statements
        for axis, index in enumerate(statement.write.index)
        if isinstance(index, Gathered)
    )
    found = listed(
        (one.tensor.name, _found(along), along.extent)
        for one in plan.work.writes
        for along in one.index
        if along.rows
    )
    if found != wanted:
        raise VerifyError(
            f"stored by index are {found or 'none'}, in the program {wanted or 'none'}",
            where=plan.entry,
        )


def _rounding(last: tuple[str, str, DType], kind: DType) -> list[tuple[str, str, DType]]:
    value, function, dtype = last
    return [] if function == "cast" and dtype == kind else [(f"{value}_out", "cast", kind)]


def _check_fetch(plan: KernelPlan, of: Computed, fetch: Fetch, one: Element, first: int) -> None:
    """One read: its array, its words, and how wide its accesses may be."""
    where = f"{plan.entry}: {fetch.name}"
    if fetch.tensor != one.tensor:
        raise VerifyError(f"{fetch.tensor.name} is read for {one.tensor.name}", where=where)
    said = rows_of(one, of.dims[0])
    if fetch.per != (group(one, of.dims[0]) if said is None else 1, group(one, of.dims[1])):
        raise VerifyError(f"{fetch.tensor.name} is read in groups of {fetch.per}", where=where)
    if fetch.rows != said or sum(bool(along.rows) for along in one.index) != (said is not None):
        raise VerifyError(
            f"{fetch.tensor.name} is read at {fetch.rows or 'its own rows'}, and is "
            f"{one.tensor.name}[{', '.join(map(str, one.index))}]",
            where=where,
        )
    wanted = {"0": "row", "1": "run"}.get(fetch.column_step, "spaced")
    wanted = wanted if one.tensor.dims else "scalar"
    inside = group(one, of.dims[1])
    elements = chunk_bytes() // of.dtype.bytes
    if inside > 1 and wanted == "run" and elements % inside == 0 and inside < elements:
        elements //= inside
    elif inside > 1:  # which no chunk may leave
        wanted = "group" if inside % elements == 0 else "elements of their own"
    size = one.tensor.dtype.bytes
    alone = -(-size // 4)
    words = {"scalar": 0, "row": alone, "group": alone}.get(wanted, -(-elements * size // 4))
    if fetch.kind != wanted or (fetch.first, fetch.words) != (first, words):
        raise VerifyError(
            f"{fetch.tensor.name} is read as {fetch.kind} into {fetch.words} words from "
            f"{fetch.first} on, and is {wanted}, {words} words from {first} on",
            where=where,
        )
    if wanted == "run" and (one.alignment % fetch.width or elements * size % fetch.width):
        raise VerifyError(
            f"accesses of {fetch.width} bytes to {one.tensor}, {elements} elements at a time",
            where=where,
        )


def _text(made: Computed | Prologue) -> str:
    return "; ".join(
        f"{s.result} = {s.function}({', '.join(map(str, s.args))})" for s in made.statements
    )
