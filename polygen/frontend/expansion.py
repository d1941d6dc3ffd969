"""Definitions of functions, run down to primitives over whatever values a caller has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polygen.errors import TraceError
from polygen.frontend.functions import TABLE, bind
from polygen.frontend.names import closest
from polygen.frontend.symbolic import Symbolic


class _Term(Symbolic):
    """A caller's value inside a definition that `expand` runs."""

    __slots__ = ("primitive", "value")

    def __init__(self, value: Any, primitive: Callable[..., Any]) -> None:
        self.value, self.primitive = value, primitive

    def apply(self, function: str, *args: Any) -> Any:
        plain = [arg.value if isinstance(arg, _Term) else arg for arg in args]
        return _Term(expand(function, plain, self.primitive), self.primitive)


def expand(name: str, args: Sequence[Any], primitive: Callable[..., Any]) -> Any:
    """Runs a function of the table down to primitives over the caller's own values.

    Args:
        name: a key of `TABLE`.
        args: the caller's values (C expressions, IR nodes, numbers), as many as the function's
            parameters.
        primitive: called as ``primitive(name, *args)`` for each primitive, arguments being the
            caller's values or Python floats; what it returns stands for the result. A value may be
            used several times, so a caller that builds text should return the name of a temporary.

    Returns:
        What the last call of `primitive` returned.

    Raises:
        TraceError: the name is unknown or the number of arguments is wrong.
    """
    function = TABLE.get(name)
    if function is None:
        raise TraceError(f"unknown function {name!r}", nearest=closest(name))
    values = bind(function, args, {})
    if function.definition is None:
        return primitive(name, *values)
    result = function.definition(*(_Term(value, primitive) for value in values))
    return result.value


def applied(
    definition: Callable[..., tuple[Any, ...]], args: Sequence[Any], primitive: Callable[..., Any]
) -> tuple[Any, ...]:
    """Runs a definition of several results down to primitives, as `expand` runs one.

    Args:
        definition: of values with operators, over the functions of the vocabulary.
        args: the caller's values.
        primitive: as for `expand`.

    Returns:
        The caller's values of the results.
    """
    found = definition(*(_Term(value, primitive) for value in args))
    return tuple(one.value if isinstance(one, _Term) else one for one in found)
