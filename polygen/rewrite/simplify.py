"""Small rewrites that make folds comparable: log-sum-exp in parts, equal statements once.

    logsumexp over j of x[i,j]   ->   m[i] = max over j of x[i,j]
                                      l[i] = sum over j of exp(x[i,j] - m[i])
                                      m[i] + log(l[i])

It holds for whatever stands for m: exp(m) leaves the sum and comes back as a term.

A value that is the same for all keys of a row, as ``1 + l[i]`` in ``x[i,j] / (1 + l[i])``, is one
of the row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from polygen.frontend.dtypes import F32, DType
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Fold,
    Pointwise,
    Statement,
)


class Fresh:
    """Names that no statement and no value has."""

    def __init__(self, statements: Sequence[Statement], taken: Sequence[str] = ()) -> None:
        self._taken = {name for s in statements for name in (s.name, s.write.name)} | set(taken)

    def __call__(self, letter: str) -> str:
        """A letter and the least number that make a new name."""
        number = 0
        while f"{letter}{number}" in self._taken:
            number += 1
        self._taken.add(f"{letter}{number}")
        return f"{letter}{number}"

    def pointwise(
        self, like: Statement, function: str, args: Sequence[Argument], dtype: DType = F32
    ) -> Pointwise:
        """A statement over the domain of another, with a value of its own at each point."""
        own = tuple(iterator for iterator, _ in like.domain)
        write = Access(self("w"), own)
        return Pointwise(self("R"), like.domain, write, function, tuple(args), dtype)


def log_sums_in_parts(
    statements: Sequence[Statement], fresh: Fresh, whole: Collection[str]
) -> tuple[list[Statement], int]:
    """Every log-sum-exp as a maximum and a sum, but for those called `whole`; and how many."""
    found: list[Statement] = []
    count = 0
    for one in statements:
        if not isinstance(one, Fold) or one.function != "logsumexp" or one.write.name in whole:
            found.append(one)
            continue
        count += 1
        largest = replace(
            one, name=fresh("R"), write=replace(one.write, name=fresh("w")), function="max",
            args=one.args[:1],
        )  # fmt: skip
        less = fresh.pointwise(one, "sub", (one.args[0], largest.write))
        raised = fresh.pointwise(one, "exp", (less.write,))
        total = replace(
            one, name=fresh("R"), write=replace(one.write, name=fresh("w")), function="sum",
            args=(raised.write,),
        )  # fmt: skip
        kept = tuple(item for item in one.domain if item[0] in one.write.iterators)
        log = Pointwise(
            fresh("R"), kept, replace(one.write, name=fresh("w")), "log", (total.write,), F32
        )
        last = Pointwise(one.name, kept, one.write, "add", (largest.write, log.write), one.dtype)
        found += [largest, less, raised, total, log, last]
    return found, count


def each_once(statements: Sequence[Statement], outputs: Sequence[str]) -> list[Statement]:
    """Equal statements as one, but for those that write outputs."""
    known: dict[tuple[object, ...], str] = {}
    renamed: dict[str, str] = {}
    found: list[Statement] = []
    for given in statements:
        one = _reading(given, renamed)
        if not isinstance(one, Contraction) and one.write.name not in outputs:
            key = (type(one), one.domain, one.write.index, one.function, one.args, one.dtype)
            earlier = known.setdefault(key, one.write.name)
            if earlier != one.write.name:
                renamed[one.write.name] = earlier
                continue
        found.append(one)
    return found


def alike_in_rows(
    statements: Sequence[Statement], outputs: Sequence[str], rank: int
) -> tuple[list[Statement], set[str]]:
    """Values of pointwise work that are the same for all keys of a row, as values of the row.

    Which ones they are is returned beside the statements.

    Args:
        statements: of a program.
        outputs: what stays as it is.
        rank: axes of what has a row and a key, the last one.
    """
    others = {a.name for s in statements if not isinstance(s, Pointwise) for a in s.reads}
    kept = {*others, *outputs}
    rows: set[str] = set()
    found: list[Statement] = []
    for one in statements:
        if not isinstance(one, Pointwise):
            found.append(one)
            continue
        args = tuple(
            replace(arg, index=arg.index[:-1])
            if isinstance(arg, Access) and arg.name in rows
            else arg
            for arg in one.args
        )
        made, own = replace(one, args=args), one.write.index
        read = {iterator for arg in args for iterator in _iterators(arg)}
        placed = any(isinstance(arg, Coordinate) for arg in args)  # which rows do not have
        free = one.write.name not in kept and not placed
        if len(own) == rank and free and own[-1] not in read and read:
            rows.add(one.write.name)
            domain = tuple(item for item in one.domain if item[0] != own[-1])
            made = replace(made, domain=domain, write=replace(one.write, index=own[:-1]))
        found.append(made)
    return found, rows


def _iterators(arg: Argument) -> tuple[str, ...]:
    """The iterators that an argument depends on."""
    return () if isinstance(arg, Constant) else arg.iterators


def _reading(one: Statement, renamed: dict[str, str]) -> Statement:
    """A statement that reads values by other names."""

    def argument(arg: Argument) -> Argument:
        if isinstance(arg, Access):
            return replace(arg, name=renamed.get(arg.name, arg.name))
        return arg

    if isinstance(one, Contraction):
        lhs, rhs = (replace(a, name=renamed.get(a.name, a.name)) for a in one.reads)
        return replace(one, lhs=lhs, rhs=rhs)
    return replace(one, args=tuple(map(argument, one.args)))


def sums_as_values(
    statements: list[Statement], product: Contraction, operand: str, fresh: Fresh
) -> list[Statement]:
    """The program with a copy of a product's sums, where they are folded or multiplied themselves.

    Args:
        statements: of a chain.
        product: its first product.
        operand: what the second one reads.
        fresh: names.
    """
    name = product.write.name
    folded = [s for s in statements if isinstance(s, Fold) and _reads(s.args[0], name)]
    if not folded and operand != name:
        return statements
    first = next(s for s in statements if s.write.name == name)
    own = first.write.iterators
    at = tuple(item for item in first.domain if item[0] in own)
    copy = Pointwise(fresh("R"), at, Access(fresh("w"), own), "cast", (first.write,), F32)
    renamed = {name: copy.write.name}
    found: list[Statement] = []
    for one in statements:
        found.append(_reading(one, renamed))
        if one.write.name == name:
            found.append(copy)
    return found


def arguments_as_values(
    statements: Sequence[Statement], arguments: Collection[str], keys: Dim, fresh: Fresh
) -> list[Statement]:
    """The statements with a value for elements of arguments that are folded as they are, over keys.

    Args:
        statements: of a chain.
        arguments: by name.
        keys: how many there are.
        fresh: names.
    """
    found: list[Statement] = []
    for one in statements:
        if (
            isinstance(one, Fold)
            and [dict(one.domain)[it] for it in one.folded] == [keys]
            and all(isinstance(arg, Access) and arg.name in arguments for arg in one.args)
        ):
            copies = [fresh.pointwise(one, "cast", (arg,)) for arg in one.args]
            one = replace(one, args=tuple(copy.write for copy in copies))
            found += copies
        found.append(one)
    return found


def _reads(arg: Argument, name: str) -> bool:
    return isinstance(arg, Access) and arg.name == name
