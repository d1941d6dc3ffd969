"""Sums of digits: what indexes an axis where a reshape or a window made it of several others.

1. A digit is ``scale * (floor(i / per) mod modulo)``: of a number of the iterator i written with
   several radices, one place. An axis that is split is read at digits of one iterator, an axis that
   is merged of others at a sum of them: ``x.reshape(4, 128, K)[h, d]`` is ``x[128*h + d]``, and
   ``y.reshape(512, K)[i]`` is ``y[floor(i/128), i mod 128]``.
2. Forms are composed: sums are added, floors and remainders are taken of what they leave whole.
   ``64*floor(j/64) + j mod 64`` is j again, so that a reshape there and back is none.
3. A floor or remainder that would mix digits has no form, and the caller refuses it by name:
   ``reshape([6, 4], [4, 6])`` is not affine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Extents = Mapping[Any, Any]  # of what digits are of: a number, or a name that has none


@dataclass(frozen=True, slots=True)
class Digit:
    """``scale * (floor(of / per) mod modulo)``; a modulo of 0 is none."""

    of: str | int  # an iterator; of views an axis
    scale: int = 1
    per: int = 1
    modulo: int = 0

    def __str__(self) -> str:
        place = str(self.of) if self.per == 1 else f"floor({self.of}/{self.per})"
        place = f"({place} mod {self.modulo})" if self.modulo else place
        return place if self.scale == 1 else f"{self.scale}*{place}"

    def at(self, place: Any) -> Any:
        """The number where `of` is `place`: a number, or an array of them."""
        digit = place // self.per
        return self.scale * (digit % self.modulo if self.modulo else digit)


@dataclass(frozen=True, slots=True)
class Form:
    """A sum of digits, and a number.

    Attributes:
        terms: digits, each of another place.
        offset: the number.
        padded: whether it may lie outside of the axis, where zeros are read.
    """

    terms: tuple[Digit, ...]
    offset: int = 0
    padded: bool = False

    @property
    def iterators(self) -> tuple[str, ...]:
        """What it depends on, each once."""
        return tuple(dict.fromkeys(str(term.of) for term in self.terms))

    @property
    def only(self) -> Digit | None:
        """The one digit, with no remainder and no place outside of the axis, that a form may be."""
        (first, *others) = self.terms or (None,)
        return None if first is None or others or first.modulo or self.padded else first

    def overlaps(self, extents: Extents) -> bool:
        """Whether several places have one number, as those of windows do."""
        terms = sorted(self.terms, key=lambda term: abs(term.scale))
        mosts = [_most(term, extents) for term in terms[:-1]]
        return any(
            most is None or abs(high.scale) <= abs(low.scale) * most
            for low, high, most in zip(terms, terms[1:], mosts, strict=False)
        )

    def __str__(self) -> str:
        text = " + ".join(map(str, self.terms))
        return f"{text}{self.offset:+d}" if self.offset else text

    def at(self, places: Mapping[Any, Any]) -> Any:
        """The number where every iterator is at its place."""
        return sum((term.at(places[term.of]) for term in self.terms), start=self.offset)


def composed(outer: Form, inner: Mapping[Any, Form], extents: Extents) -> Form | None:
    """A form whose places are forms themselves; None: it is none.

    Args:
        outer: over places.
        inner: per place, what it is.
        extents: of what the inner forms are over.
    """
    found, padded = Form((), outer.offset), outer.padded
    for term in outer.terms:
        part: Form | None = inner[term.of]
        assert part is not None
        padded = padded or part.padded
        if part.padded and (term.per > 1 or term.modulo):
            return None
        part = _floor(part, term.per, extents)
        part = part and _remainder(part, term.modulo, extents)
        if part is None:
            return None
        scaled = tuple(replace(one, scale=one.scale * term.scale) for one in part.terms)
        found = Form((*found.terms, *scaled), found.offset + part.offset * term.scale)
    terms = _joined([_plain(term, extents) for term in found.terms], extents)
    return Form(terms, found.offset, padded)


def _most(term: Digit, extents: Extents) -> int | None:
    """The greatest value of a digit, without its scale; None: it has none."""
    extent = extents.get(term.of)
    whole = (extent - 1) // term.per if isinstance(extent, int) else None
    if not term.modulo:
        return whole
    return term.modulo - 1 if whole is None else min(whole, term.modulo - 1)


def _inside(form: Form, count: int, extents: Extents) -> bool:
    """Whether the form is from 0 on and below a number."""
    most = form.offset
    for term in form.terms:
        last = _most(term, extents)
        if last is None or term.scale < 0:
            return False
        most += term.scale * last
    return form.offset >= 0 and most < count


def _apart(form: Form, count: int) -> tuple[Form, Form]:
    """The terms that are multiples of a number, and what is left."""
    whole = tuple(term for term in form.terms if term.scale % count == 0)
    rest = tuple(term for term in form.terms if term.scale % count)
    return Form(whole, form.offset // count * count), Form(rest, form.offset % count)


def _floor(form: Form, per: int, extents: Extents) -> Form | None:
    if per == 1:
        return form
    whole, rest = _apart(form, per)
    terms = tuple(replace(term, scale=term.scale // per) for term in whole.terms)
    if _inside(rest, per, extents):
        return Form(terms, whole.offset // per)
    if not rest.terms:
        return None
    cut = _cut(rest, per, extents)
    if cut is None:
        return None
    term, each, _ = cut
    last = Digit(term.of, 1, term.per * each, term.modulo // each)
    return Form((*terms, last), whole.offset // per)


def _remainder(form: Form, modulo: int, extents: Extents) -> Form | None:
    if not modulo:
        return form
    _, rest = _apart(form, modulo)
    if _inside(rest, modulo, extents):
        return rest
    cut = _cut(rest, modulo, extents)
    if cut is None:
        return None
    term, each, low = cut
    return Form((replace(term, modulo=each), *low.terms), low.offset)


def _cut(rest: Form, count: int, extents: Extents) -> tuple[Digit, int, Form] | None:
    """The highest digit, how many of its steps are a count, and what is below it.

    None: the count falls inside one of its steps, or below it is more than a step.
    """
    term, low = _highest(rest)
    if term.scale < 0 or count % term.scale or not _inside(low, term.scale, extents):
        return None
    each = count // term.scale
    return None if term.modulo and term.modulo % each else (term, each, low)


def _highest(form: Form) -> tuple[Digit, Form]:
    """The term of the greatest scale, and what is left beside it."""
    term = max(form.terms, key=lambda one: one.scale)
    rest = tuple(one for one in form.terms if one is not term)
    return term, Form(rest, form.offset)


def _plain(term: Digit, extents: Extents) -> Digit:
    """The digit without a modulo that its extent never reaches."""
    extent = extents.get(term.of)
    if term.modulo and isinstance(extent, int) and -(-extent // term.per) <= term.modulo:
        return replace(term, modulo=0)
    return term


def _joined(terms: Sequence[Digit], extents: Extents) -> tuple[Digit, ...]:
    """Digits beside each other of one number as one; those that are always 0 left out."""
    found = [term for term in terms if term.scale and _most(term, extents) != 0]
    while True:
        pair = next(
            ((a, b) for a in found for b in found if _beside(a, b)),
            None,
        )
        if pair is None:
            return tuple(found)
        high, low = pair
        modulo = low.modulo * high.modulo
        one = _plain(Digit(low.of, low.scale, low.per, modulo), extents)
        found = [one if term is low else term for term in found if term is not high]


def _beside(high: Digit, low: Digit) -> bool:
    return (
        high.of == low.of
        and low.modulo > 0
        and high.per == low.per * low.modulo
        and high.scale == low.scale * low.modulo
    )


def inverse(index: Mapping[Any, Form], extents: Extents, axes: Extents) -> dict[Any, Form] | None:
    """What each axis is over the others, where an index is one to one; None: it is not.

    Args:
        index: per axis of a value, the form of the numbers that index it.
        extents: of what these forms are over.
        axes: extents of the value's axes.

    Returns:
        Per number, its form over the axes.
    """
    digits: dict[Any, list[tuple[Digit, Digit]]] = {}  # of a number, with the axis' digit
    for axis, form in index.items():
        if form.offset or form.padded:
            return None
        place = 1
        for term in sorted(form.terms, key=lambda one: one.scale):
            last = _most(term, extents)
            alone = place == 1 and len(form.terms) == 1
            if term.scale != place or (last is None and not alone):
                return None
            count = 0 if last is None else last + 1
            own = Digit(axis, term.per, term.scale, count)
            digits.setdefault(term.of, []).append((term, _plain(own, axes)))
            place *= count or 1
        extent = axes[axis]
        if isinstance(extent, int) and place != extent:
            return None
    found = {}
    for of, own_digits in digits.items():
        place = 1
        for term, _ in sorted(own_digits, key=lambda pair: pair[0].per):
            if term.per != place:
                return None
            last = _most(term, extents)
            place *= 1 if last is None else last + 1
        extent = extents[of]
        if isinstance(extent, int) and place != extent:
            return None
        found[of] = Form(_joined([digit for _, digit in own_digits], axes))
    return found
