"""Pointwise statements gone through backwards: what reaches each product and each argument.

1. Outputs' gradients arrive; statements are visited from the last to the first, and each passes on
   what the rules of `derivatives` say, as new statements over the same domain.
2. A function without rules is gone through by its definition, one level at a time.
3. What arrives at one place from several statements is added up.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from polygen.adapters.derivatives import DERIVATIVES, defined, has_rules
from polygen.errors import GradientError
from polygen.frontend.dtypes import BOOL
from polygen.frontend.functions import TABLE
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Coordinate,
    Dim,
    Index,
    Pointwise,
    Program,
    Statement,
)
from polygen.frontend.symbolic import Symbolic

_COMMUTATIVE = ("add", "mul", "minimum", "maximum")


class Value(Symbolic):
    """A value of the derivative, for rules to compute with."""

    __slots__ = ("access", "writer")

    def __init__(self, writer: Writer, access: Access) -> None:
        self.writer, self.access = writer, access

    def apply(self, function: str, *args: Any) -> Any:
        """The value of a function of the vocabulary."""
        return self.writer.apply(function, args)


class _Place(Symbolic):
    """A coordinate, which nothing is a gradient of."""

    __slots__ = ("coordinate", "writer")

    def __init__(self, writer: Writer, coordinate: Coordinate) -> None:
        self.writer, self.coordinate = writer, coordinate

    def apply(self, function: str, *args: Any) -> Any:
        """The value of a function of the vocabulary."""
        return self.writer.apply(function, args)


def _plain(value: Any) -> Argument:
    if isinstance(value, Value):
        return value.access
    return value.coordinate if isinstance(value, _Place) else Constant(float(value))


@dataclass(slots=True)
class Writer:
    """The statements of a program, and those of its derivative, over one domain."""

    domain: tuple[tuple[str, Dim], ...]
    statements: list[Statement]
    first: int  # the number of the first statement that is added
    prefix: str
    cotangents: tuple[str, ...]
    known: dict[tuple[Any, ...], Access] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Writer:
        """The statements of a program, without those that write its outputs."""
        outputs = {tensor.name for tensor in program.outputs}
        prefix, letter = free_prefix("r", program), free_prefix("g", program)
        return cls(
            program.pointwise[0].domain,
            [s for s in program.statements if s.write.name not in outputs],
            len(program.statements),
            prefix,
            tuple(f"{letter}{n}" for n in range(len(program.outputs))),
        )

    @property
    def here(self) -> tuple[Index, ...]:
        """The point of the domain at which everything is computed."""
        return tuple(iterator for iterator, _ in self.domain)

    def value(self, access: Access) -> Value:
        """What an access reads, for rules to compute with."""
        return Value(self, access)

    def argument(self, argument: Argument) -> Any:
        """An argument of a statement, for rules to compute with."""
        if isinstance(argument, Constant):
            return argument.value
        if isinstance(argument, Coordinate):
            return _Place(self, argument)
        assert isinstance(argument, Access)  # extents stand beside folds, which are refused
        return self.value(argument)

    def apply(self, function: str, args: Sequence[Any]) -> Any:
        """The value of a function of the vocabulary, after writing the statement it needs."""
        entry = TABLE[function]
        if entry.inline:
            return defined(function)(*args)
        plain = [_plain(arg) for arg in args]
        if function in _COMMUTATIVE and isinstance(plain[0], Constant):
            plain.reverse()
        # repr tells 0.0 from -0.0, which compare equal.
        key = (function, *map(repr, plain))
        if key not in self.known:
            number = self.first + len(self.statements)
            write = Access(f"{self.prefix}{number}", self.here)
            self.statements.append(
                Pointwise(f"P{number}", self.domain, write, function, tuple(plain), entry.result)
            )
            self.known[key] = write
        return self.value(self.known[key])

    def elementwise(
        self, reached: dict[Any, tuple[Any, Value]], wanted: frozenset[str]
    ) -> Iterator[tuple[str, tuple[Index, ...], Value]]:
        """What reaches arguments that are read element by element: name, index and value."""
        for key, (index, value) in reached.items():
            if isinstance(key, tuple) and key[0] in wanted:
                yield key[0], index, value


def free_prefix(letter: str, program: Program) -> str:
    """`letter`, with underscores until no name of the program begins with it."""
    names = [*program.tensors, *program.sizes, *(s.write.name for s in program.statements)]
    names += [iterator for statement in program.statements for iterator, _ in statement.domain]
    while any(name.startswith(letter) for name in names):
        letter += "_"
    return letter


def backwards(
    program: Program, wanted: frozenset[str], writer: Writer
) -> dict[Any, tuple[Any, Value]]:
    """What reaches each product, by its name, and each argument, by its name and index.

    Each with the index at which it is read, in terms of the domain's iterators.
    """
    active = _active(program, wanted)
    reached: dict[Any, tuple[Any, Value]] = {}
    names = {tensor.name: n for n, tensor in enumerate(program.outputs)}

    def arrive(access: Access, part: Any) -> None:
        if not isinstance(part, Value):  # a number: 0
            return
        whole_value = access.name not in program.tensors
        key: Any = access.name if whole_value else (access.name, access.index)
        before = reached.get(key)
        if before is not None and before[0] != access.index:
            raise GradientError(
                f"{access.name} is read in two ways",
                where=program.name,
                why=f"as {access}, and at [{', '.join(map(str, before[0]))}]",
                nearest="Compute what is transposed by another function",
            )
        value = part if before is None else before[1] + part
        reached[key] = (access.index, value)

    for statement in reversed(program.pointwise):
        name = statement.write.name
        if name in names:
            gradient = writer.value(Access(writer.cotangents[names[name]], statement.write.index))
        elif name in reached:
            gradient = reached.pop(name)[1]
        else:
            continue
        for access, part in _pulled(statement, gradient, active, writer):
            arrive(access, part)
    for product in program.contractions:
        if product.write.name in reached:
            _require_turned(program, reached[product.write.name][0], writer)
    return reached


def _require_turned(program: Program, index: tuple[Index, ...], writer: Writer) -> None:
    if sorted(map(str, index)) != sorted(map(str, writer.here)):
        raise GradientError(
            f"a product is read at [{', '.join(map(str, index))}]",
            where=program.name,
            why="the output has other axes than the product",
            nearest="Give both the same axes",
        )


def _active(program: Program, wanted: frozenset[str]) -> set[str]:
    """The values and arguments through which the output depends on what is wanted."""
    active = set(wanted)
    for statement in program.statements:
        if any(access.name in active for access in statement.reads) and statement.dtype != BOOL:
            active.add(statement.write.name)
    return active


def _pulled(
    statement: Pointwise, gradient: Value, active: set[str], writer: Writer
) -> Iterator[tuple[Access, Any]]:
    """What a statement's arguments get of its result's gradient."""
    args = [writer.argument(arg) for arg in statement.args]
    result = writer.value(statement.write)
    for access, part in _pulled_back(statement.function, gradient, result, args, writer):
        if access.name in active:
            yield access, part()


def _pulled_back(
    function: str, gradient: Value, result: Any, args: list[Any], writer: Writer
) -> Iterator[tuple[Access, Any]]:
    if has_rules(function):
        for arg, rule in zip(args, DERIVATIVES[function], strict=True):
            if isinstance(arg, Value) and rule is not None:
                yield arg.access, functools.partial(rule, gradient, result, *args)
        return
    yield from _through(function, gradient, args, writer)


def _through(
    function: str, gradient: Value, args: list[Any], writer: Writer
) -> Iterator[tuple[Access, Any]]:
    """The definition of a function gone through backwards."""
    calls: list[tuple[str, list[Any], Access]] = []

    class Recorded(Value):
        __slots__ = ()

        def apply(self, name: str, *given: Any) -> Any:
            made = writer.apply(name, given)
            calls.append((name, list(given), made.access))
            return Recorded(writer, made.access)

    leaves = [Recorded(writer, a.access) if isinstance(a, Value) else a for a in args]
    result = defined(function)(*leaves)
    reached: dict[Access, Any] = {result.access: gradient}
    for name, given, made in reversed(calls):
        value = reached.pop(made, None)
        if value is None:
            continue
        plain = [writer.value(a.access) if isinstance(a, Value) else a for a in given]
        for access, part in _pulled_back(name, value, writer.value(made), plain, writer):
            more = part()
            if isinstance(more, Value):
                reached[access] = reached[access] + more if access in reached else more
    for access in dict.fromkeys(arg.access for arg in args if isinstance(arg, Value)):
        if access in reached:
            yield access, functools.partial(reached.get, access)
