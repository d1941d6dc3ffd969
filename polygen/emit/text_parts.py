"""Statements and values of texts that were read, put together: each a function of a `State`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polygen.emit.run_text import Called, Constant, Handler, State, choose, load
from polygen.emit.text_values import BINARY, Part, Place, Pointer, Register, SharedArray, cast
from polygen.errors import UndecidedText, VerifyError

Value = Callable[[State], Any]
Statement = Callable[[State], None]


def block(statements: tuple[Statement, ...]) -> Statement:
    """One statement behind the other."""
    if len(statements) == 1:
        return statements[0]

    def run(state: State) -> None:
        for one in statements:
            if state.nobody:
                return
            one(state)

    return run


def scope(run: Statement) -> Statement:
    """What is declared inside is known inside."""

    def inside(state: State) -> None:
        before = len(state.scope)
        run(state)
        state.forget(before)

    return inside


def index(state: State, of: Any, at: Any) -> Any:
    """An element of an array, or of what a pointer leads to.

    Raises:
        VerifyError: the array has none with this number.
    """
    if not isinstance(of, Register | SharedArray):
        return Place(of if isinstance(of, Pointer) else load(state, of), at)
    if of.dims and np.any(((np.asarray(at) < 0) | (np.asarray(at) >= of.dims[0])) & state.mask):
        raise VerifyError(f"an array of {of.dims[0]} is read or written behind its end")
    if isinstance(of, SharedArray):
        inside = of.dims[1:]
        first = of.address + at * math.prod(inside)
        return SharedArray(first, inside, of.kind) if inside else Place(first, 0)
    return Register(of.base, of.at + at * math.prod(of.dims[1:]), of.dims[1:], of.kind)


def function(parameters: tuple[tuple[str, bool], ...], body: Statement) -> Handler:
    """A function that a text declares; what else it knows is what its caller knows.

    Args:
        parameters: names, and whether what they are called with is changed.
        body: what it does.
    """

    def run(called: Called) -> Any:
        state, first = called.state, len(called.state.scope)
        before, gone = state.mask, dict(state.gone)
        for (name, _), value in zip(parameters, called.values, strict=True):
            state.declared(name, value)
        state.declared("return", 0)
        state.gone["return"] = False
        body(state)
        found = [state.names[name] for name, _ in parameters]
        result = state.names["return"]
        state.forget(first)
        state.mask, state.gone = before, gone
        for (_, changed), place, value in zip(parameters, called.arguments, found, strict=True):
            if changed:
                place.store(value)
        return result

    return run


def two(sign: str, left: Value, right: Value) -> Value:
    """What an operator makes of two values."""
    if sign in ("&&", "||"):  # the second is computed where the first leaves it open
        ways = (right, Constant(False)) if sign == "&&" else (Constant(True), right)
        return functools.partial(choose, left, *ways)
    operation, taken = BINARY[sign], _taken if sign in "+-" else load
    if isinstance(right, Constant):
        number = right.value
        if isinstance(left, Constant):
            return Constant(operation(left.value, number))
        return lambda state: operation(taken(state, left(state)), number)
    return lambda state: operation(taken(state, left(state)), load(state, right(state)))


def cast_of(kind: str, inner: Value) -> Value:
    """A value as one of another type."""
    return lambda state: cast(kind, _taken(state, inner(state)))


def _taken(state: State, value: Any) -> Any:
    """What is computed with: pointers stay what they are."""
    return value if isinstance(value, Pointer) else load(state, value)


def element(of: Value, at: Value) -> Value:
    """One of the elements of an array, or of what a pointer leads to."""
    return lambda state: index(state, of(state), load(state, at(state)))


def part(found: Value, name: str) -> Value:
    """One of the parts of a value."""

    def run(state: State) -> Any:
        value = found(state)
        if isinstance(value, Register) and name == "of":
            return value  # the elements of a word
        if not isinstance(value, Part):
            raise UndecidedText(f"nothing has a {name} here", where=name)
        return value.parts[name]

    return run
