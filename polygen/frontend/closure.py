"""What values are made of."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TypeVar

from polygen.frontend.program import Contraction, Program, Statement

_S = TypeVar("_S", bound=Statement)


def made_of(made: Iterable[tuple[str, Iterable[str]]], wanted: Iterable[str]) -> frozenset[str]:
    """The values that some are made of, and these.

    Args:
        made: every value with those that it is made of, in order.
        wanted: names of values.
    """
    found = set(wanted)
    for name, reads in reversed(list(made)):
        if name in found:
            found.update(reads)
    return frozenset(found)


def needed(statements: Sequence[_S], wanted: Iterable[str], given: Container[str] = ()) -> list[_S]:
    """The statements that values are made by, in order.

    Args:
        statements: in order.
        wanted: names of the values.
        given: values that are there, and need not be made.
    """
    own = [one for one in statements if one.write.name not in given]
    found = made_of(((s.write.name, [a.name for a in s.reads]) for s in own), wanted)
    return [one for one in own if one.write.name in found]


def multiplies_sums(program: Program) -> bool:
    """Whether a product reads what is made of another, as in a chain of them."""
    read = [access.name for product in program.contractions for access in product.reads]
    return any(isinstance(one, Contraction) for one in needed(program.statements, read))
