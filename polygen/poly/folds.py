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

from polygen.errors import InvarianceError, UnsupportedProgram
from polygen.frontend.dtypes import F32
from polygen.frontend.monoids import MONOIDS
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


@dataclass(frozen=True, slots=True)
class _Result:
    """A value that is known when all parts of a fold are: the fold's, or computed from it."""

    fold: Fold
    extents: tuple[Dim, ...]  # but for those of 1


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
    _require_invariant(program)
    results: dict[str, _Result] = {}
    main: list[Statement] = []
    folds: list[Fold] = []
    after: list[Pointwise] = []
    for statement in program.statements:
        used = next((results[a.name] for a in statement.reads if a.name in results), None)
        fold = statement if used is None else used.fold
        if isinstance(statement, Fold):
            if used is not None:
                raise _refusal(program, statement, used.fold, "a fold of what is folded")
            folds.append(statement)
            main += _terms(statement)
        elif used is None:
            main.append(statement)
            continue
        else:
            _require_own_axes(program, statement, used.fold, results)
            assert isinstance(statement, Pointwise)
            after.append(statement)
        assert isinstance(fold, Fold)
        sizes = dict(statement.domain)
        extents = (sizes[it] for it in statement.write.iterators)
        results[statement.write.name] = _Result(fold, tuple(e for e in extents if e != 1))
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


def _require_invariant(program: Program) -> None:
    """Refuse promises of bits that folds do not keep.

    Raises:
        InvarianceError: the order of a fold's terms depends on the tiles, which sizes choose.
    """
    for fold in program.folds if program.invariant else ():
        gone = [str(extent) for it, extent in fold.domain if it in fold.folded]
        over = sorted(set(gone) & set(program.invariant))
        if over or not MONOIDS[fold.function].selects:
            raise InvarianceError(
                f"{fold.write.name} is the {fold.function} over {', '.join(gone)}",
                where=f"{program.name}, invariant in {', '.join(program.invariant)}",
                why=f"it depends on all of {over[0]}"
                if over
                else "its terms are combined tile by tile, and tiles are chosen by the sizes",
                nearest="Fold with max, min, argmax or argmin over other dims, or fold outside",
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
    program: Program, statement: Statement, fold: Fold, results: Mapping[str, _Result]
) -> None:
    """Refuse what the launch that follows does not do: all but work over the results' own axes."""
    if isinstance(statement, Contraction):
        raise _refusal(program, statement, fold, "a product of what is folded")
    assert isinstance(statement, Pointwise)
    axes = [(iterator, extent) for iterator, extent in statement.domain if extent != 1]
    own = [iterator for iterator, _ in axes]
    for access in (one for one in statement.reads if one.name in results):
        found = results[access.name]
        if found.extents != tuple(extent for _, extent in axes):
            what = "a result used by elements of its own row"
            raise _refusal(program, statement, found.fold, what)
        if [at for at in access.index if isinstance(at, str) and at in own] != own:
            what = "a result with its axes in another order"
            raise _refusal(program, statement, found.fold, what)
    if any(not isinstance(a, (Access, Constant, Extent)) for a in statement.args):
        raise _refusal(program, statement, fold, "coordinates beside a result of a fold")
    for access in statement.reads:
        if access.name not in results:
            raise UnsupportedProgram(
                f"{statement.name} reads {access} beside the result {fold.write} of a fold",
                where=f"{program.name}, {statement.name}: {statement}",
                why="what follows a fold reads results of folds and numbers alone",
                nearest=f"Return {fold.write.name} and combine it outside",
            )


def _refusal(program: Program, statement: Statement, fold: Fold, what: str) -> UnsupportedProgram:
    """The dependence: who needs a result, and when that is known."""
    return UnsupportedProgram(
        f"{statement.name} reads what comes of {fold.write}: {what} is not generated yet",
        where=f"{program.name}, dependence {fold.name} -> {statement.name}",
        why=f"{fold.name}: {fold}; its last part is made by another thread block, which need not "
        "have run; a tile that covers the row is not used for it",
        nearest=f"Return {fold.write.name} beside the matrix, and use it in a second function",
    )
