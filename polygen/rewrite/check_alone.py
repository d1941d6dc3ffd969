"""That a program with products of zeros is the program: whoever adds them is not trusted.

1. What is new is zeros, products of zeros, and sums of a value and such a product, which are that
   value.
2. Every other statement is one of the program's, read with values for these sums. A value may lack
   axes along which nothing that it is made of differs; a fold, axes of one index.
3. No statement and no result is left out.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.errors import VerifyError
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Dim,
    Fold,
    Pointwise,
    Program,
    Statement,
)


def check_alone(program: Program, made: Program) -> None:
    """Refuse a program that is not another one.

    Args:
        program: as it was.
        made: with products of zeros in front of folds.

    Raises:
        VerifyError: with the statement that is none of the program's.
    """
    checked = _Checked(program)
    for one in made.statements:
        checked.statement(one)
    left = checked.writers.keys() - {one.write.name for one in made.statements}
    if left or replace(made, statements=program.statements) != program:
        raise checked.refusal(f"{', '.join(sorted(left)) or 'a result'} is left out")


class _Checked:
    """What is known of the statements so far.

    Args:
        program: as it was.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.writers = {one.write.name: one for one in program.statements}
        self._zeros: set[str] = set()
        self._nothing: dict[str, Access] = {}  # products of zeros, by name
        self._same: dict[Access, Access] = {}  # sums of a value and nothing, and that value
        self._domains: dict[str, dict[str, Dim]] = {}  # of new values
        self._kept: dict[str, tuple[int, ...]] = {}  # of values with fewer axes, which they have

    def refusal(self, what: str) -> VerifyError:
        """What is refused of the program."""
        return VerifyError(what, where=f"{self._program.name}, with products of zeros")

    def statement(self, one: Statement) -> None:
        """A new statement, or one of the program's."""
        old = self.writers.get(one.write.name)
        known = self._is_nothing(one) if old is None else self._is_of(one, old)
        reads = (access for access in one.reads if access.name in self._domains)
        if not known or not all(self._is_inside(one, access) for access in reads):
            raise self.refusal(f"{one} is no statement of the program")

    def _is_inside(self, one: Statement, access: Access) -> bool:
        """Whether a new value is there wherever a statement reads it."""
        own, made = dict(one.domain), self._domains[access.name]
        return all(own.get(iterator) == made.get(iterator) for iterator in access.iterators)

    def _is_nothing(self, one: Statement) -> bool:
        """Whether a new statement adds nothing."""
        name = one.write.name
        self._domains[name] = dict(one.domain)
        if isinstance(one, Contraction):
            self._nothing[name] = one.write
            return not one.block and {one.lhs.name, one.rhs.name} <= self._zeros
        if not isinstance(one, Pointwise):
            return False
        if one.function == "cast" and one.args == (Constant(0.0),):
            self._zeros.add(name)
            return True
        value, *others = one.args
        found = [self._nothing.get(a.name) for a in others if isinstance(a, Access)]
        if one.function != "add" or not isinstance(value, Access) or others != found:
            return False
        self._same[one.write] = value
        return set(value.iterators) <= set(one.write.iterators)

    def _is_of(self, one: Statement, old: Statement) -> bool:
        """Whether a statement is an old one."""
        if isinstance(one, Contraction) and isinstance(old, Contraction):
            lhs, rhs = map(self._narrow, old.reads)
            return one == replace(old, lhs=lhs, rhs=rhs)
        if isinstance(one, Contraction):
            return False
        if isinstance(old, Contraction) or type(one) is not type(old):
            return False
        args = tuple(self._value(arg) for arg in one.args)
        alike = replace(one, domain=old.domain, write=old.write, args=old.args) == old
        wanted = (self._narrow(arg) if isinstance(arg, Access) else arg for arg in old.args)
        return alike and args == tuple(wanted) and self._is_over(one, old, args)

    def _is_over(self, one: Pointwise | Fold, old: Statement, args: tuple[Argument, ...]) -> bool:
        """Whether a statement has the axes of an old one, or those that tell elements apart."""
        read = {it for arg in args if not isinstance(arg, Constant) for it in arg.iterators}
        gone = [pair for pair in old.domain if pair not in one.domain]
        if one.domain != tuple(pair for pair in old.domain if pair not in gone):
            return False
        if isinstance(one, Fold):
            used = read | set(one.write.iterators)
            return one.write == old.write and all(n == 1 and it not in used for it, n in gone)
        lost = {iterator for iterator, _ in gone}
        at = tuple(n for n, index in enumerate(old.write.index) if index not in lost)
        if lost:
            self._kept[one.write.name] = at
        index = tuple(old.write.index[n] for n in at)
        return one.write == replace(old.write, index=index) and not lost & read

    def _value(self, arg: Argument) -> Argument:
        return self._same.get(arg, arg) if isinstance(arg, Access) else arg

    def _narrow(self, access: Access) -> Access:
        """What an old statement reads, of a value with fewer axes."""
        if access.name not in self._kept:
            return access
        return replace(access, index=tuple(access.index[at] for at in self._kept[access.name]))
