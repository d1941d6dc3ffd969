"""Values over one axis in the place of some of their own, whose places are digits of it.

    v0[i,a,b] = f(x[i,2*a + b], c[a])   a < 32, b < 2     ->     w0[i,a] = f(x[i,a], c[floor(a/2)])
                                                                                          a < 64

Statements that map read arrays at any point and values at their own: so a value at other places is
made by the same statements at these, of arrays that are read there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polygen.frontend.forms import Digit, Form, composed
from polygen.frontend.indexing import form_of, index_of
from polygen.frontend.program import (
    Access,
    Argument,
    Coordinate,
    Dim,
    Gathered,
    Index,
    Pointwise,
    Within,
)
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values


@dataclass(frozen=True, slots=True)
class Digits:
    """What takes the place of some axes.

    Attributes:
        each: per axis (per, modulo) of its digit, ``floor(place / per) mod modulo``; 0: no modulo.
        extent: of the one axis.
    """

    each: tuple[tuple[int, int], ...]
    extent: int

    def over(self, names: tuple[str, ...]) -> dict[str, Form]:
        """What iterators along these axes are over the first one."""
        digits = (Digit(names[0], per=per, modulo=modulo) for per, modulo in self.each)
        return {name: Form((digit,)) for name, digit in zip(names, digits, strict=True)}


class AtDigits:
    """Makes values of a program over one axis."""

    def __init__(self, values: Values, fresh: Fresh, add: Callable[[Pointwise], None]) -> None:
        """Prepare.

        Args:
            values: of the program.
            fresh: names that it does not have.
            add: takes statements that are made, in order.
        """
        self.values, self.fresh, self.add = values, fresh, add
        self.known: dict[tuple[str, tuple[int, ...], Digits], str] = {}

    def value(self, value: str, axes: tuple[int, ...], digits: Digits) -> str | None:
        """The value over one axis, which is the first of some; None: it is none.

        It is made by other statements than ones that map at their own points, or read where no
        digit says.
        """
        key = (value, axes, digits)
        if key in self.known:
            return self.known[key]
        one = self.values.writers[value]
        own = tuple(it for it, _ in one.domain)
        if not isinstance(one, Pointwise) or one.write.index != own:
            return None
        names = tuple(own[at] for at in axes)
        args: list[Argument] = []
        for arg in one.args:
            found = self._argument(arg, names, digits, dict(one.domain))
            if found is None:
                return None
            args.append(found)
        kept = ((it, dim) for it, dim in one.domain if it not in names[1:])
        domain = tuple((it, digits.extent if it == names[0] else dim) for it, dim in kept)
        write = Access(self.fresh("w"), tuple(it for it, _ in domain))
        self.add(replace(one, name=self.fresh("R"), domain=domain, write=write, args=tuple(args)))
        self.known[key] = write.name
        return write.name

    def _argument(
        self, arg: Argument, names: tuple[str, ...], digits: Digits, sizes: Mapping[str, Dim]
    ) -> Argument | None:
        if isinstance(arg, Coordinate):
            index = index_at(arg.index, names, digits, sizes)
            return None if index is None else Coordinate(index)
        if not isinstance(arg, Access):
            return arg
        if arg.name in self.values.writers:
            return self.read(arg, names, digits)
        return access_at(arg, names, digits, sizes)

    def read(self, access: Access, names: tuple[str, ...], digits: Digits) -> Access | None:
        """A value that is read along some iterators, each an axis of it, over the first of them;
        as it is where it is read along none.
        """
        if not set(names) & set(access.iterators):
            return access
        if any(access.index.count(it) != 1 or access.iterators.count(it) != 1 for it in names):
            return None
        axes = tuple(access.index.index(it) for it in names)
        made = self.value(access.name, axes, digits)
        left = (one for at, one in enumerate(access.index) if at not in axes[1:])
        index = tuple(names[0] if one in names else one for one in left)
        return None if made is None else Access(made, index)


def access_at(
    access: Access, names: tuple[str, ...], digits: Digits, sizes: Mapping[str, Dim]
) -> Access | None:
    """An array's access over the first of some iterators; None: no sum of digits says it."""
    found = [index_at(one, names, digits, sizes) for one in access.index]
    index = tuple(one for one in found if one is not None)
    return Access(access.name, index) if len(index) == len(found) else None


def index_at(
    index: Index, names: tuple[str, ...], digits: Digits, sizes: Mapping[str, Dim]
) -> Index | None:
    """An index over the first of some iterators; None: no sum of digits says it.

    Args:
        index: over these and others.
        names: the iterators.
        digits: what they are over the first.
        sizes: of all others.
    """
    if not set(Access("", (index,)).iterators) & set(names):
        return index
    if isinstance(index, Gathered | Within):
        return None
    form = form_of(index)
    inner = {str(term.of): Form((Digit(term.of),)) for term in form.terms} | digits.over(names)
    found = composed(form, inner, {**sizes, names[0]: digits.extent})
    return None if found is None else index_of(found)
