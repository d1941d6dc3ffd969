"""Norms in front of a product: what their statistics make of rows leaves the sum.

    v[i,k] = (x[i,k] - m[i]) * r[i] * g[k] + b[k]        m, r: made of folds of row i of x
    y[i,j] = sum over k of v[i,k] * w[j,k]

    y[i,j] = r[i] * (sum over k of x[i,k]*g[k] * w[j,k])     a product of what no fold is in
           - m[i]*r[i] * (sum over k of g[k] * w[j,k])       folds of the other operand
           + sum over k of b[k] * w[j,k]

1. An operand that reads results of its own rows' folds is a sum of terms, each a coefficient of the
   row times an element in which no fold is: `_Expansion` goes through sums, differences, products,
   quotients by what is the same for a row, and rounding, which is then of the element alone. That
   is the side condition: what is not of this form, as `exp(x - m)`, is refused, with the statement.
2. One term has an element for every (i, k): it is multiplied. The others have one for every k: they
   are folds of the other operand. Where both operands are normed each is one term, as in a cosine.
3. A sum in which a result of another fold is, as that of (x - m)^2, is rewritten alike: into the
   sums of x^2 and of x, and the number of terms. A sum of squares stays above 0 by a maximum.

What it assumes of numbers: that reals are added and multiplied in another order, and that a factor
of a row may be applied behind a rounding. A variance is a difference of two sums then, which loses
what the square of the mean is larger than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polygen.errors import UnsupportedProgram
from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32, DType
from polygen.frontend.indexing import at_places, iterators_in
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Extent,
    Fold,
    Index,
    Pointwise,
    Program,
    Statement,
)
from polygen.rewrite.simplify import Fresh, each_once

_MOST_TERMS = 16  # of a sum


@dataclass(frozen=True, slots=True)
class _Term:
    """A coefficient of a row times an element; None: 1."""

    factor: Argument | None
    element: Argument | None


def norms_behind(program: Program) -> Program:
    """The program whose products multiply nothing that folds of their operands' rows are in.

    Raises:
        UnsupportedProgram: an operand depends on such a fold in another way; with the statement.
    """
    return _Rewriting(program).program() if _folded_operands(program) else program


def _folded_operands(program: Program) -> bool:
    """Whether a product multiplies what folds of arguments are in."""
    if not program.folds or not program.contractions:
        return False
    late: set[str] = set()
    summed: set[str] = set()
    for one in program.statements:
        names = {access.name for access in one.reads}
        if isinstance(one, Contraction):
            if names & late and not names & summed:
                return True
            summed.add(one.write.name)
        elif names & summed:
            summed.add(one.write.name)
        elif isinstance(one, Fold) or names & late:
            late.add(one.write.name)
    return False


class _Rewriting:
    """One walk over the statements; what is made stands where what it replaces did."""

    def __init__(self, program: Program) -> None:
        self.given, self.real = program, program.real
        self.fresh = Fresh(program.statements, (*program.tensors, *program.sizes))
        self.made: list[Statement] = []
        self.writers: dict[str, Statement] = {}
        self.late: set[str] = set()  # values in which a fold of arguments is
        self.summed: set[str] = set()  # values in which a product is

    def program(self) -> Program:
        """The rewritten program."""
        for statement in self.given.statements:
            names = {access.name for access in statement.reads}
            if isinstance(statement, Contraction) and names & self.late and not names & self.summed:
                self._product(statement)
            elif isinstance(statement, Fold) and names & self.late and not names & self.summed:
                self._fold(statement)
            else:
                self._keep(statement)
            if isinstance(statement, Contraction) or names & self.summed:
                self.summed.add(statement.write.name)
            elif isinstance(statement, Fold) or names & self.late:
                self.late.add(statement.write.name)
        outputs = [tensor.name for tensor in self.given.outputs]
        statements = needed(each_once(self.made, outputs), outputs)
        return replace(self.given, statements=tuple(statements))

    def _keep(self, statement: Statement) -> None:
        self.made.append(statement)
        self.writers[statement.write.name] = statement

    def is_late(self, argument: Argument) -> bool:
        """Whether a fold is in it."""
        return isinstance(argument, Access) and argument.name in self.late

    def pointwise(
        self, domain: Statement, function: str, args: Sequence[Argument], dtype: DType = F32
    ) -> Access:
        """A new value over the domain of a statement."""
        one = self.fresh.pointwise(domain, function, args, dtype)
        self._keep(one)
        if any(self.is_late(arg) for arg in args):
            self.late.add(one.write.name)
        return one.write

    # --- products --------------------------------------------------------------------------------
    def _product(self, product: Contraction) -> None:
        """A product of one operand that is normed, and one that is not."""
        normed = [a for a in product.reads if a.name in self.late]
        if any(isinstance(index, int) for a in normed for index in a.index):
            raise _refusal(self.given, product, "a part of what depends on folds of its rows")
        if len(normed) > 1:
            self._both(product)
            return
        (operand,) = normed
        other = product.rhs if operand is product.lhs else product.lhs
        writer = self.writers[operand.name]
        sums = product.summed
        own = tuple(it for it, _ in writer.domain)
        whole = isinstance(writer, Pointwise) and len(sums) == 1 and sums[0] in operand.index
        if not whole:  # which later passes refuse by name
            self._keep(product)
            return
        (k,) = sums
        at = dict(zip(own, operand.index, strict=True))
        summed = next(it for it in own if at[it] == k)
        terms = _Expansion(self, writer, summed).terms(operand.name)
        inner = [t for t in terms if t.element is not None and self._has_rows(t.element, summed)]
        if len(inner) != 1 or not isinstance(inner[0].element, Access):
            raise _refusal(self.given, product, f"{operand} has {len(inner)} terms with elements")
        read = self._at(inner[0].element, at, product)
        reads = (read, other) if operand is product.lhs else (other, read)
        total = Access(self.fresh("w"), product.write.index)
        self._keep(replace(product, write=total, lhs=reads[0], rhs=reads[1]))
        self.summed.add(total.name)
        domain = tuple(item for item in product.domain if item[0] in product.write.iterators)
        over = Pointwise(product.name, domain, product.write, "add", (), F32)  # its domain alone
        parts: list[Access] = []
        for term in terms:
            value = total
            if term is not inner[0]:
                value = self._of_other(term, summed, other, product)
            factor = term.factor
            if factor is not None:
                moved = self._moved(factor, at, over)
                value = self.pointwise(over, "mul", (value, moved))
            parts.append(value)
        while len(parts) > 1:
            parts[:2] = [self.pointwise(over, "add", tuple(parts[:2]))]
        self._keep(
            Pointwise(self.fresh("R"), domain, product.write, "cast", (parts[0],), self.real)
        )

    def _both(self, product: Contraction) -> None:
        """A product of operands that are divided by lengths of their rows, or the like, both."""
        sums = product.summed
        reads: list[Access] = []
        factors: list[tuple[Argument, Mapping[str, Index]]] = []
        for operand in product.reads:
            writer = self.writers[operand.name]
            at = dict(zip((it for it, _ in writer.domain), operand.index, strict=True))
            summed = [it for it, index in at.items() if index in sums]
            if not isinstance(writer, Pointwise) or len(sums) != 1 or len(summed) != 1:
                raise _refusal(self.given, product, "both operands depend on folds of their rows")
            terms = _Expansion(self, writer, summed[0]).terms(operand.name)
            element = terms[0].element
            if len(terms) > 1 or not isinstance(element, Access):
                what = f"{operand}, a sum of {len(terms)} terms beside another normed operand,"
                raise _refusal(self.given, product, what)
            reads.append(self._at(element, at, product))
            if terms[0].factor is not None:
                factors.append((terms[0].factor, at))
        total = Access(self.fresh("w"), product.write.index)
        self._keep(replace(product, write=total, lhs=reads[0], rhs=reads[1]))
        self.summed.add(total.name)
        domain = tuple(item for item in product.domain if item[0] in product.write.iterators)
        over = Pointwise(product.name, domain, product.write, "mul", (), F32)
        for factor, places in factors:
            total = self.pointwise(over, "mul", (total, self._moved(factor, places, over)))
        self._keep(Pointwise(self.fresh("R"), domain, product.write, "cast", (total,), self.real))

    def _has_rows(self, element: Argument, summed: str) -> bool:
        """Whether it differs from row to row."""
        return bool(self._along(element) - {summed})

    def _along(self, argument: Argument) -> set[str]:
        """The iterators that a value of the operand's domain depends on."""
        if not isinstance(argument, Access):
            return set(getattr(argument, "iterators", ()))
        writer = self.writers.get(argument.name)
        if not isinstance(writer, Pointwise):
            return set(argument.iterators)
        found: set[str] = set()
        for arg in writer.args:
            found |= self._along(arg)
        own = [it for it, _ in writer.domain]
        named = dict(zip(own, argument.index, strict=True))
        return {i for it in found if it in named for i in iterators_in(named[it])}

    def _of_other(self, term: _Term, summed: str, other: Access, product: Contraction) -> Access:
        """The sum of a term's elements, the same for all rows, times the other operand's."""
        (k,) = product.summed
        sizes = dict(product.domain)
        domain = tuple((it, sizes[it]) for it in dict.fromkeys(other.iterators))
        like = Pointwise(product.name, domain, other, "mul", (), F32)
        value: Argument = other
        if term.element is not None:
            element = self._moved(term.element, {summed: k}, like)
            value = self.pointwise(like, "mul", (element, other))
        kept = tuple(it for it, _ in domain if it != k)
        result = Access(self.fresh("w"), kept)
        self._keep(Fold(self.fresh("R"), domain, result, "sum", (value,), F32))
        self.late.add(result.name)
        return result

    def _moved(self, argument: Argument, at: Mapping[str, Index], over: Statement) -> Argument:
        """A value of a row, or of a place along k, computed over another domain.

        Args:
            argument: over the operand's iterators.
            at: what these are there.
            over: a statement of that domain.
        """
        if not isinstance(argument, Access):
            if isinstance(argument, (Constant, Extent)):
                return argument
            raise _refusal(self.given, over, f"the coordinate {argument} in a norm")
        writer = self.writers.get(argument.name)
        if not isinstance(writer, Pointwise):
            if not set(argument.iterators) <= set(at):
                raise _refusal(self.given, over, f"{argument} in a norm")
            return self._at(argument, at, over)
        places = zip(writer.domain, argument.index, self._at(argument, at, over).index, strict=True)
        inner = {it: there for (it, _), i, there in places if iterators_in(i) <= set(at)}
        args = tuple(self._moved(arg, inner, over) for arg in writer.args)
        return self.pointwise(over, writer.function, args, writer.dtype)

    def _at(self, access: Access, at: Mapping[str, Index], over: Statement) -> Access:
        """What is read, where iterators are at other places over the domain of a statement."""
        index = []
        for one in access.index:
            found = at_places(one, at, dict(over.domain))
            if found is None:
                raise _refusal(self.given, over, f"{access} at other places")
            index.append(found)
        return Access(access.name, tuple(index))

    # --- folds of folds --------------------------------------------------------------------------
    def _fold(self, fold: Fold) -> None:
        """A sum in which another fold's result is, as sums in which none is."""
        given, *more = fold.args
        plain = fold.function == "sum" and len(fold.folded) == 1 and not more
        if not plain or not isinstance(given, Access):
            raise _refusal(self.given, fold, f"the {fold.function} of {given}")
        (summed,) = fold.folded
        writer = self.writers[given.name]
        terms = _Expansion(self, writer, summed).terms(given.name)
        kept = tuple(item for item in fold.domain if item[0] in fold.write.iterators)
        over = Pointwise(fold.name, kept, fold.write, "add", (), F32)
        at: dict[str, Index] = {it: it for it, _ in kept}
        parts: list[Argument] = []
        for term in terms:
            value: Argument = Extent((dict(fold.domain)[summed],))
            if term.element is not None:
                result = Access(self.fresh("w"), fold.write.index)
                self._keep(replace(fold, name=self.fresh("R"), write=result, args=(term.element,)))
                self.late.add(result.name)
                value = result
            if term.factor is not None:
                value = self.pointwise(over, "mul", (value, self._moved(term.factor, at, over)))
            parts.append(value)
        while len(parts) > 1:
            parts[:2] = [self.pointwise(over, "add", tuple(parts[:2]))]
        last = "cast"
        if isinstance(writer, Pointwise) and (
            writer.function == "square"
            or (writer.function == "mul" and writer.args[0] == writer.args[1])
        ):
            last, parts = "maximum", [*parts, Constant(0.0)]
        self._keep(Pointwise(self.fresh("R"), kept, fold.write, last, tuple(parts), F32))


