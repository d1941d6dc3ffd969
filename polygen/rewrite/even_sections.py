"""Products over domains of their own, as many in each: columns of some are cut into parts.

    v0[i,j] += x[i,k] * w[j,k]          256 columns, with a second product beside it
    v2[i,j] += x[i,k] * u[j,k]          128 columns, alone
                                        ->
    v2[i,j]   += x[i,k] * u[j,k]        64 columns each: whatever is computed of an element is
    v2_1[i,j] += x[i,k] * u[j+64,k]     computed in its part

A tile of one kernel has as many sums, whatever it is a tile of (`polygen.poly.sections`). So where
values join two products over one domain, as halves of heads that are turned, and one alone is over
another, that one becomes two. Nothing is assumed: every element is computed in one of the parts, of
what it was computed of. A section stays as it is where its columns are of no number that
the parts divide, where it folds (but in rows that a launch before the kernel makes), or where an
index would be no sum of digits in a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.frontend.closure import needed
from polygen.frontend.forms import Digit, Form, composed
from polygen.frontend.indexing import form_of, index_of
from polygen.frontend.indices import Gathered, Within
from polygen.frontend.program import (
    Access,
    Argument,
    Contraction,
    Coordinate,
    Dim,
    Fold,
    Index,
    Program,
    Statement,
)
from polygen.rewrite.joined_sets import products_in, section_sets


class _Whole(Exception):
    """Columns stay as they are."""


def even_sections(program: Program) -> Program:
    """The program whose sections have as many products each; itself if they have,
    or if some cannot be cut.
    """
    every = section_sets(program)
    counts = [products_in(one) for one in every]
    most = max(counts)
    if len(every) == 1 or len({*counts}) == 1:
        return program
    if any(most % count for count in counts) or program.invariant:
        return program
    made: dict[str, tuple[Statement, ...]] = {}
    known = {*program.tensors, *program.sizes}
    known |= {name for s in program.statements for name in (s.name, s.write.name)}
    try:
        for own, count in zip(every, counts, strict=True):
            if count < most:
                made |= _Parts(program, own, most // count, known).statements()
    except _Whole:
        return program
    statements = (one for s in program.statements for one in made.get(s.name, (s,)))
    return replace(program, statements=tuple(statements))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Statements that values join, in parts of their columns.

    Attributes:
        program: of the statements.
        own: they, in program order.
        count: of parts.
        known: names that are taken.
    """

    program: Program
    own: Sequence[Statement]
    count: int
    known: set[str]

    def statements(self) -> dict[str, tuple[Statement, ...]]:
        """Name -> a statement for each part, of those along columns.

        Raises:
            _Whole: there are no such parts.
        """
        along, values = self._columns()
        cut = [one for one in self.own if one.name in along]
        whole = (one for one in self.own if one.name not in along)
        if any(access.name in values for one in whole for access in one.reads):
            raise _Whole
        parts = range(self.count)
        return {
            one.name: tuple(self._part(one, along[one.name], values, at) for at in parts)
            for one in cut
        }

    def _columns(self) -> tuple[dict[str, str], dict[str, int]]:
        """Of statements along columns which iterator that is, and of their values which axis."""
        along, values = dict[str, str](), dict[str, int]()
        first = {one.write.name for one in needed(self.own, self.program.first)}
        for one in self.own:
            found = {access.index[values[access.name]] for access in one.reads
                     if access.name in values}  # fmt: skip
            if isinstance(one, Fold) and one.write.name not in first:
                raise _Whole
            if isinstance(one, Contraction):
                found = {one.write.index[-1] if one.write.index else 0}
                sides = [found & {*operand.iterators} for operand in one.reads]
                if one.block or len([side for side in sides if side]) != 1:
                    raise _Whole
            if not found:
                continue  # computed of arguments alone
            column = found.pop()
            if found or not isinstance(column, str):
                raise _Whole
            along[one.name] = column
            if one.write.name not in self.program.tensors:
                if column not in one.write.index:
                    raise _Whole
                values[one.write.name] = one.write.index.index(column)
        for one in reversed(self.own):  # and what these read that is computed of arguments alone
            for access in one.reads if one.name in along else ():
                self._before(access, along[one.name], along, values)
        return along, values

    def _before(
        self, access: Access, column: str, along: dict[str, str], values: dict[str, int]
    ) -> None:
        """Note that a value in front of the products is along columns, if it is read so."""
        writer = next((one for one in self.own if one.write.name == access.name), None)
        if access.name in values or writer is None or column not in access.iterators:
            return
        axis = access.index.index(column) if column in access.index else -1
        made = writer.write.index[axis]
        elsewhere = (one for one in self.program.statements if one not in self.own)
        if axis < 0 or not isinstance(made, str) or isinstance(writer, Fold):
            raise _Whole
        if any(read.name == access.name for one in elsewhere for read in one.reads):
            raise _Whole
        along[writer.name], values[access.name] = made, axis

    def _part(self, one: Statement, column: str, values: dict[str, int], at: int) -> Statement:
        """A statement in one part of the columns."""
        extent = dict(one.domain)[column]
        if not isinstance(extent, int) or extent % self.count:
            raise _Whole
        each = extent // self.count
        domain = tuple((it, each if it == column else size) for it, size in one.domain)
        sizes = dict(domain)

        def moved(index: Index) -> Index:
            return _moved(index, column, at * each, sizes)

        def access(given: Access) -> Access:
            if given.name in values:
                return Access(self._called(given.name, at), given.index)
            return Access(given.name, tuple(map(moved, given.index)))

        def argument(given: Argument) -> Argument:
            if isinstance(given, Coordinate):
                return Coordinate(moved(given.index))
            return access(given) if isinstance(given, Access) else given

        name, write = self._called(one.name, at), access(one.write)
        if isinstance(one, Contraction):
            lhs, rhs = access(one.lhs), access(one.rhs)
            return replace(one, name=name, domain=domain, write=write, lhs=lhs, rhs=rhs)
        assert not isinstance(one, Fold)
        args = tuple(map(argument, one.args))
        return replace(one, name=name, domain=domain, write=write, args=args)

    def _called(self, name: str, at: int) -> str:
        """What a part of a statement, or of a value, is called."""
        called = f"{name}_{at}" if at else name
        while at and called in self.known:
            called += "_"
        return called


def _moved(index: Index, column: str, offset: int, sizes: Mapping[str, Dim]) -> Index:
    """An index of the whole, where a column is one of a part that begins at `offset`."""
    if isinstance(index, (Gathered, Within)):
        if column in Access("", (index,)).iterators:
            raise _Whole
        return index
    form = form_of(index)
    if column not in form.iterators:
        return index
    places = {it: Form((Digit(it),), offset if it == column else 0) for it in form.iterators}
    found = composed(form, places, sizes)
    if found is None:
        raise _Whole
    return index_of(found)
