"""Results of folds that elements of their own row use: what waits until a row's parts are there.

    v1[i] = max over j of v0[i,j]      v0[i,j]                  kept by the kernel, beside parts
    v3[i,j] = exp(v0[i,j] - v1[i])     v3[i,j], v4[i], v5[i,j]  by the launch that follows
    v4[i] = sum over j of v3[i,j]
    v5[i,j] = v3[i,j] / v4[i]

1. Every axis of a value is one of the first product's, whichever way a statement names it: reads
   say which, since values are read at their own point. A *row* is what a fold makes one number of:
   it is told apart by the axes that the fold keeps.
2. A statement over whole elements is *late* if it reads a result, or what is late; so is a fold of
   what is late. All results that a late statement needs are of one kind of row.
3. What late statements read of the kernel's is kept, unless it is as well computed again: a truth
   value, or what comes of no product.

A column is a row as well, and so is a matrix of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polygen.frontend.dtypes import BOOL
from polygen.frontend.forms import Form
from polygen.frontend.indexing import index_of
from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Contraction,
    Coordinate,
    Dim,
    Fold,
    Gathered,
    Index,
    Pointwise,
    Program,
    Statement,
    Tensor,
    Within,
)

_ALIGNMENT = 16  # bytes at a multiple of which rows of what is kept start


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of the kernel that the launch that follows reads, as a matrix of the workspace."""

    value: str
    tensor: Tensor
    index: tuple[Index, ...]  # of an element, over the iterators of `Rows`


@dataclass(frozen=True, slots=True)
class Rows:
    """What is done row by row when a kernel's parts are all there.

    Attributes:
        axes: extents of the values, an axis each.
        own: the axes that tell rows apart.
        statements: late ones and what is computed again for them, in program order; over iterators
            named by axis (`iterator`).
        outputs: arrays that they write.
        results: values of whole rows, those of the kernel's folds among them.
    """

    axes: tuple[Dim, ...]
    own: tuple[int, ...]
    statements: tuple[Pointwise | Fold, ...]
    outputs: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def inner(self) -> tuple[int, ...]:
        """The axes of a row's elements."""
        return tuple(at for at, e in enumerate(self.axes) if e != 1 and at not in self.own)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The folds of late values."""
        return tuple(one for one in self.statements if isinstance(one, Fold))


@dataclass(frozen=True, slots=True)
class RowPasses:
    """How often the sums of a tile are gone through, and what is folded each time.

    Attributes:
        statements: name -> the pass that runs it; the last one is `count`.
        folds: of each pass before the last.
        own: positions of the axes that tell rows apart.
        held: of each of these the value that it leaves in registers, which passes behind it read
            in place of the sums; "": none, they read what it has read.
    """

    statements: tuple[tuple[str, int], ...]
    folds: tuple[tuple[Fold, ...], ...]
    own: tuple[int, ...]
    held: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """RowPasses before the last."""
        return len(self.folds)

    @property
    def results(self) -> tuple[str, ...]:
        """What all passes fold."""
        return tuple(fold.write.name for one in self.folds for fold in one)


@dataclass(frozen=True, slots=True)
class Alike:
    """What the sections of a kernel do with the sums of their tiles, as one tile program says it.

    Attributes:
        passes: over those of tiles that cover rows, and whether each leaves a value in registers:
            where all sections do; none, where one has other passes than the others.
        folds: whether parts of folds are made, of some sections.
    """

    passes: tuple[bool, ...] = ()
    folds: bool = False


def levels(rows: Rows, after: tuple[Pointwise, ...] = ()) -> tuple[tuple[Fold, ...], ...]:
    """Folds of elements, by how many walks have to be over before their terms are known.

    Args:
        rows: the row.
        after: what is computed of results alone.
    """
    writers = {one.write.name: one for one in (*rows.statements, *after)}
    level: dict[str, int] = {}

    def of(value: str) -> int:
        if value not in level:
            one = writers.get(value)
            read = () if one is None else one.reads
            level[value] = max((of(a.name) for a in read), default=0) + isinstance(one, Fold)
        return level[value]

    found = {fold.write.name: of(fold.write.name) for fold in rows.folds}
    numbers = sorted(set(found.values()))
    return tuple(tuple(f for f in rows.folds if found[f.write.name] == n) for n in numbers)


def iterator(axis: int) -> str:
    """What statements of `Rows` call the place along an axis."""
    return f"row_at{axis}"


def without_ones(domain: tuple[tuple[str, Dim], ...]) -> tuple[tuple[str, Dim], ...]:
    """The iterators that run over more than one index."""
    return tuple((it, extent) for it, extent in domain if extent != 1)


class Places:
    """Which axis of the first product's every axis of a value is.

    Attributes:
        axes: extents of the first product's, outermost first.
        values: per value, for each of its axes the axis that it is; None where it has extent 1.
    """

    def __init__(self, program: Program) -> None:
        first = program.contractions[0] if program.contractions else None
        self.axes: tuple[Dim, ...] = ()
        self.values: dict[str, tuple[int | None, ...]] = {}
        self._usual: dict[tuple[tuple[str, Dim], ...], dict[str, int]] = {}
        if first is not None:
            sizes = dict(first.domain)
            self.axes = tuple(sizes[it] for it in first.write.iterators)

    def along(self, statement: Statement) -> dict[str, int] | None:
        """Iterator -> axis; None where reads contradict each other, or no axis is left."""
        own = dict(without_ones(statement.domain))
        found: dict[str, int] = {}
        for access in () if isinstance(statement, Contraction) else statement.reads:
            for index, axis in zip(access.index, self.values.get(access.name, ()), strict=False):
                if not isinstance(index, str) or index not in own or axis is None:
                    continue
                if found.setdefault(index, axis) != axis:
                    return None
        rest = [it for it in own if it not in found]
        if isinstance(statement, Contraction):
            rest = [it for it in rest if it in statement.write.iterators]
        # What reads do not say: as in the last statement that ran so, else the first that fits.
        usual = self._usual.get(statement.domain, {})
        for it in rest:
            free = [
                at for at, e in enumerate(self.axes) if at not in found.values() and e == own[it]
            ]
            if not free:
                return None
            found[it] = usual[it] if usual.get(it) in free else free[0]
        if len(set(found.values())) < len(found):
            return None
        self._usual[statement.domain] = found
        return found

    def add(self, statement: Statement) -> dict[str, int] | None:
        """The same, and where the statement's result lies is known from then on."""
        along = self.along(statement)
        if along is not None:
            index = statement.write.index
            self.values[statement.write.name] = tuple(
                along.get(one) if isinstance(one, str) else None for one in index
            )
        return along

    def is_whole(self, statement: Statement) -> bool:
        """Whether a statement runs over all elements of a value."""
        own = [str(extent) for _, extent in without_ones(statement.domain)]
        return sorted(own) == sorted(str(e) for e in self.axes if e != 1)