class _Expansion:
    """A value over (rows, k) as a sum of terms."""

    def __init__(self, of: _Rewriting, domain: Statement, summed: str) -> None:
        self.of, self.domain, self.summed = of, domain, summed

    def terms(self, value: str) -> list[_Term]:
        """The terms of a value at its own point.

        Raises:
            UnsupportedProgram: it is no such sum.
        """
        writer = self.of.writers[value]
        found = self._expanded(writer.write)
        if len(found) > _MOST_TERMS:
            raise _refusal(self.of.given, writer, f"{value} has {len(found)} terms")
        return found

    def _expanded(self, argument: Argument) -> list[_Term]:
        if not self.of.is_late(argument):
            return [_Term(None, argument)]
        assert isinstance(argument, Access)
        if self.summed not in self.of._along(argument):
            return [_Term(argument, None)]
        writer = self.of.writers[argument.name]
        own = tuple(it for it, _ in writer.domain)
        if not isinstance(writer, Pointwise) or argument.index != own:
            raise _refusal(self.of.given, writer, f"{argument}, of another row,")
        parts = [self._expanded(arg) for arg in writer.args if writer.function in _LINEAR]
        if writer.function == "cast":
            return [replace(t, element=self._cast(t.element, writer.dtype)) for t in parts[0]]
        if writer.function == "neg":
            return [self._times(_Term(Constant(-1.0), None), t) for t in parts[0]]
        if writer.function == "add":
            return [t for t in (*parts[0], *parts[1]) if t != _Term(None, Constant(0.0))]
        if writer.function == "sub":
            return [*parts[0], *(self._times(_Term(Constant(-1.0), None), t) for t in parts[1])]
        if writer.function == "square":
            return [self._times(one, other) for one in parts[0] for other in parts[0]]
        if writer.function == "mul":
            return [self._times(one, other) for one in parts[0] for other in parts[1]]
        if writer.function == "div" and len(parts[1]) == 1:
            under = parts[1][0]
            if under.element is None or not self.of.is_late(writer.args[1]):
                return [self._over(t, under) for t in parts[0]]
        raise _refusal(self.of.given, writer, f"{writer.write} = {writer.function}(...)")

    def _times(self, one: _Term, other: _Term) -> _Term:
        return _Term(
            self._multiplied(one.factor, other.factor),
            self._multiplied(one.element, other.element),
        )

    def _multiplied(self, one: Argument | None, other: Argument | None) -> Argument | None:
        given = [a for a in (one, other) if a is not None and a != Constant(1.0)]
        if len(given) < 2:
            return given[0] if given else None
        return self.of.pointwise(self.domain, "mul", given)

    def _over(self, one: _Term, under: _Term) -> _Term:
        made = []
        for above, below in ((one.factor, under.factor), (one.element, under.element)):
            if below is None:
                made.append(above)
            else:
                whole = Constant(1.0) if above is None else above
                made.append(self.of.pointwise(self.domain, "div", (whole, below)))
        return _Term(*made)

    def _cast(self, element: Argument | None, dtype: DType) -> Argument | None:
        """A rounded element; what has the type already is as it is."""
        if element is None or not isinstance(element, Access):
            return element
        tensor = self.of.given.tensors.get(element.name)
        if (tensor is not None and tensor.dtype == dtype) or dtype == self.of.real == F32:
            return element
        return self.of.pointwise(self.domain, "cast", (element,), dtype)


_LINEAR = ("cast", "neg", "add", "sub", "mul", "square", "div")


def _refusal(program: Program, statement: Statement, what: str) -> UnsupportedProgram:
    return UnsupportedProgram(
        f"{what} is not moved behind a product",
        where=f"{program.name}, {statement.name}",
        why="a product's operand may depend on folds of its own rows by factors and terms that are "
        "the same for a row, which leave the sum",
        nearest="Compute the folds where the rows are computed, and pass them as arguments",
    )
