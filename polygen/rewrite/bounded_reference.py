"""A maximum of values that are bounded is no reference that a scan has to find.

    m[i] = max over j of x[i,j],  x in [a, b]:   f(x, m), g(m, sums of f)   ->   f(x, b), g(b, ...)

Under a soft cap, `tanh(s / c) * c`, scores lie in [-c, c] whatever the arrays hold. Then every
number near them serves as the reference: nothing is folded, and no sum is rescaled. Two conditions:

1. What is returned does not depend on the reference. It is decided by laws: what becomes of a value
   where the reference is another. Sums of terms f(x, m') = f(x, m) c(m, m') are multiplied by c;
   quotients of two such sums stay, and so does m + log of one. A law is a number for each of some
   pairs (m, m'); what no rule has a law for must be made of values that stay.
2. Terms made with it keep their digits: they are 0, or between a least number and about 1. So sums
   overflow no sooner than under the maximum. Products with 2^-88 are normal numbers of f32 down to
   factors of 2^-38, and the second product's operand is one of its type.

Where one does not hold the maximum stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polygen.errors import UnsupportedProgram
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.functions import TABLE
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Fold,
    Pointwise,
    Statement,
)
from polygen.rewrite.separation import Factor, ratio, separated
from polygen.rewrite.value_ranges import Range, range_of
from polygen.rewrite.values import Values

_LEAST, _GREATEST = 2.0**-88, 16.0
_PAIRS = ((0.25, 0.75), (-1.0, 0.5), (1.5, -0.3), (0.0, 2.1))  # references, and others
_CLOSE = 1e-9  # of f64 arithmetic on numbers near 1


@dataclass(frozen=True, slots=True)
class _Law:
    """What becomes of a value under another reference, for each pair of them.

    Attributes:
        times: what it is multiplied by.
        plus: what is added to it then.
    """

    times: tuple[float, ...] = (1.0,) * len(_PAIRS)
    plus: tuple[float, ...] = (0.0,) * len(_PAIRS)

    @property
    def stays(self) -> bool:
        """Whether nothing becomes of it."""
        return self.adds_nothing and bool(np.allclose(self.times, 1.0, rtol=_CLOSE, atol=0.0))

    @property
    def adds_nothing(self) -> bool:
        """Whether it is multiplied at most."""
        return bool(np.allclose(self.plus, 0.0, rtol=0.0, atol=_CLOSE))

    @property
    def multiplies_nothing(self) -> bool:
        """Whether something is added to it at most."""
        return bool(np.allclose(self.times, 1.0, rtol=_CLOSE, atol=0.0))


_STAYS = _Law()


class _Laws:
    """The laws of values behind sums.

    Attributes:
        values: of the program.
        reference: the fold's name.
        sums: laws of sums of terms that are made with it.
    """

    def __init__(self, values: Values, reference: str, sums: dict[str, _Law]) -> None:
        self.values, self.reference, self.sums = values, reference, sums

    def law(self, arg: Argument) -> _Law | None:
        """The law of an argument; None where no rule gives it."""
        if not isinstance(arg, Access):
            return _STAYS
        if arg.name == self.reference:
            return _Law(plus=tuple(new - old for old, new in _PAIRS))
        if arg.name in self.sums:
            return self.sums[arg.name]
        if not self.values.depends(arg, (self.reference,)):
            return _STAYS
        writer = self.values.writers.get(arg.name)
        if isinstance(writer, Fold):  # of what is behind the second product
            each = [self.law(one) for one in writer.args]
            return _STAYS if all(law is not None and law.stays for law in each) else None
        return self._made(writer) if isinstance(writer, Pointwise) else None

    def _made(self, one: Pointwise) -> _Law | None:
        laws = [self.law(arg) for arg in one.args]
        if any(law is None for law in laws):
            return None
        given = [law for law in laws if law is not None]
        if all(law.stays for law in given):
            return _STAYS
        if one.function == "cast":
            return given[0] if one.dtype == F32 else None
        if one.function == "where":
            return self._kept_from_zero(one, given)
        return _of_function(one, given)

    def _kept_from_zero(self, one: Pointwise, laws: Sequence[_Law]) -> _Law | None:
        """x, or a number where x is 0: a divisor of sums that are all 0 there."""
        condition, number, value = one.args
        asked = self.values.writers.get(condition.name) if isinstance(condition, Access) else None
        known = (
            isinstance(asked, Pointwise)
            and asked.function == "eq"
            and asked.args == (value, Constant(0.0))
            and isinstance(number, Constant)
        )
        return laws[2] if known and laws[2].adds_nothing else None


def _of_function(one: Pointwise, laws: Sequence[_Law]) -> _Law | None:
    """The law of a function of values of which not all stay."""
    name, args = one.function, one.args
    first, last = laws[0], laws[-1]
    if name in ("mul", "div") and all(law.adds_nothing for law in laws):
        power = 1.0 if name == "mul" else -1.0
        return _Law(
            tuple(a * b**power for a, b in zip(first.times, last.times, strict=True)), first.plus
        )
    if name in ("mul", "div") and all(law.multiplies_nothing for law in laws):
        at = 1 if first.stays and name == "mul" else 0
        number = args[1 - at]
        if not isinstance(number, Constant) or number.value == 0.0:
            return None
        by = number.value if name == "mul" else 1.0 / number.value
        return _Law(plus=tuple(by * p for p in laws[at].plus))
    if name in ("add", "sub") and all(law.multiplies_nothing for law in laws):
        sign = 1.0 if name == "add" else -1.0
        both = zip(first.plus, last.plus, strict=True)
        return _Law(plus=tuple(a + sign * b for a, b in both))
    if name in ("add", "sub") and first.adds_nothing and last.times == first.times:
        return first if last.adds_nothing else None
    if name == "neg":
        return replace(first, plus=tuple(-p for p in first.plus))
    if name == "log" and first.adds_nothing:
        return _Law(plus=tuple(math.log(t) for t in first.times))
    if name == "exp" and first.multiplies_nothing:
        return _Law(times=tuple(math.exp(p) for p in first.plus))
    if name == "eq" and args[1] == Constant(0.0) and first.adds_nothing:
        return _STAYS
    return None


@dataclass(frozen=True, slots=True)
class Bounded:
    """A program without one of its maxima.

    Attributes:
        statements: of it.
        term: what the maximum was of: a value that masks may make.
        step: what was done, in a sentence.
    """

    statements: list[Statement]
    term: str
    step: str


def without_bounded_reference(
    statements: Sequence[Statement],
    second: Contraction,
    operand: Access,
    operand_type: DType,
    outputs: Sequence[str],
) -> Bounded | None:
    """The statements, with a number in the place of the maximum that terms are made with.

    Args:
        statements: of a chain.
        second: its second product.
        operand: what that reads of the first.
        operand_type: what it multiplies.
        outputs: names of what is returned.

    Returns:
        None where no maximum is a reference of bounded values, or a condition does not hold.
    """
    values = Values(tuple(statements))
    total = second.write.name
    every = (s for s in statements if isinstance(s, Fold))
    folds = [s for s in every if total not in values.behind(s.write.name)]
    terms = {s.write.name: a.name for s in folds for a in s.args[:1] if isinstance(a, Access)}
    terms[second.write.name] = operand.name
    for fold in folds:
        name = fold.write.name
        made = {s: t for s, t in terms.items() if name in values.behind(t)}
        inside = range_of(values, Access(terms.get(name, ""), ()))
        if fold.function != "max" or not made or name not in terms or not inside.bounded:
            continue
        if any(one.write.name in made and one.function != "sum" for one in folds):
            continue
        if not _returned_stays(values, fold, made, second, outputs):
            continue
        found = _with_number(statements, name, inside.high, outputs)
        kinds = {operand.name: operand_type}
        after = Values(tuple(found))
        ranges = [range_of(after, Access(term, ())) for term in dict.fromkeys(made.values())]
        least = max(_least(kinds.get(term, F32)) for term in made.values())
        if not all(_keeps_digits(one, least) for one in ranges):
            continue
        low, high = min(one.low for one in ranges), max(one.high for one in ranges)
        step = (
            f"{name}, the max of {terms[name]}, is between {inside.low:g} and {inside.high:g}: "
            f"under {inside.high:g} in its place terms are between {low:.2g} and {high:.2g}, and "
            "what is returned is the same under any"
        )
        return Bounded(found, terms[name], step)
    return None


def _returned_stays(
    values: Values,
    fold: Fold,
    made: dict[str, str],
    second: Contraction,
    outputs: Sequence[str],
) -> bool:
    """Whether what is returned is the same under any reference."""
    sums = {}
    for total, term in made.items():
        try:
            factors = separated(values, term, fold, total, second.name)
        except UnsupportedProgram:  # which the scan says with its numbers
            return False
        sums[total] = _sum_law(factors)
    laws = _Laws(values, fold.write.name, sums)
    found = (laws.law(Access(name, ())) for name in outputs)
    return all(law is not None and law.stays for law in found)


def _sum_law(factors: Sequence[Factor]) -> _Law:
    """The law of a sum of terms with these factors of the reference."""
    return _Law(tuple(ratio(factors, old, new) for old, new in _PAIRS))


def _least(kind: DType) -> float:
    """Down to which size terms of a type keep their digits."""
    bias = 2 ** (kind.bits - kind.mantissa - 2) - 1
    return max(_LEAST, math.ldexp(1.0, 1 - bias))  # its least normal number


def _keeps_digits(terms: Range, least: float) -> bool:
    """Whether terms are 0, or neither too small nor too large."""
    return least <= terms.low and terms.high <= _GREATEST and terms.alone <= {0.0}


def _with_number(
    statements: Sequence[Statement], name: str, number: float, outputs: Sequence[str]
) -> list[Statement]:
    """The statements, with a number in the place of a value, and what is made of numbers alone."""
    known, found = {name: Constant(number)}, list[Statement]()

    def argument(arg: Argument) -> Argument:
        return known.get(arg.name, arg) if isinstance(arg, Access) else arg

    for one in statements:
        if one.write.name == name:
            continue
        if isinstance(one, Contraction):
            found.append(one)
            continue
        changed = replace(one, args=tuple(map(argument, one.args)))
        numbers = [arg.value for arg in changed.args if isinstance(arg, Constant)]
        if (
            isinstance(changed, Pointwise)
            and changed.args != one.args
            and len(numbers) == len(one.args)
            and one.function != "cast"
            and one.write.name not in outputs
        ):
            value = TABLE[one.function].reference(*map(np.float64, numbers))
            known[one.write.name] = Constant(float(value))
            continue
        found.append(changed)
    return found
