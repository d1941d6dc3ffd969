"""The pointwise statements in the coordinates of the accumulator.

1. The fused band says which iterators of a statement run along m, n and the batch dims, so every
   tensor access becomes a tuple over these, and equal tuples of one tensor become one read.
2. An access whose axis along n is contiguous moves vectors; one that does not depend on n is a
   value per row; anything else steps along n with a stride.
3. Values keep the names of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.program import (
    Access,
    Constant,
    Coordinate,
    Dim,
    Extent,
    Fold,
    Pointwise,
    Program,
)
from polygen.poly.elements import Along, along
from polygen.poly.elements import Compute as Compute
from polygen.poly.elements import Element as Element
from polygen.poly.folds import Split
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match
from polygen.poly.operand_folds import OperandFolds, term
from polygen.poly.ring_folds import RingFolds, ring_folds
from polygen.poly.whole_rows import Alike


@dataclass(frozen=True, slots=True)
class Folded:
    """A fold in the kernel's dims.

    Attributes:
        value: its result.
        monoid: how terms are combined.
        terms: per component the value that an element contributes, or a number.
        kept: the dims of its result, in the order of its axes.
        folded: the others, outermost first.
    """

    value: str
    monoid: str
    terms: tuple[str | float, ...]
    kept: tuple[str, ...]
    folded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pointwork:
    """What one result needs: reads, its place, statements and writes."""

    reads: tuple[Element, ...]
    statements: tuple[Compute, ...]
    writes: tuple[Element, ...]
    coordinates: tuple[tuple[str, Along], ...] = ()  # variable, and the number that it holds
    folds: tuple[Folded, ...] = ()
    kept: tuple[str, ...] = ()  # those of `writes` that lie in the workspace
    # Of a tile that covers rows: what goes before, pass by pass, and results of rows that are read.
    before: tuple[Pointwork, ...] = ()
    known: tuple[str, ...] = ()
    # Of a pass: the value that it leaves in registers, and the one that it reads there in place of
    # the sums, with the pass that has left it; "", -1: none.
    holds: str = ""
    takes: tuple[str, int] = ("", -1)
    sizes: tuple[tuple[str, tuple[Dim, ...]], ...] = ()  # name -> dims whose elements it counts
    # Whether its panels are called by number: those of several sections of a kernel are the same.
    numbered: bool = False
    folding: bool = False  # whether parts of folds are made, of a section beside it
    # Whose results are among `reads`, of all passes.
    operands: OperandFolds = field(default_factory=OperandFolds)

    def ring_folds(self, match: Match) -> tuple[RingFolds, ...]:
        """What is folded of every ring."""
        if not self.operands.folds:
            return ()
        every = (read for one in (*self.before, self) for read in one.reads)
        own = {(read.tensor, read.index): read for read in every}
        return ring_folds(self.operands, tuple(own.values()), match)

    def uses(self, rows: RingFolds) -> bool:
        """Whether elements read results of a ring's rows, which leave else and nothing more."""
        names = {name for name, _ in rows.results}
        every = (read for one in (*self.before, self) for read in one.reads)
        return any(read.tensor.name in names for read in every)

    @property
    def matrices(self) -> tuple[Element, ...]:
        """The whole matrices that are read."""
        return tuple(read for read in self.reads if read.whole)


def pointwork(
    program: Program, fusion: Fusion, match: Match, split: Split | None = None
) -> Pointwork:
    """Translate the pointwise statements into accumulator coordinates.

    Args:
        program: the kernel's statements, those that make terms of folds among them.
        fusion: of these.
        match: of these.
        split: of what these statements are the kernel's part: folds, whose terms they make, and
            what is kept in the workspace.
    """
    passes = split.passes if split else None
    if split is None or passes is None:
        made = _of_pass(program, fusion, match, program.pointwise, split.folds if split else ())
        kept = tuple(one.tensor.name for one in (split.kept if split else ()))
        return _with_operands(replace(made, kept=kept), split, match)
    of, known = dict(passes.statements), frozenset(passes.results)
    every = [
        _of_pass(
            program, fusion, match,
            tuple(s for s in program.pointwise if of.get(s.name, passes.count) == number),
            folds, known,
        )
        for number, folds in enumerate((*passes.folds, split.folds))
    ]  # fmt: skip
    taken = ("", -1)
    for number, holds in enumerate((*passes.held, "")):
        every[number] = replace(every[number], holds=holds, takes=taken)
        taken = (holds, number) if holds else taken
    return _with_operands(replace(every[-1], before=tuple(every[:-1])), split, match)


