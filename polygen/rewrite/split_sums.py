"""A long sum as parts, which are added up behind them.

    S0  v0[i,j] += x[k,i] * y[k,j]              k < 1000000

    S0  w0[p,i,j] += x[4000*p + k,i] * y[4000*p + k,j]      p < 250, k < 4000
    F0  v0[j] = sum over p of w0[p,i,j]

Parts are matrices of a batch, so that as many blocks as there are parts share what few blocks would
sum one after another. What of a sum no part has, fewer terms than there are parts, is a product of
its own. That reals are added in another order is all that this assumes of numbers.

Pointwise work in front of the product is of the parts' elements. Of two vectors the elements'
products are folded, as nothing is to be multiplied then.
"""

from __future__ import annotations

from dataclasses import replace

from polygen.frontend.closure import needed
from polygen.frontend.dtypes import F32, F64
from polygen.frontend.forms import Digit, Form
from polygen.frontend.indices import Affine, Index
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Extent,
    Fold,
    Pointwise,
    Program,
    Statement,
)
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_STEP = 8  # terms of a part are multiples of this, so that rows keep their alignment


def with_split_sum(program: Program, parts: int) -> tuple[Program, str] | None:
    """A program whose only product is of parts of its sum.

    Args:
        program: of one product over one axis, whose extent is a number.
        parts: how many, at most.

    Returns:
        The program, and which fold adds the parts up; None where it is no such program.
    """
    if len(program.contractions) != 1:
        return None
    (product,) = program.contractions
    if len(product.summed) != 1 or product.block or product.dtype not in (F32, F64):
        return None
    (k,) = product.summed
    length = dict(product.domain)[k]
    plain = all(isinstance(index, str) for index in product.write.index)
    if not isinstance(length, int) or not plain or length < parts * _STEP:
        return None
    each = _each(length, parts)
    made = _Split(program, product, k, each, length // each)
    return made.program() if made.operands is not None else None


def _each(length: int, parts: int) -> int:
    """Terms of a part, as many in all parts: of fewer parts where then nothing is left."""
    for count in range(parts, parts // 2, -1):
        if length % (count * _STEP) == 0:
            return length // count
    return length // parts // _STEP * _STEP


class _Split:
    """Makes the statements of a split sum.

    Args:
        program: it is of.
        product: its own.
        k: the axis that is summed.
        each: terms of a part.
        parts: how many.
    """

    def __init__(
        self, program: Program, product: Contraction, k: str, each: int, parts: int
    ) -> None:
        self._program, self._product, self._k = program, product, k
        self._each, self._parts = each, parts
        self._fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self._values = Values(program.statements)
        iterators = {name for one in program.statements for name, _ in one.domain}
        self._part = next(f"p{'_' * n}" for n in range(len(iterators) + 1)
                          if f"p{'_' * n}" not in iterators)  # fmt: skip
        self._copies: dict[tuple[str, int], str | None] = {}
        self._made: list[Statement] = []
        found = [self._split(access, k) for access in product.reads]
        self.operands = None if None in found else [one for one in found if one is not None]

    def program(self) -> tuple[Program, str]:
        """The program, and the fold's result."""
        product, part = self._product, (self._part, self._parts)
        assert self.operands is not None
        own = tuple(pair for pair in product.domain if pair[0] != self._k)
        lhs, rhs = self.operands
        domain = (part, *own, (self._k, self._each))
        split: Statement
        if own:
            sums = Access(self._fresh("w"), (self._part, *product.write.index))
            over = (part, *own)
            split = replace(
                product, name=self._fresh("S"), domain=domain, write=sums, lhs=lhs, rhs=rhs
            )
        else:
            sums = Access(self._fresh("w"), (self._part, self._k))
            over = domain
            split = Pointwise(self._fresh("P"), domain, sums, "mul", (lhs, rhs), product.dtype)
        rest = dict(product.domain)[self._k]
        assert isinstance(rest, int)
        rest -= self._each * self._parts
        whole = Access(self._fresh("v"), product.write.index) if rest else product.write
        fold = Fold(self._fresh("F"), over, whole, "sum", (sums,), product.dtype)
        behind: list[Statement] = [split, fold]
        if rest:
            behind += self._rest(own, rest, whole)
        statements: list[Statement] = []
        for one in self._program.statements:
            statements += [*self._made, *behind] if one == product else [one]
        wanted = [tensor.name for tensor in self._program.outputs]
        left = needed(statements, wanted)
        return replace(self._program, statements=tuple(left)), whole.name

    def _rest(
        self, own: tuple[tuple[str, object], ...], count: int, whole: Access
    ) -> list[Statement]:
        """The product of what no part has, and its sum with theirs."""
        product, first = self._product, self._each * self._parts
        place = Affine(self._k, 1, first)
        reads = [
            replace(one, index=tuple(place if at == self._k else at for at in one.index))
            for one in product.reads
        ]
        write = Access(self._fresh("w"), product.write.index)
        domain = (*product.domain[:-1], (self._k, count))
        rest = replace(
            product, name=self._fresh("S"), domain=domain, write=write, lhs=reads[0], rhs=reads[1]
        )
        pairs = tuple(pair for pair in product.domain if pair[0] != self._k)
        both = Pointwise(
            self._fresh("P"), pairs, product.write, "add", (whole, write), product.dtype
        )
        return [rest, both]

    # --- what the parts multiply -----------------------------------------------------------------
    def _split(self, access: Access, k: str) -> Access | None:
        """An access by part and term in the place of the axis; None where there is no such."""
        index: list[tuple[Index, ...]] = []
        name = access.name
        for at, place in enumerate(access.index):
            if place != k:
                if k in getattr(place, "iterators", ()) or getattr(place, "iterator", "") == k:
                    return None
                index.append((place,))
            elif access.name in self._program.tensors:
                form = Form((Digit(self._part, self._each), Digit(k)))
                index.append((form,))
            else:
                made = self._copy(access.name, at)
                if made is None:
                    return None
                name = made
                index.append((self._part, k))
        return replace(access, name=name, index=tuple(p for places in index for p in places))

    def _copy(self, value: str, axis: int) -> str | None:
        """The value by part and term in the place of one of its axes, by name."""
        if (value, axis) not in self._copies:
            self._copies[value, axis] = self._copied(value, axis)
        return self._copies[value, axis]

    def _copied(self, value: str, axis: int) -> str | None:
        one = self._values.writers[value]
        if not isinstance(one, Pointwise) or not isinstance(one.write.index[axis], str):
            return None
        k = one.write.index[axis]
        assert isinstance(k, str)
        args: list[Argument] = []
        for arg in one.args:
            if isinstance(arg, Constant | Extent):
                args.append(arg)
                continue
            found = self._split(arg, k) if isinstance(arg, Access) else None
            if found is None:
                return None
            args.append(found)
        index = [(self._part, k) if at == axis else (p,) for at, p in enumerate(one.write.index)]
        write = Access(self._fresh("w"), tuple(p for places in index for p in places))
        pairs = [
            ((self._part, self._parts), (k, self._each)) if pair[0] == k else (pair,)
            for pair in one.domain
        ]
        domain = tuple(pair for each in pairs for pair in each)
        self._made.append(
            replace(one, name=self._fresh("P"), domain=domain, write=write, args=tuple(args))
        )
        return write.name