def placed(statement: Pointwise | Fold, along: Mapping[str, int]) -> Pointwise | Fold:
    """A statement over the iterators of `Rows`."""
    names = {it: iterator(axis) for it, axis in along.items()}
    return replace(
        statement,
        domain=tuple((names[it], e) for it, e in statement.domain if it in names),
        write=_access(statement.write, names),
        args=tuple(_argument(arg, names) for arg in statement.args),
    )


def _argument(argument: Argument, names: Mapping[str, str]) -> Argument:
    if isinstance(argument, Access):
        return _access(argument, names)
    if isinstance(argument, Coordinate):
        return Coordinate(computed_index(argument.index, names))
    return argument


def _access(access: Access, names: Mapping[str, str]) -> Access:
    return Access(access.name, tuple(computed_index(one, names) for one in access.index))


def computed_index(index: Index, names: Mapping[str, str]) -> Index:
    """An index over other iterators; those without one run over one index, 0."""
    if isinstance(index, int):
        return index
    assert not isinstance(index, (Within, Gathered))  # rows in groups do not fold
    if isinstance(index, Form):
        kept = tuple(replace(t, of=names[str(t.of)]) for t in index.terms if t.of in names)
        return index_of(replace(index, terms=kept))
    named = index if isinstance(index, Affine) else Affine(index, 1, 0)
    if named.iterator not in names:
        return named.offset
    own = names[named.iterator]
    return replace(index, iterator=own) if isinstance(index, Affine) else own


# --- what is kept --------------------------------------------------------------------------------
def computed_again(program: Program, wanted: set[str]) -> tuple[list[str], set[str]]:
    """What late statements read of the kernel's: what to keep, and what to compute again.

    Args:
        program: all statements.
        wanted: values that late statements read and that are not late.

    Returns:
        Values to keep, in program order, and names of statements to run once more.
    """
    writers = {s.write.name: s for s in program.statements}
    products = _of_products(program)
    again: set[str] = set()
    keep: set[str] = set()
    stack = sorted(wanted)
    while stack:
        value = stack.pop()
        writer = writers[value]
        cheap = isinstance(writer, Pointwise) and (writer.dtype == BOOL or value not in products)
        if not cheap:
            keep.add(value)
        elif writer.name not in again:
            again.add(writer.name)
            stack += [a.name for a in writer.reads if a.name in writers]
    return [value for value in writers if value in keep], again


def _of_products(program: Program) -> set[str]:
    """The values that some product is in."""
    found: set[str] = set()
    for statement in program.statements:
        if isinstance(statement, Contraction) or found & {a.name for a in statement.reads}:
            found.add(statement.write.name)
    return found


def kept(program: Program, value: str, along: Mapping[str, int]) -> tuple[Kept, Pointwise]:
    """A matrix of the workspace, and the statement that stores a value there.

    Numbers that are rounded to 16 bits are kept as such, all others as they are computed.

    Args:
        program: all statements.
        value: one of the kernel's.
        along: which axis each iterator of the statement that makes it is.
    """
    writer = next(s for s in program.statements if s.write.name == value)
    name = f"kept_{value}"
    while name in program.tensors or name in program.sizes:
        name += "_"
    cast = isinstance(writer, Pointwise) and writer.function == "cast"
    dtype = writer.dtype if cast and writer.dtype.bits == 16 else program.real
    sizes = dict(writer.domain)
    own = writer.write.iterators
    dims = tuple(sizes[it] for it in own)
    tensor = Tensor(name, dtype, dims, tuple(range(len(dims))), _ALIGNMENT)
    stored = Pointwise(
        f"{writer.name}_kept",
        tuple((it, sizes[it]) for it in own),
        Access(name, own),
        "cast",
        (Access(value, writer.write.index),),
        dtype,
    )
    index = tuple(iterator(along[it]) if it in along else 0 for it in own)
    return Kept(value, tensor, index), stored
