"""A program over one more leading axis: what a library's `vmap` makes of it.

Arrays that are batched get an axis in front, and so does every value that depends on one of them;
the others are shared by the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from polygen.frontend.program import Access, Argument, Contraction, Program, Statement, Tensor

_DIM, _ITERATOR = "B", "b"


def batched(program: Program, which: Sequence[bool]) -> tuple[Program, tuple[bool, ...]]:
    """The program for a batch of some of its inputs.

    Args:
        program: what to compute.
        which: of its inputs, in order: whether it has a leading axis now; at least one has, and
            none that is a scalar.

    Returns:
        The program, and which of its outputs have the axis.
    """
    dim = _free(_DIM, program.sizes)
    iterator = _free(_ITERATOR, (it for s in program.statements for it, _ in s.domain))
    given = {t.name for t, has in zip(program.inputs, which, strict=True) if has}
    along = _behind(program, given)
    if all(tensor.name in along for tensor in program.outputs):
        while (more := _behind(program, along | _beside(program, along))) != along:
            along = more
    statements = tuple(
        _widened(s, along, iterator, dim) if s.write.name in along else s
        for s in program.statements
    )
    return (
        replace(
            program,
            inputs=tuple(_tensor(t, dim) if t.name in along else t for t in program.inputs),
            outputs=tuple(_tensor(t, dim) if t.name in along else t for t in program.outputs),
            statements=statements,
        ),
        tuple(t.name in along for t in program.outputs),
    )


def _behind(program: Program, names: set[str]) -> set[str]:
    """What depends on values, and these."""
    found = set(names)
    for statement in program.statements:
        if any(access.name in found for access in statement.reads):
            found.add(statement.write.name)
    return found


def _beside(program: Program, along: set[str]) -> set[str]:
    """Pointwise work that knows of no batch, and is read by work that does.

    It is done for each member: all that is fused has one domain. What products and folds read is
    theirs, as arrays are, and shared by the batch.
    """
    made = {statement.write.name for statement in program.pointwise}
    readers = (s for s in program.pointwise if s.write.name in along)
    return {access.name for s in readers for access in s.reads if access.name in made}


def _free(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    while name in known:
        name += "_"
    return name


def _tensor(tensor: Tensor, dim: str) -> Tensor:
    order = (0, *(axis + 1 for axis in tensor.order)) if tensor.order or not tensor.dims else ()
    return replace(tensor, dims=(dim, *tensor.dims), order=order)


def _widened(statement: Statement, along: set[str], iterator: str, dim: str) -> Statement:
    """The statement with an iterator more, which indexes what has the new axis."""

    def access(found: Access) -> Access:
        return replace(found, index=(iterator, *found.index)) if found.name in along else found

    def argument(found: Argument) -> Argument:
        return access(found) if isinstance(found, Access) else found

    domain = ((iterator, dim), *statement.domain)
    write = access(statement.write)
    if isinstance(statement, Contraction):
        lhs, rhs = map(access, statement.reads)
        return replace(statement, domain=domain, write=write, lhs=lhs, rhs=rhs)
    args = tuple(map(argument, statement.args))
    return replace(statement, domain=domain, write=write, args=args)
