"""Which elements of a product anybody reads: masks that are affine conditions are domains.

    v1[i,j] = ge(i, j)
    v2[i,j] = where(v1[i,j], v0[i,j], 0.0)          v0 is read at { v0[i,j] : i >= j } alone

Backwards through the pointwise statements, isl keeps for every value the set of elements that are
read: all of what leaves the kernel, and of what a statement reads the elements that go with those
of its result. ``where`` reads its second argument only where its condition may be true, and its
third only where that may be false (`polygen.poly.masks`). So what is found is never less than what
is read.
"""

from __future__ import annotations

from polygen import isl
from polygen.frontend.program import Access, Coordinate, Dim, Pointwise, Program
from polygen.poly.masks import Masks, own_names, placed

_Domain = tuple[tuple[str, Dim], ...]


def needed(program: Program) -> dict[str, isl.Set]:
    """The elements of its sums that a program reads, as sets over their axes.

    Args:
        program: products and pointwise statements.

    Returns:
        A set for each product of which not all elements are read.
    """
    if not any(isinstance(arg, Coordinate) for s in program.pointwise for arg in s.args):
        return {}
    read = _Reading(program).all()
    sums = {one.write.name: one for one in program.contractions}
    found = {name: read[name] for name in sums if name in read}
    return {name: one for name, one in found.items() if not _everything(one).is_subset(one)}


def _everything(one: isl.Set) -> isl.Set:
    return isl.Set.universe(one.get_space())


class _Reading:
    """One walk backwards over the statements of a program."""

    def __init__(self, program: Program) -> None:
        self.program, self.masks = program, Masks(program)
        self.written = {s.write.name for s in program.statements}
        self.read: dict[str, isl.Set] = {}

    def all(self) -> dict[str, isl.Set]:
        """Of every value the elements that are read; those that leave the kernel are."""
        leaves = {tensor.name for tensor in self.program.outputs}
        for statement in reversed(self.program.statements):
            own = _instances(statement.domain)
            if not isinstance(statement, Pointwise):
                for access in statement.reads:
                    self._add(access, own, statement.domain)
                continue
            name = statement.write.name
            if name in self.read and name not in leaves:
                written = _access(statement.write, statement.domain)
                if written is not None:
                    own = self.read[name].apply(written.reverse())
            for arg, there in zip(statement.args, self._where(statement, own), strict=True):
                if isinstance(arg, Access):
                    self._add(arg, there, statement.domain)
        return self.read

    def _where(self, statement: Pointwise, own: isl.Set) -> list[isl.Set]:
        """The instances of a statement that read each of its arguments."""
        if statement.function != "where":
            return [own for _ in statement.args]
        iterators = tuple(iterator for iterator, _ in statement.domain)
        sides = (
            own.intersect(isl.Set(f"{{ [{','.join(iterators)}] : {text} }}"))
            for text in self.masks.holds(statement.args[0], own_names(iterators))
        )
        return [own, *sides]

    def _add(self, access: Access, instances: isl.Set, domain: _Domain) -> None:
        if access.name not in self.written:
            return
        place = _access(access, domain)
        if place is None:
            axes = ",".join(f"a{n}" for n in range(len(access.index)))
            elements = isl.Set(f"{{ [{axes}] }}")
        else:
            elements = instances.apply(place)
        known = self.read.get(access.name)
        self.read[access.name] = elements if known is None else known.union(elements).coalesce()


def _instances(domain: _Domain) -> isl.Set:
    """All points, whatever the sizes."""
    return isl.Set(f"{{ [{','.join(iterator for iterator, _ in domain)}] }}")


def _access(access: Access, domain: _Domain) -> isl.Map | None:
    """Instance -> element; None where only data, or digits, say which."""
    iterators = tuple(iterator for iterator, _ in domain)
    names = own_names(iterators)
    cell = []
    for index in access.index:
        place = placed(index, names)
        if place is None:
            return None
        cell.append(place.text)
    return isl.Map(f"{{ [{','.join(iterators)}] -> [{','.join(cell)}] }}")