def among_sections(work: Pointwork, alike: Alike | None) -> Pointwork:
    """The work of a section of a kernel: what all of them do is said alike; None: it is alone."""
    return work if alike is None else replace(work, numbered=True, folding=alike.folds)


def _with_operands(work: Pointwork, split: Split | None, match: Match) -> Pointwork:
    """The same, with folds of operands.

    Raises:
        UnsupportedProgram: one is not of the rows of an operand.
    """
    found = replace(work, operands=split.operands if split else OperandFolds())
    found.ring_folds(match)
    return found


def _of_pass(
    program: Program,
    fusion: Fusion,
    match: Match,
    pointwise: tuple[Pointwise, ...],
    folds: tuple[Fold, ...],
    known: frozenset[str] = frozenset(),
) -> Pointwork:
    tensors, given = program.tensors, dict(program.in_place)
    reads: dict[tuple[str, tuple[Along, ...]], Element] = {}
    places: dict[Along, str] = {}
    met: dict[str, None] = {}
    sizes: dict[str, tuple[Dim, ...]] = {}
    statements: list[Compute] = []
    writes: list[Element] = []
    for statement in pointwise:
        dims = match.dims(fusion.iterators(statement.name))
        names: list[str | float] = []
        for argument in statement.args:
            if isinstance(argument, Constant):
                names.append(argument.value)
            elif isinstance(argument, Coordinate):
                place = along(argument.index, dims)
                names.append(
                    places.setdefault(place, f"at{len(places)}")
                    if place.dim
                    else float(place.offset)
                )
            elif isinstance(argument, Extent):
                name = str(argument)
                sizes[name] = argument.dims
                names.append(name)
            elif argument.name in known:
                names.append(argument.name)
                met[argument.name] = None
            elif argument.name not in tensors:
                names.append(argument.name)
            else:
                index = _in_dims(argument, dims)
                key = (argument.name, index)
                if key not in reads:
                    variable = f"{argument.name}_{len(reads)}"
                    reads[key] = Element(variable, tensors[argument.name], index)
                names.append(reads[key].name)
        target = array = statement.write.name
        parts = sum(write.tensor.name == array for write in writes)
        if parts or array in given:  # another part of the same array, or a name that is the user's
            target = f"{array}_{parts}"
        statements.append(Compute(target, statement.function, tuple(names), statement.dtype))
        if array in tensors:
            writes.append(Element(target, tensors[array], _in_dims(statement.write, dims)))
    coordinates = tuple((name, place) for place, name in places.items())
    return Pointwork(
        tuple(reads.values()),
        tuple(statements),
        tuple(writes),
        coordinates,
        tuple(_folded(fold, fusion, match) for fold in folds),
        known=tuple(met),
        sizes=tuple(sizes.items()),
    )


def _folded(fold: Fold, fusion: Fusion, match: Match) -> Folded:
    dims = match.dims(fusion.iterators(f"{fold.name}_0"))
    value = fold.write.name
    terms = tuple(
        arg.value if isinstance(arg, Constant) else term(value, at)
        for at, arg in enumerate(fold.args)
    )
    kept = tuple(dims[it] for it in fold.write.iterators)
    # A dim that terms do not have is one of extent 1, such as the row of a vector.
    folded = tuple(d for d in (*(dim for dim, _ in match.batches), "m", "n") if d not in kept)
    return Folded(value, fold.function, terms, kept, folded)


def _in_dims(access: Access, dims: dict[str, str]) -> tuple[Along, ...]:
    found = tuple(along(index, dims) for index in access.index)
    other = next((one for one in found if one.rows and one.dim not in ("m", "n")), None)
    if other is not None:
        raise UnsupportedProgram(
            f"{access} is read at {other}",
            why="behind a product, rows by index lie along the rows or columns of matrices",
            nearest=f"Pass {access.name} with a matrix for each of the result's",
        )
    return found
