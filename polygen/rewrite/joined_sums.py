"""Sums of products over parts of one axis, of which a chain goes on: one product over all of it.

    v3[i,j] = cast(f(q[i,j], ...))         j < 32      v8[i,j] = cast(g(q[i,j], ...))     j < 32
    v4[i,j] += v3[i,k] * w[j,k]            k < 32      v9[i,j] += v8[i,k] * w[j,k+32]     k < 32
    v10[i,j] = add(v4[i,j], v9[i,j])
                                            ->
    w2[i,j] = where(j < 32, v3[i,(j mod 32)], v8[i,(j mod 32)])                           j < 64
    v10[i,j] += w2[i,k] * w[j,k]                                                          k < 64

A concatenation that a product sums over is a sum of products (`polygen.frontend.joining`), as of
halves that rotary embeddings turn. A chain has one product there. So its operand is put together
again: at every place of the whole axis each part is computed, at the place modulo its own extent,
and one of them is taken.

1. Both sums are f32, and so is what they are added in: reals are added in another order, and no
   rounding is left out. Nothing else reads the parts' sums.
2. A part begins at a multiple of its extent, so that its places are digits of those of the whole.
3. What products multiply is made of no product's sums, by statements that map at their own points,
   of arguments and of values that have no such axis, folds of rows (`polygen.rewrite.at_digits`).
   What all parts read one behind the other is read as one.
4. Products of the same rows stay several: they are one stage (`polygen.rewrite.layers`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from polygen.frontend.closure import multiplies_sums, needed
from polygen.frontend.dtypes import BOOL, F32, TF32, DType
from polygen.frontend.forms import Form
from polygen.frontend.indexing import form_of, index_of
from polygen.frontend.program import (
    Access,
    Argument,
    Constant,
    Contraction,
    Coordinate,
    Dim,
    Gathered,
    Index,
    Pointwise,
    Program,
    Statement,
    Within,
)
from polygen.rewrite.at_digits import AtDigits, Digits, access_at
from polygen.rewrite.simplify import Fresh
from polygen.rewrite.values import Values

_MOST = 64  # programs
Domain = tuple[tuple[str, Dim], ...]


@functools.lru_cache(maxsize=_MOST)
def joined_sums(program: Program) -> Program:
    """The chain whose sums over parts of one axis are products over all of it; itself without."""
    if not multiplies_sums(program) or program.rest is not None:
        return program
    while True:
        sums = map(_Joining(program).sum_of, reversed(program.pointwise))  # the longest ones first
        found = next((one for one in sums if one is not None), None)
        if found is None:
            return program
        program = found


@dataclass(frozen=True, slots=True)
class _Parts:
    """An axis in parts.

    Attributes:
        starts: where each begins.
        extents: how long each is.
    """

    starts: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def total(self) -> int:
        """How long the axis is."""
        return sum(self.extents)

    @property
    def digits(self) -> list[Digits]:
        """The place in each part, as a digit of that on the axis."""
        return [Digits(((1, extent),), self.total) for extent in self.extents]


class _Joining:
    """One program, of which sums are joined."""

    def __init__(self, program: Program) -> None:
        self.program, self.values = program, Values(program.statements)
        self.fresh = Fresh(program.statements, [*program.tensors, *program.sizes])
        self.readers: dict[str, list[Statement]] = {}
        for one in program.statements:
            for name in {access.name for access in one.reads}:
                self.readers.setdefault(name, []).append(one)
        self.made: list[Pointwise] = []
        self.at_digits = AtDigits(self.values, self.fresh, self.made.append)

    def sum_of(self, total: Pointwise) -> Program | None:
        """The program with one product in the place of a sum of several; None: it is none."""
        products = self._products(total)
        if len(products) < 2 or not _alike(products):
            return None
        extents = [dict(one.domain)[one.summed[0]] for one in products]
        numbers = tuple(one for one in extents if isinstance(one, int))
        starts = (0, *accumulate(numbers))[:-1]
        aligned = all(start % one == 0 for start, one in zip(starts, numbers, strict=True))
        if len(numbers) < len(extents) or not aligned:
            return None
        first, parts = products[0], _Parts(starts, numbers)
        k = first.summed[0]
        lefts, rights = (
            [_renamed(read, {one.summed[0]: k}) for one, read in zip(products, reads, strict=True)]
            for reads in zip(*(one.reads for one in products), strict=True)
        )
        left = _behind_each_other(lefts, k, starts)
        if left is None and len({one.name for one in lefts}) == 1:
            return None  # products of the same rows, which are one stage
        left = left or self._operand(lefts, first, parts)
        right = _behind_each_other(rights, k, starts) or self._operand(rights, first, parts)
        if left is None or right is None:
            return None
        domain = tuple((it, parts.total if it == k else dim) for it, dim in first.domain)
        whole = replace(first, domain=domain, lhs=left, rhs=right, write=total.write)
        statements: list[Statement] = []
        for one in self.program.statements:
            statements += [*self.made, whole] if one is total else [one]
        outputs = [tensor.name for tensor in self.program.outputs]
        return replace(self.program, statements=tuple(needed(statements, outputs)))

    def _products(self, one: Statement) -> list[Contraction]:
        """The products whose sums a value is the sum of, in order; none if it is no such sum."""
        if isinstance(one, Contraction):
            sums = {product.write.name for product in self.program.contractions}
            apart = not any(sums & self.values.behind(access.name) for access in one.reads)
            return [one] if apart and one.dtype == F32 and len(one.summed) == 1 else []
        own = tuple(it for it, _ in one.domain)
        if not isinstance(one, Pointwise) or one.function != "add" or one.dtype != F32:
            return []
        found: list[Contraction] = []
        for arg in one.args:
            writer = self.values.writers.get(arg.name) if isinstance(arg, Access) else None
            if writer is None or not isinstance(arg, Access) or self.readers[arg.name] != [one]:
                return []
            inside = self._products(writer)
            if not inside or arg.index != own or writer.write.index != one.write.index:
                return []
            found += inside
        return found

    # --- operands --------------------------------------------------------------------------------
    def _operand(
        self, reads: Sequence[Access], product: Contraction, parts: _Parts
    ) -> Access | None:
        """What the joined product reads in the place of each part's operand; None: nothing does."""
        k, values = product.summed[0], [one for one in reads if one.name in self.values.writers]
        index: tuple[Index, ...] = tuple(dict.fromkeys(reads[0].iterators))
        own, sizes = tuple(map(str, index)), dict(product.domain)
        if values:
            writer, index = self.values.writers[values[0].name], values[0].index
            own, sizes = tuple(it for it, _ in writer.domain), dict(writer.domain)
        if any(one.index != index for one in values) or index.count(k) != 1 != len(own):
            return None
        at = index.index(k)
        domain = tuple((it, parts.total if n == at else sizes[it]) for n, it in enumerate(own))
        if len(values) == len(reads):
            found = self._same([one.name for one in values], at, parts)
            if found is not None:
                return Access(found, index)
        to = {str(one): it for one, it in zip(index, own, strict=True)}
        made = []
        for one, part in zip(reads, parts.digits, strict=True):
            if one in values:
                made.append(self.at_digits.value(one.name, (at,), part))
            else:
                made.append(self._array(_renamed(one, to), set(own), domain, own[at], part))
        named = [one for one in made if one is not None]
        return Access(self._chosen(named, domain, at, parts), index) if named == made else None

    def _array(
        self, access: Access, own: set[str], domain: Domain, along: str, part: Digits
    ) -> str | None:
        """A part that is an array's, at every place of the whole axis."""
        if not set(access.iterators) <= own or access.indexed_by:
            return None
        found = access_at(access, (along,), part, dict(domain))
        kind = self.program.tensors[access.name].dtype
        kind = F32 if kind == TF32 else kind
        return None if found is None else self._add(domain, "cast", (found,), kind)

    def _chosen(self, made: Sequence[str], domain: Domain, axis: int, parts: _Parts) -> str:
        """The value that is a part's where that part is."""
        own, found = tuple(it for it, _ in domain), made[-1]
        for start, part in reversed(list(zip(parts.starts[1:], made[:-1], strict=True))):
            where = Coordinate(own[axis])
            less = self._add(domain, "lt", (where, Constant(float(start))), BOOL)
            args = (Access(less, own), Access(part, own), Access(found, own))
            found = self._add(domain, "where", args, F32)
        dtype = next(one.dtype for one in self.made if one.write.name == made[0])
        return found if dtype == F32 else self._add(domain, "cast", (Access(found, own),), dtype)

    def _add(self, domain: Domain, function: str, args: tuple[Argument, ...], dtype: DType) -> str:
        """One more statement over a domain; its value."""
        write = Access(self.fresh("w"), tuple(it for it, _ in domain))
        self.made.append(Pointwise(self.fresh("R"), domain, write, function, args, dtype))
        return write.name

    def _same(self, values: Sequence[str], axis: int, parts: _Parts) -> str | None:
        """Parts that are computed alike, of what lies one behind the other: one value."""
        writers = [self.values.writers[name] for name in values]
        maps = [one for one in writers if isinstance(one, Pointwise)]
        own = tuple(it for it, _ in maps[0].domain) if maps else ()
        kinds = {(one.function, one.dtype, one.write.index, len(one.args)) for one in maps}
        its = {tuple(it for it, _ in one.domain) for one in maps}
        if len(maps) < len(writers) or len(kinds) > 1 or its != {maps[0].write.index}:
            return None
        first, it = maps[0], own[axis]
        args: list[Argument] = []
        for each in zip(*(one.args for one in maps), strict=True):
            found = self._same_argument(each, it, parts)
            if found is None:
                return None
            args.append(found)
        domain = tuple((name, parts.total if name == it else dim) for name, dim in first.domain)
        return self._add(domain, first.function, tuple(args), first.dtype)

    def _same_argument(self, args: Sequence[Argument], it: str, parts: _Parts) -> Argument | None:
        """What all parts read, as one; None: they read what does not lie one behind the other."""
        reads = [one for one in args if isinstance(one, Access)]
        places = [Access("", (one.index,)) for one in args if isinstance(one, Coordinate)]
        if len(places) == len(args):
            found = _behind_each_other(places, it, parts.starts)
            return None if found is None else Coordinate(found.index[0])
        if len(reads) < len(args):
            return args[0] if len(set(args)) == 1 else None
        index, computed = reads[0].index, [one.name in self.values.writers for one in reads]
        if not any(computed) or all(it not in one.iterators for one in reads):
            return _behind_each_other(reads, it, parts.starts)
        if not all(computed) or index.count(it) != 1 or any(one.index != index for one in reads):
            return None
        inner = self._same([one.name for one in reads], index.index(it), parts)
        return None if inner is None else Access(inner, index)


