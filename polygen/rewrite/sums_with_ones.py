"""Sums that no kernel has beside its products, as products with ones.

    F0  v0[j] = sum over i of x[i,j]           P   w0[i] = cast(1)
                                         ->    S   v0[i] += w0[k] * x[k,i]
    S1  y[i,j] += (x[i,k] - v0[k] / M) * u[k,j]

A product is a kernel's own, so that a cut (`polygen.rewrite.cuts`) has what it sums in front of
what reads it. Such are

1. sums of arguments that an operand reads along the axis that its product sums, or everywhere: no
   row of it is known before all of them are;
2. sums along rows of what is folded behind products, a row each: it is known when all tiles are;
3. sums that those are made of; and where no kernels are made so, every sum of arguments.

Squares of deviations are sums of squares of differences from the mean, which is such a sum. What is
summed keeps its digits: an argument of 16 bits is multiplied as it is, anything else as f32, or as
f64 where the program has sums of f64.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from polygen.frontend.dtypes import F32
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Dim,
    Extent,
    Fold,
    Pointwise,
    Program,
    Statement,
)
from polygen.rewrite.simplify import Fresh, each_once, reading
from polygen.rewrite.values import Values

_AS_IT_IS = ("bf16", "f16")  # types of arguments whose products with 1 lose nothing
_DEVIATIONS = ("deviations", (0.0, 1.0, 0.0))  # and what elements contribute besides their value


def with_ones(program: Program, *, every: bool = False) -> Program | None:
    """A program with products in the place of such sums.

    Args:
        program: that no single kernel runs.
        every: whether all sums of arguments are.

    Returns:
        The program; None if it has no such sum.
    """
    values = Values(program.statements)
    chosen = _chosen(program, values, every=every)
    if not chosen:
        return None
    summed = _Summed(program)
    statements: list[Statement] = []
    for given in program.statements:
        one = reading(given, summed.same)
        if isinstance(one, Fold) and one.write.name in chosen:
            statements += summed.statements(one)
        else:
            statements.append(one)
    outputs = [tensor.name for tensor in program.outputs]
    statements = each_once(_over_own_axes(statements, chosen, outputs), outputs)
    return replace(program, statements=tuple(statements))


def _chosen(program: Program, values: Values, *, every: bool) -> set[str]:
    """The sums that become products, by name."""
    products = {product.write.name for product in program.contractions}
    late = {name for name in values.writers if values.behind(name) & products}
    wanted = values.writers if every else _of_other_rows(program, values)
    early = {of for name in wanted for of in values.behind(name)} - late
    found = early | _of_results(program, values, late)
    return {name for name in found if _is_sum(values.writers.get(name))}


def _of_other_rows(program: Program, values: Values) -> set[str]:
    """Folds that operands are made of and that are not of their own rows."""
    return {
        name
        for product in program.contractions
        for operand in product.reads
        for name, axes in _folds_behind(values, operand, {}, set())
        if not axes or axes & {*product.summed}
    }


def _of_results(program: Program, values: Values, late: Collection[str]) -> set[str]:
    """Folds along rows of what is folded behind products."""
    return {
        one.write.name
        for one in program.folds
        for access in one.reads
        for name, axes in _folds_behind(values, access, {}, set())
        if name in late and axes & {*one.folded}
    }


def _is_sum(one: Statement | None) -> bool:
    """Whether a statement is a sum, or one of squares of deviations."""
    if not isinstance(one, Fold) or one.dtype != F32:
        return False
    if one.function == "sum":
        return isinstance(one.args[0], Access)
    rest = tuple(arg.value if isinstance(arg, Constant) else None for arg in one.args[1:])
    return (one.function, rest) == _DEVIATIONS and isinstance(one.args[0], Access)


def _folds_behind(
    values: Values, access: Access, names: Mapping[str, str], seen: set[tuple[str, ...]]
) -> Iterator[tuple[str, set[str]]]:
    """The folds that a value is made of by pointwise work, and along which of the reader's
    iterators each differs.

    Args:
        values: of the program.
        access: the value.
        names: the reader's iterators, by those of the access, where they are others.
        seen: what has been looked at, by name and iterators.
    """
    writer = values.writers.get(access.name)
    along = tuple(names.get(it, it) for it in access.iterators)
    if writer is None or isinstance(writer, Contraction) or (access.name, *along) in seen:
        return
    seen.add((access.name, *along))
    if isinstance(writer, Fold):
        yield access.name, set(along)
        return
    plain = len(access.index) == len(writer.write.index) and all(
        isinstance(index, str) for index in writer.write.index
    )
    pairs = zip(writer.write.index, access.index, strict=False) if plain else ()
    inner = {str(own): names.get(at, at) for own, at in pairs if isinstance(at, str)}
    for read in writer.reads:
        yield from _folds_behind(values, read, inner, seen)


def _over_own_axes(
    statements: Sequence[Statement], sums: Collection[str], outputs: Collection[str]
) -> list[Statement]:
    """Pointwise work on such sums over the axes that they have, and not over those of its readers:
    so it is behind the product with ones, and not in front of another one.

    Args:
        statements: of a program.
        sums: which.
        outputs: what keeps its axes.
    """
    kept: dict[str, tuple[int, ...]] = {}  # of values, which axes they have
    own = set(sums)
    found: list[Statement] = []
    for given in statements:
        one = _reading(given, kept)
        read = (
            [arg for arg in one.args if not isinstance(arg, Constant | Extent)]
            if isinstance(one, Pointwise)
            else []
        )
        if (
            isinstance(one, Pointwise)
            and read
            and one.write.name not in outputs
            and all(isinstance(arg, Access) and arg.name in own for arg in read)
            and all(isinstance(index, str) for index in one.write.index)
        ):
            axes = {iterator for arg in read for iterator in arg.iterators}
            at = tuple(n for n, index in enumerate(one.write.index) if index in axes)
            write = replace(one.write, index=tuple(one.write.index[n] for n in at))
            domain = tuple(pair for pair in one.domain if pair[0] in axes)
            one = replace(one, domain=domain, write=write)
            kept[write.name] = at
            own.add(write.name)
        found.append(one)
    return found


def _reading(one: Statement, kept: Mapping[str, tuple[int, ...]]) -> Statement:
    """A statement that reads values with fewer axes."""

    def access(arg: Argument) -> Argument:
        if not isinstance(arg, Access) or arg.name not in kept:
            return arg
        return replace(arg, index=tuple(arg.index[at] for at in kept[arg.name]))

    if isinstance(one, Contraction):
        lhs, rhs = map(access, one.reads)
        assert isinstance(lhs, Access) and isinstance(rhs, Access)
        return replace(one, lhs=lhs, rhs=rhs)
    return replace(one, args=tuple(map(access, one.args)))


class _Summed:
    """Makes the statements that stand for sums.

    Args:
        program: they are of.

    Attributes:
        same: sums that have been made before, by another name.
    """

    def __init__(self, program: Program) -> None:
        self._program, self.same = program, dict[str, str]()
        self._fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self._known: dict[tuple[object, ...], str] = {}  # what has been summed

    def statements(self, one: Fold) -> list[Statement]:
        """A product with ones, and what its operands are."""
        (value, *_) = one.args
        assert isinstance(value, Access)
        if one.function == "sum":
            return self._sum(one, value)
        mean, made = self._mean(one, value)
        apart = self._pointwise(one, "sub", (value, mean))
        squared = self._pointwise(one, "mul", (apart.write, apart.write))
        return [*made, apart, squared, *self._sum(one, squared.write)]

    def _mean(self, one: Fold, value: Access) -> tuple[Access, list[Statement]]:
        """The mean of what is folded."""
        total = replace(one, write=replace(one.write, name=self._fresh("w")), function="sum")
        kept = tuple(pair for pair in one.domain if pair[0] in one.write.iterators)
        count = Extent(tuple(extent for it, extent in one.domain if it in one.folded))
        write = replace(one.write, name=self._fresh("w"))
        made = self._sum(total, value)
        mean = Pointwise(self._fresh("P"), kept, write, "div", (total.write, count), F32)
        return write, [*made, reading(mean, self.same)]

    def _pointwise(self, one: Fold, function: str, args: tuple[Argument, ...]) -> Pointwise:
        own = tuple(it for it, _ in one.domain)
        write = Access(self._fresh("w"), own)
        return Pointwise(self._fresh("P"), one.domain, write, function, args, F32)

    def _sum(self, one: Fold, value: Access) -> list[Statement]:
        """The product of what is summed with ones."""
        sizes = dict(one.domain)
        kept = tuple(pair for pair in one.domain if pair[0] in one.write.iterators)
        known = self._known.setdefault((one.domain, one.write.index, value), one.write.name)
        if known != one.write.name:
            self.same[one.write.name] = known
            return []
        folded = [it for it in one.folded if sizes[it] != 1 or it in value.iterators]
        made: list[Statement] = []
        real = self._program.real
        dtype = next((t.dtype for t in self._program.inputs if t.name == value.name), None)
        if dtype is None or dtype.name not in _AS_IT_IS or real != F32:
            dtype = real
            domain = tuple(pair for pair in one.domain if pair[0] in value.iterators)
            write = Access(self._fresh("w"), tuple(it for it, _ in domain))
            made.append(Pointwise(self._fresh("P"), domain, write, "cast", (value,), dtype))
            value = write
        over: tuple[tuple[str, Dim], ...] = tuple((it, sizes[it]) for it in folded)
        ones = Access(self._fresh("w"), tuple(it for it, _ in over))
        made.append(Pointwise(self._fresh("P"), over, ones, "cast", (Constant(1.0),), dtype))
        product = Contraction(
            self._fresh("S"), (*kept, *over), one.write, ones, value, real, exact=dtype == F32
        )
        return [*made, product]
