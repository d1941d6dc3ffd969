"""Folds that no kernel has beside its products, behind products of zeros of their own.

    F0  v0[j] = sum over i of x[i,j]                S   w2[i,j] += w0[i,k] * w1[k,j]   0 * 0, k < 2
                                              ->    P   w3[i,j] = add(x[i,j], w2[i,j])
    S1  y[i,j] += (x[i,k] - v0[k] / M) * u[k,j]     F0  v0[j] = sum over i of w3[i,j]

A kernel folds what is behind its products, as many rows and columns as there are, on all
multiprocessors. So a fold with a product in front of it is a kernel's own, and a cut
(`polygen.rewrite.cuts`) has it before what reads it. Such are

1. folds of arguments that an operand reads along the axis that its product sums, or everywhere: no
   row of it is known before all of them are;
2. folds along rows of what is folded behind products, a row each: it is known when all tiles are;
3. folds that those are made of; and where no kernels are made so, every fold of arguments.

So does pointwise work on results of folds beside arguments, `np.max(v, 1) * t`: what finishes folds
reads results alone.

Nothing is rounded and nothing lost by it: an element plus 0 is that element, infinities and NaN
too; -0 becomes 0. Folds over the same axes share a product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from polygen.frontend.dtypes import BOOL, F16, F32, DType
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
from polygen.rewrite.check_alone import check_alone
from polygen.rewrite.exponentials import with_exponentials
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_SUMMED = ("k", "z")  # names of the axis that products of zeros sum
_TERMS = 2  # along it: an axis of one is none; with others behind more, so that none are the same
Domain = tuple[tuple[str, Dim], ...]


def with_products(
    program: Program, *, every: bool = False, apart: bool = False, also: Collection[str] = ()
) -> Program | None:
    """A program with products of zeros in front of such folds.

    Args:
        program: that no single kernel runs.
        every: whether all folds of arguments have one.
        apart: whether folds that others are behind have others than these, so that they can be of
            another kernel.
        also: folds that have one besides, by name.

    Returns:
        The program; None if it has no such fold.

    Raises:
        VerifyError: it is another program than that.
    """
    values = Values(program.statements)
    chosen = _chosen(program, values, every=every) | {*also}
    beside = _beside_arguments(program, values, chosen)
    if not chosen and not beside:
        return None
    if not apart:  # what is made of others' results is of the same pass
        program = with_exponentials(program, chosen)
        values = Values(program.statements)
    made = _Made(program)
    statements: list[Statement] = []
    for one in program.statements:
        depth = len(values.behind(one.write.name) & chosen) if apart else 1
        if isinstance(one, Fold) and one.write.name in chosen:
            statements += made.behind_a_product(one, depth)
        elif isinstance(one, Pointwise) and one.write.name in beside:
            statements += made.beside_a_product(one, beside[one.write.name])
        else:
            statements.append(one)
    outputs = [tensor.name for tensor in program.outputs]
    found = replace(program, statements=tuple(_over_own_axes(statements, chosen, outputs)))
    check_alone(program, found)
    return found


def walks_behind_zeros(program: Program) -> bool:
    """Whether nothing but zeros is multiplied, and elements use results of folds of theirs: they
    would be gone through once more by a launch that has whole rows of them, or columns.
    """
    values = Values(program.statements)
    folds = {one.write.name for one in program.folds}
    return multiplies_zeros(program) and any(
        values.behind(access.name) & folds
        and {*access.iterators} < {name for name, extent in one.domain if extent != 1}
        for one in program.pointwise
        for access in one.reads
    )


def folds_behind(program: Program) -> set[str]:
    """The folds of numbers that are behind products, by name."""
    values = Values(program.statements)
    products = {product.write.name for product in program.contractions}
    return {name for name in _of_numbers(program) if values.behind(name) & products}


def folds_beside(program: Program) -> set[str]:
    """The folds of numbers that elements behind products use, and operands do not, by name."""
    values = Values(program.statements)
    products = {product.write.name for product in program.contractions}
    before = {of for p in program.contractions for a in p.reads for of in values.behind(a.name)}
    used = {
        of
        for name in values.writers
        if values.behind(name) & products
        for of in values.behind(name)
    }
    late = {name for name in used if values.behind(name) & products}
    return _of_numbers(program) & (used - before - late)


def multiplies_zeros(program: Program) -> bool:
    """Whether nothing but zeros is multiplied."""
    values = Values(program.statements)
    operands = [values.writers.get(a.name) for one in program.contractions for a in one.reads]
    return all(isinstance(one, Pointwise) and one.args == (Constant(0.0),) for one in operands)


def _chosen(program: Program, values: Values, *, every: bool) -> set[str]:
    """The folds that get a product, by name."""
    products = {product.write.name for product in program.contractions}
    late = {name for name in values.writers if values.behind(name) & products}
    wanted = values.writers if every else _of_other_rows(program, values)
    early = {of for name in wanted for of in values.behind(name)} - late
    found = early | _of_results(program, values, late)
    return found & _of_numbers(program)


def _of_numbers(program: Program) -> set[str]:
    """The folds of numbers, of which there may be more than one, by name."""
    truths = {s.write.name for s in program.statements if s.dtype == BOOL}
    return {
        one.write.name
        for one in program.folds
        for value in one.args[:1]
        if isinstance(value, Access) and value.name not in truths
        if any(extent != 1 for _, extent in one.domain)
    }


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


def _beside_arguments(program: Program, values: Values, chosen: Collection[str]) -> dict[str, str]:
    """Pointwise work on results of folds behind products, and on arguments, that is no operand; and
    which result.

    Args:
        program: the whole.
        values: its own.
        chosen: folds that get a product.
    """
    products = {product.write.name for product in program.contractions}
    behind = {*products, *chosen}
    operands = {of for p in program.contractions for a in p.reads for of in values.behind(a.name)}
    folded: set[str] = set()  # results, and what is made of them alone
    found: dict[str, str] = {}
    for one in program.statements:
        late = [a.name for a in one.reads if values.behind(a.name) & behind]
        if isinstance(one, Fold) and values.behind(one.write.name) & behind:
            folded.add(one.write.name)
        elif isinstance(one, Pointwise) and late and {*late} <= folded:
            if len(late) == len(one.reads):
                folded.add(one.write.name)
            elif one.write.name not in operands:
                numbers = [name for name in late if values.writers[name].dtype != BOOL]
                found |= {one.write.name: numbers[0]} if numbers else {}
    return found


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
    statements: Sequence[Statement], folds: Collection[str], outputs: Collection[str]
) -> list[Statement]:
    """Pointwise work on such folds over the axes that they have, and not over those of its readers:
    so it is behind the fold, and not in front of another product.

    Args:
        statements: of a program.
        folds: which.
        outputs: what keeps its axes.
    """
    kept: dict[str, tuple[int, ...]] = {}  # of values, which axes they have
    own = set(folds)
    found: list[Statement] = []
    for given in statements:
        one = _reading(given, kept)
        if isinstance(one, Pointwise) and one.write.name not in outputs and _is_of(one, own):
            axes = {iterator for access in one.reads for iterator in access.iterators}
            at = tuple(n for n, index in enumerate(one.write.index) if index in axes)
            write = replace(one.write, index=tuple(one.write.index[n] for n in at))
            domain = tuple(pair for pair in one.domain if pair[0] in axes)
            one = replace(one, domain=domain, write=write)
            kept[write.name] = at
            own.add(write.name)
        found.append(one)
    return found


def _is_of(one: Pointwise, values: Collection[str]) -> bool:
    """Whether a statement is of some values and of numbers alone, each element at its place."""
    read = [arg for arg in one.args if not isinstance(arg, Constant | Extent)]
    plain = all(isinstance(index, str) for index in one.write.index)
    return plain and bool(read) and all(isinstance(a, Access) and a.name in values for a in read)


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


class _Made:
    """Makes the statements in front of folds.

    Args:
        program: they are of.
    """

    def __init__(self, program: Program) -> None:
        self._real = program.real
        self._fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self._products: dict[tuple[Domain, int], Access] = {}
        self._sums: dict[tuple[Access, Domain, int], Access] = {}

    def behind_a_product(self, one: Fold, depth: int) -> list[Statement]:
        """A fold of what it is of, plus nothing.

        Args:
            one: the fold.
            depth: how many such folds are behind it.
        """
        value = one.args[0]
        assert isinstance(value, Access)
        needed = {*one.write.iterators, *value.iterators}
        domain = tuple(pair for pair in one.domain if pair[1] != 1 or pair[0] in needed)
        made, plus = self._plus_nothing(value, domain, depth)
        return [*made, replace(one, domain=domain, args=(plus, *one.args[1:]))]

    def beside_a_product(self, one: Pointwise, name: str) -> list[Statement]:
        """Pointwise work that reads a result plus nothing.

        Args:
            one: the statement.
            name: of the result.
        """
        if not one.domain:
            return [one]
        value = next(access for access in one.reads if access.name == name)
        made, plus = self._plus_nothing(value, one.domain, 1)
        args = tuple(plus if arg == value else arg for arg in one.args)
        return [*made, replace(one, args=args)]

    def _plus_nothing(
        self, value: Access, domain: Domain, depth: int
    ) -> tuple[list[Statement], Access]:
        """What a value plus a product of zeros over a domain takes, and that sum."""
        if (value, domain, depth) in self._sums:
            return [], self._sums[value, domain, depth]
        made: list[Statement] = []
        if (domain, depth) not in self._products:
            made += self._product(domain, _TERMS - 1 + depth)
            self._products[domain, depth] = made[-1].write
        nothing = self._products[domain, depth]
        term = Access(self._fresh("w"), nothing.index)
        plus = Pointwise(self._fresh("P"), domain, term, "add", (value, nothing), F32)
        self._sums[value, domain, depth] = term
        return [*made, plus], term

    def _product(self, domain: Domain, terms: int) -> list[Statement]:
        """A product of zeros: the rows of one operand are all axes but the last."""
        names = [iterator for iterator, _ in domain]
        k = next(name for name in _SUMMED if name not in names)
        summed: Domain = ((k, terms),)
        left, right = (*domain[:-1], *summed), (*summed, domain[-1])
        dtype = F16 if self._real == F32 else self._real
        zeros = [self._zeros(left, dtype), self._zeros(right, dtype)]
        write = Access(self._fresh("w"), tuple(names))
        lhs, rhs = (one.write for one in zeros)
        product = Contraction(self._fresh("S"), (*domain, *summed), write, lhs, rhs, self._real)
        return [*zeros, product]

    def _zeros(self, domain: Domain, dtype: DType) -> Pointwise:
        write = Access(self._fresh("w"), tuple(iterator for iterator, _ in domain))
        return Pointwise(self._fresh("P"), domain, write, "cast", (Constant(0.0),), dtype)
