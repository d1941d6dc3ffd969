"""Masks that are affine conditions on where an element is, as isl text.

When a condition holds is a pair: where it may be true, and where it may be false. Comparisons of
quasi-affine forms of coordinates and whole numbers, joined by and, or, not, are known; anything
else may be both, everywhere. So neither is ever less than what is.

Coordinates are f32 numbers in the kernel, exact up to 2^24. A form has no more than `_MOST_TIMES`
coordinates, those of its parts counted by their factors, and numbers up to `_LARGEST_NUMBER`; and
no coordinate twice, on either side of a comparison, where it could cancel. One that rounding could
bring to the other side of zero then has two coordinates of 2^20, and no memory holds such a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polygen.frontend.program import (
    Access,
    Affine,
    Argument,
    Constant,
    Coordinate,
    Index,
    Pointwise,
    Program,
)

_MOST_TIMES, _LARGEST_NUMBER = 16, 2**20
_ALWAYS = "1 = 1"
_COMPARED = {
    "ge": (">=", "<"), "gt": (">", "<="), "le": ("<=", ">"), "lt": ("<", ">="),
    "eq": ("=", "!="), "ne": ("!=", "="),
}  # fmt: skip
_FORMS = {
    "add": "({0}) + ({1})", "sub": "({0}) - ({1})", "neg": "-({0})", "abs": "max({0}, -({0}))",
    "maximum": "max({0}, {1})", "minimum": "min({0}, {1})",
}  # fmt: skip
_KEEPS_WHOLE_NUMBERS = ("f32", "s32", "f64")


@dataclass(frozen=True, slots=True)
class Form:
    """A quasi-affine form of iterators.

    Attributes:
        text: as isl reads it.
        times: how many coordinates are added up in it, by their factors.
        number: of what size the numbers in it are, all together.
        iterators: whose they are.
    """

    text: str
    times: int = 0
    number: int = 0
    iterators: frozenset[str] = frozenset()

    @property
    def small(self) -> Form | None:
        """The form, unless rounding may tell on it."""
        fits = self.times <= _MOST_TIMES and self.number <= _LARGEST_NUMBER
        return self if fits else None

    def scaled(self, factor: int, offset: int = 0, per: int = 1) -> Form | None:
        """``factor * floor(form / per) + offset``."""
        part = f"({self.text})" if per == 1 else f"floor(({self.text})/{per})"
        size = abs(factor)
        text = f"({factor}*{part} + {offset})"
        number = size * self.number + abs(offset)
        return Form(text, size * self.times, number, self.iterators).small


def _all(forms: Iterable[Form]) -> frozenset[str]:
    """Whose coordinates forms have."""
    return frozenset(iterator for form in forms for iterator in form.iterators)


def _apart(*forms: Form) -> bool:
    """Whether none of them has a coordinate of another one."""
    return len(_all(forms)) == sum(len(form.iterators) for form in forms)


Names = Mapping[str, Form]  # of iterators: where they are


def placed(index: Index, names: Names) -> Form | None:
    """An index; None of one that is no small form of a single iterator."""
    if isinstance(index, int):
        return Form(str(index), 0, abs(index)).small
    if isinstance(index, str):
        return names.get(index)
    if not isinstance(index, Affine) or index.iterator not in names:
        return None
    return names[index.iterator].scaled(index.scale, index.offset, index.per)


def own_names(iterators: tuple[str, ...]) -> Names:
    """Iterators, each where it is."""
    return {iterator: Form(iterator, 1, 0, frozenset((iterator,))) for iterator in iterators}


class Masks:
    """The conditions of a program."""

    def __init__(self, program: Program) -> None:
        self.writers = {
            s.write.name: s for s in program.pointwise if s.write.name not in program.in_parts
        }

    def holds(self, arg: Argument, names: Names) -> tuple[str, str]:
        """When a condition may be true, and when it may be false, as isl text.

        Args:
            arg: the condition.
            names: of the iterators of the statement that reads it.
        """
        found = self._behind(arg, names)
        if found is None:
            return _ALWAYS, _ALWAYS
        writer, names = found
        args, function = writer.args, writer.function
        if function in ("logical_and", "logical_or"):
            (true, false), (true_2, false_2) = (self.holds(one, names) for one in args)
            if function == "logical_or":
                return f"({true}) or ({true_2})", f"({false}) and ({false_2})"
            return f"({true}) and ({true_2})", f"({false}) or ({false_2})"
        if function == "logical_not":
            return self.holds(args[0], names)[::-1]
        if function not in _COMPARED:
            return _ALWAYS, _ALWAYS
        left, right = (self._form(one, names) for one in args)
        if left is None or right is None or not _apart(left, right):
            return _ALWAYS, _ALWAYS
        holds, fails = (f"({left.text}) {sign} ({right.text})" for sign in _COMPARED[function])
        return holds, fails

    def _form(self, arg: Argument, names: Names) -> Form | None:
        """An argument as a form; None if it is none that is known, or no small one."""
        if isinstance(arg, Constant):
            if not float(arg.value).is_integer() or abs(arg.value) > _LARGEST_NUMBER:
                return None
            return Form(str(int(arg.value)), 0, abs(int(arg.value)))
        if isinstance(arg, Coordinate):
            return placed(arg.index, names)
        found = self._behind(arg, names)
        if found is None:
            return None
        writer, names = found
        forms = [self._form(one, names) for one in writer.args]
        known = [form for form in forms if form is not None]
        if len(known) < len(forms) or not _apart(*known):
            return None
        if writer.function == "cast":
            return known[0] if writer.dtype.name in _KEEPS_WHOLE_NUMBERS else None
        if writer.function == "mul":
            for factor, other in ((writer.args[0], known[1]), (writer.args[1], known[0])):
                if isinstance(factor, Constant):
                    return other.scaled(int(factor.value))
            return None
        text = _FORMS.get(writer.function)
        if text is None:
            return None
        times, number = sum(form.times for form in known), sum(form.number for form in known)
        whole = f"({text.format(*(form.text for form in known))})"
        return Form(whole, times, number, _all(known)).small

    def _behind(self, arg: Argument, names: Names) -> tuple[Pointwise, Names] | None:
        """The statement behind a value that is read, and where its iterators are then."""
        writer = self.writers.get(arg.name) if isinstance(arg, Access) else None
        if writer is None or not isinstance(arg, Access):
            return None
        found: dict[str, Form] = {}
        for own, index in zip(writer.write.index, arg.index, strict=True):
            place = placed(index, names)
            if place is None or not isinstance(own, str):
                return None
            found[own] = place
        return (writer, found) if set(found) == {it for it, _ in writer.domain} else None
