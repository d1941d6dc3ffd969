"""The pointwise statements in the coordinates of the accumulator.

1. The fused band says which iterators of a statement run along m, n and the batch dims, so every
   tensor access becomes a tuple over these, and equal tuples of one tensor become one read.
2. An access whose axis along n is contiguous moves vectors; one that does not depend on n is a
   value per row; anything else steps along n with a stride.
3. Values keep the names of the program.
"""

from __future__ import annotations

from dataclasses import dataclass

from polygen.frontend.program import Access, Constant, Coordinate, Extent, Fold, Program
from polygen.poly.elements import Along, along
from polygen.poly.elements import Compute as Compute
from polygen.poly.elements import Element as Element
from polygen.poly.folds import Split, term
from polygen.poly.fusion import Fusion
from polygen.poly.match import Match


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
    tensors = program.tensors
    reads: dict[tuple[str, tuple[Along, ...]], Element] = {}
    places: dict[Along, str] = {}
    statements, writes = [], []
    for statement in program.pointwise:
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
                raise AssertionError("extents stand in what follows folds")
            elif argument.name not in tensors:
                names.append(argument.name)
            else:
                index = _in_dims(argument, dims)
                key = (argument.name, index)
                if key not in reads:
                    variable = f"{argument.name}_{len(reads)}"
                    reads[key] = Element(variable, tensors[argument.name], index)
                names.append(reads[key].name)
        target = statement.write.name
        statements.append(Compute(target, statement.function, tuple(names), statement.dtype))
        if target in tensors:
            writes.append(Element(target, tensors[target], _in_dims(statement.write, dims)))
    coordinates = tuple((name, place) for place, name in places.items())
    folds = tuple(_folded(fold, fusion, match) for fold in (split.folds if split else ()))
    kept = tuple(one.tensor.name for one in (split.kept if split else ()))
    return Pointwork(
        tuple(reads.values()), tuple(statements), tuple(writes), coordinates, folds, kept
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
    return tuple(along(index, dims) for index in access.index)
