"""Folds beside a product: split into terms, which the kernel makes, and what comes of them.

    v1[i] = max over j of v0[i,j]           v1_0[i,j] = v0[i,j]          every element: a term
    y0[i] = cast(v1[i])             ->      part[t,i] = max of a warp's  parts of the fold
                                            v1[i] = max over t of part   the launch that follows
                                            y0[i] = cast(v1[i])

1. A fold is a monoid's (`polygen.frontend.monoids`): associative and commutative, so that it may be
   made of parts. That is the rewrite's side condition: after it no dependence connects the terms of
   a row, and the tiles of the kernel are those of the program without folds.
2. Terms are pointwise statements like others; the part of a tile is combined where its terms are
   made, and written once, to a place of its own.
3. What reads a fold's result runs in the launch that follows, when every part is there: pointwise
   work over the result's own axes. Anything else is refused, with the dependence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32
from polygen.frontend.program import (
    Access,
    Constant,
    Contraction,
    Dim,
    Extent,
    Fold,
    Pointwise,
    Program,
    Statement,
    Tensor,
)


@dataclass(frozen=True, slots=True)
class Split:
    """A program whose folds are made of parts.

    Attributes:
        main: the statements of the kernel, with a term for each component in a fold's place; its
            outputs are the matrices alone.
        folds: in program order.
        after: what is computed from their results, in program order.
        outputs: written by `after`.
    """

    main: Program
    folds: tuple[Fold, ...]
    after: tuple[Pointwise, ...]
    outputs: tuple[Tensor, ...]


def term(fold: str, component: int) -> str:
    """The value that an element contributes to a fold, by the name of the result."""
    return f"{fold}_{component}"


def split_folds(program: Program) -> Split:
    """Separate what the kernel does from what follows it; a program without folds is its own.

    Raises:
        UnsupportedProgram: a result of a fold is used where it is not known yet; with the
            dependence.
    """
    if not program.folds:
        return Split(program, (), (), ())
    for tensor in program.outputs:
        if not tensor.dims:
            raise UnsupportedProgram(
                f"the output {tensor} is a number",
                where=program.name,
                why="a kernel stores arrays",
                nearest="Fold with keepdims=True",
            )
    results: dict[str, tuple[Dim, ...]] = {}  # of folds, and of what is computed from them
    main: list[Statement] = []
    folds: list[Fold] = []
    after: list[Pointwise] = []
    for statement in program.statements:
        used = next((a for a in statement.reads if a.name in results), None)
        if isinstance(statement, Fold):
            if used is not None:
                raise _refusal(program, statement, used, "a fold of what is folded")
            folds.append(statement)
            main += _terms(statement)
        elif used is None:
            main.append(statement)
            continue
        else:
            _require_own_axes(program, statement, used, results)
            assert isinstance(statement, Pointwise)
            after.append(statement)
        sizes = dict(statement.domain)
        own = statement.write.iterators
        results[statement.write.name] = tuple(sizes[it] for it in own if sizes[it] != 1)
    late = {one.write.name for one in after}
    return Split(
        replace(
            program,
            outputs=tuple(t for t in program.outputs if t.name not in late),
            statements=tuple(main),
        ),
        tuple(folds),
        tuple(after),
        tuple(t for t in program.outputs if t.name in late),
    )


def _terms(fold: Fold) -> list[Pointwise]:
    """What every element contributes, as values; numbers that all contribute are no values."""
    own = tuple(iterator for iterator, _ in fold.domain)
    return [
        Pointwise(
            f"{fold.name}_{at}", fold.domain, Access(term(fold.write.name, at), own), "cast",
            (arg,), F32,
        )
        for at, arg in enumerate(fold.args)
        if not isinstance(arg, Constant)
    ]  # fmt: skip


def _require_own_axes(
    program: Program,
    statement: Statement,
    used: Access,
    results: Mapping[str, tuple[Dim, ...]],
) -> None:
    """Refuse what the launch that follows does not do: all but work over the results' own axes."""
    if isinstance(statement, Contraction):
        raise _refusal(program, statement, used, "a product of what is folded")
    assert isinstance(statement, Pointwise)
    axes = [(iterator, extent) for iterator, extent in statement.domain if extent != 1]
    own = [iterator for iterator, _ in axes]
    for access in statement.reads:
        if access.name not in results:
            raise UnsupportedProgram(
                f"{statement.name} reads {access} beside the result {used} of a fold",
                where=f"{program.name}, {statement.name}: {statement}",
                why="what follows a fold reads results of folds and numbers alone",
                nearest=f"Return {used.name} and combine it outside",
            )
        if results[access.name] != tuple(extent for _, extent in axes):
            raise _refusal(program, statement, access, "a result used by elements of its own row")
        if [at for at in access.index if isinstance(at, str) and at in own] != own:
            raise _refusal(program, statement, access, "a result with its axes in another order")
    if any(not isinstance(a, (Access, Constant, Extent)) for a in statement.args):
        raise _refusal(program, statement, used, "coordinates beside a result of a fold")


def _refusal(program: Program, statement: Statement, used: Access, what: str) -> UnsupportedProgram:
    """The dependence: who needs a result, and when that is known."""
    writer = next(s for s in program.statements if s.write.name == used.name)
    return UnsupportedProgram(
        f"{statement.name} reads {used}: {what} is not generated yet",
        where=f"{program.name}, dependence {writer.name} -> {statement.name}",
        why=f"{writer.name}: {writer}; its last part is made by another thread block, which need "
        "not have run; a tile that covers the row is not used for it",
        nearest=f"Return {used.name} beside the matrix, and use it in a second function",
    )