def _alike(products: Sequence[Contraction]) -> bool:
    """Whether products are over the same results, and sum alike."""
    first = products[0]
    k = first.summed[0]
    return all(
        (one.write.index, one.exact, one.block, one.factors)
        == (first.write.index, first.exact, 0, ())
        and [(it, dim) for it, dim in one.domain if it != one.summed[0]]
        == [(it, dim) for it, dim in first.domain if it != k]
        for one in products
    )


def _behind_each_other(reads: Sequence[Access], it: str, starts: Sequence[int]) -> Access | None:
    """The access that reads, along the whole axis, what each part's reads; None: none does."""
    first = reads[0]
    if any(one.name != first.name or len(one.index) != len(first.index) for one in reads):
        return None
    found: list[Index] = []
    moved = False
    for at, index in enumerate(first.index):
        others = [one.index[at] for one in reads]
        if it not in Access("", (index,)).iterators:
            if any(one != index for one in others):
                return None
            found.append(index)
            continue
        if any(isinstance(one, Gathered | Within) for one in others):
            return None
        forms = [form_of(one) for one in others if not isinstance(one, Gathered | Within)]
        only, offset = forms[0].only, forms[0].offset
        if only is None or only.per != 1:
            return None
        wanted = [Form((only,), offset + only.scale * start) for start in starts]
        if forms != wanted:
            return None
        found.append(index)
        moved = True
    return Access(first.name, tuple(found)) if moved or len(set(reads)) == 1 else None


def _renamed(access: Access, names: Mapping[str, str]) -> Access:
    """An access over iterators of other names."""
    return Access(access.name, tuple(_over(one, names) for one in access.index))


def _over(index: Index, names: Mapping[str, str]) -> Index:
    if isinstance(index, int | Gathered | Within):
        return index
    form = form_of(index)
    terms = tuple(replace(one, of=names.get(str(one.of), one.of)) for one in form.terms)
    return index_of(replace(form, terms=terms))
